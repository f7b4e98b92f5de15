"""The documentation as a site, built once for all processes that run tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parent.parent


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Build the site into a folder, in strict mode."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *arguments]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def built(factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    base = factory.getbasetemp()
    place = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "site"
    with FileLock(f"{place}.lock"):
        if not place.exists():
            done = build(place)
            assert done.returncode == 0, done.stderr
    return place
