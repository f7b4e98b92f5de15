"""Planted faults: programs that were broken on purpose, which the checks must catch.

A fault leaves what is promised as it is (the law, the guarantee) and breaks what is drawn. Each is a subject like any
other: the checks do not know that it is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special
from torch import Tensor, zeros_like

from sordino.audits import channels, evaluation, one_record, training
from sordino.audits.inspection import Inspected, Subject, inspect_one, level
from sordino.audits.mechanisms import Streams, fresh_keys, simulation, subject
from sordino.audits.statistics import Check
from sordino.channels import secagg
from sordino.channels.secagg import SumClient
from sordino.channels.shuffle import Shuffled
from sordino.errors import BudgetExceeded
from sordino.learning import draws, own_data, private_sgd, tasks
from sordino.learning.alone import ALIGNMENT, Alone
from sordino.learning.linear_head import LinearHead
from sordino.mechanisms import (
    BitRandomizer,
    BitString,
    Box,
    FiniteSet,
    Gaussian,
    L2Ball,
    Laplace,
    Mechanism,
    RandomizedLabel,
    TwoPoint,
)
from sordino.mechanisms.additive import NoiseGrid
from sordino.mechanisms.arrays import Float64s, Floats, Int64s
from sordino.mechanisms.cases import DEEP, DELTA, WIDE, Specimen
from sordino.mechanisms.interface import Randomized
from sordino.mechanisms.laws import Atoms, Whole
from sordino.mechanisms.output import BitOutput, IntegerOutput, Output, RealOutput
from sordino.privacy import accountant
from sordino.privacy.accountant import Account
from sordino.privacy.guarantee import Budget, Release
from sordino.privacy.ledger import Ledger, ReportKey
from sordino.randomness import Keystream, Randomness, Rows, Words

SMALL, MIDDLE = (800, 257), (3_000, 257)  #: draws and values that are enough for larger faults
TRAINED_ROUNDS, SHARED_ROWS = 2, 400  #: of broken training
CUT_OFF = 3 * 2**17  #: grid steps: three eighths of what one record may move a sum by
TOO_LARGE = 1e5  #: values at which a broken training fails

Change = Callable[[Int64s], Int64s]  #: noise `[n, d]` -> what is added in its place
Columns = int | slice | list[int]
Function = Callable[..., Any]
Break = Callable[[Any], Any]  #: the honest function or number -> what takes its place


@dataclass(frozen=True, eq=False)
class Fault:
    """A fault by name, what it breaks, and the broken program."""

    name: str
    breaks: str
    build: Callable[[], Sequence[Subject]]


@dataclass(frozen=True)
class Caught:
    """Whether the checks saw a fault, and which of them."""

    fault: str
    breaks: str
    looks: tuple[Check, ...]  #: checks that failed, the clearest first

    @property
    def caught(self) -> bool:
        """Whether any check failed."""
        return bool(self.looks)

    def to_json(self) -> dict[str, object]:
        """Ready for `json.dumps`."""
        return {**asdict(self), "caught": self.caught}


def attempt(fault: Fault, seed: int = 1) -> Caught:
    """Check a broken program with one seed."""
    found: list[Inspected] = [inspect_one(one, seed, level(0)) for one in fault.build()]
    failed = sorted((look for one in found for look in one.failed), key=lambda look: look.p)
    return Caught(fault.name, fault.breaks, tuple(failed))


# --- broken mechanisms ------------------------------------------------------------------------------------------------


class Broken:
    """A mechanism with its outputs or its encoding changed."""

    def __init__(
        self,
        inner: Mechanism,
        output: Callable[[Output], Output] | None = None,
        encode: Callable[[Output], list[bytes]] | None = None,
    ) -> None:
        self._inner, self._output, self._encode = inner, output, encode

    def randomize(self, values: ArrayLike, randomness: Randomness) -> Randomized:
        drawn = self._inner.randomize(values, randomness)
        return drawn if self._output is None else Randomized(self._output(drawn.output), drawn.local)

    def encode(self, output: Output) -> list[bytes]:
        return self._inner.encode(output) if self._encode is None else self._encode(output)

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        return self._inner.decode(reports, values)


GAUSSIAN = partial(Gaussian.analytic, 1.0, DELTA, Box())


def _noise(change: Change, shape: tuple[int, int] = SMALL, honest: Mechanism | None = None) -> list[Subject]:
    """Noise on a grid, changed before it is added."""
    mechanism = honest or GAUSSIAN()
    law = mechanism.law(mechanism.domain.probe(shape[1]))
    assert isinstance(law, Whole)

    def changed(output: Output) -> Output:
        assert isinstance(output, IntegerOutput)
        noise = output.array.astype(np.int64) - law.centre
        array = np.clip(law.centre + change(noise), output.low[0], output.high[0])
        return IntegerOutput(array.astype(output.array.dtype), output.low, output.high)

    return [subject(Specimen(mechanism.name, mechanism, shape), Broken(mechanism, changed))]


def _rng(noise: Int64s) -> np.random.Generator:
    """A fault's own dice, which differ from seed to seed."""
    return np.random.default_rng(int(abs(noise[0]).sum()))


