"""The division of layers among unequal devices as a problem: the units, what a division costs, and what fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

import numpy as np

from costmodels.generation.work import VALUE_BYTES
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from planner.generation.question import GenerationQuestion
from planner.generation.units import DeviceClass, PricedUnit, UnitPrice, device_classes, priced_units

MOST_STATES = 20_000  # numbers of devices in use; each takes as many steps as there are units


class DivisionPart(NamedTuple):
    """Neighbouring layers on a unit.

    Attributes:
        unit: its number.
        start: the first layer.
        stop: after the last layer.
        away: the layers whose experts are on the host.
    """

    unit: int
    start: int
    stop: int
    away: tuple[int, ...] = ()


class Division(NamedTuple):
    """Every layer on a unit.

    Attributes:
        parts: the units in the order in which a token passes them.
        cost_s: seconds of a request for each token that it generates, hops included.
    """

    parts: tuple[DivisionPart, ...]
    cost_s: float


@dataclass(frozen=True)
class SplitProblem(Brief):
    """Units, prices and limits of a question.

    Attributes:
        question: the question.
        classes: equal devices of each host.
        units: what can hold layers.
    """

    question: GenerationQuestion
    classes: tuple[DeviceClass, ...]
    units: tuple[PricedUnit, ...]

    @property
    def n_layers(self) -> int:
        """How many layers the model has."""
        return len(self.question.works)

    def hop_s(self, source: int, target: int) -> float:
        """Return the seconds of a request's messages from one class to another, for each generated token."""
        question = self.question
        prompt_s = message_s(self, source, target, question.prompt) * question.sequences
        return message_s(self, source, target, question.sequences) + prompt_s / question.output

    def layer_prices(self, unit: PricedUnit) -> list[UnitPrice]:
        """Return [n_layers], the price of each layer on a unit."""
        return [unit.prices[id(work)] for work in self.question.works]

    def cost_s(self, price: UnitPrice, away: bool = False) -> float:
        """Return the seconds of a request on a layer, for each token that it generates."""
        token_s, prompt_s = (price.away_token_s, price.away_prompt_s) if away else (price.token_s, price.prompt_s)
        return token_s + prompt_s / self.question.output


def message_s(problem: SplitProblem, source: int, target: int, rows: float) -> float:
    """Return the seconds of a message with some tokens from one class to another; infinite without a link."""
    starts, others = problem.classes[source].devices, problem.classes[target].devices[source == target :]
    link = problem.question.cluster.link.get((starts[0], others[0])) if others else None
    if link is None:
        return inf
    (seconds,) = link.seconds(np.array([rows * problem.question.model.hidden * VALUE_BYTES])).tolist()
    return float(seconds) + problem.question.engine.seconds["hop"]


def split_problem(question: GenerationQuestion) -> SplitProblem:
    """Return the problem of a question.

    Raises:
        InputError: for more kinds of devices than can be searched.
    """
    classes = device_classes(question.cluster)
    states = prod(len(each.devices) + 1 for each in classes)
    if states > MOST_STATES:
        raise InputError(
            f"cluster '{question.cluster.name}' has {len(classes)} kinds of devices in {states:,} combinations; at "
            f"most {MOST_STATES:,} are searched; give fewer devices, or name equal ones of a host alike"
        )
    return SplitProblem(question, classes, priced_units(question, classes))


def division_cost(problem: SplitProblem, parts: Sequence[DivisionPart]) -> float:
    """Return the seconds of a request for each token that it generates: layers, head and hops."""
    cost = 0.0
    for number, part in enumerate(parts):
        unit = problem.units[part.unit]
        prices = problem.layer_prices(unit)
        for layer in range(part.start, part.stop):
            cost += problem.cost_s(prices[layer], layer in part.away)
        if part.stop == problem.n_layers:
            cost += problem.cost_s(unit.head)
        if number:
            cost += problem.hop_s(problem.units[parts[number - 1].unit].device_class, unit.device_class)
    return cost


def over_bytes(problem: SplitProblem, part: DivisionPart) -> float:
    """Return by how much the layers of a part are more than its unit has room for, all experts on it."""
    unit = problem.units[part.unit]
    own = sum(price.bytes for price in problem.layer_prices(unit)[part.start : part.stop])
    return own + float(extra_bytes(problem, unit, part.start, part.stop)) - unit.room_bytes


def extra_bytes(problem: SplitProblem, unit: PricedUnit, start: Ints | int, stop: Ints | int) -> Floats:
    """Return the bytes of blocks besides their layers': embedding, head (a tied one is there once), `reused_bytes`."""
    first, last = np.equal(start, 0), np.equal(stop, problem.n_layers)
    twice = min(unit.head.bytes, unit.embedding_bytes) if problem.question.model.tied else 0.0
    ends = first * unit.embedding_bytes + last * unit.head.bytes - (first & last) * twice
    return np.asarray(ends + reused_bytes(problem, unit, start, stop))


def reused_bytes(problem: SplitProblem, unit: PricedUnit, start: Ints | int, stop: Ints | int) -> Floats:
    """Return the bytes of weights that blocks use and do not own, which a device then has once more."""
    users: dict[tuple[int, float], list[int]] = {}
    for layer, work in enumerate(problem.question.works):
        for owner, n_bytes in work.reused.items():
            users.setdefault((owner, n_bytes), []).append(layer)
    found = np.zeros(np.broadcast(start, stop).shape)
    for (owner, n_bytes), layers in users.items():
        before = np.searchsorted(layers, start)
        uses = np.searchsorted(layers, stop) > before
        owns = np.less_equal(start, owner) & np.greater(stop, owner)
        found = found + (uses & ~owns) * (n_bytes / unit.size)
    return found


def host_bytes(problem: SplitProblem, division: Division) -> dict[int, float]:
    """Return the bytes of experts that each class of processors has for GPUs of its host."""
    found: dict[int, float] = {}
    for part in division.parts:
        unit = problem.units[part.unit]
        prices = problem.layer_prices(unit)
        for layer in part.away:
            assert unit.host is not None
            found[unit.host] = found.get(unit.host, 0.0) + prices[layer].host_bytes
    return found
