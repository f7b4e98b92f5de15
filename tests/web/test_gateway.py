"""Gateways: many participants behind one client of another fleet, each answer still counted by itself."""

import asyncio
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.client.refusal import Reason, Refused
from sordino.errors import InvalidInput
from sordino.fleets.gateways import STEP, Bundle, Gateways, Gather, slots
from sordino.fleets.interface import Fleet, Reply
from sordino.fleets.sockets import SocketFleet
from sordino.fleets.web import Stopped
from sordino.runs import serving
from sordino.runs.federation import wire
from sordino.web.gateway import GatewayFederation, GatewayService
from sordino.web.hosted_federation import GatewayShare, HostingRules
from sordino.wire.messages import Plan, answer_to
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import SigningKey
from tests.client import people
from tests.client.forgeries import STRANGER
from tests.web.visitors import BITS, recipe, server, visit

NAME = "demo-behind"
OWN = recipe({"split": {"kind": "iid", "clients": 2}})  #: of the gateway that most tests start


def gateway_of(given, folder, slots, patience):
    """A gateway of the federation of `people`."""
    share = GatewayShare(NAME, slots, people.KEY.author)
    return GatewayFederation(given, folder, share, HostingRules(patience=patience))


@pytest.fixture(autouse=True)
def known_key(monkeypatch):
    """Coordinators have the key that gateways were started with."""
    monkeypatch.setattr(SigningKey, "new", classmethod(lambda _: people.KEY))


@given(
    st.dictionaries(st.integers(0, 2**32 - 1), st.binary(max_size=20), max_size=5),
    st.lists(st.integers(0, 2**32 - 1), max_size=4),
    st.binary(max_size=10),
)
def test_messages_of_gateways_come_back_as_they_were_and_cut_ones_are_refused(answers, clients, plan):
    bundle, gather = Bundle(answers, tuple(clients)), Gather(tuple(clients), plan, 7)
    assert Bundle.decode(bundle.encode()) == bundle
    assert Gather.decode(gather.encode()) == gather
    for cut in range(len(bundle.encode())):
        with pytest.raises(InvalidInput):
            Bundle.decode(bundle.encode()[:cut])
    with pytest.raises(InvalidInput):
        Bundle.decode(bundle.encode() + b"x")


def test_clients_are_shared_evenly():
    assert slots(5, 2) == [range(3), range(3, 5)]
    assert slots(3, 3) == [range(1), range(1, 2), range(2, 3)]
    for clients, gateways in ((3, 0), (3, 4), (10, 7)):
        with pytest.raises(InvalidInput):
            slots(clients, gateways)


class _Answering(Fleet):
    """A fleet of gateways that answer what they were told to."""

    def __init__(self, bundles, unreached=()):
        self._bundles, self._unreached = bundles, unreached

    def exchange(self, step, messages, deadline):
        assert {gateway: Gather.decode(message).clients for gateway, message in messages.items()} == {
            0: (0, 1),
            1: (2,),
        }
        yield from (Reply(gateway, bundle) for gateway, bundle in self._bundles.items())
        yield from (Reply(gateway, reached=False) for gateway in self._unreached)


def test_a_gateway_cannot_answer_for_the_clients_of_another():
    forged = Bundle({0: b"a", 2: b"not its own"}, (1,)).encode()
    fleet = Gateways(_Answering({0: forged, 1: b"nonsense"}), 3, 2)
    own, away, unread = fleet.exchange("report", dict.fromkeys(range(3), b"plan"), None)
    assert (own, away) == (Reply(0, b"a"), Reply(1, reached=False))
    assert unread.client == 2 and "gateway" in unread.reason and unread.message is None


def test_nothing_was_sent_to_anybody_behind_a_gateway_that_was_not_reached():
    fleet = Gateways(_Answering({0: Bundle({0: b"a"}, (1,)).encode()}, unreached=[1]), 3, 2)
    replies = list(fleet.exchange("report", dict.fromkeys(range(3), b"plan"), None))
    assert replies == [Reply(0, b"a"), Reply(1, reached=False), Reply(2, reached=False)]


@pytest.fixture
def place():
    found = Path(tempfile.mkdtemp(prefix="sdo-"))
    yield found
    shutil.rmtree(found)


def signed(plan, step="report", key=people.KEY):
    return people.signed(plan, step, key, OWN)


