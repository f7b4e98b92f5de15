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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.client.settings import NAME
from sordino.errors import InvalidInput
from sordino.parts.toml import inline
from sordino.storage.files import make_folder, write_whole

if TYPE_CHECKING:
    from sordino.recipe import Recipe

WAIT = 600.0  #: seconds in which enough clients must have joined
PATIENCE = 60.0  #: seconds until a client that cannot be reached is not waited for any more
FILES = ("coordinator_key", "shuffler_token", "shuffler_key", "shuffler_trusted")

_SERVER = '''"""The coordinator's side, from Sordino."""

from pathlib import Path

from sordino.flower.server_app import server_app

app = server_app(Path(__file__).with_name("recipe.toml"))
'''

_CLIENT = '''"""The relay, from Sordino."""

from sordino.flower.client_app import app

__all__ = ["app"]
'''


@dataclass(frozen=True)
class RunConfig:
    """A run's settings: what `[tool.flwr.app.config]` says, and what `flwr run --run-config` changes of it.

    Paths are of the SuperLink's machine. The run is kept in `runs` under the federation's name, so that an app that is
    started again goes on where the last one stopped. `members` are the clients' names in the order of their numbers; if
    left out, numbers are given in the order in which clients appear.
    """

    federation: str  #: the name that clients agree to
    runs: Path
    members: tuple[str, ...] = ()
    wait: float = WAIT
    patience: float = PATIENCE
    gateways: int = 0  #: nodes that answer for equal shares of the clients each (`sordino serve --gateway`); 0: none
    coordinator_key: Path | None = None  #: with the key that signs plans; if left out it lies beside the run
    shuffler_token: Path | None = None  #: the server's files for a shuffler's service, where reports go through one
    shuffler_key: Path | None = None
    shuffler_trusted: Path | None = None  #: the certificate of a test set-up

    def __post_init__(self) -> None:
        for name in (self.federation, *self.members):
            if not NAME.fullmatch(name):
                raise InvalidInput(
                    "names of federation and members have letters, digits, dots, - and _, at most 100, got "
                    f"{name[:120]!r}"
                )
        if not (self.wait > 0 and self.patience > 0):
            raise InvalidInput(f"wait and patience are seconds > 0, got {self.wait!r} and {self.patience!r}")

    @property
    def shuffler(self) -> dict[str, Path]:
        """The server's files for a shuffler's service, by name."""
        files = {"token": self.shuffler_token, "key": self.shuffler_key, "trusted": self.shuffler_trusted}
        return {name: path for name, path in files.items() if path is not None}

    def settings(self) -> dict[str, object]:
        """The settings as Flower keeps them; what is not set is left out, but for `members`."""
        found: dict[str, object] = {}
        for name, value in vars(self).items():
            if isinstance(value, Path):
                value = str(value.expanduser().absolute())
            if value or name == "members":
                found[name.replace("_", "-")] = ",".join(value) if isinstance(value, tuple) else value
        return found

    @classmethod
    def read(cls, given: Mapping[str, object]) -> RunConfig:
        """The settings in a run's configuration."""
        said = {name.replace("-", "_"): str(value).strip() for name, value in given.items()}
        federation, runs = said.get("federation", ""), said.get("runs", "")
        if not federation or not Path(runs).is_absolute():
            raise InvalidInput(
                f"the run's configuration needs federation (a name) and runs (a whole path on this machine), got "
                f"{federation!r} and {runs!r}: write the app anew with sordino.flower.write_app"
            )
        try:
            return cls(
                federation,
                Path(runs),
                tuple(name.strip() for name in said.get("members", "").split(",") if name.strip()),
                float(said.get("wait") or WAIT),
                float(said.get("patience") or PATIENCE),
                int(said.get("gateways") or 0),
                *(Path(said[name]) if said.get(name) else None for name in FILES),
            )
        except ValueError:
            raise InvalidInput("wait and patience are seconds in the run's configuration, gateways a number") from None


def write_app(folder: str | Path, recipe: Recipe, config: RunConfig, *, publisher: str = "local") -> Path:
    """Write the folder that `flwr run` takes, and return it; a folder that holds something else is refused."""
    from sordino.client.invitation import check_real

    place, nodes, members = Path(folder), config.gateways or recipe.number_of_clients, config.members
    if members and (len(members) != nodes or len(set(members)) != len(members)):
        raise InvalidInput(
            f"members names {len(members)} clients ({len(set(members))} different ones) and the recipe has "
            f"{nodes}: name each once, or none at all"
        )
    check_real(recipe)
    if not recipe.method.channel.posts:
        config = replace(config, shuffler_token=None, shuffler_key=None, shuffler_trusted=None)
    elif not (config.shuffler_token and config.shuffler_key):
        raise InvalidInput("reports of this recipe go through a shuffler: give shuffler_token and shuffler_key")
    files = {
        "pyproject.toml": _project(config, publisher),
        "federation/__init__.py": f'"""The federation {config.federation}."""\n',
        "federation/recipe.toml": recipe.to_toml(),
        "federation/server.py": _SERVER,
        "federation/client.py": _CLIENT,
    }
    _make(place, files)
    for path, text in files.items():
        write_whole(place / path, text.encode())
    return place


def _project(config: RunConfig, publisher: str) -> str:
    # Sordino is no dependency here: it must be what the owner installed, never what an index serves by that name.
    lines = [f"{key} = {inline(value)}" for key, value in config.settings().items()]
    return f"""[project]
name = {inline(app_name(config.federation))}
version = "1.0.0"
description = {inline(f"The federation {config.federation}, run by Sordino")}
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
    found = {str(path.relative_to(place)) for path in place.rglob("*") if "__pycache__" not in path.parts}
    if other := sorted(found - {*files, "federation"}):
        raise InvalidInput(f"{place} holds other files ({', '.join(other[:3])}): give a new folder for the app")
    make_folder(place / "federation")


__all__ = ["PATIENCE", "WAIT", "RunConfig", "app_name", "write_app"]
