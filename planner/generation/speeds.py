"""Speeds of a division: seconds to the first token and for each token, by phase and device, and where they go."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodels.generation.memory import compute_bytes
from costmodels.generation.rates import PARTS
from costmodels.generation.stages import (
    away_demand,
    chunks_of,
    head_seconds,
    layer_seconds,
    prompt_seconds,
)
from costmodels.generation.work import Tokens, head_demand, pass_demand
from graphs.common.brief import Brief
from planner.generation.split import Division, DivisionPart, SplitProblem, message_s, over_bytes

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
        overlapped: whether chunks of a prompt are on several stages at once.
    """

    first_token_s: float
    token_s: float
    one_token_s: float
    decode_range: tuple[float, float]
    prefill_range: tuple[float, float]
    stages: tuple[StageSpeed, ...]
    parts: dict[str, float]
    estimated: tuple[str, ...]
    overlapped: bool

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of one sequence alone."""
        return 1 / self.one_token_s

    def all_tokens_per_s(self, sequences: int) -> float:
        """Return the tokens a second of all sequences together."""
        return sequences / self.token_s


def speeds_of(problem: SplitProblem, division: Division) -> Speeds:
    """Return what to expect of a division."""
    question = problem.question
    whole = Tokens.decode(question.sequences, question.length)
    stages = tuple(_stage(problem, division.parts, number, whole) for number in range(len(division.parts)))
    overlapped = question.engine.overlaps and len(stages) > 1 and _room_for_copies(problem, division)
    used = [
        problem.question.cluster.devices[problem.classes[problem.units[part.unit].device_class].devices[0]]
        for part in division.parts
    ]
    estimated = tuple(
        dict.fromkeys(
            device.kind
            for device, part in zip(used, division.parts, strict=True)
            if problem.units[part.unit].unit.rates.origin == "estimated"
        )
    )
    chunks = _prompt_chunks(problem, division.parts)
    first = prompt_seconds(chunks, overlapped) + question.engine.seconds["prompt"]
    return Speeds(
        first,
        _token_s(problem, division.parts, whole),
        _token_s(problem, division.parts, replace(whole, rows=1.0, sequences=1.0)),
        _wider(question.engine.decode_range, bool(estimated)),
        _wider(question.engine.prefill_range, bool(estimated)),
        stages,
        _parts(problem, division.parts, whole),
        estimated,
        overlapped,
    )


def _wider(known: tuple[float, float], estimated: bool) -> tuple[float, float]:
    return (known[0] * ESTIMATED[0], known[1] * ESTIMATED[1]) if estimated else known


def _stage(problem: SplitProblem, parts: Sequence[DivisionPart], number: int, tokens: Tokens) -> StageSpeed:
    question, part = problem.question, parts[number]
    own = [_layer(problem, part, layer, tokens) for layer in range(part.start, part.stop)]
    last = part.stop == problem.n_layers
    unit = problem.units[part.unit].unit
    head = head_seconds(unit, question.model, tokens.rows) if last else 0.0
    chunks = _prompt_chunks(problem, [part])
    return StageSpeed(
        sum(device + host for device, host in own) + head,
        sum(chunk[0] for chunk in chunks),
        sum(host for _, host in own),
        0.0 if last else _hop_s(problem, part, parts[number + 1], tokens.rows),
    )


def _layer(problem: SplitProblem, part: DivisionPart, layer: int, tokens: Tokens) -> tuple[float, float]:
    unit = problem.units[part.unit].unit
    work = problem.question.works[layer]
    found = layer_seconds(unit, work, tokens, problem.question.value_bytes, layer in part.away)
    return found.device, found.host


def _hop_s(problem: SplitProblem, part: DivisionPart, following: DivisionPart, rows: float) -> float:
    """Return the seconds of a message with some tokens from one part to the next."""
    return message_s(problem, problem.units[part.unit].device_class, problem.units[following.unit].device_class, rows)


def _token_s(problem: SplitProblem, parts: Sequence[DivisionPart], tokens: Tokens) -> float:
    """Return the seconds of one token of every sequence through all stages."""
    seconds = problem.question.engine.seconds
    stages = [_stage(problem, parts, number, tokens) for number in range(len(parts))]
    own = sum(stage.token_s + stage.hop_s for stage in stages)
    return own + seconds["step"] + seconds["sequence"] * tokens.sequences


def _prompt_chunks(problem: SplitProblem, parts: Sequence[DivisionPart]) -> list[list[float]]:
    """Return the seconds of each chunk of a prompt on each part, [chunks][parts]."""
    question = problem.question
    found = []
    chunks = chunks_of(question.prompt, question.engine.chunk_tokens)
    for number, tokens in enumerate(chunks):
        row = []
        for part in parts:
            known: dict[tuple[int, bool], float] = {}
            total_s = 0.0
            for layer in range(part.start, part.stop):
                key = id(question.works[layer]), layer in part.away
                if key not in known:
                    known[key] = sum(_layer(problem, part, layer, tokens))
                total_s += known[key]
            if part.stop == problem.n_layers and number == len(chunks) - 1:
                total_s += head_seconds(problem.units[part.unit].unit, question.model, 1.0, prompt=True)
            row.append(total_s)
        found.append(row)
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
    scores = 0 if question.engine.fused_attention else question.context
    more = (COPIES - 1) * compute_bytes(question.model, question.engine.chunk_tokens, scores)
    if question.engine.batches:
        return True
    return all(over_bytes(problem, part) + more <= 0 for part in division.parts)
