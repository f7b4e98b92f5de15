"""How one client's d values leave it: the noise that this adds, what is left of an update, what it releases and weighs.

The noise comes from the mechanisms' exact variances at the centre of their domains.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, IntegerRange, L1Ball, L2Ball, Mechanism, Sphere
from sordino.privacy.guarantee import Guarantee, Release
from sordino.randomness import Keystream

if TYPE_CHECKING:
    from sordino.learning.optimizers import SGD
    from sordino.learning.private_sgd import PrivateTraining


@dataclass(frozen=True)
class RangeFit:
    """How large the range of a mechanism is, and how large what it has to hold."""

    shape: Literal["box", "L1 ball", "L2 ball", "sphere"]
    least: float  #: how far a box reaches from its centre, or a radius
    most: float  #: the same of the value with the widest range
    size: float | None  #: the largest value, or the norm of an update; that of a sphere need not be known


class Sender(ABC):
    """How clients send their values."""

    unknown = ""  #: why the noise is not known in advance, where it is not

    @abstractmethod
    def noise(self, values: int) -> float | None:
        """The variance of an upload's estimate, summed over its values; None where it is not known."""

    @abstractmethod
    def releases(self, values: int) -> tuple[Release, ...]:
        """What one report releases."""

    @abstractmethod
    def report_bytes(self, values: int) -> int:
        """How many bytes a report has, without its envelope."""

    def kept(self, values: int, norm: float) -> float:
        """The L2 norm, in the estimate, of an update of this norm: after clipping, rescaling or voting."""
        return norm

    def range_fit(self, values: int, norm: float | None, largest: float | None) -> RangeFit | None:
        """How the range fits updates of this norm, or values of this size; None where nothing can be said."""
        return None


@dataclass(frozen=True)
class MechanismSender(Sender):
    """A client that sends its values through a mechanism (with parameters for any number of clients)."""

    mechanism: Mechanism
    what: str = "model update"

    def __post_init__(self) -> None:
        if self.mechanism.clients is not None:
            raise InvalidInput(
                f"{self.mechanism!r} holds parameters for several clients: give each kind of client a mechanism of its "
                "own, with one set of parameters"
            )

    def noise(self, values: int) -> float | None:
        columns, repeats = self.mechanism.domain.centre_of(values)
        return float(self.mechanism.variance(columns).sum()) * repeats

    def kept(self, values: int, norm: float) -> float:
        """For an update whose values are all of one size."""
        columns, repeats = self.mechanism.domain.centre_of(values)
        moved = columns + norm / math.sqrt(values)
        shift = self._mean(moved) - self._mean(columns)
        return float(np.linalg.norm(shift)) * math.sqrt(repeats)

    def _mean(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(self.mechanism.bias(at)[0] + at)

    def releases(self, values: int) -> tuple[Release, ...]:
        guarantee = self.mechanism.guarantee(values=values)
        return (Release("planned", "planned", self.what, (guarantee,), self.mechanism.claim(values=values)),)

    def report_bytes(self, values: int) -> int:
        """That of a report about zeros: all of a mechanism's reports are equally long."""
        output = self.mechanism.randomize(np.zeros(values, np.float32), Keystream.simulation(0, [0], 0)).output
        return len(self.mechanism.encode(output)[0])

    def range_fit(self, values: int, norm: float | None, largest: float | None) -> RangeFit | None:
        match self.mechanism.domain:
            case _ if not self.mechanism.bounded:
                return None
            case Box(radius=radius) if largest is not None:
                return RangeFit("box", float(radius.min()), float(radius.max()), largest)
            case IntegerRange(clip=clip) if largest is not None:
                return RangeFit("box", clip, clip, largest)
            case L1Ball(radius=radius) if norm is not None:  # of an update whose values are all of one size
                return RangeFit("L1 ball", radius, radius, norm * math.sqrt(values))
            case L2Ball(radius=radius) if norm is not None:
                return RangeFit("L2 ball", radius, radius, norm)
            case Sphere(radius=radius):
                return RangeFit("sphere", radius, radius, norm)
            case _:
                return None


@dataclass(frozen=True)
class PrivateSilo(Sender):
    """A client that trains by DP-SGD and sends the result: the noise is in each step's sum of gradients.

    `gains` say by how much each step's noisy gradient moves the result in the end: the learning rate, or more with
    momentum. Empty where that is not known in advance, as with Adam and RMSprop.
    """

    guarantee: Callable[[int], Guarantee]  #: of an upload of so many values
    noise_multiplier: float
    clip: float
    expected_batch: float
    gains: tuple[float, ...]
    unproven: str | None = None  #: why nothing is proven of it, if so
    unknown = "how this optimiser scales it depends on the gradients"

    @classmethod
    def of(cls, training: PrivateTraining, unproven: str | None = None) -> PrivateSilo:
        """The silo that trains like this."""
        from sordino.learning.optimizers import SGD

        given = training.optimizer
        gains = _gains(given, training.steps) if isinstance(given, SGD) and not given.decay else ()
        return cls(
            training.guarantee, training.noise_multiplier, training.clip, training.expected_batch, gains, unproven
        )

    def noise(self, values: int) -> float | None:
        if not self.gains:
            return None
        each = self.noise_multiplier * self.clip / self.expected_batch
        return values * each * each * math.fsum(gain * gain for gain in self.gains)

    def releases(self, values: int) -> tuple[Release, ...]:
        release = Release("planned", "planned", "model update (DP-SGD)", (self.guarantee(values),))
        return (release if self.unproven is None else release.unproven_of_records(self.unproven),)

    def report_bytes(self, values: int) -> int:
        return 4 * values


def _gains(given: SGD, steps: int) -> tuple[float, ...]:
    """With k steps to go, its own included, a gradient moves the result by lr (1 + m + ... + m^(k-1)).

    Nesterov's momentum looks one step ahead: one power more.
    """
    powers = range(1 + given.nesterov, steps + 1 + given.nesterov)
    return tuple(given.lr * math.fsum(given.momentum**i for i in range(k)) for k in powers)


@dataclass(frozen=True)
class MedianClippingSender(Sender):
    """A client whose update a trusted server clips to the median of all norms, with noise in proportion to that.

    `loudness` is the L2 norm of the noise in the average of a round for updates of the size that was measured; None
    where none was.
    """

    sender: Sender
    loudness: float | None
    asked: float
    unknown = "it is in proportion to the median of the updates' norms"

    def noise(self, values: int) -> float | None:
        """Each report's share of it: of as many shares as clients are asked, the mean is as loud as it will be."""
        return None if self.loudness is None else self.loudness**2 * self.asked

    def releases(self, values: int) -> tuple[Release, ...]:
        return self.sender.releases(values)

    def report_bytes(self, values: int) -> int:
        return self.sender.report_bytes(values)


__all__ = ["MechanismSender", "MedianClippingSender", "PrivateSilo", "RangeFit", "Sender"]
