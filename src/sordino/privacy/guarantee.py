"""What a release protects, from whom and how strongly: frozen descriptions, with no accounting in them.

A `Guarantee` says *who* learns what (adversary), *what may change* (adjacency), *how much* is lost (loss) and *why*
that holds (basis). Epsilons are computed from the loss by `sordino.privacy.accountant`; they are never stored as the
truth. A `Release` describes anything that leaves a client, as the ledger writes it down.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Container
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeVar

from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic import JsonValue


T = TypeVar("T")

_MOST = 2**63 - 1  #: of a count: more could not be multiplied with a number of double precision


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def _nonnegative(**values: float) -> None:
    for name, value in values.items():
        if not (_is_finite(value) and value >= 0):
            raise InvalidInput(f"{name} must be a finite number >= 0, got {value!r:.50}")


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (_is_finite(value) and value > 0):
            raise InvalidInput(f"{name} must be a finite number > 0, got {value!r:.50}")


def _is_delta(value: object) -> None:
    if not (isinstance(value, (int, float)) and 0 <= value < 1):
        raise InvalidInput(f"delta must lie in [0, 1), got {value!r}")


def _positive_count(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise InvalidInput(f"{name} must be a whole number from 1 to 2^63 - 1, got {value!r:.50}")


def check_count(name: str, value: object) -> int:
    """A whole number >= 1, numpy's included; anything else is refused."""
    whole = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else 0
    if whole < 1:
        raise InvalidInput(f"{name} must be a whole number >= 1, got {value!r}")
    return whole


class Adjacency(StrEnum):
    """What differs between the two worlds that must look alike."""

    COORDINATE = "coordinate"  #: one value of one upload
    LABEL = "label"  #: the label of one record
    RECORD_REPLACE = "record (replace)"  #: one record exchanged for another
    RECORD_ADD_REMOVE = "record (add/remove)"  #: one record present or absent
    CLIENT = "client"  #: everything one client sends in the releases accounted for

    @property
    def of_records(self) -> bool:
        """True if a single record, or a part of one, is what differs."""
        return self in (Adjacency.LABEL, Adjacency.RECORD_REPLACE, Adjacency.RECORD_ADD_REMOVE)


def as_adjacency(given: object) -> Adjacency:
    """The adjacency of that name; anything else is refused with the allowed names."""
    try:
        return Adjacency(str(given))
    except ValueError:
        raise InvalidInput(f"unknown adjacency {given!r}; allowed: {', '.join(Adjacency)}") from None


@dataclass(frozen=True)
class Adversary:
    """Who is looking. Use `SERVER`, `MODEL_READER`, `shuffled(n)` or `summed(min_honest)`."""

    kind: Literal["server", "shuffled", "summed", "model reader"]
    parties: int | None = None

    def __post_init__(self) -> None:
        counts = {"server": False, "model reader": False, "shuffled": True, "summed": True}
        if counts.get(self.kind) is not (self.parties is not None):
            raise InvalidInput(
                f"unknown adversary {self}; allowed: server, shuffled(n), summed(min_honest), model reader"
            )
        if self.parties is not None:
            _positive_count("parties", self.parties)

    def __str__(self) -> str:
        return self.kind if self.parties is None else f"{self.kind}({self.parties})"


SERVER = Adversary("server")
MODEL_READER = Adversary("model reader")


def shuffled(n: int) -> Adversary:
    """The server behind a trusted shuffler that mixes the reports of n clients."""
    return Adversary("shuffled", n)


def summed(min_honest: int) -> Adversary:
    """The server behind a secure sum with at least `min_honest` honest clients in it."""
    return Adversary("summed", min_honest)


@dataclass(frozen=True)
class Pure:
    """Pure epsilon: no output is more than e^epsilon times as likely under one world as under the other.

    With a `count`, it holds for each of so many outputs that are drawn independently of each other.
    """

    epsilon: float
    count: int = 1

    def __post_init__(self) -> None:
        _nonnegative(epsilon=self.epsilon)
        _positive_count("count", self.count)


@dataclass(frozen=True)
class Metric:
    """Condensed or metric privacy: ratio at most exp(alpha * d(v, v')), with d at most `distance` on the domain.

    With a `count`, it holds for each of so many outputs that are drawn independently of each other.
    """

    alpha: float
    distance: float
    count: int = 1

    def __post_init__(self) -> None:
        _nonnegative(alpha=self.alpha, distance=self.distance)
        _positive_count("count", self.count)


@dataclass(frozen=True)
class RandomizedBit:
    """`count` independent bits, each with probabilities between t_min/2^32 and 1 - t_min/2^32.

    `tau` bounds the probability that they are seen one by one where the adversary should see only how many are one.
    """

    t_min: int
    count: int
    tau: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.t_min, int) or not 1 <= self.t_min <= 2**31:
            raise InvalidInput(f"t_min must be a whole number from 1 to 2^31, got {self.t_min!r}")
        _positive_count("count", self.count)
        _nonnegative(tau=self.tau)


