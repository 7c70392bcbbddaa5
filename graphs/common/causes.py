"""Causes: the errors that led to an error."""

from collections.abc import Iterator


def led_to(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it, the latest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
