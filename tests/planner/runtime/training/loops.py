"""Training loops: what a user writes for the reference model, and the same by a trainer."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.host.affinity import run_on
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.start import train
from planner.runtime.training.options import TrainerOptions
from tests.planner.runtime.small import cpu
from tests.planner.runtime.training.nets import (
    BATCH,
    Case,
    main_loss,
    numbers,
    plan_for,
    program_of,
    samples,
    training_plan,
)

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}
SGD: Make = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731 (like the others)


def loop(
    program: Program, make: Make, batches: list[tuple[torch.Tensor, Any]], micro_batches: int, largest: float = 0.0
) -> tuple[list[torch.Tensor], nn.Module]:
    """What a user writes, on one core; the losses, and the model as it is then."""

    def work() -> tuple[list[torch.Tensor], nn.Module]:
        with torch.enable_grad():
            return _loop(program, make, batches, micro_batches, largest)

    return run_on(cpu("reference"), work)


def _loop(
    program: Program, make: Make, batches: list[tuple[torch.Tensor, Any]], micro_batches: int, largest: float
) -> tuple[list[torch.Tensor], nn.Module]:
    model = copy.deepcopy(program.module)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make(parameters)
    losses = []
    for batch, target in batches:
        parts = zip(batch.chunk(micro_batches), target.chunk(micro_batches), strict=True)
        found = []
        for x, y in parts:
            found.append(main_loss(model(x), y))
            (found[-1] / micro_batches).backward()  # type: ignore[no-untyped-call]
        losses.append(torch.stack(found).mean().detach() if micro_batches > 1 else found[0].detach())
        if largest:
            torch.nn.utils.clip_grad_norm_(parameters, largest)
        optimizer.step()
        optimizer.zero_grad()
    return losses, model


def steps(
    case: Case, make: Make, count: int = 3, trainer_options: TrainerOptions | None = None
) -> tuple[list[torch.Tensor], Any]:
    """The same by a trainer; the losses, and the model's state."""
    program = program_of(case.name)
    plan = training_plan(case)
    with train(plan, program, loss=main_loss, optimizer=make, trainer_options=trainer_options) as trainer:
        losses = [trainer.step(*samples(case.name, case.micro_batches * BATCH, seed)) for seed in range(count)]
        return losses, trainer.model_state_dict()


def assert_state(state: dict[str, torch.Tensor], model: nn.Module, exact: bool = True) -> None:
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        if exact:
            assert torch.equal(state[name], tensor), name
        else:
            torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-12)


class Noisy(nn.Module):
    """Dropout, a batch norm and attention that drops."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.middle = nn.Linear(8, 8)
        self.leave = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(torch.tanh(self.norm(self.enter(x))), 0.5, self.training)
        q = self.middle(y).view(-1, 1, 2, 4)
        y = y + F.scaled_dot_product_attention(q, q, q, dropout_p=0.3 if self.training else 0.0).flatten(1)
        result: torch.Tensor = self.leave(F.dropout(y, 0.1, self.training))
        return result


def noisy() -> tuple[Program, nn.Module]:
    torch.manual_seed(0)
    model = Noisy().double()
    return program_from_module(model, (numbers(BATCH),), name="noisy", training=True), model


def trained(
    program: Program, case: Case, count: int = 3, trainer_options: TrainerOptions | None = None
) -> tuple[list[float], Any]:
    with train(
        plan_for(program, case), program, loss=main_loss, optimizer=SGD, trainer_options=trainer_options
    ) as trainer:
        losses = [trainer.step(*samples("skips", case.micro_batches * BATCH, seed)).item() for seed in range(count)]
        return losses, trainer.model_state_dict()
