"""What a server sends before anything else: the recipe, the federation's name, the client's number, who signs plans.

    "SI" | version u8 | reserved u8 | JSON, sorted and without spaces

Everything in it is public: the recipe's seed as well, which decides where training starts and nothing that a client
draws. It is canonical, so that two invitations are equal where their bytes are. The coordinator signs the terms that
all members share and the numbers that an invitation may give. Version 1 named no key, version 2 was not signed.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from sordino.client.settings import NAME
from sordino.errors import InvalidInput
from sordino.parts.toml import deepest_key
from sordino.recipe import Recipe
from sordino.signing import Author, SigningKey

if TYPE_CHECKING:
    from sordino.learning.examples import Dataset

VERSION = 3
LONGEST = 2**20  #: bytes of an invitation
LONGEST_RECIPE = 2**17  #: letters of a recipe in it: read in some seconds, whatever is wrong with it
DEEPEST_KEY = 16  #: parts of a dotted key in it; no recipe needs more than five
_TERMS = b"sordino terms 1\0"
_HEAD = struct.Struct("<2sBx")


def check_real(recipe: Recipe) -> None:
    """Refuse what only a simulation can stand for: real clients take no part in it."""
    if recipe.method.simulation_only:
        raise InvalidInput(recipe.method.simulation_only)
    kind = recipe.method.channel.kind
    if recipe.method.channel.simulated:
        raise InvalidInput(
            f"method.channel.kind = {kind!r} stands for somebody trusted between clients and server, whom a simulation "
            "plays itself: over a network the server would be that somebody, and see every report. Take "
            "method.channel.kind = summed (the server learns sums alone), shuffler (a service of somebody else's) or "
            "direct"
        )


class NotSigned(InvalidInput):
    """An invitation that the coordinator it names did not sign."""


@dataclass(frozen=True)
class CommonTerms:
    """What all members of a federation agree to. Every plan is signed together with the digest of it."""

    federation: str  #: the name that plans carry
    recipe: str  #: complete, as TOML
    shape: tuple[int, ...]  #: of a record
    classes: tuple[str, ...]  #: names of all classes, in order
    mean: tuple[float, ...]  #: public constants by which records are normalised
    std: tuple[float, ...]
    coordinator: str  #: the first public key that signs plans, hexadecimal

    @classmethod
    def of(cls, recipe: Recipe, federation: str, dataset: Dataset, author: Author) -> CommonTerms:
        """The terms of a recipe for real clients; of the data set only what is public about it is told."""
        check_real(recipe)
        channel = recipe.method.channel
        if channel.kind == "shuffler" and not (channel.url and channel.key):
            raise InvalidInput(
                "method.channel.url and method.channel.key are missing: clients must know which shuffler they send to, "
                "and for whom they seal (sordino shuffler keys prints the key)"
            )
        normalisation = dataset.normalisation
        text = _without_places(recipe).to_toml()
        check_text(text)
        return cls(
            federation, text, tuple(dataset.shape), tuple(dataset.classes),
            normalisation.mean, normalisation.std, author.first.hex(),
        )  # fmt: skip

    @property
    def digest(self) -> bytes:
        """SHA-256 that names these terms (docs/wire.md, Invitations)."""
        return hashlib.sha256(_TERMS + _canonical(asdict(self))).digest()

    def invitation(self, client: int, key: SigningKey, places: range | None = None) -> Invitation:
        """The invitation of one client, signed; where a gateway hands it on, for all its `places`."""
        own = range(client, client + 1) if places is None else places
        return Invitation(
            **vars(self), client=client, places=(own[0], own[-1]),
            rotations=tuple(rotation.hex() for rotation in key.author.rotations),
            signature=key.invitation(self.digest, own).hex(),
        )  # fmt: skip


def check_text(recipe: str) -> None:
    """Refuse a recipe's text that would take long to read, before it is read."""
    if len(recipe) > LONGEST_RECIPE:
        raise InvalidInput(
            f"a recipe in an invitation has at most {LONGEST_RECIPE:,} letters, got {len(recipe):,}: shorten lists, "
            "such as clients.epsilon, to a rule ({ uniform = [2, 8] }) or to one number"
        )
    if (parts := deepest_key(recipe)) > DEEPEST_KEY:
        raise InvalidInput(f"a key of a recipe in an invitation has at most {DEEPEST_KEY} parts, got {parts:,}")


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
    places: tuple[int, ...] = ()  #: first and last of the numbers that the signature is for
    signature: str = ""  #: of the coordinator, over the common terms and the places; hexadecimal

    @classmethod
    def of(cls, recipe: Recipe, federation: str, client: int, dataset: Dataset, key: SigningKey) -> Invitation:
        """The invitation of one client to a recipe, signed."""
        return CommonTerms.of(recipe, federation, dataset, key.author).invitation(client, key)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.federation):
            raise InvalidInput(
                f"a federation's name has letters, digits, dots, - and _, at most 100, got {self.federation[:120]!r}"
            )
        if not 0 <= self.client < 2**32:
            raise InvalidInput(f"a client's number lies in 0 .. 2^32-1, got {self.client}")

    @property
    def terms(self) -> Invitation:
        """What is agreed to: all but what changes later, and the signature."""
        return replace(self, receipt="", rotations=(), places=(), signature="")

    @property
    def common(self) -> CommonTerms:
        """What all members agree to."""
        return CommonTerms(**{field.name: getattr(self, field.name) for field in fields(CommonTerms)})

    @property
    def author(self) -> Author:
        """Who signs plans; a rotation that the key before did not sign is refused."""
        return Author.of(self.coordinator, self.rotations)

    def encode(self) -> bytes:
        """The bytes that are sent."""
        return _HEAD.pack(b"SI", VERSION) + _canonical(asdict(self))

    @classmethod
    def decode(cls, message: bytes) -> Invitation:
        """The invitation that `encode` wrote, if the coordinator that it names signed it; anything else is refused."""
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
        if version == 2:
            raise InvalidInput(
                "this invitation is of version 2, which its coordinator did not sign: ask the coordinator for a new "
                "one, of this version of Sordino, and join with that"
            )
        if version != VERSION:
            raise InvalidInput(f"this invitation speaks version {version} of the protocol, here it is {VERSION}")
        found = _read(message[_HEAD.size :])
        if found.encode() != message:
            raise InvalidInput("an invitation is not in its canonical form: ask for it again")
        found.require_signature()
        return found

    def require_signature(self) -> None:
        """Refuse it where its coordinator did not sign these terms for this client."""
        author = self.author  # refused where it is none
        try:
            first, last = self.places
            places, signature = range(first, last + 1), bytes.fromhex(self.signature)
        except ValueError:
            places, signature = range(0), b""
        if self.client not in places or not author.invites(self.common.digest, places, signature):
            raise NotSigned(
                f"the coordinator that an invitation to {self.federation} names did not sign it, for these terms and "
                f"client {self.client}: somebody changed it, or made it up. Ask the coordinator for it again"
            )

    def renews(self, before: Invitation) -> bool:
        """Whether this is the same invitation, with no fewer rotations of the key."""
        return self.terms == before.terms and self.author.follows(before.author)

    def stored(self) -> bytes:
        """The terms as a client's agreement keeps them."""
        return self.terms.encode()[_HEAD.size :]

    @classmethod
    def agreed(cls, text: bytes) -> Invitation:
        """The terms that `stored` wrote; those of version 1 have no coordinator."""
        return _read(text)


def _read(text: bytes) -> Invitation:
    try:
        return _built({"coordinator": "", "rotations": [], "places": [], "signature": "", **json.loads(text)})
    except InvalidInput:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(f"an invitation is damaged ({type(error).__name__}): ask for it again") from None


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


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
        places=tuple(_exactly(int, place) for place in _exactly(list, fields["places"])),
        signature=_exactly(str, fields["signature"]),
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


__all__ = [
    "DEEPEST_KEY", "LONGEST", "LONGEST_RECIPE", "CommonTerms", "Invitation", "NotSigned", "check_real", "check_text",
]  # fmt: skip
