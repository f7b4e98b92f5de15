"""What a server sends before anything else: the recipe, the federation's name, the client's number, who signs plans.

    "SI" | version u8 | reserved u8 | JSON, sorted and without spaces

Everything in it is public: the recipe's seed as well, which decides where training starts and nothing that a client
draws. It is canonical, so that two invitations are equal where their bytes are. Version 1 named no coordinator's key.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from sordino.client.settings import NAME
from sordino.errors import InvalidInput
from sordino.recipe import Recipe
from sordino.signing import Author

if TYPE_CHECKING:
    from sordino.learning.examples import Dataset

VERSION = 2
LONGEST = 2**20  #: bytes of an invitation
_HEAD = struct.Struct("<2sBx")


def check_real(recipe: Recipe) -> None:
    """Refuse what only a simulation can stand for: real clients take no part in it."""
    if recipe.method.name == "central-dp":
        raise InvalidInput(
            "the server's noise of central-dp follows from the recipe's seed, which invitations make public: its "
            "clients could take the noise off. It is a baseline for simulations"
        )
    kind = recipe.method.channel.kind
    if kind in ("shuffled", "relay"):
        raise InvalidInput(
            f"method.channel.kind = {kind!r} stands for somebody trusted between clients and server, whom a simulation "
            "plays itself: over a network the server would be that somebody, and see every report. Take "
            "method.channel.kind = summed (the server learns sums alone), shuffler (a service of somebody else's) or "
            "direct"
        )


@dataclass(frozen=True)
class Invitation:
    """A federation's terms for one client, its coordinator's key with all rotations, and the last receipt if any."""

    federation: str  #: the name that plans carry
    client: int  #: this client's number, from 0 on
    recipe: str  #: complete, as TOML
    shape: tuple[int, ...]  #: of a record
    classes: tuple[str, ...]  #: names of all classes, in order
    mean: tuple[float, ...] = (0.0,)  #: public constants by which records are normalised
    std: tuple[float, ...] = (1.0,)
    coordinator: str = ""  #: the first public key that signs plans, hexadecimal; empty in agreements of version 1 alone
    rotations: tuple[str, ...] = ()  #: hexadecimal
    receipt: str = ""  #: hexadecimal

    @classmethod
    def of(cls, recipe: Recipe, federation: str, client: int, dataset: Dataset, author: Author) -> Invitation:
        """The invitation of one client to a recipe; of the data set only what is public about it is told."""
        check_real(recipe)
        channel = recipe.method.channel
        if channel.kind == "shuffler" and not (channel.url and channel.key):
            raise InvalidInput(
                "method.channel.url and method.channel.key are missing: clients must know which shuffler they send to, "
                "and for whom they seal (sordino shuffler keys prints the key)"
            )
        normalisation = dataset.normalisation
        return cls(
            federation, client, _without_places(recipe).to_toml(), tuple(dataset.shape), tuple(dataset.classes),
            normalisation.mean, normalisation.std, author.first.hex(),
            tuple(rotation.hex() for rotation in author.rotations),
        )  # fmt: skip

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.federation):
            raise InvalidInput(
                f"a federation's name has letters, digits, dots, - and _, at most 100, got {self.federation[:120]!r}"
            )
        if not 0 <= self.client < 2**32:
            raise InvalidInput(f"a client's number lies in 0 .. 2^32-1, got {self.client}")

    @property
    def terms(self) -> Invitation:
        """What is agreed to: all but what changes later."""
        return replace(self, receipt="", rotations=())

    @property
    def author(self) -> Author:
        """Who signs plans; a rotation that the key before did not sign is refused."""
        return Author.of(self.coordinator, self.rotations)

    def encode(self) -> bytes:
        """The bytes that are sent."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return _HEAD.pack(b"SI", VERSION) + text.encode()

    @classmethod
    def decode(cls, message: bytes) -> Invitation:
        """The invitation that `encode` wrote; anything else is refused."""
        if not _HEAD.size <= len(message) <= LONGEST:
            raise InvalidInput(f"an invitation has {_HEAD.size} to {LONGEST:,} bytes, got {len(message):,}")
        magic, version = _HEAD.unpack_from(message)
        if magic != b"SI":
            raise InvalidInput("this is not an invitation to a federation")
        if version == 1:
            raise InvalidInput(
                "this invitation is of version 1, which does not say who signs plans: ask the coordinator for a new "
                "one, of this version of Sordino, and join with that"
            )
        if version != VERSION:
            raise InvalidInput(f"this invitation speaks version {version} of the protocol, here it is {VERSION}")
        found = _read(message[_HEAD.size :])
        if found.encode() != message:
            raise InvalidInput("an invitation is not in its canonical form: ask for it again")
        found.author  # noqa: B018 (refused where it is none)
        return found

    def stored(self) -> bytes:
        """The terms as a client's agreement keeps them."""
        return self.terms.encode()[_HEAD.size :]

    @classmethod
    def agreed(cls, text: bytes) -> Invitation:
        """The terms that `stored` wrote; those of version 1 have no coordinator."""
        return _read(text)


def _read(text: bytes) -> Invitation:
    try:
        return _built({"coordinator": "", "rotations": [], **json.loads(text)})
    except InvalidInput:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(f"an invitation is damaged ({type(error).__name__}): ask for it again") from None


def _built(fields: Any) -> Invitation:
    def texts(values: Any) -> tuple[str, ...]:
        return tuple(_exactly(str, value) for value in _exactly(list, values))

    def numbers(values: Any) -> tuple[float, ...]:
        return tuple(_exactly(float, value) for value in _exactly(list, values))

    return Invitation(
        federation=_exactly(str, fields["federation"]),
        client=_exactly(int, fields["client"]),
        recipe=_exactly(str, fields["recipe"]),
        shape=tuple(_exactly(int, side) for side in _exactly(list, fields["shape"])),
        classes=texts(fields["classes"]),
        mean=numbers(fields["mean"]),
        std=numbers(fields["std"]),
        coordinator=_exactly(str, fields["coordinator"]),
        rotations=texts(fields["rotations"]),
        receipt=_exactly(str, fields["receipt"]),
    )


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} in the place of a {kind.__name__}")
    return value


def _without_places(recipe: Recipe) -> Recipe:
    """The recipe without folders of the server's machine and without its split, which mean nothing elsewhere."""
    tables = recipe.to_dict()
    tables["split"] = {"kind": "iid", "clients": recipe.number_of_clients, "at_least": 0}
    for key in ("source", "test"):
        place = tables["data"].get(key)
        if isinstance(place, str) and ("/" in place or "\\" in place):
            tables["data"][key] = f"./{PurePath(place.replace(chr(92), '/')).name}"
    return Recipe.from_dict(tables)


__all__ = ["LONGEST", "Invitation", "check_real"]
