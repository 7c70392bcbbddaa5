"""Plans that are trained by ranks in processes of their own, on torch.distributed.pipelining.

All cases with as many ranks share their processes, which take seconds to start.
"""

import multiprocessing
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.checkpoint.shards import read_shard, write_shards
from planner.runtime.distributed.training import part as pipeline_part
from planner.runtime.distributed.training.trainer import PipelineTrainer
from planner.runtime.distributed.transport.checksums import sealed, unsealed
from planner.runtime.errors import RankError, StageError
from planner.runtime.training.options import Scaling, TrainerOptions
from planner.runtime.training.trainer import Trainer
from tests.planner.runtime.distributed.pipelines import (
    BATCH,
    Case,
    Done,
    attempt,
    data_of,
    loss_of,
    model_of,
    on_threads,
    plan_for,
    program_for,
    rank_of,
    run,
    sgd,
    whole,
)

pytestmark = pytest.mark.slow

HALVES = ("layers.1.first",)
THIRDS = ("layers.0.second", "layers.2.first")
HIGH = Scaling(initial=2.0**24, interval=3)  # overflows at first, and grows soon
QUARTERS = ("layers.0.second", "layers.1.second", "layers.2.first")
TWO = {
    "transformer": Case("transformer", HALVES),
    "skipping": Case("skipping", ("norm",)),
    "skipping of many": Case("skipping", ("norm",), 4, steps=2),
    "recomputing": Case("skipping", ("norm",), 4, steps=2, trainer_options=TrainerOptions(recompute="full")),
    "gpipe": Case("transformer", HALVES, 4, "gpipe", 2),
    "1f1b": Case("transformer", HALVES, 4, "1f1b", 2),
    "zb-h1": Case("transformer", HALVES, 4, "zb-h1", 2),
    "zb-h2": Case("transformer", HALVES, 4, "zb-h2", 2),
    "selective zb-h1": Case(
        "transformer", HALVES, 4, "zb-h1", 2, trainer_options=TrainerOptions(recompute="selective")
    ),
    "interleaved": Case("transformer", QUARTERS, 4, "interleaved", 2),
    "breadth-first": Case("transformer", QUARTERS, 4, "breadth-first", 2),
    "zbv": Case("transformer", QUARTERS, 4, "zbv", 2),
    "handing": Case("handing", ("inner", "linear_2", "end"), 4, "interleaved", 2),
    "frozen": Case("frozen", ("layers.1.first",), 2),
    "frozen zb-h1": Case("frozen", ("layers.1.first",), 2, "zb-h1"),
    "ignoring": Case("transformer", HALVES, 3, steps=2, ignores=True),
    "ignoring zb-h1": Case("transformer", HALVES, 3, "zb-h1", 2, ignores=True),
}
BY_CHANCE = {
    "dropout": Case("dropout", HALVES, 2, steps=2, trainer_options=TrainerOptions(seed=3)),
    "dropout again": Case("dropout", HALVES, 2, steps=2, trainer_options=TrainerOptions(seed=3, recompute="full")),
    "dropout in part again": Case(
        "dropout", HALVES, 4, "zb-h1", 2, trainer_options=TrainerOptions(seed=3, recompute="selective")
    ),
    "recurrent in part again": Case(
        "recurrent", ("head",), 4, steps=2, trainer_options=TrainerOptions(seed=3, recompute="selective")
    ),
    "clipped": Case("transformer", HALVES, 2, steps=2, trainer_options=TrainerOptions(clip_norm=0.1)),
    "replicas": Case("dropout", (), 2, steps=2, trainer_options=TrainerOptions(seed=3, clip_norm=0.1), replicas=2),
    "ignoring replicas": Case(
        "transformer", (), 2, steps=2, trainer_options=TrainerOptions(clip_norm=0.1), replicas=2, ignores=True
    ),
}
MIXED = {
    "bfloat16": Case("skipping", ("norm",), 2, steps=2, trainer_options=TrainerOptions(autocast=torch.bfloat16)),
    "float16": Case(
        "skipping", ("norm",), 2, steps=6, trainer_options=TrainerOptions(autocast=torch.float16, scaling=HIGH)
    ),
    "float16 zb-h1": Case("skipping", ("norm",), 2, "zb-h1", 2, trainer_options=TrainerOptions(autocast=torch.float16)),
}
STRAIGHT = Case("dropout", HALVES, 2, steps=3, trainer_options=TrainerOptions(seed=3))
"""Four steps, which others take in two halves."""
THREE = {
    "transformer": Case("transformer", THIRDS),
    "transformer of many": Case("transformer", THIRDS, 6, steps=2),
    "skipping": Case("skipping", ("a", "b")),
}


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the parts of two ranks, and one file with the state of threads behind the first two steps."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "parts").mkdir()
    torch.save(on_threads(replace(STRAIGHT, steps=1, cuts=THIRDS)).whole, folder / "threads.pt")
    return folder


