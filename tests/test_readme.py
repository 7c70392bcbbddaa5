"""What the README promises: its Python runs as it stands, its commands and its cluster.toml are understood."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from costmodels.clusterfile import read_cluster
from planner.cli import COMMANDS, _parser

ROOT = Path(__file__).parents[1]


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.slow
def test_the_python_runs(tmp_path: Path) -> None:
    (code,) = blocks("python")
    environment = os.environ | {"PLANNER_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "below the best there is" in ran.stdout


def test_every_command_is_shown_once_and_understood() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("planner ")]
    parsed = [_parser().parse_args(shlex.split(line, comments=True)[1:]) for line in lines]
    assert sorted(options.command for options in parsed) == sorted(COMMANDS)


def test_the_cluster_is_understood(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    assert [device.kind for device in read_cluster(path).devices] == ["A100-SXM-80GB", "V100"]


def test_make_has_the_two_commands() -> None:
    named = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE)
    rules = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert named == ["demo", "test"]
    assert set(named) <= set(rules)
