"""Refusals name the line of the user's code that is to blame."""

import sys
import sysconfig
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

from graphs.importers.source_location import LONGEST, at_error, at_node, module_path, untraceable
from graphs.program.arguments import Arguments


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return helper(x)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(x)
        return result


class Mapped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return helper(x)
        except ValueError as error:
            raise RuntimeError("mapped") from error


def helper(x: Tensor) -> Tensor:
    if x.ndim != 9:
        raise ValueError("no")
    return x


def raised(module: nn.Module, x: object) -> Exception:
    try:
        module(x)
    except Exception as error:  # whichever it is
        return error
    raise AssertionError("it runs")


def place(code: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.strip() == code)
    return f"({__file__}:{number}: {code})"


@pytest.mark.parametrize(
    ("module", "x", "where"),
    [
        (Fails(), torch.ones(4), " " + place('raise ValueError("no")')),
        (nn.Sequential(nn.ReLU(), Fails()), torch.ones(4), " in '1' " + place('raise ValueError("no")')),
        (Normed(), torch.ones(3), " in 'norm' " + place("result: Tensor = self.norm(x)")),
        (nn.LayerNorm(4), torch.ones(3), ""),  # all of it is torch's own
        (nn.Sequential(nn.LayerNorm(4)), torch.ones(3), " in '0'"),
    ],
    ids=["root", "part", "torch's own part", "torch's own", "a part of torch's own"],
)
def test_the_innermost_line_that_a_user_wrote(module: nn.Module, x: Tensor, where: str) -> None:
    assert at_error(raised(module, x), module) == where


def test_an_error_that_came_from_another() -> None:
    module = Mapped()
    with pytest.raises(RuntimeError, match="mapped") as error:
        module(torch.ones(4))
    assert at_error(error.value, module) == " " + place('raise RuntimeError("mapped") from error')
    bare = RuntimeError("told again, somewhere else")
    bare.__cause__ = error.value
    assert at_error(bare, module) == at_error(error.value, module)


def test_no_line_where_the_module_did_not_run() -> None:
    assert at_error(ValueError("never raised"), nn.ReLU()) == ""
    assert at_error(raised(Fails(), torch.ones(4)), nn.ReLU()) == ""


def test_long_lines_are_cut_and_code_without_a_file_is_passed_over() -> None:
    code = types.ModuleType("made_up")
    exec(compile("def made_up(x):\n    return x.nothing", "<made up>", "exec"), code.__dict__)

    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return code.made_up(x) + code.made_up(x) + code.made_up(x) + code.made_up(x)  # type: ignore[no-any-return]

    found = at_error(raised(Calls(), torch.ones(4)), Calls())
    assert found == ""  # another module of the same class
    module = Calls()
    shown = at_error(raised(module, torch.ones(4)), module).partition(": ")[2]
    assert shown.startswith("return code.made_up(x) + ")
    assert len(shown) == LONGEST + len(")")
    assert shown.endswith("...)")


def test_files_of_installed_packages_are_named_without_their_folder() -> None:
    file = Path(sysconfig.get_path("purelib")) / "models" / "net.py"
    package = types.ModuleType("net")
    exec(compile("def fail(x):\n    return x.nothing", str(file), "exec"), package.__dict__)

    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return package.fail(x)  # type: ignore[no-any-return]

    module = Calls()
    assert at_error(raised(module, torch.ones(4)), module) == f" ({Path('models', 'net.py')}:2)"


def test_an_operator_knows_its_line() -> None:
    exported = torch.export.export(nn.Sequential(Normed()), (torch.ones(2, 4),), strict=False)
    (node,) = (node for node in exported.graph.nodes if node.op == "call_function")
    assert module_path(node) == "0.norm"
    assert at_node(node) == " in '0.norm' " + place("result: Tensor = self.norm(x)")
    node.meta["stack_trace"] = None
    assert at_node(node) == " in '0.norm'"
    bare = fx.Graph().placeholder("x")
    assert (module_path(bare), at_node(bare)) == ("", "")


def test_the_second_call_of_a_module_has_its_path() -> None:
    node = fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"a": ("", "Net"), "b": ("block@1", "Block")}
    assert module_path(node) == "block"


def test_values_have_a_way_out_of_their_own() -> None:
    assert untraceable(ValueError("odd\n\nmore"), nn.ReLU(), Arguments((), {})) == (
        ": odd; see that the model itself takes these inputs; make its forward free of control flow that depends on "
        "tensor values, or export it yourself to .pt2"
    )
    fake = sys.modules["torch._subclasses.fake_tensor"]
    assert untraceable(fake.DynamicOutputShapeException("aten.nonzero"), nn.ReLU(), Arguments((), {})) == (
        ": what comes next depends on the values of tensors; compute with tensors there (torch.where for an if, a mask "
        "for a selection, every expert on all rows), or pass the number in as an argument"
    )
