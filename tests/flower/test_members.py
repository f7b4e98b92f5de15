"""Members that are retired, replaced and added while a federation runs: who is asked, who counts, who is named."""

import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from sordino.client.client import Client
from sordino.fleets.flower import FlowerFleet
from sordino.fleets.roster import Roster
from sordino.flower import bundles
from sordino.flower.client_app import SOCKET
from sordino.flower.grid import GridCarrier
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Infinite, Release
from sordino.privacy.history import RoundReleases, statement
from sordino.privacy.ledger import Released
from sordino.recipe import Recipe
from sordino.report.records import RoundRecord
from sordino.runs.coordinator import Attendance, Coordinator
from sordino.runs.federation import wire
from sordino.runs.loaded_run import load_run
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome, client_budgets
from sordino.runs.roster_check import roster_warnings
from sordino.runs.serving import CoordinatorSetup, RealClients, has_run, invitations, serve
from sordino.runs.stopping import TooFewClients
from sordino.runs.store import Past
from sordino.wire.codec import join
from sordino.wire.messages import Answer
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import key_file
from tests.client import people
from tests.client.people import NAME
from tests.flower.nodes import Served, until
from tests.flower.test_fleet import Parties, hasty, own_settings  # noqa: F401 (a fixture that all tests here use)

