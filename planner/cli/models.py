"""Arguments that several commands share, and the values made from them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.file import read_cluster
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.workload import MICRO_BATCHES, RECOMPUTE_MODES, TRAINING_SCHEDULES
from graphs.kernels.choice import KERNELS
from graphs.weights import WEIGHTS
from planner.cli.numbers import at_least_one, positive_seconds, whole
from planner.planning.cpu_partitions import AUTO, Split
from planner.planning.question import (
    GENERATION_ONLY,
    OUTPUT,
    PROMPT,
    SCHEDULE,
    SEQUENCES,
    OpenWorkload,
    check_training_only,
)
from planner.planning.rewriting import AUTO_REWRITES, NO_REWRITES
from planner.plans.given import NamedModel
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint, Rule, contiguous
from planner.problem.problem import Goal
from planner.problem.reporter import SILENT, Reporter

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.program import Program


WITHOUT_OUTPUT = tuple(name for name in GENERATION_ONLY if name != "output")  # which is a file here
CLUSTER = "cluster.toml with the devices, or one line such as 2xRTX-4090:PCIe4 (`planner devices`)"
"""The help of --cluster."""


def cluster_option(options: argparse.Namespace) -> Cluster:
    """The cluster of --cluster, or its first --devices."""
    cluster = read_cluster(options.cluster)
    return cluster if options.devices is None else cluster.first(options.devices)


def declare_model(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Declare MODEL, --batch and --size."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if optional else None,
        help="a .onnx, a .pt2, package.module:factory, or a transformers config.json or its folder",
    )
    parser.add_argument("--batch", type=at_least_one, metavar="N", help="samples in a micro-batch (the model's own)")
    declare_sizes(parser)


def declare_weights(parser: argparse.ArgumentParser) -> None:
    """Declare --weights."""
    help = f"of a language model that generates: keep them in {', '.join(WEIGHTS)} (as they are)"
    parser.add_argument("--weights", choices=WEIGHTS, metavar="KIND", help=help)


def declare_sizes(parser: argparse.ArgumentParser) -> None:
    """Declare --size."""
    parser.add_argument(
        "--size",
        dest="sizes",
        type=_size,
        action="append",
        default=[],
        metavar="NAME=N",
        help="size of a symbolic dimension of a .onnx, such as seq=128",
    )


def _size(text: str) -> tuple[str, int]:
    """Read NAME=N."""
    name, _, number = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=N, such as 'seq=128'")
    return name, at_least_one(number)


def model_of(options: argparse.Namespace) -> NamedModel:
    """Return the model that the options of `declare_model` describe."""
    return NamedModel(options.model, options.batch, dict(options.sizes), getattr(options, "weights", None))


def import_for(plan: Plan, options: argparse.Namespace, reporter: Reporter = SILENT) -> Program:
    """Return the MODEL of a plan in the plan's mode, with the plan's batch and sizes unless the options give others."""
    from planner.runtime.matching import program_for  # late: torch takes seconds to load

    return program_for(plan, model_of(options), reporter=reporter)


def declare_kernels(parser: argparse.ArgumentParser) -> None:
    """Declare --kernels."""
    parser.add_argument(
        "--kernels",
        choices=KERNELS,
        help="kernels of this host's CPU: exact gives the reference model's bits, quick rounds differently (quick)",
    )


def declare_rewrites(parser: argparse.ArgumentParser) -> None:
    """Declare --rewrites."""
    parser.add_argument(
        "--rewrites",
        default=AUTO_REWRITES,
        metavar="LIST",
        help="changes of the network, separated by commas: copies, which take micro-batches in turn; fuse, several "
        f"operators in one kernel; split, operators in parts; {NO_REWRITES}; or what helps ({AUTO_REWRITES})",
    )


def declare_workload(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a workload, except --batch."""
    of_a_step = f"for training: micro-batches of a step ({MICRO_BATCHES})"
    parser.add_argument("--schedule", choices=TRAINING_SCHEDULES, help=f"for training: pipeline schedule ({SCHEDULE})")
    parser.add_argument("--micro-batches", type=at_least_one, metavar="N", help=of_a_step)
    parser.add_argument("--recompute", choices=RECOMPUTE_MODES, help="for training: what is recomputed (none)")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="sgd", help="for training: optimizer (sgd)")
    parser.add_argument(
        "--in-flight", type=at_least_one, metavar="N", help="micro-batches in flight (twice the devices)"
    )
    parser.set_defaults(
        replicas=None, new_tokens=None, **dict.fromkeys(WITHOUT_OUTPUT)
    )  # of commands that do not ask for any


