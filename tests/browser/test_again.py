"""A federation that begins anew tells the pages of the one before, and nobody is part of it by themselves."""

from __future__ import annotations

import re
from pathlib import Path

from tests.browser.stage import Browser, play, served

ROUNDS = 2


def test_pages_of_a_federation_that_begins_anew_offer_to_join_it(browser: Browser, tmp_path: Path) -> None:
    options = ("--invite", "--gather", "0", "--set", "rounds.quorum=1", "--set", f"rounds.count={ROUNDS}")
    with served(tmp_path, "webfed-digits", *options) as server:
        tokens = re.findall(r"token=([^&\s]+)", server.said())
        told = play("again", browser, server, federation="webfed-digits", tokens=tokens)
    again = told["again"]
    assert again["before"] != again["after"]
    assert again["shown"] == ROUNDS
    assert again["problems"] == []
    assert told["record"]["federations"] == [again["before"]] * ROUNDS
