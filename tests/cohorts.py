"""Cohorts that are trained in one call, by a trainer of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sordino.learning.cohort import ClientData, CohortResult, CohortTrainer, LocalTraining
from sordino.learning.private_sgd import PrivateTraining
from sordino.learning.stacked_model import LOOP, Execution
from sordino.randomness import Randomness


def train_cohort(
    model: nn.Module,
    parameters: Tensor,
    clients: Sequence[ClientData],
    training: LocalTraining | PrivateTraining,
    randomness: Randomness,
    *,
    execution: Execution | None = None,
    buffers: Mapping[str, Tensor] | None = None,
    first_step: int = 0,
    device: torch.device | str | None = None,
) -> CohortResult:
    """What a trainer makes of these clients; on the device on which their records are unless another is named."""
    trainer = CohortTrainer(model, execution=execution, device=device or next((c.x.device for c in clients), "cpu"))
    return trainer.train(parameters, clients, training, randomness, buffers=buffers, first_step=first_step)


def train_one(
    model: nn.Module,
    parameters: Tensor,
    client: ClientData,
    training: LocalTraining | PrivateTraining,
    randomness: Randomness,
    *,
    first_step: int = 0,
) -> CohortResult:
    """What a real client computes: plain autograd, and in private training gradients of single records."""
    execution = LOOP if isinstance(training, LocalTraining) else None
    return train_cohort(model, parameters, [client], training, randomness, execution=execution, first_step=first_step)
