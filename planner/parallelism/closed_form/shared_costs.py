"""SharedNetwork: the costs of a network whose layers groups of devices share, by tensor parallelism and ZeRO.

A group of t equal devices stands for one device of a `CostTable`; with r replicas of it:

::

    work, activations     divided by t where a layer has a style, or its results are divided (`TensorStyles`)
    states                divided by t where the weight is, and by r as ZeRO's stage says; stages that read one weight
                          have a copy each
    columns               the gradients of what they read: all-reduce, or by tokens all-gather and reduce-scatter
    rows, words           their results: all-reduce, or by tokens reduce-scatter and all-gather
    gathered columns      as columns, and an all-gather of the results
    divided, read whole   all-gather; whole, read in parts: all-gather of the gradients
    recomputation         layer by layer, except stem and head: a layer keeps its inputs until it is recomputed
    ZeRO 2 and 3          the gradients of a layer for each micro-batch; 3: its parameters for both passes; overlapped
                          with computing, while all rings of an uplink run

Sources: Shoeybi et al., arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198; Rajbhandari et al., arXiv 1910.02054.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from costmodels.cluster.collectives import overlapped_s
from costmodels.cluster.fabric import Fabric
from costmodels.memory.device import working_bytes
from costmodels.memory.footprints import Footprints
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.step_update import StepUpdate
from costmodels.table import CostTable
from costmodels.workload import Workload
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import brief
from graphs.common.groups import least_members
from graphs.ir import Graph, Op, Role
from planner.parallelism.closed_form.layer_times import MEGATRON
from planner.parallelism.closed_form.priced_stage import GATHERED
from planner.parallelism.network.layers import NetworkLayers, is_batch_norm, learned_of
from planner.parallelism.network.tensor_styles import TOKENS, Style, TensorStyles, read_by, weight_of

SUMMED = 4  # bytes of a mean or a variance of a channel


class ZeroStage(NamedTuple):
    """How replicas divide the states of a network.

    Attributes:
        stage: of ZeRO, 0 to 3.
        replicas: the number of replicas.
        gradients: bytes of a gradient for each byte of a parameter that products read.
        states: bytes of a moment for each such byte; if more than 1, of a copy of the parameters too.
        own_degrees: whether stages may differ in degrees, so that replicas have parts of the same micro-batch.
    """

    stage: int = 0
    replicas: int = 1
    gradients: float = 1.0
    states: float = 1.0
    own_degrees: bool = False

    @property
    def part(self) -> float:
        """The share of divided states that a replica has."""
        return 1 / self.replicas

    def held(self, moments: int) -> float:
        """Return the bytes of parameters, gradients and moments that a replica has for each byte of a parameter."""
        kept = moments * self.states + (self.states if self.states > 1 else 0.0)
        divides = (self.stage >= 3, self.stage >= 2, self.stage >= 1)
        sizes = (1.0, self.gradients, kept)
        return sum(size * (self.part if divided else 1.0) for size, divided in zip(sizes, divides, strict=True))


WHOLE_STATES = ZeroStage()


@dataclass(frozen=True)
class SharedNetwork:
    """A network whose layers some devices share.

    Attributes:
        layers: of the network.
        styles: how the devices share them.
        tensor: how many devices; 1 if only states are divided.
    """

    layers: NetworkLayers
    styles: TensorStyles
    tensor: int

    __repr__ = brief

    @classmethod
    def of(cls, graph: Graph, tensor: int) -> "SharedNetwork | None":
        """Return the network for groups of ``tensor`` devices; None if a group can share none of its layers.

        Raises:
            InputError: for a network without parameters.
        """
        styles = TensorStyles.of(graph, range(len(graph.ops)), tensor)
        return cls(NetworkLayers.of(graph), styles, tensor) if styles.style or tensor == 1 else None

    @property
    def graph(self) -> Graph:
        """The network itself."""
        return self.layers.graph

    @cached_property
    def units(self) -> tuple[tuple[int, ...], ...]:
        """Operators that stay on one stage: a layer each, or several layers that a divided tensor joins."""
        blocks = [list(layer) for layer in self.layers.layers]
        blocks[0][:0], blocks[-1][len(blocks[-1]) :] = self.layers.stem, self.layers.head
        home = {number: position for position, block in enumerate(blocks) for number in block}
        crossed = [
            range(home[flow.writer], max(home[reader] for reader in flow.readers) + 1)
            for flow in self.graph.flows
            if flow.tensor in self.styles.axis and not self._by_tokens(flow.tensor) and flow.writer in home
        ]
        members: dict[int, list[int]] = {}
        for position, first in enumerate(least_members(len(blocks), crossed)):
            members.setdefault(first, []).extend(blocks[position])
        return tuple(tuple(sorted(unit)) for unit in members.values())

    def counts(self, stages: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return [n_stages], the number of layers of each stage, from its operators."""
        members = [set(stage) for stage in stages]
        return tuple(sum(layer[0] in own for layer in self.layers.layers) for own in members)

    def costs(
        self, table: CostTable, fabric: Fabric, launch_s: Floats, work: Workload, zero: ZeroStage = WHOLE_STATES
    ) -> CostTable:
        """Return the costs for groups, from the costs for one device of each group.

        Args:
            table: of the whole network, on a device of each group.
            fabric: of the devices; groups are neighbours.
            launch_s: [n_devices], seconds of each operator that a group does not divide.
            work: that the table is for.
            zero: how replicas divide the states that remain.
        """
        training, update = table.training, table.update
        assert training is not None
        assert update is not None
        ahead_s, back_s = self._collectives(fabric)
        if zero.own_degrees and zero.replicas > 1:
            norms_s = self._norms_s(fabric, zero.replicas)
            ahead_s, back_s = ahead_s + norms_s, back_s + norms_s
        forward_s, backward_s = self.computing_s(table, launch_s)
        forward_s, backward_s = forward_s + ahead_s[:, None], backward_s + back_s[:, None]
        kept, state = self._kept, self._state
        moments = OPTIMIZERS[work.optimizer].copies
        copied_bytes = self._copied_bytes if table.n_devices > 1 or zero.own_degrees else np.zeros(len(state))
        own_bytes = update.gradient_bytes + copied_bytes
        gradient_bytes = state * own_bytes
        whole_bytes = (2 + moments) * (own_bytes - gradient_bytes)
        shared_bytes = (2 + moments - zero.held(moments)) * gradient_bytes
        once = zero.states * (zero.part if zero.stage else 1.0)
        parts = {name: once * part for op in self.graph.ops for name, part in self._state_parts(op).items()}
        divided = replace(
            table,
            forward_s=forward_s,
            op_bytes=np.maximum(0.0, table.op_bytes + (2 + moments) * copied_bytes - whole_bytes - shared_bytes),
            working_bytes=working_bytes(self.graph, work, parts),
            together=tuple(unit for unit in self.units if len(unit) > 1),
            training=replace(
                training,
                backward_s=backward_s,
                saved_bytes=kept * training.saved_bytes,
                ends_bytes=np.minimum(training.ends_bytes, kept * training.saved_bytes),
                once_saved_bytes=kept * training.once_saved_bytes,
                layer=self._layer,
                layer_bytes=self._layer_bytes,
                held=0.0,
                update=replace(update, gradient_bytes=gradient_bytes),
            ),
        )
        return self._with_zero(divided, update, zero)

    @cached_property
    def _kept(self) -> Floats:
        """[n_ops], `_saved_share` of each."""
        return np.array([self._saved_share(op) for op in self.graph.ops])

    @cached_property
    def _state(self) -> Floats:
        """[n_ops], `_state_share` of each."""
        return np.array([self._state_share(op) for op in self.graph.ops])

    def computing_s(self, table: CostTable, launch_s: Floats) -> tuple[Floats, Floats]:
        """Return the seconds in which groups compute, forward and backward, [n_ops, n_devices] each."""
        share = np.array([1 / self.tensor if self._divides(op) else 1.0 for op in self.graph.ops])[:, None]
        forward_s, backward_s = (
            np.minimum(launch_s, seconds) + share * np.maximum(0.0, seconds - launch_s)
            for seconds in (table.forward_s, table.backward_s)
        )
        return forward_s, backward_s

    # --- tensor parallelism ------------------------------------------------------------------------------------------

    def _divides(self, op: Op) -> bool:
        """Return whether each device does a part of an operator's work."""
        return op.name in self.styles.style or op.name in self.styles.reads

    def _by_tokens(self, name: str) -> bool:
        """Return whether a divided tensor is divided by its tokens."""
        return self.styles.axis.get(name) == TOKENS and len(self.graph.tensor[name].shape) == TOKENS + 2

    def _reads_part(self, op: Op, name: str) -> bool:
        """Return whether an operator reads a divided tensor in parts, without gathering it."""
        style = self.styles.style.get(op.name)
        return name in self.styles.axis and (style is Style.ROW or (style is None and op.name in self.styles.reads))

    def _collectives(self, fabric: Fabric) -> tuple[Floats, Floats]:
        """Return the seconds of the collectives in a group, forward and backward, [n_ops] each."""
        ahead_s, back_s = np.zeros(len(self.graph.ops)), np.zeros(len(self.graph.ops))
        if self.tensor == 1:
            return ahead_s, back_s
        group = fabric.group(self.tensor, 1)
        price = {True: fabric.all_reduce, False: fabric.all_gather}
        for number, op in enumerate(self.graph.ops):
            for back, sums, name in self._sent(op):
                (back_s if back else ahead_s)[number] += price[sums](self.graph.tensor[name].n_bytes, group)
        return ahead_s, back_s

    def _norms_s(self, fabric: Fabric, replicas: int) -> Floats:
        """Return [n_ops], the seconds in which replicas add up batch norms' means and variances, or gradients."""
        group, sums_s = fabric.group(replicas, self.tensor), np.zeros(len(self.graph.ops))
        for number, op in enumerate(self.graph.ops):
            if is_batch_norm(op):
                channels = self.graph.tensor[op.inputs[0]].shape[1]
                sums_s[number] = 2 * fabric.all_reduce(SUMMED * channels, group)
        return sums_s

    def _sent(self, op: Op) -> Iterator[tuple[bool, bool, str]]:
        """Yield an operator's collectives: whether one runs backward, whether it is an all-reduce, and its tensor."""
        style, axis, written = self.styles.style.get(op.name), self.styles.axis, op.outputs[0]
        if style in (Style.COLUMN, Style.GATHERED):
            name = read_by(op)
            if name in axis:
                yield False, False, name
            if name in self._learned:
                yield True, name not in axis, name
        if style is Style.GATHERED:
            yield False, False, written
        if style in (Style.ROW, Style.VOCABULARY):
            yield False, written not in axis, written
            if written in axis and written in self._learned:
                yield True, False, written
        if style is None:
            wanted = self.styles.reads.get(op.name, (None,) * len(op.inputs))
            for name, part in zip(op.inputs, wanted, strict=True):
                if part is None and name in axis:
                    yield False, False, name
                elif part is not None and name not in axis and name in self._learned:
                    yield True, False, name

    @cached_property
    def _learned(self) -> frozenset[str]:
        """The tensors between operators that have a gradient."""
        states = {tensor.name for tensor in self.graph.tensors if tensor.role is Role.PARAMETER}
        return learned_of(self.graph) - states

    @cached_property
    def _footprints(self) -> Footprints:
        return Footprints(self.graph)

    def _saved_share(self, op: Op) -> float:
        """Return the share of an operator's saved bytes that one device keeps; a gathered tensor is kept whole."""
        names = [
            name for name in self._footprints.backward(op).saved if self.graph.tensor[name].role is Role.ACTIVATION
        ]
        sizes = [self.graph.tensor[name].n_bytes for name in names]
        if not sum(sizes):
            return 1 / self.tensor if self._divides(op) else 1.0
        divided = (self._reads_part(op, name) if name in op.inputs else name in self.styles.axis for name in names)
        return sum(size / self.tensor if part else size for size, part in zip(sizes, divided, strict=True)) / sum(sizes)

    def _state_share(self, op: Op) -> float:
        """Return the share of an operator's parameters that one device has."""
        sizes = {tensor.name: tensor.n_bytes for tensor in self.graph.state(op)}
        own = sum(sizes[name] * part for name, part in self._state_parts(op).items())
        return own / sum(sizes.values()) if own else 1.0

    def _state_parts(self, op: Op) -> dict[str, float]:
        """Return the share of each parameter that one device has; the bias of a row-parallel layer is whole."""
        style = self.styles.style.get(op.name)
        divided = {
            tensor.name: style is not None and (style is not Style.ROW or tensor.name == weight_of(op))
            for tensor in self.graph.state(op)
        }
        return {name: 1 / self.tensor if part else 1.0 for name, part in divided.items()}

    @cached_property
    def _layer(self) -> Ints:
        """[n_ops], the layer that an operator is recomputed with, or -1 for stem and head, which are not recomputed."""
        layer = np.full(len(self.graph.ops), -1)
        for number, ops in enumerate(self.layers.layers):
            layer[list(ops)] = number
        return layer

    @cached_property
    def _layer_bytes(self) -> Floats:
        """[n_flows], bytes that a device keeps of a tensor that one layer reads from another; 0 for other tensors."""
        parts = (self.tensor if flow.tensor in self.styles.axis else 1 for flow in self.graph.flows)
        n_bytes = (
            self.graph.tensor[flow.tensor].n_bytes / part for flow, part in zip(self.graph.flows, parts, strict=True)
        )
        goes_over = (
            {self._layer[reader] for reader in flow.readers} - {-1, self._layer[flow.writer]}
            for flow in self.graph.flows
        )
        return np.array([size if other else 0.0 for size, other in zip(n_bytes, goes_over, strict=True)])

    @cached_property
    def _copied_bytes(self) -> Floats:
        """[n_ops], bytes of an operator's trained parameters that an operator of another unit reads first."""
        unit = {number: position for position, own in enumerate(self.units) for number in own}
        seen: dict[str, set[int]] = {}
        copied = np.zeros(len(self.graph.ops))
        for number in sorted(unit):
            for tensor in self.graph.state(self.graph.ops[number]):
                if tensor.name in self._footprints.parameters:
                    known = seen.setdefault(tensor.name, {unit[number]})
                    copied[number] += tensor.n_bytes * (unit[number] not in known)
                    known.add(unit[number])
        return copied

    # --- ZeRO --------------------------------------------------------------------------------------------------------

    def _with_zero(self, table: CostTable, ring: StepUpdate, zero: ZeroStage) -> CostTable:
        """Return the costs with the optimizer's step divided, and messages for each micro-batch or once a step."""
        assert table.training is not None
        assert table.update is not None
        once = (zero.gradients, 0.5 * (zero.gradients + 1), 0.5, 0.0)[zero.stage]  # of an all-reduce of parameters
        update = replace(
            table.update,
            optimizer_s_per_byte=(zero.part if zero.stage else 1.0) * zero.states * ring.optimizer_s_per_byte,
            sync_s_per_byte=once * ring.sync_s_per_byte,
            sync_latency_s=once * ring.sync_latency_s,
        )
        forward_s, backward_s = table.forward_s.copy(), table.backward_s.copy()
        all_rings_s_per_byte = ring.sync_s_per_byte * ring.sharing
        unit_bytes = [float(update.gradient_bytes[list(unit)].sum()) for unit in self.units]
        for unit, n_bytes in zip(self.units, unit_bytes, strict=True):
            if zero.stage < 2 or not n_bytes:
                continue
            half_s = 0.5 * (ring.sync_latency_s + n_bytes * all_rings_s_per_byte)
            back = zero.gradients + (zero.stage == 3)
            passes = ((forward_s, half_s * (zero.stage == 3)), (backward_s, half_s * back))
            for seconds, sent_s in passes:
                computing_s = seconds[list(unit)].sum(axis=0)
                each = zip(computing_s.tolist(), sent_s.tolist(), strict=True)
                longer = [overlapped_s(own, sent, MEGATRON.overlap) - own if sent else 0.0 for own, sent in each]
                seconds[unit[0]] += longer
        gathered = GATHERED * max(unit_bytes) if zero.stage == 3 else 0.0
        return replace(
            table,
            forward_s=forward_s,
            working_bytes=table.working_bytes + gathered,
            training=replace(table.training, backward_s=backward_s, update=update),
        )
