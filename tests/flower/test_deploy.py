"""`sordino deploy`: what it makes is what TLS, Flower and clients take, and its check says what is wrong."""

import http.server
import json
import re
import shlex
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sordino.client.client import Client
from sordino.client.invitation import Invitation
from sordino.deploy import certificates, checks, commands, keys
from sordino.deploy.certificates import CertificateFacts, CertificatePair
from sordino.deploy.checks import CheckResult
from sordino.deploy.deployment import Deployment
from sordino.deploy.door import listens_on
from sordino.deploy.services import environment, prepare, services
from sordino.deploy.setup import SetupOptions, make, member_names, renew
from sordino.deploy.supervisor import Supervisor
from sordino.errors import InvalidInput
from sordino.fleets.roster import Roster
from sordino.flower.coordinator import KEY, MEMBERS, CoordinatorSettings, read_recipe
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.report.records import Result as RunResult
from sordino.wire.signing import SigningKey
from sordino.wire.tls_address import trusting
from tests.client import people
from tests.engine import tiny
from tests.flower.https import serving
from tests.flower.nodes import Served

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from click.testing import Result
    from typer.testing import CliRunner

    from sordino.cli import app

NOW = datetime.now(UTC)


def sordino(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


# --- certificates -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def issuer() -> CertificatePair:
    return certificates.authority()


def handshake(folder: Path, own: CertificatePair, authority: bytes, host: str) -> None:
    """A whole TLS handshake in memory, as Python's own client and server do it."""
    for name, data in (("own.crt", own.certificate), ("own.key", own.key), ("ca.crt", authority)):
        (folder / name).write_bytes(data)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "own.crt", folder / "own.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(folder / "ca.crt").wrap_bio(to_client, to_server, server_hostname=host)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass


@pytest.mark.parametrize("host", ["flower.example.org", "192.0.2.7", "2001:db8::7", "localhost", "127.0.0.1"])
def test_a_servers_certificate_is_taken_for_its_hosts_and_for_calls_on_its_own_machine(issuer, tmp_path, host):
    own = certificates.server(["flower.example.org", "192.0.2.7", "2001:db8::7"], issuer)
    handshake(tmp_path, own, issuer.certificate, host)


@pytest.mark.parametrize("host", ["example.org", "other.example.org", "192.0.2.8"])
def test_it_is_refused_for_other_hosts(issuer, tmp_path, host):
    own = certificates.server(["flower.example.org", "192.0.2.7"], issuer)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path, own, issuer.certificate, host)


def test_it_is_refused_when_it_has_expired_or_another_authority_signed_it(issuer, tmp_path):
    old = certificates.server(["a.org"], issuer, 3, now=NOW - timedelta(days=4))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(tmp_path, old, issuer.certificate, "a.org")
    fresh = certificates.server(["a.org"], issuer, 3)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, fresh, certificates.authority().certificate, "a.org")


def test_a_certificate_says_how_long_it_is_valid_and_for_whom(issuer):
    own = certificates.server(["A.org"], issuer, 90, now=NOW)
    found = CertificateFacts.read(own.certificate)
    assert abs(found.ends - NOW - timedelta(days=90)) < timedelta(seconds=2)
    assert abs(NOW - found.begins - timedelta(hours=1)) < timedelta(seconds=2)
    assert found.names == ("a.org", "localhost", "127.0.0.1", "::1")
    assert found.covers("A.ORG") and found.covers("0:0:0:0:0:0:0:1") and not found.covers("b.a.org")
    assert replace(found, names=("*.a.org",)).covers("b.a.org")
    assert not replace(found, names=("*.a.org",)).covers("c.b.a.org")
    assert certificates.signed_by(own.certificate, issuer.certificate)
    assert not certificates.signed_by(own.certificate, certificates.authority().certificate)


def test_no_certificate_outlives_its_authority(issuer):
    ends = CertificateFacts.read(issuer.certificate).ends
    late = certificates.server(["a.org"], issuer, 500, now=ends - timedelta(days=100))
    assert CertificateFacts.read(late.certificate).ends == ends
    with pytest.raises(InvalidInput, match=r"authority.*expired"):
        certificates.server(["a.org"], issuer, now=ends + timedelta(hours=2))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "https://a.org",
        "a.org:8000",
        "a b",
        "-a.org",
        "a..org",
        "1.2.3",
        "0.0.0.0",
        "::",
        "x" * 64,
        "a." * 127 + "org",
    ],
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(InvalidInput):
        certificates.checked_host(host)


@pytest.mark.parametrize("days", [0, -1, 826])
def test_certificates_last_neither_no_time_nor_for_ever(issuer, days):
    with pytest.raises(InvalidInput, match="825 days"):
        certificates.server(["a.org"], issuer, days)


