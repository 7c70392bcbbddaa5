"""States: what trainers save, whole or in parts, under the model's own names; any trainer can go on from it.

::

    Trainer                    state_dict()         ─────────────►  a whole    ──► load_state_dict() of any trainer,
    PipelineTrainer, a rank    state_dict()         ──► a part ┐                   on any plan and number of ranks
                               whole_state_dict()   ───────────┴─► joined()
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from graphs.common import checks
from graphs.common.documents import DAMAGED, check_version
from graphs.common.errors import InputError
from graphs.program.pieces import Pieces
from graphs.program.program import Program
from planner.runtime.checkpoint.names import model_state, pieces_in_model
from planner.runtime.training.optimizers import NO_KIND, Optimizers
from planner.runtime.training.options import Scale, TrainerOptions, check_wide

VERSION = 1


@dataclass
class TrainingProgress:
    """The progress of a training, without its tensors."""

    steps: int  # how many have succeeded
    seed: int  # seed of random operators
    scale: Scale | None  # of the loss, in float16
    accumulate: int = 1  # steps for each one of the optimizer
    waiting: int = 0  # of these, whose gradients wait for the optimizer

    @classmethod
    def of(cls, trainer_options: TrainerOptions, trained: Mapping[str, torch.Tensor]) -> Self:
        """Return that of a new training; raise InputError if a trained parameter is too narrow to scale the loss."""
        scale = Scale.of(trainer_options.autocast, trainer_options.scaling)
        if scale is not None:
            check_wide(trained)
        return cls(0, trainer_options.seed, scale, trainer_options.accumulate)

    @property
    def factor(self) -> float:
        """The factor of the loss."""
        return 1.0 if self.scale is None else self.scale.value


def state_of(
    program: Program, values: Mapping[str, torch.Tensor], optimizers: Optimizers, progress: TrainingProgress
) -> dict[str, Any]:
    """Build the part of a state that one rank has with its own values and optimizers, for `join_states`.

    Where a split network has parts of a parameter, these are kept, and "pieces" says what they are. Raise InputError
    if gradients wait for the optimizer, which would be lost.
    """
    if progress.waiting:
        raise InputError(
            f"the gradients of {progress.waiting} of {progress.accumulate} steps wait for the optimizer; save after "
            "the last of them"
        )
    model, optimizer = model_state(program, values), optimizers.state_dict()
    pieces = Pieces.of(program).to_dict(optimizer["options"]) | pieces_in_model(program).to_dict(model)
    return {
        "version": VERSION,
        "steps": progress.steps,
        "seed": progress.seed,
        "scaling": None if progress.scale is None else progress.scale.state_dict(),
        "model": model,
        "optimizer": optimizer,
    } | ({"pieces": pieces} if pieces else {})


SAVED = "what state_dict() of a trainer has returned"
PARTS = {"steps": int, "seed": int, "model": Mapping, "optimizer": Mapping}
OPTIMIZER_PARTS = {"kind": str, "options": Mapping, "state": Mapping}


def check_state(state: Any) -> None:
    """Check that a state has all parts; raise InputError if not, or it is of another version."""
    checks.instance(state, Mapping, "the state", SAVED)
    if "version" not in state:
        raise InputError(
            f"the state is none of a trainer; give {SAVED} (weights alone go into the model, before training)"
        )
    check_version(state, "state", VERSION, "train again")
    if "pieces" in state:
        raise InputError(
            f"the state is one rank's, with parts such as '{next(iter(state['pieces']))}'; put those of all ranks "
            "together by planner.runtime.training.states.join_states"
        )
    for name, kind in PARTS.items():
        checks.instance(state.get(name), kind, f"'{name}' of the state", SAVED)
    for name, kind in OPTIMIZER_PARTS.items():
        checks.instance(state["optimizer"].get(name), kind, f"'{name}' of the optimizer's state", SAVED)


def progress_of(state: Mapping[str, Any], now: TrainingProgress) -> TrainingProgress:
    """Read the progress from a saved state, to go on from it; raise InputError if version or seed differ."""
    check_state(state)
    if state["seed"] != now.seed:
        raise InputError(f"the state was saved with the seed {state['seed']}; make the trainer with that seed")
    try:
        scale = None if now.scale is None else now.scale.loaded(state.get("scaling"))
    except DAMAGED as error:
        raise InputError(f"'scaling' of the state is {checks.shown(state['scaling'])}; give {SAVED}") from error
    return replace(now, steps=state["steps"], scale=scale, waiting=0)


def join_states(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the parts that all ranks have saved into one state.

    Only parts of parameters are copied: others that were read by ``torch.load(..., mmap=True)`` stay in their files
    until they are used. Raise InputError if the parts do not belong together, or one is missing.
    """
    parts = list(parts)
    if not parts:
        raise InputError("there is no part of a state to join; pass those of all ranks")
    first = parts[0]
    for part in parts:
        for what in ("version", "steps", "seed", "scaling"):
            if part[what] != first[what]:
                raise InputError(
                    f"the parts of the state are of different saves: {what} {first[what]} and {part[what]}; "
                    "join those of one save"
                )
    kinds = {part["optimizer"]["kind"] for part in parts} - {NO_KIND}
    if len(kinds) > 1:
        raise InputError(f"the parts of the state are of the optimizers {' and '.join(sorted(kinds))}; use one")
    # a tensor of several parts is the same in all; of statistics of replicas the first is taken
    model = dict(ChainMap(*(part["model"] for part in parts)))
    state, options = (dict(ChainMap(*(part["optimizer"][of] for part in parts))) for of in ("state", "options"))
    optimizer = {"kind": next(iter(kinds), NO_KIND), "state": state, "options": options}
    pieces = Pieces.from_dict(ChainMap(*(part.get("pieces", {}) for part in parts)))
    whole = {**first, "model": pieces.whole(model), "optimizer": pieces.whole_optimizer(optimizer)}
    return {name: value for name, value in whole.items() if name != "pieces"}
