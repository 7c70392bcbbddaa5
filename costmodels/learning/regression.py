"""Physics and what is left of it: prices of amounts of work, and a Gaussian process on the logarithm of the rest.

The time of an operator is close to a sum of amounts (calls, FLOP, bytes, ...), whose prices are fitted as non-negative
numbers. What is left, the logarithm of measured over priced, is smooth in the logarithms of the sizes: a Gaussian
process with a Matérn kernel interpolates it, and far from everything measured it returns to the prices. It also tells
how unsure it is (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2, 4 and 5).

What all other operators contradict was disturbed while it was measured, and counts for little.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import nnls

from costmodels.table import Floats

UNREST_S = 1e-6
"""By so much the time of a call varies by itself, however short it is."""

LEAST_S = 1e-7
"""No operator is predicted to take less; a clock cannot tell it from nothing."""

ROUNDS = 6  # of weighing outliers down
OUTLIER = 0.1  # logarithm of measured over priced from which on an operator counts less


@dataclass(frozen=True)
class Prices:
    """Seconds for each unit of each amount of work, [n_terms]."""

    price_s: Floats

    def seconds(self, terms: Floats) -> Floats:
        """[n], from amounts [n, n_terms]."""
        return np.asarray(np.maximum(terms @ self.price_s, LEAST_S))


def fit_prices(terms: Floats, seconds: Floats) -> Prices:
    """Non-negative least squares of the relative error, towards its absolute value by weighing in rounds.

    Args:
        terms: [n, n_terms], amounts of work, at least one of them above 0 in every row.
        seconds: [n], measured, above 0.
    """
    scale = np.maximum(terms.max(axis=0), 1.0)
    weight = np.ones(len(seconds))
    for _ in range(ROUNDS):
        rows = (weight / seconds)[:, None] * (terms / scale)
        prices = Prices(nnls(rows, weight)[0] / scale)
        off = np.abs(np.log(prices.seconds(terms) / seconds))
        weight = 1 / np.sqrt(np.maximum(off, OUTLIER))
    return prices


@dataclass(frozen=True)
class Covariance:
    """How alike two operators are by their places.

    Attributes:
        length: distance in units of the place over which the rest changes.
        variance: of the rest.
        noise: variance of measuring the same again.
    """

    length: float
    variance: float
    noise: float

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """[n_a, n_b], Matérn with smoothness 3/2, from places [n_a, n_dims] and [n_b, n_dims]."""
        square = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
        r = np.sqrt(3 * np.maximum(square, 0)) / self.length
        return np.asarray(self.variance * (1 + r) * np.exp(-r))


LENGTHS = (1.0, 1.6, 2.5, 4.0, 6.5)
NOISES = (0.003, 0.01, 0.04, 0.15, 0.6)
"""What is tried for a kernel: lengths, and the noise as a share of the variance."""

EXPECTED_VARIANCE, EXPECTED_ROWS = 0.03, 4.0
"""What is believed of the variance before anything is measured, as firmly as after so many measurements."""

CONTRADICTED = 3.0
"""Standard errors between a measurement and what all others say of it, from which on it is as uncertain as that."""

MOST_ROWS = 160
"""The kernel is chosen by this many, evenly picked: the time that takes grows with their third power."""


@dataclass(frozen=True)
class Process:
    """A Gaussian process over the operators of one family.

    Attributes:
        prices: its mean.
        places: [n, n_dims], of what was measured.
        kernel: chosen by marginal likelihood.
        factor: [n, n], lower Cholesky factor of the covariance of what was measured.
        weights: [n], covariance times weights is what is left.
        stretch: by how much its own estimate of its error was off where each operator was predicted from the others.
        left_out: root mean square of the logarithm of predicted over measured, in the same test.
    """

    prices: Prices
    places: Floats
    kernel: Covariance
    factor: Floats
    weights: Floats
    stretch: float
    left_out: float

    def predict(self, terms: Floats, places: Floats) -> tuple[Floats, Floats]:
        """Seconds and their relative standard error, both [n], from amounts [n, n_terms] and places [n, n_dims]."""
        like = self.kernel(places, self.places)
        known = solve_triangular(self.factor, like.T, lower=True)
        variance = np.maximum(self.kernel.variance - (known * known).sum(axis=0), 0) + self.kernel.noise
        seconds = np.maximum(self.prices.seconds(terms) * np.exp(like @ self.weights), LEAST_S)
        return seconds, np.sqrt(variance) * self.stretch


def fit_process(terms: Floats, places: Floats, seconds: Floats) -> Process:
    """Prices first, then the kernel that makes what is left most likely, among a grid of them.

    Args:
        terms: [n, n_terms].
        places: [n, n_dims], scaled so that a unit matters about as much in each dimension.
        seconds: [n], above 0.
    """
    prices = fit_prices(terms, seconds)
    left = np.log(seconds / prices.seconds(terms))
    unrest = (UNREST_S / seconds) ** 2
    kernel = _likeliest(places, left, unrest)
    _, weights, precision = _solved(kernel, places, left, unrest)
    square = (weights / precision) ** 2  # of the error of each from all others, equation 5.12
    unrest = np.where(square * precision > CONTRADICTED**2, np.maximum(square, unrest), unrest)
    factor, weights, precision = _solved(kernel, places, left, unrest)
    error = weights / precision
    stretch = float(np.sqrt(np.mean(error**2 * precision)))
    return Process(prices, places, kernel, factor, weights, max(stretch, 0.5), float(np.sqrt(np.mean(error**2))))


def _solved(kernel: Covariance, places: Floats, left: Floats, unrest: Floats) -> tuple[Floats, Floats, Floats]:
    """Factor of the covariance [n, n], weights [n], and the diagonal [n] of its inverse."""
    covariance = kernel(places, places)
    covariance[np.diag_indices(len(left))] += kernel.noise + unrest
    factor = cholesky(covariance, lower=True)
    return factor, cho_solve((factor, True), left), np.diag(cho_solve((factor, True), np.eye(len(left))))


def _likeliest(places: Floats, left: Floats, unrest: Floats) -> Covariance:
    """The kernel with the highest marginal likelihood (equation 2.30), in which the best variance is put in."""
    step = -(-len(left) // MOST_ROWS)
    places, left, unrest = places[::step], left[::step], unrest[::step]
    n = len(left)
    about = max(float(np.var(left)), EXPECTED_VARIANCE)
    best, kernel = np.inf, Covariance(1.0, 1.0, 1.0)
    for length in LENGTHS:
        alike = Covariance(length, 1.0, 0.0)(places, places)
        for noise in NOISES:
            factor = cholesky(alike + np.diag(noise + unrest / about), lower=True)
            fit = float(left @ cho_solve((factor, True), left))
            variance = (fit + EXPECTED_ROWS * EXPECTED_VARIANCE) / (n + EXPECTED_ROWS)
            unlikely = (n + EXPECTED_ROWS) * np.log(variance) / 2 + np.log(np.diag(factor)).sum()
            if unlikely < best:
                best, kernel = unlikely, Covariance(length, variance, noise * variance)
    return kernel
