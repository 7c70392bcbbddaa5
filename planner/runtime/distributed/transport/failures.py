"""Failures as texts that travel, and as exceptions again."""

import json
import traceback

from planner.runtime.errors import RemoteError, StageError


def failure_to_text(error: BaseException) -> str:
    """A stage's failure with its traceback."""
    told = error.__cause__ or error
    trace = "".join(traceback.format_exception(told)) if not isinstance(told, RemoteError) else str(told)
    return json.dumps({"message": str(error), "traceback": trace})


def failure_from_text(text: str) -> StageError:
    """The failure that `failure_to_text` has written, with the other process's traceback as its cause."""
    told = json.loads(text)
    failure = StageError(told["message"])
    failure.__cause__ = RemoteError("\n" + told["traceback"])
    return failure
