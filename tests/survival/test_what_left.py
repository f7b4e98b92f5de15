"""What the statement counts: everything that may have left a client, before a restart too, and nothing else."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino.channels.interface import Channel
from sordino.client.client import Client
from sordino.client.refusal import Reason, Refused
from sordino.errors import InvalidInput
from sordino.fleets.interface import Fleet, Reply
from sordino.methods.upload import Lost
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.report.statement import to_text
from sordino.runs.journal import read_past
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome
from sordino.runs.serving import CoordinatorSetup, serve
from sordino.runs.stopping import TooFewClients
from sordino.wire.messages import Plan, answer_to
from tests.client import people
from tests.client.people import NAME, signed

BODY = b"\x01" * 82  #: a report of 650 bits

Answering = Callable[[int, Plan], bytes | None]  #: client, plan -> what it answers; None: that it declines


class Killed(BaseException):
    """The coordinator's process ends."""


class Scripted(Fleet):
    """Clients that answer as a function says; the coordinator is killed when it waits for this one's answer."""

    def __init__(self, answering: Answering, killed_at: int | None = None) -> None:
        self._answering, self._killed_at, self.asked = answering, killed_at, list[str]()

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: Any) -> Generator[Reply]:
        self.asked.append(step)
        for client, message in messages.items():
            if client == self._killed_at:
                raise Killed
            plan = Plan.decode(people.unsigned(message))
            yield Reply(client, answer_to(plan, self._answering(client, plan)))


def reporting(client: int, plan: Plan) -> bytes:
    return BODY


def preparing(client: int, plan: Plan) -> bytes:
    return b""


def declining(client: int, plan: Plan) -> None:
    return None


def restarted(folder: Path, given: Recipe, before: Answering, after: Answering) -> Outcome:
    """A run whose coordinator is killed when it has two answers, and that goes on with clients who say this."""
    with pytest.raises(Killed):
        serve(given, Scripted(before, killed_at=2), folder)
    return serve(given, Scripted(after), folder, resume=True)


def counted(outcome: Outcome) -> list[tuple[int, int]]:
    return [(budget.reports, budget.declined) for budget in outcome.result.budgets]


# --- before a restart


def test_reports_that_came_before_a_restart_are_counted_though_all_decline_after_it(tmp_path):
    outcome = restarted(tmp_path / "run", people.recipe(), reporting, declining)
    assert counted(outcome) == [(1, 1)] * 3
    assert [(record.counted, record.declined) for record in outcome.rounds] == [(False, 3)]
    assert "all 3 clients declined in round 2" in outcome.result.stopped, (
        "what is asked once and declined did not leave"
    )
    assert "Nothing was released" not in to_text(outcome.statement)


def test_a_report_that_may_have_come_before_a_restart_is_counted_though_its_client_declines_after_it(tmp_path):
    def wary(client: int, plan: Plan) -> bytes | None:
        return None if client == 0 else BODY

    outcome = restarted(tmp_path / "run", people.recipe({"rounds.count": 1}), reporting, wary)
    assert counted(outcome) == [(1, 1), (1, 0), (1, 0)]


def test_a_preparation_that_may_have_been_told_before_a_restart_is_counted(tmp_path):
    given = people.method_recipe("ldpfl")
    outcome = restarted(tmp_path / "run", given, preparing, declining)
    assert "declined to prepare" in outcome.result.stopped and not outcome.rounds
    assert "Nothing was released" not in to_text(outcome.statement)
    fresh = serve(given, Scripted(declining), tmp_path / "other")
    assert "declined to prepare" in fresh.result.stopped
    assert "Nothing was released" in to_text(fresh.statement)


def test_a_client_whose_report_is_in_its_ledger_does_not_decline_whatever_became_of_its_records(tmp_path):
    plan = people.signed(people.plans()(1))
    with people.joined(tmp_path / "a") as client:
        assert len(people.body(client.answer("report", plan))) == 82
    settings = tmp_path / "a/client.toml"
    settings.write_text(settings.read_text().replace('"digits"', '"/nowhere/records.npz"'))
    with Client.open(tmp_path / "a") as client:
        reply = client.reply("report", plan)
        assert (reply.payload, reply.reason) == (b"", Reason.UNAVAILABLE.value)
        other = people.plans()(2)
        assert client.answer("report", signed(other)) == answer_to(other, None), "of this one nothing has left"


# --- who was sent nothing


class Choosy(Channel):
    """A channel that asks some of the clients only, or nobody."""

    def __init__(self, *asks: int) -> None:
        self._asks = asks

    def collect(self, exchange, plan, clients):
        if not self._asks:
            yield Lost(0, "nobody could be asked")
            return
        yield from exchange("report", dict.fromkeys(self._asks, plan))


def test_who_was_sent_nothing_released_nothing(tmp_path):
    outcome = serve(
        people.recipe({"rounds.count": 2}),
        Scripted(reporting),
        tmp_path / "run",
        CoordinatorSetup(channel=Choosy(0, 2)),
    )
    assert counted(outcome) == [(2, 0), (0, 0), (2, 0)]


