"""Clients behind real sockets that are slow, silent, rude or gone: rounds end in time, the record says what came."""

import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from sordino.fleets import sockets
from sordino.fleets.sockets import SocketFleet
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome
from sordino.runs.serving import CoordinatorSetup, serve
from sordino.wire import requests
from sordino.wire.messages import Answer
from sordino.wire.requests import Request, Response
from tests.client import people
from tests.client.people import NAME
from tests.survival.unruly import Behaviour, Unruly, clients, honest

CLIENTS = 3


def served(
    behaviours: dict[int, dict[int, Behaviour]], changes: dict[str, Any] | None = None, patience: float = 5.0
) -> tuple[Outcome, list[Unruly], str]:
    given = people.recipe({"rounds.count": 3, "rounds.quorum": 2, **(changes or {})})
    with clients(given, behaviours) as (place, services):
        fleet = SocketFleet({number: place / f"{number}.sock" for number in range(CLIENTS)}, patience=patience)
        outcome = serve(given, fleet, place / "run", CoordinatorSetup(NAME))
        assert outcome.folder is not None
        lines = (outcome.folder / "metrics.jsonl").read_text().splitlines()
        recorded = [
            {k: v for k, v in json.loads(line).items() if k in ("reported", "late", "strays")} for line in lines
        ]
        assert recorded == [{"reported": r.reported, "late": r.late, "strays": r.strays} for r in outcome.rounds]
        return outcome, services, (outcome.folder / "report.html").read_text()


def after(seconds: float) -> Behaviour:
    def behave(connection: socket.socket, request: Request, response: Response) -> None:
        time.sleep(seconds)
        honest(connection, request, response)

    return behave


class Stragglers:
    """Some answer the first round when the second has begun; one holds the second open until they have been heard."""

    def __init__(self, count: int) -> None:
        self._begun, self._said = threading.Event(), threading.Semaphore(0)
        self._count = count

    def late(self, connection: socket.socket, request: Request, response: Response) -> None:
        assert self._begun.wait(60)
        honest(connection, request, response)
        self._said.release()

    def last(self, connection: socket.socket, request: Request, response: Response) -> None:
        self._begun.set()
        assert all(self._said.acquire(timeout=60) for _ in range(self._count))
        time.sleep(1)  # what was said is on its way by another connection
        honest(connection, request, response)


def test_a_straggler_is_not_waited_for_and_its_answer_is_seen_to_be_late():
    one = Stragglers(1)
    outcome, _, page = served({2: {1: one.late}, 0: {2: one.last}}, {"rounds.deadline": 4.0, "rounds.count": 2})
    first, second = outcome.rounds
    assert (first.reported, first.counted) == (2, True)
    assert (second.reported, second.late) == (3, 1)
    assert 3.9 < first.seconds < 30
    assert "Who took part" in page and "late" in page
    assert [budget.reports for budget in outcome.result.budgets] == [2, 2, 2]  # a late answer has left its client too


def test_an_answer_that_comes_twice_counts_once():
    def twice(connection: socket.socket, request: Request, response: Response) -> None:
        honest(connection, request, response)
        honest(connection, request, response)

    outcome, _, page = served({0: {2: twice}, 1: {2: after(2.0)}})
    assert [record.reported for record in outcome.rounds] == [3, 3, 3]
    assert [record.strays for record in outcome.rounds] == [{}, {"duplicate": 1}, {}]
    assert "stray answers" in page


def forged(change: Callable[[Answer], Answer]) -> Behaviour:
    def behave(connection: socket.socket, request: Request, response: Response) -> None:
        answer = change(Answer.decode(response.payload))
        requests.send(connection, Response(True, answer.encode(), "", response.receipt).encode())

    return behave


def test_answers_to_other_rounds_and_plans_do_not_count_and_are_told_apart():
    behaviours = {
        0: {
            1: forged(lambda a: Answer(a.kind, a.round + 7, a.digest, a.body)),
            2: forged(lambda a: Answer(a.kind, a.round, b"x" * 16, a.body)),
            3: forged(lambda a: Answer(a.kind, a.round - 2, a.digest, a.body)),
        }
    }
    outcome, _, _ = served(behaviours)
    assert [record.reported for record in outcome.rounds] == [2, 2, 2]
    assert [(record.strays, record.late) for record in outcome.rounds] == [
        ({"wrong round": 1}, 0), ({"another plan": 1}, 0), ({}, 1),
    ]  # fmt: skip


def raw(content: bytes) -> Behaviour:
    return lambda connection, request, response: connection.sendall(content)


def drip(connection: socket.socket, request: Request, response: Response) -> None:
    """One byte at a time, which would take for ever."""
    for byte in struct.pack("<I", 5000) + b"S" * 5000:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def silence(connection: socket.socket, request: Request, response: Response) -> None:
    time.sleep(8)


RUDE: dict[str, Behaviour] = {
    "a frame too long": raw(b"\xff\xff\xff\xff"),
    "no response": raw(struct.pack("<I", 3) + b"abc"),
    "lengths that lie": raw(struct.pack("<I", 10) + b"SA\x02\x01\xff\xff\xff\xff--"),
    "no answer": lambda connection, request, response: honest(connection, request, Response(True, b"rubbish")),
}


