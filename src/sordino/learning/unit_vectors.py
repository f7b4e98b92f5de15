"""Features of records as whole vectors of bounded length, their second moments, and whitening by these.

    features of a record   v [maps * cells]
    normal form            every group of maps with mean 0 and deviation 1, then the whole to length `limit`: u, whole
    second moments         A = sum over records and cells of u_p u_p^T,   S = the same over maps
    whitening              z = L u R for whole matrices L [maps, maps] and R [cells, cells], to length 1, with a bias

Nothing is computed across records but the sums A and S. Every step is exact, or one correctly rounded operation at a
time on whole numbers below 2^53: so what comes of a record depends on that record alone, on every machine and in every
order (docs/bits.md). A is positive semidefinite with trace |u|^2, so its Frobenius norm is at most limit^2, and so is
that of S: one record moves both together by at most sqrt(2) limit^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning.linear_head import FEATURE_BITS, Rounded, aim, power_of_two, rounded_within

VALUE_BITS = 20  #: binary places of a feature
LARGEST = 2.0**22  #: features beyond it, in these places, count as it
NORMAL_BITS = 12  #: binary places of a feature after group norm
BLOCK = 2**20  #: values of records computed at a time
MOST_VALUES = 2**16  #: of a record: with the bits below, all sums of products stay under 2^53


@dataclass(frozen=True)
class Form:
    """The form of a record's features: maps of cells, normalised in groups of maps (0: not in groups)."""

    maps: int
    cells: int
    groups: int = 0

    def __post_init__(self) -> None:
        if self.groups and self.maps % self.groups:
            fit = [str(g) for g in range(1, self.maps + 1) if self.maps % g == 0]
            raise InvalidInput(
                f"{self.maps} maps do not fall into {self.groups} equal groups: set method.groups to one of "
                f"{', '.join(fit)}, or to 0"
            )
        if not 1 <= self.size < MOST_VALUES:
            raise InvalidInput(f"records of {self.size:,} features are too long: {MOST_VALUES - 1:,} is the most")

    @property
    def size(self) -> int:
        """Features of a record."""
        return self.maps * self.cells

    @property
    def moments(self) -> int:
        """How many numbers A and S have, each without the half that mirrors the other."""
        return self.maps * (self.maps + 1) // 2 + self.cells * (self.cells + 1) // 2

    @property
    def matrix_bits(self) -> int:
        """Entries of L and R are at most 2^this: so no sum of |L u R| exceeds 2^42 sqrt(limit^2) < 2^53."""
        return int((42 - math.ceil(math.log2(self.size))) // 2)


def _blocks(records: int, width: int) -> Iterator[slice]:
    step = max(16, BLOCK // width)
    return (slice(first, first + step) for first in range(0, records, step))


# --- the normal form --------------------------------------------------------------------------------------------------


def unit_vectors(features: Tensor, form: Form, limit: int) -> Tensor:
    """int16 `[n, size]`: the normal form of features `[n, size]`, each row with an L2 norm of at most `limit`."""
    found = torch.empty(len(features), form.size, dtype=torch.int16, device=features.device)
    for part in _blocks(len(features), form.size):
        whole = _normalised(features[part].reshape(-1, form.size), form)
        norm = torch.sqrt((whole * whole).sum(dim=1)).clamp(min=1.0)
        rows, _ = rounded_within(whole * (aim(limit, form.size) / norm).unsqueeze(1), limit)
        found[part] = rows.to(torch.int16)
    return found


def _normalised(features: Tensor, form: Form) -> Tensor:
    """Whole numbers `[n, size]` whose squares add up to less than 2^53."""
    values = torch.nan_to_num(features.double(), nan=0.0, posinf=0.0, neginf=0.0) * 2.0**VALUE_BITS
    values = torch.round(values.clamp(-LARGEST, LARGEST))
    if not form.groups:
        return torch.round(values * 2.0 ** -max(0, math.ceil(math.log2(form.size)) // 2 - 4))
    grouped = values.reshape(len(values), form.groups, -1)
    size = grouped.shape[2]
    reach = 2.0 ** ((53 - math.ceil(math.log2(size))) // 2)
    centred = torch.round(grouped - grouped.sum(dim=2, keepdim=True) / size).clamp(-reach, reach)
    spread = torch.sqrt((centred * centred).sum(dim=2, keepdim=True) / size + 1.0)
    return torch.round(centred / spread * 2.0**NORMAL_BITS).reshape(values.shape)


# --- second moments ---------------------------------------------------------------------------------------------------


def second_moments(units: Tensor, form: Form) -> Tensor:
    """int64 `[moments]`: the exact A and S of unit vectors `[n, size]`, the upper triangle of each, row by row."""
    over_maps = torch.zeros(form.maps, form.maps, dtype=torch.float64, device=units.device)
    over_cells = torch.zeros(form.cells, form.cells, dtype=torch.float64, device=units.device)
    for part in _blocks(len(units), form.size):
        rows = units[part].double().reshape(-1, form.maps, form.cells)
        columns = rows.transpose(0, 1).reshape(form.maps, -1)
        over_maps += columns @ columns.T
        flat = rows.reshape(-1, form.cells)
        over_cells += flat.T @ flat
    return torch.cat([matrix[_upper(len(matrix))] for matrix in (over_maps, over_cells)]).long()


def _upper(size: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(size, size)
    return rows, columns


def moments_sensitivity(limit: int) -> float:
    """By how much one record moves A and S together, at most: an L2 norm."""
    return math.sqrt(2) * limit * limit * (1 + 2.0**-50)


def moment_matrices(moments: NDArray[np.float64], form: Form) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A and S as whole matrices, from what `second_moments` has of them."""
    first = form.maps * (form.maps + 1) // 2
    return _symmetric(moments[:first], form.maps), _symmetric(moments[first:], form.cells)


def _symmetric(upper: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = upper
    return matrix + np.triu(matrix, 1).T


def whitening(matrix: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """(M + floor)^-1/2 of a noisy second moment M, whose negative eigenvalues count as 0."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * (np.maximum(values, 0) + floor) ** -0.5) @ vectors.T)


def whole_matrix(matrix: NDArray[np.float64], form: Form) -> NDArray[np.float32]:
    """A matrix in whole numbers, as plans carry it: how long whitened records are does not matter."""
    return np.rint(matrix * (2.0**form.matrix_bits / np.abs(matrix).max())).astype(np.float32)


# --- whitened records -------------------------------------------------------------------------------------------------


def whitened(units: Tensor, form: Form, left: Tensor, right: Tensor, bias: float, limit: int) -> Rounded:
    """Unit vectors `[n, size]` whitened, of length 1, each with an input of `bias` for the bias, as whole vectors.

    A row of `whole` is at most `limit` long. Matrices are taken as plans may carry them: whole, and not beyond reach.
    """
    reach = 2.0**form.matrix_bits
    left, right = (torch.round(torch.nan_to_num(own.double())).clamp(-reach, reach) for own in (left, right))
    whole = torch.empty(
        len(units), form.size + 1, dtype=torch.int8 if limit < 128 else torch.int16, device=units.device
    )
    scale = torch.empty(len(units), dtype=torch.float64, device=units.device)
    for part in _blocks(len(units), form.size):
        rows = units[part].double().reshape(-1, form.maps, form.cells)
        rows = (left @ rows @ right).flatten(1)
        power = power_of_two(FEATURE_BITS - torch.frexp(rows.abs().amax(dim=1)).exponent)
        fixed = torch.round(rows * power.unsqueeze(1))
        norm = torch.sqrt((fixed * fixed).sum(dim=1))
        fixed = torch.cat([fixed, torch.round(norm * bias).unsqueeze(1)], dim=1)
        length = torch.sqrt((fixed * fixed).sum(dim=1)).clamp(min=1.0)
        factor = aim(limit, form.size + 1) / length
        rows, shorter = rounded_within(fixed * factor.unsqueeze(1), limit)
        whole[part] = rows.to(whole.dtype)
        scale[part] = factor * shorter * norm.clamp(min=1.0)
    length = torch.full_like(scale, math.sqrt(1 + bias * bias))
    return Rounded(whole, scale, length)


class WhitenedHead(nn.Module):
    """The same for scoring: unit vectors `[n, size]` of any length to the scores of a linear layer, in float32."""

    left: Tensor
    right: Tensor

    def __init__(self, form: Form, classes: int, bias: float) -> None:
        super().__init__()
        self.form, self.bias_input = form, bias
        self.weight = nn.Parameter(torch.zeros(classes, form.size))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.register_buffer("left", torch.eye(form.maps))
        self.register_buffer("right", torch.eye(form.cells))

    def forward(self, units: Tensor) -> Tensor:
        """Scores `[n, classes]`."""
        rows = units.to(self.left.dtype).reshape(-1, self.form.maps, self.form.cells)
        rows = (self.left @ rows @ self.right).flatten(1)
        return nn.functional.linear(nn.functional.normalize(rows, dim=1), self.weight, self.bias_input * self.bias)


__all__ = [
    "Form", "WhitenedHead", "moment_matrices", "moments_sensitivity", "second_moments", "unit_vectors", "whitened",
    "whitening", "whole_matrix",
]  # fmt: skip
