"""A machine's two sides as two services of systemd, each under its own account."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sordino.deploy.access import LocalAccount
from sordino.deploy.accounts import account_number
from sordino.deploy.deployment import CLIENT, COORDINATORS, FILE, FLOWER, LOGS, SERVER, SOCKETS, Deployment
from sordino.deploy.services import COORDINATOR, group_of
from sordino.errors import InvalidInput

UNITS = "systemd"  #: the folder of unit files in a machine's
HOMES = tuple(map(Path, ("/home", "/root", "/run/user")))  #: what ProtectHome= is about
TEMPORARY = tuple(map(Path, ("/tmp", "/var/tmp")))  #: what PrivateTmp= is about


@dataclass(frozen=True)
class SystemdUnit:
    """One unit file."""

    name: str
    text: str


def units(deployment: Deployment, folder: Path) -> tuple[SystemdUnit, SystemdUnit]:
    """The owner's side and Flower's, for a machine's folder where it lies now; `deployment` names Flower's account."""
    if not deployment.machine:
        raise InvalidInput(
            f"{folder} is the folder of a whole set-up, and units are for one machine: give that of one in it "
            f"({', '.join(str(folder / each) for each in deployment.machines)})"
        )
    place, account = folder.absolute(), deployment.account
    account_number(account)  # refused where there is no such account
    group = group_of(account)
    side = COORDINATOR if deployment.machine == SERVER else CLIENT
    own = place / (COORDINATORS if side == COORDINATOR else CLIENT)
    flower, logs, sockets = place / FLOWER, place / LOGS, place / SOCKETS
    used = (own, logs, sockets)
    owner = LocalAccount.owning(own if own.exists() else place).name
    _check(place, account, owner)
    first, second = (f"sordino-{deployment.machine}-{each}.service" for each in (side, FLOWER))
    posts = any(each.shuffler for each in deployment.federations_of(deployment.machine))
    owners = _coordinator() if side == COORDINATOR else _client(posts=posts)
    about = f"Description=Sordino, {deployment.machine}: {{}} side"
    return (
        _unit(first, [about.format("the owner's"), *_after()], [
            f"User={owner}", f"SupplementaryGroups={group}", *owners,
            *_before(("mkdir", "-p", "-m", "700", *used), ("chown", owner, *used), ("chmod", "711", place, sockets)),
            _start(place, side), *_protection(place), "ProtectHome=read-only",  # records may lie in a home
            _paths("ReadWritePaths", *used), _paths("InaccessiblePaths", flower),
        ]),
        _unit(second, [about.format("Flower's"), *_after(first)], [
            f"User={account}", "Restart=always",
            *_before(("chown", "-R", account, flower), ("chmod", "711", place), ("chmod", "a+r", place / FILE)),
            _start(place, FLOWER), *_protection(place), f"ProtectHome={_homes(place)}", "PrivateDevices=yes",
            _paths("ReadWritePaths", flower), _paths("InaccessiblePaths", own, logs),
        ]),
    )  # fmt: skip


def _coordinator() -> list[str]:
    """It ends with the federation; data sets that it fetches are kept where systemd lets it write."""
    return ["Restart=on-failure", "CacheDirectory=sordino", "Environment=XDG_CACHE_HOME=/var/cache"]


def _client(*, posts: bool) -> list[str]:
    """The socket is its only way out, unless it posts to a shuffler."""
    return ["Restart=always", *([] if posts else ["PrivateNetwork=yes"])]


def _check(place: Path, account: str, owner: str) -> None:
    """Refuse what would not start, or would protect nothing."""
    if account in (owner, "root"):
        raise InvalidInput(
            f"Flower must not run as {account}, whose files are here: give an account of its own (useradd --system "
            "flower, then --account flower)"
        )
    found = LocalAccount.named(account)
    for path, remedy in (
        (place.parent, "or move the folder, say to /srv"),
        (Path(sys.executable).resolve(), "or install Sordino elsewhere, say in /opt"),
        (Path(__file__), "or install Sordino elsewhere, say in /opt"),
    ):
        obstacle = found.obstacle(path, 1 if path.is_dir() else 4)
        if obstacle is not None:
            raise InvalidInput(
                f"{account} may not enter {obstacle}, and so not start its side: chmod o+x {obstacle}, {remedy}"
            )


def _unit(name: str, about: list[str], service: list[str]) -> SystemdUnit:
    lines = ["[Unit]", *about, "", "[Service]", *service, "", "[Install]", "WantedBy=multi-user.target", ""]
    return SystemdUnit(name, "\n".join(lines))


def _after(*others: str) -> list[str]:
    """Try for ever, from when the network and other units are there."""
    names = " ".join(["network-online.target", *others])
    return ["Wants=network-online.target", f"After={names}", "StartLimitIntervalSec=0"]


def _before(*commands: tuple[Path | str, ...]) -> list[str]:
    """What root does before a side starts."""
    return [f"ExecStartPre=+/bin/{_command(*words)}" for words in commands]


def _start(place: Path, side: str) -> str:
    return f"ExecStart={_command(sys.executable, '-m', 'sordino', 'deploy', 'up', place, '--only', side)}"


def _protection(place: Path) -> list[str]:
    """What both sides are kept from, and how they end: the first process ends the others."""
    private = [] if _lies_in([place, *_programs()], TEMPORARY) else ["PrivateTmp=yes"]
    return [
        "RestartSec=5", "KillMode=mixed", "TimeoutStopSec=30", "NoNewPrivileges=yes", "ProtectSystem=strict", *private,
        "ProtectKernelTunables=yes", "ProtectKernelModules=yes", "ProtectControlGroups=yes", "RestrictSUIDSGID=yes",
        "LockPersonality=yes", "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    ]  # fmt: skip


def _programs() -> tuple[Path, ...]:
    return Path(sys.prefix), Path(sys.base_prefix), Path(__file__)


def _lies_in(paths: Iterable[Path], folders: Iterable[Path]) -> bool:
    places = tuple(folders)
    return any(path.is_relative_to(each) for path in paths for each in places)


def _homes(place: Path) -> str:
    """Keep a side out of people's homes, or let it read them where this Python or its folder lies in one."""
    return "read-only" if _lies_in([place, *_programs()], HOMES) else "yes"


def _paths(setting: str, *paths: Path) -> str:
    """A setting that lists paths, which need not be there."""
    return f"{setting}={' '.join(_word(f'-{path}') for path in paths)}"


def _command(*words: Path | str) -> str:
    """A command line, in which systemd replaces no variables."""
    return " ".join(_word(word).replace("$", "$$") for word in words)


def _word(given: Path | str) -> str:
    """One word of a unit file, whatever is in it."""
    text = str(given).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if any(letter in text for letter in " \t'\"\\;") or not text else text


__all__ = ["UNITS", "SystemdUnit", "units"]
