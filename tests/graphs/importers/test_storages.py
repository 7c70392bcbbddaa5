"""The meter: what is alive, to the byte."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from graphs.importers.footprints import Meter, Names, storage_key


def test_a_storage_counts_once_and_until_nobody_shows_it() -> None:
    with Meter() as meter:
        x = torch.ones(100)
        view = x.view(10, 10).t()
        assert (meter.n_bytes, storage_key(view)) == (400, storage_key(x))
        del x
        assert meter.n_bytes == 400
        del view
        assert (meter.n_bytes, meter.peak_bytes) == (0, 400)


def test_what_was_there_before_counts_only_if_it_is_added() -> None:
    x, y, z = torch.ones(10), torch.ones(20), torch.ones(30)
    with Meter() as meter:
        meter.ignore(x)
        meter.add(y)
        meter.add(y)
        x.add_(1)
        y.add_(1)
        assert meter.n_bytes == 80
        z.relu()
        assert (meter.n_bytes, meter.peak_bytes) == (80, 200)
        meter.restart()
        assert meter.peak_bytes == 80


def test_what_autograd_saves_is_alive_until_the_backward_pass() -> None:
    x = torch.ones(100, requires_grad=True)
    with Meter() as meter:
        y = (x * 2).relu().sum()  # relu's result is saved, x * 2 is not
        assert meter.n_bytes == 400 + 4
        y.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        assert meter.n_bytes == 400 + 4  # the gradient of x, and y


def test_fake_tensors_count_as_real_ones() -> None:
    with FakeTensorMode(), Meter() as meter:
        kept = torch.ones(1 << 40)
        torch.cat([kept, kept])
    assert (meter.n_bytes, meter.peak_bytes) == (4 << 40, 12 << 40)


def test_a_name_goes_with_its_storage() -> None:
    names = Names()
    first = torch.ones(10)
    names.setdefault(first.untyped_storage(), "first")
    names.setdefault(first.view(2, 5).untyped_storage(), "second")
    assert names.get(first[1:].untyped_storage()) == "first"
    assert names.get(torch.ones(10).untyped_storage()) is None
    address = storage_key(first)
    del first
    others: list[torch.Tensor] = []
    while not others or storage_key(others[-1]) != address:  # what is freed is soon taken again
        others.append(torch.ones(10))
        assert len(others) < 100_000
        assert names.get(others[-1].untyped_storage()) is None
    names.setdefault(others[-1].untyped_storage(), "third")
    assert names.get(others[-1].untyped_storage()) == "third"
