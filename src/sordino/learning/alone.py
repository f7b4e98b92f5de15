"""One record at a time: what a record gives has the same bits, whatever was computed before it and beside it.

PyTorch's last bits depend on where an array lies in memory (on AMD's processors, on its address modulo 64 bytes), on
the number of threads and on other state of the process. A record that is removed moves the rows behind it, and code
that a record reaches may change that state. So every record is copied to an array of its own, which PyTorch begins at a
multiple of 64 bytes, as it does weights and intermediate results. Before each record, the state below and the module
that computes are put to what they are before every other one. The first product for a shape and later ones have the
same bits. Tests: tests/learning/test_alone.py.

What other code keeps elsewhere cannot be put back: lists, globals, files, memory that nobody wrote. That it keeps
nothing is for its owner to declare.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ALIGNMENT = 64  #: bytes; PyTorch's own arrays begin at multiples of it

Compute = Callable[..., Any]  #: (function, tensors of a record) -> what the function gives
State = tuple[
    tuple[Callable[[], Any], Callable[[Any], object], Any], ...
]  #: how each part is read and set, and to what


def _flushes() -> bool:
    """True if this thread takes numbers below the smallest normal one for 0."""
    return sys.float_info.min / 2 == 0.0


def _default_device() -> torch.device | None:
    """None for the processor: naming it would cost time in every call."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _precision() -> str:
    """How products of float32 are rounded; PyTorch does not say where single backends were set."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"


OF_THREAD: State = (
    (_flushes, torch.set_flush_denormal, False),
    (torch.is_grad_enabled, torch.set_grad_enabled, True),
    (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu"), False),
    (_default_device, torch.set_default_device, None),
)
OF_PROCESS: State = (
    (torch.get_num_threads, torch.set_num_threads, 1),
    (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    (_precision, torch.set_float32_matmul_precision, "highest"),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, True),
)
#: what code may draw from, and how it begins before every record
GENERATORS: State = (
    (torch.get_rng_state, torch.set_rng_state, partial(torch.default_generator.manual_seed, 0)),
    (np.random.get_state, np.random.set_state, partial(np.random.seed, 0)),
    (random.getstate, random.setstate, partial(random.seed, 0)),
)


class Alone:
    """`with Alone(module) as compute:` gives `compute(function, *tensors)`, for one record after another.

    Before each, tensors and attributes of `module` are what they were when this was made. Afterwards all is as before.
    """

    _lock = threading.Lock()
    _inside = 0  #: how many threads are at it; the last to leave puts back what they share
    _shared: tuple[Callable[[], object], ...] = ()

    def __init__(self, module: nn.Module | None = None) -> None:
        parts = () if module is None else tuple(module.modules())
        own = [each for part in parts for each in (part.__dict__, part._parameters, part._buffers)]
        self._attributes = [(each, dict(each)) for each in own if isinstance(each, dict)]  # TorchScript has no others
        tensors = () if module is None else chain(module.parameters(), module.buffers())
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._own: tuple[Callable[[], object], ...] = ()

    def __enter__(self) -> Compute:
        self._own = _kept(OF_THREAD)
        with Alone._lock:
            if not Alone._inside:
                Alone._shared = _kept((*OF_PROCESS, *GENERATORS))
            Alone._inside += 1
        self._begin()
        return self._of_record

    def __exit__(self, *raised: object) -> None:
        self._put_back()
        with Alone._lock:
            Alone._inside -= 1
            if not Alone._inside:
                _call(Alone._shared)
        _call(self._own)

    def _of_record(self, function: Compute, *tensors: Tensor) -> Any:
        """What a function gives for copies of a record's tensors."""
        self._begin()
        try:
            return function(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors))
        finally:
            _settle()

    def _begin(self) -> None:
        _settle()
        for _, _, begin in GENERATORS:
            begin()
        self._put_back()

    def _put_back(self) -> None:
        for attributes, first in self._attributes:
            attributes.clear()
            attributes.update(first)
        with torch.no_grad():
            for tensor, values in self._tensors:
                tensor.copy_(values)


def _settle() -> None:
    for _, put, value in (*OF_THREAD, *OF_PROCESS):
        put(value)


def beside(function: Compute, *tensors: Tensor) -> Any:
    """What a function gives for several records at once, where they lie: for simulations, and what is exact anyway."""
    return function(*tensors)


def _kept(state: State) -> tuple[Callable[[], object], ...]:
    """Calls that put this state back to what it is now."""
    return tuple(partial(put, read()) for read, put, _ in state)


def _call(each: tuple[Callable[[], object], ...]) -> None:
    for put in each:
        put()


__all__ = ["ALIGNMENT", "GENERATORS", "OF_PROCESS", "OF_THREAD", "Alone", "Compute", "beside"]
