"""tanh and exp for compiled kernels, and activations by them: oneDNN takes 1.5 to 5 times as long for these.

tanh(t) is t * p(t * t) / q(t * t), cut off at -1 and 1, which it has passed before t is 10. The coefficients are those
of Eigen (https://gitlab.com/libeigen/eigen, MathFunctionsImpl.h); they are good to a few last digits. exp(t) is a power
of two by a polynomial of what is left, as in Cephes (Moshier, Methods and Programs for Mathematical Functions, 1989).
"""

from typing import Any

import numpy as np

SCALE, CUBIC, LIMIT, ONE = np.array([0.7978845608, 0.044715, 10, 1], np.float32)
P0, P1, P2, P3, P4, P5, P6 = np.array(
    [
        *(4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08),
        *(-8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16),
    ],
    np.float32,
)
Q0, Q1, Q2, Q3 = np.array(
    [4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06], np.float32
)

LOG2E, LN2_HIGH, LN2_LOW = np.array([1.44269504, 0.693359375, -2.12194440e-4], np.float32)
E2, E3, E4, E5, E6, E7 = np.array(
    [5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4], np.float32
)


SPREAD = np.int32(64)  # the power of two by which exp is scaled, since a sixth of float32 numbers are below 2 ** -126
EXP_LEAST = np.float32(-104)  # e to the power of less is 0 in float32
LOGISTIC_LEAST, LOGISTIC_MOST = np.array([-88.72284, 20], np.float32)  # beyond which PyTorch has 0 and 1
ONE_SCALED = np.float32(2.0**-SPREAD)


def exp_scaled(t: Any, power: Any) -> Any:
    """e ** t * 2 ** power, which has to be a normal number, for compiled kernels; NaN if t is."""
    whole = np.floor(t * LOG2E + np.float32(0.5))
    left = t - whole * LN2_HIGH - whole * LN2_LOW
    p = ((((E7 * left + E6) * left + E5) * left + E4) * left + E3) * left + E2
    scale = np.int32((np.int32(whole) + np.int32(127) + power) << np.int32(23)).view(np.float32)  # its bits
    return (p * left * left + left + ONE) * scale


def tanh(t: Any) -> Any:
    """The hyperbolic tangent of a number, for compiled kernels."""
    t = _within(t, LIMIT)
    s = t * t
    p = t * ((((((P6 * s + P5) * s + P4) * s + P3) * s + P2) * s + P1) * s + P0)
    return _within(p / (((Q3 * s + Q2) * s + Q1) * s + Q0), ONE)


def _within(t: Any, limit: Any) -> Any:
    """A number, or the limit on its side of 0 if it is beyond; NaN if it is, which max and min may lose."""
    t = -limit if t < -limit else t
    return limit if t > limit else t


def tanh_gelu(x: Any, n: int) -> None:
    """Replace n numbers x by x / 2 * (1 + tanh(SCALE * (x + CUBIC * x ** 3))) where they lie."""
    for i in range(n):
        t = SCALE * (x[i] + CUBIC * x[i] * x[i] * x[i])
        x[i] *= np.float32(0.5) * (ONE + tanh(t))


def logistic(t: Any) -> Any:
    """1 / (1 + exp(-t)), for compiled kernels."""
    small = t < LOGISTIC_LEAST
    inside = np.float32(0) if small else t
    inside = LOGISTIC_MOST if inside > LOGISTIC_MOST else inside
    share = ONE_SCALED / (ONE_SCALED + exp_scaled(-inside, -SPREAD))
    return np.float32(0) if small else share


def swish(x: Any, n: int) -> None:
    """Replace n numbers x by x / (1 + exp(-x)) where they lie."""
    for i in range(n):
        x[i] *= logistic(x[i])


def sigmoid(x: Any, n: int) -> None:
    """Replace n numbers x by 1 / (1 + exp(-x)) where they lie."""
    for i in range(n):
        x[i] = logistic(x[i])
