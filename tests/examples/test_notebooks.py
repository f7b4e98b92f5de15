"""The notebooks open in Jupyter and run from their first cell to their last."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))
PROCESSES = FOLDER / "from_simulation_to_five_processes.ipynb"  #: starts five, each of which loads everything
CELL = {"cell_type", "id", "metadata", "source"}  #: what every cell has, by nbformat 4.5


@pytest.fixture
def desk(monkeypatch):
    """The notebooks' own folder, as Jupyter has it; what they write goes to a place with a short name, for sockets."""
    before = set(sys.modules)
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with tempfile.TemporaryDirectory(prefix="sdo-") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        yield
    for name in {"kary"} & set(sys.modules) - before:
        del sys.modules[name]


def test_all_subjects_are_there():
    subjects = {"accuracy_against_epsilon", "own_mechanism", "own_data", "audit_of_a_run"}
    assert {path.stem for path in BOOKS} == {*subjects, PROCESSES.stem}


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_sound_and_without_outputs(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in book["cells"]:
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == CELL | code and cell["cell_type"] in ("code", "markdown")
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert not cell.get("outputs") and cell.get("execution_count") is None


def cells_of(path):
    """Compiled cells of code."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    return [compile("".join(cell["source"]), f"{path.name}, cell {n}", "exec") for n, cell in enumerate(cells, 1)]


@pytest.mark.parametrize("path", [path for path in BOOKS if path != PROCESSES], ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs(path, desk, capsys):
    namespace = {"__name__": path.stem}
    for cell in cells_of(path):
        exec(cell, namespace)
    assert capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.network
def test_five_processes_reach_what_the_simulation_does(desk):
    namespace = {"__name__": PROCESSES.stem}
    for cell in cells_of(PROCESSES):
        exec(cell, namespace)
    outcome, simulated = namespace["outcome"], namespace["simulated"]
    assert outcome.lead.proven == simulated.lead.proven
    assert [record.reported for record in outcome.rounds] == [5] * 5
    assert abs(outcome.accuracy - simulated.accuracy) < 0.1
    again = namespace["sordino"].load_run(outcome.folder)
    assert again.spending() == outcome.spending()
