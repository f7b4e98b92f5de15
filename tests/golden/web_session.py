"""Writes the session that docs/web-protocol.md shows: one page, one round, a model of two parameters, every byte.

Binary frames come out of the code that sends them. Texts are composed here; tests/web/test_session_page.py compares
their form with those of a running server.

python -m tests.golden.web_session
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np

from sordino import mechanisms as m
from sordino.methods.upload import Upload
from sordino.web.limits import Limits
from sordino.web.page_task import PROTOCOL
from sordino.wire.messages import ANSWER_BYTES, Plan, answer_to
from sordino.wire.requests import Request, Response, What
from tests.client.people import KEY
from tests.golden.make_web import stream
from tests.web.visitors import hello

PAGE = Path(__file__).parents[2] / "docs" / "web-protocol.md"
MARKS = ("<!-- session -->\n", "<!-- end of session -->")
SECRET = bytes(range(32))
TERMS = bytes(range(32, 64))
TASK = b"{}"
PLAN = Plan("tiny-0badcafe", 1, {}, {"parameters": np.array([1.5, -2.0], np.float32)})
WIDTH = 16  #: bytes in a line

Piece = tuple[bytes, str]  #: some bytes of a frame, and what they are


class Frame(NamedTuple):
    """A text, or the pieces of a binary frame."""

    sender: Literal["participant", "server"]
    content: dict[str, Any] | list[Piece]


def frames() -> list[Frame]:
    body = report_body()
    agreed = SimpleNamespace(federation=PLAN.federation, task=SimpleNamespace(digest=hashlib.sha256(TASK).hexdigest()))
    status = {
        "state": "waiting", "round": 0, "rounds": 1, "participants": 0, "needed": 1, "places": 1, "starts_in": None,
        "accuracy": None, "deadline": None,
    }  # fmt: skip
    limits = Limits()
    welcome = {
        "type": "welcome", "protocol": PROTOCOL, "federation": PLAN.federation, "client": 0, "known": False,
        "rotations": [], "receipt": "",
        "limits": {
            "message": len(body) + ANSWER_BYTES + limits.spare, "idle": limits.idle, "pulse": limits.pulse,
            "absence": limits.absence,
        },
        "status": status,
    }  # fmt: skip
    return [
        Frame("participant", hello(agreed, SECRET)),
        Frame("server", welcome),
        Frame("server", request_pieces()),
        Frame("server", {"type": "status", **status, "state": "training", "participants": 1}),
        Frame("participant", response_pieces(body)),
        Frame("server", {"type": "received", "round": 1, "digest": PLAN.digest.hex()}),
        Frame("server", {"type": "ended", "why": "its one round is done"}),
    ]


def report_body() -> bytes:
    """What two-point, epsilon 1 in a box of radius 2, makes of the plan's own parameters: one byte with two bits."""
    upload = Upload(lambda _: m.TwoPoint(1.0, m.Box(0.0, 2.0)), None, 2, clients=1, what="model weights")
    return upload.send([0], PLAN.arrays["parameters"][None], lambda _: stream(), [1]).bodies[0]


def request_pieces() -> list[Piece]:
    plan = PLAN.encode()
    envelope = KEY.envelope("report", PLAN, TERMS, [0], plan)
    header = int.from_bytes(plan[4:8], "little")
    name = PLAN.federation
    return cut(
        Request(What.STEP, "report", envelope).encode(),
        (4, '"SQ", version 2, 3: STEP'), (10, 'the step: blob "report"'),
        (4, '"SC", version 2, 0: envelope'), (4, "round 1"), (16, "digest of the plan"), (32, "terms"),
        (64, "the coordinator's signature"), (4 + len(name), f'blob "{name}"'), (5, "blob: bit 0, for client 0"),
        (4, '"SP", version 2, 0: plan'), (4, f"the header has {header} bytes"), (header, plan[8 : 8 + header].decode()),
        (8, "parameters: 1.5, -2.0"),
    )  # fmt: skip


def response_pieces(body: bytes) -> list[Piece]:
    return cut(
        Response(True, answer_to(PLAN, body)).encode(),
        (4, '"SA", version 2, 1: fine'), (4, "no reason"), (4, "no receipt"), (4, '"SR", version 2, 1: report'),
        (4, "round 1"), (16, "digest of the plan"), (len(body), "the report: two bits"),
    )  # fmt: skip


def cut(frame: bytes, *sizes: tuple[int, str]) -> list[Piece]:
    """A frame in pieces of these sizes, to its last byte."""
    assert sum(size for size, _ in sizes) == len(frame)
    pieces, at = [], 0
    for size, what in sizes:
        pieces.append((frame[at : at + size], what))
        at += size
    return pieces


def markdown() -> str:
    """The session as the page shows it."""
    known = (
        f"secret       {SECRET.hex()}", f"coordinator  {KEY.author.first.hex()}", f"terms        {TERMS.hex()}",
        f"task         {TASK.decode()}",
    )  # fmt: skip
    return "\n".join(["```", *known, *(line for frame in frames() for line in ("", *lines(frame))), "```", ""])


def lines(frame: Frame) -> Iterator[str]:
    if isinstance(frame.content, dict):
        yield f"{frame.sender}, text"
        text = json.dumps(frame.content, separators=(",", ":"))
        yield from re.sub(r",(?=\"(id|proof|task|rotations|limits|status)\")", ",\n", text).splitlines()
    else:
        yield f"{frame.sender}, binary, {sum(len(piece) for piece, _ in frame.content)} bytes"
        for piece, what in frame.content:
            for at in range(0, len(piece), WIDTH):
                row = piece[at : at + WIDTH].hex(" ")
                yield f"{row:{3 * WIDTH - 1}}  {what}" if at == 0 else row


def main() -> None:
    before, rest = PAGE.read_text().split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + markdown() + MARKS[1] + rest.split(MARKS[1])[1])


if __name__ == "__main__":
    main()
