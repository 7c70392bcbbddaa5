"""Devices that are not here, against what the authors of timm published of them.

python -m tests.benchmarks.paper [--quick] [--json FILE]        judges networks that the fit did not see
python -m tests.benchmarks.paper --fit                          fits costmodels/estimates/parameters.toml again

Needs timm and pillow beside the project for networks that are not in the cache yet
(``pip install --no-deps --target DIR timm pillow``, ``PYTHONPATH=DIR``), and the files of ``--published``.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from costmodels.estimates.parameters import FILE, OTHER_FAMILY, Group, Parameters, all_parameters
from costmodels.profile_cache import cache_folder
from graphs.files import write_text
from planner.plans.ranges import WIDTH
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.benchmarks.paper_fit import fitted, spread_of, toml_of
from tests.benchmarks.paper_networks import FILES, Networks, Published, draw

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "bench" / "paper" / "timm"
SEEN = 0.6  # of the networks, drawn by their names, the fit sees; the others judge it
SHARE, QUICK = 0.2, 0.06  # of all networks, in a fit or a judgement
SOURCE = "huggingface/pytorch-image-models, results/, August 2026 (Apache-2.0): "
GROUPS: dict[Group, tuple[Published, ...]] = {
    "gpu": FILES[:2],
    "gpu training": FILES[3:],
    "processor": FILES[2:3],
}
PARTS = 2  # of the networks in the fit, each of which is left out once to see how far off the others' fit is


@dataclass(frozen=True)
class Limits:
    """What the errors of networks should reach."""

    median: float  # factor
    most: float  # factor that holds 90 %
    bias: float  # logarithm of ours over theirs
    rank: float  # correlation of ranks


LIMITS: dict[Group, Limits] = {
    "gpu": Limits(1.08, 1.25, 0.03, 0.99),
    "gpu training": Limits(1.12, 1.35, 0.1, 0.95),
    "processor": Limits(1.2, 1.6, 0.2, 0.9),
}
LEFT_OUT = Limits(1.12, 1.35, 0.1, 0.95)


def of(networks: Networks, in_fit: bool) -> Networks:
    """Return the networks that the fit sees, or the others."""
    return networks.only([(draw(name, "seen") < SEEN) == in_fit for name in networks.names])


def fit(read: dict[Group, list[Networks]]) -> dict[Group, Parameters]:
    """Parameters of each group, with the spread that is left in networks which a fit to the others did not see."""
    found: dict[Group, Parameters] = {}
    for group, files in read.items():
        several = [of(networks, in_fit=True) for networks in files]
        errors = []
        for part in range(PARTS):
            drawn = [[int(draw(name, "part") * PARTS) == part for name in each.names] for each in several]
            others = [each.only([not one for one in ones]) for each, ones in zip(several, drawn, strict=True)]
            left_out = fitted(group, others)
            errors += [each.only(ones).logs(left_out) for each, ones in zip(several, drawn, strict=True)]
        found[group] = replace(fitted(group, several), spread=spread_of(np.concatenate(errors)))
    return found


def bars_of(label: str, networks: Networks, parameters: Parameters, limits: Limits) -> list[Bar]:
    """The bars of the networks of a file with parameters."""
    logs, seconds = networks.logs(parameters), networks.seconds(parameters)
    off, width = np.sort(np.abs(logs)), parameters.spread
    inside, bias = float(np.mean(off <= WIDTH * width)), float(np.exp(-logs.mean()))
    ours, theirs = (np.argsort(np.argsort(each)).astype(float) for each in (seconds, networks.measured_s))
    return [
        at_most(f"{label}, {len(off)} networks, median factor", float(np.exp(np.median(off))), limits.median),
        at_most(f"{label}, 90 % within a factor of", float(np.exp(off[int(0.9 * (len(off) - 1))])), limits.most),
        Bar(f"{label}, bias", bias, 1.0, bool(abs(np.log(bias)) <= limits.bias)),
        at_least(f"{label}, rank correlation", float(np.corrcoef(ours, theirs)[0, 1]), limits.rank),
        Bar(f"{label}, share in the range", inside, 0.8, 0.72 <= inside <= 0.88),
    ]


def judge(read: dict[Group, list[Networks]], leave_out: bool) -> list[Bar]:
    """Bars for networks that the fit did not see, and with a whole GPU left out of the fit."""
    bars: list[Bar] = []
    for group, several in read.items():
        for networks in several:
            label = f"{networks.device.name}{', training' if networks.passes is not None else ''}"
            bars += bars_of(label, of(networks, in_fit=False), all_parameters()[group], LIMITS[group])
    if leave_out:
        for number, networks in enumerate(read["gpu"]):
            other = fitted("gpu", [of(read["gpu"][1 - number], in_fit=True)])
            other = replace(other, spread=float(np.hypot(all_parameters()["gpu"].spread, OTHER_FAMILY)))
            bars += bars_of(f"{networks.device.name} left out of the fit", of(networks, in_fit=False), other, LEFT_OUT)
    return bars


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help=f"write {FILE.name} again")
    parser.add_argument("--published", type=Path, default=FOLDER, metavar="DIR", help="the published files")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "paper", metavar="DIR", help="recorded networks")
    parser.add_argument("--share", type=float, default=SHARE, help=f"of the networks ({SHARE})")
    declare(parser)
    options = parser.parse_args(arguments)
    share = QUICK if options.quick else options.share
    read = {
        group: [Networks.read(one, options.published, options.cache, share) for one in files]
        for group, files in GROUPS.items()
    }
    if options.fit:
        found = fit(read)
        sources = {group: SOURCE + ", ".join(one.file for one in files) for group, files in GROUPS.items()}
        write_text(toml_of(found, sources), FILE)
        all_parameters.cache_clear()
    return report(judge(read, leave_out=not options.quick), options.json)


if __name__ == "__main__":
    sys.exit(main())