SUMMED = {"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}}


class Changing(Parties):
    """Parties whose roster is a file, and newcomers with a folder, a socket and a node of their own."""

    @property
    def path(self) -> Path:
        return self.place / "members.json"

    def roster(self, spare: int = 0) -> Roster:
        members = self.federation.clients - spare
        return Roster(self.federation.clients, self.path, [f"c{n}" for n in range(members)], spare=spare)

    def command(self) -> Roster:
        """What another process opens."""
        return Roster.open(self.path)

    def newcomer(self, name: str, rows: str, node: int, **own: Any) -> None:
        people.client(self.place / name, people.settings(rows, federations=[NAME], **own)).close()
        socket = self.place / f"{name}.sock"
        self.served[node] = Served(Client.open(self.place / name), socket)
        self.grid.nodes[node], self.grid.since[node] = {SOCKET: str(socket)}, "1"

    def asked(self, node: int) -> list[What]:
        """What a node was sent."""
        sent = [m for m in self.grid.pushed if m.metadata.dst_node_id == node]
        return [Request.decode(body).what for m in sent for body in bundles.unpack(bundles.bundle_in(m))]

    def at(self, fleet: FlowerFleet) -> Any:
        """Ask one round after the other, from the start."""
        coordinator, state = people.coordinator(self.federation, fleet), self.federation.method.init()
        while True:
            state, held = coordinator.round(state)
            yield held

    def serve_run(self, roster: Roster, after: Callable[[int], None], **more: Any) -> Outcome:
        """A whole run, from the start or from where it stopped; `after` is called after each round."""

        class Calling(Observer):
            def round(self, record: RoundRecord, attendance: Attendance) -> None:
                after(record.round)

        fleet = FlowerFleet(GridCarrier(self.grid), roster, **{"wait": 60.0, "patience": 60.0, **more})
        folder = self.place / "run"
        if not key_file(folder).exists():
            people.KEY.write(key_file(folder))
        return serve(self.recipe, fleet, folder, CoordinatorSetup(NAME), resume=has_run(folder), observer=Calling())

    def joined_with(self, roster: Roster, **more: Any) -> FlowerFleet:
        fleet = FlowerFleet(GridCarrier(self.grid), roster, **{"wait": 60.0, "patience": 60.0, **more})
        vacant = roster.vacant(roster.begun + 1)
        assert fleet.invite(invitations(self.federation, NAME, people.KEY)).keys() == vacant
        return fleet

    def releases_of(self, folder: str) -> int:
        with Client.open(self.place / folder) as client:
            return sum(isinstance(entry.event, Released) for entry in client.ledger.entries())


@pytest.fixture
def changing() -> Iterator[Callable[..., Changing]]:
    """A folder with a short name: paths of sockets have about a hundred letters."""
    place, made = Path(tempfile.mkdtemp(prefix="sdo-")), list[Changing]()

    def make(
        changes: dict[str, Any] | None = None, missing: int = 0, recipe: Recipe | None = None, **own: Any
    ) -> Changing:
        found = Changing(place, recipe or people.recipe({"rounds.count": 40, **(changes or {})}), **own)
        made.append(found)
        for number in range(found.federation.clients - missing):
            found.serve(number)
        return found

    yield make
    for each in made:
        for served in each.served.values():
            served.stop()
    shutil.rmtree(place)


def reported(held: Any) -> list[int]:
    return sorted(held.attendance.reported)


def test_a_retired_member_is_sent_nothing_more_costs_no_wait_and_spends_nothing(changing):
    found = changing()
    rounds = found.at(found.joined_with(found.roster()))
    assert reported(next(rounds)) == [0, 1, 2]
    found.command().retire("c1")
    before, began = len(found.asked(11)), time.monotonic()
    second, third = next(rounds), next(rounds)
    assert [reported(second), reported(third)] == [[0, 2], [0, 2]]
    assert time.monotonic() - began < 30  # of a patience of 60
    assert (second.attendance.vacant, second.attendance.clients) == ({1}, (0, 2))
    assert set(found.asked(11)[before:]) <= {What.HELLO}  # it is asked who it is, and refused
    found.served.pop(1).stop()
    assert found.releases_of("c1") == 1


def test_a_retired_member_that_is_dead_is_not_waited_for(changing):
    found = changing()
    rounds = found.at(found.joined_with(found.roster()))
    next(rounds)
    found.served.pop(1).stop()
    del found.grid.nodes[11]
    found.command().retire("c1")
    began = time.monotonic()
    assert reported(next(rounds)) == [0, 2]
    assert time.monotonic() - began < 30


def test_a_place_changes_hands_between_two_rounds_and_each_spends_its_own(changing):
    found = changing()
    rounds = found.at(found.joined_with(found.roster()))
    assert reported(next(rounds)) == [0, 1, 2]
    assert found.command().replace("c1", "west", 3).first == 3
    found.newcomer("west", "20-39", 20)
    assert reported(next(rounds)) == [0, 1, 2]
    assert set(found.asked(20)) <= {What.HELLO}  # in round 2 the place is not its own yet
    assert [reported(next(rounds)) for _ in range(2)] == [[0, 1, 2]] * 2
    assert What.RECEIPT in found.asked(20)  # its own; that of its predecessor it would have refused
    found.served.pop(1).stop()
    found.served.pop(20).stop()
    assert (found.releases_of("c1"), found.releases_of("west")) == (2, 2)


def test_a_spare_place_is_filled_while_it_runs(changing):
    found = changing(missing=1)
    shutil.rmtree(found.folder(2))
    fleet = found.joined_with(found.roster(spare=1))
    rounds = found.at(fleet)
    assert reported(next(rounds)) == [0, 1]
    assert found.command().add("west").place == 2
    found.newcomer("west", "40-59", 20)
    assert reported(next(rounds)) == [0, 1, 2]


@pytest.mark.parametrize(("change", "counted"), [("stay", True), ("retire", False), ("replace", False)])
def test_who_left_cannot_have_an_answer_counted_by_way_of_what_it_was_asked_before(changing, change, counted):
    """It kept a message of round 1 back, and answers it with a report on the plan of round 2, which it knows."""
    found = changing()
    fleet, method = found.joined_with(found.roster(), patience=0.2), found.federation.method
    asked = dict.fromkeys(range(3), people.signed(method.plan(method.init(), NAME), given=found.recipe))
    found.grid.silent.add(11)
    fleet.begin_round(1)
    with closing(fleet.exchange("report", asked, None)) as answers:
        assert sorted(reply.client for reply in islice(answers, 2)) == [0, 2]
    until(lambda: found.grid.held)
    (name, kept), state = found.grid.held.pop(), method.init().unchanged()
    (response,), plan = bundles.responses(bundles.bundle_in(kept)), method.plan(state, NAME)
    own = Answer.decode(response.payload)
    forged = replace(response, payload=Answer(own.kind, plan.round, plan.digest, own.body).encode()).encode()
    question = next(message for message in found.grid.pushed if message.metadata.message_id == name)
    lie = Message(bundles.content(bundles.array(join(forged))), reply_to=question)
    del found.grid.nodes[11]  # it does not answer what it is asked now, if it is
    {"stay": lambda: None, "retire": lambda: found.command().retire("c1"),
     "replace": lambda: found.command().replace("c1", "west")}[change]()  # fmt: skip
    found.grid.held.append((name, lie))
    found.grid.let_go()
    _, held = people.coordinator(found.federation, fleet).round(state)
    assert (reported(held), held.attendance.refused) == ([0, 1, 2] if counted else [0, 2], {})
    assert (fleet._receipts.get(1) == response.receipt) == (held.attendance.receipts.get(1) is not None) == counted


@pytest.mark.parametrize("identity", ["its own", "another's", "a new one"])
@pytest.mark.parametrize("name", ["c1", "c0", "west"])
def test_the_node_of_who_left_comes_back_as_nobody(changing, identity, name):
    """Whatever it says of itself, it gets no plan; and the newcomer finds the place free."""
    found = changing()
    roster = found.roster()
    rounds = found.at(found.joined_with(roster, patience=0.5))
    next(rounds)
    known = {"its own": roster.tenures[1].identity, "another's": roster.tenures[0].identity, "a new one": "new"}
    lie = Response(True, json.dumps({"id": known[identity], "name": name}).encode()).encode()
    honest, before = found.grid._app, len(found.asked(11))

    def lying(message: Message, context: Any) -> Message:
        if context.node_id != 11:
            return honest(message, context)
        return Message(bundles.content(bundles.array(join(lie))), reply_to=message)

    found.grid._app = lying
    found.command().replace("c1", "west")
    assert reported(next(rounds)) == [0, 2]
    assert set(found.asked(11)[before:]) == {What.HELLO}
    assert [own.identity for own in found.command().tenures if own.name == "west"] == [""]
    found.newcomer("west", "20-39", 20)
    until(lambda: reported(next(rounds)) == [0, 1, 2])


def test_who_is_replaced_before_the_first_round_is_still_called_by_name(changing, caplog):
    """No roster has a member that never took part; its node is known by then."""
    found = changing()
    fleet = found.joined_with(found.roster())
    found.command().replace("c1", "west")
    with caplog.at_level("INFO", "sordino.flower"):
        fleet._roster.look()
        fleet._look(0)
        until(lambda: fleet._turn({}, None) or len(caplog.messages) == 2)
    assert [said.split()[0] for said in caplog.messages] == ["c1", "c1"]
    assert "for c1 before" in caplog.messages[1]


def test_a_place_that_changes_hands_while_its_next_holder_is_invited_is_not_lost_to_it(changing):
    """The roster is looked at for a later round and an earlier one, as after a crash, with an invitation under way."""
    found = changing()
    fleet = found.joined_with(found.roster())
    found.command().replace("c1", "west", 2)
    found.newcomer("west", "20-39", 20)
    fleet._roster.look()
    fleet._look(2)
    found.grid.silent.add(20)
    until(lambda: fleet._turn({}, None) or any(asked.what is What.HELLO for asked in fleet._asked.values()))
    found.grid.let_go()
    until(lambda: fleet._turn({}, None) or any(asked.what is What.JOIN for asked in fleet._asked.values()))
    rounds = found.at(fleet)
    assert [reported(next(rounds)) for _ in range(2)] == [[0, 1, 2]] * 2
    assert fleet.names(2)[1] == "west" and What.STEP in found.asked(20)


def test_a_vacant_place_is_a_client_that_dropped_out_of_a_secure_sum(changing):
    found = changing(SUMMED)
    rounds = found.at(found.joined_with(found.roster()))
    assert reported(next(rounds)) == [0, 1, 2, 3]
    found.command().retire("c3")
    held = next(rounds)
    assert held.counted and reported(held) == [0, 1, 2]
    found.command().retire("c2")  # two of four is too few, whoever stays: 3 must
    lost = next(rounds)
    assert not lost.counted and reported(lost) == [] and "2 of 4" in lost.why_lost


# --- names in what a run leaves behind


class Killed(BaseException):
    """What a coordinator dies of."""


def test_a_run_in_which_a_place_changed_hands_states_each_members_own_loss_by_name(changing):
    """The coordinator is killed and started again in between, so that names and receipts come from its files."""
    found = changing({"rounds.count": 5})

    def after(round: int) -> None:
        if round == 2:
            found.command().replace("c1", "west")
            found.newcomer("west", "20-39", 20)
            raise Killed

    with pytest.raises(Killed):
        found.serve_run(found.roster(), after)
    outcome = found.serve_run(found.roster(), lambda round: None)
    assert [(record.asked, record.reported) for record in outcome.rounds] == [(3, 3)] * 5
    west = "west (from round 3, in the place of c1)"
    whole = [row for row in outcome.statement.rows if (row.adversary, row.adjacency) == (SERVER, Adjacency.CLIENT)]
    rounds = {name: row.pure / people.COST for row in whole for name in row.clients}
    assert rounds == pytest.approx({"c0": 5, "c2": 5, "c1 (until round 2)": 2, west: 3}, rel=1e-4)
    told = {(own.client, own.name): own.reports for own in outcome.result.budgets}
    assert told == {(0, "c0"): 5, (1, "c1 (until round 2)"): 2, (1, west): 3, (2, "c2"): 5}
    folder = found.place / "run"
    for file in ("report.html", "statement.txt", "statement.json", "result.json"):
        assert west in " ".join((folder / file).read_text().split()), file
    again = load_run(folder)
    assert again.statement == outcome.statement and again.releases[-1].names == {0: "c0", 1: "west", 2: "c2"}
    assert again.spending()[-1].proven == max(row.proven for row in whole)


def test_members_report_rounds_and_evaluations_are_no_rounds():
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Infinite("of no matter here"), "none")
    release = Release("a", "records", "model update", (guarantee,))
    spent = [
        RoundReleases(round, ((release,),), ([0, 1],), names={0: "north", 1: "south"}).beside((release,), [0, 1])
        for round in (1, 2)
    ]
    told = {own.name: own.reports for own in client_budgets(wire(people.recipe()), spent, None)}
    assert told == {"north": 2, "south": 2}


