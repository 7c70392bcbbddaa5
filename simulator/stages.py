"""Stages: a placement cut into runs of operators without waiting or sending in between.

The simulator and the runtime both execute these stages, so the prediction matches the execution.

::

    order:    a  b  c  d  e  f         a ─► c ─► e (device 0), b ─► d (device 1), b ─► e
    device:   0  1  0  1  0  0         stages: [a c] 0   [b] 1   [d] 1   [e f] 0
                                       e waits for b, so a new stage starts with e; b is sent, so [b] ends
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from costmodels.table import CostTable
from graphs.common.brief import Brief
from simulator.placement import Placement


@dataclass(frozen=True, slots=True)
class Stage(Brief):
    """Operators of one device that run without waiting in between."""

    device: int  # index of the device
    ops: tuple[int, ...]  # operator indices in the order in which they run
    receives: tuple[tuple[int, int], ...]  # (flow, from device) of tensors that arrive before the first operator starts
    sends: tuple[tuple[int, int], ...]  # (flow, to device) of the tensors that are sent after the last operator
    needs: tuple[int, ...]  # stages that must end first: senders of its tensors, and the previous one of its device
    copy: int = 0  # which copy of the network it belongs to

    def label(self, names: Sequence[str]) -> str:
        """Return the name in charts: its first and last operator; ``names`` are the names of all operators."""
        first, last = names[self.ops[0]], names[self.ops[-1]]
        return first if len(self.ops) == 1 else f"{first} … {last}"


def split_stages(table: CostTable, placement: Placement) -> tuple[Stage, ...]:
    """Cut a placement into stages, in the order of their first operators, one copy of the network after the other.

    A stage begins with an operator that waits for a tensor that no earlier stage of its device has received, and ends
    with an operator that sends. Each edge between stages leads from a last operator to a first one, so the stages form
    a DAG in the order of the placement. No stage needs one of another copy: these run other micro-batches.
    """
    stages: list[Stage] = []
    for number, copy in enumerate(placement.copies):
        stages += _stages_of(table, copy, number, len(stages))
    return tuple(stages)


def stages_of_operators(stages: Sequence[Stage], ops: Collection[int]) -> tuple[Stage, ...]:
    """Return stages that run only some operators, numbered anew, for a pass that leaves the others out.

    No operator that runs may read a tensor of one that is left out.
    """
    own = [tuple(op for op in stage.ops if op in ops) for stage in stages]
    number = {old: new for new, old in enumerate(i for i, left in enumerate(own) if left)}
    return tuple(
        replace(
            stage,
            ops=left,
            receives=stage.receives if stage.ops[0] in ops else (),
            sends=stage.sends if stage.ops[-1] in ops else (),
            needs=tuple(number[needed] for needed in stage.needs if needed in number),
        )
        for stage, left in zip(stages, own, strict=True)
        if left
    )


def _stages_of(table: CostTable, placement: Placement, copy: int, first: int) -> list[Stage]:
    """Return the stages of one copy, the first of which has the number ``first``."""
    sends: dict[int, list[tuple[int, int]]] = {}
    receives: dict[int, list[tuple[int, int]]] = {}
    for flow, src, dst in placement.cuts(table):
        record = table.flows[flow]
        sends.setdefault(record.writer, []).append((flow, dst))
        readers = (reader for reader in record.readers if placement.device[reader] == dst)
        receives.setdefault(min(readers, key=placement.rank.__getitem__), []).append((flow, src))

    runs: list[list[int]] = []
    last: dict[int, int] = {}  # device -> its latest run
    for op in placement.order:
        device = placement.device[op]
        previous = last.get(device)
        if previous is None or op in receives or runs[previous][-1] in sends:
            last[device] = len(runs)
            runs.append([op])
        else:
            runs[previous].append(op)

    stage_of = {op: index for index, run in enumerate(runs, first) for op in run}
    stages: list[Stage] = []
    latest: dict[int, int] = {}
    for index, run in enumerate(runs, first):
        device = placement.device[run[0]]
        received = tuple(receives.get(run[0], ()))
        needs = {stage_of[table.flows[flow].writer] for flow, _ in received}
        needs |= {latest[device]} if device in latest else set()
        latest[device] = index
        stages.append(Stage(device, tuple(run), received, tuple(sends.get(run[-1], ())), tuple(sorted(needs)), copy))
    return stages