def with_shards(case: Case, folder: Path) -> Case:
    program = program_for(case)
    write_shards(plan_for(case, program), program, folder)
    return replace(case, folder=str(folder))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, saved: Path) -> Mapping[str, list[Done]]:
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "odd parts").mkdir()
    odd = Case("odd", ("middle",), 2, steps=1, save=str(folder / "odd parts"))
    cases = {
        **TWO,
        **BY_CHANCE,
        **MIXED,
        "shards": with_shards(TWO["transformer"], folder / "shards"),
        "odd": with_shards(odd, folder / "odd"),
        "first half": replace(STRAIGHT, steps=1, save=str(saved / "parts")),
        "second half": replace(STRAIGHT, steps=1, begin=2, resume=str(saved / "threads.pt")),
    }
    return dict(zip(cases, run(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def three(saved: Path, two: Mapping[str, list[Done]]) -> Mapping[str, list[Done]]:
    assert two["first half"]  # has saved its parts
    second = replace(STRAIGHT, cuts=THIRDS, steps=1, begin=2, resume=str(saved / "parts"))
    cases = {**THREE, "second half": second}
    return dict(zip(cases, run(list(cases.values())), strict=True))


def joined(parts: Sequence[Mapping[str, torch.Tensor | None]]) -> dict[str, torch.Tensor]:
    """What all ranks have, each tensor on one of them."""
    found: dict[str, torch.Tensor] = {}
    for part in parts:
        for name, tensor in part.items():
            assert name not in found
            assert tensor is not None
            found[name] = tensor
    return found


def assert_trained_as_a_whole(case: Case, dones: Sequence[Done]) -> None:
    expected = whole(case)
    gradients = joined([done.gradients for done in dones])
    assert gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        assert gradient is not None
        if case.micro_batches == 1:
            assert torch.equal(gradients[name], gradient), name
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-6, atol=1e-12)
    for done in dones:
        assert done.losses == pytest.approx(expected.losses, rel=1e-12)
    state = joined([done.state for done in dones])
    assert state.keys() == expected.state.keys()
    for name, tensor in expected.state.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", TWO)
def test_two_ranks(name: str, two: Mapping[str, list[Done]]) -> None:
    assert_trained_as_a_whole(TWO[name], two[name])


@pytest.mark.parametrize("name", THREE)
def test_three_ranks(name: str, three: Mapping[str, list[Done]]) -> None:
    assert_trained_as_a_whole(THREE[name], three[name])


@pytest.mark.parametrize("name", BY_CHANCE)
def test_as_on_threads(name: str, two: Mapping[str, list[Done]]) -> None:
    """Random numbers are the same wherever the operators run, and so is the norm of all gradients."""
    expected = on_threads(BY_CHANCE[name])
    for dones in [two[name]] if BY_CHANCE[name].replicas == 1 else [[done] for done in two[name]]:
        state = joined([done.state for done in dones])
        assert dones[0].losses == pytest.approx(expected.losses, rel=1e-12)
        for key, tensor in expected.state.items():
            torch.testing.assert_close(state[key], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MIXED)
def test_mixed_precision_as_on_threads(name: str, two: Mapping[str, list[Done]]) -> None:
    """What crosses a border there is no wider and no narrower; all ranks leave out the steps that overflow."""
    expected = on_threads(MIXED[name])
    state = joined([done.state for done in two[name]])
    assert two[name][0].losses == pytest.approx(expected.losses, rel=1e-6)
    for key, tensor in expected.state.items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-4, atol=1e-6)


def test_replicas_of_pipelines() -> None:
    """Two by two ranks have the bits of each other, and the parameters of one device with all micro-batches."""
    case = Case("transformer", HALVES, 2, steps=2, replicas=2)
    expected = whole(replace(case, micro_batches=4, replicas=1))
    (dones,) = run([case])
    for one, other in zip(dones[:2], dones[2:], strict=True):
        assert one.losses == other.losses == pytest.approx(expected.losses, rel=1e-12)
        assert all(torch.equal(tensor, other.state[name]) for name, tensor in one.state.items())
    gradients = joined([done.gradients for done in dones[:2]])
    state = joined([done.state for done in dones[:2]])
    for name, tensor in expected.state.items():
        torch.testing.assert_close(gradients[name], expected.gradients[name], rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(state[name], tensor, rtol=1e-6, atol=1e-12)


# What is saved


@pytest.mark.parametrize("ranks", ["two", "three"])
def test_go_on_with_another_plan(ranks: str, request: pytest.FixtureRequest) -> None:
    """Two ranks go on from threads, three from the parts of two; as if there had been no break."""
    expected = on_threads(STRAIGHT)
    dones = request.getfixturevalue(ranks)["second half"]
    assert dones[0].losses == pytest.approx(expected.losses[2:], rel=1e-12)
    state = joined([done.state for done in dones])
    for name, tensor in expected.state.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-12)


def test_threads_go_on_from_ranks(saved: Path, two: Mapping[str, list[Done]]) -> None:
    assert two["first half"]
    expected = on_threads(STRAIGHT)
    found = on_threads(replace(STRAIGHT, steps=1, begin=2, resume=str(saved / "parts")))
    assert found.losses == pytest.approx(expected.losses[2:], rel=1e-12)
    for name, tensor in expected.state.items():
        torch.testing.assert_close(found.state[name], tensor, rtol=1e-9, atol=1e-12)


def test_the_first_rank_has_the_whole_state(two: Mapping[str, list[Done]]) -> None:
    first, second = two["first half"]
    assert second.whole is None
    assert first.whole is not None
    threads = on_threads(replace(STRAIGHT, steps=1)).whole
    assert threads is not None
    assert first.whole.keys() == threads.keys()
    assert first.whole["steps"] == 2
    for what in ("state", "options"):
        assert first.whole["optimizer"][what].keys() == threads["optimizer"][what].keys()
    assert first.part is not None
    assert first.part["optimizer"]["state"].keys() < threads["optimizer"]["state"].keys()
    for name, tensor in threads["model"].items():
        torch.testing.assert_close(first.whole["model"][name], tensor, rtol=1e-9, atol=1e-12)


def test_a_state_from_shards_has_all_names_of_the_model(two: Mapping[str, list[Done]]) -> None:
    """Two names of one weight, what nobody reads, and not what the model itself does not save."""
    found = two["odd"][0].whole
    assert found is not None
    case = Case("odd", ("middle",), 2, steps=1)
    model = model_of(case)
    assert found["model"].keys() == model.state_dict().keys()
    assert found["model"]["again.weight"] is found["model"]["enter.weight"]
    assert torch.equal(found["model"]["unread.weight"], model.state_dict()["unread.weight"])
    model.load_state_dict(found["model"])
    expected = whole(case)
    for name, tensor in expected.state.items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-6, atol=1e-12)