def test_a_round_that_was_interrupted_is_asked_of_those_who_began_it_though_the_place_has_changed_hands(
    changing, monkeypatch
):
    found, plain, begun = changing({"rounds.count": 3}), Coordinator.round, list[int]()

    def dying(self: Coordinator, state: Any, plan: Any = None) -> Any:
        after = plain(self, state, plan)
        begun.append(plan.round)
        if begun == [1, 2]:  # round 2 was answered, and nothing of that is written down
            found.command().replace("c1", "west")
            found.newcomer("west", "20-39", 20)
            raise Killed
        return after

    monkeypatch.setattr(Coordinator, "round", dying)
    with pytest.raises(Killed):
        found.serve_run(found.roster(), lambda round: None)
    outcome = found.serve_run(found.roster(), lambda round: None)
    assert (begun, [record.reported for record in outcome.rounds]) == ([1, 2, 2, 3], [3, 3, 3])
    assert {own.name.partition(" ")[0]: own.reports for own in outcome.result.budgets}["c1"] == 2
    for node, folder, releases in ((1, "c1", 2), (20, "west", 1)):
        found.served.pop(node).stop()
        assert found.releases_of(folder) == releases


def test_a_retired_members_place_is_nobody_in_the_statement_and_was_not_asked(changing):
    found = changing({"rounds.count": 3})
    outcome = found.serve_run(
        found.roster(), lambda round: found.command().retire("c1") and None if round == 1 else None
    )
    assert [(record.asked, record.reported) for record in outcome.rounds] == [(3, 3), (2, 2), (2, 2)]
    assert {name for row in outcome.statement.rows for name in row.clients} == {"c0", "c2", "c1 (until round 1)"}
    assert outcome.statement.silent is None


