"""docs/flower-mod.md as printed: its code in an app, its commands in shells, a SuperLink and two SuperNodes."""

import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from sordino.privacy.ledger import Ledger, Released
from tests.flower.machines import Machines, _die_with_parent, free_ports

pytest.importorskip("flwr")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "flower-mod.md").read_text()
PYTHON = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
LINES = {
    "client_app.py": "app = ClientApp()\n",
    "server_app.py": '    strategy = FedAvg(fraction_train=run["fraction-train"])\n',
}
PROJECT = """[project]
name = "printed"
version = "1.0.0"
description = "An app with the lines of a page"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "printed.server_app:app"
clientapp = "printed.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 1
fraction-train = 1.0
local-epochs = 1
lr = 0.1
batch-size = 16
"""
BUDGET = "sordino ledger budget ~/.sordino/ledgers/budgets records --epsilon 600000 --nodes"
CONSENT = "sordino ledger consent ~/.sordino/ledgers/budgets records"
QUIET = (
    "FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
    "RAY_USAGE_STATS_ENABLED=0",
)  # fmt: skip


class Shells(Machines):
    """Runs commands in one folder, in a home of their own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.first = free_ports(3)
        self._ports = {str(port): str(self.first + n) for n, port in enumerate((8000, 8101, 8102))}

    def environment(self) -> dict[str, str]:
        quiet = dict(each.split("=") for each in QUIET)
        return {**super().environment(), **quiet, "HOME": str(self.folder.parent)}

    def printed(self, start: str) -> str:
        """The one command of the page that starts like this, with ports that are free here."""
        (found,) = [command for command in COMMANDS if command.startswith(start)]
        return re.sub(r"\b8\d\d\d\b", lambda port: self._ports[port[0]], found)

    def run_printed(self, start: str, timeout: float = 120.0) -> str:
        """Our own commands run in this process: they would take seconds to load in another."""
        name, *words = shlex.split(self.printed(start))
        if name != "sordino":
            return self.done(self.folder, self.printed(start), timeout)
        home = str(self.folder.parent)
        return self.sordino(*(re.sub("^~", home, word) for word in words), folder=self.folder)

    def start_printed(self, start: str, more: str = "") -> None:
        text = f"exec {self.printed(start)}{more}"
        with (self.folder / f"{len(self._running)}.log").open("ab") as log:
            self._running[start] = subprocess.Popen(
                ["bash", "-ec", text], cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, preexec_fn=_die_with_parent,
            )  # fmt: skip

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def shells() -> Iterator[Shells]:
    place = Path(tempfile.mkdtemp(prefix="smp-"))
    made = Shells(place / "app")
    write_app(made.folder)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(place, ignore_errors=True)


def write_app(folder: Path) -> None:
    """The template, with the page's lines in the place of its own."""
    package = folder / "printed"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    blocks = dict(PYTHON)
    assert blocks.keys() == LINES.keys()
    for path in (ROOT / "tests" / "flower" / "template").glob("*.py"):
        text = path.read_text().replace("from tests.flower.template import", "from printed import")
        if path.name in LINES:
            line = LINES[path.name]
            indent = line[: len(line) - len(line.lstrip())]
            assert text.count(line) == 1
            text = text.replace(line, "".join(indent + own for own in blocks[path.name].splitlines(keepends=True)))
        (package / path.name).write_text(text)


def rounds(path: Path) -> list[int]:
    with Ledger.open(path) as ledger:
        return [entry.event.key.round for entry in ledger.entries() if isinstance(entry.event, Released)]


@pytest.mark.timeout(300)
def test_the_pages_commands_hold_a_round_between_processes(shells):
    home = shells.folder.parent
    ledgers = home / ".sordino" / "ledgers" / "budgets"
    shells.run_printed(BUDGET)
    assert sorted(path.name for path in ledgers.glob("*.db")) == ["0.db", "1.db"]
    for what in ("model update", "metric"):
        shells.run_printed(f'{CONSENT} --unproven "{what}')
    (home / ".flwr").mkdir()
    connection = f'[superlink.deployment]\naddress = "127.0.0.1:{shells.first}"\ninsecure = true\n'
    (home / ".flwr" / "config.toml").write_text(f'[superlink]\ndefault = "deployment"\n\n{connection}')
    shells.start_printed("flower-superlink --insecure", f" --port {shells.first}")
    for number in range(2):
        (start,) = [c for c in COMMANDS if f"partition-id={number}" in c]
        shells.start_printed(start)
    until_nodes_are_there(shells)
    shells.run_printed("flwr run . deployment", 200.0)
    end = time.monotonic() + 60
    while [rounds(path) for path in sorted(ledgers.glob("*.db"))] != [[1], [1]]:
        assert time.monotonic() < end, shells.logs()
        time.sleep(0.5)
    said = shells.run_printed("sordino ledger show")
    assert "nothing is proven" in said and "model update UNPROTECTED" in said
    shells.run_printed(f"{CONSENT} --claimed")
    shells.run_printed(f"{BUDGET.removesuffix('--nodes')}--basis claimed")
    with Ledger.open(ledgers / "0.db") as ledger:
        assert ledger.standing("records").spent > 0 and ledger.standing("records").unprotected == 0


def until_nodes_are_there(shells: Shells) -> None:
    """Two SuperNodes are known to the SuperLink."""
    end = time.monotonic() + 120
    while shells.logs().count("Activated node_id") < 2:
        assert time.monotonic() < end, shells.logs()
        time.sleep(0.2)


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: make test-more")
@pytest.mark.timeout(600)
def test_the_pages_commands_run_a_simulation(shells):
    ledgers = shells.folder.parent / ".sordino" / "ledgers" / "budgets"
    shells.run_printed(BUDGET)
    shells.run_printed(f'{CONSENT} --unproven "model update"')
    shells.run_printed("flwr run . local", 500.0)
    assert [rounds(path) for path in sorted(ledgers.glob("*.db"))] == [[1], [1]], shells.logs()
