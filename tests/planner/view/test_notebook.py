"""What a notebook shows of a plan, a graph and a timeline: small, by itself, without torch."""

import sys
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

from graphs.common.notebook import repr_html
from planner.view.page import render
from tests.children import ran
from tests.planner.view.samples import chain_plan, fork_graph, fork_plan

ROOT = Path(__file__).parents[3]


class Shown(HTMLParser):
    """Texts and images."""

    def __init__(self, page: str | None) -> None:
        super().__init__()
        assert page is not None
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.images: list[str] = []
        self.pages: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "a":
            kind, _, data = (dict(attrs)["href"] or "").partition(",")
            assert kind == "data:text/html;base64"
            self.pages.append(b64decode(data).decode())
        if tag == "img":
            kind, _, data = (dict(attrs)["src"] or "").partition(",")
            assert kind == "data:image/svg+xml;base64"
            self.images.append(b64decode(data).decode())

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_plan_shows_its_picture_and_its_devices() -> None:
    shown = Shown(fork_plan()._repr_html_())
    assert shown.images[0].startswith("<svg ")
    assert shown.texts[0].startswith("fork for throughput on 2 devices: ")
    assert shown.texts[5:8] == ["cpu0", "5", "10 ms"]
    assert shown.pages == [render(fork_plan())]
    assert not {"style", "script", "link"} & set(shown.tags)  # nothing leaks into the notebook


def test_a_graph_shows_what_is_in_it() -> None:
    texts = Shown(fork_graph()._repr_html_()).texts
    assert texts[0] == "fork: 6 operators, 5 flows"
    assert "image [1, 3, 8, 8] float32" in texts
    assert "76 in 2 tensors, 0.0 MiB" in texts  # 4 · 3 and 8 · 8
    assert texts[texts.index("kinds") + 1].startswith("aten.conv2d.default 2, aten.relu.default 1")
    assert texts[texts.index("modules") + 1] == "block 3, stem 2"


def test_many_kinds_are_not_all_listed() -> None:
    graph = chain_plan([f"m{i}" for i in range(20)], n_devices=1).graph
    texts = Shown(graph._repr_html_()).texts
    assert texts[texts.index("modules") + 1].endswith("m7 1, 12 more")


def test_names_are_escaped() -> None:
    name = "<script>alert(1)</script>"
    for shown in (fork_graph(name, first=name), fork_plan(fork_graph(name))):
        page = shown._repr_html_()
        assert page is not None
        assert "<script" not in page


def test_a_timeline_shows_its_chart() -> None:
    shown = Shown(fork_plan().simulate(2)._repr_html_())
    assert "micro-batch" in shown.images[0]
    assert shown.tags == ["img"]


def test_a_record_without_a_view_is_shown_as_text() -> None:
    assert repr_html(3) is None


def test_a_plan_needs_nothing_but_its_own_module_to_show_itself() -> None:
    code = (
        "import sys; import planner; assert 'planner.view' not in sys.modules;"
        "from tests.planner.view.samples import fork_plan; assert 'planner.view' not in sys.modules;"
        "print(fork_plan()._repr_html_()[:4])"
    )
    assert ran([sys.executable, "-c", code], cwd=ROOT).stdout == "<img\n"


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from tests.planner.view.samples import fork_plan; p = fork_plan();"
        "p._repr_html_(), p.graph._repr_html_(), p.simulate()._repr_html_(); print('torch' in sys.modules)"
    )
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    assert done.stdout == "False\n"
