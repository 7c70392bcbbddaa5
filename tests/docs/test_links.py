"""The documentation is complete: links lead somewhere, every page, command and name can be found."""

import ast
import re
from pathlib import Path

import planner
from costmodels.workload import TRAINING_SCHEDULES
from planner.cli import COMMANDS
from planner.plans.schemas import NAMES
from planner.solvers.portfolio import SOLVERS
from tests.docs.pages import PAGES, ROOT, blocks, commands

LINK = re.compile(r"\]\(([^)\s]+)\)")
OTHERS = (ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")


def links(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [link for link in LINK.findall(prose) if not link.startswith("https://")]


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in (*PAGES, *OTHERS):
        for link in links(page):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def linked(index: Path) -> set[Path]:
    return {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}


def test_every_page_is_linked_from_the_index() -> None:
    index, decisions = ROOT / "docs/README.md", ROOT / "docs/decisions/README.md"
    assert {page for page in PAGES if page.parent != ROOT and page != index} <= linked(index) | linked(decisions)
    assert decisions in linked(index)
    assert "docs/README.md" in links(ROOT / "README.md")


def test_every_command_has_its_help_and_an_example() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    lines = [line for block in blocks(page) if block.language == "sh" for line in commands(block.text)]
    for command in COMMANDS:
        assert f"planner {command} --help" in lines
        assert any(line.startswith(f"planner {command} ") and "--help" not in line for line in lines), command


def test_every_public_name_has_an_example() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    trees = [ast.parse(block.text) for block in blocks(page) if block.language == "python"]
    used = {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "planner"
    }
    assert set(planner.__all__) <= used


def test_every_format_solver_and_schedule_is_described() -> None:
    goals = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "goals")
    assert {name for name in (*SOLVERS, *TRAINING_SCHEDULES) if f"`{name}`" not in goals} == set()
    assert {page.stem for page in PAGES if page.parent.name == "formats"} == set(NAMES)
