"""What lies on a shared buffer, and what does not go there."""

import errno
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from planner.runtime.distributed.training.worker import SharedBuffer, taken


@pytest.fixture
def shared_buffer(tmp_path: Path) -> SharedBuffer:
    return SharedBuffer(tmp_path / "tray")


def test_what_is_put_there_is_taken(shared_buffer: SharedBuffer) -> None:
    content = [({"x": torch.randn(2, 3), "none": torch.empty(0, 4)}, (torch.tensor(True), "text", 7, None))]
    shared_buffer.put(content)
    ((inputs, target),) = taken(shared_buffer._path)
    assert torch.equal(inputs["x"], content[0][0]["x"])
    assert inputs["none"].shape == (0, 4)
    assert target[0].item() is True
    assert target[1:] == ("text", 7, None)
    shared_buffer.put(())
    assert taken(shared_buffer._path) == ()


def test_tensors_lie_in_the_file_itself(shared_buffer: SharedBuffer) -> None:
    """It grows when it must, and does not shrink."""
    shared_buffer.put(torch.zeros(4))
    first, size = taken(shared_buffer._path), shared_buffer._path.stat().st_size
    shared_buffer.put(torch.ones(4))
    assert torch.equal(first, torch.ones(4))
    shared_buffer.put(torch.full((1000,), 2.0))
    assert shared_buffer._path.stat().st_size > size
    assert torch.equal(taken(shared_buffer._path), torch.full((1000,), 2.0))
    shared_buffer.put(torch.ones(4))
    assert torch.equal(taken(shared_buffer._path), torch.ones(4))


def test_whoever_takes_changes_nothing_for_others(shared_buffer: SharedBuffer) -> None:
    shared_buffer.put(torch.zeros(4))
    taken(shared_buffer._path).add_(1)
    assert torch.equal(taken(shared_buffer._path), torch.zeros(4))


@given(
    dtype=st.sampled_from([torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]),
    shape=st.lists(st.integers(1, 4), max_size=4),
    data=st.data(),
)
def test_strides_stay(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype, shape: list[int], data: st.DataObject
) -> None:
    tensor = torch.randint(2, (3, *shape)).to(dtype)[1].permute(data.draw(st.permutations(range(len(shape)))))
    shared_buffer = SharedBuffer(tmp_path_factory.getbasetemp() / "strides")
    shared_buffer.put({"tensor": tensor, "learned": tensor.conj()})
    found = taken(shared_buffer._path)
    assert torch.equal(found["tensor"], tensor)
    assert (found["tensor"].stride(), found["tensor"].dtype) == (tensor.stride(), dtype)
    assert torch.equal(found["learned"], tensor.conj())


def test_what_cannot_be_pickled(shared_buffer: SharedBuffer) -> None:
    shared_buffer.put("before")
    with pytest.raises(
        InputError, match=rf"cannot be handed to another process by '{re.escape(str(shared_buffer._path))}' \(.*"
    ):
        shared_buffer.put([torch.zeros(1), lambda: None])
    assert taken(shared_buffer._path) == "before"


def test_a_full_disk(shared_buffer: SharedBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room the process would be ended by a signal when it writes."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError) as error:
        shared_buffer.put(torch.zeros(4))
    assert str(error.value) == (
        f"what a step takes cannot be handed to another process by '{shared_buffer._path}' (OSError: [Errno 28] "
        "No space left on device); make room there, or pass tensors, numbers and text"
    )


def test_the_head_is_pickled_alone(shared_buffer: SharedBuffer) -> None:
    """No tensor goes through pickle."""
    shared_buffer.put([torch.zeros(100_000), "text"])
    row = shared_buffer._path.read_bytes()
    start, length = (int.from_bytes(row[at : at + 8], "little") for at in (0, 8))
    assert length < 1000
    slot, text = pickle.loads(row[start : start + length])
    assert (slot.start, slot.packing.n_bytes, text) == (64, 400_000, "text")
