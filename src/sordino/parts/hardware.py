"""What there is to compute on, as far as it is known, or refused, before PyTorch, which takes seconds, is loaded."""

from __future__ import annotations

import os
import re

from sordino.errors import InvalidInput


def check_device(name: str) -> None:
    """Refuse a text that names no device."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]+(,[0-9]+)*)?", name):
        raise InvalidInput(f"unknown device {name!r}: allowed are cpu, cuda and cuda:N, or cuda:N,M for several GPUs")
    numbers = name.partition(":")[2].split(",")
    if len(set(numbers)) < len(numbers):
        raise InvalidInput(f"{name!r} names a GPU twice: name each once; several workers may share it")


def check_workers(asked: int | None) -> None:
    """Refuse a number of processes that is none; None leaves the number open."""
    if asked is not None and asked < 1:
        raise InvalidInput(f"workers must be at least 1, got {asked}")


def compute_in_one_thread() -> None:
    """Let numpy, once it is loaded, start no threads of its own: a process that has none can be copied as a worker.

    One that is asked for more by its environment has them.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))


def cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__all__ = ["check_device", "check_workers", "compute_in_one_thread", "cores"]
