"""Choose how to train on many devices: parallelism, ZeRO, recomputation, micro-batches and schedule.

planner choose config.json --cluster cluster.toml --global-batch 1024
planner choose model.json --cluster cluster.toml --global-batch 512 --tensor 8 --schedule 1f1b --memory 70GiB
planner choose config.json --cluster cluster.toml --global-batch 16 --row 2 -o row.json
planner choose examples.networks:googlenet --cluster cluster.toml --global-batch 64 --row 1 -o row.json
planner choose model.json --cluster cluster.toml --global-batch 512 --schedule 1f1b --row 2 --to megatron-args
planner choose config.json --cluster cluster.toml --global-batch 64 --html rows.html
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.units import format_bytes, format_seconds
from costmodels.workload import RECOMPUTE_MODES, TRAINING_SCHEDULES
from graphs.common.errors import InputError
from planner.cli.choose_network import asked_of, picked, proved_gap, run_network, save_page
from planner.cli.console import Console, attributes
from planner.cli.export_ import tell_export
from planner.cli.files import declare_writes
from planner.cli.models import declare_sizes
from planner.cli.numbers import at_least_one, positive_seconds, size
from planner.cli.statuses import DONE, NO_PLAN
from planner.cli.text import count, table, wrapped
from planner.parallelism.closed_form.config import PRECISIONS, TrainingSetting
from planner.parallelism.closed_form.config_file import config_to_dict, shape_to_dict
from planner.parallelism.closed_form.search import ConfigRow, ConfigTable
from planner.parallelism.closed_form.throughput import model_flops_share
from planner.parallelism.config_reasons import PricedRow, reasons
from planner.parallelism.exports.parallel_config import CONFIG_TARGETS, export_config
from planner.planning.choose import (
    ALIKE,
    GRADIENT_BYTES,
    SHOWN,
    TransformerChoices,
    choose,
    numbers_of,
    save_config,
    worthwhile,
)
from planner.planning.choose_options import check_closed_form_schedule
from planner.plans.given import NamedModel
from planner.view.choices import choices_page

HEADS = (
    "",
    "step",
    "tokens/s",
    "MFU",
    "memory",
    "devices",
    "d × t × p",
    "micro-batches",
    "schedule",
    "ZeRO",
    "recompute",
)
EXPERT_COLUMN = HEADS.index("d × t × p") + 1
TO_HELP = f"search only what this tool can express, and write a row for it: {', '.join(CONFIG_TARGETS)}"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner choose``."""
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="a transformer: config.json, or JSON with its numbers; another network: package.module:factory, .onnx",
    )
    parser.add_argument("--cluster", type=Path, required=True, metavar="FILE", help="cluster.toml with the devices")
    parser.add_argument(
        "--global-batch", type=at_least_one, required=True, metavar="N", help="samples of a step, over all replicas"
    )
    parser.add_argument("--sequence", type=at_least_one, metavar="N", help="tokens of a sample (the model's, or 2048)")
    parser.add_argument("--devices", type=at_least_one, metavar="N", help="use at most N devices (all)")
    parser.add_argument("--memory", type=size, metavar="SIZE", help="use at most SIZE a device (all but its reserve)")
    parser.add_argument("--data", type=at_least_one, metavar="N", help="data-parallel replicas (searched)")
    parser.add_argument("--tensor", type=at_least_one, metavar="N", help="devices that share every product (searched)")
    parser.add_argument("--pipeline", type=at_least_one, metavar="N", help="pipeline stages (searched)")
    parser.add_argument(
        "--expert", type=at_least_one, metavar="N", help="replicas that divide a layer's experts (searched)"
    )
    parser.add_argument("--micro-batch", type=at_least_one, metavar="N", help="samples of a micro-batch (searched)")
    parser.add_argument("--zero", type=int, choices=(0, 1, 2, 3), help="stage of ZeRO (searched)")
    parser.add_argument("--schedule", choices=TRAINING_SCHEDULES, help="pipeline schedule (searched)")
    parser.add_argument(
        "--recompute", choices=RECOMPUTE_MODES, help="recomputation of the layers (searched, also mixed)"
    )
    parser.add_argument("--gradients", choices=GRADIENT_BYTES, default="float32", help="type of gradients (float32)")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="precision of products where a row runs; transformers are priced in bfloat16 (float32)",
    )
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="adam", help="optimizer (adam)")
    declare_sizes(parser)
    parser.add_argument("--flash-attention", action="store_true", help="use FlashAttention, which keeps no scores")
    parser.add_argument("--time-limit", type=positive_seconds, default=60.0, metavar="S", help="seconds to search (60)")
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show rows that save little memory and, of other networks, dominated ones (without ●)",
    )
    parser.add_argument("--to", choices=list(CONFIG_TARGETS), metavar="TARGET", help=TO_HELP)
    parser.add_argument("--row", type=at_least_one, metavar="N", help="row to write (1)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the row, for planner run or --to")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the rows as a page, time against memory")
    declare_writes(parser, "output", "html")


