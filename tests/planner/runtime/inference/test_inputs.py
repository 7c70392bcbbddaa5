"""What a caller hands over stays what it was, and lies in memory as the model was imported with it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module, read_pt2
from graphs.program.program import Program
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.checkpoint.shards import read_shard, write_shards
from planner.runtime.inference.runner import Runner
from planner.runtime.training.any_trainer import divide
from planner.runtime.verification.verify import verify
from tests.planner.runtime.bits import differences
from tests.planner.runtime.small import Handed, alternating, make_plan

N_BATCHES = 12
IN_FLIGHT = 4


def runner_of(model: nn.Module, *inputs: Any) -> Runner:
    """Every operator on another device than the one before."""
    program = program_from_module(model.eval(), inputs)
    return Runner(make_plan(program, alternating(program), in_flight=IN_FLIGHT), program)


def test_an_input_without_values_is_refused() -> None:
    with runner_of(nn.Linear(3, 3), torch.ones(3, 3)) as runner:
        for call in (lambda x: runner(x), lambda x: list(runner.stream([(x,)]))):
            with pytest.raises(InputError) as error:
                call(torch.ones(3, 3, device="meta"))
            assert str(error.value) == (
                "input 'input' is on 'meta', and a plan takes tensors of CPUs and GPUs; pass a tensor that has values"
            )
        assert runner(torch.ones(3, 3)).shape == (3, 3)


# Sources that use their memory again


class Deep(nn.Module):
    """Reads its input in the first operator and in the last one, and returns a view of it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x
        for _ in range(4):
            y = torch.tanh(y @ y.mT) @ x
        return y + x, x.view(-1), x


def in_one_buffer() -> Iterator[torch.Tensor]:
    buffer = torch.empty(3, 3)
    for i in range(N_BATCHES):
        buffer.fill_(i)
        yield buffer


def in_a_ring() -> Iterator[tuple[torch.Tensor]]:
    ring = torch.empty(2, 3, 3)
    for i in range(N_BATCHES):
        ring[i % 2] = i
        yield (ring[i % 2],)


def by_numpy() -> Iterator[dict[str, torch.Tensor]]:
    buffer = torch.empty(3, 3)
    for i in range(N_BATCHES):
        buffer.numpy()[:] = i  # which `_version` does not count
        yield {"x": buffer}


@pytest.mark.attack("answer")
@pytest.mark.parametrize("source", [in_one_buffer, in_a_ring])
def test_a_source_may_use_its_memory_again(source: Callable[[], Iterator[Any]]) -> None:
    model = Deep()
    with runner_of(model, torch.ones(3, 3)) as runner:
        results = list(runner.stream(source()))
    expected = [model(torch.full((3, 3), float(i))) for i in range(N_BATCHES)]
    assert differences(expected, results) == []


@pytest.mark.attack("answer")
def test_a_source_of_keywords_that_is_written_to_by_numpy() -> None:
    program = program_from_module(Deep(), (), {"x": torch.ones(3, 3)})
    with Runner(make_plan(program, alternating(program), in_flight=IN_FLIGHT), program) as runner:
        results = list(runner.stream(by_numpy()))
    assert [view[0].item() for _, view, _ in results] == list(range(N_BATCHES))


@pytest.mark.attack("answer")
def test_who_gets_a_result_may_write_to_it_and_to_the_batch() -> None:
    model, x = Deep(), torch.ones(3, 3)
    expected = model(x.clone())
    with runner_of(model, x) as runner:
        for result in runner.replay(((x,), {}), N_BATCHES):
            assert differences(expected, result) == []
            for tensor in result:
                tensor.fill_(7)  # two of these are the input, which the next ones read
        assert torch.equal(x, torch.ones(3, 3))


@pytest.mark.attack("answer")
def test_results_of_a_stream_share_no_memory_with_the_weights() -> None:
    class Shown(Handed):
        def forward(self, *inputs: torch.Tensor) -> dict[str, Any]:
            return {**super().forward(*inputs), "row": self.weight[:2]}

    inputs = (torch.ones(2, 3), torch.ones(3), torch.ones(1))
    with runner_of(Shown(), *inputs) as runner:
        totals = []
        for result in runner.stream([inputs] * N_BATCHES):
            totals.append(result["total"].clone())
            result["weight"].add_(1)
            result["row"].add_(1)
    assert differences([totals[0]] * N_BATCHES, totals) == []


def test_one_call_reads_the_callers_own_memory() -> None:
    with runner_of(Deep(), torch.ones(3, 3)) as runner:
        x = torch.ones(3, 3)
        _, view, same = runner(x)
    assert view.data_ptr() == x.data_ptr()
    assert same is x


# Layouts


