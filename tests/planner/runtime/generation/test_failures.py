"""Sequences that fail: the others go on to the tokens that they would have had, and the rows are free again."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch

import planner
from graphs.common.errors import InputError
from planner.problem.result import Interrupted
from planner.runtime.errors import StageError
from planner.runtime.generation.sampling import Sampling
from tests.planner.runtime.generation.tiny import CONTEXT, MORE, PROMPTS, WORDS, cut, expected, imported, sources
from tests.planner.runtime.small import PATIENCE_S, begin

NONE = 2 * WORDS
BAD: dict[str, tuple[list[int], str]] = {
    "an id that is none": ([3, NONE], f"prompt 2 has the id {NONE}, and the model knows those below {NONE}; use the"),
    "a negative id": ([-1], "an id of prompt 2 is -1; give a whole number of 0 or more"),
    "no prompt": ([], "prompt 2 is empty; give it the id that begins a text, at least"),
    "too long": ([1] * CONTEXT, f"prompt 2 has {CONTEXT} tokens and up to {MORE} more to come, and the plan's context"),
}


@pytest.fixture(params=[1, 2], ids=["inline", "threads"])
def runner(request: pytest.FixtureRequest) -> Iterator[planner.GenerationRunner]:
    """A llama with two groups of two rows, which knows no id beyond `WORDS` but does not say so."""
    model = replace(imported("llama"), vocabulary=2 * WORDS)
    with planner.GenerationRunner(cut(model, request.param), model) as runner:
        yield runner
        assert runner.generate(PROMPTS, MORE, stops=()) == expected("llama")  # all rows are free, and hold nothing old


@pytest.mark.parametrize("bad", BAD)
def test_a_wrong_prompt_fails_alone(runner: planner.GenerationRunner, bad: str) -> None:
    prompt, message = BAD[bad]
    prompts, failures = [*PROMPTS[:2], prompt, *PROMPTS[2:]], dict[int, BaseException]()
    found = runner.generate(prompts, MORE, stops=(), failed=failures.__setitem__)
    assert found == [*expected("llama")[:2], [], *expected("llama")[2:]]
    assert failures.keys() == {2}
    assert isinstance(failures[2], InputError)
    assert str(failures[2]).startswith(message)
    seen: list[list[int]] = [[] for _ in prompts]
    stream = runner.tokens(prompts, MORE, stops=())
    for number, token in islice(stream, sum(map(len, found))):
        seen[number].append(token)
    with pytest.raises(InputError) as error:  # without a function for errors, when all others have ended
        next(stream)
    assert (str(error.value), seen) == (str(failures[2]), found)


def test_an_operator_that_fails_takes_its_group_along_and_no_other(runner: planner.GenerationRunner) -> None:
    prompts, failures = [*PROMPTS[:2], [WORDS], *PROMPTS[2:]], dict[int, BaseException]()
    found = runner.generate(prompts, MORE, stops=(), failed=failures.__setitem__)
    failed = set(failures)
    assert 2 in failed
    assert len(failed) == 2  # the rows of a group
    assert all(isinstance(each, StageError) and "IndexError" in str(each) for each in failures.values())
    wanted = [*expected("llama")[:2], [], *expected("llama")[2:]]
    assert all(found[number] == wanted[number] for number in range(len(prompts)) if number not in failed)
    with pytest.raises(StageError, match="IndexError"):
        runner.generate(prompts, MORE, stops=())


def test_a_stop_function_ends_or_fails_its_sequence_alone(runner: planner.GenerationRunner) -> None:
    def stop(sequence: int, token: int) -> bool:
        seen.append((sequence, token))
        if sequence == 1 and len([each for each, _ in seen if each == 1]) == 3:
            raise ArithmeticError("no more")
        return sequence == 3 and token == expected("llama")[3][4]

    seen: list[tuple[int, int]] = []
    failures: dict[int, BaseException] = {}
    found = runner.generate(PROMPTS, MORE, stops=stop, failed=failures.__setitem__)
    wanted = list(expected("llama"))
    wanted[1] = wanted[1][:2]
    wanted[3] = wanted[3][: wanted[3].index(wanted[3][4]) + 1]
    assert found == wanted
    assert [(number, str(each)) for number, each in failures.items()] == [(1, "no more")]


def test_logits_that_are_no_numbers_fail_the_sequence_that_draws(
    runner: planner.GenerationRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, choose = list[torch.Generator](), Sampling.choose

    def sometimes(self: Sampling, logits: torch.Tensor, generator: torch.Generator) -> int:
        if generator not in drawn:
            drawn.append(generator)
        return choose(self, logits * float("nan") if generator is drawn[0] else logits, generator)

    wanted = runner.generate(PROMPTS, MORE, sampling=Sampling(1.0), stops=())
    monkeypatch.setattr(Sampling, "choose", sometimes)
    failures: dict[int, BaseException] = {}
    found = runner.generate(PROMPTS, MORE, sampling=Sampling(1.0), stops=(), failed=failures.__setitem__)
    ((number, error),) = failures.items()
    assert "a logit is NaN" in str(error)
    assert (found[number], [*found[:number], *found[number + 1 :]]) == ([], [*wanted[:number], *wanted[number + 1 :]])


def test_an_iterator_that_is_dropped_frees_its_rows_for_others(runner: planner.GenerationRunner) -> None:
    for _ in range(3):  # both groups are taken each time
        stream = runner.tokens(PROMPTS, MORE, stops=())
        assert len(list(islice(stream, 3))) == 3
        del stream
        gc.collect()
    never_begun = runner.tokens(PROMPTS, MORE, stops=())
    assert runner.generate(PROMPTS, MORE, stops=()) == expected("llama")
    del never_begun


def test_several_callers_get_their_own_tokens_and_errors(runner: planner.GenerationRunner) -> None:
    def call(number: int) -> list[list[int]]:
        prompts = [[WORDS]] if number % 3 == 2 else [PROMPTS[number % 5], PROMPTS[(number + 1) % 5]]
        return runner.generate(prompts, MORE, stops=())

    calls = [begin(partial(call, number)) for number in range(9)]
    wanted = expected("llama")
    for number, each in enumerate(calls):
        if number % 3 == 2:
            with pytest.raises(StageError, match="IndexError"):
                each.result(PATIENCE_S)
        else:
            assert each.result(PATIENCE_S) == [wanted[number % 5], wanted[(number + 1) % 5]]


def test_an_interrupt_gives_what_there_is(runner: planner.GenerationRunner) -> None:
    count = iter(range(1000))

    def stop(_: int, __: int) -> bool:
        if next(count) == 12:
            raise KeyboardInterrupt
        return False

    with pytest.raises(Interrupted) as interrupt:
        runner.generate(PROMPTS, MORE, stops=stop)
    found = interrupt.value.best
    assert sum(map(len, found)) == 12
    assert all(tokens == wanted[: len(tokens)] for tokens, wanted in zip(found, expected("llama"), strict=True))


def test_states_of_a_recurrence_begin_anew_after_a_failure() -> None:
    model = replace(imported("mamba"), vocabulary=2 * WORDS)
    with planner.GenerationRunner(cut(model, 2), model) as runner:
        for _ in range(2):
            failures: dict[int, BaseException] = {}
            prompts = [[*PROMPTS[0], WORDS], *PROMPTS]  # fails after three passes
            found = runner.generate(prompts, MORE, stops=(), failed=failures.__setitem__)
            assert 0 in failures
            wanted = [[], *expected("mamba")]
            assert all(found[number] == wanted[number] for number in range(len(prompts)) if number not in failures)
        assert runner.generate(PROMPTS, MORE, stops=()) == expected("mamba")


def test_a_source_that_is_no_number_fails_alone_and_leaves_nothing() -> None:
    """Positions that are masked weigh 0, and 0 times NaN is NaN: a row is cleared for its next sequence."""
    model, sounds = imported("whisper"), sources("whisper")
    errors: list[str] = []
    with planner.GenerationRunner(cut(model, 2), model) as runner:
        broken = [torch.full_like(sounds[0], torch.nan)] * 4
        assert runner.generate(broken, MORE, stops=(), failed=lambda _, e: errors.append(str(e))) == [[]] * 4
        assert runner.generate(sounds, MORE, stops=()) == expected("whisper")
    assert len(errors) == 4
    assert "a logit is NaN" in errors[0]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (([1, 2, 3],), "prompt 0 is 1; give a list of ids"),
        ((7,), "the prompts is 7; give a list of ids"),
        (([[1]], 5), "stops is 5; give ids"),
    ],
)
def test_what_is_no_list_is_named(given: tuple[Any, ...], named: str) -> None:
    model = imported("llama")
    with planner.GenerationRunner(cut(model, 1), model) as runner, pytest.raises(planner.InputError, match=named):
        runner.generate(given[0], 2, stops=given[1] if len(given) > 1 else None)
