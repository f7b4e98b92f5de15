"""The shuffled channel of LDP-FL (Sun, Qian, Chen 2021, Figure 2): a trusted shuffler between clients and coordinator.

It holds the one-bit reports of a round until all are there, takes the names off and mixes those of equal epsilon, which
is as much anonymity as there is: reports of another strength look different. What is mixed is

    model       whole reports: which came from whom is hidden, but a report stays together
    parameter   every single parameter by itself: the reports of the coordinator are then made of bits of anybody, and
                nothing but the number of ones for each parameter means anything

Either way the sum is the same to the last bit, so nothing that is learnt depends on the shuffler's randomness, which is
its own: no seed of a simulation and no message of the server chooses it. In a simulation the shuffler is a part of this
process; that it is trusted, and sees every client's bits, is what the statement's "shuffled(n)" stands for.

Algorithm 3 of the paper has no shuffler. Clients send each parameter after a delay drawn from U(0, T), and hope to be
mixed by the clock. `Delays` says how long that takes. It hides nothing from whoever sees addresses or sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from sordino.channels.interface import Channel, Exchange
from sordino.channels.spec import MixedSpec, first_tally
from sordino.errors import InvalidInput
from sordino.mechanisms.one_bit import OneBit
from sordino.methods.upload import Upload
from sordino.parts.strengths import Strength, resolved, strength_problems
from sordino.parts.tables import Found, Natural, Says, TomlTable, reads, tag
from sordino.privacy.accountant import bit_epsilon
from sordino.privacy.guarantee import Adjacency, Guarantee, Pure, RandomizedBit, Release, shuffled
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.methods.interface import Method
    from sordino.methods.selection import SelectionSpec
    from sordino.recipe import Recipe

Granularity = Literal["parameter", "model"]
Float64s = NDArray[np.float64]
Bytes = NDArray[np.uint8]

PIECE = 4096  #: bytes of each report mixed at a time: 32,768 parameters


# --- the tables -------------------------------------------------------------------------------------------------------


class Delay(TomlTable):
    """How long the random delays of LDP-FL's Algorithm 3 would take: simulated beside the run, in seconds."""

    inline: ClassVar[bool] = True

    latency: Strength = Field(description="T that clients propose; the median is agreed on")
    computing: Strength = Field(default=0.0001, description="how long clients train")
    communication: Strength = Field(default=0.0001, description="how long a report of theirs takes")


class ShuffledChannel(MixedSpec):
    """A trusted shuffler takes the names off the reports and mixes those of equal epsilon."""

    simulated: ClassVar[bool] = True
    kind: str = tag("shuffled", "through a trusted shuffler of one-bit reports")
    granularity: Literal["parameter", "model"] = Field(
        description="what is mixed: every single parameter by itself, or whole reports"
    )
    at_least: Natural = Field(
        default=0,
        description="fewest reports of one epsilon that are passed on, which is the crowd that the statement counts on "
        "(0: all that are asked, or 1 where that differs from round to round)",
    )
    delay: Delay | None = Field(default=None, description="delays to simulate; none if left out")

    def build(self, recipe: Recipe, method: Method) -> Shuffled:
        delays = None if self.delay is None else Delays.of(self.delay, method.clients, recipe.seed)
        return Shuffled.of(recipe, method, self.granularity, delays)

    def crowds(self, selection: SelectionSpec, upload: Upload) -> tuple[int, ...]:
        sizes = np.bincount(upload.class_of, minlength=len(upload.strengths))
        if self.at_least:
            return tuple(min(self.at_least, int(size)) for size in sizes)
        if selection.kind == "all":
            return tuple(sizes.tolist())
        steady = len(sizes) == 1 and selection.steady
        return (selection.asked(upload.clients),) if steady else (1,) * len(sizes)

    def guarantee(self, release: Release, crowd: int, mechanism: OneBit) -> Release:
        """Whole models stay linked, and no theorem amplifies d*eps for such crowds: there nothing more is proven."""
        if self.granularity == "parameter":
            return among_bits(release, crowd, mechanism)
        formula = "d * eps, with no growth in rounds, where whole models are shuffled (LDP-FL, section 4)"
        claim = release.claimed
        if claim is not None:
            claim = replace(claim, formula=formula, adversary=shuffled(crowd), covers="schedule")
        return replace(release, claimed=claim)

    @reads("method", "split")
    def delays_of_all_clients(self, recipe: Recipe) -> Found:
        """Delays are given for as many clients as there are."""
        if self.delay is not None:
            for name in ("latency", "computing", "communication"):
                yield from strength_problems(f".delay.{name}", getattr(self.delay, name), recipe.number_of_clients)


