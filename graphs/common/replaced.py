"""Attributes that are replaced for a while; by one thread at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOCK = threading.RLock()  # reentrant, since replacements nest


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of an object, a class or a module for a while; delete one that was not there afterwards."""
    with LOCK:
        known, original = name in vars(owner), vars(owner).get(name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            if known:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
