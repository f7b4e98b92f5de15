"""A recipe's rounds through a shuffler's process: five clients' processes, a coordinator, kills in between."""

import json
import shutil
import socket
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino import channels
from sordino.channels.shuffle import Shuffled
from sordino.client.refusal import Reason, Refused
from sordino.client.settings import Settings, allow_shuffler
from sordino.errors import InvalidInput
from sordino.fleets.signatures import SignedFleet
from sordino.fleets.sockets import SocketFleet
from sordino.learning import datasets
from sordino.methods.upload import Lost, ReportSum
from sordino.privacy import history
from sordino.privacy.history import RoundReleases
from sordino.recipe import Recipe
from sordino.report.records import RoundRecord
from sordino.report.statement import to_text
from sordino.runs.coordinator import Attendance, Coordinator, Rules
from sordino.runs.federation import Federation
from sordino.shuffler import keys, open_batch, seal
from sordino.shuffler.channel import Access, ServiceChannel
from sordino.shuffler.envelopes import Body, batch_head
from sordino.shuffler.remote import Announcement, Rejected, Remote
from sordino.shuffler.store import EnvelopeStore
from sordino.wire.messages import Plan
from tests.client import people
from tests.client.mortals import Mortals
from tests.client.people import NAME, signed

from .parties import Running, random_bits, report, terms_of

EPSILONS = [1.0, 4.0, 1.0, 4.0, 1.0]  # two classes, of three and of two clients
LATENCIES = [0.05, 0.5, 0.1, 0.2, 0.01]  # the median is 0.1


def recipe(channel: dict[str, Any]) -> Recipe:
    tables = people.method_recipe("ldp-fl").with_(
        {"split": {"kind": "iid", "clients": 5}, "clients.epsilon": EPSILONS, "rounds.count": 3}
    )
    return tables.with_({"method.channel": channel})


def service(url: str = "", key: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "shuffler", "at_least": 2, "url": url, "key": key, "seconds": 60.0, **more}


@pytest.fixture(autouse=True)
def _digits_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", people.read_once)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name: paths of sockets have about a hundred letters."""
    found = Path(tempfile.mkdtemp(prefix="sdo-"))
    yield found
    shutil.rmtree(found)


class Shuffler:
    """A shuffler's folder and process, which can be killed and comes back at the same address."""

    def __init__(self, place: Path, clients: int, at_least: int = 2) -> None:
        self._place, self._at_least = place, at_least
        self.key = keys.make(place / "server").public_bytes_raw().hex()
        with EnvelopeStore(place / "shuffler") as store:
            self.tokens = list(store.register([f"client {k}" for k in range(clients)]).values())
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.running = self._started()
        self.url = self.running.url

    def _started(self) -> Running:
        public = self._place / "server" / keys.PUBLIC
        return Running(self._place / "shuffler", public, self._at_least, "--port", str(self._port))

    def kill_and_start(self) -> None:
        self.running.kill()
        self.running = self._started()

    def channel(self, federation: Federation, given: Recipe) -> ServiceChannel:
        token, key = self._place / "shuffler" / "server.token", self._place / "server" / keys.PRIVATE
        return ServiceChannel(federation.method, given.method.channel, Access.read(self.url, token, key))


@pytest.fixture
def shuffler(place: Path) -> Iterator[Shuffler]:
    found = Shuffler(place, 5)
    yield found
    found.running.kill()


def direct_states(folder: Path, rounds: int) -> list[np.ndarray]:
    """The parameters after each round of the same clients with the same randomness, over the direct channel."""
    federation = people.wire(recipe({"kind": "direct"}))
    clients = people.members(folder, federation, injected=True)
    coordinator, state = people.coordinator(federation, people.DirectFleet(clients)), federation.method.init()
    found = []
    for _ in range(rounds):
        state, _ = coordinator.round(state)
        found.append(state.parameters)
    for client in clients.values():
        client.close()
    return found


