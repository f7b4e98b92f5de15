"""Secure sums among clients' processes that are killed at every step, and with a coordinator that is."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.channels import secagg
from sordino.channels.secagg import STEPS
from sordino.client.client import Client
from sordino.client.refusal import Reason, Refused
from sordino.errors import InvalidInput
from sordino.fleets.interface import Reply
from sordino.fleets.sockets import SocketFleet
from sordino.learning import datasets
from sordino.methods.interface import State
from sordino.privacy import guarantee
from sordino.runs.coordinator import Coordinator
from sordino.runs.federation import Federation
from sordino.wire.signing import Envelope
from tests.client import people
from tests.client.mortals import ROOT, Mortals
from tests.client.people import COST, NAME

EVERY_STEP = [(step, when) for step in STEPS for when in ("before", "after")]


@pytest.fixture(autouse=True)
def _digits_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", people.read_once)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name: paths of sockets have about a hundred letters."""
    found = Path(tempfile.mkdtemp(prefix="sdo-"))
    yield found
    shutil.rmtree(found)


def summed(clients: int = 5, **changes: Any) -> Federation:
    split = {"split": {"kind": "iid", "clients": clients}, "data.train_limit": 20 * clients}
    return people.wire(people.recipe({**split, "method.channel": {"kind": "summed"}, **changes}))


def added_up(federation: Federation, state: State, reports: dict[int, bytes]) -> np.ndarray:
    """The parameters that these reports lead to when they are added in the clear."""
    plan = federation.method.plan(state, NAME)
    tally = federation.method.tally(plan)
    assert tally.add(list(reports), list(reports.values())) == {}
    return federation.method.update(state, plan, tally).parameters


def kept_of(folder: Path) -> dict[str, Any]:
    """What a client's folder holds of its last sum, without the answer."""
    text = (folder / "federations" / NAME / "sum" / "state").read_bytes()
    found = json.loads(text[4 : 4 + int.from_bytes(text[:4], "little")])
    return {**found, "part": json.loads(found["part"])}


# --- processes that are killed


