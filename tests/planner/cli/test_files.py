"""Nothing is overwritten unasked, by one rule and in one sentence, and before anything is computed."""

import argparse
import os
import subprocess
import sys
from errno import EACCES
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs.common.errors import InputError
from planner.cli import COMMANDS, _parser, main
from planner.cli.files import check_writes, refuse_overwriting
from planner.plans.files import save_plan
from tests.planner.cli.given import MNIST, ROOT, Refused
from tests.planner.explanations.small import diamond

TOLD = "planner: '{}' is there already; add --force to overwrite it, or choose another name\n"


def test_what_is_there_stays() -> None:
    Path("a").write_text("mine")
    with pytest.raises(InputError, match="'a' is there already; add --force"):
        refuse_overwriting([None, Path("b"), Path("a")], argparse.Namespace(force=False))
    refuse_overwriting([Path("a")], argparse.Namespace(force=True))
    refuse_overwriting([Path("/dev/null")], argparse.Namespace(force=False))  # no file whose content could be lost


def test_a_folder_that_is_not_there_is_told_before_anything_is_computed() -> None:
    with pytest.raises(InputError) as error:
        refuse_overwriting([Path("nowhere/a")], argparse.Namespace(force=True))
    assert str(error.value) == "cannot write 'nowhere/a': there is no folder 'nowhere'; choose another place"


def test_a_folder_is_no_file() -> None:
    Path("there").mkdir()
    with pytest.raises(InputError) as error:
        refuse_overwriting([Path("there")], argparse.Namespace(force=True))
    assert str(error.value) == "cannot write 'there': it is a folder; choose another place"
    refuse_overwriting([Path("there")], argparse.Namespace(force=False, writes_folder=True))


def test_a_folder_where_nothing_may_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:  # whoever runs the tests may be root, who may write anywhere
        raise PermissionError(EACCES, os.strerror(EACCES))

    monkeypatch.setattr(os, "open", refuse)
    for folder in (False, True):
        with pytest.raises(InputError) as error:
            refuse_overwriting([Path("a")], argparse.Namespace(force=True, writes_folder=folder))
        assert str(error.value) == "cannot write 'a': Permission denied; choose another place"
    refuse_overwriting([Path("/dev/stdout")], argparse.Namespace(force=False))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs the folder of processes of Linux")
def test_a_folder_that_takes_no_files_is_found_whatever_its_mode_says() -> None:
    with pytest.raises(InputError, match="cannot write '/proc/a': "):
        refuse_overwriting([Path("/proc/a")], argparse.Namespace(force=True))


def test_a_name_whose_draft_would_be_too_long_is_found_first() -> None:
    """The draft has the number of the process in its name, and is longer than the file's own."""
    with pytest.raises(InputError, match="File name too long"):
        refuse_overwriting([Path("x" * 254)], argparse.Namespace(force=True))


def test_a_check_leaves_nothing_behind() -> None:
    Path("folder").mkdir()
    refuse_overwriting([Path("a")], argparse.Namespace(force=False))
    refuse_overwriting([Path("folder")], argparse.Namespace(force=False, writes_folder=True))
    assert [str(path) for path in Path().rglob("*")] == ["folder"]


def test_a_name_that_no_file_can_have_is_told() -> None:
    with pytest.raises(InputError, match=r"cannot write 'xxx.*': File name too long; choose another place"):
        refuse_overwriting([Path("x" * 300)], argparse.Namespace(force=True))


def test_the_options_that_name_files_are_checked() -> None:
    Path("t.json").write_text("mine")
    options = argparse.Namespace(force=False, writes=("svg", "trace"), svg=None, trace=Path("t.json"))
    with pytest.raises(InputError, match=r"'t\.json'"):
        check_writes(options)
    check_writes(argparse.Namespace(force=False))  # a command that writes nothing


