"""Real pages in a real browser: five of them train together, one goes away, one reloads, and nothing else leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.leaving import check_frames, check_requests
from tests.browser.stage import Browser, play, served

ROUNDS = 12
VALUES = 650  #: of the logistic model on digits: 64 x 10 weights and 10 biases
#: Five native clients reach 90 %; 80 % leaves room for noise, a page that left and one that reloaded.
ACCURACY = 0.80


def test_five_pages_train_together(browser: Browser, tmp_path: Path, subtests: pytest.Subtests) -> None:
    options = ("--gather", "150", "--patience", "20", "--set", f"rounds.count={ROUNDS}")  # one is held up
    with served(tmp_path, "webfed-digits", *options) as server:
        told = play("five_pages", browser, server, federation="webfed-digits")
    end, ledgers = told["end"], told["ledgers"]["rounds"]

    with subtests.test("they reach the stated accuracy"):
        assert end["round"] == ROUNDS
        assert end["accuracy"] >= ACCURACY

    with subtests.test("the federation goes on without the page that was closed in the middle of a round"):
        closed, reported = told["closed"]["round"], end["reported"]
        assert closed == 3
        assert reported == [5] * (closed - 1) + [4] * (ROUNDS - closed + 1)

    with subtests.test("a page that reloads in the middle of a round goes on with its record, and misses no round"):
        assert told["reloaded"]["before"] in (closed - 1, closed), "with or without its report of the open round"
        assert told["reloaded"]["after"] == closed
        assert told["reloaded"]["intact"]
        assert ledgers == [list(range(1, ROUNDS + 1))] * 4

    with subtests.test("no page broke"):
        assert told["problems"]["found"] == []
        assert set(told["state"]["states"]) == {"ended"}

    with subtests.test("examples can be drawn on the page"):
        assert told["drawn"]["text"].startswith("3 examples can be used: 1 of “0”, 1 of “1” and 1 of “2”.")

    with subtests.test("the model answers to an own drawing"):
        assert told["tried"]["answers"] == 10
        assert told["tried"]["verdict"].startswith("The model says: ")

    with subtests.test("the keyboard is enough to choose a protection and to join"):
        keyboard = told["keyboard"]
        assert keyboard["first"] == keyboard["back"] == "4"
        assert keyboard["stronger"] == "2"

    with subtests.test("that a class of protection is public is said before it is chosen"):
        assert keyboard["told"]

    with subtests.test("a browser shows its whole record after the end, and hands it out with its head"):
        assert told["record"]["rows"] == list(range(1, ROUNDS + 1))
        saved = told["record"]["saved"]
        assert saved["sound"]
        assert saved["head"] == saved["last"]
        assert saved["lines"] == ROUNDS

    with subtests.test("the link to the content leads there, and changes nothing that is shown"):
        assert (told["skipped"]["to"], told["skipped"]["at"]) == ("main", "#/record")

    with subtests.test("whoever comes late tries the model, and can take it along"):
        assert told["late"]["answers"] > 1
        assert told["late"]["downloads"] == 1

    with subtests.test("the first sight shows public examples and all places"):
        assert (told["first sight"]["pictures"], told["first sight"]["dots"]) == (10, 5)

    with subtests.test("on a phone the start is within one and a half screens"):
        assert told["phone"]["start"] <= 1.5 * 844

    with subtests.test("no serious fault of accessibility, light or dark, and nothing wider than a phone"):
        assert told["faults"]["found"] == []

    with subtests.test("only declared messages leave a page"):
        for frames in told["sent"]["frames"]:
            reports = check_frames(frames["sent"], frames["received"], body_bytes=4 * VALUES)
            assert len({report.round for report in reports}) >= 2
        check_requests(told["sent"]["requests"], server.url)
