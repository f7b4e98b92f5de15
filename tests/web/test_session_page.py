"""The session in bytes of docs/web-protocol.md is what the code makes today, in the form and order of a real one."""

import asyncio

from sordino.wire.messages import Answer
from sordino.wire.requests import Request, Response
from sordino.wire.signing import Envelope
from tests.client.people import KEY
from tests.golden import web_session
from tests.web.visitors import hosted, server, visit


def test_the_page_has_the_session_that_the_code_makes():
    """Anew: python -m tests.golden.web_session."""
    page = web_session.PAGE.read_text()
    assert page.split(web_session.MARKS[0])[1].split(web_session.MARKS[1])[0] == web_session.markdown()


def test_the_plan_of_the_page_is_signed_and_its_report_answers_it():
    request, response = (
        b"".join(piece for piece, _ in frame.content)
        for frame in web_session.frames()
        if isinstance(frame.content, list)
    )
    asked = Request.decode(request)
    envelope = Envelope.decode(asked.payload)
    assert envelope.is_signed(asked.step, KEY.author.key)
    assert envelope.is_for(0)
    assert envelope.message == web_session.PLAN.encode()
    assert Answer.decode(Response.decode(response).payload).digest == web_session.PLAN.digest


def test_a_real_session_has_the_frames_of_the_page(tmp_path):
    found = hosted(tmp_path, {"rounds.count": 1})

    async def session(port):
        async with visit(port, found) as page:
            plan = await page.plan()
            before = page.heard.copy()
            await page.report(plan)
            await page.until("ended")
            return before, page.heard[len(before) :]

    with server(found) as port:
        before, after = asyncio.run(session(port))
    shown = [frame.content for frame in web_session.frames() if frame.sender == "server"]
    asked = next(at for at, content in enumerate(shown) if isinstance(content, list))
    assert without_status(before) == without_status(shown[:asked])
    assert without_status(after) == without_status(shown[asked + 1 :])
    statuses = [message for message in (*before, *after) if message["type"] == "status"]
    assert statuses
    assert all(form(message) == form(shown[asked + 1]) for message in statuses)


def without_status(messages):
    """The forms of all messages but those that come whenever something changes."""
    return [(message["type"], form(message)) for message in messages if message["type"] != "status"]


def form(message):
    """The names in a message, and in the objects in it."""
    return {name: form(value) for name, value in message.items()} if isinstance(message, dict) else None
