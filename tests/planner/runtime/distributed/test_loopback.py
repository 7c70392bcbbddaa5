"""Processes of one host: nobody on a network can reach what they listen on."""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodels.host.stores import HERE
from planner.runtime.distributed.training.hosted_trainer import HostedTrainer
from planner.runtime.start import start
from tests.planner.runtime.distributed.inference.test_launcher import GOOD, plan_of
from tests.planner.runtime.distributed.training.test_hosted_trainer import BATCHES, PLAN, PROGRAM, TOOLS
from tests.planner.runtime.small import program_of

LISTENS = "0A"  # the state of a socket in proc(5)


def listening(pid: int) -> list[str]:
    """The addresses on which a process listens."""
    own = set(map(_link, Path(f"/proc/{pid}/fd").iterdir()))
    found = []
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = row.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in own:
                words = bytes.fromhex(
                    local.partition(":")[0]
                )  # of four bytes, each in the order of a little-endian CPU
                address = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found.append(socket.inet_ntop(family, address))
    return found


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # the descriptor that lists the folder
        return ""


@pytest.fixture(
    params=[pytest.param("runner", marks=pytest.mark.slow), pytest.param("trainer", marks=pytest.mark.slow)]
)
def addresses(request: pytest.FixtureRequest) -> Iterator[list[list[str]]]:
    """Of this process, besides what earlier tests have left open in it, and of others that have worked with it."""

    def those_of(*pids: int) -> list[list[str]]:
        own = list((Counter(listening(os.getpid())) - Counter(before)).elements())
        return [own, *map(listening, pids)]

    before = listening(os.getpid())
    if request.param == "runner":
        with start(plan_of(), program_of("tied"), processes=True) as runner:
            runner(GOOD)
            yield those_of(*runner.pids)
    else:
        with HostedTrainer(PLAN, PROGRAM, TOOLS) as trainer:
            trainer.step_through(BATCHES)
            yield those_of(*trainer.pids)


@pytest.mark.attack("process")
def test_all_that_listens_is_on_the_loopback_interface(addresses: list[list[str]]) -> None:
    assert len(addresses) == 3
    assert all(set(each) == {HERE} for each in addresses)


def test_what_listens_everywhere_is_seen() -> None:
    before = listening(os.getpid())
    for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with socket.create_server(("", 0), family=family):
            assert sorted(listening(os.getpid())) == sorted([*before, anywhere])
