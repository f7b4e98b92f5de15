"""Record-level private training in a silo: DP-SGD on Poisson batches (Abadi et al., "Deep learning with differential
privacy", CCS 2016, Algorithm 1), on whole numbers.

What a record adds to a step's sum is a vector of whole numbers of grid steps, a function of that record and of the
parameters alone, with an L2 norm of at most `Grid.clip`: checked in whole numbers. Sums are exact. Where the grid asks
for it, a sum is coarsened once, at random. Then noise from a discrete Gaussian table is added. So the set of possible
sums does not depend on the records, and one record moves a sum by at most `Grid.sensitivity`. What follows (division by
a public number, momentum, Adam, weight decay) only processes the noisy sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sordino.errors import STOPPING, InvalidInput
from sordino.learning import draws, linear_head
from sordino.learning.alone import Alone, beside
from sordino.learning.draws import Stream
from sordino.learning.linear_head import LinearHead, Rounded, aim, rounded_within
from sordino.learning.optimizers import Descent, Optimizer
from sordino.learning.stacked_model import LOOP, Batch, Loss, StackedModel, probes
from sordino.mechanisms.noise import FARTHEST, DiscreteGaussian, Slack, discrete_gaussian
from sordino.privacy.guarantee import SERVER, Adjacency, Budget, Guarantee, Infinite, PoissonGaussian, summed
from sordino.randomness import BLOCK_WORDS, Randomness, Rows

RESOLUTION = 20  #: bits of the noise: sigma is 2^20 grid steps
ROUNDING_RISK = 1e-9  #: beta: the probability per step that coarsening moves a sum further than its bound
LARGEST_CLIP = 2**23  #: grid steps; the sums of 2^30 records are below 2^53
SMALLEST_CLIP = 8
MASK_WORDS = 2**20  #: words of dropout masks that are drawn at a time

BASIS = (
    "DP-SGD in whole numbers: {sums} of gradients, each record's at most {clip:,} grid steps long, {sample}{coarse}, "
    "plus discrete Gaussian noise of 2^{bits} steps{shares}"
)
FAINT = (
    "the noise is below a sixteenth of what one record can add, which hides nothing worth stating: raise the noise "
    "multiplier, or let fewer silos share the noise"
)
FAINT_EXCHANGE = (
    "the noise is below an eighth of what one record can add: exchanging a record moves a sum by twice as much, and "
    "whole noise does not reach that far: raise the noise multiplier, or let fewer silos share the noise"
)


@dataclass(frozen=True)
class SumGrid:
    """The whole numbers of one step's sum over d values."""

    clip: int  #: L2 norm that no record's vector exceeds, in grid steps
    coarsening: int  #: bits that are dropped from the exact sum, at random
    sensitivity: float  #: L2 distance by which one record moves what the noise is added to, in its steps
    noise: DiscreteGaussian  #: of one silo


