"""What ``planner explain`` and ``planner diff`` print, to the letter."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.units import format_rate
from costmodels.workload import Workload
from planner.cli import main
from planner.cli.text import WIDTH, aligned, change, clipped, count, first_items, relative, short, unbroken, wrapped
from planner.plans.files import save_plan
from planner.plans.plan import Plan
from planner.problem.constraints import forbid
from planner.problem.problem import Goal
from tests.children import ran
from tests.planner.cli.given import ROOT
from tests.planner.explanations.small import DIAMOND, diamond, make_graph, make_plan, trained


def said(capsys: pytest.CaptureFixture[str], command: str, *plans: Plan, options: str = "") -> str:
    """What a command prints of these plans; there is only progress on stderr and no line is too long."""
    names = [f"{letter}.json" for letter in "ab"[: len(plans)]]
    for plan, name in zip(plans, names, strict=True):
        save_plan(plan, Path(name))
    assert main([command, *names, *options.split()]) == 0
    captured = capsys.readouterr()
    assert captured.err in ("", "planning again …\n")
    assert all(len(line) <= WIDTH for line in captured.out.splitlines())
    return captured.out


@pytest.mark.attack("process")
def test_ctrl_c_keeps_the_explanation_until_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.explanations.what_if.replan", stop)
    save_plan(diamond(), Path("a.json"))
    assert main(["explain", "a.json"]) == 130
    captured = capsys.readouterr()
    assert captured.err.endswith("planner: interrupted: what would help is shown as far as it was planned again\n")
    assert "Bottleneck" in captured.out
    assert "How good it is" in captured.out
    assert "planned again" not in captured.out


THROUGHPUT = """\
net on desk, for throughput: 6 s for each micro-batch of 1
  1 × one device: cpu0 alone takes 10 s.
  Streaming with 1 in flight, the simulator sees one leave every 10 s: what is busiest stands still
  40% of the time and waits for the others. One alone takes 10 s.

Bottleneck: the device cpu0, 6 s for each micro-batch, of which
  50.0%  3 s  block.left  1 operator
  33.3%  2 s  stem        1 operator
  16.7%  1 s  head        1 operator

Devices
  cpu0: 6 s for each micro-batch, 60.0% of all load; 3 operators; 5 B of 100 B memory
      stem, block.left, head
  cpu1: 4 s for each micro-batch, 40.0% of all load; 1 operator; 5 B of 100 B memory
      block.right
  cpu2: not used

Cuts: 2 transfers for each micro-batch, 3 B, 3 s on links
  None is part of the bottleneck; they go on while devices compute (hidden).
                                       change if the other side took
  tensor  from → to    bytes  time  effect  its writer  first reader
  a       cpu0 → cpu1    2 B   2 s  hidden        same          +4 s
      a in stem → c in block.right
  c       cpu1 → cpu0    1 B   1 s  hidden        +4 s          −1 s
      c in block.right → d in head
  Of the 4 moves tried, d to cpu1 is best: −1 s. The search did not find that.

What would help
  Searched again, a plan of 9 s was found, not 10 s. What is planned again starts from it.
                                     now    then
  one more device like cpu0          9 s     9 s    same  planned again
      no plan would be below 2.5 s
  links of twice the bandwidth       9 s     8 s  −11.1%  planned again
  transfers that cost nothing        6 s     6 s    same  this placement, judged again
  2 micro-batches in flight, not 1  10 s  5.75 s  −42.5%  this placement, simulated
      5 B more on each device

How good it is
  A plan could be 44.44% better at most: none is below 3.33 s for these 4 operators in any number of
  copies, for all operators take that long even if divided at will with free transfers. Found by
  chain-dp (feasible).
  80 % of runs should take 8.77 s – 11.4 s for each micro-batch of 1: runs differ by 10%, of which
  10% is the machine's pace, 0% costs that were not measured, and 2% what the simulation leaves out.
  The operators' time is 100.0% estimated from peaks, mostly aten.relu 100.0%.
  `planner calibrate MODEL` measures operators.
"""

LATENCY = """\
net on desk, for latency: 10 s for one micro-batch of 1
  1 × one device: cpu0 alone takes 10 s.
  Streaming with 4 in flight, the simulator sees one leave every 6 s.

Critical path: 10 s without a gap on cpu0, cpu1, of which
  40.0%  4 s  block.right            1 operator
  30.0%  3 s  sending and receiving
  20.0%  2 s  stem                   1 operator
  10.0%  1 s  head                   1 operator

  start  takes  waited  where        what
    0 s    2 s          cpu0         stem
    2 s    2 s          cpu0 → cpu1  a is sent
    4 s    4 s     4 s  cpu1         block.right
    8 s    1 s          cpu1 → cpu0  c is sent
    9 s    1 s     4 s  cpu0         head
  waited: how long the device stood still before, or the tensor lay there before it was sent
