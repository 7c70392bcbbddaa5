"""Rows of a server: pipelines and pools of GPUs by the closed forms of one pool, and every pair of pools tried."""

import json
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

import planner
from costmodels.generation.rates import Rates, rates_of
from costmodels.generation.serving import PromptPool, Requests, Served, Steady, steady_state, steady_state_apart
from costmodels.generation.work import LayerShare, Machine, head_demand, works_of
from planner.cli import main
from planner.generation.question import generation_question
from planner.generation.serve import ServingTable, equal_gpus, serving_document
from planner.generation.serving_row import ServingRow, batches, ways_of
from tests.planner.generation import small

MACHINE = Machine(1e12, {"float32": 1e13, "float16": 1e14}, link_bytes_per_s=1e11, host_devices=8, far_bytes_per_s=1e10)
MIXTURE = small.model(*[small.layer(1024, 1024, experts=8)] * 4)
CLUSTER = "4xH100-SXM-80GB:NVLink4"
ASKED: dict[str, Any] = {"context": 1024, "prompt": 900, "output": 100, "sequences": 16}


@pytest.fixture(scope="module")
def table() -> ServingTable:
    return planner.serve(MIXTURE, cluster=CLUSTER, **ASKED)


def rates() -> Rates:
    return rates_of("vllm", small.device("a", 100, "H100-SXM-80GB"))


def test_two_stages_are_as_fast_for_each_gpu_as_one_but_for_messages() -> None:
    """Each of two micro-batches passes all layers once; the last stage has the head for both, which is 8 · 2 MiB."""
    model = small.model(*[small.layer(1024, 4096)] * 8, vocabulary=1024)
    one, two = (Served(model, works_of(model), MACHINE, LayerShare(), 2.0, stages) for stages in (1, 2))
    alone = rates().seconds(one.step_demand(8, 100))
    both = rates().seconds(two.step_demand(16, 100))
    prices = rates().prices
    more = prices["steps"] + 2 * prices["hops"] + 8 * prices["sequences"]
    assert both == pytest.approx(alone + more + rates().seconds(head_demand(model, MACHINE, 1, 8)))
    states = [steady_state(served, rates(), Requests(1, 1000, n), 1e12) for served, n in ((one, 8), (two, 16))]
    assert states[1].requests_per_s / 2 == pytest.approx(states[0].requests_per_s, rel=0.25)
    prompts = [steady_state(served, rates(), Requests(4000, 10, n), 1e12) for served, n in ((one, 8), (two, 16))]
    assert prompts[1].requests_per_s / 2 == pytest.approx(prompts[0].requests_per_s, rel=0.25)


def pools(row: ServingRow) -> tuple[PromptPool, Served, Rates, float]:
    """Return both pools of a row, the rates, and the room of a GPU."""
    question = generation_question(MIXTURE, planner.read_cluster(CLUSTER), **ASKED, engine="vllm")
    own, machine = equal_gpus(question)
    assert row.prompts is not None
    every = [(way, served) for way in (row, row.prompts) for served in ways_of(question, machine, 4)]
    every += [(way, served) for way in (row, row.prompts) for served in ways_of(question, machine, 3)]
    found = [
        next(
            served
            for other, served in every
            if other is way
            and (served.share.tensor, served.pipeline, served.share.data, served.share.experts)
            == (way.tensor, way.pipeline, way.data, way.experts)
        )
        for way in (row, row.prompts)
    ]
    pool = PromptPool(found[1], own, row.prompts.replicas, machine.link_bytes_per_s)
    return pool, found[0], own, question.cluster.devices[0].usable_bytes - question.buffer_bytes


def test_rows_with_two_pools_are_consistent_with_each_pool(table: ServingTable) -> None:
    apart = [row for row in table.rows if row.prompts is not None]
    assert apart
    for row in apart:
        assert row.prompts is not None
        assert row.gpus * row.replicas + row.prompts.gpus * row.prompts.replicas == 4
        pool, served, own, room = pools(row)
        step_s = own.seconds(served.step_demand(row.sequences / row.replicas / row.data, 900 + 50, alone=True))
        assert row.token_s == pytest.approx(step_s, rel=0.05)  # a match is not at a whole number of sequences
        sent_s = pool.transfer_s(900, served)
        assert sent_s == pytest.approx(max(pool.served.cache_bytes(900), served.cache_bytes(900)) / 450e9)
        assert row.first_token_s == pytest.approx(pool.prompt_s(900) + sent_s + row.token_s)
        requests_per_s = row.tokens_per_s_gpu * 4 / 100
        assert requests_per_s <= pool.requests_per_s(900, served, row.replicas) * 1.02
        assert row.cache_bytes + row.weight_bytes <= room


