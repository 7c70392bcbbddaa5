"""WeightTensor: the weights of one part of a language model, their shape and format."""

from dataclasses import dataclass
from math import prod
from typing import Literal

from costmodels.language_model.formats import WeightFormat
from graphs.common.brief import Brief
from graphs.common.checks import check_fields, integer

Part = Literal[
    "embedding",  # of words, and of positions
    "head",  # the product that gives a score to each word, where the model has one of its own
    "mixer",  # attention, or the recurrence of a state
    "dense",  # the feed-forward part without experts
    "router",  # scores of experts
    "experts",  # of which a token takes some
    "shared",  # experts, and other feed-forward parts next to them, that every token takes
    "norm",  # norms, scales, and weights that join residual streams
    "vision",  # images and sounds: towers and projectors
    "draft",  # layers that guess further tokens; they are not needed to generate text
    "other",
]


@dataclass(frozen=True)
class WeightTensor(Brief):
    """Weights of a part; equal weights of the experts of a layer are one tensor, whose first axis counts them.

    Raises:
        InputError: for an unknown part, or an axis below 1.
    """

    name: str  # within its layer: "self_attn.q_proj.weight"; besides layers the whole name
    shape: tuple[int, ...]  # outputs before inputs, as PyTorch has it
    format: WeightFormat
    part: Part
    owner: int = -1  # the earlier layer whose weights these are; -1 for weights of the layer's own

    def __post_init__(self) -> None:
        check_fields(self, f"the tensor '{self.name}'")
        for axis in self.shape:
            integer(axis, f"an axis of the tensor '{self.name}'", 1)

    @property
    def elements(self) -> int:
        """How many numbers the tensor has."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the tensor, scales of its format included."""
        return self.format.bytes_of(self.shape)

    @property
    def is_product(self) -> bool:
        """Whether each token is multiplied by the tensor, which then takes 2 FLOP an element."""
        return len(self.shape) >= 2 and self.part not in ("norm", "embedding", "vision", "draft")
