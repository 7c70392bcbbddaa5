"""GenerationPlan: which layers lie on which device, what each device holds, and how fast text comes out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from costmodels.units import format_bytes
from graphs.common import checks
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.files import write_text
from planner.generation.question import GenerationQuestion, is_processor
from planner.generation.speeds import Speeds
from planner.problem.result import Status

FORMAT, VERSION = "generation-plan", 1


@dataclass(frozen=True)
class Holding(Brief):
    """Bytes on a device.

    Attributes:
        device: name of the device.
        layers: the first of its layers, and the one after the last; equal if it has none.
        weights: of its layers, without experts that are elsewhere.
        experts: of other devices' layers, which it computes for them.
        embedding: of the words, and of what else is read before the first layer.
        head: of the scores of words.
        cache: of keys and values, for all sequences at the whole context.
        buffers: of computing.
        usable: what a plan may use.
        memory: what the device has.
    """

    device: str
    layers: tuple[int, int]
    weights: float
    experts: float
    embedding: float
    head: float
    cache: float
    buffers: float
    usable: float
    memory: float

    @property
    def used(self) -> float:
        """All bytes but the margin."""
        return self.weights + self.experts + self.embedding + self.head + self.cache + self.buffers

    @property
    def spare(self) -> float:
        """Bytes that a plan might still use."""
        return self.usable - self.used


@dataclass(frozen=True)
class PlanStage(Brief):
    """Neighbouring layers, and the devices that share them.

    Attributes:
        devices: names of the devices; several share every product.
        start: the first layer.
        stop: after the last layer.
        away: the layers whose experts the host's processors have.
        host: name of these processors; empty if no experts are away.
        token_s: seconds of a token of every sequence.
        prompt_s: seconds of the prompt of one sequence.
        hop_s: seconds of a message to the next stage.
    """

    devices: tuple[str, ...]
    start: int
    stop: int
    away: tuple[int, ...]
    host: str
    token_s: float
    prompt_s: float
    hop_s: float


@dataclass(frozen=True)
class Alternative(Brief):
    """Another division: the best on other devices, or the best on one.

    Attributes:
        devices: names of the devices.
        hosts: names of the devices that hold experts of these devices' layers.
        token_s: seconds of a token of every sequence.
        first_token_s: seconds to the first token.
    """

    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    token_s: float
    first_token_s: float


@dataclass(frozen=True)
class FittingChange(Brief):
    """A change of the question that makes the model fit.

    Attributes:
        text: what to change, as options of the command line.
        tokens_per_s: of all sequences together, after the change.
        first_token_s: seconds to the first token then.
    """

    text: str
    tokens_per_s: float
    first_token_s: float


@dataclass(frozen=True)
class GenerationPlan(Brief):
    """A division of a language model with its proof, or why there is none.

    Attributes:
        question: what was asked.
        status: optimal, feasible, or infeasible.
        stages: in the order in which a token passes them; empty if nothing fits.
        holdings: of every device of the cluster.
        speeds: what to expect; None if nothing fits.
        cost_s: seconds of a request for each token that it generates: the goal of the search.
        bound_s: no division costs less.
        next_best: the best division of other devices.
        alone: the best on a single device.
        short_bytes: by how much nothing fits; 0 if something does.
        changes: of the question that make it fit, the fastest first.
    """

    question: GenerationQuestion
    status: Status
    stages: tuple[PlanStage, ...]
    holdings: tuple[Holding, ...]
    speeds: Speeds | None
    cost_s: float
    bound_s: float
    next_best: Alternative | None
    alone: Alternative | None
    short_bytes: float
    changes: tuple[FittingChange, ...]

    @property
    def gap(self) -> float:
        """By how much the division may be above the optimum, as a share."""
        if self.speeds is None:
            return 1.0
        return max(0.0, 1 - self.bound_s / self.cost_s)

    @property
    def advice(self) -> str:
        """The changes that make the model fit, in a sentence; empty if it fits."""
        if self.speeds is not None:
            return ""
        nearest = "; or ".join(f"{each.text} ({each.tokens_per_s:.1f} tokens/s)" for each in self.changes)
        way_out = f"what fits: {nearest}" if nearest else "take more or larger devices, or a smaller model"
        return f"it does not fit: {format_bytes(self.short_bytes)} are missing; {way_out}"

    def save(self, output: str | PathLike[str]) -> None:
        """Write the plan as JSON, for `planner.export` and other programs; the same bytes for the same plan.

        Raises:
            InputError: if there is no division, or the file cannot be written.
        """
        path = checks.path(output, "the output", "the path of a file")
        if self.speeds is None:
            raise InputError(f"there is no division to write: {self.advice}")
        text = json.dumps(generation_document(self), indent=1, ensure_ascii=False, allow_nan=False)
        write_text(text + "\n", path)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The devices that have nothing."""
        return tuple(each.device for each in self.holdings if each.used == 0)


