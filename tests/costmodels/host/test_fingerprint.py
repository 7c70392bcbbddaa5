"""What a measurement depends on."""

import platform
from dataclasses import replace

import pytest
import torch

from costmodels.host.fingerprint import fingerprint_of, machine_of, processor
from graphs.kernels.kernels import VERSION
from tests.costmodels.calibrate.hosts import CORE, OTHER, device

CPUINFO = """\
processor\t: 0
model name\t: Z80 @ 4.00MHz
cpu family\t: 6
stepping\t: 1
flags\t\t: fpu : vme

processor\t: 1
model name\t: another
"""


def test_the_first_processor_speaks_for_all() -> None:
    assert processor(CPUINFO) == {"model name": "Z80 @ 4.00MHz", "cpu family": "6", "stepping": "1"}


def test_a_host_that_does_not_tell_is_asked_through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert processor("") == {"model name": "arm64"}


def test_twelve_digits_that_do_not_depend_on_the_order() -> None:
    fingerprint = fingerprint_of({"a": "1", "b": "2"})
    assert len(fingerprint) == 12
    assert int(fingerprint, 16) >= 0
    assert fingerprint == fingerprint_of({"b": "2", "a": "1"})
    assert fingerprint != fingerprint_of({"a": "1", "b": "3"})


def test_equal_devices_have_equal_machines_and_the_software_counts() -> None:
    machine = machine_of(device("a", CORE))
    assert machine == machine_of(device("b", OTHER))
    assert machine["torch"] == torch.__version__
    assert machine["cores"] == "1"


def test_quick_kernels_make_another_machine() -> None:
    exact = device("a", CORE)
    machine = machine_of(replace(exact, kernels="quick"))
    assert machine == machine_of(exact) | {"kernels": f"quick {VERSION}"}


def test_more_cores_make_another_machine() -> None:
    if CORE == OTHER:
        pytest.skip("this host has one core")
    assert machine_of(device("a", CORE)) != machine_of(device("a", CORE, OTHER))
