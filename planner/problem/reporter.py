"""Reporter: the library never prints; it tells one of these. Every method is empty by default."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy takes a tenth of a second to load
    from simulator.placement import Placement


class Reporter:
    """Override what you want to hear. Methods may be called from any thread and must return quickly."""

    def on_step(self, name: str, done: int, total: int) -> None:
        """A long piece of work moved on; ``total`` is 0 where it is not known."""

    def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
        """A solver found a better placement or a better bound."""

    def on_placement(self, placement: "Placement") -> None:
        """The better placement itself; it keeps every constraint."""


SILENT = Reporter()
