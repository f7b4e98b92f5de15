"""The built page as it is served: nothing inline, nothing from elsewhere, and the hash that it shows."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from tests.browser.stage import PAGE

pytestmark = pytest.mark.skipif(not (PAGE / "index.html").is_file(), reason="the page is not built: make page")


@pytest.mark.parametrize("name", ["index.html", "live.html"])
def test_nothing_is_inline_and_nothing_comes_from_elsewhere(name: str) -> None:
    text = (PAGE / name).read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=", text)
    assert all(content == "" for content in re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL))
    assert all(place.startswith("./assets/") or place == "/live" or place in ("/", "#main", "#/record")
               for place in re.findall(r'(?:src|href)="([^"]*)"', text))  # fmt: skip
    assert re.search(r'<html lang="en"', text)


def test_styles_load_no_fonts_or_pictures() -> None:
    for path in PAGE.glob("assets/*.css"):
        assert not re.search(r"url\(|@import", path.read_text()), path.name


def test_the_hash_that_is_shown_is_that_of_the_files() -> None:
    build = json.loads((PAGE / "build.json").read_text())
    names = sorted(p.relative_to(PAGE).as_posix() for p in PAGE.rglob("*") if p.is_file() and p.name != "build.json")
    found = {name: hashlib.sha256((PAGE / name).read_bytes()).hexdigest() for name in names}
    assert build["files"] == found
    lines = "".join(f"{found[name]}  {name}\n" for name in names)
    assert build["hash"] == hashlib.sha256(lines.encode()).hexdigest()
