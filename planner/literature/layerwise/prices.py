"""Prices: the time of a step and the memory of each stage under a layer-wise plan.

Notation of the source: B samples a step in m micro-batches, p stages; a strategy shares a layer among k ranks (tensor
or sequence) and leaves d = gpus / (p k) replicas with b samples each; D ranks share gradients and ZeRO's states.

Source: the cost model of Galvatron (``galvatron/core/cost_model``, https://github.com/PKU-DAIR/Hetu-Galvatron), which
charges nothing where neighbouring layers are shared in different ways.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np

from graphs.common.brief import Brief
from graphs.common.errors import InputError
from planner.literature.layerwise.setting import Curve, LayerStrategy, LayerwiseSetting

T = TypeVar("T")

MB = 2**20
ACTIVATION_BYTES = 2  # of a value between layers
STATES = 4  # parameters, gradients and two states of Adam, each as large as the parameters
ACCUMULATION = 5 / 4  # gradients of several micro-batches are added up in 4 bytes
ZERO_REST = 0.003  # of the states, which ZeRO does not divide
TENSOR_MESSAGES, SEQUENCE_MESSAGES = 6, 4  # all-gathers, or all-to-alls, of a layer forward and backward
AGAIN = 1.5  # times as many messages if the forward pass is repeated


class Degrees(NamedTuple):
    """The division of a stage's GPUs and samples under a strategy."""

    shards: int  # k
    replicas: int  # d
    zero_ranks: int  # D
    samples: int  # b, of a replica's micro-batch


class LayerTime(NamedTuple):
    """One micro-batch through one layer, forward and backward."""

    plain_ms: float
    synced_ms: float  # if gradients are added up over the replicas at the same time


