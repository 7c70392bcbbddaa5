"""Generation on one to three devices: the tokens of transformers' generate, and caches as large as planned."""

from pathlib import Path

import pytest
import torch

import planner
from costmodels.memory.device import op_bytes
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.program import in_place
from graphs.program.generation import Phase
from planner.runtime.generation.groups import Continuation, next_phase
from tests.planner.runtime.generation.tiny import CONTEXT, MORE, PROMPTS, WORDS, cut, expected, imported, module


@pytest.mark.parametrize("n_devices", [1, 2, 3])
@pytest.mark.parametrize("family", ["llama", "gemma2", "mamba"])
def test_sequences_of_unequal_lengths_continue_as_by_generate(family: str, n_devices: int) -> None:
    model = imported(family)
    plan = cut(model, n_devices)
    assert len(set(plan.placement.used)) == n_devices
    with planner.GenerationRunner(plan, model) as runner:  # five sequences in four rows: one has to wait
        assert runner.generate(PROMPTS, MORE, stops=()) == expected(family)
        assert runner.generate(PROMPTS[:1], MORE, stops=()) == expected(family)[:1]  # nothing is left of earlier ones


def test_a_prompt_is_read_in_chunks_and_a_short_one_with_few_positions() -> None:
    model = imported("llama")
    assert set(model.phases) == {Phase(tokens, length) for tokens in (1, 8) for length in (16, CONTEXT)}
    assert imported("mamba").sizes == (1,)  # its states cannot skip what fills a row up
    assert not imported("llama").encoded | imported("mamba").encoded


def test_caches_are_as_large_as_planned_and_stay_where_they_are() -> None:
    model = imported("llama")
    plan = cut(model, 2, in_flight=3)
    per_sequence = 2 * 2 * CONTEXT * 8 * 4  # of one layer: keys and values, 2 heads, 8 numbers each, float32
    with planner.GenerationRunner(plan, model) as runner:
        held = [runner.caches(device) for device in ("cpu0", "cpu1")]
        before = [tensor.data_ptr() for device in held for group in device for tensor in group.values()]
        runner.generate(PROMPTS, MORE, stops=())
        after = [t.data_ptr() for name in ("cpu0", "cpu1") for group in runner.caches(name) for t in group.values()]
        assert before == after
        n_bytes = [sum(t.nbytes for group in device for t in group.values()) for device in held]
    assert n_bytes == [3 * 2 * per_sequence] * 2  # three groups of two rows, and a layer each
    graph = model.decode.graph
    grown = op_bytes(graph, Workload(in_flight=3)) - op_bytes(graph, Workload(in_flight=1))
    assert grown.sum() == 2 * 2 * 2 * per_sequence  # two more groups of two rows, two layers


def test_who_writes_and_reads_a_cache_shares_its_device() -> None:
    model = imported("llama")
    graph = model.decode.graph
    groups = cut(model, 1).table.together
    assert len(graph.caches) == 4
    for cache, after in graph.caches:
        users = {i for i, op in enumerate(graph.ops) if {cache, after} & {*op.inputs, *op.outputs}}
        assert len(users) >= 2
        assert any(users <= set(group) for group in groups)


def test_a_cache_that_cannot_be_written_in_place_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "in_place", lambda _: {})
    model = imported("llama")
    with planner.GenerationRunner(cut(model, 2), model) as runner:
        assert runner.generate(PROMPTS, MORE, stops=()) == expected("llama")


def test_tokens_come_one_by_one_and_a_stop_ends_its_sequence_alone() -> None:
    model, wanted = imported("llama"), expected("llama")
    stop = wanted[1][4]
    until = [each[: each.index(stop) + 1] if stop in each else each for each in wanted]
    assert len(until[1]) <= 5
    with planner.GenerationRunner(cut(model, 2), model) as runner:
        found: list[list[int]] = [[] for _ in PROMPTS]
        for number, token in runner.tokens(PROMPTS, MORE, stops=[stop]):
            found[number].append(token)
        assert found == until
        stream = runner.tokens(PROMPTS, MORE, stops=())
        first = next(stream)
        assert first[1] == wanted[first[0]][0]
        stream.close()  # its rows are free again
        assert runner.generate(PROMPTS, MORE, stops=()) == wanted


def test_a_seed_gives_the_same_tokens_on_any_placement() -> None:
    model = imported("llama")
    drawn = []
    for n_devices in (1, 2):
        with planner.GenerationRunner(cut(model, n_devices), model) as runner:
            drawn.append(runner.generate(PROMPTS, MORE, sampling=planner.Sampling(1.0, seed=3), stops=()))
            other = runner.generate(PROMPTS, MORE, sampling=planner.Sampling(1.0, seed=4), stops=())
            only = runner.generate(PROMPTS, MORE, sampling=planner.Sampling(0.7, top_k=1), stops=())
            few = runner.generate(PROMPTS, MORE, sampling=planner.Sampling(0.7, top_p=1e-6), stops=())
    assert drawn[0] == drawn[1]
    assert drawn[0] != other
    assert only == few == expected("llama")


