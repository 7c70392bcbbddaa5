"""What the time of an operator follows from, counted by hand."""

from math import log2

import pytest

from costmodels.learning.features import FAMILIES, TERMS, Features, features_of, is_known, pass_bytes
from costmodels.memory.passes import inference_bytes
from costmodels.operators.keys import parse_key
from tests.costmodels.sketches import sketch

CONVOLUTION = (
    "aten.conv2d.default(float32[2,16,8,8], float32[32,8,3,3], float32[32])->float32[2,32,8,8]"
    '{"groups":2,"padding":[1,1]}'
)
PRODUCT = "aten.linear.default(float32[4,64], float32[128,64])->float32[4,128]"


def of(key: str, network_bytes: float = 2.0**30) -> Features:
    return features_of(parse_key(key), network_bytes)


def terms(key: str) -> dict[str, float]:
    return {name: amount for name, amount in zip(TERMS, of(key).terms, strict=True) if amount}


def test_a_convolution() -> None:
    assert terms(CONVOLUTION) == {
        "calls": 1,
        "flop": 2 * 8 * 9 * 2 * 32 * 64,  # each of 2 * 32 * 64 results sums 8 channels in windows of 9
        "bytes": 4 * (2 * 16 * 64 + 2 * 32 * 64),
        "state bytes": 4 * (32 * 8 * 9 + 32),
    }
    found = of(CONVOLUTION)
    assert found.family == "convolution"
    assert found.place[:5] == pytest.approx((7.0, 1.0, 3.0, 4.0, log2(9)))  # 2 * 64 positions, batch, 8 to 16 channels


def test_a_product() -> None:
    assert terms(PRODUCT) == {
        "calls": 1,
        "flop": 2 * 4 * 64 * 128,
        "bytes": 4 * (4 * 64 + 4 * 128),
        "state bytes": 4 * 64 * 128,
    }
    added = "aten.addmm.default(float32[128], float32[4,64], float32[64,128])->float32[4,128]"
    assert (of(PRODUCT).family, of(added).family) == ("product", "product")
    assert of(PRODUCT).place != of(added).place  # the weights lie the other way round
    assert terms(added)["state bytes"] == 4 * 64 * 128


def test_where_state_comes_from_matters_where_it_is_hardly_used() -> None:
    def far(rows: int, n_bytes: float) -> float:
        return of(f"aten.mm.default(float32[{rows},64], float32[64,64])->float32[{rows},64]", n_bytes).place[-1]

    assert far(1, 2.0**22) == far(1, 1000) == 0
    assert far(1, 2.0**28) == 6
    assert far(16, 2.0**28) == 3  # half, as log2(16) / 8 is
    assert far(256, 2.0**28) == far(1000, 2.0**28) == 0
    assert far(1, 2.0**40) == 8


def test_a_sequence_reads_its_state_again_at_each_step() -> None:
    key = (
        "aten.lstm.input(float32[1,10,16], float32[1,1,32], float32[1,1,32], float32[128,16], float32[128,32], "
        'float32[128], float32[128])->float32[1,10,32], float32[1,1,32], float32[1,1,32]{"batch_first":true}'
    )
    found = terms(key)
    assert found["bytes read again"] == 9 * 4 * 128 * 32
    assert found["state bytes"] == 4 * (128 * 16 + 128 * 32 + 2 * 128)
    assert found["bytes"] == 4 * (160 + 2 * 32 + 320 + 2 * 32)
    assert of(key).family == "aten.lstm"


@pytest.mark.parametrize(
    "key",
    [
        'aten.view.default(float32[4,4])->float32[16]{"size":[16]}',
        'aten.reshape.default(float32[4,4])->float32[16]{"shape":[16]}',
        "aten.transpose.int(float32[4,4]<slice)->float32[4,4]",
        'aten.dropout.default(float32[4])->float32[4]{"p":0.5,"train":false}',
        'aten.to.dtype(float32[4])->float32[4]{"dtype":"float32"}',
    ],
)
def test_views_are_calls_and_nothing_else(key: str) -> None:
    assert terms(key) == {"calls": 1}


def test_what_copies_is_no_view() -> None:
    scattered = 'aten.reshape.default(float32[4,4]<transpose)->float32[16]{"shape":[16]}'
    assert terms(scattered) == {"calls": 1, "bytes": 128, "scattered bytes": 64}
    assert terms('aten.to.dtype(float32[4])->float64[4]{"dtype":"float64"}') == {"calls": 1, "bytes": 16 + 32}


def test_every_key_has_finite_features() -> None:
    odd = [
        "aten.arange.default()->int64[4]",
        "aten.add.Tensor(float32[], float32[0,3])->float32[0,3]",
        "mine.trick.default()->",
        'aten.cat.default(float32[2,3], float32[2,3])->float32[4,3]{"dim":0}',
        'aten.conv1d.default(float32[1,4,9], float32[4,1,3])->float32[1,4,7]{"groups":4}',
        "aten.conv2d.default(float32[4,9,9], float32[4,4,3,3])->float32[4,7,7]",
        "aten.linear.default(float32[5], float32[5])->float32[]",
        "aten.matmul.default(float32[5], float32[5])->float32[]",
        "aten.baddbmm.default(float32[1], float32[2,3,4], float32[2,4,5])->float32[2,3,5]",
        'aten.softmax.int(float32[])->float32[]{"dim":0}',
        "aten.mm.default(float32[0,3], float32[3,0])->float32[0,0]",
        'aten.max_pool2d.default(float32[1,4,9,9])->float32[1,4,4,4]{"kernel_size":2}',
    ]
    for key in odd:
        found = of(key)
        assert len(found.terms) == len(TERMS)
        assert all(0 <= amount < 1e18 for amount in found.terms)
        assert all(-100 < where < 100 for where in found.place)


def test_which_kinds_can_be_priced() -> None:
    assert is_known(parse_key("aten.erf.default(float32[4])->float32[4]"))
    assert is_known(parse_key("aten.t.default(float32[4,2])->float32[2,4]"))
    assert not is_known(parse_key("mine.trick.default(float32[4])->float32[4]"))
    assert "convolution" in FAMILIES
    assert "aten.relu" not in FAMILIES


def test_a_pass_touches_state_activations_and_the_rows_of_a_table_that_are_read() -> None:
    graph = sketch(
        {"x": ((3,), "int64"), "w1": (1000, 8), "w2": (8, 8), "a": (3, 8), "c": (3, 8)},
        [("aten.embedding.default", "w1 x", "a"), ("aten.linear.default", "a w2", "c")],
        "c",
    )
    rows, weights = 4 * 3 * 8, 4 * 8 * 8
    assert pass_bytes(graph) == rows + weights + inference_bytes(graph)
