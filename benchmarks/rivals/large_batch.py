"""The limit: as many records through one copy of the network per process, in batches of 200.

No federation trains like this; it says how fast the cores compute this network when nothing is in the way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rivals.job import Job, say
from benchmarks.rivals.networks import federate, flat, load

BATCH = 200


def all_at_once(job: Job, model: nn.Module, start: Tensor, clients: list[tuple[Tensor, Tensor]]) -> Tensor:
    load(model, start)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
    x, y = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    for batch in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return flat(model) * len(clients)


if __name__ == "__main__":
    say(list(federate(Job.from_command_line(), all_at_once)))
