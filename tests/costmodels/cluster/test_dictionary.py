"""The cluster inside plan.json."""

import json
from typing import Any

import pytest
from hypothesis import given

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.dictionary import cluster_from_dict, cluster_to_dict
from graphs.common.errors import InputError
from tests.costmodels.desks import CPU0, DOWN, GPU, UP, clusters


@given(cluster=clusters())
def test_a_dictionary_comes_back_through_standard_json(cluster: Cluster) -> None:
    text = json.dumps(cluster_to_dict(cluster), allow_nan=False)
    assert cluster_from_dict(json.loads(text)) == cluster


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "the cluster has the version 2, this planner reads 1; make the plan again"),
        (
            {"links": [["cpu0"]]},
            "the cluster is damaged: ValueError('not enough values to unpack (expected at least 5, got 1)')",
        ),
        ({"devices": [{}]}, "the cluster is damaged: KeyError('cores'); make the plan again"),
        ({"devices": []}, "cluster 'desk' has no device; add a [[device]]"),
    ],
)
def test_a_damaged_dictionary_is_refused(change: dict[str, Any], message: str) -> None:
    document = cluster_to_dict(Cluster("desk", (CPU0, GPU), (UP, DOWN))) | change
    with pytest.raises(InputError) as error:
        cluster_from_dict(document)
    assert str(error.value).startswith(message)
