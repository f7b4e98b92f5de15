"""What Flower's own accounting and ours say of the same job: three nodes learn digits for three rounds.

    python -m benchmarks.flower_accounting

Once under Flower's central differential privacy, which adds noise at the server and counts with its `RdpAccountant`;
and once with `record_privacy`, which adds noise at the nodes. Of the first run, ours is the account of the same
Gaussian noise; of the second, Flower's accountant is told of the same sampled sums. Needs flwr 1.41 or 1.42.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, RdpAccountant
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.task_identity import TaskIdentity
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sordino.flower import private_training, record_privacy
from sordino.flower.record_mod import RecordPrivacy
from sordino.methods.silo_dp import WHAT
from sordino.privacy.accountant import Account
from sordino.privacy.guarantee import MODEL_READER, Adjacency, Budget, Destination, GaussianLoss, Guarantee, Release
from sordino.privacy.ledger import Ledger, Released
from sordino.privacy.statement import Statement
from sordino.report.words import upper

NODES, ROUNDS, DELTA = 3, 3, 1e-5
NOISE = 2.0  #: in units of the clip, at the server and at the nodes
SIZE, SAMPLE, STEPS = 160, 32, 5  #: records of a node, records in a step's batch on average, steps of a round
RATE = SAMPLE / SIZE
UNUSED = "Flower's strategies ask a grid for its nodes' numbers and their replies, and for nothing else"


class Nodes(Grid):
    """Nodes that answer at once, in this process."""

    def __init__(self, app: ClientApp, settings: Mapping[int, dict[str, Any]]) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # as in a ServerApp's process
        self._app, self._settings = app, settings

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *given: Any, **more: Any) -> Message:
        raise AssertionError(UNUSED)

    def push_messages(self, messages: Any) -> Any:
        raise AssertionError(UNUSED)

    def pull_messages(self, message_ids: Any) -> Any:
        raise AssertionError(UNUSED)

    def get_nodes(self) -> Any:
        raise AssertionError(UNUSED)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._settings)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [
            self._app(message, Context(1, node, self._settings[node], RecordDict(), {}))
            for message in messages
            for node in [message.metadata.dst_node_id]
        ]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(64, 10)


def records(partition: int) -> DataLoader[Any]:
    digits = load_digits()
    mine = slice(partition * SIZE, (partition + 1) * SIZE)
    x, y = torch.tensor(digits.data[mine] / 16, dtype=torch.float32), torch.tensor(digits.target[mine])
    return DataLoader(TensorDataset(x, y), batch_size=SAMPLE, shuffle=True)


def plainly(net: nn.Module, loader: DataLoader[Any]) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def privately(net: nn.Module, loader: DataLoader[Any]) -> None:
    private_training(net, torch.optim.SGD(net.parameters(), lr=0.5), loader)


def app_with(train: Any, mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        net = network()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loader = records(int(context.node_config["partition-id"]))
        train(net, loader)
        told = MetricRecord({"num-examples": SIZE})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": told}), reply_to=message)

    return app


def flower_accountant(population: int, sampling: SamplingMethod) -> RdpAccountant:
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    return RdpAccountant(PrivacyConfig(DELTA, population, relation, sampling))


def hold(app: ClientApp, strategy: Any) -> ArrayRecord:
    settings = {100 + number: {"partition-id": number} for number in range(NODES)}
    start, config = ArrayRecord(network().state_dict()), ConfigRecord({"lr": 0.5})
    result = strategy.start(Nodes(app, settings), start, num_rounds=ROUNDS, train_config=config)
    assert result.arrays is not None and all(np.isfinite(a.numpy()).all() for a in result.arrays.values())
    return result.arrays


def central() -> tuple[float, float, float]:
    """Flower's figure for its own noise at the server; what a ledger of ours would count, and what we would state."""
    accountant = flower_accountant(NODES, SamplingMethod.NO_AMPLIFICATION)
    inner = FedAvg(fraction_evaluate=0.0)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, NOISE, 1.0, NODES, accountant=accountant)
    hold(app_with(plainly, []), strategy)
    gaussian = Guarantee(MODEL_READER, Adjacency.CLIENT, GaussianLoss(1 / NOISE), "Gaussian noise in real arithmetic")
    releases = [Release(str(n), "clients", "model", (gaussian,)) for n in range(ROUNDS)]
    return accountant.get_epsilon(DELTA), *ours(releases, Budget(5.0, DELTA, adversary=MODEL_READER))


def by_record(folder: Path) -> tuple[float, float, float]:
    """What a ledger counts for the sums of `record_privacy`, beside Flower's figure for the same sampled sums.

    The releases themselves have an infinite loss: a record can stop the app. Neither accountant knows of that.
    """
    budget = Budget(5.0, DELTA, adjacency=Adjacency.RECORD_ADD_REMOVE)
    for number in range(NODES):
        with Ledger.create(folder / f"{number}.db") as ledger:
            ledger.set_budget("records", budget)
            ledger.set_consent("records", WHAT, granted=True)
    mod = record_privacy(
        folder, shape=(64,), announced_size=SIZE, sampling_rate=RATE, steps=STEPS, noise_multiplier=NOISE,
        per_record=True,
    )  # fmt: skip
    hold(app_with(privately, [mod]), FedAvg(fraction_evaluate=0.0))
    with Ledger.open(folder / "0.db") as ledger:
        sent = [each for e in ledger.entries() if isinstance(e.event, Released) for each in e.event.releases]
    assert isinstance(mod, RecordPrivacy)
    values = sum(parameter.numel() for parameter in network().parameters())
    releases = [replace(release, guarantees=mod.of_sums(values)) for release in sent]
    accountant = flower_accountant(SIZE, SamplingMethod.POISSON)
    accountant.compose(GaussianPrivacyEvent(NOISE, SAMPLE, SIZE), ROUNDS * STEPS)
    return accountant.get_epsilon(DELTA), *ours(releases, budget)


def ours(releases: list[Release], budget: Budget) -> tuple[float, float]:
    """Epsilon as a ledger with this budget counts it, and as a statement has it for rounds that are fixed."""
    account = Account.opening(budget)
    for release in releases:
        account = account.after(release, Destination("flower"))
    rows = Statement.of(releases, delta=DELTA).rows
    (stated,) = [r.proven for r in rows if (r.adjacency, r.adversary) == (budget.adjacency, budget.adversary)]
    return account.spent, stated


def table() -> str:
    """The table of the documentation."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "Flower's noise at the server | readers of the model; the server is trusted | one node": central(),
            "the sums of `record_privacy` | the server | one record": by_record(Path(folder)),
        }
    head = "| run | who is looking | added or removed | Flower's accountant | our ledger | our statement |"
    lines = [f"| {name} | {' | '.join(map(upper, figures))} |" for name, figures in runs.items()]
    return "\n".join([head, "|---|---|---|---|---|---|", *lines])


if __name__ == "__main__":
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    print(table())
