"""Native clients in a federation of pages: the simulation's result, real processes, a server that is killed."""

import asyncio
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import websockets.sync.server
from typer.testing import CliRunner

from sordino.cli import app
from sordino.cli.serve import _announce
from sordino.client.client import Client
from sordino.client.refusal import Reason
from sordino.learning.stacked_model import Execution
from sordino.privacy.history import ranges
from sordino.recipe import Recipe
from sordino.runs.simulation import run
from sordino.web.app import Site
from sordino.web.hosted_federation import HostedFederation
from sordino.web.limits import Limits
from sordino.web.native_participant import PROTOCOL, Link, NotJoined, Participant, locate, readable
from sordino.wire.requests import Request, What
from sordino.wire.signing import SigningKey
from sordino.wire.tls_address import TlsAddress, trusting
from tests.client import people
from tests.client.forgeries import forged
from tests.web.visitors import get, hosted, recipe, server, serving, visit

ROOT = Path(__file__).parent.parent.parent


class Member(threading.Thread):
    """A native participant in a thread of its own."""

    def __init__(self, folder, link, federation, **options):
        super().__init__(daemon=True)
        self.folder, self.link, self.federation, self.options = folder, link, federation, options
        self.result, self.error = None, None
        self.start()

    def run(self):
        try:
            with Client.open(self.folder, **self.options) as client:
                self.result = Participant(client, self.link, self.federation, lambda _: True, patience=150).take_part()
        except NotJoined as error:
            self.error = error


def native(folder, rows, limit=1e6):
    people.client(folder, people.settings(rows, limit)).close()
    return folder


def test_three_native_clients_come_to_the_simulations_model(tmp_path):
    """With a simulation's randomness, the parameters are equal to the last bit."""
    found = hosted(tmp_path, {"rounds.quorum": 3, "rounds.count": 3}, by_invitation=True)
    with server(found) as port:
        members = []
        for number, part in enumerate(found.parts.parts):
            folder = native(tmp_path / f"client{number}", ranges(part))
            link = Link(f"http://127.0.0.1:{port}", "demo", found.invitations.token(number))
            injected = {"randomness": people.seeded(found.recipe.seed, number), "execution": Execution()}
            members.append(Member(folder, link, found.federation, **injected))
        for member in members:
            member.join(60)
        assert [(m.result.client, m.result.answered, m.result.ended) for m in members] == [
            (number, 3, "all 3 rounds are done") for number in range(3)
        ]
        assert {person["kind"] for person in get(port, "/api/federations/demo")["live"]["participants"]} == {"native"}
        _, parameters = found.model()
    assert np.array_equal(parameters, run(found.recipe, workers=1).parameters)


def test_pages_and_native_clients_side_by_side_and_a_spent_budget_declines(tmp_path):
    found = hosted(tmp_path, {"rounds.quorum": 2, "split": {"kind": "iid", "clients": 2}})

    async def page(port):
        async with visit(port, found, "page") as visitor:
            return await visitor.rounds()

    with server(found) as port:
        folder = native(tmp_path / "client", "0-19", limit=1.5 * people.COST)  # enough for one round
        member = Member(folder, Link(f"http://127.0.0.1:{port}", "demo"), found.federation)
        assert asyncio.run(page(port)) == 2
        member.join(30)
        assert (member.result.answered, member.result.declined) == (1, 1)
        told = get(port, "/api/federations/demo")
    assert [(entry["reported"], entry["declined"]) for entry in told["history"]] == [(2, 0), (1, 1)]
    with Client.open(folder) as client:
        assert client.standing.spent == pytest.approx(people.COST)
        assert client.federations() == {found.federation: 2 - 1}


def test_an_owner_who_says_no_has_told_nothing(tmp_path):
    found = hosted(tmp_path)
    with server(found) as port, people.client(tmp_path / "client") as client:
        link = Link(f"http://127.0.0.1:{port}", "demo")
        with pytest.raises(NotJoined, match="nothing has left"):
            Participant(client, link, found.federation, lambda _: False).take_part()
        assert client.federations() == {}
        assert found.places.members == {}  # and the place is there for another


