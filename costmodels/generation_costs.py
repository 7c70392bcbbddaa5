"""Costs of a language model that generates: of a pass in each phase, and of a pass in the mean of all.

::

    prompt of 300 tokens, 64 after it      passes    a + b on dev0    x: dev0 → dev1    c on dev1
    128 tokens                             2         9 ms             0.8 ms            7 ms
    16 tokens                              3         3 ms             0.2 ms            2 ms
    1 token                                63        2 ms             0.1 ms            1 ms
    mean of 68 passes                                2.25 ms          0.13 ms           1.22 ms    what is planned for

All passes go through the same operators, so their mean is a cost table like any other: a device or a channel is busy
for the mean of its times, and each pass pays the latency of its messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.contention_costs import ContentionCosts
from costmodels.table import CostTable
from graphs.caches import in_place, ops_of_pass
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.phases import Phase


@dataclass(frozen=True)
class PhaseCosts(Brief):
    """A phase of a language model, with its costs.

    Attributes:
        phase: the sizes of one pass.
        prompt: passes over a prompt of the workload, each of which ends before the first token is known.
        output: passes after them for the other tokens of the workload.
        table: the costs of one pass of a group of sequences.
    """

    phase: Phase
    prompt: int
    output: int
    table: CostTable

    @property
    def passes(self) -> int:
        """Passes of this phase for a prompt and what comes after it."""
        return self.prompt + self.output


def of_pass(table: CostTable, graph: Graph, phase: Phase) -> CostTable:
    """Return the costs of the operators that a pass runs; all others take no time and send nothing.

    See `graphs.caches.ops_of_pass`. An operator that cannot run on a device still cannot. What is written over a cache
    stays there, so it is not sent and takes no memory besides.
    """
    runs = np.isin(np.arange(table.n_ops), list(ops_of_pass(graph, phase.tokens)))
    stays = {after for _, after in in_place(graph).values()}
    sent = np.array([runs[flow.writer] and flow.tensor not in stays for flow in table.flows], dtype=bool)
    return replace(
        table,
        forward_s=np.where(runs[:, None] | ~np.isfinite(table.forward_s), table.forward_s, 0.0),
        flow_bytes=np.where(sent, table.flow_bytes, 0.0),
        link_s=np.where(sent[:, None], table.link_s, 0.0),
    )


def mean_pass(phases: Sequence[PhaseCosts]) -> CostTable:
    """Return the costs of a pass in the mean of all passes for a prompt and what comes after it.

    Bytes that stay are the same in all phases; working memory is that of the phase that needs the most.

    Raises:
        InputError: if there is no pass.
    """
    counted = [each for each in phases if each.passes]
    if not counted:
        raise InputError("no phase has a pass; generation needs a prompt of 1 token or more")
    total = sum(each.passes for each in counted)
    weights = [each.passes / total for each in counted]
    tables = [each.table for each in counted]

    def mean(name: str) -> Floats:
        return np.asarray(np.sum([w * getattr(table, name) for w, table in zip(weights, tables, strict=True)], axis=0))

    part_s = np.array([w * table.forward_s for w, table in zip(weights, tables, strict=True)])
    spent_s = np.where(np.isfinite(part_s), part_s, 0.0)
    share = spent_s / np.where(spent_s.sum(axis=0) > 0, spent_s.sum(axis=0), 1.0)

    def by_time(name: str) -> Floats:
        return np.asarray(np.sum(share * np.array([getattr(table, name) for table in tables]), axis=0))

    sources = np.array([table.source for table in tables])
    contention = next((table.contention for table in tables if table.contention), None)
    return replace(
        tables[0],
        forward_s=mean("forward_s"),
        source=np.take_along_axis(sources, spent_s.argmax(axis=0)[None], axis=0)[0],
        spread=by_time("spread"),
        flow_bytes=mean("flow_bytes"),
        link_s=mean("link_s"),
        working_bytes=max(each.table.working_bytes for each in phases),
        contention=contention and ContentionCosts(by_time("slowdown"), by_time("copies_slowdown"), contention.group),
    )
