"""A look at a running set-up: what is wrong, and what to do about it.

Everything is looked at from the machine where the check runs, with the files in its folder, and nothing is changed.
Where one thing is wrong, what depends on it is not looked at: the first complaint is the one to heed.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from sordino.deploy import certificates, keys
from sordino.deploy.certificates import CertificateFacts
from sordino.deploy.deployment import CLIENT, KEY, SERVER, SOCKET, Deployment, sha256
from sordino.errors import InvalidInput, SordinoError
from sordino.wire import requests
from sordino.wire.requests import Request, Response, What
from sordino.wire.tls_address import trusting

OLDEST, BEFORE = (1, 41), (1, 42)  #: versions of Flower that are allowed
SOON = timedelta(days=14)  #: a certificate that ends within is worth a word
AHEAD, BEHIND = 5.0, 300.0  #: seconds by which Flower lets a node's clock differ from the server's
LONGEST_SOCKET = 100  #: bytes of a socket's path
RESPONSE = 2**22  #: bytes of an answer that are read


@dataclass(frozen=True)
class CheckResult:
    """One thing that was looked at."""

    machine: str
    what: str
    state: Literal["ok", "warning", "wrong"]
    says: str
    remedy: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the set-up does not work as it is."""
        return self.state == "wrong"

    def to_text(self) -> str:
        """One line, and the remedy below it."""
        line = f"{'ok' if self.state == 'ok' else self.state.upper():<8}{self.machine}: {self.what}: {self.says}"
        return f"{line}\n        -> {self.remedy}" if self.remedy else line

    def to_json(self) -> dict[str, str]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True)
class _Machine:
    """Whose folder is looked at, and how findings are written down."""

    deployment: Deployment
    name: str
    folder: Path
    timeout: float

    def ok(self, what: str, says: str) -> CheckResult:
        return CheckResult(self.name, what, "ok", says)

    def warning(self, what: str, says: str, remedy: str) -> CheckResult:
        return CheckResult(self.name, what, "warning", says, remedy)

    def wrong(self, what: str, says: str, remedy: str) -> CheckResult:
        return CheckResult(self.name, what, "wrong", says, remedy)


Results = Iterator[CheckResult]


def check(deployment: Deployment, folder: Path, timeout: float = 5.0) -> list[CheckResult]:
    """Look at every machine that this folder is about; what is the same for all is looked at once."""
    machines = [_Machine(deployment, name, deployment.place(folder, name), timeout) for name in deployment.machines]
    first = machines[0]
    found = [*_flower(first)]
    for machine in machines:
        found += _files(machine)
    if first.name == SERVER:
        found += [*_certificate(first), *_app(first)]
    reached = list(_server(first))
    found += reached
    if not any(finding.wrong for finding in reached):
        found += _nodes(first)
    for machine in machines:
        if machine.name != SERVER:
            found += _client(machine)
    return found


# --- what is installed, and what lies there ---------------------------------------------------------------------------


def _flower(machine: _Machine) -> Results:
    what, remedy = "flower", "install it: pip install 'sordino[flower]'"
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        yield machine.wrong(what, "it is not installed here", remedy)
        return
    if not OLDEST <= _parsed(version) < BEFORE:
        yield machine.wrong(what, f"version {version} is installed; wanted is 1.41", remedy)
        return
    command = "flower-superlink" if machine.name == SERVER else "flower-supernode"
    if shutil.which(command) is None:
        yield machine.warning(what, f"{command} is not on the path", "activate the environment that flwr is in")
        return
    yield machine.ok(what, f"version {version}")


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _files(machine: _Machine) -> Results:
    private = ("server.key", KEY) if machine.name == SERVER else ("node.key",)
    own = ("server.crt", "app/pyproject.toml") if machine.name == SERVER else (machine.deployment.invitation,)
    missing = [name for name in (*private, "ca.crt", *own) if not (machine.folder / name).is_file()]
    if missing:
        yield machine.wrong("files", f"missing in {machine.folder}: {', '.join(missing)}", "copy the folder again")
    for name in private:
        path = machine.folder / name
        if path.is_file() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            yield machine.wrong("files", f"{path} can be read by others ({mode:04o})", f"chmod 600 {path}")
            missing.append(name)
    if not missing:
        yield machine.ok("files", "all there, private keys are their owner's alone")


