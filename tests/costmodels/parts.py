"""Cost tables with other numbers, each named alone: the table's, its training's and its contention's."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from costmodels.contention_costs import ContentionCosts
from costmodels.table import CostTable
from costmodels.training_costs import TrainingCosts

SLOWER = {"slowdown": "slowdown", "copies_slowdown": "copies_slowdown", "contention_group": "group"}
TRAINED = tuple(field.name for field in fields(TrainingCosts))


def table_with(table: CostTable, **costs: Any) -> CostTable:
    """The table with some costs; the training or the contention that they belong to is made if there is none."""
    training = {name: costs.pop(name) for name in TRAINED if name in costs}
    contention = {own: costs.pop(name) for name, own in SLOWER.items() if name in costs}
    size = len(costs.get("flows", table.flows))
    if training:
        known = table.training or TrainingCosts.none(table.n_ops, table.n_devices, size)
        costs["training"] = replace(known, **training)
    if contention:
        known_shares = table.contention or ContentionCosts(np.zeros(table.forward_s.shape))
        costs["contention"] = replace(known_shares, **contention)
    return replace(table, **costs)
