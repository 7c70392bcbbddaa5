"""The cache: measured and learned costs of devices, as files in a folder of the user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from costmodels.cluster.cluster import Cluster, Device
from costmodels.correction import Correction
from costmodels.measured import Profile, moment_now
from costmodels.operators.pace import Paces, mean_pace
from costmodels.profilefile import read_profile, write_profile
from costmodels.table import CostTable

if TYPE_CHECKING:  # scipy takes a third of a second to load
    from costmodels.learning.learned import LearnedModel


def cache_folder() -> Path:
    """The folder of the cache: ``$PLANNER_CACHE``, or a folder in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("PLANNER_CACHE") or home / "placement-planner")


def cached_profiles(cluster: Cluster) -> Mapping[str, Profile]:
    """Fingerprint → profile with the measurements of a device, for the devices of a cluster that have one."""
    fingerprints = sorted({device.profile for device in cluster.devices if device.profile})
    profiles = ((name, read_profile(cache_folder(), name)) for name in fingerprints)
    return {name: profile for name, profile in profiles if profile is not None}


def add_moment(device: Device, paces: Paces) -> None:
    """Keep the mean pace of a device now, by which later plans know its usual pace; nothing without a profile or paces.

    Raises:
        InputError: if the cache is damaged or cannot be written.
    """
    profile = read_profile(cache_folder(), device.profile) if device.profile and paces else None
    if profile is not None and profile.pace:
        write_profile(cache_folder(), profile.updated(replace(profile, moments={moment_now(): mean_pace(paces)})))


def correct_profiles(cluster: Cluster, table: CostTable, correction: Correction, training: bool) -> None:
    """Correct the measurements of the devices of a cluster in the cache, from which its table was made.

    Raises:
        InputError: if the cache is damaged or cannot be written.
    """
    named = [device.profile for device in cluster.devices]
    for fingerprint, profile in cached_profiles(cluster).items():
        group = int(table.contention_group[named.index(fingerprint)])
        write_profile(cache_folder(), correction.profile(profile, group, named.count(fingerprint), training))


def learned_costs(fingerprint: str) -> LearnedModel | None:
    """The learned costs of a kind of device, by the fingerprint of its profile; None without a sweep."""
    from costmodels.learning.learned import learn

    return learn(cache_folder(), fingerprint)
