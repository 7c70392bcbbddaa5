"""The drawing of a plan as SVG and PNG: every operator, every cut, the same bytes, and XML whatever the names are."""

import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from struct import unpack
from xml.etree import ElementTree

import numpy as np
import pytest
import resvg_py

from costmodels.operator_times import OperatorTimes
from costmodels.tabulate import assemble
from graphs.common.errors import InputError
from graphs.common.visible import visible
from planner.view.picture import png_picture, svg_picture
from simulator.placement import Placement
from tests.children import ran
from tests.planner.view.drawings import SVG, needs_font, texts
from tests.planner.view.samples import chain_plan, fork_graph, fork_plan, random_plan

ROOT = Path(__file__).parents[3]


def test_every_operator_of_a_small_network_is_drawn_with_its_device() -> None:
    shown = texts(svg_picture(fork_plan()))
    assert shown[0] == "fork on 2 devices of desk"
    assert shown[1].startswith("planned for throughput · 6 operators · ")
    for name in ("conv", "relu", "left", "right", "cat", "head", "image", "f"):
        assert name in shown
    assert "cpu0: 5 operators, 10 ms" in shown
    assert shown.count("A") == 1 + 5  # the legend, and the operators on cpu0
    assert shown.count("B") == 1 + 1


def test_cuts_are_heavy_and_labelled_with_bytes_and_time() -> None:
    svg = svg_picture(fork_plan())
    paths = [path.get("class") for path in ElementTree.fromstring(svg).iter(f"{SVG}path")]
    assert {"wire", "cut"} <= set(paths)
    assert texts(svg).count("1 KiB") == texts(svg).count("2.02 ms") == 2


@pytest.mark.parametrize(("n_ops", "n_devices", "aspect"), [(60, 6, 0.5), (60, 6, 1.2), (45, 9, 4.0), (60, 2, 0.8)])
def test_labels_of_cuts_survive_a_wrapped_line(n_ops: int, n_devices: int, aspect: float) -> None:
    shown = texts(svg_picture(chain_plan([""] * n_ops, n_devices), aspect))
    assert shown.count("16 B") == n_devices - 1


def test_a_large_network_is_collapsed_by_module() -> None:
    plan = chain_plan([f"layer.{i // 40}.part{i % 7}" for i in range(2000)], n_devices=12)
    svg = svg_picture(plan)
    assert len(svg) < 200_000
    assert "2,000 ops · 2 s" in texts(svg)
    assert "L" in texts(svg)  # the twelfth device


def test_equal_layers_are_a_strip_with_a_tick_at_each_cut() -> None:
    plan = chain_plan([f"layers.{i // 4}.{'ab'[i % 4 // 2]}" for i in range(160)], n_devices=20)
    root = ElementTree.fromstring(svg_picture(plan))
    ticks = [box for box in root.iter(f"{SVG}rect") if (box.get("width"), box.get("fill")) == ("5", "#15181d")]
    assert len(ticks) == 19
    assert texts(svg_picture(plan)).count("19") == 2  # the number of the last device, in the legend and in its cell
    colours = [box.get("fill") for box in root.iter(f"{SVG}rect") if box.get("stroke-width") == "0.5"]
    assert len(colours) == 40
    assert len(set(colours)) == 20


def test_a_cut_between_equal_layers_is_as_thick_as_its_bytes() -> None:
    plan = chain_plan(["stem", *(f"layers.{i // 4}.{'ab'[i % 4 // 2]}" for i in range(160))], n_devices=3)
    # the stem sends nine times as much as a layer, on its way to the second device
    sizes = [replace(tensor, shape=(36,)) if tensor.name == "op0" else tensor for tensor in plan.graph.tensors]
    graph, placement = replace(plan.graph, tensors=tuple(sizes)), Placement((0, *[1] * 80, *[2] * 80))
    costs = OperatorTimes(plan.table.forward_s, np.full((161, 3), "measured"))
    table = assemble(graph, plan.cluster, plan.workload, costs)
    picture = svg_picture(replace(plan, graph=graph, table=table, placement=placement))
    boxes = ElementTree.fromstring(picture).iter(f"{SVG}rect")
    # 2.6, and 0.8 for each third of the root of its share of the most
    assert [box.get("width") for box in boxes if box.get("fill") == "#15181d"] == ["3.4"]
    assert "stroke-width:5.0" in picture


