"""Flower's simulation: its strategy FedAvg over virtual clients, computed by Ray in as many processes.

Telemetry, the search for updates and Ray's statistics are switched off before anything is imported.
"""

from __future__ import annotations

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.setdefault("OMP_NUM_THREADS", "1")

import logging
import time
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional

from benchmarks.rivals.job import Job, say
from benchmarks.rivals.networks import network, tensors

logging.getLogger("flwr").setLevel(logging.ERROR)


def client_app(job: Job) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = network(job.model)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
        x, y = tensors(int(context.node_config["partition-id"]), job.records, job.shape)
        for batch in torch.randperm(len(x)).split(job.batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


class Timed(FedAvg):
    """FedAvg that notes when each round's clients were asked and when their replies were averaged."""

    def __init__(self, clients: int) -> None:
        super().__init__(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        self.seconds: list[float] = []

    def configure_train(self, server_round: int, *rest: object) -> Iterable[Message]:
        self._began = time.perf_counter()
        return super().configure_train(server_round, *rest)  # type: ignore[arg-type]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> object:
        found = list(replies)
        result = super().aggregate_train(server_round, found)
        self.seconds.append(time.perf_counter() - self._began)
        if len(found) != self.min_train_nodes or any(reply.has_error() for reply in found):
            raise SystemExit(f"only {sum(not reply.has_error() for reply in found)} clients answered")
        return result


def server_app(job: Job, strategy: Timed) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord(network(job.model).state_dict())
        strategy.start(grid=grid, initial_arrays=start, num_rounds=job.rounds)

    return app


def main() -> None:
    job = Job.from_command_line()
    strategy = Timed(job.clients)
    backend = {
        "init_args": {"num_cpus": job.processes, "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(
        server_app=server_app(job, strategy),
        client_app=client_app(job),
        num_supernodes=job.clients,
        backend_config=backend,
    )
    say(strategy.seconds)


if __name__ == "__main__":
    main()