@dataclass(frozen=True)
class PrivateTraining:
    """How a silo trains privately: `steps` noisy sums over Poisson batches of rate `sampling_rate`.

    `expected_batch` is what each sum is divided by: a public number such as the sampling rate times the announced size
    of a silo, not one computed from the records, whose number is protected as well. `noise_multiplier` is the noise in
    units of what one record can add; with `shares`, so many silos' noises add up to it under a secure sum. The noise of
    one silo has 2^`resolution` grid steps, and `coarsening` drops so many bits of an exact sum: both only concern how
    large the numbers are that travel.
    """

    optimizer: Optimizer
    clip: float
    noise_multiplier: float
    sampling_rate: float
    expected_batch: float
    steps: int
    loss: Loss = functional.cross_entropy
    resolution: int = RESOLUTION
    coarsening: int = 0
    shares: int = 1

    def total_steps(self, records: int) -> int:
        """How many steps a silo takes in a round, whatever the number of its records."""
        return self.steps

    def effort(self, sizes: Sequence[int]) -> tuple[int, float]:
        """Records in a batch, and about how many silos with so many records train on in a round together."""
        return 1, sum(sizes) * self.sampling_rate * self.steps

    def grid(self, values: int) -> SumGrid:
        """The grid of sums over `values` values."""
        return grid_for(self.noise_multiplier, values, self.shares, self.resolution, self.coarsening)

    def guarantee(self, values: int, adjacency: Adjacency = Adjacency.RECORD_ADD_REMOVE) -> Guarantee:
        """What the trained parameters, and every one on the way to them, reveal of one record: added, or exchanged.

        Against the server, who sees this silo's noise alone.
        """
        return Guarantee(SERVER, adjacency, *self._loss(values, 1, adjacency))

    def shared_guarantee(self, values: int, adjacency: Adjacency = Adjacency.RECORD_ADD_REMOVE) -> Guarantee:
        """The same against whoever sees the sum of all silos' sums, with the noises of `shares` honest ones in it."""
        return Guarantee(summed(self.shares), adjacency, *self._loss(values, self.shares, adjacency))

    def with_noise_for(self, epsilon: float, delta: float, rounds: int, values: int) -> PrivateTraining:
        """The same with the least noise that keeps so many rounds within (epsilon, delta) against the sum of shares.

        A record is added or removed; what whole numbers cost beside the Gaussian is paid for.
        """
        from sordino.privacy.planning import private_training

        budget = Budget(epsilon, delta, adjacency=Adjacency.RECORD_ADD_REMOVE)

        def least(slack: Slack) -> float:
            eta, tau = self._slack(slack, values)
            found = private_training(
                budget, rounds, sampling_rate=self.sampling_rate, steps=self.steps, eta=eta, tau=tau
            )
            return max(found.parameter, 1 / FARTHEST)  # with less nothing could be stated

        def drawn(multiplier: float) -> DiscreteGaussian:
            return replace(self, noise_multiplier=multiplier).grid(values).noise

        return replace(self, noise_multiplier=least_noise(least, drawn, self.resolution, self.shares))

    def _slack(self, each: Slack, values: int) -> tuple[float, float]:
        """(eta, tau) of one round: what the noise lacks of a Gaussian, and what coarsening risks."""
        risk = 2 * ROUNDING_RISK if self.coarsening else 0.0  # an exchange moves a sum by two records' vectors
        return self.steps * values * each.eta, self.steps * (values * each.tau + risk)

    def _loss(self, values: int, shares: int, adjacency: Adjacency) -> tuple[PoissonGaussian | Infinite, str]:
        grid = self.grid(values)
        slack = grid.noise.slack(shares)
        if faint := too_faint(grid, adjacency, shares):
            return Infinite(faint), "none"
        eta, tau = self._slack(slack, values)
        loss = PoissonGaussian(self.sampling_rate, slack.sigma / grid.sensitivity, self.steps, eta, tau)
        basis = BASIS.format(
            sums="one sum" if self.steps == 1 else f"{self.steps} sums",
            clip=grid.clip,
            sample="over all records"
            if self.sampling_rate == 1
            else f"over a fresh, secret Poisson sample of rate {self.sampling_rate:g}",
            bits=grid.noise.bits,
            coarse=f", coarsened by {grid.coarsening} bits" if grid.coarsening else "",
            shares=f" from each of {shares} honest silos" if shares > 1 else "",
        )
        return loss, basis


