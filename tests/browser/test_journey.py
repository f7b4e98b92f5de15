"""One journey through the page, in Chromium and, by `make test-firefox`, in Firefox as it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.stage import Browser, play, served

ROUNDS, PLACES = 8, 5


def test_a_journey_through_the_page(any_browser: Browser, tmp_path: Path, subtests: pytest.Subtests) -> None:
    settings = ("--set", "rounds.quorum=3", "--set", f"rounds.count={ROUNDS}")
    with served(tmp_path, "webfed-digits", "--gather", "2", "--patience", "20", *settings) as server:
        told = play("journey", any_browser, server, seconds=400, federation="webfed-digits", rounds=ROUNDS)
    lobby, training, end = told["lobby"], told["training"], told["end"]

    with subtests.test("a lobby shows the places, a link and its QR code, and no empty charts"):
        assert (lobby["places"], lobby["mine"], lobby["free"]) == (PLACES, 1, PLACES - 1)
        assert lobby["link"] == f"{server.url}/#/webfed-digits"
        assert lobby["code"] > 1000
        assert lobby["charts"] == 0

    with subtests.test("a model that has not learnt yet prefers no answer"):
        assert (lobby["answers"], lobby["best"]) == (10, 0)

    with subtests.test("a drawing is answered anew by each model, and the lobby is gone"):
        assert training["best"] == end["best"] == 1
        assert training["answer"] in "0123456789" and end["answer"] in "0123456789"
        assert not training["invited"]

    with subtests.test("a report is seen without noise and with it, and what all changed together"):
        clear, sent, together = training["pictures"]
        assert [len(pictures) for pictures in (clear, sent, together)] == [10, 10, 10]
        assert min(sent) > 20 and min(together) > 20, "colours of a picture of 64 points"

    with subtests.test("a page that reloads goes on with its record"):
        assert told["reloaded"]["intact"]
        assert end["rounds"] == [list(range(1, ROUNDS + 1))] * 3

    with subtests.test("on a phone, the question before leaving stands at the lower edge"):
        assert abs(told["left"]["dialog"]) < 1

    with subtests.test("no page broke, no serious fault of accessibility, nothing wider than a phone"):
        assert told["problems"]["found"] == []
        assert [*lobby["faults"], *training["faults"], *end["faults"]] == []
