"""This engine on the same job: a recipe, `sordino.run`, and the seconds that it notes for each round."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
                "mean": [MEAN] * job.shape[0],
                "std": [STD] * job.shape[0],
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
    """All clients' records in one file, as an engine would be given them; the number of bytes they take.

    They are written client by client: memory is for the engine to use.
    """

    def pieces(part: int, clients: int) -> Iterator[NDArray[np.generic]]:
        return (pixels(client, job.records, job.shape)[part] for client in range(clients))

    few = min(job.clients, 10)
    parts = {
        "x_train": ((job.clients * job.records, *job.shape), np.uint8, pieces(0, job.clients)),
        "y_train": ((job.clients * job.records,), np.int64, pieces(1, job.clients)),
        "x_test": ((few * job.records, *job.shape), np.uint8, pieces(0, few)),
        "y_test": ((few * job.records,), np.int64, pieces(1, few)),
    }
    size = 0
    with zipfile.ZipFile(path, "w") as archive:
        for name, (shape, kind, values) in parts.items():
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for piece in values:
                    file.write(piece.tobytes())
                    size += piece.nbytes if name.endswith("_train") else 0
    return size


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