def test_no_rank_has_the_whole_model(two: Mapping[str, list[Done]]) -> None:
    """Each reads its shard, and the gradients are the same."""
    plain, sharded = two["transformer"], two["shards"]
    for one, other in zip(plain, sharded, strict=True):
        assert one.losses == other.losses
        assert all(torch.equal(one.state[name], tensor) for name, tensor in other.state.items())
    assert plain[0].n_real == plain[1].n_real == sum(done.n_real for done in sharded)
    assert min(done.n_real for done in sharded) > 0


def test_a_rank_that_fails_lets_the_others_go() -> None:
    """It names the stage, the device and the action; nobody waits until a time limit."""
    first, second = attempt([Case("unknown word", HALVES, 2)])
    failure = first.exception()
    assert isinstance(failure, StageError)
    assert str(failure) == "stage 0 on 'cpu0' failed in 0F0: IndexError: index out of range in self"
    other = second.exception()
    assert isinstance(other, RankError)
    assert str(other) == f"rank 0 ('cpu0') failed: {failure}; start all ranks again"


# With one rank, which is this process


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trainer_of(case: Case, trainer_options: TrainerOptions | None = None) -> PipelineTrainer:
    program = program_for(case)
    return PipelineTrainer(plan_for(case, program), program, loss_of, sgd, trainer_options)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_one_rank(schedule: str) -> None:
    case = Case("skipping", (), 2, schedule, steps=1)
    assert_trained_as_a_whole(case, [rank_of(case, 0)])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("network", ["transformer", "frozen"])
