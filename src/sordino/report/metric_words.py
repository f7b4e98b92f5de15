"""The one figure that a run is judged by, in words: how sure it is, and what a constant answer would have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordino.report import scales
from sordino.report.words import decimal, percent

if TYPE_CHECKING:
    from sordino.report.records import Result

ACCURACY = "accuracy"


def figure_words(metric: str, value: float | None) -> str:
    """A value of a metric: an accuracy in per cent, others as numbers."""
    if value is None:
        return "not measured"
    return percent(value) if metric == ACCURACY else decimal(value)


def beside(result: Result) -> str:
    """How sure the figure of a run by its own metric is, and what always giving the same answer would have."""
    interval = "" if result.interval is None else f" (95 % confidence: {' to '.join(map(decimal, result.interval))})"
    constant = (
        "" if result.baseline is None else f"; always giving the same answer would have {decimal(result.baseline)}"
    )
    return f"on the test set{interval}{constant}{'; smaller is better' if result.smaller_is_better else ''}"


def figure_axis(metric: str, values: Sequence[float]) -> scales.PlotAxis:
    """An axis for values of a metric."""
    return scales.shares(metric, values) if metric == ACCURACY else scales.linear(metric, values)


__all__ = ["ACCURACY", "beside", "figure_axis", "figure_words"]
