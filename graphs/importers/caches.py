"""Key-value caches of transformers' models, which keep what earlier calls computed, as text generation wants it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def without_caches(module: nn.Module) -> Iterator[None]:
    """A model of transformers returns no key-value cache, and its configs are as they were afterwards.

    A cache is state between calls, which a placed network has not. A caller who wants one says so in the call.
    """
    changed = configs_with_cache(module)
    for config in changed:
        config.use_cache = False
    try:
        yield
    finally:
        for config in changed:
            config.use_cache = True


def configs_with_cache(module: nn.Module) -> list[Any]:
    """The configs of a model's parts that ask for a cache, each once."""
    transformers = sys.modules.get("transformers")
    if transformers is None:  # then none of its models is there either
        return []
    found = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    return [
        config
        for config in found.values()
        if isinstance(config, transformers.PretrainedConfig) and getattr(config, "use_cache", False)
    ]
