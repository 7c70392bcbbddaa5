"""Exit statuses, the same for every command."""

DONE = 0
NO_PLAN = DIFFERENT = BROKEN = 1
"""There is no answer that keeps what was asked for; the answers are not the reference model's; another rank is gone."""

BAD_INPUT = 2
INTERRUPTED = 130
