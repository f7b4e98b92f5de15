"""What `sordino serve` serves by itself: two pages with the one link train it, and one alone does not begin."""

from __future__ import annotations

import re
from pathlib import Path

from tests.browser.stage import Browser, play, served

NAME, ROUNDS = "proven-digits-pages", 12


def test_two_pages_with_the_link_train_the_default_federation(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--gather", "1") as server:
        (token,) = set(re.findall(r"token=([^&\s]+)", server.said()))
        told = play("shared_link", browser, server, federation=NAME, token=token, seconds=300)
    assert told["alone"]["state"] == ["waiting", "waiting"]
    assert (told["alone"]["starts_in"], told["alone"]["round"]) == (None, 0)
    assert told["end"]["reported"] == [2] * ROUNDS
    assert told["end"]["accuracy"] > 0.75  # on examples set aside, simulations of two pages have 85.8 to 90.8 %
    assert told["ledgers"]["rounds"] == [list(range(1, ROUNDS + 1))] * 2
    assert told["states"]["found"] == ["ended", "ended"]
    assert told["problems"]["found"] == []
