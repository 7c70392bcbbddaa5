"""Clocks: the difference between the clocks of two hosts, measured by messages there and back.

Processes of one host have one clock (``time.perf_counter`` counts from its start). The clock of another host is best
known from its fastest answer: it was read half-way, give or take half of that time (as in NTP, RFC 5905).
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

LOOKS = 8  # at another clock
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Echo(NamedTuple):
    """A message there and back: the own clock, the other clock in between, the own clock."""

    sent_s: float
    answered_s: float
    received_s: float


def clock_ahead_s(echoes: Sequence[Echo]) -> float:
    """Return by how much the other clock is ahead of the own one."""
    best = min(echoes, key=lambda echo: echo.received_s - echo.sent_s)
    return best.answered_s - (best.sent_s + best.received_s) / 2


def measured_ahead_s(read_clock: Callable[[], float]) -> float:
    """Return by how much the other clock, which a function asks for, is ahead of the own one."""
    echoes = []
    for _ in range(LOOKS):
        sent_s = time.perf_counter()
        answered_s = read_clock()
        echoes.append(Echo(sent_s, answered_s, time.perf_counter()))
    return clock_ahead_s(echoes)


def clock_name() -> str:
    """Return the same text for all processes that share a clock; empty where that is unknown."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
