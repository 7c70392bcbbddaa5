"""The one error of this project that is the user's to mend."""


class InputError(ValueError):
    """Bad input. The message is one line: the thing, the rule, the value and the way out."""
