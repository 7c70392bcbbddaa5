"""planner fit: what a device holds, by hand; what is missing and what would fit; the same words everywhere."""

import re
from typing import Any

import pytest

import planner
from graphs.common.errors import InputError
from planner.generation.plan import plan_document
from planner.generation.words import device_rows, expected_lines
from planner.problem.result import Status
from planner.view.generation import generation_page, generation_svg
from tests.planner.generation import small

MIXTURE = small.model(*[small.layer(1024, 1024, experts=16)] * 4)


def test_a_device_holds_weights_cache_and_buffers() -> None:
    layer = small.layer(1024, 2048)
    plan = planner.fit(
        small.model(*[layer] * 4), cluster=small.cluster(small.device("a", 2000)), context=1000, sequences=3
    )
    (held,) = plan.holdings
    assert held.weights == 4 * layer.bytes
    assert held.cache == 3 * 4 * 1000 * 2 * 2 * 256 * 2
    assert held.embedding == held.head == 8000 * 1024 * 2
    assert held.buffers == 512 * 4 * (4 * 2048 + 8000)
    assert held.spare == pytest.approx(2e9 - held.used)
    tied = planner.fit(small.model(layer, tied=True), cluster=small.cluster(small.device("a", 2000)))
    assert tied.holdings[0].head == 0


def test_a_cache_of_8_bits_takes_half() -> None:
    model, cluster = small.model(*[small.layer(1024, 2048)] * 4), small.cluster(small.device("a", 2000))
    sixteen, eight = (planner.fit(model, cluster=cluster, cache=name).holdings[0].cache for name in ("f16", "q8_0"))
    assert eight == pytest.approx(sixteen * 17 / 32)


def test_experts_go_to_the_host_where_a_gpu_is_too_small() -> None:
    cpu, gpu = small.device("cpu0", 4000, "Xeon-6980P", speed=0.2), small.device("gpu0", 230)
    plan = planner.fit(MIXTURE, cluster=small.cluster(gpu, cpu), context=512, prompt=64, output=400)
    assert plan.status is Status.OPTIMAL
    assert plan.speeds is not None
    held = {each.device: each for each in plan.holdings}
    assert all(each.spare >= 0 for each in plan.holdings)
    away = [layer for stage in plan.stages for layer in stage.away]
    experts = 16 * 3 * 1024 * 1024 * 2
    assert held["cpu0"].experts == len(away) * experts
    others = {text.partition(":")[0]: text.partition(": ")[2] for text in expected_lines(plan)}
    assert others["one device alone"].startswith("gpu0 with experts on cpu0: ")


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    model = small.model(*[small.layer(1024, 2048)] * 8)
    plan = planner.fit(model, cluster=small.cluster(small.device("a", 260), small.device("b", 20)), context=8192)
    assert plan.status is Status.INFEASIBLE
    assert plan.speeds is None
    texts = [change.text for change in plan.changes]
    assert any(text.startswith("--context ") for text in texts)
    assert any(text.startswith("--weights ") for text in texts)
    assert plan.advice.startswith("it does not fit: ")
    for change in plan.changes:
        words = change.text.split()
        if words[0].startswith("--"):
            asked: dict[str, Any] = {"context": 8192, words[0][2:]: int(words[1]) if words[1].isdigit() else words[1]}
            again = planner.fit(model, cluster=plan.question.cluster, **asked)
            assert again.speeds is not None, change
            assert again.speeds.all_tokens_per_s(1) == pytest.approx(change.tokens_per_s)


def test_more_tokens_in_the_cache_take_longer() -> None:
    model, cluster = small.model(*[small.layer(1024, 2048)] * 4), small.cluster(small.device("a", 3000))
    short, long = (planner.fit(model, cluster=cluster, prompt=prompt, context=4096) for prompt in (64, 3500))
    assert short.speeds is not None
    assert long.speeds is not None
    assert long.speeds.one_token_s > short.speeds.one_token_s
    assert long.speeds.first_token_s > short.speeds.first_token_s


def test_parts_of_a_token_add_up() -> None:
    cpu, gpu = small.device("cpu0", 4000, "Xeon-6980P", speed=0.2), small.device("gpu0", 230)
    plan = planner.fit(MIXTURE, cluster=small.cluster(gpu, cpu), context=512, prompt=64, output=400, sequences=2)
    assert plan.speeds is not None
    assert sum(plan.speeds.parts.values()) == pytest.approx(plan.speeds.token_s, rel=1e-9)
    stages = sum(stage.token_s + stage.hop_s for stage in plan.stages)
    assert stages == pytest.approx(plan.speeds.token_s, rel=1e-3)


def test_page_picture_and_document_say_the_same() -> None:
    model = small.model(*[small.layer(1024, 2048)] * 6)
    plan = planner.fit(model, cluster=small.cluster(small.device("a", 150), small.device("b", 150)), context=1024)
    page, picture, document = generation_page(plan), generation_svg(plan), plan_document(plan)
    assert picture in page
    for row in device_rows(plan):
        assert all(cell in page for cell in row if "<" not in cell)
    assert all(line.replace("'", "&#x27;") in page for line in expected_lines(plan))
    assert len(re.findall(r"<title>cache \d", picture)) == len(plan.stages)
    stages = document["stages"]
    assert isinstance(stages, list)
    assert [stage["stop"] for stage in stages] == [stage.stop for stage in plan.stages]
    assert generation_svg(plan) == picture


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"context": 100, "prompt": 90, "output": 20},
            "^a prompt of 90 tokens and 20 generated ones are more",
        ),
        (
            {"weights": "q4_K", "engine": "vllm"},
            r"^vllm does not compute in q4_K \(the tensor '.*'\); the",
        ),
        ({"weights": "gptq"}, "^llama-cpp does not compute in gptq 4 bits"),
        ({"cache": "q3_K"}, "^--cache is 'q3_K', which no cache has; known: float16"),
        ({"contxt": 5}, "^there is no argument 'contxt'; known: context, .*did you mean 'context'"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planner.fit(small.model(small.layer(1024, 2048)), cluster=small.cluster(small.device("a", 2000)), **asked)


def test_rows_of_serving_keep_limits_and_dominate() -> None:
    model = small.model(*[small.layer(1024, 2048)] * 4)
    cluster = "4xH100-SXM-80GB:NVLink4"
    free = planner.serve(model, cluster=cluster, context=1024, prompt=256, output=256)
    assert free.priced >= free.fitting >= len(free.rows) > 1
    rates = [(row.tokens_per_s_gpu, row.tokens_per_s_user) for row in free.rows]
    assert rates == sorted(rates, key=lambda pair: -pair[0])
    assert [user for _, user in rates] == sorted(user for _, user in rates)
    limit = sorted(row.token_s for row in free.rows)[len(free.rows) // 2]
    bounded = planner.serve(
        model, cluster=cluster, context=1024, prompt=256, output=256, limits=planner.ServingLimits(token_s=limit)
    )
    assert all(row.token_s <= limit for row in bounded.rows)
    assert {row for row in free.rows if row.token_s <= limit} <= set(bounded.rows)
    none = planner.serve(model, cluster=cluster, context=1024, limits=planner.ServingLimits(token_s=1e-9))
    assert none.rows == ()
    assert "the nearest takes" in none.advice
    with pytest.raises(InputError, match=r"^--serve is for equal GPUs, and the cluster has L4 and RTX-4090;"):
        planner.serve(model, cluster="L4+RTX-4090:PCIe4")