class Flat(nn.Module):
    """Of which a trace keeps no ``contiguous`` where the example is contiguous."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = x.contiguous().view(-1)
        return flat * 2, torch.as_strided(x.reshape(-1), (2,), (1,)) if x.is_contiguous() else flat[-2:]


CONTIGUOUS = torch.arange(24.0).view(2, 3, 2, 2)

LAYOUTS = {
    "contiguous": CONTIGUOUS,
    "channels last": CONTIGUOUS.contiguous(memory_format=torch.channels_last),
    "transposed": CONTIGUOUS.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "with gaps": torch.arange(48.0).view(2, 3, 2, 4)[..., ::2],
    "expanded": torch.arange(4.0).view(2, 2).expand(2, 3, 2, 2),
    "a view": torch.arange(30.0)[3:27].view(2, 3, 2, 2),
}


@pytest.mark.attack("answer")
@pytest.mark.parametrize("imported", LAYOUTS)
def test_inputs_may_lie_in_memory_as_they_like(imported: str) -> None:
    """The answer is the model's for the same values as they lay when it was imported."""
    model, example = Flat(), LAYOUTS[imported]
    program = program_from_module(model, (example,))
    (like,) = program.example_inputs
    with Runner(make_plan(program, alternating(program)), program) as runner:
        for given in LAYOUTS.values():
            as_imported = torch.empty_strided(like.shape, like.stride()).copy_(given)
            expected = model(as_imported)
            assert differences(expected, runner(given)) == []
            assert differences([expected] * 3, list(runner.stream([given] * 3))) == []
            assert differences(expected, program.run(given)) == []
        assert compare_outputs(runner).wrong == ()
    assert verify(runner.plan, program).equal


def test_strides_of_what_has_one_element_or_none_are_given_without_a_copy() -> None:
    class Strides(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int, tuple[int, ...]]:
            return x.view(-1), x.stride(0), y.stride()

    odd, none = torch.arange(4.0).as_strided((1, 4), (77, 1)), torch.empty(0, 3).t()
    with runner_of(Strides(), torch.ones(1, 4), torch.ones(3, 0)) as runner:
        flat, *strides = runner(odd, none)
    assert (flat.tolist(), flat.data_ptr()) == ([0, 1, 2, 3], odd.data_ptr())
    assert strides == [4, (1, 1)]


@pytest.mark.attack("answer")
def test_shards_keep_the_layout(tmp_path: Path) -> None:
    example = LAYOUTS["channels last"]
    program = program_from_module(Flat(), (example,))
    plan = make_plan(program, alternating(program))
    write_shards(plan, program, tmp_path / "shards")
    for device in plan.cluster.devices[:2]:
        _, read = read_shard(tmp_path / "shards", device.name)
        assert read.example_inputs[0].stride() == example.stride()
        assert read.inputs([CONTIGUOUS])["x"].stride() == example.stride()


@pytest.mark.attack("answer")
def test_a_file_that_was_exported_with_an_expanded_input(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Flat(), (LAYOUTS["expanded"],)), tmp_path / "flat.pt2")
    program = read_pt2(tmp_path / "flat.pt2")
    with Runner(make_plan(program, alternating(program)), program) as runner:
        assert differences(program.module(CONTIGUOUS), runner(LAYOUTS["channels last"])) == []


@pytest.mark.attack("answer")
def test_micro_batches_of_training_lie_as_they_were_imported() -> None:
    program = program_from_module(Flat(), (CONTIGUOUS,))
    batch = torch.cat([CONTIGUOUS, CONTIGUOUS]).contiguous(memory_format=torch.channels_last)
    parts = divide(program, 2, 2, batch, None)
    assert [part.inputs["x"].stride() for part in parts] == [CONTIGUOUS.stride()] * 2


def test_a_sparse_input_is_refused() -> None:
    program = program_from_module(Flat(), (CONTIGUOUS,))
    with pytest.raises(InputError) as error:
        program.flatten((CONTIGUOUS.to_sparse(),), {})
    assert str(error.value) == (
        "input 'x' is sparse_coo, the model was imported for strided; pass x.to_dense(), or plan for that input"
    )


def test_the_layout_is_that_of_the_example(tmp_path: Path) -> None:
    def strides(program: Program) -> tuple[int, ...]:
        return program.example_inputs[0].stride()

    for example in LAYOUTS.values():
        wanted = CONTIGUOUS.stride() if 0 in example.stride() else example.stride()
        assert strides(program_from_module(Flat(), (example,))) == wanted
    torch.export.save(torch.export.export(Flat(), (LAYOUTS["with gaps"],)), tmp_path / "flat.pt2")
    assert strides(read_pt2(tmp_path / "flat.pt2")) == LAYOUTS["with gaps"].stride()