@lru_cache(maxsize=256)
def grid_for(
    noise_multiplier: float, values: int, shares: int = 1, resolution: int = RESOLUTION, coarsening: int = 0
) -> SumGrid:
    """As many grid steps to the clip as keep the noise at `noise_multiplier` times the sensitivity, or more."""
    largest = noise_multiplier * LARGEST_CLIP / math.sqrt(shares)  # where the noise would be more, it has fewer bits
    noise = discrete_gaussian(max(1, min(resolution, math.frexp(max(2.0, largest))[1] - 1)))
    most = noise.slack(shares).sigma / noise_multiplier
    clip = math.floor(_clip_within(most, coarsening, values))
    if coarsening and clip > LARGEST_CLIP:
        raise InvalidInput(
            f"a sum coarsened by {coarsening} bits under noise of 2^{resolution} steps needs gradients finer than "
            "2^-23 of their clip: lower method.resolution or method.coarsening"
        )
    clip = min(clip, LARGEST_CLIP)
    if clip < SMALLEST_CLIP:
        raise InvalidInput(
            f"a noise multiplier of {noise_multiplier:g} leaves a record {max(0, clip)} grid steps where the noise has "
            f"2^{resolution}, coarser by {coarsening} bits, over {values:,} values; {SMALLEST_CLIP} are the least: "
            "raise method.resolution, lower method.coarsening, or lower the noise"
        )
    return SumGrid(clip, coarsening, coarse_sensitivity(clip / 2**coarsening, values) if coarsening else clip, noise)


def too_faint(grid: SumGrid, adjacency: Adjacency, shares: int = 1) -> str | None:
    """Why nothing can be stated of neighbouring sums: they lie further apart than the noise reaches; None if not.

    An exchange moves a sum by two records' vectors; anything but adding or removing a record counts as one.
    """
    reach = FARTHEST * math.sqrt(shares) * grid.noise.sigma
    if grid.sensitivity > reach:
        return FAINT
    return FAINT_EXCHANGE if adjacency is not Adjacency.RECORD_ADD_REMOVE and 2 * grid.sensitivity > reach else None


def least_noise(
    least: Callable[[Slack], float], drawn: Callable[[float], DiscreteGaussian], resolution: int, shares: int = 1
) -> float:
    """The multiplier that `least` finds for a slack that is no smaller than that of the noise then drawn.

    Less noise may be drawn from a table of fewer bits, which lacks more of a Gaussian: then it is sought again.
    """
    assumed = discrete_gaussian(resolution).slack(shares)
    while True:
        multiplier = least(assumed)
        found = drawn(multiplier).slack(shares)
        if found.eta <= assumed.eta and found.tau <= assumed.tau:
            return multiplier
        assumed = Slack(found.sigma, max(found.eta, assumed.eta), max(found.tau, assumed.tau))


def coarse_sensitivity(clip: float, values: int, risk: float = ROUNDING_RISK) -> float:
    """How far a vector of L2 norm `clip` moves a sum that is coarsened to whole steps at random, in those steps.

    With the same dither, neighbouring sums differ by the one record's vector, stochastically rounded. Its squared norm
    is at most c^2 + d/4 + sqrt(2 ln(1/beta)) (c + sqrt(d)/2) but with probability beta (Kairouz, Liu, Steinke 2021).
    """
    spread = math.sqrt(2 * math.log(1 / risk))
    return math.sqrt(clip**2 + values / 4 + spread * (clip + math.sqrt(values) / 2))


def _clip_within(most: float, coarsening: int, values: int) -> float:
    """The longest clip, in fine steps, for which the sum is moved by at most `most` coarse steps."""
    if not coarsening:
        return most
    b = math.sqrt(2 * math.log(1 / ROUNDING_RISK))
    square = b * b / 4 + most**2 - values / 4 - b * math.sqrt(values) / 2
    return 0.0 if square <= 0 else (math.sqrt(square) - b / 2) * 2**coarsening * (1 - 2.0**-40)


# --- sums -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Records:
    """The records of w clients, one client's after another's, with each client's place and row of randomness."""

    x: Tensor
    y: Tensor
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    rows: Rows
    rounded: Rounded | None = None  #: all of them as whole vectors, where a single client of a linear model keeps these


