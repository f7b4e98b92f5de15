"""Coordinators that tests start have the key that tests' clients agreed to."""

import pytest

from sordino.wire.signing import SigningKey
from tests.client import people


@pytest.fixture(autouse=True)
def known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is made now is the one that everybody knows."""
    monkeypatch.setattr(SigningKey, "new", classmethod(lambda _: people.KEY))
