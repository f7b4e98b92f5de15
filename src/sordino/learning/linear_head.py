"""Per-record gradients of a linear softmax model in whole numbers: the same on every machine, in every order.

A record x with a 1 for the bias has the gradient r x^T, r = softmax(W x) - onehot(y): of rank one. So x is rounded to a
whole vector u of norm at most `features`, and r, scaled by what clipping leaves of it, to one of norm at most
`residuals`: the record's part of a sum is r u^T, whole, with a norm of at most features * residuals = the clip.

Nothing of it depends on other records. Scores are products of whole numbers whose sums stay below 2^53, so that float64
has them exactly in any order; the exponential is a table of whole numbers; everything else is one correctly rounded
operation (+ - * / sqrt, rounding) at a time, value by value. Web pages do the same (docs/bits.md).

A head may add to scores that a frozen network gives the record, as an adapter does: r = softmax(s + W x) - onehot(y).
The network's s are whole steps of the exponential's table. They change what r is, and not how long it may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import lru_cache
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.learning import models
from sordino.learning.correct_rounding import over, root
from sordino.learning.stacked_model import Loss
from sordino.learning.tasks import MOST_CLASSES
from sordino.mechanisms.integers import exp_fixed

FEATURE_BITS = 18  #: a record's largest value has so many bits before it is scaled to the grid
MOST_FEATURES = 2**16  #: the bias included: scores are at most sqrt(2^16) * 2^15 * 2^30 = 2^53
WEIGHT_BITS = 16  #: binary places of a weight
LARGEST_WEIGHT = 2**14  #: weights beyond it count as it
SCORE_STEPS = 1024  #: steps of the exponential's table per unit of the score
LOWEST_SCORE = 24  #: below the largest; smaller ones count as this
TABLE_BITS = 40
ROUNDS = 12  #: attempts to round a vector so that it is not too long
BLOCK = 2**18  #: float64 values of records computed at a time: as many as stay in a processor's cache
PRODUCT_BLOCK = 2**19  #: the same for float32
SCORES = 2**16  #: scores computed at a time: fewer cost more calls, more leave the cache
FEWEST_ROWS = 16  #: records computed at a time, however wide they are
GPU_BLOCK = 2**26  #: values of records computed at a time on a GPU
FEWEST_TOGETHER = 16  #: records whose sum float32 has exactly, below which clients are computed one by one
GPU_RECORDS = 2**12  #: records computed at a time on a GPU


@dataclass(frozen=True)
class HeadSums:
    """The sum of all records' parts, flat as the parameters are, and what is local; of one client or of several."""

    sums: Tensor  #: int64 `[d]` or `[K, d]`
    loss: Tensor  #: `[]` or `[K]`
    clipped: Tensor  #: the same


def _joined(each: Sequence[HeadSums]) -> HeadSums:
    """The sums of several groups of clients, one after another."""
    return HeadSums(*(torch.cat([getattr(own, f.name) for own in each]) for f in fields(HeadSums)))