@dataclass(frozen=True)
class IntegerSums:
    """The exact sums `[w, d]` of one step in grid steps, and what is local: losses, sample sizes, clipped."""

    sums: Tensor  #: int64
    losses: Tensor
    samples: NDArray[np.int64]
    clipped: Tensor


def integer_rows(gradients: Tensor, clip: float, steps: int) -> tuple[Tensor, Tensor]:
    """Rows `[r, d]` of whole numbers, as float64, with an L2 norm of at most `steps`, and which were shortened.

    A row of length `clip` has `steps` grid steps; one that is not finite becomes 0. Every row by itself.
    """
    rows = gradients.double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    finite = torch.isfinite(norms)
    rows[~finite] = 0
    shortened = ~(norms <= clip)
    scale = torch.where(shortened & finite, aim(steps, rows.shape[1]) / norms, steps / clip)
    return rounded_within(rows * scale.unsqueeze(1), steps)[0], shortened


def integer_sums(
    stacked: StackedModel,
    training: PrivateTraining,
    parameters: Tensor,
    records: Records,
    randomness: Randomness,
    t: int,
) -> IntegerSums:
    """The exact sums over the Poisson batches of step t; the order of records and their neighbours do not matter.

    A linear softmax model is computed in whole numbers throughout. Other networks are computed one record at a time
    where `stacked.execution` is the plain loop, which is what a real client takes; in a simulation several records are
    computed together, and their last bits may depend on each other before they are rounded to the grid.
    """
    samples = [
        draws.poisson_samples(randomness, int(row), t, int(n), training.sampling_rate)
        for row, n in zip(records.rows, records.sizes, strict=True)
    ]
    return sampled_sums(stacked, training, parameters, records, samples, randomness, t)


def sampled_sums(
    stacked: StackedModel,
    training: PrivateTraining,
    parameters: Tensor,
    records: Records,
    samples: list[NDArray[np.int64]],
    randomness: Randomness,
    t: int,
) -> IntegerSums:
    """The exact sums over these samples of each client's records; `randomness` is for dropout masks alone."""
    counts = np.array([len(sample) for sample in samples])
    clip = training.grid(stacked.size).clip
    head = head_of(stacked, training)
    if head is not None and records.y.dtype == torch.int64:
        return _linear_sums(head, training, parameters, records, samples, clip)
    device = stacked.device
    owners = stacked.upload(np.repeat(np.arange(len(samples)), counts))
    index = stacked.upload(np.concatenate([s + start for s, start in zip(samples, records.starts, strict=True)]))
    masks = _Masks(stacked, records, counts, randomness, t)
    sums = torch.zeros(parameters.shape, dtype=torch.float64, device=device)
    losses, clipped = (torch.zeros(len(samples), dtype=torch.float64, device=device) for _ in range(2))
    with stacked.alone if stacked.execution.width == 1 else nullcontext(beside) as compute:
        for first in range(0, len(owners), stacked.execution.width):
            part = slice(first, first + stacked.execution.width)
            owner = owners[part]
            given = records.x[index[part], None], records.y[index[part], None], *masks.take(len(owner))
            gradient, loss = compute(partial(_gradients, stacked, parameters[owner]), *given)
            rows, shortened = integer_rows(gradient, training.clip, clip)
            sums.index_add_(0, owner, rows)
            losses.index_add_(0, owner, loss.double())
            clipped.index_add_(0, owner, shortened.double())
    return IntegerSums(sums.long(), losses, counts, clipped)