def run(options: argparse.Namespace, console: Console) -> int:
    """Search, and print the configurations that no other one dominates."""
    file = numbers_of(NamedModel(str(options.model)))
    if file is None:
        return run_network(options, asked_of(options, console), console)
    _check_options(file, options)
    console.on_step(f"reading {options.cluster}", 0, 0)
    batch, asked = options.global_batch, asked_of(options, console)
    choices = choose(str(options.model), cluster=options.cluster, global_batch=batch, choose_options=asked)
    assert isinstance(choices, TransformerChoices)
    if choices.advice:
        console.error(choices.advice)
        return NO_PLAN
    setting, found, shown = choices.setting, choices.found, choices.rows(options.all)
    priced = [PricedRow(row.price, row.config.devices) for row in shown]
    if options.html is not None:
        room = min(device.usable_bytes for device in setting.fabric.devices)
        cells = [_cells(setting, number, row) for number, row in enumerate(shown, 1)]
        title = f"{options.model} on {options.cluster}: {_title(setting)}"
        save_page(choices_page(title, _proved(found), _heads(setting), cells, priced, room), options.html, console)
    if options.to is not None:
        return _export(setting, shown, options, console)
    if options.row or options.output:
        return _save(shown, options, console)
    why = reasons(priced)
    console.tell(_document(setting, found, shown, why), _lines(setting, found, shown, why))
    return DONE


def _save(rows: Sequence[ConfigRow], options: argparse.Namespace, console: Console) -> int:
    """Write or print a row, for ``planner run``."""
    config = picked(rows, options).config
    if options.output is None:
        console.print(json.dumps(config_to_dict(config), indent=2))
    else:
        save_config(config, options.output)
        console.say(f"row {options.row or 1} → {options.output}; planner run {options.output} MODEL trains it")
    return DONE


def _export(setting: TrainingSetting, rows: Sequence[ConfigRow], options: argparse.Namespace, console: Console) -> int:
    """Write or print a row for another tool."""
    exported = export_config(setting, picked(rows, options).config, options.to)
    tell_export(exported, f"row {options.row or 1}", options, console)
    return DONE


def _check_options(path: Path, options: argparse.Namespace) -> None:
    """Refuse options that do not fit the closed forms."""
    if options.sizes:
        raise InputError(f"'{path}' has no symbolic dimension '{options.sizes[0][0]}'; leave --size out")
    check_closed_form_schedule(options.schedule, "--schedule ")


