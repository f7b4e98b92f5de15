"""What one writes first: for every client a fresh start, `torch.optim` and shuffled batches.

The clients are spread over as many processes as the engine has, one thread each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rivals.job import Job, say
from benchmarks.rivals.networks import federate, flat, load


def one_after_the_other(job: Job, model: nn.Module, start: Tensor, clients: list[tuple[Tensor, Tensor]]) -> Tensor:
    total = torch.zeros_like(start)
    for x, y in clients:
        load(model, start)
        optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
        for batch in torch.randperm(len(x)).split(job.batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        total += flat(model)
    return total


if __name__ == "__main__":
    say(list(federate(Job.from_command_line(), one_after_the_other)))