MODEL = ["no.such:model"]  # what would be told if anything was computed before
WRITING = {
    "import": [*MODEL, "-o", "x"],
    "calibrate": [*MODEL, "-o", "x"],
    "plan": [*MODEL, "--cluster", "no.toml", "--goal", "latency", "-o", "x"],
    "tune": [*MODEL, "--cluster", "no.toml", "--goal", "latency", "-o", "x"],
    "solve": ["no.json", "--goal", "latency", "-o", "x"],
    "simulate": ["no.json", "--trace", "x"],
    "run": ["no.json", *MODEL, "-o", "x"],
    "shard": ["no.json", *MODEL, "-o", "x"],
    "choose": ["no.json", "--cluster", "no.toml", "--global-batch", "8", "--to", "deepspeed-zero", "-o", "x"],
    "fit": ["no.json", "--cluster", "no.toml", "-o", "x"],
    "show": ["no.json", "-o", "x", "--format", "svg"],
    "export": ["no.json", "--to", "graph-json", "-o", "x"],
    "import-map": ["no.json", *MODEL, "--cluster", "no.toml", "-o", "x"],
}


@pytest.mark.parametrize("command", WRITING)
def test_every_command_refuses_before_it_starts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x").write_text("mine")
    assert main([command, *WRITING[command]]) == 2
    assert capsys.readouterr() == ("", TOLD.format("x"))
    assert Path("x").read_text() == "mine"


def test_no_command_with_a_file_is_forgotten() -> None:
    (action,) = (one for one in _parser()._actions if isinstance(one, argparse._SubParsersAction))
    with_files = {name for name, command in action.choices.items() if command.get_default("writes")}
    assert with_files <= WRITING.keys() <= COMMANDS.keys()


