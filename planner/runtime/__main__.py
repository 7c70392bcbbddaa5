"""One rank of a plan in several processes, as torchrun starts it.

torchrun --nproc-per-node=2 -m planner.runtime plan.json examples.networks:googlenet
torchrun --nproc-per-node=2 -m planner.runtime plan.json shards      # from `planner shard`: each rank has its own alone
"""

import sys

from planner.cli.rank import main

if __name__ == "__main__":
    sys.exit(main())
