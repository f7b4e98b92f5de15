"""Apple's pfl-research: FederatedAveraging on its SimulatedBackend, in processes joined by torch.distributed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from itertools import pairwise

os.environ.setdefault("OMP_NUM_THREADS", "1")

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def start_others(processes: int) -> list[subprocess.Popen[bytes]]:
    """This program again for ranks 1, 2, ...; this process is rank 0."""
    addresses = ",".join([f"localhost:{free_port()}"] * processes)
    os.environ |= {ADDRESSES: addresses, RANK: "0"}
    again = [sys.executable, "-m", "benchmarks.rivals.pfl_job", *sys.argv[1:]]
    return [subprocess.Popen(again, env=os.environ | {RANK: str(k)}) for k in range(1, processes)]


def run() -> None:
    # Imported here: pfl joins its processes while it is imported, so their addresses must be known by then.
    import time
    from typing import Any

    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from torch import Tensor, nn
    from torch.nn import functional

    from benchmarks.rivals.job import Job, say
    from benchmarks.rivals.networks import network, tensors

    class WithLoss(nn.Module):
        """A network as pfl wants it, with its loss and its metrics."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(self(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            with torch.no_grad():
                return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}

    class Clock(TrainingProcessCallback):
        """When each central iteration ended; the first began when training did."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_train_begin(self, *, model: Any) -> Metrics:
            self.ends.append(time.perf_counter())
            return Metrics()

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            self.ends.append(time.perf_counter())
            return False, Metrics()

    torch.set_num_threads(1)
    job = Job.from_command_line()
    records: dict[int, tuple[Tensor, Tensor]] = {}

    def dataset(user: int) -> Dataset:
        if user not in records:
            records[user] = tensors(user, job.records, job.shape)
        return Dataset(raw_data=list(records[user]), user_id=str(user))

    model = WithLoss(network(job.model))
    clock = Clock()
    users = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(job.clients))))
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=10**9,  # the first round is evaluated all the same
            train_cohort_size=job.clients,
            val_cohort_size=None,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if os.environ.get(RANK, "0") == "0":
        say([after - before for before, after in pairwise(clock.ends)])


def main() -> None:
    processes = int(sys.argv[sys.argv.index("--processes") + 1]) if "--processes" in sys.argv else 2
    others = start_others(processes) if RANK not in os.environ and processes > 1 else []
    run()
    for other in others:
        if other.wait():
            raise SystemExit(f"a worker of pfl ended with exit code {other.returncode}")


if __name__ == "__main__":
    main()