@dataclass(frozen=True)
class GaussianLoss:
    """Gaussian differential privacy with parameter mu, up to the slack of an integer sampler.

    Every event is at most as likely as delta_mu(epsilon - eta) + tau allows; eta = tau = 0 is exact mu-GDP.
    """

    mu: float
    eta: float = 0.0
    tau: float = 0.0

    def __post_init__(self) -> None:
        _nonnegative(mu=self.mu, eta=self.eta, tau=self.tau)


@dataclass(frozen=True)
class PoissonGaussian:
    """`steps` Gaussian releases of noise multiplier sigma, each on a fresh Poisson sample with probability q.

    `eta` and `tau` are the slack of an integer sampler, in all of the steps together: every event is at most as likely
    as delta_ideal(epsilon - eta) + tau allows, for every epsilon, where ideal are all steps with real Gaussian noise.
    """

    q: float
    sigma: float
    steps: int
    eta: float = 0.0
    tau: float = 0.0

    def __post_init__(self) -> None:
        if not (isinstance(self.q, (int, float)) and 0 < self.q <= 1):
            raise InvalidInput(f"q must be a probability in (0, 1], got {self.q!r}")
        _positive(sigma=self.sigma)
        _positive_count("steps", self.steps)
        _nonnegative(eta=self.eta, tau=self.tau)


@dataclass(frozen=True)
class Infinite:
    """No proof: epsilon is infinite, and `why` says so in words."""

    why: str

    def __post_init__(self) -> None:
        if not self.why:
            raise InvalidInput("an infinite loss must say why: give the reason in words")


Loss = Pure | Metric | RandomizedBit | GaussianLoss | PoissonGaussian | Infinite


@dataclass(frozen=True)
class Guarantee:
    """What a release protects (adjacency), from whom (adversary), how strongly (loss) and why (basis).

    `modulus` is m where it rests on a secure sum modulo 2^m: noise that silos share hides a silo in such a sum alone.
    """

    adversary: Adversary
    adjacency: Adjacency
    loss: Loss
    basis: str
    modulus: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", as_adjacency(self.adjacency))
        if self.modulus is not None:
            _positive_count("modulus", self.modulus)
            if self.adversary.kind != "summed":
                raise InvalidInput(f"only against summed(min_honest) is there a modulus of sums, not {self.adversary}")


@dataclass(frozen=True)
class Claim:
    """A published formula, verbatim, with the figure it gives; never to be taken for a proof.

    `covers` says whether the figure is for one release (and claims add up) or for a whole schedule (and is made once
    for each federation).
    """

    epsilon: float
    delta: float
    formula: str
    adjacency: Adjacency = Adjacency.CLIENT
    adversary: Adversary = SERVER
    covers: Literal["release", "schedule"] = "release"

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", as_adjacency(self.adjacency))
        if self.covers not in ("release", "schedule"):
            raise InvalidInput(f"a claim covers a 'release' or a 'schedule', got {self.covers!r}")
        _nonnegative(epsilon=self.epsilon)
        _is_delta(self.delta)


@dataclass(frozen=True)
class Sequential:
    """Every release about the same data adds up."""


@dataclass(frozen=True)
class ParallelByRecord:
    """One release in which each record is touched once: records do not add up among themselves."""


@dataclass(frozen=True)
class Derived:
    """Computed only from earlier releases: it names them and costs nothing new."""

    releases: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.releases or not all(isinstance(r, str) and r for r in self.releases):
            raise InvalidInput("a derived release must name the releases it was computed from")


Composition = Sequential | ParallelByRecord | Derived


NO_MODULUS = Infinite("a finite figure in a sum without a modulus was false, and the report alone has none")


def _without_false_sums(given: tuple[Guarantee, ...]) -> tuple[Guarantee, ...]:
    """The guarantees, those of a sum without a modulus as weak as those of the report in it.

    Silos that share a noise used to send their parts modulo 2^m into a sum of whole numbers. It told how often a silo
    had wrapped around, which that silo's own noise alone hides. Ledgers and runs of that time say more than was true.
    """
    if all(g.adversary.kind != "summed" for g in given):
        return given
    alone = {g.adjacency: g for g in given if g.adversary == SERVER}

    def sound(own: Guarantee) -> Guarantee:
        single = alone.get(own.adjacency)
        counted = isinstance(own.loss, (RandomizedBit, Infinite))  # how many bits are one, a sum does not hide
        if own.adversary.kind != "summed" or own.modulus is not None or counted:
            return own
        if single is None or isinstance(single.loss, Infinite):
            return Guarantee(own.adversary, own.adjacency, NO_MODULUS, "none")
        return own if single.loss == own.loss else Guarantee(own.adversary, own.adjacency, single.loss, single.basis)

    return tuple(map(sound, given))


