"""The operator ``expect``: checks while a network runs that a value is the one that its trace has assumed.

A graph has one path. Where Python code asks for a value that follows from the inputs alone (``if mask.all():``), the
trace takes the path of the example inputs, and this operator refuses to run inputs that would take another one.
"""

from collections.abc import Sequence

import torch

from graphs.common.errors import InputError

NAMESPACE = "placement_planner"
KIND = f"{NAMESPACE}.expect.default"
SHOWN = 8  # numbers in a message

_LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("expect(Tensor value, float[] expected, str place) -> Tensor")  # type: ignore[no-untyped-call]


def _expect(value: torch.Tensor, expected: Sequence[float], place: str) -> torch.Tensor:
    found = value.detach().reshape(-1).double()
    if not torch.equal(found, torch.tensor(expected, dtype=torch.float64, device=found.device)):
        raise InputError(
            f"the network was imported with example inputs that give {_shown(expected)}{place}, and these inputs give "
            f"{_shown(found.tolist())}; import it with example inputs like these"
        )
    return value.new_ones((), dtype=torch.bool)


def _of_shape(value: torch.Tensor, _expected: Sequence[float], _place: str) -> torch.Tensor:
    return value.new_empty((), dtype=torch.bool)


def _shown(values: Sequence[float]) -> str:
    texts = [f"{value:g}" for value in values[:SHOWN]] + ["..."] * (len(values) > SHOWN)
    return texts[0] if len(values) == 1 else f"[{', '.join(texts)}]"


_LIBRARY.impl("expect", _expect, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_LIBRARY.impl("expect", _of_shape, "Meta")  # type: ignore[no-untyped-call]
expect = torch.ops.placement_planner.expect.default
torch.fx.node.has_side_effect(expect)  # nobody reads its result
