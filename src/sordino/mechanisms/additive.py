"""Noise added on a grid: inputs become whole numbers of grid steps, the noise is whole, and so are the sums.

In a box each value is rounded to the nearest of `2 * steps + 1` grid points. In a ball the whole vector is scaled into
the ball and truncated towards zero, which can only shorten it: the integer vector stays in the ball, exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.mechanisms import reach
from sordino.mechanisms.domain import Box, L1Ball, L2Ball
from sordino.mechanisms.interface import (
    Diagnostics,
    Float64s,
    Floats,
    Mechanism,
    Randomized,
    as_matrix,
    as_shaped,
    check_cohort,
    row_parameters,
    store_tile,
    tile_of,
    tiles,
)
from sordino.mechanisms.laws import Law, Normal, TableLaw
from sordino.mechanisms.likelihood import Vector
from sordino.mechanisms.noise import GaussianNoise, GeometricNoise
from sordino.mechanisms.output import IntegerOutput, Output, decode_integers, integer_dtype
from sordino.mechanisms.reach import Reach
from sordino.privacy.guarantee import check_count
from sordino.randomness import Purpose, Randomness


@dataclass(frozen=True)
class NoiseGrid:
    """One client's grid: `steps` from the centre of the domain to its edge, the noise, and the clamp of outputs."""

    steps: int
    noise: GeometricNoise | GaussianNoise
    limit: int

    @property
    def clamps(self) -> bool:
        """Whether an output could lie beyond the limit at all."""
        return self.limit < self.steps + self.noise.reach

    def law(self, v: NDArray[np.int64]) -> Law:
        """Of noise added to the whole numbers v."""
        noise = self.noise
        if isinstance(noise, GeometricNoise):
            first, weights = noise.weights()
            return TableLaw(v, self.limit, first, weights, 2 * self.steps)
        if noise.levels == 1:
            weights = np.array(noise.table.weights, np.float64) * 2.0**-64
            return TableLaw(v, self.limit, -noise.offset, weights, 2 * self.steps)
        return Normal(v, self.limit, noise.proven_sigma)