def _document(
    setting: TrainingSetting, found: ConfigTable, rows: Sequence[ConfigRow], why: Sequence[str]
) -> dict[str, Any]:
    """Return the document that ``--json`` prints."""
    best_s = rows[0].price.step_s
    return {
        "model": {**asdict(setting.network), "parameters": setting.network.parameters},
        "global_batch": setting.batch,
        "status": str(found.status),
        "bound_s": found.bound_s,
        "gap": max(0.0, 1 - found.bound_s / best_s),
        **attributes(found, "shapes", "left_out"),
        "rows": [
            {
                "number": number,
                "devices": row.config.devices,
                **shape_to_dict(row.config.shape),
                "recompute": row.config.recompute,
                "stages": config_to_dict(row.config)["stages"],
                **attributes(row.price, "step_s", "computing_s", "communicating_s", "bubble_s", "sync_s", "peak_bytes"),
                **_speeds(setting, row),
                "reason": reason,
            }
            for number, (row, reason) in enumerate(zip(rows, why, strict=True), 1)
        ],
    }


def _speeds(setting: TrainingSetting, row: ConfigRow) -> dict[str, float]:
    samples_per_s = setting.batch / row.price.step_s
    return {
        "samples_per_s": samples_per_s,
        "tokens_per_s": samples_per_s * setting.network.sequence,
        "mfu": model_flops_share(setting, row.config, row.price.step_s),
    }


def _lines(
    setting: TrainingSetting, found: ConfigTable, rows: Sequence[ConfigRow], why: Sequence[str]
) -> Iterator[str]:
    """Yield a row for each configuration, then the reasons and the proof."""
    yield _title(setting)
    yield from table(_heads(setting), [_cells(setting, number, row) for number, row in enumerate(rows, 1)])
    for number, reason in enumerate(why, 1):
        yield from wrapped(f"{number}  {reason}")
    if len(found.rows) > len(rows):
        slower = " or slower still" if len(worthwhile(found.rows)) > SHOWN else ""
        saving = f"saving less than {1 - 1 / ALIKE:.0%} of a faster one's memory{slower}"
        yield f"{count(len(found.rows) - len(rows), 'more row')}, {saving}: --all shows them"
    if found.left_out:
        yield f"{count(found.left_out, 'slower shape')} not priced for want of time: --time-limit allows more"
    if setting.network.mixture is not None:
        yield "experts: replicas that divide the experts of a layer; tokens are spread evenly over experts"
    yield "MFU: the model's own FLOP, of full attention: scores that a causal mask hides count"
    window = setting.network.window
    if 0 < window < setting.network.sequence and not setting.network.flash:
        yield f"scores beyond the window of {window:,} are computed and hidden; --flash-attention skips them"
    yield _proved(found)


def _title(setting: TrainingSetting) -> str:
    network = setting.network
    own = network.mixture
    experts = f", {own.active} of {own.count} experts for a token" if own else ""
    named = f"{network.parameters / 1e9:.4g} billion parameters{experts}, {network.sequence:,} tokens a sample"
    return f"{named}: steps of {count(setting.batch, 'sample')} on up to {count(setting.n_devices, 'device')}"


def _proved(found: ConfigTable) -> str:
    return f"{found.status}: {proved_gap(found.bound_s, found.rows[0].price.step_s)}; {count(found.shapes, 'shape')}"


def _heads(setting: TrainingSetting) -> tuple[str, ...]:
    """Return the heads of the columns; a mixture of experts has one more."""
    experts = ("experts",) if setting.network.mixture is not None else ()
    return (*HEADS[:EXPERT_COLUMN], *experts, *HEADS[EXPERT_COLUMN:])


def _cells(setting: TrainingSetting, number: int, row: ConfigRow) -> tuple[str, ...]:
    shape, speeds = row.config.shape, _speeds(setting, row)
    schedule = f"{shape.schedule} × {shape.chunks}" if shape.chunks > 1 else shape.schedule
    return (
        str(number),
        format_seconds(row.price.step_s),
        f"{speeds['tokens_per_s']:,.0f}",
        f"{speeds['mfu']:.1%}",
        format_bytes(row.price.peak_bytes),
        str(row.config.devices),
        row.config.named,
        *((str(shape.expert),) if setting.network.mixture is not None else ()),
        f"{shape.micro_batches} of {shape.samples}",
        schedule if shape.pipeline > 1 else "",
        row.config.zero,
        row.config.recompute,
    )
