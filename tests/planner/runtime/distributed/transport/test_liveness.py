"""When a peer is given up: looks are counted, so nothing here has to wait."""

import os
import signal
import time
from pathlib import Path

import pytest

from planner.runtime.distributed.transport import liveness as heartbeats
from planner.runtime.distributed.transport.liveness import Heartbeats, pid_space, stopped_state
from tests.children import ran, running
from tests.planner.runtime.small import PATIENCE_S

STOPPED, PAUSED, ENDED = "it is stopped", "it is stopped by a debugger", "it has ended"


def looks(life_of: Heartbeats, count: int) -> list[str]:
    return [life_of.look() for _ in range(count)]


def test_silence_is_counted_in_looks() -> None:
    far = Heartbeats(4.0)
    assert looks(far, 8) == [""] * 7 + ["nothing was heard of it for 4 s"]  # a look stands for half a second
    assert far.look() == "nothing was heard of it for 4.5 s"


def test_any_sign_of_life_begins_it_anew() -> None:
    far = Heartbeats(2.0)
    for _ in range(20):
        assert looks(far, 3) == [""] * 3
        far.hear()
    assert looks(far, 5) == ["", "", "", "", "nothing was heard of it for 2 s"]  # the first look sees that it was heard


def test_who_looks_late_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Heartbeats(1.0)
    far.look()
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)  # we were stopped for long
    far.hear()
    assert looks(far, 2) == ["", ""]


@pytest.mark.parametrize(("state", "why"), [("T", STOPPED), ("t", PAUSED), ("Z", ENDED), ("X", ENDED)])
def test_a_process_that_does_nothing_is_given_up_soon(monkeypatch: pytest.MonkeyPatch, state: str, why: str) -> None:
    monkeypatch.setattr(heartbeats, "stopped_state", lambda pid: heartbeats.STOPPED.get(state, "") if pid == 7 else "")
    assert looks(Heartbeats(30.0, 7), 4) == ["", "", "", why]
    assert looks(Heartbeats(30.0, 8), 59) == [""] * 59  # one that runs, and says nothing


def test_a_pause_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    near, states = Heartbeats(30.0, 7), iter([STOPPED, STOPPED, STOPPED, ""])
    monkeypatch.setattr(heartbeats, "stopped_state", lambda _: next(states))
    assert looks(near, 4) == [""] * 4


def test_who_waits_for_the_front_to_say_it_does_not_count_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    near = Heartbeats(1.0, 7, waits=True)
    monkeypatch.setattr(heartbeats, "stopped_state", lambda _: STOPPED)
    assert looks(near, 100) == [""] * 100
    monkeypatch.setattr(heartbeats, "stopped_state", lambda _: "")
    assert looks(near, 2) == ["", "nothing was heard of it for 1 s"]


def test_states_of_real_processes() -> None:
    def becomes(state: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while stopped_state(process.pid) != state and time.monotonic() < end_s:
            time.sleep(0.001)
        assert stopped_state(process.pid) == state

    with running(["sleep", "1000"]) as process:
        becomes("")
        process.send_signal(signal.SIGSTOP)
        becomes(STOPPED)
        process.send_signal(signal.SIGCONT)
        becomes("")
        process.kill()
        becomes(ENDED)  # until somebody asks how
    assert stopped_state(process.pid) == ""
    assert stopped_state(os.getpid()) == ""
    assert stopped_state(0) == ""


def test_processes_that_see_each_other_have_one_name() -> None:
    name = pid_space()
    other = ran(["readlink", "/proc/self/ns/pid"]).stdout.strip()
    assert name == other != ""


def test_where_that_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> Path:
        raise OSError

    monkeypatch.setattr(Path, "readlink", refuse)
    assert pid_space() == ""
