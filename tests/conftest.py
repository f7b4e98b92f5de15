"""What must hold in every process that runs tests, before anything else is loaded; and which layer each test is in."""

from __future__ import annotations

import gc
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

# Nothing looks for garbage among what is loaded, now or later: that takes a third of the time to collect the tests.
gc.disable()

# Hypothesis draws the same examples on every run, and slow machines do not fail tests.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.load_profile("fixed")

# Kernels for GPUs are interpreted where there is no GPU: Triton wants to know that before it is loaded.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Started in the background of a script, a process ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Python asks a command for the processor's name once; the first test that wants it is not to blame.
platform.processor()

# --- layers -----------------------------------------------------------------------------------------------------------

TESTS = Path(__file__).parent
LAYERS = ("unit", "process", "network", "browser")

#: The layer of a folder or file below tests/. The longest path that fits decides; what fits none is `unit`.
PLACES = {
    "audits": "process",
    "browser": "browser",
    "client": "network",
    "client/test_attacks.py": "unit",
    "client/test_evaluation.py": "unit",
    "client/test_fuzz.py": "process",
    "client/test_wire.py": "unit",
    "engine": "process",
    "ecosystem": "process",
    "examples": "process",
    "flower": "network",
    "flower/test_roster.py": "unit",
    "learning/test_cohort.py": "process",
    "learning/test_gpu_kernels.py": "process",
    "learning/test_integer_sums.py": "process",
    "learning/test_replay.py": "process",
    "learning/test_scattering.py": "process",
    "learning/test_simulation_benchmark.py": "process",
    "mechanisms/test_mechanism_audits.py": "process",
    "mechanisms/test_per_value_losses.py": "process",
    "methods": "process",
    "privacy/test_ledger_crash.py": "process",
    "ray": "network",
    "shuffler": "network",
    "shuffler/test_envelopes.py": "unit",
    "shuffler/test_page.py": "unit",
    "shuffler/test_store.py": "unit",
    "survival": "network",
    "test_cli_attack.py": "process",
    "test_cli_audit.py": "process",
    "test_cli_model.py": "process",
    "test_cli_run.py": "process",
    "test_docs.py": "process",
    "test_reproduce.py": "process",
    "test_reproduce_orderings.py": "process",
    "test_reproduce_own.py": "process",
    "test_reproduce_webfed.py": "process",
    "test_site.py": "process",
    "test_wheel.py": "process",
    "web": "network",
}


def place_of(path: Path) -> str:
    """The layer of a file's place."""
    inside = path.relative_to(TESTS)
    places = [inside, *inside.parents]
    return next((PLACES[str(place)] for place in places if str(place) in PLACES), "unit")


def layers_of(item: pytest.Item) -> list[str]:
    """The layers that a test is marked with."""
    return [mark.name for mark in item.iter_markers() if mark.name in LAYERS]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the layer of its place, unless it has a marker of its own.

    Files with tests that wait for processes come first: others compute meanwhile, and no long one is left for the end.
    """
    place = cache(place_of)
    for item in items:
        if not layers_of(item):
            item.add_marker(place(item.path))
    items.sort(key=lambda item: -LAYERS.index(place(item.path)))


def pytest_collection_finish() -> None:
    """Look for garbage from here on, but not among modules and tests."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let Python end as it does elsewhere: libraries complain of what is never freed."""
    gc.unfreeze()


#: how a test leaves its process, as Python's audit events name it
WAYS_OUT = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind", "socket.connect"}
left_by: set[str] = set()  #: those that the running test has used


def _notice(event: str, _: tuple[Any, ...]) -> None:
    if event in WAYS_OUT and threading.current_thread() is threading.main_thread():  # others may be an earlier test's
        left_by.add(event)


sys.addaudithook(_notice)


@pytest.fixture(autouse=True)
def inside_its_layer(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a unit test that starts a process or opens a socket."""
    left_by.clear()
    yield
    if left_by and layers_of(request.node) == ["unit"]:
        pytest.fail(f"a unit test must stay in its process, and this one used {', '.join(sorted(left_by))}")


@pytest.fixture(params=["complete", "sparse"])
def sum_graph(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Secure sums of a few clients by either protocol; on the sparse graph each draws all others, and half must stay.

    So few clients would draw nobody by the rule: no neighbourhood of theirs keeps the probability that it promises.
    """
    from sordino.channels.neighbours import Neighbourhood
    from sordino.channels.secure_sum import Summed

    def few(self: object, clients: int, upload: object, group: int) -> Neighbourhood:
        return Neighbourhood(clients - 1, (clients - 1) // 2 + 1)

    graph: str = request.param
    if graph == "sparse":
        monkeypatch.setattr(Summed.Spec, "neighbourhood", few)
    return graph
