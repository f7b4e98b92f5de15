"""A new set-up: certificates, node keys, Flower's app, coordinators and invitations, a folder for each machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from sordino import channels
from sordino.client.invitation import CommonTerms, Invitation, check_real
from sordino.client.own_records import OwnRecords
from sordino.client.settings import NAME
from sordino.deploy import certificates, commands, containers, door, keys
from sordino.deploy.certificates import CertificateFacts, CertificatePair, checked_host
from sordino.deploy.deployment import (
    AUTHORITY,
    COORDINATORS,
    FILE,
    FLOWER,
    SEALED_TO,
    SERVER,
    TOKEN,
    Deployment,
    FederationSetup,
    sha256,
)
from sordino.deploy.requirements import Requirements, requirements
from sordino.errors import InvalidInput
from sordino.flower.app import write_app
from sordino.flower.coordinator import CoordinatorSettings, make_coordinator
from sordino.learning.datasets import KNOWN
from sordino.privacy.guarantee import Adjacency
from sordino.privacy.terms import plain
from sordino.recipe import Recipe
from sordino.runs.federation import Federation, check_start_travels, wire
from sordino.storage.files import make_folder, write_whole
from sordino.wire.signing import SigningKey

PORT, INNER_PORT, NODE_PORT = 8000, 8001, 9094  #: of the door, of Flower's server behind it, of a node's own processes


@dataclass(frozen=True)
class SetupOptions:
    """Where the server is, how long its certificate lasts, and ports that processes use on their own machine."""

    host: str
    port: int = PORT
    days: int = certificates.DAYS
    node_port: int = NODE_PORT
    inner_port: int = 0  #: the port after the server's, if 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", checked_host(self.host))
        object.__setattr__(self, "inner_port", self.inner_port or self.port + 1)
        for port in (self.port, self.inner_port, self.node_port):
            if not 1 <= port <= 65535:
                raise InvalidInput(f"a port lies in 1 .. 65535, got {port}")
        if self.inner_port == self.port:
            raise InvalidInput(f"members reach port {self.port}, so Flower's server behind it needs another one")


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
        check_member(name)
    return tuple(given)


def check_member(name: str) -> None:
    """Refuse a name that no client's folder can have."""
    if not NAME.fullmatch(name) or name in (SERVER, AUTHORITY):
        raise InvalidInput(
            f"{name[:100]!r} cannot be a client's name: letters, digits, dots, - and _, at most 100, a letter or "
            f"digit first, and neither {SERVER} nor {AUTHORITY}"
        )