def test_nothing_lies_outside_of_the_drawing() -> None:
    for seed in range(3):
        root = ElementTree.fromstring(svg_picture(random_plan(seed, n_ops=40, n_devices=3)))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        (group,) = root.findall(f"{SVG}g")
        left, top = map(float, group.get("transform", "")[len("translate(") : -1].split())
        for node in group.findall(f"{SVG}g"):
            x, y = map(float, node.get("transform", "")[len("translate(") : -1].split())
            assert 0 <= left + x <= width - 150
            assert 0 <= top + y <= height - 40


def test_the_same_plan_gives_the_same_bytes_in_every_process() -> None:
    code = (
        "from tests.planner.view.samples import random_plan;"
        "from planner.view.picture import svg_picture; print(svg_picture(random_plan(1, 50, 3)), end='')"
    )
    runs = [ran([sys.executable, "-c", code], cwd=ROOT).stdout for _ in range(2)]
    assert runs[0] == runs[1] == svg_picture(random_plan(1, 50, 3))


def test_hostile_names_are_only_names() -> None:
    name = "</text><script>alert(1)</script>&\u2028"
    svg = svg_picture(fork_plan(fork_graph(name, first=name)))
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}script"))
    assert texts(svg)[0].startswith(visible(name))


def test_long_names_keep_both_ends() -> None:
    plan = chain_plan(["encoder.layers.with.a.very.long.name.indeed", ""], n_devices=2)
    (short,) = (text for text in texts(svg_picture(plan)) if "…" in text and text.startswith("encode"))
    assert short.endswith("ndeed")


def test_a_width_is_aimed_at() -> None:
    plan = chain_plan([""] * 60, n_devices=2)
    narrow, wide = (ElementTree.fromstring(svg_picture(plan, aspect)) for aspect in (0.8, 6.0))
    assert float(narrow.get("width", 0)) < float(wide.get("width", 0))


@needs_font
def test_png_is_twice_as_large_as_the_drawing() -> None:
    plan = fork_plan()
    png = png_picture(plan)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    root = ElementTree.fromstring(svg_picture(plan))
    size = [round(2 * float(root.get(side, 0))) for side in ("width", "height")]
    assert list(unpack(">II", png[16:24])) == pytest.approx(size, abs=1)


def test_png_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(InputError, match=r"PNG needs the package resvg-py; pip install 'placement-planner\[png\]'"):
        png_picture(fork_plan())


@needs_font
@pytest.mark.attack("first-try")
def test_png_has_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    png = png_picture(fork_plan())
    silent = re.sub(r"(<text[^>]*>)[^<]*", r"\1", svg_picture(fork_plan()))
    monkeypatch.setattr("planner.view.picture.svg_picture", lambda *_: silent)
    assert len(png) > 1.5 * len(png_picture(fork_plan()))


@pytest.mark.attack("first-try")
def test_png_without_a_font_is_no_picture_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = partial(resvg_py.svg_to_bytes, skip_system_fonts=True)
    monkeypatch.setattr(resvg_py, "svg_to_bytes", bare)
    with pytest.raises(InputError) as error:
        png_picture(fork_plan())
    assert str(error.value) == (
        "there is none of the fonts Helvetica, Arial, Liberation Sans, DejaVu Sans, Noto Sans, ... on this machine to "
        "write names with; install one (Debian: apt install fonts-dejavu-core), or take --format svg"
    )
