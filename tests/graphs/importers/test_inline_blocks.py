"""Blocks under torch.no_grad() and the like become operators among the others."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import fx, nn

from graphs.importers.functionalize import inline_blocks
from tests.graphs.importers.random_programs import example


def kinds(graph: fx.Graph) -> list[str]:
    return [str(node.target).removeprefix("aten.") for node in graph.nodes if node.op == "call_function"]


class TestInlineBlocks:
    def inlined(self, function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Before and after."""

        class Module(nn.Module):
            def forward(self, *inputs: torch.Tensor) -> Any:
                return function(*inputs)

        before = torch.export.export(Module(), inputs, strict=False).graph_module
        after = fx.GraphModule(before, deepcopy(before.graph))
        inline_blocks(after)
        after.graph.lint()
        after.recompile()
        got = torch.utils._pytree.tree_leaves(after(*inputs))
        want = torch.utils._pytree.tree_leaves(function(*inputs))
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        return before, after

    def test_one_block(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x.sin()
            return y.cos()

        before, after = self.inlined(function, example())
        assert kinds(before.graph)[0] == "wrap_with_set_grad_enabled"
        assert kinds(after.graph) == ["sin.default", "cos.default"]
        assert not [node for node in after.graph.nodes if node.op == "get_attr"]

    def test_operators_say_which_block_they_came_from(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = x.sin()
                with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                    x = x.exp()
            return x.cos()

        _, after = self.inlined(function, example())
        found = {
            str(node.target).split(".")[1]: (node.meta.get("gradients"), node.meta.get("autocast"))
            for node in after.graph.nodes
            if node.op == "call_function"
        }
        assert found == {"sin": (False, None), "exp": (None, False), "cos": (None, None)}

    def test_nested_blocks_of_the_same_name(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            for step in (torch.sin, torch.exp):
                with torch.no_grad():
                    x = step(x)
                    with torch.autocast("cpu", enabled=False):
                        x = x.cos()
                    x = x.tan()
                with torch.autocast("cpu", enabled=False):
                    x = x.relu()
            return x.sqrt()

        before, after = self.inlined(function, example())
        outer = {name for name, _ in before.named_children()}
        inner = {name for _, child in before.named_children() for name, _ in child.named_children()}
        assert outer & inner  # what makes the test one
        names = ("sin", "cos", "tan", "relu", "exp", "cos", "tan", "relu", "sqrt")
        assert kinds(after.graph) == [f"{name}.default" for name in names]

    def test_several_results_and_inputs(self) -> None:
        def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.no_grad():
                total, difference = x + y, x - y
            return difference, total * x

        _, after = self.inlined(function, example(), example().flip(0))
        assert kinds(after.graph) == ["add.Tensor", "sub.Tensor", "mul.Tensor"]

    def test_what_is_traced_stays_as_it_was(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = x.sin()
                with torch.autocast("cpu", enabled=False):
                    x = x.cos()
            return x + 1

        before, _ = self.inlined(function, example())
        assert "wrap_with_set_grad_enabled" in kinds(before.graph)
        (block,) = (child for _, child in before.named_children())
        assert isinstance(block, fx.GraphModule)
        assert "wrap_with_autocast" in kinds(block.graph)

    def test_autocast_goes_where_it_is_off(self) -> None:
        def off(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                x = x @ x.t()
            return x + 1

        def on(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = x @ x.t()
            return x + 1

        assert kinds(self.inlined(off, example())[1].graph) == ["t.default", "matmul.default", "add.Tensor"]
        assert kinds(self.inlined(on, example())[1].graph) == [
            "wrap_with_autocast",
            "<built-in function getitem>",
            "add.Tensor",
        ]
