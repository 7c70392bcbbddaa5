"""Reporter: receives the progress of long calls; the library itself never prints."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # numpy takes a tenth of a second to load
    from simulator.placement import Placement


class Reporter:
    """Override the methods that you need; each is empty by default, may be called from any thread and must be quick."""

    def on_step(self, name: str, done: int, total: int) -> None:
        """A long piece of work has done ``done`` of ``total`` parts; ``total`` is 0 if it is not known."""

    def on_search(self, name: str, limit_s: float) -> None:
        """A search begins that ends after at most ``limit_s`` seconds."""

    def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
        """A solver found a better placement or a better bound."""

    def on_placement(self, placement: "Placement") -> None:
        """The better placement itself; it is feasible."""

    def on_clock(self, solver: str) -> None:
        """The clock stopped a search before its work was done: another machine may find another answer."""


SILENT = Reporter()


class SearchLimits(Protocol):
    """How long a search may take, and where it reports; `planner.planning.make_plan.Search` is one."""

    @property
    def time_limit_s(self) -> float:
        """The time of the search."""

    @property
    def reporter(self) -> Reporter:
        """Receives the steps."""
