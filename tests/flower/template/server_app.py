"""The template's server."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from tests.flower.template import task

app = ServerApp()
results = []


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(1)
    run = context.run_config
    strategy = FedAvg(fraction_train=run["fraction-train"])
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.Net().state_dict()),
        train_config=ConfigRecord({"lr": run["lr"]}),
        num_rounds=run["num-server-rounds"],
    )
    results.append(result)
