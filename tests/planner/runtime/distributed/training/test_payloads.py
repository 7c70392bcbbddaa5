"""What goes to another process in a file: functions by their names, and tensors alone."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  # its usual name

from graphs.common.errors import InputError
from planner.runtime.distributed.inference.launcher import ROOT
from planner.runtime.distributed.training.worker import (
    TOOLS,
    RankSetup,
    cpu_copy,
    opened,
    payload_file,
    read_tools,
    write_tools,
)
from planner.runtime.start import returned_loss
from planner.runtime.training.options import TrainerOptions
from tests.children import ran

PROGRAM = """
from functools import partial
from pathlib import Path
import torch
from planner.runtime.distributed.training.worker import RankSetup, write_tools
from planner.runtime.training.options import TrainerOptions

def loss(result, target):
    return result + target

if __name__ == "__main__":
    write_tools(RankSetup(loss, partial(torch.optim.SGD, lr=0.5), TrainerOptions(seed=3)), Path())
"""
READER = """
from pathlib import Path
from planner.runtime.distributed.training.worker import read_tools

tools = read_tools(Path())
print(tools.loss(1, 2), tools.optimizer.keywords, tools.trainer_options.seed)
"""


def python(*words: str, at: Path) -> str:
    done = ran([sys.executable, *words], cwd=at, env={"PYTHONPATH": str(ROOT)})
    return done.stdout


def test_tools_of_modules(tmp_path: Path) -> None:
    written = RankSetup(returned_loss, partial(torch.optim.Adam, lr=1e-3), TrainerOptions(clip_norm=2.0))
    write_tools(written, tmp_path)
    assert b"init_main" not in (tmp_path / TOOLS).read_bytes()  # nothing of the program that was started
    found = read_tools(tmp_path)
    assert (found.loss, found.trainer_options) == (returned_loss, written.trainer_options)
    assert (found.optimizer.func, found.optimizer.keywords) == (torch.optim.Adam, {"lr": 1e-3})  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_loss_that_stands_in_the_program_that_is_started(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "reader.py").write_text(READER, encoding="utf-8")
    python("training.py", at=tmp_path)
    assert python("-m", "reader", at=tmp_path) == "3 {'lr': 0.5} 3\n"
    (tmp_path / "training.py").unlink()
    with pytest.raises(InputError, match=r"the loss or the optimizer cannot be imported \(FileNotFoundError: "):
        read_tools(tmp_path)


def test_functions_without_a_name(tmp_path: Path) -> None:
    def local(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters)

    with pytest.raises(InputError) as error:
        write_tools(RankSetup(F.mse_loss, local, TrainerOptions()), tmp_path)
    assert str(error.value) == (
        "the optimizer 'test_functions_without_a_name.<locals>.local' cannot be handed to another process; pass a "
        "function that stands at the top of a module, or what functools.partial makes of one, such as "
        "partial(torch.optim.Adam, lr=1e-3)"
    )
    with pytest.raises(InputError, match=r"the loss 'test_functions_without_a_name.<locals>.<lambda>' cannot be"):
        write_tools(RankSetup(lambda result, target: result, torch.optim.Adam, TrainerOptions()), tmp_path)  # noqa: ARG005  # none
    assert not list(tmp_path.iterdir())


def test_a_parcel_is_gone_when_all_have_read_it(tmp_path: Path) -> None:
    path = tmp_path / "1.pt"
    big = torch.arange(10_000.0)
    with payload_file({"x": [big[:3], 4], "y": "words"}, path):
        assert path.stat().st_size < big.nbytes
        found, kept = opened(path), opened(path, mmap=True)
    assert not path.exists()
    assert (found["y"], found["x"][1]) == ("words", 4)
    assert torch.equal(found["x"][0], big[:3])
    assert torch.equal(kept["x"][0], big[:3])


def test_what_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"what a step takes cannot be handed to another process by '.*1.pt' \("):
        payload_file({"target": lambda: 0}, tmp_path / "1.pt").__enter__()
    with pytest.raises(InputError, match="make room there, or pass tensors, numbers and text"):
        payload_file(1, tmp_path / "none" / "1.pt").__enter__()
    assert not list(tmp_path.iterdir())


def test_a_tensor_alone_has_its_strides() -> None:
    for tensor in (
        torch.arange(24.0).view(2, 3, 4)[:, :, ::2],
        torch.arange(24).view(2, 3, 4).transpose(0, 2),
        torch.ones(3, 1).expand(3, 5),
        torch.tensor(True),
        torch.zeros(0, 3),
        torch.complex(torch.ones(2), torch.ones(2)).conj(),
    ):
        found = cpu_copy(tensor)
        assert torch.equal(found, tensor)
        assert found.stride() == tensor.stride()
    assert cpu_copy(torch.ones(1000)[:2]).untyped_storage().nbytes() == 8
