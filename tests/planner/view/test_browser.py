"""The page in a real browser: its program runs, draws every node and does what it is told."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.plans.plan import Plan
from planner.plans.runs import MeasuredRun
from planner.view import render
from planner.view.picture import svg_picture
from planner.view.tree import group_tree
from simulator.placement import Placement
from tests.planner.view.browser import BROWSER, browse
from tests.planner.view.drawings import texts
from tests.planner.view.samples import chain_plan, fork_graph, fork_plan, random_plan, slower, training_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium on the path"),
]

OPS = 'all(".node.op").map((n) => n.querySelector("b").textContent)'
GROUPS = 'all(".node.group").map((n) => n.querySelector("b").textContent)'
PRESS = (
    'const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));'
)


def fork_page() -> str:
    plan = fork_plan()
    return render(plan, MeasuredRun(slower(plan.simulate(3), 1.1)))


def test_all_of_a_small_network_is_drawn(tmp_path: Path) -> None:
    found = browse(
        fork_page(),
        tmp_path,
        f"one('[data-do=expand]').click(); return [{OPS}, document.body.dataset.nodes, document.body.dataset.edges]",
    )
    assert sorted(found[0]) == ["cat", "conv", "head", "left", "relu", "right"]
    # 6 operators, the input and the output; 6 edges between operators and 2 to the ends
    assert found[1:] == ["8", "8"]


def test_groups_open_and_close(tmp_path: Path) -> None:
    script = f"""
        one('[data-do=collapse]').click(); const closed = {GROUPS};
        all('.node.group')[1].click(); const opened = [{GROUPS}, {OPS}];
        one('.title').click(); return [closed, opened, {GROUPS}]"""
    closed, opened, again = browse(fork_page(), tmp_path, script)
    assert closed == ["stem", "block"]
    assert opened[0] == ["stem"]
    assert sorted(opened[1]) == ["cat", "head", "left", "right"]
    assert sorted(again) == ["block", "stem"]


def test_devices_show_by_colour_and_letter(tmp_path: Path) -> None:
    script = """
        one('[data-do=expand]').click();
        return all('.node.op').map((n) => [n.querySelector('b').textContent, n.querySelector('.letters').textContent,
            getComputedStyle(n.querySelector('.letters i')).backgroundColor])"""
    found = {name: (letter, colour) for name, letter, colour in browse(fork_page(), tmp_path, script)}
    assert found["conv"] == ("A", "rgb(0, 114, 178)")
    assert found["left"] == ("B", "rgb(230, 159, 0)")


def test_cuts_are_heavy_and_labelled(tmp_path: Path) -> None:
    script = """
        one('[data-do=expand]').click();
        const width = (s) => parseFloat(getComputedStyle(one(s)).strokeWidth);
        return [width('#wires .cut') > 2 * width('#wires .wire'), all('.label').map((l) => l.innerText)]"""
    heavy, labels = browse(fork_page(), tmp_path, script)
    assert heavy
    assert labels == ["1 KiB\n2.02 ms", "1 KiB\n2.02 ms"]


def test_a_tip_says_what_an_operator_costs_where(tmp_path: Path) -> None:
    script = """
        one('[data-do=expand]').click();
        const head = all('.node.op').find((n) => n.querySelector('b').textContent === 'head');
        head.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
        return [one('#tip').hidden, one('#tip').innerText]"""
    hidden, text = browse(fork_page(), tmp_path, script)
    assert not hidden
    for part in ("aten.linear.default on cpu0", "8×8 float32", "256 B stay", "2 ms measured", "cannot run"):
        assert part in text


def test_search_reveals_the_operator(tmp_path: Path) -> None:
    script = f"""
        one('[data-do=collapse]').click();
        one('#query').value = 'twist'; one('#query').dispatchEvent(new Event('input'));
        const dimmed = all('.node.dim').map((n) => n.querySelector('b').textContent);
        one('#find').requestSubmit();
        return [dimmed, {OPS}, one('#matches').value, all('.hit').length]"""
    dimmed, ops, matches, hits = browse(fork_page(), tmp_path, script)
    assert sorted(dimmed) == ["f", "head", "image", "stem"]
    assert "right" in ops
    assert (matches, hits) == ("1 of 1", 1)


def test_the_keyboard_walks_opens_and_closes(tmp_path: Path) -> None:
    script = f"""
        {PRESS} const at = (tag) => document.activeElement.querySelector(tag);
        const here = () => (at('b') ?? at('span')).textContent;
        one('[data-do=collapse]').click(); one('[data-id][tabindex="0"]').focus();
        const way = [here()];
        for (const key of ['ArrowRight', 'ArrowRight', 'Enter', 'ArrowRight', 'Backspace', 'ArrowLeft']) {{
            press(key); way.push(here());
        }}
        return way"""
    found = browse(fork_page(), tmp_path, script)
    assert found == ["image", "stem", "block", "block", "left", "block", "stem"]


def test_the_timeline_has_a_lane_for_each_device_and_link_of_both_runs(tmp_path: Path) -> None:
    script = """
        const count = (s) => all('#timeline ' + s).length;
        return [count('.lane'), count('.span'), one('#timeline').getAttribute('aria-label')]"""
    lanes, spans, label = browse(fork_page(), tmp_path, script)
    assert lanes == 2 * 4
    assert spans == 2 * 3 * 6  # two runs of three micro-batches, each of four stages and two transfers
    assert label.startswith("Timeline: predicted: 3 micro-batches in ")


def test_the_header_says_how_good_the_plan_is(tmp_path: Path) -> None:
    header, reasons = browse(fork_page(), tmp_path, "return [one('#figures').innerText, one('#reasons').innerText]")
    assert "No plan can be more than 10 % better. Found by chain-dp." in header
    assert "15 ms" in header
    assert re.search(r"80 % of runs [\d.]+ – [\d.]+; measured: [\d.]+; .*a micro-batch every 10 ms", header)
    assert re.search(r"80 % of runs [\d.]+ ms – [\d.]+ ms; one micro-batch, alone on the devices", header)
    assert "The bottleneck is A cpu0: 10 ms for each micro-batch." in reasons
    assert "2 tensors cross between devices: 2 KiB, 4.05 ms for each micro-batch." in reasons


@pytest.mark.parametrize(
    ("bound_s", "share"), [(9.886e-3, "1.2 %"), (9.9e-3, "1 %"), (8.49e-3, "16 %"), (9.9999e-3, "0.1 %")]
)
def test_what_a_plan_could_be_better_by_is_rounded_up(bound_s: float, share: str, tmp_path: Path) -> None:
    plan = fork_plan(bound_s=bound_s)  # of 10 ms
    header = browse(render(plan, MeasuredRun(plan.simulate(3))), tmp_path, "return one('#figures').innerText")
    assert f"≤ {share} from the best" in header
    assert f"No plan can be more than {share} better." in header


def test_the_tables_list_devices_and_cuts(tmp_path: Path) -> None:
    devices, cuts = browse(
        fork_page(),
        tmp_path,
        "return ['#devices', '#cuts'].map((t) => all(t + ' tbody tr').map((r) => r.innerText.split(/\\s*\\t\\s*/)))",
    )
    assert devices[1][:4] == ["B cpu1", "1", "3 ms", "30 %"]  # the kind, which all have, stands above
    assert cuts == [["b", "A cpu0", "B cpu1", "1 KiB", "2.02 ms"], ["c", "B cpu1", "A cpu0", "1 KiB", "2.02 ms"]]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nothing_overlaps_and_everything_is_inside_its_group(seed: int, tmp_path: Path) -> None:
    plan = random_plan(seed, n_ops=60, n_devices=3)
    script = """
        one('[data-do=expand]').click();
        const {scene: {layout, boxes}, network} = planView;
        const apart = (a, b) => a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
        const inside = (a, b) => a.x >= b.x && a.y >= b.y && a.x + a.w <= b.x + b.w && a.y + a.h <= b.y + b.h;
        const {nodes, frames} = layout;
        const overlaps = nodes.flatMap((a, i) => nodes.slice(i + 1).filter((b) => !apart(a, b)));
        const outside = [...nodes, ...frames].filter((n) => {
            const frame = boxes.get(network.parent[n.id]);
            return !inside(n, frame ?? {x: 0, y: 0, w: layout.width, h: layout.height});
        });
        return [nodes.length, frames.length, overlaps, outside]"""
    groups = group_tree(plan.graph).groups
    assert browse(render(plan, micro_batches=2), tmp_path, script) == [60 + 2, len(groups), [], []]


def test_the_theme_can_be_chosen(tmp_path: Path) -> None:
    script = """
        const look = () => getComputedStyle(document.body).backgroundColor;
        one('#theme').click(); const light = look(); one('#theme').click(); return [light, look()]"""
    light, dark = browse(fork_page(), tmp_path, script)
    assert (light, dark) == ("rgb(246, 247, 249)", "rgb(20, 23, 28)")


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=\"document.body.dataset.error='ran'\">"
    plan = fork_plan(fork_graph(name, first=name))
    script = "one('[data-do=expand]').click(); return [one('h1').textContent, all('img').length]"
    assert browse(render(plan, micro_batches=2), tmp_path, script) == [name, 0]


def test_two_thousand_operators_are_drawn_on_a_map(tmp_path: Path) -> None:
    plan = chain_plan([f"layer.{i // 40}.part{i % 40 // 10}" for i in range(2000)], n_devices=12)
    script = """
        const first = Number(document.body.dataset.nodes);
        one('[data-do=expand]').click();
        return [first, Number(document.body.dataset.nodes), one('#graph').dataset.lod, one('#legend').innerText]"""
    first, every, detail, legend = browse(render(plan, micro_batches=2), tmp_path, script)
    assert first <= 60 + 2
    assert every == 2000 + 2
    assert detail == "map"
    assert legend.split() == [word for i in range(12) for word in ("ABCDEFGHIJKL"[i], f"cpu{i}")]


def test_memory_is_a_curve_for_each_device_with_its_limit(tmp_path: Path) -> None:
    plan = fork_plan()
    tight = replace(plan, table=replace(plan.table, capacity_bytes=np.array([6000.0, np.inf])))
    script = """
        const lines = all('#memory line.limit').length;
        const texts = all('#memory text').map((t) => t.textContent);
        const box = one('#memory').getBoundingClientRect();
        const at = {clientX: box.left + 400, clientY: box.top + 20, bubbles: true};
        one('#memory').dispatchEvent(new PointerEvent('pointermove', at));
        const words = [one('#tip').innerText, one('#memory-about').textContent];
        return [all('#memory path.curve').length, lines, texts, ...words]"""
    curves, lines, texts, tip, about = browse(
        render(tight, MeasuredRun(slower(tight.simulate(3), 1.1))), tmp_path, script
    )
    assert curves == 2 * 2  # predicted and measured
    assert lines == 1  # the other device has no limit
    assert {"cpu0", "cpu1", "limit 5.86 KiB", "no limit"} <= set(texts)
    for word in ("cpu0", "holds", "measured run", "at most", "limit"):
        assert word in tip
    assert "dashed: the measured run" in about


def test_memory_follows_the_timeline_when_that_is_zoomed(tmp_path: Path) -> None:
    script = """
        const path = () => one('#memory path.curve').getAttribute('d');
        const before = path(); one('[data-time=in]').click(); const zoomed = path();
        one('[data-time=fit]').click(); return [before === zoomed, before === path()]"""
    assert browse(fork_page(), tmp_path, script) == [False, True]


def test_what_is_open_is_saved_as_python_draws_it(tmp_path: Path) -> None:
    script = """
        let saved = null;
        HTMLAnchorElement.prototype.click = function () { saved = [this.download, decodeURIComponent(this.href)]; };
        one('[data-do=save]').click(); const first = saved;
        one('[data-do=collapse]').click(); one('[data-do=save]').click();
        return [first, saved[1].includes('branch'), saved[1].length < first[1].length, planView.scene.size]"""
    (name, href), _, smaller, (width, height) = browse(fork_page(), tmp_path, script)
    assert name == "fork.svg"
    kind, _, svg = href.partition(",")
    assert kind == "data:image/svg+xml"
    assert smaller
    assert {text for text in texts(svg) if text} == {text for text in texts(svg_picture(fork_plan())) if text}
    assert width > height > 0


def test_names_fit_their_boxes_in_pictures(tmp_path: Path) -> None:
    names = ["max_pool2d_with_indices_2[0/3]", "M" * 60, "漢字" * 20, "مرحبا" * 12, "il" * 40, "an_ordinary_name"]
    svg = svg_picture(chain_plan([f"{name}{i}" for name in names for i in range(4)], n_devices=2))
    script = """
        return all('text.name').map((t) => t.previousSibling.getAttribute('width') - 26 - t.getBBox().width)"""
    room = browse(f"<body data-ready>{svg}</body>", tmp_path, script)
    assert len(room) == 24
    assert min(room) >= 0


def llama_like(n_layers: int, n_devices: int) -> Plan:
    """Equal layers in a chain, and what takes next to no time before them."""
    plan = chain_plan([""] * 6 + [f"layers.{i // 4}.{'ab'[i % 4 // 2]}" for i in range(4 * n_layers)], n_devices)
    forward_s = plan.table.forward_s.copy()
    forward_s[:6] = 1e-8
    placed = (0,) * 6 + tuple(i // 4 * n_devices // n_layers for i in range(4 * n_layers))
    return replace(plan, table=replace(plan.table, forward_s=forward_s), placement=Placement(placed))


def test_layers_are_a_ribbon_that_opens_at_a_click_and_small_operators_a_capsule(tmp_path: Path) -> None:
    script = f"""
        {PRESS}
        const cells = () => all('.cell').length;
        const frames = () => all('.title > span:first-child').map((t) => t.textContent);
        const first = [cells(), all('.cutting').length, all('.capsule b').map((n) => n.textContent), frames()];
        const pick = all('.cell')[9]; pick.focus(); press('ArrowRight');
        const next = document.activeElement.getAttribute('aria-label');
        press('Enter'); const opened = [cells(), frames().at(-1)];
        const shown = one('.title[data-id="' + planView.scene.current + '"]').getBoundingClientRect();
        const canvas = one('#graph').getBoundingClientRect();
        press('Enter');
        return [first, next, opened, shown.left >= canvas.left && shown.right <= canvas.right, cells()]"""
    first, following, opened, inside, again = browse(render(llama_like(40, 20)), tmp_path, script)
    assert first == [40, 19, ["6 small operators"], ["layers"]]
    assert following.startswith("layers.10, 4 operators, on 5 cpu5, 4 ms")
    assert opened == [39, "layers.10"]
    assert inside
    assert again == 40


def test_many_devices_are_heat_maps_with_names_for_those_that_stand_out(tmp_path: Path) -> None:
    plan = llama_like(40, 20)
    hosts = tuple(replace(d, host=f"node{i // 5}") for i, d in enumerate(plan.cluster.devices))
    slow = plan.table.forward_s.copy()
    slow[:, 7] *= 3
    plan = replace(plan, cluster=replace(plan.cluster, devices=hosts), table=replace(plan.table, forward_s=slow))
    script = """
        const maps = all('.map').map((m) => m.innerText.split('\\n').slice(0, 3)
            .concat([...m.querySelectorAll('li')].map((row) => row.textContent)));
        const tile = all('.tile')[3]; tile.click();
        const lit = [all('.cell:not(.dim)').length, all('.host').length, one('.tile.bottleneck').textContent];
        const rows = () => all('#devices tbody tr').map((row) => row.innerText.split(/\\s*\\t\\s*/));
        const few = rows(); one('#more-devices').click();
        return [maps[0], tile.getAttribute('aria-label'), lit, few, rows().length, one('#legend').hidden,
            all('#memory [data-device]').length, all('#timeline .lane').length]"""
    load, label, lit, few, every, hidden, columns, lanes = browse(render(plan), tmp_path, script)
    assert load[-2:] == ["cpu7: 24 ms", "cpu0–6, 8–19 (19): 8 ms"]
    assert "8 ms – 8 ms – 24 ms least – median – most" in load
    assert label.startswith("cpu3 in node0: 8 ms for each micro-batch, ")
    assert lit == [2, 3 * 4, "7"]
    assert [row[0] for row in few] == ["cpu0–6, 8–19 (19)", "H cpu7"[2:]] or len(few) == 2
    assert (every, hidden, lanes) == (20, True, 20)
    assert columns >= 20


def test_odd_names_of_many_devices_are_only_names(tmp_path: Path) -> None:
    odd = "\x00</script><img src=x onerror=\"document.body.dataset.error='ran'\">'漢字 \u202egnp مرحبا"
    plan = chain_plan([f"layers.{i // 4}.{odd.replace('.', '')}" for i in range(60)], n_devices=15)
    names = [f"{i}{odd}" for i in range(15)]
    devices = tuple(replace(d, name=name, host=odd) for d, name in zip(plan.cluster.devices, names, strict=True))
    cluster, table = (
        replace(plan.cluster, name=odd, devices=devices, links=()),
        replace(plan.table, devices=tuple(names)),
    )
    plan = replace(plan, cluster=cluster, table=table)
    script = """
        one('.tile').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
        one('.cell').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
        one('.cell').click(); one('#all-lanes').click(); one('#over-time').click(); one('#more-devices').click();
        return [all('img').length, all('.tile').length, one('#devices').innerText.includes('漢字')]"""
    assert browse(render(plan), tmp_path, script) == [0, 3 * 15, True]


def test_a_filter_on_a_device_keeps_its_borders(tmp_path: Path) -> None:
    script = """
        one('[data-do=expand]').click(); one('#legend [data-device="1"]').click();
        const seen = (s) => all(s).map((e) => Number(getComputedStyle(e).opacity));
        return [seen('#wires .cut'), seen('#wires .wire'), seen('.label')]"""
    cuts, wires, labels = browse(fork_page(), tmp_path, script)
    assert set(cuts) == set(labels) == {1}
    assert set(wires) == {0.3}


def test_plans_without_times_and_devices_without_work_are_shown(tmp_path: Path) -> None:
    plan = chain_plan([""] * 3, n_devices=14)
    idle = replace(plan, table=replace(plan.table, forward_s=0 * plan.table.forward_s), placement=Placement((0, 0, 1)))
    script = "return [all('.tile.unused').length, one('#devices').innerText, one('#figures').innerText]"
    unused, devices, figures = browse(render(idle), tmp_path, script)
    assert unused == 3 * 12
    assert "not used" in devices
    assert "NaN" not in devices + figures


def test_a_training_step_shows_backward_passes_paler(tmp_path: Path) -> None:
    script = """
        const ops = (kind) => all(`#timeline .span${kind}`).length;
        const back = one('#timeline .back'); back.dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));
        return [ops(''), ops('.back'), one('#tip').innerText, one('#timeline-about').textContent,
            all('.node.op small').map((n) => n.textContent)]"""
    spans, back, tip, about, nodes = browse(render(training_plan()), tmp_path, script)
    assert back >= 4  # two stages, two micro-batches
    assert spans > 2 * back
    assert re.match(r"\dB\d", tip)
    assert "2 operators" in tip
    assert "backward passes paler" in about
    assert nodes[0] == "relu · 3 ms"  # forward and backward


def test_each_span_is_told_however_narrow_it_is(tmp_path: Path) -> None:
    script = """
        const lane = one('#timeline path.span'), box = lane.getBoundingClientRect();
        const clientX = box.left + box.width / 2;
        lane.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX}));
        return [all('#timeline .span').length, one('#tip').innerText]"""
    n_spans, tip = browse(render(chain_plan(["", ""], n_devices=2), micro_batches=500), tmp_path, script)
    assert n_spans == 3  # a path for each lane
    (batch,) = re.findall(r"micro-batch\s+(\d+)", tip)
    assert abs(int(batch) - 250) <= 2


def test_many_broken_constraints_do_not_fill_the_page(tmp_path: Path) -> None:
    plan = chain_plan([""] * 40, n_devices=8)
    full = replace(plan, table=replace(plan.table, capacity_bytes=np.ones(8)))
    shown = browse(render(full), tmp_path, "return all('#reasons .bad').map((line) => line.textContent)")
    assert len(shown) == 4
    assert shown[-1] == "And 5 constraints more."


def test_twenty_thousand_operators_open_collapsed_and_can_be_searched(tmp_path: Path) -> None:
    modules = [f"layers.{i // 40}.{'abcd'[i % 40 // 10]}" for i in range(20_000)]
    script = """
        const first = Number(document.body.dataset.nodes);
        one('#query').value = 'op12345'; one('#query').dispatchEvent(new Event('input'));
        one('#find').requestSubmit();
        const found = all('.node.hit b').map((n) => n.textContent);
        one('[data-do=expand]').click();
        return [first, found, Number(document.body.dataset.nodes), one('#graph').dataset.lod]"""
    page = render(chain_plan(modules, n_devices=16), micro_batches=2)
    first, found, every, detail = browse(page, tmp_path, script)
    assert first <= 160
    assert found == ["op12345"]
    assert (every, detail) == (20_000 + 2, "map")
