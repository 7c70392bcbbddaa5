"""Stages that are right are found right; what is broken on purpose is found, with the operator that did it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from costmodels.cluster.cluster import Cluster
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.runtime.errors import StageError
from planner.runtime.stages.compile import ShardedState
from planner.runtime.verification.deviation import TOLERANCE
from planner.runtime.verification.verify import Finding, Verification, verify
from simulator.placement import Placement
from tests.planner.runtime.small import CORE, NETWORKS, Tied, alternating, cpu, desk, make_plan, program_of, with_device
from tests.planner.runtime.verification.breaking import broken, failing_for_good

TRAINABLE = ("branches", "recurrent", "tied", "handed", "options", "halves")


def planned(name: str) -> tuple[Plan, Program]:
    program = program_of(name)
    return make_plan(program, alternating(program)), program


def training_plan(program: Program, *device: int) -> Plan:
    cluster = desk(max(device) + 1)
    workload = Workload(mode="training", batch=2, micro_batches=2)
    table = tabulate(program.graph, cluster, workload, {})
    plan = make_plan(program, Placement(device), cluster)
    return replace(plan, workload=workload, table=table, goal=Goal.TRAINING)


@contextmanager
def changed_weight(name: str, device: int) -> Iterator[None]:
    """One device holds another value."""
    get = ShardedState.get

    def changed(state: ShardedState, number: int, asked: str) -> torch.Tensor:
        tensor = get(state, number, asked)
        if (number, asked) == (device, name):
            state._owned[number][asked] = tensor = tensor.clone().add_(0.5)
        return tensor

    with patch.object(ShardedState, "get", changed):
        yield


def found_in(plan: Plan, program: Program, **options: Any) -> Finding:
    finding = verify(plan, program, **options).finding
    assert finding is not None
    return finding


class TestRight:
    @pytest.mark.parametrize("name", NETWORKS)
    def test_inference(self, name: str) -> None:
        plan, program = planned(name)
        found = verify(plan, program)
        assert (found.equal, found.n_gradients, dict(found.tolerance)) == (True, 0, {})
        written = {name for op in program.graph.ops for name in op.outputs}
        assert found.n_tensors >= len(written.intersection(program.graph.outputs))

    @pytest.mark.parametrize("name", TRAINABLE)
    def test_gradients_of_an_inference_plan(self, name: str) -> None:
        plan, program = planned(name)
        found = verify(plan, program, training=True)
        assert found.finding is None
        learns = any(parameter.requires_grad for parameter in program.module.parameters())
        assert (found.n_gradients > 0) == learns

    @settings(max_examples=20)
    @given(st.sampled_from(TRAINABLE), st.data())
    def test_any_placement(self, name: str, data: st.DataObject) -> None:
        program = program_of(name)
        home: dict[str, int] = {}  # operators that read one parameter stay together
        placed = []
        for op in program.graph.ops:
            device = data.draw(st.integers(0, 2))
            for tensor in program.graph.state(op):
                device = home.setdefault(tensor.name, device)
            placed.append(device)
        assert verify(make_plan(program, Placement(tuple(placed))), program, training=True).finding is None

    def test_a_training_plan_is_compared_with_its_gradients(self) -> None:
        program = program_from_module(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), (torch.randn(2, 4),))
        plan = training_plan(program, 0, 0, 1)
        # tanh crosses, and the result; back come tanh's gradient and those of two weights and two biases
        assert verify(plan, program) == Verification(2, 2, 5, {}, None)
        assert verify(plan, program, training=False) == Verification(2, 2, 0, {}, None)

    def test_dropout_and_statistics(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        program = program_from_module(model, (torch.randn(3, 4),), training=True)
        found = verify(training_plan(program, 0, 0, 1, 1, 0), program)
        assert found.finding is None
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
    def test_complex_numbers_may_differ_as_their_parts(self, dtype: torch.dtype) -> None:
        class Turned(nn.Module):
            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return x * 2j, (x * 2j).conj() + 1

        program = program_from_module(Turned(), (torch.randn(2, 4, dtype=dtype),))
        plan = make_plan(program, alternating(program))
        last_digit = 1 + torch.finfo(dtype).eps
        with broken("mul", lambda x, _: x * 2j * last_digit):
            assert verify(plan, program, tolerance=1e-6).equal
            assert found_in(plan, program, tolerance=0).tensor == "mul"
        with broken("mul", lambda x, _: x * 2j * 1.001):
            assert found_in(plan, program, tolerance=1e-6).tensor == "mul"

    def test_nan_equals_nan(self) -> None:
        class Undefined(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x - 2).log().exp()

        program = program_from_module(Undefined(), (torch.ones(3),))
        assert verify(make_plan(program, Placement((0, 1, 2))), program).equal

    def test_a_network_without_operators(self) -> None:
        plan, program = planned("nothing")
        assert verify(plan, program) == Verification(0, 0, 0, {}, None)

    def test_one_device(self) -> None:
        program = program_of("branches")
        found = verify(make_plan(program, Placement((1,) * len(program.graph.ops))), program)
        assert (found.n_stages, found.n_tensors, found.equal) == (1, 1, True)


def relu_and_an_eighth(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 0.125


def a_thousandth_more(*arguments: Any) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.conv2d.default(*arguments) * 1.001
    return result


class Roomy(nn.Module):
    """Makes room, and fills it later."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0] + torch.empty(2, 2).view(4).fill_(2.0)


