"""SIGKILL of coordinator and clients, all real processes, at fixed points of a run of 20 rounds."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from benchmarks import soak
from benchmarks.soak import Nursery, Troupe, problems, troupe

from sordino.client.client import Client
from sordino.client.invitation import CommonTerms
from sordino.learning import datasets
from sordino.privacy.ledger import Ledger, Released
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.runs.federation import Federation

COST = 650 * 1.0  #: epsilon of an upload against the server: one bit of epsilon 1 for each of 650 values

When = Callable[[Troupe], bool]
Schedule = list[tuple[When, list[str]]]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


def done(rounds: int) -> When:
    """So many rounds are over."""
    return lambda given: given.rounds() >= rounds


def planned(number: int) -> When:
    """The plan of a round is on disk, and about to be sent."""
    return lambda given: (given.run / f"checkpoint/plan-{number:06d}.bin").exists() or given.rounds() >= number


def computed(number: int) -> When:
    """The state after a round is on disk, and the round about to be made part of the run."""
    return lambda given: (given.run / f"checkpoint/state-{number:06d}.safetensors").exists() or given.rounds() >= number


def answered(client: int, number: int) -> When:
    """A client has recorded its answer, and is about to send it."""
    words = f"answered round {number} "
    return lambda given: words in (given.place / f"client{client}/log.txt").read_text()


def posted(client: int, number: int) -> When:
    """The shuffler has a client's report."""
    words = f"the shuffler has the report on round {number} "
    return lambda given: words in (given.place / f"client{client}/log.txt").read_text()


def graded(given: Troupe) -> bool:
    """All rounds are over, and the model is written; the page is not."""
    return (given.run / "model.safetensors").exists()


SCHEDULE: Schedule = [
    (planned(1), ["coordinator"]),
    (answered(1, 2), ["client1"]),
    (answered(2, 4), ["coordinator", "client2"]),
    (done(6), ["client0", "client1", "client2"]),
    (computed(8), ["coordinator"]),
    (done(10), ["coordinator", "client0", "client1", "client2"]),
    (planned(13), ["coordinator", "client1"]),
    (answered(0, 15), ["client0"]),
    (computed(17), ["coordinator"]),
    (answered(2, 19), ["client2", "coordinator"]),
    (graded, ["coordinator"]),
]


@contextmanager
def killed(nursery: Nursery, tables: dict[str, Any], schedule: Schedule) -> Iterator[tuple[Troupe, Federation]]:
    """A federation that is over, after everybody on the schedule was killed and started anew."""
    with troupe(Recipe.from_dict(tables), nursery) as given:
        parts = given.set_up()
        given.start_all()
        for when, victims in schedule:
            given.until(lambda when=when: when(given), 120)  # type: ignore[misc]
            given.kill(*victims)
            for who in victims:
                given.start(who)
        given.until(lambda: given.over and given.gone("coordinator"), 120)
        given.end()
        yield given, parts


def test_twenty_rounds_count_once_each_whoever_is_killed_when(nursery):
    with killed(nursery, soak.TABLES, SCHEDULE) as (given, parts):
        assert given.kills["coordinator"] >= 6 and all(given.kills[who] >= 2 for who in given.people), given.kills
        assert problems(given, parts) == []
        with closing(sqlite3.connect(given.run / "checkpoint/state.sqlite")) as journal:
            held = journal.execute("SELECT why_lost, reported FROM rounds").fetchall()
            assert held == [("", "0-2")] * 20
            assert journal.execute("SELECT max(sent) FROM plans").fetchone()[0] >= 2  # the same bytes again
            receipts = dict(journal.execute("SELECT client, receipt FROM receipts"))
        for number, name in enumerate(given.people):
            with Client.open(given.place / name) as client:
                assert client.standing.spent == pytest.approx(20 * COST)
                terms = CommonTerms.of(given.recipe, given.name, datasets.load("digits"), given.key.author)
                own = terms.invitation(number, given.key)
                client.join(
                    replace(own, receipt=receipts[number].hex()).encode()
                )  # no ledger is older than its receipt
        assert "The coordinator was started anew" in (given.run / "report.html").read_text()
        result = RunFolder.open(given.run).result()
        assert result is not None and result.rounds == 20 and result.stopped == "all 20 rounds are done"
        assert [budget.reports for budget in result.budgets] == [20, 20, 20]
        _spoiled_is_noticed(given, parts)


SHUFFLER_SCHEDULE: Schedule = [
    (planned(1), ["shuffler"]),
    (answered(1, 3), ["shuffler", "client1"]),
    (posted(0, 5), ["shuffler"]),
    (answered(2, 7), ["coordinator", "client2"]),
    (posted(2, 9), ["coordinator", "shuffler"]),
    (done(11), ["client0", "client1", "client2", "shuffler", "coordinator"]),
    (planned(14), ["coordinator"]),
    (computed(16), ["coordinator", "shuffler"]),
    (posted(1, 18), ["client0", "client1"]),
    (done(20), ["shuffler"]),
]


def test_twenty_rounds_through_a_shuffler_count_once_each_whoever_is_killed_when(nursery):
    with killed(nursery, soak.SHUFFLED, SHUFFLER_SCHEDULE) as (given, parts):
        assert given.kills["shuffler"] >= 5 and given.kills["coordinator"] >= 4, given.kills
        assert problems(given, parts) == []


def _spoiled_is_noticed(given: Troupe, parts: Federation) -> None:
    """What looks for problems finds them."""
    model = given.run / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    assert problems(given, parts) == ["the model is not what the recorded reports add up to"]
    with Ledger.open(given.place / "client1/ledger.sqlite") as ledger:
        (last,) = [entry.event for entry in ledger.entries()][-1:]
        assert isinstance(last, Released)
        ledger.record(replace(last.key, plan_hash="0" * 64), [replace(r, id="again") for r in last.releases], b"again")
    found = problems(given, parts)
    assert len(found) == 3 and all(problem.startswith("client1: ") for problem in found)
