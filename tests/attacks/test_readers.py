"""A few broken files for every reader; `tests.benchmarks.attack --hours N` has the rest."""

import os
import random
from pathlib import Path

import pytest

from graphs.common.errors import InputError
from tests.attacks.mutations import ODD, as_json, as_toml, broken_bytes, broken_document
from tests.attacks.readers import CANARY, NAMES, Reader, attacked, fault, readers

FEW = 60


@pytest.fixture(autouse=True)
def _canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CANARY, os.devnull)


def test_every_reader_is_attacked() -> None:
    assert set(readers()) == set(NAMES)


@pytest.mark.attack("file")
@pytest.mark.parametrize("name", NAMES)
def test_a_file_as_it_was_written_is_read_and_broken_ones_are_refused(name: str, tmp_path: Path) -> None:
    reader = readers()[name]
    (tmp_path / "good").mkdir()
    if name != "pt2 with a pickle":
        assert reader.read(reader.put(reader.good, tmp_path / "good")) is not None
    assert fault(reader, reader.good, tmp_path) == ""
    few = FEW // 10 if name in ("onnx", "config") or "pt2" in name else FEW
    assert [(seed, said) for seed in range(few) if (said := attacked(name, seed, tmp_path)[0])] == []


def refused(name: str, content: bytes, folder: Path) -> bool:
    """Return whether a reader refuses a file; `fault` alone would also be content if it were read."""
    path = folder / readers()[name].file
    path.write_bytes(content)
    with pytest.raises(InputError):
        readers()[name].read(path)
    return fault(readers()[name], content, folder) == ""


@pytest.mark.attack("file")
@pytest.mark.parametrize(
    ("at", "field"),
    [(8, b"\x09"), (10, b"\x63"), (46, b"\xff")],
    ids=["encrypted", "compression", "name"],
)
def test_a_damaged_archive_is_no_exported_program(at: int, field: bytes, tmp_path: Path) -> None:
    """Each field of an entry in the archive's directory (.ZIP File Format Specification) fails in its own way."""
    assert refused("pt2", _with_field(at, field), tmp_path)


@pytest.mark.attack("file")
def test_an_archive_of_a_later_version_is_left_to_torch(tmp_path: Path) -> None:
    """`zipfile` refuses such an archive and torch reads it."""
    assert fault(readers()["pt2"], _with_field(6, b"\xff"), tmp_path) == ""


def _with_field(at: int, field: bytes) -> bytes:
    """Return an exported program with another byte in the directory's entry of its graph.

    Places are found by name, since a program's own size depends on the path of its source code.
    """
    good = readers()["pt2"].good
    entry = good.rindex(b"model/models/model.json") - 46 + at
    return good[:entry] + field + good[entry + 1 :]


@pytest.mark.attack("file")
def test_a_weight_without_all_of_its_elements(tmp_path: Path) -> None:
    assert refused("onnx", readers()["onnx"].good.replace(b"\x08\x03\x08\x04", b"\x08\x04\x08\x04"), tmp_path)


def test_faults_are_seen(tmp_path: Path) -> None:
    def runs(path: Path) -> None:
        (tmp_path / "canary").write_text(path.read_text())

    def fails(path: Path) -> None:
        raise KeyError(path.name)

    assert fault(Reader(runs, b"", "a.json"), b"x", tmp_path) == "the file's code has run"
    assert fault(Reader(fails, b"", "a.json"), b"x", tmp_path) == "KeyError: \"'a.json'\""


def test_a_seed_gives_the_same_broken_file_and_another_one_another() -> None:
    document = {"a": [1, 2.5, "x", None], "b": {"c": [{"d": 1}]}}
    made = [as_json(broken_document(document, random.Random(seed)), random.Random(0)) for seed in [*range(30)] * 2]
    assert made[:30] == made[30:]
    assert len(set(made)) > 20
    odd = as_json(list(ODD), random.Random(0))
    for seed in range(5000):  # a document that takes one of the odd values and changes it has its own
        broken_document([0], random.Random(seed))
    assert as_json(list(ODD), random.Random(0)) == odd
    assert broken_bytes(b"abc" * 30, random.Random(1)) == broken_bytes(b"abc" * 30, random.Random(1)) != b"abc" * 30
    assert as_toml({"a": 1.5, "b": [{"c": "x"}], "d": [float("inf")]}, random.Random(0)).decode().splitlines() == [
        "a = 1.5",
        "d = [inf]",
        "[[b]]",
        'c = "x"',
    ]
    assert all(as_json(value, random.Random(0)) for value in ODD)
