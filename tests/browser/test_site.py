"""The documentation in a real browser, from a server and from a disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.browser.stage import Browser, Server, play
from tests.site import built

SCREEN = 800  #: pixels that are seen without scrolling


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def at(place: str, folder: Path) -> Iterator[str]:
    """The address of the site."""
    if place == "disk":
        yield folder.as_uri()
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("place", ["server", "disk"])
def test_the_site_can_be_shown(
    place: str,
    browser: Browser,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    subtests: pytest.Subtests,
) -> None:
    nothing = tmp_path / "server.txt"
    nothing.touch()
    with at(place, built(tmp_path_factory)) as site:
        told = play("site", browser, Server(site, nothing), site=site, looks=place == "server")

    with subtests.test("sentence, table, commands and pictures are seen without scrolling"):
        assert told["fold"]["parts"] >= 7
        assert told["fold"]["lowest"] <= SCREEN

    with subtests.test("search finds the page that is named so"):
        assert any("shuffler.html" in link for link in told["search"]["links"])

    with subtests.test("no serious fault of accessibility, light or dark, and nothing wider than a phone"):
        assert told["faults"]["found"] == []

    with subtests.test("nothing is loaded from elsewhere"):
        assert [url for url in told["loaded"]["urls"] if not url.startswith((site, "data:", "blob:"))] == []
        assert told["loaded"]["problems"] == []