def test_two_stages_of_one_rank(network: str) -> None:
    """What is no number crosses a border, and what is not learned."""
    case = Case(network, HALVES, 2, "interleaved", steps=1)
    assert_trained_as_a_whole(case, [rank_of(case, 0)])


@pytest.mark.usefixtures("alone")
def test_a_torch_that_cannot_go_back_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_part, "divides", lambda: False)
    case = Case("transformer", (), 2, "zb-h1", steps=1)
    assert_trained_as_a_whole(case, [rank_of(case, 0)])


@pytest.mark.usefixtures("alone")
def test_gradients_of_several_steps_are_added_up() -> None:
    case = Case("transformer", (), 2, steps=3)
    program = program_for(case)
    plan = plan_for(case, program)
    trainer_options = TrainerOptions(accumulate=2, clip_norm=0.1)
    with (
        PipelineTrainer(plan, program, loss_of, sgd, trainer_options) as ranks,
        Trainer(plan, program, loss_of, sgd, trainer_options) as threads,
    ):
        for number in range(4):
            assert ranks.step(*data_of(case, number)).item() == threads.step(*data_of(case, number)).item()
        expected = threads.model_state_dict()
        for name, tensor in ranks.model_state_dict().items():
            assert torch.equal(tensor, expected[name])


@pytest.mark.usefixtures("alone")
def test_mixed_precision_is_that_of_threads() -> None:
    case = Case("transformer", (), 2)
    program = program_from_module(model_of(case).float(), (data_of(case, 0)[0][:BATCH],), training=True)
    plan = plan_for(case, program)
    trainer_options = TrainerOptions(autocast=torch.bfloat16)
    with (
        PipelineTrainer(plan, program, loss_of, sgd, trainer_options) as ranks,
        Trainer(plan, program, loss_of, sgd, trainer_options) as threads,
    ):
        losses = [[trainer.step(*data_of(case, 0)).item() for _ in range(2)] for trainer in (ranks, threads)]
    assert losses[0] == losses[1]


@pytest.mark.usefixtures("alone")
def test_what_ran_when() -> None:
    case = Case("transformer", (), 2)
    with trainer_of(case) as trainer:
        trainer.step(*data_of(case, 0))
        trainer.record()
        trainer.step(*data_of(case, 1))
        found = trainer.timeline()
    assert [span.label for span in found.spans] == ["0F0", "0B0", "0F1", "0B1", "optimizer"]
    assert {span.resource for span in found.spans} == {"cpu0"}
    assert all(0 <= span.start_s <= span.end_s for span in found.spans)


