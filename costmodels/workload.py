"""The use of a network: inference, training or generation, and the sizes of batches."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from costmodels.memory.optimizers import OPTIMIZERS
from graphs.common.checks import check_fields, one_of
from graphs.common.errors import InputError

Mode: TypeAlias = Literal["inference", "training", "generation"]

RecomputeMode: TypeAlias = Literal["none", "selective", "full"]
RECOMPUTE_MODES: tuple[RecomputeMode, ...] = get_args(RecomputeMode)
"""Which operators run again before the backward pass: none, those that are large and quick to compute, such as
attention's scores, or all (see `costmodels.memory.recomputation`)."""

ZERO_STAGES = (0, 1, 2, 3)
"""Stages of ZeRO: how much of the states of a step replicas divide among themselves."""

MICRO_BATCHES = 8  # of a training step, by default

TRAINING_SCHEDULES = ("gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-h2", "zbv")
"""Names of the schedules of a training step, which `simulator.schedules` makes."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One use of a network.

    Attributes:
        mode: inference (forward only), training (forward, backward and the step of an optimizer), or generation (a
            language model that continues prompts token by token, with caches).
        batch: samples in one micro-batch; the shapes in the graph are those of one micro-batch. In generation, the rows
            of a group: sequences that one pass advances together.
        in_flight: in inference, micro-batches that are in flight at the same time, each with its own activations. In
            generation, groups on their way at the same time, each with its own caches.
        optimizer: in training, a name of `costmodels.memory.optimizers.OPTIMIZERS`.
        micro_batches: in training, number of micro-batches between two steps of the optimizer.
        schedule: in training, name of the schedule, which determines how many micro-batches a device holds.
        recompute: in training, what stages run forward again before they go backward, instead of keeping it.
        prompt: in generation, tokens of each prompt.
        output: in generation, tokens that each sequence gets after its prompt.
        context: in generation, positions of a cache; a sequence has that many tokens at most, without its last one.
        free: in generation, rows that stay without a sequence, since sequences do not fill all groups.

    Raises:
        InputError: for a field of a wrong type, an unknown mode, optimizer, schedule or recomputation, a number below
            1, recomputation in inference, lengths of sequences without generation, a context that is too short, or as
            many free rows as a group has.
    """

    mode: Mode = "inference"
    batch: int = 1
    in_flight: int = 4
    optimizer: str = "sgd"
    micro_batches: int = 1
    schedule: str = "1f1b"
    recompute: RecomputeMode = "none"
    prompt: int = 0
    output: int = 0
    context: int = 0
    free: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "the workload")
        if self.batch < 1:
            raise InputError(f"the batch is {self.batch}; it must be 1 or more")
        if self.in_flight < 1:
            raise InputError(f"{self.in_flight} micro-batches in flight; it must be 1 or more")
        one_of(self.optimizer, "the optimizer", OPTIMIZERS)
        if self.micro_batches < 1:
            raise InputError(f"{self.micro_batches} micro-batches between two steps; it must be 1 or more")
        one_of(self.schedule, "the schedule", TRAINING_SCHEDULES)
        one_of(self.recompute, "the recomputation", RECOMPUTE_MODES)
        if self.recompute != "none" and self.mode != "training":
            raise InputError(f"recompute is for the backward pass, and {self.mode} has none; leave it out")
        self._check_lengths()

    def _check_lengths(self) -> None:
        if not 0 <= self.free < (self.batch if self.generates else 1):
            of = f"a group of {self.batch:,}" if self.generates else self.mode
            raise InputError(f"{self.free} free rows of {of}; leave them out, or take fewer groups")
        lengths = {"prompt": self.prompt, "output": self.output, "context": self.context}
        for name, tokens in lengths.items():
            if not self.generates and tokens:
                raise InputError(f"{name} is for generation and the mode is {self.mode}; leave it out")
            if self.generates and tokens < 1:
                raise InputError(f"the {name} has {tokens} tokens; generation needs 1 or more")
        if self.prompt + self.output - 1 > self.context:
            raise InputError(
                f"a prompt of {self.prompt:,} tokens and {self.output:,} after it do not fit into the context of "
                f"{self.context:,}; ask for fewer, or a longer context"
            )

    def in_pairs(self, copies: int) -> bool:
        """Return whether each of ``copies`` copies has two micro-batches, which quick kernels run at once."""
        return self.mode == "inference" and self.in_flight >= 2 * copies

    @property
    def generates(self) -> bool:
        """Whether a language model continues prompts."""
        return self.mode == "generation"

    @property
    def sequences(self) -> int:
        """Sequences that are on their way at the same time."""
        return self.batch * self.in_flight - self.free

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return self.mode == "training"
