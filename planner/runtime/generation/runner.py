"""GenerationRunner: a language model that generates where its plan says.

::

    sequences ──► groups of rows ──► passes ──► engine, a thread for each device ──► logits ──► next tokens ──┐
                    ▲     caches written in place                                                             │
                    └────────────────────────────────────────────────────────────────────────────────────────┘

Each group has one pass on its way; as many groups as the plan has in flight keep the devices busy. The phases of a
model are the copies of a network that the engine knows, and a pass goes through the one of its size.
"""

import queue
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any

import torch

from costmodels.host.affinity import settle, torch_device_of
from graphs.caches import in_place, users
from graphs.common import checks
from graphs.common.errors import InputError
from graphs.common.promises import Promise
from graphs.program.generation import GenerationProgram, Phase, unlike
from graphs.program.in_place import writing_in_place
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from planner.plans.plan import Plan
from planner.runtime.closing import Closing, Ending
from planner.runtime.generation.groups import Continuation, RowGroup, advance, next_phase, pass_inputs, views
from planner.runtime.generation.sampling import Sampling
from planner.runtime.inference.inline_engine import engine_of
from planner.runtime.inference.runner import check_surroundings
from planner.runtime.inference.tasks import Tensors
from planner.runtime.matching import check_generates, check_runs
from planner.runtime.stages.compile import compile_phases
from planner.runtime.stages.numerics import ON_THREADS, check_numerics, numerics

GREEDY = Sampling()


