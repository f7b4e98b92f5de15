"""How a vector of d values leaves a client, and how the server adds up what arrives.

Clients of equal strength form a class with one mechanism. The server keeps one running sum of whole numbers: every
report is decoded (which checks it against the mechanism's output set), multiplied by its class's whole-number factor
and added. The sum is the same in every order of arrival and for every number of workers, and takes the same memory for
ten clients as for a million.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.errors import InvalidInput, SordinoError
from sordino.mechanisms.domain import Box, IntegerRange
from sordino.mechanisms.interface import Mechanism
from sordino.mechanisms.output import BitOutput, IntegerOutput, Output, RealOutput
from sordino.mechanisms.plain import NoPrivacy
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Infinite, Release
from sordino.randomness import Randomness

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Draw = Callable[[Sequence[int]], Randomness]  #: clients -> their randomness, one row each

REPORT_LIMIT = 2**54  #: no report contributes more than this to the fixed-point sum of one value
PLAIN_LIMIT = 2.0**14  #: the largest value accepted where no mechanism bounds it
MAX_SAMPLES = 2**24  #: the largest number of samples a client may announce
ROWS = 256  #: reports decoded at a time, or fewer:
TILE = 2**17  #: values decoded at a time, so that what is made of them stays in the cache
BIT_ROWS = 128  #: reports of bits decoded at a time, which are counted before they are multiplied, or fewer:
BIT_TILE = 2**27  #: bits decoded at a time

_SAMPLES = struct.Struct("<I")
T = TypeVar("T")


class PerClass(Sequence[T]):
    """One thing for every class of clients, made when it is first looked at: a client needs that of its own class."""

    def __init__(self, classes: int, make: Callable[[int], T]) -> None:
        self._classes, self._make = classes, make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._classes

    @overload
    def __getitem__(self, c: int) -> T: ...
    @overload
    def __getitem__(self, c: slice) -> tuple[T, ...]: ...
    def __getitem__(self, c: int | slice) -> T | tuple[T, ...]:
        if isinstance(c, slice):
            return tuple(self[k] for k in range(self._classes)[c])
        number = range(self._classes)[c]
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


def _nth(build: Callable[[float | None], Mechanism], strengths: Sequence[float | None], c: int) -> Mechanism:
    return build(strengths[c])


@dataclass(frozen=True, eq=False)
class Same:
    """No strength -> one mechanism for all clients."""

    mechanism: Mechanism

    def __call__(self, _: float | None) -> Mechanism:
        return self.mechanism


@dataclass(frozen=True)
class Sent:
    """What a cohort sends, `bodies`, and what its owners may look at: shares clipped and noise scales `[K]`."""

    bodies: list[bytes]
    clipped: Float64s
    noise: Float64s


class Upload:
    """d values per client through a mechanism, which may differ from client to client by its strength.

    `build(epsilon)` makes the mechanism of one strength; `epsilons [N]` are the clients' strengths, None where the
    mechanism takes none. With `samples`, each report names how many records stand behind it: a release of its own; the
    server takes `most_samples` at most. With `clamp`, it reads a real value beyond +-clamp as +-clamp: no client can
    move the model further, at the price of a bias where an honest value lies beyond (docs/malicious.md). With `norm`,
    it scales estimates of a larger L2 norm down to that one: for mechanisms whose estimate of the output 0 is 0.
    """

    def __init__(
        self,
        build: Callable[[float | None], Mechanism],
        epsilons: ArrayLike | None,
        values: int,
        *,
        clients: int,
        what: str,
        samples: bool = False,
        most_samples: int = MAX_SAMPLES,
        clamp: float | None = None,
        norm: float | None = None,
    ) -> None:
        if not 1 <= most_samples <= MAX_SAMPLES:
            raise InvalidInput(f"a report may name 1 to {MAX_SAMPLES:,} samples at most, got {most_samples!r}")
        if clamp is not None and not 0 < clamp <= PLAIN_LIMIT:
            raise InvalidInput(f"values can be clamped to a range above 0 and up to {PLAIN_LIMIT:g}, got {clamp!r}")
        if norm is not None and not 0 < norm < math.inf:
            raise InvalidInput(f"reports can be scaled down to a finite norm above 0, got {norm!r}")
        self.values = values
        self.clients = clients
        self.what = what
        self.samples = samples
        self.most_samples = most_samples
        self.clamp = clamp
        self.norm = norm
        if epsilons is None:
            self.strengths: tuple[float | None, ...] = (None,)
            self.class_of: NDArray[np.intp] = np.zeros(clients, np.intp)
        else:
            distinct, which = np.unique(np.asarray(epsilons, np.float64), return_inverse=True)
            self.strengths, self.class_of = tuple(distinct.tolist()), which.astype(np.intp)
            if self.class_of.size != clients:
                raise InvalidInput(f"there are {clients} clients and {self.class_of.size} epsilons: give one each")
        self.build = build  #: epsilon -> mechanism
        #: one for each class of clients
        self.mechanisms: Sequence[Mechanism] = PerClass(len(self.strengths), partial(_nth, build, self.strengths))

    def check(self, clients: Sequence[int]) -> None:
        """Refuse now what the range or the strengths of these clients do not allow."""
        for c in np.unique(self.class_of[np.asarray(clients, np.intp)]).tolist():
            self.mechanisms[c]

    def _groups(self, clients: Sequence[int]) -> list[tuple[int, NDArray[np.intp]]]:
        """Classes among these clients, with their positions."""
        own = self.class_of[np.asarray(clients, np.intp)]
        return [(int(c), np.flatnonzero(own == c)) for c in np.unique(own)]

    # --- at the client

    def send(self, clients: Sequence[int], vectors: ArrayLike, draw: Draw, sizes: Sequence[int]) -> Sent:
        """Randomise and encode `[K, d]` vectors, each with its own client's randomness."""
        rows = np.asarray(vectors, np.float32)
        bodies: list[bytes] = [b""] * len(rows)
        clipped, noise = np.zeros(len(rows)), np.zeros(len(rows))
        for c, where in self._groups(clients):
            mechanism = self.mechanisms[c]
            randomized = mechanism.randomize(rows[where], draw([clients[k] for k in where]))
            clipped[where], noise[where] = randomized.local.clipped_fraction, randomized.local.noise_scale
            for k, body in zip(where.tolist(), mechanism.encode(randomized.output), strict=True):
                bodies[k] = (_SAMPLES.pack(min(sizes[k], self.most_samples)) if self.samples else b"") + body
        return Sent(bodies, clipped, noise)

    def releases(self, name: str, dataset: str) -> Sequence[tuple[Release, ...]]:
        """What one upload tells of a client, for every class: known before any data is touched."""
        return PerClass(len(self.strengths), partial(self._class_releases, name=name, dataset=dataset))

    def _class_releases(self, c: int, name: str, dataset: str) -> tuple[Release, ...]:
        mechanism = self.mechanisms[c]
        guarantees = tuple(
            mechanism.guarantee(adjacency, values=self.values) for adjacency in (Adjacency.CLIENT, Adjacency.COORDINATE)
        )
        upload = Release(f"{name}/{self.what}", dataset, self.what, guarantees, mechanism.claim(values=self.values))
        return (upload, samples_release(name, dataset)) if self.samples else (upload,)

    # --- at the server

    def tally(self, weights: Sequence[float] | None = None) -> Tally:
        """An empty sum; `weights` are one per class of clients, equal if not given."""
        return Tally(self, np.ones(len(self.strengths)) if weights is None else np.asarray(weights, np.float64))

    def variances(self) -> Float64s:
        """The variance of one value's estimate at the centre of the domain, for every class; a mean over values."""
        return np.array([_mean_variance(m, self.values) for m in self.mechanisms])

    def farthest(self, c: int) -> float:
        """How far any legal report of a class lies from the middle of them, at most: an L2 norm of estimates."""
        affine = _class_affine(self, c)
        values = np.broadcast_to(np.abs(affine.slope) * (affine.high - affine.low) / 2, (self.values,))
        length = float(np.linalg.norm(values))
        return length if self.norm is None else min(length, self.norm)