def test_draws_follow_the_logits() -> None:
    logits = torch.tensor([0.5, 0.25, 0.2, 0.05]).log()
    cases = {
        planner.Sampling(1.0): [0.5, 0.25, 0.2, 0.05],
        planner.Sampling(1.0, top_k=2): [2 / 3, 1 / 3, 0, 0],
        planner.Sampling(1.0, top_p=0.7): [2 / 3, 1 / 3, 0, 0],  # 0.5 is less than 0.7, with 0.25 it is more
        planner.Sampling(0.5): [
            0.25 / 0.355,
            0.0625 / 0.355,
            0.04 / 0.355,
            0.0025 / 0.355,
        ],  # squares, which sum to 0.355
    }
    for sampling, wanted in cases.items():
        generator = sampling.generator(0)
        counts = torch.bincount(torch.tensor([sampling.choose(logits, generator) for _ in range(2000)]), minlength=4)
        assert (counts / 2000 - torch.tensor(wanted)).abs().max() < 0.04  # four standard deviations


def test_bad_requests_are_named() -> None:
    model = imported("llama")
    with planner.GenerationRunner(cut(model, 1), model) as runner:
        for prompts, more, stops, message in (
            ([[1], []], 4, (), "prompt 1 is empty; give it the id that begins a text, at least"),
            ([[1, WORDS]], 4, (), f"prompt 0 has the id {WORDS}, and the model knows those below {WORDS}; use the"),
            ([[1] * 40], 10, (), "prompt 0 has 40 tokens and up to 10 more to come, and the plan's context is 48;"),
            ([[1]], 0, (), "max_new_tokens is 0; give a whole number of 1 or more"),
            ([[1]], 4, ["."], "a stop token is '.'; give a whole number of 0 or more"),
        ):
            with pytest.raises(InputError) as error:
                runner.generate(prompts, more, stops=stops)  # type: ignore[arg-type]  # wrong on purpose
            assert str(error.value).startswith(message)
        assert runner.generate([[1] * 39], 10, stops=())[0] != []  # the whole context


@pytest.mark.parametrize(
    ("needs", "phase"),  # pending tokens and position of each sequence
    [
        ([(1, 5)], Phase(1, 16)),
        ([(1, 15)], Phase(1, 16)),
        ([(1, 16)], Phase(1, 48)),
        ([(20, 0)], Phase(8, 16)),
        ([(3, 0)], Phase(8, 16)),  # filled up
        ([(3, 9)], Phase(8, 48)),
        ([(1, 40), (3, 9)], Phase(8, 48)),
        ([(1, 41), (3, 9)], Phase(1, 48)),  # eight tokens from position 41 on would leave the cache
    ],
)
def test_a_pass_is_as_large_as_its_sequences_need(needs: list[tuple[int, int]], phase: Phase) -> None:
    generator = torch.Generator()
    rows = [Continuation(0, [1] * pending, 1, generator, position) for pending, position in needs]
    assert next_phase(imported("llama"), rows) == phase


def test_a_config_is_imported_as_its_model_is(tmp_path: Path) -> None:
    config = module("mamba").config
    config.architectures = ["MambaForCausalLM"]
    config.save_pretrained(tmp_path)
    model = planner.generation_program(tmp_path / "config.json", rows=2, context=CONTEXT, chunks=(8,))
    assert model.decode.graph.fingerprint == imported("mamba").decode.graph.fingerprint
    with pytest.raises(InputError, match="has a shape but no values"):
        planner.GenerationRunner(cut(model, 1), model)


def test_a_plan_for_another_number_of_rows_is_refused() -> None:
    model = imported("mamba")
    one = planner.generation_program(module("mamba"), rows=1, context=CONTEXT)
    with pytest.raises(
        InputError, match=r"the plan is for 'MambaForCausalLM' .* 'ids' \[1, 1\] int64 of the plan meets"
    ):
        planner.GenerationRunner(cut(one, 1), model)


def test_what_cannot_generate_is_named() -> None:
    with pytest.raises(InputError, match="'Linear' is no language model of transformers, so its cache is not known"):
        planner.generation_program(torch.nn.Linear(1, 1))
    with pytest.raises(
        InputError, match="the context is 4,096 positions, and 'LlamaForCausalLM' has 2,048; ask for less"
    ):
        planner.generation_program(module("llama"), context=4096)
    with pytest.raises(InputError, match="a chunk is 1; give a whole number of 2 or more"):
        planner.generation_program(module("llama"), chunks=(1,))


def test_heads_that_share_keys_do_not_copy_the_cache() -> None:
    graph = imported("llama").decode.graph
    keys = {graph.tensor[after].n_bytes for _, after in graph.caches}
    attentions = [op for op in graph.ops if "scaled_dot_product" in op.kind]
    assert len(attentions) == 2
    for op in attentions:
        assert all(graph.tensor[name].n_bytes in keys for name in op.inputs[1:3])  # as the cache lies, for two heads
