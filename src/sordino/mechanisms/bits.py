"""Bit randomisation of LDPFL (Chamikara et al. 2022, Eqs. 10 to 14), and the unary encodings it is compared with.

A record's features are coded in fixed point, the bits of all of them joined, and every bit b is reported as 1 with
probability p (b = 1) or q (b = 0), which may differ by position:

* `rappor` (symmetric): p = e^(eps/k) / (1 + e^(eps/k)), q = 1 - p, where strings differ in at most k bits: 2 for
  one-hot codes, all of them otherwise.
* `optimised` (OUE): p = 1/2, q = 1/(1 + e^(2 eps/k)).
* `theorem1`: p = 1/(1 + a), q = 1/(1 + a e^e0), e0 = 2 eps/(r l): nearly eps, and nearly no signal.
* `theorem2`: even positions p = a/(1 + a), odd positions p = 1/(1 + a^3), q as above. The paper claims eps for the
  record; the proof lets powers of a cancel that in fact add up. Two-valued ratios give (r l/2)(eps_even + eps_odd):
  34,885 instead of 0.5 at the paper's setting.

Thresholds are whole numbers out of 2^32, and p and q are rounded towards each other, which can only lower a ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms import cases, likelihood, reach
from sordino.mechanisms.arrays import Float64s, Floats, Int64s, Numbers, as_array, as_matrix, store_tile, tiles
from sordino.mechanisms.cases import DEEP, WIDE, Case, Scores, Specimen
from sordino.mechanisms.domain import BitString
from sordino.mechanisms.integers import ONE, exp_bounds, log_ratio, probability_threshold
from sordino.mechanisms.interface import Diagnostics, Mechanism, Randomized
from sordino.mechanisms.laws import Atoms
from sordino.mechanisms.likelihood import Ratio
from sordino.mechanisms.output import BitOutput, Output, decode_bits
from sordino.mechanisms.reach import Reach
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Infinite, Pure, as_adjacency, check_count
from sordino.randomness import Keystream, Purpose, Randomness

Bits = NDArray[np.uint8]
_PRECISION = 256


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point code of real features (Eq. 10): a sign bit, `whole` and `fraction` bits, l = whole + fraction + 1.

    `reading="text"` is sign and magnitude, as the paper's words say; `"equation"` is Eq. 10 as printed: floor(2^-k x)
    mod 2 for k = -whole .. fraction, without a sign bit, so that `whole` counts the bits of the fraction.
    `order` decides which bits fall on even and odd positions.
    """

    whole: int = 4
    fraction: int = 5
    order: Literal["msb", "lsb"] = "msb"
    reading: Literal["text", "equation"] = "text"

    def __post_init__(self) -> None:
        if not all(isinstance(n, int) and 0 <= n <= 20 for n in (self.whole, self.fraction)) or self.bits < 2:
            raise InvalidInput(
                f"whole and fraction bits must be 0 to 20, not both 0; got {self.whole}, {self.fraction}"
            )
        if self.order not in ("msb", "lsb"):
            raise InvalidInput(f"order is 'msb' or 'lsb', got {self.order!r}")
        if self.reading not in ("text", "equation"):
            raise InvalidInput(f"reading is 'text' or 'equation', got {self.reading!r}")

    @property
    def bits(self) -> int:
        """l, the bits per feature."""
        return self.whole + self.fraction + 1

    @property
    def place_values(self) -> Float64s:
        """What each position of the code is worth, in the code's order; 0 for the sign bit."""
        if self.reading == "text":
            values = np.concatenate([[0.0], 2.0 ** np.arange(self.whole - 1, -self.fraction - 1, -1)])
        else:
            values = 2.0 ** np.arange(self.fraction, -self.whole - 1, -1)
        return values if self.order == "msb" else values[::-1]

    def encode(self, features: ArrayLike) -> Bits:
        """`[n, r]` features as `[n, r * l]` bits; features beyond the code's range are clipped to it."""
        x = as_matrix(features).astype(np.float64)
        unit, negative = float(np.min(self.place_values[self.place_values > 0])), x < 0
        top = round(float(self.place_values.sum()) / unit)
        magnitude = np.abs(x) if self.reading == "text" else np.maximum(x, 0)
        whole = np.floor(np.minimum(magnitude, top * unit) / unit).astype(np.int64)
        places = np.round(self.place_values / unit).astype(np.int64)
        bits = (whole[..., None] // np.maximum(places, 1) % 2 * (places > 0)).astype(np.uint8)
        if self.reading == "text":
            bits[..., places == 0] = (negative & (whole > 0))[..., None]
        return bits.reshape(len(x), -1)

    def decode(self, bit_estimates: ArrayLike) -> Float64s:
        """`[n, r]` features from `[n, r * l]` bits, or unbiased ones from unbiased estimates of independent bits."""
        b = as_array("bit estimates", bit_estimates)
        if b.dtype.kind not in "fiub":
            raise InvalidInput(f"bit estimates must be numbers, got {b.dtype}")
        b = b.astype(np.float64)
        if b.ndim != 2 or b.shape[1] % self.bits:
            raise InvalidInput(f"expected [n, r * {self.bits}] bits, got shape {b.shape}")
        codes = b.reshape(len(b), -1, self.bits)
        features = np.asarray(codes @ self.place_values)
        if self.reading == "text":
            features = features * (1 - 2 * codes[..., int(np.argmin(self.place_values))])
        return features


class BitRandomizer(Mechanism):
    """Independent randomisation of the bits of each record. A row of the input is one record, drawn once."""

    name: ClassVar[str] = "bits"

    def __init__(
        self, ones: ArrayLike, zeros: ArrayLike, domain: BitString, *, name: str = "bits", claim: Claim | None = None
    ) -> None:
        self.ones = _thresholds("ones", ones, domain.length)
        self.zeros = _thresholds("zeros", zeros, domain.length)
        self.domain: BitString = domain
        self.variant = name
        self.claims = () if claim is None else (claim,)

    @classmethod
    def rappor(cls, epsilon: float, domain: BitString) -> BitRandomizer:
        """Symmetric unary encoding: p = 1 - q, and eps for any two strings of the domain."""
        odds = _exp(checked_epsilon(epsilon) / domain.differing)
        return cls(*_facing(odds / (1 + odds), 1 / (1 + odds)), domain, name="rappor")

    @classmethod
    def optimised(cls, epsilon: float, domain: BitString) -> BitRandomizer:
        """Optimised unary encoding: p = 1/2, and q for eps on one-hot codes.

        Where any bits may differ it is the randomiser of Theorem 1 at a = 1.
        """
        odds = _exp(2 * checked_epsilon(epsilon) / domain.differing)
        return cls(*_facing(Fraction(1, 2), 1 / (1 + odds)), domain, name="optimised")

    @classmethod
    def theorem1(cls, epsilon: float, domain: BitString, *, a: float = 10.0) -> BitRandomizer:
        """Theorem 1: p = 1/(1 + a), q = 1/(1 + a e^e0)."""
        odds = _exp(2 * checked_epsilon(epsilon) / domain.length)
        alpha = _coefficient(a)
        thresholds = _facing(1 / (1 + alpha), 1 / (1 + alpha * odds))
        return cls(*thresholds, domain, name="theorem 1", claim=_claim(epsilon, "Theorem 1"))

    @classmethod
    def theorem2(cls, epsilon: float, domain: BitString, *, a: float = 10.0) -> BitRandomizer:
        """Theorem 2: p = a/(1 + a) on even positions, 1/(1 + a^3) on odd ones, q = 1/(1 + a e^e0) on all."""
        odds = _exp(2 * checked_epsilon(epsilon) / domain.length)
        alpha = _coefficient(a)
        even = _facing(alpha / (1 + alpha), 1 / (1 + alpha * odds))
        odd = _facing(1 / (1 + alpha**3), 1 / (1 + alpha * odds))
        parity = np.arange(domain.length) % 2
        ones, zeros = (np.where(parity == 0, e, o) for e, o in zip(even, odd, strict=True))
        return cls(ones, zeros, domain, name="theorem 2", claim=_claim(epsilon, "Theorem 2"))

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        """Randomise `[n, length]` bits (0/1 or booleans); each row has its own stream."""
        bits = as_bits(values, self.domain.length)
        self.check_rows(len(bits), randomness)
        if self.domain.one_hot and (bits.sum(axis=1, dtype=np.int64) != 1).any():
            raise InvalidInput(
                "a one-hot code has exactly one bit set in every row: this guarantee is for such codes only"
            )
        records, d = bits.shape
        packed = np.empty((records, -(-d // 8)), np.uint8)
        ones, zeros = self.ones.astype(np.uint32), self.zeros.astype(np.uint32)
        for rows, cols in tiles(np.zeros(records), d):
            tile = bits[rows[0] : rows[-1] + 1, cols]
            t = np.where(tile, ones[cols], zeros[cols])
            u = randomness.words(rows, Purpose.NOISE, tensor, cols.start, tile.shape[1])
            store_tile(packed, rows, slice(cols.start // 8, -(-cols.stop // 8)), BitOutput.pack(u < t).packed)
        scale = float(np.sqrt(np.mean(self._bit_variance(np.zeros(d)))))
        return Randomized(BitOutput(packed, d), Diagnostics(np.zeros(records), np.full(records, scale)))

    @property
    def _p(self) -> Float64s:
        return self.ones / ONE

    @property
    def _q(self) -> Float64s:
        return self.zeros / ONE

    def estimate(self, output: Output) -> Floats:
        """(B - q)/(p - q): unbiased for every bit, also where p < q."""
        if not isinstance(output, BitOutput):
            raise TypeError(f"bit randomisation puts out bits, not {type(output).__name__}")
        if output.values != self.domain.length:
            raise InvalidInput(f"the output has {output.values} bits, the mechanism {self.domain.length}")
        return (output.bits() - self._q) / (self._p - self._q)

    def _bit_variance(self, b: Float64s) -> Float64s:
        p, q = self._p, self._q
        return np.asarray((b * p * (1 - p) + (1 - b) * q * (1 - q)) / (p - q) ** 2)

    def bias(self, values: ArrayLike) -> Float64s:
        return np.zeros(as_bits(values, self.domain.length).shape)

    def variance(self, values: ArrayLike) -> Float64s:
        return self._bit_variance(as_bits(values, self.domain.length).astype(np.float64))

    def bit_losses(self) -> Float64s:
        """Per position: the largest |ln| ratio of an output's probabilities under the two inputs."""
        pairs = set(zip(self.ones.tolist(), self.zeros.tolist(), strict=True))
        loss = {(p, q): max(abs(log_ratio(p, q)), abs(log_ratio(ONE - p, ONE - q))) for p, q in pairs}
        return np.array([loss[pair] for pair in zip(self.ones.tolist(), self.zeros.tolist(), strict=True)])

    def record_loss(self) -> float:
        """Epsilon of a whole record's string: the largest sum over positions in which two strings may differ."""
        if self.domain.one_hot:
            return self._one_hot_loss()
        return float(self.bit_losses().sum())

    def _one_hot_loss(self) -> float:
        """One code has its 1 at i, the other at j: position i tells for the one, position j for the other."""
        pairs = list(zip(self.ones.tolist(), self.zeros.tolist(), strict=True))
        gained = np.array([max(log_ratio(p, q), log_ratio(ONE - p, ONE - q)) for p, q in pairs])
        missed = np.array([max(log_ratio(q, p), log_ratio(ONE - q, ONE - p)) for p, q in pairs])
        if len(pairs) == 1:
            return 0.0
        i, j = int(gained.argmax()), int(missed.argmax())
        if i != j:
            return float(gained[i] + missed[j])
        return float(max(np.delete(gained, i).max() + missed[j], gained[i] + np.delete(missed, j).max()))

    def guarantee(
        self, adjacency: Adjacency = Adjacency.RECORD_REPLACE, *, values: int = 1, client: int = 0
    ) -> Guarantee:
        """Per record (its features: labels are never randomised here), per bit, or per client of `values` records."""
        adjacency, values = as_adjacency(adjacency), check_count("values", values)
        if adjacency is Adjacency.RECORD_ADD_REMOVE:
            raise InvalidInput("the number of reports shows whether a record is there: ask for replacement instead")
        if adjacency is Adjacency.LABEL:
            return Guarantee(SERVER, adjacency, Infinite("labels leave the client as they are"), "none")
        if adjacency is Adjacency.COORDINATE:
            loss, basis = float(self.bit_losses().max()), "one bit, by enumeration"
        elif adjacency is Adjacency.CLIENT:
            loss, basis = self.record_loss() * values, f"{values} records, each bit by enumeration"
        else:
            loss, basis = self.record_loss(), "sum over a record's bits, each by enumeration"
        return Guarantee(SERVER, adjacency, Pure(loss), basis)

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        if values != self.domain.length:
            raise InvalidInput(f"a record has {self.domain.length} bits, got {values}")
        return decode_bits(reports, values)

    # --- audits

    def one_probability(self, bits: Numbers) -> Float64s:
        """With which probability each of these bits is reported as a one."""
        return np.where(bits, self.ones, self.zeros) / ONE

    def law(self, values: Numbers) -> Atoms:
        return Atoms.bits(self.one_probability(values))

    def likelihood_ratio(self, first: Numbers, second: Numbers) -> Ratio:
        return likelihood.of_bits(self.one_probability(first), self.one_probability(second))

    def _extent(self, values: int, limit: float | None) -> Reach:
        rising = (self.ones > self.zeros)[None]
        return reach.between(self, BitOutput.pack(~rising), BitOutput.pack(rising), "a bit is one of two points")

    @classmethod
    def _one_hot(cls, epsilon: float) -> tuple[BitRandomizer, BitRandomizer]:
        domain = BitString(16, one_hot=True)
        return cls.rappor(epsilon, domain), cls.optimised(epsilon, domain)

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        paper = cls.theorem2(epsilon / 2, BitString(10_240))
        for parity, position in (("even", 0), ("odd", 1)):
            yield paper._some_bits(np.array([position]), f"one bit, {parity}", Adjacency.COORDINATE)
        yield paper._some_bits(np.arange(10), "one feature of 10 bits", Adjacency.RECORD_REPLACE)
        yield paper._some_bits(np.arange(100), "100 of a record's 10,240 bits", Adjacency.RECORD_REPLACE)
        for code in cls._one_hot(epsilon):
            d = code.domain.length
            first, second = np.eye(d, dtype=np.uint8)[:2]
            told = cases.promised(f"bits ({code.variant})", f"one-hot code of {d} bits", code.guarantee(), "two codes")
            yield Case.of(told, cases.rows(code, first, second, np.eye(d)[0] - np.eye(d)[1]), 200_000)

    def _some_bits(self, positions: NDArray[np.intp], unit: str, adjacency: Adjacency) -> Case:
        """Records that differ in these positions only, scored by the exact log-likelihood ratio of their bits.

        The other positions are equal in both worlds and independent: they tell nothing, and are left out of the draw.
        """
        p, q = self.ones[positions], self.zeros[positions]
        part = BitRandomizer(p, q, BitString(len(positions)), name=self.variant)
        gain = np.log(p / q) - np.log((2**32 - p) / (2**32 - q))

        def sample(world: bool, trials: int, seed: int) -> Scores:
            bits = np.full((trials, len(positions)), world, dtype=np.uint8)
            output = part.randomize(bits, Keystream.simulation(seed, np.arange(trials), int(world))).output
            return np.asarray(output.numbers() @ gain, dtype=np.float64)

        loss = part.guarantee(Adjacency.RECORD_REPLACE).loss
        proof = Guarantee(SERVER, adjacency, loss, "enumerated, bit by bit")
        attack = "exact log-likelihood ratio"
        return Case.of(cases.promised("bits (Theorem 2)", unit, proof, attack, self.claim()), sample, 200_000)

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        for shape in (DEEP, WIDE):
            paper = cls.theorem2(epsilon / 2, BitString(shape[1]))
            proven = paper.guarantee(Adjacency.COORDINATE) if shape is DEEP else None
            yield Specimen(f"bits (Theorem 2), {shape[1]:,} bits", paper, shape, proven)
        for code in cls._one_hot(epsilon):
            yield Specimen(f"bits ({code.variant})", code, (20_000, 16))


def as_bits(values: ArrayLike, length: int) -> Bits:
    """`[n, length]` zeros and ones."""
    array = as_array("bits", values)
    if array.ndim == 1:
        array = array[None, :]
    if array.dtype.kind not in "biu" or array.ndim != 2 or array.size == 0 or array.shape[1] != length:
        raise InvalidInput(f"expected [n, {length}] bits as booleans or whole numbers, got {array.dtype} {array.shape}")
    if array.dtype.kind != "b" and ((array != 0) & (array != 1)).any():
        raise InvalidInput("bits must be 0 or 1")
    return array.astype(np.uint8, copy=False)


def _thresholds(name: str, given: ArrayLike, length: int) -> Int64s:
    """One threshold for all positions or one per position, each a whole number from 1 to 2^32 - 1."""
    array = np.atleast_1d(as_array(name, given))
    if array.dtype.kind not in "iu" or array.ndim != 1 or array.size not in (1, length):
        raise InvalidInput(f"thresholds for {name} must be whole numbers, one or {length} of them, got {given!r}")
    if (array < 1).any() or (array >= ONE).any():
        raise InvalidInput(f"thresholds for {name} must lie between 1 and 2^32 - 1")
    return np.broadcast_to(array.astype(np.int64), (length,))


def _claim(epsilon: float, theorem: str) -> Claim:
    """The paper's theorems are about replacing one record, and about nothing else."""
    formula = f"eps for the whole bit string of a record (LDPFL, {theorem})"
    return Claim(epsilon, 0.0, formula, Adjacency.RECORD_REPLACE)


def checked_epsilon(epsilon: float) -> Fraction:
    """The epsilon of a bit string; refused where it is none, or so large that nothing is hidden."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon <= 1e6:
        raise InvalidInput(f"epsilon must be a number > 0 and at most 1e6, got {epsilon!r}")
    return Fraction(epsilon)


def _coefficient(a: float) -> Fraction:
    if isinstance(a, bool) or not isinstance(a, (int, float)) or not 1 < a <= 1000:
        raise InvalidInput(f"the coefficient alpha must lie in (1, 1000], got {a!r}")
    return Fraction(a)


def _exp(x: Fraction) -> Fraction:
    """e^x from below to within 2^-256; arguments above 23 are capped, since thresholds are (see `MAX_EPSILON`)."""
    return Fraction(exp_bounds(min(x, Fraction(23)), _PRECISION)[0], 1 << _PRECISION)


def _facing(p: Fraction, q: Fraction) -> tuple[int, int]:
    """Thresholds of p and q out of 2^32, each rounded towards the other: no ratio of the two can grow."""
    ones, zeros = probability_threshold(p, towards=q), probability_threshold(q, towards=p)
    if (ones - zeros) * (p - q) <= 0:  # equal, or crossed between the same two thresholds
        raise InvalidInput("p and q are equal to 32 bits, so the output would say nothing: raise epsilon")
    return ones, zeros
