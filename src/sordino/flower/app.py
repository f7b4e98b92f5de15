"""The app that `flwr run` sends to a SuperLink: two relays of Sordino's, and nothing of the federation itself.

    pyproject.toml              what Flower reads: the two components and where the coordinator listens
    federation/server.py        the relay beside the coordinator
    federation/client.py        the relay beside each client

What decides is the coordinator's own process, and each owner's own `sordino client`.
"""

from __future__ import annotations

import re
from pathlib import Path

from sordino.errors import InvalidInput
from sordino.parts.toml import inline
from sordino.storage.files import make_folder, write_whole

_SERVER = '''"""The relay beside the coordinator, from Sordino."""

from sordino.flower.server_app import app

__all__ = ["app"]
'''

_CLIENT = '''"""The relay beside a client, from Sordino."""

from sordino.flower.client_app import app

__all__ = ["app"]
'''


def write_app(folder: str | Path, federation: str, coordinator: str | Path, *, publisher: str = "local") -> Path:
    """Write the folder that `flwr run` takes, and return it; a folder that holds something else is refused.

    `coordinator` is the socket of `sordino coordinator serve`, on the SuperLink's machine.
    """
    place = Path(folder)
    files = {
        "pyproject.toml": _project(federation, Path(coordinator), publisher),
        "federation/__init__.py": f'"""The federation {federation}."""\n',
        "federation/server.py": _SERVER,
        "federation/client.py": _CLIENT,
    }
    _make(place, files)
    for path, text in files.items():
        write_whole(place / path, text.encode())
    return place


def _project(federation: str, coordinator: Path, publisher: str) -> str:
    # Sordino is no dependency here: it must be what the owner installed, never what an index serves by that name.
    return f"""[project]
name = {inline(app_name(federation))}
version = "1.0.0"
description = {inline(f"The federation {federation}, run by Sordino")}
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.43"]

[tool.flwr.app]
publisher = {inline(publisher)}

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

[tool.flwr.app.config]
coordinator = {inline(str(coordinator.expanduser().absolute()))}
"""


def app_name(federation: str) -> str:
    """A federation's name as Flower allows names: letters, digits and hyphens, a letter first, not too long."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", federation).strip("-").lower()
    return f"sordino-{plain}"[:32].rstrip("-")


def _make(place: Path, files: dict[str, str]) -> None:
    """Make the folders; what lies there and was not written by `write_app` is not touched."""
    found = {str(path.relative_to(place)) for path in place.rglob("*") if "__pycache__" not in path.parts}
    if other := sorted(found - {*files, "federation"}):
        raise InvalidInput(f"{place} holds other files ({', '.join(other[:3])}): give a new folder for the app")
    make_folder(place / "federation")


__all__ = ["app_name", "write_app"]
