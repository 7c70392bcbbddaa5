"""Plan, run, learn what the stages really took, plan again; keep the fastest plan that ran.

planner tune examples.networks:googlenet --cluster cluster.toml --goal throughput --devices 2
planner tune examples.networks:googlenet --split-cpu 2 --goal latency --seconds 30 -o latency.json
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from costmodels.units import format_seconds
from costmodels.workload import Workload
from graphs.common.errors import InputError
from planner.cli.console import Console, attributes
from planner.cli.costs import check_token_target
from planner.cli.files import declare_output
from planner.cli.models import model_of, workload_of
from planner.cli.numbers import positive_seconds
from planner.cli.plan_ import declare_question, question_of, show_plan
from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.cli.text import table
from planner.planning.autotune import DISTURBED_CORES
from planner.planning.cpu_partitions import AUTO
from planner.planning.make_plan import batch_of
from planner.planning.question import OpenWorkload, PlanQuestion
from planner.planning.tune import SECONDS, Tuned, tune
from planner.plans.files import save_plan
from planner.plans.given import NamedModel
from planner.problem.result import Interrupted, NoPlanError

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.program import Program

COLUMNS = ("turn", "predicted", "measured", "over the first", "operators moved", "")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner tune``."""
    declare_question(parser, "this host as calibrated, its CPU divided into N equal devices")
    help = f"seconds for everything except the import of the model ({SECONDS:g})"
    parser.add_argument("--seconds", type=positive_seconds, default=SECONDS, metavar="S", help=help)
    declare_output(parser, "plan.json")


def run(options: argparse.Namespace, console: Console) -> int:
    """Import the model, tune, write plan.json and print the turns and the plan."""
    if options.split_cpu == AUTO:
        raise InputError(
            f"tuning is for one division of the CPU; `planner plan {options.model} --split-cpu {AUTO}` finds the best "
            "one, give its number of devices"
        )
    question = question_of(options, console)
    cluster = question.only_cluster
    model, work = _model_and_workload(question, options, console)
    status = DONE
    try:
        tuned = tune(
            model,
            cluster=cluster,
            goal=question.goal,
            workload=work,
            constraints=question.constraints,
            search=question.search,
            seconds=options.seconds,
        )
    except NoPlanError as error:
        console.error(str(error))
        return NO_PLAN
    except Interrupted as stopped:
        tuned, status = stopped.best, INTERRUPTED
    save_plan(tuned.plan, options.output)
    for line in _turn_lines(tuned):
        console.say(line)
    show_plan(tuned.plan, options, console, _document(tuned))
    if status == INTERRUPTED:
        console.error(f"interrupted: '{options.output}' is the best plan until then")
    return status


def _model_and_workload(
    question: PlanQuestion, options: argparse.Namespace, console: Console
) -> "tuple[Program | NamedModel, Workload | OpenWorkload]":
    """Return the model, imported unless it generates, and what it is used for."""
    if question.generates:
        return model_of(options), workload_of(options)
    program = model_of(options).load_program(question.trains, console)
    check_token_target(options, program.graph)
    batch, n_devices = options.batch or batch_of(program.graph), len(question.only_cluster.devices)
    return program, workload_of(options).closed(batch, n_devices, question.trains)


def _turn_lines(tuned: Tuned) -> Iterator[str]:
    """Yield a row for each turn, then what came of them."""
    rows = [
        (
            str(number),
            format_seconds(turn.plan.predicted_s),
            format_seconds(turn.seconds),
            f"{turn.speedup:.3f}×",
            f"{turn.moved:,}" if number > 1 else "",
            "kept" if turn.kept else "",
        )
        for number, turn in enumerate(tuned.turns, 1)
    ]
    if rows:
        yield from table(COLUMNS, rows)
    faster = f"{tuned.speedup:.3f} × as fast as" if tuned.speedup > 1 else "this is"
    yield f"tuned: {faster} the plan that it began with; {tuned.why}"
    if tuned.learned:
        yield "the profile has learned from it; `planner calibrate MODEL --again` forgets that"
    elif tuned.foreign_cores > DISTURBED_CORES:
        others = f"other processes used {tuned.foreign_cores:.2f} cores meanwhile"
        yield f"{others}: the figures are disturbed, and the profile has not learned from them"


def _document(tuned: Tuned) -> dict[str, Any]:
    """Return what ``--json`` prints in addition to the plan."""
    turns = [
        {
            "predicted_s": turn.plan.predicted_s,
            "measured_s": turn.seconds,
            **attributes(turn, "speedup", "moved", "kept"),
        }
        for turn in tuned.turns
    ]
    return {"turns": turns, **attributes(tuned, "speedup", "why", "learned", "foreign_cores")}
