"""An aggregation of one's own: Krum (Blanchard et al., "Machine learning with adversaries", NeurIPS 2017).

The report whose nearest neighbours are nearest to it is taken for all of them: with K reports, of which f may be
hostile, its K - f - 2 nearest count. Krum must see single reports, so that recipes with secure sums are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from sordino.methods.robust import RobustSpec
from sordino.parts.tables import Count, Found, reads, tag


class Krum(RobustSpec):
    """The single report that lies closest to its neighbours."""

    kind: str = tag("krum", "robust: the report that lies closest to its neighbours")
    hostile: Count = Field(default=1, description="how many reports of a round may be hostile")

    def rule(self, rows: Any) -> Any:
        points = rows.astype(np.float64)
        squares = np.einsum("kd,kd->k", points, points)
        distances = squares[:, None] + squares[None, :] - 2 * points @ points.T
        neighbours = max(1, len(rows) - self.hostile - 2)
        scores = np.sort(distances, axis=1)[:, 1 : neighbours + 1].sum(axis=1)
        return points[int(np.argmin(scores))]

    @reads("method.selection", ".", "split")
    def enough_reports(self, recipe: Any) -> Found:
        """A majority of a round's reports is honest, with two to spare."""
        asked = recipe.method.selection.asked(recipe.number_of_clients)
        if asked < 2 * self.hostile + 3:
            yield ".hostile", f"got {self.hostile}; allowed: at most {max(0, (asked - 3) // 2)} of {asked} asked"
