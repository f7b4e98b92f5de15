"""docs/serve.md is followed from its beginning: a server, and two native participants in the place of two pages."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sordino.client.client import Client
from tests.web.test_join import said
from tests.web.visitors import get

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "serve.md"
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


@pytest.fixture
def start(tmp_path):
    running = []

    def begin(*words):
        log = (tmp_path / f"{len(running)}.log").open("w")
        process = subprocess.Popen([sys.executable, "-um", "sordino", *words], cwd=tmp_path, stdout=log, stderr=log)
        process.log = log
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()
        process.log.close()


def commands(block):
    """What is typed, with what is shown after it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield shlex.split(command), shown.splitlines()


def test_the_page_leads_from_a_clone_to_two_participants(tmp_path, start):
    serving, joining = CONSOLE.findall(PAGE.read_text())
    ((make, shown),) = commands(serving)
    assert make == ["make", "serve"]
    (recipe,) = re.findall(r"^serve:.*\n\t\$\(BIN\)/sordino (.*)\n", (ROOT / "Makefile").read_text(), re.MULTILINE)
    server = start(*recipe.split(), "--port", "0", "--gather", "3", "--pace", "0")  # quicker than on the page
    link = said(server, r"http://localhost:(\d+)/#\S+")
    printed = Path(server.log.name).read_text().replace(link[1], "8000")
    for line in shown:
        assert line.removesuffix("...") in printed
    people = []
    for words, _ in commands(joining):
        assert words[0] == ".venv/bin/sordino"
        people.append(start(*[link[0] if word == "LINK" else word for word in words[1:]]))
    for person in people:
        said(person, "proven-digits-pages is over: all 12 rounds are done")
        assert person.wait(30) == 0
    told = get(int(link[1]), "/api/federations/proven-digits-pages")
    assert [entry["reported"] for entry in told["history"]] == [2] * 12
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    for folder in ("one", "two"):
        with Client.open(tmp_path / folder) as client:
            assert client.standing.releases == 12
    assert (tmp_path / "served" / "proven-digits-pages" / "run" / "report.html").is_file()


def test_the_page_is_short():
    assert len(PAGE.read_text().split()) <= 1600
