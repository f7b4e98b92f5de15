"""Five real pages learn a linear head on scattering, each alone and proven; nothing but noisy sums leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.leaving import check_frames, check_requests
from tests.browser.stage import Browser, play, served

ROUNDS = 6
MOMENTS, GRADIENT = 54, 1450  #: values of a report: 9 maps of 16 cells, 10 classes
#: Simulations reach 95.6 to 97.0 % (seeds 1 to 5); here one page has three drawings in the place of its sample.
ACCURACY = 0.90


def test_five_pages_sum_over_public_features(browser: Browser, tmp_path: Path, subtests: pytest.Subtests) -> None:
    settings = (
        "split.clients=5", "method.announced_size=280", "clients.epsilon=8.0", "rounds.quorum=5",
        f"rounds.count={ROUNDS}",
    )  # fmt: skip
    options = [part for setting in settings for part in ("--set", setting)]
    with served(tmp_path, "proven-digits", "--invite", "--gather", "150", "--patience", "20", *options) as server:
        tokens = re.findall(r"token=([^&\s]+)", server.said())
        assert len(tokens) == 5
        told = play("five_sums", browser, server, federation="proven-digits", tokens=tokens, drawn=True)

    with subtests.test("they reach the stated accuracy, and everybody is in every sum"):
        assert told["end"]["round"] == ROUNDS
        assert told["end"]["reported"] == [5] * ROUNDS
        assert told["end"]["accuracy"] >= ACCURACY

    with subtests.test("every page has a line for each round, also the one that reloaded"):
        assert told["ledgers"]["rounds"] == [list(range(1, ROUNDS + 1))] * 5
        assert told["reloaded"]["intact"]

    with subtests.test("no page broke, and the model answers to an own drawing"):
        assert told["problems"]["found"] == []
        assert set(told["states"]["found"]) == {"ended"}
        assert told["tried"]["verdict"].startswith("The model says: ")

    with subtests.test("the page says what leaves, and what it computes"):
        assert "added up over your examples, with random noise" in told["leaves"]["text"]
        assert "Computing features of your examples" in told["said"]["lines"]

    with subtests.test("only noisy sums leave"):
        for frames in told["sent"]["frames"]:
            sizes = [MOMENTS * 5, *[GRADIENT * 4] * (ROUNDS - 1)]
            reports = check_frames(frames["sent"], frames["received"], body_bytes=sizes)
            assert {report.round for report in reports} == set(range(1, ROUNDS + 1))
        check_requests(told["sent"]["requests"], server.url)


@pytest.mark.nightly
def test_five_pages_reach_webfeds_accuracy_on_mnist(browser: Browser, tmp_path: Path) -> None:
    """The recipe as it is shipped: 90.4 and 92.7 % in two runs; WebFed has 87 % at an epsilon that nothing proves."""
    options = ("--invite", "--gather", "150", "--patience", "60", "--set", "rounds.quorum=5")
    with served(tmp_path, "proven-mnist-pages", *options) as server:
        tokens = re.findall(r"token=([^&\s]+)", server.said())
        wanted = {"federation": "proven-mnist-pages", "tokens": tokens, "patience": 300}
        told = play("five_sums", browser, server, seconds=600, **wanted)
    assert told["end"]["reported"] == [5] * 12
    assert told["end"]["accuracy"] >= 0.87
    assert told["problems"]["found"] == []
