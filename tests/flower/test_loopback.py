"""Real processes on this machine: Flower's server behind its door, with TLS and node keys, and three organisations.

Every machine is kept running by its own `sordino deploy up`. Attacks on the server run in every test run; the methods
of all five papers, secure sums and members who are replaced are `nightly` (some minutes); `test_deploy_page.py` kills
what can be killed.
"""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino.client.client import Client
from sordino.flower.coordinator import KEY
from sordino.privacy.ledger import Ledger, Released
from sordino.recipe import Recipe
from tests.client import people
from tests.client.test_evaluation import recipe as evaluated
from tests.flower.machines import Machines, free_ports, need, python_for_others

flwr = pytest.importorskip("flwr")

NAME = "loopback"
RUN = 480.0  #: seconds in which a run must be over, on a busy machine too


def make(machines: Machines, recipe: Recipe) -> None:
    """A set-up from a recipe, by the command line; its members have joined."""
    path = machines.folder.parent / "recipe.toml"
    path.write_text(recipe.to_toml())
    port = free_ports(3 + recipe.number_of_clients)
    machines.sordino(
        "deploy", "init", machines.folder, "--recipe", path, "--host", "127.0.0.1", "--port", port,
        "--node-port", port + 3, "--federation", NAME,
    )  # fmt: skip


def join(machines: Machines, **budgets: float) -> None:
    for member in machines.deployment.members:
        own = ("--budget", budgets[member]) if member in budgets else ()
        machines.sordino("deploy", "join", machines.folder / member, "--yes", *own)


def spent(machines: Machines) -> dict[str, float]:
    """What each client's ledger says, by its own arithmetic."""
    found = {}
    for client in machines.deployment.members:
        with Client.open(machines.folder / client / "client") as opened:
            found[client] = opened.standing.spent
    return found


def answered(machines: Machines, client: str) -> list[int]:
    """The rounds in a client's ledger, in order."""
    with Ledger.open(machines.folder / client / "client/ledger.sqlite") as ledger:
        return [entry.event.key.round for entry in ledger.entries() if isinstance(entry.event, Released)]


# --- attacks ----------------------------------------------------------------------------------------------------------

THIEF = """
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    found = []
    for path in [*Path({folder!r}).rglob("*.key"), Path({key!r})]:
        try:
            found.append((str(path), path.read_text()))
        except OSError as error:
            found.append((str(path), type(error).__name__))
    try:
        listed = [str(path) for path in Path({folder!r}, "coordinators").iterdir()]
    except OSError as error:
        listed = [type(error).__name__]
    Path({loot!r}).write_text(repr((found, listed)))
"""


def thief(machines: Machines, loot: Path) -> Path:
    """A member's own app for the server, which looks for keys in the server's folder."""
    place = machines.folder.parent / "thief"
    (place / "stealing").mkdir(parents=True)
    (place / "stealing/__init__.py").write_text("")
    key = machines.run.parent / KEY  # a guess that anybody can make
    program = THIEF.format(folder=str(machines.folder / "server"), key=str(key), loot=str(loot))
    (place / "stealing/server.py").write_text(program)
    (place / "stealing/client.py").write_text("from flwr.clientapp import ClientApp\n\napp = ClientApp()\n")
    (place / "pyproject.toml").write_text(
        '[project]\nname = "thief"\nversion = "1.0.0"\ndescription = ""\nlicense = "Apache-2.0"\n'
        'dependencies = []\n\n[tool.flwr.app]\npublisher = "local"\n\n[tool.flwr.app.components]\n'
        'serverapp = "stealing.server:app"\nclientapp = "stealing.client:app"\n\n[tool.flwr.app.config]\n'
    )
    return place