def test_who_comes_after_the_preparation_reports_nothing_and_the_run_ends_with_its_statement(changing):
    """Its client has no prepared records and refuses every round: nothing of it left, and nothing is derived."""
    tables = people.method_recipe("ldpfl").to_dict()
    tables["rounds"]["count"] = 3
    found = changing(recipe=Recipe.from_dict(tables), missing=1, **own_settings("ldpfl"))
    shutil.rmtree(found.folder(2))

    def after(round: int) -> None:
        if round == 1:
            found.command().add("west")
            found.newcomer("west", "40-59", 20, **own_settings("ldpfl"))

    outcome = found.serve_run(found.roster(spare=1), after)
    assert {own.name.partition(" ")[0]: own.reports for own in outcome.result.budgets} == {"c0": 3, "c1": 3, "west": 0}


def test_after_a_restart_nothing_is_derived_for_who_was_not_there_at_the_preparation():
    """Whose plan went out twice counts as having reported, unless it never could."""
    own = wire(people.method_recipe("ldpfl"))
    side = RealClients(own, people.DirectFleet({}), people.KEY, NAME)
    plan = own.method.plan(own.method.init(), NAME)
    begun = side.spent(own.method.preparation(NAME), Attendance((0, 1, 2), clients=(0, 1)), 1)
    again = side.spent(plan, Attendance((0, 1, 2), clients=(0, 1)), 2)
    assert [[list(who) for who in spent.clients] for spent in (begun, again)] == [[[0, 1]], [[0, 1]]]
    later = RealClients(own, people.DirectFleet({}), people.KEY, NAME)
    later.restore(Past(spent=[begun]))
    assert later.spent(plan, Attendance((0, 1, 2), clients=(0, 1)), 2) == again
    assert not math.isfinite(statement([begun, again], 3, delta=1e-5, title="").rows[0].pure)  # labels have no proof


