"""What commands are given: a small network, and clusters as a user would write them."""

import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
MNIST = "examples.networks:mnist"

Refused = Callable[[list[str]], str]
"""From a command's words to the one line that it says to bad input; the fixture `refused`."""

_DEVICE = """
[[device]]
name = "{name}"
kind = "{kind}"
memory = "1 GiB"
flops = {{ float32 = "100 GFLOP/s" }}
memory_bandwidth = "20 GB/s"
"""
_LINK = """
[[link]]
between = ["a", "b"]
bandwidth = "10 GB/s"
latency = "10 us"
"""


def _pair(kinds: tuple[str, str], more: str = "") -> str:
    devices = (
        _DEVICE.format(name=name, kind=kind) + more.format(name=name) for name, kind in zip("ab", kinds, strict=True)
    )
    return "version = 1\n" + "".join(devices) + _LINK


PAPER = _pair(("cpu", "cpu"))
"""cluster.toml with the devices a and b, which are nowhere."""


def pair_here(kind: str = "cpu") -> str:
    """The same devices, both on one core of this host, as if they were of two; b may say that it is of another kind."""
    return _pair(("cpu", kind), f'cores = [{min(os.sched_getaffinity(0))}]\nhost = "{{name}}"\n')
