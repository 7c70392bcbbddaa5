"""Regression of operator times: prices of amounts of work, and a Gaussian process on the logarithm of the residual.

The time of an operator is close to a sum of amounts (calls, FLOP, bytes, ...), whose prices are fitted as non-negative
numbers. The residual, the logarithm of measured over priced time, is smooth in the logarithms of the sizes: a Gaussian
process with a Matérn kernel interpolates it, and returns to the prices far from all measurements. The process also has
a standard error (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2, 4 and 5).

A measurement that contradicts all others was disturbed, and gets a low weight.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import nnls

from graphs.common.arrays import Floats

UNREST_S = 1e-6
"""Standard deviation of the time of a call, however short the call is."""

LEAST_S = 1e-7
"""Least predicted time, below the resolution of clocks."""

ROUNDS = 6  # rounds of reducing the weights of outliers
OUTLIER = 0.1  # residual from which on an operator gets a lower weight


@dataclass(frozen=True)
class Prices:
    """Seconds for each unit of each amount of work, [n_terms]."""

    price_s: Floats

    def seconds(self, terms: Floats) -> Floats:
        """[n], from amounts [n, n_terms]."""
        return np.asarray(np.maximum(terms @ self.price_s, LEAST_S))


def fit_prices(terms: Floats, seconds: Floats) -> Prices:
    """Non-negative least squares of the relative error, reweighted in rounds towards least absolute error.

    Amounts of work are [n, n_terms], at least one of them above 0 in every row, and measured seconds [n], above 0.
    """
    scale = np.maximum(terms.max(axis=0), 1.0)
    weight = np.ones(len(seconds))
    for _ in range(ROUNDS):
        rows = (weight / seconds)[:, None] * (terms / scale)
        prices = Prices(nnls(rows, weight)[0] / scale)
        error = np.abs(np.log(prices.seconds(terms) / seconds))
        weight = 1 / np.sqrt(np.maximum(error, OUTLIER))
    return prices


@dataclass(frozen=True)
class Covariance:
    """The covariance of the residuals of two operators, from their places."""

    length: float  # length scale in units of the place
    variance: float  # variance of the residual
    noise: float  # variance of repeated measurements

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """[n_a, n_b], Matérn with smoothness 3/2, from places [n_a, n_dims] and [n_b, n_dims]."""
        square = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
        r = np.sqrt(3 * np.maximum(square, 0)) / self.length
        return np.asarray(self.variance * (1 + r) * np.exp(-r))


LENGTHS = (1.0, 1.6, 2.5, 4.0, 6.5)
NOISES = (0.003, 0.01, 0.04, 0.15, 0.6)
"""The grid of kernels: lengths, and the noise as a share of the variance."""

EXPECTED_VARIANCE, EXPECTED_ROWS = 0.03, 4.0
"""The prior of the variance, and its weight in measurements."""

CONTRADICTED = 3.0
"""Standard errors between a measurement and its prediction from all others, from which on the distance is its error."""

MOST_ROWS = 160
"""Most measurements, evenly picked, for the choice of the kernel, whose time grows with their third power."""


@dataclass(frozen=True)
class Process:
    """A Gaussian process over the operators of one family."""

    prices: Prices  # prices, which are the mean of the process
    places: Floats  # [n, n_dims], places of the measured operators
    kernel: Covariance  # the kernel with the highest marginal likelihood
    factor: Floats  # [n, n], lower Cholesky factor of the covariance of the measurements
    weights: Floats  # [n], the solution of covariance · weights = residual
    stretch: float  # factor of the standard error, from predictions of each operator by the others
    left_out: float  # root mean square of the logarithm of predicted over measured time in these predictions

    def predict(self, terms: Floats, places: Floats) -> tuple[Floats, Floats]:
        """Seconds and their relative standard error, both [n], from amounts [n, n_terms] and places [n, n_dims]."""
        covariance = self.kernel(places, self.places)
        explained = solve_triangular(self.factor, covariance.T, lower=True)
        variance = np.maximum(self.kernel.variance - (explained * explained).sum(axis=0), 0) + self.kernel.noise
        seconds = np.maximum(self.prices.seconds(terms) * np.exp(covariance @ self.weights), LEAST_S)
        return seconds, np.sqrt(variance) * self.stretch


def fit_process(terms: Floats, places: Floats, seconds: Floats) -> Process:
    """Fit prices, then the kernel with the highest marginal likelihood of the residuals.

    Amounts of work are [n, n_terms], places [n, n_dims], scaled so that units of all dimensions have about the same
    effect, and measured seconds [n], above 0.
    """
    prices = fit_prices(terms, seconds)
    left = np.log(seconds / prices.seconds(terms))
    unrest = (UNREST_S / seconds) ** 2
    kernel = _likeliest(places, left, unrest)
    _, weights, precision = _solved(kernel, places, left, unrest)
    square = (weights / precision) ** 2  # squared error of each prediction from all others, equation 5.12
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
    """The kernel with the highest marginal likelihood (equation 2.30) at its best variance."""
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
