"""What tests of the ledger put into it, and how they damage it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Pure, Release
from sordino.privacy.ledger import ReportKey


def pure(name: str, epsilon: float, dataset: str = "wards", what: str = "update") -> Release:
    return Release(name, dataset, what, (Guarantee(SERVER, Adjacency.CLIENT, Pure(epsilon), "by hand"),))


def key(round: int, plan: str = "ab", dataset: str = "wards", federation: str = "north") -> ReportKey:
    return ReportKey(dataset, federation, round, plan)


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def edit_behind_the_triggers(path: Path, *statements: str) -> None:
    """As a careful editor would: drop the triggers, edit, and put them back."""
    with closing(sqlite3.connect(path)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    edit(path, *(f"DROP TRIGGER {name}" for name, _ in triggers), *statements, *(sql for _, sql in triggers))
