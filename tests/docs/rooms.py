"""The picture of the rooms in ARCHITECTURE.md: a column for each package, a box for each room.

::

    graphs  ←  costmodels  ←  simulator  ←  planner
    a room     a room         a room        a room   a room
"""

from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

COLUMN, BOX, ROW, GAP, HEAD, FOOT = 206, 190, 56, 34, 86, 36  # pixels; boxes are in columns, columns apart by arrows
STYLE = """text { font-family: Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; fill: #1a1e24; }
.package { font-size: 16px; font-weight: 700; }
.room { font-size: 12.5px; font-weight: 600; }
.small { font-size: 10.5px; fill: #5b6572; }
.frame { fill: #f4f6f8; stroke: #c6cdd5; }
.box { fill: #ffffff; stroke: #98a2af; }
.fenced { stroke-dasharray: 4 3; }
.arrow { stroke: #15181d; stroke-width: 2; fill: none; }
.tip { fill: #15181d; }"""


class Room(NamedTuple):
    """A room, and two short lines that say what it is for."""

    name: str
    first: str
    second: str
    fenced: bool = False


class Package(NamedTuple):
    """A package, the question that it answers, the records that it owns, and its rooms in columns."""

    name: str
    question: str
    records: str
    columns: tuple[tuple[Room, ...], ...]


PACKAGES = (
    Package(
        "graphs",
        "what is computed",
        "Graph, Program",
        (
            (
                Room("ir, files, networkx", "operators and tensors,", "graph.json"),
                Room("common", "errors, checks of arguments,", "documents, arrays"),
                Room("program", "the PyTorch call of each", "operator"),
                Room("rewrites", "the same network as another", "graph: fuse, split"),
                Room("importers", "torch.export, ONNX,", "config.json → Program"),
                Room("kernels", "quicker ways to execute", "operators on a CPU"),
            ),
        ),
    ),
    Package(
        "costmodels",
        "what it costs",
        "Cluster, Profile, CostTable",
        (
            (
                Room("table, tabulate", "graph, cluster and workload", "→ CostTable"),
                Room("cluster", "devices, links, prices,", "collectives, cluster.toml"),
                Room("operators", "FLOP, bytes and keys of", "operators, the pace"),
                Room("memory", "bytes that stay, are saved,", "or are on their way"),
                Room("language_model", "layers, caches and weights of", "models that generate text"),
                Room("learning", "times that were never", "measured"),
                Room("generation", "the work of language models,", "rates of engines"),
                Room("estimates", "times on devices of which only", "the data sheet is known"),
                Room("host", "this machine: cores, threads,", "fingerprint"),
                Room("calibrate", "measures operators and", "links of this machine"),
            ),
        ),
    ),
    Package(
        "simulator",
        "what will happen",
        "Placement, Timeline",
        (
            (
                Room("engine", "discrete events, without", "machine-learning words"),
                Room("placement, stages", "who computes what,", "in which order"),
                Room("schedules", "GPipe, 1F1B, interleaved,", "zero-bubble"),
                Room("timeline, usage", "what ran when, on paper", "or measured"),
            ),
        ),
    ),
    Package(
        "planner",
        "what to choose, run and show",
        "Problem, Result, Plan",
        (
            (
                Room("problem", "the placement problem, its", "evaluator and bounds"),
                Room("solvers", "one frozen value each,", "and a portfolio"),
                Room("plans", "Plan, plan.json, run.json,", "predictions"),
                Room("generation", "language models on paper", "(planner fit)"),
                Room("parallelism", "training on many devices", "(planner choose)"),
                Room("runtime", "runs, trains and verifies:", "threads, processes, ranks"),
                Room("planning", "from a model to a plan;", "autotuning, tuning"),
            ),
            (
                Room("explanations", "why a plan is as it is,", "what-if, diff"),
                Room("exports", "plans for other tools,", "and their maps"),
                Room("view", "plan.html, SVG, PNG, dot,", "notebooks"),
                Room("literature", "other people's problems", "(planner solve)", fenced=True),
                Room("cli", "parses, calls, prints: a file", "for each command"),
            ),
        ),
    ),
)


def rooms_picture() -> str:
    """Return the picture as SVG."""
    columns = sum(len(package.columns) for package in PACKAGES)
    deepest = max(len(rooms) for package in PACKAGES for rooms in package.columns)
    width = columns * COLUMN + len(PACKAGES) * GAP
    height = HEAD + deepest * ROW + FOOT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<title>The rooms of the four packages; each package imports only those to its left</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    left = GAP // 2
    for package in PACKAGES:
        lines += _package(package, left, deepest)
        left += len(package.columns) * COLUMN + GAP
    lines += [
        _text("small", GAP // 2, height - 12, "An arrow points at what is imported. Dashed: imported by cli only.")
    ]
    return "\n".join([*lines, "</svg>", ""])


def _package(package: Package, left: int, deepest: int) -> Iterator[str]:
    """Draw a package's frame, head and rooms, and the arrow to the package before it."""
    wide = len(package.columns) * COLUMN
    yield f'<rect class="frame" x="{left}" y="12" width="{wide}" height="{HEAD - 12 + deepest * ROW}" rx="8"/>'
    yield _text("package", left + 8, 34, package.name)
    yield _text("small", left + 8, 51, package.question)
    yield _text("small", left + 8, 67, f"owns {package.records}")
    if package != PACKAGES[0]:
        yield f'<path class="arrow" d="M{left} 40H{left - GAP + 8}"/>'
        yield f'<path class="tip" d="M{left - GAP + 1} 40l9 -5v10z"/>'
    for column, rooms in enumerate(package.columns):
        for row, room in enumerate(rooms):
            yield from _room(room, left + 8 + column * COLUMN, HEAD + row * ROW)


def _room(room: Room, x: int, y: int) -> Iterator[str]:
    """Draw a room."""
    style = "box fenced" if room.fenced else "box"
    yield f'<rect class="{style}" x="{x}" y="{y - 8}" width="{BOX}" height="{ROW - 8}" rx="5"/>'
    yield _text("room", x + 8, y + 7, room.name)
    yield _text("small", x + 8, y + 20, room.first)
    yield _text("small", x + 8, y + 32, room.second)


def _text(style: str, x: int, y: int, text: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{escape(text)}</text>'
