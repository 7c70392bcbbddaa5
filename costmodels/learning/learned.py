"""Times of operators that were never measured, learned from those that were, on the same kind of device.

Operators are fitted in families (convolutions, products, additions, ...), each by `costmodels.learning.regression`.
A kind without measurements, but whose work is known, is priced like everything else that passes over its tensors
once; of a kind that nobody knows nothing is said, and the roofline has to do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from costmodels.learning.features import FAMILIES, Features, features_of, is_known, pass_bytes
from costmodels.learning.in_training import Ratios, fit_ratios
from costmodels.learning.keys import Described, parse_key
from costmodels.learning.regression import LEAST_S, Prices, Process, fit_prices, fit_process
from costmodels.learning.samples import Sweep, read_sweep
from costmodels.measured import Measurement, Profile, Step, op_keys, read_profile
from costmodels.table import Floats
from graphs.errors import InputError
from graphs.ir import Graph

LEAST_ROWS = 6  # a family with fewer different operators has no process
MOST_ROWS = 1500  # of one family; more are thinned out evenly
UNKNOWN_PASS_BYTES = 2.0**28
"""Of the networks behind a profile, which does not say; it matters to operators that are left out of it here."""

GUESS_SPREAD = 0.5
"""Nobody should trust a guess from the bytes of an operator any better, however well the measured ones fit."""

FEW_FLOP_PER_BYTE = 16.0
"""Below it, a product spends its time reading its state, from wherever that is: its network must be known."""


@dataclass(frozen=True)
class Predictions:
    """What is known of each operator of a graph.

    Attributes:
        seconds: [n_ops]; not a number where nothing is known.
        spread: [n_ops], standard error as a share of the time; not a number likewise.
        guessed: kinds that are priced without any measurement of their own, in order of appearance.
        unknown: kinds of which nothing is known, likewise.
    """

    seconds: Floats
    spread: Floats
    guessed: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def total_spread(self) -> float:
        """Of the sum, as a share of it, if all operators err in the same direction; 0 for no operators."""
        total_s = float(np.nansum(self.seconds))
        return float(np.nansum(self.seconds * self.spread)) / total_s if total_s > 0 else 0.0


@dataclass(frozen=True)
class Learned:
    """What was learned of one kind of device.

    Attributes:
        fingerprint: of it, as in `costmodels.measured.Profile`.
        families: by name.
        others: prices for kinds that have no family; None if there were no operators to learn them from.
        others_spread: their root mean square error, in logarithms.
        training: what training takes, for families that were measured in it.
    """

    fingerprint: str
    families: Mapping[str, Process]
    others: Prices | None
    others_spread: float
    training: Mapping[str, Ratios] = field(default_factory=dict)

    def seconds(self, graph: Graph) -> Floats:
        """[n_ops], not a number for operators of which nothing is known."""
        return self.predict(graph).seconds

    def predict(self, graph: Graph) -> Predictions:
        """Seconds of every operator of a graph and how sure they are."""
        keys, n_bytes = op_keys(graph), float(pass_bytes(graph))
        index: dict[str, int] = {}
        for key in keys:
            index.setdefault(key, len(index))
        described = [_parsed(key) for key in index]
        features = [features_of(op, n_bytes) for op in described]
        seconds, spread = np.full(len(index), np.nan), np.full(len(index), np.nan)
        guessed: dict[str, None] = {}
        unknown: dict[str, None] = {}
        by_family: dict[str, list[int]] = {}
        for i, (op, found) in enumerate(zip(described, features, strict=True)):
            if found.family in self.families:
                by_family.setdefault(found.family, []).append(i)
            elif self.others is not None and is_known(op):
                seconds[i], spread[i] = self.others.seconds(np.array(found.terms)[None])[0], self.others_spread
                guessed[op.kind] = None
            else:
                unknown[op.kind] = None
        for family, rows in by_family.items():
            terms, places = (
                np.array(part) for part in zip(*((features[i].terms, features[i].place) for i in rows), strict=True)
            )
            seconds[rows], spread[rows] = self.families[family].predict(terms, places)
        back = [index[key] for key in keys]
        return Predictions(seconds[back], spread[back], tuple(guessed), tuple(unknown))

    def in_training(self, graph: Graph) -> tuple[Floats, Floats]:
        """[n_ops] each: the forward pass, and each product of the backward pass, in times of `seconds`.

        Both are 1 where no operator of the family was measured in training.
        """
        families = [features_of(_parsed(key), UNKNOWN_PASS_BYTES).family for key in op_keys(graph)]
        ratios = [self.training.get(family, Ratios()) for family in families]
        return np.array([r.forward for r in ratios]), np.array([r.backward for r in ratios])


def learn(directory: Path, fingerprint: str) -> Learned | None:
    """What the files of a kind of device teach; None if it was not swept: one network's operators are too few.

    Raises:
        InputError: if a file is damaged.
    """
    swept = read_sweep(directory, fingerprint)
    return fit(read_profile(directory, fingerprint), swept) if swept is not None else None


def fit(profile: Profile | None, sweep: Sweep | None) -> Learned:
    """Learn from what was measured on one kind of device.

    Args:
        profile: operators of whole networks; None if none were measured.
        sweep: operators of probes; None if they were not.

    Raises:
        InputError: for measurements of different machines, none at all, or one whose key is damaged.
    """
    prints = {part.fingerprint for part in (profile, sweep) if part is not None}
    if len(prints) != 1:
        what = f"those of {' and '.join(sorted(prints))} do not mix" if prints else "there are none"
        raise InputError(f"nothing can be learned from measurements of one machine: {what}; calibrate on this one")
    groups: dict[str, dict[tuple[tuple[float, ...], tuple[float, ...]], list[float]]] = {}
    for features, seconds in _rows(profile, sweep):
        alike = groups.setdefault(features.family, {}).setdefault((features.terms, features.place), [])
        alike.append(np.log(max(seconds, LEAST_S)))
    tables = {family: _table(rows) for family, rows in sorted(groups.items())}
    families = {family: fit_process(*table) for family, table in tables.items() if len(table[2]) >= LEAST_ROWS}
    training = _in_training(families, profile.training) if profile is not None else {}
    others = [table for family, table in tables.items() if family not in FAMILIES]
    if not others:
        return Learned(prints.pop(), families, None, 0.0, training)
    terms, times_s = np.concatenate([t for t, _, _ in others]), np.concatenate([s for _, _, s in others])
    prices = fit_prices(terms, times_s)
    off = np.log(prices.seconds(terms) / times_s)
    return Learned(prints.pop(), families, prices, max(GUESS_SPREAD, float(np.sqrt(np.mean(off**2)))), training)


def _rows(profile: Profile | None, sweep: Sweep | None) -> Iterable[tuple[Features, float]]:
    for probed in sweep.probes.values() if sweep is not None else ():
        yield from _of(probed.ops, probed.pass_bytes)
    for features, seconds in _of(profile.ops, UNKNOWN_PASS_BYTES) if profile is not None else ():
        if _computes(features):
            yield features, seconds


def _computes(features: Features) -> bool:
    """Whether it matters little from where its state is read, which a profile does not say."""
    _, flop, _, state, *_ = features.terms
    return state == 0 or flop / state >= FEW_FLOP_PER_BYTE


def _in_training(families: Mapping[str, Process], measured: Mapping[str, Step]) -> Mapping[str, Ratios]:
    """By family, as far as operators of it were measured in training."""
    rows: dict[str, list[tuple[Described, Step, float]]] = {}
    for key, step in sorted(measured.items()):
        op = _parsed(key)
        found = features_of(op, UNKNOWN_PASS_BYTES)
        if found.family in families and _computes(found):
            seconds, _ = families[found.family].predict(np.array([found.terms]), np.array([found.place]))
            rows.setdefault(found.family, []).append((op, step, float(seconds[0])))
    return {family: fit_ratios(steps) for family, steps in rows.items()}


def _of(ops: Mapping[str, Measurement], n_bytes: float) -> Iterable[tuple[Features, float]]:
    for key, measurement in sorted(ops.items()):
        yield features_of(_parsed(key), n_bytes), measurement.seconds


@lru_cache(maxsize=2**14)
def _parsed(key: str) -> Described:
    return parse_key(key)


def _table(rows: Mapping[tuple[tuple[float, ...], tuple[float, ...]], list[float]]) -> tuple[Floats, Floats, Floats]:
    """Terms [n, n_terms], places [n, n_dims] and seconds [n]; operators that look alike share their mean."""
    kept = list(rows.items())[:: -(-len(rows) // MOST_ROWS)]
    terms = np.array([terms for (terms, _), _ in kept])
    places = np.array([place for (_, place), _ in kept])
    return terms, places, np.exp([float(np.mean(logs)) for _, logs in kept])
