"""Which devices are alike, and which can swap their places."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from costmodels.contention_costs import ContentionCosts
from costmodels.step_update import StepUpdate
from costmodels.table import CERTAINTY, LABELS, CostTable, arrays_of
from costmodels.training_costs import TrainingCosts
from planner.literature.placement.offload import Offload, OffloadTable
from planner.problem.devices import alike, interchangeable, uniform_links
from tests.planner.literature.placement.offloads import with_offload
from tests.planner.problem.problems import make_table

OF_DEVICES = [name for name, shape in OffloadTable.shapes.items() if "d" in shape]
ALL = ((0, 1, 2, 3),)
ONES = np.ones(4)


def equal_devices(*, beside_a_host: bool = False) -> CostTable:
    """Four devices with the same costs of every kind; accelerators beside a host have no contention."""
    table = make_table([[2] * 4] * 2, [(0, (1,), 1)], overhead_s=ONES, spread=np.ones((2, 4)))
    update = StepUpdate(np.ones(2), ONES, ONES, ONES, np.zeros(4, dtype=np.int64))
    training = TrainingCosts(np.ones((2, 4)), np.ones(1, dtype=bool), update=update)
    if beside_a_host:
        table = replace(table, training=training)
        return with_offload(table, Offload(np.ones((1, 4)), np.ones((1, 4)), ONES < 1))
    return replace(table, training=training, contention=ContentionCosts(np.ones((2, 4))))


def changed(record: Any, name: str, values: Any) -> Any:
    """The record with another array, which may be that of a part."""
    first, _, rest = name.partition(".")
    return replace(record, **{first: changed(getattr(record, first), rest, values) if rest else values})


def with_another_last_device(name: str) -> CostTable:
    """A table whose last device differs from the equal others in one array alone."""
    table = equal_devices(beside_a_host=name.startswith("offload"))
    if name == "link_class":  # the others send to each other by a second kind of link
        table = replace(table, link_s=np.ones((1, 2)), link_latency_s=np.zeros(2))
    values = dict(arrays_of(table))[name].copy()
    if name == "channel":
        values[:3, :3][values[:3, :3] >= 0] = 0  # the others share a channel
    elif name == "link_class":
        values[:3, :3][values[:3, :3] >= 0] = 1
    elif name == "source":
        values[..., -1] = "measured"
    else:
        values[..., -1] = values[..., -1] + 1 if values.dtype != bool else ~values[..., -1]
    return changed(table, name, values)  # type: ignore[no-any-return]


def all_arrays(record: Any, path: str = "") -> Iterator[str]:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, np.ndarray):
            yield path + field.name
        elif is_dataclass(value):
            yield from all_arrays(value, f"{path}{field.name}.")


def test_every_array_of_a_table_says_whether_it_has_devices() -> None:
    tables = equal_devices(), equal_devices(beside_a_host=True)
    assert {name for table in tables for name in all_arrays(table)} == set(OffloadTable.shapes)


@pytest.mark.parametrize("beside_a_host", [False, True])
def test_devices_with_the_same_costs_of_every_kind_are_interchangeable(beside_a_host: bool) -> None:
    table = equal_devices(beside_a_host=beside_a_host)
    assert alike(table) == interchangeable(table) == ALL


@pytest.mark.parametrize("name", [name for name in OF_DEVICES if name not in CERTAINTY])
def test_a_device_that_differs_in_one_cost_alone_is_not_interchangeable(name: str) -> None:
    assert interchangeable(with_another_last_device(name)) == ((0, 1, 2), (3,))


@pytest.mark.parametrize("name", [name for name in OF_DEVICES if name not in CERTAINTY])
def test_devices_are_alike_if_they_have_the_same_costs_of_their_own(name: str) -> None:
    of_pairs = name in LABELS or OffloadTable.shapes[name] == "dd"
    assert alike(with_another_last_device(name)) == (ALL if of_pairs else ((0, 1, 2), (3,)))


@pytest.mark.parametrize("name", sorted(CERTAINTY))
def test_how_certain_a_cost_is_tells_no_devices_apart(name: str) -> None:
    table = with_another_last_device(name)
    assert alike(table) == interchangeable(table) == ALL


def test_devices_are_alike_in_other_numbers_besides() -> None:
    table = make_table([[1, 1, 1, 2]])
    assert alike(table) == ((0, 1, 2), (3,))
    assert alike(table, np.array([[7, 8, 7, 7]])) == ((0, 2), (1,), (3,))


def test_identical_devices_are_interchangeable() -> None:
    table = make_table([[1, 2, 1, 1]], capacity_bytes=[9, 9, 9, 8])
    assert interchangeable(table) == ((0, 2), (1,), (3,))


def test_devices_that_differ_alone_or_in_training_are_not_interchangeable() -> None:
    def classes(**fields: Any) -> tuple[tuple[int, ...], ...]:
        return interchangeable(make_table([[1] * 4], **fields))

    contention_group, ones = np.array([0, 0, 1, 1]), np.ones(4)
    assert classes(slowdown=np.array([[1.0, 1.0, 0.0, 1.0]])) == ((0, 1, 3), (2,))
    assert classes(slowdown=np.ones((1, 4)), contention_group=contention_group) == ((0, 1), (2, 3))
    assert classes(contention_group=contention_group) == ((0, 1, 2, 3),)
    assert classes(backward_s=np.array([[1.0, 2.0, 1.0, 1.0]])) == ((0, 2, 3), (1,))
    assert classes(update=StepUpdate(np.ones(1), np.array([1.0, 1.0, 1.0, 2.0]), ones, ones)) == ((0, 1, 2), (3,))
    assert classes(update=StepUpdate(np.ones(1), ones, ones, ones, np.array([0, 0, 1, 1]))) == ((0, 1), (2, 3))


def test_devices_of_two_hosts_are_interchangeable_within_their_host() -> None:
    slow = [[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]]
    assert interchangeable(make_table([[1] * 4], per_byte=slow)) == ((0, 1), (2, 3))
    one_way = [[0, 1, 9, 9], [2, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]]
    assert interchangeable(make_table([[1] * 4], per_byte=one_way)) == ((0,), (1,), (2, 3))


def test_a_shared_channel_tells_devices_apart() -> None:
    table = make_table([[1] * 3])
    channel = table.channel.copy()
    channel[0, 1] = channel[0, 2]  # dev0 sends through one port: dev1 and dev2 can still swap, with dev0 they cannot
    assert interchangeable(make_table([[1] * 3])) == ((0, 1, 2),)
    assert interchangeable(replace(table, channel=channel)) == ((0,), (1, 2))


def test_links_are_uniform_if_all_are_there_and_alike() -> None:
    assert uniform_links(make_table([[1] * 3], link_s=1.0, per_byte=2.0))
    assert uniform_links(make_table([[1]]))
    assert not uniform_links(make_table([[1] * 2], link_s=[[0, 1], [2, 0]]))
    assert not uniform_links(make_table([[1] * 2], per_byte=[[0, 1], [2, 0]]))
    assert not uniform_links(make_table([[1] * 2], link_s=[[0, np.inf], [np.inf, 0]]))
