"""Speeds of a division: seconds to the first token and for each token, by phase and device, and where they go."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from costmodels.generation.rates import PARTS
from costmodels.generation.stages import (
    Seconds,
    away_demand,
    chunks_of,
    head_seconds,
    layer_seconds,
    prompt_seconds,
)
from costmodels.generation.work import Tokens, head_demand, pass_demand
from graphs.common.brief import Brief
from planner.generation.question import GenerationQuestion
from planner.generation.split_problem import Division, DivisionPart, SplitProblem, message_s, over_bytes

COPIES = 4  # of compute buffers, where chunks of a prompt are on several devices at once (GGML_SCHED_MAX_COPIES)
ESTIMATED = (0.7, 1.4)  # factors by which ranges are wider for kinds of devices that nobody measured


@dataclass(frozen=True)
class StageSpeed(Brief):
    """Seconds of a stage.

    Attributes:
        token_s: of one token of every sequence.
        prompt_s: of the prompt of one sequence.
        host_token_s: of ``token_s``, what the host computes of experts.
        hop_s: of a message to the next stage, for a token; 0 after the last one.
    """

    token_s: float
    prompt_s: float
    host_token_s: float
    hop_s: float


@dataclass(frozen=True)
class Speeds(Brief):
    """Times to expect of a division.

    Attributes:
        first_token_s: from a request to its first token, alone.
        token_s: of one token of every sequence at once, half-way through the answers.
        one_token_s: of one token while there is a single sequence.
        decode_range: factors between which 80 % of measured times of a token lie.
        prefill_range: likewise to the first token.
        stages: of each stage.
        parts: seconds of a token by where they go.
        estimated: the kinds of devices that nobody measured.
    """

    first_token_s: float
    token_s: float
    one_token_s: float
    decode_range: tuple[float, float]
    prefill_range: tuple[float, float]
    stages: tuple[StageSpeed, ...]
    parts: dict[str, float]
    estimated: tuple[str, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of one sequence alone."""
        return 1 / self.one_token_s

    def all_tokens_per_s(self, sequences: int) -> float:
        """Return the tokens a second of all sequences together."""
        return sequences / self.token_s


def speeds_of(problem: SplitProblem, division: Division) -> Speeds:
    """Return what to expect of a division."""
    question, parts = problem.question, division.parts
    whole = Tokens.decode(question.sequences, question.length)
    passes, chunks = _token_passes(problem, parts, whole), _prompt_chunks(problem, parts)
    prompts_s = [sum(chunk[number] for chunk in chunks) for number in range(len(parts))]
    stages = tuple(
        StageSpeed(each.own_s, prompt_s, each.host_s, each.hop_s)
        for each, prompt_s in zip(passes, prompts_s, strict=True)
    )
    overlapped = question.engine.overlaps and len(stages) > 1 and _room_for_copies(problem, division)
    estimated = _estimated(problem, parts)
    alone = replace(whole, rows=1.0, sequences=1.0)
    return Speeds(
        prompt_seconds(chunks, overlapped) + question.engine.seconds["prompt"],
        _token_s(question, passes, whole),
        _token_s(question, _token_passes(problem, parts, alone), alone),
        _wider(question.engine.decode_range, bool(estimated)),
        _wider(question.engine.prefill_range, bool(estimated)),
        stages,
        _parts(problem, parts, whole),
        estimated,
    )


def _estimated(problem: SplitProblem, parts: Sequence[DivisionPart]) -> tuple[str, ...]:
    """Return the kinds of devices in use that nobody measured."""
    units = [problem.units[part.unit] for part in parts]
    numbers = [problem.classes[unit.device_class].devices[0] for unit in units if unit.unit.rates.origin == "estimated"]
    return tuple(dict.fromkeys(problem.question.cluster.devices[number].kind for number in numbers))


def _wider(known: tuple[float, float], estimated: bool) -> tuple[float, float]:
    return (known[0] * ESTIMATED[0], known[1] * ESTIMATED[1]) if estimated else known


