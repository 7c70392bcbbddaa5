"""Today's pace: what is said before a plan is made, and of which machines nothing can be said."""

from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.calibrate.pace import PaceMeter
from costmodels.cluster.cluster import Cluster
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.measured import Profile
from costmodels.operators.pace import PACE_NAMES
from costmodels.profile_cache import cache_folder
from costmodels.profilefile import add_profile
from planner.planning.todays_pace import unusual_pace
from tests.costmodels.calibrate.hosts import device

USUAL: dict[str, float] = {str(kind): 1.0 for kind in PACE_NAMES}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """This host, on which every reference computation usually takes a second, and 1.1 s in some moments."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path))
    here = machine_of(device())
    seconds = dict(USUAL)
    profile = Profile(fingerprint_of(here), here, {}, pace=seconds, moments={1: seconds, 2: seconds})
    add_profile(cache_folder(), profile)
    return Cluster("here", (replace(device(), profile=profile.fingerprint),))


def measuring(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
    monkeypatch.setattr(PaceMeter, "sample", lambda _: None)
    monkeypatch.setattr(PaceMeter, "figures", {**USUAL, **seconds})


@pytest.mark.parametrize(
    ("now", "unusual"),
    [
        ({}, {}),
        ({"computing": 0.95, "memory": 1.05}, {}),
        ({"computing": 1.5, "memory": 0.5}, {"computing": 1.5, "streaming": 0.75}),
    ],
)
def test_what_is_seldom_so_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, now: dict[str, float], unusual: dict[str, float]
) -> None:
    measuring(monkeypatch, now)
    assert unusual_pace(cluster) == unusual


@pytest.mark.parametrize("profile", ["", "elsewhere"])
def test_nothing_is_told_of_devices_that_were_not_measured_here(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    measuring(monkeypatch, {"computing": 9.0})
    (here,) = cluster.devices
    assert unusual_pace(replace(cluster, devices=(replace(here, profile=profile),))) == {}


def test_nothing_is_told_of_devices_that_are_not_here(cluster: Cluster) -> None:
    (here,) = cluster.devices
    assert unusual_pace(replace(cluster, devices=(replace(here, cores=(4096,)),))) == {}
