"""The check of what leaves a page catches what must not leave."""

from __future__ import annotations

import base64
import json

import pytest

from sordino.wire.messages import Plan, answer_to
from sordino.wire.requests import Request, Response, What
from tests.browser.leaving import check_frames, check_requests
from tests.client.people import signed

PLAN = Plan("digits", 3)
RECEIVED = [{"binary": base64.b64encode(Request(What.STEP, "report", signed(PLAN)).encode()).decode()}]
HELLO = {
    "type": "hello", "protocol": 2, "id": "0" * 32, "proof": "1" * 64, "kind": "page", "token": "", "task": "2" * 64,
    "last": None,
}  # fmt: skip
SERVER = "http://127.0.0.1:8000"


def binary(frame: bytes) -> list[dict[str, str]]:
    return [{"binary": base64.b64encode(frame).decode()}]


def response(body: bytes | None, reason: str = "", receipt: bytes = b"") -> bytes:
    return Response(body is not None, answer_to(PLAN, body), reason, receipt).encode()


def test_a_report_and_a_refusal_may_leave() -> None:
    sent = [*binary(response(b"1234")), *binary(response(None, "the budget is spent")), {"text": json.dumps(HELLO)}]
    assert [report.round for report in check_frames(sent, RECEIVED, body_bytes=4)] == [3]


@pytest.mark.parametrize(
    "sent",
    [
        binary(response(b"12345")),
        binary(response(b"1234") + b"5"),
        binary(response(b"1234", receipt=b"5")),
        binary(response(None, "only 0.3 is left")),
        binary(Response(True, answer_to(Plan("digits", 4), b"1234")).encode()),
        [*binary(response(b"1234")), *binary(response(b"5678"))],
        [{"text": '{"type": "loss"}'}],
        [{"text": '{"type": "ping", "records": 280}'}],
        [{"text": json.dumps({**HELLO, "records": 280})}],
        [{"text": json.dumps({**HELLO, "id": "280"})}],
    ],
    ids=["longer-body", "trailing-byte", "receipt", "figures", "other-plan", "two-draws", "unknown-type", "field",
         "hello-field", "hello-id"],
)  # fmt: skip
def test_anything_else_is_found(sent: list[dict[str, str]]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_frames(sent, RECEIVED, body_bytes=4)


@pytest.mark.parametrize(
    "request_",
    [
        {"method": "POST", "url": f"{SERVER}/api/federations", "body": None},
        {"method": "GET", "url": f"{SERVER}/api/federations/x/sample?label=3", "body": None},
        {"method": "GET", "url": f"{SERVER}/api/federations/x/events?client=3", "body": None},
        {"method": "GET", "url": f"{SERVER}/assets/a.js?x=1", "body": None},
        {"method": "GET", "url": "http://127.0.0.1:9/", "body": None},
        {"method": "GET", "url": f"{SERVER}/pixels/0a0b", "body": None},
    ],
    ids=["post", "label", "other", "query", "elsewhere", "path"],
)
def test_a_request_that_carries_something_is_found(request_: dict[str, str | None]) -> None:
    for fine in ("sample?client=2", "events?after=17", "events"):
        check_requests([{"method": "GET", "url": f"{SERVER}/api/federations/x/{fine}", "body": None}], SERVER)
    with pytest.raises(AssertionError):
        check_requests([request_], SERVER)
