"""Random numbers that a module draws in Python, which are constants in a trace.

::

    if random.random() > 0.1:       traced as drawn             layer
        x = layer(x)                traced with high draws      layer
                                    traced with low draws       nothing: another network, refused

Draws that change nothing are common: a layer that is dropped in training only may draw in evaluation, too.
"""

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from graphs.common.replaced import replaced

WORDS = 624  # of the state of a Mersenne twister

HIGHEST = 0x12DD9BB3
"""The word of a state that comes out as 2**32 - 1 (the tempering of MT19937, solved for its argument)."""

FIRST = 312  # words of a state that are set: code that draws until it gets a number in the middle ends


@contextmanager
def seeds() -> Iterator[list[int]]:
    """Collect the seeds that `torch.manual_seed` gets, which no operator shows; put PyTorch's state back afterwards."""
    own, found = torch.default_generator, list[int]()
    state = own.get_state()

    class Noting:
        def __getattr__(self, name: str) -> Any:
            return getattr(own, name)

        def manual_seed(self, seed: int) -> torch.Generator:
            found.append(seed)
            return own.manual_seed(seed)

    try:
        with replaced(torch.random, "default_generator", Noting()):
            yield found
    finally:
        if found:
            own.set_state(state)


class RandomSource(NamedTuple):
    """A generator of random numbers: its state, how to set it, and how to begin with extreme draws, if possible."""

    name: str
    state: Callable[[], Any]
    put: Callable[[Any], object]
    begin_with: Callable[[int], object] = lambda _: None


def generators(module: nn.Module) -> list[RandomSource]:
    """Return Python's and NumPy's own generators, and those that a module holds as attributes."""
    found = [_of_python("random", random._inst), _of_numpy("numpy.random", np.random.mtrand._rand)]
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            full = ".".join(filter(None, (path, name)))
            if isinstance(value, random.Random):
                found.append(_of_python(full, value))
            elif isinstance(value, np.random.RandomState):
                found.append(_of_numpy(full, value))
            elif isinstance(value, np.random.Generator):
                found.append(_of_bits(full, value.bit_generator))
    return found


def _of_python(name: str, generator: random.Random) -> RandomSource:
    def begin_with(word: int) -> None:
        generator.setstate((3, (*_words(word), 0), None))

    return RandomSource(name, generator.getstate, generator.setstate, begin_with)


def _of_numpy(name: str, generator: np.random.RandomState) -> RandomSource:
    def begin_with(word: int) -> None:
        if generator.get_state(legacy=False)["bit_generator"] == "MT19937":
            generator.set_state(("MT19937", np.array(_words(word), dtype=np.uint32), 0, 0, 0.0))

    return RandomSource(name, lambda: generator.get_state(legacy=False), generator.set_state, begin_with)


def _of_bits(name: str, bits: np.random.BitGenerator) -> RandomSource:
    def put(state: Any) -> None:
        bits.state = state

    return RandomSource(name, lambda: bits.state, put)


def _words(first: int) -> list[int]:
    state = random.Random(0).getstate()[1]
    return [first] * FIRST + list(state[FIRST:WORDS])


@contextmanager
def restored(some: Sequence[RandomSource]) -> Iterator[Callable[[], list[RandomSource]]]:
    """Yield a function that returns those of the generators that have drawn; put their states back afterwards."""
    states = [(each, each.state()) for each in some]
    try:
        yield lambda: [each for each, state in states if pickle.dumps(each.state()) != pickle.dumps(state)]
    finally:
        for each, state in states:
            each.put(state)