def test_a_federation_over_a_shuffler_learns_what_the_direct_channel_learns_though_all_parties_are_killed(
    place, shuffler
):
    given = recipe(service(shuffler.url, shuffler.key))
    federation = people.wire(given)
    deaths = {1: [("post", "before"), ("post", "after")], 4: [("post", "after")]}
    mortals = Mortals(place, federation, deaths, seed=given.seed, federations=[NAME])
    for number, token in enumerate(shuffler.tokens):
        allow_shuffler(mortals.folder(number), NAME, shuffler.url, token, latency=LATENCIES[number])
    mortals.let_die()
    with mortals:
        fleet = SocketFleet(mortals.sockets, patience=120.0)
        invitations = {n: people.invitation(given, n).encode() for n in range(5)}
        assert fleet.invite(invitations) == {}
        killer = threading.Timer(0.5, shuffler.kill_and_start)
        killer.start()
        signing = SignedFleet(fleet, people.KEY, people.terms(given).digest)
        coordinator = Coordinator(
            federation.method,
            signing,
            shuffler.channel(federation, given),
            NAME,
            Rules(5),
        )
        first, held = coordinator.round(federation.method.init())
        killer.join()
        assert held.counted and sorted(held.attendance.reported) == [0, 1, 2, 3, 4]
        told = Remote(shuffler.url, shuffler.tokens[0]).announced(1)
        assert told.latency == pytest.approx(0.1), "the median of what the clients proposed"
        assert told.terms.asked == (3, 2)

        # A coordinator that is killed when all is counted and nothing written down holds the round again.
        again = Coordinator(
            federation.method,
            signing,
            shuffler.channel(federation, given),
            NAME,
            Rules(5),
        )
        repeated, held = again.round(federation.method.init())
        assert np.array_equal(repeated.parameters, first.parameters)
        assert sorted(held.attendance.reported) == [0, 1, 2, 3, 4]
        second, held = again.round(repeated)
        assert held.counted and len(held.attendance.reported) == 5
    assert sorted(mortals.died) == [(1, 0), (1, 1), (4, 0)]
    expected = direct_states(place / "direct", 2)
    assert np.array_equal(first.parameters, expected[0])
    assert np.array_equal(second.parameters, expected[1])
    for number in range(5):
        assert sorted(mortals.reports(number)) == [1, 2], "one report for each round, however often it was asked for"
        assert mortals.spent(number) == pytest.approx(2 * 650 * EPSILONS[number])


def test_a_crowd_that_is_too_small_for_the_shuffler_is_said_at_the_coordinator_and_spends_nothing(place):
    """The shuffler mixes three of a class, whatever the recipe says: of the second class there are two."""
    shuffler = Shuffler(place, 5, at_least=3)
    given = recipe(service(shuffler.url, shuffler.key))
    federation = people.wire(given)
    clients = {}
    for number, token in enumerate(shuffler.tokens):
        folder = place / str(number)
        people.client(folder, people.settings(f"{4 * number}-{4 * number + 3}")).close()
        allow_shuffler(folder, NAME, shuffler.url, token)
        clients[number] = people.Client.open(folder)
        clients[number].join(people.invitation(given, number).encode())
    try:
        fleet = SignedFleet(people.DirectFleet(clients), people.KEY, people.terms(given).digest)
        coordinator = Coordinator(federation.method, fleet, shuffler.channel(federation, given), NAME, Rules(3))
        began = time.monotonic()
        state, held = coordinator.round(federation.method.init())
        assert time.monotonic() - began < 30, "nobody waits for a crowd that cannot come"
        assert held.counted and sorted(held.attendance.reported) == [0, 2, 4]
        (why,) = held.attendance.lost
        assert "at least 3 clients, and class 1 has 2" in why
        assert held.attendance.clients == (0, 2, 4)
        assert [client.standing.releases for client in clients.values()] == [1, 0, 1, 0, 1]
        clients[2].close()  # its answers are refusals from here on: of the first class two send, and three must
        _, again = coordinator.round(state)
        assert not again.counted
        assert "at least 3 clients, and 2 of 3 of class 0 sent" in again.why_lost
    finally:
        for client in clients.values():
            client.close()
        shuffler.running.kill()