class Line:
    """A participant of whom only the number of its plans is known: the test answers."""

    def __init__(self):
        self.posted = 0

    def post(self, frame, plan):
        self.posted += 1

    def reconnect(self, why):
        self.sent_away = why


class Asked(threading.Thread):
    """A gateway that is asked, from the moment on when its participants have the plan."""

    def __init__(self, gateway, plan, key=people.KEY):
        super().__init__(daemon=True)
        self.gateway, self.plan, self.bundle, self.error = gateway, plan, None, None
        self.key = key
        self.start()
        until = time.monotonic() + 30
        while self.is_alive() and not gateway.fleet.waiting_for and time.monotonic() < until:
            time.sleep(0.001)

    def run(self):
        try:
            self.bundle = self.gateway.gather(Gather((0, 1), signed(self.plan, key=self.key)))
        except Stopped as error:
            self.error = error

    def answer(self, client, body, plan=None):
        self.gateway.fleet.deliver(client, Response(True, answer_to(plan or self.plan, body)))

    def ended(self):
        self.join(30)
        assert not self.is_alive()
        return self.bundle


@pytest.fixture
def gateway(tmp_path):
    """Starts a gateway of two places in the same folder again and again, each after the end of the one before."""
    started = []

    def start():
        for before in started[-1:]:
            before.stop()
        started.append(gateway_of(OWN, tmp_path / "g", range(2), 30))
        return started[-1]

    yield start
    started[-1].stop()


def test_an_answer_to_an_earlier_plan_does_not_stand_for_the_one_to_this(gateway):
    found, plan, earlier = gateway(), Plan(NAME, 2), Plan(NAME, 1)
    for client in range(2):
        found.fleet.come(client, Line())
    asked = Asked(found, plan)
    asked.answer(0, b"late", earlier)
    asked.answer(1, b"now")
    asked.join(0.2)
    assert asked.is_alive()  # it still waits for the answer to this plan
    asked.answer(1, b"late", earlier)
    asked.answer(0, b"now")
    assert asked.ended() == Bundle(dict.fromkeys((1, 0), answer_to(plan, b"now")))


def test_a_gateway_that_is_asked_again_gives_the_same_bundle(gateway):
    """Also after a restart, and when participants have gone since: what they sent has left them."""
    found, plan = gateway(), Plan(NAME, 2)  # the last round, after which participants are sent away
    line = Line()
    found.fleet.come(0, line)
    asked = Asked(found, plan)
    asked.answer(0, b"x")
    first = asked.ended()
    assert first == Bundle({0: answer_to(plan, b"x")}, (1,))
    assert found.state == "finished"
    found.fleet.go(0, line)
    assert Asked(found, plan).ended() == first
    restarted = gateway()
    assert (restarted.state, restarted.last_round) == ("finished", 2)  # whoever asks now hears that it is over
    assert Asked(restarted, plan).ended() == first
    assert (line.posted, restarted.state, restarted.last_round) == (1, "finished", 2)


def test_a_gateway_that_was_killed_in_a_round_does_not_say_whom_it_had_not_reached(gateway):
    found, plan = gateway(), Plan(NAME, 1)
    for client in range(2):
        found.fleet.come(client, Line())
    asked = Asked(found, plan)
    found.fleet.stop()
    assert asked.ended() is None
    assert asked.error is not None
    restarted = gateway()
    assert (restarted.state, restarted.last_round) == ("waiting", 0)
    restarted.fleet.come(1, Line())
    asked = Asked(restarted, plan)
    asked.answer(1, b"x")
    assert asked.ended() == Bundle({1: answer_to(plan, b"x")})  # 0 may have sent a report before
    asked = Asked(restarted, Plan(NAME, 2))
    asked.answer(1, b"y")
    assert asked.ended().unreached == (0,)