class AdditiveNoise(Mechanism):
    """Integer noise on a grid; subclasses choose the grid and the noise of each client."""

    domain: Box | L1Ball | L2Ball
    _parameters: NDArray[np.float64]  #: one number per client (or one for all) that decides its grid

    @property
    def clients(self) -> int | None:
        return None if self._parameters.size == 1 else int(self._parameters.size)

    @abstractmethod
    def grid(self, values: int, client: int = 0) -> NoiseGrid:
        """The grid of one client for vectors of d values."""

    @abstractmethod
    def _noise_moments(self, grid: NoiseGrid, v: Float64s) -> tuple[Float64s, Float64s]:
        """Mean and variance, in grid steps, of the clamped output at input v (in steps), less v."""

    def _grids(self, values: int, rows: int) -> tuple[list[NoiseGrid], NDArray[np.intp]]:
        """The distinct grids, and which of them each row uses."""
        distinct, first, which = np.unique(self._parameters, return_index=True, return_inverse=True)
        grids = [self.grid(values, int(k)) for k in first]
        return grids, row_parameters(which if distinct.size > 1 else np.zeros(1, np.intp), rows)

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = as_shaped(values) if isinstance(self.domain, Box) else as_matrix(values)
        clients, d = w.shape
        check_cohort(self, clients, randomness)
        grids, which = self._grids(d, clients)
        limits = np.array([g.limit for g in grids], dtype=np.int64)[which]
        scale, clipped = self._prepare(w, grids, which)
        out = np.empty((clients, d), dtype=integer_dtype(-int(limits.max()), int(limits.max())))
        norms = np.zeros(clients)
        words_per_value = max(g.noise.words_per_value for g in grids)
        for rows, cols in tiles(which, d, words_per_value):
            grid = grids[which[rows[0]]]
            per_value = grid.noise.words_per_value
            y = grid.noise.draw(
                randomness.words(
                    rows, Purpose.NOISE, tensor, cols.start * per_value, (cols.stop - cols.start) * per_value
                )
            )
            v, outside = self._to_steps(tile_of(w, rows, cols), cols, grid, scale[rows])
            clipped[rows] += outside / d
            norms[rows] += self._norm_of(v)
            np.add(y, v, out=y)
            if grid.clamps:
                np.clip(y, -grid.limit, grid.limit, out=y)
            store_tile(out, rows, cols, y)
        self._check_norms(norms, np.array([g.steps for g in grids], dtype=np.float64)[which])
        noise_scale = np.array([self._unit(g) * np.sqrt(self._noise_moments(g, np.zeros(1))[1][0]) for g in grids])
        return Randomized(IntegerOutput(out, -limits, limits), Diagnostics(clipped, noise_scale[which]))

    def _prepare(self, w: Floats, grids: list[NoiseGrid], which: NDArray[np.intp]) -> tuple[Float64s, Float64s]:
        """Per row: the factor from values to steps (balls only), and the share clipped so far."""
        clients, d = w.shape
        if isinstance(self.domain, Box):
            self.domain.check_values(d)
            return np.zeros(clients), np.zeros(clients)
        largest, norms = _scaled_norms(w, 1 if isinstance(self.domain, L1Ball) else 2)
        with np.errstate(over="ignore"):
            shrink = np.minimum(1.0, self.domain.radius / largest / norms)
        steps = np.array([g.steps for g in grids], dtype=np.float64)[which]
        return shrink * steps / self.domain.radius * (1 - 2.0**-40), (shrink < 1).astype(np.float64)

    def _to_steps(
        self, w: Floats, cols: slice, grid: NoiseGrid, scale: Float64s
    ) -> tuple[NDArray[np.signedinteger], NDArray[np.intp]]:
        if isinstance(self.domain, Box):
            z, outside = self.domain.normalise(w, cols)
            return np.rint(np.multiply(z, np.float32(grid.steps), out=z), out=z).astype(np.int32), outside
        return np.trunc(w * scale[:, None]).astype(np.int64), np.zeros(len(w), np.intp)

    def _norm_of(self, v: NDArray[np.signedinteger]) -> Float64s | int:
        if isinstance(self.domain, L1Ball):
            return np.asarray(np.abs(v).sum(axis=1, dtype=np.float64))
        if isinstance(self.domain, L2Ball):
            return np.asarray(np.square(v, dtype=np.float64).sum(axis=1))
        return 0

    def _check_norms(self, norms: Float64s, steps: Float64s) -> None:
        """Nothing may leave if rounding ever put an integer vector outside its ball."""
        if not isinstance(self.domain, Box) and (norms > steps ** (2 if isinstance(self.domain, L2Ball) else 1)).any():
            raise ArithmeticError("a clipped vector left its ball; nothing was released")

    def _unit(self, grid: NoiseGrid) -> float:
        """The mean length of a grid step."""
        return float(np.mean(self.domain.radius, dtype=np.float64)) / grid.steps

    def estimate(self, output: Output) -> Floats:
        if not isinstance(output, IntegerOutput):
            raise TypeError(f"noise on a grid puts out whole numbers, not {type(output).__name__}")
        rows, d = output.array.shape
        check_cohort(self, rows)
        if isinstance(self.domain, Box):
            self.domain.check_values(d)
        grids, which = self._grids(d, rows)
        steps = np.array([g.steps for g in grids], dtype=np.float64)[which, None]
        estimate: Float64s = np.multiply(
            output.array, np.asarray(self.domain.radius, np.float64) / steps, dtype=np.float64
        )
        return estimate + self.domain.centre if isinstance(self.domain, Box) else estimate

    def _moments(self, values: ArrayLike) -> tuple[Float64s, Float64s, Float64s]:
        """The values, E[estimate] and Var[estimate]."""
        w = as_matrix(values)
        rows, d = w.shape
        check_cohort(self, rows)
        grids, which = self._grids(d, rows)
        scale, _ = self._prepare(w, grids, which)
        centre = self.domain.centre.astype(np.float64) if isinstance(self.domain, Box) else 0.0
        mean, variance = np.empty(w.shape), np.empty(w.shape)
        for k, grid in enumerate(grids[i] for i in which):
            v = self._to_steps(w[k : k + 1], slice(0, d), grid, scale[k : k + 1])[0][0].astype(np.float64)
            shift, spread = self._noise_moments(grid, v)
            unit = np.asarray(self.domain.radius, np.float64) / grid.steps
            mean[k] = centre + unit * (v + shift)
            variance[k] = unit**2 * spread
        return w.astype(np.float64), mean, variance

    def bias(self, values: ArrayLike) -> Float64s:
        w, mean, _ = self._moments(values)
        return mean - w

    def variance(self, values: ArrayLike) -> Float64s:
        return self._moments(values)[2]

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        check_cohort(self, len(reports))
        check_count("values", values)
        grids, which = self._grids(values, len(reports))
        limits = np.array([g.limit for g in grids], dtype=np.int64)[which]
        return decode_integers(reports, values, -limits, limits)

    # --- audits

    def law(self, values: NDArray[np.floating]) -> Law:
        grid, domain = self.grid(values.size), self.domain
        if isinstance(domain, Box):
            centre, radius = (a.astype(np.float64) for a in domain.columns(slice(0, values.size)))
            v = np.rint(np.clip((values - centre) / radius, -1, 1) * grid.steps)
        else:
            length = np.abs(values).sum() if isinstance(domain, L1Ball) else np.linalg.norm(values)
            v = np.trunc(values / max(float(length), domain.radius) * grid.steps * (1 - 2.0**-40))
        return grid.law(v.astype(np.int64))

    def _clipped(self, vector: Vector) -> Float64s:
        """`[d]` values as they are randomised, to the precision of float32."""
        clipped = self.domain.clipped(vector[None].astype(np.float64))[0]
        return np.asarray(clipped.astype(np.float32), np.float64)

    def _extent(self, values: int, limit: float | None) -> Reach:
        most = self.grid(values).limit
        return reach.between_whole(self, values, -most, most, "the reach of the noise's table")


def _scaled_norms(w: Floats, order: int) -> tuple[Float64s, Float64s]:
    """Every row's largest absolute value, and its L1 or L2 norm over that (so that nothing overflows); 1 for zeros."""
    largest = np.maximum(np.abs(w.max(axis=1)), np.abs(w.min(axis=1))).astype(np.float64)
    zero = largest == 0
    largest[zero] = 1.0
    sums = np.zeros(len(w))
    for rows, cols in tiles(np.zeros(len(w)), w.shape[1]):
        part = tile_of(w, rows, cols) / largest[rows, None]
        sums[rows] += np.abs(part).sum(axis=1) if order == 1 else np.square(part).sum(axis=1)
    sums[zero] = 1.0
    return np.maximum(largest, 1e-300), sums if order == 1 else np.sqrt(sums)
