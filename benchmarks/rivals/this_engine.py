"""This engine on the same job: a recipe, `sordino.run`, and the seconds that it notes for each round."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.rivals.job import CLASSES, MEAN, STD, Job, pixels, say
from sordino import Recipe, run

OPTIONS = {"ldp-fed": {"norm": "group"}}


def recipe(job: Job, data: Path) -> Recipe:
    return Recipe.from_dict(
        {
            "name": "benchmark",
            "data": {
                "source": str(data),
                "classes": [str(label) for label in range(CLASSES)],
                "mean": [MEAN],
                "std": [STD],
            },
            "split": {"kind": "iid", "clients": job.clients},
            "model": {"name": job.model, **({"options": OPTIONS[job.model]} if job.model in OPTIONS else {})},
            "training": {"epochs": 1, "batch_size": job.batch, "optimizer": {"name": "sgd", "lr": job.lr}},
            "method": {"name": "fedavg", "mechanism": {"name": "none"}},
            "rounds": {"count": job.rounds},
            "evaluation": {"every": job.rounds + 1},
        }
    )


def write_records(job: Job, path: Path) -> int:
    """All clients' records in one file, as an engine would be given them; the number of bytes they take."""
    found = [pixels(client, job.records) for client in range(job.clients)]
    x, y = np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])
    np.savez(path, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    return x.nbytes + y.nbytes


def main() -> None:
    job = Job.from_command_line()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "records.npz"
        size = write_records(job, data)
        # A single round is left to the engine's own choice: so short a job may not repay the start of workers.
        outcome = run(recipe(job, data), workers=None if job.rounds == 1 else job.processes)
    say([record.seconds for record in outcome.rounds], data_bytes=size)


if __name__ == "__main__":
    main()
