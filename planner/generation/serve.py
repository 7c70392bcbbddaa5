"""serve: ways to serve a language model on equal GPUs, of which none beats another for the GPU and for the user.

::

    one pool    every replica computes prompts and tokens
    apart       prompts on some GPUs and tokens on the others (disaggregated), see `planner.generation.serve_apart`

Rows are all tensor x pipeline x data-parallel degrees that divide the GPUs, experts cut or spread, and all batches in
powers of 2 that memory has room for: every one is priced, so a row that is not dominated is proved to be so by the
model of costs. Data-parallel attention with spread experts is how DeepSeek's models are usually served.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.fabric import fabric_of
from costmodels.generation.rates import Rates, rates_of
from costmodels.generation.serving import Requests, Served, steady_state
from costmodels.generation.work import Machine
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.read import read_language_model
from costmodels.units import format_bytes
from graphs.common import checks
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from planner.generation.question import SERVING_ENGINE, GenerationQuestion, generation_question
from planner.generation.serve_apart import rows_apart
from planner.generation.serving_row import ServingRow, batches, ways_of
from planner.plans.given import Named, given_cluster


@dataclass(frozen=True)
class ServingTable(Brief):
    """Ways to serve.

    Attributes:
        question: what was asked.
        rows: that no other one dominates, the most tokens a second for each GPU first.
        priced: how many ways were priced.
        fitting: how many of them fit into memory and keep the limits.
        advice: what to change if there are no rows; else empty.
        origin: whether the figures of the GPUs are fitted to them.
        token_range: factors between which 80 % of measured times of a token lie.
    """

    question: GenerationQuestion
    rows: tuple[ServingRow, ...]
    priced: int
    fitting: int
    advice: str
    origin: str
    token_range: tuple[float, float]


@dataclass(frozen=True)
class ServingLimits(Brief):
    """Limits of what a user waits for.

    Attributes:
        first_token_s: the longest time to the first token; None for any.
        token_s: the longest time between two tokens; None for any.

    Raises:
        InputError: for a limit that is not above 0.
    """

    first_token_s: float | None = None
    token_s: float | None = None

    def __post_init__(self) -> None:
        checks.check_fields(self, "the limits")
        for name in ("first_token_s", "token_s"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise InputError(f"the limits have {name} = {limit}; give seconds above 0, or None")

    def keeps(self, row: ServingRow) -> bool:
        """Return whether a row keeps the limits."""
        pairs = ((self.first_token_s, row.first_token_s), (self.token_s, row.token_s))
        return all(limit is None or own <= limit for limit, own in pairs)


def serve(
    model: ModelDescription | Named | Mapping[str, Any] | PathLike[str],
    *,
    cluster: Cluster | Named,
    limits: ServingLimits | None = None,
    **asked: Any,
) -> ServingTable:
    """Find ways to serve a language model on equal GPUs: parallelism and batch, time for users against GPUs.

    Args:
        model: as for `planner.fit`.
        cluster: equal devices, or the path of a cluster.toml.
        limits: of the times to the first token and for each token.
        asked: as for `planner.fit`; ``sequences`` bounds those at once, and the engine is vllm if it is left out.

    Raises:
        InputError: for unlike devices, an engine that does not batch, or what `planner.fit` refuses.
    """
    own = checks.instance(limits or ServingLimits(), ServingLimits, "the limits", "a ServingLimits")
    read = model if isinstance(model, ModelDescription) else read_language_model(model)
    bounded = asked.get("sequences") is not None
    question = generation_question(
        read, given_cluster(cluster), **{**asked, "engine": asked.get("engine") or SERVING_ENGINE}
    )
    rates, machine = equal_gpus(question)
    room = question.cluster.devices[0].usable_bytes - question.buffer_bytes
    most = question.sequences if bounded else None
    gpus = len(question.cluster.devices)
    ways = list(ways_of(question, machine, gpus))
    least = min(ways, key=Served.weight_bytes, default=None)
    rows = [
        _row(question, served, rates, sequences, room)
        for served in ways
        for sequences in batches(served, room, question, gpus, most)
    ]
    rows += rows_apart(question, machine, rates, room, most)
    kept = [row for row in rows if own.keeps(row)]
    best = tuple(sorted(_undominated(kept), key=lambda row: -row.tokens_per_s_gpu))
    advice = "" if best else _advice(question, rows, own, room, least)
    return ServingTable(
        question,
        best,
        len(rows),
        len(kept),
        advice,
        rates.origin,
        question.engine.decode_range,
    )


def serving_document(table: ServingTable) -> dict[str, object]:
    """Return a table as a document for JSON."""
    question = table.question
    names = [
        "gpus",
        "replicas",
        "tensor",
        "pipeline",
        "data",
        "experts",
        "sequences",
        "first_token_s",
        "token_s",
        "tokens_per_s_gpu",
    ]
    names += ["tokens_per_s_user", "weight_bytes", "cache_bytes"]
    pool = ("gpus", "replicas", "tensor", "pipeline", "data", "experts")

    def record(row: ServingRow) -> dict[str, object]:
        apart = None if row.prompts is None else {name: getattr(row.prompts, name) for name in pool}
        return {name: getattr(row, name) for name in names} | {"prompts": apart}

    return {
        "model": question.model.name,
        "cluster": question.cluster.name,
        "engine": question.engine.name,
        **{name: getattr(question, name) for name in ("context", "cache", "prompt", "output")},
        "rows": [record(row) for row in table.rows],
        "priced": table.priced,
        "fitting": table.fitting,
        "advice": table.advice,
        "origin": table.origin,
        "token_range": list(table.token_range),
    }


def equal_gpus(question: GenerationQuestion) -> tuple[Rates, Machine]:
    """Return the rates and peaks of the devices; refuse unlike ones."""
    cluster, engine = question.cluster, question.engine
    kinds = sorted({device.kind for device in cluster.devices})
    if len(kinds) > 1:
        raise InputError(f"--serve is for equal GPUs, and the cluster has {' and '.join(kinds)}; leave --serve out")
    if not engine.batches:
        raise InputError(f"{engine.name} serves no rows; take --engine vllm, sglang or trtllm")
    device, fabric = cluster.devices[0], fabric_of(cluster)
    machine = Machine(
        device.memory_bytes_per_s,
        device.flops_per_s,
        fabric.inside.bytes_per_s,
        fabric.host_devices,
        fabric.between.bytes_per_s,
    )
    return rates_of(engine.name, device), machine


def _row(question: GenerationQuestion, served: Served, rates: Rates, sequences: int, room: float) -> ServingRow:
    requests = Requests(question.prompt, question.output, sequences)
    steady = steady_state(served, rates, requests, room)
    replicas = len(question.cluster.devices) // served.devices
    at_once = sequences * served.share.data
    return ServingRow(
        served.devices,
        replicas,
        served.share.tensor,
        served.pipeline,
        served.share.data,
        served.share.experts,
        at_once * replicas,
        steady.first_token_s,
        steady.token_s,
        at_once / steady.token_s / served.devices,
        served.weight_bytes(),
        sequences * served.cache_bytes(question.context),
    )


def _undominated(rows: Sequence[ServingRow]) -> list[ServingRow]:
    """Return the rows that no other one beats for the GPU and for the user; of equal ones the first."""
    best: list[ServingRow] = []
    reached = 0.0
    order = sorted(
        range(len(rows)), key=lambda i: (-rows[i].tokens_per_s_gpu, rows[i].token_s, rows[i].first_token_s, i)
    )
    for number in order:
        row = rows[number]
        if row.tokens_per_s_user > reached:
            best.append(row)
            reached = row.tokens_per_s_user
    return best


def _advice(
    question: GenerationQuestion, rows: Sequence[ServingRow], limits: ServingLimits, room: float, least: Served | None
) -> str:
    if rows:
        nearest = min(rows, key=lambda row: max(_excess(limits, row)))
        times = f"{nearest.first_token_s * 1e3:.0f} ms to the first token and {nearest.token_s * 1e3:.1f} ms for each"
        return f"no way keeps the limits; the nearest takes {times}: give --ttft and --tpot at least that"
    need = 0.0 if least is None else least.weight_bytes() + least.cache_bytes(question.context)
    return (
        f"it does not fit: a GPU needs {format_bytes(need)} for its weights and one sequence, and has room for "
        f"{format_bytes(room)}; take more GPUs, --weights of fewer bits, or a shorter --context"
    )


def _excess(limits: ServingLimits, row: ServingRow) -> list[float]:
    pairs = ((limits.first_token_s, row.first_token_s), (limits.token_s, row.token_s))
    return [own / limit for limit, own in pairs if limit is not None] or [0.0]
