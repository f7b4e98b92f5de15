"""A ledger of one data set, with a budget that its tests may set."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.privacy.guarantee import Budget
from sordino.privacy.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def limit() -> float:
    """Of the budget; a file of tests that spends more has its own."""
    return 1.0


@pytest.fixture
def ledger(path: Path, limit: float) -> Iterator[Ledger]:
    with Ledger.create(path) as made:
        made.set_budget("wards", Budget(limit=limit))
        yield made
