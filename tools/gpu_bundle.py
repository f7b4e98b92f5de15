"""Pack Sordino and the dependencies that a GPU machine is likely to lack into one archive: `make gpu-bundle`.

For a machine with PyTorch, numpy and scipy of its own, no network and no right to install anything. The archive holds
the source, wheels for the Python version named, and a launcher; unpack it there and run `sordino-bundle/sordino`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 25_000_000

#: What machines with PyTorch do not always have; what they have themselves comes first on the path.
PACKAGES = (
    "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions",
    "cryptography", "cffi", "pycparser",
    "dp-accounting", "dm-tree", "absl-py", "attrs", "mpmath", "wrapt",
    "typer", "click", "shellingham", "rich", "markdown-it-py", "mdurl", "pygments", "annotated-doc",
    "safetensors", "tomli-w",
)  # fmt: skip

LAUNCHER = """#!/bin/sh
# Runs Sordino from this folder: what the machine has comes first, what it lacks comes from here.
here=$(cd "$(dirname "$0")" && pwd)
# Images often come without compiled Python and forbid writing it: every start would compile all of PyTorch again.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="${PYTHONPYCACHEPREFIX:-$here/compiled}"
exec "${PYTHON:-python3}" "$here/launch.py" "$@"
"""

LAUNCH = '''"""Start Sordino from this folder."""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here / "src"))
sys.path.append(str(here / "site"))

from sordino.cli import app  # noqa: E402

app(prog_name="sordino")
'''


def wanted() -> list[str]:
    """The packages at the versions that Sordino is tested with."""
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and line[0] != "#"
    )
    names = {name.lower().replace("_", "-"): version.strip() for name, version in pinned.items()}
    return [f"{name}=={names[name]}" for name in PACKAGES if name in names]


def fetch(site: Path, python: str, platforms: list[str]) -> None:
    """Unpack wheels for another Python into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--target", str(site), "--python-version", python, "--only-binary=:all:", "--no-compile"]
    command += [part for platform in platforms for part in ("--platform", platform)]
    subprocess.run([*command, *wanted()], check=True)


def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what running does not need, and whatever differs from one packing to the next."""
    if any(part in ("__pycache__", "tests", "bin") for part in Path(member.name).parts):
        return None
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


def main() -> None:
    """Pack the archive and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="the Python version of the other machine")
    parser.add_argument(
        "--platform", action="append", help="its platform tags (default: Linux on x86-64)", default=None
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "sordino-bundle.tar.gz")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        fetch(folder / "site", given.python, given.platform or ["manylinux2014_x86_64", "manylinux_2_28_x86_64"])
        (folder / "sordino").write_text(LAUNCHER)
        (folder / "sordino").chmod(0o755)
        (folder / "launch.py").write_text(LAUNCH)
        with tarfile.open(given.out, "w:gz", compresslevel=9) as archive:
            for name in ("sordino", "launch.py", "site"):
                archive.add(folder / name, f"sordino-bundle/{name}", filter=kept)
            for name in ("src", "papers"):
                archive.add(ROOT / name, f"sordino-bundle/{name}", filter=kept)
    size = given.out.stat().st_size
    print(
        f"{given.out}: {size / 1e6:.1f} MB, for Python {given.python}. Unpack it there and run sordino-bundle/sordino"
    )
    if size > LIMIT:
        sys.exit(f"it is larger than {LIMIT / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
