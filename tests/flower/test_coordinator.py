"""The coordinator is a process of its own: what the relay in Flower's app does to it, and cannot do."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.client.client import Client
from sordino.errors import InvalidInput
from sordino.fleets import flower
from sordino.fleets.carrier import Carrier, CarrierLost, Letter, LetterReply, NodeFacts
from sordino.fleets.roster import Roster
from sordino.flower import relay as relaying
from sordino.flower.client_app import SOCKET as NODE_SETTING
from sordino.flower.coordinator import (
    KEY,
    RUN,
    SOCKET,
    CoordinatorSettings,
    _LogObserver,
    coordinate,
    make_coordinator,
)
from sordino.flower.grid import GridCarrier
from sordino.flower.relay import Call, RelayedCarrier, relay
from sordino.learning import datasets
from sordino.privacy.history import ranges
from sordino.runs.federation import wire
from sordino.runs.observer import Observer
from sordino.wire import requests
from sordino.wire.signing import SigningKey
from tests.client import people
from tests.client.people import NAME
from tests.flower.nodes import LocalGrid, Served, until

ROOT = Path(__file__).parent.parent.parent


class Echo(Carrier):
    """A node that gives back what it is sent, in the order of letters."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []

    def nodes(self) -> list[NodeFacts]:
        return [NodeFacts(2**64 - 1, "now", "north")]

    def push(self, letters: Any) -> list[str]:
        first = len(self.letters)
        self.letters += letters
        return [str(first + number) for number in range(len(letters))]

    def pull(self, letters: Any) -> list[LetterReply]:
        return [LetterReply(each, self.letters[int(each)].before + self.letters[int(each)].frames) for each in letters]


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sdo-") as place:
        yield Path(place) / "c.sock"


def start(carrier: Carrier, path: Path) -> threading.Thread:
    thread = threading.Thread(target=_relay_quietly, args=(carrier, path), daemon=True)
    thread.start()
    return thread


def _relay_quietly(carrier: Carrier, path: Path) -> None:
    with suppress(Exception):
        relay(carrier, path, 7, patience=20.0)


def until_there(carrier: RelayedCarrier) -> list[NodeFacts]:
    end = time.monotonic() + 10
    while True:
        try:
            return carrier.nodes()
        except CarrierLost:
            assert time.monotonic() < end


def test_letters_and_replies_pass_the_socket_as_they_are(path, monkeypatch):
    monkeypatch.setattr(relaying, "PIECE", 5000)  # so that they travel in several messages
    with closing(RelayedCarrier(path, "demo")) as carrier:
        thread = start(Echo(), path)
        assert until_there(carrier) == [NodeFacts(2**64 - 1, "now", "north")]
        letters = [Letter(n, b"same" * 500, bytes([n]) * n * 100, 1.5) for n in range(20)]
        ids = carrier.push(letters)
        assert len(set(ids)) == 20
        found = carrier.pull(ids)
        assert [each.frames for each in found] == [each.before + each.frames for each in letters]
        carrier.end()
        thread.join(5)
        assert not thread.is_alive()


def test_a_relay_waits_anew_for_every_coordinator_that_goes(path, monkeypatch):
    """However long it has served before."""
    monkeypatch.setattr(relaying, "AGAIN", 0.02)
    thread = threading.Thread(target=relay, args=(Echo(), path), kwargs={"patience": 1.0}, daemon=True)
    with closing(RelayedCarrier(path, "demo")) as carrier:
        thread.start()
        until_there(carrier)
        time.sleep(1.5)
    with closing(RelayedCarrier(path, "demo")) as carrier:
        assert until_there(carrier)
        carrier.end()
        thread.join(5)
    assert not thread.is_alive()


def test_without_a_relay_there_is_no_way_and_the_newest_relay_counts(path):
    with closing(RelayedCarrier(path, "demo")) as carrier:
        with pytest.raises(CarrierLost):
            carrier.nodes()
        first, second = Echo(), Echo()
        start(first, path)
        until_there(carrier)
        start(second, path)
        until(lambda: bool(second.letters) or _pushed(carrier))
        assert not first.letters or second.letters


def _pushed(carrier: RelayedCarrier) -> bool:
    with suppress(CarrierLost):
        carrier.push([Letter(1, b"x", b"", 1.0)])
    return False


def test_a_socket_is_its_owners_alone_and_its_path_is_free_afterwards(path):
    with closing(RelayedCarrier(path, "demo")):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


BAD = {
    "nothing": b"",
    "rubbish": b"\xff" * 40,
    "another call": relaying._encode(Call.PULL, {"replies": [], "more": False}),
    "no list": relaying._encode(Call.NODES, {}),
    "a negative number": relaying._encode(Call.NODES, {"nodes": [[-1, "", ""]]}),
    "a name that is none": relaying._encode(Call.NODES, {"nodes": [[1, "", 5]]}),
    "too short": relaying._encode(Call.NODES, {"nodes": [[1]]}),
    "a deep header": relaying._MESSAGE.pack(kind=Call.NODES, blobs=[b"[" * 100_000]),
}