def test_what_was_in_memory_before_is_not_compared() -> None:
    program = program_from_module(Roomy(), (torch.rand(4, 3),))
    kinds = [op.kind for op in program.graph.ops]
    assert kinds[1:4] == ["aten.empty.memory_format", "aten.view.default", "aten.fill.Scalar"]
    found = verify(make_plan(program, alternating(program)), program)
    assert (found.equal, found.n_tensors) == (True, len(kinds) - 2)


class Steep(torch.autograd.Function):
    """relu, on whose backward pass everything grows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        result: torch.Tensor = gradients[0] * (x > 0) * 1.5
        return result


def steep_relu(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = Steep.apply(x)  # type: ignore[no-untyped-call]  # torch has no types
    return result


CALLS: list[int] = []


def different_every_time(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(0)
    return torch.relu(x) + len(CALLS)


def failing(x: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError(f"on {list(x.shape)}")


class TestBroken:
    """The network `branches`: conv2d batch_norm relu_ conv2d_1 relu__1 conv2d_2 relu__2 ... in turns on three."""

    def test_a_changed_constant(self) -> None:
        plan, program = planned("branches")
        with broken("relu__1", relu_and_an_eighth):
            finding = found_in(plan, program)
        assert (finding.tensor, finding.backward, finding.label, finding.device) == (
            "relu__1",
            False,
            "relu__1",
            "cpu1",
        )
        assert finding.deviation.by == 0.125
        mismatch = finding.mismatch
        assert mismatch is not None
        assert (mismatch.op, mismatch.kind, mismatch.module) == ("relu__1", "aten.relu.default", "left.1")
        assert (mismatch.result, mismatch.deviation.by, mismatch.repeatable) == ("output 'relu__1'", 0.125, True)

    def test_inside_of_a_stage_of_many(self) -> None:
        program = program_of("branches")
        plan = make_plan(program, Placement((0,) * len(program.graph.ops)))
        with broken("relu__1", relu_and_an_eighth):
            finding = found_in(plan, program)
        assert (finding.tensor, finding.label, finding.stage) == ("linear", "conv2d … linear", 0)
        assert finding.mismatch is not None
        assert finding.mismatch.op == "relu__1"

    def test_the_first_of_two(self) -> None:
        plan, program = planned("branches")
        with broken("relu__2", relu_and_an_eighth), broken("relu_", relu_and_an_eighth):
            finding = found_in(plan, program)
        assert finding.mismatch is not None
        assert finding.mismatch.op == "relu_"

    @pytest.mark.parametrize("training", [False, True])
    def test_a_wrong_weight_on_a_device(self, training: bool) -> None:
        plan, program = planned("branches")
        device = plan.placement.device[program.graph.index["conv2d_2"]]
        with changed_weight("right.0.bias", device):
            finding = found_in(plan, program, training=training)
        assert finding.mismatch is not None
        assert (finding.mismatch.op, finding.mismatch.module) == ("conv2d_2", "right.0")
        assert finding.deviation.by == pytest.approx(0.5)

    def test_an_operator_that_is_not_repeatable(self) -> None:
        plan, program = planned("branches")
        with broken("relu__2", different_every_time):
            finding = found_in(plan, program)
        assert finding.mismatch is not None
        assert (finding.mismatch.op, finding.mismatch.repeatable) == ("relu__2", False)

    def test_none_that_is_to_blame(self) -> None:
        """What went wrong once."""
        plan, program = planned("branches")
        CALLS.clear()

        def once(x: torch.Tensor) -> torch.Tensor:
            CALLS.append(0)
            return torch.relu(x) + (1 if len(CALLS) == 1 else 0)

        with broken("relu__2", once):
            finding = found_in(plan, program)
        assert (finding.tensor, finding.mismatch) == ("relu__2", None)

    def test_a_result_of_another_form(self) -> None:
        plan, program = planned("tied")

        def half(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(x)[:, :3]

        with broken("gelu", half):
            finding = found_in(plan, program)
        assert str(finding.deviation) == "[1, 3, 4] float32, not [1, 5, 4] float32"

    def test_the_way_back(self) -> None:
        plan, program = planned("branches")
        with broken("relu__1", steep_relu):
            assert verify(plan, program).equal
            found = verify(plan, program, training=True)
        finding = found.finding
        assert finding is not None
        assert found.n_tensors == 13
        assert finding.backward
        assert finding.mismatch is not None
        assert (finding.mismatch.op, finding.mismatch.result) == ("relu__1", "gradient of 'conv2d_1'")
        assert finding.mismatch.deviation.share <= 0.5

    def test_the_way_back_to_a_parameter(self) -> None:
        class Scale(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.tensor([1.0, -1.0, 2.0]))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.weight.relu() * x

        program = program_from_module(Scale(), (torch.randn(3),))
        with broken("relu", steep_relu):
            finding = found_in(training_plan(program, 0, 1), program)
        assert (finding.tensor, finding.backward, finding.device) == ("weight", True, "cpu0")
        assert finding.mismatch is not None
        assert (finding.mismatch.op, finding.mismatch.result) == ("relu", "gradient of 'weight'")

    def test_a_stage_that_fails(self) -> None:
        plan, program = planned("branches")
        with failing_for_good("relu__1", failing), pytest.raises(StageError) as error:
            verify(plan, program)
        assert str(error.value) == "stage 4 on 'cpu1' failed: ZeroDivisionError: on [2, 2, 4, 4]"
        assert isinstance(error.value.__cause__, ZeroDivisionError)


class TestTolerance:
    def test_a_share_of_the_largest_element(self) -> None:
        plan, program = planned("branches")
        with broken("conv2d_2", a_thousandth_more):
            assert not verify(plan, program).equal
            assert not verify(plan, program, tolerance=1e-4).equal
            assert verify(plan, program, tolerance=1e-2).equal
        with pytest.raises(InputError, match=r"^the tolerance is 1\.0; it must be a number from 0 to below 1$"):
            verify(plan, program, tolerance=1.0)

    def test_devices_of_two_kinds_have_one_by_dtype(self) -> None:
        plan, program = planned("branches")
        other = with_device(plan, 2, replace(cpu("cpu2"), kind="other"))
        assert verify(other, program).tolerance == TOLERANCE
        assert verify(other, program, tolerance=0.0).tolerance == {}
        unused = make_plan(program, Placement((0,) * len(program.graph.ops)))
        assert verify(with_device(unused, 2, replace(cpu("cpu2"), kind="other")), program).tolerance == {}


class TestRefused:
    def test_another_model(self) -> None:
        plan, _ = planned("branches")
        with pytest.raises(InputError, match=r"^the plan is for 'Branches'"):
            verify(plan, program_of("tied"))

    def test_a_device_that_is_not_here(self) -> None:
        plan, program = planned("tied")
        with pytest.raises(InputError, match=r"^device 'cpu1' has neither cores nor cuda"):
            verify(with_device(plan, 1, cpu("cpu1", cores=())), program)

    def test_weights_without_values(self) -> None:
        with torch.device("meta"):
            program = program_from_module(Tied(), (torch.zeros(1, 5, dtype=torch.int64),))
        with pytest.raises(InputError, match=r"'words\.weight' has a shape but no values"):
            verify(make_plan(program, alternating(program)), program)

    def test_chance_on_a_gpu_and_a_cpu(self) -> None:
        program = program_from_module(nn.Sequential(nn.Dropout(0.5), nn.ReLU()), (torch.ones(3),), training=True)
        gpu = replace(cpu("gpu0", cores=()), cuda=0)
        cluster = Cluster("mixed", (cpu("cpu0", (CORE,)), gpu), desk(2).links[:0])
        plan = make_plan(program, Placement((0, 0)), cluster)
        with pytest.raises(InputError) as error:
            verify(replace(plan, placement=Placement((0, 1))), program)
        assert str(error.value).startswith("operator 'dropout' draws other random numbers on a GPU than on a CPU, so ")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_a_cpu_and_a_gpu(name: str, training: bool, which: int) -> None:
    plan, program = planned(name)
    mixed = with_device(plan, which, replace(cpu(f"cpu{which}", cores=()), cuda=0))
    found = verify(mixed, program, training=training)
    assert found.tolerance == TOLERANCE
    assert found.finding is None