"""

DIFF = """\
net: a.json → b.json
                                        before               after
  a micro-batch, streaming                10 s                 9 s  −10.0%
  a micro-batch, alone                    10 s                 9 s  −10.0%
  objective                                6 s                 5 s  −16.7%
  no plan is below                         5 s                 5 s    same
  gap                                   16.67%               0.00%
  found by                  by hand (feasible)  by hand (feasible)

Moved: 1 of 4 operators
  cpu0 → cpu1: 1 operator, 1 s of work there, 1 s now
      head

Cuts: 2 → 2 transfers, 3 B → 3 B for each micro-batch
  gone  c  cpu1 → cpu0  1 B
  new   b  cpu0 → cpu1  1 B
  1 as before
"""

ANOTHER_GOAL = """\
  objective                                6 s                 9 s
  no plan is below                         5 s                 6 s
  gap                                   16.67%              33.33%
  found by                  by hand (feasible)  by hand (feasible)
  costs measured                          0.0%               55.6%

Asked for and given
  goal                             throughput  →  latency
  devices compute while they send         yes  →  no

Costs
  1 operator on cpu0: 2 s → 1 s (−50.0%)
  1 operator on cpu1: 2 s → 1 s (−50.0%)

Every operator is on the same device, and they run in the same order

Cuts: the same 2 transfers, 3 B for each micro-batch
"""


class TestExplain:
    def test_one_operator_on_every_device(self, capsys: pytest.CaptureFixture[str]) -> None:
        plan = replace(diamond(n_devices=3, bound_s=3.0), constraints=(forbid("c", "cpu2"),))
        save_plan(plan, Path("a.json"))
        assert main(["explain", "a.json", "--op", "c"]) == 0
        assert capsys.readouterr().out == (
            "c in block.right, aten.relu.default: on cpu1\n"
            "  device  takes  the plan then  change\n"
            "  cpu0      4 s           10 s  +66.7%\n"
            "  cpu1      4 s            6 s    same  the plan has it here\n"
            "  cpu2      4 s                         a constraint: forbid c on cpu2\n"
        )
        assert main(["explain", "a.json", "--op", "cc"]) == 2
        assert "the operator is 'cc'" in capsys.readouterr().err

    def test_throughput(self, capsys: pytest.CaptureFixture[str]) -> None:
        plan = diamond(
            n_devices=3,
            in_flight=1,
            memory_bytes=100.0,
            bound_s=10 / 3,
            solver="chain-dp",
            source=[["roofline"] * 3] * 4,
        )
        assert said(capsys, "explain", plan) == THROUGHPUT

    def test_latency(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown = said(capsys, "explain", diamond(Goal.LATENCY))
        assert shown.startswith(LATENCY)
        assert "  All are part of the critical path (limits).\n" in shown
        assert "  The operators' time is 100.0% given.\n" in shown

    def test_one_device(self, capsys: pytest.CaptureFixture[str]) -> None:
        plan = diamond(Goal.LATENCY, "0000", n_devices=2, bound_s=10.0, status="optimal", solver="exhaustive")
        shown = said(capsys, "explain", plan)
        assert "  All of it runs on one device.\n" in shown
        assert "\nCuts: none, nothing is sent between devices\n" in shown
        assert "waited" not in shown  # the path is one leg
        told = (
            "  No plan is better: none is below 10 s for these 4 operators, which the search has proved. Found by\n"
            "  exhaustive (optimal).\n"
        )
        assert told in shown

    def test_a_link_that_limits(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown = said(capsys, "explain", make_plan(DIAMOND, (0, 0, 0, 0), "0011", bound_s=0.0))
        assert "Bottleneck: the link cpu0 → cpu1, 3 s for each micro-batch, of which\n  66.7%  2 s  a\n" in shown
        assert "  All are part of the bottleneck (limits).\n" in shown

    def test_hand_over_and_slack(self, capsys: pytest.CaptureFixture[str]) -> None:
        plan = make_plan(DIAMOND, (2, 30, 4, 1), "0012", overlap=False, overhead_s=0.5)
        shown = said(capsys, "explain", plan)
        assert "Cuts: 3 transfers for each micro-batch, 4 B, 4 s on links, 3 s of overhead\n" in shown
        assert (
            "  Part of the bottleneck (limits): 2 of 3; the others occupy devices that have time to spare\n  (slack).\n"
        ) in shown

    def test_moves_that_cannot_be(self, capsys: pytest.CaptureFixture[str]) -> None:
        # a, b, c: x is gone when b and c are written, 4 bytes at once; 10 bytes of each parameter
        graph = make_graph(
            {"a": "m", "b": "m", "c": "m"}, {"b": "a", "c": "a"}, {"a": 2}, {"a": "p", "b": "q", "c": "q"}
        )
        plan = make_plan(graph, [[1, float("inf")], [1, 1], [1, 1]], "011", in_flight=1, memory_bytes=15.0)
        shown = said(capsys, "explain", plan)
        row = "  a       cpu0 → cpu1    2 B   2 s  hidden  cannot run       no room\n"
        assert f"{row}      a in m → b in m and 1 more; b takes 1 more along\n" in shown
        assert "  Of the 2 moves tried, none is possible.\n" in shown
        assert "  No device alone could run and hold all of it.\n" in shown

    def test_good_borders(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown = said(capsys, "explain", diamond(placed="0011"))
        assert "  Of the 4 moves tried, none is better: these borders are where they cost least.\n" in shown

    def test_only_so_many_of_everything(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Twenty operators in turns on two devices: 19 cuts, 20 + 19 legs, 20 + 1 parts."""
        graph = make_graph(
            {f"op{i}": f"module{i}.inside" for i in range(20)}, {f"op{i}": f"op{i - 1}" for i in range(1, 20)}
        )
        plan = make_plan(graph, range(1, 21), "01" * 10, Goal.LATENCY)
        shown = said(capsys, "explain", plan, options="--cuts 3").splitlines()
        # of 210 + 19 s the five last operators and the transfers are shown: 20 + 19 + 18 + 17 + 16 + 19
        assert "  52.4%  120 s  15 more                15 operators" in shown
        # the twelve longest legs are operators 8 to 19, of 9 to 20 s; left are 1 + ... + 8 and 19 transfers of 1 s
        assert "  … and 27 shorter legs between these, 55 s in all" in shown
        assert sum("module" in line and "→" in line for line in shown) == 3
        assert "  … and 16 more, not tried (--cuts 19 shows and tries all)" in shown

    def test_more_regions_than_a_person_reads(self, capsys: pytest.CaptureFixture[str]) -> None:
        graph = make_graph({f"op{i}": f"module{i}" for i in range(30)}, {})
        shown = said(capsys, "explain", make_plan(graph, (1,) * 30, "01" * 15))
        assert "module20, module22 and 3 more\n" in shown

    def test_names_that_are_too_long(self, capsys: pytest.CaptureFixture[str]) -> None:
        graph = make_graph({"a" * 60: "b" * 60, "c" * 60: "d" * 60}, {"c" * 60: "a" * 60})
        shown = said(capsys, "explain", make_plan(graph, (1, 1), "01"))
        assert "  aaaaaaaaaaa…aaaaaaaaaa  cpu0 → cpu1    1 B   1 s  hidden        +1 s          +1 s\n" in shown
        assert f"      {'a' * 60} in {'b' * 29}…\n" in shown

    def test_json_has_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        document = json.loads(said(capsys, "explain", diamond(), options="--json --cuts 1"))
        assert document["bottleneck"]["parts"][0] == {
            "name": "block.left",
            "seconds": 3.0,
            "share": 0.5,
            "n_ops": 1,
            "alike": 1,
        }
        assert [len(cut["moves"]) for cut in document["cuts"]] == [2, 0]
        assert document["sources"] == {"given": 1.0}
        assert document["goal"] == "throughput"

    def test_no_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["explain", "none.json"]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err == ("planner: cannot read the plan 'none.json': No such file or directory; check the path\n")