def _certificate(machine: _Machine) -> Results:
    """The file that the server would serve."""
    what, host = "certificate", machine.deployment.host
    try:
        own, issuer = ((machine.folder / name).read_bytes() for name in ("server.crt", "ca.crt"))
        facts = CertificateFacts.read(own)
    except OSError:
        return  # said above
    except InvalidInput as error:
        yield machine.wrong(what, str(error), _RENEW)
        return
    now, left = datetime.now(UTC), facts.ends - datetime.now(UTC)
    if left <= timedelta():
        yield machine.wrong(what, f"server.crt expired on {facts.ends:%Y-%m-%d %H:%M} UTC", _RENEW)
    elif facts.begins > now:
        yield machine.wrong(what, f"server.crt begins on {facts.begins:%Y-%m-%d %H:%M} UTC", _CLOCK)
    elif not facts.covers(host):
        yield machine.wrong(what, f"server.crt is for {', '.join(facts.names)}, and nodes call {host}", _RENEW)
    elif not certificates.signed_by(own, issuer):
        yield machine.wrong(what, "server.crt was not signed by the authority in ca.crt", "copy both from one set-up")
    elif left < SOON:
        yield machine.warning(what, f"server.crt ends on {facts.ends:%Y-%m-%d %H:%M} UTC", _RENEW)
    else:
        yield machine.ok(what, f"for {host}, until {facts.ends:%Y-%m-%d}")


_RENEW = "make a new one where the set-up was made (sordino deploy renew FOLDER), copy it, start the server anew"
_CLOCK = "set this machine's clock, by NTP"


def _app(machine: _Machine) -> Results:
    path = machine.folder / "app" / "federation" / "recipe.toml"
    try:
        found = sha256(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        yield machine.wrong("recipe", f"{path} is missing or damaged", "copy the folder again")
        return
    agreed = machine.deployment.terms_sha256[:12]
    if found != machine.deployment.recipe_sha256:
        yield machine.wrong(
            "recipe",
            f"the app's recipe is not the one that clients were invited to ({agreed})",
            "copy the folder again; a changed recipe is a new federation: sordino deploy init",
        )
        return
    yield machine.ok("recipe", f"the app's is the one that clients were invited to ({agreed})")


# --- the server, from outside -----------------------------------------------------------------------------------------


def _server(machine: _Machine) -> Results:
    """Port, certificate as it is served, Flower's version, clock; the first that is wrong ends it."""
    deployment = machine.deployment
    try:
        with socket.create_connection((deployment.host, deployment.port), machine.timeout):
            pass
    except OSError as error:
        yield machine.wrong("port", *_unreachable(deployment, error))
        return
    yield machine.ok("port", f"{deployment.address} is open")
    context = _trusting(machine)
    if context is None:
        return  # its file is missing: said above
    try:
        answer = _asked(machine, context)
    except (OSError, http.client.HTTPException) as error:
        yield machine.wrong("tls", *_untrusted(deployment, error))
        return
    yield machine.ok("tls", f"the server proves to be {deployment.host}, by the authority in ca.crt")
    yield from _served(machine, answer.certificate)
    yield from _software(machine, answer)
    yield from _clock(machine, answer.date)


def _unreachable(deployment: Deployment, error: OSError) -> tuple[str, str]:
    says = f"{deployment.address} cannot be reached ({error.strerror or error})"
    if isinstance(error, socket.gaierror):
        return says, f"{deployment.host} has no address here: correct the name server or /etc/hosts"
    if isinstance(error, TimeoutError):
        return says, f"open port {deployment.port} in the firewalls between this machine and the server"
    return says, f"start flower-superlink on {deployment.host}; see whether it listens on that address and port"


def _trusting(machine: _Machine) -> ssl.SSLContext | None:
    try:
        return trusting(machine.folder / "ca.crt")
    except InvalidInput:
        return None


@dataclass(frozen=True)
class _ServerReply:
    """What a server says when it is asked who it is."""

    status: int
    body: bytes
    date: str
    certificate: bytes


def _asked(machine: _Machine, context: ssl.SSLContext) -> _ServerReply:
    """The server's description of itself, its clock, and the certificate that it serves."""
    deployment = machine.deployment
    connection = http.client.HTTPSConnection(deployment.host, deployment.port, timeout=machine.timeout, context=context)
    with closing(connection):
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        served = connection.sock.getpeercert(binary_form=True) or b""
        connection.request("GET", "/openapi.json")
        response = connection.getresponse()
        return _ServerReply(response.status, response.read(RESPONSE), response.headers.get("Date", ""), served)


def _untrusted(deployment: Deployment, error: Exception) -> tuple[str, str]:
    if not isinstance(error, ssl.SSLError):
        return f"the server broke off ({error})", "read the server's log: is it a SuperLink, and alive?"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"no encrypted connection ({error.reason or error})",
            "start flower-superlink with --ssl-certfile, --ssl-keyfile and --ssl-ca-certfile, and without --insecure",
        )
    told = error.verify_message
    if "expired" in told:
        return "the server's certificate has expired", _RENEW
    if "not yet valid" in told:
        return "the server's certificate is not valid yet", _CLOCK
    if "mismatch" in told:
        return f"the server's certificate is not for {deployment.host} ({told})", _RENEW
    return (
        f"the server's certificate is of another authority than ca.crt ({told})",
        "copy ca.crt from the set-up that the server uses; if you did, somebody is between you and the server",
    )


