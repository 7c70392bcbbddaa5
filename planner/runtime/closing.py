"""Closing: what holds threads or processes ends them behind a ``with`` statement."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """For a ``with`` statement, at the end of which it is closed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
