"""The template's task: a model, the data of a partition, training and testing."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """With batch norm, so that its state holds a counter of whole numbers (`num_batches_tracked`)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc2(torch.relu(self.norm(self.fc1(x))))
        return scores


@cache
def _digits() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """The training and the test examples of one partition."""
    x, y = _digits()
    mine = np.arange(partition_id, 600, num_partitions)
    cut = int(0.8 * len(mine))
    parts = (TensorDataset(x[part], y[part]) for part in (mine[:cut], mine[cut:]))
    train, test = parts
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)


def train(net: Net, trainloader: DataLoader, epochs: int, lr: float, device: torch.device) -> float:
    """Some epochs of SGD (by hand: torch.optim takes seconds to load); the mean loss."""
    weights = list(net.parameters())
    net.train()
    total = 0.0
    for _ in range(epochs):
        for x, y in trainloader:
            loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
            with torch.no_grad():
                for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    weight -= lr * slope
            total += float(loss.detach())
    return total / (epochs * len(trainloader))


def test(net: Net, testloader: DataLoader, device: torch.device) -> tuple[float, float]:
    """The mean loss and the accuracy."""
    net.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in testloader:
            scores = net(x.to(device))
            loss += float(nn.functional.cross_entropy(scores, y.to(device), reduction="sum"))
            correct += int((scores.argmax(1) == y).sum())
            count += len(y)
    return loss / count, correct / count
