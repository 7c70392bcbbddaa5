"""Values of constants, for Python code that asks for them, and so that a trace runs what a call runs.

Code that may be traced is careful: before it asks whether a mask hides anything, or whether positions jump, it asks
whether it is traced, and if so works with masks that a call leaves out. What follows from constants alone, such as
positions that the model makes, is the same in each run. So it is known, and the model's code is answered as in a call.

    positions = arange(n) ──► do they jump? ──► no: no mask            in a call, and in this trace
                                                or a mask, in case     if it is asked whether it is traced
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from graphs.common.replaced import replaced
from graphs.importers.known_values import ASKING, KnownValues, untraced
from graphs.importers.tracing_guards import running_within

LIBRARY = "transformers."
OTHERS = ("transformers.utils", "transformers.integrations.hub_kernels")
"""Modules that define the questions, and one that asks in order to leave out kernels that no trace can follow."""


class ConstantValues(KnownValues):
    """Answers questions for what follows from constants alone."""

    most_elements = 2**24  # a mask of 4,096 × 4,096 positions
    asked = False  # whether anything was answered

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ASKING and args and (value := self.value(args[0])) is not None:
            self.asked = True
            with untraced():
                return func(value, *args[1:])
        return self.followed(func, args, kwargs)


@contextmanager
def constant_values(module: nn.Module, values: ConstantValues) -> Iterator[None]:
    """Let a trace of a module know what follows from constants, and let transformers' code run as in a call."""
    with running_within(module, lambda *_, **__: values), ExitStack() as replacements:
        for name, asking in [*sys.modules.items()]:
            if name.startswith(LIBRARY) and not name.startswith(OTHERS):
                for question, answer in _answers(vars(asking), values).items():
                    replacements.enter_context(replaced(asking, question, answer))
        yield


def _answers(names: Mapping[str, Any], values: ConstantValues) -> dict[str, Callable[..., bool]]:
    """Return the functions that answer a Python module's questions whether it is traced."""

    def no() -> bool:
        values.asked = True
        return False

    def unless_known(is_tracing: Callable[[Any], bool]) -> Callable[..., bool]:
        return lambda tensor=None: is_tracing(tensor) if values.value(tensor) is None else no()

    answers: dict[str, Callable[..., bool]] = {}
    if "is_tracing" in names:
        answers["is_tracing"] = unless_known(names["is_tracing"])
    if "is_torchdynamo_exporting" in names:
        answers |= {each: no for each in ("is_torchdynamo_exporting", "is_torchdynamo_compiling") if each in names}
    return answers
