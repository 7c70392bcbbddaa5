"""Predicts the times of unmeasured operators from measured ones on the same kind of device.

Operators are fitted in families (convolutions, products, additions, ...), each with `costmodels.learning.regression`.
A kind without measurements whose work is known gets the prices of all kinds with one pass over their tensors. Other
kinds have no prediction, and the roofline is used for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from costmodels.learning.features import FAMILIES, Features, features_of, is_known, pass_bytes
from costmodels.learning.in_training import PassModels, Query, fit_both_ways
from costmodels.learning.regression import LEAST_S, Prices, Process, fit_prices, fit_process
from costmodels.measured import Profile, TrainingMeasurement
from costmodels.operators.keys import KeyContent, is_fused, op_keys, parse_key, training_keys
from costmodels.profilefile import Sweep, read_profile, read_sweep
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.ir import Graph

_parsed = lru_cache(maxsize=2**14)(parse_key)

LEAST_ROWS = 6  # a family with fewer different operators has no process
MOST_ROWS = 1500  # most operators of a family; more are thinned out evenly
UNKNOWN_PASS_BYTES = 2.0**28
"""Bytes of a pass over the networks of a profile, which does not have them; operators that depend on them are left out
here."""

GUESS_SPREAD = 0.5
"""Least spread of a prediction from other kinds, however well the measured operators fit."""

FEW_FLOP_PER_BYTE = 16.0
"""The time of a product with fewer FLOP for each byte of state is that of reading it, and depends on the network."""


@dataclass(frozen=True)
class Predictions(Brief):
    """The predicted times of the operators of a graph, which are NaN for operators without a prediction."""

    seconds: Floats  # [n_ops], seconds of inference, or of the forward pass in training
    backward_s: Floats  # [n_ops], seconds of the backward pass, 0 in inference
    spread: Floats  # [n_ops], relative standard error
    guessed: tuple[str, ...]  # kinds that are predicted without measurements of the kind, in order of appearance
    unknown: tuple[str, ...]  # kinds without a prediction, in order of appearance


@dataclass(frozen=True)
class LearnedModel(Brief):
    """The fitted model of one kind of device."""

    fingerprint: str  # fingerprint of the kind, as in `costmodels.measured.Profile`
    families: Mapping[str, Process]  # processes of the families by name
    others: Prices | None  # prices for kinds without a process; None if there were no operators to fit them to
    others_spread: float  # root mean square error of these prices, in logarithms
    training: Mapping[str, PassModels] = field(default_factory=dict)  # models of the families measured in training

    def seconds(self, graph: Graph) -> Floats:
        """[n_ops], seconds in inference; NaN for operators without a prediction."""
        return self.predict(graph).seconds

    def predict(self, graph: Graph, training: bool = False) -> Predictions:
        """Return the seconds of every operator of a graph with their spread.

        A family without measurements in training takes its time of inference in the forward pass, and again for each
        product of the backward pass.
        """
        keys = training_keys(graph) if training else op_keys(graph)
        n_bytes = float(pass_bytes(graph))
        index: dict[str, int] = {}
        for key in keys:
            index.setdefault(key, len(index))
        ops = [_parsed(key) for key in index]
        features = [features_of(op, n_bytes) for op in ops]
        seconds, spread = self._inference(ops, features)
        unmeasured = [op for op, feature in zip(ops, features, strict=True) if feature.family not in self.families]
        known = {op.kind: self.others is not None and is_known(op) for op in unmeasured}
        guessed = tuple(kind for kind, is_guessed in known.items() if is_guessed)
        unknown = tuple(kind for kind, is_guessed in known.items() if not is_guessed)
        backward_s = np.zeros(len(ops))
        if training:
            seconds, backward_s, spread = self._in_training(list(map(Query, ops, features, seconds.tolist())), spread)
        back = [index[key] for key in keys]
        return Predictions(seconds[back], backward_s[back], spread[back], guessed, unknown)

    def _inference(self, ops: Sequence[KeyContent], features: Sequence[Features]) -> tuple[Floats, Floats]:
        """Return the seconds and their relative standard error, [n] each."""
        seconds, spread = np.full(len(ops), np.nan), np.full(len(ops), np.nan)
        for family, rows in _by_family(features).items():
            terms = np.array([features[i].terms for i in rows])
            if family in self.families:
                places = np.array([features[i].place for i in rows])
                seconds[rows], spread[rows] = self.families[family].predict(terms, places)
            elif self.others is not None:
                known = np.array([is_known(ops[i]) for i in rows])
                seconds[rows] = np.where(known, self.others.seconds(terms), np.nan)
                spread[rows] = np.where(known, self.others_spread, np.nan)
        return seconds, spread

    def _in_training(self, sought: Sequence[Query], spread: Floats) -> tuple[Floats, Floats, Floats]:
        """Seconds forward and backward and their relative standard error, [n] each, from the spread in inference."""
        forward_s = np.array([op.inference_s for op in sought])
        backward_s = np.array([op.products * op.inference_s for op in sought])
        for family, rows in _by_family([op.features for op in sought]).items():
            rows = [i for i in rows if not np.isnan(sought[i].inference_s)]
            if rows and family in self.training:
                predicted = self.training[family].predict([sought[i] for i in rows])
                forward_s[rows], backward_s[rows], spread[rows] = predicted
        return forward_s, backward_s, spread


def _by_family(features: Iterable[Features]) -> Mapping[str, list[int]]:
    """The indices of the features of each family."""
    rows: dict[str, list[int]] = {}
    for i, feature in enumerate(features):
        rows.setdefault(feature.family, []).append(i)
    return rows


def learn(directory: Path, fingerprint: str) -> LearnedModel | None:
    """Fit a model to the files of a kind of device; None without a sweep, since one network's operators are too few.

    Raise InputError if a file is damaged.
    """
    swept = read_sweep(directory, fingerprint)
    return fit_learned(read_profile(directory, fingerprint), swept) if swept is not None else None


def fit_learned(profile: Profile | None, sweep: Sweep | None) -> LearnedModel:
    """Fit a model to the measurements on one kind of device.

    The measurements are those of whole networks (``profile``) and of probes (``sweep``). Raise InputError for
    measurements of different machines, none at all, or one whose key is damaged.
    """
    prints = {part.fingerprint for part in (profile, sweep) if part is not None}
    if len(prints) != 1:
        reason = f"those of {' and '.join(sorted(prints))} do not mix" if prints else "there are none"
        raise InputError(f"nothing can be learned from measurements of one machine: {reason}; calibrate on this one")
    groups: dict[str, dict[tuple[tuple[float, ...], tuple[float, ...]], list[float]]] = {}
    for features, seconds in _rows(profile, sweep):
        alike = groups.setdefault(features.family, {}).setdefault((features.terms, features.place), [])
        alike.append(np.log(max(seconds, LEAST_S)))
    tables = {family: _table(rows) for family, rows in sorted(groups.items())}
    families = {family: fit_process(*table) for family, table in tables.items() if len(table[2]) >= LEAST_ROWS}
    others = [table for family, table in tables.items() if family not in FAMILIES]
    if not others:
        return _trained(LearnedModel(prints.pop(), families, None, 0.0), profile, sweep)
    terms, times_s = np.concatenate([t for t, _, _ in others]), np.concatenate([s for _, _, s in others])
    prices = fit_prices(terms, times_s)
    error = np.log(prices.seconds(terms) / times_s)
    spread = max(GUESS_SPREAD, float(np.sqrt(np.mean(error**2))))
    return _trained(LearnedModel(prints.pop(), families, prices, spread), profile, sweep)


def _trained(learned: LearnedModel, profile: Profile | None, sweep: Sweep | None) -> LearnedModel:
    """The model with models of training, from its predictions in inference."""
    steps = [(_parsed(key), step, n_bytes) for key, step, n_bytes in _steps(profile, sweep)]
    features = [features_of(op, n_bytes) for op, _, n_bytes in steps]
    seconds, _ = learned._inference([op for op, _, _ in steps], features)
    rows: dict[str, list[tuple[Query, TrainingMeasurement]]] = {}
    for (op, step, n_bytes), feature, inference_s in zip(steps, features, seconds.tolist(), strict=True):
        if not np.isnan(inference_s) and (n_bytes != UNKNOWN_PASS_BYTES or _computes(feature)):
            rows.setdefault(feature.family, []).append((Query(op, feature, inference_s), step))
    both = {family: fit_both_ways(measured) for family, measured in sorted(rows.items())}
    return replace(learned, training={family: model for family, model in both.items() if model is not None})


def _steps(profile: Profile | None, sweep: Sweep | None) -> Iterable[tuple[str, TrainingMeasurement, float]]:
    """Key, measurement in training, and bytes that a pass over the network touches."""
    for probed in sweep.probes.values() if sweep is not None else ():
        for key, step in sorted(probed.training.items()):
            yield key, step, probed.pass_bytes
    for key, step in sorted(profile.training.items()) if profile is not None else ():
        yield key, step, UNKNOWN_PASS_BYTES


def _rows(profile: Profile | None, sweep: Sweep | None) -> Iterable[tuple[Features, float]]:
    parts = [(probed.ops, probed.pass_bytes) for probed in (sweep.probes.values() if sweep is not None else ())]
    parts += [(profile.ops, UNKNOWN_PASS_BYTES)] if profile is not None else []
    for ops, n_bytes in parts:
        for key, measurement in sorted(ops.items()):
            if is_fused(key):
                continue  # what its kernel saves says nothing of other operators
            features = features_of(_parsed(key), n_bytes)
            if n_bytes != UNKNOWN_PASS_BYTES or _computes(features):
                yield features, measurement.seconds


def _computes(features: Features) -> bool:
    """Return whether the memory level of the state, which a profile does not have, matters little."""
    _, flop, _, state, *_ = features.terms
    return state == 0 or flop / state >= FEW_FLOP_PER_BYTE


def _table(rows: Mapping[tuple[tuple[float, ...], tuple[float, ...]], list[float]]) -> tuple[Floats, Floats, Floats]:
    """Terms [n, n_terms], places [n, n_dims] and seconds [n]; operators with equal features share their mean."""
    kept = list(rows.items())[:: -(-len(rows) // MOST_ROWS)]
    terms = np.array([terms for (terms, _), _ in kept])
    places = np.array([place for (_, place), _ in kept])
    return terms, places, np.exp([float(np.mean(logs)) for _, logs in kept])
