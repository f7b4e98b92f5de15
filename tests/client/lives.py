"""Clients in processes of their own, which are killed at given steps and live again.

    python -m tests.client.lives SPECIFICATION

The specification is JSON: a list of clients, each with `folder`, `socket`, `number`, `seed` (a simulation's randomness;
null for the operating system's), `deadly` (a file without which nobody dies) and `deaths`: pairs of a step and "before"
(the request is not even looked at) or "after" (the answer is durable, and not sent). Each life ends at the first
request of its death's step; the life after the last death ends with this process, or with its standard input.
"""

import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sordino.client.client import Client
from sordino.client.socket_service import Service
from sordino.learning import datasets
from sordino.learning.stacked_model import LOOP, Execution
from sordino.wire.requests import Request, Response
from tests.client.people import NAME, client, invitation, read_once, recipe, seeded, settings


class MortalService(Service):
    """Serves until a step at which it is killed."""

    death: tuple[str, str] | None = None
    deadly: Path  #: there is no death before this file is

    def respond(self, request: Request) -> Response:
        if self.death is None or request.step != self.death[0] or not self.deadly.exists():
            return super().respond(request)
        if self.death[1] == "after":
            assert super().respond(request).fine
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")


def live(own: dict[str, Any], life: int) -> None:
    """One life, in a process of its own."""
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    injected = own["seed"] is not None
    randomness = seeded(own["seed"], own["number"]) if injected else None
    execution = Execution() if injected else LOOP
    with Client.open(own["folder"], randomness=randomness, execution=execution) as alive:
        service = MortalService(alive, own["socket"])
        service.deadly = Path(own["deadly"])
        service.death = tuple(own["deaths"][life]) if life < len(own["deaths"]) else None
        signal.signal(signal.SIGTERM, lambda *_: service.stop())
        service.serve()


def main(specification: list[dict[str, Any]]) -> None:
    datasets.load = read_once
    with tempfile.TemporaryDirectory() as folder:  # loads what all lives need
        own = client(Path(folder) / "first", settings(federations=[NAME]))
        own.join(invitation(recipe({"method.channel": {"kind": "summed"}})).encode())
        own.close()
    born: dict[int, int] = {}  # process -> which client
    lives = [0] * len(specification)

    def bear(k: int) -> None:
        child = os.fork()
        if child == 0:
            try:
                live(specification[k], lives[k])
            finally:
                os._exit(0)
        born[child] = k

    for k in range(len(specification)):
        bear(k)
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        while born and (dead := os.waitpid(-1, os.WNOHANG))[0]:
            k = born.pop(dead[0])
            assert os.WIFSIGNALED(dead[1]) and os.WTERMSIG(dead[1]) == signal.SIGKILL, "a client ended by itself"
            print(json.dumps({"client": specification[k]["number"], "life": lives[k]}), flush=True)
            lives[k] += 1
            bear(k)
    for child in born:
        os.kill(child, signal.SIGTERM)
    for child in born:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