class GenerationRunner(Closing):
    """A language model that generates where its plan says.

    ::

        model = planner.generation_program(module, rows=2)
        plan = planner.plan(model.decode, cluster=cluster, search=planner.Search(rewrites="none"))
        with planner.GenerationRunner(plan, model) as runner:
            continuations = runner.generate([[5, 8, 2], [7]], max_new_tokens=64)

    Attributes:
        plan: where every operator runs, made for ``model.decode``.
        model: the model, imported.
    """

    def __init__(self, plan: Plan, model: GenerationProgram, share_weights: bool = False) -> None:
        """Start the devices as threads of this process, with empty caches for all sequences in flight.

        They have copies of the model's weights, unless these are shared with the model, which must not change then.

        Raises:
            InputError: if the plan is for another model or for copies of it, or a device is not on this host.
        """
        checks.instance(model, GenerationProgram, "the model", "what planner.generation_program returns")
        self._programs = _programs(plan, model)
        if len(plan.placement.copies) > 1:
            raise InputError(
                f"the plan has {len(plan.placement.copies)} copies of the network, and a cache lives in one; plan "
                "with search=Search(rewrites='none')"
            )
        self.plan, self.model = plan, model
        self._kinds = {"cpu" if plan.cluster.devices[number].cuda is None else "cuda" for number in plan.placement.used}
        self._numerics = numerics(ON_THREADS)
        settle(max(program.graph.largest_bytes for program in self._programs.values()))
        devices = plan.cluster.devices
        compiled, self._state = compile_phases(
            [writing_in_place(program) for program in self._programs.values()], plan.stages, devices, not share_weights
        )
        graph = plan.graph
        direct = {after for _, after in in_place(graph).values()}
        self._cached = {after: name for name, after in graph.caches}
        (self._logits,) = (name for name in graph.outputs if name not in self._cached)
        outputs = tuple(name for name in graph.outputs if name not in direct)
        self._engine = engine_of(devices, compiled, outputs, len(self._programs))
        self._number = {phase: number for number, phase in enumerate(self._programs)}
        self._free: queue.SimpleQueue[RowGroup] = queue.SimpleQueue()
        self._groups = tuple(self._group() for _ in range(plan.workload.in_flight))
        for group in self._groups:
            self._free.put(group)
        self._ending = Ending(self, "runner", self._engine.close)

    def generate(
        self,
        ids: Iterable[Sequence[int]],
        max_new_tokens: int,
        *,
        sampling: Sampling = GREEDY,
        stops: Collection[int] | None = None,
    ) -> list[list[int]]:
        """Continue sequences of token ids, of any lengths and any number, and return what comes after each.

        Args:
            ids: the prompts, without any filling.
            max_new_tokens: of each sequence, unless it stops before.
            sampling: how a token is chosen; the likeliest by default.
            stops: ids after which a sequence ends, which are the last of it; those of the model by default.

        Raises:
            InputError: for an empty prompt, an id that is none of the vocabulary, or a prompt that is too long for the
                context together with its continuation.
            StageError: if an operator fails.
        """
        prompts = [list(each) for each in ids]
        found: list[list[int]] = [[] for _ in prompts]
        for number, token in self.tokens(prompts, max_new_tokens, sampling=sampling, stops=stops):
            found[number].append(token)
        return found

    def tokens(
        self,
        ids: Iterable[Sequence[int]],
        max_new_tokens: int,
        *,
        sampling: Sampling = GREEDY,
        stops: Collection[int] | None = None,
    ) -> Generator[tuple[int, int], None, None]:
        """Yield tokens as they come, each after the number of its sequence; arguments and errors as `generate`."""
        check_surroundings(self._kinds)
        check_numerics(self._numerics, ON_THREADS)
        checks.instance(sampling, Sampling, "the sampling", "a planner.Sampling")
        checks.integer(max_new_tokens, "max_new_tokens", least=1)
        ends = self.model.stops if stops is None else frozenset(checks.integer(each, "a stop token") for each in stops)
        waiting = [
            Continuation(
                number, self._checked(prompt, number, max_new_tokens), max_new_tokens, sampling.generator(number)
            )
            for number, prompt in enumerate(ids)
        ]
        return self._run(waiting, sampling, ends)

    def owned(self, device: str) -> Mapping[str, torch.Tensor]:
        """Return the parameters and buffers that a device holds, by name."""
        checks.one_of(device, "the device", self.plan.cluster.index)
        return self._state.owned(self.plan.cluster.index[device])

    def caches(self, device: str) -> tuple[Mapping[str, torch.Tensor], ...]:
        """Return the caches that a device holds, by name, for each group of sequences in flight."""
        checks.one_of(device, "the device", self.plan.cluster.index)
        number = self.plan.cluster.index[device]
        return tuple({n: t for n, t in group.caches.items() if self._home[n] == number} for group in self._groups)

    @property
    def _home(self) -> dict[str, int]:
        """The device of each cache."""
        pairs = zip(self.plan.graph.caches, users(self.plan.graph), strict=True)
        return {name: self.plan.placement.device[ops[0]] for (name, _), ops in pairs}

    def _group(self) -> RowGroup:
        """Return rows without sequences, with empty caches."""
        devices, tensor = self.plan.cluster.devices, self.plan.graph.tensor
        caches = {
            name: torch.zeros(
                tensor[name].shape, dtype=getattr(torch, tensor[name].dtype), device=torch_device_of(devices[home])
            )
            for name, home in self._home.items()
        }
        return RowGroup(caches, [None] * self.model.rows)

    def _checked(self, prompt: Sequence[int], number: int, more: int) -> list[int]:
        """Return the ids of a prompt, checked."""
        ids = [checks.integer(each, f"an id of prompt {number}") for each in prompt]
        if not ids:
            raise InputError(f"prompt {number} is empty; give it the id that begins a text, at least")
        if (largest := max(ids)) >= self.model.vocabulary:
            raise InputError(
                f"prompt {number} has the id {largest:,}, and the model knows those below {self.model.vocabulary:,}; "
                "use the tokenizer of this model"
            )
        if len(ids) + more - 1 > self.model.context:
            raise InputError(
                f"prompt {number} has {len(ids):,} tokens and up to {more:,} more to come, and the plan's context is "
                f"{self.model.context:,}; ask for fewer, or import the model with a longer context"
            )
        return ids

    def _run(
        self, waiting: list[Continuation], sampling: Sampling, ends: frozenset[int]
    ) -> Generator[tuple[int, int], None, None]:
        """Keep groups on their way until all sequences have ended; yield tokens as they come."""
        waiting = waiting[::-1]
        ended: queue.SimpleQueue[tuple[RowGroup, Phase, Promise[Tensors]]] = queue.SimpleQueue()
        busy: set[RowGroup] = set()
        try:
            while waiting or busy:
                while waiting and (group := self._take(wait=not busy)) is not None:
                    busy.add(group)
                    self._submit(group, waiting, ended)
                group, phase, promise = ended.get()
                for row, one, token in self._chosen(group, phase, promise.result(), sampling):
                    if one.left == 0 or token in ends:
                        group.rows[row] = None
                    yield one.number, token
                if group.active or waiting:
                    self._submit(group, waiting, ended)
                else:
                    busy.remove(group)
                    self._release(group)
        finally:  # also if the caller asks for no more tokens, or a pass has failed
            self._drain(busy)

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

    def _drain(self, busy: set[RowGroup]) -> None:
        """Wait for the passes that are still on their way, and give their groups back."""
        for group in busy:
            if group.on_way is not None:
                group.on_way.exception()  # waits
            self._release(group)

    def _submit(self, group: RowGroup, waiting: list[Continuation], ended: Any) -> None:
        """Fill free rows with sequences that wait, and begin the next pass of a group."""
        for row, one in enumerate(group.rows):
            if one is None and waiting:
                group.enter(row, waiting.pop(), self.model.growing)
        phase = next_phase(self.model, [one for _, one in group.active])
        inputs = pass_inputs(self.model, group, phase)
        given = {**inputs, **views(group.caches, self.model.growing, phase.length)}
        promise = self._engine.submit(given, self._number[phase])
        group.on_way = promise
        promise.add_done_callback(lambda done: ended.put((group, phase, done)))

    def _chosen(
        self, group: RowGroup, phase: Phase, written: Tensors, sampling: Sampling
    ) -> list[tuple[int, Continuation, int]]:
        """Keep the caches that a pass has written, and choose the next tokens; return them with rows and sequences."""
        group.on_way = None
        for after, name in self._cached.items():
            if after in written:  # not in place
                views(group.caches, self.model.growing, phase.length)[name].copy_(written[after])
        logits, found = written[self._logits], []
        for row, one in advance(group, phase):
            token = sampling.choose(logits[row], one.generator)
            one.pending.append(token)
            one.left -= 1
            found.append((row, one, token))
        return found


def _programs(plan: Plan, model: GenerationProgram) -> dict[Phase, Program]:
    """Return the programs of the phases after the rewrites of a plan.

    Raises:
        InputError: if the plan is for another model, or its rewrites do not fit all phases alike.
    """
    checks.instance(plan, Plan, "the plan", "a Plan for the model's decode program")
    check_generates(plan, model)
    decode = model.decode
    changed = plan.graph.fingerprint != decode.graph.fingerprint
    programs = {
        phase: rewritten_program(program, plan.rewrites) if changed else program
        for phase, program in model.phases.items()
    }
    check_runs(plan, programs[Phase(1, model.context)])
    for phase, program in programs.items():
        if (difference := unlike(program.graph, plan.graph)) is not None:
            raise InputError(
                f"the plan's rewrites change the network for {phase.tokens} tokens in another way than for 1: "
                f"{difference}; plan with search=Search(rewrites='none')"
            )
    return programs