def test_operators_are_told_which_class_is_lost_and_why(capsys, caplog):
    from sordino.cli.run import Display
    from sordino.fleets.roster import Roster
    from sordino.flower import coordinator

    caplog.set_level("INFO", "sordino.flower")
    attendance = Attendance((0, 1), lost=["the shuffler mixes at least 3 clients, and class 1 has 2"])
    for observer in (Display(recipe(service())), coordinator._LogObserver(Roster(2))):
        observer.round(RoundRecord(7, asked=5, reported=3), attendance)
    (told,) = attendance.lost
    out = capsys.readouterr()
    assert f"round 7: {told}" in " ".join((out.out + out.err).split())
    assert f"round 7: {told}" in caplog.messages


# --- the server's side, on a store of this process --------------------------------------------------------------------


class Here:
    """A shuffler of this process, spoken to as one elsewhere."""

    def __init__(self, folder: Path, clients: int, at_least: int = 2, now: list[float] | None = None) -> None:
        self.store = EnvelopeStore(folder, at_least, clock=time.time if now is None else lambda: now[0])
        names = [f"client {k}" for k in range(clients)]
        self.numbers = [self.store.client_of(token) for token in self.store.register(names).values()]
        self.withdrawn: list[tuple[int, int]] = []

    def open_round(self, terms):
        self.store.announce(terms)

    def announced(self, round):
        held = self.store.round(round)
        return Announcement(held.terms, KEY, held.at_least, held.latency)

    def withdraw(self, round, group):
        self.withdrawn.append((round, group))
        self.store.withdraw(round, group)

    def taken(self, round, group):
        with_rejection(lambda: self.store.taken(round, group))

    def batch(self, round, group):
        from sordino.shuffler.store import NotYet

        self.store.settle()
        try:
            return with_rejection(lambda: b"".join(self.store.batch(round, group)[1]))
        except NotYet:
            return None

    def send(self, client, terms, bits, key, group=0):
        for body in seal(report(bits), terms, group, key):
            self.store.accept(terms.round, self.numbers[client], Body.decode(body))


def with_rejection(ask):
    from sordino.shuffler.store import NoSuchRound, Over

    try:
        return ask()
    except (NoSuchRound, Over) as error:
        raise Rejected(410, str(error)) from None


def posted(here: Here, given: Recipe, private: X25519PrivateKey) -> tuple[ServiceChannel, Any]:
    federation = people.wire(given)
    return ServiceChannel(federation.method, given.method.channel, Access(here, private), workers=1), federation.method  # type: ignore[arg-type]


def held_round(here, channel, method, private, senders, plan=None):
    """What a round comes to when these clients send zeros, and those among `acknowledged` say so."""
    plan = plan or method.plan(method.init(), NAME)

    def exchange(step, messages):
        assert step == "post"
        terms = here.store.round(plan.round).terms
        for client in messages:
            if client in senders:
                here.send(client, terms, np.zeros(650), private.public_key(), method.class_of(client))
                yield client, b""

    return list(channel.collect(exchange, plan.encode(), range(5)))


def test_a_class_of_which_too_few_answer_is_withdrawn_at_once_and_the_other_counts(tmp_path):
    private = X25519PrivateKey.generate()
    given = recipe(service("http://127.0.0.1:1", private.public_key().public_bytes_raw().hex()))
    here = Here(tmp_path, 5)
    channel, method = posted(here, given, private)
    began = time.monotonic()
    found = held_round(here, channel, method, private, senders={0, 2, 4, 3})  # of the second class, one of two
    assert time.monotonic() - began < 50, "it does not wait for the round's 60 seconds"
    assert isinstance(found[0], ReportSum) and found[0].clients == (0, 2, 4) and not found[0].total.any()
    assert isinstance(found[1], Lost) and "at least 2 clients, and 1 of 2 of class 1 sent" in found[1].why
    assert here.withdrawn == [(1, 1)]
    assert here.store._db.one("SELECT count(*) FROM held")[0] == 0, "what was withdrawn is deleted"


