"""GenerationRunner: a language model that generates where its plan says.

::

    sequences ──► groups of rows ──► passes ──► engine: threads or processes of devices ──► logits ──► tokens ──┐
                    ▲     caches written in place, on their devices                                             │
                    └──────────────────────────────────────────────────────────────────────────────────────────┘

Each group has one pass on its way; as many groups as the plan has in flight keep the devices busy. The phases of a
model are the copies of a network that the engine knows, and a pass goes through the one of its size.
"""

import queue
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from costmodels.host.affinity import settle
from graphs.common import checks
from graphs.common.errors import InputError
from graphs.program.generation import GenerationProgram
from planner.plans.plan import Plan
from planner.problem.result import Interrupted
from planner.runtime.closing import Closing, Ending
from planner.runtime.generation.calls import Failed, GenerationCall, Stop
from planner.runtime.generation.groups import RowGroup, advance, next_phase, pass_inputs
from planner.runtime.generation.prompts import Prompt
from planner.runtime.generation.sampling import Sampling
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.inline_engine import engine_of
from planner.runtime.inference.runner import check_surroundings
from planner.runtime.stages.generation_stages import GenerationStages
from planner.runtime.stages.numerics import IN_PROCESSES, ON_THREADS, check_numerics, numerics
from simulator.timeline import Span

if TYPE_CHECKING:
    from planner.runtime.distributed.inference.coordinator import Coordinator

GREEDY = Sampling()

Stops: TypeAlias = Collection[int] | Stop
"""Ids after which a sequence ends, or a function that says so."""


