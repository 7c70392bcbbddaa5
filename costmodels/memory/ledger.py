"""Bytes alive, storage by storage: a count of references says what is freed, and when."""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Storage:
    """Memory that is freed when its last holder lets go.

    Attributes:
        n_bytes: how much.
        holders: how many hold it.
        keepers: how many of them keep it until a later pass.
    """

    n_bytes: int
    holders: int = 1
    keepers: int = 0


@dataclass(slots=True)
class Ledger:
    """What is allocated now, and the most that was at any moment.

    Attributes:
        now_bytes: of all storages that somebody holds.
        kept_bytes: of those that somebody keeps; the others pass.
        peak_bytes: the most of ``now_bytes`` since `restart`.
        passing_bytes: the most of what passes since `restart`.
    """

    now_bytes: int = 0
    kept_bytes: int = 0
    peak_bytes: int = 0
    passing_bytes: int = 0

    def new(self, n_bytes: int) -> Storage:
        """Allocate, for one holder."""
        self.now_bytes += n_bytes
        self._note()
        return Storage(n_bytes)

    def hold(self, storage: Storage) -> Storage:
        """One holder more."""
        storage.holders += 1
        return storage

    def drop(self, storage: Storage) -> None:
        """One holder less; without any, it is freed."""
        storage.holders -= 1
        if not storage.holders:
            self.now_bytes -= storage.n_bytes

    def keep(self, storage: Storage) -> Storage:
        """Let one of the holders keep it."""
        storage.keepers += 1
        if storage.keepers == 1:
            self.kept_bytes += storage.n_bytes
        return storage

    def release(self, storage: Storage) -> None:
        """One keeper less, who holds it no more either."""
        storage.keepers -= 1
        if not storage.keepers:
            self.kept_bytes -= storage.n_bytes
        self.drop(storage)

    def burst(self, n_bytes: int) -> None:
        """Allocate and free at once."""
        self._note(n_bytes)

    def restart(self) -> None:
        """Forget the peaks: they are what is there now."""
        self.peak_bytes = self.passing_bytes = 0
        self._note()

    def _note(self, more_bytes: int = 0) -> None:
        self.peak_bytes = max(self.peak_bytes, self.now_bytes + more_bytes)
        self.passing_bytes = max(self.passing_bytes, self.now_bytes - self.kept_bytes + more_bytes)
