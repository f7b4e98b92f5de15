"""How a client randomises a record, once: what comes out, what it tells, and how a network learns from it.

* `BitRecords`: LDPFL's own. Features in fixed point (Eq. 10), all bits of a record joined, each randomised; labels as
  they are. Kept bit by bit, eight to a byte.
* `JointRecords`: features and label as one direction, through PrivUnitG: epsilon for the whole record, claimed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning.cohort import ClientData
from sordino.learning.models import Loss, cross_entropy
from sordino.mechanisms import BitRandomizer, BitString, FixedPoint, PrivUnitG, Sphere
from sordino.mechanisms.output import BitOutput
from sordino.mechanisms.record_tables import RecordMechanismSpec
from sordino.methods.interface import ClientState, Seen
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Derived,
    Guarantee,
    Infinite,
    ParallelByRecord,
    Pure,
    Release,
    Sequential,
)
from sordino.randomness import BLOCK_WORDS, STREAM_WORDS, Randomness, Rows, Words
from sordino.report.words import upper

if TYPE_CHECKING:
    from sordino.methods.chamikara_ldpfl import Ldpfl

Features = NDArray[np.float32]
Labels = NDArray[np.int64]
Fits = NDArray[np.float64]
Randomizer = BitRandomizer | PrivUnitG | None  #: of a record; None leaves it as it is

RECORDS, LABELS = "records", "labels"  #: under which a client keeps them
NEVER = 1e-12  #: in the place of a probability of 0, of which there is no logarithm
TRAINING, EXAMINED = 0, 1  #: the tensor numbers of a client's records and of its test examples
_TENSORS = 2  #: how many there are
AT_ONCE = 512  #: records randomised at a time, or fewer:
VALUES_AT_ONCE = 2**23  #: bits or numbers of them, each of which takes a random word and more


@dataclass(frozen=True)
class RecordStreams:
    """One client's randomness with a row for each of its records: record i has its own piece of the client's streams.

    The streams of a tensor go on under other numbers: how many records there are is private, and must break nothing.
    """

    randomness: Randomness  #: of one row
    positions: NDArray[np.int64]
    words_each: int  #: the most that a record draws

    @property
    def clients(self) -> int:
        return len(self.positions)

    def words(self, rows: Rows, purpose: int, tensor: int, first: int, count: int) -> Words:
        stride = -(-self.words_each // BLOCK_WORDS) * BLOCK_WORDS
        if first + count > stride:
            raise InvalidInput(f"a record has {self.words_each} random words, so there is no word {first + count - 1}")
        mine = np.zeros(1, np.intp)
        own, each = self.positions[rows], STREAM_WORDS // stride
        if first == 0 and count == stride and (np.diff(own) == 1).all() and own[0] // each == own[-1] // each:
            words = self.randomness.words(  # side by side in the stream
                mine, purpose, _tensor(tensor, own[0] // each), int(own[0] % each) * stride, len(own) * stride
            )
            return words.reshape(len(own), stride)
        found = [
            self.randomness.words(mine, purpose, _tensor(tensor, p // each), int(p % each) * stride + first, count)[0]
            for p in own
        ]
        return np.stack(found)


def _tensor(tensor: int, stream: int) -> int:
    """The number of a tensor's stream 0, 1, ..."""
    return tensor + _TENSORS * int(stream)


