"""The pictures of the documentation: plans on paper, drawn by the planner, and the rooms of the source."""

from collections.abc import Callable, Mapping
from pathlib import Path

import planner
from examples.networks import googlenet
from planner.view.picture import svg_picture
from tests.docs.pages import ROOT
from tests.docs.rooms import rooms_picture


def _googlenet() -> str:
    cores = tuple(
        planner.Device(name, "core", memory_bytes=8 * 2**30, flops_per_s={"float32": 100e9}, memory_bytes_per_s=20e9)
        for name in ("core0", "core1")
    )
    links = tuple(planner.Link(a.name, b.name, float("inf"), 25e-6) for a in cores for b in cores if a is not b)
    return svg_picture(
        planner.plan(
            *googlenet(), cluster=planner.Cluster("two cores", cores, links), search=planner.Search(rewrites="none")
        )
    )


PICTURES: Mapping[Path, Callable[[], str]] = {
    ROOT / "docs/pictures/googlenet.svg": _googlenet,
    ROOT / "docs/pictures/rooms.svg": rooms_picture,
}
"""How each is made."""
