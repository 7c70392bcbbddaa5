"""The former name of ``planner rank``."""

import sys

print("planner: `python -m planner.runtime` is called `python -m planner rank` now; use that", file=sys.stderr)
sys.exit(2)
