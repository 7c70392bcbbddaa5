"""Stages as functions: what goes in and out, where state lives, and what is dropped on the way."""

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import use_threads
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.kernels.dnnl import library
from graphs.kernels.multiply import PackedProduct
from graphs.program.program import Program
from planner.runtime.stages import compile as compile_module
from planner.runtime.stages.compile import CompiledStage, ShardedState, compile_stages
from simulator.placement import Placement
from simulator.stages import split_stages
from tests.planner.runtime.small import alternating, desk, make_plan, program_of

META = torch.device("meta")


def compiled(
    program: Program, placement: Placement, devices: Sequence[Device] = desk(3).devices
) -> tuple[tuple[CompiledStage, ...], ShardedState]:
    stages, state = compile_stages(program, split_stages(make_plan(program, placement).table, placement), devices)
    return tuple(stages.values()), state


def test_one_device_is_one_function() -> None:
    program = program_of("branches")
    (stage,), state = compiled(program, Placement((1,) * len(program.graph.ops)))
    assert (stage.inputs, stage.outputs, stage.label) == (("x",), ("linear",), "conv2d … linear")
    with torch.no_grad():
        (result,) = stage.call(*program.example_inputs)
        assert torch.equal(result, program.module(*program.example_inputs))
    assert set(state.owned(1)) == set(program.state)
    assert state.owned(0) == state.owned(2) == {}


def test_a_stage_takes_what_others_write_and_gives_what_others_read() -> None:
    # embedding 0 ─► linear 0 ─► gelu 1 ─► linear_1 0
    stages, _ = compiled(program_of("tied"), Placement((0, 0, 1, 0)))
    assert [(stage.inputs, stage.outputs, stage.label) for stage in stages] == [
        (("ids",), ("linear",), "embedding … linear"),
        (("linear",), ("gelu",), "gelu"),
        (("gelu",), ("linear_1",), "linear_1"),
    ]


def test_outputs_of_the_network_leave_even_where_nobody_else_reads_them() -> None:
    # topk on device 1, the rest on 0, so h, lstm's second result, crosses from one stage of device 0 to another
    program = program_of("recurrent")
    devices = [1 if op.name == "topk" else 0 for op in program.graph.ops]
    stages, _ = compiled(program, Placement(tuple(devices)))
    assert [stage.outputs for stage in stages] == [("lstm.1", "add"), ("topk.0", "topk.1"), ("flatten",)]


def test_state_is_not_copied_and_lives_where_it_is_read() -> None:
    program = program_of("branches")
    _, state = compiled(program, alternating(program))
    read = [{t.name for i in range(d, len(program.graph.ops), 3) for t in program.graph.state(program.graph.ops[i])}
            for d in range(3)]  # fmt: skip
    assert [set(state.owned(device)) for device in range(3)] == read
    for device in range(3):
        for name, tensor in state.owned(device).items():
            assert tensor.data_ptr() == program.state[name].data_ptr()
            assert (tensor.requires_grad, tensor.grad_fn) == (program.state[name].requires_grad, None)


def test_operators_that_make_tensors_make_them_on_their_device() -> None:
    """The meta device stands for any that is not the one of the traced model."""

    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.arange(3, device=x.device) * torch.full((3,), 2.0, device=x.device)
            return x * self.weight + y.to(x.device, x.dtype) + torch.zeros_like(x) + torch.tensor([1.0, 2.0, 3.0])

    program = program_from_module(Makes(), (torch.ones(3),))
    with patch.object(compile_module, "torch_device_of", lambda _: META):
        (stage,), state = compiled(program, Placement((0,) * len(program.graph.ops)))
    (result,) = stage.call(torch.ones(3, device=META))
    assert (result.device, result.shape) == (META, (3,))
    assert {tensor.device for tensor in state.owned(0).values()} == {META}


def test_where_results_lie_in_another_order_than_on_the_cpu() -> None:
    """Attention's do on the meta device, which refuses a view that was traced on the CPU."""
    program = program_of("attention")
    with patch.object(compile_module, "torch_device_of", lambda _: META):
        (stage,), _ = compiled(program, Placement((0,) * len(program.graph.ops)))
    (result,) = stage.call(*(tensor.to(META) for tensor in program.example_inputs))
    assert result.shape == (2, 5, 8)


