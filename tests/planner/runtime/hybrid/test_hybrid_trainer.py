"""HybridTrainer: losses and gradients of the model itself, under one configuration after another."""

import json
import sys

from tests.children import ran
from tests.planner.runtime.hybrid.ranks import NETWORKS


def test_any_degrees_train_as_the_model_itself_and_go_on_under_others() -> None:
    """Each configuration goes on from the state of the one before; the model itself is never interrupted."""
    done = ran([sys.executable, "-m", "tests.planner.runtime.hybrid.ranks"], check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)
    assert len(rows) == sum(len(cases) for *_, cases in NETWORKS.values())
    assert {row[0] for row in rows} == NETWORKS.keys()
    assert [row for row in rows if row[2] > 1 or row[3] > 1 or not row[4]] == []