def _served(machine: _Machine, served: bytes) -> Results:
    """Whether what is served is what lies in the file, for one that was renewed; only the server has it."""
    path = machine.folder / "server.crt"
    if machine.name == SERVER and path.is_file() and ssl.PEM_cert_to_DER_cert(_first(path)) != served:
        yield machine.warning("tls", "the server serves another certificate than server.crt", "start it anew")


def _first(path: Path) -> str:
    end = "-----END CERTIFICATE-----"
    return path.read_text().partition(end)[0] + end


def _software(machine: _Machine, answer: _ServerReply) -> Results:
    if answer.status in (401, 403, 404):  # as where a proxy lets nodes reach what they need, and nothing else
        yield machine.warning(
            "server", f"it does not say what it runs (status {answer.status})", "fine where a proxy stands before it"
        )
        return
    try:
        about = json.loads(answer.body)["info"]
        title, version = str(about["title"]), str(about["version"])
    except (ValueError, KeyError, TypeError):
        title, version = "something else", ""
    if title != "SuperLink API":
        yield machine.wrong(
            "server", f"{machine.deployment.address} is no SuperLink ({title})", "give the SuperLink this port"
        )
        return
    here = _installed()
    if here and _parsed(here) != _parsed(version):
        yield machine.warning(
            "server", f"it runs Flower {version}, and here is {here}", "install the same version on all machines"
        )
        return
    yield machine.ok("server", f"a SuperLink of Flower {version}")


def _installed() -> str:
    try:
        return metadata.version("flwr")
    except metadata.PackageNotFoundError:
        return ""


def _clock(machine: _Machine, date: str) -> Results:
    try:
        ahead = time.time() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        yield machine.warning("clock", "the server does not say what time it is", "compare the clocks by hand")
        return
    if ahead > AHEAD or ahead < -BEHIND:
        yield machine.wrong(
            "clock",
            f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's; Flower "
            f"turns away nodes that are more than {AHEAD:g} s ahead or {BEHIND:g} s behind",
            "set both clocks, by NTP",
        )
        return
    yield machine.ok("clock", "agrees with the server's to a few seconds")


# --- nodes ------------------------------------------------------------------------------------------------------------


def _nodes(machine: _Machine) -> Results:
    """Which node keys the server knows, and which nodes are there now."""
    deployment = machine.deployment
    try:
        known = _listed(machine)
    except Exception as error:  # Flower's own client is not a published interface: whatever breaks there, say so
        said = str(error).partition("\n")[0]
        yield machine.warning(
            "nodes", f"the server was not asked for them ({said})", "on the server: flwr supernode list"
        )
        return
    for member in deployment.machines:
        if member != SERVER:
            yield CheckResult(member, "control", "warning", _CONTROL, _CLOSE)
    expected = _expected(machine)
    for member, line in expected.items():
        found = known.pop(line, None) if line else None
        if not line:
            yield CheckResult(member, "node", "wrong", "its public key is missing here", "copy the folder again")
        elif found is None:
            yield CheckResult(
                member, "node", "wrong", f"its key ({keys.fingerprint(line)}) is not registered at the server",
                f"on the server: flwr supernode register nodes/{member}.pub sordino --name {member}",
            )  # fmt: skip
        elif found != "online":
            now = "never came" if found == "registered" else f"{found} now"
            remedy = "start flower-supernode on its machine, and read what it prints"
            yield CheckResult(member, "node", "wrong", f"registered, and {now}", remedy)
        else:
            yield CheckResult(member, "node", "ok", "registered and online")
    if machine.name == SERVER and known:
        yield machine.warning(
            "nodes",
            f"{len(known)} more are registered that do not belong to {deployment.federation}",
            "flwr supernode list; and see that flower-superlink was started with --enable-supernode-auth",
        )


_CONTROL = (
    "with no more than ca.crt, the server's control API answers: a member can run an app of its own on the server and "
    "on all nodes. Clients answer to signed plans alone, but such an app may read the server's files, its key too"
)
_CLOSE = "let a proxy before the server pass on to nodes what they need, and nothing else: docs/deploy.md"


def _expected(machine: _Machine) -> dict[str, bytes]:
    """The public keys that this folder has; empty where a file is missing."""
    if machine.name != SERVER:
        return {machine.name: _public(machine.folder / "node.pub")}
    return {each: _public(machine.folder / "nodes" / f"{each}.pub") for each in machine.deployment.members}


def _public(path: Path) -> bytes:
    """A public key without the comment that ssh-keygen adds."""
    try:
        return b" ".join(path.read_bytes().split()[:2]) + b"\n"
    except OSError:
        return b""


