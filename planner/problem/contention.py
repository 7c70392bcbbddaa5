"""What is proved for devices that compute all the time, said of devices that pause while others still compute.

Solvers and linear bounds add up contended times. The evaluator counts contention only while there is some (see
`simulator.placement.Placement.costs`), so its times are shorter, the more so the less balanced a placement is::

    device 0   ████████████████████████   M seconds if contended all the time, a share s of them due to contention
    device 1   ██████████████             m seconds
                             ├─ M-m ──┤   device 0 is isolated here, so it takes M - s (M - m) in truth
"""

import numpy as np

from costmodels.table import CostTable, Floats
from planner.problem.devices import alike


def with_pauses(table: CostTable, contended_s: float, total_s: float) -> float:
    """What nothing streams faster than.

    Let the busiest of n devices take M seconds if all compute all the time, ``contended_s`` at least. The k - 1 others
    of its group compute for m seconds on average: no device for more than M, and all for ``total_s`` at least, so
    ``(k - 1) m >= total_s - (n - k + 1) M``. The share s is at most that of the operators with the largest shares that
    fill ``contended_s`` seconds. With these, ``M - s (M - m)`` is linear in M where m is 0 and where it is more, so it
    is least at ``contended_s`` or where m becomes 0.

    Args:
        table: isolated times and slowdown.
        contended_s: what nothing streams faster than if all devices compute all the time.
        total_s: at least the sum of what all devices compute, contended, for any placement.

    Returns:
        Seconds; ``contended_s`` at most.
    """
    bound_s = contended_s
    if contended_s in (0.0, np.inf):
        return contended_s
    size, seconds = 1 + table.contends.sum(axis=1), table.contended.forward_s
    for device, *_ in alike(seconds, table.slowdown, size):
        share, others = _largest_share(seconds[:, device], table.slowdown[:, device], contended_s), size[device] - 1
        outside = table.n_devices - others
        for busiest_s in (contended_s, max(contended_s, total_s / outside)):
            others_s = max(0.0, total_s - outside * busiest_s) / max(1, others)
            bound_s = min(bound_s, busiest_s - share * (busiest_s - others_s))
    return float(bound_s)


def _largest_share(seconds: Floats, slowdown: Floats, busy_s: float) -> float:
    """The largest share due to contention of operators that fill so many seconds, or of all if they are fewer.

    Args:
        seconds: [n_ops], contended.
        slowdown: [n_ops].
        busy_s: what they fill; the last one may be torn.
    """
    share = slowdown / (1 + slowdown)
    order = np.argsort(-share, kind="stable")
    order = order[np.isfinite(seconds[order]) & (share[order] > 0)]
    taken_s = np.minimum(np.cumsum(seconds[order]), busy_s)
    return float((np.diff(taken_s, prepend=0.0) * share[order]).sum() / busy_s)
