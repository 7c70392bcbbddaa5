"""oneDNN's own interface, called without PyTorch between.

It is that of oneDNN 3.2 (https://uxlfoundation.github.io/oneDNN, ``dnnl.h``). A primitive computes with tensors of
fixed layouts: it is described, made, given memories for its arguments, and executed as often as one likes.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from importlib import metadata
from types import MappingProxyType
from typing import Any

import torch

from graphs.kernels.float_status import INVALID, clear, raised
from graphs.rewrites.patterns import Step

WHEEL, FILE = "onednn-cpu-gomp", "libdnnl.so.3"
CPU, IN_ORDER, INFERENCE, DIRECT, FLOAT32, ANY = 1, 1, 96, 1, 3, 1
SOURCE, DESTINATION, WEIGHTS, BIAS, SCRATCHPAD = 1, 17, 33, 41, 80  # arguments of a primitive
OTHER = 32768 | 2  # the second operand of a primitive's first post-operation
IMPLEMENTATION, WEIGHTS_LAYOUT, SCRATCHPAD_LAYOUT = 8, 131, 136  # what the description of a primitive can be asked for
PACKS_NOTHING = "gemm"  # what computes "matmul" on processors without AVX-512; it reads a weight as it lies
CALLER_S = 1  # scratchpad of the caller: PyTorch's threads come and go, and oneDNN's own belongs to a thread

BINARY = {"add": 0x1FFF0, "mul": 0x1FFF1}
ACTIVATIONS: dict[str, Callable[[Step], tuple[int, float, float]]] = {
    "relu": lambda _: (0x20, 0.0, 0.0),
    "leaky_relu": lambda step: (0x20, step.scalars[0], 0.0),
    "tanh": lambda _: (0x21, 0.0, 0.0),
    "sigmoid": lambda _: (0x29, 0.0, 0.0),
    "gelu": lambda step: (0x2B if step.algorithm == "tanh" else 0x31, 0.0, 0.0),
    "swish": lambda _: (0x2C, 1.0, 0.0),
    "hardtanh": lambda step: (0x2E, step.scalars[0], step.scalars[1]),
    "hardswish": lambda _: (0x34, 1 / 6, 1 / 2),
}
"""Number and parameters of an activation."""


class _Argument(ctypes.Structure):
    _fields_ = (("number", c_int), ("memory", c_void_p))


class Object(c_void_p):
    """An object of oneDNN, destroyed once nothing refers to it."""

    destroy: Callable[["Object"], int] | None = None

    def __del__(self) -> None:
        if self.value and self.destroy:
            self.destroy(self)


class Library:
    """The functions of oneDNN with an engine and a stream.

    Raises:
        OSError: if the file, or a library that the file needs, cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self._dnnl = ctypes.CDLL(path)
        self.execute = self._dnnl.dnnl_primitive_execute  # lets other threads of Python run meanwhile
        self.execute.argtypes = (c_void_p, c_void_p, c_int, c_void_p)
        self.point = ctypes.PyDLL(path).dnnl_memory_set_data_handle  # too short for that
        self.point.argtypes = (c_void_p, c_void_p)
        self._dnnl.dnnl_memory_desc_get_size.restype = c_size_t
        self._dnnl.dnnl_primitive_desc_query_md.restype = c_void_p
        self.engine = self.make("engine", CPU, c_size_t(0))
        self.stream = self.make("stream", self.engine, IN_ORDER)
        self.use_threads = ctypes.CDLL("libgomp.so.1").omp_set_num_threads

    def make(self, what: str, *arguments: Any, by: str = "") -> Object:
        """Make an object; raise OSError if oneDNN refuses."""
        made = Object()
        self.check(getattr(self._dnnl, f"dnnl_{what}_create{by}")(byref(made), *arguments))
        made.destroy = getattr(self._dnnl, f"dnnl_{'primitive_desc' if 'primitive_desc' in what else what}_destroy")
        return made

    def describe(self, kind: str, *arguments: Any) -> Object:
        """The description of a primitive; raise OSError if oneDNN has none, or no quick one.

        Its reference implementation knows everything, and takes some hundred times as long as PyTorch.
        """
        description = self.make(f"{kind}_primitive_desc", *arguments)
        if self.implementation(description).startswith("ref"):
            raise OSError(f"oneDNN has no quick {kind} for these layouts")
        return description

    def implementation(self, description: Object) -> str:
        """The name of what computes a primitive, such as "brgemm:avx512_core"."""
        name = c_char_p()
        self.check(self._dnnl.dnnl_primitive_desc_query(description, IMPLEMENTATION, 0, byref(name)))
        return (name.value or b"").decode()

    def check(self, status: int) -> None:
        """Raise OSError if oneDNN refuses something."""
        if status:
            raise OSError(f"oneDNN refuses with status {status}")

    def layout(self, shape: Sequence[int], strides: Sequence[int] = ()) -> Object:
        """The layout of a tensor; without strides, the one that a primitive prefers."""
        n, sizes = len(shape), (c_int64 * len(shape))(*shape)
        if not strides:
            return self.make("memory_desc", n, sizes, FLOAT32, ANY, by="_with_tag")
        return self.make("memory_desc", n, sizes, FLOAT32, (c_int64 * n)(*strides), by="_with_strides")

    def layout_of(self, tensor: torch.Tensor) -> Object:
        """The layout of a tensor."""
        return self.layout(tensor.shape, tensor.stride())

    def memory(self, layout: c_void_p, tensor: torch.Tensor | None = None) -> Object:
        """The memory of a tensor, or of one that is yet to come."""
        return self.make("memory", layout, self.engine, c_void_p(tensor.data_ptr() if tensor is not None else None))

    def asked(self, description: Object, number: int) -> tuple[c_void_p, int]:
        """A layout that a primitive wants, as long as its description is, and how many bytes such a tensor has."""
        layout = c_void_p(self._dnnl.dnnl_primitive_desc_query_md(description, number, 0))
        return layout, self._dnnl.dnnl_memory_desc_get_size(layout)

    def attributes(self, steps: Sequence[Step] = (), other: Object | None = None) -> Object:
        """Return the attributes of a primitive that applies steps to each element of its result before writing it.

        ``other`` is the layout of the second operand of a step.
        """
        attributes, behind = self.make("primitive_attr"), self.make("post_ops")
        for step in steps:
            if step.other:
                added = self._dnnl.dnnl_post_ops_append_binary(behind, BINARY[step.function], other)
            else:
                number, *parameters = ACTIVATIONS[step.function](step)
                added = self._dnnl.dnnl_post_ops_append_eltwise(behind, number, *map(c_float, parameters))
            self.check(added)
        self.check(self._dnnl.dnnl_primitive_attr_set_post_ops(attributes, behind))
        self.check(self._dnnl.dnnl_primitive_attr_set_scratchpad_mode(attributes, CALLER_S))
        return attributes

    def reorder(self, source: torch.Tensor, layout: c_void_p, n_bytes: int) -> torch.Tensor:
        """A tensor in another layout, as bytes."""
        result = torch.zeros(n_bytes, dtype=torch.uint8)
        self._copy(source, self.layout_of(source), result, layout)
        return result

    def restore(self, packed: torch.Tensor, layout: c_void_p, shape: Sequence[int]) -> torch.Tensor:
        """The tensor of a shape that `reorder` has brought into a layout."""
        result = torch.empty(tuple(shape))
        self._copy(packed, layout, result, self.layout_of(result))
        return result

    def _copy(self, source: torch.Tensor, own: c_void_p, result: torch.Tensor, layout: c_void_p) -> None:
        description = self.make("reorder_primitive_desc", own, self.engine, layout, self.engine, None)
        memories = {SOURCE: self.memory(own, source), DESTINATION: self.memory(layout, result)}
        arguments = _arguments_of(memories)
        self.check(self.execute(self.make("primitive", description), self.stream, 2, ctypes.addressof(arguments)))


