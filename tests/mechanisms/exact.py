"""Exact probabilities of integer noise, from the weights of its tables."""

from fractions import Fraction

from sordino.mechanisms.alias import TOTAL
from sordino.mechanisms.integers import ONE
from sordino.mechanisms.noise import GeometricNoise, LevelledNoise


def probability(noise: GeometricNoise | LevelledNoise, k: int) -> Fraction:
    """Pr[noise = k]; of noise in levels, where it is a single one."""
    if isinstance(noise, LevelledNoise):
        assert noise.levels == 1
        return Fraction(noise.table.weights[k + noise.offset] if abs(k) <= noise.offset else 0, TOTAL)
    magnitude = k if k >= 0 else -k - 1
    p = Fraction(ONE - noise.negative if k >= 0 else noise.negative, ONE)
    for digit in noise.digits:
        value, magnitude = divmod(magnitude, 1 << digit.shift)
        weights = digit.table.weights
        p *= Fraction(weights[value], TOTAL) if value < len(weights) else 0
    return p
