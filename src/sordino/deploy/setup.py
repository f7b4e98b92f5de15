"""A new set-up: certificates, node keys, the Flower app, invitations and commands, a folder for each machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from shlex import quote

from sordino import channels
from sordino.client.invitation import CommonTerms, check_real
from sordino.client.own_records import OwnRecords
from sordino.client.settings import NAME
from sordino.deploy import certificates, commands, keys
from sordino.deploy.certificates import CertificateFacts, CertificatePair, checked_host
from sordino.deploy.deployment import AUTHORITY, FILE, KEY, SEALED_TO, SERVER, TOKEN, Deployment, sha256
from sordino.deploy.requirements import Requirements, requirements
from sordino.errors import InvalidInput
from sordino.flower.app import RunConfig, write_app
from sordino.learning.datasets import KNOWN
from sordino.privacy.guarantee import Adjacency
from sordino.privacy.terms import plain
from sordino.recipe import Recipe
from sordino.runs.federation import Federation, wire
from sordino.storage.files import NotWritten, write_whole
from sordino.wire.signing import SigningKey

PORT, NODE_PORT = 8000, 9094  #: of the server, and of a node's own processes, as Flower has them


@dataclass(frozen=True)
class SetupOptions:
    """Where the server is, how long its certificate lasts, and the first node's port on its own machine."""

    host: str
    port: int = PORT
    days: int = certificates.DAYS
    node_port: int = NODE_PORT

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", checked_host(self.host))
        for port in (self.port, self.node_port):
            if not 1 <= port <= 65535:
                raise InvalidInput(f"a port lies in 1 .. 65535, got {port}")


@dataclass(frozen=True)
class NewSetup:
    """A new set-up, and what every client is asked for."""

    deployment: Deployment
    requirements: tuple[Requirements, ...]
    ends: datetime  #: of the server's certificate


def member_names(count: int, given: Sequence[str]) -> tuple[str, ...]:
    """The clients' names: those given, else client-1, client-2, ..."""
    if not given:
        return tuple(f"client-{number + 1}" for number in range(count))
    if len(given) != count or len(set(given)) != len(given):
        raise InvalidInput(
            f"{len(given)} names were given ({len(set(given))} different ones), and there are {count} clients: name "
            "each once, or none"
        )
    for name in given:
        if not NAME.fullmatch(name) or name in (SERVER, AUTHORITY):
            raise InvalidInput(
                f"{name[:100]!r} cannot be a client's name: letters, digits, dots, - and _, at most 100, a letter or "
                f"digit first, and neither {SERVER} nor {AUTHORITY}"
            )
    return tuple(given)


