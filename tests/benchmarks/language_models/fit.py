"""Fit of the rates to the measurements that are not left out: least squares of logarithms, outliers weighed down.

Every amount of work is known, so a predicted time is linear in the prices; parameters stay within bounds that have a
meaning (a share is below 1), near a start that others published, so that what few measurements show moves little.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodels.generation.rates import Rates
from costmodels.generation.serving import PromptPool, Steady, steady_state, steady_state_apart
from costmodels.generation.stages import prompt_seconds
from costmodels.generation.work import Demand
from tests.benchmarks.language_models.local import Case
from tests.benchmarks.language_models.parameters import (
    LOCAL_FIXED,
    LOCAL_KINDS,
    SERVED_FIXED,
    SERVING_KINDS,
    Kind,
    Parameter,
    Values,
    engine_of,
    family_with,
    kind_of,
    local_parameters,
    prices,
    served_parameters,
)
from tests.benchmarks.language_models.predict import decode_demand, overlaps, prompt_demands
from tests.benchmarks.language_models.served import SYSTEMS, Row, prompt_pool, requests_of, served_of, usable_bytes

Array = NDArray[np.float64]
TURNS = 3  # of fitting prices, and working out who waits for whom with them
SERVED_NEARNESS, LOCAL_NEARNESS = 0.05, 0.03  # weights of staying near the starts
SERVED_SCALE, LOCAL_SCALE = 0.12, 0.08  # logarithms from which on an error counts as an outlier


class Fitted(NamedTuple):
    """Parameters, and the predicted seconds of all measurements; of those served also to the first token."""

    values: Values
    predicted: Array
    first: Array


def fit_served(rows: Sequence[Row], used: Sequence[bool]) -> Fitted:
    """Fit the engines that serve to the rows that are ``used``."""
    parameters, chosen = served_parameters(), np.flatnonzero(used)
    values: Values = {**SERVED_FIXED, **{name: each.start for name, each in parameters.items()}}
    target = np.log([row.token_s for row in rows])
    for _ in range(TURNS):
        demands = [steady_of(row, values).demand for row in rows]
        seconds = _linear(demands, [(row.engine, _kind(row)) for row in rows])

        def errors(tried: Values, seconds: Callable[[Values], Array] = seconds) -> Array:
            return np.asarray((np.log(seconds(tried)) - target)[chosen])

        values = _fitted(values, parameters, errors, SERVED_NEARNESS, SERVED_SCALE)
    found = [steady_of(row, values) for row in rows]
    return Fitted(values, np.array([each.token_s for each in found]), np.array([each.first_token_s for each in found]))


def steady_of(row: Row, values: Mapping[str, float]) -> Steady:
    """Return the steady state of a row at these prices."""
    return steady_at(row, _rates(row.engine, _kind(row).name, tuple(values.items())))


def steady_at(row: Row, rates: Rates) -> Steady:
    """Return the steady state of a row."""
    served, _ = served_of(row)
    if not row.apart:
        return steady_state(served, rates, requests_of(row), usable_bytes(row.system))
    pool = prompt_pool(row)
    prompts = None if pool is None else PromptPool(pool[0], rates, pool[1])
    return steady_state_apart(served, rates, requests_of(row), usable_bytes(row.system), row.replicas, prompts)


def fit_local(cases: Sequence[Case], used: Sequence[bool]) -> Fitted:
    """Fit llama.cpp to the cases that are ``used``."""
    parameters, chosen = local_parameters(), np.flatnonzero(used)
    values: Values = {**LOCAL_FIXED, **{name: each.start for name, each in parameters.items()}}
    target = np.log([case_seconds(case) for case in cases])
    seconds = _of_cases(cases)
    values = _fitted(
        values,
        parameters,
        lambda tried: np.asarray((np.log(seconds(tried)) - target)[chosen]),
        LOCAL_NEARNESS,
        LOCAL_SCALE,
    )
    return Fitted(values, seconds(values), np.zeros(0))


def case_seconds(case: Case) -> float:
    """Return the measured seconds of a prompt, or of one token of every sequence."""
    return (case.tokens if case.prompt else case.sequences) / case.tokens_per_s


def _of_cases(cases: Sequence[Case]) -> Callable[[Values], Array]:
    """Return a function from prices to the seconds of all cases."""
    keys = [(case.engine, kind_of(case.devices[0].kind, LOCAL_KINDS)) for case in cases]
    work = [prompt_demands(case) if case.prompt else decode_demand(case) for case in cases]
    several = [case.prompt and len(case.devices) > 1 and overlaps(case) for case in cases]

    def seconds(values: Values) -> Array:
        known = {key: prices(values, *key) for key in dict.fromkeys(keys)}
        found = []
        for key, demand, overlapping in zip(keys, work, several, strict=True):
            own = known[key]
            if isinstance(demand, dict):
                found.append(_priced(demand, own))
            else:
                chunks = [[_priced(each, own) for each in stages] for stages in demand]
                found.append(prompt_seconds(chunks, overlapping) + own["prompts"])
        return np.array(found)

    return seconds


def _fitted(
    values: Values,
    parameters: Mapping[str, Parameter],
    errors: Callable[[Values], Array],
    nearness: float,
    scale: float,
) -> Values:
    """Return the values with the parameters fitted, in logarithms."""
    names = list(parameters)
    start, low, high = (np.log([getattr(each, side) for each in parameters.values()]) for side in Parameter._fields)
    first = np.clip(np.log([values[name] for name in names]), low + 1e-7, high - 1e-7)

    def residuals(point: Array) -> Array:
        tried = {**values, **dict(zip(names, np.exp(point).tolist(), strict=True))}
        return np.concatenate([errors(tried), nearness * (point - start)])

    found = least_squares(residuals, first, bounds=(low, high), loss="soft_l1", f_scale=scale, max_nfev=60)
    return {**values, **dict(zip(names, np.exp(found.x).tolist(), strict=True))}


def _linear(demands: Sequence[Demand], keys: Sequence[tuple[str, Kind]]) -> Callable[[Values], Array]:
    """Return a function from values to the seconds of all demands."""
    names = sorted({name for demand in demands for name in demand})
    amounts = np.array([[demand.get(name, 0.0) for name in names] for demand in demands])
    groups = list(dict.fromkeys(keys))
    group = np.array([groups.index(key) for key in keys])

    def seconds(values: Values) -> Array:
        tables = np.array([[prices(values, *key)[name] for name in names] for key in groups])
        return np.asarray((amounts * tables[group]).sum(1))

    return seconds


def _priced(demand: Demand, own: Mapping[str, float]) -> float:
    return sum(amount * own[name] for name, amount in demand.items())


def _kind(row: Row) -> Kind:
    return kind_of(SYSTEMS[row.system][0], SERVING_KINDS)


@cache
def _rates(engine: str, kind: str, items: tuple[tuple[str, float], ...]) -> Rates:
    values = dict(items)
    own = next(each for each in (*SERVING_KINDS, *LOCAL_KINDS) if each.name == kind)
    made, family = engine_of(values, engine), family_with(values, engine, own)
    return Rates(made, family, "fitted", prices(values, engine, own))
