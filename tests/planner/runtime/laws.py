"""What holds for every runner, whether its devices are threads or processes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from planner.runtime.errors import StageError
from planner.runtime.inference.runner import Runner
from tests.planner.runtime.bits import differences
from tests.planner.runtime.small import PATIENCE_S, fresh_arguments, program_of, reference

CALLERS, TURNS = 6, 5


def assert_several_threads_may_call_at_once(runner: Runner, name: str) -> None:
    """Each gets its own answers, called one by one and streamed, from a network that takes one tensor."""
    program = program_of(name)
    fresh = {(i, j): fresh_arguments(name, TURNS * i + j) for i in range(CALLERS) for j in range(TURNS)}

    def work(caller: int) -> list[str]:
        wrong = []
        for turn in range(TURNS):
            (x,), _ = arguments = fresh[caller, turn]
            wrong += differences(reference(program, arguments), runner(x))
        xs = [fresh[caller, turn][0][0] for turn in range(TURNS)]
        for x, y in zip(xs, runner.stream(xs), strict=True):
            wrong += differences(reference(program, ((x,), {})), y)
        return wrong

    with ThreadPoolExecutor(CALLERS) as callers:
        answers = [callers.submit(work, caller) for caller in range(CALLERS)]
        assert [answer.result(PATIENCE_S) for answer in answers] == [[]] * CALLERS


def assert_an_error_reaches_its_caller_alone(runner: Runner) -> StageError:
    """One of eight callers asks "tied", whose first stage is on cpu1, for a word that it does not know: the error."""
    good, bad = torch.zeros(1, 5, dtype=torch.int64), torch.full((1, 5), 6)  # the embedding knows the words 0 to 5
    expected = runner(good)
    with ThreadPoolExecutor(8) as callers:
        answers = [callers.submit(runner, bad if i == 4 else good) for i in range(8)]
        with pytest.raises(StageError) as failure:
            answers[4].result(PATIENCE_S)
        for i, answer in enumerate(answers):
            assert i == 4 or torch.equal(answer.result(PATIENCE_S), expected)
    text = str(failure.value)
    assert text.startswith("stage 0 on 'cpu1' failed in micro-batch ")
    assert text.endswith(": IndexError: index out of range in self")
    for _ in range(10):  # its place is free again
        assert torch.equal(runner(good), expected)
    return failure.value
