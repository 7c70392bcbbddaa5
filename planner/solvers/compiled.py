"""Compiled inner loops: how numba compiles them, their random numbers, and rows of lists as flat arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast, get_args, get_type_hints

import numpy as np
from numba import njit
from numba.extending import register_jitable
from numpy.typing import NDArray

from graphs.common.arrays import Ints
from graphs.common.compiled import versioned
from graphs.common.signals import signals_held
from planner.problem.deadline import loading

Seed: TypeAlias = NDArray[np.uint64]
"""[1], the state of the random number generator, which is never 0."""

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

OPTIONS: Mapping[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
"""Flags of numba for all compiled code."""


def compiled(function: F) -> F:
    """Compile a function that allocates nothing, but works in arrays, or in tuples of arrays, of its caller.

    It does without numba's reference counts, which would touch every array of a tuple at every call; inner loops are
    up to twenty times as fast without them. The references of the caller keep the arrays alive. Compiling is not
    searching, see `planner.problem.deadline`.
    """
    fast: Any = njit(cache=True, **OPTIONS)(versioned(function))
    fast.compile = loading()(signals_held()(fast.compile))
    return cast(F, fast)


def inner(function: F) -> F:
    """Let compiled functions call a function: it is compiled with them, and Python runs it as it stands.

    Most of the time to compile a short function goes into taking its arguments from Python, which this one spares.
    """
    fast: F = register_jitable(**OPTIONS)(function)
    return fast


def zeros(record: Callable[..., T], sizes: Mapping[str, int], **given: object) -> T:
    """Return a named tuple of arrays of zeros, for compiled code to work in.

    A field ``load_s: Annotated[Floats, "n_ops", 2]`` becomes an array of this dtype and the shape [n_ops, 2].

    Args:
        record: the class.
        sizes: numbers by their names in the annotations.
        given: the other fields, and those that do not begin as zeros.
    """
    fields: dict[str, Any] = dict(given)
    for name, hint in get_type_hints(record, include_extras=True).items():
        if name not in given:
            fields[name] = np.zeros([sizes.get(size, size) for size in hint.__metadata__], _dtype_of(hint.__origin__))
    return record(**fields)


def _dtype_of(array: object) -> Any:
    """Return the dtype of the type of an array: the innermost argument, whatever numpy's version wraps around it."""
    while arguments := get_args(array):
        array = arguments[-1]
    return array


def seed_of(number: int) -> Seed:
    """Return the first state of the generator for a user's seed."""
    return np.asarray([np.random.SeedSequence(number).generate_state(1, np.uint64)[0] | np.uint64(1)], dtype=np.uint64)


@compiled
def random(seed: Seed) -> float:
    """Return the next random number from 0 to below 1 (xorshift64*: Vigna, ACM TOMS 42(4), 2016)."""
    bits = seed[0]
    bits ^= bits >> np.uint64(12)
    bits ^= bits << np.uint64(25)
    bits ^= bits >> np.uint64(27)
    seed[0] = bits
    return float((bits * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0  # 2 ** 53


@compiled
def below(seed: Seed, n: int) -> int:
    """Return the next random whole number from 0 to below n."""
    return int(random(seed) * n)


def flat(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return rows of any lengths as two arrays: [n_rows + 1], where each row begins, and [n_entries], all rows."""
    start = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return start, np.asarray([entry for row in rows for entry in row], dtype=np.int64)