def test_batches_stay_until_a_later_round_begins(tmp_path):
    private = X25519PrivateKey.generate()
    given = recipe(service("http://127.0.0.1:1", private.public_key().public_bytes_raw().hex()))
    here = Here(tmp_path, 5)
    channel, method = posted(here, given, private)

    def states():
        return [state for (state,) in here.store._db.all("SELECT state FROM batches ORDER BY round, class")]

    everybody = {0, 1, 2, 3, 4}
    held_round(here, channel, method, private, everybody)
    assert states() == ["ready", "ready"]
    start = method.init()
    held_round(here, channel, method, private, everybody, method.plan(replace(start, round=1), NAME))
    assert states() == ["taken", "taken", "ready", "ready"]
    channel.let_go(2, 2)
    assert states() == ["taken"] * 4


def test_a_shuffler_that_contradicts_the_terms_costs_the_round_and_not_the_run(tmp_path):
    private = X25519PrivateKey.generate()
    given = recipe(service("http://127.0.0.1:1", private.public_key().public_bytes_raw().hex()))
    here = Here(tmp_path, 5)
    channel, method = posted(here, given, private)
    here.open_round = lambda terms: with_rejection(lambda: here.store.round(99))
    found = held_round(here, channel, method, private, set())
    assert [type(each) for each in found] == [Lost, Lost] and "there is no round 99" in found[0].why


def test_another_key_than_the_recipes_is_refused_before_anything_is_asked(tmp_path):
    private, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    given = recipe(service("http://127.0.0.1:1", other.public_key().public_bytes_raw().hex()))
    with pytest.raises(InvalidInput, match="public half"):
        posted(Here(tmp_path, 5), given, private)


@pytest.mark.parametrize(("group", "workers"), [(1, 2), (30, 9)], ids=["single values", "fewer groups than workers"])
def test_several_processes_open_what_one_opens(group, workers):
    private, terms = X25519PrivateKey.generate(), terms_of(41, (4,), group=group)
    bits = random_bits(4, 41)
    each = [
        np.concatenate([Body.decode(b).envelopes for b in seal(report(row), terms, 0, private.public_key())])
        for row in bits
    ]
    together = np.stack(each, axis=1)
    together[1, 3] = together[1, 2]  # a repetition, which is refused
    together[0, 0, 40] ^= 1  # and damage
    batch = batch_head(terms, 0, 4) + together.tobytes()
    one, several = open_batch(batch, terms, private, 1), open_batch(batch, terms, private, workers)
    assert dict(one.refused) == dict(several.refused) == {"repeated": 1, "damaged": 1}
    assert one.clients == several.clients == 3
    assert np.array_equal(one.rows.packed, several.rows.packed)


def test_what_is_no_batch_is_refused_before_any_process_is_started():
    private, terms = X25519PrivateKey.generate(), terms_of(41, (4,))
    with pytest.raises(InvalidInput, match="of another round"):
        open_batch(batch_head(terms_of(40, (4,)), 0, 4), terms, private, 2)
    with pytest.raises(InvalidInput, match="process"):
        open_batch(b"", terms, private, 0)


# --- the client's side ------------------------------------------------------------------------------------------------

KEY = X25519PrivateKey.generate().public_key()
URL = "http://127.0.0.1:9"