class TestDiff:
    def test_a_move(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert said(capsys, "diff", diamond(in_flight=1), diamond(placed="0011", in_flight=1)) == DIFF

    def test_steps_of_training(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A step is no micro-batch; of different numbers of micro-batches, samples tell which plan is faster."""
        few, many = trained("abcdef", micro_batches=4), trained("abcdef", micro_batches=16)
        shown = said(capsys, "diff", few, many)
        assert "  a micro-batch, streaming " in shown
        assert "  one step " in shown
        assert "alone" not in shown
        rates = format_rate(few.samples_per_s), format_rate(many.samples_per_s)
        (row,) = (line for line in shown.splitlines() if line.startswith("  samples/s"))
        assert row.split()[1:3] == list(rates)
        shown = said(capsys, "diff", replace(few, goal=Goal.THROUGHPUT, workload=Workload()), few)
        assert "one step" not in shown  # nor is one compared with a micro-batch
        assert "alone" not in shown
        assert "  samples/s" in shown

    def test_a_small_difference_is_not_sure(self, capsys: pytest.CaptureFixture[str]) -> None:
        before, after = (make_plan(DIAMOND, (1, 3, seconds, 1), "0011") for seconds in (4.0, 4.1))
        assert "\n  Predictions are not sure enough to tell which of both is faster.\n" in said(
            capsys, "diff", before, after
        )

    def test_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert said(capsys, "diff", diamond(), diamond()) == "net: a.json → b.json\n  The plans are the same.\n"

    def test_the_order_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown = said(capsys, "diff", diamond(Goal.LATENCY), diamond(Goal.LATENCY, order=(0, 2, 1, 3)))
        assert "\nEvery operator is on the same device, but they run in another order\n" in shown
        assert "\nCuts: the same 2 transfers, 3 B for each micro-batch\n" in shown

    def test_another_goal_and_other_costs(self, capsys: pytest.CaptureFixture[str]) -> None:
        # 9 s where operators are; measured were a on cpu0, 1 s, and c on cpu1, 4 s: 5 of 9
        source = [["measured", "given"], ["given", "given"], ["measured", "measured"], ["given", "given"]]
        fields: dict[str, Any] = {"in_flight": 1, "bound_s": 6.0}
        after = make_plan(DIAMOND, (1, 3, 4, 1), "0010", Goal.LATENCY, overlap=False, source=source, **fields)
        shown = said(capsys, "diff", diamond(in_flight=1), after)
        assert shown.endswith(ANOTHER_GOAL)

    def test_only_so_many_cuts_and_changes(self, capsys: pytest.CaptureFixture[str]) -> None:
        """a goes to nine other devices; ten kinds are new, and ten overhead."""
        graph = make_graph(dict.fromkeys("abcdefghij", "m"), dict.fromkeys("bcdefghij", "a"))
        before = make_plan(graph, (1,) * 10, "0000000000", n_devices=10)
        shown = said(capsys, "diff", before, make_plan(graph, (1,) * 10, "0123456789"))
        assert "  new  a       cpu0 → cpu6  1 B\n  new  3 more               3 B\n" in shown
        assert "as before" not in shown
        fast = make_plan(graph, (1,) * 10, "0000000000", n_devices=10, overhead_s=1.0, kinds=("fast",) * 10)
        shown = said(capsys, "diff", before, fast)
        assert "  device cpu5: overhead   0 s  →  1 s\n  … and 8 more\n" in shown

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        after = make_plan(DIAMOND, ((2, float("inf")), 3, 4, 1), "0010")
        document = json.loads(said(capsys, "diff", diamond(), after, options="--json"))
        assert document["costs"] == [{"device": "cpu1", "n_ops": 1, "before_s": 2.0, "after_s": None}]
        assert (document["same"], document["same_placement"]) == (False, True)
        assert document["cuts"]["n_kept"] == 2

    def test_different_networks(self, capsys: pytest.CaptureFixture[str]) -> None:
        save_plan(diamond(), Path("a.json"))
        save_plan(make_plan(make_graph({"a": "m"}, {}), (1,), "0"), Path("b.json"))
        assert main(["diff", "a.json", "b.json"]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith("planner: the plans are for different networks, 'net' (fingerprint ")


def test_they_have_no_need_of_torch(tmp_path: Path) -> None:
    save_plan(diamond(), tmp_path / "plan.json")
    path = str(tmp_path / "plan.json")
    code = f"""
import sys
from planner.cli import main
assert main(["explain", {path!r}]) == main(["diff", {path!r}, {path!r}]) == 0
assert not {{"torch", "onnx", "transformers"}} & sys.modules.keys()
"""
    ran([sys.executable, "-c", code], cwd=ROOT)


class TestText:
    def test_columns(self) -> None:
        assert list(aligned([("a", "1", "x"), ("bcd", "22", "")], "<><")) == ["  a     1  x", "  bcd  22"]
        (line,) = aligned([("a" * 200,)], "<")
        assert (len(line), line[-1]) == (WIDTH, "…")

    def test_lines(self) -> None:
        assert wrapped(f"{'a' * 60} {'b' * 60}") == ["  " + "a" * 60, "  " + "b" * 60]
        assert wrapped(f"{'a' * 80} {unbroken('b b b b b b b b b b b')}") == [
            "  " + "a" * 80,
            "  b b b b b b b b b b b",
        ]
        assert clipped("a" * 101) == "a" * 99 + "…"
        assert clipped("a" * 100) == "a" * 100
        assert (short("abcdefgh", 7), short("abcdefgh", 6), short("abcdefg", 7)) == ("abc…fgh", "abc…gh", "abcdefg")

    def test_lists(self) -> None:
        assert first_items("abc", 3) == "a, b, c"
        assert first_items("abc", 1) == "a and 2 more"
        assert (count(1, "cut"), count(1000, "cut")) == ("1 cut", "1,000 cuts")

    def test_changes(self) -> None:
        assert [change(2.0, after_s) for after_s in (2.0, 3.5, 1.999)] == ["same", "+1.5 s", "−1 ms"]
        assert [relative(2.0, after) for after in (2.0, 3.5, 1.9, 2.0001)] == ["same", "+75.0%", "−5.0%", "same"]
        assert (relative(0.0, 0.0), relative(0.0, 1.0)) == ("same", "+∞")
