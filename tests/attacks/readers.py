"""Every reader of files, with files that it takes, broken: it reads them, or refuses them in one line.

A reader that raises anything but InputError, takes longer than `LIMIT_S` or runs what a file says is broken through.
"""

import io
import json
import os
import pickle
import random
import tempfile
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from graphs.common.errors import InputError
from planner.plans.schemas import schema
from tests.attacks.grammar import Grammar, inferred
from tests.attacks.limits import limited
from tests.attacks.mutations import as_json, as_toml, broken_bytes, broken_document
from tests.planner.plans.schemas.validation import objections

LIMIT_S = 20  # of processor time, of one read
BYTES, CHANGED = 0.25, 0.3  # shares of documents with other bytes, and with other values; the rest is by their grammar
PACE = {"computing": 2.0}
CANARY = "PLANNER_ATTACK_CANARY"
"""The environment's name of a file that is there once a file's code has run."""


@dataclass(frozen=True)
class Reader:
    """A reader, a file that it takes, and how the file is broken."""

    read: Callable[[Path], object]
    good: bytes
    file: str  # its name, by which some readers go
    document: Callable[[bytes], Any] | None = None  # the document that it is, if it is one
    write: Callable[[Any, random.Random], bytes] = as_json
    beside: Mapping[str, bytes] = field(default_factory=dict)  # other files of its folder, by name
    schema: str = ""  # the name of its JSON Schema, if it has one

    def broken(self, rng: random.Random) -> bytes:
        """Return a broken file: other bytes, a changed document, or one by its grammar."""
        way = rng.random()
        if self.document is None or way < BYTES:
            return broken_bytes(self.good, rng)
        if way < BYTES + CHANGED:
            return self.write(broken_document(self._content, rng), rng)
        return self.write(self._grammar.document(rng), rng)

    def put(self, content: bytes, folder: Path) -> Path:
        """Write a file to a folder, and those beside it if they are not there; return its path."""
        for name, other in self.beside.items():
            if not (folder / name).exists():
                (folder / name).write_bytes(other)
        (path := folder / self.file).write_bytes(content)
        return path

    @cached_property
    def _grammar(self) -> Grammar:
        return Grammar(schema(self.schema) if self.schema else inferred(self._content), self._content)

    @cached_property
    def _content(self) -> Any:
        assert self.document is not None
        return self.document(self.good)