def test_a_key_that_does_not_belong_to_the_authority_signs_nothing(issuer):
    with pytest.raises(InvalidInput, match="does not belong"):
        certificates.server(["a.org"], CertificatePair(issuer.certificate, certificates.authority().key))
    with pytest.raises(InvalidInput, match="cannot be read"):
        certificates.server(["a.org"], CertificatePair(issuer.certificate, b"nothing"))


# --- node keys --------------------------------------------------------------------------------------------------------

BASE_POINT = (
    b"ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBGsX0fLhLEJH+Lzm5WOkQPJ3A32BLeszoPShOUXY"
    b"mMKWT+NC4v4af5uO5+tKfA+eFivOM1drMV7Oy7ZAaDe/UfU= the public key of 1\n"
)


def test_a_fingerprint_is_the_one_that_ssh_prints():
    assert keys.fingerprint(BASE_POINT) == "SHA256:SFMVDOrhOSBssOVH9hIcK/Z2XVf1oSVMjNCL8u2aICY"


def test_a_node_key_is_p384_in_the_form_that_flower_reads():
    pair = keys.make()
    private = serialization.load_ssh_private_key(pair.private, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name == "secp384r1"
    assert serialization.load_ssh_public_key(pair.public) == private.public_key()
    assert keys.public_of(pair.private) == pair.public


def test_what_is_no_node_key_is_refused():
    with pytest.raises(InvalidInput, match="OpenSSH"):
        keys.public_of(b"nothing")
    with pytest.raises(InvalidInput, match="public key"):
        keys.fingerprint(b"nothing")


# --- a whole set-up ---------------------------------------------------------------------------------------------------

ROUNDS = 3


def recipe(**changes: Any) -> Recipe:
    return people.recipe({"clients.epsilon": [1.0, 2.0, 1.0], **changes})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "demo"
    with socket.socket() as probe:  # a port where nobody listens
        probe.bind(("127.0.0.1", 0))
        make(folder, recipe(), SetupOptions("127.0.0.1", probe.getsockname()[1]), federation="demo")
    return folder


@pytest.fixture
def setup(original: Path) -> Iterator[Path]:
    """A copy, in a place with a short name: paths of sockets have about a hundred letters."""
    place = Path(tempfile.mkdtemp(prefix="sfl-"))
    shutil.copytree(original, place / "demo")
    yield place / "demo"
    shutil.rmtree(place)


def test_private_keys_are_their_owners_alone_and_lie_nowhere_else(original):
    private = {path.relative_to(original) for path in original.rglob("*") if b"PRIVATE KEY" in _content(path)}
    expected = {"authority/ca.key", "server/flower/server.key", *(f"client-{n}/flower/node.key" for n in (1, 2, 3))}
    assert private == set(map(Path, expected))
    for path in private:
        assert stat.S_IMODE((original / path).stat().st_mode) == 0o600
    for path in (original, original / "server", original / "client-1", original / "authority"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_every_client_gets_its_own_invitation_and_key_and_all_the_same_authority(original):
    for number in range(3):
        place = original / f"client-{number + 1}"
        invitation = Invitation.decode((place / "demo.invitation").read_bytes())
        assert (invitation.federation, invitation.client) == ("demo", number)
        assert Recipe.from_toml(invitation.recipe).rounds.count == ROUNDS
        public, own = (original / "server/flower/nodes" / f"{place.name}.pub").read_bytes(), place / "flower"
        assert keys.public_of((own / "node.key").read_bytes()) == (own / "node.pub").read_bytes() == public
        assert (place / "ca.crt").read_bytes() == (original / "server/ca.crt").read_bytes()
    assert len({(original / f"client-{n}/flower/node.pub").read_bytes() for n in (1, 2, 3)}) == 3


@pytest.mark.parametrize(("number", "epsilon"), [(0, 1.0), (1, 2.0)])
def test_the_budget_in_the_commands_is_just_enough_for_all_rounds(setup, number, epsilon):
    (own,) = Deployment.read(setup).federations
    place, options = setup / f"client-{number + 1}", shlex.split(own.options[number])
    limit = float(options[options.index("--budget") + 1])
    assert limit == 650 * epsilon * ROUNDS  # one bit of this epsilon for each of 650 values, three times
    poorer = setup / "poorer"
    shutil.copytree(place, poorer)
    joined = sordino("deploy", "join", place, "--yes")
    assert f"Of {ROUNDS} rounds your budget allows {ROUNDS}" in joined.stdout, joined.output
    assert f"allows {ROUNDS - 1}" in sordino("deploy", "join", poorer, "--budget", limit - 1, "--yes").stdout


def test_joining_asks_and_takes_the_options_of_a_client(setup):
    refused = CliRunner().invoke(app, ["deploy", "join", str(setup / "client-1")], input="n\n")
    assert refused.exit_code == 1 and not list((setup / "client-1/client/federations").glob("*/invitation.json"))
    agreed = CliRunner().invoke(app, ["deploy", "join", str(setup / "client-1")], input="y\n")
    assert agreed.exit_code == 0 and (setup / "client-1/client/federations/demo/invitation.json").is_file()
    again = sordino("deploy", "join", setup / "client-1", "--budget", 3)
    assert again.exit_code == 1 and "client.toml" in again.stderr
    for other, said in ((setup, "client-1"), (setup / "server", "client-1")):
        assert said in sordino("deploy", "join", other).stderr
    assert "demo" in sordino("deploy", "join", setup / "client-2", "elsewhere").stderr


def test_ones_own_records_are_not_cut_to_the_suggested_rows(setup):
    (own,) = Deployment.read(setup).federations
    source = shlex.split(own.options[1])
    source = source[source.index("--data") + 1]
    joined = sordino("deploy", "join", setup / "client-2", f"--data={source}", "--yes")
    assert joined.exit_code == 0, joined.output
    data = tomllib.loads((setup / "client-2/client/client.toml").read_text())["data"]
    assert data["source"] == source and not data.get("rows")
    assert "--rows" in own.options[1]


def test_a_join_that_agreed_to_nothing_leaves_no_client_behind(setup):
    place, (own,) = setup / "client-1", Deployment.read(setup).federations
    refused = sordino("deploy", "join", place, "--budget", 0.5, "--yes")
    assert refused.exit_code == 1 and not (place / "client").exists()
    assert refused.stderr.count("client.toml") == 1 and own.asks[0] in refused.stderr
    (place / "client").mkdir()  # as a container has it
    no = CliRunner().invoke(app, ["deploy", "join", str(place), "--budget", "3000"], input="n\n")
    assert no.exit_code == 1 and not list((place / "client").iterdir())
    agreed = sordino("deploy", "join", place, "--budget", 3000, "--yes")
    assert agreed.exit_code == 0 and f"sordino deploy up {place}" in agreed.stdout, agreed.output


def test_a_misspelt_machine_is_answered_with_those_that_there_are(setup):
    said = sordino("deploy", "up", setup / "cleint-1").stderr
    assert "client-1, client-2, client-3" in said and "deploy init" not in said
    assert str(setup / "client-1") in sordino("deploy", "join", setup / "server").stderr


def finish(coordinator: Path) -> None:
    """What lies in a coordinator's folder when its run is over."""
    run = coordinator / "run"
    run.mkdir()
    RunFolder(run).write_result(RunResult("demo", 0, "all rounds are done", ROUNDS))
    (run / "report.html").write_text("")


def test_a_finished_federation_needs_nothing_that_runs(setup):
    logs = setup / "server/flower/logs"
    logs.mkdir()
    (logs / "services.json").write_text(json.dumps({"superlink": {"state": "waiting", "process": None}}))
    before = checks.check(Deployment.read(setup / "server"), setup / "server")
    assert [each.state for each in before if each.what in ("port", "process")] == ["wrong", "wrong"]
    (process,) = [each for each in before if each.what == "process"]
    assert str(logs / "superlink.log") in process.remedy
    finish(setup / "server/coordinators/demo")
    after = checks.check(Deployment.read(setup / "server"), setup / "server")
    assert not [each for each in after if each.what in ("port", "process")]
    assert [each.state for each in after if each.what == "federation"] == ["ok"]
    assert sordino("deploy", "check", setup).exit_code == 0
    path = setup.parent / "second.toml"
    path.write_text(recipe().to_toml())
    assert sordino("deploy", "add-federation", setup, "--recipe", path, "--federation", "second").exit_code == 0
    assert sordino("deploy", "check", setup).exit_code == 1, "the second is not over"


def test_nobody_comes_or_leaves_after_the_last_round(setup):
    coordinator, late = setup / "server/coordinators/demo", ("--from-round", ROUNDS + 1)
    for words in (("retire", setup, "client-1"), ("replace", setup, "client-1", "west")):
        done = sordino("deploy", *words, *late)
        assert done.exit_code == 1 and "add-federation" in done.stderr, done.output
    last = sordino("deploy", "retire", setup, "client-1", "--from-round", ROUNDS)
    assert last.exit_code == 0 and f"until round {ROUNDS - 1}" in last.stdout
    assert "no part" in sordino("deploy", "retire", setup, "client-2").stdout
    finish(coordinator)
    for words in (("retire", setup, "client-3"), ("add", setup, "west")):
        done = sordino("deploy", *words)
        assert done.exit_code == 1 and "add-federation" in done.stderr, done.output
    assert "west" not in Deployment.read(setup).members


def test_a_taken_port_is_named_with_its_remedy_and_a_relay_may_end_before_its_coordinator(setup):
    said: list[str] = []
    supervisor = Supervisor(Deployment.read(setup / "server"), setup / "server", say=said.append)
    by_name = {each.service.name: each for each in supervisor._processes}
    link, relay, coordinator = (by_name[name] for name in ("superlink", "relay demo", "coordinator demo"))
    with socket.socket() as other:
        other.bind(("127.0.0.1", link.service.port))
        other.listen()
        for _ in range(2):
            end(supervisor, link)
        assert len(said) == 1 and f"127.0.0.1:{link.service.port}" in said[0] and "--port" in said[0]
        link.complained -= 61
        end(supervisor, link)
        assert said[1:] == said[:1]
    end(supervisor, relay)
    assert len(said) == 2 and relay.news and relay.due > time.monotonic() + 4
    coordinator.over = True
    assert not supervisor._may_start(relay)


def end(supervisor: Supervisor, each: Any) -> None:
    """A process of it that has failed."""
    each.process, each.since = subprocess.Popen(["false"], text=True), time.monotonic()
    each.process.wait()
    supervisor._ended(each)


def test_another_federation_has_its_own_coordinator_and_the_same_nodes(setup):
    path = setup.parent / "second.toml"
    path.write_text(recipe(**{"rounds.count": 2}).to_toml())
    made = sordino("deploy", "add-federation", setup, "--recipe", path, "--federation", "second")
    assert made.exit_code == 0, made.output
    deployment = Deployment.read(setup)
    assert [each.name for each in deployment.federations] == ["demo", "second"]
    first, second = (SigningKey.at(each.coordinator_in(setup / "server") / KEY) for each in deployment.federations)
    assert first.author != second.author
    assert Deployment.read(setup / "client-2").federations == deployment.federations
    assert sordino("deploy", "join", setup / "client-2", "--yes").exit_code == 1, "it must be said which"
    for name in ("demo", "second"):
        assert sordino("deploy", "join", setup / "client-2", name, "--yes").exit_code == 0
    for other, said in (("demo", "already"), ("third", "split.clients")):
        count = ("--set", "split.clients=4", "--set", "clients.epsilon=1.0") if other == "third" else ()
        done = sordino("deploy", "add-federation", setup, "--recipe", path, "--federation", other, *count)
        assert done.exit_code == 1 and said in done.stderr
    assert "whole set-up" in sordino("deploy", "add-federation", setup / "server", "--recipe", path).stderr


def test_members_leave_are_replaced_and_come_and_each_newcomer_gets_a_folder(setup):
    left = sordino("deploy", "retire", setup, "client-3")
    assert left.exit_code == 0 and "rounds.quorum" not in left.stderr, left.output
    assert sordino("deploy", "replace", setup, "client-1", "west", "--from-round", 2).exit_code == 0
    assert sordino("deploy", "add", setup, "far").exit_code == 0
    coordinator = setup / "server/coordinators/demo"
    held = {(own.place, own.name): (own.first, own.last) for own in Roster.open(coordinator / MEMBERS).tenures}
    assert held == {(0, "client-1"): (0, 1), (0, "west"): (2, None), (1, "client-2"): (0, None), (2, "far"): (0, None)}
    deployment = Deployment.read(setup)
    assert deployment.members == ("client-1", "client-2", "client-3", "west", "far")
    (own,) = deployment.federations
    assert dict(zip(own.members, own.numbers, strict=True)) | {} == {
        "client-1": 0, "client-2": 1, "client-3": 2, "west": 0, "far": 2,
    }  # fmt: skip
    for name, number in (("west", 0), ("far", 2)):
        invitation = Invitation.decode((setup / name / "demo.invitation").read_bytes())
        assert (invitation.client, invitation.coordinator) == (number, own.coordinator)
        public = (setup / "server/flower/nodes" / f"{name}.pub").read_bytes()
        assert keys.public_of((setup / name / "flower/node.key").read_bytes()) == public
        assert sordino("deploy", "join", setup / name, "--yes").exit_code == 0
    assert len({deployment.port_of(name) for name in deployment.members}) == 5
    for words, said in (
        (("add", setup, "more"), "places are taken"),
        (("retire", setup, "nobody"), "no member"),
        (("replace", setup, "client-2", "west"), "name of its own"),
        (("retire", setup / "client-2", "client-2"), "server's machine"),
        (("retire", setup, "client-2", "--federation", "other"), "there are demo"),
    ):
        done = sordino("deploy", *words)
        assert done.exit_code == 1 and said in done.stderr, done.output


def test_members_change_where_the_server_runs_too(setup):
    server = setup.parent / "moved"
    shutil.move(setup / "server", server)
    assert sordino("deploy", "retire", setup, "client-1").exit_code == 1, "its coordinator is elsewhere"
    done = sordino("deploy", "replace", server, "client-1", "west")
    assert done.exit_code == 0, done.output
    assert Deployment.read(server).members[-1] == "west"
    place = server / "new-members/west"
    assert Deployment.read(place).machine == "west" and (place / "flower/node.key").is_file()
    assert sordino("deploy", "join", place, "--yes").exit_code == 0


def test_spare_places_are_for_members_to_come(tmp_path):
    words = ["--recipe", "two-point-digits", "--host", "a.org", "--member", "north", "--member", "south", "--spare", 1]
    assert sordino("deploy", "init", tmp_path / "demo", *words, "--federation", "demo").exit_code == 0
    place = tmp_path / "demo/server/coordinators/demo"
    assert (read_recipe(place).number_of_clients, CoordinatorSettings.read(place).spare) == (3, 1)
    added = sordino("deploy", "add", tmp_path / "demo", "east")
    assert added.exit_code == 0 and Deployment.read(tmp_path / "demo").federations[0].numbers == (0, 1, 2)


def test_what_leaves_without_a_proof_is_said_and_asked_for(tmp_path):
    made, _ = make(tmp_path / "demo", recipe(), SetupOptions("a.org"), federation="demo")
    plain, _ = make(tmp_path / "plain", tiny.recipe(), SetupOptions("a.org"))
    assert "--unproven" not in made.federations[0].options[0]
    (own,) = plain.federations
    assert "--unproven 'model update'" in own.options[0]
    assert "no epsilon" in own.asks[0] and "Without any proof" in own.asks[0]


def test_a_recipe_that_counts_claims_needs_the_owners_word_and_says_so(tmp_path):
    rule = {"clients.budget": {"limit": 2000.0, "basis": "claimed"}}
    made, _ = make(tmp_path / "demo", people.recipe(rule), SetupOptions("a.org"))
    (own,) = made.federations
    assert "--basis claimed --claimed" in own.options[0]
    assert "(claimed, " in own.asks[0]


def test_flower_is_told_where_its_folder_lies_wherever_it_was_copied(setup):
    moved = setup.parent / "else where"
    shutil.copytree(setup / "server", moved)
    deployment = Deployment.read(moved)
    prepare(deployment, moved, "server", "flower")
    found = tomllib.loads((moved / "flower/home/config.toml").read_text())["superlink"]["sordino"]
    assert found == {"address": deployment.inner_address, "root-certificates": str(moved / "flower/ca.crt")}
    told = environment(moved)
    assert (told["FLWR_TELEMETRY_ENABLED"], told["FLWR_HOME"]) == ("0", str(moved / "flower/home"))


def test_commands_are_printed_again_as_they_were_written(setup):
    for machine in ("server", "client-2"):
        said = sordino("deploy", "commands", setup / machine).stdout
        assert (setup / machine / "COMMANDS.txt").read_text() in said
    both = json.loads(sordino("deploy", "commands", setup, "--json").stdout)
    assert list(both) == ["server", "client-1", "client-2", "client-3"]
    assert both["server"][0]["command"] == "sordino deploy up ." and both["server"][0]["stays"]
    assert [step["command"] for step in both["client-3"]][:2] == ["sordino deploy join .", "sordino deploy up ."]
    other = sordino("deploy", "commands", setup, "--machine", "north")
    assert other.exit_code == 1 and "there are server, client-1" in other.stderr


@pytest.mark.parametrize(
    ("host", "listens"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "::1"),
        ("a.org", "0.0.0.0"),
        ("2001:db8::7", "::"),
    ],
)
def test_a_test_on_one_machine_stays_on_it(host, listens):
    assert listens_on(host) == listens


def test_flowers_server_is_reached_on_its_own_machine_alone(original):
    deployment = replace(Deployment.read(original), host="a.org")
    (link,) = [each for each in services(deployment, original / "server", "server") if each.name == "superlink"]
    assert link.command[link.command.index("--host") + 1] == "127.0.0.1"
    assert link.command[link.command.index("--port") + 1] == str(deployment.inner_port)
    assert "--enable-supernode-auth" in link.command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--recipe", "two-point-digits", "--host", "https://a.org"], "without https://"),
        (["--recipe", "two-point-digits", "--host", "a.org", "--port", "70000"], "1 .. 65535"),
        (["--recipe", "two-point-digits", "--host", "a.org", "--days", "0"], "1 to 825 days"),
        (["--recipe", "nothing", "--host", "a.org"], "there is no recipe"),
        (["--recipe", "two-point-digits", "--host", "a.org", "--federation", "a b"], "a federation's name"),
        (["--recipe", "two-point-digits", "--host", "a.org", "--nodes", "3", "--member", "x"], "1 names were given"),
        (["--recipe", "quickstart", "--host", "a.org"], "method.announced_size"),
        (["--recipe", "central-dp-mnist", "--host", "a.org", "--set", "data.source=digits"], "central-dp"),
        (["--recipe", "ldp-fl-digits", "--host", "a.org"], "somebody trusted between clients and server"),
        (
            ["--recipe", "ldp-fl-digits", "--host", "a.org", "--nodes", "3", "--set", 'method.channel={kind="summed"}'],
            "a secure sum needs 4 clients",
        ),
    ],
    ids=[
        "host",
        "port",
        "days",
        "recipe",
        "federation",
        "members",
        "refused-by-clients",
        "central",
        "simulated-only",
        "too-few-for-a-sum",
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, arguments, said):
    done = sordino("deploy", "init", tmp_path / "new", *arguments)
    assert done.exit_code == 1 and said in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    done = sordino("deploy", "init", tmp_path, "--recipe", "two-point-digits", "--host", "a.org", "--nodes", "3")
    assert done.exit_code == 1 and "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("names", [("a", "a", "b"), ("a", "b"), ("server", "a", "b"), ("a/b", "a", "b")], ids=str)
