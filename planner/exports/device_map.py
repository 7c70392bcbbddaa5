"""hf-device-map: the ``device_map`` of Hugging Face accelerate, module path → device.

::

    {"embed": 0, "layers.0": 0, "layers.1": 1, "head": 1}

A module's arguments are moved to its device; operators outside of all named modules run where their inputs are
(https://huggingface.co/docs/accelerate/concept_guides/big_model_inference).
"""

from collections.abc import Mapping

from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.exports.modules import Modules, ancestors
from planner.exports.records import device_names, device_words, kept_whole, listed
from planner.exports.tables import tables
from planner.plans.exported import Export, refuse
from planner.plans.plan import Plan

NAME = "hf-device-map"


def hf_device_map(plan: Plan) -> Export:
    """Return a device_map for accelerate and transformers: module path → device.

    It names the outermost modules that are on a single device, so that parameters that no operator reads have a device
    too. Parameters that are read outside of these modules have entries of their own, which transformers needs to load
    them. Operators outside of these modules that read only the model's arguments run on the ``main_device`` of
    accelerate.dispatch_model. Raise InputError if an operator outside of these modules is on another device than the
    tensors that it reads.
    """
    graph, device, words = plan.graph, plan.placement.device, device_words(plan.cluster)
    entries = dict(Modules(graph).whole(device))
    for number, op in enumerate(graph.ops):
        if not any(path in entries for path in ancestors(op.module)):
            for tensor in graph.state(op):
                if not any(path in entries for path in ancestors(tensor.name)):
                    entries[tensor.name] = device[number]
    _check(plan, entries)
    used, notes = {words[d] for d in device}, list[str]()
    if numbered := sorted(word for word in used if isinstance(word, str) and ":" in word):
        cpus = listed(numbered)
        notes = [f"torch has one CPU: {cpus} are for the backward pass by import-map, accelerate wants 'cpu'"]
    elif "cpu" in used and len(used) > 1:
        notes = [
            "accelerate keeps modules on 'cpu' there and computes them on a GPU; the plan computes them on the CPU"
        ]
    return Export({path: words[number] for path, number in entries.items()}, tuple(notes))


def op_devices(graph: Graph, entries: Mapping[str, int]) -> tuple[int, ...]:
    """Return [n_ops], the device on which accelerate runs each operator, by path → device (not empty).

    This is the device of the operator's module, of a parameter that it reads, of the latest operator from which it
    reads, or of the first operator that reads from it: the first of these that exists. The longest path of an operator
    counts.
    """
    device: list[int | None] = []
    for op in graph.ops:
        home = _entry(entries, op.module)
        for tensor in graph.state(op):
            home = _entry(entries, tensor.name) if home is None else home
        device.append(home)
    readers: dict[int, list[int]] = {}
    writers: dict[int, list[int]] = {}
    for writer, reader in graph.edges:
        readers.setdefault(writer, []).append(reader)
        writers.setdefault(reader, []).append(writer)
    for number in range(len(device)):
        if device[number] is None:
            placed = (device[writer] for writer in reversed(writers.get(number, [])))
            device[number] = next((home for home in placed if home is not None), None)
    first = next(iter(entries.values()))
    for number in reversed(range(len(device))):  # readers come later, so they have a device by now
        if device[number] is None:
            device[number] = device[readers[number][0]] if number in readers else first
    return tuple(home for home in device if home is not None)


def _entry(entries: Mapping[str, int], path: str) -> int | None:
    return next((entries[around] for around in reversed(ancestors(path)) if around in entries), None)


def _check(plan: Plan, entries: Mapping[str, int]) -> None:
    """Refuse an operator outside of all entries that accelerate would not run as the plan does."""
    graph, device, modules = plan.graph, plan.placement.device, Modules(plan.graph)
    reads: dict[int, set[int]] = {}
    spreads, apart = op_devices(graph, entries) if entries else (-1,) * len(device), tables(graph)
    for writer, reader in graph.edges:
        reads.setdefault(reader, set()).add(spreads[writer] if writer in apart else device[writer])
    for number, op in enumerate(graph.ops):
        inside = any(path in entries for path in ancestors(op.module))
        there = spreads[number] == device[number] and reads.get(number, set()) <= {device[number]}
        if not (inside or number in apart or there):
            raise _divided(plan, number, modules)


def _divided(plan: Plan, number: int, modules: Modules) -> InputError:
    """Return the error for a module on several devices, or an operator in none with neighbours elsewhere."""
    graph, device = plan.graph, plan.placement.device
    op = graph.ops[number]
    for module in modules.layers(op.module) if op.module else ():
        homes = {device[other] for other in modules.under[module]}
        if len(homes) > 1:
            reason = f"module '{module}' is on {device_names(plan, homes)}"
            return refuse(NAME, reason, "places whole modules", kept_whole(module))
    ends = [w for w, r in graph.edges if r == number] + [r for w, r in graph.edges if w == number]
    far = next((end for end in ends if device[end] != device[number]), number)
    other, home, away = graph.ops[far].name, *(plan.cluster.devices[device[end]].name for end in (number, far))
    reason = f"operator '{op.name}' on {home} is in no module that is on one device, and '{other}' is on {away}"
    return refuse(NAME, reason, "places whole modules", f"plan with --together '{op.name},{other}'")