def _gradients(
    stacked: StackedModel, parameters: Tensor, x: Tensor, y: Tensor, *masks: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients and losses; those of a record that is computed alone and cannot be are NaN, so that it adds nothing.

    An error that one record causes must not end the training on all others: that would show that it is there.
    """
    try:
        return stacked.gradients(parameters, {}, Batch(x, y, masks))
    except STOPPING:
        raise
    except BaseException:
        if stacked.execution.width > 1:
            raise
        return torch.full_like(parameters, math.nan), parameters.new_full((len(parameters),), math.nan)


def remembers(model: nn.Module, loss: Loss, parameters: Tensor, shape: Sequence[int], y: Tensor | None = None) -> bool:
    """Whether a model's gradient of a public record changes once another was computed, or cannot be computed at all.

    `y` are labels of two records: two classes if left out.
    Then what a record adds to a sum is not a function of that record and the parameters, and nothing bounds it.
    """
    x, y = probes(shape), torch.tensor([0, 1]) if y is None else y
    with Alone():
        try:
            before, _, again = _in_turn(model, loss, parameters, x, y, (0, 1, 0))
            _, after = _in_turn(model, loss, parameters, x, y, (1, 0))
        except Exception:
            return True
    return not before == again == after


def check_model(model: nn.Module, loss: Loss, shape: Sequence[int]) -> None:
    """Refuse a model in which one record's gradient depends on others or on chance.

    Nothing is said of one that fails on public records: `remembers` tells of it.
    """
    stacked = StackedModel(model, loss, LOOP, torch.device("cpu"))
    try:
        stacked.try_out(probes(shape))
    except InvalidInput:
        return
    stacked.check_independent_records()


def _in_turn(
    model: nn.Module, loss: Loss, parameters: Tensor, x: Tensor, y: Tensor, order: Sequence[int]
) -> list[bytes]:
    """The bits of the gradients of records of a copy of the model, one after the other."""
    stacked = StackedModel(model, loss, LOOP, torch.device("cpu"))
    masks = stacked.masks(np.full((1, 1, stacked.mask_words), 2**31, np.uint32)) if stacked.mask_words else ()
    batches = [Batch(x[None, i : i + 1], y[None, i : i + 1], masks) for i in order]
    return [stacked.gradients(parameters[None], {}, batch)[0].numpy().tobytes() for batch in batches]


def head_of(stacked: StackedModel, training: PrivateTraining) -> LinearHead | None:
    """The linear head that the whole model is, if it is one and all of it is trained."""
    head = linear_head.of(stacked.model, training.loss)
    return head if head is not None and head.size == stacked.size else None


def _linear_sums(
    head: LinearHead,
    training: PrivateTraining,
    parameters: Tensor,
    records: Records,
    samples: list[NDArray[np.int64]],
    clip: int,
) -> IntegerSums:
    device = parameters.device
    sums = torch.zeros(parameters.shape, dtype=torch.int64, device=device)
    losses, clipped = (torch.zeros(len(samples), dtype=torch.float64, device=device) for _ in range(2))
    for k, (sample, start) in enumerate(zip(samples, records.starts, strict=True)):
        if not len(sample):
            continue
        everyone = len(sample) == len(records.y)
        index = slice(None) if everyone else torch.from_numpy(sample + start).to(device)
        kept = head.rounded(records.x[index], clip) if records.rounded is None else records.rounded.rows(index)
        weights = head.weights(parameters[k])
        found = head.sums(weights, kept, records.y[index], training.clip, linear_head.split_clip(clip)[1])
        sums[k], losses[k], clipped[k] = found.sums, found.loss, found.clipped
    return IntegerSums(sums, losses, np.array([len(sample) for sample in samples]), clipped)


def coarsened(sums: Tensor, bits: int, rows: Rows, randomness: Randomness, t: int) -> Tensor:
    """Sums divided by 2^bits and rounded at random: a uniform whole number below 2^bits is added, then bits are cut."""
    if not bits:
        return sums
    words = draws.draw(randomness, rows, Stream.COARSEN, t, sums.shape[1]) >> np.uint32(32 - bits)
    return (sums + torch.from_numpy(words.astype(np.int64)).to(sums.device)) >> bits


def integer_noise(
    training: PrivateTraining, rows: Rows, randomness: Randomness, t: int, values: int
) -> NDArray[np.int64]:
    """The noise `[w, d]` of step t, in grid steps, from each client's own stream."""
    noise = training.grid(values).noise
    return noise.draw(draws.draw(randomness, rows, Stream.NOISE, t, noise.words_per_value * values))


def noisy_sums(training: PrivateTraining, sums: Tensor, rows: Rows, randomness: Randomness, t: int) -> Tensor:
    """The sums of step t as they may leave: coarsened, with noise; an empty batch still gives its noise."""
    coarse = coarsened(sums, training.coarsening, rows, randomness, t)
    return coarse + torch.from_numpy(integer_noise(training, rows, randomness, t, sums.shape[1])).to(sums.device)


def gradient_of(training: PrivateTraining, noisy: Tensor) -> Tensor:
    """The gradient that noisy sums stand for: in the units of the parameters, divided by the public batch size."""
    grid = training.grid(noisy.shape[-1])
    unit = training.clip * 2.0**grid.coarsening / grid.clip
    return (noisy.double() * (unit / training.expected_batch)).float()


def noise_alone(
    training: PrivateTraining,
    parameters: NDArray[np.float32],
    sizes: Mapping[str, int],
    randomness: Randomness,
    clients: int,
    first_step: int = 0,
) -> Tensor:
    """`[clients, d]`: what private training makes of no records; a row that stops being finite is `parameters [d]`."""
    start = torch.from_numpy(parameters).expand(clients, -1)
    descent = Descent(training.optimizer, start.clone(), sizes, first_step)
    nothing = torch.zeros(start.shape, dtype=torch.int64)
    for t in range(training.steps):
        descent.step(gradient_of(training, noisy_sums(training, nothing, np.arange(clients), randomness, t)), t)
    finite = torch.isfinite(descent.parameters).all(dim=1, keepdim=True)
    return torch.where(finite, descent.parameters, start)


class _Masks:
    """Dropout masks `[r, 1, ...]` of the sampled records in turn, from each client's own stream.

    They are drawn for a few records at a time, so that memory does not grow with the number of records.
    """

    def __init__(
        self, stacked: StackedModel, records: Records, counts: NDArray[np.int64], randomness: Randomness, t: int
    ) -> None:
        self._stacked, self._each = stacked, stacked.mask_words
        self._words = self._drawn(records, counts, randomness, t)
        self._left: tuple[Tensor, ...] = ()

    def take(self, count: int) -> tuple[Tensor, ...]:
        """The masks of the next records; none where the model takes none."""
        if not self._each:
            return ()
        while not self._left or len(self._left[0]) < count:
            found = self._stacked.masks(next(self._words))
            self._left = tuple(map(torch.cat, zip(self._left, found, strict=True))) if self._left else found
        taken, self._left = tuple(m[:count] for m in self._left), tuple(m[count:] for m in self._left)
        return taken

    def _drawn(
        self, records: Records, counts: NDArray[np.int64], randomness: Randomness, t: int
    ) -> Iterator[NDArray[np.uint32]]:
        each = self._each
        step = BLOCK_WORDS * max(1, MASK_WORDS // (BLOCK_WORDS * each))  # parts begin with a block of the stream
        for row, b, n in zip(records.rows, counts.tolist(), records.sizes.tolist(), strict=True):
            for first in range(0, b, step):
                own = min(step, b - first) * each
                place = draws.beginning(t, n * each) + first * each
                words = draws.draw_from(randomness, np.array([row]), Stream.DROPOUT, place, own)
                yield words.reshape(-1, 1, each)


__all__ = [
    "RESOLUTION", "IntegerSums", "PrivateTraining", "Records", "SumGrid", "check_model", "coarse_sensitivity",
    "coarsened", "gradient_of", "grid_for", "head_of", "integer_noise", "integer_rows", "integer_sums", "least_noise",
    "noise_alone", "noisy_sums", "remembers", "sampled_sums", "too_faint",
]  # fmt: skip
