"""What is switched on around a call has its effect, or the call is refused; it is never ignored."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.checkpoint.shard_folder import PROGRAM
from planner.runtime.checkpoint.shards import read_shard, write_shards
from planner.runtime.inference.runner import Runner
from planner.runtime.start import start
from tests.planner.runtime.bits import differences
from tests.planner.runtime.inference.test_inline_engine import plan_here
from tests.planner.runtime.small import alternating, desk, make_plan

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


traced: Any = torch.jit.trace  # torch has no types here
forward: Any = torch.func.jvp
dual: Any = forward_ad.make_dual


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).eval()


@pytest.fixture(params=["threads", "here"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    program = program_from_module(model(), (X,))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    plan = make_plan(program, alternating(program)) if request.param == "threads" else plan_here(program)
    with Runner(plan, program) as made:
        torch.set_num_threads(1)
        yield made
    torch.set_num_threads(threads)


# What is refused


@pytest.mark.attack("answer")
def test_autocast_is_refused(runner: Runner) -> None:
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError) as error:
        runner(X)
    assert str(error.value) == (
        "torch.autocast('cpu', torch.bfloat16) is on, and a plan is for the dtypes that the model was imported with; "
        "call the runner outside of it, or plan for the cast model (model.to(torch.bfloat16))"
    )
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", torch.float16, enabled=torch.cuda.is_available()):
        assert runner(X).dtype is torch.float32  # nothing is computed on a GPU


@pytest.mark.attack("answer")
def test_a_model_is_not_imported_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError) as error:
        program_from_module(model(), (X,))
    assert str(error.value) == (
        "torch.autocast('cpu', torch.bfloat16) is on, and what it casts is no operator of model 'Sequential'; import "
        "it outside of that, or cast the model as a whole, for example by model.to(torch.bfloat16)"
    )


class Changing(TorchFunctionMode):
    """Could change what any function returns."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.attack("answer")
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (Changing, "the mode 'Changing'"),
        (lambda: FlopCounterMode(display=False), "the mode '_FlopCounterMode'"),
    ],
)
def test_modes_are_refused(runner: Runner, mode: Callable[[], AbstractContextManager[Any]], name: str) -> None:
    with mode(), pytest.raises(InputError) as error:
        runner(X)
    assert str(error.value) == (
        f"{name} is active, and the operators of a runner are called on other threads, which it does not see; call the "
        "runner outside of it, or the model itself"
    )


@pytest.mark.attack("answer")
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda runner: torch.vmap(runner)(X.expand(3, 2, 4)), "torch.func's vmap"),
        (lambda runner: torch.func.grad(lambda x: runner(x).sum())(X), "torch.func's grad"),
        (lambda runner: forward(runner, (X,), (X,)), "torch.func's jvp"),
        (lambda runner: traced(lambda x: runner(x), (X,)), "torch.jit.trace"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_transforms_are_refused(runner: Runner, call: Callable[[Runner], Any], name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} is active, and the operators of a runner are called on other"):
        call(runner)


def test_examples_that_ask_for_a_gradient_are_none_of_a_runners() -> None:
    program = program_from_module(model(), (X.clone().requires_grad_(),))
    with Runner(make_plan(program, alternating(program)), program) as runner:
        assert compare_outputs(runner).wrong == ()


@pytest.mark.attack("answer")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, which forward mode calls
def test_inputs_that_ask_for_a_gradient_are_refused(runner: Runner) -> None:
    asking = X.clone().requires_grad_()
    expected = runner(X)
    calls: list[Callable[[], Any]] = [lambda: runner(asking), lambda: next(runner.stream([asking]))]
    for call in calls:
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == (
            "input 'input' asks for a gradient, and none goes through a runner; pass input.detach(), call it under "
            "torch.no_grad(), or train with planner.train"
        )
    with forward_ad.dual_level(), pytest.raises(InputError, match="asks for a gradient"):
        runner(dual(X, X))
    with torch.no_grad():
        assert differences(expected, runner(asking)) == []
        assert differences(expected, next(runner.stream([asking]))) == []


@pytest.mark.attack("answer")
def test_what_was_switched_since_the_start_is_refused(runner: Runner) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(InputError) as error:
            runner(X)
        assert str(error.value) == (
            "torch.set_default_dtype is float64 here, and was float32 when the runner was started, which its devices "
            "keep to; start the runner again, or switch back"
        )
        with pytest.raises(InputError) as error:
            start(runner.plan, runner.program)
        assert str(error.value) == (
            "'Sequential' was imported with the default dtype torch.float32, now it is torch.float64; call "
            "torch.set_default_dtype(torch.float32), or import it again"
        )
    finally:
        torch.set_default_dtype(torch.float32)
    if torch.set_flush_denormal(True):
        try:
            with pytest.raises(InputError, match=r"torch\.set_flush_denormal is True here, and was False when"):
                runner(X)
        finally:
            torch.set_flush_denormal(False)
    assert runner(X).dtype is torch.float32


# What has its effect


@pytest.mark.parametrize(
    "mode", [nullcontext, torch.no_grad, torch.inference_mode, lambda: torch.device("meta"), torch.enable_grad]
)
def test_modes_that_change_no_answer(runner: Runner, mode: Callable[[], AbstractContextManager[Any]]) -> None:
    with torch.no_grad():
        expected = runner.program.module(X)
    with mode():
        results = [runner(X), *runner.stream([X, X])]
    assert differences([expected] * 3, results) == []
    assert not any(result.requires_grad for result in results)


def test_inputs_that_were_made_in_inference_mode(runner: Runner) -> None:
    with torch.inference_mode():
        x = X.clone()
    assert differences([runner(X)] * 2, [runner(x), next(runner.stream([x]))]) == []


def test_determinism_holds_on_the_devices_too() -> None:
    class Unsure(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.empty(3) * 0 + x

    program = program_from_module(Unsure(), (torch.ones(3),))
    with Runner(make_plan(program, alternating(program)), program) as runner:
        torch.use_deterministic_algorithms(True)  # fills what is empty with NaN, which 0 does not remove
        try:
            assert runner(torch.ones(3)).isnan().all()
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.compile, about what it leaves as it is
def test_torch_compile_calls_it(runner: Runner) -> None:
    expected = runner(X) + 1
    compiled = torch.compile(lambda x: runner(x) + 1, backend="eager")
    assert differences(expected, compiled(X)) == []


@pytest.mark.attack("answer")
def test_shards_remember_the_default_dtype(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        program = program_from_module(nn.Tanh(), (torch.ones(2),))
        plan = make_plan(program, alternating(program), desk(1))
        write_shards(plan, program, tmp_path / "shards")
    finally:
        torch.set_default_dtype(torch.float32)
    _, read = read_shard(tmp_path / "shards", "cpu0")
    assert read.default_dtype is torch.float64
    with pytest.raises(InputError, match=r"imported with the default dtype torch\.float64, now it is torch\.float32"):
        Runner(plan, read)
    text = (tmp_path / "shards" / PROGRAM).read_text()
    assert '"default_dtype":"float64"' in text
