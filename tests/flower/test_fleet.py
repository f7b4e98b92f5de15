"""A coordinator over Flower's grid: every method as its simulation, nodes that go and come, answers that come late."""

import itertools
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from sordino.client.client import Client
from sordino.client.refusal import Reason
from sordino.client.settings import allow_shuffler
from sordino.errors import InvalidInput
from sordino.fleets import flower
from sordino.fleets.flower import FlowerFleet
from sordino.fleets.roster import Roster
from sordino.fleets.signatures import SignedFleet
from sordino.fleets.simulated import SimulatedFleet
from sordino.flower import bundles
from sordino.flower.client_app import SOCKET
from sordino.flower.coordinator import KEY, MEMBERS, RUN, CoordinatorSettings, coordinate
from sordino.flower.grid import GridCarrier
from sordino.learning import datasets
from sordino.methods.interface import Bench
from sordino.privacy.history import ranges
from sordino.privacy.ledger import Released
from sordino.recipe import Recipe
from sordino.runs.coordinator import Coordinator
from sordino.runs.federation import wire
from sordino.runs.serving import CoordinatorSetup, invitations, serve
from sordino.runs.simulation import run
from sordino.runs.stopping import TooFewClients
from sordino.shuffler import keys
from sordino.wire.codec import join
from sordino.wire.messages import Plan
from sordino.wire.requests import Request, Response, What
from tests.client import people
from tests.client.forgeries import STRANGER, forged
from tests.client.people import NAME
from tests.flower.nodes import LocalGrid, Served, until
from tests.shuffler.test_channel import Shuffler


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is waited for, and digits are read once."""
    monkeypatch.setattr(datasets, "load", people.read_once)
    monkeypatch.setattr(flower, "REFRESH", 0.02)
    monkeypatch.setattr(flower, "SOONEST", 0.005)
    monkeypatch.setattr(flower, "SLOWEST", 0.02)
    monkeypatch.setattr(flower, "AGAIN", 0.02)


class Parties:
    """Clients of one federation, each served at its own socket behind its own node."""

    def __init__(self, place: Path, recipe: Recipe, named: bool = True, **own: Any) -> None:
        self.place, self.recipe, self.federation = place, recipe, wire(recipe)
        consents = {"federations": [NAME]} if named else {}
        for number, part in enumerate(self.federation.parts):
            people.client(self.folder(number), people.settings(ranges(part), **consents, **own)).close()
        self.served: dict[int, Served] = {}
        self.grid = LocalGrid({10 + n: {SOCKET: str(self.socket(n))} for n in range(self.federation.clients)})

    def folder(self, number: int) -> Path:
        return self.place / f"c{number}"

    def socket(self, number: int) -> Path:
        return self.place / f"{number}.sock"

    def serve(self, number: int, injected: bool = False) -> Client:
        more: Any = {}
        if injected:
            more = {"randomness": people.seeded(self.recipe.seed, number), "execution": people.Execution()}
        client = Client.open(self.folder(number), **more)
        self.served[number] = Served(client, self.socket(number))
        return client

    def serve_all(self, injected: bool = False) -> None:
        for number in range(self.federation.clients):
            self.serve(number, injected)

    def stop(self, number: int) -> None:
        self.served.pop(number).stop()

    def fleet(self, **more: Any) -> FlowerFleet:
        roster = Roster(self.federation.clients, names=[f"c{n}" for n in range(self.federation.clients)])
        return FlowerFleet(GridCarrier(self.grid), roster, **{"wait": 60.0, "patience": 60.0, **more})

    def joined(self, **more: Any) -> FlowerFleet:
        fleet = self.fleet(**more)
        assert fleet.invite(invitations(self.federation, NAME, people.KEY)) == {}
        return fleet

    def run(self, **more: Any) -> Any:
        names = tuple(f"c{number}" for number in range(self.federation.clients))
        settings = CoordinatorSettings(NAME, names, wait=60.0, patience=60.0)
        return coordinate(self.recipe, GridCarrier(self.grid), replace(settings, **more), self.place / "coordinator")

    def spent(self, number: int) -> tuple[int, float]:
        """Releases in a client's ledger, and what they cost."""
        with Client.open(self.folder(number)) as client:
            releases = [entry for entry in client.ledger.entries() if isinstance(entry.event, Released)]
            return len(releases), client.standing.spent


