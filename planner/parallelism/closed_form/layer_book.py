"""LayerBook: seconds and bytes of a transformer's layer, by the device, its tensor-parallel degree and the samples."""

from typing import NamedTuple

from costmodels.cluster.fabric import Fabric
from costmodels.workload import RECOMPUTE_MODES
from planner.parallelism.closed_form.config import TrainingSetting
from planner.parallelism.closed_form.layer_times import LayerTimes
from planner.parallelism.closed_form.memory import LayerSplit, layer_activations
from planner.parallelism.closed_form.mixture import ALL_TO_ALLS

ALL_REDUCES = 2  # of a layer, one way: after attention and after the feed-forward part
ACTIVATION = 2  # bytes of a value between layers


class ExpertGroup(NamedTuple):
    """Replicas that divide the experts of a layer: their number, and the devices from one to the next."""

    size: int
    stride: int


ALONE = ExpertGroup(1, 1)


class LayerPrice(NamedTuple):
    """The price of a layer on one device of its stage: a micro-batch, forward and backward, by recomputation mode."""

    total_s: tuple[float, float, float]  # by recomputation
    computing_s: tuple[float, float, float]  # of it
    products_s: float  # weight gradients
    head_s: float
    held_bytes: tuple[float, float, float]


class LayerBook:
    """Prices of layers, each computed once."""

    def __init__(self, setting: TrainingSetting) -> None:
        self.setting = setting
        efficiency = setting.efficiency
        self.fabric: Fabric = setting.fabric.slowed(efficiency.inside, efficiency.between)
        self.sharded_fabric: Fabric = setting.fabric.slowed(efficiency.inside, efficiency.sharded)
        self._kinds = tuple({device.kind: number for number, device in enumerate(setting.fabric.devices)}.values())
        self.alike = len({(device.kind, device.usable_bytes) for device in setting.fabric.devices}) == 1
        self._prices: dict[tuple[str, int, int, int, int], LayerPrice] = {}

    @property
    def mode(self) -> int:
        """The index in `RECOMPUTE_MODES` of the mode that every layer is recomputed in at least."""
        return RECOMPUTE_MODES.index(self.setting.demands.recompute or RECOMPUTE_MODES[0])

    def price(self, device: int, tensor: int, samples: int, experts: ExpertGroup = ALONE) -> LayerPrice:
        """Return the price of a layer that ``tensor`` devices of this kind share."""
        key = (self.fabric.devices[device].kind, tensor, samples, *experts)
        if key not in self._prices:
            self._prices[key] = self._price(device, tensor, samples, experts)
        return self._prices[key]

    def fastest(self, tensor: int, samples: int, experts: ExpertGroup = ALONE) -> LayerPrice:
        """Return the price of a layer on the kind of device that computes the layer fastest."""
        prices = (self.price(device, tensor, samples, experts) for device in self._kinds)
        return min(prices, key=lambda price: price.total_s[0])

    def _routed_s(self, tensor: int, samples: int, experts: ExpertGroup) -> float:
        """Return the seconds of a layer's all-to-alls, one way: each rank sends its part of the tokens."""
        network = self.setting.network
        if network.mixture is None or experts.size == 1:
            return 0.0
        tokens = samples * network.sequence * network.mixture.active / tensor
        group = self.fabric.group(experts.size, experts.stride)
        once_s = self.fabric.all_to_all(ACTIVATION * tokens * network.hidden, group)
        return ALL_TO_ALLS * once_s * network.mixture.layers / network.layers

    def _price(self, device: int, tensor: int, samples: int, experts: ExpertGroup) -> LayerPrice:
        network = self.setting.network
        times = LayerTimes(network, self.fabric.devices[device], self.setting.efficiency)
        splits = [LayerSplit(tensor, tensor > 1, mode) for mode in RECOMPUTE_MODES]
        n_bytes = ACTIVATION * samples * network.sequence * network.hidden
        reduce_s = ALL_REDUCES * self.fabric.all_reduce(n_bytes, self.fabric.group(tensor, 1)) if tensor > 1 else 0.0
        reduce_s += self._routed_s(tensor, samples, experts)
        forward_s = times.forward_s(samples, splits[0], experts.size)
        attention_s = times.attention_s(samples, tensor)
        computing_s = (3 * forward_s, 3 * forward_s + attention_s, 4 * forward_s)
        return LayerPrice(
            (computing_s[0] + 2 * reduce_s, computing_s[1] + 2 * reduce_s, computing_s[2] + 3 * reduce_s),
            computing_s,
            times.products_s(samples, tensor, experts.size),
            times.head_s(samples, tensor),
            tuple(layer_activations(network, samples, split) for split in splits),  # type: ignore[arg-type]
        )
