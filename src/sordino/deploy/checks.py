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
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from sordino.client.folder import Agreements
from sordino.deploy import certificates, commands, door, keys
from sordino.deploy.access import LocalAccount
from sordino.deploy.certificates import CertificateFacts
from sordino.deploy.deployment import (
    CLIENT,
    COORDINATORS,
    FLOWER,
    SERVER,
    Deployment,
    FederationSetup,
    sha256,
    socket_of_client,
)
from sordino.deploy.registration import list_nodes
from sordino.deploy.services import SIDES, logs_of
from sordino.deploy.supervisor import statuses
from sordino.errors import InvalidInput, SordinoError
from sordino.flower.coordinator import KEY, RECIPE, RUN, is_over
from sordino.wire import requests
from sordino.wire.requests import Request, Response, What
from sordino.wire.tls_address import trusting

OLDEST, BEFORE = (1, 41), (1, 43)  #: versions of Flower that are allowed
SOON = timedelta(days=14)  #: a certificate that ends within is worth a word
AHEAD, BEHIND = 5.0, 300.0  #: seconds by which Flower lets a node's clock differ from the server's
LONGEST_SOCKET = 100  #: bytes of a socket's path
RESPONSE = 2**22  #: bytes of an answer that are read
State = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True)
class CheckResult:
    """One thing that was looked at."""

    machine: str
    what: str
    state: State
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


class _CheckFailed(Exception):
    """Ends a check: what is wrong or worth a word, and what to do about it."""

    def __init__(self, says: str, remedy: str, state: State = "wrong") -> None:
        super().__init__(says)
        self.says, self.remedy, self.state = says, remedy, state


@dataclass(frozen=True)
class _Machine:
    """A machine of the set-up, with the folder that is looked at for it."""

    deployment: Deployment
    name: str
    folder: Path
    timeout: float

    def look(self, what: str, check: Callable[[_Machine], str | None]) -> list[CheckResult]:
        """What a check says is fine, or the `_CheckFailed` that it raises; nothing where it says nothing."""
        try:
            says = check(self)
        except _CheckFailed as problem:
            return [CheckResult(self.name, what, problem.state, problem.says, problem.remedy)]
        return [] if says is None else [CheckResult(self.name, what, "ok", says)]


def check(deployment: Deployment, folder: Path, timeout: float = 5.0) -> list[CheckResult]:
    """Look at every machine that this folder is about; what is the same for all is looked at once."""
    machines = [_Machine(deployment, name, deployment.place(folder, name), timeout) for name in deployment.machines]
    first = machines[0]
    found = first.look("flower", _flower)
    for machine in machines:
        found += machine.look("files", _files)
    if first.name == SERVER:
        found += first.look("certificate", _certificate)
        for each in deployment.federations:
            found += first.look("recipe", partial(_recipe, each))
    if first.name == SERVER:
        for each in (over := _over(first)):
            where = each.coordinator_in(first.folder) / RUN
            found.append(CheckResult(SERVER, "federation", "ok", f"{each.name} is over: see {where}"))
        if len(over) == len(deployment.federations):
            return found  # nothing has to run any more
    reached = list(_server(first))
    found += reached
    if not any(result.wrong for result in reached):
        found += _nodes(first)
    for machine in machines:
        found += [*_processes(machine), *(_coordinators(machine) if machine.name == SERVER else _client(machine))]
        found += machine.look("account", _accounts)
    return found


def _over(server: _Machine) -> list[FederationSetup]:
    """The federations with a run that is over; of another account's folder nothing is known."""
    found = []
    for each in server.deployment.federations:
        with suppress(PermissionError, InvalidInput):
            if is_over(each.coordinator_in(server.folder)):
                found.append(each)
    return found


# --- what is installed, and what lies there ---------------------------------------------------------------------------


def _flower(machine: _Machine) -> str:
    version, remedy = _installed_flower(), "install it: pip install 'sordino[flower]'"
    if not version:
        raise _CheckFailed("it is not installed here", remedy)
    if not OLDEST <= _major_and_minor(version) < BEFORE:
        raise _CheckFailed(f"version {version} is installed; wanted is 1.41 or 1.42", remedy)
    command = "flower-superlink" if machine.name == SERVER else "flower-supernode"
    if shutil.which(command) is None:
        raise _CheckFailed(f"{command} is not on the path", "activate the environment that flwr is in", "warning")
    return f"version {version}"


def _installed_flower() -> str:
    try:
        return metadata.version("flwr")
    except metadata.PackageNotFoundError:
        return ""


