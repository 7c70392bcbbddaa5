"""FLOP and bytes: by hand, and against the counter that comes with torch."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from costmodels.operators.flops import work_of
from costmodels.operators.formulas import FORMULAS, FUNCTION, READS
from costmodels.operators.views import VIEW_KINDS, operation
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Attr
from tests.costmodels.sketches import sketch


def counted(kind: str, reads: dict[str, Any], writes: dict[str, Any], attrs: dict[str, Attr] | None = None) -> Any:
    """(FLOP, bytes) of one operator."""
    work = work_of(sketch(reads | writes, [(kind, " ".join(reads), " ".join(writes), attrs or {})]))
    assert work.guessed == ()
    return work.flop[0], work.n_bytes[0]


@pytest.mark.parametrize(
    ("kind", "reads", "writes", "attrs", "flop"),
    [
        # 2 * (1 * 8 * 5 * 5 outputs) * (3 channels * 3 * 3 window)
        ("conv2d", {"x": (1, 3, 7, 7), "w": (8, 3, 3, 3), "w2": (8,)}, {"a": (1, 8, 5, 5)}, {}, 2 * 200 * 27),
        # two groups: each output sees 2 of 4 channels
        ("conv2d", {"x": (1, 4, 7, 7), "w": (8, 2, 3, 3)}, {"a": (1, 8, 5, 5)}, {"groups": 2}, 2 * 200 * 18),
        ("conv1d", {"x": (2, 3, 9), "w": (4, 3, 5)}, {"a": (2, 4, 5)}, {}, 2 * 40 * 15),
        # each of 4 * 6 * 6 inputs is spread over 5 channels and a 3 * 3 window
        ("conv_transpose2d", {"x": (1, 4, 6, 6), "w": (4, 5, 3, 3)}, {"a": (1, 5, 8, 8)}, {}, 2 * 144 * 45),
        (
            "convolution",
            {"x": (1, 4, 6, 6), "w": (4, 5, 3, 3)},
            {"a": (1, 5, 8, 8)},
            {"transposed": True},
            2 * 144 * 45,
        ),
        ("linear", {"x": (5, 3), "w": (7, 3), "w2": (7,)}, {"a": (5, 7)}, {}, 2 * 5 * 7 * 3),
        ("matmul", {"x": (2, 5, 3), "x2": (2, 3, 7)}, {"a": (2, 5, 7)}, {}, 2 * 2 * 5 * 7 * 3),
        ("dot", {"x": (9,), "x2": (9,)}, {"a": ()}, {}, 18),
        ("inner", {"x": (), "x2": (5, 3)}, {"a": (5, 3)}, {}, 2 * 5 * 3),
        ("addmm", {"w": (7,), "x": (5, 3), "w2": (3, 7)}, {"a": (5, 7)}, {}, 2 * 5 * 7 * 3),
        # 2 batches * 4 heads * 5 queries * 6 keys, width 8 for the scores and 3 for the values
        (
            "scaled_dot_product_attention",
            {"x": (2, 4, 5, 8), "x2": (2, 4, 6, 8), "x3": (2, 4, 6, 3)},
            {"a": (2, 4, 5, 3)},
            {},
            2 * 240 * (8 + 3),
        ),
        # a random number and a product for each of 2 * 4 * 5 * 6 scores besides
        (
            "scaled_dot_product_attention",
            {"x": (2, 4, 5, 8), "x2": (2, 4, 6, 8), "x3": (2, 4, 6, 3)},
            {"a": (2, 4, 5, 3)},
            {"dropout_p": 0.1},
            2 * 240 * (8 + 3) + 240 * (FUNCTION + 1),
        ),
        ("dropout", {"x": (4, 5)}, {"a": (4, 5)}, {"p": 0.5, "train": True}, 20 * (FUNCTION + 1)),
        ("feature_dropout", {"x": (4, 5)}, {"a": (4, 5)}, {"p": 0.5, "train": False}, 0),  # a view
        ("alpha_dropout", {"x": (4, 5)}, {"a": (4, 5)}, {"p": 0, "train": True}, 0),
        ("rand_like", {"x": (4, 5)}, {"a": (4, 5)}, {}, 20 * FUNCTION),
        ("relu", {"x": (4, 5)}, {"a": (4, 5)}, {}, 20),
        ("add", {"x": (4, 1), "x2": (1, 5)}, {"a": (4, 5)}, {}, 20),
        ("gelu", {"x": (4, 5)}, {"a": (4, 5)}, {}, 20 * FUNCTION),
        ("softmax", {"x": (4, 5)}, {"a": (4, 5)}, {}, 20 * FUNCTION),
        ("batch_norm", {"x": (1, 2, 3, 3), "w": (2,), "b": (2,)}, {"a": (1, 2, 3, 3)}, {}, 18 * 4),
        ("layer_norm", {"x": (4, 5), "w": (5,)}, {"a": (4, 5)}, {}, 20 * 8),
        ("max_pool2d", {"x": (1, 2, 6, 6)}, {"a": (1, 2, 3, 3)}, {"kernel_size": (2, 3)}, 18 * 6),
        ("max_pool2d", {"x": (1, 2, 6, 6)}, {"a": (1, 2, 3, 3)}, {"kernel_size": (2,)}, 18 * 4),
        ("avg_pool3d", {"x": (1, 1, 6, 4, 4)}, {"a": (1, 1, 2, 4, 4)}, {"kernel_size": 3}, 32 * 27),
        ("mean", {"x": (4, 5)}, {"a": (4, 1)}, {}, 20),
        ("sort", {"x": (2, 4)}, {"a": (2, 4), "c": (2, 4)}, {}, 8 * 3),  # log2(8) = 3
        ("fft_rfft", {"x": (8,)}, {"a": ((5,), "complex64")}, {}, 5 * 8 * 3),
        ("cat", {"x": (4, 5), "x2": (4, 5)}, {"a": (8, 5)}, {}, 0),
        ("bilinear", {"x": (5, 3), "x2": (5, 4), "w": (2, 3, 4), "w2": (2,)}, {"a": (5, 2)}, {}, 2 * 5 * 2 * 3 * 4),
        ("einsum", {"x": (3, 4), "x2": (4, 5)}, {"a": (3, 5)}, {"equation": "ij, jk -> ik"}, 2 * 3 * 4 * 5),
        ("einsum", {"x": (2, 3, 4), "x2": (2, 4, 5)}, {"a": (2, 3, 5)}, {"equation": "...ij,...jk"}, 2 * 2 * 3 * 4 * 5),
        ("einsum", {"x": (6,), "x2": (2, 6), "x3": (6,)}, {"a": (2,)}, {"equation": "i,...i,i->..."}, 3 * 12),
        # a weight [out, in] and its lengths: squares, sums, and the quotient
        ("_weight_norm", {"w": (7, 3), "w2": (7, 1)}, {"a": (7, 3)}, {}, 3 * 21),
        ("linalg_norm", {"x": (4, 5)}, {"a": (4,)}, {}, 3 * 20),
        # a window of three elements for each of 2 * 3 that are written; where they were is found on the way
        (
            "max_pool1d_with_indices",
            {"x": (1, 2, 9)},
            {"a": (1, 2, 3), "a2": ((1, 2, 3), "int64")},
            {"kernel_size": (3,)},
            6 * 3,
        ),
        ("max_unpool2d", {"x": (1, 2, 3, 3), "x2": ((1, 2, 3, 3), "int64")}, {"a": (1, 2, 6, 6)}, {}, 0),
        ("binary_cross_entropy", {"x": (4, 5), "x2": (4, 5)}, {"a": ()}, {}, FUNCTION * 20),
        ("smooth_l1_loss", {"x": (4, 5), "x2": (4, 5)}, {"a": ()}, {}, 20),
    ],
)
def test_flop_by_hand(
    kind: str, reads: dict[str, Any], writes: dict[str, Any], attrs: dict[str, Attr], flop: float
) -> None:
    assert counted(f"aten.{kind}.default", reads, writes, attrs)[0] == flop


@pytest.mark.parametrize(
    ("kind", "reads", "writes", "attrs", "n_bytes"),
    [
        ("relu", {"x": (4, 5)}, {"a": (4, 5)}, {}, 4 * (20 + 20)),
        ("mul", {"x": ((4, 5), "float64")}, {"a": ((4, 5), "float64")}, {}, 8 * (20 + 20)),
        ("linear", {"x": (5, 3), "w": (7, 3)}, {"a": (5, 7)}, {}, 4 * (15 + 21 + 35)),
        # two rows of a table of a thousand, and two indices of 8 bytes
        ("embedding", {"w": (1000, 5), "x": ((2,), "int64")}, {"a": (2, 5)}, {}, 4 * (10 + 10) + 16),
        ("index_select", {"x": (1000, 5), "x2": ((2,), "int64")}, {"a": (2, 5)}, {}, 4 * (10 + 10) + 16),
        # three rows of width 5 are added to one bag
        ("embedding_bag", {"w": (1000, 5), "x": ((3,), "int64")}, {"a": (1, 5)}, {}, 4 * (15 + 5) + 24),
        ("zeros_like", {"x": (4, 5)}, {"a": (4, 5)}, {}, 4 * 20),
        ("randn_like", {"x": (4, 5)}, {"a": (4, 5)}, {}, 4 * 20),
        ("arange", {}, {"a": ((6,), "int64")}, {}, 48),
    ],
)
def test_bytes_by_hand(
    kind: str, reads: dict[str, Any], writes: dict[str, Any], attrs: dict[str, Attr], n_bytes: float
) -> None:
    assert counted(f"aten.{kind}.default", reads, writes, attrs)[1] == n_bytes


def test_a_tensor_that_is_read_twice_moves_once() -> None:
    work = work_of(sketch({"x": (5,), "a": (5,)}, [("aten.mul.Tensor", "x x", "a")]))
    assert work.n_bytes.tolist() == [4 * (5 + 5)]


def test_a_stretched_tensor_moves_no_more_than_it_shows() -> None:
    work = work_of(
        sketch(
            {"x": (1, 5), "a": (100, 5), "c": (100, 5)},
            [("aten.expand.default", "x", "a"), ("aten.neg.default", "a", "c")],
        )
    )
    assert work.n_bytes.tolist() == [0, 4 * (5 + 500)]


def test_views_are_free() -> None:
    work = work_of(sketch({"x": (4, 5), "a": (5, 4)}, [("aten.transpose.int", "x", "a")]))
    assert (work.flop.tolist(), work.n_bytes.tolist(), work.guessed) == ([0], [0], ())


def test_a_recurrent_layer_reads_its_hidden_weights_at_each_step() -> None:
    # 6 steps of batch 2, input width 3, hidden width 4: weights 16 x 3 and 16 x 4 for the four gates of an LSTM
    shapes = {"x": (6, 2, 3), "x1": (1, 2, 4), "x2": (1, 2, 4), "w1": (16, 3), "w2": (16, 4), "w3": (16,), "w4": (16,)}
    writes = {"a": (6, 2, 4), "c": (1, 2, 4), "d": (1, 2, 4)}
    flop, n_bytes = counted("aten.lstm.input", shapes, writes)
    assert flop == 2 * (6 * 2) * (48 + 64) + FUNCTION * (48 + 8 + 8)
    once = 36 + 8 + 8 + 48 + 64 + 16 + 16 + (48 + 8 + 8)
    assert n_bytes == 4 * (once + 5 * 64)
    assert counted("aten.lstm.input", shapes, writes, {"batch_first": True})[1] == 4 * (once + 1 * 64)


def test_a_recurrent_layer_without_batch() -> None:
    shapes = {"x": (6, 3), "x1": (1, 4), "w1": (4, 3), "w2": (4, 4)}  # 6 steps
    flop, n_bytes = counted("aten.rnn_tanh.input", shapes, {"a": (6, 4)}, {"batch_first": True})
    assert flop == 2 * 6 * (12 + 16) + FUNCTION * 24
    assert n_bytes == 4 * (18 + 4 + 12 + 16 + 24 + 5 * 16)


def test_one_step_of_a_recurrent_layer() -> None:
    shapes = {"x": (2, 3), "x1": (2, 4), "x2": (2, 4), "w1": (16, 3), "w2": (16, 4), "w3": (16,), "w4": (16,)}
    flop, n_bytes = counted("aten.lstm_cell.default", shapes, {"a": (2, 4), "c": (2, 4)})
    assert flop == 2 * 2 * (48 + 64) + FUNCTION * 16
    assert n_bytes == 4 * (6 + 8 + 8 + 48 + 64 + 16 + 16 + 16)


def test_an_unknown_kind_counts_something_and_is_reported_once() -> None:
    graph = sketch(
        {"x": (4, 5), "a": (4, 5), "c": (2,), "d": (4, 5)},
        [
            ("my.op.default", "x", "a"),
            ("aten.nobody_knows.default", "a", "c"),
            ("my.op.default", "a", "d"),
        ],
        "c d",
    )
    work = work_of(graph)
    assert work.guessed == ("my.op.default", "aten.nobody_knows.default")
    assert work.flop.tolist() == [20, 2, 20]
    assert work.n_bytes.tolist() == [4 * 40, 4 * 22, 4 * 40]


@pytest.mark.parametrize(
    ("inputs", "output", "dtype"),
    [
        (("float32", "float16"), "float32", "float32"),
        (("int64", "bfloat16"), "float32", "bfloat16"),
        (("int64",), "float64", "float64"),
        (("int64",), "bool", "bool"),
        ((), "int64", "int64"),
        (("complex64", "float32"), "complex64", "complex64"),
    ],
)
def test_the_dtype_that_an_operator_computes_in(inputs: tuple[str, ...], output: str, dtype: str) -> None:
    shapes = {f"x{i}": ((2,), each) for i, each in enumerate(inputs)} | {"a": ((2,), output)}
    reads = " ".join(name for name in shapes if name != "a")
    assert work_of(sketch(shapes, [("aten.where.self", reads, "a")])).dtype == (dtype,)


@pytest.mark.parametrize(
    ("kind", "reads", "told"),
    [
        ("conv2d", {"x": (1, 3, 7, 7)}, "[1, 3, 7, 7]"),
        ("linear", {}, "nothing"),
        ("mm", {"x": (), "w": (3,)}, "[], [3]"),
    ],
)
def test_an_operator_made_by_hand_that_cannot_be_is_told(kind: str, reads: dict[str, Any], told: str) -> None:
    graph = sketch({**reads, "a": (3,)}, [(f"aten.{kind}.default", " ".join(reads), "a", {})])
    with pytest.raises(InputError) as error:
        work_of(graph)
    assert str(error.value) == (
        f"operator 'op0' (aten.{kind}.default) reads {told}, which is not what its kind computes with; "
        "import the model again"
    )


def test_any_kind_made_by_hand_is_counted_or_told() -> None:
    kinds = [*(f"aten.{name.removeprefix('aten.')}" for name in FORMULAS), *VIEW_KINDS, "aten.to", "aten.dropout"]
    for kind in kinds:
        for reads in ({}, {"x": ()}, {"x": (3,)}, {"x": (3,), "w": (0,), "w2": (3,)}):
            for writes in ({}, {"a": (3,)}, {"a": (3,), "c": (2,)}):
                graph = sketch(reads | writes, [(f"{kind}.default", " ".join(reads), " ".join(writes), {})])
                with suppress(InputError):
                    assert work_of(graph).flop[0] >= 0


def test_every_formula_is_for_a_kind_without_overload() -> None:
    assert all(operation(kind) == kind for kind in FORMULAS)
    assert READS.keys() <= FORMULAS.keys()


def test_a_view_needs_no_formula() -> None:
    assert not VIEW_KINDS & FORMULAS.keys()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 10, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return nn.functional.scaled_dot_product_attention(q, k, v)


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2),
    nn.Conv2d(8, 12, 3, groups=4, padding=1, bias=False),
    nn.Conv2d(12, 12, 5, groups=12, dilation=2),
    nn.ConvTranspose2d(12, 6, 3, stride=2, groups=2),
)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (CONVOLUTIONS, (2, 3, 33, 31)),
        (nn.Conv1d(3, 4, 5), (2, 3, 20)),
        (nn.Conv3d(3, 4, 3), (1, 3, 6, 7, 8)),
        (nn.Linear(6, 7), (2, 3, 6)),
        (Attention(), (2, 10, 32)),
    ],
)
def test_products_are_counted_as_torch_counts_them(module: nn.Module, shape: tuple[int, ...]) -> None:
    args = (torch.zeros(shape),)
    graph = program_from_module(module, args).graph
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*args)
    assert work_of(graph).flop.sum() == counter.get_total_flops()


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), (1, 3, 8, 8)),
        (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (1, 5, 16)),
        (nn.LSTM(4, 5, 2, bidirectional=True), (3, 2, 4)),
        (nn.GRU(4, 5), (3, 2, 4)),
        (nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(), nn.Upsample(scale_factor=2), nn.PixelShuffle(2)), (1, 4, 8, 8)),
        (nn.LocalResponseNorm(3), (1, 4, 8, 8)),
        (nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 5, 3)), (1, 4, 8)),
        (nn.Sequential(nn.MaxPool3d(2, return_indices=True)), (1, 4, 4, 4, 4)),
        (nn.Sequential(nn.Hardshrink(), nn.Upsample(scale_factor=2, mode="nearest-exact")), (1, 4, 8, 8)),
    ],
)
def test_every_kind_of_common_networks_is_known(module: nn.Module, shape: tuple[int, ...]) -> None:
    work = work_of(program_from_module(module, (torch.zeros(shape),)).graph)
    assert work.guessed == ()
    assert work.flop.sum() > 0
