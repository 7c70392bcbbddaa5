"""`planner plan --goal training`: what is said of the search among ways to train."""

import argparse
import json
from collections.abc import Iterator

from costmodels.units import format_rate
from graphs.files import write_text
from planner.parallelism.closed_form.config_file import config_to_dict
from planner.planning.fastest_training import FasterRow, FoundTraining


def save_row(row: FasterRow, options: argparse.Namespace) -> str:
    """Write a configuration next to the plan, and return a line that says how much faster it is."""
    what = f"{row.config.title} with ZeRO {row.config.zero}"
    output = options.output.with_name(f"{options.output.stem}-row.json")
    how = f"{output}; planner run {output} {options.model} trains it"
    if output.exists() and not options.force:
        how = f"'{output}' is there already, and --force overwrites it"
    else:
        write_text(json.dumps(config_to_dict(row.config), indent=2) + "\n", output)
    return f"ranks that share layers or states would train {format_rate(row.samples_per_s)} samples/s: {what} → {how}"


def training_lines(found: FoundTraining | None, options: argparse.Namespace) -> Iterator[str]:
    """Yield what another way to train gains, which devices stay idle, and the row; write the row."""
    if found is None:
        return
    first, plan, beyond = found.first, found.plan, found.beyond
    if plan is not first:
        work = first.workload
        yield (
            f"{work.micro_batches} micro-batches of {work.batch} by {work.schedule} would be slower: "
            f"{format_rate(first.samples_per_s)} samples/s"
        )
    if beyond is not None and beyond.config is None:
        batch = beyond.replicas * beyond.micro_batches * beyond.samples
        yield (
            f"{beyond.replicas} replicas, each by ranks of its own, would train {format_rate(beyond.samples_per_s)} "
            f"samples/s: planner choose {options.model} --cluster {options.cluster} --global-batch {batch}"
        )
    if found.idle > 0:
        n_devices = len(found.cluster.devices)
        yield f"{found.idle} of {n_devices} devices stay idle: nothing that was found is faster with them"
    if found.row is not None:
        yield save_row(found.row, options)
