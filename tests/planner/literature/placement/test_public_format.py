"""The public placement-problem format: what it means, and what is said of a file that means nothing."""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from planner.literature.placement.public_format import problem_from_dict, read_problem
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal
from simulator.placement import Placement

PUBLIC = Path(__file__).parents[3] / ".." / "shared" / "bench" / "msr"


def node(number: int, cpu: float = 8.0, accelerator: float = 2.0, **fields: Any) -> dict[str, Any]:
    known = {"id": number, "supportedOnFpga": 1, "cpuLatency": cpu, "fpgaLatency": accelerator, "isBackwardNode": 0}
    return known | fields


def edge(source: int, dest: int, cost: float = 0.0) -> dict[str, Any]:
    return {"sourceId": source, "destId": dest, "cost": cost}


def diamond(**fields: Any) -> dict[str, Any]:
    """::

    7 ──► 3 ──► 5      7 costs 0.5 ms to move, 3 costs 0.25 ms, 4 costs 0.125 ms
    └──► 4 ─────┘
    """
    known = {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 100.0,
        "nodes": [node(3, size=60), node(4, 9.0, 3.0, size=60), node(5, colorClass=1), node(7, 1.0, 1.0, colorClass=1)],
        "edges": [edge(7, 3, 0.5), edge(7, 4, 0.5), edge(3, 5, 0.25), edge(4, 5, 0.125)],
    }
    return known | fields


