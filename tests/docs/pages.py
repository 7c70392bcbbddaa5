"""Pages of Markdown as programs: their blocks run in order in one folder, and say what they printed.

::

    ```sh                            planner commands and others; `# exit status 2` behind one that fails
    ```python                        run; all of a page share their names
    ```toml title="cluster.toml"     a file that is written, in any language
    ```text                          what the block above it prints; `...` stands for anything
    ```text measured                 the same, but for the numbers
    ```                              a drawing or a formula
    <!-- not run: why -->            above a block that cannot run in a test
"""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from difflib import unified_diff
from importlib import invalidate_caches
from io import StringIO
from pathlib import Path
from typing import Any

from planner.cli import main
from tests.children import ran

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
APART = ("goals", "tutorials")
"""Folders whose pages are tested in files of their own, so that workers share the pages."""

FENCE = re.compile(
    r"(?P<before><!-- not run: (?P<why>.+?) -->\n)?^```(?P<info>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE
)
TITLE = re.compile(r'title="(.+?)"')
STATUS = re.compile(r"# exit status (\d+)$")
ERROR = re.compile(r"^planner[ \w-]*: ")
QUANTITY = re.compile(
    r"[+−-]?\d[\d,.]*(e[+-]?\d+)?( ?(%|×|[num]?s|min|[KMGT]?i?B|[kKMGT]i?B/s|[MGT]?B/s|[GT]FLOP/s))?(?!\w)"
)
ANY_LINES = r"(?:.*\n)*?"
SLOWER = 30.0  # times as slow as usual a machine may be and pages show the same plans, see `planner.problem.deadline`
TIMEOUT_S = 600  # ends what hangs
WIDTH = "100"  # columns of help texts
RUN = ("sh", "python")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        line: where it begins, from 1.
        language: the first word behind the fence.
        text: what is in it.
        title: the file that it is, or nothing.
        measured: whether numbers in it differ from run to run.
        not_run: why it does not run, or nothing.
        start, end: where its text stands in the page.
    """

    line: int
    language: str
    text: str
    title: str = ""
    measured: bool = False
    not_run: str = ""
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class Output:
    """What a page says that a block prints, and what it printed."""

    block: Block
    printed: str

    @property
    def right(self) -> bool:
        """Whether the page tells the truth."""
        return matches(self.block.text, self.printed, self.block.measured)

    def __str__(self) -> str:
        shown, printed = (tidy(text).splitlines() for text in (self.block.text, self.printed))
        difference = unified_diff(shown, printed, "page", "printed", n=9, lineterm="")
        return f"line {self.block.line}:\n" + "\n".join(difference)


class PageError(AssertionError):
    """A block of a page does not run."""


def blocks(text: str) -> list[Block]:
    """Every fenced block of a page."""
    found = []
    for match in FENCE.finditer(text):
        words = match["info"].split()
        title = TITLE.search(match["info"])
        found.append(
            Block(
                line=text.count("\n", 0, match.start("info")) + 1,
                language=words[0] if words else "",
                text=match["text"],
                title=title[1] if title else "",
                measured="measured" in words[1:],
                not_run=match["why"] or "",
                start=match.start("text"),
                end=match.end("text"),
            )
        )
    return found


def name_of(page: Path) -> str:
    """A page's path below the project."""
    return str(page.relative_to(ROOT))


def check_page(page: Path, environment: Mapping[str, str], folder: Path) -> None:
    """Run a page, and compare what its blocks print with what stands below them.

    Args:
        page: a file of `PAGES`.
        environment: variables to set meanwhile.
        folder: where its files go.
    """
    outputs = run_page(page.read_text(encoding="utf-8"), folder, environment)
    wrong = [str(output) for output in outputs if not output.right]
    assert not wrong, f"{name_of(page)}: `make pages` writes what is printed now\n" + "\n".join(wrong)


def run_page(text: str, folder: Path, environment: Mapping[str, str]) -> list[Output]:
    """Run all blocks of a page in a folder; what those printed whose output is shown.

    Raises:
        PageError: for a block that fails, or an output without a block that prints it.
    """
    page, printed, shown = Page(environment), None, []
    with chdir(folder), page:
        for block in blocks(text):
            if block.language == "text":
                if printed is None:
                    raise PageError(f"line {block.line}: this output stands under no block that runs")
                shown.append(Output(block, printed))
                printed = None
            elif block.title:
                path = Path(block.title)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
                printed = None
            elif block.language in RUN:
                printed = None if block.not_run else page.run(block)
    return shown


