"""A user's own models and data functions are found beside the recipe, and shadow nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.tiny import recipe

from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.own_data import from_function
from sordino.parts import registry
from sordino.recipe import CodeNotAllowed, Recipe

OWN = """
import numpy as np
from torch import nn

from sordino.learning.examples import Dataset, Examples, Normalisation


def halves(count):
    y = np.arange(count) % 2
    part = Examples((y[:, None] * np.ones(3)).astype(np.float32), y)
    return Dataset("halves", part, part, ("low", "high"), Normalisation(), "made here", "none")


class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(3, classes))
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A current folder that Python does not search, as when a script is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("beside_"):
            del sys.modules[name]


def test_a_model_and_a_data_function_in_the_current_folder_are_found(elsewhere):
    (elsewhere / "beside_recipe.py").write_text(OWN)
    assert len(from_function("beside_recipe:halves", {"count": 6}).train) == 6
    net = models.build("beside_recipe:Net", input_shape=(3,), classes=2)
    assert models.parameter_layout(net).size == 8
    assert sys.path.count(str(elsewhere)) == 1


def test_an_installed_package_offers_a_model_by_name(elsewhere, monkeypatch):
    (elsewhere / "beside_recipe.py").write_text(OWN)
    monkeypatch.setattr(registry, "_installed", lambda: {"model": {"halving": "beside_recipe:Net"}})
    assert models.parameter_layout(models.build("halving", input_shape=(3,), classes=2)).size == 8
    named = recipe({"model": {"name": "halving"}})
    assert named.own_code == ("beside_recipe:Net",)
    with pytest.raises(CodeNotAllowed, match="beside_recipe:Net"):
        Recipe.from_toml(named.to_toml())


def test_the_current_folder_is_searched_for_own_code_only_and_last(elsewhere):
    """A file of the user's with the name of a library never takes its place."""
    (elsewhere / "wave.py").write_text("raise RuntimeError('not the library')")
    models.build("logistic", input_shape=(3,), classes=2)
    before = list(sys.path)
    assert str(elsewhere) not in before
    with pytest.raises(InvalidInput, match=r"wave.*'load'"):
        from_function("wave:load")
    assert str(elsewhere) in sys.path[len(before) :]  # folders of recipes that other tests read may come after it
    assert sys.path[: len(before)] == before


def test_what_is_nowhere_is_refused_with_the_remedy(elsewhere):
    with pytest.raises(InvalidInput, match=r"beside_nothing.*PYTHONPATH"):
        models.build("beside_nothing:Net", input_shape=(3,), classes=2)
    with pytest.raises(InvalidInput, match=r"beside_nothing.*PYTHONPATH"):
        from_function("beside_nothing:load")


SCRIPT = Path(sys.executable).with_name("sordino")


@pytest.mark.process
@pytest.mark.skipif(not SCRIPT.exists(), reason="the package is not installed, so that there is no script")
def test_the_script_runs_own_code_beside_the_recipe_in_several_processes(tmp_path):
    (tmp_path / "own_code.py").write_text(OWN)
    (tmp_path / "safetensors.py").write_text("raise RuntimeError('not the library')")
    own = {"data": {"source": "own_code:halves", "arguments": {"count": 20}}, "model": {"name": "own_code:Net"}}
    (tmp_path / "own.toml").write_text(recipe(own, **{"rounds.count": 1}).to_toml())

    def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
        command = [SCRIPT, "run", *arguments, "--workers", "2"]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)

    done = run(tmp_path, "own.toml", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/report.html").exists()

    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "own.toml").write_text((tmp_path / "own.toml").read_text())
    refused = run(tmp_path / "away", "own.toml")  # neither the folder nor the recipe's own has the module
    assert refused.returncode == 1 and "own_code" in refused.stderr
    assert "Traceback" not in refused.stderr
