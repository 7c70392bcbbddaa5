"""Generation in several processes: tokens as by one thread, caches on their ranks, and ranks that fail."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from costmodels.memory.device import lasting_bytes
from graphs.common.errors import InputError
from graphs.program.files import reading_program
from graphs.program.generation import GenerationProgram
from graphs.program.generation_files import phases_from_dict
from planner.plans.generation import held_bytes
from planner.plans.plan import Plan
from planner.runtime.checkpoint.shards import read_model_shard, write_shards
from planner.runtime.errors import RankError, StageError
from planner.runtime.stages.caches import GROUP
from tests.planner.runtime.distributed.ranks import Others, coordinated
from tests.planner.runtime.generation.tiny import MORE, PROMPTS, WORDS, cut, expected, imported, sources, split_plan


@contextmanager
def generating(plan: Plan, model: GenerationProgram, beside: bool) -> Iterator[tuple[planner.GenerationRunner, Others]]:
    """A runner whose ranks are threads, joined as processes would be."""
    with (
        coordinated(plan, model, beside) as others,
        planner.GenerationRunner(plan, model, executor=others.coordinator) as runner,
    ):
        yield runner, others


@pytest.mark.parametrize(
    ("family", "n_devices", "beside"),
    [("llama", 1, False), ("gpt2", 3, True), ("mixtral", 2, True), ("mamba", 2, False), ("bart", 2, True)],
)
def test_tokens_are_those_of_generate_and_caches_stay(family: str, n_devices: int, beside: bool) -> None:
    model = imported(family)
    plan = cut(model, n_devices)
    with generating(plan, model, beside) as (runner, others):
        assert runner.generate(PROMPTS, MORE, stops=()) == expected(family)
        assert runner.generate(PROMPTS[:1], MORE, stops=()) == expected(family)[:1]  # nothing is left of earlier ones
        drawn = runner.generate(PROMPTS, MORE, sampling=planner.Sampling(1.0, seed=3), stops=())
        ranks = [others.coordinator._rank, *(worker._rank for worker in others.workers)]
        kept = [rank.engine.caches for rank in ranks]
        held = [tensor for caches in kept if caches for group in caches.groups for tensor in group.values()]
        assert sum(tensor.nbytes for tensor in held) == plan.workload.in_flight * lasting_bytes(plan.graph).sum()
        names = {name for pair in plan.graph.caches for name in pair}
        sent = {tensor.name for rank in ranks for payload in rank.routes.payloads for tensor in payload.tensors}
        assert GROUP.name in sent
        assert not names & sent
    with planner.GenerationRunner(plan, model) as threads:
        assert threads.generate(PROMPTS, MORE, sampling=planner.Sampling(1.0, seed=3), stops=()) == drawn


@pytest.mark.parametrize(
    ("family", "n_devices", "beside"),
    [("gpt2", 3, True), ("llama", 2, False), ("whisper", 2, True)],
)
def test_caches_in_parts_generate_in_threads_and_in_processes(family: str, n_devices: int, beside: bool) -> None:
    """GPT-2's four heads are two and one and one for three devices; whisper's encoder writes to parts."""
    plan, model = split_plan(family, n_devices), imported(family)
    assert plan.placement.used == tuple(range(n_devices))
    assert len(plan.graph.caches) == n_devices * len(model.decode.graph.caches)
    planned = held_bytes(plan)[1].tolist()
    assert all(planned)
    assert sum(planned) == lasting_bytes(model.decode.graph).sum()
    with planner.GenerationRunner(plan, model) as threads:
        assert threads.generate(sources(family), MORE, stops=()) == expected(family)
        held = [threads.caches(device.name) for device in plan.cluster.devices]
        assert [sum(t.nbytes for group in each for t in group.values()) for each in held] == planned
    with generating(plan, model, beside) as (runner, others):
        assert runner.generate(sources(family), MORE, stops=()) == expected(family)
        ranks = [others.coordinator._rank, *(worker._rank for worker in others.workers)]
        kept = [rank.engine.caches for rank in ranks]
        here = [t.nbytes for each in kept if each for group in each.groups for t in group.values()]
        assert sum(here) == sum(planned)


def test_a_shard_has_all_phases_and_the_weights_of_its_device(tmp_path: Path) -> None:
    model = imported("llama")
    plan = cut(model, 2)
    write_shards(plan, model, tmp_path / "shards")
    for device in ("cpu0", "cpu1"):
        read_plan, read = read_model_shard(tmp_path / "shards", device)
        assert isinstance(read, GenerationProgram)
        assert read_plan.graph.fingerprint == plan.graph.fingerprint
        fields = ("rows", "context", "vocabulary", "growing", "stops", "sizes", "lengths")
        assert [getattr(read, name) for name in fields] == [getattr(model, name) for name in fields]
        prints = {phase: program.graph.fingerprint for phase, program in model.phases.items()}
        assert {phase: program.graph.fingerprint for phase, program in read.phases.items()} == prints
        for program in read.phases.values():
            here = {name for name, tensor in program.state.items() if not tensor.is_meta}
            assert here == {
                t.name
                for i, op in enumerate(plan.graph.ops)
                for t in plan.graph.state(op)
                if plan.placement.device[i] == plan.cluster.index[device]
            }
    whole = tmp_path / "shards" / "program.json"
    document = json.loads(whole.read_text())
    document["generation"]["phases"][0]["size"] = [8]
    assert document["generation"]["vocabulary"] == WORDS
    with pytest.raises(InputError, match="the program is damaged: TypeError"), reading_program():
        phases_from_dict(document["generation"], model.decode)


@pytest.mark.parametrize("beside", [False, True])
def test_a_stage_that_fails_on_another_rank_fails_its_group_alone(beside: bool) -> None:
    model = replace(imported("llama"), vocabulary=2 * WORDS)  # so that the embedding refuses an id
    failures: dict[int, BaseException] = {}
    with generating(cut(model, 2), model, beside) as (runner, _):
        found = runner.generate([*PROMPTS[:2], [WORDS], *PROMPTS[2:]], MORE, stops=(), failed=failures.__setitem__)
        again = runner.generate(PROMPTS, MORE, stops=())
    assert failures.keys() == {2, 3}  # the second group's
    assert all(isinstance(each, StageError) and "IndexError" in str(each) for each in failures.values())
    assert [found[number] for number in (0, 1, 4, 5)] == [expected("llama")[number] for number in (0, 1, 3, 4)]
    assert found[2] == found[3] == []
    assert again == expected("llama")


@pytest.mark.slow
def test_real_processes_generate_until_one_is_killed() -> None:
    model = imported("llama")
    with planner.GenerationRunner(cut(model, 2), model, processes=True) as runner:
        assert len(runner.pids) == 2
        assert runner.generate(PROMPTS, MORE, stops=()) == expected("llama")
        found: dict[int, list[int]] = {number: [] for number in range(len(PROMPTS))}
        failures: dict[int, BaseException] = {}
        for number, token in runner.tokens(PROMPTS, MORE, stops=(), failed=failures.__setitem__):
            if not any(found.values()):
                os.kill(runner.pids[1], signal.SIGKILL)
            found[number].append(token)
    assert failures.keys() == found.keys()
    assert all(isinstance(each, RankError) and "killed by SIGKILL" in str(each) for each in failures.values())
    assert all(tokens == expected("llama")[number][: len(tokens)] for number, tokens in found.items())
