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
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphs.common.documents import parse_json, read_json
from graphs.common.errors import InputError
from graphs.files import write_text
from graphs.ir import STATE
from graphs.program.files import hollow_of, program_from_dict, program_to_dict, reading_program
from graphs.program.generation import GenerationProgram
from graphs.program.generation_files import phases_from_dict, phases_to_dict
from graphs.program.program import BufferUpdate, Program
from graphs.program.strides import laid
from planner.plans.files import load_plan, save_plan
from planner.plans.plan import Plan
from planner.runtime.checkpoint.names import entries_to_dict, module_from_dict, unread
from planner.runtime.checkpoint.shard_folder import (
    DIGITS,
    INPUTS,
    PLAN,
    PROGRAM,
    TensorFile,
    bytes_of,
    check_shard_folder,
    file_fingerprint,
    replacing,
    shard_file,
    write_tensors,
)
from planner.runtime.matching import check_same, phases_for, rewritten_for

DEFAULT_DTYPE = "default_dtype"  # of the import, in the file of the program
PHASES = "generation"  # of a language model, in the file of the program
STRIDES = "strides"  # of the inputs, among the metadata of their file
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def write_shards(
    plan: Plan, program: Program | GenerationProgram, folder: Path, force: bool = False
) -> tuple[Path, ...]:
    """Write the folder, whole or not at all: the same bytes for the same plan and model. With ``force``, old shards go.

    Return the files of weights, one for each device that has operators, in the order of the cluster. Raise InputError
    if the plan is for another model, a weight has no values, or the folder is taken or cannot be written; what was
    there stays as it was.
    """
    phases = None
    if isinstance(program, GenerationProgram):
        phases = phases_for(plan, program)
        program = phases.decode
    program = rewritten_for(plan, program)
    check_same(plan.graph, program.graph)
    check_shard_folder(folder, force)
    tensors = {**program.state, **{name: update.tensor for name, update in program.updates.items()}}
    held = with_counters(names_held(plan), program.updates)
    for name in dict.fromkeys(name for names in held.values() for name in names):
        if tensors[name].is_meta:
            raise InputError(
                f"'{name}' has a shape but no values (the model was imported from a config), so there is nothing to "
                "divide; give a model with weights, as .pt2 or package.module:factory"
            )
    if plan.workload.trains:
        beside = unread(program)
        first = next(iter(held))
        tensors, held = tensors | beside, held | {first: (*held[first], *beside)}
    with replacing(folder) as draft:
        save_plan(plan, draft / PLAN)
        marks = {
            "plan": file_fingerprint(draft / PLAN),
            "model": plan.graph.fingerprint,
            "weights": _weights(tensors),
        }
        dtype = str(program.default_dtype).removeprefix("torch.")
        document = marks | {"program": program_to_dict(program), DEFAULT_DTYPE: dtype}
        if plan.workload.trains:
            document["entries"] = entries_to_dict(program)
        if phases is not None:
            document[PHASES] = phases_to_dict(phases)
        write_text(json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False), draft / PROGRAM)
        marks["program"] = file_fingerprint(draft / PROGRAM)
        inputs = dict(zip(plan.graph.inputs, program.example_inputs, strict=True))
        strides = {name: tensor.stride() for name, tensor in inputs.items()}
        write_tensors(draft / INPUTS, inputs, marks | {STRIDES: json.dumps(strides)})
        for device, names in held.items():
            own = {name: tensors[name] for name in names}
            write_tensors(draft / shard_file(device), own, marks | {"device": device})
    return tuple(folder / shard_file(device) for device in held)


def read_shard(folder: Path, device: str) -> tuple[Plan, Program]:
    """Return the plan, and the network with the weights of one device alone; see `read_model_shard`."""
    plan, program = read_model_shard(folder, device)
    return plan, program.decode if isinstance(program, GenerationProgram) else program


def read_model_shard(folder: Path, device: str) -> tuple[Plan, Program | GenerationProgram]:
    """Return what a process for one device needs: the plan, and the network with the weights of that device alone.

    A language model that generates has all its phases. The state of other devices is on the meta device. Raise
    InputError if a file is missing, damaged, or of other shards, or the plan has nothing on that device.
    """
    plan = load_plan(folder / PLAN)
    held = names_held(plan)
    if device not in held:
        raise InputError(f"the plan in '{folder}' has no operator on '{device}'; its devices are {', '.join(held)}")
    document = read_json(folder / PROGRAM, "program")
    marks = {"plan": file_fingerprint(folder / PLAN), "model": plan.graph.fingerprint}
    marks["weights"] = str(document.get("weights"))
    _check_marks(folder / PROGRAM, document, marks)
    for part in ("program", "entries") if plan.workload.trains else ("program",):
        if part not in document:
            raise InputError(f"'{folder / PROGRAM}' has no '{part}'; write the shards anew")
    marks["program"] = file_fingerprint(folder / PROGRAM)
    inputs = _read_inputs(folder / INPUTS, plan, marks)
    dtype = _default_dtype(folder / PROGRAM, document)
    hollow = replace(program_from_dict(document["program"], plan.graph, inputs), default_dtype=dtype)
    names = with_counters(held, hollow.updates)[device]
    with TensorFile(folder / shard_file(device)) as file:
        _check_marks(folder / shard_file(device), file.metadata, marks | {"device": device})
        if missing := set(names) - file.names:
            raise InputError(f"'{folder / shard_file(device)}' has no '{min(missing)}'; write the shards anew")
        program = _filled(hollow, names, file)
        with reading_program():
            if PHASES in document:
                return plan, phases_from_dict(document[PHASES], program)
            return plan, _named(program, document["entries"], file) if plan.workload.trains else program


