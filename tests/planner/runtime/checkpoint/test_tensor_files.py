"""Tensors in a .safetensors file: as the library reads and writes them, without holding them all."""

import json
import tempfile
import weakref
from pathlib import Path
from unittest.mock import patch

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from graphs.ir import ITEM_BYTES
from planner.runtime.checkpoint import shard_folder
from planner.runtime.checkpoint.shard_folder import DTYPES, TensorFile, bytes_of, write_tensors

PAIR = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False, True])}


def test_the_bytes_by_hand(tmp_path: Path) -> None:
    # a: 6 x 4 bytes, b: 3 x 1
    assert write_tensors(tmp_path / "x", PAIR, {"device": "cpu0"}) == 27
    data = (tmp_path / "x").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length]) == {
        # bit by bit with the polynomial EDB88320 over the bytes below
        "__metadata__": {"device": "cpu0", "crc32": '{"a":"91e79017","b":"898483b3"}'},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BOOL", "shape": [3], "data_offsets": [24, 27]},
    }
    assert data[8 + length :] == PAIR["a"].numpy().tobytes() + b"\x01\x00\x01"


def test_the_library_reads_it(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", PAIR, {})
    read = safetensors.torch.load_file(tmp_path / "x")
    assert all(torch.equal(read[name], tensor) for name, tensor in PAIR.items())


def test_the_library_s_own_files_are_read(tmp_path: Path) -> None:
    safetensors.torch.save_file(PAIR, tmp_path / "x")
    with TensorFile(tmp_path / "x") as file:
        assert dict(file.metadata) == {}
        assert file.names == {"a", "b"}
        assert torch.equal(file.read("a", torch.float32), PAIR["a"])


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_every_dtype_and_shape(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    n_bytes = torch.empty(shape, dtype=kind).nbytes
    raw = torch.arange(n_bytes, dtype=torch.uint8) % 2 if dtype == "bool" else torch.arange(n_bytes, dtype=torch.uint8)
    tensor = raw.view(kind).reshape(shape)
    assert write_tensors(tmp_path / "x", {"t": tensor, "byte": torch.ones(1, dtype=torch.uint8)}, {}) == n_bytes + 1
    with TensorFile(tmp_path / "x") as file:
        into = file.read_like(torch.empty_like(tensor), "t")
        for read in (into, file.read("t", kind)):
            assert (read.dtype, read.shape) == (kind, tensor.shape)
            assert bytes(bytes_of(read)) == bytes(bytes_of(tensor)) == raw.numpy().tobytes()


@given(st.lists(st.sampled_from(list(DTYPES)), max_size=8))
def test_every_tensor_is_aligned(dtypes: list[torch.dtype]) -> None:
    tensors = {str(i): torch.zeros(3, dtype=torch.uint8).to(dtype) for i, dtype in enumerate(dtypes)}
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder) / "x", tensors, {})
        data = (Path(folder) / "x").read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        for name, tensor in tensors.items():
            assert header[name]["data_offsets"][0] % tensor.element_size() == 0
        with TensorFile(Path(folder) / "x") as file:
            assert file.names == tensors.keys()


def test_however_a_tensor_lies_in_memory(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {
        "turned": base.permute(2, 0, 1),
        "cut": base[:, 1:, ::2],
        "stretched": torch.ones(1).expand(5),
        "negated": torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        "conjugate": torch.tensor([1 + 2j]).conj(),
    }
    write_tensors(tmp_path / "x", tensors, {})
    with TensorFile(tmp_path / "x") as file:
        for name, tensor in tensors.items():
            assert torch.equal(file.read(name, tensor.dtype), tensor)
            like = torch.empty_like(tensor, device="meta")
            into = file.read_like(like, name)
            assert torch.equal(into, tensor)
            assert into.stride() == like.stride()


def test_what_is_read_is_no_part_of_the_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", PAIR, {})
    before = (tmp_path / "x").read_bytes()
    with TensorFile(tmp_path / "x") as file:
        read = file.read("a", torch.float32)
    read += 1
    assert (tmp_path / "x").read_bytes() == before
    (tmp_path / "x").write_bytes(b"")
    assert torch.equal(read, PAIR["a"] + 1)


def test_one_tensor_after_the_other_is_written(tmp_path: Path) -> None:
    """Of scattered tensors, which have to be copied, no two copies are there at once."""
    alive: list[int] = []
    made: list[weakref.ref[object]] = []

    def watched(tensor: torch.Tensor) -> memoryview:
        view = bytes_of(tensor)
        alive.append(sum(there() is not None for there in made))
        made.append(weakref.ref(view.obj))
        return view

    with patch.object(shard_folder, "bytes_of", watched):
        write_tensors(tmp_path / "x", {str(i): torch.ones(64, 64).t() for i in range(4)}, {})
    assert alive == [0, 0, 0, 0]


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "x", PAIR, {})
    assert (tmp_path / "x").read_text() == "mine"


