"""Where a privacy mod looks for its node's ledger: in one folder, whatever folder Flower started the app in."""

from pathlib import Path

import pytest

from sordino.errors import LedgerUnavailable
from sordino.flower.ledger_place import ledger_of, ledgers_folder
from sordino.privacy.guarantee import Budget
from sordino.privacy.ledger import Ledger


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SORDINO_LEDGERS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = tmp_path / ".sordino" / "ledgers"
    made.mkdir(parents=True)
    return made


def made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    with Ledger.create(path) as ledger:
        ledger.set_budget("records", Budget(1.0))
    return path


def test_a_relative_path_is_looked_for_in_the_users_folder(folder, monkeypatch, tmp_path):
    path = made(folder / "budget.db")
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "budget.db")  # where the app happens to run
    assert ledger_of("budget.db", {}, "records") == path


def test_another_folder_can_be_named(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("SORDINO_LEDGERS", str(tmp_path / "other"))
    assert ledgers_folder() == tmp_path / "other"
    path = made(tmp_path / "other" / "budget.db")
    assert ledger_of("budget.db", {}, "records") == path


def test_a_folder_has_a_ledger_for_each_node(folder):
    paths = [made(folder / "budgets" / f"{number}.db") for number in (0, 1, 10)]
    assert [ledger_of("budgets", {"partition-id": n, "num-partitions": 11}, "records") for n in (0, 1, 10)] == paths


def test_the_owners_word_counts_before_the_apps(folder, tmp_path):
    made(folder / "budgets" / "0.db")
    own = made(tmp_path / "clinic.db")
    assert ledger_of("budgets", {"partition-id": 0, "ledger": str(own)}, "records") == own
    assert ledger_of("budgets", {"ledger": "~/clinic.db"}, "records") == own


def test_a_single_ledger_needs_no_number(folder):
    path = made(folder / "budgets" / "clinic.db")
    assert ledger_of("budgets", {}, "records") == path


def test_a_missing_ledger_is_named_with_its_folder_and_the_command(folder):
    with pytest.raises(LedgerUnavailable) as caught:
        ledger_of("none", {"partition-id": 3}, "ward")
    said = str(caught.value)
    assert f"folder {folder}" in said and f"sordino ledger budget {folder / 'none'} ward --epsilon" in said
    made(folder / "budgets" / "0.db")
    with pytest.raises(LedgerUnavailable) as caught:
        ledger_of("budgets", {"partition-id": 3}, "ward")
    assert f"sordino ledger budget {folder / 'budgets'} ward --epsilon E --nodes 4" in str(caught.value)


def test_which_of_several_is_never_guessed(folder):
    for number in range(2):
        made(folder / "budgets" / f"{number}.db")
    with pytest.raises(LedgerUnavailable, match="2 ledgers"):
        ledger_of("budgets", {}, "records")
    with pytest.raises(LedgerUnavailable, match="2 ledgers"):
        ledger_of("budgets", {"partition-id": "../0"}, "records")
