"""The choice of rewrites for a plan."""

from collections.abc import Sequence

from costmodels.cluster.cluster import Device
from graphs.common import checks
from graphs.common.errors import InputError, warn_once
from graphs.ir import Graph
from graphs.rewrites.fuse import SCAN, Fuse, find_fusions
from graphs.rewrites.rewrite import REWRITES, Rewrite, rewritten
from graphs.rewrites.scans import find_scans

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

    "auto" makes each recurrent scan one operator, which changes no bits, and fuses the operators of one kernel for
    inference if all devices are CPUs with quick kernels: other devices would run the members one after another.

    Raises:
        InputError: if the user names a rewrite that the devices or training do not support.
    """
    if not allows(asked, FUSE) or (asked == AUTO_REWRITES and trains):
        return ()
    if trains:
        raise InputError("the rewrite 'fuse' is for inference, and the goal is training; leave --rewrites out")
    found: list[Rewrite] = []
    try:
        if scans := find_scans(graph):
            found.append(Fuse(scans, SCAN))
        if not (exact := [device.name for device in devices if not device.quick]):
            fusions = find_fusions(rewritten(graph, found))
            found += [fusions] if fusions.groups else []
        rewritten(graph, found)
    except Exception as error:  # whatever the graph has that nobody thought of
        stay_as_imported(asked, FUSE, error)
        return ()
    if exact and not found and asked != AUTO_REWRITES:
        raise InputError(
            f"the rewrite 'fuse' is for CPUs with quick kernels, and '{exact[0]}' has none; calibrate with "
            "--kernels quick, or leave --rewrites out"
        )
    if asked == FUSE and not found:
        raise InputError(
            f"the rewrite 'fuse' changes nothing: no kernel computes several operators of '{graph.name}' at once; "
            "leave it out"
        )
    return tuple(found)