def test_coordinator_and_clients_are_killed_before_and_after_every_step_and_every_report_counts_once(place):
    """In the first round the coordinator dies ten times, in the second one client ten times and another twice."""
    federation = summed()
    deaths = {3: EVERY_STEP, 1: [("masked", "after"), ("unmask", "after")]}
    mortals = Mortals(place, federation, deaths, federations=[NAME])
    given = {
        "recipe": federation.recipe.to_toml(), "deaths": EVERY_STEP, "out": str(place / "out"),
        "sockets": {number: str(path) for number, path in mortals.sockets.items()},
    }  # fmt: skip
    (place / "coordinating.json").write_text(json.dumps(given))
    with mortals:
        fleet = SocketFleet(mortals.sockets, patience=120.0)
        assert fleet.invite({n: people.invitation(federation.recipe, n).encode() for n in range(5)}) == {}
        done = subprocess.run(
            [sys.executable, "-m", "tests.client.coordinating", str(place / "coordinating.json")],
            cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # Eleven sums of one round, of which the last comes to its end; in the one before, all was revealed already.
        assert json.loads(done.stdout) == {"reported": [0, 1, 2, 3, 4], "why_lost": ""}
        for number in range(5):
            sessions = kept_of(mortals.folder(number))["part"]["part"]["sessions"]
            assert len(set(sessions)) == len(sessions) == 10, "all but the one that nobody was asked for"
        start = federation.method.init()
        first = replace(start, round=1, parameters=np.load(place / "out.npy"))
        mortals.let_die()
        second, held = people.coordinator(federation, fleet).round(first)
        assert held.attendance.reported == [0, 1, 2, 3, 4]
    assert sorted(mortals.died) == [(1, 0), (1, 1), *((3, life) for life in range(10))]
    reports = {number: mortals.reports(number) for number in range(5)}  # one for each round, however often it was added
    for before, after, round in ((start, first, 1), (first, second, 2)):
        expected = added_up(federation, before, {number: own[round] for number, own in reports.items()})
        assert np.array_equal(after.parameters, expected)
    for number in range(5):
        assert mortals.spent(number) == pytest.approx(2 * COST)
        part = kept_of(mortals.folder(number))["part"]
        assert part["client"] is None, "no secret outlives its sum"
        assert part["part"]["pledge"] == [0, 1, 2, 3, 4]


# --- what a client may reveal, and no more


class Restarting(people.DirectFleet):
    """Every client is another process at every step, as far as it can tell."""

    def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
        for number, client in self.clients.items():
            client.close()
            self.clients[number] = Client.open(client.folder)  # type: ignore[index]
        yield from super().exchange(step, messages, deadline)


@pytest.mark.usefixtures("sum_graph")
def test_all_clients_may_restart_between_all_steps(tmp_path):
    federation = summed(4)
    fleet, start = Restarting(people.members(tmp_path, federation)), federation.method.init()
    state, held = people.coordinator(federation, fleet).round(start)
    assert held.attendance.reported == [0, 1, 2, 3]
    _, held = people.coordinator(federation, people.DirectFleet(fleet.clients)).round(state)
    assert held.attendance.reported == [0, 1, 2, 3]
    for client in fleet.clients.values():
        assert client.standing.spent == pytest.approx(2 * COST)
        assert len(list((client.folder / "federations" / NAME / "sum").iterdir())) == 2, "one plan, one state"


# --- keys that the server did not make


def listing(clients: dict[int, Client], numbers: Any = range(4)) -> dict[int, Client]:
    """The same clients, whose owners have told each other their keys."""
    lines = [f'{number} = "{clients[number].identity.public}"' for number in numbers]
    for number, client in clients.items():
        client.close()
        path = client.folder / "client.toml"
        path.write_text("\n".join([path.read_text(), f"[peers.{NAME}]", *lines, ""]))
        clients[number] = Client.open(client.folder)
    return clients


class InTheMiddle(people.DirectFleet):
    """Puts keys of its own in the place of client 1's."""

    def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
        for reply in super().exchange(step, messages, deadline):
            forged = (step, reply.client) == ("keys", 1)
            yield Reply(reply.client, self._forged(reply.message)) if forged else reply

    @staticmethod
    def _forged(answer: bytes) -> bytes:
        body = people.body(answer)
        keys = bytes(secagg._SUM.unpack(body).rest)
        entry = secagg._PublicKeys.decode(1, keys)
        own = [X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(2)]
        forged = replace(entry, mask=own[0], seal=own[1])
        return answer[: -len(keys)] + forged.encode()


@pytest.mark.usefixtures("sum_graph")
def test_owners_who_list_each_others_keys_sum_with_these_and_with_none_that_a_server_made(tmp_path):
    federation = summed(4)
    clients = listing(people.members(tmp_path, federation))
    fleet = Restarting(clients)
    state, held = people.coordinator(federation, fleet).round(federation.method.init())
    assert held.attendance.reported == [0, 1, 2, 3]
    _, held = people.coordinator(federation, InTheMiddle(fleet.clients)).round(state)
    assert not held.counted and held.attendance.reported == []
    for number in (0, 2, 3):
        assert "keys of client 1 are not signed by it" in (tmp_path / str(number) / "log.txt").read_text()


def test_owners_who_list_nobody_trust_the_server_with_the_keys(tmp_path, sum_graph):
    """Client 1 alone notices, since it knows its own keys; on a sparse graph its peers do, from what it seals."""
    federation = summed(4)
    fleet = InTheMiddle(people.members(tmp_path, federation))
    _, held = people.coordinator(federation, fleet).round(federation.method.init())
    assert held.attendance.reported == ([0, 2, 3] if sum_graph == "complete" else [])


def with_second_budget(clients: dict[int, Client], limit: float) -> dict[int, Client]:
    """The same clients, of which client 0 has a second limit, against the sum."""
    clients[0].close()
    path = clients[0].folder / "client.toml"
    path.write_text(f"{path.read_text()}\n[summed_budget]\nlimit = {limit}\nhonest = 2\n")
    clients[0] = Client.open(clients[0].folder)
    return clients


def test_a_second_budget_is_charged_where_the_others_keys_are_listed(tmp_path):
    federation = summed(4)
    for listed in (True, False):
        clients = people.members(tmp_path / str(listed), federation)
        clients = with_second_budget(listing(clients) if listed else clients, 1.5 * COST)
        offer = clients[0].offer(people.invitation(federation.recipe).encode())
        assert (offer.pinned, offer.budgets, offer.fits) == ((True, 2, 1) if listed else (False, 1, 3))
        assert ("a server that keeps to the protocol: you have not listed" in offer.to_text()) != listed
        fleet = people.DirectFleet(clients)
        coordinator = people.coordinator(federation, fleet)
        state, held = coordinator.round(federation.method.init())
        assert held.attendance.reported == [0, 1, 2, 3]
        standing = clients[0].standing
        assert standing.spent == pytest.approx(COST) and standing.summed is not None
        assert standing.summed.spent == pytest.approx(COST if listed else 0)
        _, held = coordinator.round(state)  # more than the second budget, and less than the first
        assert fleet.reasons == ({0: Reason.BUDGET.value} if listed else {})
        assert clients[0].standing.spent == pytest.approx(COST if listed else 2 * COST)
        for client in clients.values():
            client.close()


def test_a_second_budget_is_written_down_and_given_up_as_the_settings_say(tmp_path):
    clients = with_second_budget(people.members(tmp_path, summed(4)), 2.0)
    account = clients[0].standing.summed
    assert account is not None and (account.budget.limit, account.budget.adversary) == (2.0, guarantee.summed(2))
    clients[0].close()
    path = clients[0].folder / "client.toml"
    path.write_text(path.read_text().split("[summed_budget]")[0])
    with Client.open(clients[0].folder) as client:
        assert client.standing.summed is None


def test_a_list_of_keys_that_lacks_somebody_or_is_none_is_refused(tmp_path):
    clients = listing(people.members(tmp_path, summed(4)), range(3))
    with pytest.raises(Refused, match="client 3"):
        clients[0].offer(people.invitation(summed(4).recipe).encode())
    path = tmp_path / "1" / "client.toml"
    path.write_text(path.read_text().replace(clients[0].identity.public, "00ff"))
    with pytest.raises(InvalidInput, match=r"peers.digits-demo.*64 hexadecimal"):
        Client.open(path.parent)


def test_one_key_does_not_stand_for_two_clients(tmp_path):
    """Honest clients are counted by their keys: whoever holds one is one of them."""
    clients = listing(people.members(tmp_path, summed(4)))
    own, another = (clients[number].identity.public for number in (0, 2))
    path = tmp_path / "0" / "client.toml"
    whole = path.read_text()
    clients[0].close()
    path.write_text(whole.replace(clients[1].identity.public, another))
    with pytest.raises(InvalidInput, match="1, 2"):
        Client.open(path.parent)
    path.write_text(whole.replace(f'0 = "{own}"\n', "").replace(another, own))
    with (
        Client.open(path.parent) as client,
        pytest.raises(Refused, match="client 2") as refusal,
    ):
        client.offer(people.invitation(summed(4).recipe).encode())
    assert refusal.value.reason is Reason.CONSENT


class Lying(people.DirectFleet):
    """Restarts a client after one of its answers and then asks that step again, otherwise."""

    def __init__(self, clients: Any, step: str, otherwise: Any) -> None:
        super().__init__(clients)
        self._step, self._otherwise = step, otherwise
        self.replies: list[Any] = []

    def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
        found = list(super().exchange(step, messages, deadline))
        if step == self._step:
            self.clients[0].close()
            self.clients[0] = Client.open(self.clients[0].folder)  # type: ignore[index]
            self.replies.append(self.clients[0].reply(step, self._otherwise(step, messages)))
        yield from found


def without(names: list[int], length: int) -> Any:
    """A list of clients, with something from each but client 0, without some of them; signed, by a server that lies."""

    def shorter(step: str, messages: dict[int, bytes]) -> bytes:
        envelope = Envelope.decode(messages[0])
        _, fields, (blob,), rest = secagg._SUM.unpack(envelope.message)
        listed = np.frombuffer(blob, "<u4").tolist()
        pieces = {n: rest[length * k : length * (k + 1)] for k, n in enumerate(listed[1:])}
        left = [number for number in listed if number not in names]
        lie = secagg._SUM.pack(
            *fields, kind=secagg.STEPS.index(step), blobs=[np.array(left, "<u4").tobytes()],
            rest=b"".join(bytes(pieces[n]) for n in left[1:]),
        )  # fmt: skip
        return replace(envelope, message=lie).signed(step, people.KEY.private).encode()

    return shorter


@pytest.mark.usefixtures("sum_graph")
@pytest.mark.parametrize(
    ("step", "length"),
    [("masked", secagg._SEALED), ("confirm", 16), ("unmask", 16)],
    ids=["masked", "confirm", "unmask"],
)
def test_after_a_restart_no_step_is_answered_in_a_second_way(tmp_path, step, length):
    """Names left out of a list that was answered: the tags and seals of those who stay are good, the time is over."""
    federation = summed(5)
    fleet = Lying(people.members(tmp_path, federation), step, without([4], length))
    _, held = people.coordinator(federation, fleet).round(federation.method.init())
    (reply,) = fleet.replies
    assert reply.reason and reply.payload == b""
    assert held.attendance.reported == [0, 1, 2, 3, 4], "the others finish the sum without its help"
    state = kept_of(fleet.clients[0].folder)["part"]
    assert state["client"] is None, "it answers nothing more in this sum"


@pytest.mark.usefixtures("sum_graph")
def test_the_lists_that_the_lie_is_made_of_are_good_when_they_come_first(tmp_path):
    """Else the test above would prove nothing: the same shorter lists are answered by a client that saw no others."""
    federation = summed(5)
    clients = people.members(tmp_path, federation)

    class Shorter(people.DirectFleet):
        def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
            if step == "confirm":
                reply = clients[0].reply(step, without([4], 16)(step, messages))
                assert not reply.reason
                return
            yield from super().exchange(step, messages, deadline)

    people.coordinator(federation, Shorter(clients)).round(federation.method.init())


# --- a sum that is begun anew


class Dropping(people.DirectFleet):
    """Clients that are gone from a step on."""

    gone: tuple[int, ...] = ()
    since = "keys"

    def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
        if STEPS.index(step) >= STEPS.index(self.since):
            messages = {number: message for number, message in messages.items() if number not in self.gone}
        yield from super().exchange(step, messages, deadline)


def begun_anew(folder: Path, first: tuple[int, ...], then: tuple[int, ...], since: str = "masked") -> Any:
    """A round held twice by a server that forgot the first time, each time without some clients from a step on."""
    federation = summed(5)
    fleet, start = Dropping(people.members(folder, federation)), federation.method.init()
    fleet.gone, fleet.since = first, since
    before, held = people.coordinator(federation, fleet).round(start)
    assert held.counted
    fleet.gone = then
    after, again = people.coordinator(federation, fleet).round(start)
    return before, after, again, fleet


@pytest.mark.parametrize("since", ["keys", "shares", "masked"])
def test_a_sum_that_was_revealed_is_revealed_again_over_the_same_clients_though_others_are_back(tmp_path, since):
    before, after, again, fleet = begun_anew(tmp_path, first=(3,), then=(), since=since)
    assert again.attendance.reported == [0, 1, 2, 4]
    assert np.array_equal(before.parameters, after.parameters)
    assert all(client.standing.spent == pytest.approx(COST) for n, client in fleet.clients.items() if n != 3)


@pytest.mark.parametrize("since", ["keys", "shares", "masked"])
def test_a_sum_that_was_revealed_is_not_revealed_over_fewer_and_the_record_says_why(tmp_path, since, sum_graph):
    before, after, again, _ = begun_anew(tmp_path, first=(), then=(3,), since=since)
    why = {"complete": "client 3, who is in it, is not there any more", "sparse": "0 of 5 clients answered"}[sum_graph]
    assert not again.counted and why in again.why_lost
    assert not np.array_equal(before.parameters, after.parameters)


@pytest.mark.parametrize("sum_graph", ["sparse"], indirect=True)
def test_where_neighbours_are_drawn_nobody_joins_a_second_sum_of_a_round(tmp_path, sum_graph):
    """Not even over the same clients; who was not in the first one joins, and is alone."""
    _, _, again, fleet = begun_anew(tmp_path, first=(3,), then=())
    assert not again.counted and "1 of 5 clients answered the step 'keys'" in again.why_lost
    assert set(fleet.reasons) == {0, 1, 2, 4}


def test_a_server_that_keeps_the_earlier_sum_to_itself_gets_no_other(tmp_path, monkeypatch, sum_graph):
    """It leaves out what clients say of the sum that they helped to reveal, and asks for one without client 3."""
    federation = summed(5)
    fleet, start = Dropping(people.members(tmp_path, federation)), federation.method.init()
    _, held = people.coordinator(federation, fleet).round(start)
    assert held.attendance.reported == [0, 1, 2, 3, 4]
    monkeypatch.setattr(secagg.SumServer, "_keep_to_pledge", lambda self: self._pledges.clear())
    fleet.gone, fleet.since = (3,), "masked"
    _, again = people.coordinator(federation, fleet).round(start)
    refused_at = {"complete": "confirm", "sparse": "keys"}[sum_graph]
    assert not again.counted and f"0 of 5 clients answered the step '{refused_at}'" in again.why_lost


@pytest.mark.usefixtures("sum_graph")
def test_a_client_that_lost_what_it_knew_of_a_sum_joins_no_second_one(tmp_path):
    federation = summed(5)
    fleet, start = people.DirectFleet(people.members(tmp_path, federation)), federation.method.init()
    people.coordinator(federation, fleet).round(start)
    shutil.rmtree(fleet.clients[0].folder / "federations" / NAME / "sum")
    _, again = people.coordinator(federation, fleet).round(start)
    assert fleet.reasons[0] == Reason.OUT_OF_ORDER.value
    assert not again.counted and again.attendance.declined == [], "its report has left: it does not say otherwise"


@pytest.mark.usefixtures("sum_graph")
def test_a_ledger_from_before_a_sum_draws_no_second_report_for_it(tmp_path):
    federation = summed(5)
    clients = people.members(tmp_path, federation)
    fleet, start = people.DirectFleet(clients), federation.method.init()
    folder = clients[0].folder
    backup = (folder / "ledger.sqlite").read_bytes()
    people.coordinator(federation, fleet).round(start)
    clients[0].close()
    for path in folder.glob("ledger.sqlite*"):
        path.unlink()
    (folder / "ledger.sqlite").write_bytes(backup)
    clients[0] = Client.open(folder)
    assert clients[0].standing.spent == 0
    _, again = people.coordinator(federation, fleet).round(start)
    assert fleet.reasons[0] == Reason.OLDER_LEDGER.value and clients[0].standing.spent == 0
    assert not again.counted


@pytest.mark.usefixtures("sum_graph")
def test_an_earlier_round_is_not_summed_after_a_later_one(tmp_path):
    federation = summed(4)
    fleet, start = people.DirectFleet(people.members(tmp_path, federation)), federation.method.init()
    coordinator: Coordinator = people.coordinator(federation, fleet)
    state, _ = coordinator.round(start)
    coordinator.round(state)
    _, again = coordinator.round(start)
    assert not again.counted and not again.attendance.declined
    assert fleet.reasons == dict.fromkeys(range(4), Reason.OUT_OF_ORDER.value)
