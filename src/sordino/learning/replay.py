"""A step recorded once on a GPU and replayed: one launch instead of hundreds.

A step of a small network is some two hundred kernels of a few microseconds each, and starting them takes the processor
longer than running them takes the GPU. A CUDA graph keeps the whole step: its inputs are copied to fixed places, the
graph is started, and its outputs are read from fixed places.

A step is recorded when its shape comes for the second time. Clients share nothing, so the rows of a recording beyond
those that are asked for may hold anything: row counts are rounded up, and one recording serves several of them. What
cannot be recorded (a model that waits for the GPU in its code) is computed launch by launch, as anywhere else.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sordino.parts.timeline import phase

Output = Tensor | Sequence[Tensor]  #: `[w, ...]`, or pieces `[w, n_i]` of one output `[w, n]`
Step = Callable[[Sequence[Tensor]], Sequence[Output]]  #: inputs `[w, ...]` to outputs
Shape = tuple[tuple[tuple[int, ...], torch.dtype], ...]
Key = tuple[int, bool, Shape]

EXACT = 8  #: so few rows may each be a large network: none is computed for nothing
MOST = 128  #: recordings that one model may keep
HOME = -(2**31)  #: the slot of a first input that stays where it is


class Replayer:
    """The recordings of one step function on one GPU; outputs are valid until the next call.

    The function is handed in with every call and is always the same: kept here, it would tie its owner and the
    recordings into a circle, which is taken apart at any time, and graphs must not be while another one is recorded.
    """

    def __init__(self) -> None:
        self._seen: set[Key] = set()
        self._recordings: dict[Key, _Recording] = {}
        self._home: Tensor | None = None
        self._places: dict[tuple[int, tuple[int, ...], torch.dtype], Tensor] = {}
        self._pool: Any = None
        self._possible = True

    def home(self, values: Tensor) -> Tensor:
        """A copy of the values which, as a first input, need not be copied; the next one may take its place."""
        self._home = self._place(HOME, rounded(len(values)), values)[: len(values)].copy_(values)
        return self._home

    def run(self, step: Step, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of the step; inputs that it changes in place must be among them."""
        rows, at_home = len(inputs[0]), inputs[0] is self._home
        key = rounded(rows), at_home, tuple((tuple(value.shape[1:]), value.dtype) for value in inputs)
        places = [
            self._place(HOME if at_home and not slot else slot, key[0], value) for slot, value in enumerate(inputs)
        ]
        if key not in self._recordings and not self._record(step, key, places):
            # With as many rows as a recording has: libraries choose their kernels, and with them last bits, by that.
            return _filled(places, inputs, rows, lambda: tuple(_joined(value) for value in step(places)))
        recording = self._recordings[key]
        return _filled(recording.inputs, inputs, rows, recording.replay)

    def _record(self, step: Step, key: Key, places: Sequence[Tensor]) -> bool:
        first = key not in self._seen
        self._seen.add(key)
        if first or not self._possible or len(self._recordings) >= MOST:
            return False
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with phase("record steps"):
                self._recordings[key] = _Recording(self._to_places(step), places, self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # Whatever waits for the GPU, or copies from the processor's memory, cannot be part of a graph.
            self._possible = False
            torch.cuda.synchronize(places[0].device)
        return self._possible

    def _to_places(self, step: Step) -> Step:
        """The step with its outputs in shared memory too: a gradient for each recording would be too much to keep."""

        def placed(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(self._kept(~slot, value) for slot, value in enumerate(step(inputs)))

        return placed

    def _kept(self, slot: int, value: Output) -> Tensor:
        if isinstance(value, Tensor):
            return self._place(slot, len(value), value).copy_(value)
        widths = [piece.shape[1] for piece in value]
        place = self._place(slot, len(value[0]), value[0].new_empty(0, sum(widths)))
        for part, piece in zip(torch.split(place, widths, dim=1), value, strict=True):
            part.copy_(piece)
        return place

    def _place(self, slot: int, rows: int, like: Tensor) -> Tensor:
        """Memory for one input or output, shared by all recordings: `[rows, ...]` of an array as long as any so far."""
        key = slot, tuple(like.shape[1:]), like.dtype
        if key not in self._places or len(self._places[key]) < rows:
            self._places[key] = like.new_zeros(rows, *like.shape[1:])
        return self._places[key][:rows]


def rounded(rows: int) -> int:
    """The row count that is computed for so many rows: few as they are, or one of sixteen from 2^k to 2^(k + 1)."""
    if rows <= EXACT:
        return rows
    unit = max(4, (1 << (rows - 1).bit_length()) // 32)
    return -(-rows // unit) * unit


def _joined(value: Output) -> Tensor:
    return value if isinstance(value, Tensor) else torch.cat(list(value), dim=1)


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Where steps are recorded: the libraries keep working memory for every stream they have seen, so it is one."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Recording:
    """One step of fixed shapes and places."""

    def __init__(self, step: Step, inputs: Sequence[Tensor], pool: Any) -> None:
        self.inputs = inputs
        self._graph = torch.cuda.CUDAGraph()
        stream = _recording_stream(inputs[0].device)
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream), _no_collection():
            # Only this thread is held to what a graph allows: others may go on using the GPU meanwhile.
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._outputs = tuple(_joined(value) for value in step(inputs))
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream(stream.device).wait_stream(stream)

    def replay(self) -> tuple[Tensor, ...]:
        self._graph.replay()
        return self._outputs


def _filled(
    places: Sequence[Tensor], inputs: Sequence[Tensor], rows: int, compute: Callable[[], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """What is computed from the places once the inputs have been copied there: the rows that were asked for."""
    for place, value in zip(places, inputs, strict=True):
        if place.data_ptr() != value.data_ptr():
            place[:rows].copy_(value)
    return tuple(value[:rows] for value in compute())


@contextmanager
def _no_collection() -> Iterator[None]:
    """A collector that took an unused graph apart now would spoil the one being recorded."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


__all__ = ["Replayer", "rounded"]