def test_no_pair_of_pools_beats_the_rows(table: ServingTable) -> None:
    tried = 0
    for gpu, user in every_pair():
        tried += 1
        assert any(row.tokens_per_s_gpu >= gpu * 0.97 and row.tokens_per_s_user >= user * 0.97 for row in table.rows)
    assert tried > 100


def every_pair() -> Iterator[tuple[float, float]]:
    """Yield tokens a second for each GPU and for each user, of all pairs of pools and all batches."""
    question = generation_question(MIXTURE, planner.read_cluster(CLUSTER), **ASKED, engine="vllm")
    own, machine = equal_gpus(question)
    room = question.cluster.devices[0].usable_bytes - question.buffer_bytes
    for prompts in (1, 2, 3):
        for first in ways_of(question, machine, prompts):
            pool = PromptPool(first, own, prompts // first.devices, machine.link_bytes_per_s)
            for second in ways_of(question, machine, 4 - prompts):
                replicas = (4 - prompts) // second.devices
                for sequences in batches(second, room, question, 4 - prompts, 16):
                    asked = Requests(900, 100, sequences)
                    state: Steady = steady_state_apart(second, own, asked, room, replicas, pool)
                    yield state.requests_per_s * replicas * 100 / 4, 1 / state.token_s


def test_a_slow_link_between_the_pools_bounds_requests() -> None:
    served = Served(MIXTURE, works_of(MIXTURE), MACHINE, LayerShare(), 2.0)
    cache = served.cache_bytes(900)
    pool = PromptPool(served, rates(), 2, link_bytes_per_s=cache)  # a cache a second
    assert pool.transfer_s(900, served) == 1
    assert pool.requests_per_s(900, served, 5) == 2  # two senders
    assert pool._replace(link_bytes_per_s=inf).requests_per_s(900, served, 5) == 2 / pool.prompt_s(900)
    assert pool.requests_per_s(900, served, 1) == 1  # one receiver
    state = steady_state_apart(served, rates(), Requests(900, 10_000, 1), 1e12, 1, pool)
    assert state.first_token_s == pytest.approx(pool.prompt_s(900) + 1 + state.token_s, rel=0.02)


def test_attention_is_divided_by_sequences_and_experts_are_spread() -> None:
    """Four groups have other sequences: each GPU has all weights of attention, and a quarter of the experts."""
    work = works_of(MIXTURE)
    served = Served(MIXTURE, work, MACHINE, LayerShare(1, 4, 4), 2.0)
    ends = sum(tensor.bytes for tensor in MIXTURE.tensors)
    assert served.weight_bytes() == pytest.approx(4 * (work[0].bytes["own"] + work[0].bytes["experts"] / 4) + ends)
    assert served.cache_bytes(1000) == MIXTURE.cache_bytes(1000, 2.0)
    demand = served.step_demand(8, 100)
    assert demand["exchanges"] == pytest.approx(4 * (1 + 2 / 3))  # log2 of 4 GPUs, in thirds
    assert "reduces" not in demand
    cut = Served(MIXTURE, work, MACHINE, LayerShare(1, 4, 1), 2.0).step_demand(8, 100)
    assert cut["exchanged"] == pytest.approx(4 * 8 * 1024 * 3 * 3 / 1e11)  # to three others, 1 and 2 bytes
    assert demand["exchanged"] == pytest.approx(cut["exchanged"] * (1 - (3 / 4) ** 2))  # two experts of a token


def test_lines_and_documents_say_the_pools(table: ServingTable, capsys: pytest.CaptureFixture[str]) -> None:
    document = serving_document(table)
    rows = document["rows"]
    assert isinstance(rows, list)
    assert [row["prompts"] is None for row in rows] == [row.prompts is None for row in table.rows]
    assert main(f"fit missing.gguf --cluster {CLUSTER} --serve --json".split()) == 2
    assert "does not exist" in capsys.readouterr().err
    json.dumps(document, allow_nan=False)