@pytest.fixture
def parties() -> Iterator[Callable[..., Parties]]:
    """A folder with a short name: paths of sockets have about a hundred letters."""
    place, made = Path(tempfile.mkdtemp(prefix="sdo-")), list[Parties]()

    def make(recipe: Recipe | None = None, **own: Any) -> Parties:
        made.append(Parties(place / str(len(made)), recipe or people.recipe(), **own))
        return made[-1]

    yield make
    for each in made:
        for served in each.served.values():
            served.stop()
    shutil.rmtree(place)


def rounds(parties: Parties, fleet: FlowerFleet, count: int) -> list[Any]:
    """So many rounds from the start."""
    coordinator, state, held = people.coordinator(parties.federation, fleet), parties.federation.method.init(), []
    for _ in range(count):
        state, one = coordinator.round(state)
        held.append(one)
    return held


# --- every method


def summed(name: str) -> Recipe:
    """The same recipe with four clients, whose reports travel in secure sums."""
    tables = METHODS[name](name).to_dict()
    tables["split"]["clients"] = 4
    tables["method"]["channel"] = {"kind": "summed"}
    return Recipe.from_dict(tables)


def silos(name: str) -> Recipe:
    """With so much noise that its statement is computed in no time."""
    return people.method_recipe(name).with_({"method.noise_multiplier": 20.0})


def hybrid_one(name: str) -> Recipe:
    """Four silos of DP-SGD, whose noises add up in secure sums."""
    tables = summed("silo-dp").to_dict()
    tables["method"] |= {"name": name, "steps": 1}
    tables["rounds"]["count"] = 1
    return Recipe.from_dict(tables)


def own_settings(name: str) -> dict[str, Any]:
    features = "randomised features"  # of which nothing is proven as simulations compute them
    unproven = ["labels", "randomised records"] if "privunit" in name else ["labels", features]
    return {"limit": 1e12, "unproven": unproven, "budget": {"adjacency": people.adjacency(name), "delta": 1e-5}}