def test_too_few_members_at_the_start_are_named(changing):
    found = changing({"rounds.quorum": 3}, missing=1)
    with pytest.raises(TooFewClients, match="c2: no node"):
        found.serve_run(found.roster(), lambda round: None, wait=0.1)


# --- what a change of members means


def warned(recipe: Recipe, *changes: Callable[[Roster], Any], begun: int = 1, spare: int = 0) -> tuple[str, ...]:
    clients = recipe.number_of_clients
    roster = Roster(clients, None, [f"c{n}" for n in range(clients - spare)], spare=spare)
    roster.begin(begun)
    for change in changes:
        change(roster)
    return roster_warnings(recipe, roster)


@pytest.mark.parametrize(
    ("changes", "gone", "words"),
    [
        ({}, ("c0", "c1"), ()),
        ({"rounds.quorum": 3}, ("c0",), ("rounds.quorum",)),
        (SUMMED, ("c0",), ()),
        (SUMMED, ("c0", "c3"), ("3 must stay",)),
        ({**SUMMED, "rounds.quorum": 3}, ("c0", "c3"), ("rounds.quorum", "3 must stay")),
    ],
)
def test_too_few_members_for_the_rounds_to_come_are_told_before_they_are_held(changes, gone, words):
    found = warned(people.recipe(changes), *(lambda roster, name=name: roster.retire(name) for name in gone))
    assert len(found) == len(words)
    assert all("round 2" in sentence and word in sentence for sentence, word in zip(found, words, strict=True))


def test_a_later_change_is_looked_at_too_and_a_replacement_mends_it():
    quorum = people.recipe({"rounds.quorum": 3})
    (later,) = warned(quorum, lambda roster: roster.retire("c0", 7))
    assert "round 7" in later
    assert warned(quorum, lambda roster: roster.retire("c0", 7), lambda roster: roster.replace("c0", "west")) == ()


def test_newcomers_to_a_method_that_prepares_are_warned_of():
    found = warned(people.method_recipe("ldpfl"), lambda roster: roster.replace("c0", "west"))
    assert len(found) == 1 and "west" in found[0]
    assert warned(people.method_recipe("ldpfl"), lambda roster: roster.replace("c0", "west"), begun=-1) == ()
    assert warned(people.recipe(), lambda roster: roster.replace("c0", "west")) == ()
