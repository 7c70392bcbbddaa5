"""Switches off the key-value caches of transformers' models, which keep results between calls for text generation."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def without_caches(module: nn.Module) -> Iterator[None]:
    """Make a transformers model return no key-value cache, and restore its configs afterwards.

    A cache is state between calls, which a placed network does not have. A call can still ask for a cache explicitly.
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
    if transformers is None:  # then the module is none of its models
        return []
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    return [
        config
        for config in configs.values()
        if isinstance(config, transformers.PretrainedConfig) and getattr(config, "use_cache", False)
    ]
