"""A translator of two recurrent halves (Sutskever et al. 2014), fed with the target sentence as in training."""

import torch
from torch import Tensor, nn

from examples.networks.factory import Network, build


def lstm_seq2seq(
    batch: int = 1, length: int = 40, hidden: int = 1024, layers: int = 2, vocabulary: int = 16_000
) -> Network:
    """An LSTM encoder and decoder; two sentences [batch, length] to logits [batch, length, vocabulary].

    The defaults have 82,755,200 parameters, and the encoder does about a third of the work.
    """

    def sentence() -> Tensor:
        return torch.randint(vocabulary, (batch, length))

    return build(lambda: Seq2Seq(hidden, layers, vocabulary), lambda: (sentence(), sentence()))


class Seq2Seq(nn.Module):
    """The decoder starts from the last states of the encoder, layer by layer."""

    def __init__(self, hidden: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.encoder = Recurrent(hidden, layers, vocabulary)
        self.decoder = Recurrent(hidden, layers, vocabulary)
        self.projection = nn.Linear(hidden, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Maps word numbers of a sentence and of its translation so far to logits of the next words."""
        _, states = self.encoder(source, None)
        outputs, _ = self.decoder(target, states)
        logits: Tensor = self.projection(outputs)
        return logits


State = tuple[Tensor, Tensor]  # hidden and cell, each [1, batch, hidden]


class Recurrent(nn.Module):
    """An embedding and layers of LSTM, each its own module: one `nn.LSTM` of several layers would be one operator."""

    def __init__(self, hidden: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(nn.LSTM(hidden, hidden, batch_first=True) for _ in range(layers))

    def forward(self, words: Tensor, starts: list[State] | None) -> tuple[Tensor, list[State]]:
        """Maps word numbers [batch, length] to outputs [batch, length, hidden] and the last state of every layer."""
        x: Tensor = self.embedding(words)
        ends: list[State] = []
        for number, layer in enumerate(self.layers):
            x, end = layer(x, None if starts is None else starts[number])
            ends.append(end)
        return x, ends