class FileOrTokens(argparse.Action):
    """--output, as the file to write; a whole number after it is the tokens of --new-tokens."""

    def __call__(self, _: Any, options: argparse.Namespace, value: Any, option: str | None = None) -> None:
        """Keep the value as what it is; a file after -o is one whatever its name."""
        if option == "--output" and str(value).isdecimal():
            try:
                options.new_tokens = at_least_one(str(value))
            except argparse.ArgumentTypeError as error:  # which argparse expects of types alone
                raise argparse.ArgumentError(self, str(error)) from None
        else:
            options.output = value


def declare_generation(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a workload of generation."""
    group = parser.add_argument_group("generation", "of a language model: --goal generation")
    for option, metavar, help in (
        ("--prompt", "P", f"tokens of each prompt ({PROMPT})"),
        ("--new-tokens", "N", f"tokens of each sequence after its prompt; also --output N ({OUTPUT})"),
        ("--sequences", "N", f"sequences that are on their way at the same time ({SEQUENCES})"),
        ("--context", "N", "positions of a cache (as many as a prompt and its tokens need)"),
        ("--rows", "N", "sequences that one pass advances (the faster of all of them, and a part for each device)"),
    ):
        group.add_argument(option, type=at_least_one, metavar=metavar, help=help)


def workload_of(options: argparse.Namespace) -> OpenWorkload:
    """Return the workload that the options of `declare_workload` and --replicas describe for --goal."""
    asked = {"--schedule": options.schedule, "--micro-batches": options.micro_batches}
    check_training_only(Goal(options.goal), asked)
    return OpenWorkload(
        in_flight=options.in_flight,
        optimizer=options.optimizer,
        schedule=options.schedule,
        micro_batches=options.micro_batches,
        recompute=options.recompute,
        replicas=options.replicas,
        output=options.new_tokens,
        **{name: getattr(options, name) for name in WITHOUT_OUTPUT},
    )


def declare_constraints(parser: argparse.ArgumentParser) -> None:
    """Declare --pin, --forbid, --together, --whole and --contiguous."""
    group = parser.add_argument_group("constraints", "PATTERN names operators or modules: encoder.layer.0, conv*, ...")
    placed, named = "PATTERN=DEVICE[,DEVICE]", "PATTERN[,PATTERN]"
    for option, read, metavar, help in (
        ("--pin", _placed(Rule.PIN), placed, "run these operators there"),
        ("--forbid", _placed(Rule.FORBID), placed, "do not run these operators there"),
        ("--together", _named(Rule.TOGETHER), named, "run all of these operators on one device"),
        ("--whole", _named(Rule.WHOLE), named, "run each of these modules on one device; layer.* for every layer"),
    ):
        group.add_argument(option, type=read, action="append", default=[], metavar=metavar, help=help)
    help = "return no tensor to a device that it has left (in the whole network, without PATTERN)"
    group.add_argument(
        "--contiguous", type=_named(Rule.CONTIGUOUS), nargs="?", const=contiguous(), metavar=named, help=help
    )


def constraints_of(options: argparse.Namespace) -> tuple[Constraint, ...]:
    """Return the constraints that the options of `declare_constraints` describe."""
    line = [options.contiguous] if options.contiguous else []
    return (*options.pin, *options.forbid, *options.together, *options.whole, *line)


def _named(rule: Rule) -> Callable[[str], Constraint]:
    """Return a type for argparse that reads PATTERN[,PATTERN]."""

    def read(text: str) -> Constraint:
        patterns = tuple(text.split(","))
        if not all(patterns):
            raise argparse.ArgumentTypeError(f"'{text}' is not PATTERN[,PATTERN], such as 'embed,head.*'")
        return Constraint(rule, patterns)

    return read


def _placed(rule: Rule) -> Callable[[str], Constraint]:
    """Return a type for argparse that reads PATTERN=DEVICE[,DEVICE]."""

    def read(text: str) -> Constraint:
        pattern, _, devices = text.partition("=")
        if not (pattern and all(devices.split(","))):
            raise argparse.ArgumentTypeError(f"'{text}' is not PATTERN=DEVICE, such as 'embed*=cpu0'")
        return Constraint(rule, (pattern,), tuple(devices.split(",")))

    return read


def declare_split(parser: argparse._ActionsContainer, help: str) -> None:
    """Declare --split-cpu."""
    parser.add_argument("--split-cpu", type=_split, metavar="N", help=help)


def _split(text: str) -> Split:
    """Read "auto" or a whole number from 1."""
    try:
        return AUTO if text == AUTO else at_least_one(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor '{AUTO}'") from None


def declare_search(parser: argparse._ActionsContainer, time_limit_s: float, what: str = "to search") -> None:
    """Declare --time-limit and --seed."""
    help = f"seconds {what} ({time_limit_s:g})"
    parser.add_argument("--time-limit", type=positive_seconds, default=time_limit_s, metavar="S", help=help)
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="seed of random choices (0)")
