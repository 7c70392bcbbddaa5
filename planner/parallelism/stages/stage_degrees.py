"""SimulatedStages: stages with degrees, ZeRO and recomputation of their own, by the costs of operators.

Complete pipelines are simulated. With m micro-batches, f and b the passes of a stage with their messages, and s its
gradients and optimizer, no step is shorter than

::

    f[0] + .. + f[i - 1] + m (f[i] + b[i]) + s[i]                         for every stage i: the way to its first
    f[0] + .. + f[i - 1] + m (f[i] + b[i]) + b[i - 1] + .. + b[0] + s[0]  pass, all of its passes, and the end

Among the ways to run the same layers on equal groups, a way is left out if another one fits and takes no longer for
either pass and for gradients and optimizer: no step is longer with the other one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodels.workload import RecomputeMode
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import brief
from planner.parallelism.best_first import MOST_STAGES, Prefix
from planner.parallelism.closed_form.config import StageDegrees
from planner.parallelism.network.shape_tables import ShapeCosts
from planner.parallelism.stages.own_stages import StageProblem, StageSolution, StageSpec

MOST_STEPS = 1000  # of a search, each for the beginning of a pipeline


class StageOptionCosts(NamedTuple):
    """Ways to run stages that begin with a block, [n_ways, n_blocks + 1] each, by where the stage ends."""

    forward_s: Floats
    back_s: Floats  # infinite where the stage may not end or does not fit
    after_s: Floats  # gradients and the optimizer
    fits: NDArray[np.bool_]  # whether it certainly fits

    def own_s(self, micro_batches: int) -> Floats:
        """Return the seconds of the passes of all micro-batches, [n_ways, n_blocks + 1]."""
        return np.asarray(micro_batches * (self.forward_s + self.back_s))


class _Sums(NamedTuple):
    """Sums over all blocks before a block, [n_blocks + 1] each, for one way to run them."""

    forward_s: Floats
    back_s: Floats
    fixed_bytes: Floats
    waiting_bytes: Floats
    inputs_bytes: Floats
    gradient_bytes: Floats


GroupKey: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Data- and tensor-parallel degree of a stage, and the kinds of its devices."""

WayKey: TypeAlias = tuple[StageDegrees, RecomputeMode]