class Canary:
    """What a pickle would run: it makes the file that `CANARY` names."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, (f'touch "${CANARY}"',)


class HangError(Exception):
    """A read that does not end."""


def fault(of: Reader, content: bytes, folder: Path) -> str:
    """Read a file; return what is wrong with that, or nothing."""
    path, canary = of.put(content, folder), folder / "canary"
    os.environ[CANARY] = str(canary)
    files = {*of.beside, of.file, canary.name}
    try:
        with limited(LIMIT_S, HangError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            of.read(path)
    except InputError as error:
        said = str(error)
        if not said.strip() or "\n" in said or len(said) > 2000:
            return f"refused by {len(said)} characters in {said.count(chr(10)) + 1} lines: {said[:200]!r}"
    except (Exception, SystemExit, RecursionError) as error:
        return f"{type(error).__name__}: {str(error)[:200]!r}{_where(error)}"
    finally:
        for left in {*os.listdir(folder)} - files:
            if (folder / left).is_file():
                (folder / left).unlink()
    if canary.exists():
        canary.unlink()
        return "the file's code has run"
    return ""


ROOT = Path(__file__).parents[2]
OURS = tuple(f"{ROOT / package}{os.sep}" for package in ("graphs", "costmodels", "simulator", "planner"))


def _where(error: BaseException) -> str:
    trace, place = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(OURS):
            place = f" at {Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def reader(name: str) -> Reader:
    """Return a reader; the files of those like it are made once, in some seconds."""
    return next(_made(make)[name] for make, names in MAKERS.items() if name in names)


def readers() -> Mapping[str, Reader]:
    """Return every reader by its name."""
    return {name: reader(name) for name in NAMES}


@cache
def _made(make: Callable[[Path], dict[str, Reader]]) -> Mapping[str, Reader]:
    with tempfile.TemporaryDirectory() as name:
        return make(Path(name))


def _again(read: Callable[[Path], Any], write: Callable[[Any, Path], object], of: str) -> Callable[[Path], object]:
    """Return a reader that also writes what it has read: as its schema ``of`` allows, and the same once it is read."""

    def twice(path: Path) -> object:
        found, once, again = read(path), path.with_name(f"once-{path.name}"), path.with_name(f"again-{path.name}")
        write(found, once)
        try:
            write(read(once), again)
        except InputError as error:
            raise AssertionError(f"refuses what it wrote: {error}") from error
        if wrong := objections(of, (tomllib.loads if of == "cluster" else json.loads)(once.read_text("utf-8"))):
            raise AssertionError(f"writes what the schema does not allow: {wrong[:3]}")
        if once.read_bytes() != again.read_bytes():
            raise AssertionError("is another after it is written and read")
        return found

    return twice


def _documents(folder: Path) -> dict[str, Reader]:
    """Plans, clusters, graphs, problems, profiles, hosts, runs and rows."""
    import planner
    from costmodels.cluster.file import read_cluster
    from costmodels.cluster.writer import write_cluster
    from examples.networks import mnist
    from graphs.files import read_graph, write_graph
    from graphs.importers.from_torch import program_from_module
    from planner.parallelism.closed_form.config_file import load_config
    from planner.plans.files import load_plan, save_plan
    from planner.plans.runs import MeasuredRun, load_run, save_run

    program = program_from_module(*mnist())
    cluster = planner.catalogue_cluster("RTX-4090", 2, "PCIe4-x16")
    search = planner.Search(time_limit_s=2)
    plan = planner.plan(program.graph, cluster=cluster, search=search)
    trained = planner.plan(*mnist(), cluster=cluster, goal="training", search=search)
    paths = {key: folder / key for key in ("plan.json", "training.json", "cluster.toml", "graph.json", "run.json")}
    save_plan(plan, paths["plan.json"])
    save_plan(trained, paths["training.json"])
    write_cluster(cluster, paths["cluster.toml"])
    write_graph(program.graph, paths["graph.json"])
    save_run(plan, MeasuredRun(plan.simulate(2), 1e-3), paths["run.json"])
    rows = planner.choose("examples.networks:mnist", cluster=cluster, global_batch=8)
    rows.save(folder / "row.json")
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    plans, clusters = _again(load_plan, save_plan, "plan"), _again(read_cluster, write_cluster, "cluster")
    return {
        "plan": Reader(plans, good["plan.json"], "plan.json", json.loads, schema="plan"),
        "training plan": Reader(plans, good["training.json"], "plan.json", json.loads, schema="plan"),
        "cluster": Reader(clusters, good["cluster.toml"], "cluster.toml", _tables, as_toml, schema="cluster"),
        "graph": Reader(
            _again(read_graph, write_graph, "graph"), good["graph.json"], "graph.json", json.loads, schema="graph"
        ),
        "run": Reader(lambda path: load_run(path, plan), good["run.json"], "run.json", json.loads, schema="run"),
        "row": Reader(load_config, good["row.json"], "row.json", json.loads),
    }


def _tables(content: bytes) -> Any:
    return json.loads(json.dumps(tomllib.loads(content.decode())))


def _networks(folder: Path) -> dict[str, Reader]:
    """Networks: .onnx, .pt2 and config.json."""
    import numpy as np
    import torch
    from onnx import TensorProto, helper, numpy_helper

    from graphs.importers.load import load_graph, load_program

    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    ]
    ends = [value("x", TensorProto.FLOAT, [2, 3])], [value("y", TensorProto.FLOAT, [2, 8])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends, [weight]), opset_imports=[helper.make_opsetid("", 17)]
    )
    exported = torch.export.export(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), (torch.ones(2, 3),))
    torch.export.save(exported, folder / "model.pt2")
    config = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"intermediate_size": 32, "vocab_size": 20, "max_position_embeddings": 16, "architectures": ["BertModel"]}
    program = partial(load_program, training=False)
    load_graph(str(_written(folder / "config.json", config)))  # which is taken, and traced in a second
    return {
        "onnx": Reader(lambda path: program(str(path)), model.SerializeToString(), "model.onnx"),
        "pt2": Reader(lambda path: program(str(path)), (folder / "model.pt2").read_bytes(), "model.pt2"),
        "pt2 with a pickle": Reader(
            lambda path: program(str(path)), with_pickles((folder / "model.pt2").read_bytes()), "model.pt2"
        ),
        "config": Reader(_built, json.dumps(config).encode(), "config.json", json.loads),
    }


def _built(path: Path) -> object:
    """Read a config.json as far as the network with shapes alone, whose trace takes most of the time."""
    from graphs.importers.from_config import build

    return build(path)


def _written(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _weights(_: Path) -> dict[str, Reader]:
    """Language models: a config.json, and headers of .gguf and of .safetensors."""
    from costmodels.language_model.read import read_language_model
    from tests.costmodels.language_model.test_gguf import ENDS, dense, pairs
    from tests.weight_files import gguf_bytes, safetensors_bytes

    config = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= {"num_hidden_layers": 1, "intermediate_size": 48, "vocab_size": 100, "tie_word_embeddings": True}
    beside, prefix = json.dumps(config).encode(), "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}self_attn.{name}_proj.weight": (n, 32) for name, n in zip("qkvo", (32, 16, 16, 32), strict=True)
    }
    shapes |= {f"{prefix}mlp.{name}_proj.weight": (48, 32) for name in ("gate", "up")}
    shapes |= {f"{prefix}mlp.down_proj.weight": (32, 48), "model.embed_tokens.weight": (100, 32)}
    shapes |= {f"{prefix}{name}_layernorm.weight": (32,) for name in ("input", "post_attention")}
    shapes |= {"model.norm.weight": (32,)}
    tensors = safetensors_bytes({name: ("F16", shape) for name, shape in shapes.items()})
    gguf = gguf_bytes(pairs(layers=1, attention__head_count_kv=2), {**ENDS, **dense(0)})
    return {
        "language config": Reader(read_language_model, beside, "config.json", json.loads),
        "gguf": Reader(read_language_model, gguf, "model.gguf"),
        "safetensors": Reader(read_language_model, tensors, "model.safetensors", beside={"config.json": beside}),
    }


def _shards(folder: Path) -> dict[str, Reader]:
    """What a process for one device reads: its weights, and the network without them."""
    import planner
    from examples.networks import mnist
    from graphs.importers.from_torch import program_from_module
    from planner.runtime.checkpoint.shard_folder import PROGRAM, shard_file
    from planner.runtime.checkpoint.shards import names_held, read_shard, write_shards

    program = program_from_module(*mnist())
    plan = planner.plan(program, cluster=planner.catalogue_cluster("RTX-4090", 2, "PCIe4-x16"), goal="latency")
    device = next(iter(names_held(plan)))
    write_shards(plan, program, folder / "shards")
    files = {path.name: path.read_bytes() for path in (folder / "shards").iterdir()}

    def shard(file: str, document: Callable[[bytes], Any] | None) -> Reader:
        beside = {name: content for name, content in files.items() if name != file}
        return Reader(lambda path: read_shard(path.parent, device), files[file], file, document, beside=beside)

    return {"shard": shard(shard_file(device), None), "shard's program": shard(PROGRAM, json.loads)}


def with_pickles(content: bytes) -> bytes:
    """Replace what a .pt2 holds as pickles, or as anything that is no JSON, by a pickle that runs code."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(made, "w") as target:
        for item in source.infolist():
            data = source.read(item)
            is_json = item.filename.endswith(".json") or data.isdigit()
            target.writestr(replace_date(item), data if is_json else pickle.dumps(Canary()))
    return made.getvalue()


