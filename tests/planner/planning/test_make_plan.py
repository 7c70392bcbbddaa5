"""From a model to a plan: what is filled in, what is preferred, what is refused."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import planner
from costmodels.cluster.cluster import Cluster, Device, Link
from graphs.importers.from_torch import program_from_module
from planner.planning.last_moves import SCATTER_MARGIN
from planner.planning.make_plan import CONTIGUOUS, batch_of


def pair(memory_bytes: float = 1e9, overhead_s: float = 0.0) -> Cluster:
    devices = tuple(
        Device(f"dev{i}", "cpu", memory_bytes, {"float32": 1e9}, 1e12, overhead_s=overhead_s) for i in range(2)
    )
    return Cluster("pair", devices, (Link("dev0", "dev1", 1e12), Link("dev1", "dev0", 1e12)))


def uneven() -> nn.Module:
    """Widths that no single cut divides evenly: 5 + 2 + 4 + 10 of 21 parts, in FLOP."""
    widths = [100, 500, 40, 1000, 100]
    return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(widths)))


X = torch.ones(8, 100)


def test_workload_follows_from_the_shapes_and_the_devices() -> None:
    plan = planner.plan(uneven(), (X,), cluster=pair())
    assert (plan.workload.batch, plan.workload.in_flight) == (8, 4)


def test_a_module_a_program_and_a_graph_give_the_same_plan() -> None:
    module = uneven()
    program = program_from_module(module, (X,))
    plans = [planner.plan(given, (X,), cluster=pair()) for given in (module, program, program.graph)]
    assert len({plan.placement for plan in plans}) == 1


@pytest.mark.parametrize("goal", ["throughput", "latency"])
def test_the_bound_holds_and_the_gap_follows(goal: str) -> None:
    plan = planner.plan(uneven(), (X,), cluster=pair(), goal=goal, search=planner.Search(gap=0.0))
    assert 0 < plan.bound_s <= plan.objective_s
    assert plan.gap == pytest.approx(1 - plan.bound_s / plan.objective_s)


def test_a_scattered_plan_has_to_stream_faster_than_the_contiguous_one() -> None:
    program = program_from_module(uneven(), (X,))
    for in_flight in (1, 2, 8):
        workload = planner.Workload(batch=8, in_flight=in_flight)
        auto, contiguous = (
            planner.plan(
                program, cluster=pair(), workload=workload, search=planner.Search(solver, gap=0.0, rewrites="none")
            )
            for solver in ("auto", CONTIGUOUS)
        )
        assert auto.period_s <= contiguous.period_s
        scattered = auto.placement != contiguous.placement
        assert not scattered or auto.period_s < contiguous.period_s * (1 - SCATTER_MARGIN)


def test_one_in_flight_leaves_nothing_to_stream() -> None:
    """Alone, a micro-batch takes the sum wherever it is cut, so nothing beats the contiguous placement."""
    workload = planner.Workload(batch=8, in_flight=1)
    plan = planner.plan(uneven(), (X,), cluster=pair(), workload=workload, search=planner.Search(gap=0.0))
    assert plan.placement.device in ((0, 0, 0, 1), (0, 1, 1, 1), (0, 0, 0, 0), (0, 0, 1, 1))
    assert plan.period_s == pytest.approx(plan.latency_s)


def test_no_room_is_an_error_with_the_answer_in_it() -> None:
    with pytest.raises(planner.NoPlanError, match="no plan \\(infeasible\\)") as raised:
        planner.plan(uneven(), (X,), cluster=pair(memory_bytes=1e4))
    assert raised.value.result.status is planner.Status.INFEASIBLE


def test_a_module_needs_example_inputs() -> None:
    with pytest.raises(
        planner.InputError, match="a 'Sequential' needs example_inputs, one micro-batch: a tensor, a tuple or list"
    ):
        planner.plan(uneven(), cluster=pair())


def test_a_network_without_operators_has_no_plan() -> None:
    with pytest.raises(planner.InputError, match="no operators, so there is nothing to place"):
        planner.plan(nn.Identity(), (torch.ones(2),), cluster=pair())


def test_a_scalar_input_has_no_batch() -> None:
    program = program_from_module(nn.Identity(), (torch.tensor(1.0),))
    assert batch_of(program.graph) == 1


def test_what_was_imported_as_it_is_trained_is_for_training() -> None:
    program = program_from_module(nn.Sequential(nn.Linear(100, 10), nn.Dropout()), (X,), training=True)
    with pytest.raises(planner.InputError) as error:
        planner.plan(program, cluster=pair())
    assert str(error.value) == (
        "'Sequential' was imported as it is trained, which only the goal 'training' is for; "
        "import it without training=True"
    )
    graph = program.graph  # by itself it may be planned for: there is nothing to run
    plan = planner.plan(graph, cluster=pair())
    with pytest.raises(planner.InputError) as error:
        planner.start(plan, program)
    assert str(error.value) == "'Sequential' was imported as it is trained; import it without training=True"


def test_what_a_training_step_is_where_nobody_says() -> None:
    module = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 100))
    closed, fastest = (
        planner.plan(module, (X,), cluster=pair(), goal="training", workload=workload)
        for workload in (planner.OpenWorkload(schedule="1f1b"), None)
    )
    assert closed.workload == planner.Workload("training", batch=8, micro_batches=8)
    assert fastest.workload.batch * fastest.workload.micro_batches * fastest.replicas == 8 * 8
    assert fastest.samples_per_s > closed.samples_per_s


@pytest.mark.parametrize("name", ["schedule", "micro_batches", "replicas"])
def test_what_only_a_training_step_has_is_refused_for_another_goal(name: str) -> None:
    asked = {"schedule": "gpipe", "micro_batches": 4, "replicas": 2}
    workload = planner.OpenWorkload(**{name: asked[name]})  # type: ignore[arg-type]  # each has its own type
    told = f"{name.replace('_', '-')} is for training and the goal is latency; leave it out"
    with pytest.raises(planner.InputError, match=told):
        planner.plan(nn.Linear(100, 10), (X,), cluster=pair(), goal="latency", workload=workload)


def test_a_program_trains_in_micro_batches_of_its_own_size() -> None:
    """Other sizes need the module that it was made from."""
    program = program_from_module(nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 100)), (X,), training=True)
    plan = planner.plan(program, cluster=pair(), goal="training")
    assert (plan.workload.batch, plan.workload.micro_batches * plan.replicas) == (8, 8)


def test_inputs_of_several_first_dimensions_are_not_resized() -> None:
    """It is not known which of the two is the batch, so the plan keeps to the samples as they are given."""

    class Looking(nn.Module):
        def forward(self, table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return x @ table

    plan = planner.plan(Looking(), (torch.ones(100, 10), X), cluster=pair(), goal="training")
    assert plan.graph.tensor[plan.graph.inputs[1]].shape == (8, 100)


def test_for_training_a_module_is_imported_as_it_is_trained() -> None:
    module = nn.Sequential(nn.Linear(100, 10), nn.BatchNorm1d(10), nn.Dropout()).eval()
    training = planner.Workload(mode="training", batch=8)
    trained = planner.plan(module, (X,), cluster=pair(), goal="training", workload=training)
    used = planner.plan(module, (X,), cluster=pair())
    assert [op.attrs.get("train", op.attrs.get("training")) for op in trained.graph.ops] == [None, True, True]
    assert [op.attrs.get("train", op.attrs.get("training")) for op in used.graph.ops] == [None, False, False]
