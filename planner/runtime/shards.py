"""A plan and its model as a folder of shards: a file of weights for each device, and what all devices need.

::

    DIR/plan.json            the plan, with the graph
        program.json         the network without weights: what executes each operator; for training, the model's names
        inputs.st            the example inputs
        cpu0.safetensors     the parameters and buffers that cpu0's operators read, and no others
        gpu0.safetensors     ...

A process for one device reads what all need and its own file, so that none ever holds the whole model. For training,
what the model has and no operator reads stands with the first device, so that a saved state is whole.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import nn

from graphs.errors import InputError
from graphs.files import read_json, write_text
from graphs.importers.program import Program, Update
from graphs.importers.program_files import program_from_dict, program_to_dict
from graphs.ir import Role
from planner.planfile import load_plan, save_plan
from planner.plans import Plan
from planner.runtime.runner import check_same
from planner.runtime.tensor_files import TensorFile, bytes_of, write_tensors
from planner.runtime.training.names import entries_to_dict, module_from_dict, unread

PLAN, PROGRAM, INPUTS, SUFFIX = "plan.json", "program.json", "inputs.st", ".safetensors"
DIGITS = 12  # of a fingerprint


def write_shards(plan: Plan, program: Program, folder: Path, force: bool = False) -> tuple[Path, ...]:
    """Write the folder, whole or not at all: the same bytes for the same plan and model.

    Args:
        plan: for this model.
        program: the model with its weights.
        folder: of which nothing, or an empty folder, is there.
        force: replace the shards that are there.

    Returns:
        The files of weights, one for each device that has operators, in the order of the cluster.

    Raises:
        InputError: if the plan is for another model, a weight has no values, or the folder is taken or cannot be
            written; what was there stays as it was.
    """
    check_same(plan.graph, program.graph)
    check_target(folder, force)
    tensors = {**program.state, **{name: update.tensor for name, update in program.updates.items()}}
    held = with_counters(names_held(plan), program.updates)
    _check_values(tensors, held)
    if plan.workload.trains:
        beside = unread(program)
        first = next(iter(held))
        tensors, held = tensors | beside, held | {first: (*held[first], *beside)}
    with _replacing(folder) as draft:
        save_plan(plan, draft / PLAN)
        marks = {
            "plan": _fingerprint((draft / PLAN).read_bytes()),
            "model": plan.graph.fingerprint,
            "weights": _weights(tensors),
        }
        document = marks | {"program": program_to_dict(program)}
        if plan.workload.trains:
            document["entries"] = entries_to_dict(program)
        write_text(json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False), draft / PROGRAM)
        marks["program"] = _fingerprint((draft / PROGRAM).read_bytes())
        write_tensors(draft / INPUTS, dict(zip(plan.graph.inputs, program.example_inputs, strict=True)), marks)
        for device, names in held.items():
            own = {name: tensors[name] for name in names}
            write_tensors(draft / file_of(device), own, marks | {"device": device})
    return tuple(folder / file_of(device) for device in held)


def read_shard(folder: Path, device: str) -> tuple[Plan, Program]:
    """What a process for one device needs: the plan, and the network with the weights of that device alone.

    Args:
        folder: from `write_shards`.
        device: name of one that has operators.

    Returns:
        The plan, and a program whose state is on the CPU as far as the device holds it, and on the meta device else.

    Raises:
        InputError: if a file is missing, damaged, or of other shards, or the plan has nothing on that device.
    """
    plan = load_plan(folder / PLAN)
    held = names_held(plan)
    if device not in held:
        raise InputError(f"the plan in '{folder}' has no operator on '{device}'; its devices are {', '.join(held)}")
    document = read_json(folder / PROGRAM, "program")
    marks = {"plan": _fingerprint((folder / PLAN).read_bytes()), "model": plan.graph.fingerprint}
    marks["weights"] = str(document.get("weights"))
    _check_marks(folder / PROGRAM, document, marks)
    for part in ("program", "entries") if plan.workload.trains else ("program",):
        if part not in document:
            raise InputError(f"'{folder / PROGRAM}' has no '{part}'; write the shards anew")
    marks["program"] = _fingerprint((folder / PROGRAM).read_bytes())
    inputs = _read_inputs(folder / INPUTS, plan, marks)
    hollow = program_from_dict(document["program"], plan.graph, inputs)
    names = with_counters(held, hollow.updates)[device]
    with TensorFile(folder / file_of(device)) as file:
        _check_marks(folder / file_of(device), file.metadata, marks | {"device": device})
        if missing := set(names) - file.names:
            raise InputError(f"'{folder / file_of(device)}' has no '{min(missing)}'; write the shards anew")
        program = _filled(hollow, names, file)
        return plan, _named(program, document["entries"], file) if plan.workload.trains else program


def is_shards(folder: Path) -> bool:
    """Whether `write_shards` has written it."""
    return (folder / PROGRAM).is_file() and (folder / PLAN).is_file()


def names_held(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """Parameters and buffers by the device whose operators read them, for each device that has operators.

    What the network returns as it is stands with the first of them, which hands results to the caller.
    """
    graph, devices = plan.graph, plan.cluster.devices
    held: dict[int, dict[str, None]] = {number: {} for number in sorted(set(plan.placement.device))}
    for op, number in zip(graph.ops, plan.placement.device, strict=True):
        held[number].update(dict.fromkeys(tensor.name for tensor in graph.state(op)))
    if held:
        handed = (name for name in graph.outputs if graph.tensor[name].role in (Role.PARAMETER, Role.BUFFER))
        held[min(held)].update(dict.fromkeys(handed))
    return {devices[number].name: tuple(names) for number, names in held.items()}


def with_counters(held: Mapping[str, tuple[str, ...]], updates: Mapping[str, Update]) -> dict[str, tuple[str, ...]]:
    """Also the buffers that no operator reads: each with the first device that holds something of its module."""
    result = {device: list(names) for device, names in held.items()}
    for name in updates:
        module = name.rpartition(".")[0]
        homes = [device for device, names in held.items() if any(n.rpartition(".")[0] == module for n in names)]
        result[(homes or list(held))[0]].append(name)
    return {device: tuple(names) for device, names in result.items()}


def file_of(device: str) -> str:
    """The file of a device, whatever letters its name has."""
    return quote(device, safe=" ") + SUFFIX


def check_target(folder: Path, force: bool) -> None:
    """Whether shards may be written there.

    Raises:
        InputError: if something else is there, or shards are and ``force`` is not given.
    """
    if not folder.exists():
        if not folder.absolute().parent.is_dir():
            raise InputError(
                f"there is no folder '{folder.absolute().parent}' to write '{folder.name}' in; make it first"
            )
        return
    if not folder.is_dir():
        raise InputError(f"'{folder}' is a file, no folder; choose another name")
    there = sorted(path.name for path in folder.iterdir())
    if there and not force:
        raise InputError(f"'{folder}' is there already; add --force to overwrite it, or choose another name")
    if foreign := [name for name in there if name not in (PLAN, PROGRAM, INPUTS) and not name.endswith(SUFFIX)]:
        raise InputError(f"'{folder}' holds '{foreign[0]}', which is no shard; choose another name")


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A draft beside the folder, which takes its place at the end, or is removed where something goes wrong."""
    folder = folder.resolve()
    draft, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{what}") for what in ("new", "old"))
    try:
        draft.mkdir()
        yield draft
        if folder.exists():
            folder.rename(old)
        try:
            draft.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    except OSError as error:
        raise InputError(f"cannot write '{folder}': {error.strerror}; choose another place") from error
    finally:
        for left in (draft, old):
            shutil.rmtree(left, ignore_errors=True)