def at_once(values: int) -> int:
    """How many records of so many values are randomised at a time: what is drawn for each does not depend on it."""
    return max(1, min(AT_ONCE, VALUES_AT_ONCE // values))


class RandomisedRecords(ABC):
    """What becomes of features `[n, r]` and labels `[n]`.

    `strengths` are the clients' epsilons, `shape` is that of a record as the federated model sees it.
    """

    def __init__(self, strengths: Sequence[float | None], shape: tuple[int, ...]) -> None:
        self.strengths, self.shape = tuple(strengths), shape
        self._mechanisms: dict[float | None, Randomizer] = {}

    def check(self, clients: Sequence[int]) -> None:
        """Refuse now what the strengths of these clients do not allow."""
        for client in clients:
            self._mechanism(client)

    def _mechanism(self, client: int) -> Randomizer:
        """What randomises a client's records, built when it is first needed."""
        epsilon = self.strengths[client]
        if epsilon not in self._mechanisms:
            self._mechanisms[epsilon] = self._build(epsilon)
        return self._mechanisms[epsilon]

    @abstractmethod
    def _build(self, epsilon: float | None) -> Randomizer:
        """Build the randomiser of this strength."""

    @abstractmethod
    def randomise(self, features: Features, labels: Labels, client: int, randomness: Randomness) -> ClientState:
        """What a client keeps of its records."""

    @abstractmethod
    def examined(self, features: Features, positions: NDArray[np.int64], client: int, randomness: Randomness) -> Seen:
        """Examples as the model is asked about them: an array that `graded` takes."""

    @abstractmethod
    def data(self, kept: ClientState, device: torch.device) -> ClientData:
        """What the network trains on."""

    @abstractmethod
    def fits(self, kept: ClientState, features: Features, labels: Labels, client: int) -> Fits:
        """`[K, M]`: how well each of the K records that a client keeps fits each of M records, the likeliest most.

        It is what somebody compares who has `kept` and wonders which record it was made of.
        """

    @abstractmethod
    def learner(self, network: nn.Module) -> tuple[nn.Module, Loss]:
        """The network in a form that trains on `data`, its parameters in the same order; and its loss."""

    @abstractmethod
    def graded(self, network: nn.Module) -> nn.Module:
        """The network in a form that takes what `examined` gives."""

    @abstractmethod
    def releases(self, name: str, dataset: str, client: int, group: int | None) -> tuple[Release, ...]:
        """What a client tells by all that is ever computed from its randomised records.

        Another record changes the features of `group` of them: of one, or of as many as a client may have where the
        extractor was trained on all of them; None where nothing public bounds how many that is.
        """


def derived(name: str, dataset: str, what: str, sources: Sequence[Release]) -> Release:
    """Computed from what was released before, and nothing else."""
    return Release(f"{name}/{what}", dataset, what, (), None, Derived(tuple(release.id for release in sources)))


# --- bits -------------------------------------------------------------------------------------------------------------

FEATURES = "randomised features"
CLEAR_LABELS = "labels"


class Unpacked(nn.Module):
    """A network over bits that takes them eight to a byte, least significant first."""

    def __init__(self, network: nn.Module, bits: int) -> None:
        super().__init__()
        self.network, self._bits = network, bits
        self.places: Tensor
        self.register_buffer("places", torch.arange(8, dtype=torch.uint8), persistent=False)

    def forward(self, packed: Tensor) -> Tensor:
        spread = (packed.unsqueeze(-1) >> self.places) & 1
        scores: Tensor = self.network(spread.flatten(-2)[..., : self._bits].float())
        return scores


class BitRecords(RandomisedRecords):
    """The bits of a record's features, each randomised once; the label stays as it is (section 3.2)."""

    def __init__(
        self, spec: RecordMechanismSpec, code: FixedPoint, features: int, strengths: Sequence[float | None], test: str
    ) -> None:
        self._code, self._bits, self._test, self._spec = code, features * code.bits, test, spec
        super().__init__(strengths, (self._bits,))

    def _build(self, epsilon: float | None) -> BitRandomizer | None:
        built: BitRandomizer | None = self._spec.randomizer(epsilon, BitString(self._bits))
        return built

    def randomise(self, features: Features, labels: Labels, client: int, randomness: Randomness) -> ClientState:
        return {RECORDS: self._packed(features, np.arange(len(features)), client, randomness, TRAINING), LABELS: labels}

    def examined(self, features: Features, positions: NDArray[np.int64], client: int, randomness: Randomness) -> Seen:
        if self._test == "plain":
            return BitOutput.pack(self._code.encode(features).astype(np.bool_)).packed
        return self._packed(features, positions, client, randomness, EXAMINED)

    def _packed(
        self, features: Features, positions: NDArray[np.int64], client: int, randomness: Randomness, tensor: int
    ) -> NDArray[np.uint8]:
        """The randomised bits of records, packed: `[n, ceil(r l / 8)]` bytes."""
        mechanism, packed = self._mechanism(client), []
        step = at_once(self._bits)
        for first in range(0, len(features), step):
            bits = self._code.encode(features[first : first + step])
            if mechanism is None:
                packed.append(BitOutput.pack(bits.astype(np.bool_)).packed)
                continue
            streams = RecordStreams(randomness, positions[first : first + step], self._bits)
            output = mechanism.randomize(bits, streams, tensor=tensor).output
            assert isinstance(output, BitOutput)
            packed.append(output.packed)
        return np.concatenate(packed)

    def data(self, kept: ClientState, device: torch.device) -> ClientData:
        return ClientData(*(torch.from_numpy(np.asarray(kept[name])).to(device) for name in (RECORDS, LABELS)))

    def fits(self, kept: ClientState, features: Features, labels: Labels, client: int) -> Fits:
        """Log-likelihoods, less what is the same for all; labels are not randomised."""
        mechanism, seen = self._mechanism(client), BitOutput(np.asarray(kept[RECORDS]), self._bits).bits()
        assert mechanism is None or isinstance(mechanism, BitRandomizer)
        bits = self._code.encode(features).astype(np.bool_)
        one = bits.astype(np.float64) if mechanism is None else mechanism.one_probability(bits)
        one = one.clip(NEVER, 1 - NEVER)
        found = seen @ np.log(one / (1 - one)).T + np.log1p(-one).sum(axis=1)
        return np.where(np.asarray(kept[LABELS])[:, None] == labels, found, -np.inf)

    def learner(self, network: nn.Module) -> tuple[nn.Module, Loss]:
        return Unpacked(network, self._bits), cross_entropy

    def graded(self, network: nn.Module) -> nn.Module:
        return Unpacked(network, self._bits)

    def releases(self, name: str, dataset: str, client: int, group: int | None) -> tuple[Release, ...]:
        mechanism, claim = self._mechanism(client), None
        features = Guarantee(SERVER, Adjacency.RECORD_REPLACE, Infinite("features are not randomised"), "none")
        if mechanism is not None:
            claim = mechanism.claim()
            features = for_group(mechanism.guarantee(Adjacency.RECORD_REPLACE), group)
        if claim is not None:  # the paper's figure is for a record and all that is made of it, its label included
            claim = replace(claim, adjacency=Adjacency.RECORD_REPLACE, covers="schedule")
        why, loss = "labels are not randomised: the network is trained on them as they are", features.loss
        alone = f"; of features alone, epsilon is {upper(loss.epsilon)}" if isinstance(loss, Pure) else ""
        labels = (
            Guarantee(SERVER, Adjacency.RECORD_REPLACE, Infinite(why + alone), "none"),
            Guarantee(SERVER, Adjacency.LABEL, Infinite(why), "none"),
        )
        return (
            Release(f"{name}/{FEATURES}", dataset, FEATURES, (features,), claim, composition(group)),
            Release(f"{name}/{CLEAR_LABELS}", dataset, CLEAR_LABELS, labels, claim, ParallelByRecord()),
        )


NO_BOUND = (
    "the extractor was trained on all records, and no public number bounds how many that is: set "
    "method.extractor.most_records, or elsewhere = true for a network that was trained on other records"
)


def for_group(alone: Guarantee, group: int | None) -> Guarantee:
    """What holds for one record, where another one changes so many randomised records: group privacy."""
    if group == 1 or not isinstance(alone.loss, Pure):
        return alone
    each = upper(alone.loss.epsilon)
    if group is None:
        return replace(alone, loss=Infinite(f"{NO_BOUND}; a record's features alone lose {each}"), basis="none")
    basis = f"{alone.basis}: {each} a record, times {group:,} records, as the extractor was trained on all of them"
    return replace(alone, loss=Pure(alone.loss.epsilon * group), basis=basis)


def composition(group: int | None) -> ParallelByRecord | Sequential:
    """Each record is touched once, unless all of them changed the extractor."""
    return ParallelByRecord() if group == 1 else Sequential()


# --- features and label together --------------------------------------------------------------------------------------

JOINT = "randomised records"


class Matching(nn.Module):
    """<W, z> of randomised records z `[n, classes * r]`; W is laid out as a dense layer `[classes, r]` with its shifts.

    With the loss -<W, z> + |W|^2/2, whose last part is the optimiser's weight decay, W becomes the mean of the z.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, z: Tensor) -> Tensor:
        weight, shift = self.network.parameters()
        return (z * weight.flatten()).sum(-1, keepdim=True) + 0 * shift.sum()


def matched(scores: Tensor, labels: Tensor) -> Tensor:
    """The loss -<W, z>, the mean over records."""
    return -scores.mean()


class JointRecords(RandomisedRecords):
    """x (e_y - 1/C) for the unit vector x of features and the label y: what logistic regression would learn first.

    It is minus the gradient of a linear softmax classifier at zero, and its mean over records tells classes apart. As
    one vector of fixed length it goes through PrivUnitG: epsilon is for the record, features and label together.
    """

    def __init__(self, features: int, classes: int, strengths: Sequence[float | None]) -> None:
        super().__init__(strengths, (features,))
        self._classes = classes

    def _build(self, epsilon: float | None) -> PrivUnitG:
        assert epsilon is not None
        return PrivUnitG(epsilon, Sphere(math.sqrt(1 - 1 / self._classes)))

    def directions(self, features: Features, labels: Labels) -> Features:
        """`[n, classes * r]`, each of length sqrt(1 - 1/classes)."""
        x = unit(features)
        hot = np.eye(self._classes, dtype=np.float32)[labels] - np.float32(1 / self._classes)
        return (hot[:, :, None] * x[:, None, :]).reshape(len(x), -1)

    def randomise(self, features: Features, labels: Labels, client: int, randomness: Randomness) -> ClientState:
        mechanism, made = self._mechanism(client), []
        assert isinstance(mechanism, PrivUnitG)
        values = self._classes * self.shape[0]
        step = at_once(values)
        for first in range(0, len(features), step):
            rows = slice(first, first + step)
            z = self.directions(features[rows], labels[rows])
            streams = RecordStreams(randomness, np.arange(first, first + len(z)), 2 * (values + 2))
            made.append(mechanism.estimate(mechanism.randomize(z, streams, tensor=TRAINING).output))
        return {RECORDS: np.concatenate(made)}

    def examined(self, features: Features, positions: NDArray[np.int64], client: int, randomness: Randomness) -> Seen:
        return unit(features)

    def data(self, kept: ClientState, device: torch.device) -> ClientData:
        x = torch.from_numpy(np.asarray(kept[RECORDS])).to(device)
        return ClientData(x, torch.zeros(len(x), dtype=torch.int64, device=device))

    def fits(self, kept: ClientState, features: Features, labels: Labels, client: int) -> Fits:
        """Inner products: the nearer the direction, the likelier."""
        return np.asarray(kept[RECORDS], np.float64) @ self.directions(features, labels).T.astype(np.float64)

    def learner(self, network: nn.Module) -> tuple[nn.Module, Loss]:
        return Matching(network), matched

    def graded(self, network: nn.Module) -> nn.Module:
        return network

    def releases(self, name: str, dataset: str, client: int, group: int | None) -> tuple[Release, ...]:
        mechanism = self._mechanism(client)
        assert mechanism is not None
        claim = mechanism.claim()
        if claim is not None and group is not None:
            # for a record and all that is made of it; where the extractor was trained on all of them, by group privacy
            claim = replace(claim, epsilon=group * claim.epsilon, adjacency=Adjacency.RECORD_REPLACE, covers="schedule")
        elif group is None:
            claim = None
        whole = for_group(mechanism.guarantee(Adjacency.RECORD_REPLACE), group)
        return (Release(f"{name}/{JOINT}", dataset, JOINT, (whole,), claim, composition(group)),)


def unit(features: Features) -> Features:
    """Rows of length 1; a row of zeros stays."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.maximum(norms, np.finfo(np.float32).tiny), np.float32)


def build(given: Ldpfl.Spec, features: int, classes: int, strengths: Sequence[float | None]) -> RandomisedRecords:
    """How records are randomised, as a recipe's method describes it."""
    if given.mechanism.joint:
        return JointRecords(features, classes, strengths)
    code = FixedPoint(given.encoding.whole, given.encoding.fraction, given.encoding.order, given.encoding.reading)
    return BitRecords(given.mechanism, code, features, strengths, given.examined)


__all__ = [
    "BitRecords", "JointRecords", "RandomisedRecords", "RecordStreams", "Unpacked", "at_once", "build", "derived",
    "unit",
]  # fmt: skip
