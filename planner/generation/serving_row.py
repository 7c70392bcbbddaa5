"""ServingRow: a way to serve; and all ways to divide GPUs, with their batches."""

from collections.abc import Iterator
from dataclasses import dataclass

from costmodels.generation.serving import Served
from costmodels.generation.work import LayerShare, Machine
from graphs.common.brief import Brief
from planner.generation.question import GenerationQuestion

MOST_SEQUENCES = 4096  # of a data-parallel group


@dataclass(frozen=True)
class ServingGPUs(Brief):
    """GPUs with equal replicas of a model.

    Attributes:
        gpus: of each replica.
        replicas: of the model.
        tensor: GPUs that share every product.
        pipeline: stages of layers.
        data: groups of GPUs in a replica that have other sequences (data-parallel attention).
        experts: parts into which experts are divided.
    """

    gpus: int
    replicas: int
    tensor: int
    pipeline: int
    data: int
    experts: int


@dataclass(frozen=True)
class ServingRow(ServingGPUs):
    """A way to serve, and the GPUs that compute tokens.

    Attributes:
        sequences: at once, of all replicas.
        first_token_s: from a request to its first token.
        token_s: between two tokens of a sequence, prompts of others in between.
        tokens_per_s_gpu: generated tokens a second for each GPU, those of prompts included.
        weight_bytes: on each GPU.
        cache_bytes: on each GPU, for its sequences at the whole context.
        prompts: the GPUs that compute prompts; None if all GPUs compute both.
    """

    sequences: int
    first_token_s: float
    token_s: float
    tokens_per_s_gpu: float
    weight_bytes: float
    cache_bytes: float
    prompts: ServingGPUs | None = None

    @property
    def tokens_per_s_user(self) -> float:
        """Tokens a second of one sequence."""
        return 1 / self.token_s


def ways_of(question: GenerationQuestion, machine: Machine, gpus: int) -> Iterator[Served]:
    """Yield every division of the GPUs of a replica, of which some number makes up all ``gpus``."""
    parts = [work.experts for work in question.works if work.experts is not None]
    for size in _divisors(gpus):
        for pipeline in _divisors(size):
            if pipeline > len(question.works):
                continue
            for tensor in _divisors(size // pipeline):
                data = size // pipeline // tensor
                if any(count % tensor for count in question.heads) or (data > 1 and not parts):
                    continue
                for spread in sorted({1, tensor * data}) if parts else [1]:
                    if any(own.count % spread or own.width % (tensor * data // spread) for own in parts):
                        continue
                    share = LayerShare(tensor, data, spread)
                    yield Served(question.model, question.works, machine, share, question.value_bytes, pipeline)


def batches(served: Served, room: float, question: GenerationQuestion, gpus: int, most: int | None) -> Iterator[int]:
    """Yield sequences of a data-parallel group: powers of 2, and as many as memory has room for.

    Args:
        served: a replica.
        room: bytes of a GPU for weights and caches.
        question: with the context that a sequence has room for.
        gpus: of all replicas.
        most: sequences at once of all replicas; None for any.
    """
    places = int(served.places(room, question.context))
    groups = served.share.data * (gpus // served.devices)
    bound = min(places, MOST_SEQUENCES, MOST_SEQUENCES if most is None else most // groups)
    sequences = 1
    while sequences <= bound:
        yield sequences
        sequences *= 2
    if bound > 1 and bound & (bound - 1):
        yield bound


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
