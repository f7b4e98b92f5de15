"""Everything that left a page, held against what docs/web-protocol.md declares. Anything else fails."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from sordino.wire.messages import DIGEST_BYTES, Answer, Kind
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Envelope

_HEX = {"id": 32, "proof": 64, "task": 64}
_BARE = {"ping", "pause", "resume", "leave"}
_PATHS = re.compile(
    r"/(|live|build\.json|assets/[\w.-]+|api/server|api/federations(/[\w-]+(/(task|sample|events|statement\.json|"
    r"model\.bin))?)?)"
)
_QUERIES = re.compile(r"sample\?client=\d+|events\?after=\d+", re.ASCII)


def check_hello(message: Mapping[str, Any]) -> None:
    """A hello has random names and what was agreed to, and nothing about data."""
    assert set(message) == {"type", "protocol", "id", "proof", "kind", "token", "task", "last"}
    for field, digits in _HEX.items():
        assert re.fullmatch(f"[0-9a-f]{{{digits}}}", message[field]), field
    assert (message["protocol"], message["kind"]) == (2, "page")
    last = message["last"]
    assert last is None or (set(last) == {"round", "digest"} and re.fullmatch("[0-9a-f]{32}", last["digest"]))


def check_text(text: str) -> None:
    """A control message of the protocol, with its own fields and no others."""
    message = json.loads(text)
    if message["type"] == "hello":
        check_hello(message)
    else:
        assert message["type"] in _BARE, message
        assert set(message) == {"type"}, message


def check_binary(frame: bytes, plans: Mapping[bytes, int], body_bytes: int | Sequence[int]) -> Answer | None:
    """A response whose answer is to a plan that came, with a body of exactly the mechanism's size (in each round)."""
    response = Response.decode(frame)
    assert response.encode() == frame, "there is something behind the response's parts"
    assert response.receipt == b""
    assert not re.search(r"\d", response.reason), f"figures leave in a reason: {response.reason!r}"
    if not response.payload:
        assert not response.fine
        return None
    answer = Answer.decode(response.payload)
    assert plans[answer.digest] == answer.round
    size = body_bytes if isinstance(body_bytes, int) else body_bytes[answer.round - 1]
    assert len(answer.body) == (size if answer.kind == Kind.REPORT else 0)
    assert response.fine == (answer.kind == Kind.REPORT)
    return answer


def plans_in(frames: Sequence[Mapping[str, str]]) -> dict[bytes, int]:
    """The rounds of the plans that came, by their digests."""
    found = {}
    for frame in frames:
        if "binary" in frame:
            request = Request.decode(base64.b64decode(frame["binary"]))
            if request.what == What.STEP:
                plan = Envelope.decode(request.payload).message
                header = json.loads(plan[8 : 8 + int.from_bytes(plan[4:8], "little")])
                found[hashlib.sha256(plan).digest()[:DIGEST_BYTES]] = int(header["round"])
    return found


def check_frames(
    sent: Sequence[Mapping[str, str]], received: Sequence[Mapping[str, str]], body_bytes: int | Sequence[int]
) -> list[Answer]:
    """All frames that a page sent; the reports among them."""
    plans = plans_in(received)
    answers = []
    for frame in sent:
        if "text" in frame:
            check_text(frame["text"])
        else:
            answers.append(check_binary(base64.b64decode(frame["binary"]), plans, body_bytes))
    reports = [answer for answer in answers if answer is not None and answer.kind == Kind.REPORT]
    drawn: dict[int, set[bytes]] = {}
    for report in reports:
        drawn.setdefault(report.round, set()).add(report.body)
    assert all(len(bodies) == 1 for bodies in drawn.values()), "a round was drawn for twice"
    return reports


def check_requests(requests: Sequence[Mapping[str, Any]], server: str) -> None:
    """Nothing but reading, from this server alone; no query but the sample's slot, and the last round that is known."""
    for request in requests:
        place = urlsplit(request["url"])
        if place.scheme in ("blob", "data"):
            continue
        assert f"{place.scheme}://{place.netloc}".replace("ws://", "http://") == server, request
        assert request["method"] == "GET"
        assert not request["body"], request
        assert _PATHS.fullmatch(place.path), request
        assert not place.query or _QUERIES.fullmatch(f"{place.path.rsplit('/', 1)[1]}?{place.query}"), request


__all__ = ["check_binary", "check_frames", "check_requests", "check_text", "plans_in"]