def _major_and_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _files(machine: _Machine) -> str:
    private = [f"{FLOWER}/{'server' if machine.name == SERVER else 'node'}.key"]
    own = [f"{FLOWER}/server.crt"] if machine.name == SERVER else []
    for each in machine.deployment.federations:
        if machine.name == SERVER:
            private.append(f"{COORDINATORS}/{each.name}/{KEY}")
        elif machine.name in each.members:
            own.append(each.invitation)
    try:
        missing = [name for name in (*private, "ca.crt", *own) if not (machine.folder / name).is_file()]
        open_ones = [name for name in private if (machine.folder / name).stat().st_mode & 0o077] if not missing else []
    except PermissionError:  # the other side's are its own account's, as they should be
        return "what this account can see is there"
    if missing:
        raise _CheckFailed(f"missing in {machine.folder}: {', '.join(missing)}", "copy the folder again")
    for path in (machine.folder / name for name in open_ones):
        raise _CheckFailed(f"{path} can be read by others ({path.stat().st_mode & 0o777:04o})", f"chmod 600 {path}")
    return "all there, private keys are their owner's alone"


def _certificate(machine: _Machine) -> str | None:
    """The file that the server would serve."""
    host = machine.deployment.host
    try:
        own, issuer = ((machine.folder / FLOWER / name).read_bytes() for name in ("server.crt", "ca.crt"))
        facts = CertificateFacts.read(own)
    except OSError:
        return None  # said above
    except InvalidInput as error:
        raise _CheckFailed(str(error), _RENEW) from None
    now = datetime.now(UTC)
    if facts.ends <= now:
        raise _CheckFailed(f"server.crt expired on {facts.ends:%Y-%m-%d %H:%M} UTC", _RENEW)
    if facts.begins > now:
        raise _CheckFailed(f"server.crt begins on {facts.begins:%Y-%m-%d %H:%M} UTC", _CLOCK)
    if not facts.covers(host):
        raise _CheckFailed(f"server.crt is for {', '.join(facts.names)}, and nodes call {host}", _RENEW)
    if not certificates.signed_by(own, issuer):
        raise _CheckFailed("server.crt was not signed by the authority in ca.crt", "copy both from one set-up")
    if facts.ends - now < SOON:
        raise _CheckFailed(f"server.crt ends on {facts.ends:%Y-%m-%d %H:%M} UTC", _RENEW, "warning")
    return f"for {host}, until {facts.ends:%Y-%m-%d}"


_RENEW = "make a new one where the set-up was made (sordino deploy renew FOLDER), copy it, start the server anew"
_CLOCK = "set this machine's clock, by NTP"


def _recipe(federation: FederationSetup, machine: _Machine) -> str:
    path = federation.coordinator_in(machine.folder) / RECIPE
    agreed = f"{federation.name} ({federation.terms_sha256[:12]})"
    try:
        found = sha256(path.read_text(encoding="utf-8"))
    except PermissionError:
        return f"the coordinator of {agreed} is another account's"
    except (OSError, UnicodeDecodeError):
        raise _CheckFailed(f"{path} is missing or damaged", "copy the folder again") from None
    if found != federation.recipe_sha256:
        raise _CheckFailed(
            f"the coordinator's recipe is not the one that clients of {agreed} were invited to",
            "copy the folder again; a changed recipe is a new federation: sordino deploy add-federation",
        )
    return f"the coordinator's is the one that clients of {agreed} were invited to"


# --- the server, from outside -----------------------------------------------------------------------------------------


def _server(machine: _Machine) -> Iterator[CheckResult]:
    """Port, certificate as it is served, Flower's version, clock; nothing follows a port or certificate that fails."""
    (port,) = machine.look("port", _port)
    yield port
    if port.wrong:
        return
    try:
        reply = _ask(machine)
    except InvalidInput:
        return  # ca.crt is missing: said above
    except (OSError, http.client.HTTPException) as error:
        yield CheckResult(machine.name, "tls", "wrong", *_why_untrusted(machine.deployment.host, error))
        return
    for what, check in (("tls", _certificate_in_use), ("server", _software), ("clock", _clock)):
        yield from machine.look(what, partial(check, reply))


def _port(machine: _Machine) -> str:
    host, port, address = machine.deployment.host, machine.deployment.port, machine.deployment.address
    try:
        socket.create_connection((host, port), machine.timeout).close()
    except OSError as error:
        logs = logs_of(machine.folder if machine.name == SERVER else Path(SERVER), FLOWER)
        remedy = f"start the server on {host} (sordino deploy up), and read {logs}/superlink.log and door.log there"
        if isinstance(error, socket.gaierror):
            remedy = f"{host} has no address here: correct the name server or /etc/hosts"
        elif isinstance(error, TimeoutError):
            remedy = f"open port {port} in the firewalls between this machine and the server"
        raise _CheckFailed(f"{address} cannot be reached ({error.strerror or error})", remedy) from None
    return f"{address} is open"


