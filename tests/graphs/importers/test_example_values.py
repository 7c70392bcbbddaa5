"""Models that ask for values of their inputs: traced with the example's, which each run checks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.expectations import KIND
from tests.graphs.importers.modules import Function

MASK = torch.tensor([True, False, True, True])


def branch(x: Tensor, mask: Tensor) -> Tensor:
    return x + 1 if mask.all() else x - 1


def number(x: Tensor, mask: Tensor) -> Tensor:
    return x[: int(mask.sum())] * mask.sum().item()


def selection(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask] * 2


def selection_among_others(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask, 1:]


def positions(x: Tensor, mask: Tensor) -> Tensor:
    of_a_number = len(mask[0].nonzero(as_tuple=True)) + torch.where(mask[1])[0].sum()
    return x[mask.nonzero(as_tuple=True)] + x[torch.where(mask)] + x[torch.nonzero(mask)[:, 0]] + of_a_number


def masked(x: Tensor, mask: Tensor) -> Tensor:
    return torch.masked_select(x, mask[:, None])


def lists(x: Tensor, mask: Tensor) -> Tensor:
    return x[: sum(mask.tolist())] * 2


def repeated(x: Tensor, mask: Tensor) -> Tensor:
    return x.repeat_interleave(mask.long(), dim=0)


def written_before(x: Tensor, mask: Tensor) -> Tensor:
    seen = mask.clone()
    seen[0] = False
    return x[seen]


def of_tensors(x: Tensor, mask: Tensor) -> Tensor:
    return x * torch.tensor([mask.sum(), 2, 3])


@pytest.mark.parametrize(
    "function",
    [
        branch,
        number,
        selection,
        selection_among_others,
        positions,
        masked,
        lists,
        repeated,
        written_before,
        of_tensors,
    ],
)
def test_values_of_inputs_are_those_of_the_example_and_checked(function: Callable[..., Tensor]) -> None:
    example = torch.rand(4, 3), MASK
    program = program_from_module(Function(function), example)
    assert KIND in {op.kind for op in program.graph.ops}
    for x, mask in (example, (torch.rand(4, 3), MASK.clone())):
        torch.testing.assert_close(program.run(x, mask), function(x, mask), rtol=0, atol=0)
    with pytest.raises(InputError, match=r"^the network was imported with example inputs that give .*import it with"):
        program.run(torch.rand(4, 3), torch.ones(4, dtype=torch.bool))


def test_other_inputs_with_the_same_answer_run() -> None:
    program = program_from_module(Function(selection), (torch.rand(4, 3), MASK))
    x, mask = torch.rand(4, 3), torch.tensor([True, True, True, False])  # three others are selected
    assert torch.equal(program.run(x, mask), x[mask] * 2)


def test_the_place_and_both_values_are_named() -> None:
    program = program_from_module(Function(branch), (torch.rand(4, 3), MASK))
    with pytest.raises(InputError) as error:
        program.run(torch.rand(4, 3), torch.ones(4, dtype=torch.bool))
    text = str(error.value)
    assert text.startswith("the network was imported with example inputs that give 0 (")
    assert text.endswith(
        "return x + 1 if mask.all() else x - 1), and these inputs give 1; import it with example inputs like these"
    )


class Router(nn.Module):
    """Sends rows to experts by a learned score."""

    def __init__(self, ask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.score = nn.Linear(3, 1)
        self.ask = ask

    def forward(self, x: Tensor) -> Tensor:
        return self.ask(x, self.score(x)[:, 0] > 0)


def counted(x: Tensor, chosen: Tensor) -> Tensor:
    return x[: sum(chosen.tolist())]


@pytest.mark.parametrize("ask", [branch, selection, counted])
def test_what_parameters_decide_is_refused_with_its_place(ask: Callable[..., Tensor]) -> None:
    with pytest.raises(InputError, match=r"test_example_values\.py:\d+: return "):
        program_from_module(Router(ask), (torch.rand(4, 3),))


def random_branch(x: Tensor, mask: Tensor) -> Tensor:
    return x[torch.rand_like(x[:, 0]) > 0.5] + mask.sum()


def overwritten(x: Tensor, mask: Tensor) -> Tensor:
    seen = mask.clone()
    seen[:] = torch.rand(4) > 0.5
    return x[seen]


@pytest.mark.parametrize("function", [random_branch, overwritten])
def test_random_values_are_not_taken_for_known(function: Callable[..., Tensor]) -> None:
    state = torch.get_rng_state()
    with pytest.raises(InputError, match="shapes that follow from what it computes"):
        program_from_module(Function(function), (torch.rand(4, 3), MASK))
    torch.set_rng_state(state)


class Catches(nn.Module):
    """Goes another way where a question for values raises an error, as one to a tensor without values does."""

    def __init__(self, ask: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.ask = ask

    def forward(self, x: Tensor) -> Tensor:
        try:
            return x + 1 if self.ask(x) else x + 2
        except Exception:  # whatever the trace raises
            return x


def test_an_error_of_the_trace_that_a_model_catches_is_no_answer() -> None:
    """The example's value is, since a call raises nothing."""
    module, x = Catches(lambda x: x.sum() > 0), torch.ones(3)
    program = program_from_module(module, (x,))
    assert torch.equal(program.run(x), module(x))
    with pytest.raises(InputError, match="import it with example inputs like these"):
        program.run(-x)


@pytest.mark.parametrize(
    "ask", [lambda x: x.sum().item() > 0, lambda x: x.numpy().sum() > 0, lambda x: torch.equal(x, x.abs())]
)
def test_such_an_error_is_the_reason_where_there_is_no_answer(ask: Callable[[Tensor], object]) -> None:
    with pytest.raises(InputError) as error:
        program_from_module(Catches(ask), (torch.ones(3),), name="net")
    place = f"{__file__}:{Catches.forward.__code__.co_firstlineno + 2}: return x + 1 if self.ask(x) else x + 2"
    text = str(error.value)
    assert place in text or "lambda x: " in text
    assert "what comes next depends on the values of tensors; compute with tensors there" in text


def test_errors_that_a_call_raises_too_are_caught_as_in_a_call() -> None:
    def ask(x: Tensor) -> Tensor:
        raise KeyError(x.shape)

    program = program_from_module(Catches(ask), (torch.ones(3),))
    assert not program.graph.ops


def packed(x: Tensor) -> Tensor:
    together = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([2, 1]), batch_first=True)
    out: Tensor = nn.GRU(3, 3, batch_first=True)(together)[1]
    return out


def test_packed_sequences_depend_on_values() -> None:
    with pytest.raises(InputError, match="what comes next depends on the values of tensors"):
        program_from_module(Function(packed), (torch.rand(2, 2, 3),))
