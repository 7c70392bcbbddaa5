"""``python -m planner``, and the command ``planner``."""

import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; Ctrl-C ends it quietly from its first moment to its last."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # which would show where it came
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from graphs.common.shortages import guard_imports  # late: half of the start is imports
    from planner.cli import main as run
    from planner.cli.streams import ignore_shortages

    ignore_shortages()
    guard_imports()
    status = run(arguments)
    exec("")  # else Python ends by SIGINT if an interrupt has left an `exec` of a text, as those of dataclasses
    return status


if __name__ == "__main__":
    sys.exit(main())
