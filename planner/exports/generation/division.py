"""The division of a plan for generating text, as exports read it: from the plan or from its file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphs.common.brief import Brief
from graphs.common.errors import InputError


@dataclass(frozen=True)
class StageOf(Brief):
    """Neighbouring layers of a plan on some devices."""

    devices: tuple[str, ...]
    start: int
    stop: int
    away: tuple[int, ...]
    host: str


@dataclass(frozen=True)
class GenerationDivision(Brief):
    """Parts of a plan that exports need.

    Attributes:
        document: the whole document.
        stages: in the order in which a token passes them.
        hosts: the host of each device.
        numbers: the number of each GPU within its host; processors have none.
    """

    document: Mapping[str, Any]
    stages: tuple[StageOf, ...]
    hosts: Mapping[str, str]
    numbers: Mapping[str, int]

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return int(self.document["layers"])

    @property
    def context(self) -> int:
        """Tokens that each sequence has room for."""
        return int(self.document["context"])

    @property
    def sequences(self) -> int:
        """Sequences at once."""
        return int(self.document["sequences"])

    @property
    def cache(self) -> str:
        """Format of the cache."""
        return str(self.document["cache"])

    def is_gpu(self, device: str) -> bool:
        """Return whether a device is a GPU."""
        return device in self.numbers


def division_of(document: Mapping[str, Any]) -> GenerationDivision:
    """Return the division of a document.

    Raises:
        InputError: for layers that are not each on one stage, or a device that is not there.
    """
    hardware: Sequence[Mapping[str, Any]] = document["hardware"]
    stages = tuple(
        StageOf(tuple(each["devices"]), each["start"], each["stop"], tuple(each["away"]), each["host"])
        for each in document["stages"]
    )
    bounds = [(stage.start, stage.stop) for stage in stages]
    starts = [0, *(stop for _, stop in bounds)]
    if not stages or [start for start, _ in bounds] != starts[:-1] or starts[-1] != document["layers"]:
        raise InputError("the plan does not have each layer on one stage, in order; plan again with `planner fit -o`")
    hosts = {each["name"]: each["host"] for each in hardware}
    strange = next((device for stage in stages for device in stage.devices if device not in hosts), None)
    if strange is not None:
        raise InputError(f"the plan has layers on '{strange}', which is none of its devices; plan again")
    return GenerationDivision(document, stages, hosts, _gpu_numbers(hardware))


def _gpu_numbers(hardware: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of each GPU within its host, in the order of the cluster unless it has one."""
    numbers: dict[str, int] = {}
    counts: dict[str, int] = {}
    for each in hardware:
        if not each["processor"]:
            host = each["host"]
            numbers[each["name"]] = counts.get(host, 0) if each["cuda"] is None else each["cuda"]
            counts[host] = counts.get(host, 0) + 1
    return numbers
