"""`sordino deploy systemd`: units that systemd takes, one for each side, under different accounts."""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.deploy.deployment import Deployment
from sordino.deploy.setup import SetupOptions, make
from tests.client import people

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer
    from click.testing import Result
    from typer.testing import CliRunner

    from sordino.cli import app

ACCOUNT = "daemon"  #: one that every system has, and that systemd accepts


def sordino(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A set-up in a folder whose name has all that unit files treat in a special way."""
    place = Path(tempfile.mkdtemp(prefix="sfl-"))
    place.chmod(0o711)
    folder = place / 'a b%h$HOME"c'
    make(folder, people.recipe(), SetupOptions("127.0.0.1"), federation="demo")
    folder.chmod(0o711)
    python = Path("/usr/bin/python3")
    monkeypatch.setattr(sys, "executable", str(python if python.exists() else sys.executable))
    yield folder
    shutil.rmtree(place)


def read(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        name, given, value = line.partition("=")
        if given:
            found[name].append(value)
    return found


def words(text: str) -> list[str]:
    """A command as systemd would start it: quotes, then specifiers and variables."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(text)]


needs_another = pytest.mark.skipif(os.geteuid() == pwd.getpwnam(ACCOUNT).pw_uid, reason="it takes two accounts")


@needs_another
@pytest.mark.parametrize(
    ("machine", "owner", "own"), [("server", "coordinator", "coordinators"), ("client-1", "client", "client")]
)
def test_each_side_has_its_account_and_cannot_see_the_other(setup, machine, owner, own):
    folder = setup / machine
    done = sordino("deploy", "systemd", folder, "--account", ACCOUNT)
    assert done.exit_code == 0, done.output
    names = [f"sordino-{machine}-{side}.service" for side in (owner, "flower")]
    assert sorted(path.name for path in (folder / "systemd").iterdir()) == sorted(names)
    first, second = (read(folder / "systemd" / name) for name in names)
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert (first["User"], second["User"]) == ([me], [ACCOUNT])
    assert first["SupplementaryGroups"] and not second["SupplementaryGroups"]
    assert words(second["InaccessiblePaths"][0]) == [f"-{folder / own}", f"-{folder / 'logs'}"]
    assert words(second["ReadWritePaths"][0]) == [f"-{folder / 'flower'}"]
    assert words(first["InaccessiblePaths"][0]) == [f"-{folder / 'flower'}"]
    assert names[0] in second["After"][0].split()
    assert first["Restart"] == ["on-failure" if machine == "server" else "always"], "a federation that is over stays so"
    assert first["PrivateNetwork"] == (["yes"] if machine != "server" else [])
    for unit, side in ((first, owner), (second, "flower")):
        command = words(unit["ExecStart"][0])
        assert command[:4] == [sys.executable, "-m", "sordino", "deploy"]
        up = typer.main.get_command(app).commands["deploy"].commands["up"]
        context = up.make_context("up", command[5:])
        assert (context.params["folder"], context.params["only"]) == (str(folder), side)
        assert unit["NoNewPrivileges"] == ["yes"] and unit["ProtectSystem"] == ["strict"]
        assert not unit["PrivateTmp"], "the folder lies in /tmp"
    assert Deployment.read(folder).account == ACCOUNT
    lines = done.stdout.splitlines()[-3:]
    assert shlex.split(lines[0])[2] == f"{folder / 'systemd'}/*.service" and shlex.split(lines[2])[-2:] == names


@needs_another
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
@pytest.mark.parametrize("machine", ["server", "client-1"])
def test_systemd_takes_the_units(setup, machine):
    assert sordino("deploy", "systemd", setup / machine, "--account", ACCOUNT).exit_code == 0
    found = sorted(map(str, (setup / machine / "systemd").iterdir()))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *found], capture_output=True, text=True)
    assert done.returncode == 0 and "sordino" not in done.stderr, done.stderr  # other units may have faults


@needs_another
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_needs_root_is_done_before_a_side_starts(setup, monkeypatch):
    """The commands of ExecStartPre, as they would be run."""
    folder = setup / "client-1"
    assert sordino("deploy", "systemd", folder, "--account", ACCOUNT).exit_code == 0
    for path in sorted((folder / "systemd").iterdir()):
        for line in read(path)["ExecStartPre"]:
            assert line.startswith("+/bin/")
            subprocess.run(words(line[1:]), check=True)
    account = pwd.getpwnam(ACCOUNT).pw_uid
    assert {path.stat().st_uid for path in (folder / "flower").rglob("*")} == {account}
    assert {(folder / name).stat().st_uid for name in ("client", "logs", "socket")} == {0}
    modes = {name: (folder / name).stat().st_mode & 0o777 for name in (".", "client", "logs", "socket", "flower")}
    assert modes == {".": 0o711, "client": 0o700, "logs": 0o700, "socket": 0o711, "flower": 0o700}
    assert sordino("deploy", "join", folder, "--yes").exit_code == 0, "an empty folder is as good as none"


def test_what_cannot_work_is_refused_with_a_remedy(setup):
    whole = sordino("deploy", "systemd", setup, "--account", ACCOUNT)
    assert whole.exit_code == 1 and str(setup / "client-1") in whole.stderr
    unknown = sordino("deploy", "systemd", setup / "server", "--account", "no-such-account")
    assert unknown.exit_code == 1 and "useradd --system no-such-account" in unknown.stderr
    own = sordino("deploy", "systemd", setup / "server", "--account", pwd.getpwuid(os.geteuid()).pw_name)
    assert own.exit_code == 1 and "--account flower" in own.stderr
    setup.chmod(0o700)
    if os.geteuid() != pwd.getpwnam(ACCOUNT).pw_uid:
        closed = sordino("deploy", "systemd", setup / "server", "--account", ACCOUNT)
        assert closed.exit_code == 1 and f"chmod o+x {setup}" in closed.stderr
    assert not (setup / "server/systemd").exists() and Deployment.read(setup / "server").account == ""