def flwr_run(machines: Machines, app: Path, address: str) -> subprocess.CompletedProcess[str]:
    """`flwr run` as anybody gives it who has the authority's certificate and can reach the address."""
    home = machines.folder.parent / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "it"\n\n[superlink.it]\naddress = "{address}"\n'
        f'root-certificates = "{machines.folder / "client-1/ca.crt"}"\n'
    )
    environment = {**machines.environment(), "FLWR_HOME": str(home), "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return subprocess.run(
        ["flwr", "run", str(app), "it"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.timeout(600)
def test_a_member_cannot_start_an_app_on_the_server(machines):
    """Whoever runs an app on the server runs it with the rights of Flower's account there."""
    make(machines, people.recipe({"rounds.count": 1}))
    machines.up("server")
    machines.until_said("server", "registered the keys")
    machines.until(lambda: not any(f.what == "port" and f.wrong for f in machines.findings()), 60)
    loot = machines.folder.parent / "loot"
    done = flwr_run(machines, thief(machines, loot), machines.deployment.address)
    time.sleep(2.0)
    assert done.returncode != 0 and not loot.exists(), done.stdout + done.stderr
    key = json.loads((machines.run.parent / KEY).read_text())["private"]
    machines.down("server")
    assert not [path for path in (machines.folder / "server/flower").rglob("*") if key in _text(path)]


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes under other accounts")
@pytest.mark.timeout(600)
def test_an_app_on_the_server_reads_no_key_where_flower_has_an_account_of_its_own(machines):
    """Even somebody who gets past the door finds the coordinator's folder closed, and a relay that carries bytes."""
    python = need(python_for_others(), "no Python here that other accounts can start")
    make(machines, people.recipe({"rounds.count": 1}))
    programs, place = machines.folder.parent / "programs", machines.folder.parent
    programs.mkdir()
    for path in Path(sys.executable).parent.glob("fl*"):
        (programs / path.name).write_text(f"#!{python}\n" + path.read_text().partition("\n")[2])
    (place / "loot").mkdir()
    for path, mode in (
        (place, 0o711),
        (place / "loot", 0o777),
        *((path, 0o755) for path in (programs, *programs.iterdir())),
    ):
        path.chmod(mode)
    found = [str(Path(module.__file__ or "").parent.parent) for module in (sordino, flwr)]
    machines.python, machines.more = python, {
        "PYTHONPATH": os.pathsep.join(found), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    machines.up("server", words="--account nobody")
    machines.until_said("server", "registered the keys")
    machines.until_said("server", "a relay has come", 60)
    flwr_run(machines, thief(machines, place / "loot/found"), machines.deployment.inner_address)
    machines.until((place / "loot/found").exists, 120)
    keys, listed = ast.literal_eval((place / "loot/found").read_text())
    assert listed == ["PermissionError"]
    assert [(Path(path).name, said) for path, said in keys] == [(KEY, "PermissionError")]
    (account,) = [each for each in machines.findings() if (each.machine, each.what) == ("server", "account")]
    assert account.state == "ok"


# --- nightly ----------------------------------------------------------------------------------------------------------

SUMMED: dict[str, Any] = {  # a secure sum needs four clients
    "method.channel": {"kind": "summed"},
    "split": {"kind": "iid", "clients": 4},
    "rounds.count": 2,
}
METHODS = {
    "ldp-fl": lambda: people.method_recipe("ldp-fl"),
    "ldp-fed": lambda: people.method_recipe("ldp-fed"),
    "webfed": lambda: people.method_recipe("webfed"),
    "personalized": lambda: people.method_recipe("personalized"),
    "ldpfl": lambda: people.method_recipe("ldpfl"),
    "secure-sums": lambda: people.recipe(SUMMED),
}


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_three_organisations_with_budgets_of_their_own_each_stop_at_their_own_and_one_is_replaced(machines):
    """Bits of epsilon 1, 2 and 1 for each of 650 values; the third owner allows one round and not two."""
    make(machines, people.recipe({"clients.epsilon": [1.0, 2.0, 1.0], "rounds.count": 5}))
    join(machines, **{"client-3": 1000.0})
    machines.up("server", *machines.deployment.members)
    machines.until_round(1)
    machines.sordino("deploy", "replace", machines.folder, "client-2", "west", "--from-round", 4)
    machines.sordino("deploy", "join", machines.folder / "west", "--yes")
    machines.up("west")
    assert machines.wait("server", RUN) == 0
    assert [(each["reported"], each["declined"]) for each in machines.rounds()] == [(3, 0)] + 4 * [(2, 1)]
    rounds = {client: answered(machines, client) for client in machines.deployment.members}
    assert rounds == {"client-1": [1, 2, 3, 4, 5], "client-2": [1, 2, 3], "client-3": [1], "west": [4, 5]}
    wanted = {"client-1": 5 * 650, "client-2": 2 * 3 * 650, "client-3": 650, "west": 2 * 2 * 650}
    assert spent(machines) == pytest.approx(wanted)
    told = " ".join((machines.run / "statement.txt").read_text().split())
    assert "west (from round 4, in the place of client-2)" in told


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_runs_over_tls_and_every_ledger_has_every_round_once(machines, method):
    recipe = METHODS[method]()
    make(machines, recipe)
    join(machines)
    began = time.monotonic()
    machines.up("server", *machines.deployment.members)
    assert machines.wait("server", 2 * RUN) == 0
    took, held = time.monotonic() - began, machines.rounds()
    print(f"\n{method}: {len(held)} rounds in {took:.1f} s, {[round(each['seconds'], 1) for each in held]}")
    assert [each["reported"] for each in held] == [recipe.number_of_clients] * recipe.rounds.count
    for client in machines.deployment.members:
        found = answered(machines, client)
        assert found == sorted(set(found)) and [n for n in found if n] == list(range(1, recipe.rounds.count + 1))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_organisations_evaluate_the_model_on_records_of_their_own(machines):
    """The budgets that the set-up proposes have room for it."""
    make(machines, evaluated({"rounds.count": 2}))
    join(machines)
    machines.up("server", *machines.deployment.members)
    assert machines.wait("server", RUN) == 0
    first, second = machines.rounds()
    assert first["private"] is None
    assert (second["private"]["reported"], second["private"]["declined"]) == (3, 0)
    assert [answered(machines, client) for client in machines.deployment.members] == [[1, 2, 2]] * 3