ADDRESS = r"^(https?://[^\s/]+(/\S*)?)?$"
PUBLIC_KEY = "^([0-9a-f]{64})?$"


class ShufflerChannel(MixedSpec):
    """A shuffler service: clients seal every value to the server and send it to somebody else, who mixes them."""

    posts: ClassVar[bool] = True
    kind: str = tag("shuffler", "through a shuffler service, every value sealed to the server")
    at_least: Annotated[int, Ge(2)] = Field(
        description="whole reports of one epsilon that a batch must hold, or nothing of it leaves: the crowd that the "
        "statement counts on"
    )
    url: Annotated[str, Says("an address such as https://shuffler.example:8470")] = Field(
        pattern=ADDRESS,
        default="",
        description="the shuffler's address, which clients must have allowed; a simulation mixes by itself and needs "
        "none",
    )
    key: Annotated[str, Says("64 hexadecimal digits, as `sordino shuffler keys` prints them")] = Field(
        pattern=PUBLIC_KEY,
        default="",
        description="the server's public key, 64 hexadecimal digits; a simulation needs none",
    )
    group: Annotated[int, Ge(1), Le(2**16)] = Field(
        default=1, description="values in one envelope: g of them are one linked message of g times a bit's epsilon"
    )
    seconds: Annotated[float, Gt(0), Le(604_800)] = Field(
        default=600.0, description="how long the shuffler waits for those who were asked"
    )

    def crowds(self, selection: SelectionSpec, upload: Upload) -> tuple[int, ...]:
        """A service mixes so many of each class, or none: a class that is smaller would never be heard."""
        sizes = np.bincount(upload.class_of, minlength=len(upload.strengths))
        for size, strength in zip(sizes.tolist(), upload.strengths, strict=True):
            if size < self.at_least:
                raise InvalidInput(
                    f"method.channel.at_least = {self.at_least}, and {size} clients have epsilon {strength}: reports "
                    "are mixed with those of equal epsilon, so that theirs would never leave. Lower at_least, or give "
                    "more clients one epsilon (such as clients.epsilon = { values = [2, 8], shares = [0.5, 0.5] })"
                )
        return (self.at_least,) * len(sizes)

    def guarantee(self, release: Release, crowd: int, mechanism: OneBit) -> Release:
        """Envelopes of one value are shuffled parameters. g values in one stay together, and nothing amplifies that."""
        if self.group == 1:
            return among_bits(release, crowd, mechanism)
        each = bit_epsilon(int(mechanism.t_min[0]))
        basis = (
            f"bits in sealed groups of {self.group}, each of them one linked message of {self.group} times a bit's "
            f"epsilon, mixed among {crowd} clients: without amplification"
        )

        def loss(own: Guarantee, bits: RandomizedBit) -> Pure:
            whole = Pure(self.group * each, math.ceil(bits.count / self.group))
            return Pure(each) if own.adjacency is Adjacency.COORDINATE else whole

        behind = shuffled(crowd)
        linked = [Guarantee(behind, own.adjacency, loss(own, bits), basis) for own, bits in bits_of(release)]
        return replace(release, guarantees=(*release.guarantees, *linked), claimed=None)

    def build(self, recipe: Recipe, method: Method) -> Shuffled:
        """This process in the place of the service, as a simulation wants it.

        `sordino.shuffler.channel` has the channel that goes through a real one. Envelopes of several values would stay
        together. Of single bits nothing but their number counts, so that the model is the same; what the group gives
        away is in the releases.
        """
        return Shuffled.of(recipe, method, "parameter")


# --- what mixing is worth ---------------------------------------------------------------------------------------------


