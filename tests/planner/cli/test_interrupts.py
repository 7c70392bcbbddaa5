"""Ctrl-C and SIGTERM at any moment end a command with its own status; no library is left half done by them."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy.optimize import brentq

from planner.cli import main
from planner.cli.interrupts import interruptible
from planner.cli.native import native_calls
from tests.children import ran
from tests.planner.cli.given import ROOT


def test_ctrl_c_while_it_still_starts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.cli._parsed", interrupted)
    assert main(["plan"]) == 130
    assert capsys.readouterr() == ("", "planner: interrupted\n")


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    """The handler that Python starts with."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


def handling() -> tuple[object, ...]:
    """What a command changes while it runs."""
    return sys.unraisablehook, sys.gettrace(), *map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))


def strike() -> None:
    """Interrupt this process."""
    os.kill(os.getpid(), signal.SIGINT)


class Freed:
    """Something that is interrupted when it is freed."""

    def __del__(self) -> None:
        strike()


def called_back() -> None:
    """A function in C that calls one in Python, and ignores what that raises; as numba's compiler does."""
    ctypes.CFUNCTYPE(None)(strike)()


@pytest.mark.attack("process")
@pytest.mark.parametrize("loses", [Freed, called_back])
def test_an_interrupt_that_c_would_ignore_comes_when_it_has_returned(loses: object) -> None:
    reached = []

    def command() -> None:
        with interruptible():
            loses()  # type: ignore[operator]  # both are called without arguments
            reached.append("lost")

    before = handling()
    with pytest.raises(KeyboardInterrupt):
        command()
    assert reached == []
    assert handling() == before


@pytest.mark.parametrize("patience_s", [1000.0, 0.0])
def test_native_code_that_calls_for_long_is_not_awaited(patience_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy's solver passes on what a function raises."""
    monkeypatch.setattr("planner.cli.interrupts.PATIENCE_S", patience_s)
    calls: list[int] = []

    def cube(x: float) -> float:
        if not calls:
            strike()
        calls.append(native_calls())
        return x**3 - 2

    with interruptible(), pytest.raises(KeyboardInterrupt):
        brentq(cube, 0, 1e6)
    assert (len(calls) < 10) is (patience_s == 0)
    assert all(calls)
    assert native_calls() == 0


FAKE = """
import os, signal
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from planner.cli.interrupts import interruptible

asked, signals = FakeTensor.__torch_dispatch__, [signal.SIGINT]

@classmethod
def strike(_, function, *given):
    if function is torch.ops.prim.device.default and signals:
        os.kill(os.getpid(), signals.pop())
    return asked(function, *given)

FakeTensor.__torch_dispatch__ = strike
with FakeTensorMode():
    x, weight = torch.empty(2, 4), torch.nn.Parameter(torch.empty(3, 4))
try:
    with interruptible():
        torch.nn.functional.linear(x, weight)
        print("lost")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.attack("process")
def test_an_interrupt_while_c_plus_plus_makes_a_node_of_autograd_does_not_abort() -> None:
    done = ran([sys.executable, "-c", FAKE], cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


CAUGHT = """
import sys
import planner.cli
from planner.__main__ import main

def run(_):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 130

planner.cli.main = run
sys.exit(main([]))
"""


def test_an_interrupt_that_was_caught_is_no_signal_at_the_end(tmp_path: Path) -> None:
    """Python remembers that it has left an `exec` of a text, as in the methods of a dataclass that is made."""
    (tmp_path / "caught.py").write_text(CAUGHT)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    assert ran([sys.executable, "-m", "caught"], env=environment, check=False).returncode == 130
