"""What default plans of random networks have to give: the answers of the module itself, on whatever it is given."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeAlias

import torch
from torch import Tensor

import planner
from costmodels.cluster.cluster import Cluster, Device, Link
from graphs.importers.from_torch import program_from_module
from simulator.placement import Placement
from tests.planner.runtime.random_networks import Network, random_network
from tests.planner.runtime.small import CORE

SECONDS = 0.1  # for the search
SAMPLES = 3  # of random rounding
WITH_FOOTPRINTS = 4  # one network of so many, for that takes as long as all the rest
ROUNDING = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 1e-4, torch.float64: 1e-9}


Rounded: TypeAlias = tuple[Any, Any]
"""Results with rounding, and exact ones."""


def devices_of(seed: int) -> Cluster:
    """Return two devices of one core each, which are the same core here, or one device of all cores."""
    cores = ((CORE,), (CORE,)) if seed % 3 else (tuple(sorted(os.sched_getaffinity(0))),)
    devices = tuple(
        Device(
            f"cpu{i}",
            "cpu",
            memory_bytes=2**33,
            flops_per_s={"float32": 5e10},
            memory_bytes_per_s=2e10,
            cores=c,
            kernels="quick",
        )
        for i, c in enumerate(cores)
    )
    links = tuple(Link(a.name, b.name, 1e11, 1e-6) for a in devices for b in devices if a is not b)
    return Cluster("random", devices, links)


@contextmanager
def as_many_threads(cluster: Cluster) -> Iterator[Cluster]:
    """Compute the answers of a module on as many threads as a device has: PyTorch's NaN in bfloat16 depend on them."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(cluster.devices[0].cores))
    try:
        yield cluster
    finally:
        torch.set_num_threads(before)


def complaints(seed: int, network: Network | None = None) -> Iterator[str]:
    """Yield in which ways a default plan of a random network differs from the module."""
    with as_many_threads(devices_of(seed)) as cluster:
        yield from _complaints(seed, network, cluster)


def _complaints(seed: int, network: Network | None, cluster: Cluster) -> Iterator[str]:
    drawn, x = random_network(seed)
    network, random = network or drawn, Random(seed)
    goal = random.choice(("throughput", "latency"))
    search = planner.Search(time_limit_s=SECONDS, rewrites=random.choice(("auto", "auto", "none", "copies")))
    program = program_from_module(network, (x,), footprints=seed % WITH_FOOTPRINTS == 0)
    plan = planner.plan(program, cluster=cluster, goal=goal, search=search)
    if search.rewrites == "none" and len(plan.cluster.devices) > 1:
        plan = replace(plan, placement=Placement(tuple(i % 2 for i in range(len(plan.graph.ops)))))
    inputs = {"the example": x, **_other_inputs(x, random)}
    if network.results in ("last", "twice"):  # no input, which would lie as it was given
        inputs["contiguous"] = x.contiguous()
    with planner.start(plan, program) as runner:
        for name, given in inputs.items():
            yield from (f"{name}: {wrong}" for wrong in _wrong(network, as_laid(given, x), runner(given)))
        for (name, given), got in zip(inputs.items(), runner.stream(inputs.values()), strict=True):
            yield from (f"{name}, in a stream: {wrong}" for wrong in _wrong(network, as_laid(given, x), got))
        if not seed % 4:
            yield from _to_several(network, runner, x)
        yield from _after_new_weights(network, runner, x)


def _wrong(network: Network, given: Tensor, got: Any) -> Iterator[str]:
    """Yield how a result differs from the module's."""
    with torch.no_grad():
        yield from differences(got, network(as_laid(given, given)), partial(roundings, network, given))


def as_laid(given: Tensor, x: Tensor) -> Tensor:
    """Return a copy that lies as the input that a network was imported with, which says what ``as_strided`` reads.

    Between its elements is what is there in the given tensor, or zeros if it does not lie so.
    """
    reach = 1 + sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True)) if x.numel() else 0
    around = torch.zeros(reach, dtype=x.dtype)
    if telling_strides(given) == telling_strides(x) and not given.is_neg():
        around.copy_(given.detach().as_strided((reach,), (1,)))
    return around.as_strided(x.shape, x.stride()).copy_(given)


def _to_several(network: Network, runner: Any, x: Tensor) -> Iterator[str]:
    """Yield complaints of callers who ask at once, each with an input of its own."""
    inputs = [as_laid(torch.randn(x.shape), x) for _ in range(4)]
    with ThreadPoolExecutor(len(inputs)) as callers:
        answers = list(callers.map(runner, inputs))
    for given, got in zip(inputs, answers, strict=True):
        yield from (f"at once: {wrong}" for wrong in _wrong(network, given, got))


