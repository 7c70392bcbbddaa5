"""Continuous batching in its steady state: as many requests as places, each new one when another one ends.

::

    one engine      every step computes a token of each sequence; in the ``output`` steps of a request, each place takes
                    one new prompt, so a step carries sequences / output prompts
    apart           some GPUs compute prompts and others tokens (disaggregated): no prompts within steps; caches of
                    prompts cross the link between the pools, the slower of which bounds the requests a second, and
                    sequences that wait for the other are not in steps
    stages          as many micro-batches as stages are under way: each stage computes its part of the layers for one of
                    them while the others compute theirs, so a round of all of them takes one pass through all layers

Sources: Yu et al., Orca, OSDI 2022; Kwon et al., vLLM, SOSP 2023; Agrawal et al., Sarathi-Serve, OSDI 2024 (prompts in
chunks among tokens); Zhong et al., DistServe, OSDI 2024 (apart); Reiser and Lavenberg, JACM 1980 (closed networks).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from costmodels.generation.rates import COUNTED, PACED, Rates
from costmodels.generation.stages import layers_demand
from costmodels.generation.work import (
    Demand,
    LayerShare,
    LayerWork,
    Machine,
    Tokens,
    counted,
    head_demand,
    heads_divided,
    total,
    weights_elsewhere,
)
from costmodels.language_model.model import ModelDescription
from graphs.common.brief import Brief

PAID_BY_STEPS = frozenset({*PACED, *COUNTED, "weights", "experts", "unpacking"})
"""Amounts that a prompt among tokens does not take again: kernels start and weights are read for both at once."""
TURNS = 8  # of the fixed point of two pools; each halves the error
LEAST_RUNNING = 0.5  # sequences in a step of two pools, where prompts are the bottleneck


@dataclass(frozen=True)
class Served(Brief):
    """A language model on equal GPUs.

    Attributes:
        model: the model.
        works: its layers.
        machine: peaks of a GPU and of its link.
        share: the division of every layer.
        value_bytes: of each cached value.
        pipeline: stages of layers, each with its own devices.
    """

    model: ModelDescription
    works: Sequence[LayerWork]
    machine: Machine
    share: LayerShare
    value_bytes: float
    pipeline: int = 1

    @property
    def devices(self) -> int:
        """GPUs of one replica."""
        return self.share.devices * self.pipeline

    def weight_bytes(self) -> float:
        """Return the bytes of weights on the fullest GPU, all stages taken as equal."""
        share = self.share
        layers = 0.0
        for work, times in counted(self.works):
            whole = 1 if share.data > 1 else share.tensor
            parts = work.bytes["own"] / share.tensor + work.bytes["shared"] / whole
            layers += times * (parts + work.bytes["experts"] / share.devices - sum(work.reused.values()) / share.tensor)
        again = self._reused_bytes() / share.tensor if self.pipeline > 1 else 0.0
        return layers / self.pipeline + again + weights_elsewhere(self.model.tensors) / share.tensor

    def _reused_bytes(self) -> float:
        """Return the bytes of weights that later layers use again, which each stage may need."""
        owned = {owner: n_bytes for work in self.works for owner, n_bytes in work.reused.items()}
        return sum(owned.values())

    def cache_bytes(self, tokens: int) -> float:
        """Return the bytes of the cache of a sequence of this length on each GPU that has it."""
        each = 0.0
        for work, times in counted(self.works):
            for mixer in work.layer.mixers:
                each += times * mixer.cache_bytes(tokens, self.value_bytes) / heads_divided(mixer, self.share.tensor)
        return each / self.pipeline

    def places(self, usable_bytes: float, tokens: int) -> float:
        """Return for how many sequences of this length each data-parallel group has room; less than 1 for none."""
        return (usable_bytes - self.weight_bytes()) / max(self.cache_bytes(tokens), 1.0)

    def step_demand(self, sequences: float, context: int, alone: bool = False) -> Demand:
        """Return the work of the last stage's GPU for one token of each sequence of its group.

        As many micro-batches as stages are under way, and the GPU has one part of the layers for each of them: all
        layers of one micro-batch, and the head of every one. An engine that computes tokens ``alone`` prepares
        sequences while the GPU is busy, so they take no time of it.
        """
        rows = sequences / self.pipeline
        passes = Tokens.decode(rows, context)
        layers = layers_demand(self.works, self.machine, self.share, passes, self.value_bytes)
        head = head_demand(self.model, self.machine, self.share.tensor, rows)
        once: Demand = {"steps": 1.0, "sequences": 0.0 if alone else rows, "hops": float(self.pipeline > 1)}
        return total([(layers, 1), (head, self.pipeline), (once, self.pipeline)])

    def prompt_demand(self, tokens: int) -> Demand:
        """Return the work of a GPU for a prompt of its group, computed alone."""
        passes = Tokens.prefill(tokens)
        layers = layers_demand(self.works, self.machine, self.share, passes, self.value_bytes)
        head = head_demand(self.model, self.machine, self.share.tensor, 1.0, prompt=True)
        return total([(layers, 1), (head, 1), ({"prompts": 1.0}, 1)])


class Requests(NamedTuple):
    """Requests that are always under way, all alike."""

    prompt: int  # tokens
    output: int  # tokens
    sequences: float  # under way in each data-parallel group of each replica


class PromptPool(NamedTuple):
    """GPUs that compute prompts alone, and send the caches of prompts to those that compute tokens."""

    served: Served
    rates: Rates
    workers: int  # replicas of it
    link_bytes_per_s: float = inf  # of each GPU, to those that compute tokens

    def prompt_s(self, tokens: int) -> float:
        """Return the seconds of a prompt, computed alone."""
        return self.rates.seconds(self.served.prompt_demand(tokens))

    def transfer_s(self, tokens: int, target: Served) -> float:
        """Return the seconds of a prompt's cache on the link; its slower end is the one whose GPUs have more of it."""
        n_bytes = max(self.served.cache_bytes(tokens), target.cache_bytes(tokens))
        return n_bytes / self.link_bytes_per_s

    def requests_per_s(self, tokens: int, target: Served, replicas: int) -> float:
        """Return the prompts a second that the pool computes, and that the link brings to some replicas."""
        own = self.workers * self.served.share.data
        computed = own * self.served.pipeline / self.prompt_s(tokens)
        sent = self.served.cache_bytes(tokens) / self.link_bytes_per_s
        received = target.cache_bytes(tokens) / self.link_bytes_per_s
        carried = ((own, sent), (replicas * target.share.data, received))
        return min([computed, *(ends / seconds for ends, seconds in carried if seconds > 0)])