class Announcing:
    """A shuffler that says what it is told to say, and takes what it gets."""

    def __init__(self, **changes: Any) -> None:
        self.changes, self.came, self.proposals = changes, list[bytes](), list[float]()

    def announced(self, round: int) -> Announcement:
        terms = replace(terms_of(650, (3, 2), seconds=60.0), **self.changes.get("terms", {}))
        given = {"terms": terms, "key": KEY, "at_least": 2, "latency": 0.0, **self.changes}
        return Announcement(**{**given, "terms": terms})

    def send(self, round: int, body: bytes) -> int:
        self.came.append(body)
        return len(Body.decode(body).positions)

    def propose(self, seconds: float) -> None:
        self.proposals.append(seconds)


def asked_to_post(plan, given):
    return signed(plan, "post", given=given)


def joined(folder: Path, remote: Announcing, latency: float | None = None):
    given = recipe(service(URL, KEY.public_bytes_raw().hex()))
    client = people.client(folder)
    client.close()
    allow_shuffler(folder, NAME, URL, "token", latency=latency)
    client = people.Client.open(folder)
    plan = people.plans(given)(1)
    client._senders[NAME] = _posting(client, given, remote)
    client.join(people.invitation(given).encode())
    return client, plan, given


def _posting(client, given, remote):
    from sordino.client.shuffler_sender import ShufflerSender

    own = client.settings
    found = ShufflerSender(given.method.channel, own.shuffler[NAME], client.folder, own.limits, patience=0.0)
    found._remote = remote
    return found


def terms_for(plan: Plan, **changes: Any) -> dict[str, Any]:
    import hashlib

    return {"federation": NAME, "subject": hashlib.sha256(plan.encode()).hexdigest(), **changes}


def test_other_federations_are_answered_while_a_report_is_spread_over_time(tmp_path):
    remote = Announcing()
    client, plan, given = joined(tmp_path / "a", remote)
    with client:
        client.join(people.invitation(name="other").encode())
        remote.changes = {"latency": 3.0, "terms": terms_for(plan)}
        with ThreadPoolExecutor(1) as pool:
            posting = pool.submit(client.reply, "post", signed(plan, "post", given=given))
            time.sleep(1.0)
            assert client.reply("report", signed(people.plans(name="other")(1))).reason == ""
            assert not posting.done()
            assert posting.result().reason == ""


@pytest.mark.parametrize(
    ("latency", "reason"),
    [(59.0, Reason.LIMIT_DELAY), (60.0, Reason.NOT_IN_RECIPE), (86_400.0, Reason.NOT_IN_RECIPE)],
)
def test_a_report_is_not_spread_over_more_than_the_recipe_or_the_owner_allows(tmp_path, latency, reason):
    """The shuffler says how long its round lasts; the recipe has 60 seconds, and this owner allows 30."""
    remote = Announcing()
    client, plan, given = joined(tmp_path / "a", remote)
    with client:
        limits = client.settings.limits.model_copy(update={"delay": 30.0})
        client.settings = client.settings.model_copy(update={"limits": limits})
        client._senders[NAME] = _posting(client, given, remote)
        remote.changes = {"latency": latency, "terms": terms_for(plan, seconds=7 * 86_400.0)}
        assert client.reply("post", signed(plan, "post", given=given)).reason == reason.value
        assert remote.came == [] and client.standing.releases == 0


def test_a_client_posts_once_and_answers_with_nothing_of_its_report(tmp_path):
    remote = Announcing()
    client, plan, given = joined(tmp_path / "a", remote, latency=3.0)
    with client:
        remote.changes = {"terms": terms_for(plan)}
        assert remote.proposals == [3.0], "proposed when it joined"
        assert people.body(client.answer("post", asked_to_post(plan, given))) == b""
        assert len(remote.came) == 1 and len(Body.decode(remote.came[0]).positions) == 650
        spent = client.standing.spent
        assert people.body(client.answer("post", asked_to_post(plan, given))) == b""
        assert len(remote.came) == 1 and client.standing.spent == spent
        assert client.reply("report", signed(plan, given=given)).reason == Reason.NOT_IN_RECIPE.value, (
            "not in the clear as well"
        )