class Execution:
    """A primitive with the memories of its arguments, on the thread that has made it."""

    def __init__(
        self,
        dnnl: Library,
        description: Object,
        moving: Mapping[int, Object],
        held: Mapping[int, tuple[c_void_p, torch.Tensor]] = MappingProxyType({}),
        loses_nan: bool = False,
    ) -> None:
        """Make the primitive of a description.

        Args:
            dnnl: oneDNN.
            description: of the primitive.
            moving: layouts of the arguments that each call gives the addresses of, by their numbers.
            held: layouts and tensors of the others.
            loses_nan: whether calls have to find out if NaN was lost.
        """
        scratch, n_bytes = dnnl.asked(description, SCRATCHPAD_LAYOUT)
        held = {**held, SCRATCHPAD: (scratch, scratchpad(n_bytes))} if n_bytes else held
        self._held = [tensor for _, tensor in held.values()]
        memories = {number: dnnl.memory(layout) for number, layout in moving.items()}
        self._moving = tuple(memories.values())
        self._addresses: tuple[int, ...] = ()
        self._memories = memories | {number: dnnl.memory(*each) for number, each in held.items()}
        self._arguments = _arguments_of(self._memories)
        made = dnnl.make("primitive", description)
        self._call = made, dnnl.stream, len(self._arguments), ctypes.addressof(self._arguments)
        self._execute, self._point = dnnl.execute, dnnl.point
        self._loses_nan = loses_nan

    def __call__(self, *addresses: int) -> bool:
        """Compute with the moving arguments at some addresses, in their order; return whether NaN was lost."""
        if addresses != self._addresses:
            for memory, address in zip(self._moving, addresses, strict=True):
                self._point(memory, address)
            self._addresses = addresses
        if status := self._execute(*self._call):
            raise RuntimeError(f"oneDNN failed with status {status}")
        return self._loses_nan and raised(INVALID) and self._raises_again()

    def _raises_again(self) -> bool:
        """Whether another execution raises the flag, too, and no earlier operator has raised it."""
        clear(INVALID)
        self._execute(*self._call)
        again = bool(raised(INVALID))
        clear(INVALID)
        return again


_scratchpads = threading.local()


def scratchpad(n_bytes: int, use: str = "primitive") -> torch.Tensor:
    """Memory that all primitives of the calling thread share for a use; they run one after the other."""
    size = 1 << (n_bytes - 1).bit_length()
    by_size: dict[tuple[str, int], torch.Tensor] = vars(_scratchpads).setdefault("by_size", {})
    if (use, size) not in by_size:
        by_size[use, size] = torch.zeros(size, dtype=torch.uint8)
    return by_size[use, size]


def _arguments_of(memories: Mapping[int, Object]) -> "ctypes.Array[_Argument]":
    """The arguments of a primitive by their numbers."""
    return (_Argument * len(memories))(*(_Argument(number, memory.value) for number, memory in memories.items()))


@cache
def library() -> Library | None:
    """oneDNN; None where its wheel is not installed or cannot be loaded."""
    try:
        files = metadata.files(WHEEL) or ()
        return next((Library(str(file.locate())) for file in files if file.name == FILE), None)
    except (metadata.PackageNotFoundError, OSError):
        return None