def _mean_variance(mechanism: Mechanism, values: int) -> float:
    """The variance at the centre, a mean over values; one value speaks for all where the domain is the same for all."""
    alike = isinstance(mechanism.domain, IntegerRange) or (
        isinstance(mechanism.domain, Box) and mechanism.domain.centre.size == mechanism.domain.radius.size == 1
    )
    return float(mechanism.variance(centre(mechanism, 1 if alike else values)).mean())


def centre(mechanism: Mechanism, values: int) -> Float64s:
    """The middle of a mechanism's domain as one vector."""
    middle = getattr(mechanism.domain, "centre", np.zeros(1))
    return np.broadcast_to(np.asarray(middle, np.float64), (values,)).copy()


def samples_release(name: str, dataset: str) -> Release:
    """A sample count that leaves in the clear."""
    why = "the number of samples is sent as it is, to weigh the client's report"
    nothing = Guarantee(SERVER, Adjacency.CLIENT, Infinite(why), "none")
    return Release(f"{name}/sample count", dataset, "sample count", (nothing,))


@dataclass(frozen=True, eq=False)
class ReportSum:
    """All that a secure sum reveals of one class: the sum of its clients' outputs as whole numbers, and whose they are.

    Where sample counts weigh, every output was multiplied by its client's, and the sum of the counts comes last.
    """

    group: int
    clients: tuple[int, ...]
    total: Int64s
    digits: int  #: decimals that were kept of real outputs
    refused: Mapping[int, str] = field(default_factory=dict)  #: clients whose messages were bad, and why