def test_a_posted_round_that_is_over_is_declined_before_the_shuffler_is_asked(tmp_path, monkeypatch):
    remote = Announcing()
    client, plan, given = joined(tmp_path / "a", remote)
    with client:
        for round in (1, 2):
            later = people.plans(given)(round)
            remote.changes = {"terms": terms_for(later, round=round)}
            people.body(client.answer("post", asked_to_post(later, given)))
        assert client.ledger.compact(timedelta(0)).reports == 1
        spent = client.standing.spent
        monkeypatch.setattr(remote, "announced", lambda round: pytest.fail("the shuffler was asked"))
        reply = client.reply("post", asked_to_post(plan, given))
        assert (reply.payload, reply.reason) == (b"", Reason.COMPACTED.value)
        assert len(remote.came) == 2 and client.standing.spent == spent


def test_a_report_that_may_have_left_in_part_is_not_called_declined(tmp_path, monkeypatch):
    remote = Announcing()
    client, plan, given = joined(tmp_path / "a", remote)
    with client:
        remote.changes = {"terms": terms_for(plan)}
        with monkeypatch.context() as broken:
            broken.setattr(remote, "send", lambda round, body: (_ for _ in ()).throw(OSError("the line is cut")))
            reply = client.reply("post", asked_to_post(plan, given))
        assert reply.payload == b"" and reply.reason == Reason.UNAVAILABLE.value
        spent = client.standing.spent
        assert spent > 0, "it is in the ledger"
        with monkeypatch.context() as broken:
            broken.setattr(remote, "announced", lambda round: (_ for _ in ()).throw(Rejected(500, "not now")))
            assert client.reply("post", asked_to_post(plan, given)) == reply, (
                "whatever goes wrong when it is asked again"
            )
        assert people.body(client.answer("post", asked_to_post(plan, given))) == b"", (
            "and goes out when the line is back"
        )
        assert len(remote.came) == 1 and client.standing.spent == spent


@pytest.mark.parametrize(
    "changes",
    [
        {"terms": {"group": 2}},
        {"terms": {"values": 649}},
        {"terms": {"subject": "0" * 64}},
        {"at_least": 1},
        {"key": X25519PrivateKey.generate().public_key()},
        {"latency": 60.0},
    ],
    ids=["linked values", "other values", "another plan", "a smaller crowd", "another key", "T as long as the round"],
)
def test_what_was_not_agreed_to_is_not_sealed_and_costs_nothing(tmp_path, changes):
    remote = Announcing()
    client, plan, given = joined(tmp_path / "a", remote)
    with client:
        remote.changes = {**changes, "terms": {**terms_for(plan), **changes.get("terms", {})}}
        assert client.reply("post", asked_to_post(plan, given)).reason == Reason.NOT_IN_RECIPE.value
        assert client.standing.spent == 0 and not remote.came


def test_a_shuffler_that_the_owner_did_not_allow_is_not_joined_and_the_remedy_is_a_command(tmp_path):
    given = recipe(service(URL, KEY.public_bytes_raw().hex()))
    with people.client(tmp_path / "a") as client, pytest.raises(Refused) as caught:
        client.join(people.invitation(given).encode())
    assert caught.value.reason is Reason.CONSENT
    assert f"sordino client shuffler {tmp_path / 'a'} {NAME} {URL} --token FILE" in str(caught.value)
    allow_shuffler(tmp_path / "a", NAME, "http://127.0.0.1:10", "token")  # another one
    with people.Client.open(tmp_path / "a") as client, pytest.raises(Refused, match="not allowed"):
        client.join(people.invitation(given).encode())


def test_an_invitation_names_the_shuffler_and_the_key():
    with pytest.raises(InvalidInput, match=r"method\.channel\.url.*\.key"):
        people.invitation(recipe(service()))


# --- recipes, statements, simulations ---------------------------------------------------------------------------------


