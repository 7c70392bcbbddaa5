"""WeightFormat: bytes of the elements of a tensor, in plain types and in formats that share scales in groups.

::

    q4_K    256 elements share 16 bytes of scales     4 bits · 256 / 8 + 16 = 144 bytes a group
    FP8     128 · 128 elements share a float32        8 bits · 16384 / 8 + 4 = 16388 bytes a group

Sources: ggml's `ggml-common.h` (blocks of .gguf); OCP Microscaling Formats 1.0 (MXFP4); Frantar et al., GPTQ,
ICLR 2023; Lin et al., AWQ, MLSys 2024; Dettmers et al., QLoRA, NeurIPS 2023 (NF4, scales that are quantised in turn).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from typing import Literal

from graphs.common.brief import Brief
from graphs.common.checks import check_fields, integer
from graphs.common.errors import InputError, nearest

ROW = 0  # in a group: as many elements as the axis has

Kind = Literal["float", "integer"]


@dataclass(frozen=True)
class WeightFormat(Brief):
    """Storage of a tensor's elements.

    Raises:
        InputError: for a number below its least.
    """

    name: str  # as in files: "bfloat16", "q4_K", "awq 4 bits, groups of 128"
    bits: float  # of an element, without what its group shares
    group: tuple[int, ...] = ()  # elements that share scales, along the last axes; `ROW` for a whole axis; () for none
    group_bytes: float = 0.0  # scales, offsets and high bits of a group
    tensor_bytes: int = 0  # scales of the tensor, or of each expert's part of it
    kind: Kind = "integer"  # whether elements are floating-point numbers

    def __post_init__(self) -> None:
        check_fields(self, f"the format '{self.name}'")
        if not 0 < self.bits <= 64 or self.group_bytes < 0:
            raise InputError(
                f"the format '{self.name}' has {self.bits:g} bits an element and {self.group_bytes:g} bytes a group; "
                "give from above 0 to 64 bits, and 0 or more bytes"
            )
        integer(self.tensor_bytes, f"the format '{self.name}': tensor_bytes")
        for size in self.group:
            integer(size, f"the format '{self.name}': group")

    def bytes_of(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor of this shape; a group that is not full has scales of its own."""
        total = Fraction(self.bits) * prod(shape) / 8
        if self.group:
            axes = (*shape[: -len(self.group)], *self._groups(shape))
            total += Fraction(self.group_bytes) * prod(axes)
        tensors = prod(shape[:-2])  # experts in one tensor have scales each
        return ceil(total + self.tensor_bytes * tensors)

    def _groups(self, shape: Sequence[int]) -> list[int]:
        own = shape[-len(self.group) :]
        return [1 if size == ROW else -(-axis // size) for axis, size in zip(own, self.group[-len(own) :], strict=True)]


def _float(name: str, bits: int) -> WeightFormat:
    return WeightFormat(name, bits, kind="float")


def _block(name: str, bits: int, elements: int, shared_bytes: int, kind: Kind = "integer") -> WeightFormat:
    return WeightFormat(name, bits, (elements,), shared_bytes, kind=kind)


PLAIN = (
    *(_float(name, bits) for name, bits in (("float64", 64), ("float32", 32), ("float16", 16), ("bfloat16", 16))),
    *(_float(name, 8) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")),
    *(WeightFormat(name, bits) for name, bits in (("int64", 64), ("int32", 32), ("int16", 16), ("int8", 8))),
    *(WeightFormat(name, bits) for name, bits in (("uint64", 64), ("uint32", 32), ("uint16", 16), ("uint8", 8))),
    WeightFormat("bool", 8),
)
"""Types of single elements, by PyTorch's names."""

BLOCKS = (
    _block("q1_0", 1, 128, 2),
    _block("q4_0", 4, 32, 2),
    _block("q4_1", 4, 32, 4),
    _block("q5_0", 5, 32, 2),
    _block("q5_1", 5, 32, 4),
    _block("q8_0", 8, 32, 2),
    _block("q8_1", 8, 32, 4),
    _block("q2_K", 2, 256, 20),
    _block("q3_K", 3, 256, 14),
    _block("q4_K", 4, 256, 16),
    _block("q5_K", 5, 256, 16),
    _block("q6_K", 6, 256, 18),
    _block("q8_K", 8, 256, 36),
    _block("iq1_s", 1, 256, 18),
    _block("iq1_m", 1, 256, 24),
    _block("iq2_xxs", 2, 256, 2),
    _block("iq2_xs", 2, 256, 10),
    _block("iq2_s", 2, 256, 18),
    _block("iq3_xxs", 3, 256, 2),
    _block("iq3_s", 3, 256, 14),
    _block("iq4_nl", 4, 32, 2),
    _block("iq4_xs", 4, 256, 8),
    _block("tq1_0", 1, 256, 22),
    _block("tq2_0", 2, 256, 2),
    _block("mxfp4", 4, 32, 1, "float"),
    _block("nvfp4", 4, 16, 1, "float"),
)
"""Formats of blocks along the last axis, by ggml's names."""

OTHERS = (
    WeightFormat("float8_e4m3fn blocks of 128x128", 8, (128, 128), 4, kind="float"),
    WeightFormat("float8_e4m3fn rows", 8, (ROW,), 4, kind="float"),
    WeightFormat("float8_e4m3fn tensors", 8, tensor_bytes=4, kind="float"),
    WeightFormat("int8 rows", 8, (ROW,), 4),
    WeightFormat("nf4", 4, (64,), 4),
)

FORMATS: Mapping[str, WeightFormat] = {each.name: each for each in (*PLAIN, *BLOCKS, *OTHERS)}
"""Formats by name."""

ALSO = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn tensors",
    "int8": "int8 rows",
    "fp4": "nvfp4",
}
"""Other names of formats, as files and command lines write them."""


def format_named(name: str, where: str = "the format") -> WeightFormat:
    """Return a format by its name, large or small letters; ``awq`` and ``gptq`` have groups of 128 and 4 bits.

    Raises:
        InputError: for a name that no format has.
    """
    known = {each.casefold(): value for each, value in FORMATS.items()}
    known |= {other: FORMATS[each] for other, each in ALSO.items()}
    known |= {"awq": grouped_integers("awq", 4, 128), "gptq": grouped_integers("gptq", 4, 128)}
    found = known.get(name.casefold().removeprefix("torch."))
    if found is None:
        raise InputError(
            f"{where} is '{name}', which is not known; write for example bf16, q4_K or fp8{nearest(name, known)}"
        )
    return found


def grouped_integers(method: str, bits: int, group: int, zeros: bool = True) -> WeightFormat:
    """Return the format of integers in groups along a row, each with a float16 scale and, if asked, an offset.

    ``group`` is the number of elements that share them; `ROW` for a whole row.
    """
    shared = 2 + (bits / 8 if zeros else 0)
    of = f"groups of {group}" if group else "rows"
    return WeightFormat(f"{method} {bits} bits, {of}", bits, (group,), shared)