class GenerationRunner(Closing):
    """A language model that generates where its plan says. Any number of threads may call it.

    ::

        model = planner.generation_program(module, rows=2)
        plan = planner.plan(model.decode, cluster=cluster, search=planner.Search(rewrites="none"))
        with planner.GenerationRunner(plan, model) as runner:
            continuations = runner.generate([[5, 8, 2], [7]], max_new_tokens=64)

    Attributes:
        plan: where every operator runs, made for ``model.decode``.
        model: the model, imported.
        pids: other processes of this host that devices run in.
    """

    def __init__(
        self,
        plan: Plan,
        model: GenerationProgram,
        share_weights: bool = False,
        processes: bool = False,
        executor: "Coordinator | None" = None,
    ) -> None:
        """Start the devices with empty caches for all sequences in flight.

        They are threads of this process, or with ``processes`` processes of this host, unless an executor is given.
        They have copies of the model's weights, unless threads share these with the model, which must not change then.

        Raises:
            InputError: if the plan is for another model or for copies of it, or a device is not on this host.
            RankError: if a process does not start.
        """
        passes = GenerationStages(plan, model)
        if len(plan.placement.copies) > 1:
            raise InputError(
                f"the plan has {len(plan.placement.copies)} copies of the network, and a cache lives in one; plan "
                "with search=Search(rewrites='none')"
            )
        self.plan, self.model = plan, model
        self._kinds = {"cpu" if plan.cluster.devices[number].cuda is None else "cuda" for number in plan.placement.used}
        if processes and executor is None:
            from planner.runtime.distributed.inference.launcher import start_processes  # late: threads do without

            executor = start_processes(plan, model)
        self._engine: Engine | Coordinator
        if executor is None:
            settle(max(program.graph.largest_bytes for program in passes.programs))
            compiled, self._state = passes.compiled(apart=not share_weights)
            self._engine = engine_of(plan.cluster.devices, compiled, (passes.logits,), len(passes.programs))
            self._engine.caches = passes.caches()
        else:
            self._engine, self._state = executor, executor.state
        self.pids = () if executor is None else executor.pids
        self._switches = ON_THREADS if executor is None else IN_PROCESSES
        self._numerics = numerics(self._switches)
        self._logits = passes.logits
        self._number = {phase: number for number, phase in enumerate(passes.model.phases)}
        self._free: queue.SimpleQueue[RowGroup] = queue.SimpleQueue()
        for number in range(plan.workload.in_flight):
            self._free.put(RowGroup(number, [None] * model.rows))
        self._ending = Ending(self, "runner", self._engine.close)

    def generate(
        self,
        ids: Iterable[Prompt],
        max_new_tokens: int,
        *,
        sampling: Sampling = GREEDY,
        stops: Stops | None = None,
        failed: Failed | None = None,
        decoder_ids: Iterable[Sequence[int]] | None = None,
    ) -> list[list[int]]:
        """Continue sequences of token ids, of any lengths and any number, and return what comes after each.

        A sequence that fails leaves the others alone: they go on to their ends.

        Args:
            ids: the prompts, without any filling; of a model with an encoder its sources, ids or features.
            max_new_tokens: of each sequence, unless it stops before.
            sampling: how a token is chosen; the likeliest by default.
            stops: ids after which a sequence ends, which are the last of it; those of the model by default. Or a
                function of the number of a sequence and its latest token that returns whether it ends.
            failed: called with the number of a sequence that fails and its error; its tokens until then are returned.
                Without it, the error of the first one is raised when all others have ended.
            decoder_ids: of a model with an encoder, what each continuation begins with; the model's start by default.

        Raises:
            InputError: for an empty prompt, an id that is none of the vocabulary, or a prompt that is too long for the
                context together with its continuation.
            StageError: if an operator fails.
            RankError: if a process is gone.
            Interrupted: on Ctrl-C, with the tokens so far.
        """
        prompts = list(_prompts(ids))
        found: list[list[int]] = [[] for _ in prompts]
        try:
            stream = self.tokens(
                prompts, max_new_tokens, sampling=sampling, stops=stops, failed=failed, decoder_ids=decoder_ids
            )
            for number, token in stream:
                found[number].append(token)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(found) from interrupt
        return found

    def tokens(
        self,
        ids: Iterable[Prompt],
        max_new_tokens: int,
        *,
        sampling: Sampling = GREEDY,
        stops: Stops | None = None,
        failed: Failed | None = None,
        decoder_ids: Iterable[Sequence[int]] | None = None,
    ) -> Generator[tuple[int, int], None, None]:
        """Yield tokens as they come, each after the number of its sequence; arguments and errors as `generate`.

        Rows are free for others as soon as their sequences have ended or failed, or this generator is closed.
        """
        check_surroundings(self._kinds)
        check_numerics(self._numerics, self._switches)
        checks.instance(sampling, Sampling, "the sampling", "a planner.Sampling")
        checks.integer(max_new_tokens, "max_new_tokens", least=1)
        call = GenerationCall(sampling, self._stop(stops), failed)
        call.enter(self.model, list(_prompts(ids)), decoder_ids, max_new_tokens)
        return self._run(call)

    def record(self) -> None:
        """Measure the passes that begin from here on; `recorded` returns what was seen."""
        self._ending.check()
        self._engine.record()

    def recorded(self) -> tuple[Span, ...]:
        """Return what ran on which device since `record`: a micro-batch is a pass, a stage one of a phase."""
        self._ending.check()
        return self._engine.spans()

    def owned(self, device: str) -> Mapping[str, torch.Tensor]:
        """Return the parameters and buffers that a device of this process holds, by name."""
        checks.one_of(device, "the device", self.plan.cluster.index)
        return self._state.owned(self.plan.cluster.index[device])

    def caches(self, device: str) -> tuple[Mapping[str, torch.Tensor], ...]:
        """Return the caches that a device of this process holds, by name, for each group of sequences in flight."""
        checks.one_of(device, "the device", self.plan.cluster.index)
        number, caches = self.plan.cluster.index[device], self._engine.caches
        assert caches is not None, "it has got them at the start"
        return tuple({n: t for n, t in group.items() if caches.home[n] == number} for group in caches.groups)

    def watch(self, behind: Callable[[], object] | None) -> None:
        """Let each device's thread in this process call `behind` after its stages; None for nothing."""
        if isinstance(self._engine, Engine):
            self._engine.behind = behind

    def _stop(self, stops: Stops | None) -> Stop:
        """Return the function of ids after which a sequence ends, or the caller's own."""
        if callable(stops):
            return stops
        given = self.model.stops if stops is None else stops
        checks.instance(given, Iterable, "stops", "ids, or a function of a sequence's number and its latest token")
        ids = frozenset(checks.integer(each, "a stop token") for each in given)
        return lambda _, token: token in ids

    def _run(self, call: GenerationCall) -> Generator[tuple[int, int], None, None]:
        """Keep groups on their way until all sequences have ended; yield tokens as they come."""
        busy: set[RowGroup] = set()
        ended: queue.SimpleQueue[RowGroup] = queue.SimpleQueue()
        try:
            while call.waiting or busy:
                while call.waiting and (group := self._take(wait=not busy)) is not None:
                    busy.add(group)
                    self._go_on(group, call, busy, ended)
                if busy:
                    group = ended.get()
                    yield from self._chosen(group, call)
                    self._go_on(group, call, busy, ended)
        finally:  # also if the caller asks for no more tokens
            for group in busy:
                if group.on_way is not None:
                    group.on_way[1].exception()  # waits
                self._release(group)
        call.raise_first()

    def _take(self, wait: bool) -> RowGroup | None:
        """Return a group that nobody uses; None if there is none, unless it is worth to wait for one."""
        self._ending.check()
        try:
            return self._free.get(block=wait)
        except queue.Empty:
            return None

    def _release(self, group: RowGroup) -> None:
        group.rows = [None] * self.model.rows
        self._free.put(group)

    def _go_on(
        self, group: RowGroup, call: GenerationCall, busy: set[RowGroup], ended: "queue.SimpleQueue[RowGroup]"
    ) -> None:
        """Fill free rows with sequences that wait, and begin the next pass of a group; release it if there is none."""
        while call.fill(group):
            phase = next_phase(self.model, [one for _, one in group.active])
            try:
                promise = self._engine.submit(pass_inputs(self.model, group, phase), self._number[phase])
            except Exception as error:  # such as that of a process that is gone
                call.fail_all(group, error)
                continue
            group.on_way = phase, promise
            promise.add_done_callback(lambda _: ended.put(group))
            return
        busy.remove(group)
        self._release(group)

    def _chosen(self, group: RowGroup, call: GenerationCall) -> Generator[tuple[int, int], None, None]:
        """Choose the next token of each sequence that the pass of a group has brought so far."""
        assert group.on_way is not None, "its pass has ended"
        (phase, written), group.on_way = group.on_way, None
        if (failure := written.exception()) is not None:
            call.fail_all(group, failure)
            return
        for row, one in advance(group, phase):
            token = call.choose(group, row, written.result()[self._logits][row])
            if token is not None:
                yield one.number, token


def _prompts(ids: Iterable[Prompt]) -> Iterable[Prompt]:
    """Check that there are prompts."""
    checks.instance(ids, Iterable, "the prompts", "a list of ids for each sequence, such as [[1, 2, 3]]")
    return ids
