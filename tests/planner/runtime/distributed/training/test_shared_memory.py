"""What lies on a tray, and what does not go there."""

import errno
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs.errors import InputError
from planner.runtime.distributed.training.shared_memory import Tray, taken


@pytest.fixture
def tray(tmp_path: Path) -> Tray:
    return Tray(tmp_path / "tray")


def test_what_is_put_there_is_taken(tray: Tray) -> None:
    content = [({"x": torch.randn(2, 3), "none": torch.empty(0, 4)}, (torch.tensor(True), "text", 7, None))]
    tray.put(content)
    ((inputs, target),) = taken(tray._path)
    assert torch.equal(inputs["x"], content[0][0]["x"])
    assert inputs["none"].shape == (0, 4)
    assert target[0].item() is True
    assert target[1:] == ("text", 7, None)
    tray.put(())
    assert taken(tray._path) == ()


def test_tensors_lie_in_the_file_itself(tray: Tray) -> None:
    """It grows when it must, and does not shrink."""
    tray.put(torch.zeros(4))
    first, size = taken(tray._path), tray._path.stat().st_size
    tray.put(torch.ones(4))
    assert torch.equal(first, torch.ones(4))
    tray.put(torch.full((1000,), 2.0))
    assert tray._path.stat().st_size > size
    assert torch.equal(taken(tray._path), torch.full((1000,), 2.0))
    tray.put(torch.ones(4))
    assert torch.equal(taken(tray._path), torch.ones(4))


def test_whoever_takes_changes_nothing_for_others(tray: Tray) -> None:
    tray.put(torch.zeros(4))
    taken(tray._path).add_(1)
    assert torch.equal(taken(tray._path), torch.zeros(4))


@given(
    dtype=st.sampled_from([torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]),
    shape=st.lists(st.integers(1, 4), max_size=4),
    data=st.data(),
)
def test_strides_stay(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, shape: list[int], data: st.DataObject
) -> None:
    tensor = torch.randint(2, (3, *shape)).to(dtype)[1].permute(data.draw(st.permutations(range(len(shape)))))
    tray = Tray(tmp_path_factory.getbasetemp() / "strides")
    tray.put({"tensor": tensor, "learned": tensor.conj()})
    found = taken(tray._path)
    assert torch.equal(found["tensor"], tensor)
    assert (found["tensor"].stride(), found["tensor"].dtype) == (tensor.stride(), dtype)
    assert torch.equal(found["learned"], tensor.conj())


def test_what_cannot_be_pickled(tray: Tray) -> None:
    tray.put("before")
    with pytest.raises(
        InputError, match=rf"cannot be handed to another process by '{re.escape(str(tray._path))}' \(.*"
    ):
        tray.put([torch.zeros(1), lambda: None])
    assert taken(tray._path) == "before"


def test_a_full_disk(tray: Tray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room the process would be ended by a signal when it writes."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError) as error:
        tray.put(torch.zeros(4))
    assert str(error.value) == (
        f"what a step takes cannot be handed to another process by '{tray._path}' (OSError: [Errno 28] No space left "
        "on device); make room there, or pass tensors, numbers and text"
    )


def test_the_head_is_pickled_alone(tray: Tray) -> None:
    """No tensor goes through pickle."""
    tray.put([torch.zeros(100_000), "text"])
    row = tray._path.read_bytes()
    start, length = (int.from_bytes(row[at : at + 8], "little") for at in (0, 8))
    assert length < 1000
    slot, text = pickle.loads(row[start : start + length])
    assert (slot.start, slot.packing.n_bytes, text) == (64, 400_000, "text")
