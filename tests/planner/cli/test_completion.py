"""Completions, in the shells themselves as far as they are here."""

import re
import shutil
from pathlib import Path

import pytest

from planner.cli import COMMANDS, main
from planner.cli.completion_ import SHELLS
from tests.children import ran

needs = {shell: pytest.mark.skipif(shutil.which(shell) is None, reason=f"no {shell} here") for shell in SHELLS}


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_it_is_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert script(shell, capsys) == script(shell, capsys)


@needs["bash"]
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("pla",), "plan"),
        (("i",), "import import-map"),
        (("--v",), "--version"),
        (("plan", "--time"), "--time-limit"),
        (("plan", "--goal", "t"), "throughput training"),
        (("export", "--to", "torch-s"), "torch-split-spec torch-schedule-csv"),
        (("plan", "--gap", ""), ""),  # a number: nothing to offer
        (("show", "--format", ""), "html svg png dot"),
        (("completion", ""), "bash zsh fish"),
        (("show", "pl"), ""),  # files, by the shell
    ],
)
def test_bash_completes(words: tuple[str, ...], offered: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = " ".join(f"'{word}'" for word in ("planner", *words))
    ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words)}; _planner; echo "${{COMPREPLY[*]}}"'
    done = ran(["bash", "-c", f"{script('bash', capsys)}\n{ask}"])
    assert (done.stdout.strip(), done.stderr) == (offered, "")


@needs["zsh"]
def test_zsh_understands_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script("zsh", capsys)
    done = ran(["zsh", "-f", "-n"], input=text, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    code = f"autoload -U compinit && compinit -u -d {tmp_path / 'dump'}\n{text}\nwhence -w _planner"
    done = ran(["zsh", "-f"], input=code, check=False)
    assert (done.stdout, done.stderr) == ("_planner: function\n", "")


@needs["fish"]
def test_fish_completes_with_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    text = script("fish", capsys)

    def offered(line: str) -> dict[str, str]:
        code = f"{text}\ncomplete -C '{line}'"
        done = ran(["fish", "-N", "-c", code])
        assert done.stderr == ""
        return dict(row.partition("\t")[::2] for row in done.stdout.splitlines())

    assert offered("planner pla") == {"plan": COMMANDS["plan"]}
    assert set(offered("planner plan --goal t")) >= {"throughput", "training"}
    assert offered("planner show --meas")["--measured"].startswith("a run.json")
    assert "--measured" not in offered("planner plan --")


def test_every_option_is_offered_in_every_shell(capsys: pytest.CaptureFixture[str]) -> None:
    bash, fish = script("bash", capsys), script("fish", capsys)
    for option in ("--split-cpu", "--contiguous", "--measured", "--force", "--quiet", "--add-device"):
        assert re.search(rf"[\" ]{option}[\" ]", bash)
        assert f" -l {option[2:]} " in fish