def test_a_gateway_that_is_stopped_in_a_round_is_asked_again_when_it_is_back(gateway, place):
    """It says nothing instead of refusing: what its participants had sent would be lost."""

    def start():
        found = gateway()
        service = GatewayService(found, place / "g.sock", "gate")
        service.start()
        for client in range(2):
            found.fleet.come(client, Line())
        return found.fleet, service

    def asked(fleet):
        until = time.monotonic() + 30
        while not fleet.waiting_for and time.monotonic() < until:
            time.sleep(0.01)
        with fleet._changed:
            return fleet.waiting_for

    answers, plan = [], Plan(NAME, 1)
    outer = Gateways(SocketFleet({0: place / "g.sock"}), 2, 1)
    messages = dict.fromkeys(range(2), signed(plan))
    asking = threading.Thread(target=lambda: answers.extend(outer.exchange("report", messages, None)), daemon=True)
    fleet, service = start()
    asking.start()
    assert asked(fleet) == (0, 1)
    fleet.deliver(0, Response(True, answer_to(plan, b"x")))
    service.stop()
    while (place / "g.sock").exists():  # a process that ends closes all connections; here, none may come any more
        time.sleep(0.01)
    fleet.stop()
    service._thread.join(30)
    fleet, service = start()
    assert asked(fleet) == (0, 1)
    for client in range(2):
        fleet.deliver(client, Response(True, answer_to(plan, b"x")))
    asking.join(30)
    service.stop()
    assert answers == [Reply(client, answer_to(plan, b"x")) for client in range(2)]


def test_a_gateway_hands_on_no_plan_that_its_coordinator_did_not_sign(gateway):
    found, plan = gateway(), Plan(NAME, 2)
    line = Line()
    found.fleet.come(0, line)
    others = people.signed(plan, given=recipe())  # of the same name and key, on other terms
    for message in (plan.encode(), signed(plan, key=STRANGER), signed(plan, "prepare"), others):
        with pytest.raises((Refused, InvalidInput)):
            found.gather(Gather((0, 1), message))
    assert (line.posted, found.state, found.last_round) == (0, "waiting", 0)
    asked = Asked(found, plan)
    asked.answer(0, b"x")
    assert asked.ended() == Bundle({0: answer_to(plan, b"x")}, (1,))


def test_a_gateway_follows_rotations_by_the_old_key_and_sends_everybody_to_hear_of_them(gateway):
    found, new = gateway(), people.KEY.rotated()
    line = Line()
    found.fleet.come(0, line)
    terms = people.terms(OWN, NAME)
    with pytest.raises(Refused):
        found.invite(replace(terms, coordinator=STRANGER.author.first.hex()).invitation(0, STRANGER, range(2)))
    found.invite(terms.invitation(0, new, range(2)))
    found.invite(terms.invitation(1, people.KEY, range(2)))  # from before the rotation: it takes nothing back
    assert line.sent_away
    with pytest.raises(Refused):
        found.gather(Gather((0, 1), signed(Plan(NAME, 1))))
    restarted = gateway()
    assert restarted.author == new.author
    restarted.fleet.come(0, Line())
    asked = Asked(restarted, Plan(NAME, 1), new)
    asked.answer(0, b"x")
    assert asked.ended().answers


def test_native_clients_behind_a_gateway_wait_for_what_the_coordinator_signed(gateway, place, tmp_path):
    """A gateway holds no key: it hands on one invitation, signed for all its places."""
    found = gateway()
    service = GatewayService(found, place / "g.sock", "gate")
    service.start()
    terms = people.terms(OWN, NAME)

    async def joining(port):
        async with visit(port, found, "b", kind="native", task="") as first, visit(port, found, "a") as page:
            client = (await first.until("welcome"))["client"]
            await page.until("welcome")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    while isinstance(await first.socket.recv(), str):
                        pass
            fleet = Gateways(SocketFleet({0: place / "g.sock"}), 2, 1)
            invited = serving.invitations(wire(OWN), NAME, people.KEY, groups=fleet.groups)
            assert await asyncio.to_thread(fleet.invite, invited) == {}
            while isinstance(message := await asyncio.wait_for(first.socket.recv(), 30), str):
                pass
            return client, Request.decode(message)

    with server(found) as port:
        client, request = asyncio.run(joining(port))
    service.stop()
    assert request.what is What.JOIN
    with people.client(tmp_path / "native") as native:
        native.join(request.payload)
        assert native._agreements.find(NAME).client == client
        assert len(people.body(native.answer("report", signed(people.plans(OWN, NAME)(1))))) == BITS
    restarted = gateway()
    assert restarted._invitation_of(1) == replace(terms.invitation(0, people.KEY, range(2)), client=1)


