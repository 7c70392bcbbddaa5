"""Exit statuses, the same for every command."""

DONE = 0
NO_PLAN = DIFFERENT = BROKEN = 1
"""No answer keeps the constraints; answers differ from the reference model's; another rank has failed."""

BAD_INPUT = 2
INTERRUPTED = 130
