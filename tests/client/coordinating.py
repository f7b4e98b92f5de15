"""A coordinator's process that is killed at given steps of its first round and begins that round again.

    python -m tests.client.coordinating SPECIFICATION

The specification is JSON: `recipe` (TOML), `sockets` by client, `deaths` (pairs of a step and "before" or "after" its
exchange) and `out`. Each life ends at its death; the last one holds the round, writes its parameters to `out`.npy and
prints who was in it.
"""

import json
import os
import signal
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sordino import channels
from sordino.fleets.interface import Reply
from sordino.fleets.signatures import SignedFleet
from sordino.fleets.sockets import SocketFleet
from sordino.learning import datasets
from sordino.recipe import Recipe
from sordino.runs.coordinator import Coordinator
from sordino.runs.federation import wire
from tests.client.people import KEY, NAME, read_once, terms


class MortalFleet(SocketFleet):
    """A fleet whose coordinator is killed at one step."""

    death: tuple[str, str] | None = None

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        if self.death == (step, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        found = list(super().exchange(step, messages, deadline))
        if self.death == (step, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from found


def live(given: dict[str, Any], life: int) -> None:
    recipe = Recipe.from_toml(given["recipe"])
    method = wire(recipe).method
    fleet = MortalFleet({int(client): path for client, path in given["sockets"].items()}, patience=120.0)
    fleet.death = tuple(given["deaths"][life]) if life < len(given["deaths"]) else None
    channel = channels.build(recipe, method)
    signing = SignedFleet(fleet, KEY, terms(recipe).digest)
    state, held = Coordinator(method, signing, channel, NAME).round(method.init())
    np.save(given["out"], state.parameters)
    print(json.dumps({"reported": held.attendance.reported, "why_lost": held.why_lost}), flush=True)


def main(given: dict[str, Any]) -> None:
    datasets.load = read_once
    recipe = Recipe.from_toml(given["recipe"])
    channels.build(recipe, wire(recipe).method)  # loads what all lives need
    for life in range(len(given["deaths"]) + 1):
        child = os.fork()
        if child == 0:
            try:
                live(given, life)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) == (life < len(given["deaths"])), f"life {life} ended with {status}"


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