def answering(path: Path, *answers: bytes) -> threading.Thread:
    """A relay that says hello, and then these answers to whatever it is asked."""

    def serve() -> None:
        with suppress(OSError, requests.Closed), closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.connect(str(path))
            requests.send(connection, relaying._encode(Call.HELLO, {"run": "1"}))
            requests.receive(connection)
            for answer in answers:
                requests.receive(connection)
                requests.send(connection, answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD.keys())
def test_a_relay_that_talks_nonsense_is_lost_and_the_next_one_serves(path, answer):
    with closing(RelayedCarrier(path, "demo")) as carrier:
        thread = answering(path, answer)
        until(lambda: carrier._relay is not None)
        with pytest.raises(CarrierLost):
            carrier.nodes()
        thread.join(5)
        start(Echo(), path)
        assert until_there(carrier)


@pytest.fixture(scope="module")
def listening() -> Iterator[RelayedCarrier]:
    with (
        tempfile.TemporaryDirectory(prefix="sdo-") as place,
        closing(RelayedCarrier(Path(place) / "s", "d")) as carrier,
    ):
        yield carrier


@settings(max_examples=150, deadline=None)
@given(body=st.binary(max_size=60), call=st.sampled_from(list(Call)), ask=st.sampled_from(["nodes", "push", "pull"]))
def test_no_bytes_of_a_relay_end_the_coordinator(listening, body, call, ask):
    asks = {"nodes": (), "push": ([Letter(1, b"", b"", 1.0)],), "pull": (["1"],)}
    header = {"replies": [body.hex()], "nodes": [[body.hex()]], "ids": [1]}
    for message in (body, relaying._MESSAGE.pack(kind=call, blobs=[body]), relaying._encode(call, header)):
        own, other = socket.socketpair()
        listening._take(own, "")
        requests.send(other, message)
        other.shutdown(socket.SHUT_WR)
        with suppress(CarrierLost):
            getattr(listening, ask)(*asks[ask])
        other.close()


def test_results_that_never_end_or_fill_memory_lose_the_relay(path, monkeypatch):
    monkeypatch.setattr(relaying, "MOST_BYTES", 10_000)
    endless = relaying._encode(Call.PULL, {"replies": [], "more": True}, [])
    full = relaying._encode(Call.PULL, {"replies": [["1", ""]], "more": True}, [bytes(20_000)])
    for message, times in ((endless, relaying.AT_ONCE + 5), (full, 1)):
        with closing(RelayedCarrier(path, "demo")) as carrier:
            own, other = socket.socketpair()
            carrier._take(own, "")
            sender = threading.Thread(target=_send_all, args=(other, [message] * times), daemon=True)
            sender.start()
            with pytest.raises(CarrierLost):
                carrier.pull(["1"])
            other.close()
            sender.join(5)


def _send_all(connection: socket.socket, messages: list[bytes]) -> None:
    with suppress(OSError):
        for message in messages:
            requests.send(connection, message)


@pytest.mark.parametrize("ask", ["nodes", "push"])
def test_only_replies_come_in_several_messages(listening, ask):
    own, other = socket.socketpair()
    listening._take(own, "")
    requests.send(other, relaying._encode(Call[ask.upper()], {"nodes": [], "ids": [""], "more": True}))
    found = listening.nodes() if ask == "nodes" else listening.push([Letter(1, b"", b"", 1.0)])
    assert found == ([] if ask == "nodes" else [""])
    other.close()


def test_too_many_nodes_are_the_relays_end_and_not_the_coordinators(listening, monkeypatch):
    monkeypatch.setattr(relaying, "MOST_NODES", 3)
    own, other = socket.socketpair()
    listening._take(own, "")
    requests.send(other, relaying._encode(Call.NODES, {"nodes": [[n, "", ""] for n in range(4)]}))
    with pytest.raises(CarrierLost):
        listening.nodes()
    other.close()


def test_a_message_of_a_million_empty_parts_is_refused_at_once():
    began = time.process_time()
    with pytest.raises(InvalidInput):
        relaying._decode(relaying._MESSAGE.pack(kind=Call.PULL, blobs=[b"{}"], rest=bytes(4 * 10**6)))
    assert time.process_time() - began < 2.0


def test_a_reply_that_is_too_large_is_an_error_of_its_node_alone(path, monkeypatch):
    monkeypatch.setattr(relaying, "LARGEST_REPLY", 100)
    with closing(RelayedCarrier(path, "demo")) as carrier:
        start(Echo(), path)
        until_there(carrier)
        small, large = carrier.pull(carrier.push([Letter(1, b"x", b"", 1.0), Letter(2, bytes(200), b"", 1.0)]))
        assert (small.frames, small.error) == (b"x", "") and large.frames == b"" and large.error
        carrier.end()


