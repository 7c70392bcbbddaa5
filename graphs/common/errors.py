"""The error for mistakes that the user can correct, with helpers for its message; the warning of a fallback."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from graphs.common.shortages import failures, shortage

_HEAD, _TAIL = 1200, 400
"""Characters at the beginning and the end of a message that stay; a file may have a value of any length in between."""


class InputError(ValueError):
    """Bad input. The message is one line: the thing, the rule, the value and the way out."""

    def __init__(self, message: str) -> None:
        long = len(message) > _HEAD + _TAIL
        super().__init__(f"{message[:_HEAD]} … {message[-_TAIL:]}" if long else message)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without a full stop."""
    return _line(error, 0)


def kind_and_line(error: BaseException) -> str:
    """The kind of an error, and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"


def last_line(error: BaseException) -> str:
    """The last line of an error's message, without a full stop."""
    return _line(error, -1)


def _line(error: BaseException, number: int) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[number] if lines else type(error).__name__).rstrip(". ")


def one_line(error: BaseException) -> str:
    """An error's whole message in one line, without a full stop."""
    text = " ".join(str(error).split())
    return (text or type(error).__name__).rstrip(". ")


FAILURES = (IndexError, RuntimeError, TypeError, ValueError)
"""Exceptions that PyTorch raises for tensors that an operator does not accept, and models for inputs."""


@contextmanager
def running(what: str | Callable[[], str]) -> Iterator[None]:
    """Run a model, or an operator of it, with the model's example inputs; a function ``what`` is called on failure.

    Raises:
        InputError: if PyTorch refuses.
    """
    try:
        yield
    except FAILURES as error:
        if isinstance(error, InputError) or type(error).__name__ == "OutOfMemoryError" or shortage(error):
            raise  # it says so itself; of a GPU, whose thread does; or the inputs are not at fault
        kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
        said = f"{kind}{first_line(error)}"
        name = what if isinstance(what, str) else what()
        raise InputError(f"{name} fails with the example inputs: {said}; give inputs that it takes") from error


@contextmanager
def foreign_code(said: Callable[[BaseException], str]) -> Iterator[None]:
    """Run code of others for a user's input, such as a model's own or a tracer's; ``said`` is called on failure.

    Raises:
        InputError: for whatever it raises, other than an InputError and a shortage of the machine.
    """
    with failures() as found:
        yield
    for error in found:
        raise error if isinstance(error, InputError) else InputError(said(error)) from error


class FallbackWarning(RuntimeWarning):
    """Something has failed that a network does without: a faster kernel, or inputs besides its texts."""


_warned_of: dict[str, str] = {}
"""Texts of the warnings that this process has issued, by reason."""


def warn_once(what: str, error: BaseException, instead: str) -> None:
    """Warn that something fails here and what happens instead; once for each reason, whatever else fails for it."""
    reason = kind_and_line(error)
    say_once(reason, f"{what} fails here ({reason}); {instead}")


def say_once(reason: str, text: str) -> None:
    """Warn of a fallback here or in another process, unless this process has warned of the same reason before."""
    if reason not in _warned_of:
        _warned_of[reason] = text
        warnings.warn(text, FallbackWarning, stacklevel=3)


def fallbacks() -> tuple[tuple[str, str], ...]:
    """Return what this process has said, with the reason before each text."""
    return tuple(_warned_of.items())


@contextmanager
def fallbacks_said(say: Callable[[str], object]) -> Iterator[None]:
    """Say in one line what has failed and what happens instead; other warnings are shown as Python shows them."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", FallbackWarning)
        show = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, FallbackWarning):
                say(str(message))
            else:
                show(message, category, *where)

        warnings.showwarning = shown  # type: ignore[assignment]  # it is called by position
        yield


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'plan'?", or nothing if no known word is similar; the comparison ignores case."""
    from difflib import get_close_matches  # late: only errors need it

    words = list(known)
    close = get_close_matches(word.casefold(), [other.casefold() for other in words], n=1)
    alike = get_close_matches(word, [other for other in words if other.casefold() in close], n=1, cutoff=0.0)
    return f"; did you mean '{alike[0]}'?" if alike else ""