def test_a_round_in_which_nobody_can_be_asked_is_lost_and_costs_nobody_anything(tmp_path):
    given = people.recipe({"rounds.count": 9})
    with pytest.raises(TooFewClients, match="nobody"):
        serve(given, Scripted(reporting), tmp_path / "run", CoordinatorSetup(channel=Choosy()))
    spent = read_past(RunFolder(tmp_path / "run")).spent
    assert [list(map(list, one.clients)) for one in spent] == [[[]]] * 3


def test_who_is_sent_nothing_after_a_restart_may_have_been_sent_the_plan_before(tmp_path):
    given = people.recipe({"rounds.count": 1})
    with pytest.raises(Killed):
        serve(given, Scripted(reporting, killed_at=2), tmp_path / "run")
    outcome = serve(given, Scripted(reporting), tmp_path / "run", CoordinatorSetup(channel=Choosy()), resume=True)
    assert counted(outcome) == [(1, 0)] * 3


@pytest.mark.usefixtures("sum_graph")
def test_in_a_secure_sum_nothing_leaves_who_was_not_asked_for_its_masked_report(tmp_path):
    """Four are asked for keys, and the last is silent."""
    given = people.recipe({"split.clients": 4, "rounds.count": 1, "method.channel": {"kind": "summed"}})
    clients = people.members(tmp_path, people.wire(given))

    class Silent(people.DirectFleet):
        def exchange(self, step, messages, deadline):
            yield from super().exchange(step, {c: m for c, m in messages.items() if c != 3}, deadline)

    outcome = serve(given, Silent(clients), tmp_path / "run", CoordinatorSetup(NAME))
    assert [record.reported for record in outcome.rounds] == [3]
    assert counted(outcome) == [(1, 0)] * 3 + [(0, 0)]
    assert [client.standing.spent > 0 for client in clients.values()] == [True] * 3 + [False]


@pytest.mark.usefixtures("sum_graph")
def test_who_cannot_be_reached_for_its_masked_report_sends_none(tmp_path):
    given = people.recipe({"split.clients": 4, "rounds.count": 1, "method.channel": {"kind": "summed"}})
    clients = people.members(tmp_path, people.wire(given))

    class Cut(people.DirectFleet):
        def exchange(self, step, messages, deadline):
            there = {c: m for c, m in messages.items() if (step, c) != ("masked", 3)}
            yield from super().exchange(step, there, deadline)
            yield from (Reply(c, reached=False) for c in messages if c not in there)

    outcome = serve(given, Cut(clients), tmp_path / "run", CoordinatorSetup(NAME))
    assert [record.reported for record in outcome.rounds] == [3]
    assert counted(outcome) == [(1, 0)] * 3 + [(0, 0)]


def test_an_observer_is_told_who_answered_what_and_why_and_with_which_receipt(tmp_path):
    class Wary(Scripted):
        def exchange(self, step, messages, deadline):
            for reply in super().exchange(step, messages, deadline):
                reason = "the budget is spent" if reply.client == 0 else ""
                yield replace(reply, reason=reason, receipt=b"receipt %d" % reply.client)

    told = []

    class Listening(Observer):
        def round(self, record, attendance):
            told.append(attendance)

    fleet = Wary(lambda client, plan: None if client == 0 else BODY)
    serve(people.recipe({"rounds.count": 1}), fleet, tmp_path / "run", observer=Listening())
    (attendance,) = told
    assert (attendance.declined, attendance.reported) == ([0], [1, 2])
    assert attendance.reasons == {0: "the budget is spent"}
    past = read_past(RunFolder(tmp_path / "run"))
    assert past.receipts == attendance.receipts == {client: b"receipt %d" % client for client in range(3)}
    assert past.attendances[1].declined == [0] and past.attendances[1].reported == [1, 2]


# --- what only a simulation can stand for


@pytest.mark.parametrize(
    ("method", "channel", "said"),
    [
        ("ldp-fl", {"kind": "shuffled", "granularity": "parameter"}, "would be that somebody, and see every report"),
        ("ldp-fed", {"kind": "relay", "k": 2}, "would be that somebody, and see every report"),
        ("ldp-fl", {"kind": "shuffler", "at_least": 2}, "the server cannot be itself: give the channel"),
    ],
    ids=["shuffled", "relay", "a shuffler that is not there"],
)
def test_the_server_of_real_clients_does_not_play_a_trusted_party_itself(tmp_path, method, channel, said):
    given = people.method_recipe(method).with_({"method.channel": channel})
    fleet = Scripted(reporting)
    with pytest.raises(InvalidInput, match=said):
        serve(given, fleet, tmp_path / "run")
    assert not fleet.asked and not (tmp_path / "run").exists()


def test_a_client_is_offered_no_shuffler_that_the_server_plays_itself(tmp_path):
    direct = people.method_recipe("ldp-fl")
    shuffled = direct.with_({"method.channel": {"kind": "shuffled", "granularity": "parameter"}})
    own = replace(people.terms(direct), recipe=shuffled.to_toml()).invitation(0, people.KEY)
    with people.client(tmp_path / "a") as client, pytest.raises(Refused, match="see every report") as caught:
        client.offer(own.encode())
    assert caught.value.reason is Reason.NOT_IN_RECIPE
    with pytest.raises(InvalidInput, match="see every report"):
        people.invitation(shuffled)