def stopped(client, link, federation):
    """Somebody who presses Ctrl-C as soon as they have joined."""

    def press(sentence):
        if sentence.startswith("Joined"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Participant(client, link, federation, lambda _: True, press).take_part()


def test_who_stops_keeps_the_place_and_who_leaves_gives_it_back_and_may_come_again(tmp_path):
    found = hosted(tmp_path, {"rounds.quorum": 3})
    folder = native(tmp_path / "client", "0-19")
    with server(found) as port:
        link = Link(f"http://127.0.0.1:{port}", "demo")
        with Client.open(folder) as client:
            stopped(client, link, found.federation)
            (held,) = found.places.members.values()
        leave = ["join", link.server, "--folder", str(folder), "--leave"]
        result = CliRunner().invoke(app, leave)
        assert (result.exit_code, found.places.members) == (0, {})
        assert "You have left demo. What was recorded stays in" in result.stdout
        told = json.loads(CliRunner().invoke(app, [*leave, "--json"]).stdout)  # once more does no harm
        assert (told["ended"], told["answered"], found.places.members) == ("you left", 0, {})
        with Client.open(folder) as client:
            stopped(client, link, found.federation)  # it has agreed to this number, and would refuse another
        assert found.places.members == {held.client: held}


def test_a_place_that_cannot_be_left_is_said_and_so_is_one_that_was_never_taken(tmp_path):
    found = hosted(tmp_path, {"split": {"kind": "iid", "clients": 1}})
    folder = native(tmp_path / "client", "0-19")

    async def page(port):
        async with visit(port, found, "page") as visitor:
            await visitor.until("welcome")

    with server(found) as port:
        asyncio.run(page(port))
        leave = ["join", f"http://127.0.0.1:{port}", "--leave", "--folder"]
        result = CliRunner().invoke(app, [*leave, str(folder)])
        assert (result.exit_code, len(found.places.members)) == (1, 1)
        assert "you have no place in demo" in result.output
        result = CliRunner().invoke(app, [*leave, str(tmp_path / "nobody")])
        assert result.exit_code == 1
        assert "is no client's folder" in result.output
    with Client.open(folder) as client, pytest.raises(NotJoined, match="for 0 seconds"):
        Participant(client, Link("http://127.0.0.1:1", "demo"), "demo-1", lambda _: True, patience=0).leave()


def test_ctrl_c_says_what_becomes_of_the_place(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Participant, "take_part", interrupted)
    with joining(native(tmp_path / "c", "0-9")) as join:
        result = join("")
    assert result.exit_code == 130
    assert "Your place in demo is kept: the same command goes on; with --leave it is given back." in result.output


def test_an_owner_who_ends_the_question_has_said_no(tmp_path):
    found = hosted(tmp_path)
    folder = native(tmp_path / "client", "0-19")
    with server(found) as port:
        result = CliRunner().invoke(
            app, ["join", f"http://127.0.0.1:{port}", "--folder", str(folder)]
        )  # no answer comes
        assert result.exit_code == 1
        assert "was not joined; nothing has left" in result.output
        assert found.places.members == {}


def test_an_owner_may_read_for_as_long_as_they_like_while_others_go_on(tmp_path):
    """What the server tells meanwhile is kept for later, and its pings are answered."""
    found = hosted(tmp_path, limits=(limits := Limits(idle=3.0)))
    site, said = Site({"demo": found}, limits), []

    def read(_):
        for connection in list(site.connections):
            for _ in range(60):
                connection._loop.call_soon_threadsafe(connection.say, {"type": "status", **found.status})
        time.sleep(7.0)
        return True

    with serving(site) as port, Client.open(native(tmp_path / "client", "0-19")) as client:
        link = Link(f"http://127.0.0.1:{port}", "demo")
        result = Participant(client, link, found.federation, read, said.append, patience=20).take_part()
    assert result.answered == 2
    assert not [sentence for sentence in said if sentence.startswith("No connection")]


def test_links_and_addresses():
    assert Link.parse("https://host/#federation=demo&token=1-abc") == Link("https://host", "demo", "1-abc")
    assert Link.parse("https://host/#federation=demo&token=1-abc&key=00ff").key == "00ff"
    assert Link.parse("localhost:8000", "other", "t") == Link("http://localhost:8000", "other", "t")
    assert Link.parse("https://host/path/").socket == "wss://host/path/api/federations//ws"
    assert Link("http://h", "a b").socket == "ws://h/api/federations/a%20b/ws"
    with pytest.raises(ValueError, match="no address"):
        Link.parse("ftp://host")
    with pytest.raises(NotJoined, match="cannot be reached"):
        locate(Link.parse("http://127.0.0.1:1"), trusting(None))


class _Strange(http.server.BaseHTTPRequestHandler):
    """A web server that knows nothing of federations."""

    answers: ClassVar = {}

    def do_GET(self):
        body = json.dumps(self.answers.get(self.path, {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


@contextmanager
def strange(answers):
    handler = type("Strange", (_Strange,), {"answers": answers})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


TASK = "/api/federations/demo/task"


@pytest.mark.parametrize(
    "answers",
    [{}, {"/api/server": []}, {"/api/server": {"federations": [1]}}, {TASK: {"federation": "demo", "budget": 4}}],
    ids=["nothing", "a list", "numbers", "no terms"],
)
def test_another_kind_of_server_is_named_as_such(answers):
    found = {"/api/server": {"federations": ["demo"]}, **answers}
    with strange(found) as address, pytest.raises(NotJoined, match="server of federations"):
        locate(Link.parse(address), trusting(None))


def test_what_a_server_says_cannot_steer_a_terminal():
    assert readable("over\x1b[2J\r\nRefused: \u202eno") == "over [2J  Refused:  no"


@pytest.mark.parametrize(
    ("budget", "words"),
    [({"delta": 0.5, "adjacency": "client"}, "--delta"), ({"delta": 1e-5, "adjacency": "coordinate"}, "--adjacency")],
    ids=["delta", "adjacency"],
)
def test_terms_in_which_a_budget_protects_nobody_are_the_owners_to_choose(tmp_path, budget, words):
    with strange({TASK: {"federation": "demo", "budget": budget}}) as address:
        join = ["join", address, "--federation", "demo", "--data", "digits", "--budget", "4", "--folder"]
        result = CliRunner().invoke(app, [*join, str(tmp_path / "c")])
    assert result.exit_code == 1
    assert words in result.output
    assert not (tmp_path / "c").exists()


# --- the commands


@contextmanager
def joining(folder):
    """`sordino join` of a client's folder, with more options, at a server that is none."""
    terms = {"delta": 0.0, "adjacency": "client"}
    with strange({TASK: {"federation": "demo", "budget": terms}}) as address:
        join = ["join", address, "--federation", "demo", "--patience", "0", "--folder", str(folder)]
        yield lambda options: CliRunner().invoke(app, [*join, *options.split()])


def test_options_that_say_something_else_than_the_clients_folder_are_refused(tmp_path):
    people.client(tmp_path / "c").close()
    budget = ["--budget 5", "--delta 1e-5", "--adjacency record-replace", "--claimed", "--unproven update"]
    with joining(tmp_path / "c") as join:
        for options in ["--data /x.csv", "--rows 0-9", "--label y", "--classes a,b", *budget]:
            result = join(options)
            assert result.exit_code == 1
            assert f"leave {options.split()[0]} out" in result.output


def test_options_that_agree_with_the_clients_folder_are_fine(tmp_path):
    own = people.settings("0-9", 5.0, budget={"basis": "claimed"}, claimed=True, unproven=["labels", "update"])
    people.client(tmp_path / "c", own).close()
    same = "--data digits --rows 0-9 --budget 5 --delta 0 --adjacency client --claimed --unproven update"
    with joining(tmp_path / "c") as join:
        result = join(same)
    assert "was not reached" in result.output  # it came as far as the server


class Processes:
    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, *words):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        log = (self.folder / f"{len(self.running)}.log").open("w+")
        process = subprocess.Popen(
            [sys.executable, "-m", "sordino", *map(str, words)], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        process.log = log
        self.running.append(process)
        return process


def said(process, pattern, seconds=150.0):
    """Wait until a process has written something."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        text = Path(process.log.name).read_text()
        if found := re.search(pattern, text):
            return found
        if process.poll() is not None and not re.search(pattern, Path(process.log.name).read_text()):
            break
        time.sleep(0.05)
    raise AssertionError(f"{pattern!r} was not said:\n{Path(process.log.name).read_text()}")


@pytest.fixture
def processes(tmp_path):
    found = Processes(tmp_path)
    yield found
    for process in found.running:
        process.kill()
        process.wait()
        process.log.close()


def test_a_server_that_is_killed_goes_on_and_so_do_its_clients(tmp_path, processes):
    """`sordino serve` and `sordino join`, and another client; the server is killed in the middle and started again."""
    path, rounds = tmp_path / "demo.toml", 12
    path.write_text(recipe({"rounds.quorum": 2, "rounds.count": rounds}).to_toml())
    command = ["serve", path, "--folder", tmp_path / "served", "--gather", 0, "--pace", 0]
    first = processes.start(*command, "--port", 0)
    address = said(first, r"Serving at (http://localhost:(\d+))")
    own = ["--folder", tmp_path / "c0", "--data", "digits", "--rows", "0-19", "--budget", 1e6]
    join = processes.start("join", address[1], *own, "--yes", "--patience", 150)
    link, task = locate(Link.parse(address[1]), trusting(None))
    member = Member(native(tmp_path / "c1", "20-39"), link, task["federation"])
    said(join, r"Reported \([2-9]\)")
    first.kill()
    first.wait()
    second = processes.start(*command, "--port", address[2])
    said(join, f"demo is over: all {rounds} rounds are done")
    assert join.wait(20) == 0
    member.join(20)
    assert member.result.ended
    told = get(int(address[2]), "/api/federations/demo")
    assert [entry["reported"] for entry in told["history"]] == [2] * rounds
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    said(second, "goes on where it was")
    for name in ("c0", "c1"):  # one release a round, however often it was asked for
        with Client.open(tmp_path / name) as client:
            assert client.standing.releases == rounds


def test_serve_refuses_what_pages_cannot_run_and_half_a_certificate(tmp_path):
    folder = ["--folder", str(tmp_path)]
    result = CliRunner().invoke(app, ["serve", "ldp-fl-digits", *folder])
    assert result.exit_code == 1
    assert 'method.channel.kind = "shuffled"' in result.output
    result = CliRunner().invoke(app, ["serve", "webfed-digits", "--tls-cert", "x.pem", *folder])
    assert result.exit_code == 1
    assert "--tls-key" in result.output


def test_serve_says_how_long_an_honest_report_is_beside_the_norm(tmp_path, capsys):
    found = HostedFederation(Recipe.load("webfed-digits", ["method.norm=10"]), tmp_path / "served")
    _announce(Site({found.name: found}, Limits()), TlsAddress("127.0.0.1", 8000), 8000)
    found.stop()
    assert "an honest report has an L2 norm of about 5.39, and method.norm = 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--origin", "page.example"], "https://"),
        (["--origin", "https://page.example/path"], "no path"),
        (["--slots", "0-9"], "--gateway"),
        (["--federation", "spring"], "--gateway"),
        (["--invite", "--absence", "0"], "--absence"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_serve_refuses_options_that_would_do_nothing(options, remedy, tmp_path):
    unfit = "ldp-fl-digits"  # refused for its channel, if its options were not looked at first
    result = CliRunner().invoke(app, ["serve", unfit, *options, "--folder", str(tmp_path / "served")])
    assert result.exit_code == 1
    assert remedy in result.output
    assert not (tmp_path / "served").exists()


def test_join_needs_data_and_budget_once_and_refuses_others_later(tmp_path):
    found = hosted(tmp_path)
    with server(found) as port:
        join = ["join", f"http://127.0.0.1:{port}", "--folder", str(tmp_path / "c"), "--patience", "0"]
        result = CliRunner().invoke(app, join)
        assert result.exit_code == 1
        assert "--data DATA --budget EPSILON" in result.output
        result = CliRunner().invoke(
            app, [*join, "--data", "digits", "--rows", "0-19", "--budget", "1e6", "--yes", "--json"]
        )
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert (told["answered"], told["ended"]) == (2, "all 2 rounds are done")
        assert told["spent"] == pytest.approx(2 * people.COST)
        assert told["terms"] == "proven, against server, adjacency client, delta 0"
        assert f"epsilon 1,300 of 1,000,000 is spent ({told['terms']})." in result.stderr
        result = CliRunner().invoke(app, [*join, "--budget", "5"])
        assert result.exit_code == 1
        assert "1e+06" in result.output
        result = CliRunner().invoke(app, join)
        assert result.exit_code == 1
        assert "is over" in result.output


def test_a_native_client_trusts_the_certificate_that_it_was_given(tmp_path):
    place = certified(tmp_path)
    found = hosted(tmp_path)
    with serving(Site({"demo": found}), place) as port:
        server_address = f"https://localhost:{port}"
        with pytest.raises(NotJoined, match="certificate"):
            locate(Link.parse(server_address), trusting(None))
        trust = trusting(place.certificate)
        link, task = locate(Link.parse(server_address), trust)
        with urllib.request.urlopen(f"{server_address}/api/server", context=trust) as answer:
            assert answer.headers["Strict-Transport-Security"]
            assert json.loads(answer.read())["https"] is True
        with Client.open(native(tmp_path / "c", "0-19")) as client:
            result = Participant(client, link, task["federation"], lambda _: True, trust=trust, patience=5).take_part()
    assert result.answered == 2


def certified(folder):
    """A place with a certificate of its own for localhost."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    return TlsAddress("127.0.0.1", 0, folder / "cert.pem", folder / "key.pem")


# --- plans of somebody else's


def test_forged_plans_over_the_web_are_refused_and_the_true_rounds_are_answered(tmp_path, monkeypatch):
    """By whoever has the connection in hand, a proxy for one, and not the coordinator's key."""
    monkeypatch.setattr(SigningKey, "new", classmethod(lambda _: people.KEY))
    changes = {"split": {"kind": "iid", "clients": 2}, "rounds.quorum": 2}
    found = hosted(tmp_path, changes)
    plans, elsewhere = people.plans(recipe(changes), found.federation), people.plans(recipe(changes), "another")
    tries = [message for round in (1, 2) for message in forged(plans(round), elsewhere(round)).values()]
    said: list[str] = []
    with server(found) as port, Client.open(native(tmp_path / "a", "0-19")) as client:
        link = Link(f"http://127.0.0.1:{port}", "demo", key=found.author.first.hex())
        victim = Participant(client, link, found.federation, lambda _: True, said.append, patience=20)
        thread = threading.Thread(target=victim.take_part, daemon=True)
        thread.start()
        _until(lambda: found.fleet.connected)
        (line,) = found.fleet._lines.values()
        for number, message in enumerate(tries, 1):  # one by one: of plans that wait only the newest is sent
            line.post(Request(What.STEP, "report", message).encode(), bytes(16))
            _until(lambda number=number: victim.result.declined == number)
        assert (client.standing.spent, victim.result.answered) == (0.0, 0)
        other = Member(native(tmp_path / "b", "20-39"), link, found.federation)  # now there are two: it begins
        thread.join(60)
        other.join(60)
        assert (victim.result.answered, other.result.answered) == (2, 2)
        assert client.standing.spent == pytest.approx(2 * people.COST)
    declined = {sentence.removeprefix("Declined: ") for sentence in said if sentence.startswith("Declined")}
    assert declined == {Reason.NOT_SIGNED.value, Reason.NOT_AGREED.value}


def test_who_comes_back_after_the_end_has_come_to_the_end(tmp_path):
    """A connection breaks in the last round: the next one is refused, as the federation is over."""
    answers = [{"type": "welcome", "federation": "demo-1", "client": 3}, {"type": "refused", "code": "finished"}]

    def answer(connection):
        connection.recv()
        connection.send(json.dumps(answers.pop(0)))

    with (
        websockets.sync.server.serve(answer, "127.0.0.1", 0, subprotocols=[f"sordino.{PROTOCOL}"]) as front,
        Client.open(native(tmp_path / "a", "0-19")) as client,
    ):
        threading.Thread(target=front.serve_forever, daemon=True).start()
        link = Link(f"http://127.0.0.1:{front.socket.getsockname()[1]}", "demo")
        result = Participant(client, link, "demo-1", lambda _: True, patience=5).take_part()
        assert (result.client, bool(result.ended), answers) == (3, True, [])
        front.shutdown()


def _until(what):
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_link_that_names_another_key_joins_nothing(tmp_path):
    found = hosted(tmp_path)
    said: list[str] = []
    with server(found) as port, Client.open(native(tmp_path / "a", "0-19")) as client:
        link = Link.parse(f"http://127.0.0.1:{port}/#federation=demo&key={'00' * 32}")
        with pytest.raises(NotJoined):
            Participant(client, link, found.federation, lambda _: True, said.append, patience=5).take_part()
        assert client.federations() == {}
    assert any("not the server that invited you" in sentence for sentence in said)