def _whole(noise: Floats, rng: np.random.Generator) -> Int64s:
    """Rounded up or down by chance: it leaves no lattice behind."""
    return np.asarray(np.floor(noise + rng.random(noise.shape)), np.int64)


def _scaled(factor: float) -> Change:
    return lambda noise: _whole(noise * factor, _rng(noise))


def _bare(columns: Columns) -> Change:
    def change(noise: Int64s) -> Int64s:
        noise[:, columns] = 0
        return noise

    return change


def _one_weaker(noise: Int64s) -> Int64s:
    noise[:, 100] = _whole(0.9 * noise[:, 100], _rng(noise))
    return noise


def _some_bare(noise: Int64s) -> Int64s:
    """One value in a hundred, anywhere."""
    return np.asarray(np.where(_rng(noise).random(noise.shape) < 0.01, 0, noise))


def _cut(noise: Int64s) -> Int64s:
    most = int(3 * noise.std())
    return np.clip(noise, -most, most)


def _biased(noise: Int64s) -> Int64s:
    """One negative value in fifty loses its sign."""
    flip = (noise < 0) & (np.arange(noise.size).reshape(noise.shape) % 50 == 0)
    return np.asarray(np.where(flip, -noise, noise))


def _shared_part(noise: Int64s) -> Int64s:
    """Every value has a tenth of the first one's noise in it, and so much less of its own."""
    return _whole(np.sqrt(0.99) * noise + 0.1 * noise[:, :1], _rng(noise))


def _multiples(noise: Int64s) -> Int64s:
    return np.asarray(np.rint(noise / 8), np.int64) * 8


def _bits(change: Callable[[NDArray[np.uint8]], NDArray[np.uint8]], shape: tuple[int, int] = SMALL) -> list[Subject]:
    mechanism = TwoPoint(1.0, Box())

    def changed(output: Output) -> Output:
        assert isinstance(output, BitOutput)
        return BitOutput.pack(change(output.bits()).astype(np.bool_))

    return [subject(Specimen(mechanism.name, mechanism, shape), Broken(mechanism, changed))]


