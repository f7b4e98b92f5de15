"""A coordinator and three clients, each a process of its own behind its own socket; one of them is killed."""

import itertools
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.client.client import Client
from sordino.client.refusal import Reason
from sordino.client.socket_service import Service, SocketUnavailable
from sordino.errors import InvalidInput
from sordino.fleets.interface import Reply
from sordino.fleets.sockets import SocketFleet
from sordino.methods.interface import State
from sordino.wire import requests
from sordino.wire.requests import Request, Response, What
from tests.client import people
from tests.client.mortals import Mortals
from tests.client.people import COST, NAME, body, invitation, plans


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name: paths of sockets have about a hundred letters."""
    found = Path(tempfile.mkdtemp(prefix="sdo-"))
    yield found
    shutil.rmtree(found)


class Recording(SocketFleet):
    """Keeps what came, by client and round."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.came: dict[tuple[int, int], bytes] = {}
        self.receipts: dict[int, bytes] = {}

    def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
        for reply in super().exchange(step, messages, deadline):
            self.came[reply.client, reply.answer.round] = body(reply.message)
            self.receipts[reply.client] = reply.receipt
            yield reply


def test_three_processes_run_a_federation_and_one_is_killed_between_recording_and_sending(place):
    federation = people.wire(people.recipe())
    mortals = Mortals(place, federation, {2: [("report", "after")]}, federations=[NAME])
    mortals.let_die()
    with mortals:
        fleet = Recording(mortals.sockets, patience=120.0)
        invitations = {number: invitation(federation.recipe, number).encode() for number in range(3)}
        assert fleet.invite(invitations) == {}
        coordinator = people.coordinator(federation, fleet)
        states: list[State] = [federation.method.init()]
        for _ in range(3):
            after, held = coordinator.round(states[-1])
            assert sorted(held.attendance.reported) == [0, 1, 2]
            states.append(after)
    assert mortals.died == [(2, 0)]
    for number in range(3):
        assert mortals.reports(number) == {round: fleet.came[number, round] for round in (1, 2, 3)}
        with Client.open(mortals.folder(number)) as client:
            assert client.standing.spent == pytest.approx(3 * COST)
            assert not client.stopped  # the receipts are in the ledger
            client.join(replace(invitation(federation.recipe, number), receipt=fleet.receipts[number].hex()).encode())
    for before, after in itertools.pairwise(states):  # the model is what the ledgers' bytes add up to
        plan = federation.method.plan(before, NAME)
        tally = federation.method.tally(plan)
        assert tally.add([0, 1, 2], [fleet.came[number, plan.round] for number in range(3)]) == {}
        assert np.array_equal(federation.method.update(before, plan, tally).parameters, after.parameters)


def test_what_only_carries_bytes_loads_no_learning_stack():
    program = "import sys, sordino.fleets.sockets; print(sorted({'torch', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


# --- the socket


@pytest.fixture
def served(place: Path) -> Iterator[tuple[Client, Path]]:
    with people.client(place / "a") as client:
        service = Service(client, place / "s", largest=10_000)
        thread = threading.Thread(target=service.serve)
        thread.start()
        try:
            yield client, place / "s"
        finally:
            service.stop()
            thread.join()


def asked(path: Path, request: Request) -> Response:
    with requests.socket.socket(requests.socket.AF_UNIX) as connection:
        connection.connect(str(path))
        requests.send(connection, request.encode())
        return Response.decode(requests.receive(connection))


def test_the_socket_is_its_owners_alone_and_says_who_is_there(served):
    client, path = served
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    response = asked(path, Request(What.HELLO))
    assert response.fine and client.identity.id.encode() in response.payload
    assert client.identity.key.hex().encode() not in response.payload


def test_an_invitation_that_the_owner_did_not_name_waits_for_the_owner(served):
    client, path = served
    response = asked(path, Request(What.JOIN, "", invitation().encode()))
    assert (response.fine, response.reason) == (False, Reason.NOT_AGREED.value)
    assert client.federations() == {}
    waiting = client.folder / "invitations" / f"{NAME}.invitation"
    client.join(waiting.read_bytes())
    assert asked(path, Request(What.JOIN, "", invitation().encode())).fine  # agreed to by now
    answer = asked(path, Request(What.STEP, "report", people.signed(plans()(1))))
    assert answer.fine and len(body(answer.payload)) == 82
    assert asked(path, Request(What.RECEIPT, NAME, answer.receipt)).fine
    assert not asked(path, Request(What.RECEIPT, "elsewhere", answer.receipt)).fine


def test_frames_that_are_too_long_or_no_requests_end_the_connection_and_nothing_else(served):
    _, path = served
    for raw in (b"\xff\xff\xff\xff", b"\x03\x00\x00\x00abc", b"\x04\x00\x00\x00ab"):
        with requests.socket.socket(requests.socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(raw)
            if raw[0] == 4:
                continue  # cut off by closing
            assert not Response.decode(requests.receive(connection)).fine
            assert connection.recv(1) == b""
    assert asked(path, Request(What.HELLO)).fine


def test_a_second_service_at_the_same_socket_is_refused_and_a_dead_ones_place_is_taken(served, place):
    client, path = served
    with pytest.raises(SocketUnavailable, match="another process listens"):
        Service(client, path)
    with pytest.raises(InvalidInput, match="no socket"):
        Service(client, client.folder / "client.toml")
    with pytest.raises(InvalidInput, match="longer"):
        Service(client, place / ("x" * 120))
    left = requests.socket.socket(requests.socket.AF_UNIX)
    left.bind(str(place / "dead"))
    left.close()
    Service(client, place / "dead")._listening.close()


def test_a_client_that_is_not_there_is_not_waited_for_longer_than_said(place):
    fleet = SocketFleet({0: place / "nobody"}, patience=0.2)
    began = time.monotonic()
    assert list(fleet.exchange("report", {0: plans()(1).encode()}, None)) == [Reply(0, reached=False)]
    assert "cannot be reached" in fleet.invite({0: invitation().encode()})[0]
    assert time.monotonic() - began < 30
