"""LayerTimes: seconds of a transformer's parts on a device, from FLOP, bytes and the shares of peaks that are reached.

::

    products and attention   FLOP / (peak * products)
    norms, dropouts, masks   bytes that are read and written / (bandwidth * memory):
                             b s (22 h + 4 a + 6 f) forward, and 9 n s^2 b for scores that are kept
    backward                 twice as long
    optimizer                bytes of gradients, states and parameters / (bandwidth * memory)

Tensor parallelism divides all but the 22 h, which sequence parallelism divides too. The shares of `MEGATRON` and
`DEEPSPEED` are least squares over published steps on A100; `tests.benchmarks.hybrid_megatron` says which, and how far
off others are.
"""

from dataclasses import dataclass, replace

from costmodels.cluster.cluster import Device
from graphs.common.errors import InputError
from planner.parallelism.closed_form.memory import PARAMETER, LayerSplit
from planner.parallelism.closed_form.transformer import Transformer

WHOLE_VALUES, SPLIT_VALUES = 22, 4  # bytes of a token's h values that norms, dropouts and residuals move; and attention
FFN_VALUES = 6  # bytes of a token's f values: an activation function reads, writes, and is read by its product
SCORE_BYTES = 9  # softmax reads and writes 2 bytes each, dropout 2 and 3
LOGIT_BYTES = 12  # read and written in 16 and in 32 bits
DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peaks that a framework reaches."""

    products: float  # of a device's FLOP/s
    memory: float  # of its memory's bandwidth
    inside: float  # of the links within a host
    between: float  # of the links between hosts
    sharded: float  # the same for what ZeRO 2 and 3 send for each micro-batch
    overlap: float  # how many times as long computing takes while ZeRO 2 and 3 communicate


MEGATRON = Efficiency(products=0.685, memory=0.81, inside=0.58, between=1.0, sharded=0.116, overlap=1.50)
"""Fitted to Megatron-LM, and for ZeRO 2 and 3 to DeepSpeed, which published steps under ZeRO-3 were run with."""

DEEPSPEED = replace(MEGATRON, between=MEGATRON.sharded)


@dataclass(frozen=True)
class LayerTimes:
    """A transformer on a device."""

    network: Transformer  # to train
    device: Device  # that computes
    efficiency: Efficiency  # of its peaks

    @property
    def flops_per_s(self) -> float:
        """The device's peak in 16 bits.

        Raises:
            InputError: if it has none.
        """
        for dtype in DTYPES:
            if dtype in self.device.flops_per_s:
                return self.device.flops_per_s[dtype]
        raise InputError(f"device '{self.device.name}' has no flops.bfloat16, in which choose trains; add it")

    def forward_s(self, samples: int, split: LayerSplit, expert: int = 1) -> float:
        """Return the seconds of a layer forward, without messages, its experts divided among ``expert`` replicas."""
        network, tokens = self.network, samples * self.network.sequence
        whole = WHOLE_VALUES * network.hidden / (split.tensor if split.sequence_parallel else 1)
        values = whole + (SPLIT_VALUES * network.attention_values + FFN_VALUES * network.ffn) / split.tensor
        products_s = self.products_s(samples, split.tensor, expert)
        return products_s + self.attention_s(samples, split.tensor) + tokens * values / self._bytes_per_s

    def products_s(self, samples: int, tensor: int, expert: int = 1) -> float:
        """Return the seconds of a layer's products with weights, forward.

        Experts with few tokens take as long as reading their weights.
        """
        network, flops = self.network, self.network.product_flops(samples)
        if network.mixture is None:
            return flops / tensor / self._products_per_s
        own = network.expert_flops(samples)
        read_s = PARAMETER * network.expert_parameters / tensor / expert / self._bytes_per_s
        return (flops - own) / tensor / self._products_per_s + max(own / tensor / self._products_per_s, read_s)

    def attention_s(self, samples: int, tensor: int) -> float:
        """Return the seconds of scores and weighted values, forward, which selective recomputation repeats.

        Scores that are kept are computed outside a window, too: a mask hides them.
        """
        network = self.network
        scores = 0 if network.flash else SCORE_BYTES * network.heads * network.sequence**2 * samples
        flops = (network if network.flash else replace(network, window=0)).attention_flops(samples)
        return flops / tensor / self._products_per_s + scores / tensor / self._bytes_per_s

    def head_s(self, samples: int, tensor: int) -> float:
        """Return the seconds of the head, forward and backward."""
        flops = 3 * self.network.head_flops(samples)
        moved = LOGIT_BYTES * samples * self.network.sequence * self.network.vocabulary
        return flops / tensor / self._products_per_s + moved / tensor / self._bytes_per_s

    def optimizer_s(self, parameters: float, gradient_bytes: int, state_bytes: int) -> float:
        """Return the seconds of an optimizer's step: it reads gradients, updates float32 values, writes parameters."""
        return parameters * (gradient_bytes + 2 * state_bytes + PARAMETER) / self._bytes_per_s

    @property
    def _products_per_s(self) -> float:
        return self.flops_per_s * self.efficiency.products

    @property
    def _bytes_per_s(self) -> float:
        return self.device.memory_bytes_per_s * self.efficiency.memory
