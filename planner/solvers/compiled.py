"""How inner loops are compiled, and their dice."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Seed: TypeAlias = NDArray[np.uint64]
"""[1], what the dice show next; anything but 0 to begin with."""

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function that allocates nothing: it works in arrays that its caller made, in tuples of them.

    Without numba's counting of references, which would touch every array of such a tuple at every call, inner loops
    are up to twenty times as fast. The caller's own references keep the arrays alive.
    """
    fast: F = njit(cache=True, error_model="numpy", _nrt=False)(function)  # type: ignore[call-overload]  # numba's types lack it
    return fast


def seed_of(number: int) -> Seed:
    """Where the dice begin for a seed that a user gave."""
    return np.asarray([np.random.SeedSequence(number).generate_state(1, np.uint64)[0] | np.uint64(1)], dtype=np.uint64)


@compiled
def random(seed: Seed) -> float:
    """The next number from 0 to below 1 (xorshift64*: Vigna, ACM TOMS 42(4), 2016)."""
    bits = seed[0]
    bits ^= bits >> np.uint64(12)
    bits ^= bits << np.uint64(25)
    bits ^= bits >> np.uint64(27)
    seed[0] = bits
    return float((bits * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0  # 2 ** 53


@compiled
def below(seed: Seed, n: int) -> int:
    """The next whole number from 0 to below n."""
    return int(random(seed) * n)
