"""The choice of rewrites for a plan."""

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
"""The rewrites that a plan may have; copies are placements of the same graph, which the search makes."""


def check_rewrites(asked: str) -> None:
    """Check the name of a choice: "auto", "none", or names of rewrites separated by commas.

    Raises:
        InputError: for another name.
    """
    for name in [asked] if asked in (AUTO_REWRITES, NO_REWRITES) else asked.split(","):
        checks.one_of(name, "the rewrite", NAMES if "," in asked else (AUTO_REWRITES, NO_REWRITES, *NAMES))


def allows(asked: str, name: str) -> bool:
    """Return whether a choice includes a rewrite."""
    return asked == AUTO_REWRITES or name in asked.split(",")


def stay_as_imported(asked: str, name: str, error: Exception) -> None:
    """Warn that a rewrite failed and the network stays as it is; raise the error if the user named the rewrite."""
    if asked != AUTO_REWRITES:
        raise error
    warn_once(f"the rewrite '{name}'", error, "the network stays as it was imported")


def rewrites_for(asked: str, graph: Graph, devices: Sequence[Device], trains: bool) -> tuple[Rewrite, ...]:
    """Return the rewrites of a graph for some devices; those that change nothing are left out.

    "auto" fuses the operators of one kernel for inference if all devices are CPUs with quick kernels: other devices
    would run the members one after another.

    Raises:
        InputError: if the user names a rewrite that the devices or training do not support.
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
