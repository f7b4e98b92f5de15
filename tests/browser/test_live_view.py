"""The live view of a socket federation in a browser, with an operator's token and with a reader's."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from sordino.web.access import make_tokens
from sordino.wire.requests import Request, Response
from sordino.wire.signing import SigningKey
from tests.browser.stage import Browser, Server, play
from tests.client import people
from tests.survival.watching import NAMES, SECRET, Held, declining, running, tokens_in

ROUNDS = 8


def silent(connection: socket.socket, request: Request, response: Response) -> None:
    """No answer until the round is over."""
    time.sleep(2.5)


def test_each_role_sees_its_view_and_nobody_can_change_anything(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(SigningKey, "new", classmethod(lambda _: people.KEY))
    tokens, seen = tmp_path / "tokens.json", tmp_path / "seen"
    make_tokens(tokens, NAMES)
    behaviours = {1: {3: silent}, 2: dict.fromkeys(range(5, ROUNDS + 1), declining)}
    held = Held(6)
    with running(behaviours, held, tokens, **{"rounds.count": ROUNDS, "rounds.deadline": 2.0}) as (_, port):

        def let_go() -> None:
            while not seen.exists() and not held.go_on.wait(0.1):
                pass
            held.go_on.set()

        threading.Thread(target=let_go, daemon=True).start()
        (output := tmp_path / "said.txt").touch()
        server = Server(f"http://localhost:{port}", output)
        told = play("live_view", browser, server, tokens=tokens_in(tokens), seen=str(seen))

    with subtests.test("the operator sees members, reasons and what is spent"):
        text = told["operator"]["text"]
        assert told["operator"]["members"] == list(NAMES)
        assert SECRET in text and "no meaningful protection" in text

    with subtests.test("a member sees names, and the reasons that are its own"):
        assert told["member"]["members"] == ["clinic-a (you)", "clinic-b", "clinic-c"]
        assert SECRET not in told["member"]["text"]

    with subtests.test("a reader sees rounds and the statement, and no names"):
        assert told["reader"]["members"] == [] and told["reader"]["rounds"] == 6
        assert not [name for name in (*NAMES, SECRET) if name in told["reader"]["text"]]

    with subtests.test("there is nothing to press that would change something"):
        assert [told[role]["offers"] for role in ("operator", "member", "reader")] == [0, 0, 0]

    with subtests.test("whoever has no token is asked for one, and tokens stand in no address"):
        assert told["stranger"] == {"asked": True, "wrong": True, "rounds": 6}
        assert told["addresses"]["leaked"] == []

    with subtests.test("what happens is told as it happens, up to the end"):
        assert told["end"]["state"] == "finished" and told["end"]["rounds"] == ROUNDS

    with subtests.test("nothing breaks and nothing is wider than the screen"):
        assert told["faults"]["found"] == []
        assert told["faults"]["problems"] == []
