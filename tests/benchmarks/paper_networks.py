"""Networks of timm and what its authors measured, for `tests.benchmarks.paper`: graphs are recorded once and cached.

A recorder of PyTorch's dispatcher sees the operators that `planner.plan` imports, in a fifth of the time.
"""

import csv
import gzip
import hashlib
import json
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode

from costmodels.cluster.cluster import Device
from costmodels.cluster.tables import device_of
from costmodels.estimates import autocast, kernels
from costmodels.estimates.estimate import pass_seconds
from costmodels.estimates.kernels import Kernels, network_kernels
from costmodels.estimates.parameters import Parameters
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.operators import flops, formulas, views
from costmodels.operators.views import backward_passes
from graphs.common.arrays import Floats, Ints
from graphs.files import graph_from_dict, graph_to_dict
from graphs.ir import Attr, Graph, Op, Role, Tensor

Mode: TypeAlias = Literal["inf", "train", "cpu"]
BATCH = 256  # the most samples that a network is planned for


@dataclass(frozen=True)
class Published:
    """One file of published figures."""

    file: str
    device: str  # its name in the catalogue
    mode: Mode
    prefix: str = "infer"  # of the columns


FILES = (
    Published("infer-rtx3090-amp.csv", "RTX-3090", "inf"),
    Published("infer-rtx4090-amp.csv", "RTX-4090", "inf"),
    Published("infer-i9_10940x-fp32-inductor.csv", "Core-i9-10940X", "cpu"),
    Published("train-rtx3090-amp.csv", "RTX-3090", "train", "train"),
)


def rows_of(published: Published, folder: Path) -> dict[str, dict[str, str]]:
    """Rows of a file by the name of the network, the last resolution of each."""
    with (folder / published.file).open(encoding="utf-8") as lines:
        rate = f"{published.prefix}_samples_per_sec"
        return {row["model"]: row for row in csv.DictReader(lines) if float(row[rate] or 0) > 0}


def draw(name: str, seed: str) -> float:
    """A number from 0 to 1 by which networks are drawn."""
    return int(hashlib.sha256(f"{seed}{name}".encode()).hexdigest()[:8], 16) / 16**8


class _Recorder(SchemaCheckMode):  # type: ignore[no-untyped-call]  # the one user's mode that sees operators whole
    """Names tensors and notes operators before they are decomposed."""

    def __init__(self, state: list[tuple[str, torch.Tensor, Role]]) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)  # type: ignore[no-untyped-call]  # as torch has it
        self.names: dict[int, str] = {}
        self.kept: list[torch.Tensor] = []
        self.noted: list[Op] = []
        self.tensors: dict[str, Tensor] = {}
        for name, tensor, role in state:
            self._name(tensor, name, role)

    def _name(self, tensor: torch.Tensor, name: str, role: Role) -> str:
        self.names[id(tensor)] = name
        self.kept.append(tensor)
        self.tensors[name] = Tensor(name, tuple(map(int, tensor.shape)), str(tensor.dtype)[6:], role)
        return name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not str(func).startswith("aten.") or str(func).startswith(("aten.detach", "aten.lift", "aten._assert")):
            return out
        inputs, attrs = self._arguments(func._schema.arguments, args, kwargs)
        outs = [each for each in (out if isinstance(out, list | tuple) else [out]) if isinstance(each, torch.Tensor)]
        if outs:
            written = tuple(self._name(each, f"t{len(self.kept)}", Role.ACTIVATION) for each in outs)
            self.noted.append(Op(f"op{len(self.noted)}", str(func), inputs, written, "", attrs))
        return out

    def _arguments(self, schema: Any, args: Any, kwargs: Any) -> tuple[tuple[str, ...], dict[str, Attr]]:
        inputs: list[str] = []
        attrs: dict[str, Attr] = {}
        for i, argument in enumerate(schema):
            value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
            several = value if isinstance(value, list | tuple) else [value]
            tensors = [each for each in several if isinstance(each, torch.Tensor)]
            for each in tensors:
                known = self.names.get(id(each))
                inputs.append(known or self._name(each, f"constant{len(self.kept)}", Role.BUFFER))
            if isinstance(value, bool | int | float | str) and abs(value if not isinstance(value, str) else 0) < 1e30:
                attrs[argument.name] = value
            elif isinstance(value, list | tuple) and not tensors:
                attrs[argument.name] = tuple(each if isinstance(each, bool | float) else int(each) for each in value)
        return tuple(inputs), attrs


