"""What `sordino serve` serves by itself: two pages train it by one link, the operator starts it and begins again."""

from __future__ import annotations

import re
from pathlib import Path

from tests.browser.stage import Browser, play, served

NAME, ROUNDS = "proven-digits-pages", 12


def test_two_pages_with_the_link_train_the_default_federation(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--gather", "600") as server:
        (token,) = set(re.findall(r"token=([^&\s]+)", server.said()))
        told = play("shared_link", browser, server, federation=NAME, token=token, seconds=300)
    assert told["invite"]["disabled"]
    assert f"token={token}&" in told["invite"]["link"]
    alone = told["alone"]
    assert (alone["state"], alone["starts_in"], alone["round"], alone["disabled"]) == ("waiting", None, 0, True)
    assert told["faults"]["found"] == []
    assert told["end"]["reported"] == [2] * ROUNDS
    assert told["end"]["accuracy"] > 0.75  # on examples set aside, simulations of two pages have 85.8 to 90.8 %
    assert told["ledgers"]["rounds"] == [list(range(1, ROUNDS + 1))] * 2
    assert told["states"]["found"] == ["ended", "ended"]
    assert (told["again"]["state"], told["again"]["round"], told["again"]["link"]) == ("waiting", 0, True)
    assert told["problems"]["found"] == []