def test_force_overwrites(capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(diamond(), Path("plan.json"))
    Path("plan.svg").write_text("mine")
    assert main(["show", "plan.json", "-o", "plan.svg"]) == 2
    assert main(["show", "plan.json", "-o", "plan.svg", "--force"]) == 0
    assert Path("plan.svg").read_text().startswith("<svg ")
    assert capsys.readouterr().err == TOLD.format("plan.svg")


def test_a_default_name_is_protected_too(capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(diamond(), Path("plan.json"))
    assert main(["show", "plan.json"]) == 0
    assert main(["show", "plan.json"]) == 2
    assert capsys.readouterr().err == TOLD.format("plan.html")


def linked(way: str) -> str:
    """Another name of ``plan.json``."""
    match way:
        case "spelling":
            return "./x/../plan.json"
        case "hard link":
            os.link("plan.json", "other.json")
        case "symbolic link":
            Path("other.json").symlink_to("plan.json")
    return "plan.json" if way == "name" else "other.json"


@pytest.mark.attack("file")
@pytest.mark.parametrize("way", ["name", "spelling", "hard link", "symbolic link"])
def test_no_command_writes_over_what_it_reads(way: str, refused: Refused) -> None:
    Path("x").mkdir()
    save_plan(diamond(), Path("plan.json"))
    output = linked(way)
    for words in (["show", "--format", "svg"], ["export", "--to", "graph-json"], ["run", MNIST], ["simulate"]):
        command, *more = words
        option = "--trace" if command == "simulate" else "-o"
        line = refused([command, "plan.json", *more, option, output, "--force"])
        told = f"cannot write '{Path(output)}': it is 'plan.json', which is read; choose another name"
        assert line == f"planner: {told}"


@pytest.mark.attack("file")
def test_model_cluster_problem_and_map_are_read_too(refused: Refused) -> None:
    for name in ("g.json", "c.toml", "p.json", "m.json"):
        Path(name).write_text("mine")
    plan = ["plan", "g.json", "--cluster", "c.toml", "--goal", "latency", "--force", "-o"]
    assert "'g.json': it is 'g.json', which is read" in refused([*plan, "g.json"])
    assert "'c.toml': it is 'c.toml', which is read" in refused([*plan, "c.toml"])
    solve = ["solve", "p.json", "--goal", "latency", "--force", "-o", "p.json"]
    assert "'p.json': it is 'p.json', which is read" in refused(solve)
    objective_of = ["import-map", "m.json", "g.json", "--cluster", "c.toml", "--force", "-o", "m.json"]
    assert "'m.json': it is 'm.json', which is read" in refused(objective_of)
    show = ["show", "p.json", "--measured", "m.json", "--format", "svg", "--force", "-o", "m.json"]
    assert "'m.json': it is 'm.json', which is read" in refused(show)
    shard = ["shard", "shards/plan.json", MNIST, "--force", "-o", "shards"]
    Path("shards").mkdir()
    Path("shards/plan.json").write_text("mine")
    assert "'shards': it holds 'shards/plan.json', which is read" in refused(shard)


@pytest.mark.attack("file")
@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("nets.py:make", "nets.py"),
        ("./nets:make", "nets.py"),
        ("nets:make", "nets.py"),
        ("pack.nets:make", "pack/nets.py"),
        ("pack:make", "pack/__init__.py"),
        ("hub", "hub/config.json"),
        ("net.onnx", "net.onnx"),
        ("net.onnx", "weights/net.data"),
        ("shards", "shards/cpu0.safetensors"),
    ],
)
def test_every_file_of_the_model_is_read(model: str, file: str, refused: Refused) -> None:
    for folder in ("pack", "hub", "weights", "shards"):
        Path(folder).mkdir()
    for name in ("nets.py", "pack/__init__.py", "pack/nets.py", "hub/config.json", "shards/cpu0.safetensors"):
        Path(name).write_text("raise AssertionError('nothing is imported to find out')")
    weight = numpy_helper.from_array(np.ones((2, 2), np.float32), "weight")
    node = helper.make_node("MatMul", ["x", "weight"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy")
    network = helper.make_model(helper.make_graph([node], "net", [x], [y], [weight]))
    onnx.save_model(network, "net.onnx", save_as_external_data=True, location="weights/net.data", size_threshold=0)
    line = refused(["plan", model, "--cluster", "no.toml", "--goal", "latency", "--force", "-o", file])
    assert line.startswith(f"planner: cannot write '{file}': it is '")
    assert line.endswith(f"{Path(file).name}', which is read; choose another name")


@pytest.mark.parametrize("model", ["", ":", ":f", "/:f", ".:f", "..:f", "no.such:f", "no.py:f", "os:f", "json.no:f"])
def test_a_model_without_files_of_its_own_keeps_nothing_from_being_written(model: str) -> None:
    Path("x").write_text("mine")
    refuse_overwriting([Path("x")], argparse.Namespace(force=True, model=model))


@pytest.mark.attack("file")
def test_two_outputs_are_two_files(refused: Refused) -> None:
    save_plan(diamond(), Path("plan.json"))
    line = refused(["simulate", "plan.json", "--trace", "x", "--svg", "./x"])
    assert line == "planner: 'x' and 'x' are one file, which cannot hold both; choose another name"


@pytest.mark.attack("file")
def test_a_symbolic_link_is_followed(refused: Refused) -> None:
    save_plan(diamond(), Path("plan.json"))
    Path("kept").mkdir()
    Path("kept/plan.svg").write_text("old")
    for name, target in (("link.svg", "kept/plan.svg"), ("new.svg", "kept/new.svg"), ("lost.svg", "no/lost.svg")):
        Path(name).symlink_to(target)
    Path("a.svg").symlink_to("b.svg")
    Path("b.svg").symlink_to("a.svg")
    for name in ("link.svg", "new.svg"):
        assert main(["show", "plan.json", "-o", name, "--force"]) == 0
        assert Path(name).is_symlink()
        assert Path(os.readlink(name)).read_text().startswith("<svg ")
    folder = Path("no").resolve()
    told = f"planner: cannot write 'lost.svg': there is no folder '{folder}'; choose another place"
    assert refused(["show", "plan.json", "-o", "lost.svg", "--force"]) == told
    assert "Too many levels of symbolic links" in refused(["show", "plan.json", "-o", "a.svg", "--force"])
    assert not list(Path().rglob("*.tmp"))


@pytest.mark.attack("file")
def test_what_stdout_appends_to_is_not_cut_off() -> None:
    save_plan(diamond(), Path("plan.json"))
    Path("log").write_text("mine\n")
    code = "import sys; from planner.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "show", "plan.json", "--format", "dot", "-o", "/dev/stdout", "-q"]
    with Path("log").open("ab") as log:
        subprocess.run(words, stdout=log, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60)
    kept, drawn = Path("log").read_text().split("\n", 1)
    assert kept == "mine"
    assert drawn.startswith("digraph")
