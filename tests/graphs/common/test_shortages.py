"""A shortage of the machine is seen whoever raises it, and nothing else is taken for one."""

import os
import sys
from errno import EMFILE, ENOENT, ENOSPC

import pytest

from graphs.common.errors import InputError, running
from graphs.common.shortages import shortage
from tests.children import ran
from tests.planner.cli.given import ROOT


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "Cannot allocate memory"),
        (MemoryError("bad\nallocation"), "bad allocation"),
        (OSError(EMFILE, os.strerror(EMFILE), "plan.json"), "[Errno 24] Too many open files: 'plan.json'"),
        (RuntimeError(f"torch.save: {os.strerror(ENOSPC)}"), "torch.save: No space left on device"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "DefaultCPUAllocator: can't allocate memory"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (
            FileNotFoundError(ENOENT, "No usable temporary directory found"),
            "[Errno 2] No usable temporary directory found",
        ),
        (OSError(ENOENT, os.strerror(ENOENT)), ""),
        (ValueError("memory is 16"), ""),
    ],
)
def test_what_has_come_to_an_end(error: Exception, said: str) -> None:
    assert shortage(error) == said
    led = ValueError("no answer")
    led.__cause__ = error
    assert shortage(led) == said


def test_a_library_that_would_wait_forever_for_memory_is_not_loaded() -> None:
    code = (
        "import os, numpy\n"
        "from graphs.common.shortages import guard_imports, shortage\n"
        "from tests.attacks.strikes import limit_now\n"
        "guard_imports()\n"
        "limit_now(2, 20 << 20, os.getpid())\n"  # RLIMIT_DATA
        "try:\n"
        "    import scipy.optimize\n"
        "except OSError as error:\n"
        "    print(shortage(error))\n"
    )
    said = ran([sys.executable, "-c", code], cwd=ROOT, limit_s=120).stdout
    assert said == "[Errno 12] Cannot allocate memory\n"


def test_inputs_are_not_at_fault_for_a_shortage() -> None:
    with pytest.raises(RuntimeError, match=r"^can't allocate memory$"), running("the model"):
        raise RuntimeError("can't allocate memory")
    with pytest.raises(InputError, match="the model fails with the example inputs"), running("the model"):
        raise RuntimeError("shapes differ")
