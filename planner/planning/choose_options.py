"""The options of `planner.choose`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodels.cluster.cluster import Cluster
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.workload import TRAINING_SCHEDULES, ZERO_STAGES, RecomputeMode
from graphs.common import checks
from graphs.common.errors import InputError
from planner.parallelism.closed_form.config import STEP_SCHEDULES, Demands, Precision
from planner.parallelism.exports.parallel_config import CONFIG_TARGETS
from planner.problem.reporter import SILENT, Reporter


def limited(cluster: Cluster, memory_bytes: float | None) -> Cluster:
    """Return the cluster with at most ``memory_bytes`` of each device; None for no limit."""
    if memory_bytes is None:
        return cluster
    devices = (
        replace(device, memory_bytes=min(device.usable_bytes, memory_bytes), reserve_bytes=0.0)
        for device in cluster.devices
    )
    return replace(cluster, devices=tuple(devices))


@dataclass(frozen=True)
class ChooseOptions:
    """The options of ``planner choose``; None leaves a figure open.

    Attributes:
        sequence: tokens of a sample, of a transformer by its numbers.
        devices: the largest number of devices to use, the first ones of the cluster.
        memory_bytes: the most memory to use of each device.
        data: data-parallel replicas.
        tensor: devices that share every product.
        pipeline: stages.
        expert: replicas that divide the experts of a layer, of a mixture of experts.
        micro_batch: samples of a micro-batch.
        zero: stage of ZeRO, 0 to 3.
        schedule: of the pipeline.
        recompute: of every layer.
        gradients: type of gradients, "float32" or "bfloat16".
        precision: of products where a row runs, "float32" or "bfloat16".
        optimizer: its name, which decides about states and step.
        flash_attention: whether the attention of a transformer by its numbers keeps no scores.
        to: the tool that a row is for; only configurations that the tool can express are searched.
        time_limit_s: of the search.
        reporter: receives the steps.

    Raises:
        InputError: for a value of another type, a number below 1, or an unknown word.
    """

    sequence: int | None = None
    devices: int | None = None
    memory_bytes: float | None = None
    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    micro_batch: int | None = None
    zero: int | None = None
    schedule: str | None = None
    recompute: RecomputeMode | None = None
    gradients: Precision = "float32"
    precision: Precision = "float32"
    optimizer: str = "adam"
    flash_attention: bool = False
    to: str | None = None
    time_limit_s: float = 60.0
    reporter: Reporter = SILENT
    expert: int | None = None

    def __post_init__(self) -> None:
        checks.check_fields(self, "the options of choose")
        for name in ("sequence", "devices", "data", "tensor", "pipeline", "micro_batch", "expert"):
            if getattr(self, name) is not None:
                checks.integer(getattr(self, name), name, 1)
        if self.zero is not None and self.zero not in ZERO_STAGES:
            raise InputError(f"zero is {self.zero}; give one of {', '.join(map(str, ZERO_STAGES))}")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise InputError(f"memory_bytes is {self.memory_bytes:g}; give a number above 0")
        if self.schedule is not None:
            checks.one_of(self.schedule, "the schedule", TRAINING_SCHEDULES)
        checks.one_of(self.optimizer, "the optimizer", OPTIMIZERS)
        if self.to is not None:
            checks.one_of(self.to, "the tool", CONFIG_TARGETS)
        checks.seconds(self.time_limit_s, "the time limit")

    @property
    def demands(self) -> Demands:
        """The demands on a configuration; an option that is None leaves its value open."""
        return Demands(
            devices=self.devices,
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.data,
            samples=self.micro_batch,
            zero=self.zero,
            schedule=self.schedule,  # type: ignore[arg-type]  # rows of networks have other schedules too
            recompute=self.recompute,
            precision=self.precision,
            gradients=self.gradients,
            expert=self.expert,
        )


def check_closed_form_schedule(schedule: str | None, option: str = "") -> None:
    """Refuse a schedule that the closed forms of a transformer do not have.

    Args:
        schedule: its name; None if it is left open.
        option: the name of the option that a message gives before the schedule.

    Raises:
        InputError: for another schedule.
    """
    if schedule not in (None, *STEP_SCHEDULES):
        raise InputError(
            f"the schedules of a transformer in closed form are {', '.join(STEP_SCHEDULES)}; {option}{schedule} is for "
            "networks that are priced operator by operator"
        )


def check_for_transformers_only(model: object, asked: Mapping[str, object]) -> None:
    """Refuse what only the closed forms of a transformer know, for a network priced operator by operator.

    Args:
        model: its name.
        asked: by the names that a message gives them; None and False for what is left out.

    Raises:
        InputError: for the first one.
    """
    for name, value in asked.items():
        if value:
            raise InputError(
                f"{name} is for a transformer's config.json or its numbers; '{model}' is priced operator by operator, "
                "so leave it out"
            )