def _listed(machine: _Machine) -> dict[bytes, str]:
    """The server's nodes by their public keys, each with its status."""
    from cryptography.hazmat.primitives import serialization

    from sordino.flower import require

    require()  # which also keeps Flower from calling home, before it is imported
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.supercore.control import ControlHttpClient

    with ControlHttpClient.from_server_address(
        machine.deployment.address, insecure=False, root_certificates=str(machine.folder / "ca.crt"), interceptors=[]
    ) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    found = {}
    for node in nodes:
        key: Any = serialization.load_pem_public_key(node.public_key)
        line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        found[line + b"\n"] = str(node.status)
    return found


# --- a client ---------------------------------------------------------------------------------------------------------


def _client(machine: _Machine) -> Results:
    """The owner's client: made, joined to this federation on these terms, answering."""
    for look in (_key, _joined, _serving):
        found = list(look(machine))
        yield from found
        if any(finding.wrong for finding in found):
            return


def _key(machine: _Machine) -> Results:
    try:
        private, public = (machine.folder / "node.key").read_bytes(), _public(machine.folder / "node.pub")
        if keys.public_of(private) != public:
            yield machine.wrong("node key", "node.pub is not the public key of node.key", "copy both again")
    except OSError:
        return  # said above
    except InvalidInput as error:
        yield machine.wrong("node key", str(error), "copy node.key again")


def _joined(machine: _Machine) -> Results:
    from sordino.client.folder import Agreements

    deployment, folder = machine.deployment, machine.folder / CLIENT
    if not (folder / "client.toml").is_file():
        yield machine.wrong("client", f"{folder} is no client's folder yet", _step(machine, "client init"))
        return
    try:
        agreed = Agreements(folder / "federations").find(deployment.federation)
    except SordinoError as error:
        yield machine.wrong("client", str(error), "restore the client's folder")
        return
    if agreed is None:
        yield machine.wrong(
            "client", f"its owner has not agreed to {deployment.federation}", _step(machine, "client join")
        )
        return
    if sha256(agreed.recipe) != deployment.terms_sha256:
        yield machine.wrong(
            "client",
            f"its owner agreed to another recipe under the name {deployment.federation} ({sha256(agreed.recipe)[:12]} "
            f"in the place of {deployment.terms_sha256[:12]})",
            "a changed recipe needs a new name: sordino deploy init ... --federation OTHER-NAME",
        )
        return
    if agreed.coordinator != deployment.coordinator:
        known = agreed.coordinator[:12] or "none"
        yield machine.wrong(
            "client",
            f"its owner agreed to another coordinator's key ({known} in the place of {deployment.coordinator[:12]})",
            "join with the invitation in this folder, in a new client's folder if the old one has another key",
        )
        return
    if agreed.client != deployment.members.index(machine.name):
        yield machine.wrong(
            "client",
            f"it joined as number {agreed.client}, another client's",
            "join with the invitation in this folder",
        )
        return
    if (folder / "older-ledger.json").exists():
        yield machine.wrong(
            "client", "its ledger is older than a receipt, so that it answers nothing", "sordino client show; see "
            "'A ledger from a backup' in the client's page",
        )  # fmt: skip
        return
    yield machine.ok("client", f"agreed to {deployment.federation} ({deployment.terms_sha256[:12]})")


def _serving(machine: _Machine) -> Results:
    path = machine.folder / SOCKET
    if len(os.fsencode(path.absolute())) > LONGEST_SOCKET:
        yield machine.wrong(
            "serving", f"the path of {SOCKET} has more than {LONGEST_SOCKET} bytes", "move the folder to a shorter path"
        )
        return
    try:
        name = _hello(path, machine.timeout)
    except (OSError, SordinoError, ValueError, KeyError, TypeError) as error:
        yield machine.wrong("serving", f"nobody answers at {path} ({error})", _step(machine, "client serve"))
        return
    if name != machine.name:
        yield machine.wrong(
            "serving", f"the client there is called {name}, and the server waits for {machine.name}",
            f"make it anew with --name {machine.name}",
        )  # fmt: skip
        return
    yield machine.ok("serving", f"{name} answers at {path}")


def _hello(path: Path, timeout: float) -> str:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        requests.send(connection, Request(What.HELLO).encode())
        return str(json.loads(Response.decode(requests.receive(connection, RESPONSE)).payload)["name"])


def _step(machine: _Machine, which: str) -> str:
    """The command of this set-up that does it."""
    from sordino.deploy import commands

    found = (step.command for step in commands.steps(machine.deployment, machine.name))
    return f"in {machine.folder}: " + next(command for command in found if which in command)


__all__ = ["CheckResult", "check"]
