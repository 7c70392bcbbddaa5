"""Clocks: what the clock of another host shows when ours shows something else, from messages there and back.

Processes of one host have one clock (``time.perf_counter`` counts from its start). For another host the answer that
came back fastest says it best: the other clock was read half-way, give or take half of that time (as in NTP, RFC 5905).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Echo(NamedTuple):
    """One message there and back: our clock, the other's in between, our clock."""

    sent_s: float
    answered_s: float
    received_s: float


def clock_ahead_s(echoes: Sequence[Echo]) -> float:
    """By how much the other clock is ahead of ours."""
    best = min(echoes, key=lambda echo: echo.received_s - echo.sent_s)
    return best.answered_s - (best.sent_s + best.received_s) / 2


def clock_name() -> str:
    """The same for all processes that share a clock; empty where that cannot be told."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