@dataclass(frozen=True)
class _ServerReply:
    """What a server says of itself, its clock, and the certificate that it serves."""

    status: int
    body: bytes
    date: str
    certificate: bytes


def _ask(machine: _Machine) -> _ServerReply:
    deployment, context = machine.deployment, trusting(machine.folder / "ca.crt")
    connection = http.client.HTTPSConnection(deployment.host, deployment.port, timeout=machine.timeout, context=context)
    with closing(connection):
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        served = connection.sock.getpeercert(binary_form=True) or b""
        connection.request("GET", "/openapi.json")
        response = connection.getresponse()
        return _ServerReply(response.status, response.read(RESPONSE), response.headers.get("Date", ""), served)


def _certificate_in_use(reply: _ServerReply, machine: _Machine) -> str:
    """Whether the server serves the certificate in its file, as it does once started anew."""
    own = machine.folder / FLOWER / "server.crt"
    if machine.name == SERVER and own.is_file() and CertificateFacts.read(own.read_bytes()).der != reply.certificate:
        raise _CheckFailed("the server serves another certificate than server.crt", "start it anew", "warning")
    return f"the server proves to be {machine.deployment.host}, by the authority in ca.crt"


def _why_untrusted(host: str, error: Exception) -> tuple[str, str]:
    if not isinstance(error, ssl.SSLError):
        return f"the server broke off ({error})", "read the server's log: is it a SuperLink, and alive?"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"no encrypted connection ({error.reason or error})",
            "start flower-superlink with --ssl-certfile, --ssl-keyfile and --ssl-ca-certfile, and without --insecure",
        )
    why = error.verify_message
    if "expired" in why:
        return "the server's certificate has expired", _RENEW
    if "not yet valid" in why:
        return "the server's certificate is not valid yet", _CLOCK
    if "mismatch" in why:
        return f"the server's certificate is not for {host} ({why})", _RENEW
    return (
        f"the server's certificate is of another authority than ca.crt ({why})",
        "copy ca.crt from the set-up that the server uses; if you did, somebody is between you and the server",
    )


def _software(reply: _ServerReply, machine: _Machine) -> str:
    if reply.status in (401, 403, 404):  # as where a proxy lets nodes reach what they need, and nothing else
        return f"it does not say what it runs (status {reply.status}): a proxy stands before it"
    try:
        about = json.loads(reply.body)["info"]
        title, version = str(about["title"]), str(about["version"])
    except (ValueError, KeyError, TypeError):
        title, version = "something else", ""
    if title not in (door.TITLE, "SuperLink API"):
        raise _CheckFailed(f"{machine.deployment.address} is no SuperLink ({title})", "give the server this port")
    if title != door.TITLE:
        raise _CheckFailed(_CONTROL, _CLOSE)
    here = _installed_flower()
    if here and _major_and_minor(here) != _major_and_minor(version):
        says = f"it runs Flower {version}, and here is {here}"
        raise _CheckFailed(says, "install the same version on all machines", "warning")
    return f"Flower {version}, behind a door for nodes alone"


_CONTROL = (
    "Flower's server answers without a door: whoever reaches it can run an app of its own on the server and on all "
    "nodes, and register nodes"
)
_CLOSE = "start it with sordino deploy up on the server's machine, or behind a proxy for /v1/fleet/ alone"


def _clock(reply: _ServerReply, _: _Machine) -> str:
    try:
        ahead = time.time() - parsedate_to_datetime(reply.date).timestamp()
    except (TypeError, ValueError):
        raise _CheckFailed("the server does not say what time it is", "compare the clocks by hand", "warning") from None
    if ahead > AHEAD or ahead < -BEHIND:
        raise _CheckFailed(
            f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's; Flower "
            f"turns away nodes that are more than {AHEAD:g} s ahead or {BEHIND:g} s behind",
            "set both clocks, by NTP",
        )
    return "agrees with the server's to a few seconds"


# --- nodes ------------------------------------------------------------------------------------------------------------


