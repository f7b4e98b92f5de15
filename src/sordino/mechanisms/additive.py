"""Noise added on a grid: inputs become whole numbers of grid steps, the noise is whole, and so are the sums.

In a box each value is rounded to the nearest of `2 * steps + 1` grid points. In a ball the whole vector is scaled into
the ball and truncated towards zero, which can only shorten it: the integer vector stays in the ball, exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.mechanisms.arrays import Float64s, Floats, Int64s, Vector, row_parameters, store_tile, tile_of, tiles
from sordino.mechanisms.domain import Box, L1Ball, L2Ball
from sordino.mechanisms.interface import Diagnostics, Randomized
from sordino.mechanisms.laws import Law, Normal, TableLaw
from sordino.mechanisms.noise import GaussianNoise, GeometricNoise
from sordino.mechanisms.output import Output
from sordino.mechanisms.whole_numbers import WholeNumbers
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

    def law(self, v: Int64s) -> Law:
        """The law of the outputs where noise is added to the whole numbers v."""
        noise = self.noise
        if isinstance(noise, GeometricNoise):
            first, weights = noise.weights()
            return TableLaw(v, self.limit, first, weights, 2 * self.steps)
        if noise.levels == 1:
            weights = np.array(noise.table.weights, np.float64) * 2.0**-64
            return TableLaw(v, self.limit, -noise.offset, weights, 2 * self.steps)
        return Normal(v, self.limit, noise.proven_sigma)


class AdditiveNoise(WholeNumbers):
    """Integer noise on a grid; subclasses choose the grid and the noise of each client."""

    limited_by = "the reach of the noise's table"
    domain: Box | L1Ball | L2Ball
    _strengths: Float64s  #: one number per client (or one for all) that decides its grid

    @abstractmethod
    def grid(self, values: int, client: int = 0) -> NoiseGrid:
        """The grid of one client for vectors of d values."""

    @abstractmethod
    def _noise_moments(self, grid: NoiseGrid, v: Float64s) -> tuple[Float64s, Float64s]:
        """Mean and variance, in grid steps, of the clamped output at input v (in steps), less v."""

    def _grids(self, values: int, rows: int) -> tuple[list[NoiseGrid], NDArray[np.intp]]:
        """The distinct grids, and which of them each row uses."""
        distinct, first, which = np.unique(self._strengths, return_index=True, return_inverse=True)
        grids = [self.grid(values, int(k)) for k in first]
        return grids, row_parameters(which if distinct.size > 1 else np.zeros(1, np.intp), rows)

    def _per_row(self, what: str, grids: list[NoiseGrid], which: NDArray[np.intp]) -> Int64s:
        return np.array([getattr(grid, what) for grid in grids], dtype=np.int64)[which]

    def limits(self, values: int, rows: int) -> tuple[Int64s, Int64s]:
        limits = self._per_row("limit", *self._grids(values, rows))
        return -limits, limits

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = self.values_of(values, randomness)
        clients, d = w.shape
        grids, which = self._grids(d, clients)
        scale, clipped = self._prepare(w, grids, which)
        out = self.empty(clients, d)
        powers = np.zeros(clients)
        for rows, cols in tiles(which, d, max(g.noise.words_per_value for g in grids)):
            grid = grids[which[rows[0]]]
            each = grid.noise.words_per_value
            words = randomness.words(rows, Purpose.NOISE, tensor, cols.start * each, (cols.stop - cols.start) * each)
            y = grid.noise.draw(words)
            v, outside = self._to_steps(tile_of(w, rows, cols), cols, grid, scale[rows])
            clipped[rows] += outside / d
            if not isinstance(self.domain, Box):
                powers[rows] += self.domain.powers(v)
            np.add(y, v, out=y)
            if grid.clamps:
                np.clip(y, -grid.limit, grid.limit, out=y)
            store_tile(out.array, rows, cols, y)
        steps = self._per_row("steps", grids, which).astype(np.float64)
        if not isinstance(self.domain, Box) and (powers > steps**self.domain.order).any():
            raise ArithmeticError("rounding put an integer vector outside its ball; nothing was released")
        noise_scale = np.array([self._unit(g) * np.sqrt(self._noise_moments(g, np.zeros(1))[1][0]) for g in grids])
        return Randomized(out, Diagnostics(clipped, noise_scale[which]))

    def _prepare(self, w: Floats, grids: list[NoiseGrid], which: NDArray[np.intp]) -> tuple[Float64s, Float64s]:
        """Per row: the factor from values to steps (balls only), and the share clipped so far."""
        clients = len(w)
        if isinstance(self.domain, Box):
            return np.zeros(clients), np.zeros(clients)
        largest, norms = _scaled_norms(w, self.domain)
        with np.errstate(over="ignore"):
            shrink = np.minimum(1.0, self.domain.radius / largest / norms)
        steps = self._per_row("steps", grids, which)
        return shrink * steps / self.domain.radius * (1 - 2.0**-40), (shrink < 1).astype(np.float64)

    def _to_steps(
        self, w: Floats, cols: slice, grid: NoiseGrid, scale: Float64s
    ) -> tuple[NDArray[np.signedinteger], NDArray[np.intp]]:
        if isinstance(self.domain, Box):
            z, outside = self.domain.normalise(w, cols)
            return np.rint(np.multiply(z, np.float32(grid.steps), out=z), out=z).astype(np.int32), outside
        return np.trunc(w * scale[:, None]).astype(np.int64), np.zeros(len(w), np.intp)

    def _unit(self, grid: NoiseGrid) -> float:
        """The mean length of a grid step."""
        return float(np.mean(self.domain.radius, dtype=np.float64)) / grid.steps

    def estimate(self, output: Output) -> Floats:
        whole = self.whole(output)
        steps = self._per_row("steps", *self._grids(output.values, len(whole)))[:, None]
        estimate: Float64s = np.multiply(whole, np.asarray(self.domain.radius, np.float64) / steps, dtype=np.float64)
        return estimate + self.domain.centre if isinstance(self.domain, Box) else estimate

    def _moments(self, values: ArrayLike) -> tuple[Float64s, Float64s, Float64s]:
        """The values, E[estimate] and Var[estimate]."""
        w = self.values_of(values)
        rows, d = w.shape
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

    # --- audits

    def law(self, values: Vector) -> Law:
        grid, domain = self.grid(values.size), self.domain
        if isinstance(domain, Box):
            centre, radius = domain.in_float64()
            v = np.rint(np.clip((values - centre) / radius, -1, 1) * grid.steps)
        else:
            length = float(domain.norms(values[None])[0])
            v = np.trunc(values / max(length, domain.radius) * grid.steps * (1 - 2.0**-40))
        return grid.law(v.astype(np.int64))

    def _clipped(self, vector: Vector) -> Float64s:
        """`[d]` values as they are randomised, to the precision of float32."""
        clipped = self.domain.clipped(vector[None].astype(np.float64))[0]
        return np.asarray(clipped.astype(np.float32), np.float64)


def _scaled_norms(w: Floats, ball: L1Ball | L2Ball) -> tuple[Float64s, Float64s]:
    """Every row's largest absolute value, and its norm over that (so that nothing overflows); 1 for zeros."""
    largest = np.maximum(np.abs(w.max(axis=1)), np.abs(w.min(axis=1))).astype(np.float64)
    zero = largest == 0
    largest[zero] = 1.0
    sums = np.zeros(len(w))
    for rows, cols in tiles(np.zeros(len(w)), w.shape[1]):
        sums[rows] += ball.powers(tile_of(w, rows, cols) / largest[rows, None])
    sums[zero] = 1.0
    return np.maximum(largest, 1e-300), sums if ball.order == 1 else np.sqrt(sums)
