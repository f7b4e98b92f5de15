"""Coordinators that tests start have the key that tests' clients agreed to."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sordino.wire.signing import SigningKey
from tests.client import people

if TYPE_CHECKING:
    from tests.flower.machines import Machines


@pytest.fixture(autouse=True)
def known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is made now is the one that everybody knows."""
    monkeypatch.setattr(SigningKey, "new", classmethod(lambda _: people.KEY))


@pytest.fixture
def machines() -> "Iterator[Machines]":
    """A place with a short name: paths of sockets have about a hundred letters. Nothing is left running."""
    from tests.flower.machines import Machines

    place = Path(tempfile.mkdtemp(prefix="sfl-"))
    made = Machines(place / "demo")
    try:
        yield made
    finally:
        made.end()
        left = made.left()
        shutil.rmtree(place)
        assert not left
