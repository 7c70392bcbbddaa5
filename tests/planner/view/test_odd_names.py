"""Whatever the names are: each format is read by a reader of its own, and none of them makes anything of a name."""

import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from graphs.common.errors import InputError
from graphs.ir import Op
from planner.exports.targets import export
from planner.plans.plan import Plan
from planner.view.dot import dot_text
from planner.view.notebook import plan_html
from planner.view.page import render
from planner.view.picture import png_picture, svg_picture
from simulator.chart import ascii_chart, svg_chart
from simulator.trace import chrome_trace
from tests.children import ran
from tests.planner.view.drawings import needs_font, texts
from tests.planner.view.samples import cluster, fork_graph, fork_plan

ODD = {
    "controls": "".join(map(chr, [*range(32), *range(0x7F, 0xA0)])),
    "escape": "\x1b]0;owned\x07\x1b[2J",
    "markup": """</script></style>]]><!--"'&amp;<b onload=x>""",
    "direction": "\u202egnp.\u2066x\u2028",
    "none": "\ufffe\uffff\ufdd0",
    "quotes": "\"'`\\\\n\\{{style}}${x}",
}

pytestmark = [pytest.mark.attack("file"), pytest.mark.parametrize("odd", ODD.values(), ids=ODD)]


def plan_of(odd: str) -> Plan:
    """A model, operators, modules, tensors and devices of such names."""
    graph = fork_graph(odd, first=odd)
    named = replace(graph.ops[1], module=f"{odd}.x")
    graph = replace(graph, ops=(graph.ops[0], named, *graph.ops[2:]))
    plan, devices = fork_plan(graph), cluster().devices
    names = {device.name: f"{device.name}{odd}" for device in devices}
    renamed = replace(
        plan.cluster,
        name=odd,
        devices=tuple(replace(device, name=names[device.name]) for device in devices),
        links=tuple(replace(link, src=names[link.src], dst=names[link.dst]) for link in plan.cluster.links),
    )
    return replace(plan, cluster=renamed, table=replace(plan.table, devices=tuple(names.values())))


class Page(HTMLParser):
    """The elements of a page, and what stands in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags = [""]
        self.inside: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, _: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.inside[self.tags[-1]] = self.inside.get(self.tags[-1], "") + data


def test_drawings_are_xml(odd: str) -> None:
    plan = plan_of(odd)
    assert any(text.isprintable() and "fork" not in text for text in texts(svg_picture(plan)))
    assert "".join(texts(svg_picture(plan))).isprintable()
    ElementTree.fromstring(svg_chart(plan.simulate(2), odd))
    assert ascii_chart(plan.simulate(2), 20).replace("\n", "").isprintable()


@needs_font
def test_png_is_painted(odd: str) -> None:
    assert png_picture(plan_of(odd)).startswith(b"\x89PNG")


def test_pages_have_the_elements_that_they_have_with_plain_names(odd: str) -> None:
    for drawn in (render, plan_html):
        page, plain = Page(drawn(plan_of(odd))), Page(drawn(fork_plan()))
        assert page.tags == plain.tags
        assert all(text.replace("\n", "").replace("\t", "").isprintable() for text in page.inside.values())


@pytest.mark.skipif(shutil.which("dot") is None, reason="no Graphviz on the path")
def test_graphviz_reads_the_drawing(odd: str) -> None:
    done = ran(["dot", "-Tplain"], input=dot_text(plan_of(odd)))
    assert done.stderr == ""


def test_documents_are_json(odd: str) -> None:
    plan = plan_of(odd)
    trace = json.dumps(chrome_trace(plan.simulate(2)), ensure_ascii=False)
    names = {event["args"].get("name") for event in json.loads(trace.encode())["traceEvents"]}
    assert set(plan.table.devices) <= names
    exported = export(plan, "networkx")
    assert json.loads(exported.text.encode()) == exported.document


def test_halves_of_letters_are_refused(odd: str) -> None:
    name = f"{odd}\ud800"
    with pytest.raises(InputError) as error:
        replace(fork_graph(), ops=(Op(name, "k", (), ()),))
    assert str(error.value) == f"the name {name!a} has half a letter, which no file can hold; rename it"