def test_clients_names_are_names_and_each_is_given_once(names):
    with pytest.raises(InvalidInput):
        member_names(3, names)


def test_named_clients_get_folders_of_their_names(tmp_path):
    made, _ = make(tmp_path / "demo", recipe(), SetupOptions("a.org"), members=("north", "south", "east"))
    assert made.machines == ("server", "north", "south", "east")
    assert "--name south" in Deployment.read(tmp_path / "demo/south").federations[0].options[1]
    settings = CoordinatorSettings.read(tmp_path / "demo/server/coordinators/tiny")
    assert settings.members == ("north", "south", "east")


def test_a_renewed_certificate_is_taken_by_clients_who_have_the_same_authority(setup, tmp_path):
    before = (setup / "server/flower/server.crt").read_bytes()
    asked = datetime.now(UTC)
    ends = renew(setup, 30)
    place = setup / "server/flower"
    own = CertificatePair((place / "server.crt").read_bytes(), (place / "server.key").read_bytes())
    assert own.certificate != before and abs(ends - asked - timedelta(days=30)) < timedelta(minutes=5)
    handshake(tmp_path, own, (setup / "client-1/ca.crt").read_bytes(), "127.0.0.1")
    assert stat.S_IMODE((place / "server.key").stat().st_mode) == 0o600
    shutil.rmtree(setup / "authority")
    with pytest.raises(InvalidInput, match="renew where"):
        renew(setup)


