import shutil

import pytest

from planner.view.dot import dot_text
from tests.children import ran
from tests.planner.view.samples import fork_graph, fork_plan, random_plan

FORK = """\
digraph "fork" {
  rankdir=LR;
  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica"];
  edge [color="#98a2af", fontname="Helvetica"];
  subgraph cluster_0 {
    label="cpu0: 10 ms for each micro-batch";
    color="#0072b2"; penwidth=3; fontname="Helvetica";
    o0 [label="conv\\naten.conv2d.default\\n4 ms"];
    o1 [label="relu\\naten.relu.default\\n1 ms"];
    o3 [label="right\\nmylib.twist.default\\n2 ms"];
    o4 [label="cat\\naten.cat.default\\n1 ms"];
    o5 [label="head\\naten.linear.default\\n2 ms"];
  }
  subgraph cluster_1 {
    label="cpu1: 3 ms for each micro-batch";
    color="#e69f00"; penwidth=3; fontname="Helvetica";
    o2 [label="left\\naten.conv2d.default\\n3 ms"];
  }
  o0 -> o1;
  o1 -> o2 [color="#15181d", penwidth=3, label="1 KiB\\n2.02 ms"];
  o1 -> o3;
  o2 -> o4 [color="#15181d", penwidth=3, label="1 KiB\\n2.02 ms"];
  o3 -> o4;
  o4 -> o5;
}
"""


def test_a_cluster_for_each_device_and_heavy_edges_between_them() -> None:
    assert dot_text(fork_plan()) == FORK


def test_names_are_quoted() -> None:
    name = 'a "b" \\ c\nd'
    shown = dot_text(fork_plan(fork_graph(name, first=name)))
    assert 'digraph "a \\"b\\" \\\\ c\\\\nd" {' in shown
    assert 'o0 [label="a \\"b\\" \\\\ c\\\\nd\\naten.conv2d.default' in shown


@pytest.mark.skipif(shutil.which("dot") is None, reason="no Graphviz on the path")
def test_graphviz_reads_it() -> None:
    plan = random_plan(0, n_ops=40, n_devices=3)
    done = ran(["dot", "-Tplain"], input=dot_text(plan))
    words = [line.split()[0] for line in done.stdout.splitlines()]
    edges = sum(len(flow.readers) for flow in plan.table.flows)
    assert (words.count("node"), words.count("edge"), done.stderr) == (40, edges, "")