def recorded(model: nn.Module, image: torch.Tensor, training: bool) -> Graph:
    """The operators of a network on meta tensors."""
    state: list[tuple[str, torch.Tensor, Role]] = []
    state += [(name, each, Role.PARAMETER) for name, each in model.named_parameters()]
    state += [(name, each, Role.BUFFER) for name, each in model.named_buffers()]
    recorder = _Recorder([*state, ("image", image, Role.INPUT)])
    with torch.set_grad_enabled(training), enable_python_dispatcher(), recorder:
        out = model(image)
    outs = [each for each in (out if isinstance(out, list | tuple) else [out]) if isinstance(each, torch.Tensor)]
    used = {name for op in recorder.noted for name in (*op.inputs, *op.outputs)} | {"image"}
    tensors = tuple(tensor for tensor in recorder.tensors.values() if tensor.name in used)
    return Graph(
        "network", tuple(recorder.noted), tensors, ("image",), tuple(recorder.names[id(each)] for each in outs)
    )


class _Anything(type):
    """A class that has every attribute, in the place of torchvision's."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Package(types.ModuleType):
    """A module that has every name, as a class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {"__init__": lambda *_, **__: None})


class _NoTorchvision:
    """Stands in for torchvision, of which timm imports names that a network without images does not need."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return a package for every name in torchvision."""
        stands_in = name.split(".")[0] == "torchvision"
        return ModuleSpec(name, self, is_package=True) if stands_in else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Return an empty module whose names are found when they are asked for."""
        return _Package(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Make the module a package."""
        module.__path__ = []


def network_graph(name: str, row: dict[str, str], mode: Mode, folder: Path) -> tuple[int, Graph]:
    """Samples and graph of a network, from the cache or recorded with timm."""
    path = folder / f"{mode}-{name}.json.gz"
    if not path.is_file():
        prefix = "train" if mode == "train" else "infer"
        batch, size = int(row[f"{prefix}_batch_size"]), int(row[f"{prefix}_img_size"])
        batch = batch if mode == "train" else min(batch, BATCH)
        if not any(isinstance(finder, _NoTorchvision) for finder in sys.meta_path):
            sys.meta_path.insert(0, _NoTorchvision())
        timm: Any = import_module("timm")  # which the project does not depend on

        dtype = torch.float32 if mode == "cpu" else torch.float16
        with torch.device("meta"):
            try:
                model = timm.create_model(name, img_size=size)
            except TypeError:
                model = timm.create_model(name)
            model = model.train(mode == "train").to(dtype)
            graph = recorded(model, torch.empty(batch, 3, size, size, dtype=dtype), mode == "train")
        folder.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", 3) as file:
            json.dump({"batch": batch, "graph": graph_to_dict(graph)}, file)
    with gzip.open(path, "rt") as file:
        document = json.load(file)
    return document["batch"], graph_from_dict(document["graph"])


