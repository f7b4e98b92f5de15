"""Starts clients that are killed at given steps (`tests.client.lives`) and gathers what became of them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sordino.client.client import Client
from sordino.privacy.history import ranges
from sordino.privacy.ledger import Ledger, Released
from sordino.runs.federation import Federation
from tests.client import people

ROOT = Path(__file__).parent.parent.parent


class Mortals:
    """One client for each part of a federation's data, all of them joined; a context manager."""

    def __init__(
        self,
        place: Path,
        federation: Federation,
        deaths: Mapping[int, Sequence[tuple[str, str]]] | None = None,
        seed: int | None = None,
        **tables: Any,
    ) -> None:
        self.place, self.sockets = place, dict[int, Path]()
        specification = []
        for number, part in enumerate(federation.parts):
            if not self.folder(number).exists():
                people.client(self.folder(number), people.settings(ranges(part), **tables)).close()
            self.sockets[number] = place / f"{number}.sock"
            specification.append(
                {
                    "folder": str(self.folder(number)),
                    "socket": str(self.sockets[number]),
                    "number": number,
                    "seed": seed,
                    "deaths": (deaths or {}).get(number, []),
                    "deadly": str(place / "deadly"),
                }
            )
        (place / "lives.json").write_text(json.dumps(specification))
        self._process: subprocess.Popen[str] | None = None
        self.died: list[tuple[int, int]] = []  #: client, life: known when all is over

    def let_die(self) -> None:
        """Until this is said, nobody is killed."""
        (self.place / "deadly").touch()

    def folder(self, number: int) -> Path:
        return self.place / f"client{number}"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.lives", str(self.place / "lives.json")],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        said, _ = self._process.communicate("", timeout=120)
        self.died = [(each["client"], each["life"]) for each in map(json.loads, said.splitlines())]
        if error is None:
            assert self._process.returncode == 0

    def reports(self, number: int) -> dict[int, bytes]:
        """The reports in a client's ledger, by round; every round once."""
        with Ledger.open(self.folder(number) / "ledger.sqlite") as ledger:
            keys = [entry.event.key for entry in ledger.entries() if isinstance(entry.event, Released)]
            assert len({key.round for key in keys}) == len(keys)
            return {key.round: ledger.replay(key) or b"" for key in keys}

    def spent(self, number: int) -> float:
        with Client.open(self.folder(number)) as client:
            return client.standing.spent
