"""docs/client.md is followed from its beginning to its end, in an empty folder; what it shows is what comes out."""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.client.settings import Settings
from tests.client.test_commands import CliRunner, app

PAGE = Path(__file__).parent.parent.parent / "docs" / "client.md"
BLOCKS = re.compile(r"```(console|toml)\n(.*?)```", re.DOTALL)


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    folder = tempfile.mkdtemp(prefix="sdo-")
    monkeypatch.chdir(folder)
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.terminate()
        process.wait(20)
    shutil.rmtree(folder)


def follow(block: str, background: list[subprocess.Popen[bytes]]) -> None:
    """Give the commands of a console block, and find each line that is shown, up to its dots, in what they print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        program, *words = shlex.split(command)
        assert program == "sordino"
        if words[-1] == "&":
            background.append(subprocess.Popen([sys.executable, "-m", "sordino", *words[:-1]]))
            continue
        done = CliRunner().invoke(app, words)
        assert done.exit_code == int(shown.startswith("Refused: ")), (command, done.output)
        for line in shown.splitlines():
            begin, dots, _ = line.partition("...")
            found = done.output.splitlines()
            assert any(one.startswith(begin) if dots else one == line for one in found), (line, done.output)


def test_the_page_can_be_followed_and_shows_what_comes_out(background):
    for kind, block in BLOCKS.findall(PAGE.read_text()):
        if kind == "console":
            follow(block, background)
        else:
            Settings.of({"data": {"source": "digits"}, "budget": {"limit": 1.0}, **tomllib.loads(block)})
    assert len(background) == 3
