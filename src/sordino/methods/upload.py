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
from copy import copy
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.errors import InvalidInput, SordinoError
from sordino.mechanisms.domain import Box, IntegerRange
from sordino.mechanisms.interface import Mechanism, Randomized
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


@dataclass(frozen=True, eq=False)
class Same:
    """Builds the same mechanism for all clients, whatever their strength."""

    mechanism: Mechanism

    def __call__(self, _: float | None) -> Mechanism:
        return self.mechanism


@dataclass(frozen=True, eq=False)
class RecordingDraw:
    """Clients' randomness which, handed to `Upload.send`, keeps what they handed to their mechanism.

    For attacks on simulated clients, which compare a report with what it was made of. Nothing else is drawn.
    """

    draw: Draw
    vectors: list[NDArray[np.float32]] = field(default_factory=list)  #: `[K, d]` of each call

    def __call__(self, clients: Sequence[int]) -> Randomness:
        return self.draw(clients)


class Sent(NamedTuple):
    """What a cohort sends, and what its owners alone see: the share of each client's values that was clipped `[K]`."""

    bodies: list[bytes]
    clipped: Float64s


@dataclass(eq=False, repr=False)
class Upload:
    """d values per client through a mechanism, which may differ from client to client by its strength.

    `build(epsilon)` makes the mechanism of one strength; `epsilons [N]` are the clients' strengths, None where the
    mechanism takes none. With `samples`, each report names how many records stand behind it: a release of its own; the
    server takes `most_samples` at most. With `clamp`, it reads a real value beyond +-clamp as +-clamp: no client can
    move the model further, at the price of a bias where an honest value lies beyond (docs/malicious.md). With `norm`,
    it scales estimates of a larger L2 norm down to that one: for mechanisms whose estimate of the output 0 is 0.
    """

    build: Callable[[float | None], Mechanism]
    epsilons: InitVar[ArrayLike | None]
    values: int
    _: KW_ONLY
    clients: int
    what: str
    samples: bool = False
    most_samples: int = MAX_SAMPLES
    clamp: float | None = None
    norm: float | None = None
    strengths: tuple[float | None, ...] = field(init=False)  #: of every class
    class_of: NDArray[np.intp] = field(init=False)  #: of every client
    mechanisms: Sequence[Mechanism] = field(init=False)  #: of every class

    def __post_init__(self, epsilons: ArrayLike | None) -> None:
        if epsilons is None:
            self.strengths, self.class_of = (None,), np.zeros(self.clients, np.intp)
        else:
            distinct, which = np.unique(np.asarray(epsilons, np.float64), return_inverse=True)
            self.strengths, self.class_of = tuple(distinct.tolist()), which.astype(np.intp)
            if self.class_of.size != self.clients:
                raise InvalidInput(f"there are {self.clients} clients and {which.size} epsilons: give one each")
        self.mechanisms = PerClass(len(self.strengths), self._mechanism)

    def _mechanism(self, c: int) -> Mechanism:
        return self.build(self.strengths[c])

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
        if isinstance(draw, RecordingDraw):
            draw.vectors.append(rows.copy())
        bodies: list[bytes] = [b""] * len(rows)
        clipped = np.zeros(len(rows))
        for c, where in self._groups(clients):
            mechanism = self.mechanisms[c]
            own = rows if len(where) == len(rows) else rows[where]
            randomized = _randomized(mechanism, own, draw([clients[k] for k in where]))
            clipped[where] = randomized.local.clipped_fraction
            for k, body in zip(where.tolist(), mechanism.encode(randomized.output), strict=True):
                bodies[k] = (_SAMPLES.pack(min(sizes[k], self.most_samples)) if self.samples else b"") + body
        return Sent(bodies, clipped)

    def releases(self, name: str, dataset: str) -> Sequence[tuple[Release, ...]]:
        """What one upload tells of a client, for every class: known before any data is touched."""
        return PerClass(len(self.strengths), partial(self._class_releases, name=name, dataset=dataset))

    def _class_releases(self, c: int, name: str, dataset: str) -> tuple[Release, ...]:
        mechanism = self.mechanisms[c]
        guarantees = tuple(
            mechanism.guarantee(adjacency, values=self.values) for adjacency in (Adjacency.CLIENT, Adjacency.COORDINATE)
        )
        for found in guarantees:
            if not isinstance(found, Guarantee):
                raise InvalidInput(
                    f"{type(mechanism).__name__}.guarantee must return a sordino.privacy.guarantee.Guarantee, or "
                    f"unproven(adjacency, why), got {found!r}"
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

    def linear(self, c: int) -> LinearEstimate:
        """How estimates of a class follow from outputs: found by asking its mechanism for those of two outputs."""
        mechanism = self.mechanisms[c]
        shape, probe = (1, self.values), _randomized(mechanism, centre(mechanism, self.values), _NO_RANDOMNESS).output
        step, low, high = 1.0, 0.0, 1.0
        match probe:
            case BitOutput():
                outputs: list[Output] = [BitOutput.pack(np.full(shape, bit)) for bit in (False, True)]
            case IntegerOutput():
                limit = int(max(-probe.low.min(), probe.high.max()))
                step, low, high = limit, -limit, limit
                outputs = [replace(probe, array=np.full(shape, v, np.int64)) for v in (0, limit)]
            case RealOutput():
                high = PLAIN_LIMIT if isinstance(mechanism, NoPrivacy) else float(probe.bound.max())
                high = high if self.clamp is None else min(high, self.clamp)
                low = -high
                outputs = [replace(probe, array=np.full(shape, v, np.float32)) for v in (0, 1)]
        at_zero, at_step = (mechanism.estimate(output)[0].astype(np.float64) for output in outputs)
        return LinearEstimate(_collapse(at_zero), _collapse((at_step - at_zero) / step), low, high, type(probe))

    def farthest(self, c: int) -> float:
        """How far any legal report of a class lies from the middle of them, at most: an L2 norm of estimates."""
        linear = self.linear(c)
        values = np.broadcast_to(np.abs(linear.slope) * (linear.high - linear.low) / 2, (self.values,))
        length = float(np.linalg.norm(values))
        return length if self.norm is None else min(length, self.norm)


def _randomized(mechanism: Mechanism, values: ArrayLike, randomness: Randomness) -> Randomized:
    """What a mechanism makes of values, if it is an output with its diagnostics."""
    found = mechanism.randomize(values, randomness)
    if not isinstance(found, Randomized):
        raise InvalidInput(
            f"{type(mechanism).__name__}.randomize must return Randomized(output, diagnostics), got "
            f"{type(found).__name__}"
        )
    return found


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
    """The release of a sample count that is sent without noise."""
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


@dataclass(frozen=True, eq=False)
class PartialSum:
    """What some reports add to a tally, computed elsewhere; `low` is None where one whole number holds each value."""

    reports: int
    counts: Int64s
    high: Int64s
    low: Int64s | None = None


@dataclass(frozen=True)
class LinearEstimate:
    """The estimate of an output x is offset + slope * x; outputs are of one `kind` and lie in low .. high."""

    offset: Float64s | float
    slope: Float64s | float
    low: float
    high: float
    kind: type[Output]

    @property
    def largest(self) -> float:
        return max(-self.low, self.high)

    def span(self, digits: int) -> tuple[int, int]:
        """The smallest and the largest output as whole numbers; reals keep so many decimals."""
        unit = 10**digits if self.kind is RealOutput else 1
        return math.floor(self.low * unit), math.ceil(self.high * unit)


class Tally:
    """A running sum of reports in whole numbers: the same in every order of arrival, in constant memory."""

    def __init__(self, upload: Upload, weights: Float64s) -> None:
        if weights.shape != (len(upload.strengths),) or not (weights >= 0).all() or not weights.max() > 0:
            raise InvalidInput(f"give one weight >= 0 for each of {len(upload.strengths)} classes, not all of them 0")
        self.upload = upload  #: how the values that are added up leave their clients
        self.weights = weights / weights.max()  #: of one report of every class; where samples weigh, of one sample
        self._counts = np.zeros(len(weights), np.int64)  # of reports, by class; of samples where these weigh
        self._high = np.zeros(upload.values, np.int64)
        self._low = np.zeros(upload.values, np.int64)
        self.reports = 0

    @cached_property
    def _linear(self) -> Sequence[LinearEstimate]:
        return PerClass(len(self.weights), self.upload.linear)

    @cached_property
    def _shift(self) -> int:
        """Bits after the binary point: as many as the largest possible contribution leaves room for."""
        reach = max(
            w * float(np.max(np.abs(linear.slope))) * linear.largest
            for w, linear in zip(self.weights, self._linear, strict=True)
        )
        return math.floor(math.log2(REPORT_LIMIT / reach)) - 1

    @cached_property
    def _factors(self) -> Sequence[Float64s]:
        """By class, what an output is multiplied by; as it is where outputs are reals."""
        exact = (w * np.asarray(own.slope, np.float64) for w, own in zip(self.weights, self._linear, strict=True))
        return [np.ldexp(factor, self._shift) for factor in exact]

    @cached_property
    def _whole_factors(self) -> Sequence[Int64s]:
        return [np.rint(factor).astype(np.int64) for factor in self._factors]

    def add(self, clients: Sequence[int], bodies: Sequence[bytes]) -> dict[int, str]:
        """Add these reports; those outside the mechanism's output set come back with the reason and are not added."""
        refused: dict[int, str] = {}
        for c, where in self.upload._groups(clients):
            step = self._at_once(c)
            for first in range(0, len(where), step):
                rows = [int(k) for k in where[first : first + step]]
                refused.update(self._add_class(c, {clients[k]: bodies[k] for k in rows}))
        return refused

    def _at_once(self, c: int) -> int:
        """How many reports are decoded together: bits that count alike are counted, which takes little room."""
        if self._linear[c].kind is BitOutput and not self.upload.samples:
            return min(BIT_ROWS, max(1, BIT_TILE // self.upload.values))
        return min(ROWS, max(1, TILE // self.upload.values))

    def _add_class(self, c: int, reports: Mapping[int, bytes]) -> dict[int, str]:
        try:
            samples, output = self._read(c, list(reports.values()))
        except SordinoError:  # some are bad: find them, and keep the others
            refused = {client: why for client, body in reports.items() if (why := self._fault(c, body))}
            good = {client: body for client, body in reports.items() if client not in refused}
            return refused | (self._add_class(c, good) if good else {})
        self._include(c, list(reports), output, samples)
        self._counts[c] += len(reports) if samples is None else int(samples.sum())
        self.reports += len(reports)
        return {}

    def _fault(self, c: int, body: bytes) -> str:
        """Why a report cannot be read; empty where it can."""
        try:
            self._read(c, [body])
        except SordinoError as error:
            return str(error)
        return ""

    def _include(self, c: int, clients: Sequence[int], output: Output, samples: Int64s | None) -> None:
        """Take in these clients' outputs, all of one class and checked."""
        if isinstance(output, BitOutput) and samples is None:
            self._accumulate_bits(self._whole_factors[c], output)
        else:
            self._accumulate(self._shortened(c, self._fixed(c, output)), samples)

    def _read(self, c: int, bodies: list[bytes]) -> tuple[Int64s | None, Output]:
        """Announced sample counts, where reports carry them, and the outputs."""
        mechanism, values = self.upload.mechanisms[c], self.upload.values
        if not self.upload.samples:
            return None, self._checked(c, mechanism.decode(bodies, values))
        if any(len(body) < _SAMPLES.size for body in bodies):
            raise InvalidInput("a report is too short to hold its number of samples")
        samples = np.array([_SAMPLES.unpack_from(body)[0] for body in bodies], np.int64)
        if samples.max() > self.upload.most_samples:
            most = self.upload.most_samples
            raise InvalidInput(f"a report names {samples.max():,} samples; {most:,} is the most that counts")
        return samples, self._checked(c, mechanism.decode([body[_SAMPLES.size :] for body in bodies], values))

    def _checked(self, c: int, output: Output) -> Output:
        """Plain values may be any float32: refuse those that no sensible model has and the sum has no room for."""
        limit, clamp = self._linear[c].largest, self.upload.clamp
        if isinstance(output, RealOutput) and clamp is not None:
            return replace(output, array=np.clip(output.array, -clamp, clamp))
        if isinstance(output, RealOutput) and not (-limit <= output.array.min() and output.array.max() <= limit):
            raise InvalidInput(f"a report holds a value beyond {limit:g}: training has diverged, or it was forged")
        return output

    def _fixed(self, c: int, output: Output) -> Int64s:
        """`[K, d]` contributions as whole numbers below 2^54."""
        whole = _whole(output, self._factors[c])
        return whole if isinstance(output, RealOutput) else whole * self._whole_factors[c]

    def _shortened(self, c: int, fixed: Int64s) -> Int64s:
        """The same contributions, those beyond the announced norm scaled down to it; all others as they are."""
        if self.upload.norm is None:
            return fixed
        limit = math.ldexp(self.weights[c] * self.upload.norm, self._shift)
        for row in fixed:  # one at a time: a copy in floats is as large as the row
            length = float(np.linalg.norm(row.astype(np.float64)))
            if length > limit:
                row[:] = np.rint(row * (limit / length))
        return fixed

    def _accumulate(self, fixed: Int64s, samples: Int64s | None) -> None:
        if samples is None:  # at most 256 numbers below 2^54: their sum is below 2^62
            high, low = _halves(fixed.sum(axis=0))
        else:
            high, low = (samples @ half for half in _halves(fixed))
        self._high += high
        self._low += low

    def _accumulate_bits(self, factor: Int64s, output: BitOutput) -> None:
        """The same of bits, counted before they are multiplied: at most 128 times a number below 2^54."""
        for cols, ones in output.ones():
            high, low = _halves(ones * (factor if factor.size == 1 else factor[cols]))
            self._high[cols] += high
            self._low[cols] += low

    # --- sums of reports in the place of reports

    @property
    def in_parts(self) -> bool:
        """Whether processes can add up reports apart from each other: a tally of another class may look at each."""
        return type(self) is Tally

    def emptied(self) -> Tally:
        """The same without any report; what it knows of mechanisms is kept."""
        empty = copy(self)
        empty.reports, empty._counts = 0, np.zeros_like(self._counts)
        empty._high, empty._low = np.zeros_like(self._high), np.zeros_like(self._low)
        return empty

    def partial_sum(self) -> PartialSum:
        """All that was added so far, for another process's tally of the same upload."""
        small = not self.upload.samples and self.reports <= ROWS  # numbers below 2^54: their sum is below 2^62
        if small:
            return PartialSum(self.reports, self._counts, (self._high << 27) + self._low)
        return PartialSum(self.reports, self._counts, self._high, self._low)

    def add_partial(self, found: PartialSum) -> None:
        """Add what another process has added up: the same, to the last bit, as its reports one by one."""
        high, low = _halves(found.high) if found.low is None else (found.high, found.low)
        self._high += high
        self._low += low
        self._counts += found.counts
        self.reports += found.reports

    def classes(self, clients: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """These clients by class: only outputs of one mechanism can be added to each other."""
        return {c: tuple(clients[k] for k in where) for c, where in self.upload._groups(clients)}

    @property
    def summands(self) -> int:
        """How many whole numbers a client adds to a sum."""
        return self.upload.values + self.upload.samples

    def span(self, c: int, digits: int) -> tuple[int, int]:
        """The smallest and the largest whole number that a client of this class may add to a sum."""
        low, high = self._linear[c].span(digits)
        if not self.upload.samples:
            return low, high
        weight = self.upload.most_samples
        return min(low * weight, 0), max(high * weight, weight)

    def summand(self, client: int, body: bytes, digits: int) -> Int64s:
        """A client's own report as the whole numbers that it adds to a sum; reals keep so many decimals."""
        samples, output = self._read(int(self.upload.class_of[client]), [body])
        whole = _whole(output, 10.0**digits)[0]
        return whole if samples is None else np.append(whole * samples[0], samples[0])

    def add_sum(self, found: ReportSum) -> None:
        """Add the reports of some clients of one class, of which nothing but the sum is known."""
        total, weight, c = found.total, len(found.clients), found.group
        if total.shape != (self.summands,):
            raise InvalidInput(f"a sum of this upload has {self.summands} whole numbers, got {total.shape}")
        if self.upload.samples:  # values and samples are summed apart
            total, weight = total[:-1], int(total[-1])
            low, high = (weight * end for end in self._linear[c].span(found.digits))
            if weight < 0 or int(total.min()) < low or int(total.max()) > high:
                raise InvalidInput(
                    f"the sum of class {c} is none that {weight:,} samples can have: a client sent a false vector"
                )
        if self._linear[c].kind is RealOutput:
            exact = total.astype(np.float64) * (self._factors[c] / 10.0**found.digits)
            high_part = np.floor(exact * 2.0**-27).astype(np.int64)
            parts = high_part, np.rint(exact - high_part * 2.0**27).astype(np.int64)
        else:
            parts = _product(total, self._whole_factors[c])
        self._high += parts[0]
        self._low += parts[1]
        self._counts[c] += weight
        self.reports += len(found.clients)

    @property
    def weight(self) -> float:
        """The sum of all weights so far."""
        return float(self.weights @ self._counts)

    def mean(self) -> Float64s:
        """The weighted mean of the estimates `[d]`."""
        if not self.weight > 0:
            raise InvalidInput("there is no report to take a mean of")
        total = np.ldexp(self._high.astype(np.float64) * 2.0**27 + self._low, -self._shift)
        for weight, count, linear in zip(self.weights, self._counts, self._linear, strict=True):
            total += weight * count * linear.offset
        return np.asarray(total / self.weight)

    def noise(self) -> float | None:
        """The predicted L2 norm of the noise in `mean()`, from the mechanisms' exact variances; None if not known."""
        if self.upload.norm is not None:  # shortened reports carry less of it
            return None
        shares = self.weights * self._counts / self.weight
        spread = self.upload.variances() * shares**2 / np.maximum(self._counts, 1)
        return math.sqrt(float(spread.sum()) * self.upload.values)


def _whole(output: Output, unit: Float64s | float) -> Int64s:
    """`[K, d]` outputs as whole numbers: reals in steps of 1/unit, others as they are."""
    if isinstance(output, RealOutput):
        return np.rint(output.array.astype(np.float64) * unit).astype(np.int64)
    return output.numbers().astype(np.int64, copy=False)


def _halves(total: Int64s) -> tuple[Int64s, Int64s]:
    """(high, low) with total = high * 2^27 + low."""
    return total >> 27, total & (2**27 - 1)


def _product(total: Int64s, factor: Int64s) -> tuple[Int64s, Int64s]:
    """total * factor as high * 2^27 + low: sums of many clients have products that do not fit 64 bits."""
    (t_high, t_low), (f_high, f_low) = _halves(total), _halves(factor)
    high, low = _halves(t_low * f_low)
    return ((t_high * f_high) << 27) + t_high * f_low + t_low * f_high + high, low


def _collapse(array: Float64s) -> Float64s | float:
    """One number where all values are alike: most products are then with a scalar."""
    return float(array[0]) if (array == array[0]).all() else array


class _Zeros:
    """Words that are all zero: for asking a mechanism what its outputs look like, never for a release."""

    clients = 1

    def words(self, rows: NDArray[np.intp], purpose: int, tensor: int, first: int, count: int) -> NDArray[np.uint32]:
        return np.zeros((len(rows), count), np.uint32)


_NO_RANDOMNESS = _Zeros()

__all__ = [
    "Draw", "Lost", "PartialSum", "PerClass", "RecordingDraw", "ReportSum", "Same", "Sent", "Tally", "Upload", "centre",
    "samples_release",
]  # fmt: skip