def _other_inputs(x: Tensor, random: Random) -> dict[str, Tensor]:
    if not x.numel():
        return {}
    i = tuple(random.randrange(size) for size in x.shape)
    nan, infinite, made = (as_laid(x, x) for _ in range(3))
    nan[i] = float("nan")
    infinite[i] = float("inf")
    made[i] = torch.tensor(float("inf")) - torch.tensor(float("inf"))  # with the sign that x86 gives it
    return {
        "a NaN": nan,
        "an infinity": infinite,
        "inf - inf": made,
        "a negated view": torch._neg_view(as_laid(x, x)),
    }


def roundings(network: Network, x: Tensor) -> Iterator[Rounded]:
    """Yield results that are rounded, and exact ones: as PyTorch rounds, then with random last digits after each step.

    The second is Monte Carlo arithmetic (Parker, UCLA 1997): a norm of constant rows is 0 or, if their mean is rounded,
    a hundred times that, and none of it depends on the largest number of the result.
    """
    own, exact = network(x.clone()), deepcopy(network).double()
    try:
        truth = exact(x.double())
    except RuntimeError:  # a view of bits knows its own type only
        yield own, own
        return
    yield own, truth
    for _ in range(SAMPLES):
        yield exact.moved(x.double(), torch.finfo(x.dtype).eps), truth


def _after_new_weights(network: Network, runner: Any, x: Tensor) -> Iterator[str]:
    """Yield a complaint unless the runner answers with the weights that the network had when it was started."""
    old, new = deepcopy(network), deepcopy(network)
    for parameter in new.parameters():
        parameter.data.mul_(0.5)
    network.load_state_dict(new.state_dict())
    yield from (f"new weights: {wrong}" for wrong in _wrong(old, x, runner(x)))
    network.load_state_dict(old.state_dict())


def differences(got: Any, expected: Any, rounded: Callable[[], Iterable[Rounded]]) -> Iterator[str]:
    """Yield how results differ from the module's: in shapes, strides, NaN, infinities or, beyond rounding, values.

    Where they differ, ``rounded`` yields rounded results and exact ones, PyTorch's first. A result may be four times as
    far from the exact one as these are.
    """
    for i, (a, b) in enumerate(zip(leaves(got), leaves(expected), strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype) or telling_strides(a) != telling_strides(b):
            yield f"[{i}] is {a.dtype} {tuple(a.shape)} {a.stride()}, should be {b.dtype} {tuple(b.shape)} {b.stride()}"
            continue
        finite = b.isfinite()
        if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a[~finite & ~b.isnan()], b[~finite & ~b.isnan()]):
            counts = [int(n) for t in (a, b) for n in (t.isnan().sum(), t.isinf().sum())]
            yield "[{}] has {} NaN and {} inf, should be {} and {}".format(i, *counts)
        elif _off(a, b.double()) > ROUNDING[b.dtype] * _largest(b):
            pairs = [(leaves(own)[i], leaves(exact)[i]) for own, exact in rounded()]
            exact = pairs[0][1]
            error, own = _off(a, exact), max(_off(*pair) for pair in pairs)
            if error > max(ROUNDING[b.dtype] * _largest(exact), 4 * own):
                yield f"[{i}] is off by {error:.1e}, rounding by {own:.1e}, where the largest is {_largest(exact):.1e}"


def telling_strides(tensor: Tensor) -> list[int]:
    """Return the strides that lead to another element.

    Others depend on the version of a kernel: fake and real tensors of one element along an axis have others after
    layer_norm, flip, sort and a dozen more operators, and so have empty ones.
    """
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1 and tensor.numel()]


def _off(values: Tensor, exact: Tensor) -> float:
    """Return how far values are from exact ones, of those that are finite."""
    finite = values.isfinite() & exact.isfinite()
    return _largest((values.double() - exact)[finite])


def _largest(values: Tensor) -> float:
    """Return the largest finite number without its sign, 0 if there is none."""
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def leaves(value: Any) -> list[Tensor]:
    """Return the tensors of a result."""
    return [value] if isinstance(value, Tensor) else list(value)


def shrunk(seed: int) -> Network:
    """Return the network of a seed without the steps that it does not take to be wrong."""
    network, x = random_network(seed)
    steps = list(network.steps)
    for step in reversed(network.steps):
        fewer = Network([s for s in steps if s is not step], network.results).eval()
        if fewer.steps and _is_wrong(seed, fewer, x):
            steps = list(fewer.steps)
    return Network(steps, network.results).eval()


def _is_wrong(seed: int, network: Network, x: Tensor) -> bool:
    try:
        network(x.clone())
    except (RuntimeError, ValueError, IndexError):  # it no longer fits together
        return False
    return bool(failure(seed, network))


def failure(seed: int, network: Network | None = None) -> str:
    """Return the first complaint about a seed's network, or the error that a plan or run ended with; else nothing."""
    try:
        return next(complaints(seed, network), "")
    except Exception as error:  # whatever it is, eager PyTorch has none
        return f"{type(error).__name__}: {error}"
