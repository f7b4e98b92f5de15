"""The wheel as it is built here installs and runs the quickstart where nothing else of the repository is."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="what builds the wheel is not installed: make setup")

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*PIP, *built], check=True, timeout=120)
    (found,) = folder.glob("sordino-*.whl")
    return found


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel is installed into; its dependencies come from the interpreter that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    installed = ["install", "--no-deps", "--no-index", "--no-compile", "--target", str(folder / "site"), str(wheel)]
    subprocess.run([*PIP, *installed], check=True, timeout=120)
    (folder / "empty").mkdir()
    return folder


def run(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Python in an empty folder, which finds the installed package before any other."""
    known = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS") if name in os.environ}
    environment = {**known, "HOME": str(place), "PYTHONPATH": str(place / "site")}
    return subprocess.run(
        [sys.executable, *command], cwd=place / "empty", env=environment, capture_output=True, text=True, timeout=250
    )


def test_the_wheel_holds_the_package_with_its_page_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"sordino"}
    assert {"sordino/py.typed", "sordino/recipes/quickstart.toml", "sordino/report/style.css"} <= set(names)
    page = ROOT / "src" / "sordino" / "web" / "page"
    built = {f"sordino/web/page/{path.relative_to(page)}" for path in page.rglob("*") if path.is_file()}
    assert {name for name in names if name.startswith("sordino/web/page/")} == built


def test_the_quickstart_runs_from_the_wheel(place: Path) -> None:
    where = run(place, "-c", "import sordino; print(sordino.__file__)")
    assert Path(where.stdout.strip()) == place / "site" / "sordino" / "__init__.py"
    done = run(place, "-m", "sordino", "run", "quickstart", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.9
    assert (place / "empty" / "runs" / "quickstart" / "report.html").is_file()


def test_the_papers_experiments_stay_in_the_clone(place: Path) -> None:
    done = run(place, "-m", "sordino", "reproduce", "webfed", "--list")
    assert done.returncode == 1 and "clone" in done.stderr
