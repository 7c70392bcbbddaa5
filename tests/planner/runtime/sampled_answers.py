"""What plans of networks around torch's own samples have to give: the answers of the network itself.

The importer may refuse a network with an `InputError`; nothing else may differ from PyTorch.
"""

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import planner
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.verification.reference import random_operators
from simulator.placement import Placement
from tests.planner.runtime.random_answers import WITH_FOOTPRINTS, as_laid, as_many_threads, devices_of, telling_strides
from tests.planner.runtime.torch_samples import Around, sampled

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
WIDER |= {torch.complex32: torch.complex64, torch.complex64: torch.complex128}
MOVES = 3  # by a last digit, to see how much an operator makes of rounding


class Outcome(NamedTuple):
    """What a seed came to: "none" without a network, "refused" by the importer, "right" or "wrong"."""

    kind: str
    said: str = ""
    words: str = ""


def outcome(seed: int) -> Outcome:
    """Draw the network of a seed, plan it, run it."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            drawn = sampled(seed)
            if drawn is None or not _agrees_with_itself(*drawn):
                return Outcome("none")
        except Exception as error:  # whatever torch raises of its own sample
            return Outcome("none", f"{type(error).__name__}: {error}")
        network, inputs = drawn
        try:
            with as_many_threads(devices_of(seed)):
                said = next(_complaints(seed, network, inputs), "")
        except InputError as error:
            return Outcome("refused", str(error), network.words)
        except Exception as error:  # whatever it is, eager PyTorch has none
            said = f"{type(error).__name__}: {error}"
        if said and _is_misread(network, inputs):
            return Outcome("none", f"other shapes on fake tensors: {said}")
        return Outcome("wrong" if said else "right", said, network.words)


def _is_misread(network: Around, inputs: tuple[Tensor, ...]) -> bool:
    """Return whether PyTorch's own fake kernels give other shapes than its kernels, so that no trace can be right."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        try:
            fake = _flat(network(*map(mode.from_tensor, inputs)))[0]
        except Exception:  # it asks for values, which the importer gives
            return False
    return [x.shape for x in fake] != [x.shape for x in _flat(network(*_again(inputs)))[0]]


APART = 16  # seeds of samples from one network to the next


def failure(seed: int) -> tuple[str, str]:
    """Return what is wrong with the first network from a seed on that is planned, or nothing, and its words."""
    found = next(found for found in map(outcome, count(APART * seed)) if found.kind in ("right", "wrong"))
    return found.said, found.words


def _agrees_with_itself(network: Around, inputs: tuple[Tensor, ...]) -> bool:
    """Return whether two calls give the same: it draws no numbers, reads no memory that nobody wrote, keeps nothing."""
    one, other = (_flat(network(*_again(inputs)))[0] for _ in range(2))
    return bool(one) and all(map(_same, one, other))


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.isnan(), b.isnan())) and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))