@pytest.mark.parametrize(
    "text", ["", "version = 2", "version = 1", "nonsense"], ids=["empty", "newer", "short", "none"]
)
def test_a_damaged_description_is_refused(setup, text):
    (setup / "deployment.toml").write_text(text)
    done = sordino("deploy", "check", setup)
    assert done.exit_code == 1 and done.stderr.startswith("Refused: ")
    (setup / "deployment.toml").unlink()
    assert "no set-up's folder" in sordino("deploy", "check", setup).stderr


# --- the check: files and clients -------------------------------------------------------------------------------------


def found(folder: Path, timeout: float = 5.0) -> list[CheckResult]:
    return checks.check(Deployment.read(folder), folder, timeout)


def wrong(folder: Path, machine: str, what: str) -> CheckResult:
    """The one complaint of this kind."""
    (finding,) = [f for f in found(folder) if (f.machine, f.what) == (machine, what) and f.state != "ok"]
    return finding


def fine(folder: Path, machine: str, what: str) -> bool:
    return any((f.machine, f.what, f.state) == (machine, what, "ok") for f in found(folder))


def test_where_nothing_runs_the_check_says_what_to_start(setup):
    done = sordino("deploy", "check", setup, "--json")
    assert done.exit_code == 1
    complaints = {(f["machine"], f["what"]): f for f in json.loads(done.stdout) if f["state"] == "wrong"}
    assert set(complaints) == {("server", "port"), *((f"client-{n}", "client") for n in (1, 2, 3))}
    assert "sordino deploy up" in complaints["server", "port"]["remedy"]
    assert "sordino deploy join" in complaints["client-1", "client"]["remedy"]
    text = sordino("deploy", "check", setup).stdout
    assert "WRONG   server: port:" in text and "ok      server: certificate:" in text


