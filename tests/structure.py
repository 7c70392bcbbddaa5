"""The structure of the project, measured from its text: modules and their imports, sizes, names, and words.

Nothing is run. `tests.test_structure` holds the figures to their bars; `tests.benchmarks.house` prints them. A *room*
is a folder with modules. An *import* counts wherever it stands: at the top, in a function, or for types only.
"""

import ast
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import networkx as nx

ROOT = Path(__file__).parents[1]
LAYERS = ("graphs", "costmodels", "simulator", "planner")  # each imports itself and those before it
MOST_FUNCTION_LINES, MOST_BRANCHES, MOST_PARAMETERS = 60, 15, 6
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef

When = Literal["start", "call", "never"]
"""A module is loaded with its importer, when a function is called, or only by the type checker."""


class Import(NamedTuple):
    """The target of one import statement."""

    importer: str
    target: str
    line: int
    when: When


@dataclass(frozen=True)
class Source:
    """Modules of the project.

    Attributes:
        paths: the file of every module, by its dotted name.
    """

    paths: Mapping[str, Path]

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        """Every module, parsed."""
        return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.paths.items()}

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """The targets of all import statements; ``from a import b`` counts as a.b where that is a module, else as a."""
        return tuple(found for name, tree in self.trees.items() for found in imports_of(tree, name, self.paths.keys()))

    @property
    def circles(self) -> list[str]:
        """Modules that import each other, directly or through others."""
        graph = nx.DiGraph((i.importer, i.target) for i in self.imports if i.target in self.paths)
        own = [name for name in graph if graph.has_edge(name, name)]
        return [*own, *(" - ".join(sorted(part)) for part in nx.strongly_connected_components(graph) if len(part) > 1)]

    def upward(self, floors: tuple[str, ...]) -> list[str]:
        """Return the imports from a module of one floor into a later one; a module of no floor is on the last."""

        def floor(module: str) -> int:
            below = (i for i, room in enumerate(floors) if within(module, room))
            return next(below, len(floors))

        known = (found for found in self.imports if found.target in self.paths)
        return [f"{i.importer}:{i.line} imports {i.target}" for i in known if floor(i.importer) < floor(i.target)]

    def ambiguous(self, kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> list[str]:
        """Return the names of classes, or of public functions of modules, that stand for two things or more.

        A leading underscore of a class does not count.
        """
        homes = defaultdict(list)
        for name, tree in self.trees.items():
            for node in ast.walk(tree) if kind is ast.ClassDef else tree.body:
                if not isinstance(node, kind) or _is_overload(node):
                    continue
                if kind is ast.ClassDef or not node.name.startswith("_"):
                    homes[node.name.lstrip("_")].append(name)
        return [f"{name}: {', '.join(found)}" for name, found in sorted(homes.items()) if len(found) > 1]

    @property
    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function, with the place where it stands."""
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, Function) and not _is_overload(node):
                    yield f"{self.paths[name].relative_to(ROOT)}:{node.lineno} {node.name}", node

    @property
    def lines(self) -> Counter[str]:
        """Lines of the files of each room, empty ones and comments included."""
        lines: Counter[str] = Counter()
        for path in self.paths.values():
            lines[path.parent.relative_to(ROOT).as_posix()] += path.read_text(encoding="utf-8").count("\n")
        return lines


def source_of(*packages: str) -> Source:
    """Return the modules of packages of this project."""
    files = (path for package in packages for path in sorted((ROOT / package).rglob("*.py")))
    return Source({_module_name(path): path for path in files})


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(module: str, room: str) -> bool:
    """Return whether a module is a room or stands in it."""
    return module == room or module.startswith(f"{room}.")


def imports_of(tree: ast.AST, importer: str, known: Set[str], when: When = "start") -> Iterator[Import]:
    """Yield the targets of the import statements of a module; ``known`` are the names of all modules."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(importer, alias.name, node.lineno, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}:{node.lineno} imports relatively; write the whole name"
            base = node.module or ""
            for alias in node.names:
                target = f"{base}.{alias.name}"
                yield Import(importer, target if target in known else base, node.lineno, when)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from imports_of(ast.Module(node.body, []), importer, known, "never")
            yield from imports_of(ast.Module(node.orelse, []), importer, known, when)
        elif isinstance(node, Function) and when == "start":
            yield from imports_of(node, importer, known, "call")
        else:
            yield from imports_of(node, importer, known, when)


def complexity(function: Function) -> int:
    """Return the ways through a function, nested ones included (McCabe, IEEE Trans. on Software Engineering 1976)."""
    nodes = list(ast.walk(function))
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + operands + sum(isinstance(node, BRANCHES) for node in nodes)


def stands_in(function: Function) -> bool:
    """Return whether the operands of a function are those of an operator of ONNX or PyTorch, which sets their number.

    It is entered as an operator, or its docstring begins with the operator that it computes.
    """
    entered = any(isinstance(d, ast.Call) and ast.unparse(d.func) == "operator" for d in function.decorator_list)
    return entered or (ast.get_docstring(function) or "").startswith(("`torch.", "``aten."))


def n_parameters(function: Function) -> int:
    """Return how many values a caller gives; 0 if a standard says so."""
    if stands_in(function):
        return 0
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def n_lines(function: Function) -> int:
    """Return how many lines a function has."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _is_overload(node: ast.AST) -> bool:
    """Return whether a function is one of the signatures of the function after it."""
    own = node.decorator_list if isinstance(node, Function) else []
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in own)


def sizes(source: Source) -> dict[str, list[str]]:
    """Return the functions that are over each bar, with their places."""
    measures = {
        f"functions over {MOST_FUNCTION_LINES} lines": (n_lines, MOST_FUNCTION_LINES),
        f"functions with a cyclomatic complexity over {MOST_BRANCHES}": (complexity, MOST_BRANCHES),
        f"functions with more than {MOST_PARAMETERS} parameters": (n_parameters, MOST_PARAMETERS),
    }
    functions = list(source.functions)
    return {
        name: [f"{place} ({measure(f)})" for place, f in functions if measure(f) > most]
        for name, (measure, most) in measures.items()
    }


NOT_ENGLISH: Mapping[str, str] = {
    r"\b(?:is|are|was|were|be|been|being|gets?) told\b": "is reported, is given, says",
    r"\btold (?:at once|soon|once)\b": "is reported",
    r"\bbehind\b": "after (in time or order)",
    r"\bbeside\b": "next to, compared with",
    r"\bso many\b": "this many, that many",
    r"\bwhoever\b": "the noun",
    r"\b(?:round|rounds|computes?|called|named) otherwise\b": "differently",
    r"\bin the place of\b": "instead of",
    r"^(?:What|Of|Those|Likewise|Whose|Who)\b": "an imperative verb",
}
"""Words and forms that do not say in English what is meant, and what says it; ``^`` is the beginning of a docstring."""

CODE = re.compile(r"`[^`]*`")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield comments and strings of a Python file, or the lines of a page, with line numbers and without code."""
    if path.suffix != ".py":
        fenced = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.startswith("```")
            if not fenced:
                yield number, f" {CODE.sub('', line)}"
        return
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], f" {CODE.sub('', token.string)}"
            elif token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
                text = re.sub(r"^[rbfuRBFU]*(\"\"\"|'''|\"|')", lambda m: "" if len(m[1]) == 3 else " ", token.string)
                yield token.start[0], CODE.sub("", text)


def words_not_english(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the words and forms of a file that are not English, with their lines."""
    for line, text in prose(path):
        for form in NOT_ENGLISH:
            for found in re.finditer(form, text, 0 if form.startswith("^") else re.IGNORECASE):
                yield line, found[0]


def not_english(paths: Iterable[Path]) -> list[str]:
    """Return the places of words and forms that are not English."""
    return [f"{path.relative_to(ROOT)}:{line} {word}" for path in paths for line, word in words_not_english(path)]
