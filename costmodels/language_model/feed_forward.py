"""Feed-forward parts of a layer: one for all tokens, or experts of which a router chooses some for each token.

Sources: Shazeer et al., ICLR 2017 (experts); DeepSeekMoE, arXiv 2401.06066 (experts that all tokens share).
"""

from dataclasses import dataclass

from graphs.common.brief import Brief
from graphs.common.checks import check_fields, integer
from graphs.common.errors import InputError


@dataclass(frozen=True)
class Dense(Brief):
    """A feed-forward part that every token passes through.

    Raises:
        InputError: for a width below 1.
    """

    width: int  # values of a token within it
    gated: bool = True  # whether it multiplies two products, as SwiGLU does

    def __post_init__(self) -> None:
        check_fields(self, "a dense feed-forward part")
        integer(self.width, "a dense feed-forward part: width", 1)


@dataclass(frozen=True)
class Experts(Brief):
    """Experts, of which each token takes some.

    Raises:
        InputError: for counts below their least, or more active experts than there are.
    """

    count: int
    active: int  # experts that a token takes
    width: int  # values of a token within an expert
    gated: bool = True
    shared_width: int = 0  # values within what every token takes besides; 0 for nothing

    def __post_init__(self) -> None:
        check_fields(self, "experts")
        for name, least in (("count", 1), ("active", 1), ("width", 1), ("shared_width", 0)):
            integer(getattr(self, name), f"experts: {name}", least)
        if self.active > self.count:
            raise InputError(f"{self.active} of {self.count} experts are active; give at most {self.count}")

    def expected_distinct(self, tokens: float) -> float:
        """Return how many different experts a number of tokens take, if each draws its experts evenly and alone."""
        return float(self.count * (1.0 - (1.0 - self.active / self.count) ** tokens))


FeedForward = Dense | Experts