@pytest.mark.usefixtures("alone")
def test_a_trainer_that_has_failed_is_over() -> None:
    case = Case("transformer", ())
    with trainer_of(case) as trainer:
        batch, _ = data_of(case, 0)
        with pytest.raises(StageError) as failure:
            trainer.step(batch, torch.zeros(BATCH, 3, dtype=torch.int64))
        assert str(failure.value).startswith("the loss on 'cpu0' failed: ")
        assert failure.value.__cause__ is not None
        with pytest.raises(
            RankError, match="a step has failed, and the ranks no longer fit together; start them again"
        ):
            trainer.step(*data_of(case, 0))


@pytest.mark.usefixtures("alone")
def test_a_loss_that_is_none() -> None:
    case = Case("transformer", ())
    program = program_for(case)
    with (
        PipelineTrainer(plan_for(case, program), program, lambda result, _: result, sgd) as trainer,
        pytest.raises(InputError, match="it must have one element: take its mean"),
    ):
        trainer.step(*data_of(case, 0))


@pytest.mark.usefixtures("alone")
def test_more_devices_than_ranks() -> None:
    with pytest.raises(InputError) as error:
        trainer_of(Case("transformer", HALVES))
    assert str(error.value) == "the plan trains on 2 devices (cpu0, cpu1), and there are 1 ranks; start 2, one for each"
    with pytest.raises(InputError) as error:
        trainer_of(Case("transformer", (), replicas=3))
    assert str(error.value) == (
        "the plan trains on 1 devices (cpu0) in each of 3 replicas, and there are 1 ranks; start 3, one for each"
    )


def test_without_torch_distributed() -> None:
    with pytest.raises(InputError, match=r"call torch\.distributed\.init_process_group first$"):
        trainer_of(Case("transformer", ()))


@pytest.mark.usefixtures("alone")
def test_the_shard_of_another_rank(tmp_path: Path) -> None:
    case = Case("transformer", HALVES)
    program = program_for(case)
    write_shards(plan_for(case, program), program, tmp_path / "shards")
    _, shard = read_shard(tmp_path / "shards", "cpu1")
    one = Case("transformer", ())
    with pytest.raises(
        InputError, match=r"'words\.weight' has a shape but no values; give a model with weights, or the"
    ):
        PipelineTrainer(plan_for(one, shard), shard, loss_of, sgd)


def watching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("heartbeats-")]


@pytest.mark.usefixtures("alone")
def test_it_watches_until_it_is_closed() -> None:
    groups = dict(dist.distributed_c10d._world.pg_map)
    with trainer_of(Case("transformer", ())) as trainer:
        assert watching() == ["heartbeats-0"]
        assert len(dist.distributed_c10d._world.pg_map) == len(groups) + 1
    assert watching() == []
    assert dist.distributed_c10d._world.pg_map == groups
    trainer.close()


@pytest.mark.usefixtures("alone")
def test_another_rank_with_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = dict(dist.distributed_c10d._world.pg_map)

    def gather(peer_infos: list[bytes], own: bytes, **_: object) -> None:
        peer_infos[0] = sealed(pickle.dumps(replace(pickle.loads(unsealed(own)), plan="another")))

    monkeypatch.setattr(dist, "all_gather_object", gather)
    with pytest.raises(
        InputError, match=r"rank 0 \('cpu0'\) has come with another plan \(another, here it is [0-9a-f]+\)"
    ):
        trainer_of(Case("transformer", ()))
    assert dist.distributed_c10d._world.pg_map == groups


@pytest.mark.usefixtures("alone")
def test_a_trainer_that_cannot_be_made_watches_no_longer() -> None:
    program = program_for(Case("transformer", ()))

    def optimizer(_: list[torch.Tensor]) -> torch.optim.Optimizer:
        raise ValueError("Invalid learning rate: -1")

    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        PipelineTrainer(plan_for(Case("transformer", ()), program), program, loss_of, optimizer)
    assert watching() == []