class TestMeaning:
    def test_nodes_come_in_a_topological_order_whatever_the_file_has(self) -> None:
        found = problem_from_dict(diamond(), Goal.THROUGHPUT)
        assert found.node_ids == (7, 3, 4, 5)
        assert found.problem.table.ops == ("7", "3", "4", "5")
        mixed = problem_from_dict(diamond(nodes=diamond()["nodes"][::-1]), Goal.THROUGHPUT)
        assert mixed.node_ids == found.node_ids

    def test_times_are_seconds(self) -> None:
        table = problem_from_dict(diamond(), Goal.THROUGHPUT).problem.table
        np.testing.assert_allclose(table.forward_s * 1e3, [[1, 1, 1], [2, 2, 8], [3, 3, 9], [2, 2, 8]])

    def test_a_load_is_computing_and_each_tensor_once(self) -> None:
        problem = problem_from_dict(diamond(), Goal.THROUGHPUT).problem
        judged = evaluate(problem, Placement((0, 1, 2, 0)))
        # accelerator 0: 7 and 5 take 1 + 2, 7 is stored once for two readers 0.5, 3 and 4 are fetched 0.25 + 0.125
        # accelerator 1: 3 takes 2, fetches 7 for 0.5 and stores 3 for 0.25; the CPU pays no transfer: 4 takes 9
        np.testing.assert_allclose(judged.load_s * 1e3, [3.875, 2.75, 9.0])
        assert judged.feasible

    def test_memory_binds_on_accelerators_only(self) -> None:
        problem = problem_from_dict(diamond(), Goal.THROUGHPUT).problem
        assert evaluate(problem, Placement((0, 0, 0, 0))).violations == ("'accelerator 0' is over by 20 bytes",)
        assert evaluate(problem, Placement((2, 2, 2, 2))).feasible

    def test_a_color_is_one_device(self) -> None:
        problem = problem_from_dict(diamond(), Goal.THROUGHPUT).problem
        assert problem.table.together == ((0, 3),)
        assert not evaluate(problem, Placement((0, 0, 1, 1))).feasible

    def test_what_is_not_supported_stays_away_from_accelerators(self) -> None:
        nodes = [node(0, supportedOnFpga=False), node(1, supportedOnFpga=True)]
        table = problem_from_dict(diamond(nodes=nodes, edges=[]), Goal.THROUGHPUT).problem.table
        assert table.forward_s[0].tolist() == [inf, inf, 0.008]
        assert table.forward_s[1].tolist() == [0.002, 0.002, 0.008]

    def test_contiguous_is_asked_of_forward_nodes(self) -> None:
        nodes = [node(0), node(1, isBackwardNode=1), node(2, isBackwardNode=False)]
        document = diamond(nodes=nodes, edges=[edge(0, 2), edge(2, 1)])
        assert problem_from_dict(document, Goal.THROUGHPUT).problem.contiguous == frozenset()
        assert problem_from_dict(document, Goal.THROUGHPUT, contiguous=True).problem.contiguous == {0, 1}

    def test_for_latency_all_cpus_are_one_device(self) -> None:
        found = problem_from_dict(diamond(maxCPUs=8), Goal.LATENCY)
        assert found.problem.table.devices == ("accelerator 0", "accelerator 1", "CPU 2")
        assert evaluate(found.problem, Placement((2, 2, 2, 2))).objective_s == pytest.approx(0.001 + 0.009 + 0.008)
        assert len(problem_from_dict(diamond(maxCPUs=8), Goal.THROUGHPUT).problem.table.devices) == 10
        assert problem_from_dict(diamond(maxCPUs=0), Goal.LATENCY).problem.table.n_devices == 2

    def test_an_assignment_names_nodes_as_the_file_does(self) -> None:
        found = problem_from_dict(diamond(), Goal.THROUGHPUT)
        assignment = found.assignment(Placement((0, 1, 2, 0)))
        assert list(assignment.items()) == [("3", 1), ("4", 2), ("5", 0), ("7", 0)]

    def test_an_edge_that_is_there_twice_is_one(self) -> None:
        document = diamond(edges=[*diamond()["edges"], edge(7, 3, 0.5)])
        assert problem_from_dict(document, Goal.THROUGHPUT).problem.table.flows[0].readers == (1, 2)

    @given(st.permutations(range(4)), st.permutations(range(4)))
    def test_the_order_of_the_file_means_nothing(self, nodes: list[int], edges: list[int]) -> None:
        first, document = diamond(), diamond()
        document["nodes"] = [first["nodes"][i] for i in nodes]
        document["edges"] = [first["edges"][i] for i in edges]
        found, expected = problem_from_dict(document, Goal.THROUGHPUT), problem_from_dict(first, Goal.THROUGHPUT)
        assert found.node_ids == expected.node_ids
        assert (found.problem.table.forward_s == expected.problem.table.forward_s).all()
        assert found.problem.table.flows == expected.problem.table.flows
        assert found.problem.table.together == expected.problem.table.together


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda d: d.pop("maxCPUs"), "the file has no maxCPUs; add it, a whole number"),
            (lambda d: d.update(maxFPGAs=-1), "the file has maxFPGAs = -1; it must be a whole number of 0 or more"),
            (lambda d: d.update(maxFPGAs=1.5), "the file has maxFPGAs = 1.5; it must be a whole number"),
            (
                lambda d: d.update(maxFPGAs=0, maxCPUs=0),
                "there are no devices: maxFPGAs and maxCPUs are both 0; give one of them at least 1",
            ),
            (lambda d: d.pop("maxSizePerFPGA"), "the file has no maxSizePerFPGA; add it, a number of 0 or more"),
            (lambda d: d.update(nodes=[]), "there are no nodes; list at least one in nodes"),
            (lambda d: d.update(nodes={}), "the file has nodes = {}; it must be a list"),
            (lambda d: d.update(nodes=[3]), "node number 1 of the list is 3; it must be an object"),
            (lambda d: d["nodes"][2].pop("id"), "node number 3 of the list has no id; add it, a whole number"),
            (lambda d: d["nodes"][1].update(id=3), "two nodes have the id 3; give each its own"),
            (lambda d: d["nodes"][1].pop("cpuLatency"), "node 4 has no cpuLatency; add it, a number of 0 or more"),
            (
                lambda d: d["nodes"][1].update(fpgaLatency=-2),
                "node 4 has fpgaLatency = -2; it must be a number of 0 or more",
            ),
            (lambda d: d["nodes"][1].update(size="big"), "node 4 has size = 'big'; it must be a number of 0 or more"),
            (
                lambda d: d["nodes"][1].update(supportedOnFpga="yes"),
                "node 4 has supportedOnFpga = 'yes'; it must be true or false",
            ),
            (
                lambda d: d["nodes"][1].update(colorClass=[1]),
                "node 4 has colorClass = [1]; it must be a whole number or a text",
            ),
            (lambda d: d["edges"][0].pop("destId"), "edge number 1 of the list has no destId; add it, a whole number"),
            (
                lambda d: d["edges"][0].update(destId=8),
                "the edge from 7 to 8 names node 8, which does not exist; list it",
            ),
            (
                lambda d: d["edges"][2].update(cost=-1),
                "the edge from 3 to 5 has cost = -1; it must be a number of 0 or more",
            ),
            (
                lambda d: d["edges"][1].update(cost=2),
                "the edges that leave node 7 cost 0.5 and 2; they carry one tensor, "
                "so give them the same cost, or a node to each tensor",
            ),
            (
                lambda d: d["edges"].append(edge(5, 7)),
                "nodes wait for each other in a circle: 3 -> 5 -> 7 -> 3; remove one of these edges",
            ),
            (
                lambda d: d["edges"].append(edge(5, 5)),
                "nodes wait for each other in a circle: 5 -> 5; remove one of these edges",
            ),
            (
                lambda d: d.update(maxCPUs=0, nodes=[node(2, supportedOnFpga=0)], edges=[]),
                "node 2 is not supported on accelerators and maxCPUs is 0; allow a CPU",
            ),
        ],
    )
    def test_bad_input_is_named(self, change: Callable[[dict[str, Any]], object], message: str) -> None:
        document = diamond()
        change(document)
        with pytest.raises(InputError) as caught:
            problem_from_dict(document, Goal.THROUGHPUT)
        assert str(caught.value) == message

    def test_numbers_are_finite(self) -> None:
        with pytest.raises(InputError, match="node 3 has cpuLatency = nan; it must be a number of 0 or more"):
            problem_from_dict(diamond(nodes=[node(3, cpu=float("nan"))], edges=[]), Goal.LATENCY)

    @pytest.mark.attack("file")
    def test_more_devices_than_pairs_can_be_told_of(self) -> None:
        with pytest.raises(InputError, match=r"^maxFPGAs and maxCPUs are 1e\+299 and 1; give at most 4,096 devices$"):
            problem_from_dict(diamond(maxFPGAs=10**299, maxCPUs=10**9), Goal.LATENCY)

    def test_a_long_value_is_cut(self) -> None:
        with pytest.raises(InputError, match=r"^the file has edges = 'x{38}…; it must be a list$"):
            problem_from_dict(diamond(edges="x" * 90), Goal.LATENCY)

    def test_the_file_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        with pytest.raises(InputError, match=r"^cannot read the placement problem '.*p.json': No such file"):
            read_problem(path, Goal.LATENCY)
        path.write_text("{")
        with pytest.raises(InputError, match="is not JSON"):
            read_problem(path, Goal.LATENCY)
        path.write_text(json.dumps(diamond(nodes=[])))
        with pytest.raises(InputError, match=r"p\.json: there are no nodes; list at least one in nodes$"):
            read_problem(path, Goal.LATENCY)


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public problems are not here")
class TestPublicProblems:
    def test_all_of_them_are_read(self) -> None:
        sizes = {}
        for path in sorted(PUBLIC.glob("throughput/*.json")):
            found = read_problem(path, Goal.THROUGHPUT, contiguous=True)
            table = found.problem.table
            sizes[path.stem] = (table.n_ops, len(table.edges), table.n_devices, len(found.problem.contiguous))
        assert sizes["layer-bert24_training"] == (64, 110, 7, 32)
        assert sizes["op-bert_l-6_training"][:3] == (1071, 1462, 4)
        assert len(sizes) == 8

    def test_everything_on_the_cpu_takes_the_sum(self) -> None:
        path = PUBLIC / "throughput" / "op-bert_l-3_training.json"
        problem = read_problem(path, Goal.THROUGHPUT).problem
        total_ms = sum(one["cpuLatency"] for one in json.loads(path.read_text())["nodes"])
        on_cpu = Placement((problem.table.n_devices - 1,) * problem.table.n_ops)
        assert evaluate(problem, on_cpu).objective_s * 1e3 == pytest.approx(total_ms)
