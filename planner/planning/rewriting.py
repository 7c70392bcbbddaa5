"""Which rewrites a plan is made with."""

from collections.abc import Sequence

from costmodels.cluster.cluster import Device
from graphs.common import checks
from graphs.common.errors import InputError, warn_once
from graphs.ir import Graph
from graphs.rewrites.fuse import find_fusions
from graphs.rewrites.rewrite import REWRITES, Rewrite

AUTO_REWRITES, NO_REWRITES = "auto", "none"
COPIES, FUSE, SPLIT = "copies", "fuse", "split"
NAMES = (COPIES, *REWRITES)
"""What a plan may change: copies are placements of the same graph, and whoever searches makes them."""


def check_rewrites(asked: str) -> None:
    """Check the name of a choice: "auto", "none", or names of rewrites with commas between.

    Raises:
        InputError: for another name.
    """
    for name in [asked] if asked in (AUTO_REWRITES, NO_REWRITES) else asked.split(","):
        checks.one_of(name, "the rewrite", NAMES if "," in asked else (AUTO_REWRITES, NO_REWRITES, *NAMES))


def allows(asked: str, name: str) -> bool:
    """Whether a choice has a rewrite among others."""
    return asked == AUTO_REWRITES or name in asked.split(",")


def stay_as_imported(asked: str, name: str, error: Exception) -> None:
    """Warn that a rewrite has failed, and the network stays as it is; raise the error if it was asked for by name."""
    if asked != AUTO_REWRITES:
        raise error
    warn_once(f"the rewrite '{name}'", error, "the network stays as it was imported")


def rewrites_for(asked: str, graph: Graph, devices: Sequence[Device], trains: bool) -> tuple[Rewrite, ...]:
    """The rewrites of a graph for some devices; those that change nothing are left out.

    "auto" fuses what one kernel computes, for inference where all devices are CPUs with quick kernels: others would run
    the members one behind the other.

    Raises:
        InputError: if a rewrite is asked for by its name and does not go with the devices or with training.
    """
    exact = [device.name for device in devices if not device.quick]
    if not allows(asked, FUSE) or (asked == AUTO_REWRITES and (trains or exact)):
        return ()
    if trains:
        raise InputError("the rewrite 'fuse' is for inference, and the goal is training; leave --rewrites out")
    if exact:
        raise InputError(
            f"the rewrite 'fuse' is for CPUs with quick kernels, and '{exact[0]}' has none; calibrate with "
            "--kernels quick, or leave --rewrites out"
        )
    try:
        fusions = find_fusions(graph)
        fusions(graph)
    except Exception as error:  # whatever the graph has that nobody thought of
        stay_as_imported(asked, FUSE, error)
        return ()
    if asked == FUSE and not fusions.groups:
        raise InputError(
            f"the rewrite 'fuse' changes nothing: no kernel computes several operators of '{graph.name}' at once; "
            "leave it out"
        )
    return (fusions,) if fusions.groups else ()