def make(
    folder: Path, recipe: Recipe, place: SetupOptions, *, federation: str = "", members: Sequence[str] = ()
) -> NewSetup:
    """Write a whole set-up into an empty folder. Everything that can be wrong is found before anything is written."""
    check_real(recipe)
    names = member_names(recipe.number_of_clients, members)
    name = federation or recipe.name
    wired = wire(recipe)
    if recipe.method.channel.kind != "shuffler":
        channels.build(recipe, wired.method)  # refuses, for one, a secure sum of too few clients
    data = wired.dataset
    signing = SigningKey.new()
    terms = CommonTerms.of(recipe, name, data, signing.author)
    invitations = [terms.invitation(number, signing) for number in range(len(names))]
    holdings = [OwnRecords(data.train.take(part), tuple(data.shape), tuple(data.classes)) for part in wired.parts]
    asked = tuple(map(requirements, invitations, holdings))
    deployment = Deployment(
        name, recipe.name, place.host, place.port, place.node_port, names,
        sha256(recipe.to_toml()), sha256(invitations[0].recipe),
        tuple(map(_options, names, _sources(wired), asked)), tuple(need.to_text() for need in asked),
        signing.author.first.hex(), getattr(recipe.method.channel, "url", ""),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    issuer = certificates.authority()
    own = certificates.server([place.host], issuer, place.days)
    _empty(folder)
    _write_authority(folder / AUTHORITY, issuer)
    _write_server(folder / SERVER, deployment, recipe, issuer, own)
    signing.write(folder / SERVER / KEY)
    for member, invitation in zip(names, invitations, strict=True):
        public = _write_client(folder / member, deployment, member, invitation.encode(), issuer)
        write_whole(folder / SERVER / "nodes" / f"{member}.pub", public)
    ends = CertificateFacts.read(own.certificate).ends
    for machine in deployment.machines:
        write_whole(folder / machine / "env.sh", commands.environment(deployment, machine).encode())
        write_whole(folder / machine / "COMMANDS.txt", commands.page(deployment, machine).encode())
    write_whole(folder / "README.txt", commands.readme(deployment, ends).encode())
    write_whole(folder / FILE, deployment.to_toml().encode())  # last: now it is whole
    return NewSetup(deployment, asked, ends)


def renew(folder: Path, days: int = certificates.DAYS) -> datetime:
    """A new certificate and key for the server, for the same host, by the same authority; when it ends."""
    deployment = Deployment.read(folder)
    place = deployment.place(folder, SERVER)
    try:
        issuer = CertificatePair((place / "ca.crt").read_bytes(), (folder / AUTHORITY / "ca.key").read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"the authority's key is not in {folder / AUTHORITY} ({error.strerror}): renew where the set-up was made"
        ) from None
    own = certificates.server([deployment.host], issuer, days)
    private(place / "server.key", own.key)
    write_whole(place / "server.crt", own.certificate)
    return CertificateFacts.read(own.certificate).ends


def _empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(folder.iterdir()):
            raise InvalidInput(f"{folder} is not empty: give a new folder")
        folder.chmod(0o700)
    except OSError as error:
        raise NotWritten(f"{folder} could not be made ({error.strerror or error}): give another folder") from None


def _folder(place: Path) -> None:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)


def private(path: Path, data: bytes) -> None:
    """Write a file that is its owner's alone from the first byte on."""
    draft = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)


def _write_authority(place: Path, issuer: CertificatePair) -> None:
    _folder(place)
    private(place / "ca.key", issuer.key)


def _write_server(
    place: Path, deployment: Deployment, recipe: Recipe, issuer: CertificatePair, own: CertificatePair
) -> None:

    for inner in (place, place / "nodes", place / "flwr"):
        _folder(inner)
    private(place / "server.key", own.key)
    write_whole(place / "server.crt", own.certificate)
    write_whole(place / "ca.crt", issuer.certificate)
    config = RunConfig(
        deployment.federation, place / "runs", deployment.members,
        coordinator_key=place / KEY, shuffler_token=place / TOKEN, shuffler_key=place / SEALED_TO,
    )  # fmt: skip
    write_app(place / "app", recipe, config)
    write_whole(place / FILE, replace(deployment, machine=SERVER).to_toml().encode())


def _write_client(
    place: Path, deployment: Deployment, member: str, invitation: bytes, issuer: CertificatePair
) -> bytes:
    """A client's folder; its node's public key."""
    _folder(place)
    key = keys.make()
    private(place / "node.key", key.private)
    write_whole(place / "node.pub", key.public)
    write_whole(place / "ca.crt", issuer.certificate)
    write_whole(place / deployment.invitation, invitation)
    write_whole(place / FILE, replace(deployment, machine=member).to_toml().encode())
    return key.public


def _sources(wired: Federation) -> list[str]:
    """Options that name records: equal shares of a known data set, for a test; of own data only its owner knows."""
    count, clients = len(wired.dataset.train), wired.clients
    source = wired.recipe.data.source
    if source not in KNOWN:
        return ["--data /path/of/your/records"] * clients
    bounds = [number * count // clients for number in range(clients + 1)]
    return [f"--data {source} --rows {first}-{after - 1}" for first, after in pairwise(bounds)]


def _options(member: str, source: str, need: Requirements) -> str:
    budget = need.budget
    words = [f"--name {member}", source, f"--budget {budget.limit:g}"]
    words += [f"--delta {budget.delta:g}"] * (budget.delta > 0)
    words += [f"--adjacency {plain(budget.adjacency)}"] * (budget.adjacency is not Adjacency.CLIENT)
    words += ["--basis claimed --claimed"] * (budget.basis == "claimed")
    return " ".join([*words, *(f"--unproven {quote(what)}" for what in need.unproven)])


__all__ = ["NewSetup", "SetupOptions", "make", "member_names", "renew"]
