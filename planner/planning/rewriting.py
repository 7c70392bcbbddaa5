"""The choice of rewrites for a plan."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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


@contextmanager
def optional(asked: str, name: str) -> Iterator[None]:
    """Try a rewrite; where that fails, warn that the network stays as it is, unless the user named the rewrite."""
    try:
        yield
    except Exception as error:  # of whatever kind: a plan without the rewrite is right, and the warning says why
        if asked != AUTO_REWRITES:
            raise
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
    exact = [device.name for device in devices if not device.quick]
    found: tuple[Rewrite, ...] = ()
    with optional(asked, FUSE):
        found = _fusions(graph, quick=not exact)
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
    return found


def _fusions(graph: Graph, quick: bool) -> tuple[Rewrite, ...]:
    """Return the fusions of a graph, for quick kernels or without; raise InputError if one does not fit."""
    found: list[Rewrite] = []
    if scans := find_scans(graph):
        found.append(Fuse(scans, SCAN))
    if quick and (fusions := find_fusions(rewritten(graph, found))).groups:
        found.append(fusions)
    rewritten(graph, found)
    return tuple(found)
