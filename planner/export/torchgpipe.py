"""torchgpipe: the balance of ``torchgpipe.GPipe``: the number of an nn.Sequential's layers in each partition.

::

    {"balance": [2, 3], "devices": [0, 1]}

    GPipe(model, balance=[2, 3], devices=[0, 1], chunks=8)

https://torchgpipe.readthedocs.io/en/stable/guide.html
"""

from planner.export.devices import device_words
from planner.export.pipelines import layers_of
from planner.export.records import Export
from planner.plans.plan import Plan

NAME = "torchgpipe"


def torchgpipe(plan: Plan) -> Export:
    """The balance and the devices of torchgpipe, for an nn.Sequential.

    Raises:
        InputError: if the model is no chain of its children, or a child is on two devices.
    """
    layers, words = layers_of(plan, NAME), device_words(plan.cluster)
    return Export({"balance": layers.balance, "devices": [words[device] for device in layers.devices]})
