"""Counts the bytes of storages that are alive, with reference counts."""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Storage:
    """Memory that is freed by its last holder."""

    n_bytes: int  # size in bytes
    holders: int = 1  # number of holders
    keepers: int = 0  # number of holders that keep it until a later pass


@dataclass(slots=True)
class Ledger:
    """Allocated bytes and their peaks."""

    now_bytes: int = 0  # bytes of all storages with holders
    kept_bytes: int = 0  # bytes of all storages with keepers; the others are temporary
    peak_bytes: int = 0  # peak of ``now_bytes`` since `restart`
    passing_bytes: int = 0  # peak of the temporary bytes since `restart`

    def new(self, n_bytes: int) -> Storage:
        """Allocate a storage for one holder."""
        self.now_bytes += n_bytes
        self._note()
        return Storage(n_bytes)

    def hold(self, storage: Storage) -> Storage:
        """Add a holder."""
        storage.holders += 1
        return storage

    def drop(self, storage: Storage) -> None:
        """Remove a holder; the last one frees the storage."""
        storage.holders -= 1
        if not storage.holders:
            self.now_bytes -= storage.n_bytes

    def keep(self, storage: Storage) -> Storage:
        """Make one of the holders a keeper."""
        storage.keepers += 1
        if storage.keepers == 1:
            self.kept_bytes += storage.n_bytes
        return storage

    def release(self, storage: Storage) -> None:
        """Remove a keeper, who is no holder afterwards either."""
        storage.keepers -= 1
        if not storage.keepers:
            self.kept_bytes -= storage.n_bytes
        self.drop(storage)

    def burst(self, n_bytes: int) -> None:
        """Allocate and free bytes at once."""
        self._note(n_bytes)

    def restart(self) -> None:
        """Set the peaks to the bytes that are alive now."""
        self.peak_bytes = self.passing_bytes = 0
        self._note()

    def _note(self, more_bytes: int = 0) -> None:
        self.peak_bytes = max(self.peak_bytes, self.now_bytes + more_bytes)
        self.passing_bytes = max(self.passing_bytes, self.now_bytes - self.kept_bytes + more_bytes)
