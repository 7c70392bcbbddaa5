"""What was measured on devices, and learned of them: files in a folder of the user's cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from costmodels.cluster import Cluster
from costmodels.measured import Profile
from costmodels.profilefile import read_profile

if TYPE_CHECKING:  # scipy takes a third of a second to load
    from costmodels.learning.learned import Learned


def cache_folder() -> Path:
    """Where it is kept: ``$PLANNER_CACHE``, or a folder of the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("PLANNER_CACHE") or home / "placement-planner")


def cached_profiles(cluster: Cluster) -> Mapping[str, Profile]:
    """What was measured on the devices of a cluster, by the fingerprint of the profile."""
    names = {device.profile for device in cluster.devices if device.profile}
    found = {name: read_profile(cache_folder(), name) for name in sorted(names)}
    return {name: profile for name, profile in found.items() if profile is not None}


def learned_costs(fingerprint: str) -> Learned | None:
    """What was learned of a kind of device, by the fingerprint of its profile; None if it was not swept."""
    from costmodels.learning.learned import learn

    return learn(cache_folder(), fingerprint)
