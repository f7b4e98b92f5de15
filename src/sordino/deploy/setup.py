"""A new set-up: certificates, node keys, the Flower app, invitations and commands, a folder for each machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from sordino.runs.federation import Federation, check_start_travels, wire
from sordino.storage.files import make_folder, write_whole
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
    folder: Path, recipe: Recipe, options: SetupOptions, *, federation: str = "", members: Sequence[str] = ()
) -> tuple[Deployment, datetime]:
    """Write a whole set-up into an empty folder; with it comes when the server's certificate ends.

    Everything that can be wrong is found before anything is written.
    """
    check_real(recipe)
    names = member_names(recipe.number_of_clients, members)
    name = federation or recipe.name
    wired = wire(recipe)
    check_start_travels(wired)
    if not recipe.method.channel.posts:
        channels.build(recipe, wired.method)  # refuses, for one, a secure sum of too few clients
    data = wired.dataset
    signing = SigningKey.new()
    terms = CommonTerms.of(recipe, name, data, signing.author)
    invitations = [terms.invitation(number, signing) for number in range(len(names))]
    form = (tuple(data.shape), tuple(data.classes), data.rules, data.task)
    holdings = [OwnRecords(data.train.take(part), *form) for part in wired.parts]
    asked = tuple(map(requirements, invitations, holdings))
    deployment = Deployment(
        name, recipe.name, options.host, options.port, options.node_port, names,
        sha256(recipe.to_toml()), sha256(invitations[0].recipe),
        tuple(map(_options, names, _sources(wired), asked)), tuple(need.to_text() for need in asked),
        signing.author.first.hex(), getattr(recipe.method.channel, "url", ""),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    issuer = certificates.authority()
    own = certificates.server([options.host], issuer, options.days)
    ends = CertificateFacts.read(own.certificate).ends
    make_folder(folder, 0o700)
    if any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty: give a new folder")
    folder.chmod(0o700)
    _write(folder / AUTHORITY, {"ca.key": issuer.key})
    for machine in deployment.machines:
        files: dict[str, bytes | str] = {
            "ca.crt": issuer.certificate,
            "env.sh": commands.environment(deployment, machine),
            "COMMANDS.txt": commands.page(deployment, machine),
            FILE: replace(deployment, machine=machine).to_toml(),
        }
        _write(folder / machine, files)
    server = folder / SERVER
    _write(server, {"server.key": own.key, "server.crt": own.certificate})
    signing.write(server / KEY)
    make_folder(server / "flwr", 0o700)
    config = RunConfig(
        name, server / "runs", tuple(names), coordinator_key=server / KEY, shuffler_token=server / TOKEN,
        shuffler_key=server / SEALED_TO,
    )  # fmt: skip
    write_app(server / "app", recipe, config)
    for member, invitation in zip(names, invitations, strict=True):
        key = keys.make()
        files = {"node.key": key.private, "node.pub": key.public, deployment.invitation: invitation.encode()}
        _write(folder / member, files)
        _write(server / "nodes", {f"{member}.pub": key.public})
    _write(folder, {"README.txt": commands.readme(deployment, ends)})
    _write(folder, {FILE: deployment.to_toml()})  # last: now it is whole
    return deployment, ends


def _write(place: Path, files: Mapping[str, bytes | str]) -> None:
    """Write files into a folder; a private key is its owner's alone from the first byte on."""
    make_folder(place, 0o700)
    for name, data in files.items():
        raw = data.encode() if isinstance(data, str) else data
        write_whole(place / name, raw, 0o600 if name.endswith(".key") else 0o666)


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
    _write(place, {"server.key": own.key, "server.crt": own.certificate})
    return CertificateFacts.read(own.certificate).ends


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


__all__ = ["SetupOptions", "make", "member_names", "renew"]