@dataclass
class Page:
    """What the blocks of a page share: names, modules and environment."""

    environment: Mapping[str, str]
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    _loaded: frozenset[str] = frozenset()
    _before: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> None:
        self._loaded, self._before = frozenset(sys.modules), dict(os.environ)
        os.environ.update({"COLUMNS": WIDTH, **self.environment})
        sys.path.insert(0, str(Path.cwd()))

    def __exit__(self, *_: object) -> None:
        """Forget the modules of this folder: the next page may have others of the same name."""
        here = str(Path.cwd())
        sys.path.remove(here)
        for name in set(sys.modules) - self._loaded:
            if os.path.abspath(getattr(sys.modules[name], "__file__", None) or "/").startswith(here):
                del sys.modules[name]
        os.environ.clear()
        os.environ.update(self._before)

    def run(self, block: Block) -> str:
        """Run a block of commands or of Python; what it prints."""
        invalidate_caches()
        if block.language == "sh":
            return "".join(self._command(line, block.line) for line in commands(block.text))
        printed = StringIO()
        try:
            with redirect_stdout(printed):
                exec(compile(block.text, f"the block at line {block.line}", "exec"), self.names)
        except Exception as error:
            raise PageError(f"line {block.line}: {traceback.format_exc()}") from error
        return printed.getvalue()

    def _command(self, line: str, number: int) -> str:
        expected = int(match[1]) if (match := STATUS.search(line)) else 0
        words = shlex.split(line, comments=True)
        alone = not set(shlex.shlex(line, punctuation_chars=True)) & {">", "|", "&&", ";", "<<", ">>"}
        status, out, err = _planner(words[1:]) if words[0] == "planner" and alone else _shell(line)
        if status != expected:
            raise PageError(f"line {number}: `{line}` ends with {status}, not {expected}\n{out}{err}")
        said = [text for text in err.splitlines(keepends=True) if ERROR.match(text)]
        return out + "".join(said if status else ())


def commands(text: str) -> Iterator[str]:
    """The commands of a block: a line each, or several that end with a backslash; comments are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def _planner(arguments: list[str]) -> tuple[int, str, str]:
    """Within this process, which has loaded torch already."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
    return status, out.getvalue(), err.getvalue()


def _shell(line: str) -> tuple[int, str, str]:
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT)}
    done = ran(["bash", "-c", line], env=environment, limit_s=TIMEOUT_S, check=False)
    return done.returncode, done.stdout, done.stderr


def matches(shown: str, printed: str, measured: bool) -> bool:
    """Whether this was printed, but for spaces at ends of lines, what ``...`` stands for, and what is measured.

    A line ``...`` stands for any lines, or none; within a line it stands for anything up to what follows it there.
    """
    shown, printed = (tidy(text) for text in (shown, printed))
    if measured:
        shown, printed = (_without_numbers(text) for text in (shown, printed))
    parts = [""]
    for line in shown.splitlines():
        if line.strip() == "...":
            parts.append("")
        else:
            parts[-1] += _pattern(line)
    *first, last = (part if number == 0 else ANY_LINES + part for number, part in enumerate(parts))
    # the first place where a part stands is as good as any later one: no need to go back (atomic groups)
    return re.fullmatch("".join(f"(?>{part})" for part in first) + last, printed) is not None


def _pattern(line: str) -> str:
    start, *rest = map(re.escape, line.split("..."))
    end = ".*" + rest.pop() if rest else ""
    return start + "".join(f"(?>.*?{each})" for each in rest) + end + r"\n"


def _without_numbers(text: str) -> str:
    return "".join(re.sub(" +", " ", QUANTITY.sub("#", line)).strip() + "\n" for line in text.splitlines())


def tidy(text: str) -> str:
    """Without spaces at the ends of lines, and empty lines at both ends."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def corrected(text: str, outputs: list[Output], measured: bool = False) -> str:
    """The page with what was printed in the place of what is wrong; on demand with what was measured now."""
    for output in reversed(outputs):
        block = output.block
        if measured and block.measured:
            new = remeasured(block.text, output.printed)
        else:
            new = block.text if output.right or block.measured else renewed(block.text, output.printed)
        text = text[: block.start] + new + text[block.end :]
    return text


def renewed(shown: str, printed: str) -> str:
    """What was printed, but for lines in which something was left out that still match."""
    left_out = [line for line in shown.splitlines() if "..." in line and line.strip() != "..."]
    lines = tidy(printed).splitlines()
    return "".join(next((s for s in left_out if re.fullmatch(_pattern(s), f"{line}\n")), line) + "\n" for line in lines)


def remeasured(shown: str, printed: str) -> str:
    """The lines that are shown, each with the numbers of the next line that was printed with the same words."""
    left, found = printed.splitlines(), []
    for line in shown.splitlines():
        place = next((i for i, other in enumerate(left) if matches(line, other, measured=True)), None)
        if place is None or "..." in line:
            found.append(line)
        else:
            found.append(left[place].rstrip())
            del left[: place + 1]
    return "\n".join(found) + "\n"