def test_files_that_are_missing_or_open_to_others_are_named(setup):
    (setup / "server/flower/server.crt").unlink()
    assert "server.crt" in wrong(setup, "server", "files").says
    (setup / "client-1/flower/node.key").chmod(0o644)
    assert "chmod 600" in wrong(setup, "client-1", "files").remedy
    assert fine(setup, "client-2", "files")


def test_a_server_certificate_on_disk_that_would_not_do_is_named(setup, issuer):
    own = CertificatePair((setup / "server/ca.crt").read_bytes(), (setup / "authority/ca.key").read_bytes())
    for pair, said in (
        (certificates.server(["127.0.0.1"], own, 3, now=NOW - timedelta(days=5)), "expired"),
        (certificates.server(["127.0.0.1"], own, 3, now=NOW + timedelta(days=5)), "begins on"),
        (certificates.server(["127.0.0.1"], own, 3), "ends on"),
        (certificates.server(["127.0.0.1"], issuer), "not signed by"),
        (CertificatePair(b"nothing", b""), "no certificate"),
    ):
        (setup / "server/flower/server.crt").write_bytes(pair.certificate)
        assert said in wrong(setup, "server", "certificate").says
    elsewhere = replace(Deployment.read(setup), host="localhost.example.org")
    (setup / "server/flower/server.crt").write_bytes(certificates.server(["127.0.0.1"], own).certificate)
    (complaint,) = [f for f in checks.check(elsewhere, setup) if f.what == "certificate"]
    assert "nodes call localhost.example.org" in complaint.says