@dataclass(frozen=True)
class Release:
    """Anything that leaves a client: which data set, what it is, what it guarantees and what was claimed for it.

    A guarantee against `summed(h)` that no modulus backs is lowered to that of the report itself.
    """

    id: str
    dataset: str
    what: str
    guarantees: tuple[Guarantee, ...]
    claimed: Claim | None = None
    composition: Composition = Sequential()

    def __post_init__(self) -> None:
        for name in ("id", "dataset", "what"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise InvalidInput(f"a release needs a non-empty text as its {name}")
        if isinstance(self.composition, Derived) and (self.guarantees or self.claimed):
            raise InvalidInput(
                f"release {self.id!r} is derived from others and costs nothing: it has no guarantee or claim of its own"
            )
        object.__setattr__(self, "guarantees", _without_false_sums(self.guarantees))
        if not self.guarantees and not isinstance(self.composition, Derived):
            raise InvalidInput(
                f"release {self.id!r} has no guarantee; a release without a proof carries Infinite(why), never nothing"
            )

    @property
    def protects_records(self) -> bool:
        """True if something finite is proven of single records."""
        return any(own.adjacency.of_records and not isinstance(own.loss, Infinite) for own in self.guarantees)

    @property
    def is_finite(self) -> bool:
        """True if something finite is proven of it."""
        return any(not isinstance(own.loss, Infinite) for own in self.guarantees)

    @property
    def has_lost_figure(self) -> bool:
        """True if it once had a finite figure in a sum, and has none now: nobody consented to that."""
        return any(own.loss == NO_MODULUS for own in self.guarantees)

    def without_proof(self, why: str, of: Container[Adjacency] = frozenset(Adjacency)) -> Release:
        """The same release with nothing proven: at all, or of these adjacencies."""
        lost = Infinite(why)
        own = (replace(own, loss=lost, basis="none") if own.adjacency in of else own for own in self.guarantees)
        return replace(self, guarantees=tuple(own))

    def unproven_of_records(self, why: str) -> Release:
        """The same release with nothing proven of single records."""
        return self.without_proof(why, {adjacency for adjacency in Adjacency if adjacency.of_records})


@dataclass(frozen=True)
class Destination:
    """Where a release goes: to which federation, and whether its secure sums are ones that the client can rely on.

    `pinned` says that the owner's settings name the signing key of every other client, so that the server cannot make
    up the others in a sum.
    """

    federation: str = ""
    pinned: bool = False


@dataclass(frozen=True)
class Budget:
    """What a ledger enforces for one data set; never the same thing as a mechanism's epsilon.

    `basis` says which number is limited: the proven one, or (only with the owner's consent) the claimed one.
    """

    limit: float
    delta: float = 0.0
    basis: Literal["proven", "claimed"] = "proven"
    adjacency: Adjacency = Adjacency.CLIENT
    adversary: Adversary = SERVER

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", as_adjacency(self.adjacency))
        _positive(limit=self.limit)
        _is_delta(self.delta)
        if self.basis not in ("proven", "claimed"):
            raise InvalidInput(f"a budget's basis is 'proven' or 'claimed', got {self.basis!r}")


def kind(value: object) -> str:
    """The name of a description's class in JSON."""
    return _kind(type(value))


def _kind(cls: type) -> str:
    return cls.__name__.removesuffix("Loss")


_KINDS: dict[str, type] = {
    _kind(cls): cls
    for cls in (
        Adversary, Pure, Metric, RandomizedBit, GaussianLoss, PoissonGaussian, Infinite, Guarantee, Claim,
        Sequential, ParallelByRecord, Derived, Release, Budget,
    )
}  # fmt: skip


def pack(value: object) -> JsonValue:
    """A description as JSON can say it; equal values give equal JSON."""
    match value:
        case StrEnum():
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [pack(each) for each in value]
    assert kind(value) in _KINDS
    given = {name: pack(own) for name, own in vars(value).items()}
    if isinstance(value, RandomizedBit) and not value.tau:
        del given["tau"]  # ledgers have lines from before there was one
    if isinstance(value, Guarantee) and value.modulus is None:
        del given["modulus"]
    return dict(sorted({"type": kind(value), **given}.items()))


def _unpack(packed: object) -> object:
    if isinstance(packed, list):
        return tuple(map(_unpack, packed))
    if not isinstance(packed, dict):
        return packed
    given = {key: _unpack(own) for key, own in packed.items() if key != "type"}
    cls = _KINDS.get(packed.get("type", ""))
    if cls is None:
        raise InvalidInput(f"unknown kind of description {packed.get('type')!r}; allowed: {', '.join(_KINDS)}")
    try:
        return cls(**given)
    except TypeError as error:
        raise InvalidInput(f"a description of another version of Sordino: {error}") from None


def to_json(value: Release | Budget | Guarantee) -> str:
    """One line of canonical JSON (sorted keys, shortest exact floats): equal values give equal bytes."""
    return json.dumps(pack(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(expected: type[T], text: str) -> T:
    """The value that `to_json` wrote; anything unknown is refused."""
    try:
        return unpack(expected, json.loads(text))
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not a description in JSON: {error}") from None


def unpack(expected: type[T], packed: object) -> T:
    """The value that `pack` was given; anything unknown is refused."""
    value = _unpack(packed)
    if not isinstance(value, expected):
        raise InvalidInput(f"a {expected.__name__} is expected, got {packed!r}")
    return value