def test_a_gateway_takes_no_invitation_that_is_forged_or_for_other_places(gateway, place):
    service = GatewayService(gateway(), place / "g.sock", "gate")
    service._listening.close()
    terms = people.terms(OWN, NAME)
    genuine = terms.invitation(0, people.KEY, range(2))

    def reason(invitation):
        return service.respond(Request(What.JOIN, "", invitation.encode())).reason

    assert reason(replace(genuine, recipe=recipe().to_toml())) == Reason.NOT_SIGNED.value
    assert reason(replace(genuine, client=2)) == Reason.NOT_SIGNED.value
    assert "slots 0-1" in reason(terms.invitation(0, people.KEY))
    assert reason(people.terms(recipe(), NAME).invitation(0, people.KEY, range(2))) == Reason.OTHER_TERMS.value
    assert reason(genuine) == ""


def test_one_who_declines_is_answer_enough_for_a_gateway(gateway):
    """Whether a round counts is decided elsewhere, and others wait for this gateway."""
    found, plan = gateway(), Plan(NAME, 1)
    found.fleet.come(0, Line())
    asked = Asked(found, plan)
    asked.answer(0, None)
    assert asked.ended() == Bundle({0: answer_to(plan, None)}, (1,))


def test_what_breaks_in_a_gateway_is_shown_to_its_operator(gateway, place, monkeypatch, capsys):
    found = gateway()
    monkeypatch.setattr(found, "gather", lambda asked: 1 / 0)
    service = GatewayService(found, place / "g.sock", "gate")
    service._listening.close()
    request = Request(What.STEP, STEP, Gather((0,), signed(Plan(NAME, 1))).encode())
    assert service.respond(request) == Response(False, reason=Reason.UNAVAILABLE.value)
    assert "ZeroDivisionError" in capsys.readouterr().err


def over_sockets(own, place, runs):
    inner = SocketFleet({k: place / f"{k}.sock" for k in range(2)})
    return serving.serve(own, Gateways(inner, 4, 2), runs / NAME, serving.CoordinatorSetup(NAME))


def over_flower(own, place, runs):
    """Flower's messages and the real relay, without a network."""
    from sordino.flower.client_app import SOCKET
    from sordino.flower.coordinator import CoordinatorSettings, coordinate
    from sordino.flower.grid import GridCarrier
    from tests.flower.nodes import LocalGrid

    grid = LocalGrid({10 + k: {SOCKET: str(place / f"{k}.sock")} for k in range(2)})
    settings = CoordinatorSettings(NAME, ("gate0", "gate1"), gateways=2)
    found = coordinate(own, GridCarrier(grid), settings, runs)
    assert len([1 for message in grid.pushed if message]) == 8  # a hello, an invitation and two plans for each gateway
    return found


@pytest.mark.parametrize("way", ["sockets", "flower"])
def test_pages_behind_two_gateways_are_one_federation(tmp_path, place, way):
    """One page sends extra bits, and is refused alone."""
    if way == "flower":
        pytest.importorskip("flwr")
    own = recipe({"split": {"kind": "iid", "clients": 4}, "rounds.quorum": 3})
    shares = slots(4, 2)
    hosts = [gateway_of(own, tmp_path / f"g{k}", share, 0.3) for k, share in enumerate(shares)]
    outcome = []

    def coordinate():
        outcome.append({"sockets": over_sockets, "flower": over_flower}[way](own, place, tmp_path / "runs"))

    async def page(port, found, secret, body, here):
        async with visit(port, found, secret) as visitor:
            client = (await visitor.until("welcome"))["client"]
            await here.wait()
            for _ in range(2):
                await visitor.report(await visitor.plan(), body)
            return client

    async def everybody(ports, thread):
        bodies = {"a": b"\0" * BITS, "b": b"\0" * BITS, "c": b"\0" * BITS, "d": b"\0" * (BITS + 1)}
        here = asyncio.Barrier(5)  # all pages, and the coordinator
        pages = [page(ports[k // 2], hosts[k // 2], s, body, here) for k, (s, body) in enumerate(bodies.items())]
        running = asyncio.gather(*pages)
        await here.wait()
        thread.start()
        return await running

    with ExitStack() as stack:
        services = [GatewayService(found, place / f"{k}.sock", f"gate{k}") for k, found in enumerate(hosts)]
        for service in services:
            service.start()
            stack.callback(service.stop)
        ports = [stack.enter_context(server(found)) for found in hosts]
        thread = threading.Thread(target=coordinate, daemon=True)
        assert sorted(asyncio.run(everybody(ports, thread))) == [0, 1, 2, 3]
        thread.join(20)
    (found,) = outcome
    assert [(record.reported, record.refused) for record in found.rounds] == [(3, 1), (3, 1)]
    assert found.result.stopped == "all 2 rounds are done"
