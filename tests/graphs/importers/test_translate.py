"""A traced graph as our records: names, roles, shapes, module paths and attributes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphs.common.errors import InputError
from graphs.files import graph_to_dict
from graphs.importers.from_torch import program_from_exported, program_from_module
from graphs.ir import Op, Role
from graphs.program.program import Program
from tests.graphs.importers.modules import (
    CASES,
    PICTURE,
    Buffers,
    Function,
    Residual,
    Tied,
    X,
    assert_same,
    checked,
    program_of,
    run_eagerly,
)


def traced(function: Callable[..., Any], *args: Any) -> Program:
    return program_from_module(Function(function), args or (X,))


def last_op(function: Callable[..., Any], *args: Any) -> Op:
    return traced(function, *args).graph.ops[-1]


class TestAttributes:
    def attributes(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        return dict(last_op(function, *args).attrs)

    def test_by_their_names_in_the_schema(self) -> None:
        conv = nn.Conv2d(4, 8, 3, stride=2, padding=(1, 0), groups=2)
        (op,) = program_from_module(conv, (PICTURE,)).graph.ops
        assert op.kind == "aten.conv2d.default"
        assert op.inputs == ("input", "weight", "bias")
        assert op.attrs == {"stride": (2, 2), "padding": (1, 0), "dilation": (1, 1), "groups": 2}

    def test_none_in_a_tensors_place(self) -> None:
        conv = nn.Conv2d(4, 8, 1, bias=False)
        (op,) = program_from_module(conv, (PICTURE,)).graph.ops
        assert op.inputs == ("input", "weight")
        assert op.attrs == {}
        (op,) = program_from_module(nn.LayerNorm(4, elementwise_affine=False), (X,)).graph.ops
        assert op.inputs == ("input",)
        assert op.attrs == {"normalized_shape": (4,), "weight": None, "bias": None, "eps": 1e-5, "cudnn_enable": False}
        assert self.attributes(lambda x: x.clamp(None, 2.0)) == {"min": None, "max": 2.0}

    @pytest.mark.parametrize(("value", "written"), [("inf", "inf"), ("-inf", "-inf"), ("nan", "nan")])
    def test_floats_that_json_has_no_word_for(self, value: str, written: str) -> None:
        number = float(value)
        assert self.attributes(lambda x: x.masked_fill(x > 0, number)) == {"value": written}

    def test_finite_floats_and_bools_keep_their_type(self) -> None:
        attrs = self.attributes(lambda x: x.mean(1, keepdim=True) * 0.5)
        assert attrs == {"other": 0.5}
        attrs = self.attributes(lambda x: x.mean(1, keepdim=True))
        assert attrs == {"dim": (1,), "keepdim": True}
        assert attrs["keepdim"] is True

    def test_dtypes_layouts_and_formats(self) -> None:
        assert self.attributes(lambda x: x.to(torch.bfloat16)) == {"dtype": "bfloat16"}
        assert self.attributes(lambda x: torch.zeros_like(x, dtype=torch.int8)) == {"dtype": "int8"}
        attrs = self.attributes(lambda x: x.contiguous(memory_format=torch.channels_last), PICTURE)
        assert attrs == {"memory_format": "channels_last"}

    def test_the_device_is_left_out(self) -> None:
        ops = traced(lambda x: x + torch.zeros(4, device="cpu", dtype=torch.float64)).graph.ops
        assert dict(ops[0].attrs) == {"size": (4,), "dtype": "float64"}
        assert "device" not in str([op.attrs for op in ops])
        with torch.device("meta"):
            elsewhere = program_from_module(
                Function(lambda x: x + torch.zeros(4, device=x.device, dtype=torch.float64)), (torch.zeros(4, 4),)
            )
        assert [op.attrs for op in elsewhere.graph.ops] == [op.attrs for op in ops]

    def test_strings_and_complex_numbers(self) -> None:
        assert self.attributes(lambda x: torch.div(x, 2, rounding_mode="floor")) == {
            "other": 2,
            "rounding_mode": "floor",
        }
        assert self.attributes(lambda x: x * (1 + 2j)) == {"other": "(1+2j)"}
        assert self.attributes(lambda x: torch.einsum("ij->ji", x))["equation"] == "ij->ji"

    def test_lists_of_tensors_are_inputs_only(self) -> None:
        op = last_op(lambda x: torch.cat([x, x * 2, x], 1))
        assert op.inputs == ("args_0", "mul", "args_0")
        assert op.attrs == {"dim": 1}

    def test_places_among_indices(self) -> None:
        op = last_op(lambda x, i: x[:, i], X, torch.tensor([0, 2]))
        assert op.kind == "aten.index.Tensor"
        assert op.inputs == ("args_0", "args_1")
        assert op.attrs == {"indices": (None, "tensor")}
        assert last_op(lambda x, i: x[i, i], X, torch.tensor([0, 2])).attrs == {}

    def test_empty_lists(self) -> None:
        assert last_op(lambda x: x.reshape(()), torch.ones(1)).attrs == {"shape": ()}


class TestNames:
    def test_state_has_its_path_and_operators_that_of_their_node(self) -> None:
        graph = program_from_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (X,)).graph
        assert [(t.name, t.role) for t in graph.tensors] == [
            ("0.weight", Role.PARAMETER), ("0.bias", Role.PARAMETER), ("input", Role.INPUT),
            ("linear", Role.ACTIVATION), ("relu", Role.ACTIVATION),
        ]  # fmt: skip
        assert [op.outputs for op in graph.ops] == [("linear",), ("relu",)]

    def test_items_of_a_tuple_are_numbered(self) -> None:
        program = traced(lambda x: x.topk(2))
        assert program.graph.ops[0].outputs == ("topk.0", "topk.1")
        assert [program.graph.tensor[name].dtype for name in program.graph.outputs] == ["float32", "int64"]

    def test_items_that_nobody_reads(self) -> None:
        program = traced(lambda x: x.split(2)[1])
        assert program.graph.ops[0].outputs == ("split.0", "split.1")
        assert program.graph.outputs == ("split.1",)

    def test_a_name_taken_by_an_input_or_an_operator(self) -> None:
        """Buffers has a buffer named as its input, one as its operator t, and a parameter as an item of its split."""
        program = program_from_module(Buffers(), (X,))
        assert program.graph.inputs == ("x",)
        assert program.graph.tensor["x"].role is Role.INPUT
        assert program.graph.tensor["t"].role is Role.ACTIVATION
        assert program.graph.tensor["split.0"].role is Role.ACTIVATION
        assert list(program.state) == ["p_split_0", "b_x", "b_t", "mask", "scale", "lifted_tensor_0"]

    def test_a_name_taken_by_the_replacement(self) -> None:
        class Module(nn.Module):
            x: Tensor
            b_x: Tensor

            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("x", torch.ones(4))
                self.register_buffer("b_x", torch.full((4,), 2.0))

            def forward(self, x: Tensor) -> Tensor:
                return x * self.x + self.b_x

        module = Module()
        program = program_from_module(module, (X,))
        assert len(program.state) == 2
        assert_same(program.run(X), run_eagerly(module, (X,), {}))

    @pytest.mark.parametrize("name", CASES)
    def test_every_name_is_unique_and_described(self, name: str) -> None:
        _, program = program_of(name)
        graph = program.graph
        known = {t.name for t in graph.tensors}
        assert len(known) == len(graph.tensors)
        assert set(program.state) == {t.name for t in graph.tensors if t.role in (Role.PARAMETER, Role.BUFFER)}
        read = {name for op in graph.ops for name in op.inputs}
        assert known == read | {name for op in graph.ops for name in op.outputs} | {*graph.inputs, *graph.outputs}


class TestState:
    def test_roles(self) -> None:
        program = program_from_module(Buffers(), (X,))
        roles = {t.name: t.role for t in program.graph.tensors if t.name in program.state}
        assert roles["p_split_0"] is Role.PARAMETER
        assert {role for name, role in roles.items() if name != "p_split_0"} == {Role.BUFFER}

    def test_tied_weights_are_one_tensor(self) -> None:
        module = Tied()
        program = program_from_module(module, (torch.tensor([1, 2]),))
        assert list(program.state) == ["embedding.weight"]
        assert program.state["embedding.weight"] is module.embedding.weight
        assert [op.inputs for op in program.graph.ops] == [
            ("embedding.weight", "words"),
            ("embedding", "embedding.weight"),
        ]

    def test_one_storage_is_not_one_tensor(self) -> None:
        program = program_of("tied_transposed")[1]
        assert list(program.state) == ["encode.weight", "decode.weight"]

    def test_what_nobody_reads_is_left_out(self) -> None:
        program = program_of("returned")[1]
        assert list(program.state) == ["weight"]
        assert "unused" not in program.graph.tensor

    def test_shapes_and_dtypes(self) -> None:
        tensor = program_from_module(Buffers(), (X,)).graph.tensor
        assert (tensor["mask"].shape, tensor["mask"].dtype) == ((4,), "bool")
        assert tensor["mask"].n_bytes == 4
        assert tensor["x"].n_bytes == 4 * 4 * 4


class TestModulePaths:
    def test_of_every_operator(self) -> None:
        graph = program_from_module(Residual(), (PICTURE,)).graph
        assert [(op.kind.split(".")[1], op.module) for op in graph.ops] == [
            ("conv2d", "block.0"), ("batch_norm", "block.1"), ("relu", "block.2"), ("add", ""),
            ("conv2d", "block.0"), ("batch_norm", "block.1"), ("relu", "block.2"), ("add", ""),
            ("adaptive_avg_pool2d", "head.0"), ("flatten", "head.1"), ("dropout", "head.2"), ("linear", "head.3"),
        ]  # fmt: skip

    def test_inside_blocks_without_gradients(self) -> None:
        graph = program_of("grad_blocks")[1].graph
        assert [op.module for op in graph.ops if op.kind == "aten.linear.default"] == ["first", "second"]

    def test_marks_of_a_second_call_are_left_out(self) -> None:
        exported = torch.export.export(nn.Sequential(nn.ReLU()), (X,))
        (relu,) = (node for node in exported.graph.nodes if node.op == "call_function")
        relu.meta["nn_module_stack"] = {"": ("", "Sequential"), "block@1": ("block@1.0", "ReLU")}
        assert [op.module for op in program_from_exported(exported, "net").graph.ops] == ["block.0"]

    def test_on_torchs_way_out_of_in_place_writes(self) -> None:
        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

            def forward(self, x: Tensor) -> Tensor:
                for layer in self.layers:
                    x = layer(x)
                    x[0] = 1
                return x

        graph = program_from_module(Module(), (X,)).graph
        assert [op.module for op in graph.ops if op.kind == "aten.linear.default"] == ["layers.0", "layers.1"]


class TestOrder:
    def test_assertions_are_dropped(self) -> None:
        def checked(x: Tensor) -> Tensor:
            torch._assert_async((x == x).all())
            return x + 1

        assert [op.kind for op in traced(checked).graph.ops][-1] == "aten.add.Tensor"
        assert not [op for op in traced(checked).graph.ops if "assert" in op.kind]

    def test_so_are_numbers_that_only_assertions_read(self) -> None:
        assert [op.kind for op in traced(checked).graph.ops] == ["aten.argmax.default", "aten.add.Tensor"]

    def test_the_same_bytes_again(self) -> None:
        module = Residual()
        one, other = (graph_to_dict(program_from_module(module, (PICTURE,)).graph) for _ in range(2))
        assert one == other


def test_an_operator_between_numbers() -> None:
    with pytest.raises(InputError, match="model 'Function' has shapes that follow from what it computes"):
        traced(lambda x: x.new_zeros((x + torch.rand_like(x)).max().long().item() + 1))


def test_a_dtype_without_a_size() -> None:
    with pytest.raises(InputError, match=r"tensor '.*' has the unknown dtype 'bits8'; known: bool, "):
        traced(lambda x: x.new_empty(4, dtype=torch.bits8))


def test_state_that_is_no_tensor() -> None:
    exported = torch.export.export(nn.Linear(4, 4), (X,))
    exported.state_dict["weight"] = 3
    with pytest.raises(InputError) as error:
        program_from_exported(exported, "net", nn.Linear(4, 4))
    assert str(error.value) == "model 'net' has the state 'weight', a int; only tensors fit"


@pytest.mark.parametrize(
    ("conv", "sizes", "padding"),
    [
        (nn.Conv2d(4, 8, (3, 5), padding="same", dilation=(2, 1)), (9, 9), (2, 2)),
        (nn.Conv2d(4, 8, 3, stride=2, padding="valid", groups=2), (9, 9), (0, 0)),
        (nn.Conv1d(4, 8, 7, padding="same", bias=False), (12,), (3,)),
        (nn.Conv3d(4, 8, 3, padding="same"), (5, 4, 3), (1, 1, 1)),
        (nn.Conv2d(4, 8, 4, padding="same"), (9, 9), "same"),  # more zeros behind than before
    ],
)
def test_a_convolution_is_padded_by_numbers(
    conv: nn.Module, sizes: tuple[int, ...], padding: tuple[int, ...] | str
) -> None:
    x = torch.randn(1, 4, *sizes)
    program = program_from_module(conv.eval(), (x,))
    (op,) = program.graph.ops
    assert op.attrs["padding"] == padding
    assert op.kind.endswith(".padding" if padding == "same" else ".default")
    assert torch.equal(program.run(x), conv(x))


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(3, generator=self.own)


def test_a_generator_of_its_own_is_refused() -> None:
    with pytest.raises(InputError) as error:
        program_from_module(Draws(), (torch.ones(3),), name="net")
    assert str(error.value) == (
        "model 'net' draws from a torch.Generator of its own ('rand'), whose state no graph keeps between calls; draw "
        "from PyTorch's own numbers (leave generator= out), or pass the drawn tensor in as an argument"
    )


class Adjacent(nn.Module):
    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return self.table @ x


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_weights_are_imported_where_their_memory_is_known() -> None:
    x, table = torch.ones(4, 3), torch.eye(4)
    program = program_from_module(Adjacent(table.to_sparse()), (x,))
    assert torch.equal(program.run(x), x)
    with pytest.raises(InputError, match=r"'table' in the layout sparse_csr, .* as table.to_dense\(\), or as "):
        program_from_module(Adjacent(table.to_sparse_csr()), (x,))
    with pytest.raises(InputError, match=r"'input' in the layout sparse_coo, .*; give it as input.to_dense\(\)$"):
        program_from_module(nn.Linear(4, 2), (), {"input": table.to_sparse()})
