"""A training step in plain Python, under the schedules that give each device one stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import Any

from costmodels.table import CostTable
from simulator.training import TrainingStep
from tests.planner.solvers.law.makespan import Task, finish

ONE_STAGE_EACH = ("gpipe", "1f1b", "zb-h1", "zb-h2")
BYTES_TOLERANCE = 1e-9  # relative; sums of bytes in floating point
UPLINKS = 1_000_000  # the first channel that is no link's


@dataclass(frozen=True)
class Stage:
    """What a device does for a micro-batch.

    Attributes:
        takes: seconds of F, I (with running forward again) and W.
        ahead_s: what it sends to the next stage is on its way for so long.
        back_s: the same for gradients to the stage before.
        saved: bytes that F keeps.
        again: bytes that I keeps besides, while it runs.
        kept: bytes from I to W.
        end_s: adding up gradients, then the optimizer.
    """

    takes: dict[str, float]
    ahead_s: float
    back_s: float
    saved: int
    again: int
    kept: int
    end_s: tuple[float, float]


class Step:
    """What a step takes for the placements of a table; infinite where one is no pipeline or has no room."""

    def __init__(self, table: CostTable, step: TrainingStep) -> None:
        self._table, self._step = table, step

    def seconds(self, device: Sequence[int], factors: Sequence[float]) -> float:
        """From the start to the end of the last optimizer; each operator takes ``factors`` of its contended time."""
        row = self._row(device)
        if row is None:
            return inf
        stages = self._stages(device, row, factors)
        rows = [self._actions(stage, len(row)) for stage in range(len(row))]
        for here, stage, actions in zip(row, stages, rows, strict=True):
            if self._peak_bytes(device, here, stage, actions) > self._table.capacity_bytes[here] * (
                1 + BYTES_TOLERANCE
            ):
                return inf
        return self._run(row, stages, rows)

    def _row(self, device: Sequence[int]) -> list[int] | None:
        """The devices from the first to the last stage; None if they do not follow one another or lack a link."""
        table = self._table
        before: dict[int, set[int]] = {here: set() for here in dict.fromkeys(device)}
        for flow in table.flows:
            for reader in sorted(flow.readers):
                if device[reader] != device[flow.writer]:
                    before[device[reader]].add(device[flow.writer])
        try:
            row = list(TopologicalSorter(before).static_order())
        except CycleError:
            return None
        place = {here: number for number, here in enumerate(row)}
        for flow in table.flows:
            for number in range(place[device[flow.writer]], max(place[device[reader]] for reader in flow.readers)):
                one, other = row[number], row[number + 1]
                if table.link_class[one, other] < 0 or table.link_class[other, one] < 0:
                    return None
        return row

    def _stages(self, device: Sequence[int], row: Sequence[int], factors: Sequence[float]) -> list[Stage]:
        table, place = self._table, {here: number for number, here in enumerate(row)}
        ahead, back, messages, gradients, entering = ([0.0] * (len(row) + 1) for _ in range(5))
        for number, flow in enumerate(table.flows):
            first, readers = place[device[flow.writer]], {place[device[reader]] for reader in flow.readers}
            for stage in readers - {first}:
                entering[stage] += float(table.flow_bytes[number])
            for border in range(first + 1, max(readers) + 1):
                one, other = row[border - 1], row[border]
                ahead[border - 1] += float(table.link_s[number, table.link_class[one, other]])
                messages[border] += 1
                if table.trained.gradient[number]:
                    back[border] += float(table.link_s[number, table.link_class[other, one]])
                    gradients[border] += 1
        stages = []
        for number, here in enumerate(row):
            ops = [op for op, d in enumerate(device) if d == here]
            forward_s, backward_s = (
                sum(float(seconds[op, here]) * factors[op] for op in ops)
                for seconds in (table.forward_s, table.backward_s)
            )
            hands, full = (
                float(table.overhead_s[here]),
                round(sum(float(table.trained.saved_bytes[op]) for op in ops) + entering[number]),
            )
            saved, again, training = full, 0, table.trained
            runs_again = {"none": [], "selective": [op for op in ops if not training.runs_once[op]], "full": ops}
            again_s = sum(float(table.forward_s[op, here]) * factors[op] for op in runs_again[self._step.recompute])
            if self._step.recompute != "none":
                kept = sum(float(training.ends_bytes[op]) for op in ops) + entering[number]
                if self._step.recompute == "selective":
                    kept += sum(float(training.once_bytes[op]) for op in ops)
                saved = round(kept)
                shared = training.once_saved_bytes if self._step.recompute == "selective" else 0 * training.ends_bytes
                again = round(
                    sum(max(0.0, float((training.saved_bytes - training.ends_bytes - shared)[op])) for op in ops)
                )
            takes = {
                "F": forward_s + hands * (messages[number] + messages[number + 1]),
                "I": backward_s / 2 + hands * (gradients[number] + gradients[number + 1]) + again_s,
                "W": backward_s / 2,
            }
            stages.append(Stage(takes, ahead[number], back[number], saved, again, full, self._end_s(ops, here)))
        return stages

    def _end_s(self, ops: Sequence[int], here: int) -> tuple[float, float]:
        update = self._table.update
        if update is None:
            return 0.0, 0.0
        n_bytes = sum(float(update.gradient_bytes[op]) for op in ops)
        sync_s = float(update.sync_latency_s[here]) + n_bytes * float(update.sync_s_per_byte[here]) if n_bytes else 0.0
        return sync_s, n_bytes * float(update.optimizer_s_per_byte[here])

    def _actions(self, stage: int, n_stages: int) -> list[tuple[str, int]]:
        """The order of a device: (F, B, I or W, micro-batch)."""
        m, name, behind = self._step.micro_batches, self._step.schedule, n_stages - 1 - stage
        forward = [("F", i) for i in range(m)]
        put_off = {"zb-h1": stage, "zb-h2": 2 * stage}.get(name)
        if put_off is None:
            backward = [[("B", i)] for i in range(m)]
        else:
            backward = [[("I", i)] + ([("W", i - put_off)] if i >= put_off else []) for i in range(m)]
            backward.append([("W", i) for i in range(max(0, m - put_off), m)])
        warm_up = {"gpipe": m, "zb-h2": 2 * behind}.get(name, behind)
        actions, rest = forward[:warm_up], forward[warm_up:]
        for some in backward:
            actions += [*rest[:1], *some]
            rest = rest[1:]
        return actions

    def _peak_bytes(self, device: Sequence[int], here: int, stage: Stage, actions: Sequence[tuple[str, int]]) -> float:
        """What stays, what a device needs to work, and the most that it keeps for backward passes."""
        held = most = 0
        for letter, _ in actions:
            held += stage.saved if letter == "F" else 0
            most = max(most, held + (stage.again if letter in "BI" else 0))
            held -= stage.saved if letter in "BI" else 0
            held += stage.kept if letter == "I" else 0
            held -= stage.kept if letter == "W" else 0
            most = max(most, held)
        stays = sum(float(n_bytes) for op, n_bytes in enumerate(self._table.op_bytes) if device[op] == here)
        return stays + most + self._table.working_bytes

    def _run(self, row: Sequence[int], stages: Sequence[Stage], rows: Sequence[Sequence[tuple[str, int]]]) -> float:
        """Run all actions and messages: devices in their order, links in the order of sending, actions last of all."""
        actions = [(stage, letter, i) for stage, some in enumerate(rows) for letter, i in some]
        number = {action: place for place, action in enumerate(actions)}
        needs: list[set[int]] = [set() for _ in actions]
        messages: list[tuple[int, Task]] = []  # numbered behind the actions
        latest: dict[tuple[int, int], int] = {}
        for mine, (stage, letter, i) in enumerate(actions):
            if mine and actions[mine - 1][0] == stage:
                needs[mine].add(mine - 1)
            to = {"F": stage + 1, "B": stage - 1, "I": stage - 1, "W": -1}[letter]
            if not 0 <= to < len(row):
                continue
            follower = next(number[to, x, i] for x in ("F" if letter == "F" else "BI") if (to, x, i) in number)
            seconds, ends = stages[stage].ahead_s if to > stage else stages[stage].back_s, (row[stage], row[to])
            needs[follower].add(len(actions) + len(messages) if seconds else mine)
            if seconds:
                before = {latest[ends]} if ends in latest and self._table.sharing == "fifo" else set()
                latest[ends] = len(actions) + len(messages)
                messages.append((i, self._message(seconds, ends, frozenset({mine, *before}))))
        tasks: list[tuple[int, Task]] = []
        for (stage, letter, _), before in zip(actions, needs, strict=True):
            takes = stages[stage].takes
            seconds = takes["I"] + takes["W"] if letter == "B" else takes[letter]
            tasks.append((self._step.micro_batches, Task(seconds, frozenset({row[stage]}), frozenset(before))))
        last = [number[stage, *some[-1]] for stage, some in enumerate(rows)]
        sums = [
            (0, self._sum(stage.end_s[0], here, action)) for action, stage, here in zip(last, stages, row, strict=True)
        ]
        end = _by_priority([*tasks, *messages, *sums])
        added_up = end[len(tasks) + len(messages) :]
        return max(*end, *(now + stage.end_s[1] for now, stage in zip(added_up, stages, strict=True)))

    def _sum(self, seconds: float, here: int, last: int) -> Task:
        """Gradients are added up behind a device's last action; those who do so at once share an uplink."""
        update = self._table.update
        if update is None or not seconds:
            return Task(0.0, frozenset(), frozenset({last}))
        uplink = UPLINKS + int(update.uplink[here])
        return Task(seconds, frozenset(), frozenset({last}), uplink, float(update.sync_latency_s[here]))

    def _message(self, seconds: float, ends: tuple[int, int], needs: frozenset[int]) -> Task:
        table = self._table
        holds: frozenset[Any] = frozenset() if table.overlap else frozenset(ends)
        channel = int(table.channel[ends])
        if table.sharing == "fifo":
            return Task(seconds, holds | {("channel", channel)}, needs)
        if table.sharing == "unlimited":
            return Task(seconds, holds, needs)
        return Task(seconds, holds, needs, channel, min(float(table.link_latency_s[table.link_class[ends]]), seconds))


def _by_priority(tasks: Sequence[tuple[int, Task]]) -> list[float]:
    """[n_tasks], when each ends, if the smallest priority goes first."""
    order = sorted(range(len(tasks)), key=lambda number: tasks[number][0])
    place = {number: position for position, number in enumerate(order)}
    ranked = [tasks[number][1] for number in order]
    for task in ranked:
        task.needs = frozenset(place[need] for need in task.needs)
    end = finish(ranked)
    return [end[place[number]] for number in range(len(tasks))]
