"""Measure the devices and links of this host and, if a model is given, every operator of the model.

planner calibrate
planner calibrate examples.networks:googlenet -o cluster.toml
planner calibrate examples.networks:googlenet --training --again
planner calibrate examples.networks:googlenet --split-cpu auto
planner calibrate package.module:language_model --generation --prompt 512 --new-tokens 128 --sequences 4
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodels.cluster.cluster import Cluster, Link
from costmodels.cluster.dictionary import cluster_to_dict
from costmodels.cluster.writer import write_cluster
from costmodels.units import format_bytes, format_bytes_per_s, format_flops_per_s, format_seconds
from graphs.common.errors import InputError
from planner.cli.console import Console
from planner.cli.files import declare_output
from planner.cli.models import (
    FileOrTokens,
    declare_generation,
    declare_kernels,
    declare_model,
    declare_rewrites,
    declare_split,
    declare_weights,
    model_of,
)
from planner.cli.text import aligned, count, first_items, short, table, wrapped
from planner.planning.calibrate import CHANNELS, Calibration, CalibrationOptions
from planner.planning.question import GENERATION_ONLY, OpenWorkload
from planner.plans.given import fixed_generation, generation_model

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.generation import GenerationProgram

NAME = 16  # characters of a link's name, in front of its times
SHOWN = 6  # names of a kind of thing; --json has all


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner calibrate``."""
    declare_model(parser, optional=True)
    declare_weights(parser)
    declare_output(parser, "cluster.toml", FileOrTokens)
    parser.add_argument("--training", action="store_true", help="measure forward and backward passes, not inference")
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="measure a sample of every kind of operator, once, in about a minute, from which other times are learned",
    )
    parser.add_argument("--generation", action="store_true", help="measure the phases of a language model")
    parser.add_argument("--again", action="store_true", help="measure again what is in the cache")
    parser.add_argument(
        "--channel",
        choices=CHANNELS,
        default=CHANNELS[0],
        help="what carries tensors between devices: threads of one process, or gloo between two (threads)",
    )
    declare_kernels(parser)
    declare_rewrites(parser)
    declare_generation(parser)
    declare_split(parser, "divide the CPU into N equal devices (one for each core); auto: every N")


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, write cluster.toml, print peaks and links and what is not reliable."""
    from planner.planning.calibrate import surveys

    programs: list[Any] = [None]
    if options.generation:
        programs = list(_language_models(options, console))
    elif options.model is not None:
        programs = [model_of(options).load_program(options.training, console)]
    calibration_options = CalibrationOptions(
        options.training,
        options.again,
        options.channel,
        options.sweep,
        options.split_cpu,
        options.kernels,
        options.rewrites,
    )
    found = [surveys(each, reporter=console, calibration_options=calibration_options) for each in programs]
    *others, written = [  # each division of the CPU, with the operators for each number of rows
        replace(same[0], operators=tuple(chain.from_iterable(each.operators for each in same)))
        for same in zip(*found, strict=True)
    ]
    write_cluster(written.cluster, options.output)
    divisions = {"divisions": [calibration_document(calibration) for calibration in others]} if others else {}
    parts = (line for calibration in others for line in (*calibration_lines(calibration), ""))
    console.tell(calibration_document(written) | divisions, chain(parts, calibration_lines(written, options.output)))
    return 0


def _language_models(options: argparse.Namespace, console: Console) -> "Iterator[GenerationProgram]":
    """Yield the model for each number of rows that a plan may have on this host."""
    from costmodels.calibrate import host_divisions
    from planner.planning.generation import check_fits

    if options.model is None or options.training:
        raise InputError("--generation measures a language model: give MODEL, and leave --training out")
    asked = OpenWorkload(
        output=options.new_tokens, **{name: getattr(options, name) for name in GENERATION_ONLY if name != "output"}
    )
    named = model_of(options)
    fixed = fixed_generation(named, console)
    for work in asked.generations(fixed, max(host_divisions())):
        model = generation_model(fixed or named, work.batch, work.context, console)
        check_fits(model, work)
        yield model


def calibration_document(calibration: Calibration) -> dict[str, Any]:
    """The object that ``--json`` shows: the cluster, what was measured, and the spreads."""
    about = {
        "host_from_cache": calibration.found,
        "spread": dict(calibration.spread),
        "unsure": dict(calibration.unsure),
        "operators": [asdict(operators) for operators in calibration.operators],
        "kinds_without_formula": list(calibration.guessed),
    }
    return cluster_to_dict(calibration.cluster) | {"calibration": about}


def peaks(cluster: Cluster) -> Iterator[str]:
    """Return a table of devices and links; links with the same numbers are one row."""
    rows = [
        (
            device.name,
            device.kind,
            format_bytes(device.memory_bytes),
            format_flops_per_s(next(iter(device.flops_per_s.values()))),
            format_bytes_per_s(device.memory_bytes_per_s),
            format_seconds(device.launch_s),
        )
        for device in cluster.devices
    ]
    rows += [
        (
            _like([f"{link.src} → {link.dst}" for link in links]),
            links[0].via or "link",
            "",
            "",
            format_bytes_per_s(links[0].bytes_per_s),
            format_seconds(links[0].latency_s),
        )
        for links in equal_links(cluster)
    ]
    dtype = next(iter(cluster.devices[0].flops_per_s))
    return table(("", "kind", "memory", f"peak {dtype}", "bandwidth", "latency"), rows)


def calibration_lines(calibration: Calibration, output: Path | None = None) -> Iterator[str]:
    """The lines for people; only one division of the CPU is written to a file."""
    cluster = calibration.cluster
    yield f"{cluster.name} → {output}" if output else f"{cluster.name} as {count(len(cluster.devices), 'device')}"
    yield from peaks(cluster)
    yield from _by_size(cluster)
    yield ""
    if calibration.found:
        yield "devices and links are from the cache; --again measures them anew"
    for operators in calibration.operators:
        yield (
            f"{operators.kind}: {count(operators.measured, 'operator')} measured, "
            f"{operators.found:,} found in the cache; {format_seconds(operators.seconds)} for one micro-batch"
            + ("" if operators.slowdown is None else f", {operators.slowdown:+.1%} while all of them compute")
        )
    for text in doubts(calibration):
        yield from wrapped(f"not sure of {text}", indent=0)


def doubts(calibration: Calibration) -> Iterator[str]:
    """Yield the measurements and formulas that are not reliable, with the reason."""
    for operators in calibration.operators:
        if noises := operators.noise:
            named = [f"{_like(operators.named[noise.key])} (spread {noise.spread:.0%})" for noise in noises]
            number, share = count(len(named), "noisy operator"), sum(noise.share for noise in noises)
            yield f"{number} on {operators.kind}, {share:.1%} of the time: {first_items(named, SHOWN)}"
    if calibration.unsure:
        worst = sorted(calibration.unsure.items(), key=lambda item: -item[1])
        yield first_items([f"{name} (spread {share:.0%})" for name, share in worst], SHOWN)
    if calibration.guessed:
        kinds = first_items(calibration.guessed, SHOWN)
        yield f"kinds without a formula, whose work is a guess on devices that were not measured: {kinds}"


def equal_links(cluster: Cluster) -> list[list[Link]]:
    """Links with the same numbers, in order of appearance."""
    groups: dict[tuple[object, ...], list[Link]] = {}
    for link in cluster.links:
        groups.setdefault((link.bytes_per_s, link.latency_s, link.points, link.via), []).append(link)
    return list(groups.values())


def _like(names: Sequence[str]) -> str:
    """Return the first name, and how many more things are like it."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} like it"


def _by_size(cluster: Cluster) -> Iterator[str]:
    """Times of messages: a row for each kind of link, a column for each size."""
    rows: dict[tuple[float, ...], list[list[str]]] = {}
    for link, *_ in equal_links(cluster):
        sizes, times = zip(*link.points, strict=True) if link.points else ((), ())
        name = short(f"{link.src} → {link.dst}", NAME)
        rows.setdefault(sizes, []).append([name, *map(format_seconds, times)])
    rows.pop((), None)
    for sizes, links in rows.items():
        yield ""
        yield from aligned([["one way", *map(format_bytes, sizes)], *links], "<" + ">" * len(sizes), indent=0)