def is_shards(folder: Path) -> bool:
    """Return whether `write_shards` has written a folder."""
    return (folder / PROGRAM).is_file() and (folder / PLAN).is_file()


def names_held(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """Return parameters and buffers by the device whose operators read them, for each device that has operators.

    State that the network returns unchanged goes to the first of them, which passes results to the caller.
    """
    graph, devices = plan.graph, plan.cluster.devices
    held: dict[int, dict[str, None]] = {number: {} for number in plan.placement.used}
    for op, homes in zip(graph.ops, plan.placement.homes, strict=True):
        for number in homes:
            held[number].update(dict.fromkeys(tensor.name for tensor in graph.state(op)))
    if held:
        handed = (name for name in graph.outputs if graph.tensor[name].role in STATE)
        held[min(held)].update(dict.fromkeys(handed))
    return {devices[number].name: tuple(names) for number, names in held.items()}


def with_counters(
    held: Mapping[str, tuple[str, ...]], updates: Mapping[str, BufferUpdate]
) -> dict[str, tuple[str, ...]]:
    """Add the buffers that no operator reads: each goes to the first device that holds something of its module."""
    result = {device: list(names) for device, names in held.items()}
    for name in updates:
        module = name.rpartition(".")[0]
        homes = [device for device, names in held.items() if any(n.rpartition(".")[0] == module for n in names)]
        result[(homes or list(held))[0]].append(name)
    return {device: tuple(names) for device, names in result.items()}


def _read_inputs(path: Path, plan: Plan, marks: Mapping[str, str]) -> tuple[torch.Tensor, ...]:
    with TensorFile(path) as file:
        _check_marks(path, file.metadata, marks)
        inputs = {name: file.read(name, getattr(torch, plan.graph.tensor[name].dtype)) for name in plan.graph.inputs}
        if STRIDES not in file.metadata:
            return tuple(inputs.values())
        try:
            strides = parse_json(file.metadata[STRIDES])
            return tuple(laid(tensor, tuple(strides[name])) for name, tensor in inputs.items())
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise InputError(f"'{path}' has no strides for its inputs ({error!r}); write the shards anew") from error


def _default_dtype(path: Path, document: Mapping[str, Any]) -> torch.dtype:
    name = document.get(DEFAULT_DTYPE, "float32")
    known = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATING}
    if name not in known:
        raise InputError(f"'{path}' has the default dtype {name!r}, which is none of {', '.join(known)}; write it anew")
    return known[name]


def _filled(hollow: Program, names: Iterable[str], file: TensorFile) -> Program:
    """Return the program with some of its tensors on the CPU, as the file has them."""
    state, updates = dict(hollow.state), dict(hollow.updates)
    for name in names:
        if name in updates:
            updates[name] = replace(updates[name], tensor=_read(updates[name].tensor, name, file))
        else:
            state[name] = _read(state[name], name, file)
    return replace(hollow, state=state, updates=updates)


def _named(program: Program, entries: Mapping[str, Any], file: TensorFile) -> Program:
    """Return the program with a module that has the model's state under its own names, as far as it is here."""
    updates = {name: update.tensor for name, update in program.updates.items()}
    tensors = {**program.state, **program.sources, **updates}
    for entry, about in entries.items():
        if not isinstance(about, str) and entry in file.names:
            tensors[entry] = _read(hollow_of(about), entry, file)
    return replace(program, module=module_from_dict(entries, tensors))


def _read(hollow: torch.Tensor, name: str, file: TensorFile) -> torch.Tensor:
    """Read a tensor into the strides of one on the meta device."""
    tensor = file.read_like(hollow, name)
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
    """Return a fingerprint of values under their names."""
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for name in sorted(state):
        digest.update(f"{name}\0{state[name].nbytes}\0".encode())
        if not state[name].is_meta:
            digest.update(bytes_of(state[name]))
    return digest.hexdigest()
