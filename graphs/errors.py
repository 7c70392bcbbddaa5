"""The one error of this project that is the user's to mend."""

from collections.abc import Iterable


class InputError(ValueError):
    """Bad input. The message is one line: the thing, the rule, the value and the way out."""


def first_line(error: BaseException) -> str:
    """What went wrong, in one line without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(". ")


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'plan'?", or nothing if no known word is like this one."""
    from difflib import get_close_matches  # late: only errors need it

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
