"""Errors of a plan that runs."""


class StageError(RuntimeError):
    """A stage failed; the message names it and its device, ``__cause__`` is the original exception."""


class RankError(RuntimeError):
    """A process of the plan ended, cannot be reached, or does not answer."""


class RemoteError(RuntimeError):
    """An exception of a stage in another process; the text is its traceback there."""
