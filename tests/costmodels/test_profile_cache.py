"""Where measurements are kept, and what is found of a cluster's devices."""

from pathlib import Path

import pytest

from costmodels.cluster.cluster import Cluster, Device
from costmodels.measured import Measurement, Profile
from costmodels.profile_cache import cache_folder, cached_profiles, learned_costs
from costmodels.profilefile import write_profile


def test_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("PLANNER_CACHE", raising=False)
    assert cache_folder() == Path("/x/placement-planner")
    monkeypatch.setenv("PLANNER_CACHE", "/y")
    assert cache_folder() == Path("/y")


def test_profiles_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path))
    profile = Profile("abc", {}, {"k": Measurement(1.0, 0.0, 1)})
    write_profile(tmp_path, profile)
    devices = [
        Device(f"d{i}", "cpu", 1, {"float32": 1.0}, 1.0, profile=name) for i, name in enumerate(("", "abc", "def"))
    ]
    assert cached_profiles(Cluster("three", tuple(devices))) == {"abc": profile}


def test_nothing_is_learned_without_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path))
    write_profile(tmp_path, Profile("abc", {}, {"k": Measurement(1.0, 0.0, 1)}))
    assert learned_costs("abc") is None
