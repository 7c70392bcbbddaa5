"""StoredTensor: a tensor in the header of a file of weights, as it is stored."""

from dataclasses import dataclass

from costmodels.language_model.formats import WeightFormat


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in the header of a file of weights."""

    name: str
    shape: tuple[int, ...]  # outermost axis first, as PyTorch has it
    format: WeightFormat
    owner: int = -1  # the earlier layer whose weights these are; -1 for weights of its own
