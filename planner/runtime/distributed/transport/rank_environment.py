"""The environment of a rank: its number and where the ranks meet, as torchrun sets it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are public

from graphs.errors import InputError
from planner.runtime.distributed.transport.layout import COORDINATOR
from planner.runtime.errors import RankError

STORE_S = 30.0  # for one word with the store


@dataclass(frozen=True)
class RankEnvironment:
    """The number of a rank, and where the ranks meet."""

    rank: int  # number of this rank
    n_ranks: int  # how many there are
    address: str  # of the store's host
    port: int  # of the store
    served: bool  # whether the store is there already; else rank 0 serves it
    attempt: int = 0  # how often torchrun has started all anew

    @staticmethod
    def of(environment: Mapping[str, str]) -> "RankEnvironment":
        """Read torchrun's variables; raise InputError if they are missing."""
        try:
            return RankEnvironment(
                rank=int(environment["RANK"]),
                n_ranks=int(environment["WORLD_SIZE"]),
                address=environment["MASTER_ADDR"],
                port=int(environment["MASTER_PORT"]),
                served=environment.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True",
                attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            )
        except (KeyError, ValueError) as error:
            raise InputError(
                f"the environment does not say which rank we are ({type(error).__name__}: {error}); start with "
                "torchrun --nproc-per-node=N -m planner rank PLAN MODEL, or with planner run --processes"
            ) from error


def open_store(rank_environment: RankEnvironment) -> Store:
    """Open the store where the ranks meet; raise RankError if nobody serves it."""
    serves = rank_environment.rank == COORDINATOR and not rank_environment.served
    try:
        store = TCPStore(
            rank_environment.address,
            rank_environment.port,
            is_master=serves,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_S),
        )
    except RuntimeError as error:
        raise RankError(
            f"no store at {rank_environment.address}:{rank_environment.port}: {str(error).splitlines()[0]}; "
            "see that rank 0 runs there"
        ) from error
    return PrefixStore(f"planner {rank_environment.attempt}", store) if rank_environment.attempt else store