@dataclass(frozen=True)
class SimulatedStages:
    """The stages of a network, of which whole pipelines are simulated, for `best_first`.

    The costs of a beginning are its forward and backward passes with messages, the gradients and optimizer of its first
    stage, and the bound of the slowest stage. They do not say what a simulation says, nor whether the memory suffices.

    Attributes:
        problem: the costs of stages.
        most_bytes: the most that any device may hold.
    """

    problem: StageProblem
    most_bytes: float = inf

    __repr__ = brief
    exact = False

    def beginnings(self) -> Iterator[Prefix[StageSpec]]:
        """Yield beginnings without stages, one for each number of stages."""
        ahead_s, both_s = self._least
        for n_stages in range(2, len(ahead_s)):
            if (bound_s := max(float(ahead_s[n_stages][0, 0]), float(both_s[n_stages][0, 0]))) < inf:
                yield Prefix(bound_s, n_stages, 0, self.problem.n_blocks, (0.0, 0.0, 0.0, 0.0), ())

    def solution(self, begun: Prefix[StageSpec]) -> tuple[StageSolution, float] | None:
        """Return the simulated stages; None if they do not fit."""
        found = self.problem.simulated(begun.stages, self.most_bytes)
        return None if found is None else (found, found.step_s)

    # --- ways to run a stage -----------------------------------------------------------------------------------------

    @cached_property
    def _groups(self) -> dict[GroupKey, Ints]:
        """The first devices of the groups of each kind."""
        found: dict[GroupKey, list[int]] = {}
        for data, tensor in dict.fromkeys((degrees.data, degrees.tensor) for degrees in self.problem.costs):
            for at in self.problem.fabric.places(data * tensor).tolist():
                found.setdefault((data, tensor, self.problem.kinds_of(at, data * tensor)), []).append(at)
        return {group: np.array(places) for group, places in found.items()}

    @cached_property
    def _ways(self) -> dict[GroupKey, dict[WayKey, ShapeCosts]]:
        """The costs of all ways to run a stage on a group: ZeRO's stage and recomputation."""
        return {
            (data, tensor, kinds): {
                (degrees, recompute): self.problem.on_kinds(degrees, kinds)
                for degrees in self.problem.costs
                if (degrees.data, degrees.tensor) == (data, tensor)
                for recompute in self.problem.recomputes
            }
            for data, tensor, kinds in self._groups
        }

    @cached_property
    def _sums(self) -> dict[GroupKey, _Sums]:
        """The sums of all ways to run a stage on a group, [n_ways, n_blocks + 1] each."""
        return {
            group: _Sums(*map(np.array, zip(*(self._sums_of(*way) for way in ways.items()), strict=True)))
            for group, ways in self._ways.items()
        }

    def _sums_of(self, way: WayKey, costs: ShapeCosts) -> _Sums:
        table, recompute = costs.table, way[1]
        inputs = np.zeros(table.n_ops)
        if recompute != "none":
            np.add.at(inputs, [flow.writer for flow in table.flows], table.trained.layer_bytes)
        assert table.update is not None
        rows = (
            table.forward_s[:, 0],
            table.backward_s[:, 0] + table.again_s(recompute)[:, 0],
            table.op_bytes,
            table.trained.waiting_bytes(recompute),
            inputs,
            table.update.gradient_bytes,
        )
        sums = np.zeros((len(rows), self.problem.n_blocks + 1))
        for own, row in zip(sums, rows, strict=True):
            np.add.at(own, np.asarray(self.problem.home) + 1, row)
        return _Sums(*sums.cumsum(axis=1))

    @cached_property
    def _again_bytes(self) -> dict[GroupKey, Floats]:
        """[n_ways, n_blocks], an upper bound of the bytes that a block saves when it is recomputed."""
        found = {}
        for group, ways in self._ways.items():
            again = np.zeros((len(ways), self.problem.n_blocks))
            for own, ((_, recompute), costs) in zip(again, ways.items(), strict=True):
                np.add.at(own, self.problem.home, costs.table.trained.again_bytes(recompute))
            found[group] = again
        return found

    @cached_property
    def _known(self) -> dict[tuple[int, int, GroupKey], StageOptionCosts]:
        return {}

    def _stage_ways(self, left: int, start: int, group: GroupKey) -> StageOptionCosts:
        """Return the ways to run a stage on a group; it is the first of the ``left`` last stages."""
        key = left, start, group
        if key not in self._known:
            self._known[key] = self._worked_out(*key)
        return self._known[key]

    def _worked_out(self, left: int, start: int, group: GroupKey) -> StageOptionCosts:
        own = _Sums(*(sums - sums[:, start : start + 1] for sums in self._sums[group]))
        tables = [costs.table for costs in self._ways[group].values()]
        updates = [table.update for table in tables if table.update is not None]
        per_byte_s = np.array([each.optimizer_s_per_byte[0] + each.sync_s_per_byte[0] for each in updates])[:, None]
        latency_s = np.array([each.sync_latency_s[0] for each in updates])[:, None]
        after_s = np.where(own.gradient_bytes > 0, latency_s + own.gradient_bytes * per_byte_s, 0.0)
        may = self.problem.may_be(start, StageDegrees(*group[:2]))
        room = np.array([min(float(table.capacity_bytes[0]), self.most_bytes) for table in tables])[:, None]
        room = room - np.array([table.working_bytes for table in tables])[:, None]
        held = min(self.problem.micro_batches, left)
        n_bytes = own.fixed_bytes + held * own.waiting_bytes
        most_bytes = n_bytes + held * (own.inputs_bytes + self._crossing[0][start] + 1)
        most_bytes[:, start + 1 :] += np.maximum.accumulate(self._again_bytes[group][:, start:], axis=1)
        back_s = np.where(may & (n_bytes <= room), own.back_s, inf)
        return StageOptionCosts(own.forward_s, back_s, after_s, most_bytes <= room)

    @cached_property
    def _kept_ways(self) -> dict[tuple[int, int, GroupKey], NDArray[np.bool_]]:
        return {}

    def _kept(self, left: int, start: int, group: GroupKey) -> NDArray[np.bool_]:
        """Return [n_ways, n_blocks + 1], the ways that may fit and that no other way dominates."""
        key = left, start, group
        if key in self._kept_ways:
            return self._kept_ways[key]
        forward_s, back_s, after_s, fits = self._stage_ways(*key)
        values, numbers = (forward_s, back_s, back_s + after_s), np.arange(len(forward_s))
        no_longer = np.all([own[:, None] <= own for own in values], axis=0)  # [one, other, n_blocks + 1]
        first = (numbers[:, None] < numbers)[..., None]
        replaced = (fits & (back_s < inf))[:, None] & no_longer & (first | ~no_longer.swapaxes(0, 1))
        kept = np.asarray((back_s < inf) & ~replaced.any(axis=0))
        self._kept_ways[key] = kept
        return kept

    # --- bounds ------------------------------------------------------------------------------------------------------

    @cached_property
    def _crossing(self) -> tuple[Floats, Floats]:
        """Bytes of a micro-batch that cross to a block from the blocks before it, and back, [n_blocks + 1] each."""
        ahead, back, home = np.zeros(self.problem.n_blocks + 1), np.zeros(self.problem.n_blocks + 1), self.problem.home
        table = self.problem.any_table
        for number in self.problem.sent:
            flow, n_bytes = table.flows[number], float(table.flow_bytes[number])
            crossed = slice(home[flow.writer] + 1, max(home[reader] for reader in flow.readers) + 1)
            ahead[crossed] += n_bytes
            back[crossed] += n_bytes * bool(table.trained.gradient[number])
        return ahead, back

    def _message_s(self, group: GroupKey, places: Ints) -> tuple[Floats, Floats]:
        """Return the least seconds of messages after a stage, forward and backward, [n_blocks + 1, n_places] each.

        Rows are the next block, columns the first device of the stage. Each sample crosses at least once.
        """
        fabric, (data, tensor, _) = self.problem.fabric, group
        rates = [port.bytes_per_s for port in (fabric.inside, fabric.between) if port.bytes_per_s < inf]
        leaves = places // fabric.host_devices != (places + data * tensor) // fabric.host_devices
        rate = data * np.where(leaves, fabric.between.bytes_per_s, max(rates, default=inf))
        ahead, back = self._crossing
        return np.asarray(ahead[:, None] / rate), np.asarray(back[:, None] / rate)

    @cached_property
    def _least(self) -> tuple[list[Floats], list[Floats]]:
        """The least seconds of the last stages, [n_stages + 1] of [n_blocks + 1, n_devices + 1], by block and device.

        The first list counts from the first forward pass to the end of gradients and optimizer; the second one to the
        end of the first of these stages' backward passes.
        """
        problem = self.problem
        n_devices, n_blocks, micro_batches = len(problem.fabric.devices), problem.n_blocks, problem.micro_batches
        last = np.full((n_blocks + 1, n_devices + 1), inf)
        last[n_blocks] = 0.0
        ahead, both = [last], [last]
        for left in range(1, min(MOST_STAGES, n_blocks, n_devices) + 1):
            least_s, least_both_s = np.full_like(last, inf), np.full_like(last, inf)
            for group, at in self._groups.items():
                sent_s, back_s = self._message_s(group, at)
                end = at + group[0] * group[1]
                for start in range(n_blocks - left + 1):
                    ways = self._stage_ways(left, start, group)
                    own_s = ways.own_s(micro_batches)
                    forward_s, pass_s = ways.forward_s.min(axis=0), (ways.forward_s + ways.back_s).min(axis=0)
                    rest_s = forward_s[:, None] + sent_s + ahead[-1][:, end]
                    all_s = (own_s + ways.after_s).min(axis=0)[:, None]
                    least_s[start, at] = np.minimum(least_s[start, at], np.maximum(all_s, rest_s).min(axis=0))
                    rest_s = pass_s[:, None] + sent_s + back_s + both[-1][:, end]
                    all_s = own_s.min(axis=0)[:, None]
                    least_both_s[start, at] = np.minimum(least_both_s[start, at], np.maximum(all_s, rest_s).min(axis=0))
            ahead.append(least_s)
            both.append(least_both_s)
        return ahead, both

    def longer(self, begun: Prefix[StageSpec]) -> Iterator[Prefix[StageSpec]]:
        """Yield the beginning with one more stage, for each group and each way to run that stage."""
        for group, places in self._groups.items():
            if begun.at in places:
                yield from self._longer_by(begun, group)

    def _longer_by(self, begun: Prefix[StageSpec], group: GroupKey) -> Iterator[Prefix[StageSpec]]:
        """Yield the beginning with one more stage on a group, for each way to run that stage."""
        to_come, start, end = begun.to_come, self.problem.n_blocks - begun.left, begun.at + group[0] * group[1]
        ahead_before_s, back_before_s, first_before_s, longest_before_s = begun.costs_s
        ways, names = self._stage_ways(to_come, start, group), list(self._ways[group])
        sent_s, returned_s = (each[:, 0] for each in self._message_s(group, np.array([begun.at])))
        first_s = ways.after_s if not begun.stages else np.full_like(ways.after_s, first_before_s)
        own_s = ahead_before_s + ways.own_s(self.problem.micro_batches)
        longest_s = np.maximum(longest_before_s, own_s + np.maximum(ways.after_s, back_before_s + first_s))
        ahead_s = ahead_before_s + ways.forward_s + sent_s
        back_s = back_before_s + ways.back_s + returned_s
        rest_s, both_s = (least[to_come - 1][:, end] for least in self._least)
        bounds = np.maximum(np.maximum(longest_s, ahead_s + rest_s), ahead_s + back_s + first_s + both_s)
        for way, stop in np.argwhere(self._kept(to_come, start, group) & (bounds < inf)).tolist():
            bound, *costs_s = (float(each[way, stop]) for each in (bounds, ahead_s, back_s, first_s, longest_s))
            stages = (*begun.stages, StageSpec(start, stop, *names[way]))
            yield Prefix(bound, to_come - 1, end, self.problem.n_blocks - stop, tuple(costs_s), stages)
