"""A processor that pretends to be GPUs, so that what is written for a GPU runs where there is none.

A tensor of a pretended GPU wraps one of the processor. PyTorch takes it for a tensor of "cuda:0": operators refuse to
mix it with tensors of the host or of another GPU, and numbers come out as on the processor. Streams and events keep
what was asked of them, in order, in a log that tests read. Nothing is asynchronous, and nothing is faster.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch.utils import _pytree as pytree

HOST = torch.device("cpu")
TOTAL_BYTES = 2**33
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1 is free."

ATTENTION = torch.nn.functional.scaled_dot_product_attention

CROSSES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::set_")
"""Operators that may read a tensor of one device and write one of another."""


class PretendedTensor(torch.Tensor):
    """A tensor that says that it is on a GPU; PyTorch's own engines take it for one without values."""

    on_host: torch.Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, on_host: torch.Tensor, place: torch.device) -> "PretendedTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            on_host.shape,
            strides=on_host.stride(),
            storage_offset=on_host.storage_offset(),
            dtype=on_host.dtype,
            device=torch.device("meta"),
            requires_grad=False,
        )
        made.on_host, made.place = on_host, place
        return made

    device = property(lambda self: self.place)
    is_cuda = property(lambda _: True)
    is_cpu = property(lambda _: False)
    is_meta = property(lambda _: False)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendedTensor({self.on_host!r}, {self.place})"

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the tensor itself where nothing would change."""
        wanted = [each for each in (*args, *kwargs.values()) if isinstance(each, (torch.device, torch.dtype, str))]
        same = all(
            each is self.dtype if isinstance(each, torch.dtype) else torch.device(each) == self.place for each in wanted
        )
        return self if same and not kwargs.get("copy") else super().to(*args, **kwargs)

    def untyped_storage(self) -> Any:
        """Return the storage of the values."""
        return self.on_host.untyped_storage()

    def tolist(self) -> Any:
        """Wait for the values."""
        return self.cpu().tolist()

    def is_pinned(self, *_: Any) -> bool:
        """Return False: only memory of the host is pinned."""
        return False

    def record_stream(self, stream: Any) -> None:
        """Check the stream of a thread that reads the tensor."""
        assert isinstance(stream, Stream)
        assert stream.device == self.place

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute a whole operator on the processor: its parts would make scalars without values."""
        func = torch.ops.aten.scaled_dot_product_attention.default if func is ATTENTION else func  # it makes masks
        if isinstance(func, torch._ops.OpOverload) and not torch.is_grad_enabled():
            return dispatched(func, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch has no types here
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return dispatched(func, args, kwargs or {})


def dispatched(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute on the processor, and say that the result is where a GPU would have it."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, _with_value, (args, kwargs))
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    devices = {tensor.device for tensor in given if tensor.dim() or isinstance(tensor, PretendedTensor)}
    name = func._schema.name
    if len(devices) > 1 and name not in CROSSES:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {devices} in {func}")
    if name == "aten::_local_scalar_dense" or name == "aten::equal":
        GPU.waited()
    wanted = next((leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)), None)
    place = wanted if wanted is not None else next(iter(sorted(devices, key=str, reverse=True)), HOST)
    place = torch.device("cuda", GPU.current) if place == torch.device("cuda") else place
    if GPU.is_full and place.type == "cuda" and not func.is_view:
        raise torch.OutOfMemoryError(FULL)
    if func._schema.is_mutable and isinstance(args[0], torch.Tensor):
        place = args[0].device
    inner_args, inner_kwargs = pytree.tree_map_only(PretendedTensor, lambda tensor: tensor.on_host, (args, kwargs))
    inner_args, inner_kwargs = pytree.tree_map_only(torch.device, lambda _: HOST, (inner_args, inner_kwargs))
    inner_kwargs.pop("pin_memory", None)
    if name == "aten::_to_copy" and place.type == "cpu" and not kwargs.get("non_blocking"):
        GPU.waited()
    if name == "aten::copy_" and args[0].device != args[1].device:
        GPU.log.append(("copy", str(place), bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))))
    result = func(*inner_args, **inner_kwargs)
    if name == "aten::_to_copy" and (not given or place != given[0].device):
        GPU.log.append(("copy", str(place), bool(kwargs.get("non_blocking"))))
        result = result.clone() if result is inner_args[0] else result
    wrapped = {id(tensor.on_host): tensor for tensor in given if isinstance(tensor, PretendedTensor)}

    def outer(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in wrapped:
            return wrapped[id(tensor)]
        return tensor if place.type == "cpu" else PretendedTensor(tensor, place)

    return pytree.tree_map_only(torch.Tensor, outer, result)


def _with_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that has values: a scalar that autograd's formulas have made is the zero of a `where`."""
    bare = type(tensor) is torch.Tensor and tensor.is_meta
    assert not (bare and tensor.dim()), "a tensor has lost its values"
    return torch.zeros((), dtype=tensor.dtype) if bare else tensor


class Stream:
    """A stream, whose work is over at once."""

    def __init__(self, device: Any = 0, name: str = "") -> None:
        index = device.index if isinstance(device, torch.device) else device
        self.device = torch.device("cuda", 0 if index is None else index)
        self.name = name or f"stream{len(GPU.streams)}"
        GPU.streams.append(self)

    def synchronize(self) -> None:
        GPU.waited("stream")

    def wait_event(self, event: "Event") -> None:
        assert isinstance(event, Event)
        assert event.recorded_s is not None, "an event that was never recorded is waited for"
        GPU.log.append(("wait", self.name))

    def wait_stream(self, other: "Stream") -> None:
        assert isinstance(other, Stream)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event, which is over when it is recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._timed = enable_timing
        self.recorded_s: float | None = None
        self.stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or GPU.current_stream()
        assert isinstance(self.stream, Stream)
        self.recorded_s = time.perf_counter()

    def synchronize(self) -> None:
        GPU.waited("event")

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "Event") -> float:
        assert self._timed, "an event without a time is asked for it"
        assert end._timed, "an event without a time is asked for it"
        assert self.recorded_s is not None
        assert end.recorded_s is not None
        assert self.stream is not None
        assert end.stream is not None
        assert self.stream.device == end.stream.device, "events of two GPUs have no time in between"
        return (end.recorded_s - self.recorded_s) * 1e3


