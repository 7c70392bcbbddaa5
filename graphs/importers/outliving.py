"""Replaces tensors of a trace that outlive it in caches of Python code, which later calls would read.

::

    @functools.lru_cache
    def mask(n): ...            traced: a tensor without values ──► every later call of the model would read it

Values take their place in dictionaries, lists, and tuples in these; a ``lru_cache`` is emptied.
"""

import functools
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

LRU = type(functools.lru_cache(lambda: None))


def replace_in_caches(outliving: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Put the second tensor of each pair in place of the first, in all that refers to that."""
    new: dict[int, Any] = {id(traced): value for traced, value in outliving}
    own = {id(outliving), *map(id, outliving)}
    with _thawed():
        holders = [each for each in gc.get_referrers(*(traced for traced, _ in outliving)) if id(each) not in own]
        tuples = [each for each in holders if type(each) is tuple]
        for each in tuples:
            new[id(each)] = tuple(new.get(id(item), item) for item in each)
        if tuples:
            own |= {id(holders), id(tuples)}
            holders += [each for each in gc.get_referrers(*tuples) if id(each) not in own]
    for holder in holders:
        _replace(holder, new)


@contextmanager
def _thawed() -> Iterator[None]:
    """Let the collector see objects that are frozen (`gc.freeze`), of which it names no referrers."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    yield
    if frozen:
        gc.freeze()


def _replace(holder: Any, new: Mapping[int, Any]) -> None:
    """Replace the items of a container that are keyed by their identity."""
    if isinstance(holder, LRU):
        holder.cache_clear()
    elif isinstance(holder, dict | list):
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, item in [*items]:
            if id(item) in new:
                holder[key] = new[id(item)]
