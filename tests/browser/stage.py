"""What the browser tests stand on: a browser, the built page, a server in a process of its own, scenarios in Node."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
PAGE = ROOT / "src/sordino/web/page"
HERE = Path(__file__).parent
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120.0  #: seconds for a server to start, on a machine that is busy with other tests
_READY = re.compile(r"https?://[^\s/]+:\d+")


@dataclass(frozen=True)
class Browser:
    """A browser that is installed here."""

    kind: str
    executable: str


def missing() -> str:
    """What the browser tests lack here, in a sentence that names the remedy; empty where nothing is lacking."""
    if shutil.which("node") is None:
        return "browser tests need Node 20 or newer: install nodejs"
    if not all((WEB / "node_modules" / name).is_dir() for name in ("playwright-core", "puppeteer-core")):
        return "browser tests need the page's packages: make page"
    if not (PAGE / "index.html").is_file():
        return "browser tests need the built page: make page"
    if not browsers():
        return "browser tests need Chromium: install it, or name one in SORDINO_CHROMIUM"
    return ""


def browsers() -> list[Browser]:
    """The browsers that were found: a Chromium, and the Firefox that SORDINO_FIREFOX names."""
    found = []
    chromium = os.environ.get("SORDINO_CHROMIUM") or next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if chromium:
        found.append(Browser("chromium", chromium))
    firefox = os.environ.get("SORDINO_FIREFOX")
    if firefox:
        found.append(Browser("firefox", firefox))
    return found


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    url: str
    output: Path

    def said(self) -> str:
        """What it has printed."""
        return self.output.read_text()


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Server]:
    """`sordino serve` on a free port; it is stopped at the end."""
    output = folder / "server.txt"
    command = [
        sys.executable, "-m", "sordino", "serve", "--pace", "0", *arguments, "--port", "0", "--folder",
        str(folder / "served"),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    with output.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment)
    try:
        yield Server(_address(process, output), output)
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], output: Path) -> str:
    """Where the server listens, as soon as it answers there."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = _READY.search(output.read_text())
        if found:
            try:
                with urlopen(f"{found[0]}/api/server", timeout=5):
                    return found[0]
            except (URLError, OSError):
                pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"the server did not start:\n{output.read_text()}")


def play(scenario: str, browser: Browser, server: Server, seconds: float = 270, **wanted: Any) -> dict[str, Any]:
    """Carry out a scenario; what it told, by its names. SORDINO_PICTURES names a folder for its screenshots."""
    asked = {"server": server.url, "browser": browser.kind, "executable": browser.executable, **wanted}
    if os.environ.get("SORDINO_PICTURES"):
        asked["pictures"] = str(Path(os.environ["SORDINO_PICTURES"]).resolve())
    command = ["node", str(HERE / f"{scenario}.mjs"), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        parts = {"error": done.stderr, "told": done.stdout, "server": server.said()}
        raise AssertionError("\n".join(f"--- {name}\n{text[-3000:]}" for name, text in parts.items()))
    return {line.pop("what"): line for line in map(json.loads, done.stdout.splitlines())}


__all__ = ["Browser", "Server", "browsers", "missing", "play", "served"]
