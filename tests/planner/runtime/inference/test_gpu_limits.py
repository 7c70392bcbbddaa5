"""A GPU that waits for nothing, runs out of memory, or fails late; where there is none, a processor pretends."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

from costmodels.host import affinity
from costmodels.host.affinity import bound, run_on
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.errors import StageError
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.planner.runtime.small import cpu, desk, make_plan, program_of, with_device
from tests.pretended_gpu import GPU, PretendedTensor, pretend_gpus

GPU0 = replace(cpu("cpu1", cores=()), cuda=0)  # named as in the desk


@pytest.fixture(autouse=True)
def _pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch)


def runner_on(*devices: int) -> Runner:
    """Operators of a chain on cpu0 (0) and a GPU (1)."""
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in devices))
    program = program_from_module(module.eval(), (torch.ones(2, 4),))
    return Runner(with_device(make_plan(program, Placement(devices), desk(2)), 1, GPU0), program)


def waits() -> set[tuple[object, ...]]:
    """Return what was waited for since the log was emptied, and the threads that did."""
    return {entry[1:] for entry in GPU.log if entry[0] == "waited"}


def test_the_thread_of_a_gpu_waits_for_nothing() -> None:
    with runner_on(1, 1, 1) as runner:
        GPU.log.clear()
        assert len(list(runner.stream([torch.ones(2, 4)] * 3))) == 3
        assert waits() == {("event", "waits-for-gpus")}


def test_devices_wait_only_where_data_cross() -> None:
    """What goes to the GPU is copied while its thread goes on; what comes back is waited for by its reader."""
    with runner_on(0, 1, 1, 0) as runner:
        GPU.log.clear()
        runner(torch.ones(2, 4))
        copies = [entry for entry in GPU.log if entry[0] == "copy"]
        assert copies == [("copy", "cuda:0", True), ("copy", "cpu", True)]
        assert waits() == {("stream", "device-cpu0"), ("event", "waits-for-gpus")}


def test_threads_that_follow_each_other_share_a_stream() -> None:
    """Libraries keep a workspace for each stream, so that there must not be more and more of them."""
    streams = []
    for _ in range(3):
        with bound(GPU0) as stream:
            streams.append(stream)
    assert len({id(stream) for stream in streams}) == 1
    with bound(GPU0) as one, bound(GPU0) as other:
        assert one is not other


def test_a_failed_micro_batch_leaves_no_tensors_and_the_next_one_runs() -> None:
    with runner_on(1, 0, 1) as runner:
        expected = runner(torch.ones(2, 4)).cpu()
        gc.collect()
        before = alive()
        type(GPU).is_full = True
        with pytest.raises(StageError) as failed:
            runner(torch.ones(2, 4))
        type(GPU).is_full = False
        assert str(failed.value) == (
            "stage 0 on 'cpu1' failed in micro-batch 1: 'cpu1' has run out of memory: CUDA out of memory. Tried to "
            "allocate 2.00 GiB; 8 GiB of 8 GiB are free; use smaller batches, give it less memory in cluster.toml, or "
            "end what else runs on it"
        )
        assert isinstance(failed.value.__cause__, torch.OutOfMemoryError)
        gc.collect()
        assert alive() <= before
        assert torch.equal(runner(torch.ones(2, 4)).cpu(), expected)


def alive() -> int:
    """Return how many tensors of GPUs there are."""
    return sum(isinstance(each, PretendedTensor) for each in gc.get_objects())


def test_weights_that_do_not_fit_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _=None: (100, 2**33))
    with pytest.raises(InputError) as refused:
        runner_on(1, 1)
    assert str(refused.value) == (
        "model 'Sequential' has 160 B of weights for 'cuda:0', of whose 8 GiB 100 B are free; end what else runs on "
        "it, or plan for less memory (cluster.toml)"
    )


def test_work_that_fills_a_gpu_says_so_and_drops_what_it_held() -> None:
    def work() -> torch.Tensor:
        kept = torch.ones(5, device="cuda:0")
        type(GPU).is_full = True
        return kept + 1

    before = alive()
    with pytest.raises(InputError, match=r"^'cpu1' has run out of memory: CUDA out of memory\. Tried to allocate"):
        run_on(GPU0, work)
    type(GPU).is_full = False
    gc.collect()
    assert alive() <= before


def test_a_kernel_that_fails_after_its_call_fails_its_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`")

    with runner_on(1) as runner:
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda.Event, "synchronize", fails)
            with pytest.raises(
                StageError, match=r"^a GPU failed in micro-batch 0: CUDA error: device-side assert trig"
            ):
                runner(torch.ones(2, 4))
        assert runner(torch.ones(2, 4)).is_cuda


def test_recording_asks_no_gpu_of_another_host() -> None:
    """A rank knows the plan's devices, of which this host need not have all."""
    program = program_of("branches")
    plan = make_plan(program, Placement((0,) * len(program.graph.ops)), desk(2))
    with Runner(with_device(plan, 1, replace(GPU0, cuda=3)), program) as runner:
        runner.record()
        runner(*program.example_inputs)
        assert runner.timeline().micro_batches == 1


def test_the_callers_work_is_over_before_another_stream_reads_it() -> None:
    GPU.log.clear()
    run_on(GPU0, lambda: None)
    assert GPU.log[0] == ("waited", "stream", "MainThread")


def test_streams_go_back_when_work_fails() -> None:
    with pytest.raises(ZeroDivisionError), bound(GPU0):
        raise ZeroDivisionError
    assert len(affinity._IDLE_STREAMS[0]) == 1
