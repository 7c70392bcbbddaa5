"""The structure of the source, measured: rooms and the arrows between them, sizes, names, words.

    python -m tests.benchmarks.house [--list] [--quick] [--json FILE]

`tests.test_structure` holds most of these figures to what they are today. ``--list`` names what each figure counts.
"""

import argparse
import ast
import sys

from tests.benchmarks.bars import Bar, at_most, declare, report
from tests.structure import LAYERS, ROOT, not_english, sizes, source_of
from tests.test_structure import FLOORS

MOST_LINES, MOST_ROOMS, MOST_PAGE = 63_000, 12, 140
MOST_BRANCHING, MOST_WIDE = 0, 3
MOST_CLASSES, MOST_FUNCTIONS, MOST_WORDS = 0, 10, 57


def findings() -> dict[str, tuple[list[str], int]]:
    """Return what each bar counts, and how many there may be."""
    source = source_of(*LAYERS)
    most = (0, MOST_BRANCHING, MOST_WIDE)
    pages = [
        *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
        *(ROOT / "docs").rglob("*.md"),
    ]
    rooms = [path.name for path in (ROOT / "planner").iterdir() if (path / "__init__.py").exists()]
    return {
        "import circles, late and type-only imports included": (source.circles, 0),
        "imports that run upward": (source.upward(FLOORS), 0),
        "rooms at the top of planner/": (rooms, MOST_ROOMS),
        "class names that stand for two things": (source.ambiguous(ast.ClassDef), MOST_CLASSES),
        "function names that stand for two things": (source.ambiguous(ast.FunctionDef), MOST_FUNCTIONS),
        **{name: (found, n) for (name, found), n in zip(sizes(source).items(), most, strict=True)},
        "words that are not English": (not_english([*source.paths.values(), *pages]), MOST_WORDS),
    }


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description="the structure of the source, measured")
    parser.add_argument("--list", action="store_true", help="name what each figure counts")
    declare(parser)
    arguments = parser.parse_args()
    bars: list[Bar] = []
    for name, (found, most) in findings().items():
        bars.append(at_most(name, len(found), most))
        if arguments.list and found:
            print(f"{name}:", *found, sep="\n  ")
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    bars.append(at_most("lines of ARCHITECTURE.md", page.count("\n"), MOST_PAGE))
    bars.append(at_most("lines of source", source_of(*LAYERS).lines.total(), MOST_LINES))
    return report(bars, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