def statement_of(given: Recipe) -> str:
    wired = people.wire(given)
    plan = wired.method.plan(wired.method.init(), NAME)
    releases = tuple(tuple(own) for own in wired.releases(plan))
    spent = [RoundReleases(1, releases, ((0, 2, 4), (1, 3)))]
    return to_text(history.statement(spent, 5, delta=1e-5, title="A statement"), 120)


def test_the_statement_names_the_trust_the_crowd_and_the_group():
    text = statement_of(recipe(service()))
    assert "shuffled(2)" in text
    assert "the shuffler is, and that 2 clients send honest reports through it" in " ".join(text.split())
    grouped = statement_of(recipe(service(group=10)))
    assert "one linked message of 10 times a bit's epsilon" in " ".join(grouped.split())


def test_groups_are_linked_messages_in_the_guarantee():
    """650 bits of epsilon 1 by tens: 65 messages of 10, so 650 in all, with no amplification."""
    wired = people.wire(recipe(service(group=10)))
    (release,) = wired.releases(wired.method.plan(wired.method.init(), NAME))[0]
    behind = [g for g in release.guarantees if g.adversary.kind == "shuffled"]
    assert {g.adversary.parties for g in behind} == {2}
    (client,) = [g.loss for g in behind if g.adjacency.name == "CLIENT"]
    assert client.count == 65 and client.epsilon == pytest.approx(10.0, rel=1e-6)


def test_a_class_smaller_than_the_crowd_is_refused_with_the_remedy():
    given = recipe(service(at_least=3))
    with pytest.raises(InvalidInput, match=r"2 clients.*4\.0.*at_least"):
        people.wire(given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "shuffler.example"}, "https://shuffler.example:8470"),
        ({"key": "abc"}, "64 hexadecimal digits"),
        ({"at_least": 1}, "at_least"),
        ({"at_least": 6}, "at most 5, the clients asked"),
        ({"group": 0}, "group"),
        ({"seconds": 0.0}, "seconds"),
    ],
    ids=["address", "key", "nobody else", "more than asked", "no group", "no time"],
)
def test_what_cannot_be_meant_is_refused_when_the_recipe_is_read(changes, said):
    with pytest.raises(InvalidInput, match=said):
        recipe(service(**changes))


def test_in_a_simulation_this_process_mixes_and_the_model_is_the_direct_channels(tmp_path):
    import sordino

    given = recipe(service())
    assert isinstance(channels.build(given, people.wire(given).method), Shuffled)
    mixed, direct = sordino.run(given), sordino.run(recipe({"kind": "direct"}))
    assert np.array_equal(mixed.parameters, direct.parameters)
    assert "shuffled(2)" in to_text(mixed.statement)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_the_owner_allows_a_shuffler_by_a_command(tmp_path):
    from typer.testing import CliRunner

    from sordino.cli import app

    people.client(tmp_path / "a").close()
    (tmp_path / "token").write_text("abc-DEF_123\n")
    arguments = ["client", "shuffler", str(tmp_path / "a"), NAME, URL, "--token", str(tmp_path / "token")]
    done = CliRunner().invoke(app, [*arguments, "--latency", "2"])
    assert done.exit_code == 0, done.output
    path = tmp_path / "a" / f"shuffler-{NAME}.token"
    assert path.read_text() == "abc-DEF_123\n" and path.stat().st_mode & 0o777 == 0o600
    with people.Client.open(tmp_path / "a") as client:
        own = client.settings.shuffler[NAME]
        assert (own.url, own.latency, own.token_in(client.folder)) == (URL, 2.0, "abc-DEF_123")
        assert Settings.of(tomllib.loads(client.settings.to_toml())) == client.settings
    shown = json.loads(CliRunner().invoke(app, ["client", "show", str(tmp_path / "a"), "--json"]).stdout)
    assert shown["shufflers"] == {NAME: URL}
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code != 0 and "edit it there" in again.output
