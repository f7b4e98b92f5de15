"""Record-level private training in a silo: DP-SGD on Poisson batches (Abadi et al., "Deep learning with differential
privacy", CCS 2016, Algorithm 1).

Every record's gradient is clipped to an L2 norm of `clip`; the clipped gradients of a Poisson batch are summed in
float64; Gaussian noise of standard deviation noise_multiplier * clip is added to the sum, which is divided by a public
number. What follows (momentum, Adam, weight decay) only processes the noisy sums. The noise is drawn by inversion of
the normal distribution in float64: the guarantee is proven in real arithmetic, not for the floating-point numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sordino.errors import InvalidInput
from sordino.learning import draws
from sordino.learning.draws import Draw
from sordino.learning.optimizers import Descent, Optimizer, check_count, check_positive
from sordino.learning.stacked import Batch, Loss, StackedModel
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, PoissonGaussian
from sordino.randomness import Randomness, Rows

#: Float32 rounding may lengthen a scaled gradient by a few parts in 10^7: it is scaled to a little less.
ROUNDING = 1 - 2.0**-20

BASIS = (
    "DP-SGD: {steps} Gaussian releases with noise multiplier {sigma:g} on sums of per-record gradients clipped in L2 "
    "norm, each over a fresh Poisson sample of rate {q:g} that stays secret; proven in real arithmetic"
)


@dataclass(frozen=True)
class PrivateTraining:
    """How a silo trains privately: `steps` noisy sums over Poisson batches of rate `sampling_rate`.

    `expected_batch` is what each sum is divided by: a public number such as the sampling rate times the announced size
    of a silo, not one computed from the records, whose number is protected as well.
    """

    optimizer: Optimizer
    clip: float
    noise_multiplier: float
    sampling_rate: float
    expected_batch: float
    steps: int
    loss: Loss = functional.cross_entropy

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            raise InvalidInput(f"optimizer must be SGD(...), Adam(...) or RMSprop(...), got {self.optimizer!r}")
        for name in ("clip", "noise_multiplier", "sampling_rate", "expected_batch"):
            check_positive(name, getattr(self, name))
        check_count("steps", self.steps)
        if not 2.0**-32 <= self.sampling_rate <= 1:
            raise InvalidInput(f"sampling_rate must be a probability from 2^-32 to 1, got {self.sampling_rate!r}")

    @property
    def guarantee(self) -> Guarantee:
        """What the trained parameters, and every one on the way to them, reveal of one record more or less."""
        loss = PoissonGaussian(self.sampling_rate, self.noise_multiplier, self.steps)
        basis = BASIS.format(steps=self.steps, sigma=self.noise_multiplier, q=self.sampling_rate)
        return Guarantee(SERVER, Adjacency.RECORD_ADD_REMOVE, loss, basis)


@dataclass(frozen=True)
class Records:
    """The records of w clients, one client's after another's, with each client's place and row of randomness."""

    x: Tensor
    y: Tensor
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    rows: Rows


@dataclass(frozen=True)
class ClippedSums:
    """The noiseless sums `[w, d]` of one step, with local figures of each client: losses, sample sizes, clipped."""

    sums: Tensor
    losses: Tensor
    samples: NDArray[np.int64]
    clipped: Tensor


def clip_rows(gradients: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Float64 rows `[r, d]` of L2 norm at most `clip`, and which were shortened; a row that is not finite becomes 0."""
    rows = gradients.double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    shortened = ~(norms <= clip)
    rows[~torch.isfinite(norms)] = 0
    scale = torch.where(shortened & torch.isfinite(norms), clip * ROUNDING / norms, 1.0)
    return rows * scale.unsqueeze(1), shortened


def clipped_sums(
    stacked: StackedModel,
    training: PrivateTraining,
    parameters: Tensor,
    records: Records,
    randomness: Randomness,
    t: int,
) -> ClippedSums:
    """The sums of clipped gradients over the Poisson batches of step t."""
    samples = [
        draws.poisson_samples(randomness, int(row), t, int(n), training.sampling_rate)
        for row, n in zip(records.rows, records.sizes, strict=True)
    ]
    counts = np.array([len(sample) for sample in samples])
    device = stacked.device
    owners = stacked.upload(np.repeat(np.arange(len(samples)), counts))
    index = stacked.upload(np.concatenate([s + start for s, start in zip(samples, records.starts, strict=True)]))
    masks = _masks(stacked, records, counts, randomness, t)
    sums = torch.zeros(parameters.shape, dtype=torch.float64, device=device)
    losses, clipped = (torch.zeros(len(samples), dtype=torch.float64, device=device) for _ in range(2))
    for first in range(0, len(owners), stacked.execution.width):
        part = slice(first, first + stacked.execution.width)
        owner = owners[part]
        batch = Batch(records.x[index[part], None], records.y[index[part], None], tuple(m[part] for m in masks))
        gradient, loss = stacked.gradients(parameters[owner], {}, batch)
        rows, shortened = clip_rows(gradient, training.clip)
        sums.index_add_(0, owner, rows)
        losses.index_add_(0, owner, loss.double())
        clipped.index_add_(0, owner, shortened.double())
    return ClippedSums(sums, losses, counts, clipped)


def noisy_gradient(training: PrivateTraining, sums: Tensor, rows: Rows, randomness: Randomness, t: int) -> Tensor:
    """The sums of step t with noise, divided by the public batch size; an empty batch still gives its noise."""
    noise = torch.from_numpy(draws.normals(randomness, rows, t, sums.shape[1])).to(sums.device)
    noisy = sums + noise * (training.noise_multiplier * training.clip)
    return (noisy / training.expected_batch).float()


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
    for t in range(training.steps):
        nothing = torch.zeros(start.shape, dtype=torch.float64)
        descent.step(noisy_gradient(training, nothing, np.arange(clients), randomness, t), t)
    finite = torch.isfinite(descent.parameters).all(dim=1, keepdim=True)
    return torch.where(finite, descent.parameters, start)


def _masks(
    stacked: StackedModel, records: Records, counts: NDArray[np.int64], randomness: Randomness, t: int
) -> tuple[Tensor, ...]:
    """Dropout masks `[r, 1, ...]` of the sampled records, from each client's own stream."""
    each = stacked.mask_words
    if not each or not counts.sum():
        return ()
    words = [
        draws.draw(randomness, np.array([row]), Draw.DROPOUT, t, int(b) * each, int(n) * each).reshape(-1, 1, each)
        for row, b, n in zip(records.rows, counts, records.sizes, strict=True)
        if b
    ]
    return stacked.masks(np.concatenate(words))


__all__ = ["PrivateTraining", "clip_rows", "noise_alone"]
