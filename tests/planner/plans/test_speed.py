"""Tokens a second and model FLOPs utilisation, by hand."""

import pytest
import torch
from torch import nn

from costmodels.cluster.file import read_cluster
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from planner.planning.find_plan import plan
from planner.plans.speed import model_flops_utilisation, tokens_per_s, tokens_per_sample, what_tokens

LENGTH, WORDS, WIDTH = 8, 64, 512


class Words(nn.Module):
    """Two products for each of some words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.mix(self.words(text)))
        return answer


PRODUCTS_FLOP = 2 * 2 * LENGTH * (WIDTH * WIDTH + WIDTH * WORDS)  # of two samples, one pass
TEXT = (torch.zeros(2, LENGTH, dtype=torch.int64),)


@pytest.mark.parametrize(("mode", "passes"), [("inference", 1), ("training", 3)])
def test_a_network_of_words_has_tokens_and_a_share_of_the_peak(mode: str, passes: int) -> None:
    program = program_from_module(Words().eval(), TEXT, training=mode == "training")
    goal = "training" if mode == "training" else "throughput"
    work = Workload(mode, batch=2, in_flight=1, micro_batches=4)  # type: ignore[arg-type]
    found = plan(program.graph, cluster=read_cluster("T4"), goal=goal, workload=work)
    assert tokens_per_sample(found.graph, 2) == LENGTH
    assert tokens_per_s(found) == LENGTH * found.samples_per_s
    assert what_tokens(found) == {
        "inference": "tokens/s of the prompt, in one pass",
        "training": "tokens/s of training",
    }.get(mode)
    expected = passes * PRODUCTS_FLOP / (8.1e12 * found.period_s)
    assert model_flops_utilisation(found) == pytest.approx(expected, rel=0.02)  # biases and words are the rest


def test_a_network_that_reads_one_word_generates() -> None:
    program = program_from_module(Words().eval(), (torch.zeros(2, 1, dtype=torch.int64),))
    found = plan(program.graph, cluster=read_cluster("T4"), workload=Workload(batch=2, in_flight=1))
    assert what_tokens(found) == "tokens/s, one a sample in each pass"


def test_a_network_of_pictures_has_no_tokens() -> None:
    graph = program_from_module(nn.Conv2d(3, 4, 3).eval(), (torch.zeros(1, 3, 8, 8),)).graph
    assert tokens_per_sample(graph, 1) is None
