"""A federation on sockets that is held after some round, so that one can look at its live view."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sordino.fleets.sockets import SocketFleet
from sordino.recipe import Recipe
from sordino.runs.observer import Observer
from sordino.runs.serving import CoordinatorSetup, serve
from sordino.web.access import read_tokens
from sordino.web.live_server import serve_live
from sordino.web.watched_run import WatchedRun
from sordino.wire.messages import Plan, answer_to
from sordino.wire.requests import Request, Response, send
from tests.client import people
from tests.client.people import NAME
from tests.survival.unruly import Behaviour, clients

NAMES = ("clinic-a", "clinic-b", "clinic-c")
SECRET = "no more from /srv/clinic-c"


def declining(connection: socket.socket, request: Request, response: Response) -> None:
    plan = Plan.decode(people.unsigned(request.payload))
    send(connection, Response(False, answer_to(plan, None), SECRET).encode())


class Held(Observer):
    """Stops a run after some round until it is let go, or for good."""

    def __init__(self, after: int, error: type[BaseException] | None = None) -> None:
        self._after, self._error = after, error
        self.reached, self.go_on = threading.Event(), threading.Event()

    def started(self, federation: Any, preflight: Any, first: int) -> None:
        self._wait(0)

    def round(self, record: Any, attendance: Any) -> None:
        self._wait(record.round)

    def _wait(self, round: int) -> None:
        if round == self._after:
            self.reached.set()
            if self._error is not None:
                raise self._error
            assert self.go_on.wait(30)


class Stage:
    """A federation on sockets whose run goes on in a thread, and its live view."""

    def __init__(self, recipe: Recipe, place: Path, tokens: Path | None, held: Held) -> None:
        self.recipe, self.place, self.held = recipe, place, held
        self.watched = WatchedRun(recipe, lambda number: NAMES[number], federation=NAME)
        self.view = serve_live(self.watched, tokens=tokens)
        self.ended: object = None

    def carry_out(self, *, resume: bool = False) -> None:
        fleet = SocketFleet({k: self.place / f"{k}.sock" for k in range(3)}, patience=5)
        observers = [self.watched, self.held]
        self.ended = serve(
            self.recipe, fleet, self.place / "run", CoordinatorSetup(NAME), resume=resume, observer=observers
        )


@contextmanager
def running(
    behaviours: dict[int, dict[int, Behaviour]], held: Held, tokens: Path | None = None, **changes: Any
) -> Iterator[tuple[Stage, int]]:
    """A run in a thread, up to where it is held; its port. At the end it is let go, and must finish."""
    recipe = people.recipe(changes)
    with clients(recipe, behaviours) as (place, _):
        stage = Stage(recipe, place, tokens, held)
        with stage.view as address:
            thread = threading.Thread(target=stage.carry_out)
            thread.start()
            try:
                assert held.reached.wait(20)
                yield stage, int(address.rpartition(":")[2])
            finally:
                held.go_on.set()
                thread.join(60)
        assert stage.ended is not None


def tokens_in(path: Path) -> dict[str, str]:
    """Tokens by role, or by the member whose own it is."""
    return {one.member or str(one.role): one.token for one in read_tokens(path)}