@dataclass(frozen=True)
class Lost:
    """A class without a sum: nothing of it was revealed, and this is why."""

    group: int
    why: str
    refused: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _LinearEstimate:
    """The estimate of an output x is offset + slope * x; outputs lie in low .. high, and are whole numbers or reals."""

    offset: Float64s | float
    slope: Float64s | float
    low: float
    high: float
    whole: bool
    bits: bool = False

    @property
    def largest(self) -> float:
        return max(-self.low, self.high)


@dataclass(frozen=True)
class _Scale:
    """How a class's outputs enter the sum: estimate = offset + slope * output, the factor being a whole number."""

    offset: Float64s | float
    factor: Int64s  #: round(weight * slope * 2^shift), for whole-number outputs
    exact: Float64s  #: the same before rounding, for real outputs


class Tally:
    """The running sum of a round: fixed point, exact, in constant memory."""

    def __init__(self, upload: Upload, weights: Float64s) -> None:
        if weights.shape != (len(upload.strengths),) or not (weights >= 0).all() or not weights.max() > 0:
            raise InvalidInput(f"give one weight >= 0 for each of {len(upload.strengths)} classes, not all of them 0")
        self._upload = upload
        self._weights = weights / weights.max()
        self._counts = np.zeros(len(weights), np.int64)  # of reports, by class; of samples where these weigh
        self._high = np.zeros(upload.values, np.int64)
        self._low = np.zeros(upload.values, np.int64)
        self.reports = 0

    @cached_property
    def _affine(self) -> Sequence[_LinearEstimate]:
        """How the outputs of every class stand for estimates."""
        return PerClass(len(self._weights), partial(_class_affine, self._upload))

    @cached_property
    def _shift(self) -> int:
        """Bits after the binary point: as many as the largest possible contribution leaves room for."""
        reach = max(
            w * float(np.max(np.abs(affine.slope))) * affine.largest
            for w, affine in zip(self._weights, self._affine, strict=True)
        )
        return math.floor(math.log2(REPORT_LIMIT / reach)) - 1

    @cached_property
    def _scales(self) -> tuple[_Scale, ...]:
        scales = []
        for weight, affine in zip(self._weights, self._affine, strict=True):
            exact = np.ldexp(weight * np.asarray(affine.slope, np.float64), self._shift)
            scales.append(_Scale(affine.offset, np.rint(exact).astype(np.int64), exact))
        return tuple(scales)

    def add(self, clients: Sequence[int], bodies: Sequence[bytes]) -> dict[int, str]:
        """Add these reports; those outside the mechanism's output set come back with the reason and are not added."""
        refused: dict[int, str] = {}
        for c, where in self._upload._groups(clients):
            step = self._at_once(c)
            for first in range(0, len(where), step):
                rows = [int(k) for k in where[first : first + step]]
                refused.update(self._add_class(c, {clients[k]: bodies[k] for k in rows}))
        return refused

    def _at_once(self, c: int) -> int:
        """How many reports are decoded together: bits that count alike are counted, which takes little room."""
        if self._affine[c].bits and not self._upload.samples:
            return min(BIT_ROWS, max(1, BIT_TILE // self._upload.values))
        return min(ROWS, max(1, TILE // self._upload.values))

    def _add_class(self, c: int, reports: Mapping[int, bytes]) -> dict[int, str]:
        try:
            samples, output = self._read(c, list(reports.values()))
        except SordinoError as error:
            if len(reports) == 1:
                return {next(iter(reports)): str(error)}
            refused = self._bad(c, reports)  # some are: find them, and keep the others
            good = {client: body for client, body in reports.items() if client not in refused}
            return refused | (self._add_class(c, good) if good else {})
        self._include(c, list(reports), output, samples)
        self._counts[c] += len(reports) if samples is None else int(samples.sum())
        self.reports += len(reports)
        return {}

    def _include(self, c: int, clients: Sequence[int], output: Output, samples: Int64s | None) -> None:
        """Take in these clients' outputs, all of one class and checked."""
        if isinstance(output, BitOutput) and samples is None:
            self._accumulate_bits(self._scales[c].factor, output)
        else:
            self._accumulate(self._shortened(c, self._fixed(c, output)), samples)

    def _bad(self, c: int, reports: Mapping[int, bytes]) -> dict[int, str]:
        """The reports that cannot be read, each with the reason."""
        bad: dict[int, str] = {}
        for client, body in reports.items():
            try:
                self._read(c, [body])
            except SordinoError as error:
                bad[client] = str(error)
        return bad

    def _read(self, c: int, bodies: list[bytes]) -> tuple[Int64s | None, Output]:
        """Announced sample counts, where reports carry them, and the outputs."""
        mechanism, values = self._upload.mechanisms[c], self._upload.values
        if not self._upload.samples:
            return None, self._checked(c, mechanism.decode(bodies, values))
        if any(len(body) < _SAMPLES.size for body in bodies):
            raise InvalidInput("a report is too short to hold its number of samples")
        samples = np.array([_SAMPLES.unpack_from(body)[0] for body in bodies], np.int64)
        if samples.max() > self._upload.most_samples:
            most = self._upload.most_samples
            raise InvalidInput(f"a report names {samples.max():,} samples; {most:,} is the most that counts")
        return samples, self._checked(c, mechanism.decode([body[_SAMPLES.size :] for body in bodies], values))

    def _checked(self, c: int, output: Output) -> Output:
        """Plain values may be any float32: refuse those that no sensible model has and the sum has no room for."""
        limit, clamp = self._affine[c].largest, self._upload.clamp
        if isinstance(output, RealOutput) and clamp is not None:
            return replace(output, array=np.clip(output.array, -clamp, clamp))
        if isinstance(output, RealOutput) and not np.abs(output.array).max() <= limit:
            raise InvalidInput(f"a report holds a value beyond {limit:g}: training has diverged, or it was forged")
        return output

    def _fixed(self, c: int, output: Output) -> Int64s:
        """`[K, d]` contributions as whole numbers below 2^54."""
        factor = self._scales[c].factor
        match output:
            case BitOutput():
                return output.bits().astype(np.int64) * factor
            case IntegerOutput():
                return output.array.astype(np.int64) * factor
            case RealOutput():
                return np.rint(output.array.astype(np.float64) * self._scales[c].exact).astype(np.int64)

    def _shortened(self, c: int, fixed: Int64s) -> Int64s:
        """The same contributions, those beyond the announced norm scaled down to it; all others as they are."""
        if self._upload.norm is None:
            return fixed
        limit = math.ldexp(self._weights[c] * self._upload.norm, self._shift)
        for row in fixed:  # one at a time: a copy in floats is as large as the row
            length = float(np.linalg.norm(row.astype(np.float64)))
            if length > limit:
                row[:] = np.rint(row * (limit / length))
        return fixed

    def _accumulate(self, fixed: Int64s, samples: Int64s | None) -> None:
        if samples is None:  # at most 256 numbers below 2^54: their sum is below 2^62
            together = fixed.sum(axis=0)
            self._low += together & (2**27 - 1)
            self._high += together >> 27
        else:
            self._low += samples @ (fixed & (2**27 - 1))
            self._high += samples @ (fixed >> 27)

    def _accumulate_bits(self, factor: Int64s, output: BitOutput) -> None:
        """The same of bits, counted before they are multiplied: at most 128 times a number below 2^54."""
        for cols, ones in output.ones():
            together = ones * (factor if factor.size == 1 else factor[cols])
            self._low[cols] += together & (2**27 - 1)
            self._high[cols] += together >> 27

    # --- sums of reports in the place of reports

    @property
    def upload(self) -> Upload:
        """How the values that are added up leave their clients."""
        return self._upload

    def classes(self, clients: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """These clients by class: only outputs of one mechanism can be added to each other."""
        return {c: tuple(clients[k] for k in where) for c, where in self._upload._groups(clients)}

    @property
    def summands(self) -> int:
        """How many whole numbers a client adds to a sum."""
        return self._upload.values + self._upload.samples

    def span(self, c: int, digits: int) -> tuple[int, int]:
        """The smallest and the largest whole number that a client of this class may add to a sum."""
        affine, unit = self._affine[c], 10**digits
        scale, weight = (1 if affine.whole else unit), (self._upload.most_samples if self._upload.samples else 1)
        low, high = math.floor(affine.low * scale) * weight, math.ceil(affine.high * scale) * weight
        return (min(low, 0), max(high, weight)) if self._upload.samples else (low, high)

    def summand(self, client: int, body: bytes, digits: int) -> Int64s:
        """A client's own report as the whole numbers that it adds to a sum; reals keep so many decimals."""
        c = int(self._upload.class_of[client])
        samples, output = self._read(c, [body])
        match output:
            case BitOutput():
                whole = output.bits()[0].astype(np.int64)
            case IntegerOutput():
                whole = output.array[0].astype(np.int64)
            case RealOutput():
                whole = np.rint(output.array[0].astype(np.float64) * 10.0**digits).astype(np.int64)
        return whole if samples is None else np.append(whole * samples[0], samples[0])

    def add_sum(self, found: ReportSum) -> None:
        """Add the reports of some clients of one class, of which nothing but the sum is known."""
        total, scale = found.total, self._scales[found.group]
        if total.shape != (self.summands,):
            raise InvalidInput(f"a sum of this upload has {self.summands} whole numbers, got {total.shape}")
        weight = len(found.clients)
        if self._upload.samples:
            total, weight = total[:-1], int(total[-1])
            self._check_weighed(found, total, weight)
        if self._affine[found.group].whole:
            high, low = _product(total, scale.factor)
        else:
            exact = total.astype(np.float64) * (scale.exact / 10.0**found.digits)
            high = np.floor(exact * 2.0**-27).astype(np.int64)
            low = np.rint(exact - high * 2.0**27).astype(np.int64)
        self._high += high
        self._low += low
        self._counts[found.group] += weight
        self.reports += len(found.clients)

    def _check_weighed(self, found: ReportSum, total: Int64s, weight: int) -> None:
        """Values and samples are summed apart: refuse sums that no such number of samples can have."""
        affine = self._affine[found.group]
        scale = 1 if affine.whole else 10**found.digits
        low, high = math.floor(affine.low * scale) * weight, math.ceil(affine.high * scale) * weight
        if weight < 0 or int(total.min()) < low or int(total.max()) > high:
            raise InvalidInput(
                f"the sum of class {found.group} is none that {weight:,} samples can have: a client sent a false vector"
            )

    @property
    def weights(self) -> Float64s:
        """The weight of one report of every class, the largest being 1; where samples weigh, of one sample."""
        return np.array(self._weights)

    @property
    def weight(self) -> float:
        """The sum of all weights so far."""
        return float(self._weights @ self._counts)

    def mean(self) -> Float64s:
        """The weighted mean of the estimates `[d]`."""
        if not self.weight > 0:
            raise InvalidInput("there is no report to take a mean of")
        total = np.ldexp(self._high.astype(np.float64) * 2.0**27 + self._low, -self._shift)
        for weight, count, scale in zip(self._weights, self._counts, self._scales, strict=True):
            total += weight * count * scale.offset
        return np.asarray(total / self.weight)

    def noise(self) -> float | None:
        """The predicted L2 norm of the noise in `mean()`, from the mechanisms' exact variances; None if not known."""
        if self._upload.norm is not None:  # shortened reports carry less of it
            return None
        shares = self._weights * self._counts / self.weight
        spread = self._upload.variances() * shares**2 / np.maximum(self._counts, 1)
        return math.sqrt(float(spread.sum()) * self._upload.values)


def _class_affine(upload: Upload, c: int) -> _LinearEstimate:
    return _affine(upload.mechanisms[c], upload.values, upload.clamp)


def _affine(mechanism: Mechanism, values: int, clamp: float | None) -> _LinearEstimate:
    """Offset and slope are found by asking for the estimates of two outputs."""
    probe = mechanism.randomize(centre(mechanism, values), _NO_RANDOMNESS).output
    match probe:
        case BitOutput():
            low = mechanism.estimate(BitOutput.pack(np.zeros((1, values), np.bool_)))[0].astype(np.float64)
            high = mechanism.estimate(BitOutput.pack(np.ones((1, values), np.bool_)))[0].astype(np.float64)
            return _LinearEstimate(_collapse(low), _collapse(high - low), 0.0, 1.0, whole=True, bits=True)
        case IntegerOutput():
            limit = int(max(-probe.low.min(), probe.high.max()))
            at_zero, at_limit = (
                mechanism.estimate(IntegerOutput(np.full((1, values), v, np.int64), probe.low, probe.high))[0]
                for v in (0, limit)
            )
            slope = (at_limit.astype(np.float64) - at_zero) / limit
            return _LinearEstimate(_collapse(at_zero.astype(np.float64)), _collapse(slope), -limit, limit, whole=True)
        case RealOutput():
            at_zero, at_one = (
                mechanism.estimate(RealOutput(np.full((1, values), v, np.float32), probe.bound))[0].astype(np.float64)
                for v in (0, 1)
            )
            bound = PLAIN_LIMIT if isinstance(mechanism, NoPrivacy) else float(probe.bound.max())
            bound = bound if clamp is None else min(bound, clamp)
            return _LinearEstimate(_collapse(at_zero), _collapse(at_one - at_zero), -bound, bound, whole=False)


def _product(total: Int64s, factor: Int64s) -> tuple[Int64s, Int64s]:
    """total * factor as high * 2^27 + low: sums of many clients have products that do not fit 64 bits."""
    (t_high, t_low), (f_high, f_low) = ((x >> 27, x & (2**27 - 1)) for x in (total, factor))
    low = t_low * f_low
    return ((t_high * f_high) << 27) + t_high * f_low + t_low * f_high + (low >> 27), low & (2**27 - 1)


def _collapse(array: Float64s) -> Float64s | float:
    """One number where all values are alike: most products are then with a scalar."""
    return float(array[0]) if (array == array[0]).all() else array


class _Zeros:
    """Words that are all zero: for asking a mechanism what its outputs look like, never for a release."""

    clients = 1

    def words(self, rows: NDArray[np.intp], purpose: int, tensor: int, first: int, count: int) -> NDArray[np.uint32]:
        return np.zeros((len(rows), count), np.uint32)


_NO_RANDOMNESS = _Zeros()

__all__ = ["Draw", "Lost", "PerClass", "ReportSum", "Same", "Sent", "Tally", "Upload", "centre", "samples_release"]
