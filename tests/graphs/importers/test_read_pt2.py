"""A .pt2 file gives the Program that its module would give, for any batch that the file allows."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module, read_pt2
from tests.graphs.importers.modules import KEEPS_STATE, PICTURE, Function, X, assert_same, run_eagerly


class Net(nn.Module):
    """For files: dropout, batch norm, an LSTM, in-place ReLU, a buffer that is not saved, a dictionary returned."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout())
        self.norm = nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(8, 4, batch_first=True)
        self.register_buffer("kept", torch.randn(8), persistent=False)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        y, (hidden, _) = self.lstm((self.norm(self.block(x)) * self.kept * scale)[:, None])
        return {"y": y, "hidden": hidden}


def save(path: Path, module: nn.Module, *args: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.export, about every LSTM
        torch.export.save(torch.export.export(module, args, **options), path)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return Net().eval()


@pytest.fixture(scope="module")
def static(net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("static") / "net.pt2"
    save(path, net, torch.randn(2, 4))
    return path


@pytest.fixture(scope="module")
def dynamic(net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dynamic") / "net.pt2"
    save(path, net, torch.randn(2, 4), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    return path


class TestPt2:
    @pytest.mark.parametrize("batch", [None, 2])
    def test_static(self, net: nn.Module, static: Path, batch: int | None) -> None:
        program = read_pt2(static, batch)
        assert program.graph.name == "net"
        assert_same(program.run(PICTURE[:, 0, 0, :4]), run_eagerly(net, (PICTURE[:, 0, 0, :4],), {}))
        assert_same(program.run(X[:2]), run_eagerly(program.module, (X[:2],), {}))

    @pytest.mark.parametrize("batch", [None, 2, 1, 4])
    def test_dynamic(self, net: nn.Module, dynamic: Path, batch: int | None) -> None:
        program = read_pt2(dynamic, batch)
        x = X[: batch or 2]
        assert [program.graph.tensor[name].shape for name in program.graph.inputs] == [x.shape]
        assert program.example_inputs[0].shape == x.shape
        assert_same(program.run(x), run_eagerly(net, (x,), {}))
        assert_same(program.run(x), run_eagerly(program.module, (x,), {}))

    def test_the_same_graph_as_from_the_module(self, net: nn.Module, static: Path, dynamic: Path) -> None:
        graph = program_from_module(net, (X[:2],)).graph
        for path in (static, dynamic):
            read = read_pt2(path).graph
            assert [(op.kind, op.module, op.attrs) for op in read.ops] == [
                (op.kind, op.module, op.attrs) for op in graph.ops
            ]
            assert {t.name for t in read.tensors} == {t.name for t in graph.tensors}

    def test_a_batch_that_the_file_fixes(self, static: Path) -> None:
        with pytest.raises(InputError) as error:
            read_pt2(static, 3)
        assert str(error.value) == (
            f"'{static}' was exported for the batch 2, not 3: Guard failed: x.size()[0] == 2; "
            "export it with that batch or with a dynamic first dimension"
        )

    def test_a_batch_out_of_range(self, dynamic: Path) -> None:
        with pytest.raises(InputError) as error:
            read_pt2(dynamic, 65)
        assert str(error.value) == (
            f"'{dynamic}' was exported for the batch 2, not 65: Guard failed: x.size()[0] <= 64; "
            "export it with that batch or with a dynamic first dimension"
        )

    def test_a_batch_for_inputs_that_have_none(self, tmp_path: Path) -> None:
        save(tmp_path / "net.pt2", Function(lambda x, y: x @ y), torch.ones(2, 4), torch.ones(4, 3))
        assert [op.kind for op in read_pt2(tmp_path / "net.pt2").graph.ops] == ["aten.matmul.default"]
        with pytest.raises(InputError) as error:
            read_pt2(tmp_path / "net.pt2", 5)
        path = tmp_path / "net.pt2"
        assert str(error.value) == f"'{path}' has inputs with the first dimensions [2, 4]; export it with batch 5"

    def test_scalars_have_no_batch(self, tmp_path: Path) -> None:
        batch = {0: torch.export.Dim("batch")}
        save(
            tmp_path / "net.pt2",
            Function(lambda x, y: x * y),
            torch.ones(2, 4),
            torch.tensor(3.0),
            dynamic_shapes=((batch, None),),
        )
        program = read_pt2(tmp_path / "net.pt2", 5)
        assert [program.graph.tensor[name].shape for name in program.graph.inputs] == [(5, 4), ()]

    @pytest.mark.parametrize(("dynamic", "batch"), [(False, None), (True, None), (True, 5)])
    def test_arguments_that_are_no_tensors(self, tmp_path: Path, dynamic: bool, batch: int | None) -> None:
        class Scaled(nn.Module):
            def forward(self, x: Tensor, mask: Tensor | None, n: int, mode: str = "sum") -> Tensor:
                return x * n if mask is None and mode == "product" else x

        path = tmp_path / "net.pt2"
        options = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC}, None, None, None)} if dynamic else {}
        save(path, Scaled(), X[:2], None, 3, kwargs={"mode": "product"}, **options)
        program = read_pt2(path, batch)
        x = torch.ones(batch or 2, 4)
        assert_same(program.run(x, None, 3, mode="product"), x * 3)
        assert program.in_leaves == ("x", (None,), (3,), ("product",))

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "File is not a zip file"),
            (b"hello", "File is not a zip file"),
            (None, "[Errno 2] No such file or directory: '{}'"),
        ],
    )
    def test_no_such_program(self, tmp_path: Path, content: bytes | None, reason: str) -> None:
        path = tmp_path / "net.pt2"
        if content is not None:
            path.write_bytes(content)
        self.check_unreadable(path, reason.format(path))

    def test_damaged(self, static: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "net.pt2"
        path.write_bytes(static.read_bytes()[:1000])
        self.check_unreadable(path, "File is not a zip file")
        assert capfd.readouterr() == ("", "")

    def test_another_archive_of_torch(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "net.pt2"
        torch.save({"weight": X}, path)
        self.check_unreadable(
            path,
            "We ran into an error when deserializing the saved file. Please check the warnings above for possible "
            "errors",
        )
        assert capfd.readouterr() == ("", "")

    def check_unreadable(self, path: Path, reason: str) -> None:
        with pytest.raises(InputError) as error:
            read_pt2(path)
        assert str(error.value) == (
            f"'{path}' cannot be read as an exported program: {reason}; write it with torch.export.save"
        )

    def test_without_example_inputs(self, tmp_path: Path) -> None:
        path = tmp_path / "net.pt2"
        exported = torch.export.export(Function(torch.relu), (X,))
        exported.example_inputs = None
        torch.export.save(exported, path)
        with pytest.raises(InputError) as error:
            read_pt2(path)
        assert str(error.value) == f"'{path}' has no example inputs; export it again with a current torch"

    def test_exported_in_training_mode(self, tmp_path: Path) -> None:
        path = tmp_path / "net.pt2"
        save(path, nn.BatchNorm1d(4), X)
        with pytest.raises(InputError) as error:
            read_pt2(path)
        assert str(error.value) == f"model 'net' {KEEPS_STATE.format('running_mean')}"


class Cache:
    """State that a model takes."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class Cached(nn.Module):
    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        return x + cache.keys


def test_a_class_that_torch_does_not_know_is_named(tmp_path: Path) -> None:
    path, name = tmp_path / "cached.pt2", "library.of.a.user.Cache"
    key = pytree.GetAttrKey("keys")
    pytree.register_pytree_node(
        Cache,
        lambda cache: ([cache.keys], None),
        lambda values, _: Cache(next(iter(values))),
        serialized_type_name=name,
        to_dumpable_context=lambda _: "null",
        from_dumpable_context=lambda _: None,
        flatten_with_keys_fn=lambda cache: ([(key, cache.keys)], None),
    )
    try:
        torch.export.save(torch.export.export(Cached(), (torch.ones(2), Cache(torch.ones(2))), strict=False), path)
    finally:
        pytree._deregister_pytree_node(Cache)
    with pytest.raises(InputError, match=f"takes or returns a '{name}', a class that torch does not know here"):
        read_pt2(path)
