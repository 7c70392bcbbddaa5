"""Attributes of classes and modules that are replaced for a while; by one thread at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOCK = threading.RLock()  # reentrant, since replacements nest


@contextmanager
def replaced(owner: Any, name: str, value: Any, absent: Any = None) -> Iterator[None]:
    """Replace an attribute of a class or module for a while; ``absent`` is the value of a missing attribute."""
    with LOCK:
        original = vars(owner).get(name, absent)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, original)
