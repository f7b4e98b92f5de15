"""/live of a socket federation: what each role sees, who is turned away, and that watching never reaches the run."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.report.records import RoundRecord
from sordino.runs.coordinator import Attendance
from sordino.web.access import Gate, Rights, Role, TokenFile, make_tokens, read_tokens
from sordino.web.app import Site
from sordino.web.live_server import serve_live
from sordino.web.server import NotListening
from sordino.web.watched_run import WatchedRun
from sordino.wire.requests import Request, Response, send
from sordino.wire.signing import SigningKey
from tests.client import people
from tests.client.people import COST
from tests.survival.unruly import Behaviour, clients
from tests.survival.watching import NAMES, SECRET, Held, Stage, declining, running, tokens_in
from tests.web.visitors import hosted, operate, server

THREE = {"rounds.quorum": 3}
DEMO = "/api/federations/tiny"


def ask(
    port: int, path: str, token: str | None = None, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    own = {"Host": f"localhost:{port}", **({} if token is None else {"Authorization": f"Bearer {token}"})}
    connection.request(method, path, headers={**own, **(headers or {})})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    found = json.loads(content) if answer.headers.get_content_type() == "application/json" and content else None
    return answer.status, found


@contextmanager
def events(port: int, path: str, token: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
    """Events, as they come."""

    def heard() -> Iterator[tuple[str, Any]]:
        kind = ""
        for line in answer:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield kind, json.loads(line[6:])

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": f"localhost:{port}", "Authorization": f"Bearer {token}"})
    with closing(connection), connection.getresponse() as answer:
        assert answer.status == 200
        yield heard()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, dict[str, str]]]:
    """Three clinics after the second of three rounds; the third clinic declines from the second on."""
    path = tmp_path_factory.mktemp("live") / "tokens.json"
    make_tokens(path, NAMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SigningKey, "new", classmethod(lambda _: people.KEY))
        yield from _three(path)


def _three(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with running({2: {2: declining, 3: declining}}, Held(2), path) as (_, port):
        tokens = tokens_in(path)
        until(lambda: claimed(ask(port, DEMO, tokens["operator"])[1])[0] == 2 * COST)
        yield port, tokens


def claimed(told: Any) -> list[float | None]:
    """What each member has spent by the paper's formula, which one can count: so much an upload."""
    return [one["spent"] and one["spent"]["claimed"] for one in told["live"]["members"]]


def until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# --- roles ------------------------------------------------------------------------------------------------------------


def test_the_operator_sees_members_reasons_and_what_each_has_spent(three):
    port, tokens = three
    status, told = ask(port, DEMO, tokens["operator"])
    assert (status, told["role"], told["watched"], told["state"], told["round"]) == (
        200,
        "operator",
        True,
        "training",
        2,
    )
    assert [(one["reported"], one["declined"]) for one in told["history"]] == [(3, 0), (2, 1)]
    assert all(one["accuracy"] is not None for one in told["history"])
    a, _, c = told["live"]["members"]
    assert (a["name"], a["present"], a["asked"], a["reports"], a["last_round"]) == ("clinic-a", True, 2, 2, 2)
    assert (c["name"], c["reports"], c["declined"]) == ("clinic-c", 1, 1)
    assert c["reasons"] == [{"first": 2, "last": 2, "what": "declined", "reason": SECRET}]
    assert claimed(told) == [2 * COST, 2 * COST, COST]  # it declined at once: nothing left in the second round
    proven = {row["members"]: row["proven"]["epsilon"] for row in told["statement"]["rows"][:2]}
    about = {"delta": 1e-5, "adjacency": "client", "adversary": "server"}
    assert a["spent"] == {**about, "epsilon": proven["0-1"], "claimed": 2 * COST}
    assert c["spent"]["epsilon"] == proven["2"] < proven["0-1"]
    assert told["live"]["bytes_up"] > 0
    assert {row["members"] for row in told["statement"]["rows"]} == {"0-1", "2"}