def bits_of(release: Release) -> list[tuple[Guarantee, RandomizedBit]]:
    """The guarantees of a release that are of randomised bits."""
    return [(own, own.loss) for own in release.guarantees if isinstance(own.loss, RandomizedBit)]


def among_bits(release: Release, crowd: int, mechanism: OneBit) -> Release:
    """The same release where each value's bits are in an order of their own, so that only their number tells."""
    t_min = int(mechanism.t_min[0])
    basis = (
        f"bits with probabilities in [{t_min}, 2^32 - {t_min}]/2^32, each value's bits of {crowd} clients in an order "
        "of their own, which a trusted shuffler draws: amplification computed numerically"
    )
    mixed = [Guarantee(shuffled(crowd), own.adjacency, bits, basis) for own, bits in bits_of(release)]
    return replace(release, guarantees=(*release.guarantees, *mixed), claimed=mechanism.shuffled_claim(crowd))


# --- the channel ------------------------------------------------------------------------------------------------------


class Shuffled(Channel):
    """One step, `report`: the plan out; the reports back without names, mixed within each class of clients.

    `class_of [N]` are the clients' classes, `crowds` how many reports of each class there must be: fewer hide less than
    was promised, and are withheld. `values` bits make a report.
    """

    def __init__(
        self,
        class_of: Sequence[int] | NDArray[np.intp],
        values: int,
        crowds: Sequence[int],
        granularity: Granularity,
        *,
        delays: Delays | None = None,
        randomness: np.random.Generator | None = None,
    ) -> None:
        if granularity not in ("parameter", "model"):
            raise InvalidInput(f"unknown granularity {granularity!r}; allowed: parameter, model")
        self._class_of, self._values, self._crowds = np.asarray(class_of, np.intp), values, tuple(crowds)
        self._granularity, self._delays = granularity, delays
        self._randomness = randomness or np.random.default_rng()  # from the operating system
        self.withheld = 0  #: reports of the last round whose class was too small

    @classmethod
    def of(cls, recipe: Recipe, method: Method, granularity: Granularity, delays: Delays | None = None) -> Shuffled:
        """The shuffler of a recipe, for the bits that its method sends."""
        upload = first_tally(method).upload
        crowds = recipe.method.channel.crowds(recipe.method.selection, upload)
        return cls(upload.class_of, upload.values, crowds, granularity, delays=delays)

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The reports on this plan, once all have arrived.

        Behind the shuffler a number tells a report's class and nothing else: numbers are handed out in rising order to
        reports in random order.
        """
        held: dict[int, dict[int, bytes]] = {}
        for client, body in exchange("report", dict.fromkeys(clients, plan)):
            held.setdefault(int(self._class_of[client]), {})[client] = body
        self.withheld = 0
        if self._delays is not None and clients:
            self.timing = self._delays.round(clients, self._values, Plan.decode(plan).round)
        for number, reports in sorted(held.items()):
            yield from self._passed_on(reports, self._crowds[number])

    def _passed_on(self, reports: dict[int, bytes], crowd: int) -> Iterator[tuple[int, bytes]]:
        """Mixed reports; what is not made of bits is handed on as it is, for the coordinator to refuse."""
        good = sorted(client for client, body in reports.items() if self._is_bits(body))
        yield from ((client, body) for client, body in reports.items() if client not in set(good))
        if len(good) < crowd:
            self.withheld += len(good)
            return
        bodies = np.frombuffer(b"".join(reports[client] for client in good), np.uint8).reshape(len(good), -1)
        mix = mixed_models if self._granularity == "model" else mixed_parameters
        for client, row in zip(good, mix(bodies, self._randomness), strict=True):
            yield client, row.tobytes()

    def _is_bits(self, body: bytes) -> bool:
        padding = -self._values % 8
        return len(body) == -(-self._values // 8) and body[-1] >> (8 - padding) == 0


def mixed_models(reports: Bytes, randomness: np.random.Generator) -> Bytes:
    """Rows `[n, bytes]` in random order."""
    return randomness.permutation(reports, axis=0)


def mixed_parameters(reports: Bytes, randomness: np.random.Generator) -> Bytes:
    """Rows `[n, bytes]` of packed bits, every column of bits in a random order of its own.

    Bits are told apart by nothing but their value, so an order of n bits with k ones is a choice of k places. They are
    dealt row by row: with m rows to go and k ones left, the next is a one with probability k/m. That is faster than
    permuting n places for each of a million parameters, and as random, to n * 2^-32.
    """
    dealt = np.empty_like(reports)
    for first in range(0, reports.shape[1], PIECE):
        piece = slice(first, first + PIECE)
        bits = np.unpackbits(reports[:, piece], axis=1, bitorder="little")
        left = bits.sum(axis=0, dtype=np.uint64)
        for row in range(len(bits)):
            words = randomness.integers(2**32, size=left.size, dtype=np.uint32).astype(np.uint64)
            words *= np.uint64(len(bits) - row)
            words >>= np.uint64(32)
            bits[row] = words < left
            left -= bits[row]
        dealt[:, piece] = np.packbits(bits, axis=1, bitorder="little")
    return dealt


# --- the delays of Algorithm 3 ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """How long one round takes, in seconds."""

    slowest: float  #: T_S = max_i (t_LC^i + t_C^i): until the last report is there, without any delay
    finished: float  #: until the last parameter is there, everybody waiting for the slowest before its delays
    unpadded: float  #: the same where nobody waits
    exposed: float  #: share of parameters that then come at a time at which a single client only can have sent them


class Delays:
    """The clients' delays: each parameter is sent after T_W^i + U(0, T), with T_W^i = T_S - t_LC^i - t_C^i.

    T is the median of the clients' proposals, so that no single one of them decides it. It is a simulation beside the
    run and hides nothing: its draws follow from a seed.
    """

    def __init__(self, proposals: ArrayLike, computing: ArrayLike, communication: ArrayLike, *, seed: int = 0) -> None:
        proposed, t_lc, t_c = (_seconds(x) for x in (proposals, computing, communication))
        self.latency = float(median(proposed.tolist()))  #: T
        self.responses: Float64s = t_lc + t_c  #: how long each client takes, without any delay
        self._seed = seed

    @classmethod
    def of(cls, given: Delay, clients: int, seed: int) -> Delays:
        """Those of a recipe, resolved to one number per client."""
        parts = (given.latency, given.computing, given.communication)
        return cls(*(resolved(part, clients, seed, _STREAM + k) for k, part in enumerate(parts)), seed=seed)

    def round(self, clients: Sequence[int], values: int, number: int) -> Timing:
        """The round of this number, of these clients with so many parameters each.

        The last of d draws from U(0, T) is T * U^(1/d): there is no need to draw them all.
        """
        responses = self.responses[np.asarray(clients, np.intp)]
        slowest = float(responses.max())
        last = self.latency * np.random.default_rng([self._seed, number]).random(len(responses)) ** (1 / values)
        return Timing(
            slowest,
            finished=slowest + float(last.max()),
            unpadded=float((responses + last).max()),
            exposed=exposed_share(responses, self.latency),
        )


_STREAM = 0x110  # of the split's streams, beside those of epsilons and limits


def _seconds(given: ArrayLike) -> Float64s:
    array = np.atleast_1d(np.asarray(given, np.float64))
    if array.ndim != 1 or array.size == 0 or not (np.isfinite(array).all() and (array >= 0).all()):
        raise InvalidInput(f"delays are seconds >= 0, one number for each client, got {given!r}")
    return array


def exposed_share(responses: ArrayLike, latency: float) -> float:
    """Share of parameters that reveal their sender by their time, where client i sends evenly over [t_i, t_i + T].

    That is the total length of time that lies in a single one of the n windows, over the length n T of all of them.
    """
    starts = np.sort(_seconds(responses))
    if latency == 0:
        return float(np.mean([np.count_nonzero(starts == t) == 1 for t in starts]))
    edges = np.concatenate([starts, starts + latency])
    steps = np.concatenate([np.ones_like(starts), -np.ones_like(starts)])
    order = np.argsort(edges, kind="stable")
    open_windows = np.cumsum(steps[order])[:-1]
    alone = np.diff(edges[order])[open_windows == 1].sum()
    return min(1.0, float(alone / (starts.size * latency)))