def test_relays_that_come_and_go_leave_no_open_files_and_shut_nobody_out(path):
    with closing(RelayedCarrier(path, "demo")) as carrier:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(60):
            with closing(socket.socket(socket.AF_UNIX)) as connection:
                connection.settimeout(5)
                connection.connect(str(path))
                requests.send(connection, relaying._encode(Call.HELLO, {"run": "1"}))
                requests.receive(connection)
        until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 3)
        start(Echo(), path)
        assert until_there(carrier)
        carrier.end()


def test_an_error_of_the_system_does_not_end_the_listening(path, monkeypatch):
    """As where a relay uses up all open files: afterwards the next one is let in."""
    with closing(RelayedCarrier(path, "demo")) as carrier:
        plain, failures = carrier._listening, iter([OSError(24, "Too many open files")] * 3)

        class Failing:
            def accept(self) -> Any:
                for error in failures:
                    raise error
                return plain.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(plain, name)

        carrier._listening = Failing()  # type: ignore[assignment]
        start(Echo(), path)
        assert until_there(carrier)
        carrier.end()


def test_replies_that_nobody_asked_for_are_not_taken(path):
    forged = relaying._encode(Call.PULL, {"replies": [["another", ""]], "more": False}, [b"x"])
    with closing(RelayedCarrier(path, "demo")) as carrier:
        answering(path, forged)
        until(lambda: carrier._relay is not None)
        with pytest.raises(CarrierLost):
            carrier.pull(["mine"])


# --- a whole run


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", people.read_once)
    for name, seconds in {"REFRESH": 0.02, "SOONEST": 0.005, "SLOWEST": 0.02, "AGAIN": 0.02}.items():
        monkeypatch.setattr(flower, name, seconds)
    monkeypatch.setattr(relaying, "AGAIN", 0.05)


def test_a_run_goes_on_when_the_relay_dies_in_every_round(hasty):
    """No client is given up for it, however short the coordinator's patience is."""
    with tempfile.TemporaryDirectory(prefix="sdo-") as place_:
        place, recipe = Path(place_), people.recipe()
        served = []
        for number, part in enumerate(wire(recipe).parts):
            people.client(place / f"c{number}", people.settings(ranges(part), federations=[NAME])).close()
            served.append(Served(Client.open(place / f"c{number}"), place / f"{number}.sock"))
        grid = LocalGrid({10 + n: {NODE_SETTING: str(place / f"{n}.sock")} for n in range(3)})
        people.KEY.write(place / KEY)
        given = CoordinatorSettings(NAME, ("c0", "c1", "c2"), wait=60.0, patience=20.0)
        with closing(RelayedCarrier(place / "c.sock", NAME)) as carrier:

            class Killing(Observer):
                """As if Flower's server was killed after every round: what is under way then is lost."""

                def round(self, record: Any, attendance: Any) -> None:
                    carrier._drop(carrier._relay)

            start(GridCarrier(grid), place / "c.sock")
            try:
                outcome = coordinate(recipe, carrier, given, place, [Killing()])
            finally:
                carrier.end()
                for each in served:
                    each.stop()
        assert [record.reported for record in outcome.rounds] == [3] * recipe.rounds.count
        for number in range(3):
            with Client.open(place / f"c{number}") as client:
                assert client.standing.releases == recipe.rounds.count


def test_a_coordinator_that_is_killed_leaves_its_socket_to_the_next_one(tmp_path):
    """A real process: it listens, dies, and comes back with the same key."""
    with tempfile.TemporaryDirectory(prefix="sdo-") as place:
        folder = Path(place) / "own"
        make_coordinator(folder, people.recipe(), CoordinatorSettings(NAME), SigningKey.new())
        command = [sys.executable, "-m", "sordino", "coordinator", "serve", str(folder)]
        for _ in range(2):
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                until(lambda: _answers(folder / SOCKET), 60.0)
            finally:
                os.kill(process.pid, signal.SIGKILL)
                said, _ = process.communicate()
            assert "Traceback" not in said
        assert not (folder / RUN / "metrics.jsonl").exists()


def _answers(path: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as connection, suppress(OSError, requests.Closed):
        connection.settimeout(1.0)
        connection.connect(str(path))
        requests.send(connection, relaying._encode(Call.HELLO, {"run": "1"}))
        _, header, _ = relaying._decode(requests.receive(connection), Call.HELLO)
        return bool(header == {"federation": NAME})
    return False


def test_a_coordinator_without_its_key_does_not_start(tmp_path):
    from sordino.flower.coordinator import serve_coordinator

    make_coordinator(tmp_path / "own", people.recipe(), CoordinatorSettings(NAME), people.KEY)
    assert json.loads((tmp_path / "own" / KEY).read_text())["private"]
    (tmp_path / "own" / KEY).unlink()
    with pytest.raises(InvalidInput, match=r"coordinator\.key"):
        serve_coordinator(tmp_path / "own")


def test_a_vacant_place_is_not_reported_as_a_client_that_is_missing(caplog):
    roster = Roster(3, names=["north", "south"], spare=1)
    with caplog.at_level("INFO", "sordino.flower"):
        _LogObserver(roster).absent({1: "no node answers for it", 2: "nobody holds this place"})
    assert [said.split()[0] for said in caplog.messages] == ["south"]
