"""A row of ``planner choose`` as a file, which ``planner run`` reads.

::

    {"version": 1, "layers": 4, "global_batch": 16,
     "parallel": {"data": 2, "tensor": 1, "pipeline": 2, "samples": 2, "micro_batches": 4, "zero": 1,
                  "schedule": "1f1b", "chunks": 1, "order": "data"},
     "stages": [{"none": 2, "selective": 0, "full": 0}, {"none": 2, "selective": 0, "full": 0}],
     "precision": "float32", "gradients": "float32"}

Where stages have degrees of their own, each has ``data``, ``tensor`` and ``zero`` besides.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, cast, get_args

from graphs.common import checks
from graphs.common.documents import read_json
from graphs.common.errors import InputError
from graphs.common.json_object import JsonObject
from planner.parallelism.closed_form.config import (
    PRECISIONS,
    STEP_SCHEDULES,
    ParallelConfig,
    ParallelShape,
    Precision,
    RankOrder,
    StageDegrees,
    StageLayers,
    StepSchedule,
)

VERSION = 1
COUNTS = ("data", "tensor", "pipeline", "samples", "micro_batches", "chunks")


def config_to_dict(config: ParallelConfig) -> dict[str, Any]:
    """Return a configuration as a JSON object."""
    shape = config.shape
    return {
        "version": VERSION,
        "layers": sum(stage.total for stage in config.stages),
        "global_batch": shape.data * shape.micro_batches * shape.samples,
        "parallel": shape_to_dict(shape),
        "stages": [
            stage._asdict() | (config.degrees[number]._asdict() if config.degrees else {})
            for number, stage in enumerate(config.stages)
        ],
        "precision": config.precision,
        "gradients": config.gradients,
    }


def shape_to_dict(shape: ParallelShape) -> dict[str, Any]:
    """Return a shape as a JSON object; the degree of experts is left out where none are divided."""
    return {name: value for name, value in shape._asdict().items() if name != "expert" or value > 1}


def config_from_dict(document: Mapping[str, Any], where: str = "the configuration") -> ParallelConfig:
    """Return the configuration of a JSON object, the inverse of `config_to_dict`.

    Raises:
        InputError: if a field is missing, or the fields do not fit together.
    """
    top = JsonObject(where, document)
    if top.whole("version") != VERSION:
        raise InputError(f"{where} has the version {top.whole('version')}, this planner reads {VERSION}; choose again")
    shape = _shape_of(top.object("parallel"))
    stages = tuple(
        StageLayers(*(JsonObject(f"stage {number} of {where}", stage).count(mode) for mode in StageLayers._fields))
        for number, stage in enumerate(top.records("stages"))
    )
    if len(stages) != shape.pipeline or any(not stage.total or stage.total % shape.chunks for stage in stages):
        raise InputError(
            f"{where} has stages of {', '.join(str(stage.total) for stage in stages) or 'no'} layers; pipeline = "
            f"{shape.pipeline} needs as many stages, each with layers for {shape.chunks} parts"
        )
    degrees = tuple(_degrees_of(stage, shape, where) for stage in top.records("stages") if "data" in stage)
    if len(degrees) not in (0, shape.pipeline):
        raise InputError(
            f"{where} has degrees for {len(degrees)} of {shape.pipeline} stages; give them for all or none"
        )
    precision, gradients = (
        cast(Precision, checks.one_of(top.label(name), name, PRECISIONS) if top.has(name) else PRECISIONS[0])
        for name in ("precision", "gradients")
    )
    return ParallelConfig(shape._replace(zero=0) if degrees else shape, stages, precision, gradients, degrees)


def _shape_of(parallel: JsonObject) -> ParallelShape:
    """Return how a file divides devices and batch."""
    return ParallelShape(
        **{name: parallel.count(name, 1) for name in COUNTS},
        zero=int(checks.one_of(str(parallel.whole("zero")), "zero", map(str, range(4)))),
        schedule=cast(StepSchedule, checks.one_of(parallel.label("schedule"), "schedule", STEP_SCHEDULES)),
        order=cast(RankOrder, checks.one_of(parallel.label("order"), "order", get_args(RankOrder))),
        expert=parallel.count("expert", 1) if parallel.has("expert") else 1,
    )


def _degrees_of(stage: Mapping[str, Any], shape: ParallelShape, where: str) -> StageDegrees:
    """Return the degrees of a stage that has its own."""
    own = JsonObject(f"a stage of {where}", stage)
    data, tensor = own.count("data", 1), own.count("tensor", 1)
    zero = checks.one_of(str(own.whole("zero")), "zero", map(str, range(4))) if own.has("zero") else shape.zero
    degrees = StageDegrees(data, tensor, int(zero) if data > 1 else 0)
    if (shape.data, shape.tensor, shape.schedule) != (1, 1, "1f1b"):
        raise InputError(f"{where} has degrees for each stage; these need data and tensor 1 in parallel, and 1f1b")
    if shape.samples % degrees.data:
        near = max(n for n in range(1, degrees.data) if shape.samples % n == 0)
        raise InputError(
            f"{where} has a stage with data = {degrees.data}, which does not divide {shape.samples} samples of a "
            f"micro-batch; the nearest that works is {near}"
        )
    return degrees


def load_config(path: str | PathLike[str]) -> ParallelConfig:
    """Return the configuration of a file that ``planner choose --row`` wrote.

    Raises:
        InputError: if there is none.
    """
    path = checks.path(path, "the configuration", "the path of a row of planner choose")
    return config_from_dict(read_json(path, "configuration"), f"'{path}'")


def is_config(path: Path) -> bool:
    """Return whether a file holds a configuration rather than a plan."""
    if path.suffix != ".json" or not path.is_file():
        return False
    return "parallel" in read_json(path, "plan")
