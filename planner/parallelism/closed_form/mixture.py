"""Mixture: the experts of a transformer, and what its layers have besides them, summed over the layers.

Layers of a mixture may differ: the first ones often have no experts. The closed forms take the mean of all layers.

With E experts of width w, of which a token takes k, in n of L layers, e of the replicas divide the experts of a layer:

::

    FLOP of a token, forward      2 (products besides experts + k / E of those of experts)
    experts on a device           E / e, each divided by t; replicas of an expert: data / e
    all-to-all                    2 b s h k / t bytes of each device to the e devices of its group, and back: twice in
                                  each pass, and twice more if the layer is recomputed
    activations kept              2 b s h k bytes of what experts read, and as many of what they wrote

Tokens are spread evenly over experts, and none is dropped.

Sources: Lepikhin et al., GShard, ICLR 2021; Rajbhandari et al., DeepSpeed-MoE, ICML 2022 (experts over replicas).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.language_model.feed_forward import Dense, Experts
from costmodels.language_model.model import ModelDescription
from graphs.common.brief import Brief
from graphs.common.checks import check_fields, integer
from graphs.common.errors import InputError

ALL_TO_ALLS = 2  # of a layer in each pass: tokens to their experts, and back

INSTEAD = "give it as package.module:factory, which is priced operator by operator"
TWO_STACKS = f"the model has an encoder and a decoder; choose divides one stack of equal layers: {INSTEAD}"
"""The way out of networks that closed forms do not describe."""


@dataclass(frozen=True)
class Mixture(Brief):
    """Experts of a transformer.

    Raises:
        InputError: for a number below 1, or more active experts than there are.
    """

    count: int  # experts of a layer
    active: int  # of them, for a token
    width: int  # values of a token within an expert
    layers: int  # that have experts
    expert_parameters: int  # of all layers
    product_parameters: int  # of the other matrices of all layers
    vector_parameters: int  # of the norms and biases of all layers
    ffn_values: int  # of a token within all active feed-forward parts, summed over the layers

    def __post_init__(self) -> None:
        check_fields(self, "the mixture of experts")
        for name in ("count", "active", "width", "layers", "expert_parameters", "product_parameters", "ffn_values"):
            integer(getattr(self, name), f"the mixture of experts: {name}", 1)
        if self.active > self.count:
            raise InputError(f"{self.active} of {self.count} experts are active; give at most {self.count}")

    @classmethod
    def of(cls, model: ModelDescription) -> "Mixture | None":
        """Return the mixture of a model; None if no layer has experts.

        Raises:
            InputError: if layers differ in their experts.
        """
        kinds = {layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, Experts)}
        if not kinds:
            return None
        if len(kinds) > 1:
            one, other = sorted(map(str, kinds))[:2]
            raise InputError(
                f"layers of the model have other experts: {one} and {other}; choose divides equal ones: {INSTEAD}"
            )
        experts = kinds.pop()
        tensors = [tensor for layer in model.layers for tensor in layer.tensors]
        matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
        own = sum(tensor.elements for tensor in matrices if tensor.part == "experts")
        products = sum(tensor.elements for tensor in matrices) - own
        return cls(
            experts.count,
            experts.active,
            experts.width,
            sum(layer.feed_forward == experts for layer in model.layers),
            own,
            products,
            sum(tensor.elements for tensor in tensors) - own - products,
            sum(_values(layer.feed_forward) for layer in model.layers),
        )

    @property
    def active_share(self) -> float:
        """Share of the experts that a token takes."""
        return self.active / self.count


def expert_degrees(mixture: Mixture | None, data: int) -> Sequence[int]:
    """Return the numbers of replicas that may divide the experts of a layer: they divide experts and replicas."""
    if mixture is None:
        return (1,)
    return [e for e in range(1, min(data, mixture.count) + 1) if data % e == 0 and mixture.count % e == 0]


def _values(part: Dense | Experts | None) -> int:
    """Return the values of a token within a feed-forward part."""
    if isinstance(part, Experts):
        return part.active * part.width + part.shared_width
    return part.width if part else 0
