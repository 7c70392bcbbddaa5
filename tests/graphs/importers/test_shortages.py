"""A machine that has too little is not reported as a model that cannot be imported, wherever the shortage comes."""

import json
import re
from collections.abc import Callable
from errno import EMFILE
from functools import partial
from os import strerror
from pathlib import Path

import pytest
import torch
from torch import nn

import graphs.importers
from graphs.common.errors import InputError, foreign_code
from graphs.common.shortages import failures
from graphs.importers.from_torch import program_from_module
from graphs.importers.generation import generation_program
from graphs.importers.load import load
from tests.planner.runtime.generation.tiny import module

SHORT = OSError(EMFILE, strerror(EMFILE))


def fails(*_: object, **__: object) -> object:
    raise SHORT


class Short(nn.Module):
    """A model that needs more than the machine has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fails()
        return x


CODE = """
import os, errno
from torch import nn, zeros
{0}
def net():
    {1}
    return nn.Linear(2, 2), (zeros(1, 2),)
"""
RAISES = "raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))"

DOORS: dict[str, tuple[str, Callable[[], object]]] = {
    "a module of a user": ("", lambda: load("imports.py:net")),
    "a factory of a user": ("", lambda: load("calls.py:net")),
    "a model that is traced": ("", lambda: program_from_module(Short(), (torch.zeros(2),))),
    "a network of transformers": ("graphs.importers.from_config.module_of", lambda: load("config.json")),
    "a config of transformers": (
        "transformers.AutoConfig.for_model",
        lambda: graphs.importers.from_config.config_of({"model_type": "bert"}),
    ),
    "a .pt2": ("torch.export.load", lambda: load("net.pt2")),
    "a pass of a model that generates": (
        "graphs.importers.generation.phase_program",
        lambda: generation_program(module("llama"), context=8, chunks=()),
    ),
}


@pytest.mark.attack("process")
@pytest.mark.parametrize("door", DOORS)
def test_a_shortage_is_raised_as_it_is(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("imports.py").write_text(CODE.format(RAISES, ""))
    Path("calls.py").write_text(CODE.format("", RAISES))
    Path("config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 8, "hidden_size": 12}))
    Path("net.pt2").touch()
    target, enter = DOORS[door]
    if target:
        monkeypatch.setattr(target, fails)
    with pytest.raises(OSError, match=r"Too many open files"):
        enter()


def test_no_importer_asks_in_another_way() -> None:
    """Each takes whatever others' code raises by `failures` or `foreign_code`, which let a shortage through."""
    folder = Path(graphs.importers.__file__).parent
    catches = re.compile(r"except \(?Exception|except:|suppress\(Exception")
    assert [path.name for path in folder.rglob("*.py") if catches.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3), KeyError("x")])
def test_what_others_raise_is_an_input_error(error: BaseException) -> None:
    with pytest.raises(InputError, match=r"^it fails$") as found, foreign_code(lambda _: "it fails"):
        raise error
    assert found.value.__cause__ is error
    with failures() as failed:
        raise error
    assert failed == [error]


def test_an_input_error_says_it_itself() -> None:
    with pytest.raises(InputError, match=r"^no such batch$"), foreign_code(lambda _: "it fails"):
        raise InputError("no such batch")


@pytest.mark.parametrize("error", [SHORT, MemoryError(), KeyboardInterrupt()])
def test_neither_a_shortage_nor_an_interrupt_is_a_failure(error: BaseException) -> None:
    for block in (failures, partial(foreign_code, lambda _: "it fails")):
        with pytest.raises(type(error)) as found, block():
            raise error
        assert found.value is error
