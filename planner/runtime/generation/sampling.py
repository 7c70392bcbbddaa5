"""Choose the next token from logits: the largest, or one drawn at random with a seed of its own for each sequence."""

from dataclasses import dataclass

import numpy as np
import torch

from graphs.common.checks import check_fields, integer
from graphs.common.errors import InputError
from planner.runtime.stages.random_generators import check_seed, draw_seed

PIECE = 2**14  # numbers that torch converts on the calling thread


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: what logits are divided by; 0 takes the token with the largest logit.
        top_k: only the tokens with the largest logits are drawn; 0 for all.
        top_p: only the likeliest tokens are drawn, as few as have this probability together (Holtzman et al. 2020).
        seed: of the random numbers; those of a sequence follow from it and the sequence's number alone.

    Raises:
        InputError: for a field of a wrong type or out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "the sampling")
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"the temperature is {self.temperature}; give 0 for the likeliest token, or more")
        integer(self.top_k, "top_k")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; give a share above 0, and 1 for all tokens")
        check_seed(self.seed)

    def generator(self, sequence: int) -> torch.Generator:
        """Return the generator of one sequence, by its number."""
        return torch.Generator().manual_seed(draw_seed(self.seed, 0, sequence, 0))

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        """Return the next token from the logits of one sequence, [vocabulary]; raise InputError if one is NaN."""
        best = _largest(logits)
        if logits[best].isnan():
            raise InputError("a logit is NaN, so there is no next token; look at the inputs and weights of the model")
        if not self.temperature:
            return best
        scores = (logits - logits[best]).detach().to("cpu", torch.float32) / self.temperature
        if 0 < self.top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(self.top_k).values[-1], -torch.inf)
        if self.top_p < 1:
            largest, order = scores.sort(descending=True, stable=True)
            before = largest.softmax(-1).cumsum(-1) - largest.softmax(-1)
            scores[order[before >= self.top_p]] = -torch.inf  # the first one stays
        return int(torch.multinomial(scores.softmax(-1), 1, generator=generator))


def _largest(logits: torch.Tensor) -> int:
    """Return the first index of the largest number of a vector, or that of the first NaN.

    numpy needs 14 µs on a CPU for 151,936 numbers, `torch.argmax` 360 µs, and 740 µs in bfloat16. Torch would also
    start threads here, which then spin on the cores of devices.
    """
    if not logits.is_cpu:
        return int(logits.argmax())
    if logits.dtype.itemsize > 2:
        return int(logits.detach().numpy().argmax())
    return int(np.concatenate([piece.float().detach().numpy() for piece in torch.split(logits, PIECE)]).argmax())
