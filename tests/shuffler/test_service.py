"""The service in a process of its own: over TLS, killed and started again, and asked for nonsense."""

import http.client
import json
import socket
import threading
import time
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.shuffler import keys, open_batch, seal, spread
from sordino.shuffler.envelopes import Body
from sordino.shuffler.remote import Announcement, Rejected, Remote, ShufflerUnreachable
from sordino.shuffler.service import MOST_BODY_BYTES, RateLimiter, serve
from sordino.shuffler.store import EnvelopeStore
from sordino.shuffler.terms import Terms
from sordino.storage.files import InUse
from sordino.wire.messages import Plan
from sordino.wire.tls_address import TlsAddress

from .parties import Running, by_position, certificate, opaque, random_bits, report, terms_of


def sordino(*arguments) -> str:
    result = CliRunner().invoke(app, ["shuffler", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def waited_for(ask, seconds: float = 20.0):
    """What `ask` gives as soon as it gives something."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (found := ask()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError("nothing came")


# --- a round, with the shuffler killed in between ---------------------------------------------------------------------


@pytest.fixture
def starts():
    """Starts shufflers, and ends those that a failed test has left."""
    made: list[Running] = []

    def start(*given: object) -> Running:
        made.append(Running(*given))
        return made[-1]

    yield start
    for running in made:
        running.kill()


def test_a_round_over_tls_survives_kills_and_counts_everybody_once(tmp_path, starts):
    """Eight clients; the shuffler is killed while they send, when all is accepted, and after the batch was fetched."""
    sordino("keys", tmp_path / "server")
    names = [f"client-{k}" for k in range(8)]
    files = json.loads(sordino("register", "--folder", tmp_path / "shuffler", *names, "--json"))
    tokens = {name: Path(path).read_text().strip() for name, path in files.items()}
    cert, cert_key = certificate(tmp_path)
    public = tmp_path / "server" / keys.PUBLIC

    def started() -> Running:
        tls = ("--tls-cert", str(cert), "--tls-key", str(cert_key))
        return starts(tmp_path / "shuffler", public, 6, *tls)

    def reached(token: str) -> Remote:
        return Remote(running.url, token, trusted=cert, timeout=10)

    plan, values = Plan("bakery", 1), 300
    terms = Terms.of(plan, values, [8], seconds=600)
    bits = random_bits(8, values)
    running = started()
    reached(running.token).open_round(terms)
    told = reached(tokens[names[0]]).announced(1)
    told.check(plan, crowd=6, pinned=keys.public_key(public))
    bodies = {}
    for name, row in zip(names, bits, strict=True):
        bodies[name] = [body for _, body in spread(seal(report(row), told.terms, 0, told.key), 1.0, slots=12)]

    accepted = dict.fromkeys(names, 0)
    over = threading.Event()

    def send(name: str) -> None:
        for body in bodies[name]:
            while not over.is_set():
                try:
                    accepted[name] += reached(tokens[name]).send(1, body)
                    break
                except ShufflerUnreachable:
                    time.sleep(0.02)

    senders = [threading.Thread(target=send, args=(name,)) for name in names[:-1]]
    for sender in senders:
        sender.start()
    time.sleep(0.15)
    running.kill()
    running = started()
    for sender in senders:
        sender.join(60)
    over.set()

    server = reached(running.token)
    assert server.batch(1, 0) is None, "one client is still missing, and its time is not up"
    running.kill()
    running = started()
    first, *others = bodies[names[-1]]
    for body in (first, first, *others):
        accepted[names[-1]] += reached(tokens[names[-1]]).send(1, body)
    server = reached(running.token)
    batch = waited_for(lambda: server.batch(1, 0))
    running.kill()
    running = started()
    server = reached(running.token)
    assert server.batch(1, 0) == batch, "a batch is mixed once"
    opened = open_batch(batch, terms, keys.private_key(tmp_path / "server" / keys.PRIVATE))
    assert opened.clients == 8 and not opened.refused
    assert opened.counts().tolist() == bits.sum(axis=0).tolist()
    # what was accepted when the answer got lost was not new when it came again
    assert accepted[names[-1]] == values and max(accepted.values()) == values

    server.taken(1, 0)
    running.kill()
    running = started()
    with pytest.raises(Rejected, match="taken") as gone:
        reached(running.token).batch(1, 0)
    assert gone.value.status == 410
    with pytest.raises(ShufflerUnreachable):  # who does not know the certificate says nothing
        Remote(running.url, tokens[names[0]], timeout=10).announced(1)
    assert running.stop() == 0
    assert not (tmp_path / "shuffler" / "lock").exists(), "who is stopped lets go of the folder"


# --- asked for nonsense -----------------------------------------------------------------------------------------------


class Service:
    """A shuffler with two clients, one of whom has sent half of its report."""

    def __init__(self, folder) -> None:
        self.folder = folder / "shuffler"
        key = keys.make(folder / "server")
        with EnvelopeStore(self.folder) as store:
            self.tokens = store.register(["north", "south"])
        self.running = Running(self.folder, folder / "server" / keys.PUBLIC, 2)
        self.terms = terms_of(10, (2,))
        self.server = Remote(self.running.url, self.running.token)
        self.server.open_round(self.terms)
        self.client = Remote(self.running.url, self.tokens["north"])
        self.client.send(1, opaque(self.terms, 1, range(5)).encode())
        self.key = key

    def ask(self, method: str, path: str, token: str, body: bytes = b"", headers=()) -> int:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.running.url).netloc, timeout=20)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {token}", **dict(headers)})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def held(self) -> tuple[int, ...]:
        with EnvelopeStore(self.folder) as store:
            tables = ("clients", "latencies", "rounds", "batches", "progress", "held", "pieces")
            return tuple(store._db.one(f"SELECT count(*) FROM {table}")[0] for table in tables)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    found = Service(tmp_path_factory.mktemp("nonsense"))
    yield found
    assert found.running.process.poll() is None, "the service is still there"
    found.running.stop()


PATHS = st.sampled_from(
    ["/v1/rounds/1/envelopes", "/v1/rounds/2/envelopes", "/v1/rounds/2", "/v1/rounds/1", "/v1/latency",
     "/v1/rounds/0", "/v1/rounds/99999999999999999999999", "/v1/rounds/x", "/v1/rounds/1/batches/7",
     "/v1/rounds/1/batches/0", "/v1/rounds/1/batches/-1", "/", "/docs", "/v1/rounds/%00/envelopes"]
)  # fmt: skip
VALID = terms_of(10, (2,))


@st.composite
def damaged(draw) -> bytes:
    """A good body or good terms with some bytes changed, cut or added; or any bytes."""
    good = draw(
        st.sampled_from([opaque(VALID, 1).encode(), terms_of(10, round=2).to_json().encode(), b'{"seconds": 1}'])
    )
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    start = draw(st.integers(0, min(60, len(good) - 1)))
    return good[:start] + draw(st.binary(min_size=1, max_size=8)) + good[start + draw(st.integers(2, 30)) :]


def is_good(body: bytes) -> bool:
    """Whether what was damaged can still be read as what it was."""
    readings = (
        lambda: Body.decode(body).check(VALID),
        lambda: Terms.from_json(body),
        lambda: json.loads(body)["seconds"],
    )
    for reading in readings:
        try:
            reading()
        except (ValueError, TypeError, KeyError):
            continue
        return True
    return False


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["POST", "PUT", "DELETE", "PATCH"]),
    path=PATHS,
    who=st.sampled_from(["server", "south", "nobody"]),
    body=damaged(),
)
def test_malformed_requests_are_refused_and_leave_nothing_behind(service, method, path, who, body):
    assume(not is_good(body))
    token = {"server": service.running.token, "south": service.tokens["south"], "nobody": "x"}[who]
    before = service.held()
    status = service.ask(method, path, token, body)
    while status == 429:
        time.sleep(0.1)
        status = service.ask(method, path, token, body)
    assert 400 <= status < 500
    assert service.held() == before


def test_a_request_is_read_only_up_to_its_limit(service):
    before = service.held()
    assert service.ask("POST", "/v1/rounds/1/envelopes", service.tokens["south"], bytes(MOST_BODY_BYTES + 1)) == 413
    assert service.ask("PUT", "/v1/rounds/2", service.running.token, b" " * 20_000) == 413
    assert service.held() == before


def test_everything_needs_the_right_token(service):
    envelopes = opaque(service.terms, 2).encode()
    for token in ("", "x", service.running.token):
        assert service.ask("POST", "/v1/rounds/1/envelopes", token, envelopes) == 401
        assert service.ask("PUT", "/v1/latency", token, b'{"seconds": 1}') == 401
    for token in ("", "x", service.tokens["south"]):
        assert service.ask("PUT", "/v1/rounds/2", token, terms_of(10, round=2).to_json().encode()) == 401
        for method in ("GET", "DELETE"):
            assert service.ask(method, "/v1/rounds/1/batches/0", token) == 401
    assert service.ask("GET", "/v1/rounds/1", "") == 401
    assert service.ask("GET", "/v1/rounds/1", service.tokens["south"]) == 200


def test_what_was_sent_before_the_nonsense_still_counts(service):
    """Last of this module: it finishes the round that all the others left alone."""
    for bad in (b'{"seconds": "5"}', b'{"seconds": true}', b'{"seconds": -1}', b'{"seconds": 1, "more": 1}'):
        assert service.ask("PUT", "/v1/latency", service.tokens["south"], bad) == 400
    service.client.propose(3.0)
    told = service.client.announced(1)
    assert told.latency == 0.0, "T of a round is what had been proposed when it was opened"
    assert told.key.public_bytes_raw() == service.key.public_bytes_raw()
    assert told.at_least == 2 and told.terms == service.terms
    assert service.client.send(1, opaque(service.terms, 1).encode()) == 5
    assert service.server.batch(1, 0) is None
    assert Remote(service.running.url, service.tokens["south"]).send(1, opaque(service.terms, 2).encode()) == 10
    batch = waited_for(lambda: service.server.batch(1, 0))
    senders = np.sort(by_position(batch, service.terms)[:, :, 0], axis=1)
    assert (senders == [1, 2]).all()


# --- before it listens, and before anything is sealed -----------------------------------------------------------------


def test_one_process_holds_a_folder(service):
    with pytest.raises(InUse, match="another process"):
        serve(service.folder, service.key, 2, TlsAddress())


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "shuffler.example"])
def test_away_from_this_machine_only_tls_will_do(host, tmp_path):
    with pytest.raises(InvalidInput, match="tls-cert"):
        serve(tmp_path, X25519PrivateKey.generate().public_key(), 2, TlsAddress(host))
    with pytest.raises(InvalidInput, match="https only"):
        Remote(f"http://{host}:8470", "token")


def test_a_client_may_speak_at_a_certain_pace():
    now = [0.0]
    allowance = RateLimiter(2.0, 3.0, lambda: now[0])
    assert [allowance.spend(1) for _ in range(5)] == [True, True, True, False, False]
    assert allowance.spend(2)
    now[0] = 0.5
    assert [allowance.spend(1) for _ in range(2)] == [True, False]


def test_a_client_seals_for_its_own_plan_crowd_and_key_only():
    key, other = (X25519PrivateKey.generate().public_key() for _ in range(2))
    plan = Plan("bakery", 1, {"round": "mine"})
    told = Announcement(Terms.of(plan, 10, [5], 60.0), key, 5, 0.0)
    told.check(plan, crowd=5, pinned=key)
    with pytest.raises(InvalidInput, match="another plan"):
        told.check(Plan("bakery", 1, {"round": "yours"}), crowd=5)
    with pytest.raises(InvalidInput, match="promised 6"):
        told.check(plan, crowd=6)
    with pytest.raises(InvalidInput, match="another key"):
        told.check(plan, crowd=5, pinned=other)


def test_the_commands_refuse_in_plain_words(tmp_path):
    sordino("keys", tmp_path)
    again = CliRunner().invoke(app, ["shuffler", "keys", str(tmp_path)])
    assert again.exit_code == 1 and "holds a key of the server already" in again.output
    assert (tmp_path / keys.PRIVATE).stat().st_mode & 0o077 == 0
    wrong = ["serve", "--folder", str(tmp_path / "f"), "--at-least", "5", "--server-key", str(tmp_path / keys.PRIVATE)]
    refused = CliRunner().invoke(app, ["shuffler", *wrong])
    assert refused.exit_code == 1 and "not a public key" in refused.output


def test_tokens_lie_in_files_of_their_own_which_the_commands_of_owners_name(tmp_path):
    from sordino.deploy.deployment import TOKEN

    said = sordino("register", "--folder", tmp_path, "north", "south")
    files = [tmp_path / "tokens" / name / TOKEN for name in ("north", "south")]
    assert said.splitlines() == [f"north: {files[0]}", f"south: {files[1]}"]
    tokens = [path.read_text().strip() for path in files]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600, 0o600]
    assert not any(token in said for token in tokens)
    with EnvelopeStore(tmp_path) as store:
        assert [store.client_of(token) for token in tokens] == [1, 2]
    for names in (["east", "north"], ["../west"]):
        refused = CliRunner().invoke(app, ["shuffler", "register", "--folder", str(tmp_path), *names])
        assert refused.exit_code == 1
        assert [path.read_text().strip() for path in files] == tokens, "who is registered keeps its token"
    (tmp_path / "tokens/east").write_text("in the way")
    assert CliRunner().invoke(app, ["shuffler", "register", "--folder", str(tmp_path), "east"]).exit_code == 1
    with EnvelopeStore(tmp_path) as store:
        assert store.registered() == 2, "nobody is registered without its file"


@pytest.mark.parametrize("said", [b"", b'{"acc'])
def test_a_shuffler_that_ends_while_it_answers_is_away_and_not_wrong(said):
    """Killed between the head of an answer and its end: a client asks again, and does not give up."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            guest, _ = door.accept()
            with guest:
                asked = b""
                while not asked.endswith(b"envelopes"):
                    asked += guest.recv(65536)
                guest.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" + said)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(ShufflerUnreachable):
            Remote(f"http://127.0.0.1:{door.getsockname()[1]}", "token", timeout=5).send(1, b"envelopes")
        answering.join(5)
