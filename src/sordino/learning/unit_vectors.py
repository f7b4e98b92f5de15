"""Features of records as whole vectors of bounded length, their second moments, and whitening by these.

    features of a record   v [maps, cells]
    normal form            square roots; every group of maps with mean 0 and deviation 1; then the whole to length
                           `limit`: u, whole numbers
    second moments         A = sum over records and cells of u_p u_p^T,   m = the same of u_p, times limit/sqrt(cells)
    whitening              z_p = L u_p - c for a whole matrix L and a whole vector c, then to length 1, with a bias

Nothing is computed across records but the sums A and m. Every step is exact, or one correctly rounded operation at a
time on whole numbers below 2^53: so what comes of a record depends on that record alone, on every machine and in every
order (docs/bits.md). A is positive semidefinite with trace |u|^2, so its Frobenius norm is at most limit^2, and so is
the length of a record's part of m: one record moves both together by at most sqrt(2) limit^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning.correct_rounding import divided, over, root
from sordino.learning.linear_head import (
    FEATURE_BITS,
    SCORE_STEPS,
    Rounded,
    aim,
    blocks,
    power_of_two,
    rounded_within,
    whole_type,
)

VALUE_BITS = 20  #: binary places of a feature
LARGEST = 2.0**22  #: features beyond it, in these places, count as it
NORMAL_BITS = 12  #: binary places of a feature after group norm
MATRIX_BITS = 16  #: entries of L are at most 2^16
LARGEST_CENTRE = 2.0**40  #: entries of c are at most this: sums stay far below 2^53
MOST_VALUES = 2**16  #: of a record


@dataclass(frozen=True)
class Form:
    """The form of a record's features: maps of cells, and how they are brought to normal form.

    `roots` says how often the square root is taken, `groups` how many groups of maps are normalised by themselves (0:
    none are). Behind the features may lie `scores` of a frozen network, to which a head adds.
    """

    maps: int
    cells: int
    groups: int = 1
    roots: int = 1
    scores: int = 0

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
    def width(self) -> int:
        """All whole numbers of a record: features, then scores."""
        return self.size + self.scores

    @property
    def moments(self) -> int:
        """How many numbers A, without the half that mirrors the other, and m have."""
        return self.maps * (self.maps + 1) // 2 + self.maps

    def mean_factor(self, limit: int) -> int:
        """What sums over cells are multiplied by in m, for unit vectors of this length; 0 where they are too short."""
        return math.isqrt(limit * limit // self.cells)


# --- the normal form --------------------------------------------------------------------------------------------------


def unit_vectors(features: Tensor, form: Form, limit: int) -> Tensor:
    """int16 `[n, size]`: the normal form of features `[n, size]`, each row with an L2 norm of at most `limit`."""
    found = torch.empty(len(features), form.size, dtype=torch.int16, device=features.device)
    for part in blocks(len(features), form.size, features.device):
        whole = _normalised(features[part].reshape(-1, form.size), form)
        norm = root((whole * whole).sum(dim=1)).clamp(min=1.0)
        rows, _ = rounded_within(whole * over(aim(limit, form.size), norm).unsqueeze(1), limit)
        found[part] = rows.to(torch.int16)
    return found


def _normalised(features: Tensor, form: Form) -> Tensor:
    """Whole numbers `[n, size]` whose squares add up to less than 2^53."""
    values = torch.nan_to_num(features.double(), nan=0.0, posinf=0.0, neginf=0.0) * 2.0**VALUE_BITS
    values = torch.round(values.clamp(-LARGEST, LARGEST))
    for _ in range(form.roots):  # of the size, with 20 places again
        values = torch.round(root(values.abs() * 2.0**VALUE_BITS)) * torch.sign(values)
    if not form.groups:
        return torch.round(values * 2.0 ** -max(0, math.ceil(math.log2(form.size)) // 2 - 4))
    grouped = values.reshape(len(values), form.groups, -1)
    size = grouped.shape[2]
    reach = 2.0 ** ((53 - math.ceil(math.log2(size))) // 2)
    centred = torch.round(grouped - divided(grouped.sum(dim=2, keepdim=True), size)).clamp(-reach, reach)
    spread = root(divided((centred * centred).sum(dim=2, keepdim=True), size) + 1.0)
    return torch.round(centred / spread * 2.0**NORMAL_BITS).reshape(values.shape)


# --- second moments ---------------------------------------------------------------------------------------------------


def second_moments(units: Tensor, form: Form, limit: int) -> Tensor:
    """int64 `[moments]`: the exact A and m of unit vectors `[n, width]` of this limit; of A the upper triangle."""
    square = torch.zeros(form.maps, form.maps, dtype=torch.int64, device=units.device)
    mean = torch.zeros(form.maps, dtype=torch.int64, device=units.device)
    for part in blocks(len(units), form.size, units.device):
        columns = (
            units[part, : form.size].double().reshape(-1, form.maps, form.cells).transpose(0, 1).reshape(form.maps, -1)
        )
        square += (columns @ columns.T).long()
        mean += columns.sum(dim=1).long()
    rows, columns = torch.triu_indices(form.maps, form.maps)
    return torch.cat([square[rows, columns], mean * form.mean_factor(limit)])


def moments_sensitivity(limit: int) -> float:
    """By how much one record moves A and m together, at most: an L2 norm."""
    return math.sqrt(2) * limit * limit * (1 + 2.0**-50)


@dataclass(frozen=True)
class Whitening:
    """What records are whitened by, in whole numbers, as plans carry it."""

    left: NDArray[np.float32]  #: L `[maps, maps]`
    centre: NDArray[np.float32]  #: c `[maps]`
    count: float  #: of records, by the trace of A

    @classmethod
    def none(cls, form: Form, count: float) -> Whitening:
        """Records as they are."""
        return cls(np.eye(form.maps, dtype=np.float32) * 2**MATRIX_BITS, np.zeros(form.maps, np.float32), count)

    @classmethod
    def of(cls, moments: NDArray[np.float64], form: Form, limit: int, floor: float) -> Whitening:
        """(A/n - m m^T + floor)^-1/2 from noisy sums of second moments; negative eigenvalues count as 0.

        `moments` are in units of limit^2, so that n is the trace of A. How long whitened records are does not matter:
        L is scaled to its bits.
        """
        upper = form.maps * (form.maps + 1) // 2
        square = np.zeros((form.maps, form.maps))
        square[np.triu_indices(form.maps)] = moments[:upper]
        square += np.triu(square, 1).T
        count = max(float(np.trace(square)), 1.0)
        factor = limit / (form.mean_factor(limit) or math.inf)  # without room for m, nothing is centred
        mean = moments[upper:] * factor / form.cells / count  # of u_p / limit
        values, vectors = np.linalg.eigh(square / count - form.cells * np.outer(mean, mean))
        matrix = (vectors * (np.maximum(values, 0) + floor) ** -0.5) @ vectors.T
        left = np.rint(matrix * (2.0**MATRIX_BITS / np.abs(matrix).max()))
        centre = np.rint(left @ mean * limit).clip(-LARGEST_CENTRE, LARGEST_CENTRE)
        return cls(left.astype(np.float32), centre.astype(np.float32), count)


# --- whitened records -------------------------------------------------------------------------------------------------


def whitened(units: Tensor, form: Form, left: Tensor, centre: Tensor, bias: float, limit: int) -> Rounded:
    """Unit vectors `[n, width]` whitened, of length 1, each with an input of `bias` for the bias, as whole vectors.

    A row of `whole` is at most `limit` long. L and c are taken as a plan may carry them: whole, and not beyond reach.
    """
    left, centre = (torch.round(torch.nan_to_num(own.double())) for own in (left, centre))
    left, centre = left.clamp(-(2.0**MATRIX_BITS), 2.0**MATRIX_BITS), centre.clamp(-LARGEST_CENTRE, LARGEST_CENTRE)
    whole = torch.empty(len(units), form.size + 1, dtype=whole_type(limit), device=units.device)
    largest = 1
    scale = torch.empty(len(units), dtype=torch.float64, device=units.device)
    for part in blocks(len(units), form.size, units.device):
        rows = left @ units[part, : form.size].double().reshape(-1, form.maps, form.cells) - centre.unsqueeze(1)
        rows = rows.flatten(1)
        power = power_of_two(FEATURE_BITS - torch.frexp(rows.abs().amax(dim=1)).exponent)
        fixed = torch.round(rows * power.unsqueeze(1))
        norm = root((fixed * fixed).sum(dim=1))
        fixed = torch.cat([fixed, torch.round(norm * bias).unsqueeze(1)], dim=1)
        length = root((fixed * fixed).sum(dim=1)).clamp(min=1.0)
        factor = over(aim(limit, form.size + 1), length)
        rows, shorter = rounded_within(fixed * factor.unsqueeze(1), limit)
        whole[part], largest = rows.to(whole.dtype), max(largest, int(rows.abs().amax()))
        scale[part] = factor * shorter * norm.clamp(min=1.0)
    length = torch.full_like(scale, math.sqrt(1 + bias * bias))
    return Rounded(whole, scale, length, limit, units[:, form.size :].clone() if form.scores else None, largest)


class WhitenedHead(nn.Module):
    """The same for scoring: unit vectors `[n, width]` to the scores of a linear layer, in float32."""

    left: Tensor
    centre: Tensor

    def __init__(self, form: Form, classes: int, bias: float) -> None:
        super().__init__()
        self.form, self.bias_input = form, bias
        self.fc = nn.Linear(form.size, classes)  # named as in the model `logistic`, whose parameters it takes
        self.register_buffer("left", torch.eye(form.maps))
        self.register_buffer("centre", torch.zeros(form.maps))

    def forward(self, units: Tensor) -> Tensor:
        """Scores `[n, classes]`."""
        rows = units[:, : self.form.size].to(self.left.dtype).reshape(-1, self.form.maps, self.form.cells)
        rows = (self.left @ rows - self.centre.unsqueeze(1)).flatten(1)
        rows = nn.functional.normalize(rows, dim=1)
        scores = nn.functional.linear(rows, self.fc.weight, self.bias_input * self.fc.bias)
        return scores + units[:, self.form.size :].to(scores.dtype) / SCORE_STEPS if self.form.scores else scores


__all__ = [
    "Form", "WhitenedHead", "Whitening", "moments_sensitivity", "second_moments", "unit_vectors", "whitened",
]  # fmt: skip
