"""Models with an encoder: the tokens of transformers' generate, an encoder that runs once, and its costs in a plan."""

from dataclasses import replace

import pytest
import torch

import planner
from costmodels.memory.device import lasting_bytes
from graphs.caches import encoded, ops_of_pass
from graphs.common.errors import InputError
from graphs.phases import Phase
from graphs.program.generation import EncoderSource
from planner.planning.generation import passes_of
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.generation import generation_of
from planner.runtime.benchmark.generation import compare_tokens
from tests.planner.planning.test_generation import paper
from tests.planner.runtime.generation.tiny import CONTEXT, MORE, PROMPTS, WORDS, cut, expected, imported, sources

WORK = planner.Workload("generation", 2, 2, prompt=20, output=10, context=CONTEXT)


@pytest.mark.parametrize("family", ["t5", "bart", "whisper"])
def test_sources_of_unequal_lengths_continue_as_by_generate(family: str) -> None:
    model, wanted = imported(family), expected(family)
    assert len({tuple(each) for each in wanted}) == len(PROMPTS)  # each follows its source
    for n_devices in (1, 2):
        plan = cut(model, n_devices)
        assert len(set(plan.placement.used)) == n_devices
        with planner.GenerationRunner(plan, model) as runner:  # five sequences in four rows: one has to wait
            assert runner.generate(sources(family), MORE, stops=()) == wanted
            assert runner.generate(sources(family)[1:2], MORE, stops=()) == wanted[1:2]  # nothing is left of others
            held = [runner.caches(device.name) for device in plan.cluster.devices]
        allocated = sum(tensor.nbytes for device in held for group in device for tensor in group.values())
        assert allocated == plan.workload.in_flight * lasting_bytes(plan.graph).sum()


def test_a_pass_runs_the_encoder_or_the_decoder() -> None:
    model = imported("bart")
    graph = model.decode.graph
    encoder, decoder = ops_of_pass(graph, 0), ops_of_pass(graph, 1)
    assert not encoder & decoder
    assert encoder | decoder == set(range(len(graph.ops)))
    products = [graph.ops[i].module for i in encoder if graph.ops[i].kind == "aten.linear.default"]
    assert (
        len(products) == 2 * (4 + 2) + 2 * 2
    )  # an encoder's layer has 6, and a layer of the decoder its keys and values
    assert sum("encoder." in module for module in products) == 2 * (4 + 2)
    # keys and values of two layers: 2 rows, 4 heads, as many positions as the context, 8 numbers each, float32
    once = [graph.tensor[name] for name in encoded(graph)]
    assert [tensor.n_bytes for tensor in once] == [2 * 4 * CONTEXT * 8 * 4] * 4
    assert set(model.phases) == {Phase(0, 8), Phase(0, CONTEXT), Phase(1, CONTEXT)}


def test_a_plan_counts_one_pass_of_the_encoder_for_each_row() -> None:
    model = imported("bart")
    plan = planner.plan(
        model, cluster=paper(), goal="generation", workload=WORK, search=planner.Search(time_limit_s=2.0)
    )
    passes = {each.phase: (each.prompt, each.output) for each in plan.phases}
    # two rows have their sources read, one after the other; the first token of both is that of a pass of the decoder
    assert passes == {Phase(0, CONTEXT): (2, 0), Phase(0, 8): (0, 0), Phase(1, CONTEXT): (1, 9)}
    encoder = sorted(ops_of_pass(plan.graph, 0))
    for each in plan.phases:
        spent = each.table.forward_s[:, 0] > 0
        assert spent[encoder].any() == (each.phase.tokens == 0)
        assert spent.any()
    found = generation_of(plan)
    seconds = {each.phase: each.alone_s for each in found.phases}
    one_s = seconds[Phase(0, CONTEXT)] + seconds[Phase(1, CONTEXT)]  # one source, not those of both rows
    assert found.first_token_s == pytest.approx(one_s)
    assert found.tokens_per_s_one == pytest.approx(10 / (one_s + 9 * seconds[Phase(1, CONTEXT)]))
    assert plan_to_dict(plan_from_dict(plan_to_dict(plan))) == plan_to_dict(plan)
    assert generation_of(plan_from_dict(plan_to_dict(plan))) == found
    short = planner.Workload("generation", 2, 2, prompt=5, output=10, context=CONTEXT)
    assert passes_of(model, short)[0] == {Phase(0, 8): 2, Phase(1, CONTEXT): 1}


def test_differences_from_transformers_are_found() -> None:
    model, wanted = imported("bart"), expected("bart")
    assert compare_tokens(model, PROMPTS, wanted) == ()
    wrong = [[*wanted[0][:3], (wanted[0][3] + 1) % WORDS, *wanted[0][4:]]]
    (difference,) = compare_tokens(model, PROMPTS[:1], wrong)
    assert (difference.position, difference.expected, difference.within_rounding) == (3, wanted[0][3], False)


def test_continuations_begin_with_ids_that_are_given() -> None:
    model = imported("whisper")
    begun = torch.tensor([[3, 9, 4]])
    with planner.GenerationRunner(cut(model, 1), model) as runner:
        found = runner.generate(sources("whisper")[:1], 4, stops=(), decoder_ids=begun.tolist())
        logits = model.module(input_features=sources("whisper")[0][None], decoder_input_ids=begun).logits
        assert found[0][0] == int(logits[0, -1].argmax())


def test_bad_sources_are_named() -> None:
    text, sound = imported("bart"), imported("whisper")
    with planner.GenerationRunner(cut(text, 1), text) as runner:
        for prompts, beginnings, message in (
            ([[1], []], None, "source 1 is empty; give it the id that begins a text, at least"),
            ([[1] * 49], None, "source 0 has 49 tokens, and the model was imported for 48; import it with source=49"),
            ([[1], [2]], [[1]], "there are 1 decoder_ids for 2 sources; give one for each"),
            ([[1]], [[1] * 40], "beginning 0 has 40 tokens and up to 10 more to come, and the plan's context is 48;"),
        ):
            with pytest.raises(InputError) as error:
                runner.generate(prompts, 10, decoder_ids=beginnings)
            assert str(error.value).startswith(message)
    with planner.GenerationRunner(cut(sound, 1), sound) as runner:
        with pytest.raises(InputError, match=r"^source 0 is \[8, 11\], and the model reads \[8, 12\]; fill it up, as"):
            runner.generate([torch.zeros(8, 11)], 4)
        with pytest.raises(InputError, match="source 0"):
            runner.generate([[1, 2]], 4)
    causal = imported("gpt2")
    no_encoder = pytest.raises(InputError, match="decoder_ids are for models with an encoder; continue the prompts")
    with planner.GenerationRunner(cut(causal, 1), causal) as runner, no_encoder:
        runner.generate([[1]], 4, decoder_ids=[[1]])
    for model, source, message in (("gpt2", 4, "has none"), ("whisper", 4, "is for a text, and 'Whisper")):
        with pytest.raises(InputError, match=message):
            planner.generation_program(imported(model).module, context=CONTEXT, source=source)
    short = replace(text, source=EncoderSource((8,), torch.long, ()))
    with pytest.raises(InputError, match="prompts of 20 tokens, and the model was imported with source=8; ask for"):
        planner.plan(short, cluster=paper(), goal="generation", workload=WORK)