def _nodes(machine: _Machine) -> Iterator[CheckResult]:
    """Which node keys the server knows, and which nodes are there now: only its own machine is told."""
    deployment = machine.deployment
    if machine.name != SERVER:
        return
    try:
        known = list_nodes(deployment.inner_address, machine.folder / "ca.crt")
    except Exception as error:  # Flower's own client is not a published interface: whatever breaks there, say so
        says = f"the server was not asked for them ({str(error).partition(chr(10))[0]})"
        yield CheckResult(
            machine.name, "nodes", "warning", says, f"read {logs_of(machine.folder, FLOWER)}/superlink.log"
        )
        return
    for member, line in _expected_keys(machine).items():
        state = known.pop(line, None)
        if not line:
            yield CheckResult(member, "node", "wrong", "its public key is missing here", "copy the folder again")
        elif state is None:
            says = f"its key ({keys.fingerprint(line)}) is not registered at the server"
            remedy = "sordino deploy up registers it: is it running on the server's machine?"
            yield CheckResult(member, "node", "wrong", says, remedy)
        elif state != "online":
            says = f"registered, and {'never came' if state == 'registered' else f'{state} now'}"
            remedy = "on its machine: sordino deploy up; a node that was killed is let in again after a minute"
            yield CheckResult(member, "node", "wrong", says, remedy)
        else:
            yield CheckResult(member, "node", "ok", "registered and online")
    if known:
        says = f"{len(known)} more are registered that belong to no member"
        yield CheckResult(machine.name, "nodes", "warning", says, "FLWR_HOME=flower/home flwr supernode list")


def _expected_keys(machine: _Machine) -> dict[str, bytes]:
    """The public keys that this folder has; empty where a file is missing."""
    nodes = machine.folder / FLOWER / "nodes"
    return {each: _public(nodes / f"{each}.pub") for each in machine.deployment.members}


def _public(path: Path) -> bytes:
    try:
        return keys.public_line(path.read_bytes())
    except OSError:
        return b""


# --- what runs here ---------------------------------------------------------------------------------------------------


def _processes(machine: _Machine) -> Iterator[CheckResult]:
    """How the processes are that `sordino deploy up` keeps running on this machine."""
    over = [f" {each.name}" for each in _over(machine)] if machine.name == SERVER else []
    logs = {name: logs_of(machine.folder, side) for side in SIDES for name in statuses(machine.folder, (side,))}
    for name, found in statuses(machine.folder, SIDES).items():
        process, restarts = found.get("process"), found.get("restarts") or 0
        if found.get("state") == "over" or name.endswith(tuple(over)):  # its coordinator and its relay
            yield CheckResult(machine.name, "process", "ok", f"{name} is done")
        elif not _lives(process):
            log = logs[name] / f"{name.replace(' ', '-')}.log"
            says = f"{name} does not run" + (f", after {restarts} tries" if restarts else "")
            yield CheckResult(machine.name, "process", "wrong", says, f"sordino deploy up {machine.folder}; read {log}")
        else:
            again = f", started again {restarts} times" if restarts else ""
            yield CheckResult(machine.name, "process", "ok", f"{name} runs{again}")


def _lives(process: object) -> bool:
    if not isinstance(process, int):
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True  # another account's
    except OSError:
        return False
    return True


def _coordinators(machine: _Machine) -> Iterator[CheckResult]:
    """The coordinators' sockets, as Flower's side finds them; nothing of those that do not run."""
    for each in machine.deployment.federations:
        socket_ = each.socket_in(machine.folder)
        if socket_.is_socket():
            yield from machine.look("socket", partial(_reached, socket_))


def _accounts(machine: _Machine) -> str | None:
    """Whether Flower runs under an account of its own: whatever app it runs has all rights of that account."""
    own = COORDINATORS if machine.name == SERVER else CLIENT
    if not (machine.folder / own).exists():
        return None  # said above
    flower, owner = (LocalAccount.owning(machine.folder / side) for side in (FLOWER, own))
    if flower.user in (owner.user, 0):
        says = f"Flower runs as {flower.name}, so that an app which it is sent can read {own} too"
        remedy = f"sudo sordino deploy up {machine.folder} --account flower (any account that owns nothing else)"
        raise _CheckFailed(says, remedy, "warning")
    if flower.may(machine.folder / own, 1) or flower.may(machine.folder / own, 4):
        raise _CheckFailed(f"{flower.name} may enter {machine.folder / own}", f"chmod 700 {machine.folder / own}")
    return f"Flower runs as {flower.name}, which cannot enter {own}"


