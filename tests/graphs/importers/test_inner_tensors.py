"""Weights in int8 and int4, as torchao keeps them: their bytes, their tokens, and what their products cost."""

from math import prod
from typing import Any

import pytest
import torch
from torch import nn

import planner
from costmodels.memory.device import op_bytes
from costmodels.operators.flops import work_of
from graphs.importers.from_torch import program_from_module
from graphs.ir import Role
from tests.planner.runtime.generation.tiny import CONTEXT, cut, hf
from tests.planner.runtime.small import desk

pytest.importorskip("torchao")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}


def quantised(module: nn.Module, bits: int) -> Any:
    """The module with the weights of its linear layers in torchao's format."""
    from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(module, Int8WeightOnlyConfig() if bits == 8 else PrototypeInt4WeightOnlyConfig(group_size=32))
    return module


def llama() -> Any:
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2)).eval()
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1
    return model


@pytest.mark.parametrize("bits", [8, 4])
def test_a_model_with_fewer_bits_generates_its_own_tokens(bits: int) -> None:
    plain = llama()
    weights = [layer.weight.shape for layer in plain.modules() if isinstance(layer, nn.Linear)]
    model = quantised(plain, bits)
    prompt = [1, 2, 3]
    expected = model.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, 3:].tolist()
    assert len(set(expected)) > 2
    program = planner.generation_program(model, context=CONTEXT, chunks=())
    graph = program.decode.graph
    kept = {t.name: t.n_bytes for t in graph.tensors if t.role is Role.PARAMETER and "norm" not in t.name}
    n_bytes = sum(prod(shape) * bits // 8 for shape in weights)  # and a scale a row, or a scale and a zero for 32 of it
    n_bytes += sum(4 * shape[0] if bits == 8 else 2 * 4 * prod(shape) // 32 for shape in weights)
    assert sum(kept.values()) == n_bytes + 64 * 64 * 4  # and the table of words in float32
    norms = (2 * 2 + 1) * 64 * 4
    rotations = sum(t.n_bytes for t in graph.tensors if t.role is Role.BUFFER)
    caches = 2 * 2 * 2 * CONTEXT * 16 * 4
    assert op_bytes(graph).sum() == sum(kept.values()) + norms + rotations + caches
    with planner.GenerationRunner(cut(program, 2), program) as runner:
        assert runner.generate([prompt], 12, stops=()) == [expected]
        held = [runner.owned(device) for device in ("cpu0", "cpu1")]
    assert not any(hasattr(tensor, "__tensor_flatten__") for device in held for tensor in device.values())
    assert sum(tensor.nbytes for device in held for tensor in device.values()) <= op_bytes(graph).sum() - caches


def test_a_product_by_four_bits_has_the_work_of_a_product() -> None:
    program = program_from_module(quantised(nn.Sequential(nn.Linear(64, 32, bias=False)), 4), torch.ones(3, 64))
    (product,) = (op for op in program.graph.ops if op.kind == "aten._weight_int4pack_mm_for_cpu.default")
    assert work_of(program.graph).flop[program.graph.index[product.name]] == 2 * 3 * 64 * 32


def test_a_layer_in_eight_bits_runs_on_a_plan() -> None:
    torch.manual_seed(0)
    model = quantised(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)), 8)
    x = torch.randn(3, 64)
    with torch.no_grad():
        expected = model(x)
    plan = planner.plan(model, x, cluster=desk(2))
    with planner.start(plan, model) as runner:
        assert torch.equal(runner(x), expected)
