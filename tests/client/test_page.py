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

import sordino
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
            given = tomllib.loads(block)
            data = {"source": "digits", **given.pop("data", {})}
            Settings.of({"data": data, "budget": {"limit": 1.0}, **given})
    assert len(background) == 3


TABLES = """
name = "wards"
[data]
source = "public.csv"
test = "public.csv"
label = "diagnosis"
classes = ["benign", "malignant"]
features = ["radius", "texture"]
mean = [5, 0]
std = [5, 1]
[split]
kind = "iid"
clients = 1
[model]
name = "logistic"
[training]
optimizer = { name = "sgd", lr = 0.5 }
[method]
name = "silo-dp"
target = { epsilon = 3.0, delta = 1e-5 }
sampling_rate = 0.5
steps = 1
announced_size = 40
[rounds]
count = 2
"""


def test_a_coordinator_tests_tables_on_public_rows(background):
    """As in "With your own tables": an owner has a column more, and the coordinator no row of any owner."""
    Path("wards.toml").write_text(TABLES)
    rows = [(each % 10, each % 3, "malignant" if each % 10 > 5 else "benign") for each in range(40)]
    Path("own.csv").write_text(
        "texture,hospital,radius,diagnosis\n" + "".join(f"{b},Bern,{a},{label}\n" for a, b, label in rows)
    )
    Path("public.csv").write_text("radius,texture,diagnosis\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows[:20]))
    run = "sordino run wards.toml --out fed --federation wards --client own.sock"
    follow(
        "$ sordino client init own --data own.csv --label diagnosis --classes benign,malignant --columns wards.toml"
        " --budget 4 --delta 1e-5 --adjacency record-add-remove\n"
        "$ sordino client serve own --socket own.sock &\n"
        f"$ {run}\nRefused: ...\n$ sordino client join own own/invitations/wards.invitation --yes\n$ {run}\n",
        background,
    )
    result = sordino.load_run("fed").result
    assert (result.rounds, result.test_examples) == (2, 20)