def _again(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return copies that lie in memory as these do; inputs that are one tensor stay one."""
    copies: dict[int, Tensor] = {}
    for x in inputs:
        copies.setdefault(id(x), as_laid(x, x))
    return tuple(copies[id(x)] for x in inputs)


def _complaints(seed: int, network: Around, inputs: tuple[Tensor, ...]) -> Iterator[str]:
    """Yield how a plan's answers differ; raise InputError if the network is not imported."""
    random = Random(f"plan {seed}")
    program = program_from_module(network, _again(inputs), footprints=seed % WITH_FOOTPRINTS == 0)
    if random_operators(program):
        raise InputError("it draws random numbers, which torch's samples draw with one seed")
    divided = random.random() < 0.5
    rewrites = "none" if divided else random.choice(("auto", "none", "copies"))
    search = planner.Search(time_limit_s=0.1, rewrites=rewrites)
    plan = planner.plan(program, cluster=devices_of(seed), goal=random.choice(("throughput", "latency")), search=search)
    if divided and len(plan.cluster.devices) > 1:
        plan = replace(plan, placement=Placement(tuple(i % 2 for i in range(len(plan.graph.ops)))))
    taken = (pair for pair in _others(network, inputs, random) if _goes_the_same_way(program, pair[1]))
    others = [("the sample", inputs), *taken]
    try:
        with planner.start(plan, program) as runner:
            for name, given in others:
                got = runner(*_again(given))
                yield from _compared(name, network, _laid(given, inputs), got)
            for (name, given), got in zip(others, runner.stream([_again(given) for _, given in others]), strict=True):
                yield from _compared(f"{name}, in a stream", network, _laid(given, inputs), got)
                for leaf in _flat(got)[0]:  # they share no memory with weights and other micro-batches
                    _overwrite(leaf)
            yield from _compared("the sample, after others", network, inputs, runner(*_again(inputs)))
    except InputError as error:
        yield f"at run time: {error}"


def _goes_the_same_way(program: Program, given: tuple[Tensor, ...]) -> bool:
    """Return whether inputs give the values that the import has assumed, such as how many numbers are not zero."""
    try:
        program.run(*_again(given))
    except InputError as error:
        return "was imported with example inputs that give" not in str(error)
    return True


def _laid(given: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return inputs with the strides that the network was imported with, which decide on what ``as_strided`` reads."""
    if given is inputs:
        return inputs
    return tuple(as_laid(y, x) for x, y in zip(inputs, given, strict=True))


def _overwrite(tensor: Tensor) -> None:
    """Write to a result, which belongs to the caller."""
    try:
        tensor.zero_()
    except RuntimeError:  # several of its elements are one
        return


def _others(network: Around, inputs: tuple[Tensor, ...], random: Random) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Yield inputs with other values or strides that the network takes itself."""
    x = inputs[0]
    if any(each is x for each in inputs[1:]):
        return
    if x.numel():
        shuffled = x.reshape(-1)[torch.randperm(x.numel())].view(x.shape)
        found = [("shuffled", shuffled), ("contiguous", x.contiguous())]
        if x.is_floating_point():
            odd = x.clone()
            odd.reshape(-1)[random.randrange(x.numel())] = random.choice((float("nan"), float("inf"), -float("inf")))
            found.append(("an odd number", odd))
        for name, first in found:
            try:
                network(*_again((first, *inputs[1:])))
            except Exception:  # it does not take it: a matrix that is no longer positive, say
                continue
            yield name, (first, *inputs[1:])


def _flat(value: Any) -> tuple[list[Tensor], Any]:
    leaves, spec = pytree.tree_flatten(value)
    return leaves, spec


def _compared(name: str, network: Around, given: tuple[Tensor, ...], got: Any) -> Iterator[str]:
    """Yield how results differ from the network's."""
    (a, own), (b, spec) = _flat(got), _flat(network(*_again(given)))
    if own != spec or len(a) != len(b):
        yield f"{name}: {own} instead of {spec}"
        return
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            yield f"{name}: [{i}] is {x.dtype} {tuple(x.shape)}, should be {y.dtype} {tuple(y.shape)}"
        elif name == "the sample" and telling_strides(x) != telling_strides(y):
            yield f"{name}: [{i}] has strides {x.stride()}, should have {y.stride()} of {tuple(x.shape)}"
        elif not _same(x, y) and (said := _too_far(x, y, i, network, given)):
            yield f"{name}: [{i}] {said}"


def _too_far(x: Tensor, y: Tensor, i: int, network: Around, given: tuple[Tensor, ...]) -> str:
    """Return how a result differs by more than rounding: of PyTorch from wider numbers, or of an input's last digit."""
    if not (y.is_floating_point() or y.is_complex()):
        return f"{int((x != y).sum())} of {y.numel()} differ"
    if not torch.equal(x.isnan(), y.isnan()):
        return f"has {int(x.isnan().sum())} NaN, should have {int(y.isnan().sum())}"
    if not torch.equal(x.isinf(), y.isinf()):
        return f"has {int(x.isinf().sum())} infinities, should have {int(y.isinf().sum())}"
    allowed = 4 * torch.finfo(y.dtype).eps * _largest(y)
    error = _off(x, y)
    if error <= allowed:
        return ""
    for moved in _rounded(network, given):
        try:
            allowed = max(allowed, 4 * _off(_flat(moved())[0][i], y))
        except Exception:  # it is not defined for such numbers
            continue
        if error <= allowed:
            return ""
    return f"is off by {error:.1e}, rounding by {allowed / 4:.1e}, the largest is {_largest(y):.1e}"


def _rounded(network: Around, given: tuple[Tensor, ...]) -> Iterator[Any]:
    """Yield functions that give the result in wider numbers, and with inputs that are moved by a last digit."""

    def wide(x: Tensor) -> Tensor:
        return x.to(WIDER.get(x.dtype, x.dtype))

    def wider() -> Any:
        copy = deepcopy(network)
        for name, held in copy.named_buffers():
            parent, _, own = name.rpartition(".")
            copy.get_submodule(parent)._buffers[own] = wide(held)
        for parameter in copy.parameters():
            parameter.data = wide(parameter.data)
        return copy(*map(wide, given))

    def moved(x: Tensor) -> Tensor:
        if not (x.is_floating_point() or x.is_complex()):
            return x
        return x * (1 + torch.finfo(x.dtype).eps * (2 * torch.rand(x.shape) - 1).to(x.dtype))

    yield wider
    for _ in range(MOVES):
        yield lambda: network(*map(moved, given))


def _off(a: Tensor, b: Tensor) -> float:
    wide = torch.complex128 if b.is_complex() else torch.float64
    return _largest((a.to(wide) - b.to(wide))[a.isfinite() & b.isfinite()])


def _largest(values: Tensor) -> float:
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0
