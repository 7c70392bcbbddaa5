"""Inputs that are no files: pipes deliver, everything else is refused by name, and nothing waits for ever."""

import os
import socket
from pathlib import Path
from threading import Thread

import pytest

from costmodels.cluster.file import read_cluster
from graphs.common import documents
from graphs.common.documents import content_of, read_json
from graphs.common.errors import InputError

LARGE = b"x" * 3_000_000  # more than a pipe holds


def refusal(path: Path) -> str:
    with pytest.raises(OSError, match=r".") as error:
        content_of(path)
    return error.value.strerror or ""


@pytest.mark.attack("process")
@pytest.mark.parametrize(("path", "why"), [("/dev/zero", "it is a device"), ("/", "it is a folder")])
def test_what_has_no_content_or_no_end(path: str, why: str) -> None:
    assert refusal(Path(path)) == why
    for read, what in ((read_cluster, "cluster"), (lambda path: read_json(path, "plan"), "plan")):
        with pytest.raises(InputError) as error:
            read(Path(path))
        assert str(error.value) == f"cannot read the {what} '{path}': {why}; check the path"


@pytest.mark.attack("process")
def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as ear:
        ear.bind("ear")
        assert refusal(Path("ear")) == "it is a socket"


@pytest.mark.attack("process")
def test_a_pipe_that_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "it is a pipe that nobody writes to"
    monkeypatch.setattr(documents, "PIPE_TIMEOUT_S", 0.01)
    held = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        assert refusal(tmp_path / "pipe") == "nothing came out of the pipe for 0.01 s"
    finally:
        os.close(held)


def test_a_pipe_delivers() -> None:
    inlet, outlet = os.pipe()  # as of ``<(command)``, which is handed over as /dev/fd/N

    def write() -> None:
        with os.fdopen(outlet, "wb") as file:
            file.write(LARGE)

    writer = Thread(target=write)
    writer.start()
    assert content_of(Path(f"/dev/fd/{inlet}")) == LARGE
    writer.join(10)
    os.close(inlet)


def test_a_named_pipe_delivers_what_was_written(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # the writer need not wait for a reader
    pipe.write_bytes(b"{}")
    assert read_json(pipe, "plan") == {}
    os.close(held)


def test_files(tmp_path: Path) -> None:
    for content in (b"", LARGE):
        (tmp_path / "file").write_bytes(content)
        assert content_of(tmp_path / "file") == content
    assert refusal(tmp_path / "none") == "No such file or directory"
