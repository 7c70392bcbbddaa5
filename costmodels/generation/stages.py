"""Stages: neighbouring layers on a device, or on a tensor-parallel group, and the seconds of a prompt and of a token.

::

    token    stage 0 ─hop─ stage 1 ─hop─ ... ─ head       one after the other: a token needs the one before it
    prompt   chunks of some tokens; an engine that overlaps them has every stage work on another chunk
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from costmodels.generation.rates import Rates
from costmodels.generation.work import (
    Demand,
    LayerShare,
    LayerWork,
    Machine,
    Tokens,
    counted,
    experts_demand,
    head_demand,
    pass_demand,
    total,
)
from costmodels.language_model.model import ModelDescription
from graphs.common.brief import Brief


@dataclass(frozen=True)
class HostProcessors(Brief):
    """The processors of a host, which compute experts that do not fit into its GPUs."""

    machine: Machine
    rates: Rates


@dataclass(frozen=True)
class Unit(Brief):
    """A device or tensor-parallel group, and how an engine works on it.

    Attributes:
        machine: peaks of each of its devices.
        rates: the engine on them.
        share: how the devices share layers.
        host: what computes the experts that are kept away from it; None without such a host.
    """

    machine: Machine
    rates: Rates
    share: LayerShare = LayerShare()  # noqa: RUF009 - a frozen value
    host: HostProcessors | None = None


class Seconds(NamedTuple):
    """Time of a pass on a unit and on its host."""

    device: float
    host: float = 0.0

    @property
    def both(self) -> float:
        """The whole time: the device waits for the host."""
        return self.device + self.host


def layer_seconds(unit: Unit, work: LayerWork, tokens: Tokens, value_bytes: float, away: bool = False) -> Seconds:
    """Return the time of a pass through a layer; its experts are computed on the host if they are ``away``."""
    own = pass_demand(work, unit.machine, unit.share, tokens, value_bytes, away)
    if not away or work.experts is None:
        return Seconds(unit.rates.seconds(own))
    assert unit.host is not None
    return Seconds(unit.rates.seconds(own), unit.host.rates.seconds(away_demand(unit.host, work, tokens)))


def away_demand(host: HostProcessors, work: LayerWork, tokens: Tokens) -> Demand:
    """Return the work of a host for the experts of a layer: reading those that some tokens take, and their products."""
    demand = experts_demand(work, host.machine, 1, tokens.rows)
    kind_of_rows = "products" if tokens.prompt else "rows"
    for (group, kind), flops in work.flops.items():
        if group == "experts":
            demand[f"{kind_of_rows} {kind}"] = flops * tokens.rows / host.machine.peak(kind)
    return demand | {"expert layers": 1.0, "crossings": 2.0}


def head_seconds(unit: Unit, model: ModelDescription, rows: float, prompt: bool = False) -> float:
    """Return the time of the scores of all words for some tokens."""
    return unit.rates.seconds(head_demand(model, unit.machine, unit.share.tensor, rows, prompt))


def layers_demand(
    works: Sequence[LayerWork], machine: Machine, share: LayerShare, tokens: Tokens, value_bytes: float
) -> Demand:
    """Return the work of a device for a pass through neighbouring layers, as `pass_demand` for each."""
    return total((pass_demand(work, machine, share, tokens, value_bytes), times) for work, times in counted(works))


def chunks_of(tokens: int, chunk: int) -> list[Tokens]:
    """Return the passes of a prompt that is computed in chunks."""
    return [Tokens.prefill(min(chunk, tokens - start), start) for start in range(0, tokens, chunk)]


def prompt_seconds(chunks: Sequence[Sequence[float]], overlaps: bool) -> float:
    """Return the time of a prompt from the times of its chunks on each stage, [chunks][stages].

    A chunk begins on a stage when it has left the one before, and the chunk before it has left the stage.
    """
    if not overlaps:
        return sum(sum(stages) for stages in chunks)
    ends = [0.0] * (len(chunks[0]) if chunks else 0)
    for stages in chunks:
        before = 0.0
        for number, seconds in enumerate(stages):
            before = ends[number] = max(before, ends[number]) + seconds
    return ends[-1] if ends else 0.0