@dataclass(frozen=True)
class StagePrices(Brief):
    """The prices of strategies if all layers are divided among ``stages`` pipeline stages."""

    setting: LayerwiseSetting
    stages: int

    @cached_property
    def stage_layers(self) -> tuple[int, ...]:
        """[n_stages], the number of layers of each stage; the last one has the rest."""
        each = self.setting.layers // self.stages
        return (*(each,) * (self.stages - 1), self.setting.layers - each * (self.stages - 1))

    def degrees(self, strategy: LayerStrategy) -> Degrees | None:
        """Return the degrees of a strategy; None if it does not fit the GPUs and the samples."""
        setting, shards = self.setting, max(strategy.tensor, strategy.sequence)
        replicas, left = divmod(setting.gpus, self.stages * shards)
        samples = setting.batch // setting.micro_batches
        if left or not 1 <= replicas <= samples or min(strategy.tensor, strategy.sequence) > 1:
            return None
        return Degrees(shards, replicas, replicas * strategy.sequence, samples // replicas)

    @cached_property
    def strategies(self) -> tuple[LayerStrategy, ...]:
        """All strategies of a layer; a single replica has no ZeRO."""
        powers = [1 << exponent for exponent in range(self.setting.gpus.bit_length())]
        shared = [LayerStrategy(k, 1) for k in powers] + [LayerStrategy(1, k) for k in powers[1:]]
        return tuple(
            LayerStrategy(strategy.tensor, strategy.sequence, zero, recompute)
            for strategy in shared
            if (degrees := self.degrees(strategy)) is not None
            for zero in ((2, 3) if degrees.replicas > 1 else (2,))
            for recompute in (False, True)
        )

    def layer(self, strategy: LayerStrategy) -> LayerTime:
        """Return the time of one layer."""
        setting, (shards, replicas, _, samples) = self.setting, self._fitting(strategy)
        forward_ms = self._layer_ms * samples / shards
        backward_ms = 2 * forward_ms + (forward_ms if strategy.recompute else 0.0)
        gradients_ms = self._gradients_ms(strategy, setting.parameters_mb / strategy.tensor)
        more_ms = self._messages_ms(strategy)
        synced_ms = backward_ms
        if replicas > 1:
            both = sorted((backward_ms, gradients_ms))
            synced_ms = both[1] + (setting.overlap - 1) * both[0]
            more_ms += gradients_ms / 2 if strategy.zero == 3 else 0.0
        if self.stages > 1:
            bandwidth = _at(setting.p2p_mb_per_ms, self.stages, "p2p_MB_per_ms")
            more_ms += 2 * self.stages * self._message_mb(strategy) / bandwidth / setting.layers
        return LayerTime(forward_ms + backward_ms + more_ms, forward_ms + synced_ms + more_ms)

    def layer_mb(self, strategy: LayerStrategy, stage: int) -> int:
        """Return the memory of one layer on a stage, in whole MB."""
        setting, (shards, _, _, samples) = self.setting, self._fitting(strategy)
        if strategy.recompute:
            activation_mb = setting.recomputed_mb / shards
        else:
            activation_mb = _at(setting.activation_mb, shards, "activation_MB_per_sample of layer_memory")
        states_mb = STATES * setting.parameters_mb / strategy.tensor * self._held(strategy)
        return ceil(states_mb + activation_mb * samples * (self.stages - stage))

    def outer_ms(self, strategy: LayerStrategy) -> tuple[float, ...]:
        """Return the time of one micro-batch in embedding and head, by stage."""
        shards, replicas, _, samples = self._fitting(strategy)
        times = [0.0] * self.stages
        for stage, name in self._ends.items():
            forward_ms = self._outer_ms * samples / shards / len(self._ends)
            gather_ms = 0.0
            if strategy.zero == 3 and replicas > 1:
                states = _at(self.setting.outer_memory[name].states_mb, strategy.tensor, f"model_states_MB of {name}")
                gather_ms = self._gradients_ms(strategy, states / 8) / 2
            for compute_ms in (forward_ms, 2 * forward_ms):
                times[stage] += gather_ms + max(0.0, compute_ms - gather_ms / self.setting.overlap)
            if strategy.tensor > 1:  # an all-gather is half an all-reduce; one for the embedding, one for the head
                times[stage] += self._all_reduce_ms(strategy) / len(self._ends)
        return tuple(times)

    def outer_mb(self, strategy: LayerStrategy) -> tuple[int, ...]:
        """Return the memory of embedding and head, and of the GPU's context, by stage, in whole MB."""
        shards, _, _, samples = self._fitting(strategy)
        held = [self.setting.context_mb] * self.stages
        for stage, name in self._ends.items():
            memory = self.setting.outer_memory[name]
            states_mb = _at(memory.states_mb, strategy.tensor, f"model_states_MB of {name}")
            activation_mb = _at(memory.activation_mb, shards, f"activation_MB_per_sample of {name}")
            held[stage] += states_mb * self._held(strategy) + activation_mb * samples * (self.stages - stage)
        return tuple(map(ceil, held))

    def buffer_mb(self, widest: int) -> int:
        """Return the buffer for gathered activations in whole MB, which a stage with tensor parallelism has."""
        setting = self.setting
        replicas = setting.gpus // self.stages // widest
        buffer_mb = setting.batch / setting.micro_batches / replicas * self._sample_mb
        return ceil(buffer_mb) if setting.uniform else int(buffer_mb)

    @cached_property
    def _ends(self) -> dict[int, str]:
        """The stages of embedding and head, as the setting calls them."""
        return {0: "only_stage"} if self.stages == 1 else {0: "first_stage", self.stages - 1: "last_stage"}

    @cached_property
    def _layer_ms(self) -> float:
        """Milliseconds of a layer for one sample, by a parabola through the measurements."""
        return _fitted(self.setting.layer_ms, 2, self.setting.sequence)

    @cached_property
    def _outer_ms(self) -> float:
        """Milliseconds of embedding and head for one sample, by a line through the measurements."""
        return _fitted(self.setting.outer_ms, 1, self.setting.sequence)

    @property
    def _sample_mb(self) -> float:
        """MB of a sample's activations between two layers."""
        return self.setting.sequence * self.setting.hidden * ACTIVATION_BYTES / MB

    def _message_mb(self, strategy: LayerStrategy) -> float:
        return self._fitting(strategy).samples * self._sample_mb

    def _fitting(self, strategy: LayerStrategy) -> Degrees:
        degrees = self.degrees(strategy)
        if degrees is None:
            raise InputError(
                f"tensor {strategy.tensor} × sequence {strategy.sequence} on {self.stages} stages does not fit "
                f"{self.setting.gpus} GPUs and {self.setting.batch // self.setting.micro_batches} samples a micro-batch"
            )
        return degrees

    def _gradients_ms(self, strategy: LayerStrategy, mb: float) -> float:
        """To add up gradients over the ranks that share them: each sends (D − 1) / D of them."""
        ranks = self._fitting(strategy).zero_ranks
        if ranks == 1:
            return 0.0
        near = strategy.tensor == 1
        bandwidth = self.setting.near_mb_per_ms if near else self.setting.spread_mb_per_ms
        return (ranks - 1) / ranks * mb / _at(bandwidth, ranks, "allreduce_MB_per_ms")

    def _messages_ms(self, strategy: LayerStrategy) -> float:
        """Return the collectives within one layer."""
        again = AGAIN if strategy.recompute else 1.0
        if strategy.tensor > 1:
            return TENSOR_MESSAGES * again * self._all_reduce_ms(strategy) / 2
        if strategy.sequence > 1:
            curve = _at(self.setting.all_to_all, strategy.sequence, "all2all of collective_ms")
            return SEQUENCE_MESSAGES * again * _message_ms(curve, self._message_mb(strategy))
        return 0.0

    def _all_reduce_ms(self, strategy: LayerStrategy) -> float:
        curve = _at(self.setting.all_reduce, strategy.tensor, "allreduce of collective_ms")
        return _message_ms(curve, self._message_mb(strategy))

    def _held(self, strategy: LayerStrategy) -> float:
        """Return the share of the states that a rank holds under ZeRO; stage 2 does not divide parameters in use."""
        _, replicas, ranks, _ = self._fitting(strategy)
        if replicas == 1:
            return 1.0
        share = 1 / ranks + ZERO_REST
        return (share if strategy.zero == 3 else 7 / 8 * share + 1 / 8) * (
            ACCUMULATION if self.setting.micro_batches > 1 else 1.0
        )


def _fitted(curve: Curve, degree: int, at: float) -> float:
    """Return a polynomial of least squares."""
    return float(np.polyval(np.polyfit(curve.sizes, curve.ms, degree), at))


def _message_ms(curve: Curve, mb: float) -> float:
    """Return the milliseconds of a message, as measured or interpolated between measured sizes."""
    return curve.ms[curve.sizes.index(mb)] if mb in curve.sizes else _fitted(curve, 1, mb)


def _at(table: Mapping[int, T], ranks: int, where: str) -> T:
    if ranks not in table:
        raise InputError(f"{where} has no value for {ranks} ranks; add it")
    return table[ranks]


def pace_factors(stages: int, micro_batches: int) -> tuple[tuple[float, ...], ...]:
    """Return factors of the stages' times; the largest of their sums is a step's time to stream through the pipeline.

    The last stage sets the pace, or the first one does, before or while the others are filled.
    """
    p, m = stages, micro_batches
    rest = float(max(0, m + 1 - p))
    return (
        (*(1.0,) * (p - 1), float(m)),
        (min(p, m) - 1 + rest, *(0.0,) * (p - 1)),
        (rest, *(1.0,) * (p - 1)),
    )


def step_ms(compute: Sequence[float], synced: Sequence[float], micro_batches: int) -> float:
    """Return the milliseconds of a step: streaming through the pipeline, and the gradients of the last micro-batch.

    Args:
        compute: of one micro-batch on each stage, without gradients.
        synced: of the layers of each stage, with gradients.
        micro_batches: how many there are.
    """
    factors = pace_factors(len(compute), micro_batches)
    streaming_ms = max(sum(f * ms for f, ms in zip(pace, compute, strict=True)) for pace in factors)
    late_ms = (ms - done_ms for ms, done_ms in zip(synced, accumulate(compute), strict=True))
    return streaming_ms + max(0.0, *late_ms)