def test_a_member_sees_names_and_reports_and_the_reasons_that_are_its_own(three):
    port, tokens = three
    told = ask(port, DEMO, tokens["clinic-a"])[1]
    a, b, c = told["live"]["members"]
    assert (a["own"], a["present"], a["reasons"]) == (True, True, [])
    assert set(b) == set(c) == {"number", "name", "reports", "last_round", "spent"}
    assert [one["reports"] for one in (a, b, c)] == [2, 2, 1]
    assert SECRET not in json.dumps(told) and "bytes_up" not in told["live"]
    own = ask(port, DEMO, tokens["clinic-c"])[1]["live"]["members"][2]
    assert own["reasons"] == [{"first": 2, "last": 2, "what": "declined", "reason": SECRET}]


def test_a_reader_sees_rounds_and_the_statement_and_nobodys_name(three):
    port, tokens = three
    status, told = ask(port, DEMO, tokens["reader"])
    assert (status, told["clients"], told["round"]) == (200, 3, 2)
    assert told["live"] == {"role": "reader", "waiting": None, "members": None}
    assert [one["reported"] for one in told["history"]] == [3, 2]
    rows = told["statement"]["rows"]
    assert sorted({(row["count"], row["members"]) for row in rows}) == [(1, ""), (2, "")]
    text = json.dumps(told)
    assert SECRET not in text and not any(name in text for name in NAMES)
    assert "client 2" not in text and "clients 0-1" not in text


@pytest.mark.parametrize("role", ["operator", "clinic-a", "reader"])
def test_events_hold_no_more_than_the_view(three, role):
    port, tokens = three
    with events(port, f"{DEMO}/events?after=1", tokens[role]) as heard:
        (first, entry), (second, _), (third, live) = (next(heard) for _ in range(3))
    assert (first, second, third, entry["round"]) == ("round", "summary", "live", 2)
    view = ask(port, DEMO, tokens[role])[1]["live"]
    assert {**live, "uptime": 0} == {**view, "uptime": 0}


# --- who is turned away -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/federations", DEMO, f"{DEMO}/events", f"{DEMO}/statement.json"])
def test_nobody_sees_anything_without_a_token_even_at_this_machine(three, path):
    port, tokens = three
    assert ask(port, path)[0] == 401
    assert ask(port, path, "x" * 32)[0] == 401
    assert ask(port, path, tokens["operator"][:-1])[0] == 401
    assert ask(port, f"{path}?token={tokens['operator']}")[0] == 401
    assert ask(port, path, headers={"Authorization": f"Basic {tokens['operator']}"})[0] == 401


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
def test_nothing_can_be_changed_not_even_by_the_operator(three, method):
    port, tokens = three
    for path in (DEMO, f"{DEMO}/start", f"{DEMO}/places/0", f"{DEMO}/link", f"{DEMO}/again", "/live"):
        status, told = ask(port, path, tokens["operator"], method=method)
        assert status == 405 and told["error"]


def test_another_federation_is_not_here(three):
    port, tokens = three
    assert ask(port, "/api/federations/other", tokens["reader"])[0] == 404


def test_without_tokens_only_this_machine_sees_the_run_and_a_run_ends_with_finished():
    with running({}, Held(1), **{"rounds.count": 2}) as (stage, port):
        assert ask(port, DEMO)[1]["role"] == "operator"
        assert ask(port, DEMO, headers={"Host": "live.example"})[0] == 403
        assert ask(port, DEMO, headers={"X-Forwarded-For": "192.0.2.7"})[0] == 403
        with events(port, f"{DEMO}/events") as heard:
            next(heard)
            stage.held.go_on.set()
            ended = next(told for kind, told in heard if kind == "ended")
        assert (ended["state"], ended["round"], ended["why"]) == ("finished", 2, "all 2 rounds are done")
        assert ask(port, DEMO)[1]["statement"]["over"] is True


def test_a_view_for_other_machines_needs_tokens():
    run = WatchedRun(people.recipe())
    with pytest.raises(InvalidInput, match="--live-tokens"), serve_live(run, host="0.0.0.0"):
        pass
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotListening, match="--live"), serve_live(run, port=port):
            pass


# --- what watching cannot do ------------------------------------------------------------------------------------------


