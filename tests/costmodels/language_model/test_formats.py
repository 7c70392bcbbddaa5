"""Bytes of tensors in formats of every kind."""

import pytest

from costmodels.language_model.formats import FORMATS, ROW, WeightFormat, format_named, grouped_integers
from costmodels.language_model.gguf_header import TYPES
from costmodels.language_model.tensors import WeightTensor
from graphs.common.errors import InputError

BLOCKS = {
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q8_1": (32, 36),
    "q2_K": (256, 84),
    "q3_K": (256, 110),
    "q4_K": (256, 144),
    "q5_K": (256, 176),
    "q6_K": (256, 210),
    "q8_K": (256, 292),
    "iq1_s": (256, 50),
    "iq1_m": (256, 56),
    "iq2_xxs": (256, 66),
    "iq2_xs": (256, 74),
    "iq2_s": (256, 82),
    "iq3_xxs": (256, 98),
    "iq3_s": (256, 110),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
    "tq1_0": (256, 54),
    "tq2_0": (256, 66),
    "mxfp4": (32, 17),
    "nvfp4": (64, 36),
    "q1_0": (128, 18),
}
"""Elements and bytes of a block, as ggml-common.h has them."""


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_have_their_bytes(name: str) -> None:
    elements, size = BLOCKS[name]
    assert FORMATS[name].bytes_of((3, 4 * elements)) == 12 * size


def test_every_type_of_ggml_is_the_packages() -> None:
    constants = pytest.importorskip("gguf.constants")
    sizes = constants.GGML_QUANT_SIZES
    for kind in sizes.keys() - {constants.GGMLQuantizationType.Q8_1}:  # 36 bytes in ggml, 40 here; no file has it
        elements, size = sizes[kind]
        assert FORMATS[TYPES[int(kind)]].bytes_of((5, 8 * elements)) == 40 * size


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("bf16", (4096, 4096), 2 * 4096**2),
        ("float32", (), 4),
        ("fp8", (10, 20), 204),  # a float32 for the tensor
        ("fp8", (8, 10, 20), 8 * 204),  # and for each expert
        ("float8_e4m3fn blocks of 128x128", (7168, 576), 7168 * 576 + 56 * 5 * 4),  # 576 / 128 is 4.5
        ("int8", (100, 64), 100 * 64 + 100 * 4),
        ("awq", (4096, 4096), 4096**2 // 2 + 32 * 4096 * 2 + 32 * 4096 // 2),
        ("Q4_K", (2, 512), 4 * 144),
        ("nf4", (1, 128), 64 + 8),
    ],
)
def test_bytes_by_hand(name: str, shape: tuple[int, ...], size: int) -> None:
    assert format_named(name).bytes_of(shape) == size


def test_integers_without_offsets_in_rows() -> None:
    assert grouped_integers("gptq", 8, ROW, zeros=False).bytes_of((16, 100)) == 1600 + 16 * 2


def test_unknown_formats_and_wrong_numbers_are_named() -> None:
    with pytest.raises(InputError, match=r"the format is 'q4_k_m', which is not known; .* did you mean 'q4_k'"):
        format_named("q4_k_m")
    with pytest.raises(InputError, match="has 0 bits an element"):
        WeightFormat("none", 0)
    with pytest.raises(InputError, match="an axis of the tensor 'w' is 0"):
        WeightTensor("w", (4, 0), FORMATS["float32"], "mixer")
