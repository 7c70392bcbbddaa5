"""``python -m planner``, and the command ``planner``."""

import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; Ctrl-C ends it quietly from its first moment on."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # it would show where in an import the interrupt came
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from graphs.common.shortages import keep_door  # late: half of the start is imports
    from planner.cli import main as run
    from planner.cli.streams import ignore_shortages

    signal.signal(signal.SIGINT, before)
    ignore_shortages()
    keep_door()
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
