"""Gateways: many participants behind one client of another fleet, each answer still counted by itself."""

import asyncio
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino import serving
from sordino.client.frames import Response
from sordino.errors import InvalidInput
from sordino.fleets.gateways import Bundle, Gateways, Gather, slots
from sordino.fleets.local_clients import SocketFleet
from sordino.messages import Plan, answer_to
from sordino.web.gateway import GatewayHosted, GatewayService
from tests.web.visitors import BITS, recipe, server, visit

NAME = "demo-behind"


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


class _Answering:
    """A fleet of gateways that answer what they were told to."""

    reasons: dict[int, str] = {}  # noqa: RUF012

    def __init__(self, bundles):
        self._bundles = bundles

    def exchange(self, step, messages, deadline):
        assert {gateway: Gather.decode(message).clients for gateway, message in messages.items()} == {
            0: (0, 1),
            1: (2,),
        }
        yield from self._bundles.items()


def test_a_gateway_cannot_answer_for_the_clients_of_another():
    forged = Bundle({0: b"a", 2: b"not its own"}, (1,)).encode()
    fleet = Gateways(_Answering({0: forged, 1: b"nonsense"}), 3, 2)
    assert list(fleet.exchange("report", dict.fromkeys(range(3), b"plan"), None)) == [(0, b"a")]
    assert fleet.unreached == {1}
    assert "gateway" in fleet.reasons[2]


def test_an_answer_to_an_earlier_plan_does_not_stand_for_the_one_to_this(tmp_path):
    own = recipe({"split": {"kind": "iid", "clients": 2}})
    found = GatewayHosted(own, tmp_path / "g", federation=NAME, slots=range(2), patience=0.3)
    plan, earlier = Plan(NAME, 2), Plan(NAME, 1)

    class Line:
        def post(self, frame):
            """Nothing: the test answers."""

    found.fleet.come(0, Line())
    bundles = []
    asked = Gather((0,), plan.encode())
    thread = threading.Thread(target=lambda: bundles.append(found.gather(asked)), daemon=True)
    thread.start()
    while not found.fleet.waiting_for:
        time.sleep(0.001)
    found.fleet.deliver(0, Response(True, answer_to(earlier, b"late")))
    thread.join(0.2)
    assert thread.is_alive()  # it still waits for the answer to this plan
    found.fleet.deliver(0, Response(True, answer_to(plan, b"now")))
    thread.join(5)
    assert bundles == [Bundle({0: answer_to(plan, b"now")})]


@pytest.fixture
def place():
    found = Path(tempfile.mkdtemp(prefix="sdo-"))
    yield found
    shutil.rmtree(found)


def over_sockets(own, place, runs):
    inner = SocketFleet({k: place / f"{k}.sock" for k in range(2)})
    return serving.serve(own, Gateways(inner, 4, 2), runs / NAME, federation=NAME)


def over_flower(own, place, runs):
    """Flower's messages and the real relay, without a network."""
    from sordino.flower.client_app import SOCKET
    from sordino.flower.server_app import RunConfig, coordinate
    from tests.flower.nodes import LocalGrid

    grid = LocalGrid({10 + k: {SOCKET: str(place / f"{k}.sock")} for k in range(2)})
    config = RunConfig.read({"federation": NAME, "runs": str(runs), "members": "gate0,gate1", "gateways": 2})
    found = coordinate(own, grid, config)
    assert len([1 for message in grid.pushed if message]) <= 12  # a hello, an invitation and two plans for each gateway
    return found


@pytest.mark.parametrize("way", ["sockets", "flower"])
def test_pages_behind_two_gateways_are_one_federation(tmp_path, place, way):
    """One page sends extra bits, and is refused alone."""
    if way == "flower":
        pytest.importorskip("flwr")
    own = recipe({"split": {"kind": "iid", "clients": 4}, "rounds.quorum": 3})
    shares = slots(4, 2)
    hosts = [
        GatewayHosted(own, tmp_path / f"g{k}", federation=NAME, slots=share, patience=0.3)
        for k, share in enumerate(shares)
    ]
    outcome = []

    def coordinate():
        outcome.append({"sockets": over_sockets, "flower": over_flower}[way](own, place, tmp_path / "runs"))

    async def page(port, found, secret, body):
        async with visit(port, found, secret) as visitor:
            client = (await visitor.until("welcome"))["client"]
            for _ in range(2):
                await visitor.report(await visitor.plan(), body)
            return client

    async def everybody(ports, thread):
        bodies = {"a": b"\0" * BITS, "b": b"\0" * BITS, "c": b"\0" * BITS, "d": b"\0" * (BITS + 1)}
        pages = [page(ports[k // 2], hosts[k // 2], s, body) for k, (s, body) in enumerate(bodies.items())]
        running = asyncio.gather(*pages)
        await asyncio.sleep(0.3)
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
