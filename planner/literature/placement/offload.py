"""The cost table of a host with accelerators, which exchange tensors through the memory of the host."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from costmodels.table import SHAPES, CostTable
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.errors import InputError


@dataclass(frozen=True)
class Offload(Brief):
    """Accelerators next to a host: what leaves one is stored in the host's memory; what enters one is fetched there.

    A flow is stored once, however many devices read it, and fetched once by each of them. For latency, an accelerator
    is called once: it fetches all that it needs, runs its operators and stores what others need (Tarnawski et al.,
    Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020).
    """

    store_s: Floats  # [n_flows, n_devices], seconds that the writer's device is occupied if another one reads the flow
    fetch_s: Floats  # [n_flows, n_devices], seconds that each other device which reads the flow is occupied
    host: NDArray[np.bool_]  # [n_devices], whether a device is the host; for latency it runs operators all at once


@dataclass(frozen=True)
class OffloadTable(CostTable):
    """A cost table whose links say only which device may read what another one writes, and cost nothing.

    Attributes:
        offload: what devices pay for the tensors that they exchange.

    Raises:
        InputError: as `CostTable`, and if devices slow each other down, or transfers have overheads or overlap.
    """

    offload: Offload = field(kw_only=True)

    shapes: ClassVar[Mapping[str, str]] = {
        **SHAPES,
        "offload.host": "d",
        "offload.store_s": "fd",
        "offload.fetch_s": "fd",
    }
    in_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slowdown.any():
            raise InputError(
                "the cost table has both offload and slowdown; accelerators do not share their host's memory: leave "
                "out the slowdown"
            )
        if self.overlap or self.overhead_s.any():
            raise InputError(
                "the cost table has offload and overlap or overhead_s; all that transfers cost is in offload: leave "
                "out the others"
            )


def offload_of(table: CostTable) -> Offload:
    """Return what devices pay for tensors; the table must be an `OffloadTable`."""
    assert isinstance(table, OffloadTable)
    return table.offload