class _TokenPass(NamedTuple):
    """Seconds of one token of some sequences on a part: its layers, of these on the host, and the message after it."""

    own_s: float
    host_s: float
    hop_s: float


def _token_passes(problem: SplitProblem, parts: Sequence[DivisionPart], tokens: Tokens) -> list[_TokenPass]:
    """Return the seconds of one token of every sequence on each part."""
    found = []
    for number, part in enumerate(parts):
        layers = _layers(problem, part, tokens)
        last = part.stop == problem.n_layers
        head = head_seconds(problem.units[part.unit].unit, problem.question.model, tokens.rows) if last else 0.0
        hop_s = 0.0 if last else _hop_s(problem, part, parts[number + 1], tokens.rows)
        found.append(_TokenPass(sum(each.both for each in layers) + head, sum(each.host for each in layers), hop_s))
    return found


def _layers(problem: SplitProblem, part: DivisionPart, tokens: Tokens) -> list[Seconds]:
    """Return the seconds of a pass through each layer of a part; those of equal layers are computed once."""
    question, unit = problem.question, problem.units[part.unit].unit
    known: dict[tuple[int, bool], Seconds] = {}
    found = []
    for layer in range(part.start, part.stop):
        work, away = question.works[layer], layer in part.away
        key = id(work), away
        if key not in known:
            known[key] = layer_seconds(unit, work, tokens, question.value_bytes, away)
        found.append(known[key])
    return found


def _hop_s(problem: SplitProblem, part: DivisionPart, following: DivisionPart, rows: float) -> float:
    """Return the seconds of a message with some tokens from one part to the next."""
    return message_s(problem, problem.units[part.unit].device_class, problem.units[following.unit].device_class, rows)


def _token_s(question: GenerationQuestion, passes: Sequence[_TokenPass], tokens: Tokens) -> float:
    """Return the seconds of one token of every sequence through all parts."""
    seconds = question.engine.seconds
    return sum(each.own_s + each.hop_s for each in passes) + seconds["step"] + seconds["sequence"] * tokens.sequences


def _prompt_chunks(problem: SplitProblem, parts: Sequence[DivisionPart]) -> list[list[float]]:
    """Return the seconds of each chunk of a prompt on each part, [chunks][parts]."""
    question = problem.question
    chunks = chunks_of(question.prompt, question.engine.chunk_tokens)
    found = [[sum(each.both for each in _layers(problem, part, tokens)) for part in parts] for tokens in chunks]
    last = problem.units[parts[-1].unit].unit
    found[-1][-1] += head_seconds(last, question.model, 1.0, prompt=True)
    return found


def _parts(problem: SplitProblem, parts: Sequence[DivisionPart], tokens: Tokens) -> dict[str, float]:
    """Return the seconds of a token by where they go."""
    question = problem.question
    found = dict.fromkeys((*PARTS, "experts on the host"), 0.0)
    for number, part in enumerate(parts):
        unit = problem.units[part.unit].unit
        for layer in range(part.start, part.stop):
            work, away = question.works[layer], layer in part.away
            demand = pass_demand(work, unit.machine, unit.share, tokens, question.value_bytes, away)
            for name, seconds in unit.rates.parts(demand).items():
                found[name] += seconds
            if away and unit.host is not None:
                found["experts on the host"] += unit.host.rates.seconds(away_demand(unit.host, work, tokens))
        if part.stop == problem.n_layers:
            head = head_demand(question.model, unit.machine, unit.share.tensor, tokens.rows)
            for name, seconds in unit.rates.parts(head).items():
                found[name] += seconds
        else:
            found["messages"] += _hop_s(problem, part, parts[number + 1], tokens.rows)
    seconds_of = question.engine.seconds
    found["starting"] += seconds_of["step"] + seconds_of["sequence"] * tokens.sequences
    return found


def _room_for_copies(problem: SplitProblem, division: Division) -> bool:
    """Return whether every device has room for the buffers of several chunks."""
    question = problem.question
    if question.engine.batches:
        return True
    more = (COPIES - 1) * question.buffer_bytes
    return all(over_bytes(problem, part) + more <= 0 for part in division.parts)