class PretendedGpu(threading.local):
    """The GPU and the streams that are the calling thread's present ones."""

    log: ClassVar[list[tuple[object, ...]]] = []
    streams: ClassVar[list[Stream]] = []
    n_gpus: ClassVar[int] = 1
    is_full: ClassVar[bool] = False  # every operator runs out of memory then

    def __init__(self) -> None:
        self.current = 0
        self.present: dict[int, Stream] = {}

    def waited(self, what: str = "value") -> None:
        """Keep that the calling thread has waited for a GPU."""
        self.log.append(("waited", what, threading.current_thread().name))

    def index_of(self, device: Any) -> int:
        index = device.index if isinstance(device, torch.device) else device
        index = self.current if index is None else int(index)
        assert 0 <= index < self.n_gpus, f"CUDA error: invalid device ordinal {index}"
        return index

    def current_stream(self, device: Any = None) -> Stream:
        index = self.index_of(device)
        if index not in self.present:
            self.present[index] = Stream(index, "default")
        return self.present[index]

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self.current = self.current, self.index_of(device)
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        index = stream.device.index
        before = self.current_stream(index)
        self.present[index] = stream
        try:
            with self.device(index):
                yield
        finally:
            self.present[index] = before

    def synchronize(self, device: Any = None) -> None:
        self.index_of(device)
        self.waited("device")


GPU = PretendedGpu()
_LIBRARY: list[Any] = []


def _empty(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Make a tensor without values on a pretended GPU; PyTorch makes all others from such ones."""
    place = torch.device("cuda", GPU.index_of(kwargs.get("device")))
    return PretendedTensor(func(*args, **{**kwargs, "device": HOST, "pin_memory": False}), place)


class CudaGraph:
    """A graph that was captured; its work is over at once, and it does nothing when it is replayed."""

    def replay(self) -> None:
        """Do nothing."""


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> PretendedGpu:
    """Let this host have GPUs for the time of a test; return the log of what they are asked for."""
    if not _LIBRARY:
        library: Any = torch.library.Library("aten", "IMPL", "CUDA")  # type: ignore[no-untyped-call]
        for name in ("empty.memory_format", "empty_strided"):
            packet, _, overload = name.partition(".")
            func = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, partial(_empty, func))
        _LIBRARY.append(library)
    PretendedGpu.log, PretendedGpu.streams, PretendedGpu.n_gpus = [], [], count
    PretendedGpu.is_full = False
    properties = SimpleNamespace(name="Pretended GPU", total_memory=TOTAL_BYTES, multi_processor_count=1)
    replaced: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: GPU.n_gpus,
        "get_device_properties": lambda device=None: properties if GPU.index_of(device) >= 0 else None,
        "get_device_name": lambda device=None: properties.name if GPU.index_of(device) >= 0 else "",
        "get_device_capability": lambda _=None: (9, 0),
        "mem_get_info": lambda device=None: (TOTAL_BYTES, TOTAL_BYTES) if GPU.index_of(device) >= 0 else (0, 0),
        "memory_reserved": lambda device=None: 0 * GPU.index_of(device),
        "memory_allocated": lambda device=None: 0 * GPU.index_of(device),
        "max_memory_allocated": lambda device=None: 1 + 0 * GPU.index_of(device),
        "reset_peak_memory_stats": lambda device=None: GPU.index_of(device),
        "set_per_process_memory_fraction": lambda _fraction, device=None: GPU.index_of(device),
        "empty_cache": lambda: None,
        "current_device": lambda: GPU.current,
        "set_device": lambda device: setattr(GPU, "current", GPU.index_of(device)),
        "get_rng_state": lambda device="cuda": (
            torch.zeros(16, dtype=torch.uint8) if GPU.index_of(_of(device)) >= 0 else 0
        ),
        "set_rng_state": lambda _, device="cuda": GPU.index_of(_of(device)),
        "manual_seed_all": lambda _: None,
        "is_current_stream_capturing": lambda: False,
        "CUDAGraph": CudaGraph,
        "graph": lambda _: nullcontext(),
        "Stream": Stream,
        "Event": Event,
        "current_stream": GPU.current_stream,
        "stream": GPU.stream,
        "device": GPU.device,
        "synchronize": GPU.synchronize,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr("torch.utils._triton.has_triton_package", lambda: False)  # which builds for CUDA bring along
    monkeypatch.setattr("costmodels.host.affinity._IDLE_STREAMS", {})
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    return GPU


def _of(device: Any) -> torch.device:
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
