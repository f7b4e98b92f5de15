"""What a server sends before anything else: the recipe, the federation's name, the client's number, who signs plans.

    "SI" | version u8 | 0 u8 | JSON, sorted and without spaces

Everything in it is public: the recipe's seed as well, which decides where training starts and nothing that a client
draws. It is canonical, so that two invitations are equal where their bytes are. The coordinator signs the terms that
all members share and the numbers that an invitation may give.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from sordino.client.settings import NAME
from sordino.errors import InvalidInput
from sordino.parts.toml import deepest_key
from sordino.recipe import Recipe
from sordino.wire.codec import Buffer, Form, Layout, canonical, read_header
from sordino.wire.signing import Author, SigningKey

if TYPE_CHECKING:
    from sordino.learning.examples import Dataset

LONGEST = 2**20  #: bytes of an invitation
LONGEST_RECIPE = 2**17  #: letters of a recipe in it: read in some seconds, whatever is wrong with it
DEEPEST_KEY = 16  #: parts of a dotted key in it; no recipe needs more than five
_TERMS = b"sordino terms 1\0"
_INVITATION = Layout(b"SI", "an invitation")
_FORMS: dict[str, Form] = {
    "federation": str, "client": int, "recipe": str, "shape": [int], "classes": [str], "mean": [float], "std": [float],
    "coordinator": str, "rotations": [str], "receipt": str, "places": [int], "signature": str,
}  # fmt: skip


def check_real(recipe: Recipe) -> None:
    """Refuse a recipe that only a simulation can run, and that every client would refuse."""
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
    if recipe.attacks is not None:
        raise InvalidInput(
            "the recipe attacks its clients' reports ([attacks]), which is for simulations: leave that out, "
            "--set attacks="
        )
    if getattr(recipe.method, "announced_size", 1) == 0:
        raise InvalidInput(
            "the recipe does not say by which public size sums are divided, so that a client would tell its own: state "
            "about how many records a client has, --set method.announced_size=N"
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
    coordinator: str  #: the first public key that signs plans, hexadecimal; empty in the earliest agreements

    @staticmethod
    def of(recipe: Recipe, federation: str, dataset: Dataset, author: Author) -> CommonTerms:
        """The terms of a recipe for real clients; of the data set only what is public about it is told."""
        check_real(recipe)
        channel = recipe.method.channel
        if channel.posts and not (channel.url and channel.key):
            raise InvalidInput(
                "method.channel.url and method.channel.key are missing: clients must know which shuffler they send to, "
                "and for whom they seal (sordino shuffler keys prints the key)"
            )
        normalisation = dataset.normalisation
        text = _without_places(recipe, dataset).to_toml()
        check_text(text)
        return CommonTerms(
            federation, text, tuple(dataset.shape), tuple(dataset.classes),
            normalisation.mean, normalisation.std, author.first.hex(),
        )  # fmt: skip

    @property
    def common(self) -> CommonTerms:
        """These terms alone, without what an invitation adds to them."""
        return CommonTerms(**{field.name: getattr(self, field.name) for field in fields(CommonTerms)})

    @property
    def digest(self) -> bytes:
        """SHA-256 that names these terms (docs/wire.md, Invitations)."""
        return hashlib.sha256(_TERMS + canonical(asdict(self.common))).digest()

    def invitation(self, client: int, key: SigningKey, places: range | None = None) -> Invitation:
        """The invitation of one client, signed; where a gateway hands it on, for all its `places`."""
        own = range(client, client + 1) if places is None else places
        return Invitation(
            **vars(self.common), client=client, places=(own[0], own[-1]),
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
class Invitation(CommonTerms):
    """A federation's terms for one client, its coordinator's key with all rotations, and the last receipt if any."""

    client: int  #: this client's number, from 0 on
    rotations: tuple[str, ...] = ()  #: hexadecimal
    receipt: str = ""  #: hexadecimal
    places: tuple[int, ...] = ()  #: first and last of the numbers that the signature is for
    signature: str = ""  #: of the coordinator, over the common terms and the places; hexadecimal

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.federation):
            raise InvalidInput(
                f"a federation's name has letters, digits, dots, - and _, at most 100, got {self.federation[:120]!r}"
            )
        if not 0 <= self.client < 2**32:
            raise InvalidInput(f"a client's number lies in 0 .. 2^32-1, got {self.client}")

    @property
    def terms(self) -> Invitation:
        """What is agreed to: everything except the signature and what changes later."""
        return replace(self, receipt="", rotations=(), places=(), signature="")

    @property
    def author(self) -> Author:
        """Who signs plans; a rotation that the key before did not sign is refused."""
        return Author.of(self.coordinator, self.rotations)

    def encode(self) -> bytes:
        """The bytes that are sent."""
        return _INVITATION.pack(rest=canonical(asdict(self)))

    @classmethod
    def decode(cls, message: bytes) -> Invitation:
        """The invitation that `encode` wrote, if the coordinator that it names signed it; anything else is refused."""
        if len(message) > LONGEST:
            raise InvalidInput(f"an invitation has at most {LONGEST:,} bytes, got {len(message):,}")
        found = _read(_INVITATION.unpack(message).rest)
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
        if self.client not in places or not author.invites(self.digest, places, signature):
            raise NotSigned(
                f"the coordinator that an invitation to {self.federation} names did not sign it, for these terms and "
                f"client {self.client}: somebody changed it, or made it up. Ask the coordinator for it again"
            )

    def renews(self, before: Invitation) -> bool:
        """Whether this is the same invitation, with no fewer rotations of the key."""
        return self.terms == before.terms and self.author.follows(before.author)

    def stored(self) -> bytes:
        """The terms as a client's agreement keeps them."""
        return canonical(asdict(self.terms))

    @classmethod
    def agreed(cls, text: bytes) -> Invitation:
        """The terms that `stored` wrote; those of early versions name no coordinator, places or signature."""
        later = {"coordinator": "", "rotations": [], "places": [], "signature": ""}
        return _read(canonical({**later, **json.loads(text)}))


def _read(text: Buffer) -> Invitation:
    header = read_header(text, "an invitation", _FORMS)
    for name, value in header.items():
        header[name] = tuple(value) if type(value) is list else value
    return Invitation(**header)


def _without_places(recipe: Recipe, dataset: Dataset) -> Recipe:
    """The recipe without folders and functions of the server's machine and its split, which mean nothing elsewhere."""
    tables = recipe.to_dict()
    if recipe.data.origin == "function":
        public = {**dataset.described, "mean": dataset.normalisation.mean, "std": dataset.normalisation.std}
        tables["data"] = {**tables["data"], **public, "source": "./records.npz", "arguments": None}
    tables["split"] = {"kind": "iid", "clients": recipe.number_of_clients, "at_least": 0}
    for key in ("source", "test"):
        place = tables["data"].get(key)
        if isinstance(place, str) and ("/" in place or "\\" in place):
            tables["data"][key] = f"./{PurePath(place.replace(chr(92), '/')).name}"
    if recipe.data.columns:
        tables["data"]["columns"] = {name: rule.portable() for name, rule in recipe.data.columns.items()}
    if recipe.model.start_file is not None:  # its numbers travel in plans
        del tables["model"]["start"]
    return Recipe.from_dict(tables)


__all__ = [
    "DEEPEST_KEY", "LONGEST", "LONGEST_RECIPE", "CommonTerms", "Invitation", "NotSigned", "check_real", "check_text",
]  # fmt: skip
