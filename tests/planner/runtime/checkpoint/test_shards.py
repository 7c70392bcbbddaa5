"""A folder of shards: each device's own weights and no others, written whole or not at all."""

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest
import torch
from torch import nn

from costmodels.cluster.cluster import Cluster
from costmodels.host.affinity import run_on
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from graphs.program.strides import comparable
from planner.plans.files import save_plan
from planner.plans.plan import Plan
from planner.runtime.checkpoint import shards
from planner.runtime.checkpoint.shard_folder import TensorFile, shard_file, write_tensors
from planner.runtime.checkpoint.shards import is_shards, names_held, read_shard, write_shards
from planner.runtime.stages.compile import compile_stages
from simulator.placement import Placement
from simulator.stages import split_stages
from tests.graphs.importers.modules import assert_same
from tests.planner.runtime.small import (
    NETWORKS,
    Tied,
    alternating,
    cpu,
    desk,
    make_plan,
    program_of,
    reference,
)

SHARED = ["inputs.st", "plan.json", "program.json"]


def planned(name: str) -> tuple[Plan, Program]:
    program = program_of(name)
    return make_plan(program, alternating(program)), program


def real(program: Program) -> dict[str, torch.Tensor]:
    """The state that has values."""
    return {name: tensor for name, tensor in program.state.items() if not tensor.is_meta}


def tied_with(value: float) -> Program:
    """Equal but for one weight."""
    torch.manual_seed(0)
    model = Tied()
    with torch.no_grad():
        model.inner.bias[0] = value
    return program_from_module(model, (torch.zeros(1, 5, dtype=torch.int64),))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("options", "nothing")])
def test_all_shards_together_are_the_model(name: str, tmp_path: Path) -> None:
    plan, program = planned(name)
    paths = write_shards(plan, program, tmp_path / "shards")
    held = names_held(plan)
    assert paths == tuple(tmp_path / "shards" / f"{device}.safetensors" for device in held)
    assert sorted(contents(tmp_path / "shards")) == sorted([*SHARED, *(path.name for path in paths)])
    state: dict[str, torch.Tensor] = {}
    for device in held:
        read_plan, read = read_shard(tmp_path / "shards", device)
        assert read_plan.placement == plan.placement
        assert (read.graph.fingerprint, read.state.keys()) == (program.graph.fingerprint, program.state.keys())
        assert set(real(read)) == set(held[device])
        state |= real(read)
    for key, tensor in program.state.items():
        assert torch.equal(comparable(state[key]), comparable(tensor))
        assert (state[key].stride(), state[key].requires_grad) == (tensor.stride(), tensor.requires_grad)
        assert isinstance(state[key], nn.Parameter) == isinstance(tensor, nn.Parameter)
    args, kwargs = read.example_arguments
    whole = replace(read, state=state)
    assert_same(run_on(cpu("reference"), lambda: whole.run(*args, **kwargs)), reference(program, (args, kwargs)))


def test_a_device_compiles_its_own_stages_with_its_shard_alone(tmp_path: Path) -> None:
    plan, program = planned("branches")
    write_shards(plan, program, tmp_path / "shards")
    stages = split_stages(plan.table, plan.placement)
    for number, device in enumerate(names_held(plan)):
        _, shard = read_shard(tmp_path / "shards", device)
        own = tuple(stage for stage in stages if stage.device == number)
        _, state = compile_stages(shard, own, plan.cluster.devices)
        assert set(state.owned(number)) == set(real(shard))


