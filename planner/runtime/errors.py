"""Errors of a plan that runs, also as texts that can be sent."""

import json
import traceback


class StageError(RuntimeError):
    """A stage failed; the message names it and its device, ``__cause__`` is the original exception."""


class RankError(RuntimeError):
    """A process of the plan ended, cannot be reached, or does not answer."""


class RemoteError(RuntimeError):
    """An exception of a stage in another process; the text is its traceback there."""


def failure_to_text(error: BaseException) -> str:
    """Write a stage's failure with its traceback."""
    cause = error.__cause__ or error
    trace = "".join(traceback.format_exception(cause)) if not isinstance(cause, RemoteError) else str(cause)
    return json.dumps({"message": str(error), "traceback": trace})


def failure_from_text(text: str) -> StageError:
    """Read a failure that `failure_to_text` has written, with the other process's traceback as its cause."""
    fields = json.loads(text)
    failure = StageError(fields["message"])
    failure.__cause__ = RemoteError("\n" + fields["traceback"])
    return failure
