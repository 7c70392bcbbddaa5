"""The reference run, operator by operator: the same values and gradients as the module's own, to the bit."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.host.affinity import run_on
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.training.stages import wire
from planner.runtime.verification.reference import BackwardResult, Reference, run_reference
from tests.graphs.importers.modules import assert_same
from tests.planner.runtime.small import NETWORKS, cpu, program_of, reference

CPU = torch.device("cpu")


def with_gradients(program: Program, *roots: torch.Tensor) -> Reference:
    members = [tuple(range(len(program.graph.ops)))]
    backward = BackwardResult(wire(program, members).learned, dict(zip(program.graph.outputs, roots, strict=True)))
    return run_on(cpu("reference"), lambda: run_reference(program, CPU, 0, backward))


@pytest.mark.parametrize("name", NETWORKS)
def test_values_are_the_module_s(name: str) -> None:
    program = program_of(name)
    found = run_on(cpu("reference"), lambda: run_reference(program, CPU, 0))
    assert_same(program.unflatten(found.values), reference(program, program.example_arguments))
    assert not found.contributions
    assert not found.gradients
    assert found.values.keys() == {tensor.name for tensor in program.graph.tensors}


class Shared(nn.Module):
    """A tensor that three operators read, one of them twice; a tied weight, a frozen one, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = (nn.Parameter(torch.randn(4, 4, dtype=torch.float64)) for _ in range(3))
        self.frozen = nn.Parameter(torch.randn(4, dtype=torch.float64), requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x @ self.a)
        z = F.linear(y, self.b) * y + y * y + self.frozen
        return (z @ self.a).exp(), y.detach() + z


def test_gradients_are_the_module_s() -> None:
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(3, 4, dtype=torch.float64)
    program = program_from_module(model, (x,))
    roots = [torch.randn(3, 4, dtype=torch.float64) for _ in range(2)]
    found = with_gradients(program, *roots)

    def reference() -> None:
        with torch.enable_grad():
            torch.autograd.backward(model(x), roots)

    run_on(cpu("reference"), reference)
    assert found.gradients.keys() & dict(model.named_parameters()).keys() == {"a", "b"}
    for name in ("a", "b"):
        expected = model.get_parameter(name).grad
        assert expected is not None
        assert torch.equal(found.gradients[name], expected)


def test_contributions_by_hand() -> None:
    """y = 3 w, z = y y + 5 y: dz/dy = y + y + 5, of which each argument contributes its own."""

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([2.0]))

        def forward(self) -> torch.Tensor:
            y = self.w * 3
            return y * y + y * 5

    program = program_from_module(Square(), ())
    first, square, five, total = (op.name for op in program.graph.ops)
    found = with_gradients(program, torch.tensor([10.0]))
    assert {key: value.item() for key, value in found.contributions.items()} == {
        (4, 0): 10,  # the root
        (3, 0): 10, (3, 1): 10,  # the sum
        (2, 0): 50,  # times 5
        (1, 0): 60, (1, 1): 60,  # times y = 6, twice
        (0, 0): 510,  # times 3
    }  # fmt: skip
    gradients = {name: value.item() for name, value in found.gradients.items()}
    assert gradients == {total: 10, five: 10, square: 10, first: 170, "w": 510}


def test_statistics_stay_as_they_are() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    program = program_from_module(model, (torch.randn(3, 4),), training=True)
    one, two = (with_gradients(program, torch.ones(3, 4)) for _ in range(2))
    assert_same(dict(model.state_dict()), before)
    assert torch.equal(one.values["dropout"], two.values["dropout"])  # the same elements are dropped
    assert (one.values["dropout"] == 0).any()


def test_an_operator_without_a_way_back() -> None:
    program = program_of("attention")
    with pytest.raises(InputError) as error:
        with_gradients(program, torch.ones(2, 5, 8))
    assert str(error.value).endswith(
        "(aten.copy.default) has no backward pass in PyTorch, so the network cannot be trained"
    )
