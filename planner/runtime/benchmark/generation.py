"""Measure a language model that generates, phase by phase, and compare its tokens with its own."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median
from typing import Any

import torch

from graphs.common.brief import Brief
from graphs.importers.exported_cache import ExportedCacheModel
from graphs.program.generation import GenerationProgram
from planner.plans.plan import Plan
from planner.runtime.benchmark.load import Load, watching
from planner.runtime.generation.prompts import Prompt
from planner.runtime.generation.runner import GenerationRunner
from planner.runtime.verification.deviation import TOLERANCE

OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True)
class GenerationMeasurement(Brief):
    """Medians of some rounds.

    Attributes:
        first_token_s: seconds from a prompt to its first token, one sequence alone.
        token_s: seconds from one token to the next, one sequence alone; None for a single token.
        alone_s: seconds for a prompt and all its tokens, one sequence alone.
        all_first_tokens_s: seconds until all sequences have their first token.
        all_s: seconds for all tokens of all sequences.
        tokens: of each sequence.
    """

    first_token_s: float
    token_s: float | None
    alone_s: float
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


def random_prompts(plan: Plan, model: GenerationProgram, seed: int = 0) -> list[Prompt]:
    """Return a prompt of the workload's length for each sequence, or features for an encoder."""
    work, generator, source = plan.workload, torch.Generator().manual_seed(seed), model.source
    if source is not None and not source.has_ids:
        return [torch.randn(source.shape, generator=generator).to(source.dtype) for _ in range(work.sequences)]
    prompts: list[Prompt] = torch.randint(model.vocabulary, (work.sequences, work.prompt), generator=generator).tolist()
    return prompts


def measure_generation(
    runner: GenerationRunner, prompts: Sequence[Prompt], new_tokens: int, rounds: int, load: Load, step: OnStep
) -> GenerationMeasurement:
    """Generate some times with one sequence alone, and with all at once; no sequence stops early."""
    alone: list[tuple[float, float]] = []
    together: list[tuple[float, float]] = []
    tokens: list[list[int]] = [[] for _ in prompts]
    for turn in range(rounds + 1):  # the first one warms up
        step("generating", turn, rounds + 1)
        load.sample_pace()
        with watching(load.meter, runner, 1):
            alone.append(_timed(runner, prompts[:1], new_tokens)[0])
        with watching(load.meter, runner, runner.plan.n_used):
            times, tokens = _timed(runner, prompts, new_tokens)
        together.append(times)
    load.sample_pace()
    first_s, end_s = (median(times[end] for times in alone[1:]) for end in (0, 1))
    all_first_s, all_s = (median(times[end] for times in together[1:]) for end in (0, 1))
    token_s = (end_s - first_s) / (new_tokens - 1) if new_tokens > 1 else None
    return GenerationMeasurement(first_s, token_s, end_s, all_first_s, all_s, tuple(map(tuple, tokens)))


def _timed(
    runner: GenerationRunner, prompts: Sequence[Prompt], new_tokens: int
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


def reference(model: GenerationProgram) -> str:
    """Return the name of what a model's tokens are compared with."""
    return "the exported program" if isinstance(model.module, ExportedCacheModel) else "transformers' generate"


def compare_tokens(
    model: GenerationProgram, prompts: Sequence[Prompt], tokens: Sequence[Sequence[int]]
) -> tuple[TokenDifference, ...]:
    """Return where greedy tokens differ from the model's own, one sequence after the other.

    These are those of transformers' ``generate``, or those of the exported program of a .pt2.

    A difference between two tokens whose logits are closer than `TOLERANCE` is one of rounding; the tokens after it
    follow another text and are not compared.
    """
    found = []
    for sequence, (prompt, own) in enumerate(zip(prompts, tokens, strict=True)):
        is_exported = isinstance(model.module, ExportedCacheModel)
        own_model = _Exported(model, prompt) if is_exported else _Transformers(model, prompt)
        for position, (wanted, token) in enumerate(zip(own_model.continued(len(own)), own, strict=True)):
            if wanted != token:
                is_close = own_model.are_close(own[:position], wanted, token)
                found.append(TokenDifference(sequence, position, wanted, token, is_close))
                break
    return tuple(found)


class _Transformers:
    """A model as transformers runs it, with one prompt, or one source for its encoder."""

    def __init__(self, model: GenerationProgram, prompt: Prompt) -> None:
        self.module: Any = model.module
        device = next(model.module.parameters()).device
        given = torch.as_tensor(prompt, device=device)[None]
        self.inputs: dict[str, Any] = {str(self.module.main_input_name): given}
        if given.dim() == 2:
            self.inputs["attention_mask"] = torch.ones_like(given)
        self.begun = given if model.source is None else torch.tensor([model.source.start], device=device)
        self.ids = "input_ids" if model.source is None else "decoder_input_ids"

    @torch.no_grad()
    def continued(self, new_tokens: int) -> list[int]:
        """Return the likeliest tokens one after the other."""
        options = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        plain: Any = next(each for each in type(self.module).__mro__ if each.__name__ == "GenerationMixin")
        made = plain.generate(self.module, **self.inputs, **options)  # a model's own may cut audio into windows
        return made[0, self.begun.shape[1] :].tolist()  # type: ignore[no-any-return]  # transformers has no types here

    @torch.no_grad()
    def are_close(self, before: Sequence[int], one: int, other: int) -> bool:
        """Return whether the logits of two tokens after some others differ by less than devices round differently."""
        ids = torch.cat([self.begun, torch.tensor([list(before)], dtype=torch.long, device=self.begun.device)], dim=1)
        given = {self.ids: ids} if self.ids in self.inputs else {**self.inputs, self.ids: ids}
        return _are_close(self.module(**given).logits[0, -1], one, other)


class _Exported:
    """A .pt2 as its exported program runs, token by token, with one prompt."""

    def __init__(self, model: GenerationProgram, prompt: Prompt) -> None:
        self.module: Any = model.module
        self.prompt = [int(each) for each in prompt]

    @torch.no_grad()
    def continued(self, new_tokens: int) -> list[int]:
        """Return the likeliest tokens one after the other."""
        found: list[int] = []
        for logits in islice(self._logits(found), len(self.prompt) - 1, len(self.prompt) + new_tokens - 1):
            found.append(int(logits.argmax()))
        return found

    @torch.no_grad()
    def are_close(self, before: Sequence[int], one: int, other: int) -> bool:
        """Return whether the logits of two tokens after some others differ by less than devices round differently."""
        *_, logits = islice(self._logits(before), len(self.prompt) + len(before))
        return _are_close(logits, one, other)

    def _logits(self, more: Sequence[int]) -> Iterator[torch.Tensor]:
        """Yield the logits after each token of the prompt and of a sequence, which may grow meanwhile."""
        caches = [torch.zeros_like(each) for each in self.module.about.state.values()]
        last = torch.zeros(1, dtype=torch.long)
        for position, token in enumerate(chain(self.prompt, more)):
            logits, caches = self.module(torch.tensor([[token]]), torch.tensor([[position]]), last, caches)
            yield logits[0]


def _are_close(logits: torch.Tensor, one: int, other: int) -> bool:
    """Return whether two logits differ by less than devices round differently."""
    apart = float((logits[one] - logits[other]).abs())
    return apart <= 2 * TOLERANCE.get(logits.dtype, 0.0) * float(logits.abs().max())
