"""From a link to a trained model that reads an own drawing: a fresh profile on a phone, and the default federation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.stage import Browser, Server, play, served

SCREEN = 844  #: height of a phone's screen, in its own pixels


def link_of(server: Server) -> str:
    """The link that the server has printed."""
    found = re.search(r"https?://\S+#\S+", server.said())
    assert found is not None
    return found[0]


def test_a_visitor_with_a_phone_gets_from_the_link_to_a_model_that_reads_a_drawing(
    browser: Browser, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with served(tmp_path, "--gather", "4", "--pace", "0.6") as server:
        told = play("from_link", browser, server, federation="proven-digits-pages", link=link_of(server))

    with subtests.test("consent stands on the second screen"):
        assert told["lobby"]["consent"] < 2 * SCREEN

    with subtests.test("whoever starts without consent is led to the box"):
        assert told["lobby"]["refused"] == "agree"

    with subtests.test(
        "before joining, the page shows what the server could see of a drawing, at the slider's position"
    ):
        leak = told["leak"]
        assert [leak[name]["pictures"] for name in ("shown", "drawn", "least", "back")] == [3, 3, 2, 3]
        assert [leak[name]["gradients"] for name in ("shown", "drawn", "least", "back")] == ["11", "11", "0", "11"]
        assert [leak[name]["bare"] for name in ("shown", "drawn", "least", "back")] == ["true"] * 4

    with subtests.test("nothing leaves the page for that"):
        assert (leak["requests"], leak["frames"]) == ([], 0)

    with subtests.test("one alone waits in the lobby, with a code to invite others"):
        assert (told["lobby"]["state"], told["lobby"]["round"]) == ("waiting", 0)
        assert told["lobby"]["qr"] >= 1

    with subtests.test("the model answers while it learns"):
        assert told["early"]["state"] == "training"

    with subtests.test("the trained model reads the drawing, for the visitor and for a latecomer"):
        assert told["end"]["accuracy"] > 0.7
        assert told["end"]["verdict"].endswith(": 1")
        assert told["late"]["verdict"] == told["end"]["verdict"]

    with subtests.test("whoever took part can take the model and the report"):
        assert told["end"]["files"] == 2

    with subtests.test("the record has every report, also after a reload"):
        assert told["record"]["rows"] >= told["end"]["rounds"]

    with subtests.test("nothing breaks and nothing is wider than the phone"):
        assert told["faults"]["found"] == []
        assert told["faults"]["problems"] == []
