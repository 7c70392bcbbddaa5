"""Hybrid networks: what stages take, by hand, and what is said of bad input."""

from typing import Any

import pytest

from graphs.common.errors import InputError
from planner.literature.hybrid_pipeline.network import hybrid_network
from planner.literature.hybrid_pipeline.stages import HybridStage, loads_of, stages_document
from tests.planner.literature.hybrid_pipeline.networks import network


class TestStages:
    def test_two_stages(self) -> None:
        """Two copies of node 0 before node 1, which two devices share; 1 MB between them and 0.5 MB to share it."""
        net = hybrid_network(network([0.04, 0.1], [(0, 1)]))
        first, last = loads_of(net, [HybridStage({0: 0}, 2, 1), HybridStage({1: 1}, 1, 2)])
        sent_s, reduced_s = 2 / 2 * 1e6 / 1e8, 4 * 1 / (2 * 4) * 1e6 / 1e8
        assert first.time_s == pytest.approx(0.02 + sent_s + reduced_s)
        assert last.time_s == pytest.approx(0.1 * 0.6 * 4 / 3 + 2 * 1.5e6 / 1e8)
        assert (first.in_flight, last.in_flight) == (2, 1)  # 3 copies before the end, on 2
        assert first.memory_bytes == pytest.approx(4e6 * 2 + 2e6)
        assert last.memory_bytes == pytest.approx(0.5e6 + 1e6)

    def test_nodes_come_in_a_topological_order(self) -> None:
        net = hybrid_network(network([1.0, 1.0, 1.0], [(2, 0), (0, 1)]))
        assert net.node_ids == (2, 0, 1)
        stage = HybridStage({0: 0, 1: 1}, 1, 1)
        assert stages_document(net, [stage])["stages"][0] == {
            "nodes": [0, 2],
            "dataParallelDegree": 1,
            "tensorParallelDegree": 1,
            "TMPCids": {"0": "recompute", "2": "keep"},
        }


def changed(**fields: Any) -> dict[str, Any]:
    """A network whose node 1 has other fields in its first variant of degree 2."""
    document = network([1.0, 1.0], [(0, 1)])
    document["nodes"][1]["TMPCs"]["2"][0] |= fields
    return document


class TestBadInput:
    @pytest.mark.parametrize(
        ("document", "message"),
        [
            (network([1.0, 1.0], [(0, 1), (1, 0)]), "nodes wait for each other in a circle, among them 0, 1; remove"),
            (network([1.0], [(0, 7)]), "the edge from 0 to 7 names node 7, which does not exist; list it"),
            (network([], []), "there are no nodes; list at least one in nodes"),
            (network([1.0], [], bandwidth=0), "the file has bandwidth = 0; it must be a number above 0"),
            (changed(parameterSize=7.0), "node 1 has variants of one degree that differ in parameterSize, syncTimeFw"),
            (changed(syncTimeFw={}), "syncTimeFw of a variant of degree 2 of node 1 has no 0; add it, a number"),
            (changed(timePerSample="x"), "a variant of degree 2 of node 1 has timePerSample = 'x'; it must be a"),
        ],
    )  # fmt: skip
    def test_it_is_named(self, document: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as error:
            hybrid_network(document)
        assert str(error.value).startswith(message)
