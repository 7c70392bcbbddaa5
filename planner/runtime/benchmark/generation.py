"""Measure a language model that generates, phase by phase, and compare its tokens with those of transformers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from graphs.common.brief import Brief
from planner.plans.plan import Plan
from planner.runtime.benchmark.load import Load
from planner.runtime.generation.runner import GenerationRunner
from planner.runtime.verification.deviation import TOLERANCE

OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True)
class GenerationMeasurement(Brief):
    """Medians of some rounds.

    Attributes:
        first_token_s: seconds from a prompt to its first token, one group of sequences alone.
        token_s: seconds from one token to the next, one group of sequences alone; None for a single token.
        all_first_tokens_s: seconds until all sequences have their first token.
        all_s: seconds for all tokens of all sequences.
        tokens: of each sequence.
    """

    first_token_s: float
    token_s: float | None
    all_first_tokens_s: float
    all_s: float
    tokens: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TokenDifference:
    """The first token of a sequence that is not transformers' own."""

    sequence: int
    position: int  # after the prompt
    expected: int
    found: int
    within_rounding: bool  # whether their logits differ by less than devices round differently


def random_prompts(plan: Plan, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Return a prompt of the workload's length for each sequence."""
    work, generator = plan.workload, torch.Generator().manual_seed(seed)
    shape = (work.sequences, work.prompt)
    prompts: list[list[int]] = torch.randint(vocabulary, shape, generator=generator).tolist()
    return prompts


def measure_generation(
    runner: GenerationRunner, prompts: Sequence[Sequence[int]], new_tokens: int, rounds: int, load: Load, step: OnStep
) -> GenerationMeasurement:
    """Generate some times with one group alone, and with all sequences at once; no sequence stops early."""
    rows = runner.plan.workload.batch
    alone: list[tuple[float, float]] = []
    together: list[tuple[float, float]] = []
    tokens: list[list[int]] = [[] for _ in prompts]
    for turn in range(rounds + 1):  # the first one warms up
        step("generating", turn, rounds + 1)
        load.sample_pace()
        alone.append(_timed(runner, prompts[:rows], new_tokens)[0])
        times, tokens = _timed(runner, prompts, new_tokens)
        together.append(times)
    load.sample_pace()
    first_s, end_s = (median(times[end] for times in alone[1:]) for end in (0, 1))
    all_first_s, all_s = (median(times[end] for times in together[1:]) for end in (0, 1))
    token_s = (end_s - first_s) / (new_tokens - 1) if new_tokens > 1 else None
    return GenerationMeasurement(first_s, token_s, all_first_s, all_s, tuple(map(tuple, tokens)))


def _timed(
    runner: GenerationRunner, prompts: Sequence[Sequence[int]], new_tokens: int
) -> tuple[tuple[float, float], list[list[int]]]:
    """Return the seconds until all sequences have a token, and all tokens; and the tokens."""
    found: list[list[int]] = [[] for _ in prompts]
    first_s, begun, start_s = 0.0, 0, time.perf_counter()
    for sequence, token in runner.tokens(prompts, new_tokens, stops=()):
        if not found[sequence]:
            begun += 1
            first_s = time.perf_counter() - start_s
        found[sequence].append(token)
    return (first_s, time.perf_counter() - start_s), found


def compare_tokens(
    module: Any, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
) -> tuple[TokenDifference, ...]:
    """Return where greedy tokens differ from those of transformers' ``generate``, one sequence after the other.

    A difference between two tokens whose logits are closer than `TOLERANCE` is one of rounding; the tokens after it
    follow another text and are not compared.
    """
    found = []
    for sequence, (prompt, own) in enumerate(zip(prompts, tokens, strict=True)):
        expected = _expected(module, prompt, len(own))
        for position, (wanted, token) in enumerate(zip(expected, own, strict=True)):
            if wanted != token:
                before = [*prompt, *own[:position]]
                found.append(TokenDifference(sequence, position, wanted, token, _close(module, before, wanted, token)))
                break
    return tuple(found)


def _expected(module: Any, prompt: Sequence[int], new_tokens: int) -> list[int]:
    device = next(module.parameters()).device
    ids = torch.tensor([list(prompt)], device=device)
    options = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        made = module.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return made[0, len(prompt) :].tolist()  # type: ignore[no-any-return]  # transformers has no types here


def _close(module: Any, before: Sequence[int], one: int, other: int) -> bool:
    """Return whether the logits of two tokens after some others differ by less than devices round differently."""
    ids = torch.tensor([list(before)], device=next(module.parameters()).device)
    with torch.no_grad():
        logits = module(ids).logits[0, -1]
    apart = float((logits[one] - logits[other]).abs())
    return apart <= 2 * TOLERANCE.get(logits.dtype, 0.0) * float(logits.abs().max())
