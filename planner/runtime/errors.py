"""What goes wrong while a plan is at work."""


class StageError(RuntimeError):
    """A stage failed; the message names it and its device, ``__cause__`` is the original exception."""


class RankError(RuntimeError):
    """A process of the plan ended, cannot be reached, or does not answer."""


class RemoteError(RuntimeError):
    """What a stage raised in another process; the text is the traceback there."""
