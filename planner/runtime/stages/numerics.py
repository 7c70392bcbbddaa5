"""Numerics: PyTorch's switches of a whole process that change what operators compute, or how they round.

Threads share the switches, except for the flush of denormal numbers, which a thread inherits from the thread that
starts it. Processes are started with the switches of the process that starts them.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from graphs.common.errors import InputError

_PRECISIONS = (
    ("generic", "all"),
    *((backend, kind) for backend in ("cuda", "mkldnn") for kind in ("all", "matmul", "conv", "rnn")),
)
_FLAGS = (
    "mkldnn.enabled",
    "mkldnn.deterministic",
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
    "quantized.engine",
)
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_DENORMAL = 5e-324

Switch = tuple[Callable[[], Any], Callable[[Any], object]]
"""A function that returns the setting, as JSON can hold it, and a function that changes it."""


def _flag(path: str) -> Switch:
    module, _, name = path.rpartition(".")
    holder: Any = torch.backends
    for part in module.split("."):
        holder = getattr(holder, part)
    return partial(getattr, holder, name), partial(setattr, holder, name)


ON_THREADS: Mapping[str, Switch] = {
    "torch.set_default_dtype": (
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda name: torch.set_default_dtype(getattr(torch, name)),
    ),
    "torch.set_flush_denormal": (lambda: _DENORMAL == 0.0, torch.set_flush_denormal),
}
"""Switches that a runner's own threads do not follow: a trace holds for one default dtype."""

IN_PROCESSES: Mapping[str, Switch] = {
    **ON_THREADS,
    "torch.use_deterministic_algorithms": (
        lambda: [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()],
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    **{
        f"the precision of {backend}.{kind}": (
            partial(torch._C._get_fp32_precision_getter, backend, kind),
            partial(torch._C._set_fp32_precision_setter, backend, kind),
        )
        for backend, kind in _PRECISIONS
    },
    **{f"torch.backends.{path}": _flag(path) for path in _FLAGS},
    **{
        f"torch.backends.cuda.enable_{name}_sdp": (
            getattr(torch.backends.cuda, f"{name}_sdp_enabled"),
            getattr(torch.backends.cuda, f"enable_{name}_sdp"),
        )
        for name in _ATTENTION
    },
}
"""Switches that another process does not follow."""


def numerics(switches: Mapping[str, Switch]) -> dict[str, Any]:
    """Return the settings of switches on the calling thread, by name."""
    return {name: get() for name, (get, _) in switches.items()}


def numerics_to_text() -> str:
    """Return the settings of all switches as JSON, for a process that is started."""
    return json.dumps(numerics(IN_PROCESSES))


def use_numerics(text: str) -> None:
    """Set all switches of this process as `numerics_to_text` has written them."""
    for name, value in json.loads(text).items():
        get, change = IN_PROCESSES[name]
        if get() != value:
            change(value)


def check_numerics(since: Mapping[str, Any], switches: Mapping[str, Switch]) -> None:
    """Check that nothing has been switched since a runner was started; raise InputError if something has."""
    for name, (get, _) in switches.items():
        if (now := get()) != since[name]:
            raise InputError(
                f"{name} is {now} here, and was {since[name]} when the runner was started, which its devices keep to; "
                "start the runner again, or switch back"
            )
