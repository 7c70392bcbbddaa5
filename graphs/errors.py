"""The one error of this project that is the user's to mend."""

from collections.abc import Iterable


class InputError(ValueError):
    """Bad input. The message is one line: the thing, the rule, the value and the way out."""


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'plan'?", or nothing if no known word is like this one."""
    from difflib import get_close_matches  # late: only errors need it

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