def split_clip(clip: int) -> tuple[int, int]:
    """(features, residuals): the whole norms whose product is at most the clip, 3/5 of the bits for the features."""
    residuals = 1 << (2 * (clip.bit_length() - 1) // 5)
    return clip // residuals, residuals


def rounded_within(values: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Rows of float64 rounded to whole numbers, none with an L2 norm above `limit`, and the factor each was scaled by.

    A row that is too long once rounded is shortened and rounded again, at last cut off towards zero: that cannot
    lengthen it. Norms are compared as whole numbers; a row that is still not within the limit, or not a number, is 0.
    """
    whole = torch.round(values)
    scale = torch.ones(len(values), dtype=torch.float64, device=values.device)
    for attempt in range(ROUNDS):
        squares = (whole * whole).sum(dim=1)
        long = ~(squares <= limit * limit)  # a norm that is not a number is too long
        if not bool(long.any()):
            return whole, scale
        scale[long] = scale[long] * (over(limit, root(squares[long])) * (1 - 2.0 ** (attempt - ROUNDS)))
        whole[long] = torch.round(values[long] * scale[long].unsqueeze(1))
    long = ~((whole * whole).sum(dim=1) <= limit * limit)
    whole[long] = torch.trunc(values[long] * scale[long].unsqueeze(1))
    long = ~((whole * whole).sum(dim=1) <= limit * limit)
    whole[long], scale[long] = 0, 1
    return whole, scale


def aim(limit: int, width: int) -> float:
    """The norm to scale a vector to before it is rounded, so that it rarely gets longer than `limit` by that."""
    return math.sqrt(max(limit * limit - width / 12 - 2 * limit, limit * limit / 4))


@dataclass(frozen=True)
class WholeWeights:
    """Weights `whole [classes, features (+ 1)]`, float64 whole numbers; their digits are taken apart once."""

    whole: Tensor
    _digits: dict[int, Digits] = field(default_factory=dict, compare=False, repr=False)

    def digits(self, longest: int) -> Digits:
        """The digits for records of at most this length."""
        if longest not in self._digits:
            self._digits[longest] = Digits.of(self.whole, longest)
        return self._digits[longest]


@dataclass(frozen=True)
class LinearHead:
    """A model of `features` values, with or without a bias, and `classes` scores."""

    features: int
    classes: int
    bias: bool

    @property
    def size(self) -> int:
        """Number of parameters."""
        return (self.features + self.bias) * self.classes

    def rounded(self, x: Tensor, steps: int) -> Rounded:
        """Records `x [n, ...]` as whole vectors, for a clip of so many grid steps."""
        return Rounded.of(x.reshape(len(x), self.features), self.bias, split_clip(steps)[0])

    def sums(self, weights: WholeWeights, records: Rounded, y: Tensor, clip: float, limit: int) -> HeadSums:
        """The exact sum of the parts of records with labels `y [n]`, their residuals at most `limit` steps long."""
        width, device = self.features + self.bias, y.device
        total = torch.zeros(self.classes, width, dtype=torch.int64, device=device)
        loss, clipped = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        digits = weights.digits(records.longest) if _fits_float32(records, limit) else None
        kind, exact = (torch.float64, 2**53) if digits is None else (torch.float32, 2**24)
        most = exact // (records.bound * limit)  # so many records are added up exactly, whatever they are
        step = max(FEWEST_ROWS, SCORES // self.classes if device.type == "cpu" else min(most, GPU_RECORDS))
        at_once = min(len(y), step, block_rows(width, device, PRODUCT_BLOCK))
        buffer = torch.empty(at_once, width, dtype=kind, device=device)
        for first in range(0, len(y), step):
            own, labels = records.rows(slice(first, first + step)), y[first : first + step]
            left = weights.whole if digits is None else digits.digits
            products = torch.cat([left @ rows.T for rows in _floats(own.whole, buffer)], dim=1)
            scores = products if digits is None else digits.joined(products)
            residual, shortened, shares = residuals(own, scores.T, labels, clip, limit)
            factors = residual.T.to(kind)
            for piece in _exact_pieces(residual.T, most, exact // records.bound):
                total += _added_up(factors[:, piece], own.whole[piece], buffer).long()
            loss -= torch.log(shares).sum()
            clipped += shortened.sum()
        return HeadSums(self.flat(total), loss, clipped)

    def sums_apart(
        self, weights: WholeWeights, records: Sequence[Rounded], labels: Sequence[Tensor], clip: float, limit: int
    ) -> HeadSums:
        """`sums` of each of several clients' records, computed side by side: a GPU waits for its orders otherwise."""
        longest, most = records[0].longest, 2**24 // (records[0].longest * limit)
        fits = most >= FEWEST_TOGETHER and all(own.longest == longest and _fits_float32(own, limit) for own in records)
        if not fits:
            alone = [self.sums(weights, own, y, clip, limit) for own, y in zip(records, labels, strict=True)]
            return _joined([HeadSums(own.sums[None], own.loss[None], own.clipped[None]) for own in alone])
        everyone = Rounded(
            torch.cat([own.whole for own in records]).float(), torch.cat([own.scale for own in records]),
            torch.cat([own.length for own in records]), longest,
            None if records[0].base is None else torch.cat([own.base for own in records if own.base is not None]),
        )  # fmt: skip
        products = weights.digits(longest).products(everyone.whole).T
        residual, shortened, shares = residuals(everyone, products, torch.cat(list(labels)), clip, limit)
        losses, kept = -torch.log(shares), residual.float()
        found, first = [], 0
        for n, alike in groupby(len(y) for y in labels):
            clients = len(list(alike))
            own = slice(first, first := first + clients * n)
            left = kept[own].view(clients, n, self.classes).transpose(1, 2)
            right = everyone.whole[own].view(clients, n, -1)
            total = torch.zeros(clients, self.classes, self.features + self.bias, dtype=torch.int64, device=kept.device)
            for start in range(0, n, most):  # so many are added up exactly
                total += left[:, :, start : start + most].bmm(right[:, start : start + most]).long()
            local = (value[own].view(clients, n).sum(1) for value in (losses, shortened))
            found.append(HeadSums(self.flat(total), *local))
        return HeadSums(
            *(torch.cat(parts) for parts in zip(*((f.sums, f.loss, f.clipped) for f in found), strict=True))
        )

    def parts(self, weights: WholeWeights, records: Rounded, y: Tensor, clip: float, limit: int) -> Tensor:
        """What each record adds to the sum, `[n, d]`: for those who look at single records."""
        whole = records.whole.double()
        found, _, _ = residuals(records, whole @ weights.whole.T, y, clip, limit)
        outer = found[:, :, None] * whole[:, None, :]
        return torch.cat([outer[:, :, : self.features].flatten(1), outer[:, :, self.features :].flatten(1)], dim=1)

    def weights(self, parameters: Tensor) -> WholeWeights:
        """Parameters as whole numbers of 2^-16, what is not finite being 0."""
        count = self.features * self.classes
        own = parameters[:count].reshape(self.classes, self.features)
        if self.bias:
            own = torch.cat([own, parameters[count:].reshape(self.classes, 1)], dim=1)
        own = torch.nan_to_num(own.double(), nan=0.0, posinf=0.0, neginf=0.0)
        return WholeWeights(torch.round(own.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT) * 2.0**WEIGHT_BITS))

    def flat(self, total: Tensor) -> Tensor:
        """`[.., classes, features (+ 1)]` in the order of the parameters: weights, then biases."""
        return torch.cat([total[..., : self.features].flatten(-2), total[..., self.features :].flatten(-2)], dim=-1)


def _floats(whole: Tensor, buffer: Tensor) -> Iterator[Tensor]:
    """Whole records as floats, in parts alike that `buffer` holds, and in it: it stays in a processor's cache."""
    return (buffer[: len(rows)].copy_(rows) for rows in torch.chunk(whole, -(-len(whole) // len(buffer))))


def _added_up(factors: Tensor, whole: Tensor, buffer: Tensor) -> Tensor:
    """factors `[classes, n]` times whole records `[n, width]`, as floats."""
    total, first = factors.new_zeros(len(factors), whole.shape[1]), 0
    for rows in _floats(whole, buffer):
        total.addmm_(factors[:, first : first + len(rows)], rows)
        first += len(rows)
    return total


def _exact_pieces(residual: Tensor, most: int, reach: int) -> Iterator[slice]:
    """Pieces of residuals `[classes, n]` so short that floats have the sums of their records' parts exactly.

    `most` records are short enough, whatever they are, and at least `FEWEST_ROWS` are. So are others where the sizes of
    no class's residuals add up to more than `reach`: times the largest value of a record, that is the largest sum.
    """
    n, first = residual.shape[1], 0
    if n <= most:
        yield slice(n)
        return
    runs = functional.pad(residual.abs(), (0, -n % FEWEST_ROWS)).view(len(residual), -1, FEWEST_ROWS)
    sizes = runs.sum(dim=2).cumsum(dim=1)
    before = sizes.new_zeros(len(sizes), 1)
    while first < sizes.shape[1]:
        last = int(torch.searchsorted(sizes, before + reach, right=True).amin())
        yield slice(first * FEWEST_ROWS, min(n, last * FEWEST_ROWS))
        before, first = sizes[:, last - 1 : last], last


def _fits_float32(records: Rounded, limit: int) -> bool:
    """Whether float32 has the sums of a few records' parts exactly, and records' products with digits of one bit."""
    longest_digit = math.isqrt(records.whole.shape[1]) + 1
    most = max(records.bound * limit * FEWEST_ROWS, records.longest * longest_digit)
    return most <= 2**24 and _float32_is_whole()


def _float32_is_whole() -> bool:
    """Whether products of float32 have all their bits: own code may have let PyTorch round factors (TF32, bfloat16)."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was set for single backends, and PyTorch does not say what holds
        return False


def block_rows(width: int, device: torch.device, values: int) -> int:
    """How many records have so many values; more on a GPU."""
    return max(FEWEST_ROWS, (values if device.type == "cpu" else GPU_BLOCK) // width)


def blocks(records: int, width: int, device: torch.device) -> Iterator[slice]:
    """Records computed at a time: as many as stay in a processor's cache, or fill a GPU."""
    step = block_rows(width, device, BLOCK)
    return (slice(first, first + step) for first in range(0, records, step))


@dataclass(frozen=True)
class Rounded:
    """Records as whole vectors `whole [n, width]`: x is about whole / scale, and `length [n]` is its norm."""

    whole: Tensor
    scale: Tensor
    length: Tensor
    longest: int  #: no row of `whole` is longer
    base: Tensor | None = None  #: `[n, classes]`, the scores that the head adds to, in steps of the table
    largest: int | None = None  #: no value of `whole` is larger in size, if that is known

    @property
    def bound(self) -> int:
        """No value of `whole` is larger in size."""
        return self.longest if self.largest is None else self.largest

    @classmethod
    def of(cls, x: Tensor, bias: bool, limit: int) -> Rounded:
        """Each row by itself: its own power of two, its own norm."""
        width = x.shape[1] + bias
        whole = torch.empty(len(x), width, dtype=whole_type(limit), device=x.device)
        largest = 1
        scale, length = (torch.empty(len(x), dtype=torch.float64, device=x.device) for _ in range(2))
        for part in blocks(len(x), width, x.device):
            rows = x[part].double()
            if bias:
                rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64, device=x.device)], dim=1)
            peak = rows.abs().amax(dim=1)
            if not bool(torch.isfinite(peak).all()):
                rows[~torch.isfinite(peak)] = 0
                peak = rows.abs().amax(dim=1)
            power = power_of_two(FEATURE_BITS - torch.frexp(peak).exponent)
            fixed = torch.round(rows * power.unsqueeze(1))
            norm = root((fixed * fixed).sum(dim=1))
            factor = over(aim(limit, width), torch.clamp(norm, min=1.0))
            rows, shorter = rounded_within(fixed * factor.unsqueeze(1), limit)
            whole[part], largest = rows.to(whole.dtype), max(largest, int(rows.abs().amax()))
            scale[part], length[part] = factor * shorter * power, norm / power
        return cls(whole, scale, length, limit, largest=largest)

    def rows(self, index: Tensor | slice) -> Rounded:
        """Some of the records."""
        base = None if self.base is None else self.base[index]
        return replace(self, whole=self.whole[index], scale=self.scale[index], length=self.length[index], base=base)


def whole_type(limit: int) -> torch.dtype:
    """The smallest type of whole numbers up to `limit` in size: rows are read in every round."""
    return next(kind for kind in (torch.int8, torch.int16, torch.int32) if limit <= torch.iinfo(kind).max)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent, exactly; `pow` may round."""
    bits = exponent.clamp(-900, 900).long() + 1023
    return (bits << 52).view(torch.float64)


@dataclass(frozen=True)
class Digits:
    """Whole weights `[classes, width]` as digits of so few bits that float32 has their products with records exactly.

    Sums of products of a record and a digit are at most `longest` times the digit's norm, which is at most 2^24.
    """

    digits: Tensor  #: float32 `[digits * classes, width]`, the lowest digits first
    bits: tuple[int, ...]  #: of each digit but the highest
    classes: int

    @classmethod
    def of(cls, weights: Tensor, longest: int) -> Digits:
        """Few digits that hold weights `[classes, width]` below 2^31, for records of at most this length."""
        classes, width = weights.shape
        most = 2**48 // longest**2  # sums of squares up to 2^53 are exact, so they are compared exactly
        usual = math.floor(24 - math.log2(longest * math.sqrt(width / 12)))  # for digits that are spread evenly
        found: list[Tensor] = []
        bits: list[int] = []
        left = weights
        while not _within(left, most):
            own = max(1, usual)
            low, higher = _lowest_digit(left, own)
            while own > 1 and not _within(low, most):
                own -= 1
                low, higher = _lowest_digit(left, own)
            found.append(low)
            bits.append(own)
            left = higher
        return cls(torch.cat([*found, left]).float(), tuple(bits), classes)

    def products(self, whole: Tensor) -> Tensor:
        """The exact products `[classes, n]` of the weights and whole records `[n, width]`, float32, in float64."""
        return self.joined(self.digits @ whole.T)

    def joined(self, products: Tensor) -> Tensor:
        """The products `[classes, n]` with the weights, float64, from those `[digits * classes, n]` with all digits."""
        *lower, total = torch.split(products.double(), self.classes)
        for bits, digit in zip(reversed(self.bits), reversed(lower), strict=True):
            total = torch.add(digit, total, alpha=2.0**bits)
        return total


def _within(digits: Tensor, most: int) -> bool:
    """Whether the squares of no row add up to more than `most`."""
    return bool(((digits * digits).sum(dim=1) <= most).all())


def _lowest_digit(weights: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The lowest digit, of either sign, and what is left, so many bits shorter."""
    higher = torch.round(weights * 2.0**-bits)
    return weights - higher * 2.0**bits, higher


def residuals(
    records: Rounded, products: Tensor, labels: Tensor, clip: float, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Whole residuals `[n, classes]` of norm at most `limit`, which were clipped, and the probability of each label.

    `products [n, classes]` are those of the whole records and the whole weights.
    """
    n, classes = products.shape
    label = labels.unsqueeze(1)
    scores = products / (records.scale * 2.0**WEIGHT_BITS).unsqueeze(1)
    if records.base is not None:
        scores += records.base.double() / SCORE_STEPS
    below = torch.sub(scores.amax(dim=1, keepdim=True), scores, out=scores).mul_(SCORE_STEPS)
    index = below.clamp_(max=float(LOWEST_SCORE * SCORE_STEPS)).add_(0.5).int()  # none is negative: rounded down
    shares = exponentials(products.device).index_select(0, index.T.reshape(-1)).view(classes, n).T  # by classes
    shares /= shares.sum(dim=1, keepdim=True)
    likely = shares.gather(1, label)
    residual = shares.scatter_(1, label, likely - 1)
    squares = residual * residual
    square = squares[:, 0]  # in this order: sums are rounded
    for k in range(1, classes):
        square += squares[:, k]
    length = root(square) * records.length
    shortened = length > clip
    factor = torch.where(shortened, records.length * over(clip, length), records.length) * (aim(limit, classes) / clip)
    found, _ = rounded_within(residual.mul_(factor.unsqueeze(1)), limit)
    return found, shortened, likely[:, 0]


def whole_scores(scores: Tensor) -> Tensor:
    """int16 `[n, classes]`: scores below the largest of their record, in steps of the table; 0 where one is no number.

    The softmax of them is that of the scores, but for rounding.
    """
    below = scores.double() - scores.double().amax(dim=1, keepdim=True)
    whole = torch.round(below.clamp(min=float(-LOWEST_SCORE)) * SCORE_STEPS)
    return torch.where(torch.isfinite(whole).all(dim=1, keepdim=True), whole, 0.0).to(torch.int16)


@lru_cache(maxsize=4)
def exponentials(device: torch.device) -> Tensor:
    """e^(-i / 1024) in units of 2^-40, rounded down, for i = 0 .. 24576."""
    ratio, value, bits = exp_fixed(Fraction(-1, SCORE_STEPS)), 1 << 192, 192
    table = []
    for _ in range(LOWEST_SCORE * SCORE_STEPS + 1):
        table.append(value >> (bits - TABLE_BITS))
        value = value * ratio >> bits
    return torch.tensor(table, dtype=torch.float64, device=device)


def of(model: nn.Module, loss: Loss) -> LinearHead | None:
    """The linear head that a model is, if it is one: a single dense layer, flattened before, under cross-entropy."""
    if type(model) not in (models.Network, nn.Sequential, nn.Linear) or not models.computes_by_class(model):
        return None
    if loss not in (functional.cross_entropy, models.cross_entropy):
        return None
    parts = list(model) if isinstance(model, nn.Sequential) else [model]
    layers = [layer for layer in parts if type(layer) is not nn.Flatten]
    if len(layers) != 1 or not isinstance(dense := layers[0], nn.Linear) or type(dense) is not nn.Linear:
        return None
    if dense.in_features >= MOST_FEATURES or dense.out_features > MOST_CLASSES:
        return None
    return LinearHead(dense.in_features, dense.out_features, dense.bias is not None)


__all__ = [
    "HeadSums", "LinearHead", "Rounded", "WholeWeights", "aim", "blocks", "exponentials", "of", "power_of_two",
    "residuals", "rounded_within", "split_clip", "whole_scores", "whole_type",
]  # fmt: skip
