"""By how much two tensors differ: bit by bit, or within the tolerance for devices of different kinds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from costmodels.cluster.cluster import Device

TOLERANCE: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float64: 1e-10, torch.float32: 2e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}
)
"""By how much devices of different kinds may differ, as a share of the largest element; complex numbers as their parts.

They add up in another order. After a deep network, float64 and float32 differ by some thousand units in the last place;
GPUs also multiply float32 in convolutions with the 10-bit mantissa of TensorFloat-32. Narrow floats are rounded after
every operator, so that they differ by some units in the last place. Integers must be equal.
"""


@dataclass(frozen=True, slots=True)
class Deviation:
    """The difference of a tensor from the expected one."""

    n_different: int  # elements that differ
    n_elements: int  # all elements
    by: float  # the largest difference; NaN where one of two is no number
    share: float  # the same as a share of the largest element
    form: str = ""  # shape and dtype, if these are wrong; else empty

    def within(self, tolerance: float, dtype: torch.dtype) -> bool:
        """Return whether all elements are within a tolerance, as `deviation` has it; False where one is no number."""
        return self.share <= tolerance or self.by <= torch.finfo(dtype).tiny

    def __str__(self) -> str:
        if self.form:
            return self.form
        return (
            f"{self.n_different:,} of {self.n_elements:,} elements, by {self.by:.3g} at most "
            f"({self.share:.2g} of the largest)"
        )


def round_alike(devices: Sequence[Device], training: bool) -> bool:
    """Return whether all devices round alike, and as the reference model; training has no quick kernels.

    A GPU does not even round as it did before: libraries choose algorithms by the free memory, and some kernels add up
    in the order in which their threads end.
    """
    exact = training or not any(device.quick for device in devices)
    return exact and all(device.cuda is None for device in devices) and len({each.rounding for each in devices}) <= 1


def deviation(
    expected: torch.Tensor, got: torch.Tensor, tolerance: float = 0.0, any_nan: bool = True
) -> Deviation | None:
    """Return how two tensors differ, or None if they do not.

    Without a tolerance every bit counts; with ``any_nan`` any NaN equals any other. The tolerance is for floating-point
    numbers, as a share of the largest finite element that is expected; differences below the smallest normal number
    are none then.
    """
    if (expected.shape, expected.dtype) != (got.shape, got.dtype):
        n_elements = expected.numel()
        return Deviation(n_elements, n_elements, float("nan"), float("nan"), f"{form_of(got)}, not {form_of(expected)}")
    a, b = map(_line, (expected, got))
    different = (_bits(a) != _bits(b)).any(dim=1)
    if any_nan:
        different &= ~((a != a) & (b != b))
    wide = torch.complex128 if a.is_complex() else torch.float64
    size = a.to(wide).abs()
    largest = float(size[size.isfinite()].max()) if size.isfinite().any() else 0.0
    by = (a.to(wide) - b.to(wide)).abs()
    if tolerance and (a.is_floating_point() or a.is_complex()):
        rounding = max(tolerance * largest, torch.finfo(a.dtype).tiny)  # some kernels take what is smaller for zero
        different &= ~(by <= rounding)  # also where one is no number
    if not different.any():
        return None
    most = float(by[different].max())
    share = most / largest if largest else float("inf")
    return Deviation(int(different.sum()), a.numel(), most, share if most else 0.0)


def _line(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in one row on the CPU; zeros of a sparse tensor too."""
    tensor = tensor.detach().cpu()
    return (tensor.to_dense() if tensor.is_sparse else tensor).resolve_conj().resolve_neg().reshape(-1)


def _bits(line: torch.Tensor) -> torch.Tensor:
    """Return [n_elements, bytes of one element]."""
    return line.reshape(-1, 1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def form_of(tensor: torch.Tensor) -> str:
    """Return shape and dtype, for people."""
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
