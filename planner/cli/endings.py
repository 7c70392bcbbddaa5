"""How a command ends without an answer: a line and an exit status for each kind of error."""

from collections.abc import Callable

from graphs.common.errors import InputError
from graphs.common.shortages import shortage
from planner.cli.statuses import BAD_INPUT, BROKEN, DONE
from planner.runtime.errors import RankError, StageError

ROOM = "end other programs, raise the limit (ulimit -a) or make room, and begin again"


def status_of(command: Callable[[], int], say: Callable[[str], object]) -> int:
    """Run a command and return its exit status; say in one line why it has no answer.

    Whatever it raises that is neither the user's input, nor a failed rank, nor a shortage of the machine, is raised.
    """
    try:
        return command()
    except InputError as error:
        say(str(error))
        return BAD_INPUT
    except (StageError, RankError) as error:
        say(str(error))
        return BROKEN
    except BrokenPipeError:  # `planner ... | head`: the reader has seen enough
        return DONE
    except Exception as error:
        if not (said := shortage(error)):
            raise
        say(f"this machine has too little: {said}; {ROOM}")
        return BAD_INPUT