def test_the_digest_of_the_check_is_the_one_that_owners_compare(setup):
    (digest,) = re.findall(r"has the SHA-256 ([0-9a-f]{64})", (setup / "README.txt").read_text())
    (said,) = [f for f in checks.check(Deployment.read(setup), setup) if (f.machine, f.what) == ("server", "recipe")]
    assert f"({digest[:12]})" in said.says


def test_another_recipe_in_the_app_is_noticed(setup):
    assert fine(setup, "server", "recipe")
    path = setup / "server/coordinators/demo/recipe.toml"
    path.write_text(path.read_text().replace("count = 3", "count = 30"))
    assert "not the one that clients" in wrong(setup, "server", "recipe").says


@pytest.fixture
def joined(setup: Path) -> Path:
    """The set-up, with its first client made and joined."""
    people.client(setup / "client-1/client", people.settings()).close()
    return setup


def agree(setup: Path, invitation: bytes) -> None:
    with Client.open(setup / "client-1/client") as client:
        client.join(invitation)


def test_a_client_that_has_not_joined_or_on_other_terms_is_named(joined):
    assert "has not agreed" in wrong(joined, "client-1", "client").says
    agree(joined, people.invitation(recipe(**{"rounds.count": 2}), 0, "demo").encode())
    assert "agreed to another recipe" in wrong(joined, "client-1", "client").says


