import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import quickjs
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.visible import visible
from planner.plans.prediction import predict
from planner.plans.runs import MeasuredRun
from planner.view import render
from planner.view.packing import packed_text
from planner.view.page import SCRIPTS, template
from planner.view.payload import payload
from tests.planner.view.payloads import embedded, read
from tests.planner.view.samples import chain_plan, fork_graph, fork_plan, slower

HOSTILE = "</script><script>alert('\u2028')</script><!--"


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_number_is_in_the_largest_unit_of_which_there_is_one() -> None:
    context = quickjs.Context()
    context.eval(template("format.js"))
    for text, expected in (
        ("formatBytes(1073740000)", "1 GiB"),  # six digits of 2 ** 30, as payloads have them
        ("formatBytes(1020 * 1024)", "1,020 KiB"),
        ("formatBytes(1024)", "1 KiB"),
        ("formatSeconds(0.9996e-3)", "1 ms"),
        ("formatSeconds(0.9994e-3)", "999 µs"),
    ):
        assert context.eval(text) == expected, text


def test_the_page_carries_the_payload() -> None:
    plan = fork_plan()
    measured = MeasuredRun(slower(plan.simulate(3), 1.2))
    page = render(plan, measured)
    assert embedded(page) == json.loads(json.dumps(payload(plan, predict(plan, 3), measured)))
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>fork: placement</title>" in page


def test_same_plan_same_bytes() -> None:
    first, second = fork_plan(), fork_plan()
    assert render(first) == render(second)


def test_every_operator_is_there() -> None:
    plan = chain_plan([f"layer.{i // 10}" for i in range(500)], n_devices=3)
    document = embedded(render(plan, micro_batches=2))
    assert document["ops"]["name"] == [f"op{i}" for i in range(500)]


def test_names_cannot_leave_the_data() -> None:
    plan = fork_plan(fork_graph(HOSTILE, first=HOSTILE))
    page = render(plan)
    assert page.count("</script>") == 2  # the payload's and the program's
    assert "\u2028" not in page
    assert embedded(page)["ops"]["name"][0] == visible(HOSTILE)
    assert [tag for tag, _ in Tags(page).found].count("script") == 2


def test_placeholders_in_names_stay_names() -> None:
    plan = fork_plan(fork_graph("{{payload}}", first="{{script}}"))
    page = render(plan)
    assert "<title>{{payload}}: placement</title>" in page
    assert page.count('"use strict"') == 1


def test_nothing_is_loaded_from_anywhere() -> None:
    plan = fork_plan()
    page = render(plan).replace("http://www.w3.org/2000/svg", "")  # the name of a language, which nobody visits
    addresses = set(re.findall(r"\b(?:https?|wss?|ftp):\S+", page))
    assert addresses == set()
    for tag, attributes in Tags(page).found:
        assert "src" not in attributes
        assert tag != "link" or attributes["href"] == "data:,"
        assert tag not in ("img", "iframe", "object", "embed")
    for call in ("fetch(", "XMLHttpRequest", "import(", "@import", "url(http", "WebSocket", "sendBeacon"):
        assert call not in page
    assert "default-src 'none'" in page


def test_every_file_of_the_page_is_used() -> None:
    beside = {path.name for path in files("planner.view").iterdir()}
    assert {name for name in beside if name.endswith(".js")} == set(SCRIPTS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9) | st.sampled_from(["a", "é<", "Δ"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
)


@given(JSON)
def test_a_packed_document_is_the_document_again(document: object) -> None:
    assert read(packed_text(document)) == json.loads(json.dumps(document))


def test_tables_of_ints_and_names_are_the_same_again() -> None:
    rows = [[0, "a", [1, 2], 7], [1, "b", [], 7]]
    document = {"rows": rows, "lists": [[4], [], [4, 5]], "empty": [[], []], "<a>": "&"}
    assert read(packed_text(document)) == document


def test_layers_that_are_equal_take_no_bytes_again() -> None:
    def n_bytes(n_layers: int) -> int:
        modules = [f"layers.{i // 100}.mlp" for i in range(100 * n_layers)]
        return len(packed_text(payload(plan := chain_plan(modules, n_devices=2), predict(plan, 2))))

    more = (n_bytes(40) - n_bytes(20)) / (20 * 100)
    assert more < 8  # an operator more; its record alone has 150
