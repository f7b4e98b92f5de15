"""Containers for each side of a machine: what they share, and that a side works with its mounts alone."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import sordino
from sordino.deploy.containers import COMPOSE, MACHINE
from sordino.deploy.deployment import Deployment
from sordino.deploy.setup import SetupOptions, make
from tests.client import people
from tests.flower.machines import free_ports, need, python_for_others

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer
    from typer.testing import CliRunner

    from sordino.cli import app

TOP = Path(__file__).parent.parent.parent
ACCOUNTS = {"root": 0, "sordino": 10001, "flower": 10002}  #: those of the image
CHANNEL = {"kind": "shuffler", "at_least": 2, "url": "https://mix.example.org:8470", "key": "ab" * 32}


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool

    @classmethod
    def read(cls, text: str) -> "Mount":
        source, target, *how = text.replace("${RECORDS:-./records}", "./records").split(":")
        return cls(source, target, how == ["ro"])


def mounts(service: dict[str, Any]) -> list[Mount]:
    return [Mount.read(each) for each in service["volumes"]]


def composed(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / COMPOSE).read_text())["services"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("setup") / "demo"
    make(
        made, people.recipe(), SetupOptions("flower.example.org", 8443), federation="demo", members=["Ost.1", "b", "c"]
    )
    return made


@pytest.mark.parametrize(
    ("machine", "owner", "own"), [("server", "coordinator", "coordinators"), ("b", "client", "client")]
)
def test_the_two_sides_share_the_socket_and_no_other_folder(folder, machine, owner, own):
    services = composed(folder / machine)
    assert set(services) == {"owners", owner, "flower"}
    sides = {name: {m.source: m for m in mounts(services[name])} for name in (owner, "flower")}
    shared = sides[owner].keys() & sides["flower"].keys()
    assert shared == {"./socket", "./deployment.toml"}
    assert all(sides["flower"][each].read_only for each in shared), "Flower's side connects, and makes no socket"
    assert {m for m, how in sides["flower"].items() if not how.read_only} == {"./flower"}
    assert {m for m, how in sides[owner].items() if not how.read_only} == {f"./{own}", "./logs", "./socket"}
    assert not any(m.startswith("./flower") for m in sides[owner])
    for name in (owner, "flower"):
        service = services[name]
        assert (service["read_only"], service["cap_drop"], service["restart"]) == (True, ["ALL"], "unless-stopped")
        assert all(m.target.startswith((f"{MACHINE}/", "/records")) for m in mounts(service))
    assert (services[owner]["user"], services["flower"]["user"]) == ("sordino", "flower")
    assert services[owner]["group_add"] == ["flower"] and "group_add" not in services["flower"]


def test_clients_reach_no_network_and_members_reach_the_servers_port_alone(folder, tmp_path):
    client, server = composed(folder / "b"), composed(folder / "server")
    assert client["client"]["network_mode"] == "none" and "ports" not in client["flower"]
    assert server["flower"]["ports"] == ["8443:8443"]
    assert not [name for name, each in {**client, **server}.items() if "ports" in each and name != "flower"]
    recipe = people.method_recipe("ldp-fl").with_({"method.channel": CHANNEL})
    make(tmp_path / "posted", recipe, SetupOptions("a.org"), federation="posted")
    assert "network_mode" not in composed(tmp_path / "posted/client-1")["client"], "it posts to the shuffler"


def test_the_files_follow_a_new_federation_and_names_are_those_that_compose_allows(folder):
    found = yaml.safe_load((folder / "Ost.1" / COMPOSE).read_text())
    assert re.fullmatch("[a-z0-9][a-z0-9_-]*", found["name"])
    added = shutil.copytree(folder, folder.parent / "added")
    path = folder.parent / "second.toml"
    path.write_text(people.recipe({"rounds.count": 2}).to_toml())
    done = CliRunner().invoke(
        app, ["deploy", "add-federation", str(added), "--recipe", str(path), "--federation", "second"]
    )
    assert done.exit_code == 0, done.output
    files = {m.source for m in mounts(composed(added / "b")["client"])}
    assert {"./demo.invitation", "./second.invitation"} <= files
    assert all((added / "b" / name).exists() for name in files - {"./client", "./logs", "./socket", "./records"})


@pytest.mark.parametrize("machine", ["server", "b"])
def test_the_commands_are_those_of_this_version(folder, machine):
    commands = typer.main.get_command(app)
    for name, service in composed(folder / machine).items():
        if name == "owners":
            continue
        words = list(service["command"])
        deploy = commands.commands["deploy"]
        up = deploy.commands["up"]
        assert words[:2] == ["deploy", "up"]
        context = up.make_context("up", words[2:])
        assert (context.params["only"], context.params["account"]) == (name, "flower")
        assert str(context.params["folder"]) == MACHINE


# --- the image --------------------------------------------------------------------------------------------------------


def test_the_image_is_made_of_files_that_are_there_and_has_the_accounts():
    text = (TOP / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    kept = {line[1:] for line in (TOP / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == {name for names in copied for name in names}
    assert all((TOP / name).exists() for name in kept)
    assert {name: int(number) for name, number in re.findall(r"(\w+):(100\d\d)", text)} == {
        name: number for name, number in ACCOUNTS.items() if number
    }
    extras = re.findall(r"\[([a-z,]+)\]\"", text)
    assert extras == ["flower,learn,service"]


def engine() -> str | None:
    """A container engine that answers; None where there is none."""
    found = shutil.which("docker")
    if found is None:
        return None
    with suppress(OSError, subprocess.TimeoutExpired):
        if subprocess.run([found, "info"], capture_output=True, timeout=10).returncode == 0:
            return found
    return None


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_image_can_be_built_where_there_is_an_engine(folder):
    docker = engine()
    if docker is None:
        pytest.skip("no container engine answers here")
    subprocess.run([docker, "build", "--tag", "sordino-test", str(TOP)], check=True)
    said = subprocess.run(
        [docker, "run", "--rm", "sordino-test", "--version"], capture_output=True, text=True, check=True
    )
    assert sordino.__version__ in said.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("machine", ["server", "b"])
def test_compose_takes_the_files_where_it_is_installed(folder, machine):
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("docker compose is not installed here")
    subprocess.run([docker, "compose", "config", "--quiet"], cwd=folder / machine, check=True)


# --- what containers would do, by the same mounts, accounts and rights, without an engine -----------------------------


def may_mount() -> bool:
    return (
        os.geteuid() == 0
        and subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True).returncode == 0
    )


@dataclass
class Containers:
    """Runs services of compose files in namespaces of their own."""

    place: Path
    python: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.place / "machine").mkdir()
        programs = self.place / "programs"
        programs.mkdir()
        for path in Path(sys.executable).parent.glob("fl*"):
            (programs / path.name).write_text(f"#!{self.python}\n" + path.read_text().partition("\n")[2])
        shell = f'#!/bin/sh\nexec {self.python} -m sordino "$@"\n'
        (programs / "sordino").write_text(shell)
        for file, line in (("passwd", "{0}:x:{1}:{1}::/tmp:/bin/sh\n"), ("group", "{0}:x:{1}:\n")):
            (self.place / file).write_text("".join(line.format(*each) for each in ACCOUNTS.items()))
        for path in (self.place, self.place / "machine", programs, *programs.iterdir()):
            path.chmod(0o755)

    def start(self, folder: Path, name: str, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        """One service; what it says goes into a file."""
        service = composed(folder)[name]
        number, inside = ACCOUNTS[service["user"]], self.place / "machine"
        lines = ["set -e", "mount --make-rprivate /", f"mount -t tmpfs tmpfs {inside}"]
        for each in mounts(service):
            if each.target == "/records":  # those of the test are in the package
                continue
            source, target = folder / each.source, inside / each.target[len(MACHINE) :].lstrip("/")
            if not source.exists():
                source.mkdir()
            if target != inside:
                lines.append(f"mkdir -p {target}" if source.is_dir() else f"touch {target}")
            lines.append(f"mount --bind {source} {target}")
            lines += [f"mount -o remount,bind,ro {target}"] if each.read_only else []
        lines += [f"mount --bind {self.place / file} /etc/{file}" for file in ("passwd", "group")]
        if name != "owners":
            lines += [
                f"mount -t tmpfs tmpfs {folder.parent}",
                "mount -t tmpfs tmpfs /tmp",
                "mount -o remount,bind,ro /",
            ]
        environment = {
            "HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{TOP / 'src'}:{Path(yaml.__file__).parent.parent}",
            "PATH": f"{self.place / 'programs'}:/usr/bin:/bin", **service.get("environment", {}),
        }  # fmt: skip
        groups = [ACCOUNTS[each] for each in service.get("group_add", [])] or [number]
        rights = [] if number == 0 else ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        lines += [f"cd {inside}", 'exec "$@"']
        words = [
            "setpriv", "--reuid", str(number), "--regid", str(number), "--groups", ",".join(map(str, groups)), *rights,
            "env", "-i", *(f"{key}={value}" for key, value in environment.items()),
            *service.get("entrypoint", ["sordino"]), *(command or service["command"]),
        ]  # fmt: skip
        words = [word.replace(MACHINE, str(inside)) for word in words]
        alone = ["--net"] if service.get("network_mode") == "none" else []
        with (self.place / f"{folder.name}-{name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", *alone, "--kill-child", "--fork", "sh", "-c", "\n".join(lines), "sh", *words],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.running[f"{folder.name}-{name}"] = process
        return process

    def logs(self) -> str:
        found = sorted([*self.place.glob("*.log"), *self.place.rglob("logs/*.log")])
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in found)

    def stop(self) -> None:
        """As an engine does: ask the first process of each to end, which must do so."""
        for process in self.running.values():
            if process.poll() is None:  # the one that made the namespace waits for its child, and hears nothing
                for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(number), signal.SIGTERM)
        for process in self.running.values():
            process.wait(30)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def containers() -> Iterator[Containers]:
    lacking = "it takes root, mounts, and a Python that other accounts can start"
    python = need(python_for_others() if may_mount() else None, lacking)
    made = Containers(Path(tempfile.mkdtemp(prefix="sfl-", dir="/var/tmp")), python)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(made.place)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_federation_runs_with_the_mounts_the_accounts_and_the_rights_of_its_containers(containers):
    """The client has no network, no side sees the other's files, and whatever is not mounted can only be read."""
    folder, port = containers.place / "demo", free_ports(5)
    make(
        folder,
        people.recipe({"rounds.count": 2}),
        SetupOptions("127.0.0.1", port, node_port=port + 2),
        federation="demo",
    )
    names = Deployment.read(folder).machines
    for machine in names:
        shutil.copytree(folder / machine, containers.place / machine / machine)
        assert containers.start(containers.place / machine / machine, "owners").wait(60) == 0, containers.logs()
    shutil.rmtree(folder)
    places = {machine: containers.place / machine / machine for machine in names}
    for machine in names[1:]:
        joined = containers.start(places[machine], "client", ["deploy", "join", MACHINE, "--yes"])
        assert joined.wait(120) == 0, containers.logs()
    for machine in names:
        for name in composed(places[machine]):
            if name != "owners":
                containers.start(places[machine], name)
    rounds = places["server"] / "coordinators/demo/run/metrics.jsonl"
    end = time.monotonic() + 400
    while not (places["server"] / "coordinators/demo/run/report.html").exists():
        assert time.monotonic() < end, containers.logs()
        time.sleep(0.5)
    assert len(rounds.read_text().splitlines()) == 2
    time.sleep(3)
    assert all(process.poll() is None for name, process in containers.running.items() if not name.endswith("owners"))
    containers.stop()
    assert {process.returncode for process in containers.running.values()} == {0}, containers.logs()
    for own, account in (("flower", "flower"), ("client", "sordino")):
        assert {path.stat().st_uid for path in (places["client-1"] / own).rglob("*")} == {ACCOUNTS[account]}
