"""What tests of kernels share."""

from collections.abc import Iterator

import pytest
import torch

from costmodels.host.affinity import use_threads


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A device of one core, whose kernels are oneDNN's and this package's own; random numbers are always the same."""
    before = use_threads(1)
    torch.manual_seed(0)
    yield
    use_threads(before)