def test_a_client_that_joined_in_anothers_place_is_named(joined):
    agree(joined, (joined / "client-2/demo.invitation").read_bytes())
    assert "as number 1" in wrong(joined, "client-1", "client").says


def test_a_client_is_fine_when_it_answers_under_its_name(joined):
    agree(joined, (joined / "client-1/demo.invitation").read_bytes())
    assert fine(joined, "client-1", "client")
    assert "sordino deploy up" in wrong(joined, "client-1", "serving").remedy
    (joined / "client-1/socket").mkdir()
    served = Served(Client.open(joined / "client-1/client"), joined / "client-1/socket/client.sock")
    try:
        assert "is called client, and the server waits for client-1" in wrong(joined, "client-1", "serving").says
    finally:
        served.stop()
    (joined / "client-1/client/older-ledger.json").write_text("{}")
    assert "older than a receipt" in wrong(joined, "client-1", "client").says


def test_a_socket_in_too_deep_a_folder_is_named(joined):
    agree(joined, (joined / "client-1/demo.invitation").read_bytes())
    deep = joined / ("x" * 90)
    shutil.copytree(joined / "client-1", deep)
    assert "shorter path" in wrong(deep, "client-1", "serving").remedy


def test_a_key_that_belongs_to_another_node_is_named(joined):
    shutil.copyfile(joined / "client-2/flower/node.pub", joined / "client-1/flower/node.pub")
    assert "not the public key of" in wrong(joined, "client-1", "node key").says


# --- the check: a server from outside ---------------------------------------------------------------------------------


class Answering(http.server.BaseHTTPRequestHandler):
    """Says what a SuperLink says of itself, or something else."""

    about: dict[str, str]
    ahead: float
    status: int

    def do_GET(self) -> None:
        body = json.dumps({"info": self.about}).encode()
        self.send_response_only(self.status)
        self.send_header("Date", formatdate(datetime.now(UTC).timestamp() + self.ahead, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: Any) -> None: ...


@contextmanager
def server(setup: Path, own: CertificatePair | None = None, **said: Any) -> Iterator[None]:
    """A server at the set-up's port, with the set-up's certificate or another; without TLS where it is empty."""
    about = {"title": said.get("title", "Sordino door"), "version": said.get("version", "1.41.0")}
    says = {"about": about, "ahead": said.get("ahead", 0.0), "status": said.get("status", 200)}
    handler = type("Handler", (Answering,), says)
    certificate: Path | None = setup / "server/flower/server.crt"
    if own is not None:
        certificate = setup / "other.crt" if own.certificate else None
        (setup / "other.crt").write_bytes(own.certificate)
        (setup / "other.key").write_bytes(own.key)
    with serving(Deployment.read(setup).port, handler, certificate):
        yield


def test_a_server_without_a_door_is_wrong(setup):
    """Whoever reaches Flower's control API can run an app on the server and on all nodes."""
    with server(setup, title="SuperLink API"):
        for machine in ("server", "client-1"):
            assert wrong(setup / machine, machine, "server").wrong


def test_the_coordinators_key_is_the_servers_alone_and_invitations_name_it(original):
    (setup,) = Deployment.read(original).federations
    place = setup.coordinator_in(original / "server")
    own = SigningKey.at(place / KEY)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (place / KEY, place)] == [0o600, 0o700]
    assert list(original.rglob(KEY)) == [place / KEY]
    assert setup.coordinator == own.author.first.hex()
    for member in setup.members:
        invitation = Invitation.decode((original / member / setup.invitation).read_bytes())
        assert invitation.author == own.author