def test_a_value_is_dropped_behind_its_last_use() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x + 1) * 2).relu()

    made: list[weakref.ref[torch.Tensor]] = []
    dead: list[list[bool]] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's
            dead.append([there() is None for there in made])
            result = func(*args, **(kwargs or {}))
            made.append(weakref.ref(result))
            return result

    x = torch.ones(2)
    (stage,), _ = compiled(program_from_module(Chain(), (x,)), Placement((0, 0, 0)))
    with Watch():  # type: ignore[no-untyped-call]  # torch has no types here
        stage.call(x)
    assert dead == [[], [False], [True, False]]  # the multiplication still reads the sum, relu does not


def test_a_model_without_values() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
        program = program_from_module(model, (torch.ones(1, 2),))
    with pytest.raises(InputError) as error:
        compiled(program, Placement((0,)))
    assert str(error.value) == (
        "'weight' has a shape but no values (the model was imported from a config); "
        "give a model with weights, as .pt2 or package.module:factory"
    )


def test_stages_of_some_devices_touch_no_other_state() -> None:
    # embedding 0 ─► linear 1 ─► gelu 0 ─► linear_1 0; of what cpu1 holds there are shapes alone
    program = program_of("tied")
    stages = split_stages(make_plan(program, Placement((0, 1, 0, 0))).table, Placement((0, 1, 0, 0)))
    hollow = {name: tensor.to("meta") if name.startswith("inner") else tensor for name, tensor in program.state.items()}
    here, state = compile_stages(replace(program, state=hollow), stages, desk(3).devices, {0})
    assert {number: stage.label for number, stage in here.items()} == {0: "embedding", 2: "gelu … linear_1"}
    assert set(state.owned(0)) == {"words.weight"}
    assert state.owned(1) == {}
    whole, _ = compile_stages(program, stages, desk(3).devices)
    assert all(here[number].inputs == whole[number].inputs for number in here)
    assert all(here[number].outputs == whole[number].outputs for number in here)
    with pytest.raises(InputError, match=r"'inner\.\w+' has a shape but no values"):
        compile_stages(replace(program, state=hollow), stages, desk(3).devices, {1})


def test_weights_are_packed_on_the_devices_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a weight is packed depends on how many threads will share it."""
    seen: list[tuple[str, int]] = []

    own = PackedProduct.pack

    def spied(product: PackedProduct, weight: torch.Tensor) -> torch.Tensor:
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return own(product, weight)

    monkeypatch.setattr(PackedProduct, "pack", spied)
    program = program_of("tied")
    devices = tuple(replace(device, kernels="quick") for device in desk(3).devices)
    before = use_threads(2)
    try:
        compiled(program, Placement((0, 1, 0, 2)), devices)
    finally:
        use_threads(before)
    assert seen == [("device-cpu1", 1), ("device-cpu2", 1)]


def test_views_of_planned_memory_are_made_once_and_what_they_show_is_computed() -> None:
    class Heads(nn.Module):
        """Attention, whose queries, keys and values are views of products."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
            self.norm = nn.LayerNorm(32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (layer(x).view(2, 96, 4, 8).transpose(1, 2) for layer in self.layers[:3])
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            result: torch.Tensor = self.norm(self.layers[3](mixed.transpose(1, 2).reshape(2, 96, 32)) + x)
            return torch.cat([result, x], 1)

    torch.manual_seed(0)
    network, inputs = Heads().eval(), torch.randn(3, 2, 96, 32)
    program = program_from_module(network, inputs[0])
    (device, *_) = desk(1).devices
    (stage,), _ = compiled(program, Placement((0,) * len(program.graph.ops)), [replace(device, kernels="quick")])
    calls: list[str] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    before = use_threads(1)
    try:
        with torch.no_grad():
            for x in inputs:
                torch.testing.assert_close(stage.call(x)[0], network(x), rtol=1e-4, atol=1e-5)
            with Watch():  # type: ignore[no-untyped-call]  # torch has no types here
                stage.call(inputs[0])
    finally:
        use_threads(before)
    if library():
        assert not any("view" in call or "transpose" in call for call in calls)
