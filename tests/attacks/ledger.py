"""The table of docs/attacks.md: how many inputs were tried of each target, and how many broke through."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.attacks.campaign import Corpus

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"
MARK = "<!-- table -->\n"
HEAD = "| kind | target | tried | broken through | version |\n| --- | --- | ---: | ---: | --- |\n"


@dataclass(frozen=True)
class Row:
    """What was tried of a target, in all campaigns.

    Attributes:
        tried: inputs, each of another seed.
        broken: of these, how many broke through when they were tried; what is mended since counts too.
        version: of the planner, at the last of them.
    """

    tried: int = 0
    broken: int = 0
    version: str = ""


def read_page(page: Path = PAGE) -> dict[str, Row]:
    """Return the rows of the page, by "kind name"."""
    lines = page.read_text(encoding="utf-8").partition(MARK)[2].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    return {
        f"{kind} {name}": Row(_number(tried), _number(broken), of)
        for kind, name, tried, broken, of in cells
        if tried[:1].isdigit()
    }


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def merged(rows: Mapping[str, Row], corpus: Corpus) -> dict[str, Row]:
    """Return the rows with what is new in a corpus."""
    made = dict(rows)
    for key in corpus.counts:
        if new := corpus.new(key):
            row, first = made.get(key, Row()), corpus.counted.get(key, 0)
            broken = sum(seed >= first for seed in corpus.broken_through(key))
            made[key] = Row(row.tried + new, row.broken + broken, version("placement-planner"))
    return made


def write_page(rows: Mapping[str, Row], corpus: Corpus, page: Path = PAGE) -> None:
    """Write the table, and note in the corpus that the page has counted what is there."""
    lines = [
        f"| {kind} | {name} | {row.tried:,} | {row.broken:,} | {row.version} |\n"
        for key, row in sorted(rows.items())
        for kind, _, name in [key.partition(" ")]
    ]
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    page.write_text(text + MARK + HEAD + "".join(lines), encoding="utf-8")
    corpus.counted = dict(corpus.counts)
    corpus.save()