def test_a_server_is_fine_and_its_nodes_cannot_be_asked_for_where_it_only_looks_like_one(setup):
    with server(setup):
        for what in ("port", "tls", "server", "clock"):
            assert fine(setup / "client-1", "client-1", what), what
        assert "was not asked for them" in wrong(setup, "server", "nodes").says


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("expired", "has expired"),
        ("other host", "is not for 127.0.0.1"),
        ("other authority", "of another authority"),
        ("no tls", "no encrypted connection"),
    ],
)
def test_what_is_wrong_with_the_servers_certificate_is_told_apart(setup, issuer, wanted, said):
    own = CertificatePair((setup / "server/ca.crt").read_bytes(), (setup / "authority/ca.key").read_bytes())
    served = {
        "expired": lambda: certificates.server(["127.0.0.1"], own, 3, now=NOW - timedelta(days=9)),
        "other host": lambda: _for_another_host(own),
        "other authority": lambda: certificates.server(["127.0.0.1"], issuer),
        "no tls": lambda: CertificatePair(b"", b""),
    }[wanted]()
    with server(setup, served):
        assert said in wrong(setup / "client-1", "client-1", "tls").says


def _for_another_host(own: CertificatePair) -> CertificatePair:
    """One that is not even for the machine itself, as certificates of other authorities are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "LOCAL", ())
        return certificates.server(["a.org"], own)


def test_a_server_that_was_not_started_anew_after_a_renewal_is_noticed(setup):
    own = CertificatePair((setup / "server/ca.crt").read_bytes(), (setup / "authority/ca.key").read_bytes())
    with server(setup, certificates.server(["127.0.0.1"], own)):
        assert "another certificate than server.crt" in wrong(setup, "server", "tls").says


@pytest.mark.parametrize(("ahead", "states"), [(-9, "wrong"), (-2, "ok"), (200, "ok"), (400, "wrong")])
def test_a_clock_that_flower_would_refuse_is_noticed(setup, ahead, states):
    """The server's clock is `ahead` of this machine's: a node may be 5 seconds ahead of it, or 300 behind."""
    with server(setup, ahead=ahead):
        (clock,) = [f for f in found(setup / "client-1") if f.what == "clock"]
    assert clock.state == states


def test_another_program_or_version_at_the_port_is_noticed(setup):
    with server(setup, title="Something"):
        assert "no SuperLink" in wrong(setup / "client-1", "client-1", "server").says
    with server(setup, status=403):
        assert fine(setup / "client-1", "client-1", "server"), "a proxy stands before it"
    with server(setup, version="1.40.0"):
        assert "1.40.0" in wrong(setup / "client-1", "client-1", "server").says


def test_a_name_that_nobody_knows_is_named(setup):
    elsewhere = replace(Deployment.read(setup), host="nowhere.invalid")
    (complaint,) = [f for f in checks.check(elsewhere, setup, 2.0) if f.what == "port"]
    assert "has no address here" in complaint.remedy


@pytest.mark.parametrize(
    ("version", "state"),
    [("1.41.0", "ok"), ("1.41.9", "ok"), ("1.42.0", "ok"), ("1.43.0", "wrong"), ("1.40.9", "wrong")],
)
def test_versions_of_flower_that_are_not_wanted_are_named(setup, monkeypatch, version, state):
    monkeypatch.setattr(checks.metadata, "version", lambda name: version)
    monkeypatch.setattr(checks.shutil, "which", lambda name: "/somewhere")
    (finding,) = [f for f in found(setup / "client-1") if f.what == "flower"]
    assert finding.state == state


def test_a_recipe_with_a_shuffler_tells_owners_to_allow_it_and_the_server_where_its_files_are(tmp_path):
    channel = {"kind": "shuffler", "at_least": 2, "url": "https://mix.example.org:8470", "key": "ab" * 32}
    given = people.method_recipe("ldp-fl").with_({"method.channel": channel})
    made, _ = make(tmp_path / "demo", given, SetupOptions("a.org"), federation="demo")
    allow = commands.steps(made, "client-1")[1].command
    assert allow == "sordino client shuffler client demo https://mix.example.org:8470 --token shuffler.token"
    (own,) = made.federations
    place = own.coordinator_in(tmp_path / "demo/server")
    files = CoordinatorSettings.read(place).shuffler(place)
    assert files == {"token": place / "shuffler.token", "key": place / "shuffler.key"}


def test_the_page_shows_the_commands_that_are_written(tmp_path, monkeypatch):
    page = (Path(__file__).parent.parent.parent / "docs/deploy.md").read_text()
    monkeypatch.chdir(tmp_path)
    (init,) = [line for line in page.splitlines() if line.startswith("$ sordino deploy init")]
    made = sordino(*shlex.split(init)[2:])
    without_date = [line for line in made.stdout.splitlines() if "certificate ends" not in line]
    assert without_date and all(line in page for line in without_date)
    assert (tmp_path / "demo/server/deployment.toml").is_file()
