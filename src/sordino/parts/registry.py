"""Where every part is found: shipped ones by name, those of installed packages by entry points, others by address.

A package offers its parts under the entry point group `sordino.parts`, as `mechanism.mine = "package.module:Class"`.
An address `package.module:Class` names a table (`Spec`), or a class that holds its table as `Spec`. Nothing is imported
before a recipe names it, and of text that came from elsewhere only what `own_code` allows.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from sordino.errors import InvalidInput, SordinoError
from sordino.parts.shipped import MODELS, SHIPPED, SOURCES
from sordino.parts.tables import Spec
from sordino.parts.toml import shown

GROUP = "sordino.parts"
ADDRESS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Everything(Container[str]):
    """Contains every address: a person's own files may name any code on the machine."""

    def __contains__(self, address: object) -> bool:
        return True


EVERYTHING = Everything()
_folders: dict[Path, None] = {}  # of recipes that were read from files
_allowed: ContextVar[Container[str]] = ContextVar("own code that recipes may name", default=EVERYTHING)


class AddressLog(Container[str]):
    """Contains every address, and keeps those that were asked for."""

    def __init__(self) -> None:
        self.addresses: dict[str, None] = {}

    def __contains__(self, address: object) -> bool:
        self.addresses[str(address)] = None
        return True


class CodeNotAllowed(SordinoError):
    """A recipe from elsewhere names code that the owner of this machine has not listed."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(f"the recipe names {address}, which is no part of Sordino and is not listed as allowed")


@contextmanager
def own_code(allowed: Container[str]) -> Iterator[None]:
    """Within it, recipes may name these addresses and no other code than Sordino's."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def check_allowed(address: str) -> None:
    """Refuse an address of code that recipes may not name here."""
    if address not in _allowed.get():
        raise CodeNotAllowed(address)


def own_address(part: str, name: str) -> str | None:
    """The address of somebody's own part, which is named by it or offered by an installed package; None for others."""
    return name if ADDRESS.fullmatch(name) else _installed().get(part, {}).get(name)


def allowed_model(name: str) -> str:
    """The name of a model; one's own only where it may be named."""
    if name not in MODELS and (address := own_address("model", name)):
        check_allowed(address)
    return name


def allowed_source(name: str) -> str:
    """The name of a data source; a function of one's own only where it may be named."""
    if ADDRESS.fullmatch(name) and name not in SOURCES:
        check_allowed(name)
    return name


@cache
def _installed() -> dict[str, dict[str, str]]:
    """The parts that installed packages offer, by kind and name."""
    found: dict[str, dict[str, str]] = {}
    for entry in sorted(entry_points(group=GROUP)):
        part, _, name = entry.name.partition(".")
        address, same = f"{entry.module}:{entry.attr}", found.setdefault(part.replace("-", " "), {})
        if same.setdefault(name, address) != address:
            raise InvalidInput(
                f"two installed packages offer {entry.name}: {same[name]} and {address}. Uninstall one of them, or "
                "name the part by its address"
            )
    return found


def address_of(part: str, name: str) -> str | None:
    """Where a part is found by its name or address; None for a name that is not known."""
    if (shipped := SHIPPED[part].get(name)) is not None:
        return shipped
    if (own := own_address(part, name)) is not None:
        check_allowed(own)
    return own


def addresses(part: str) -> dict[str, str]:
    """Where all known parts of a kind are found that may be used here, by name."""
    shipped, installed = SHIPPED[part], _installed().get(part, {})
    return {**shipped, **{n: own for n, own in installed.items() if n not in shipped and own in _allowed.get()}}


def find(part: str, name: str) -> type[Spec] | None:
    """The table of a part by its name or address; None for a name that is not known."""
    address = address_of(part, name)
    return None if address is None else _table(address)


@cache
def _table(address: str) -> type[Spec]:
    made = load(address)
    table = made if isinstance(made, type) and issubclass(made, Spec) else getattr(made, "Spec", None)
    if not (isinstance(table, type) and issubclass(table, Spec)):
        raise InvalidInput(
            f"{address} is no part: it must be a table (sordino.parts.tables.Spec) or a class that holds one as Spec"
        )
    return table


def load(address: str) -> Any:
    """What an address names; nothing else than `package.module:Class` is imported."""
    if not ADDRESS.fullmatch(address):
        raise InvalidInput(f"own code is named as 'package.module:Class', got {shown(address)}")
    module_name, _, name = address.partition(":")
    try:
        return getattr(_module(module_name), name)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"{address} could not be imported as 'package.module:Class': {error}. Install that module, go to the "
            "folder that holds it, or add its folder to PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        why = f"it ends the program ({error})" if isinstance(error, SystemExit) else error
        raise InvalidInput(f"{address} could not be imported as 'package.module:Class': {why}") from error


def search_beside(folder: Path) -> None:
    """Let own parts be found in the folder of a recipe's file, after all other places."""
    _folders[folder] = None


def digest(address: str) -> str:
    """SHA-256 of the file that holds what an address names: another one where the code has changed."""
    found = importlib.util.find_spec(address.partition(":")[0])
    place = Path(found.origin) if found is not None and found.origin else None
    return hashlib.sha256(place.read_bytes() if place is not None and place.is_file() else b"").hexdigest()


def _module(name: str) -> ModuleType:
    """The module of that name: an installed one, or else one in the current folder or beside a recipe's file.

    Python searches the folder it is started in only when it runs a module or a file from there, so that a program
    installed as a script would not find the file beside the recipe. These folders are the last that are searched:
    no file in them takes the place of a library, and workers, which search where this process does, find it too.
    """
    for folder in (Path.cwd(), *_folders):
        if not sys.flags.safe_path and str(folder) not in sys.path and not ("" in sys.path and folder == Path.cwd()):
            sys.path.append(str(folder))
    return importlib.import_module(name)


def tables(part: str) -> dict[str, type[Spec]]:
    """The tables of all known parts of a kind that may be used here; what cannot be imported is left out, and said."""
    found = {}
    for name, address in addresses(part).items():
        try:
            found[name] = _table(address)
        except InvalidInput as error:
            warnings.warn(f"an installed {part} is left out: {error}", stacklevel=2)
    return found


def make(part: str, name: str, **keys: object) -> Any:
    """The table of a known part with these keys."""
    found = find(part, name)
    assert found is not None
    return found(**keys)
