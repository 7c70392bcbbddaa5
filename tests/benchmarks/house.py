"""The structure of the source, measured: rooms and the arrows between them, sizes, names.

    python -m tests.benchmarks.house [--list] [--quick] [--json FILE]

Nothing of the project is run: the figures follow from the text. A *room* is a folder with modules. An *import* counts
wherever it stands, at the top, within a function or for types only. ``--list`` names what each figure counts.
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import networkx as nx

from tests.benchmarks.bars import Bar, at_most, declare, report

ROOT = Path(__file__).parents[2]
PACKAGES = ("graphs", "costmodels", "simulator", "planner")
PLANNER_ROOMS = ("problem", "solvers", "plans", "runtime", "planning", "explanations", "exports", "view", "cli")
"""The rooms of the planner; each imports those before it."""

MOST_LINES, MOST_FUNCTION_LINES, MOST_BRANCHES, MOST_PARAMETERS = 39_000, 60, 15, 6
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """The modules of the project.

    Attributes:
        paths: of every module, by its dotted name.
    """

    paths: Mapping[str, Path]

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        """Every module, parsed."""
        return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.paths.items()}

    @cached_property
    def imports(self) -> "nx.DiGraph[str]":
        """An arrow from each module to those that it imports."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.paths)
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                graph.add_edges_from((name, known) for known in self._imported(node) if known != name)
        return graph

    def _imported(self, node: ast.AST) -> Iterator[str]:
        """The modules of the project that a statement imports."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in self.paths)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports name the whole module"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known = full if full in self.paths else node.module
                if known in self.paths:
                    yield known

    @property
    def circles(self) -> list[str]:
        """Modules that import each other, directly or through others."""
        return [" - ".join(sorted(part)) for part in nx.strongly_connected_components(self.imports) if len(part) > 1]

    @property
    def upward(self) -> list[str]:
        """Imports within the planner that run from a lower room to a higher one."""
        inside = (edge for edge in self.imports.edges if all(name.split(".")[0] == "planner" for name in edge))
        return [f"{one} -> {other}" for one, other in inside if _floor(one) < _floor(other)]

    @property
    def classes(self) -> list[str]:
        """Names of classes that stand for two things or more; a leading underscore does not count."""
        homes = defaultdict(list)
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    homes[node.name.lstrip("_")].append(name)
        return [f"{name}: {', '.join(found)}" for name, found in homes.items() if len(found) > 1]

    @property
    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function, with the place where it stands."""
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, Function):
                    yield f"{self.paths[name].relative_to(ROOT)}:{node.lineno} {node.name}", node

    @property
    def n_lines(self) -> int:
        """Lines of all files, empty ones and comments included."""
        return sum(path.read_text(encoding="utf-8").count("\n") for path in self.paths.values())


def source_of(root: Path) -> Source:
    """The modules of the four packages below a folder."""
    paths = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return Source(paths)


def _floor(module: str) -> int:
    """How high the room of a module of the planner lies; what lies in none, such as ``planner`` itself, is on top."""
    room = module.split(".")[1] if "." in module else ""
    return PLANNER_ROOMS.index(room) if room in PLANNER_ROOMS else len(PLANNER_ROOMS)


def complexity(function: Function) -> int:
    """Ways through a function (McCabe, IEEE Transactions on Software Engineering 1976), nested ones included."""
    nodes = list(ast.walk(function))
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + operands + sum(isinstance(node, BRANCHES) for node in nodes)


def n_parameters(function: Function) -> int:
    """How many values a caller gives."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def findings(source: Source) -> dict[str, tuple[list[str], int]]:
    """What each bar counts, and how many there may be."""
    functions = list(source.functions)
    long = [f"{place} ({n})" for place, f in functions if (n := _length(f)) > MOST_FUNCTION_LINES]
    branching = [f"{place} ({n})" for place, f in functions if (n := complexity(f)) > MOST_BRANCHES]
    wide = [f"{place} ({n})" for place, f in functions if (n := n_parameters(f)) > MOST_PARAMETERS]
    contended = [path.name for name, path in source.paths.items() if path.parent == ROOT / "planner"]
    return {
        "import circles, late and type-only imports included": (source.circles, 0),
        "imports that run upward inside planner/": (source.upward, 0),
        "files directly in planner/": (contended, 3),
        "class names that stand for two things": (source.classes, 0),
        f"functions over {MOST_FUNCTION_LINES} lines": (long, 0),
        f"functions with a cyclomatic complexity over {MOST_BRANCHES}": (branching, 0),
        f"functions with more than {MOST_PARAMETERS} parameters": (wide, 6),
    }


def _length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description="the structure of the source, measured")
    parser.add_argument("--list", action="store_true", help="name what each figure counts")
    declare(parser)
    arguments = parser.parse_args()
    source = source_of(ROOT)
    bars: list[Bar] = []
    for name, (found, most) in findings(source).items():
        bars.append(at_most(name, len(found), most))
        if arguments.list and found:
            print(f"{name}:", *found, sep="\n  ")
    bars.append(at_most("lines of source", source.n_lines, MOST_LINES))
    return report(bars, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
