"""List the devices and links of the catalogue with their sources.

planner devices
planner devices RTX
planner plan examples.networks:googlenet --cluster 2xRTX-4090:PCIe4 --goal throughput
"""

import argparse
from collections.abc import Iterator, Mapping

from costmodels.cluster.catalogue import Entry, catalogue
from costmodels.cluster.one_line import EXAMPLE
from costmodels.cluster.tables import device_of
from costmodels.units import format_bytes_per_s, format_flops_per_s
from graphs.common.errors import InputError, nearest
from planner.cli.console import Console
from planner.cli.statuses import DONE
from planner.cli.text import aligned, wrapped

HEADS = ("device", "memory", "reserve", "bandwidth", "float32", "16 bits")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner devices``."""
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="list only names that contain NAME (all)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the entries."""
    known = {section: catalogue(section) for section in ("device", "link")}
    chosen = {
        section: {name: entry for name, entry in entries.items() if options.name.lower() in name.lower()}
        for section, entries in known.items()
    }
    if not any(chosen.values()):
        near = nearest(options.name, [name for entries in known.values() for name in entries])
        raise InputError(
            f"the catalogue has nothing with '{options.name}' in its name{near or '; `planner devices` lists all'}"
        )
    document = {
        f"{section}s": [{"name": one.name, **one.keys, "source": one.source} for one in entries.values()]
        for section, entries in chosen.items()
    }
    console.tell(document, _lines(chosen["device"], chosen["link"]))
    return DONE


def _lines(devices: Mapping[str, Entry], links: Mapping[str, Entry]) -> Iterator[str]:
    """Yield a row for each entry, with the rest of its data sheet and its source below."""
    link_rows = [(link.name, link.keys["bandwidth"], link.keys["latency"]) for link in links.values()]
    for entries, rows in (
        (devices, [HEADS, *map(_device_row, devices.values())]),
        (links, [("link", "bandwidth", "latency"), *link_rows]),
    ):
        if entries:
            head, *lines = aligned(rows, "<".ljust(len(rows[0]), ">"), indent=0)
            yield head
            for line, entry in zip(lines, entries.values(), strict=True):
                yield line
                yield from wrapped(f"{_sheet(entry)}{entry.source}", indent=4)
    yield f"--cluster takes a cluster.toml with like = NAME, or one line: {EXAMPLE}"


def _device_row(entry: Entry) -> tuple[str, ...]:
    device = device_of({"name": entry.name, "like": entry.name})
    short = max((device.flops_per_s.get(dtype, 0.0) for dtype in ("bfloat16", "float16")), default=0.0)
    return (
        entry.name,
        entry.keys["memory"],
        entry.keys["reserve"],
        format_bytes_per_s(device.memory_bytes_per_s),
        format_flops_per_s(device.flops_per_s["float32"]),
        format_flops_per_s(short) if short else "",
    )


def _sheet(entry: Entry) -> str:
    """Return the figures of a data sheet that estimates take besides peaks and bandwidth; nothing for a link."""
    if "family" not in entry.keys:
        return ""
    return "{family}, {units} units at {clock}, cache {cache}. ".format(**entry.keys)
