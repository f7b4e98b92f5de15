"""How a model is computed on this machine: loop or stacked, how many clients at a time, how many processes.

The choice is measured once per model, batch and machine and kept in the user's cache, so that later runs make the same
one: a loop and stacked clients agree to rounding only. Short runs do not measure.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import sordino
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.workers import starts_at_once
from sordino.learning.datasets import cache_folder
from sordino.learning.models import parameter_layout
from sordino.learning.stacked_model import Execution, choose_width
from sordino.parts.hardware import check_device, check_workers, cores
from sordino.storage.files import write_whole

WORTH_MEASURING = 1e9  #: records times parameters of a whole run: below it, a second of measuring does not repay
WORTH_MEASURING_GPU = 1e12  #: the same on a GPU, where trying numbers of workers takes ten seconds
WORTH_WORKERS = 1e9  #: below it, starting processes takes longer than it saves
WORTH_COPIES = 3e7  #: the same where they are copies of this one, which are there at once
WORTH_DOUBLING = 0.9  #: twice the workers of a GPU must take less than this share of the time
GPU_WIDTH = 128

V = TypeVar("V")


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for PyTorch in this process: with more, threads, workers and clients would fight for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def devices_for(name: str) -> tuple[torch.device, ...]:
    """The devices of that name (`cuda:0,1` names two); refused where they are not there."""
    check_device(name)
    kind, _, numbers = name.partition(":")
    devices = [torch.device(f"{kind}:{number}") for number in numbers.split(",") if number] or [torch.device(kind)]
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("a GPU was asked for, but PyTorch finds none here: use --device cpu")
    if kind == "cuda" and (absent := [d for d in devices if (d.index or 0) >= torch.cuda.device_count()]):
        there = torch.cuda.device_count()
        raise InvalidInput(f"{absent[0]} was asked for, but PyTorch finds {there} GPUs here, from cuda:0 on")
    return tuple(devices)


def workers_for(
    asked: int | None,
    devices: Sequence[torch.device],
    effort: float,
    clients: int,
    share: Callable[[], int] = lambda: 1,
) -> int:
    """How many processes: as asked, else `share()` on each GPU, or one per core where the work repays their start."""
    check_workers(asked)
    if asked is not None:
        return asked
    if devices[0].type != "cpu":
        each = share() if effort >= WORTH_MEASURING_GPU else 1
        return max(1, min(each * len(devices), clients))
    worth = WORTH_COPIES if starts_at_once(devices[0]) else WORTH_WORKERS
    return 1 if effort < worth else max(1, min(cores(), clients))


def gpu_share(key: str, seconds: Callable[[int], float], most: int) -> int:
    """How many workers of one GPU are fastest, by the seconds that so many take: measured once, doubling while it pays.

    `key` names what is computed, and on what.
    """

    def measure() -> int:
        share, fastest = 1, seconds(1)
        while 2 * share <= most and (faster := seconds(2 * share)) < WORTH_DOUBLING * fastest:
            share, fastest = 2 * share, faster
        return share

    return _once("gpu-workers.json", key, int, measure)


def execution_for(model: nn.Module, batch_shape: tuple[int, ...], effort: float, device: torch.device) -> Execution:
    """How to compute this model on batches of this shape."""
    if device.type == "cuda":
        return Execution(GPU_WIDTH)
    if effort < WORTH_MEASURING:
        return Execution()
    key = execution_key(model, batch_shape)
    return _once("execution.json", key, lambda found: Execution(**found), lambda: choose_width(model, batch_shape))


def execution_key(model: nn.Module, batch_shape: tuple[int, ...], *more: object) -> str:
    """A name for this model on batches of this shape, on this machine."""
    layout = parameter_layout(model)
    versions = (sordino.__version__, torch.__version__, platform.processor())
    text = repr((str(model), layout.names, layout.shapes, batch_shape, *versions, *more))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _once(name: str, key: str, read: Callable[[Any], V], measure: Callable[[], V]) -> V:
    """What an earlier run measured and left in a file of the user's cache, else what is measured now."""
    path = cache_folder() / name
    known = _read(path, read)
    if key not in known:
        known[key] = measure()
        _write(path, known)
    return known[key]


def _read(path: Path, read: Callable[[Any], V]) -> dict[str, V]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: read(value) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, SordinoError):
        return {}  # a cache that cannot be read is measured again


def _write(path: Path, known: dict[str, V]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(known, indent=1, default=asdict).encode())
    except (OSError, SordinoError):
        return  # the choice still holds for this run, and its checkpoint keeps it


__all__ = ["devices_for", "execution_for", "execution_key", "gpu_share", "one_thread", "workers_for"]
