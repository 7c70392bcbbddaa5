"""deepspeed: the parts of a ``PipelineModule``: the numbers of the layers at which its stages begin and end.

::

    {"num_stages": 2, "partition_method": null, "parts": [0, 2, 5]}      stage 0: layers 0 and 1, stage 1: 2 to 4

    PipelineModule = with_parts(deepspeed.pipe.PipelineModule, [0, 2, 5])
    net = PipelineModule(layers=layers, num_stages=2)

PipelineModule itself balances by "uniform", "parameters" or "type:..." (https://deepspeed.readthedocs.io/en/latest/pipeline.html)
and takes no list, so its method that sets ``parts`` is overridden where no balance gives these parts.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from graphs.common.errors import InputError
from planner.exports.pipelines import layers_of
from planner.exports.records import device_words
from planner.plans.exported import Export, refuse
from planner.plans.plan import Plan

NAME = "deepspeed"
UNIFORM = "uniform"
Module = TypeVar("Module")


def deepspeed(plan: Plan) -> Export:
    """Return the parts of DeepSpeed's PipelineModule, for a list of layers.

    Raise InputError if the model is no chain of its children, a child is on two devices, or a device has two stages.
    """
    (parts, devices), words = layers_of(plan, NAME), device_words(plan.cluster)
    for number, device in enumerate(devices):
        if device in devices[:number]:
            reason = f"{plan.cluster.devices[device].name} has two stages"
            raise refuse(NAME, reason, "runs one stage on each rank", "plan with --contiguous")
    uniform = parts == uniform_parts(parts[-1], len(devices))
    document = {
        "num_stages": len(devices),
        "partition_method": UNIFORM if uniform else None,
        "parts": parts,
        "devices": [words[device] for device in devices],
    }
    note = "no partition_method comes to these parts: use planner.exports.deepspeed.with_parts(PipelineModule, parts)"
    return Export(document, () if uniform else (note,))


def uniform_parts(n_layers: int, n_stages: int) -> list[int]:
    """Return [n_stages + 1], the parts that PipelineModule makes of "uniform": the first stages have one layer more."""
    size, rest = divmod(n_layers, n_stages)
    return [size * stage + min(stage, rest) for stage in range(n_stages + 1)]


def with_parts(pipeline_module: type[Module], parts: Sequence[int]) -> type[Module]:
    """Return a class like ``deepspeed.pipe.PipelineModule`` with these parts, whatever its partition_method.

    Raise InputError from the class, if the model has another number of layers or stages.
    """

    class Parted(pipeline_module):  # type: ignore[valid-type, misc]  # DeepSpeed is not installed when types are checked
        def _partition_layers(self, method: str = UNIFORM) -> None:  # noqa: ARG002 - the signature is DeepSpeed's
            own: Any = self
            has = (len(own._layer_specs), own.num_stages)
            if has != (parts[-1], len(parts) - 1):
                raise InputError(
                    f"parts {list(parts)} are for {parts[-1]} layers in {len(parts) - 1} stages, "
                    f"the model has {has[0]} in {has[1]}; plan for this model"
                )
            own.parts = list(parts)
            stage = own._topo.get_coord(own.global_rank).pipe
            own._set_bounds(start=parts[stage], stop=parts[stage + 1])

    return Parted