@dataclass(frozen=True)
class Networks:
    """Networks of one file, with their operators one after the other in the arrays."""

    names: tuple[str, ...]
    device: Device
    kernels: Kernels
    passes: Floats | None  # as `estimated` takes them; None in inference
    starts: Ints  # [n_networks], the first operator of each
    update_bytes: Floats  # [n_networks], that the optimizer moves
    measured_s: Floats  # [n_networks], published

    @classmethod
    def read(cls, published: Published, folder: Path, recorded_in: Path, share: float) -> "Networks":
        """Read the networks of a file, a share of them that is drawn by their names.

        Networks that cannot be recorded are left out, and without timm those that are not in the cache.
        """
        rows = {name: row for name, row in rows_of(published, folder).items() if draw(name, "fit44") < share}
        found = list(cls._each(published, rows, recorded_in))
        sizes = [len(each.kind) for _, _, each, *_ in found]
        rate = f"{published.prefix}_samples_per_sec"
        seconds = [batch / float(rows[name][rate]) for name, batch, *_ in found]
        return cls(
            names=tuple(name for name, *_ in found),
            device=device_of({"name": published.device, "like": published.device}),
            kernels=joined([each for _, _, each, *_ in found]),
            passes=np.concatenate([passes for *_, passes, _ in found]) if published.mode == "train" else None,
            starts=np.cumsum([0, *sizes])[:-1],
            update_bytes=np.array([update for *_, update in found]),
            measured_s=np.array(seconds),
        )

    @staticmethod
    def _each(
        published: Published, rows: dict[str, dict[str, str]], recorded_in: Path
    ) -> Iterator[tuple[str, int, Kernels, Floats, float]]:
        for name, row in sorted(rows.items()):
            with suppress(RuntimeError, NotImplementedError, AssertionError, EOFError, ModuleNotFoundError):
                yield name, *_figures(name, row, published.mode, recorded_in)

    def seconds(self, parameters: Parameters) -> Floats:
        """[n_networks], predicted with these parameters; a host that is slower than its GPU counts as a whole."""
        each_s = sum(pass_seconds(self.kernels, self.device, parameters, self.passes))
        seconds = np.add.reduceat(each_s, self.starts)
        if self.device.sheet and not self.device.sheet.is_processor:
            launches = np.add.reduceat(self.kernels.n_launches, self.starts) * (1 if self.passes is None else 2)
            seconds = np.maximum(seconds, launches * self.device.launch_s)
        return np.asarray(seconds + self.update_bytes / self.device.memory_bytes_per_s)

    def logs(self, parameters: Parameters) -> Floats:
        """[n_networks], logarithms of predicted over measured seconds."""
        return np.asarray(np.log(self.seconds(parameters) / self.measured_s))

    def only(self, kept: list[bool]) -> "Networks":
        """Return some of the networks."""
        ends = [*self.starts[1:].tolist(), len(self.kernels.kind)]
        sizes = np.diff([*self.starts.tolist(), len(self.kernels.kind)])
        ops = np.concatenate(
            [np.arange(start, end) for start, end, keep in zip(self.starts.tolist(), ends, kept, strict=True) if keep]
        )
        chosen = np.flatnonzero(kept)
        return Networks(
            tuple(self.names[i] for i in chosen),
            self.device,
            Kernels(**{field.name: getattr(self.kernels, field.name)[ops] for field in fields(Kernels)}),
            None if self.passes is None else self.passes[ops],
            np.cumsum([0, *sizes[chosen]])[:-1],
            self.update_bytes[chosen],
            self.measured_s[chosen],
        )


@cache
def _version() -> str:
    """A digest of the code that the figures of a network follow from."""
    modules = (autocast, kernels, flops, formulas, views)
    return hashlib.sha256(b"".join(Path(str(each.__file__)).read_bytes() for each in modules)).hexdigest()[:12]


def _figures(name: str, row: dict[str, str], mode: Mode, folder: Path) -> tuple[int, Kernels, Floats, float]:
    """Samples, kernels, passes backward and bytes of the optimizer of a network; kept beside its graph."""
    path = folder / f"{mode}-{name}-{_version()}.npz"
    if not path.is_file():
        batch, graph = network_graph(name, row, mode, folder)
        found = network_kernels(graph)
        trains = mode == "train"
        passes = backward_passes(graph) if trains else np.zeros(len(graph.ops))
        weights = sum(t.n_bytes for t in graph.tensors if t.role is Role.PARAMETER)
        update = OPTIMIZERS["momentum"].moves * weights if trains else 0.0
        np.savez(path, batch=batch, passes=passes, update=update, **vars(found))
    with np.load(path) as kept:
        figures = Kernels(**{field.name: kept[field.name] for field in fields(Kernels)})
        return int(kept["batch"]), figures, kept["passes"], float(kept["update"])


def joined(several: list[Kernels]) -> Kernels:
    """The kernels of several networks one after the other."""
    names = [field.name for field in fields(Kernels)]
    return Kernels(**{name: np.concatenate([getattr(each, name) for each in several]) for name in names})