def test_watchers_who_never_read_and_errors_of_the_view_do_not_reach_the_run(monkeypatch, capfd):
    def broken(*_: object) -> None:
        raise RuntimeError("the view is broken")

    with ExitStack() as stack, running({}, Held(0)) as (stage, port):
        monkeypatch.setattr(WatchedRun, "_note", broken)
        for _ in range(10):
            stuck = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            stuck.sendall(f"GET {DEMO}/events HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        began = time.monotonic()
        stage.held.go_on.set()
        until(lambda: stage.ended is not None)
        assert time.monotonic() - began < 10
        told = ask(port, DEMO)[1]
        assert (told["state"], told["round"]) == ("finished", 3)
        assert told["live"]["problem"] == "RuntimeError: the view is broken"


def test_after_a_restart_the_rounds_before_are_shown_with_their_reasons():
    recipe = people.recipe()
    with clients(recipe, {2: {1: declining, 2: declining, 3: declining}}) as (place, _):
        first = Stage(recipe, place, None, Held(2, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt), first.view:
            first.carry_out()
        shown = first.watched.seen_by(Rights(Role.OPERATOR))
        assert (shown.state, shown.summary()["why"]) == ("failed", "the operator has stopped it")
        second = Stage(recipe, place, None, Held(0))
        with second.view as address:
            thread = threading.Thread(target=second.carry_out, kwargs={"resume": True})
            thread.start()
            assert second.held.reached.wait(20)
            port = int(address.rpartition(":")[2])
            until(lambda: ask(port, DEMO)[1]["statement"] is not None)
            told = ask(port, DEMO)[1]
            second.held.go_on.set()
            thread.join(60)
        assert [one["round"] for one in told["history"]] == [1, 2]
        a, _, c = told["live"]["members"]
        assert (a["reports"], a["last_round"], c["reports"], c["declined"]) == (2, 2, 0, 2)
        assert [(one["first"], one["last"], one["reason"]) for one in c["reasons"]] == [(1, 2, SECRET)]
        assert (a["spent"]["claimed"], c["spent"]["epsilon"]) == (2 * COST, 0)
        assert second.watched.seen_by(Rights(Role.READER)).last_round == 3


def after(seconds: float) -> Behaviour:
    def slow(connection: socket.socket, request: Request, response: Response) -> None:
        time.sleep(seconds)
        send(connection, response.encode())

    return slow


def test_an_open_round_says_whom_it_waits_for_and_a_late_answer_whose_it_is():
    """The second clinic answers after the first round's deadline, while the third keeps the second round open."""
    slow = {1: {1: after(1.3)}, 2: {2: after(0.7)}}
    with running(slow, Held(0), **{"rounds.count": 2, "rounds.deadline": 1.0}) as (stage, port):
        stage.held.go_on.set()

        def waiting(role: Role) -> Any:
            return stage.watched.seen_by(Rights(role)).live()["waiting"] or {}

        until(lambda: waiting(Role.OPERATOR).get("members") == ["clinic-b"])
        told = waiting(Role.READER)
        assert (told["step"], told["round"], told["answers"], "members" in told) == ("report", 1, 1, False)
        until(lambda: stage.ended is not None)
        b = ask(port, DEMO)[1]["live"]["members"][1]
        assert (b["asked"], b["reports"], b["missing"], b["late"]) == (2, 1, 1, 1)
        assert b["reasons"] == [{"first": 1, "last": 1, "what": "missing", "reason": ""}]


def test_behind_a_shuffler_nobody_is_said_to_have_reported():
    """The numbers of mixed reports tell their class, and not whose they are."""
    mixed = people.method_recipe("ldp-fl").with_({"method.channel": {"kind": "shuffler", "at_least": 2}})
    watched = WatchedRun(mixed)
    watched.round(RoundRecord(1, asked=3, reported=2, declined=1), Attendance((0, 1, 2), reported=[0, 1], declined=[1]))
    found = watched.seen_by(Rights(Role.OPERATOR)).live()["members"]
    assert [(one["asked"], one["reports"], one["missing"], one["declined"]) for one in found] == [
        (1, 0, 0, 0), (1, 0, 0, 1), (1, 0, 0, 0)
    ]  # fmt: skip


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_are_long_different_and_for_their_owner_alone(tmp_path):
    path = tmp_path / "tokens.json"
    make_tokens(path, NAMES)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_tokens(path)
    assert [(str(one.role), one.member) for one in found] == [
        ("operator", ""), *(("member", name) for name in NAMES), ("reader", "")
    ]  # fmt: skip
    assert len({one.token for one in found}) == 5 and all(len(one.token) == 32 for one in found)
    with pytest.raises(InvalidInput, match="is there already"):
        make_tokens(path)


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[]", "nonsense", '{"tokens": []}', '{"tokens": [{"role": "king", "token": "aaaaaaaaaaaaaaaaaaaa"}]}',
        '{"tokens": [{"role": "reader", "token": "short"}]}', '{"tokens": [{"role": "reader"}]}',
        '{"tokens": [{"role": "reader", "token": "aaaaaaaaaaaaaaaaaaaa"}, '
        '{"role": "operator", "token": "aaaaaaaaaaaaaaaaaaaa"}]}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_file_of_tokens_is_refused(tmp_path, text):
    path = tmp_path / "tokens.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidInput):
        TokenFile(path)


def test_tokens_that_others_can_read_are_refused_and_revoked_ones_admit_nobody(tmp_path):
    path = tmp_path / "tokens.json"
    make_tokens(path)
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        TokenFile(path)
    path.chmod(0o600)
    known, mine = TokenFile(path), tokens_in(path)
    right = known.find(mine["reader"])
    assert right is not None and right.role is Role.READER
    assert known.find("") is None and known.find("é" * 32) is None
    path.unlink()
    make_tokens(path)
    assert known.find(mine["reader"]) is None
    assert known.find(tokens_in(path)["operator"]) is not None
    last = tokens_in(path)["operator"]
    path.write_text("damaged")
    assert known.find(last) is None


def test_a_stream_ends_when_its_token_is_revoked(tmp_path):
    path = tmp_path / "tokens.json"
    make_tokens(path)
    run = WatchedRun(people.recipe(), federation="demo")
    with serve_live(run, tokens=path) as address:
        port = int(address.rpartition(":")[2])
        where = "/api/federations/" + run.name + "/events"
        with events(port, where, tokens_in(path)["operator"]) as heard:
            assert next(heard)[0] == "summary"
            path.unlink()
            make_tokens(path)
            began = time.monotonic()
            for _ in heard:  # it ends by itself
                pass
            assert time.monotonic() - began < 10


# --- a server of pages ------------------------------------------------------------------------------------------------


def test_with_tokens_nobody_operates_a_server_of_pages_without_one(tmp_path):
    """A bare TCP forwarder (ssh -R) looks like this machine: it needs a token as well."""
    make_tokens(path := tmp_path / "tokens.json")
    tokens, found = tokens_in(path), hosted(tmp_path, THREE, shared_link=True)
    with server(found, gate=Gate(TokenFile(path))) as port:
        for token in (None, "x" * 32, tokens["reader"], tokens["member"]):
            status, told = ask(port, "/api/federations/demo", token)
            assert (status, told["live"], told["may_free"], told["link"]) == (200, None, False, None)
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            assert operate(port, "DELETE", "/api/federations/demo/link", headers) == 403
        told = ask(port, "/api/federations/demo", tokens["operator"])[1]
        assert told["may_free"] and told["live"] is not None and found.link.token in told["link"]
        assert (
            operate(port, "DELETE", "/api/federations/demo/link", {"Authorization": f"Bearer {tokens['operator']}"})
            == 204
        )


def test_sordino_serve_takes_the_operators_token_from_its_file(tmp_path, monkeypatch):
    made: list[Site] = []

    def serve_site(site: Site, place: Any, ready: Any) -> None:
        made.append(site)
        ready(8000)
        for found in site.federations.values():
            found.stop()

    monkeypatch.setattr("sordino.web.server.serve", serve_site)
    path = tmp_path / "tokens.json"
    arguments = ["serve", "webfed-digits", "--folder", str(tmp_path / "served"), "--live-tokens", str(path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    token = tokens_in(path)["operator"]
    assert "http://localhost:8000/live" in done.stderr and str(path) in done.stderr
    assert token not in done.stderr + done.stdout, "what is no terminal may be a log"
    assert made[0].gate.tokens is not None and made[0].gate.tokens.find(token) == Rights(Role.OPERATOR)
    path.write_text(json.dumps({"tokens": [{"role": "reader", "token": token}]}))
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1 and "no operator's token" in done.stderr
