"""One small plot for a group of experiments: the paper's stated values and ours over them, as an SVG file."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.reproduce.pages import Row

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 40, 64
OURS, PAPER, GRID, TEXT = "#0b5c94", "#c2570c", "#d8d8d4", "#33332f"


def plot(title: str, rows: Sequence[Row]) -> str:
    """Accuracy over `x` where the experiments have one, else one place for each of them."""
    points = [(row.experiment.x, row) for row in rows]
    numeric = all(x is not None for x, _ in points)
    places = [float(x) if numeric and x is not None else float(k) for k, (x, _) in enumerate(points)]
    order = sorted(range(len(places)), key=lambda k: places[k])
    known = [v for row in rows for v in (row.ours, row.experiment.figure) if v is not None]
    low, high = max(0.0, 10 * (min(known) // 10)), min(100.0, 10 * (max(known) // 10 + 1))
    first, last = min(places), max(places)

    def across(x: float) -> float:
        share = 0.5 if first == last else (x - first) / (last - first)
        return LEFT + 12 + share * (WIDTH - LEFT - RIGHT - 24)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>{html.escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold" fill="{TEXT}">{html.escape(title)}</text>',
    ]
    step = 10 if high - low > 20 else 5
    for level in range(int(low), int(high) + 1, step):
        y = up(level)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{TEXT}">{level}</text>')
    for k in order:
        label = f"{places[k]:g}" if numeric else rows[k].experiment.id.rpartition("-")[2]
        parts.append(
            f'<text x="{across(places[k]):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{TEXT}">'
            f"{html.escape(label)}</text>"
        )
    stated = [(across(places[k]), up(f)) for k in order if (f := rows[k].experiment.figure) is not None]
    ours = [(across(places[k]), up(o), rows[k].spread) for k in order if (o := rows[k].ours) is not None]
    parts += [
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="none" stroke="{PAPER}" stroke-width="2"/>'
        for x, y in stated
    ]
    if numeric and len(ours) > 1:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in ours)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{OURS}" stroke-width="2"/>')
    for x, y, spread in ours:
        if spread:
            reach = spread / (high - low) * (HEIGHT - TOP - BOTTOM)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - reach:.1f}" y2="{y + reach:.1f}" stroke="{OURS}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{OURS}"/>')
    foot = HEIGHT - 16
    parts += [
        f'<circle cx="{LEFT + 6}" cy="{foot - 4}" r="4" fill="{OURS}"/>',
        f'<text x="{LEFT + 16}" y="{foot}" fill="{TEXT}">ours (accuracy, %)</text>',
        f'<rect x="{LEFT + 152}" y="{foot - 8}" width="8" height="8" fill="none" stroke="{PAPER}" stroke-width="2"/>',
        f'<text x="{LEFT + 168}" y="{foot}" fill="{TEXT}">stated in the paper</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


__all__ = ["plot"]