def _reached(path: Path, machine: _Machine) -> str:
    """Whether the account under which Flower runs can open a socket, on the whole way to it."""
    account = LocalAccount.owning(machine.folder / FLOWER)
    obstacle = account.obstacle(path, 4 | 2)
    if obstacle is None:
        return f"Flower's account ({account.name}) can open {path.name}"
    if obstacle == path.absolute():
        raise _CheckFailed(
            f"Flower runs as {account.name}, which may not open {path}",
            f"sordino deploy up {machine.folder} --account {account.name}: the socket then has that account's group",
        )
    says = f"Flower runs as {account.name}, which may not enter {obstacle}, so that it never reaches {path.name}"
    raise _CheckFailed(says, f"chmod o+x {obstacle}, or move {machine.folder} to where all may enter, such as /srv")


# --- a client ---------------------------------------------------------------------------------------------------------


def _client(machine: _Machine) -> Iterator[CheckResult]:
    """The owner's client: made, joined on these terms, answering, reached by the node. The first fault ends it."""
    looks: list[tuple[str, Callable[[_Machine], str | None]]] = [("node key", _key)]
    looks += [("client", partial(_agreement, each)) for each in machine.deployment.federations_of(machine.name)]
    looks += [("serving", _serving), ("socket", partial(_reached, socket_of_client(machine.folder)))]
    for what, check in looks:
        found = machine.look(what, check)
        yield from found
        if any(result.wrong for result in found):
            return


def _key(machine: _Machine) -> None:
    try:
        own = keys.public_of((machine.folder / FLOWER / "node.key").read_bytes())
    except OSError:
        return  # said above
    except InvalidInput as error:
        raise _CheckFailed(str(error), "copy node.key again") from None
    if own != _public(machine.folder / FLOWER / "node.pub"):
        raise _CheckFailed("node.pub is not the public key of node.key", "copy both again")


def _agreement(federation: FederationSetup, machine: _Machine) -> str:
    folder, name = machine.folder / CLIENT, federation.name
    if not (folder / "client.toml").is_file():
        raise _CheckFailed(f"{folder} is no client's folder yet", _step(machine, "deploy join"))
    try:
        agreed = Agreements(folder / "federations").find(name)
    except SordinoError as error:
        raise _CheckFailed(str(error), "restore the client's folder") from None
    if agreed is None:
        raise _CheckFailed(f"its owner has not agreed to {name}", _step(machine, "deploy join"))
    if (digest := sha256(agreed.recipe)) != federation.terms_sha256:
        raise _CheckFailed(
            f"its owner agreed to another recipe under the name {name} ({digest[:12]} in the place of "
            f"{federation.terms_sha256[:12]})",
            "a changed recipe needs a new name: sordino deploy add-federation ... --federation OTHER-NAME",
        )
    if agreed.coordinator != federation.coordinator:
        known = agreed.coordinator[:12] or "none"
        raise _CheckFailed(
            f"its owner agreed to another coordinator's key ({known} in the place of {federation.coordinator[:12]})",
            "join with the invitation in this folder, in a new client's folder if the old one has another key",
        )
    if agreed.client != federation.numbers[federation.members.index(machine.name)]:
        says = f"it joined as number {agreed.client}, another client's"
        raise _CheckFailed(says, "join with the invitation in this folder")
    if (folder / "older-ledger.json").exists():
        raise _CheckFailed(
            "its ledger is older than a receipt, so that it answers nothing",
            "sordino client show; see 'A ledger from a backup' in the client's page",
        )
    return f"agreed to {name} ({federation.terms_sha256[:12]})"


def _serving(machine: _Machine) -> str:
    path = socket_of_client(machine.folder)
    if len(os.fsencode(path.absolute())) > LONGEST_SOCKET:
        says = f"the path of {path.name} has more than {LONGEST_SOCKET} bytes"
        raise _CheckFailed(says, "move the folder to a shorter path")
    try:
        name = _hello(path, machine.timeout)
    except (OSError, SordinoError, ValueError, KeyError, TypeError) as error:
        raise _CheckFailed(f"nobody answers at {path} ({error})", _step(machine, "deploy up")) from None
    if name != machine.name:
        says = f"the client there is called {name}, and the server waits for {machine.name}"
        raise _CheckFailed(says, f"make it anew with --name {machine.name}")
    return f"{name} answers at {path}"


def _hello(path: Path, timeout: float) -> str:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        requests.send(connection, Request(What.HELLO).encode())
        return str(json.loads(Response.decode(requests.receive(connection, RESPONSE)).payload)["name"])


def _step(machine: _Machine, which: str) -> str:
    """The command of this set-up that does it."""
    found = (step.command for step in commands.steps(machine.deployment, machine.name))
    return f"in {machine.folder}: " + next(command for command in found if which in command)


__all__ = ["CheckResult", "check"]