def _bare_bits(columns: Columns, shape: tuple[int, int]) -> list[Subject]:
    mechanism = TwoPoint(1.0, Box())
    law = mechanism.law(mechanism.domain.probe(shape[1]))
    assert isinstance(law, Atoms)

    def change(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        bits[:, columns] = (law.probabilities[1] >= 0.5)[columns]
        return bits

    return _bits(change, shape)


def _followed(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """One bit in 56 is that of the value before which has the same input."""
    places = np.arange(7, bits.shape[1], 56)
    bits[:, places] = bits[:, places - 7]
    return bits


def _off_threshold() -> list[Subject]:
    exact = TwoPoint(1.0, Box())
    loose = TwoPoint(accountant.bit_epsilon(int(exact.t_min[0] * 0.98)), Box())
    return [subject(Specimen("two-point", exact), loose)]


def _wrong_adjacency() -> list[Subject]:
    """Noise for add/remove where a record may be replaced: half of the noise that replacing needs."""
    sound = Gaussian.analytic(1.0, DELTA, L2Ball(1.0), values=SMALL[1])
    short = Gaussian(sound.sigma / 2, L2Ball(1.0))
    return [subject(Specimen("gaussian", short, SMALL, sound.guarantee(values=SMALL[1]), DELTA))]


class Unclipped(Laplace):
    """Values are scaled to steps as they are, up to what an output holds."""

    def _to_steps(
        self, w: Floats, cols: slice, grid: NoiseGrid, scale: Float64s
    ) -> tuple[NDArray[np.signedinteger], NDArray[np.intp]]:
        limit = grid.limit - grid.steps
        v = np.rint(w.astype(np.float64) / self.domain.radius * grid.steps)
        return np.clip(v, -limit, limit).astype(np.int32), np.zeros(len(w), np.intp)


def _missing_clip() -> list[Subject]:
    return [subject(Specimen("laplace", Laplace(1.0, Box()), SMALL), Unclipped(1.0, Box()))]


def _kept_labels() -> list[Subject]:
    mechanism = RandomizedLabel(1.0, FiniteSet(10))
    labels = mechanism.domain.probe(DEEP[1])

    def changed(output: Output) -> Output:
        assert isinstance(output, IntegerOutput)
        array = np.broadcast_to(labels, output.array.shape).astype(output.array.dtype)
        return IntegerOutput(array, output.low, output.high)

    return [subject(Specimen("label", mechanism, SMALL), Broken(mechanism, changed))]


def _even_only() -> list[Subject]:
    """The paper's odd positions drawn with the thresholds of the even ones."""
    sound = BitRandomizer.theorem2(0.5, BitString(DEEP[1]))
    wrong = BitRandomizer(sound.ones[:1], sound.zeros[:1], BitString(DEEP[1]))
    return [subject(Specimen("bits", sound, SMALL), wrong)]


class FloatNoise(Broken):
    """float32 noise times a constant, as float32: what zeros come out as lies on a lattice that others leave."""

    def encode(self, output: Output) -> list[bytes]:
        assert isinstance(output, IntegerOutput)
        factor = np.float32(1.37)
        real = (output.array / np.float32(3)).astype(np.float32) * factor
        return [row.tobytes() for row in real.astype("<f4")]

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        array = np.frombuffer(b"".join(reports), "<f4").reshape(len(reports), values)
        return RealOutput(array, np.full(len(reports), np.inf))


def _float_lattice() -> list[Subject]:
    mechanism = GAUSSIAN()
    return [subject(Specimen("gaussian", mechanism, (500, DEEP[1])), FloatNoise(mechanism))]


def _sparse() -> list[Subject]:
    """Reports without the values that came out as zero: their length tells."""
    mechanism = TwoPoint(1.0, Box())

    def short(output: Output) -> list[bytes]:
        return [report.rstrip(b"\0") for report in mechanism.encode(output)]

    return [subject(Specimen("two-point", mechanism, (2_000, 33)), Broken(mechanism, encode=short))]


# --- broken randomness ------------------------------------------------------------------------------------------------


class CrossedStreams:
    """Randomness in which rows read the words of other rows."""

    def __init__(self, inner: Randomness, of: Callable[[Rows], Rows]) -> None:
        self._inner, self._of = inner, of

    @property
    def clients(self) -> int:
        return self._inner.clients

    def words(self, rows: Rows, purpose: int, tensor: int, first: int, count: int) -> Words:
        found: Words = np.concatenate(
            [self._inner.words(np.array([row]), purpose, tensor, first, count) for row in self._of(rows)]
        )
        return found


def _streams(streams: Streams, shape: tuple[int, int] = (600, 257)) -> list[Subject]:
    return [subject(Specimen("gaussian", GAUSSIAN(), shape), streams=streams)]


def _one_key(seed: int, clients: Int64s, round: int) -> Randomness:
    """Client 8 has the key of client 7."""
    return CrossedStreams(simulation(seed, clients, round), lambda rows: np.where(rows == 8, 7, rows))


def _one_round(seed: int, clients: Int64s, round: int) -> Randomness:
    return simulation(seed, clients, 0)


def _seeded(seed: int, clients: Int64s, round: int) -> Randomness:
    """Clients who draw from a seed and their number, in every process anew."""
    return Keystream.simulation(0, clients, 0)


def _same_words(seed: int, clients: Int64s, round: int) -> Randomness:
    """Each value has the words of the value eight places before."""
    inner = simulation(seed, clients, round)

    class Repeated:
        clients = inner.clients

        def words(self, rows: Rows, purpose: int, tensor: int, first: int, count: int) -> Words:
            words = inner.words(rows, purpose, tensor, first, count).copy()
            half = count // 12 * 6
            words[:, half : 2 * half] = words[:, :half]
            return words

    return Repeated()


# --- broken training --------------------------------------------------------------------------------------------------


def _while_broken(found: Sequence[Subject], where: object, name: str, broken: Break) -> list[Subject]:
    """The same subjects; while they are drawn and enumerated, `broken` takes the place of the honest function."""
    inside = patch.object(where, name, broken(getattr(where, name)))
    return [replace(one, draw=inside(one.draw), enumerated=tuple(map(inside, one.enumerated))) for one in found]


def _dp_sgd(where: object, name: str, broken: Break) -> list[Subject]:
    return _while_broken(training.dp_sgd(TRAINED_ROUNDS)[:2], where, name, broken)


def _noise_of_training(change: Change) -> list[Subject]:
    return _dp_sgd(private_sgd, "integer_noise", lambda honest: lambda *given: change(honest(*given)))


def _one_noise() -> list[Subject]:
    return _dp_sgd(private_sgd, "integer_noise", lambda honest: lambda t, rows, own, _, d: honest(t, rows, own, 0, d))


def _sampled(faster: float, step: int | None = None) -> list[Subject]:
    """Samples at another rate, or those of one step for all."""

    def broken(honest: Function) -> Function:
        return lambda own, row, at, n, rate: honest(own, row, at if step is None else step, n, faster * rate)

    return _dp_sgd(draws, "poisson_samples", broken)


def _summed(change: Callable[[Tensor], Tensor]) -> list[Subject]:
    """Sums of clipped gradients, changed before noise is added."""
    broken = lambda honest: lambda *given: replace(found := honest(*given), sums=change(found.sums))  # noqa: E731
    return _dp_sgd(LinearHead, "sums", broken)


def _cut_off(sums: Tensor) -> Tensor:
    """The sum, or all of it as 0 where one value is large."""
    return sums if bool((sums.abs() <= CUT_OFF).all()) else zeros_like(sums)


def _silenced() -> list[Subject]:
    """A record that cannot be computed ends the sum: noise alone is left of it."""

    def broken(honest: Function) -> Function:
        def sums(*given: Any) -> Any:
            found, records, samples = honest(*given), given[3], given[4]
            for k, (sample, start) in enumerate(zip(samples, records.starts, strict=True)):
                if bool((records.x[sample + start].abs() > TOO_LARGE).any()):
                    found.sums[k] = 0
            return found

        return sums

    return _dp_sgd(private_sgd, "sampled_sums", broken)


def _small_shares() -> list[Subject]:
    """Every silo adds 1/h of the noise where 1/sqrt(h) is due."""
    less = _scaled(1 / np.sqrt(training.SHARES))
    subjects = training.dp_sgd(1, SHARED_ROWS)[2:]
    return _while_broken(subjects, private_sgd, "integer_noise", lambda honest: lambda *given: less(honest(*given)))


# --- records that are not alone ---------------------------------------------------------------------------------------


def by_address() -> list[Subject]:
    """Private evaluation with a library that takes another path for a record at another address modulo 64."""

    def broken(honest: Function) -> Function:
        def answers(*given: object) -> Function:
            answer = honest(*given)
            return lambda one: answer(one) + one.data_ptr() % ALIGNMENT * torch.eye(len(evaluation.NAMES))[:1]

        return answers

    return _while_broken(evaluation.private_evaluation(1_000), evaluation, "answers_alone", broken)


def _where_they_lie() -> list[Subject]:
    """The same, records being computed one at a time, but not in arrays of their own."""
    in_place = lambda _: lambda _, function, *tensors: function(*tensors)  # noqa: E731
    return _while_broken(by_address(), Alone, "_of_record", in_place)


# --- broken channels --------------------------------------------------------------------------------------------------


class NoPairs(SumClient):
    """A client that leaves the pairs' masks out."""

    def _masks_on(self, vector: Int64s | None, peers: Sequence[int]) -> secagg.Words:
        return super()._masks_on(vector, ())


class NoSelfMask(SumClient):
    """A client that leaves its self-mask out."""

    def _masks_on(self, vector: Int64s | None, peers: Sequence[int]) -> secagg.Words:
        masked = super()._masks_on(vector, peers)
        secagg._add_mask(masked, secagg._derive(self._self_seed, b"self", self._context), -1)
        return masked


def _sum_in_z(round: int) -> secagg.Session:
    """Silos' reports, each modulo 2^m, are added up in Z: their sum tells how often silos wrapped around."""
    edge = 2 ** (channels.RING - 1)
    clients = channels.SUM_CLIENTS
    return secagg.Session("audit", round, 0, "shared", channels.SUM_VALUES, -edge, edge - 1, clients, clients - 1)


class InOrder(Shuffled):
    """A shuffler that hands reports on as they came."""

    def _passed_on(self, reports: dict[int, bytes], crowd: int) -> Iterator[tuple[int, bytes]]:
        yield from sorted(reports.items())


class OneOrder(Shuffled):
    """A shuffler that mixes every round in the same order."""

    def _passed_on(self, reports: dict[int, bytes], crowd: int) -> Iterator[tuple[int, bytes]]:
        self._randomness = np.random.default_rng(5)
        yield from super()._passed_on(reports, crowd)


# --- a broken ledger --------------------------------------------------------------------------------------------------


def _budget_for_each_name() -> list[Subject]:
    """One row under two names, and what a ledger with an account for each lets leave of it.

    Several Gaussian draws about one row tell what one draw with less noise tells; the guarantee is the budget's.
    """
    sound = Gaussian.analytic(1.0, DELTA, L2Ball(1.0), values=SMALL[1])
    promised = sound.guarantee(values=SMALL[1])
    once = Account.opening(Budget(1.0, DELTA)).after(Release("once", "wards", "sum", (promised,))).spent
    counts = patch("sordino.privacy.ledger._Book.counts", lambda self, dataset, other, sequence: dataset == other)
    left = 0
    with counts, TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger") as ledger:
        for name in ("wards", "beds"):
            ledger.set_budget(name, Budget(1.2 * once, DELTA))
            with suppress(BudgetExceeded):
                ledger.record(ReportKey(name, "audit", 1, "00"), Release(name, name, "sum", (promised,)), b"")
                left += 1
    together = Gaussian(sound.sigma / np.sqrt(left), L2Ball(1.0))
    return [subject(Specimen("gaussian", together, SMALL, promised, DELTA))]


def _likely_label() -> list[Subject]:
    """The column of the class is the last of which every line holds a class."""

    def broken(honest: Function) -> Function:
        def read(path: str, **settings: Any) -> Any:
            header, *lines = (line.split(",") for line in Path(path).read_text(encoding="utf-8").splitlines())
            columns = [[line[k] for line in lines if len(line) == len(header)] for k in range(len(header))]
            likely = [name for name, cells in zip(header, columns, strict=True) if {*cells} <= {*settings["classes"]}]
            return honest(path, **(settings | {"label": (likely or header)[-1]}))

        return read

    return _while_broken(one_record.one_record()[:1], own_data, "from_csv", broken)


def _many_classes() -> list[Subject]:
    """A linear head takes more classes than sums of exponentials are exact for."""
    return _while_broken(one_record.one_record()[1:], tasks, "MOST_CLASSES", lambda honest: 20_000)


def _rounded_curve() -> list[Subject]:
    """delta as a difference of two nearly equal numbers, rounded to nearest."""

    def broken(honest: Function) -> Function:
        return lambda mu, epsilon: (
            0.5
            * np.exp(-(((epsilon / mu - mu / 2) / np.sqrt(2)) ** 2))
            * (
                special.erfcx((epsilon / mu - mu / 2) / np.sqrt(2))
                - special.erfcx((epsilon / mu + mu / 2) / np.sqrt(2))
            )
        )

    return _while_broken(one_record.account(), accountant, "gaussian_delta", broken)


FAULTS: tuple[Fault, ...] = (
    Fault("noise halved", "gaussian", lambda: _noise(_scaled(0.5))),
    Fault("noise x 0.9", "gaussian", lambda: _noise(_scaled(0.9))),
    Fault("one coordinate at 0.9 of its noise", "gaussian", lambda: _noise(_one_weaker, DEEP)),
    Fault("one coordinate in a hundred bare", "gaussian", lambda: _noise(_bare(slice(None, None, 100)))),
    Fault("one bit in a hundred bare", "two-point", lambda: _bare_bits(slice(None, None, 100), SMALL)),
    Fault("first coordinate bare", "gaussian", lambda: _noise(_bare(0))),
    Fault("last of 65,601 coordinates bare", "laplace", lambda: _noise(_bare(-1), WIDE, Laplace(1.0, Box()))),
    Fault("last of 65,601 bits bare", "two-point", lambda: _bare_bits([WIDE[1] - 1], WIDE)),
    Fault("one value in a hundred bare, anywhere", "gaussian", lambda: _noise(_some_bare)),
    Fault("noise cut off at 3 sigma", "gaussian", lambda: _noise(_cut)),
    Fault("signs biased by 1 %", "gaussian", lambda: _noise(_biased, MIDDLE)),
    Fault("a tenth of one noise in all values", "gaussian", lambda: _noise(_shared_part, MIDDLE)),
    Fault("noise on every eighth step", "gaussian", lambda: _noise(_multiples)),
    Fault("float lattice", "gaussian", _float_lattice),
    Fault("zeros left out of reports", "two-point", _sparse),
    Fault("missing clip", "laplace", _missing_clip),
    Fault("wrong adjacency: add/remove for replace", "gaussian", _wrong_adjacency),
    Fault("threshold off by 2 %", "two-point", _off_threshold),
    Fault("some bits equal to those before", "two-point", lambda: _bits(_followed)),
    Fault("odd bits as even ones", "bits", _even_only),
    Fault("label never flipped", "label", _kept_labels),
    Fault("reused key: one noise for two clients", "gaussian", lambda: _streams(_one_key)),
    Fault("reused noise: the same in two rounds", "gaussian", lambda: _streams(_one_round)),
    Fault("half of the values with the other half's words", "gaussian", lambda: _streams(_same_words)),
    Fault("seeded noise in place of fresh keys", "gaussian", lambda: fresh_keys(_seeded)),
    Fault("DP-SGD: noise x 0.9", "training", lambda: _noise_of_training(_scaled(0.9))),
    Fault("DP-SGD: 1 % of coordinates bare", "training", lambda: _noise_of_training(_bare(slice(None, None, 100)))),
    Fault("DP-SGD: one noise for all steps", "training", _one_noise),
    Fault("DP-SGD: sampling rate x 1.5", "training", lambda: _sampled(1.5)),
    Fault("DP-SGD: one sample for all steps", "training", lambda: _sampled(1.0, step=0)),
    Fault("DP-SGD: missing clip", "training", lambda: _summed(lambda sums: 10 * sums)),
    Fault("DP-SGD: sums rounded as floats", "training", lambda: _summed(lambda sums: sums.bfloat16().long())),
    Fault("share of the noise 1/h for 1/sqrt(h)", "training", _small_shares),
    Fault("no pairwise masks", "secure sum", lambda: channels.secure_sum(NoPairs)),
    Fault("self-mask missing", "secure sum", lambda: channels.secure_sum(NoSelfMask)),
    Fault("modulus before the secure sum", "secure sum", lambda: [channels.shared_noise(_sum_in_z)]),
    Fault("shuffler off: order kept", "shuffler", lambda: channels.shuffler(InOrder)),
    Fault("shuffler: one order for all rounds", "shuffler", lambda: channels.shuffler(OneOrder)),
    Fault("DP-SGD: a sum beyond a limit replaced by zeros", "training", lambda: _summed(_cut_off)),
    Fault("DP-SGD: sampling rate x 1.02", "training", lambda: _sampled(1.02)),
    Fault("two names of one row have two budgets", "ledger", _budget_for_each_name),
    Fault("DP-SGD: one record silences a silo", "training", _silenced),
    Fault("records computed where they lie in memory", "private evaluation", _where_they_lie),
    Fault("one line decides the column of the class", "tables", _likely_label),
    Fault("more classes than sums are exact for", "linear head", _many_classes),
    Fault("the Gaussian curve rounded to nearest", "account", _rounded_curve),
)
