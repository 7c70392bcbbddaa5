"""An operator that PyTorch has for one kind of device is placed on no other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import planner
from costmodels.cluster.cluster import Device
from costmodels.operators.device_kinds import GPUS, PROCESSORS, only_on, runs_on
from graphs.common.errors import InputError
from graphs.ir import Op

BOTH = "EPYC-7763+2xRTX-4090:PCIe4"
ON_PAPER = Device("a", "a", 1e9, {"float32": 1e9}, 1e9)
COMPOSED = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
PROCESSORS_OWN = ("CPU", "MkldnnCPU", "QuantizedCPU", "SparseCPU", "SparseCsrCPU", "NestedTensorCPU")
UNPLACED = ("aten._nested_", "aten._copy_from", "aten._resize_output_", "aten.record_stream", "aten._spsolve")
"""Operators of tensors of other kinds, and of memory, which no traced network has."""

CALLS_ITS_OWN = ("quantized.", "aten.fbgemm_", "mkldnn._is_", "aten.to_mkldnn_backward")
"""Operators that are registered as composed ones, of code for processors."""

BACKWARD_OF_MPS = "aten.max_pool2d_backward"


def registered() -> dict[str, set[str]]:
    """The keys for which this PyTorch has kernels, of its operators by the names that graphs have for them."""
    names = torch._C._dispatch_get_all_op_names()
    assert not torch.version.cuda, "this test says what a PyTorch for processors has"
    known = {
        name: {key for key in (*COMPOSED, *PROCESSORS_OWN) if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)}
        for name in names
        if name.startswith(("aten::", "mkldnn::", "onednn::", "quantized::", "mkl::"))
    }
    return {name.replace("::", ".", 1): keys for name, keys in known.items()}


def test_what_only_gpus_have_is_what_a_pytorch_for_processors_has_not() -> None:
    without = {name for name, keys in registered().items() if not keys and name.startswith("aten.")}
    placed = {name for name in without if not name.startswith((*UNPLACED, BACKWARD_OF_MPS))}
    assert len(placed) > 80
    assert {name for name in placed if not GPUS.match(name)} == set()
    assert {name for name, keys in registered().items() if "CPU" in keys and GPUS.match(name)} == set()


def test_what_only_processors_have_is_composed_of_nothing_else() -> None:
    own = {name: keys for name, keys in registered().items() if PROCESSORS.match(name)}
    assert len(own) > 100
    assert not any(PROCESSORS.match(name) and GPUS.match(name) for name in registered())
    composed = {name for name, keys in own.items() if "CompositeImplicitAutograd" in keys}
    assert {name for name in composed if not name.startswith(CALLS_ITS_OWN)} == set()


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("aten._weight_int4pack_mm_for_cpu.default", "processors"),
        ("aten._weight_int4pack_mm.default", "GPUs"),
        ("aten._weight_int8pack_mm.default", ""),
        ("aten._convert_weight_to_int4pack_for_cpu.default", "processors"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "processors"),
        ("aten._scaled_dot_product_flash_attention.default", "GPUs"),
        ("aten.scaled_dot_product_attention.default", ""),
        ("mkldnn._linear_pointwise.default", "processors"),
        ("quantized.linear.default", "processors"),
        ("quantized_decomposed.quantize_per_tensor.default", ""),
        ("torchao.da8w4_linear_cpu.default", "processors"),
        ("aten.cudnn_convolution.default", "GPUs"),
        ("aten.mm.dtype", "GPUs"),
        ("aten.mm.default", ""),
    ],
)
def test_where_an_operator_runs(kind: str, where: str) -> None:
    op = Op("op", kind, (), ("y",))
    fused = Op("both", "aten.relu.default", (), ("y",), members=(Op("relu", "aten.relu.default", (), ("x",)), op))
    assert only_on(op) == only_on(fused) == where
    host, gpu = replace(ON_PAPER, cores=(0,)), replace(ON_PAPER, cuda=0)
    for device, able in ((host, where != "GPUs"), (gpu, where != "processors"), (ON_PAPER, True)):
        assert runs_on((op, fused), device).tolist() == [able, able]


class Packed(nn.Module):
    """A network with attention for processors between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.first(x).view(1, 8, 4, 16)
        attended = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(heads, heads, heads)[0]
        result: torch.Tensor = self.last(attended.reshape(8, 64))
        return result


X = torch.zeros(8, 64)
NAME = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize("goal", ["throughput", "latency", "cost", "training"])
def test_a_plan_keeps_it_where_it_runs(goal: str) -> None:
    plan = planner.plan(Packed(), X, cluster=BOTH, goal=goal)
    names = [plan.cluster.devices[device].name for device in plan.placement.device]
    where = dict(zip(plan.table.ops, names, strict=True))
    assert where[NAME] == "cpu0"
    assert "gpu0" in where.values()  # where everything else would be quicker
    number = plan.table.ops.index(NAME)
    assert np.isinf(plan.table.forward_s[number]).tolist() == [False, True, True]


def test_a_pin_elsewhere_is_said_why() -> None:
    with pytest.raises(planner.NoPlanError) as error:
        planner.plan(Packed(), X, cluster=BOTH, constraints=[planner.pin(NAME, "gpu0")])
    assert f"no device is left for operator '{NAME}', which PyTorch has for processors alone" in str(error.value)
    assert f"'pin {NAME} to gpu0'" in str(error.value)


def test_a_cluster_without_such_a_device_is_refused() -> None:
    with pytest.raises(InputError) as error:
        planner.plan(Packed(), X, cluster="2xRTX-4090:PCIe4")
    assert str(error.value) == (
        f"operator '{NAME}' of 'Packed' (aten.{NAME}.default) is one that PyTorch has for processors alone, and "
        "'2xRTX-4090:PCIe4' has none; add one, or give the model as it is for the devices that there are"
    )