class TestRefused:
    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as error:
            TensorFile(tmp_path / "x")
        assert str(error.value).startswith(f"cannot read '{tmp_path}/x': No such file")

    @pytest.mark.parametrize("keep", [0, 5, 40, 160])
    def test_a_part_of_a_file(self, keep: int, tmp_path: Path) -> None:
        write_tensors(tmp_path / "x", PAIR, {})
        (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:keep])
        with pytest.raises(InputError) as error:
            TensorFile(tmp_path / "x")
        assert str(error.value).startswith(f"'{tmp_path}/x' is damaged (")
        assert str(error.value).endswith("); write the shards anew")

    def test_no_bit_changes_unnoticed(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "x", PAIR, {"device": "cpu0"})
        data = (tmp_path / "x").read_bytes()
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            (tmp_path / "y").write_bytes(changed)
            try:
                with TensorFile(tmp_path / "y") as file:
                    for name in file.names & PAIR.keys():
                        assert torch.equal(file.read_like(PAIR[name], name), PAIR[name])
            except InputError:
                continue
            assert bit < 8 * (len(data) - 27)  # names and texts are for others to check, the data are not

    def test_damage_is_named(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "x", PAIR, {})
        data = bytearray((tmp_path / "x").read_bytes())
        data[-1] ^= 1  # the last element of b
        (tmp_path / "x").write_bytes(data)
        with TensorFile(tmp_path / "x") as file:
            assert torch.equal(file.read("a", torch.float32), PAIR["a"])
            with pytest.raises(InputError) as error:
                file.read("b", torch.bool)
        assert str(error.value) == (f"'{tmp_path}/x' is damaged ('b' is not what was written); write the shards anew")

    def test_another_shape_or_dtype(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "x", PAIR, {})
        with TensorFile(tmp_path / "x") as file:
            for tensor, shown in ((torch.ones(3), "[3] float32"), (torch.ones(2, 3).double(), "[2, 3] float64")):
                with pytest.raises(InputError) as error:
                    file.read_like(tensor, "a")
                assert str(error.value) == (
                    f"'{tmp_path}/x' has 'a' as [2, 3] float32, not {shown}; write the shards anew"
                )

    @pytest.mark.attack("file")
    @pytest.mark.parametrize("sums", ["[]", "3", '"x"', "{", "[" * 100_000])
    def test_checksums_that_are_none(self, tmp_path: Path, sums: str) -> None:
        safetensors.torch.save_file(PAIR, tmp_path / "x", {"crc32": sums})
        with pytest.raises(InputError, match=r"is damaged .*write the shards anew"):
            TensorFile(tmp_path / "x")

    @pytest.mark.attack("file")
    def test_no_more_memory_is_taken_than_the_file_has(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "x", PAIR, {})
        with TensorFile(tmp_path / "x") as file, pytest.raises(InputError, match=r"not .*; write the shards anew"):
            file.read_like(torch.empty(1 << 60, device="meta"), "a")

    def test_a_tensor_that_is_not_there(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "x", PAIR, {})
        with TensorFile(tmp_path / "x") as file, pytest.raises(InputError, match=r"is damaged .*write the shards anew"):
            file.read_like(torch.ones(1), "c")