def test_a_device_reads_its_own_file_and_no_other(tmp_path: Path) -> None:
    """Half of the weights is on each of two devices: each holds half, and the file of the other is not even there."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    program = program_from_module(model, (torch.ones(1, 64),))
    plan = make_plan(program, Placement((0, 0, 1, 1)), desk(2))
    first, second = write_shards(plan, program, tmp_path / "shards")
    whole = sum(tensor.nbytes for tensor in program.state.values())
    assert whole == 4 * 64 * 64 * 4
    for own, other, device in ((first, second, "cpu0"), (second, first, "cpu1")):
        aside = other.rename(tmp_path / "aside")
        _, shard = read_shard(tmp_path / "shards", device)
        assert sum(tensor.nbytes for tensor in real(shard).values()) == whole / 2
        assert whole / 2 < own.stat().st_size < whole / 2 + 1000
        aside.rename(other)


def test_tied_weights_are_there_once(tmp_path: Path) -> None:
    plan, program = planned("tied")
    (first, *_) = write_shards(plan, program, tmp_path / "shards")
    assert names_held(plan)["cpu0"] == ("words.weight",)  # the embedding's, and that of the scores on the same device
    with TensorFile(first) as file:
        assert file.names == {"words.weight"}


class Normed(nn.Module):
    """Statistics and a counter in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.drop(self.first(x)))
        return y


