"""Four ranks that train small networks under one configuration after another, each going on from the state before.

Prints a JSON list: network, degrees, how far losses are from those of the model that is trained beside, and gradients
from those of the model with the same weights, as a share of what is allowed, and whether the state has the model's own
names and types.
"""

import copy
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.host.stores import served_store, visited_store
from costmodels.workload import RecomputeMode
from graphs.importers.from_torch import program_from_module
from planner.parallelism.closed_form.config import ParallelConfig, ParallelShape, StageDegrees, StageLayers
from planner.parallelism.network.layers import NetworkLayers, even_counts
from planner.runtime.hybrid.check import ALLOWED, differences
from planner.runtime.hybrid.trainer import HybridTrainer

WORLD, BATCH = 4, 8
WORDS, TOKENS = 32, 8
FAILED_S = 120
ADAM = partial(torch.optim.AdamW, lr=1e-2, eps=1e-3, foreach=True)  # eps, lest rounding decide the first steps


class Mlp(nn.Module):
    """Layers without a stack of equal ones."""

    def __init__(self) -> None:
        super().__init__()
        widths = (12, 16, 16, 8, 4)
        self.net = nn.Sequential(*(layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.GELU())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.net(x)
        return result


class Cnn(nn.Module):
    """Batch norm, a skip connection, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.wide, self.head = nn.Linear(8 * 16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(x + F.relu(self.second(x)), 2)
        result: torch.Tensor = self.head(F.relu(self.wide(x.flatten(1))))
        return result


def bert() -> nn.Module:
    """Learned positions, biases, a mask, GELU."""
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**sizes, **quiet, num_hidden_layers=2, num_attention_heads=4)
    model: nn.Module = BertForMaskedLM(config)
    return model


def llama() -> nn.Module:
    """Rotated positions, RMS norms, a gate, fewer heads of keys, one weight for words and scores."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, num_hidden_layers=4, tie_word_embeddings=True, use_cache=False)
    model: nn.Module = LlamaForCausalLM(config)
    return model


class Case(NamedTuple):
    """Degrees in short."""

    data: int
    tensor: int
    pipeline: int
    zero: int
    recompute: str = "none"  # of all stages, or of each
    schedule: Any = "1f1b"
    chunks: int = 1
    order: Any = "data"
    precision: Any = "float32"
    degrees: tuple[tuple[int, int, int], ...] = ()  # of each stage, where they differ

    @property
    def named(self) -> str:
        """The degrees in short."""
        return " + ".join(f"{data}x{tensor} ZeRO {zero}" for data, tensor, zero in self.degrees) or "x".join(
            map(str, self[:3])
        )

    def config(self, samples: int, layers: int) -> ParallelConfig:
        """The configuration for a network of so many layers."""
        shape = ParallelShape(
            *self[:3], samples, BATCH // self.data // samples, self.zero, self.schedule, self.chunks, self.order
        )
        modes = cycle(self.recompute.split("+"))
        stages = tuple(map(StageLayers.of, even_counts(layers, self.pipeline), cast("Iterator[RecomputeMode]", modes)))
        return ParallelConfig(
            shape, stages, self.precision, degrees=tuple(StageDegrees(*each) for each in self.degrees)
        )


NETWORKS: dict[str, tuple[Any, int, list[Case]]] = {
    "mlp": (
        Mlp,
        2,
        [
            *(Case(1, 1, 4, 0), Case(4, 1, 1, 1), Case(2, 1, 2, 3, "full", "zb-h1")),
            Case(1, 1, 3, 0, "selective", degrees=((1, 1, 0), (2, 1, 1), (1, 1, 0))),
            Case(1, 1, 2, 0, "full+none", degrees=((2, 1, 3), (2, 1, 2))),
        ],
    ),
    "cnn": (
        Cnn,
        4,
        [
            *(Case(2, 2, 1, 0), Case(2, 1, 2, 2, order="pipeline")),
            Case(1, 1, 2, 0, "full+none", degrees=((2, 1, 3), (1, 2, 0))),
        ],
    ),
    "bert": (bert, 4, [Case(2, 2, 1, 3, "selective")]),
    "llama": (
        llama,
        4,
        [
            Case(2, 2, 1, 0),
            Case(1, 1, 4, 0),
            Case(1, 2, 2, 0, "full", "interleaved", 2),
            Case(1, 1, 2, 0, "none+selective", degrees=((2, 1, 1), (1, 2, 0))),
            Case(2, 1, 2, 3, precision="bfloat16"),
        ],
    ),
}


def loss_of(result: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of scores, which networks return in several forms."""
    scores = result if isinstance(result, torch.Tensor) else result["logits"]
    return F.cross_entropy(scores.float().reshape(-1, scores.shape[-1]), target.reshape(-1))


def data_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch and its target."""
    if name in ("bert", "llama"):
        words = torch.randint(0, WORDS, (2, BATCH, TOKENS))
        return words[0], words[1]
    inputs = torch.randn(BATCH, 12) if name == "mlp" else torch.randn(BATCH, 3, 8, 8)
    return inputs, torch.randint(0, 4, (BATCH,))


def reference_loss(
    model: nn.Module, batch: torch.Tensor, target: torch.Tensor, samples: int, products: torch.dtype
) -> float:
    """The mean loss of a step of the model itself under a precision of products, whose gradients are there then."""
    losses = []
    for first in range(0, BATCH, samples):
        with torch.autocast("cpu", torch.bfloat16, enabled=products == torch.bfloat16):
            result = model(batch[first : first + samples])
        loss = loss_of(result, target[first : first + samples])
        (loss / (BATCH // samples)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        losses.append(loss.item())
    return sum(losses) / len(losses)


def rank(number: int, port: int, prepared: dict[str, Any], out: Path) -> None:
    """What one of the ranks does."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=FAILED_S)
    dist.init_process_group("gloo", store=visited_store(port), rank=number, world_size=WORLD, timeout=limit)
    found = []
    for name, (model, program, (batch, target)) in prepared.items():
        samples, cases = NETWORKS[name][1:]
        reference, state = copy.deepcopy(model), None
        optimizer = ADAM(list(reference.parameters()))
        for case in cases:
            config = case.config(samples, len(NetworkLayers.of(program.graph).layers))
            trainer = HybridTrainer(config, program, loss=loss_of, optimizer=ADAM)
            if state is not None:
                trainer.load_state_dict(state)
            products = getattr(torch, case.precision)
            equal = copy.deepcopy(model)  # the optimizer carries on how weights were rounded, step by step
            equal.load_state_dict(trainer.model_state_dict())
            reference_loss(equal, batch, target, samples, products)
            own = {key: p.grad for key, p in equal.named_parameters() if p.grad is not None}
            worst = differences(own, trainer.gradients(batch, target))[:1]
            expected = reference_loss(reference, batch, target, samples, products)
            optimizer.step()
            optimizer.zero_grad()
            off = abs(trainer.step(batch, target).item() - expected) / expected
            state = trainer.state_dict()
            kinds = (
                [(key, value.dtype) for key, value in each.items()] for each in (state["model"], model.state_dict())
            )
            same_names = next(kinds) == next(kinds)
            share = worst[0].share if worst else 0.0
            allowed = ALLOWED[case.precision]
            found.append([name, case.named, off / allowed, share / allowed, same_names])
    if number == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> int:
    """Import the networks once, and fork the ranks."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)  # a fork has none of the threads of this process
    prepared = {}
    for name, (make, samples, _) in NETWORKS.items():
        torch.manual_seed(0)
        model, data = make().train(), data_of(name)
        prepared[name] = model, program_from_module(model, (data[0][:samples],), training=True), data
    store = served_store()
    with tempfile.TemporaryDirectory() as folder:
        out, pids = Path(folder) / "found.json", []
        for number in range(WORLD):
            pid = os.fork()
            if pid == 0:
                try:
                    rank(number, store.port, prepared, out)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            pids.append(pid)
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        print(out.read_text() if out.exists() else "[]")
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