def _check_values(tensors: Mapping[str, torch.Tensor], held: Mapping[str, tuple[str, ...]]) -> None:
    for name in dict.fromkeys(name for names in held.values() for name in names):
        if tensors[name].is_meta:
            raise InputError(
                f"'{name}' has a shape but no values (the model was imported from a config), so there is nothing to "
                "divide; give a model with weights, as .pt2 or package.module:factory"
            )


def _read_inputs(path: Path, plan: Plan, marks: Mapping[str, str]) -> tuple[torch.Tensor, ...]:
    with TensorFile(path) as file:
        _check_marks(path, file.metadata, marks)
        return tuple(file.read(name, getattr(torch, plan.graph.tensor[name].dtype)) for name in plan.graph.inputs)


def _filled(hollow: Program, names: Iterable[str], file: TensorFile) -> Program:
    """The program with some of its tensors on the CPU, as the file has them."""
    state, updates = dict(hollow.state), dict(hollow.updates)
    for name in names:
        if name in updates:
            updates[name] = replace(updates[name], tensor=_read(updates[name].tensor, name, file))
        else:
            state[name] = _read(state[name], name, file)
    return replace(hollow, state=state, updates=updates)


def _named(program: Program, entries: Mapping[str, Any], file: TensorFile) -> Program:
    """With a module that has the model's state under its own names, as far as it is here."""
    tensors = {**program.state, **{name: update.tensor for name, update in program.updates.items()}}
    for entry, about in entries.items():
        if not isinstance(about, str) and entry in file.names:
            tensors[entry] = torch.empty(about["shape"], dtype=getattr(torch, about["dtype"]))
            file.read_into(tensors[entry], entry)
    return replace(program, module=module_from_dict(entries, tensors))


def _read(hollow: torch.Tensor, name: str, file: TensorFile) -> torch.Tensor:
    """A tensor that lies as the one on the meta device would."""
    tensor = torch.empty_strided(hollow.shape, hollow.stride(), dtype=hollow.dtype)
    file.read_into(tensor, name)
    if isinstance(hollow, nn.Parameter):
        return nn.Parameter(tensor, requires_grad=hollow.requires_grad)
    return tensor.requires_grad_(hollow.requires_grad)


def _check_marks(path: Path, found: Mapping[str, object], expected: Mapping[str, str]) -> None:
    for what, value in expected.items():
        if found.get(what) != value:
            of = {"weights": "other weights of the model", "program": f"another '{PROGRAM}'"}
            raise InputError(
                f"'{path}' is of {of.get(what, f'another {what}')} ({found.get(what)!r}, not {value!r}); "
                "write the shards anew, all in one"
            )


def _weights(state: Mapping[str, torch.Tensor]) -> str:
    """The same for the same values under the same names."""
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for name in sorted(state):
        digest.update(f"{name}\0{state[name].nbytes}\0".encode())
        if not state[name].is_meta:
            digest.update(bytes_of(state[name]))
    return digest.hexdigest()


def _fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
