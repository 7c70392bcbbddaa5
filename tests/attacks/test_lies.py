"""A lie is another word than the true one, told once by one rank, in a channel that its ranks have."""

from collections import Counter

import pytest
import torch

from planner.runtime.distributed.transport import rendezvous
from planner.runtime.distributed.transport.checksums import DamagedMessage, sealed, unsealed
from planner.runtime.distributed.transport.messages import Head, Kind, Message, pack, unpack
from tests.attacks.lies import CHANNELS, MOST, OF_ALL, Liar, lie

SEEDS = 300


@pytest.mark.parametrize("what", ["row", "text", "tensor"])
def test_what_is_damaged_differs(what: str) -> None:
    row, text, tensor = torch.arange(9, dtype=torch.uint8), sealed(b"{}").decode(), torch.ones(2, 3)
    for seed in range(SEEDS):
        liar = Liar(str(seed), trains=True)
        if what == "row":
            assert liar.damaged_row(row).tolist() != row.tolist()
        elif what == "text":
            assert liar.damaged_text(text) != text
        else:
            damaged = liar.damaged_tensor(tensor)
            assert damaged.dtype == torch.uint8 or damaged.isnan().all()
    assert row.tolist() == [*range(9)]


def test_one_rank_lies_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        words = []
        for rank in ("1", "2"):
            monkeypatch.setenv("RANK", rank)
            liar = Liar(str(seed), trains=True)
            words += [liar.lies() for _ in range(MOST[liar.channel])]
        assert sum(words) == 1


def test_each_channel_is_lied_in() -> None:
    assert {*MOST} == {*CHANNELS}
    assert Counter(Liar(str(seed), True).channel for seed in range(SEEDS)).keys() == {*CHANNELS}
    assert Counter(Liar(str(seed), False).channel for seed in range(SEEDS)).keys() == {*OF_ALL}


@pytest.mark.attack("process")
def test_a_damaged_greeting_and_a_damaged_text_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(rendezvous, "sealed", sealed)  # is put back
    seeds = (str(seed) for seed in range(SEEDS))
    greeting = next(s for s in seeds if (liar := Liar(s, False)).channel == "greeting" and liar.lies())
    lie(greeting, trains=False)
    with pytest.raises(DamagedMessage):
        unsealed(vars(rendezvous)["sealed"](b"{}"))
    row = pack(Message(Kind.SPANS, text="[[], []]"))
    assert unpack(Head.of(row), row, ()).text == "[[], []]"
    row[-1] += 1
    with pytest.raises(DamagedMessage, match="a message that is damaged: SPANS"):
        unpack(Head.of(row), row, ())