def plan_document(plan: GenerationPlan) -> dict[str, object]:
    """Return a plan as a document for JSON."""
    question, speeds = plan.question, plan.speeds
    document: dict[str, object] = {
        "model": question.model.name,
        "parameters": question.model.parameters,
        "weights_bytes": question.model.bytes,
        "assumed": list(question.model.assumed),
        "cluster": question.cluster.name,
        "engine": question.engine.name,
        **{name: getattr(question, name) for name in ("context", "sequences", "cache", "prompt", "output")},
        "status": str(plan.status),
        "gap": plan.gap,
        "bound_s": plan.bound_s,
        "cost_s": plan.cost_s,
        "short_bytes": plan.short_bytes,
        "advice": plan.advice,
        "stages": [_record(stage, "devices start stop away host token_s prompt_s hop_s") for stage in plan.stages],
        "devices": [
            _record(each, "device layers weights experts embedding head cache buffers used usable memory spare")
            for each in plan.holdings
        ],
        "next_best": _alternative(plan.next_best),
        "one_device": _alternative(plan.alone),
        "changes": [_record(change, "text tokens_per_s first_token_s") for change in plan.changes],
    }
    if speeds is not None:
        low, high = speeds.decode_range
        first_low, first_high = speeds.prefill_range
        document["expected"] = {
            "first_token_s": speeds.first_token_s,
            "first_token_range_s": [speeds.first_token_s * first_low, speeds.first_token_s * first_high],
            "token_s": speeds.token_s,
            "tokens_per_s": speeds.tokens_per_s,
            "tokens_per_s_range": [speeds.tokens_per_s / high, speeds.tokens_per_s / low],
            "all_tokens_per_s": speeds.all_tokens_per_s(question.sequences),
            "where_a_token_goes_s": speeds.parts,
            "estimated_devices": list(speeds.estimated),
            "origin": "estimated" if speeds.estimated else "fitted",
        }
    return document


def _alternative(other: Alternative | None) -> Mapping[str, object] | None:
    return None if other is None else _record(other, "devices hosts token_s first_token_s")


def _record(record: object, names: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in names.split():
        value = getattr(record, name)
        found[name] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
    return found


def generation_document(plan: GenerationPlan) -> dict[str, Any]:
    """Return all that another tool needs of a plan: the document of ``--json``, devices and names of modules."""
    question = plan.question
    model = question.model
    return {
        "format": FORMAT,
        "version": VERSION,
        **plan_document(plan),
        "layers": len(model.layers),
        "tied": model.tied,
        "modules": {
            "layer_prefix": model.layer_prefix,
            "experts": [bool(work.experts) for work in question.works],
            "embedding": [tensor.name for tensor in model.tensors if tensor.part == "embedding"],
            "others": [tensor.name for tensor in model.tensors if tensor.part not in ("embedding", "head")],
            "head": [tensor.name for tensor in model.tensors if tensor.part == "head"],
        },
        "hardware": [
            {
                "name": device.name,
                "kind": device.kind,
                "host": device.host,
                "cuda": device.cuda,
                "processor": is_processor(device),
                "memory_bytes": device.memory_bytes,
                "usable_bytes": device.usable_bytes,
            }
            for device in question.cluster.devices
        ],
    }
