"""Axes: where a value lies between the two ends of one, and at which values to put a tick."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sordino.report.words import decimal, percent


@dataclass(frozen=True)
class PlotAxis:
    """An axis with its label, its ticks (value and text) and its two ends, linear after `transform`."""

    label: str
    ends: tuple[float, float]
    ticks: tuple[tuple[float, str], ...]
    transform: Callable[[float], float] = float
    text: Callable[[float], str] = decimal  #: a value for people

    def at(self, value: float) -> float:
        """0 at the lower end, 1 at the upper one."""
        low, high = map(self.transform, self.ends)
        return (self.transform(value) - low) / (high - low)


def linear(label: str, values: Iterable[float], *, ticks: int = 5) -> PlotAxis:
    """Round ends around all values, a few round ticks between them."""
    low, high = _apart(values)
    step = _round_step((high - low) / ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    return PlotAxis(
        label,
        (first * step, last * step),
        tuple((k * step, _tick_text(k * step, places)) for k in range(first, last + 1)),
    )


def shares(label: str, values: Iterable[float]) -> PlotAxis:
    """A linear scale in per cent that never leaves 0 to 100 %."""
    low, high = _apart(values, smallest=0.05)
    inner = linear(label, (100 * max(0.0, low), 100 * min(1.0, high)))
    return PlotAxis(
        label,
        (inner.ends[0] / 100, inner.ends[1] / 100),
        tuple((value / 100, f"{text} %") for value, text in inner.ticks),
        text=percent,
    )


def rounds(label: str, values: Sequence[float], *, ticks: int = 6) -> PlotAxis:
    """Whole numbers from the first to the last, with no room beyond them; a single one stands in the middle."""
    low, high = min(values), max(values)
    if low == high:
        return PlotAxis(label, (low - 0.5, high + 0.5), ((low, decimal(low)),))
    step = max(1, round(_round_step((high - low) / ticks)))
    inner = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
    # The first round is marked even where steps of ten would begin at 10, unless it would touch that tick.
    places = [low, *(k for k in inner if k - low > 0.5 * step)]
    return PlotAxis(label, (low, high), tuple((value, f"{value:,.0f}") for value in places))


def logarithmic(label: str, values: Iterable[float]) -> PlotAxis:
    """Powers of ten, with 2 and 5 between them where there is room; all values must be > 0."""
    kept = list(values)
    low, high = min(kept), max(kept)
    if low == high:
        low, high = low / 2, high * 2
    bottom, top = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    stride = max(1, math.ceil((top - bottom) / 6))
    factors = (1, 2, 5) if top - bottom <= 2 else (1,)
    places = [f * 10.0**k for k in range(bottom, top + 1, stride) for f in factors if f * 10.0**k <= 10.0**top]
    below = max(place for place in [10.0**bottom, *places] if place <= low * (1 + 1e-9))
    above = min(place for place in [10.0**top, *places] if place >= high * (1 - 1e-9))
    inside = tuple((place, decimal(place)) for place in places if below <= place <= above)
    return PlotAxis(label, (below, above), inside, math.log10)


def spread_out(label: str, values: Sequence[float]) -> PlotAxis:
    """Logarithmic where positive values differ by a factor of more than 30, else linear."""
    if values and min(values) > 0 and max(values) > 30 * min(values):
        return logarithmic(f"{label} (log scale)", values)
    return linear(label, values)


def _apart(values: Iterable[float], smallest: float = 0.0) -> tuple[float, float]:
    """The ends of the values, moved apart where they (nearly) coincide."""
    kept = list(values)
    low, high = min(kept), max(kept)
    if high - low <= smallest or high - low <= 1e-9 * abs(high):
        room = max(smallest, 0.1 * abs(high) if smallest == 0 else smallest) or 1.0
        return (low - room, high + room)
    return low, high


def _round_step(step: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(step))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if step <= factor * magnitude * (1 + 1e-9))


def _tick_text(value: float, places: int) -> str:
    if abs(value) >= 1e7 or places > 4:
        return decimal(value)
    return f"{value + 0.0:,.{places}f}"
