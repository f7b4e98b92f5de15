"""The app that `flwr run` sends to a SuperLink: a recipe, and two lines of code that are Sordino's own.

    pyproject.toml              what Flower reads: the two components and the run's settings
    federation/recipe.toml      the recipe, complete
    federation/server.py        the coordinator's side
    federation/client.py        the relay

Nodes receive all of it, the recipe with the paths that are written in it. A client trusts none of it: what decides is
the owner's own `sordino client`, and what it agreed to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.client.settings import NAME
from sordino.errors import InvalidInput
from sordino.parts.toml import inline
from sordino.storage.files import NotWritten, write_whole

if TYPE_CHECKING:
    from sordino.recipe import Recipe

WAIT = 600.0  #: seconds in which enough clients must have joined
PATIENCE = 60.0  #: seconds until a client that cannot be reached is not waited for any more

_SERVER = '''"""The coordinator's side, from Sordino."""

from pathlib import Path

from sordino.flower.server_app import server_app

app = server_app(Path(__file__).with_name("recipe.toml"))
'''

_CLIENT = '''"""The relay, from Sordino."""

from sordino.flower.client_app import app

__all__ = ["app"]
'''


def write_app(
    folder: str | Path,
    recipe: Recipe,
    *,
    runs: str | Path,
    federation: str = "",
    members: Sequence[str] = (),
    wait: float = WAIT,
    patience: float = PATIENCE,
    shuffler_token: str | Path = "",
    shuffler_key: str | Path = "",
    shuffler_trusted: str | Path = "",
    coordinator_key: str | Path = "",
    gateways: int = 0,
    publisher: str = "local",
) -> Path:
    """Write the folder that `flwr run` takes, and return it; a folder that holds something else is refused.

    `runs` is a folder on the SuperLink's machine: the run is kept there under the federation's name, so that an app
    that is started again goes on where the last one stopped. `federation` is the name that clients agree to (the
    recipe's if left out), `members` are the clients' names in the order of their numbers (if left out, numbers are
    given in the order in which clients appear). Where reports go through a shuffler's service, `shuffler_token` and
    `shuffler_key` are the server's files for it on the SuperLink's machine, and `shuffler_trusted` the certificate of
    a test set-up. `coordinator_key` is the file there with the key that signs plans, made at the first start where
    there is none; if left out it lies beside the run. With `gateways`, so many nodes answer for equal shares of the
    clients each (`sordino serve --gateway`); `members` are then their names.
    """
    place, name = Path(folder), federation or recipe.name
    _check(recipe, name, members, gateways or recipe.number_of_clients, wait, patience)
    settings: dict[str, object] = {
        "federation": name,
        "runs": _whole(runs),
        "members": ",".join(members),
        "wait": float(wait),
        "patience": float(patience),
        **({"coordinator-key": _whole(coordinator_key)} if coordinator_key else {}),
        **({"gateways": gateways} if gateways else {}),
    }
    if recipe.method.channel.posts:
        if not (shuffler_token and shuffler_key):
            raise InvalidInput("reports of this recipe go through a shuffler: give shuffler_token and shuffler_key")
        settings |= {"shuffler-token": _whole(shuffler_token), "shuffler-key": _whole(shuffler_key)}
        settings |= {"shuffler-trusted": _whole(shuffler_trusted)} if shuffler_trusted else {}
    files = {
        "pyproject.toml": _project(recipe, name, publisher, settings),
        "federation/__init__.py": f'"""The federation {name}."""\n',
        "federation/recipe.toml": recipe.to_toml(),
        "federation/server.py": _SERVER,
        "federation/client.py": _CLIENT,
    }
    _make(place, files)
    for path, text in files.items():
        write_whole(place / path, text.encode())
    return place


def _check(recipe: Recipe, federation: str, members: Sequence[str], nodes: int, wait: float, patience: float) -> None:
    from sordino.client.invitation import check_real

    if not NAME.fullmatch(federation):
        raise InvalidInput(
            f"a federation's name has letters, digits, dots, - and _, at most 100, got {federation[:120]!r}: give "
            "another with federation="
        )
    if members and (len(members) != nodes or len(set(members)) != len(members)):
        raise InvalidInput(
            f"members names {len(members)} clients ({len(set(members))} different ones) and the recipe has "
            f"{nodes}: name each once, or none at all"
        )
    for member in members:
        if not NAME.fullmatch(member):
            raise InvalidInput(f"a client's name has letters, digits, dots, - and _, at most 100, got {member!r}")
    if not (wait > 0 and patience > 0):
        raise InvalidInput(f"wait and patience are seconds > 0, got {wait!r} and {patience!r}")
    check_real(recipe)


def _whole(path: str | Path) -> str:
    return str(Path(path).expanduser().absolute())


def _project(recipe: Recipe, federation: str, publisher: str, settings: dict[str, object]) -> str:
    # Sordino is no dependency here: it must be what the owner installed, never what an index serves by that name.
    lines = [f"{key} = {inline(value)}" for key, value in settings.items()]
    return f"""[project]
name = {inline(app_name(federation))}
version = "1.0.0"
description = {inline(f"The federation {federation}, run by Sordino")}
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = {inline(publisher)}

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

[tool.flwr.app.config]
{chr(10).join(lines)}
"""


def app_name(federation: str) -> str:
    """A federation's name as Flower allows names: letters, digits and hyphens, a letter first, not too long."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", federation).strip("-").lower()
    return f"sordino-{plain}"[:32].rstrip("-")


def _make(place: Path, files: dict[str, str]) -> None:
    """Make the folders; what lies there and was not written by `write_app` is not touched."""
    known = {*files, "federation"}
    try:
        found = {str(path.relative_to(place)) for path in place.rglob("*") if "__pycache__" not in path.parts}
        if other := sorted(found - known):
            raise InvalidInput(f"{place} holds other files ({', '.join(other[:3])}): give a new folder for the app")
        (place / "federation").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritten(f"{place} could not be made ({error.strerror or error}): give another folder") from None


__all__ = ["PATIENCE", "WAIT", "app_name", "write_app"]
