"""Today's pace: whether a machine is now as fast as it usually is, before a plan is made from its profile."""

from collections.abc import Mapping
from math import hypot, inf, log

from costmodels.cluster.cluster import Cluster
from costmodels.operators.pace import SAMPLED, PaceKind, kind_spreads, pace_ratios
from costmodels.profile_cache import cached_profiles
from graphs.common.errors import InputError

SAMPLES = 3
SELDOM = 1.96  # standard deviations to either side, between which a normal distribution has 95 %


def unusual_pace(cluster: Cluster) -> Mapping[PaceKind, float]:
    """Return the present times of this host as multiples of the usual ones, for kinds of operators with a rare pace.

    The first device of this host with a profile is measured, in a fifth of a second. It is empty if the host takes as
    long as in 95 % of its moments, or if no device was measured here, or with its pace.

    Args:
        cluster: the devices that a plan is for.
    """
    from costmodels.calibrate.pace import PaceMeter
    from costmodels.host.fingerprint import fingerprint_of, machine_of

    profiles = cached_profiles(cluster)
    for device in cluster.devices:
        profile = profiles.get(device.profile)
        if profile is None or not profile.pace:
            continue
        try:
            if fingerprint_of(machine_of(device)) != device.profile:
                continue
            meter = PaceMeter((device,))
            for _ in range(SAMPLES):
                meter.sample()
        except InputError:  # a device of another host, for which a plan is as good
            continue
        ratios, spreads = pace_ratios(meter.figures, profile.usual_pace), kind_spreads(profile.pace_spread, 1, inf)
        most = {kind: SELDOM * hypot(spread, SAMPLED) for kind, spread in spreads.items()}
        return {kind: ratio for kind, ratio in ratios.items() if abs(log(ratio)) > most[kind]}
    return {}
