"""Rendezvous: all ranks find each other through a store, check that they have the same plan, and connect.

Each rank puts information about itself into the store and reads that of the others. So a rank that does not come,
cannot start, or has another plan is named before anything runs.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
from torch.distributed import DistError, PrefixStore, ProcessGroupGloo, Store, TCPStore  # type: ignore[attr-defined]  # they are public

from costmodels.host.stores import STORE_S
from graphs.common.errors import InputError
from planner.plans.plan import Plan
from planner.runtime.distributed.transport.checksums import DamagedMessage, sealed, unsealed
from planner.runtime.distributed.transport.connections import ProcessGroup
from planner.runtime.distributed.transport.layout import COORDINATOR, RankLayout
from planner.runtime.distributed.transport.liveness import NEAR_SILENT_S, Heartbeats, clock_name, pid_space
from planner.runtime.errors import RankError

MEET_S = 60.0  # for all ranks to come: to start, to load torch and to read their weights
JOIN_S = 20.0  # for the ranks that have come to connect
LOOK_S = 0.005
DIGITS = 12


@dataclass(frozen=True)
class PeerInfo:
    """The facts about a rank that the other ranks need."""

    plan: str  # the same for ranks that fit together
    torch: str  # its version
    clock: str  # the same for ranks that share a clock, as those of one host do
    pid: int  # number of its process there
    trouble: str = ""  # why the rank cannot start; empty if it can
    pids: str = ""  # the same for ranks of one host that see each other's process numbers
    seed: int = 0  # seed of random operators; the coordinator's counts

    def beside(self, other: "PeerInfo") -> bool:
        """Return whether both ranks are on one host."""
        return self.clock == other.clock != ""

    def seen_by(self, other: "PeerInfo") -> bool:
        """Return whether the other rank can see this rank's process."""
        return self.beside(other) and self.pids == other.pids != ""

    def heartbeats_of(self, peer: "PeerInfo", silence_s: float, waits: bool = False) -> Heartbeats:
        """Return how long another rank may be silent: ``silence_s``, or longer if its process is visible."""
        return Heartbeats(NEAR_SILENT_S, peer.pid, waits) if peer.seen_by(self) else Heartbeats(silence_s)


def peer_info_of(plan: Plan, seed: int = 0) -> PeerInfo:
    """Return the information about this rank."""
    devices = [[device.name, list(device.cores), device.cuda] for device in plan.cluster.devices]
    placed = [[[copy.device, copy.order] for copy in plan.placement.copies], plan.workload.in_flight, devices]
    mark = hashlib.sha256(json.dumps([plan.graph.fingerprint, placed]).encode()).hexdigest()[:DIGITS]
    return PeerInfo(mark, torch.__version__, clock_name(), os.getpid(), pids=pid_space(), seed=seed)


def meet(
    store: Store,
    layout: RankLayout,
    rank: int,
    peer_info: PeerInfo,
    ended: Callable[[], str] = str,
    timeout_s: float = MEET_S,
) -> tuple[PeerInfo, ...]:
    """Wait for all ranks, and return the information about them; ``ended`` says which rank has ended meanwhile, if any.

    Raise InputError if a rank has trouble, or another plan or torch; RankError if one ends, or does not come in time,
    or what it says of itself comes damaged.
    """
    peer_infos: dict[int, PeerInfo] = {}
    ranks = range(len(layout.devices))
    end_s = time.monotonic() + timeout_s
    with asking():
        _leave(store, rank, peer_info)
        while True:
            why = ended()  # asked first: what a rank left before it ended is then seen
            for other in ranks:
                if other not in peer_infos and store.check([_key(other)]):
                    peer_infos[other] = _peer_info(store, layout, other)
            check_peer_infos(layout, peer_info, peer_infos)
            missing = [other for other in ranks if other not in peer_infos]
            if not missing:
                return tuple(peer_infos[other] for other in ranks)
            if why:
                raise RankError(why)
            if time.monotonic() > end_s:
                raise RankError(
                    f"{layout.title(missing[0])} did not come within {timeout_s:.0f} s; "
                    "see that its process runs and can reach the others, and start again"
                )
            time.sleep(LOOK_S)


def _peer_info(store: Store, layout: RankLayout, rank: int) -> PeerInfo:
    """Read the information about a rank that is there; raise RankError if it is damaged."""
    try:
        return PeerInfo(**json.loads(unsealed(store.get(_key(rank)))))
    except DamagedMessage as error:
        raise RankError(f"{layout.title(rank)} has come with {error}; start again") from error


def check_peer_infos(layout: RankLayout, ours: PeerInfo, peer_infos: Mapping[int, PeerInfo]) -> None:
    """Check that ranks, by number, fit this one; raise InputError if a rank has trouble, or another plan or torch."""
    for rank, theirs in peer_infos.items():
        title = layout.title(rank)
        if theirs.trouble:
            raise InputError(f"{title} cannot start: {theirs.trouble}")
        if theirs.plan != ours.plan:
            raise InputError(
                f"{title} has come with another plan ({theirs.plan}, here it is {ours.plan}); give every rank the same "
                "one"
            )
        if theirs.torch != ours.torch:
            raise InputError(f"{title} has torch {theirs.torch}, here it is {ours.torch}; install the same everywhere")


@contextmanager
def asking() -> Iterator[None]:
    """Explain that the store is gone; raise RankError if it is."""
    try:
        yield
    except DistError as error:
        raise RankError("the store where the ranks meet is gone; see what rank 0 says") from error


def tell_trouble(store: Store, rank: int, trouble: str) -> None:
    """Tell the other ranks why this one does not come."""
    with asking():
        _leave(store, rank, PeerInfo("", torch.__version__, "", os.getpid(), trouble))


def join(store: Store, rank: int, n_ranks: int, rendezvous_at: str) -> ProcessGroup:
    """Connect with all ranks, which have met; raise RankError if that does not succeed in time.

    The others reach this rank at the address from which it reaches the store at ``rendezvous_at``, if
    GLOO_SOCKET_IFNAME names no network.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the one way to name a host
    networks = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if networks:
        options._devices = [ProcessGroupGloo.create_device(interface=name) for name in networks.split(",")]
    else:
        options._devices = [ProcessGroupGloo.create_device(hostname=own_address(rendezvous_at))]
    options._timeout = timedelta(seconds=JOIN_S)
    try:
        return ProcessGroupGloo(PrefixStore("gloo", store), rank, n_ranks, options)  # type: ignore[return-value]
    except RuntimeError as error:
        raise RankError(
            f"the ranks met but could not connect: {str(error).splitlines()[0]}; see that every host reaches every "
            "other, and name the network in GLOO_SOCKET_IFNAME where there are several"
        ) from error


def own_address(peer: str) -> str:
    """Return the own address as a host that can be reached sees it; nothing is sent to find out."""
    family, kind, _, _, peer_address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(peer_address)
        address: str = probe.getsockname()[0]
    return address


def _leave(store: Store, rank: int, peer_info: PeerInfo) -> None:
    store.set(_key(rank), sealed(json.dumps(asdict(peer_info)).encode()).decode())


def _key(rank: int) -> str:
    return f"rank {rank}"


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