class Steady(NamedTuple):
    """The steady state of a replica that serves requests."""

    token_s: float  # between two tokens of a sequence
    first_token_s: float  # from a request to its first token, waiting included
    running: float  # sequences in a step of each data-parallel group
    demand: Demand  # of a GPU for each step, prompts among the tokens included
    requests_per_s: float  # of the replica


def steady_state(served: Served, rates: Rates, requests: Requests, usable_bytes: float) -> Steady:
    """Return the steady state of GPUs that compute prompts and tokens.

    Args:
        served: the model on the GPUs.
        rates: the engine on them.
        requests: the requests under way.
        usable_bytes: memory of a GPU that weights and caches may fill.
    """
    room = served.places(usable_bytes, requests.prompt + requests.output)
    running = max(1.0, min(requests.sequences, room))
    alone = served.prompt_demand(requests.prompt)
    among = {name: amount for name, amount in alone.items() if name not in PAID_BY_STEPS}
    among["prompts"] = 1.0
    times = running / requests.output
    step = served.step_demand(running, requests.prompt + requests.output // 2)
    demand = total([(step, 1), (among, times / served.pipeline)])
    token_s = rates.seconds(demand)
    requests_per_s = running * served.share.data / (requests.output * token_s)
    waiting = max(0.0, requests.sequences - running) * served.share.data / requests_per_s
    first = rates.seconds(alone) + token_s + waiting
    return Steady(token_s, first, running, demand, requests_per_s)


def steady_state_apart(
    served: Served, rates: Rates, requests: Requests, usable_bytes: float, replicas: int, prompts: PromptPool | None
) -> Steady:
    """Return the steady state of GPUs that compute tokens alone.

    Args:
        served: the model on the GPUs of a replica.
        rates: the engine on them.
        requests: the requests under way, those that wait for a prompt included.
        usable_bytes: memory of a GPU that weights and caches may fill.
        replicas: how many share the prompts' GPUs.
        prompts: the GPUs that compute prompts; None if there are enough.
    """
    room = served.places(usable_bytes, requests.prompt + requests.output)
    context = requests.prompt + requests.output // 2
    most = running = max(1.0, min(requests.sequences, room))
    demand = served.step_demand(running, context, alone=True)
    groups = served.share.data * replicas
    before_s = 0.0
    if prompts is not None:
        before_s = prompts.prompt_s(requests.prompt) + prompts.transfer_s(requests.prompt, served)
        computed = prompts.requests_per_s(requests.prompt, served, replicas)
        for _ in range(TURNS):
            bounded = computed * requests.output * rates.seconds(demand) / groups
            running = (running + min(most, max(bounded, LEAST_RUNNING))) / 2
            demand = served.step_demand(running, context, alone=True)
    token_s = rates.seconds(demand)
    requests_per_s = running * groups / (requests.output * token_s)
    waiting = max(0.0, requests.sequences - running) * groups / requests_per_s
    return Steady(token_s, before_s + token_s + waiting, running, demand, requests_per_s / replicas)
