"""How a model is computed on this machine: loop or stacked, how many clients at a time, how many processes.

The choice is measured once per model, batch and machine and kept in the user's cache, so that later runs make the same
one: a loop and stacked clients agree to rounding only. Short runs do not measure.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

import sordino
from sordino.errors import InvalidInput, SordinoError
from sordino.learning.datasets import cache_folder
from sordino.learning.models import parameter_layout
from sordino.learning.stacked_model import Execution, choose_width
from sordino.parts.hardware import check_device, check_workers, cores
from sordino.storage.files import write_whole

WORTH_MEASURING = 1e9  #: records times parameters of a whole run: below it, a second of measuring does not repay
WORTH_WORKERS = 1e9  #: below it, starting processes takes longer than it saves
GPU_WIDTH = 128


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for PyTorch in this process: with more, threads, workers and clients would fight for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_for(name: str) -> torch.device:
    """The device of that name; refused where there is none."""
    check_device(name)
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("a GPU was asked for, but PyTorch finds none here: use --device cpu")
    return device


def workers_for(asked: int | None, device: torch.device, effort: float, clients: int) -> int:
    """How many processes: as asked, else one on a GPU, or one per core where the work repays their start."""
    check_workers(asked)
    if asked is not None:
        return asked
    if device.type != "cpu" or effort < WORTH_WORKERS:
        return 1
    return max(1, min(cores(), clients))


def execution_for(model: nn.Module, batch_shape: tuple[int, ...], effort: float, device: torch.device) -> Execution:
    """How to compute this model on batches of this shape."""
    if device.type == "cuda":
        return Execution(GPU_WIDTH)
    if effort < WORTH_MEASURING:
        return Execution()
    path = cache_folder() / "execution.json"
    key = _key(model, batch_shape)
    known = _read(path)
    if key not in known:
        known[key] = choose_width(model, batch_shape)
        _write(path, known)
    return known[key]


def _key(model: nn.Module, batch_shape: tuple[int, ...]) -> str:
    layout = parameter_layout(model)
    versions = (sordino.__version__, torch.__version__, platform.processor())
    text = repr((str(model), layout.names, layout.shapes, batch_shape, *versions))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, Execution]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: Execution(**value) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, SordinoError):
        return {}  # a cache that cannot be read is measured again


def _write(path: Path, known: dict[str, Execution]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(known, indent=1, default=asdict).encode())
    except (OSError, SordinoError):
        return  # the choice still holds for this run, and its checkpoint keeps it


__all__ = ["device_for", "execution_for", "one_thread", "workers_for"]
