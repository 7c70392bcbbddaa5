"""The integer program for cost: the sum of all seconds instead of those of the busiest device."""

from collections.abc import Callable, Sequence
from typing import Any

from planner.problem.devices import uniform_links
from planner.solvers.milp.model import PlacementModel, Sending


class CostModel(PlacementModel):
    """Minimise the sum of all computing, overheads and transfers."""

    @property
    def families(self) -> Sequence[Callable[[], None]]:
        """The constraints, in the order in which they are added."""
        sent = self._sent_either_way if self._compact else self._sent_by_pair
        return (self._somewhere, sent, self._all_together, self._memory)

    @property
    def _compact(self) -> bool:
        """Channels do not matter here."""
        return uniform_links(self.table)

    def _all_together(self) -> None:
        """sum over b, d of takes[b, d] * on[b, d] + sum over sendings of seconds * sent <= total."""
        terms: list[tuple[Any, float]] = [(self.busiest, -1.0)]
        for (block, device), variable in self.is_on.items():
            terms.append((variable, float(self.blocks.forward_s[block, device]) / self.scale_s))
        terms += [(sending.variable, self._cost(sending)) for sending in self.sendings]
        self.add(terms, "<=", 0.0)

    def _cost(self, sending: Sending) -> float:
        """A transfer and the overheads of its devices; if each end has a variable, each counts its own overhead."""
        flows = len(self.blocks.nets[sending.net].flows)
        overhead_s = sum(float(self.table.overhead_s[end]) for end in (sending.src, sending.dst) if end >= 0)
        sends = self._seconds(sending) if sending.dst >= 0 else 0.0
        return sends + self.units(flows * overhead_s)
