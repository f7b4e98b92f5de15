"""Figures for people: shares, times, sizes and counts in as many digits as mean something."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal."""
    return "not measured" if share is None else f"{100 * share:.1f} %"


def count(number: float) -> str:
    """A whole number with its thousands apart."""
    return f"{number:,.0f}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 client`, `2 clients`."""
    return f"{count(number)} {one if number == 1 else many or f'{one}s'}"


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
        mantissa, exponent = f"{number:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.4g}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *head, last = words
    return f"{', '.join(head)} and {last}" if head else last


__all__ = ["count", "counted", "decimal", "duration", "listed", "percent", "size"]
