"""Plurals, lists and figures for people, in as many digits as mean something. Every room may import this module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Literal

Direction = Literal["nearest", "up", "down"]  #: in which a figure is rounded


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal."""
    return "not measured" if share is None else f"{100 * share:.1f} %"


def count(number: float) -> str:
    """A whole number with its thousands apart."""
    return f"{number:,.0f}"


def counted(number: float, one: str, many: str | None = None) -> str:
    """`1 client`, `2 clients`, `2.5 clients`."""
    shown = count(number) if float(number).is_integer() else f"{number:,.3g}"
    return f"{shown} {one if number == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def size(number: float) -> str:
    """Bytes in decimal units."""
    if number < 999.5:
        return f"{number:.0f} B"
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if number < 999.5:
            return f"{number:.3g} {unit}"
    return f"{number / 1000:.3g} TB"


def decimal(number: float) -> str:
    """Four significant digits, with thousands apart and no exponent for ordinary sizes."""
    if math.isinf(number):
        return "infinite"
    if number != 0 and not 1e-4 <= abs(number) < 1e7:
        return _scientific(number)
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.4g}"


def figure(epsilon: float, direction: Direction = "nearest") -> str:
    """An epsilon or a delta, wherever one is written: 0.444, 12.3, 47,100, 1.81e7, 1e-5; infinity in words.

    Three digits, but whole numbers below ten million in full: limits are given as such. What is proven is rounded up
    (`upper`), what an experiment showed down (`lower`): no figure says more than holds.
    """
    if math.isinf(epsilon):
        return "infinite"
    if float(epsilon).is_integer() and epsilon < 1e7:
        return f"{epsilon:,.0f}"
    rounded = _three_digits(epsilon, direction)
    if 1e-3 <= rounded < 1000:
        return f"{rounded:.3g}"
    return f"{rounded:,.0f}" if 1000 <= rounded < 1e7 else _scientific(rounded)


def upper(epsilon: float) -> str:
    """A proven epsilon or its delta: rounded up."""
    return figure(epsilon, "up")


def lower(epsilon: float) -> str:
    """An epsilon that an attack reached, or its delta: rounded down."""
    return figure(epsilon, "down")


def _three_digits(value: float, direction: Direction) -> float:
    """The value in three digits; an excess of a billionth is a floating-point error, and is not rounded away from."""
    nearest, slack = Decimal(f"{value:.2e}"), value * 1e-9
    step = Decimal(1).scaleb(Decimal(value).adjusted() - 2)
    if direction == "up" and float(nearest) < value - slack:
        return float(nearest + step)
    if direction == "down" and float(nearest) > value + slack:
        return float(nearest - step)
    return float(nearest)


def span(values: Iterable[float], to: str = " to ", shown: Callable[[float], str] = figure) -> str:
    """`3`, or `2 to 8` where values differ; nothing where there are none."""
    found = list(values)
    return to.join(dict.fromkeys(shown(end(found)) for end in (min, max))) if found else ""


def deltas(values: Iterable[float], shown: Callable[[float], str] = figure) -> str:
    """`delta 1e-5`, or several."""
    return f"delta {' or '.join(map(shown, values))}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`, or with another word than `and`."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail


def few(words: Iterable[str], most: int = 4) -> str:
    """Several texts, each once; of more than a handful the first three, and how many more there are."""
    found = list(dict.fromkeys(words))
    shown = found if len(found) <= most else found[: most - 1]
    return "; ".join([*shown, *([f"and {len(found) - len(shown):,} more"] if len(found) > len(shown) else [])])


def capital(words: str) -> str:
    """The words with a capital letter at the beginning."""
    return words[:1].upper() + words[1:]


def _scientific(number: float) -> str:
    digits, exponent = f"{number:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