def test_a_client_that_says_nothing_sensible_holds_nobody_up():
    rude = dict(enumerate(RUDE.values(), 1))
    outcome, _, _ = served({1: rude}, {"rounds.count": len(rude) + 1})
    assert [(record.reported, record.counted) for record in outcome.rounds] == [(2, True)] * len(rude) + [(3, True)]
    assert outcome.rounds[3].refused == 1


def test_a_client_that_says_nothing_or_one_byte_at_a_time_is_waited_for_until_the_deadline_and_no_longer():
    outcome, _, _ = served({1: {1: silence, 2: drip}}, {"rounds.deadline": 3.0})
    assert [(record.reported, record.counted) for record in outcome.rounds] == [(2, True), (2, True), (3, True)]
    assert all(2.9 < record.seconds < 30 for record in outcome.rounds[:2])


def test_a_client_that_vanishes_and_comes_back_is_asked_again_with_the_same_plan():
    """It closes the connection without a word twice, then answers: what it recorded the first time."""
    calls = itertools.count(1)

    def vanish(connection: socket.socket, request: Request, response: Response) -> None:
        if next(calls) > 2:
            honest(connection, request, response)

    outcome, services, _ = served({2: {2: vanish}})
    assert [record.reported for record in outcome.rounds] == [3, 3, 3]
    assert services[2].asked == [1, 2, 2, 2, 3]


def test_a_client_that_stays_away_costs_its_reports_and_no_more():
    def gone(connection: socket.socket, request: Request, response: Response) -> None:
        return

    outcome, services, _ = served({2: {2: gone}}, patience=3.0)
    assert [(record.reported, record.counted) for record in outcome.rounds] == [(3, True), (2, True), (3, True)]
    assert services[2].asked.count(2) >= 2


def test_a_client_that_comes_back_after_it_was_given_up_is_asked_in_the_round_that_is_open():
    given = people.recipe({"rounds.count": 2, "rounds.quorum": 1})
    there = threading.Event()

    def hold(connection: socket.socket, request: Request, response: Response) -> None:
        assert there.wait(60)
        time.sleep(0.3)  # the one that came back needs a moment
        honest(connection, request, response)

    with clients(given, {0: {2: hold}}) as (place, services):
        link = place / "moved.sock"
        link.symlink_to(place / "2.sock")
        paths = {0: place / "0.sock", 1: place / "1.sock", 2: link}

        class Moving(Observer):
            def started(self, *about: Any) -> None:
                link.unlink()  # everybody has joined

        def come_back() -> None:
            while not services[0].asked.count(2):
                time.sleep(0.01)
            link.symlink_to(place / "2.sock")
            there.set()

        thread = threading.Thread(target=come_back)
        thread.start()
        fleet = SocketFleet(paths, patience=0.2)
        outcome = serve(given, fleet, place / "run", CoordinatorSetup(NAME), observer=Moving())
        thread.join()
        assert [record.reported for record in outcome.rounds] == [2, 3]


def test_a_client_that_was_never_reached_released_nothing_and_was_waited_for_once():
    given = people.recipe({"rounds.count": 4, "rounds.quorum": 2})
    with clients(given, {}) as (place, services):
        paths = {number: place / f"{number}.sock" for number in range(CLIENTS)} | {2: place / "nobody.sock"}
        outcome = serve(given, SocketFleet(paths, patience=2.0), place / "run", CoordinatorSetup(NAME))
        assert [record.reported for record in outcome.rounds] == [2, 2, 2, 2]
        assert outcome.rounds[0].seconds > 2.0 > max(record.seconds for record in outcome.rounds[1:])
        assert [budget.reports for budget in outcome.result.budgets] == [4, 4, 0]
        assert services[2].asked == []


def test_without_a_quorum_in_time_a_round_does_not_count_and_the_next_may():
    two = Stragglers(2)
    behaviours = {0: {2: two.last}, 1: {1: two.late}, 2: {1: two.late}}
    outcome, _, page = served(behaviours, {"rounds.deadline": 4.0, "rounds.count": 2})
    assert (outcome.rounds[0].reported, outcome.rounds[0].counted) == (1, False)
    assert outcome.rounds[-1].counted and outcome.rounds[-1].reported == 3
    assert sum(record.late for record in outcome.rounds) == 2
    assert "missed its quorum" in page


def test_connections_to_a_client_that_never_answers_do_not_pile_up():
    given = people.recipe({"rounds.count": 5, "rounds.quorum": 1, "rounds.deadline": 1.0})
    with clients(given, {2: dict.fromkeys(range(1, 6), silence)}) as (place, _):
        fleet = SocketFleet({number: place / f"{number}.sock" for number in range(CLIENTS)})
        outcome = serve(given, fleet, place / "run", CoordinatorSetup(NAME))
        assert outcome.result.rounds == 5
        assert len(fleet._open[2]) <= sockets.OPEN
