"""Real processes on this machine: a SuperLink with TLS and node authentication, three nodes, three owners' clients.

Every command is the one that `sordino deploy` wrote down. One method runs in every test run; the methods of all
five papers, secure sums and a server that is killed are `nightly` (some minutes).
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sordino.client.client import Client
from sordino.privacy.ledger import Ledger, Released
from sordino.recipe import Recipe
from tests.client import people
from tests.flower.machines import Machines, free_ports, rounds

pytest.importorskip("flwr")

NAME = "loopback"
RUN = 480.0  #: seconds in which a run must be over, on a busy machine too


@pytest.fixture
def machines() -> Iterator[Machines]:
    """A place with a short name: paths of sockets have about a hundred letters. Nothing is left running."""
    place = Path(tempfile.mkdtemp(prefix="sfl-"))
    made = Machines(place / "demo")
    try:
        yield made
    finally:
        made.end()
        left = made.left()
        shutil.rmtree(place)
        assert not left


def make(machines: Machines, recipe: Recipe) -> None:
    """A set-up from a recipe, by the command line."""
    path = machines.folder.parent / "recipe.toml"
    path.write_text(recipe.to_toml())
    port = free_ports(1 + recipe.number_of_clients)
    machines.sordino(
        "deploy", "init", machines.folder, "--recipe", path, "--host", "127.0.0.1", "--port", port,
        "--node-port", port + 1, "--federation", NAME,
    )  # fmt: skip


def bring_up(machines: Machines, **budgets: float) -> None:
    """Server, registration, clients and nodes, until the check has no complaints."""
    machines.start("server", "flower-superlink")
    for client in machines.deployment.members:
        machines.do_here(client, "client init")
        if client in budgets:
            _set_budget(machines.folder / client / "client/client.toml", budgets[client])
        machines.do_here(client, "client join")
        machines.start(client, "client serve")
    machines.wait_for_port()
    machines.do("server", "supernode register")
    for client in machines.deployment.members:
        machines.start(client, "flower-supernode")
    machines.wait_until_fine()


def _set_budget(path: Path, limit: float) -> None:
    """As an owner edits it."""
    lines = path.read_text().splitlines()
    path.write_text("\n".join(f"limit = {limit}" if line.startswith("limit") else line for line in lines) + "\n")


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


@pytest.mark.timeout(900)
def test_three_organisations_with_budgets_of_their_own_learn_over_tls_and_each_stops_at_its_own(machines):
    """Bits of epsilon 1, 2 and 1 for each of 650 values; the third owner allows one round and not two."""
    make(machines, people.recipe({"clients.epsilon": [1.0, 2.0, 1.0], "rounds.count": 2}))
    bring_up(machines, **{"client-3": 1000.0})
    said = machines.do("server", "flwr run", RUN)
    assert f"{NAME} is over" in said
    first, second = rounds(machines)
    assert (first["reported"], first["declined"]) == (3, 0)
    assert (second["reported"], second["declined"]) == (2, 1)
    assert first["bytes_up"] > 3 * 650 / 8
    assert spent(machines) == pytest.approx({"client-1": 2 * 650, "client-2": 2 * 2 * 650, "client-3": 650})
    assert [answered(machines, client) for client in machines.deployment.members] == [[1, 2], [1, 2], [1]]
    assert (machines.folder / "server/runs" / NAME / "model.safetensors").is_file()


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
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_runs_over_tls_and_every_ledger_has_every_round_once(machines, method):
    recipe = METHODS[method]()
    make(machines, recipe)
    bring_up(machines)
    began = time.monotonic()
    said = machines.do("server", "flwr run", 2 * RUN)
    took = time.monotonic() - began
    assert f"{NAME} is over" in said, said  # Flower's command succeeds also where the app failed
    held = rounds(machines)
    print(f"\n{method}: {len(held)} rounds in {took:.1f} s, {[round(each['seconds'], 1) for each in held]}")
    assert [each["reported"] for each in held] == [recipe.number_of_clients] * recipe.rounds.count
    for client in machines.deployment.members:
        found = answered(machines, client)
        assert found == sorted(set(found)) and [n for n in found if n] == list(range(1, recipe.rounds.count + 1))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_server_that_is_killed_in_the_middle_goes_on_and_no_round_is_counted_twice(machines):
    make(machines, people.recipe({"clients.epsilon": [1.0, 2.0, 1.0], "rounds.count": 4}))
    bring_up(machines)
    running = threading.Thread(target=_run_whatever_comes, args=(machines,))
    running.start()
    path = machines.folder / "server/runs" / NAME / "metrics.jsonl"
    end = time.monotonic() + RUN
    while not (path.exists() and len(path.read_text().splitlines()) >= 1):
        assert time.monotonic() < end, machines.logs()
        time.sleep(0.1)
    machines.kill("server", "flower-superlink")
    running.join(RUN)
    machines.kill("client-2", "client serve")
    machines.start("client-2", "client serve")
    machines.start("server", "flower-superlink")
    machines.wait_until_fine()
    machines.do("server", "flwr run", 2 * RUN)
    held = rounds(machines)
    assert [each["round"] for each in held] == [1, 2, 3, 4]
    assert all(each["reported"] == 3 for each in held)
    assert spent(machines) == pytest.approx({"client-1": 4 * 650, "client-2": 2 * 4 * 650, "client-3": 4 * 650})
    assert [answered(machines, client) for client in machines.deployment.members] == [[1, 2, 3, 4]] * 3


def _run_whatever_comes(machines: Machines) -> None:
    try:
        machines.do("server", "flwr run", RUN)
    except AssertionError:
        return  # the server was killed under it