def make(
    folder: Path,
    recipe: Recipe,
    options: SetupOptions,
    *,
    federation: str = "",
    members: Sequence[str] = (),
    spare: int = 0,
) -> tuple[Deployment, datetime]:
    """Write a whole set-up into an empty folder; with it comes when the server's certificate ends.

    The last `spare` places of the recipe are for members to come. Everything that can be wrong is found before anything
    is written.
    """
    check_real(recipe)
    names = member_names(recipe.number_of_clients - spare, members)
    draft = _drafted(recipe, federation or recipe.name, names)
    deployment = Deployment(
        options.host, options.port, options.inner_port, options.node_port, names, (draft.setup,),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    issuer = certificates.authority()
    own = certificates.server([options.host], issuer, options.days)
    ends = CertificateFacts.read(own.certificate).ends
    make_folder(folder, 0o700)
    if any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty: give a new folder")
    folder.chmod(0o700)
    _write(folder / AUTHORITY, {"ca.key": issuer.key, "ca.crt": issuer.certificate})
    _write(folder / SERVER, {"ca.crt": issuer.certificate})
    make_folder(folder / SERVER / COORDINATORS, 0o700)
    certified = {"ca.crt": issuer.certificate, "server.key": own.key, "server.crt": own.certificate}
    _write(folder / SERVER / FLOWER, {**certified, "nginx.conf": door.nginx_conf(deployment)})
    for member in names:
        make_node(folder / SERVER, folder / member)
    draft.write(folder)
    write_deployment(folder, deployment)
    return deployment, ends


def make_node(server: Path, place: Path) -> None:
    """Make the folder of a client's machine, with a node key, and give the server its public half."""
    key = keys.make()
    authority = (server / "ca.crt").read_bytes()
    _write(place, {"ca.crt": authority})
    _write(place / FLOWER, {"ca.crt": authority, "node.key": key.private, "node.pub": key.public})
    _write(server / FLOWER / "nodes", {f"{place.name}.pub": key.public})


def add_federation(folder: Path, recipe: Recipe, federation: str = "", members: Sequence[str] = ()) -> Deployment:
    """Another federation for the same server and nodes, of these members or all: its coordinator, app, invitations."""
    deployment, name = whole(folder), federation or recipe.name
    invited = tuple(members) or deployment.members
    check_real(recipe)
    if any(each.name == name for each in deployment.federations):
        raise InvalidInput(f"there is a federation {name} in {folder} already: give another name with --federation")
    if strangers := set(invited) - set(deployment.members):
        raise InvalidInput(f"{min(strangers)} is no member: there are {', '.join(deployment.members)}")
    if recipe.number_of_clients != len(invited):
        raise InvalidInput(
            f"the recipe has {recipe.number_of_clients} clients and {len(invited)} members are invited: "
            f"--set split.clients={len(invited)}"
        )
    draft = _drafted(recipe, name, member_names(len(invited), invited))
    draft.write(folder)
    changed = replace(deployment, federations=(*deployment.federations, draft.setup))
    write_deployment(folder, changed)
    return changed


def whole(folder: Path) -> Deployment:
    """The set-up in the folder where it was made; a single machine's is refused."""
    deployment = Deployment.read(folder)
    if deployment.machine:
        raise InvalidInput(
            f"{folder} is the folder of {deployment.machine} alone: do this in the folder of the whole set-up, where "
            "it was made"
        )
    return deployment


def write_deployment(folder: Path, deployment: Deployment) -> None:
    """Write down a set-up, for each machine that is here and for all; the whole one comes last."""
    for machine in (SERVER, *deployment.members):
        place = folder / machine
        if not place.is_dir():
            continue  # it was moved to its machine
        account = Deployment.read(place).account if (place / FILE).is_file() else ""
        own = replace(deployment, machine=machine, account=account)
        page = commands.page(deployment, machine)
        _write(place, {FILE: own.to_toml(), "COMMANDS.txt": page, containers.COMPOSE: containers.compose(own)})
    own_certificate = folder / SERVER / FLOWER / "server.crt"
    if own_certificate.is_file():
        ends = CertificateFacts.read(own_certificate.read_bytes()).ends
        _write(folder, {"README.txt": commands.readme(deployment, ends)})
    _write(folder, {FILE: deployment.to_toml()})


@dataclass(frozen=True)
class _Draft:
    """A federation that can be written: nothing about it will be refused any more."""

    setup: FederationSetup
    recipe: Recipe
    key: SigningKey
    invitations: tuple[Invitation, ...]

    def write(self, folder: Path) -> None:
        """Its coordinator, its app and its invitations."""
        setup, server = self.setup, folder / SERVER
        spare = self.recipe.number_of_clients - len(setup.members)
        settings = CoordinatorSettings(setup.name, setup.members, spare)
        if setup.shuffler:
            settings = replace(settings, shuffler_token=TOKEN, shuffler_key=SEALED_TO)
        make_coordinator(setup.coordinator_in(server), self.recipe, settings, self.key)
        write_app(setup.app_in(server), setup.name, setup.socket_in(server))
        for member, invitation in zip(setup.members, self.invitations, strict=True):
            write_invitation(folder / member, setup, invitation)


def write_invitation(place: Path, setup: FederationSetup, invitation: Invitation) -> None:
    """Put a client's invitation into the folder of its machine."""
    _write(place, {setup.invitation: invitation.encode()})


def _drafted(recipe: Recipe, name: str, members: Sequence[str]) -> _Draft:
    """A federation, after all that can be wrong with it was looked for."""
    wired = wire(recipe)
    check_start_travels(wired)
    if not recipe.method.channel.posts:
        channels.build(recipe, wired.method)  # refuses, for one, a secure sum of too few clients
    signing = SigningKey.new()
    invited = [invite(wired, name, signing, number, member) for number, member in enumerate(members)]
    invitations, options, asks = zip(*invited, strict=True)
    setup = FederationSetup(
        name, recipe.name, tuple(members), tuple(range(len(members))), sha256(recipe.to_toml()),
        sha256(invitations[0].recipe), options, asks, signing.author.first.hex(),
        getattr(recipe.method.channel, "url", ""),
    )  # fmt: skip
    return _Draft(setup, recipe, signing, invitations)


def invite(wired: Federation, name: str, key: SigningKey, number: int, member: str) -> tuple[Invitation, str, str]:
    """A client's invitation under a number, options of `sordino client init` for it, and what it is asked for."""
    data = wired.dataset
    invitation = CommonTerms.of(wired.recipe, name, data, key.author).invitation(number, key)
    form = (tuple(data.shape), tuple(data.classes), data.rules, data.task)
    need = requirements(invitation, OwnRecords(data.train.take(wired.parts[number]), *form))
    return invitation, _options(member, _source(wired, number), need), need.to_text()


def _write(place: Path, files: Mapping[str, bytes | str]) -> None:
    """Write files into a folder; a private key is its owner's alone from the first byte on."""
    make_folder(place, 0o700)
    for name, data in files.items():
        raw = data.encode() if isinstance(data, str) else data
        write_whole(place / name, raw, 0o600 if name.endswith(".key") else 0o666)


def renew(folder: Path, days: int = certificates.DAYS) -> datetime:
    """A new certificate and key for the server, for the same host, by the same authority; when it ends."""
    deployment = Deployment.read(folder)
    place = deployment.place(folder, SERVER) / FLOWER
    try:
        issuer = CertificatePair((place / "ca.crt").read_bytes(), (folder / AUTHORITY / "ca.key").read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"the authority's key is not in {folder / AUTHORITY} ({error.strerror}): renew where the set-up was made"
        ) from None
    own = certificates.server([deployment.host], issuer, days)
    _write(place, {"server.key": own.key, "server.crt": own.certificate})
    return CertificateFacts.read(own.certificate).ends


def _source(wired: Federation, number: int) -> str:
    """Options that name records: an equal share of a known data set, for a test; of own data only its owner knows."""
    count, clients = len(wired.dataset.train), wired.clients
    source = wired.recipe.data.source
    if source not in KNOWN:
        return "--data /path/of/your/records"
    first, after = number * count // clients, (number + 1) * count // clients
    return f"--data {source} --rows {first}-{after - 1}"


def _options(member: str, source: str, need: Requirements) -> str:
    budget = need.budget
    words = [f"--name {member}", source, f"--budget {budget.limit:g}"]
    words += [f"--delta {budget.delta:g}"] * (budget.delta > 0)
    words += [f"--adjacency {plain(budget.adjacency)}"] * (budget.adjacency is not Adjacency.CLIENT)
    words += ["--basis claimed --claimed"] * (budget.basis == "claimed")
    return " ".join([*words, *(f"--unproven {quote(what)}" for what in need.unproven)])


__all__ = [
    "SetupOptions", "add_federation", "check_member", "invite", "make", "make_node", "member_names", "renew", "whole",
    "write_deployment", "write_invitation",
]  # fmt: skip