def test_a_network_as_it_is_trained(tmp_path: Path) -> None:
    model = Normed()
    assert model.second.num_batches_tracked is not None
    model.second.num_batches_tracked += 7
    program = program_from_module(model, (torch.randn(3, 4),), training=True)
    plan = make_plan(program, Placement((0, 0, 1)), desk(2))
    write_shards(plan, program, tmp_path / "shards")
    _, first = read_shard(tmp_path / "shards", "cpu0")
    _, second = read_shard(tmp_path / "shards", "cpu1")
    for read in (first, second):
        assert read.training
        assert read.statistics == program.statistics != frozenset()
        assert {name: update.increment for name, update in read.updates.items()} == dict.fromkeys(program.updates, 1)
    assert set(real(first)) == {f"first.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    counted = "second.num_batches_tracked"
    assert first.updates[counted].tensor.is_meta
    assert second.updates[counted].tensor.item() == 7
    assert second.updates["first.num_batches_tracked"].tensor.is_meta


class Beside(nn.Module):
    """One weight of two names, and a layer and a buffer that no operator reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unread = nn.Linear(4, 4), nn.Linear(4, 2)
        self.last = nn.Linear(4, 4)
        self.last.bias = self.first.bias
        self.register_buffer("idle", torch.arange(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.first(x).relu())
        return y


def beside(mode: Literal["inference", "training"]) -> tuple[Plan, Program]:
    """Linear and relu on cpu0, linear on cpu1; both linears read one bias, which is not trained."""
    torch.manual_seed(0)
    model = Beside()
    model.first.bias.requires_grad_(False)
    program = program_from_module(model, (torch.randn(3, 4),), training=mode == "training")
    plan = make_plan(program, Placement((0, 0, 1)), desk(2))
    return replace(plan, workload=replace(plan.workload, mode=mode)), program


def test_for_training_the_model_has_its_own_names(tmp_path: Path) -> None:
    """Under each a tensor, of which a device has its own; the first one also has what no operator reads."""
    plan, program = beside("training")
    write_shards(plan, program, tmp_path / "shards")
    states = [read_shard(tmp_path / "shards", name)[1].module.state_dict(keep_vars=True) for name in ("cpu0", "cpu1")]
    expected = program.module.state_dict()
    assert states[0].keys() == states[1].keys() == expected.keys()
    unread = {"unread.weight", "unread.bias", "idle"}
    for state, own in zip(states, ({"first.weight", *unread}, {"last.weight"}), strict=True):
        assert {name for name, tensor in state.items() if not tensor.is_meta} == {*own, "first.bias", "last.bias"}
        assert state["first.bias"] is state["last.bias"]
        assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items() if not tensor.is_meta)
    document = json.loads((tmp_path / "shards" / "program.json").read_text())
    del document["entries"]
    (tmp_path / "shards" / "program.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"program\.json' has no 'entries'; write the shards anew$"):
        read_shard(tmp_path / "shards", "cpu0")


def test_for_inference_nothing_is_written_that_nobody_reads(tmp_path: Path) -> None:
    plan, program = beside("inference")
    write_shards(plan, program, tmp_path / "shards")
    with TensorFile(tmp_path / "shards" / "cpu0.safetensors") as file:
        assert file.names == {"first.weight", "first.bias"}
    assert "entries" not in json.loads((tmp_path / "shards" / "program.json").read_text())


def test_a_buffer_is_with_each_of_its_readers() -> None:
    plan, _ = planned("attention")
    assert [device for device, names in names_held(plan).items() if "mask" in names] == ["cpu0", "cpu2"]


def test_what_the_network_returns_as_it_is_stands_with_the_first_device() -> None:
    program = program_of("handed")  # add on cpu1, mul, which reads the weight, on cpu2
    assert names_held(make_plan(program, Placement((1, 2)))) == {"cpu1": ("weight",), "cpu2": ("weight",)}


def test_a_network_without_operators(tmp_path: Path) -> None:
    plan, program = planned("nothing")
    assert write_shards(plan, program, tmp_path / "shards") == ()
    assert sorted(contents(tmp_path / "shards")) == SHARED


def test_the_same_model_is_the_same_bytes(tmp_path: Path) -> None:
    plan, program = planned("attention")
    for name in ("one", "two"):
        write_shards(plan, program, tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_devices_of_any_name(tmp_path: Path) -> None:
    program = program_of("tied")
    name = "../host 1/gpu:0"
    plan = make_plan(program, Placement((0, 0, 0, 0)), Cluster("odd", (cpu(name),)))
    (path,) = write_shards(plan, program, tmp_path / "shards")
    assert path.name == shard_file(name) == "..%2Fhost 1%2Fgpu%3A0.safetensors"
    _, shard = read_shard(tmp_path / "shards", name)
    assert real(shard).keys() == program.state.keys()


def test_what_is_a_folder_of_shards(tmp_path: Path) -> None:
    plan, program = planned("tied")
    write_shards(plan, program, tmp_path / "shards")
    assert is_shards(tmp_path / "shards")
    assert not is_shards(tmp_path)
    assert not is_shards(tmp_path / "shards" / "plan.json")
    assert not is_shards(tmp_path / "nowhere")


class TestTheFolder:
    """Nothing that looks whole is left when something goes wrong, and what was there stays."""

    def test_an_empty_one_is_used(self, tmp_path: Path) -> None:
        (tmp_path / "shards").mkdir()
        write_shards(*planned("tied"), tmp_path / "shards")
        assert os.listdir(tmp_path) == ["shards"]

    def test_one_that_is_there_needs_force(self, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        write_shards(*planned("tied"), folder)
        before = contents(folder)
        with pytest.raises(InputError) as error:
            write_shards(*planned("branches"), folder)
        assert str(error.value) == (f"'{folder}' is there already; add --force to overwrite it, or choose another name")
        assert contents(folder) == before
        write_shards(*planned("branches"), folder, force=True)
        assert contents(folder) != before
        assert os.listdir(tmp_path) == ["shards"]

    def test_fewer_devices_leave_no_file_of_the_others(self, tmp_path: Path) -> None:
        program = program_of("tied")
        write_shards(make_plan(program, alternating(program)), program, tmp_path / "shards")
        write_shards(make_plan(program, Placement((0, 0, 0, 0))), program, tmp_path / "shards", force=True)
        assert sorted(contents(tmp_path / "shards")) == ["cpu0.safetensors", *SHARED]

    def test_one_with_other_things_is_never_replaced(self, tmp_path: Path) -> None:
        write_shards(*planned("tied"), tmp_path / "shards")
        (tmp_path / "shards" / "thesis.tex").touch()
        with pytest.raises(InputError) as error:
            write_shards(*planned("tied"), tmp_path / "shards", force=True)
        assert str(error.value) == (
            f"'{tmp_path}/shards' holds 'thesis.tex', which is no shard that belongs to a 'program.json' there; "
            "choose another name, or move it away"
        )

    @pytest.mark.attack("file")
    @pytest.mark.parametrize("name", ["bert.safetensors", "cpu0.safetensors", "plan.json", "inputs.st", "program.json"])
    @pytest.mark.parametrize("beside", [False, True])
    def test_what_somebody_else_has_written_is_kept(self, name: str, beside: bool, tmp_path: Path) -> None:
        """Alone in a folder, and in a folder of shards: by its marks, not by its name, a file is known as a shard."""
        folder = tmp_path / "shards"
        folder.mkdir()
        if beside:
            write_shards(*planned("tied"), folder)
            (folder / name).unlink(missing_ok=True)
        foreign = {"plan.json": b"{}", "program.json": b"{}"}
        if name in foreign:
            (folder / name).write_bytes(foreign[name])
        else:
            write_tensors(folder / name, {"x": torch.ones(1)}, {"format": "pt"})
        before = contents(folder)
        with pytest.raises(InputError, match=r"' holds '.*', which is no shard"):
            write_shards(*planned("tied"), folder, force=True)
        assert contents(folder) == before
        assert os.listdir(tmp_path) == ["shards"]

    @pytest.mark.attack("file")
    def test_what_comes_while_shards_are_written_is_kept(self, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        write_shards(*planned("tied"), folder)

        def slowly(path: Path, *content: Any) -> int:
            (folder / "notes.txt").write_text("mine")
            return write_tensors(path, *content)

        with patch.object(shards, "write_tensors", slowly), pytest.raises(InputError, match=r"holds 'notes\.txt'"):
            write_shards(*planned("branches"), folder, force=True)
        assert (folder / "notes.txt").read_text() == "mine"
        assert os.listdir(tmp_path) == ["shards"]

    @pytest.mark.attack("file")
    def test_a_link_to_a_file_is_no_shard(self, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        write_shards(*planned("tied"), folder)
        (folder / "cpu0.safetensors").replace(tmp_path / "elsewhere")
        (folder / "cpu0.safetensors").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InputError, match=r"holds 'cpu0\.safetensors', which is no shard"):
            write_shards(*planned("branches"), folder, force=True)

    @pytest.mark.attack("file")
    @pytest.mark.parametrize("moment", [".new", ".old"])
    def test_an_interrupt_between_the_two_moves(self, moment: str, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        write_shards(*planned("tied"), folder)
        before = contents(folder)
        rename = Path.rename

        def interrupted(path: Path, target: Path) -> Path:
            if path.name.endswith(moment):
                raise KeyboardInterrupt
            moved = rename(path, target)
            if target.name.endswith(moment):
                raise KeyboardInterrupt
            return moved

        with patch.object(Path, "rename", interrupted), pytest.raises(KeyboardInterrupt):
            write_shards(*planned("branches"), folder, force=True)
        (left,) = tmp_path.iterdir()
        assert contents(left) == before

    def test_it_stays_as_private_as_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "shards").mkdir(0o700)
        write_shards(*planned("tied"), tmp_path / "shards")
        assert (tmp_path / "shards").stat().st_mode & 0o777 == 0o700

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "shards").touch()
        with pytest.raises(InputError, match="shards' is a file, no folder; choose another name"):
            write_shards(*planned("tied"), tmp_path / "shards", force=True)

    def test_no_folder_to_write_in(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as error:
            write_shards(*planned("tied"), tmp_path / "no" / "shards")
        assert str(error.value) == f"there is no folder '{tmp_path}/no' to write 'shards' in; make it first"

    def test_one_that_may_not_be_written(self) -> None:
        with pytest.raises(InputError) as error:
            write_shards(*planned("tied"), Path("/proc/shards"))
        assert str(error.value).startswith("cannot write '/proc/shards': ")
        assert str(error.value).endswith("; choose another place")

    @pytest.mark.parametrize("there", [False, True])
    def test_a_full_disk(self, there: bool, tmp_path: Path) -> None:
        """As the system says it where a file may not grow any more."""
        program = program_from_module(nn.Linear(256, 256), (torch.ones(1, 256),))
        plan = make_plan(program, Placement((0,)))
        folder = tmp_path / "shards"
        if there:
            write_shards(*planned("tied"), folder)
        before = contents(folder) if there else {}
        with largest_file(2**16), pytest.raises(InputError) as error:
            write_shards(plan, program, folder, force=True)
        assert str(error.value) == f"cannot write '{folder}': File too large; choose another place"
        assert os.listdir(tmp_path) == (["shards"] if there else [])
        assert not there or contents(folder) == before

    def test_an_interrupt(self, tmp_path: Path) -> None:
        with patch.object(shards, "write_tensors", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            write_shards(*planned("tied"), tmp_path / "shards")
        assert os.listdir(tmp_path) == []

    def test_the_old_one_is_put_back(self, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        write_shards(*planned("tied"), folder)
        before = contents(folder)
        rename = Path.rename

        def failing(path: Path, target: Path) -> Path:
            if path.name.endswith(".new"):
                raise OSError(5, "Input/output error")
            return rename(path, target)

        with patch.object(Path, "rename", failing), pytest.raises(InputError, match="Input/output error"):
            write_shards(*planned("branches"), folder, force=True)
        assert contents(folder) == before
        assert os.listdir(tmp_path) == ["shards"]


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond that."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


class TestRefused:
    def test_another_model(self, tmp_path: Path) -> None:
        plan, _ = planned("tied")
        with pytest.raises(InputError, match=r"^the plan is for 'Tied' .* plan for this model and batch$"):
            write_shards(plan, program_of("branches"), tmp_path / "shards")

    def test_shapes_without_values(self, tmp_path: Path) -> None:
        with torch.device("meta"):
            program = program_from_module(nn.Linear(2, 2), (torch.ones(1, 2),))
        with pytest.raises(InputError) as error:
            write_shards(make_plan(program, Placement((0,))), program, tmp_path / "shards")
        assert str(error.value) == (
            "'weight' has a shape but no values (the model was imported from a config), so there is nothing to divide; "
            "give a model with weights, as .pt2 or package.module:factory"
        )
        assert os.listdir(tmp_path) == []

    def test_no_such_device(self, tmp_path: Path) -> None:
        program = program_of("tied")
        write_shards(make_plan(program, Placement((0, 2, 2, 0))), program, tmp_path)
        for device in ("cpu1", "gpu7"):
            with pytest.raises(InputError) as error:
                read_shard(tmp_path, device)
            assert str(error.value) == (
                f"the plan in '{tmp_path}' has no operator on '{device}'; its devices are cpu0, cpu2"
            )

    @pytest.mark.parametrize("name", [*SHARED, "cpu0.safetensors"])
    def test_a_file_is_missing(self, name: str, tmp_path: Path) -> None:
        write_shards(*planned("tied"), tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(InputError, match=f"^cannot read .*{name}.*; check the path$"):
            read_shard(tmp_path, "cpu0")

    def mixed(self, tmp_path: Path, name: str, one: tuple[Plan, Program], other: tuple[Plan, Program]) -> str:
        """What is said where a file is that of other shards."""
        write_shards(*one, tmp_path / "one")
        write_shards(*other, tmp_path / "other")
        (tmp_path / "other" / name).replace(tmp_path / "one" / name)
        with pytest.raises(InputError) as error:
            read_shard(tmp_path / "one", "cpu0")
        assert str(error.value).endswith("; write the shards anew, all in one")
        return str(error.value).removeprefix(f"'{tmp_path}/one/{name}' is of ")

    @pytest.mark.parametrize("name", ["program.json", "inputs.st", "cpu0.safetensors"])
    def test_a_file_of_another_plan(self, name: str, tmp_path: Path) -> None:
        program = program_of("tied")
        other = make_plan(program, Placement((0, 0, 1, 0))), program
        assert self.mixed(tmp_path, name, planned("tied"), other).startswith("another plan (")

    @pytest.mark.parametrize("name", ["inputs.st", "cpu0.safetensors"])
    def test_a_file_with_other_weights(self, name: str, tmp_path: Path) -> None:
        one, other = tied_with(1.0), tied_with(2.0)
        plan = make_plan(one, alternating(one))
        assert self.mixed(tmp_path, name, (plan, one), (plan, other)).startswith("other weights of the model (")

    def test_a_file_of_another_device(self, tmp_path: Path) -> None:
        write_shards(*planned("tied"), tmp_path)
        (tmp_path / "cpu1.safetensors").replace(tmp_path / "cpu0.safetensors")
        with pytest.raises(InputError) as error:
            read_shard(tmp_path, "cpu0")
        assert str(error.value) == (
            f"'{tmp_path}/cpu0.safetensors' is of another device ('cpu1', not 'cpu0'); "
            "write the shards anew, all in one"
        )

    def test_a_plan_that_was_exchanged(self, tmp_path: Path) -> None:
        plan, program = planned("tied")
        write_shards(plan, program, tmp_path)
        save_plan(make_plan(program, Placement((0, 0, 0, 0))), tmp_path / "plan.json")
        with pytest.raises(InputError, match=r"program\.json' is of another plan"):
            read_shard(tmp_path, "cpu0")

    def test_a_damaged_program(self, tmp_path: Path) -> None:
        write_shards(*planned("tied"), tmp_path)
        document = json.loads((tmp_path / "program.json").read_text())
        del document["program"]
        (tmp_path / "program.json").write_text(json.dumps(document))
        with pytest.raises(InputError) as error:
            read_shard(tmp_path, "cpu0")
        assert str(error.value) == f"'{tmp_path}/program.json' has no 'program'; write the shards anew"

    def test_a_program_that_was_changed(self, tmp_path: Path) -> None:
        write_shards(*planned("tied"), tmp_path)
        text = (tmp_path / "program.json").read_text()
        (tmp_path / "program.json").write_text(text + " ")
        with pytest.raises(InputError, match=r"inputs\.st' is of another 'program\.json' \("):
            read_shard(tmp_path, "cpu0")

    def test_a_weight_that_was_changed(self, tmp_path: Path) -> None:
        write_shards(*planned("tied"), tmp_path)
        for file, name in (("inputs.st", "ids"), ("cpu0.safetensors", "words.weight")):
            data = (tmp_path / file).read_bytes()
            (tmp_path / file).write_bytes(data[:-1] + bytes([data[-1] ^ 64]))
            with pytest.raises(InputError) as error:
                read_shard(tmp_path, "cpu0")
            assert str(error.value) == (
                f"'{tmp_path}/{file}' is damaged ('{name}' is not what was written); write the shards anew"
            )
            (tmp_path / file).write_bytes(data)

    def test_a_weight_is_missing(self, tmp_path: Path) -> None:
        plan, program = planned("tied")
        write_shards(plan, program, tmp_path)
        with TensorFile(tmp_path / "cpu0.safetensors") as file:
            metadata = file.metadata
        (tmp_path / "cpu0.safetensors").unlink()
        write_tensors(tmp_path / "cpu0.safetensors", {}, metadata)
        with pytest.raises(InputError, match=r"cpu0\.safetensors' has no 'words\.weight'; write the shards anew$"):
            read_shard(tmp_path, "cpu0")


SHAPES: list[Any] = [[1 << 62], [-3], "3", [[]]]


@pytest.mark.attack("file")
@pytest.mark.parametrize(
    ("name", "entry"),
    [
        *(("beside", {"shape": shape, "dtype": "float32"}) for shape in SHAPES),
        *(("beside", entry) for entry in ({"shape": [3], "dtype": "load"}, ["weight"], None, "nowhere")),
        *(
            (name, {"shape": [3], "dtype": "int8"})
            for name in ("__class__.x", "x..y", "forward.__globals__", "forward", "")
        ),
    ],
)
def test_entries_of_a_stranger(name: str, entry: Any, tmp_path: Path) -> None:
    """Whatever a program.json says of the model's state, it is refused in one line, or names only tensors."""
    plan, program = beside("training")
    write_shards(plan, program, tmp_path / "shards")
    path = tmp_path / "shards" / "program.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["entries"][name] = entry
    path.write_text(json.dumps(document), encoding="utf-8")
    with patch.object(shards, "_check_marks"):  # which whoever writes such a file would see to
        try:
            _, read = read_shard(tmp_path / "shards", "cpu0")
        except InputError:
            return
    assert all(isinstance(value, torch.Tensor) for value in read.module.state_dict().values())