def replace_date(item: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return an entry of the same name with a fixed date, so that a seed gives the same bytes."""
    return zipfile.ZipInfo(item.filename)


def _maps(folder: Path) -> dict[str, Reader]:
    """Maps of other tools, published problems and the cache of measurements."""
    from costmodels.measured import Measurement, Profile
    from costmodels.profilefile import read_profile, write_profile
    from planner.exports.maps import read_map
    from planner.literature.placement.public_format import read_problem
    from planner.problem.problem import Goal

    device_map = {"embed": 0, "layers.0": 0, "layers.1": "cuda:1", "": "cpu"}
    problem = {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 100,
        "nodes": [
            {"id": i, "cpuLatency": 5.0, "fpgaLatency": 1.0, "size": 10, "isBackwardNode": 0, "supportedOnFpga": 1}
            for i in range(4)
        ],
        "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.5, "size": 1} for i in range(3)],
    }
    text = json.dumps(problem).encode()
    times = {"aten.relu": Measurement(1e-3, 0.1, 5)}
    profile = Profile("f00d", {"cpu": "one"}, times, contended={2: times}, pace=PACE, moments={3: PACE})
    cached = write_profile(folder, profile)
    return {
        "profile": Reader(lambda path: read_profile(path.parent, "f00d"), cached.read_bytes(), cached.name, json.loads),
        "device map": Reader(read_map, json.dumps(device_map).encode(), "map.json", json.loads),
        "problem": Reader(lambda path: read_problem(path, Goal.LATENCY), text, "problem.json", json.loads),
    }


MAKERS: Mapping[Callable[[Path], dict[str, Reader]], tuple[str, ...]] = {
    _documents: ("plan", "training plan", "cluster", "graph", "run", "row"),
    _networks: ("onnx", "pt2", "pt2 with a pickle", "config"),
    _maps: ("device map", "problem", "profile"),
    _weights: ("language config", "gguf", "safetensors"),
    _shards: ("shard", "shard's program"),
}
NAMES = tuple(chain.from_iterable(MAKERS.values()))


def attacked(name: str, seed: int, folder: Path) -> tuple[str, bytes]:
    """Break the file of a reader as a seed says; return what is wrong, or nothing, and the file."""
    content = reader(name).broken(random.Random(f"{name} {seed}"))
    return fault(reader(name), content, folder), content


def shrunk(name: str, content: bytes, folder: Path) -> bytes:
    """Cut a file that breaks a reader as far as it still does so in the same way."""
    kind = fault(reader(name), content, folder).split(":")[0]
    step = len(content) // 2
    while step:
        at = 0
        while at < len(content):
            shorter = content[:at] + content[at + step :]
            if fault(reader(name), shorter, folder).split(":")[0] == kind:
                content = shorter
            else:
                at += step
        step //= 2
    return content