SILOS = ("silo-dp", "hybrid-one")  #: what they send are reals, and no whole numbers
METHODS: dict[str, Callable[[str], Recipe]] = {
    **dict.fromkeys(people.METHODS, people.method_recipe),
    "silo-dp": silos,
    "ldp-fl, summed": summed,
    "hybrid-one": hybrid_one,
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_comes_to_what_its_simulation_comes_to(parties, name):
    """Integer sums, and so models, are equal to the last bit under injected randomness."""
    method = name.partition(",")[0]
    found = parties(METHODS[name](method), **own_settings(method))
    found.serve_all(injected=True)
    outcome = found.run()
    assert [record.reported for record in outcome.rounds] == [found.federation.clients] * found.recipe.rounds.count
    assert (found.place / "coordinator" / RUN / "report.html").is_file()
    simulated = run(found.recipe, workers=1).parameters
    assert np.allclose(outcome.parameters, simulated, rtol=0, atol=1e-6 if method in SILOS else 0)


def test_the_number_of_ones_of_every_parameter_is_the_simulations(parties):
    found = parties()
    found.serve_all(injected=True)
    federation = found.federation
    plan = federation.method.plan(federation.method.init(), NAME).encode()
    work = federation.work(Bench(people.Execution()))
    counts = []
    signing = SignedFleet(found.joined(), people.KEY, people.terms(found.recipe).digest)
    for fleet in (signing, SimulatedFleet(work, None)):
        bodies = [people.body(r.message) for r in fleet.exchange("report", dict.fromkeys(range(3), plan), None)]
        bits = [np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")[:650] for body in bodies]
        counts.append(np.sum(bits, axis=0, dtype=np.int64))
    assert np.array_equal(*counts)
    assert set(counts[0].tolist()) == {0, 1, 2, 3}


def test_reports_go_through_a_shuffler_of_somebody_elses_and_come_to_the_same(parties, tmp_path):
    shuffler = Shuffler(tmp_path, 5)
    try:
        channel = {"kind": "shuffler", "at_least": 2, "url": shuffler.url, "key": shuffler.key, "seconds": 60.0}
        changes = {"split": {"kind": "iid", "clients": 5}, "rounds.count": 1, "method.channel": channel}
        found = parties(people.method_recipe("ldp-fl").with_(changes))
        for number, token in enumerate(shuffler.tokens):
            allow_shuffler(found.folder(number), NAME, shuffler.url, token)
        found.serve_all(injected=True)
        with pytest.raises(InvalidInput, match="shuffler_token"):
            found.run()
        token, key = tmp_path / "shuffler" / "server.token", tmp_path / "server" / keys.PRIVATE
        outcome = found.run(shuffler_token=str(token), shuffler_key=str(key))
    finally:
        shuffler.running.kill()
    direct = run(found.recipe.with_({"method.channel": {"kind": "direct"}}), workers=1)
    assert np.array_equal(outcome.parameters, direct.parameters)


# --- joining


def test_owners_who_agree_later_are_waited_for(parties):
    found = parties(named=False)
    found.serve_all()
    fleet = found.fleet()

    def agree() -> None:
        for number in range(3):
            place = found.folder(number) / "invitations" / f"{NAME}.invitation"
            until(place.exists)
            found.served[number].client.join(place.read_bytes())

    owners = threading.Thread(target=agree)
    owners.start()
    assert fleet.invite(invitations(found.federation, NAME, people.KEY)) == {}
    owners.join()


def test_who_has_not_joined_in_time_is_named_with_the_reason(parties):
    found = parties(named=False)
    found.serve(0)
    found.serve(1)
    fleet = found.fleet(wait=0.1)
    expected = {0: Reason.NOT_AGREED.value, 1: Reason.NOT_AGREED.value, 2: "no node answers for it"}
    until(lambda: fleet.invite(invitations(found.federation, NAME, people.KEY)) == expected)
    with pytest.raises(TooFewClients, match="sordino client join"):
        found.run(wait=0.1)


def test_who_never_joined_released_nothing_and_who_was_asked_and_is_silent_may_have(parties):
    found = parties(people.recipe({"rounds.count": 1, "rounds.deadline": 8.0}))
    found.serve(0)
    found.serve(1)
    fleet = found.fleet(wait=0.1, patience=0.1)
    until(lambda: list(fleet.invite(invitations(found.federation, NAME, people.KEY))) == [2])
    found.grid.silent.add(11)
    outcome = serve(found.recipe, fleet, found.place / "run", CoordinatorSetup(NAME))
    assert [record.reported for record in outcome.rounds] == [1]
    assert [budget.reports for budget in outcome.result.budgets] == [1, 1, 0]


def test_who_comes_after_the_start_takes_part_from_then_on(parties):
    found = parties()
    found.serve(0)
    found.serve(1)
    fleet = found.fleet(wait=0.1, patience=0.2)
    until(lambda: list(fleet.invite(invitations(found.federation, NAME, people.KEY))) == [2])
    coordinator, state = people.coordinator(found.federation, fleet), found.federation.method.init()
    state, first = coordinator.round(state)
    assert (sorted(first.attendance.reported), list(first.attendance.reasons)) == ([0, 1], [2])
    found.serve(2)
    until(lambda: fleet._turn({}, None) or fleet._at(2))
    state, second = coordinator.round(state)
    assert sorted(second.attendance.reported) == [0, 1, 2]


def test_personal_budgets_end_one_by_one_and_the_reason_travels_without_figures(parties):
    found = parties(people.recipe({"rounds.count": 2}))
    with (found.folder(1) / "client.toml").open("r+") as file:
        text = file.read().replace("limit = 1000000.0", f"limit = {1.5 * people.COST}")
        file.seek(0)
        file.write(text)
        file.truncate()
    found.serve_all()
    fleet = found.joined()
    first, second = rounds(found, fleet, 2)
    assert (sorted(first.attendance.reported), first.attendance.declined) == ([0, 1, 2], [])
    assert (sorted(second.attendance.reported), second.attendance.declined) == ([0, 2], [1])
    assert second.attendance.reasons == {1: Reason.BUDGET.value}


@pytest.mark.parametrize(("registered", "place"), [("", 0), ("c2", 2)], ids=["nowhere", "as c2"])
def test_a_node_takes_one_place_however_many_clients_it_pretends_to_have(tmp_path, registered, place):
    hellos = itertools.count()

    def pretending(message: Message, context: Any) -> Message:
        (body,) = bundles.unpack(bundles.bundle_in(message))
        bodies = []
        if Request.decode(body).what is What.HELLO:
            number = next(hellos)
            known = {"name": f"c{number % 3}", "id": f"identity-{number}"}
            bodies.append(Response(True, json.dumps(known).encode()).encode())
        return Message(
            bundles.content(bundles.array(join(*bodies))), reply_to=message
        )  # it hangs up when it is invited

    grid = LocalGrid({10: {}}, pretending)
    grid.names = {10: registered}
    roster = Roster(3, tmp_path / "members.json", ["c0", "c1", "c2"])
    absent = FlowerFleet(GridCarrier(grid), roster, wait=5.0).invite(
        invitations(wire(people.recipe()), NAME, people.KEY)
    )
    assert next(hellos) > 3 and set(absent) == {0, 1, 2}
    assert [own.place for own in roster.tenures if own.identity] == [place]


def test_a_node_without_a_client_takes_no_part_and_harms_nobody(parties):
    found = parties()
    found.grid.nodes[99], found.grid.since[99] = {}, "1"
    found.serve_all()
    assert [sorted(held.attendance.reported) for held in rounds(found, found.joined(), 2)] == [[0, 1, 2]] * 2


def test_one_array_is_made_for_all_and_receipts_travel_with_the_next_plan(parties):
    found = parties()
    found.serve_all()
    fleet = found.joined()
    before = len(found.grid.pushed)
    rounds(found, fleet, 2)
    sent = found.grid.pushed[before:]
    assert len(sent) == 6  # one message a client and round
    arrays = [id(message.content["sordino"]) for message in sent]
    assert len(set(arrays)) == 2
    own = [bundles.unpack(bundles.bundle_in(message)) for message in sent]
    assert [len(bodies) for bodies in own] == [1, 1, 1, 2, 2, 2]
    assert {Request.decode(bodies[0]).what for bodies in own[3:]} == {What.RECEIPT}
    fleet.close()
    for number in range(3):
        agreed = found.folder(number) / "federations" / NAME
        assert any(fleet._receipts[number].hex().encode() in f.read_bytes() or fleet._receipts[number] in f.read_bytes()
                   for f in agreed.rglob("*") if f.is_file())  # fmt: skip


# --- going and coming back


def test_a_client_that_is_restarted_between_rounds_answers_again_and_is_invited_with_its_receipt(parties):
    found = parties()
    found.serve_all()
    fleet = found.joined()
    coordinator, state = people.coordinator(found.federation, fleet), found.federation.method.init()
    state, _ = coordinator.round(state)
    found.stop(1)
    timer = threading.Timer(0.3, lambda: found.serve(1))
    timer.start()
    state, held = coordinator.round(state)
    timer.join()
    assert sorted(held.attendance.reported) == [0, 1, 2]
    for number in range(3):
        found.stop(number)
        assert found.spent(number) == (2, pytest.approx(2 * people.COST))


@pytest.mark.parametrize("noticed", [True, False], ids=["and the old one is gone", "and the old one still listed"])
def test_a_node_that_comes_back_under_another_number_is_the_same_client(parties, noticed):
    """A SuperNode without a key of its own gets a new number; what it took with it is asked again."""
    found = parties()
    found.serve_all()
    fleet = found.joined()
    found.grid.silent.add(12)  # takes the message, and dies with it

    def restart() -> None:
        until(lambda: found.grid.held)
        settings = found.grid.nodes.pop(12) if noticed else found.grid.nodes[12]
        found.grid.since[77] = "2"
        found.grid.nodes[77] = settings

    thread = threading.Thread(target=restart)
    thread.start()
    (held,) = rounds(found, fleet, 1)
    thread.join()
    assert sorted(held.attendance.reported) == [0, 1, 2]
    found.stop(2)
    assert found.spent(2) == (1, pytest.approx(people.COST))  # asked twice, drawn once


def test_a_node_that_was_started_again_under_its_number_is_asked_again(parties):
    """With a key of its own a SuperNode keeps its number, but not what it was asked."""
    found = parties()
    found.serve_all()
    fleet = found.joined()
    found.grid.silent.add(11)

    def restart() -> None:
        until(lambda: found.grid.held)
        found.grid.silent.clear()
        found.grid.since[11] = "2"

    thread = threading.Thread(target=restart)
    thread.start()
    (held,) = rounds(found, fleet, 1)
    thread.join()
    assert sorted(held.attendance.reported) == [0, 1, 2]
    found.grid.let_go()  # the old answer comes after all, in the next round: it is noted, and counts for nothing
    found.stop(1)
    assert found.spent(1) == (1, pytest.approx(people.COST))


def test_an_answer_that_comes_too_late_is_seen_as_late_in_the_next_round(parties):
    found = parties()
    found.serve_all()
    fleet, method = found.joined(), found.federation.method
    state = method.init()
    found.grid.silent.add(10)
    asked = dict.fromkeys(range(3), people.signed(method.plan(state, NAME)))
    with closing(fleet.exchange("report", asked, time.monotonic() + 60)) as answers:
        assert sorted(reply.client for reply in itertools.islice(answers, 2)) == [1, 2]
    until(lambda: found.grid.held)
    found.grid.let_go()
    _, held = people.coordinator(found.federation, fleet).round(state.unchanged())
    assert sorted(held.attendance.reported) == [0, 1, 2]
    assert held.attendance.strays == {"late": 1}


def test_a_deadline_ends_the_wait(parties):
    found = parties()
    found.serve_all()
    fleet, method = found.joined(), found.federation.method
    found.grid.silent.update((10, 11, 12))
    asked, began = dict.fromkeys(range(3), people.signed(method.plan(method.init(), NAME))), time.monotonic()
    assert not [reply for reply in fleet.exchange("report", asked, began + 0.3) if reply.message]
    assert 0.3 <= time.monotonic() - began < 30


def test_who_is_out_of_reach_is_not_waited_for_for_ever(parties):
    found = parties()
    found.serve_all()
    fleet = found.joined(patience=0.3)
    found.stop(0)
    began = time.monotonic()
    (held,) = rounds(found, fleet, 1)
    assert sorted(held.attendance.reported) == [1, 2]
    assert time.monotonic() - began < 30
    assert "could not be reached" in held.attendance.reasons[0]


def test_a_member_that_is_gone_costs_one_patience_and_not_one_a_round(parties):
    found = parties(people.recipe({"rounds.count": 6}))
    found.serve_all()
    fleet = found.joined(patience=1.5)
    found.stop(0)
    del found.grid.nodes[10]
    coordinator, state = people.coordinator(found.federation, fleet), found.federation.method.init()
    began = time.monotonic()
    state, first = coordinator.round(state)
    assert time.monotonic() - began > 1.5
    later = []
    for _ in range(4):
        began = time.monotonic()
        state, held = coordinator.round(state)
        later.append(held)
        assert time.monotonic() - began < 1.5
    assert [sorted(held.attendance.reported) for held in (first, *later)] == [[1, 2]] * 5
    assert [list(held.attendance.reasons) for held in (first, *later)] == [[0]] * 5
    assert [held.attendance.clients for held in later] == [(1, 2)] * 4  # nothing was sent to it
    found.serve(0)
    found.grid.nodes[10] = {SOCKET: str(found.socket(0))}
    found.grid.since[10] = "2"
    until(lambda: fleet._turn({}, None) or fleet._at(0))
    state, back = coordinator.round(state)
    assert sorted(back.attendance.reported) == [0, 1, 2]


def test_who_was_given_up_and_comes_back_is_asked_in_the_round_that_is_open(parties):
    found = parties()
    found.serve_all()
    fleet = found.joined(patience=0.3)
    found.stop(0)
    coordinator, state = people.coordinator(found.federation, fleet), found.federation.method.init()
    state, first = coordinator.round(state)
    found.grid.silent.add(12)  # holds the next round open

    def come_back() -> None:
        until(lambda: found.grid.held)
        found.serve(0)
        until(lambda: fleet._at(0) is not None)
        until(lambda: found.served[0].client.federations()[NAME] == 2)  # it has answered round 2
        found.grid.let_go()

    thread = threading.Thread(target=come_back)
    thread.start()
    state, second = coordinator.round(state)
    thread.join()
    assert (sorted(first.attendance.reported), sorted(second.attendance.reported)) == ([1, 2], [0, 1, 2])


def test_while_too_few_are_there_those_who_were_given_up_are_waited_for_again(parties):
    found = parties()
    found.serve_all()
    fleet = found.joined(patience=0.4, quorum=3)
    found.stop(0)
    coordinator, state = people.coordinator(found.federation, fleet), found.federation.method.init()
    state, _ = coordinator.round(state)
    began = time.monotonic()
    coordinator.round(state)
    assert time.monotonic() - began > 0.4


def test_a_restored_older_folder_is_noticed_when_it_is_invited_again(parties):
    found = parties()
    found.serve_all()
    fleet = found.joined()
    coordinator, state = people.coordinator(found.federation, fleet), found.federation.method.init()
    shutil.copytree(found.folder(1), found.place / "backup")
    state, _ = coordinator.round(state)
    found.stop(1)
    shutil.rmtree(found.folder(1))
    shutil.copytree(found.place / "backup", found.folder(1))
    found.serve(1)
    found.grid.since[11] = "2"
    fleet._refreshed = -1.0
    state, held = coordinator.round(state)
    assert sorted(held.attendance.reported) == [0, 2]
    assert held.attendance.reasons[1] == Reason.OLDER_LEDGER.value


# --- secure sums


@pytest.mark.parametrize("gone_before", ["shares", "masked", "unmask"])
def test_a_client_that_vanishes_in_a_step_of_a_secure_sum_is_left_out_and_the_others_count(parties, gone_before):
    found = parties(people.recipe({"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}}))
    found.serve_all()
    fleet = found.joined(patience=3.0)  # so long that a busy machine's other clients answer
    plain = fleet.exchange

    def exchange(step: str, messages: Any, deadline: Any) -> Any:
        if step == gone_before and 3 in found.served:
            found.stop(3)
        yield from plain(step, messages, deadline)

    fleet.exchange = exchange
    (held,) = rounds(found, fleet, 1)
    assert held.counted and held.attendance.reported == ([0, 1, 2, 3] if gone_before == "unmask" else [0, 1, 2])


@pytest.mark.parametrize("killed_before", ["shares", "masked", "unmask"])
def test_a_client_that_is_restarted_in_a_step_of_a_secure_sum_stays_in_it_and_spends_once(parties, killed_before):
    found = parties(people.recipe({"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}}))
    found.serve_all()
    fleet = found.joined()
    plain = fleet.exchange

    def exchange(step: str, messages: Any, deadline: Any) -> Any:
        if step == killed_before:
            found.stop(3)
            found.serve(3)
        yield from plain(step, messages, deadline)

    fleet.exchange = exchange
    (held,) = rounds(found, fleet, 1)
    assert held.counted and held.attendance.reported == [0, 1, 2, 3]
    found.stop(3)
    assert found.spent(3) == (1, pytest.approx(people.COST))


def test_a_second_answer_to_an_earlier_step_is_not_taken_for_one_to_the_next(parties):
    found = parties(people.recipe({"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}}))
    found.serve_all()
    fleet = found.joined()
    plain = fleet.exchange

    def restart() -> None:
        until(lambda: found.grid.held)
        found.grid.silent.clear()
        found.grid.since[13] = "2"

    def exchange(step: str, messages: Any, deadline: Any) -> Any:
        if step == "shares":
            found.grid.silent.add(13)
            threading.Thread(target=restart).start()
        if step == "masked":
            found.grid.let_go()
        yield from plain(step, messages, deadline)

    fleet.exchange = exchange
    (held,) = rounds(found, fleet, 1)
    assert held.counted and held.attendance.reported == [0, 1, 2, 3]
    assert held.attendance.refused == {}


# --- a server that is started again


class Killed(BaseException):
    """What a coordinator dies of."""


def test_a_restarted_app_goes_on_with_the_same_plan_and_nobody_spends_twice(parties, monkeypatch):
    found = parties()
    found.serve_all()
    asked, plain = list[bytes](), Coordinator.round

    def dying(self: Coordinator, state: Any, plan: Plan | None = None) -> Any:
        assert plan is not None
        asked.append(plan.encode())
        after = plain(self, state, plan)
        if len(asked) == 2:
            raise Killed  # round 2 was answered, and nothing of that is written down
        return after

    monkeypatch.setattr(Coordinator, "round", dying)
    with pytest.raises(Killed):
        found.run()
    outcome = found.run()
    assert [record.round for record in outcome.rounds] == [1, 2, 3]
    assert asked[1] == asked[2] and len(set(asked)) == 3
    for number in range(3):
        found.stop(number)
        assert found.spent(number) == (3, pytest.approx(3 * people.COST))
    members = Roster.open(found.place / "coordinator" / MEMBERS).tenures
    assert [(own.place, own.name) for own in members if own.identity] == [(0, "c0"), (1, "c1"), (2, "c2")]
    assert found.run().result == outcome.result  # over: nobody is asked, and nobody is there


# --- an app of somebody else's ----------------------------------------------------------------------------------------


def relayed(grid: LocalGrid, node: int, request: Request) -> Response:
    """What a node's relay brings back from the owner's client; any app that runs on the SuperLink may ask it."""
    message = Message(bundles.content(bundles.array(join(request.encode()))), node, "query", ttl=60.0)
    (name,) = grid.push_messages([message])
    found: list[Message] = []
    until(lambda: found.extend(grid.pull_messages([name])) or found)
    (response,) = bundles.responses(bundles.bundle_in(found[0]))
    return response


def test_forged_plans_of_another_members_app_are_refused_and_the_real_run_counts_every_round(parties):
    """The attack that worked: six forged rounds were answered and spent, the real ones refused as answered before."""
    given = people.recipe({"rounds.count": 6})
    found, plans = parties(given), people.plans(given)
    found.serve_all()
    client = found.served[0].client
    client.join(people.invitation(given).encode())  # the attacker comes after the owner has agreed
    own = replace(people.terms(given), coordinator=STRANGER.author.first.hex()).invitation(0, STRANGER)
    greedy = replace(people.invitation(given), recipe=people.recipe({"clients.epsilon": 22.0}).to_toml())
    for hostile in (own, greedy):
        assert relayed(found.grid, 10, Request(What.JOIN, "", hostile.encode())).reason == Reason.NOT_SIGNED.value
    for round in range(1, 7):
        for name, message in forged(plans(round), people.plans(given, "another")(round), given).items():
            response = relayed(found.grid, 10, Request(What.STEP, "report", message))
            expected = Reason.NOT_AGREED if name == "of another federation" else Reason.NOT_SIGNED
            assert response == Response(False, b"", expected.value, b""), name
    assert (client.standing.spent, client.federations()) == (0.0, {NAME: 0})
    outcome = found.run()
    assert [(record.reported, record.counted) for record in outcome.rounds] == [(3, True)] * 6
    assert client.standing.spent == pytest.approx(6 * people.COST)


def test_a_rotated_key_reaches_clients_when_the_run_goes_on(parties):
    found = parties(people.recipe({"rounds.count": 2}))
    found.serve_all()
    path = found.place / "coordinator" / KEY
    path.parent.mkdir()
    people.KEY.rotated().write(path)
    for number in range(3):
        found.served[number].client.join(people.invitation(found.recipe, number).encode())  # from before the rotation
    outcome = found.run()
    assert [record.reported for record in outcome.rounds] == [3, 3]
    known = found.folder(0) / "federations" / NAME / "rotations.json"
    assert len(json.loads(known.read_text())) == 1
