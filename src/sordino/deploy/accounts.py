"""As root: each side of a machine under its own account, started and looked after by a process of that account.

Root itself writes nothing into folders that other accounts own, and reads nothing from there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.deploy.deployment import CLIENT, COORDINATORS, FILE, FLOWER, SERVER, Deployment
from sordino.deploy.services import COORDINATOR
from sordino.deploy.supervisor import die_with_parent
from sordino.errors import InvalidInput

#: beginnings of the names of variables that a side is given
KEPT = ("PATH", "LANG", "LC_", "TZ", "PYTHON", "OMP_", "SORDINO_", "SSL_CERT_", "TMPDIR")
AGAIN = 5.0  #: seconds until a side that ended is started again
ENDING = 20.0  #: seconds in which a side may end by itself


@dataclass
class _Side:
    """One side of a machine, under the account of its folder."""

    name: str
    owner: Path
    process: subprocess.Popen[bytes] | None = None
    due: float = 0.0


def needs_root(deployment: Deployment) -> bool:
    """Whether Flower runs here under another account than this process; refused where this one is neither of both."""
    if not deployment.account or not hasattr(os, "geteuid"):
        return False
    return os.geteuid() == 0 and account_number(deployment.account) != 0


def check_account(deployment: Deployment, place: Path, side: str) -> None:
    """Refuse to start Flower's side under an account that is not Flower's."""
    if not deployment.account or side not in ("", FLOWER) or account_number(deployment.account) == os.geteuid():
        return
    own = COORDINATOR if (place / COORDINATORS).is_dir() else CLIENT
    raise InvalidInput(
        f"Flower runs under the account {deployment.account} here, and this is another: start everything as root (sudo "
        f"sordino deploy up {place}), or each side under its own account (--only {FLOWER}, --only {own})"
    )


def account_number(account: str) -> int:
    """The number of an account of this machine."""
    import pwd

    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError:
        raise InvalidInput(
            f"there is no account {account!r} on this machine: make it (useradd --system {account}), or name another "
            "with --account"
        ) from None


def run_under_accounts(deployment: Deployment, place: Path, *, door: bool, say: Callable[[str], None]) -> None:
    """Keep both sides of one machine running, until a signal or until the owner's own side is over."""
    if not deployment.machine:
        raise InvalidInput(f"{place} holds several machines: with an account for Flower, start each in its own folder")
    own = (COORDINATOR, COORDINATORS) if deployment.machine == SERVER else (CLIENT, CLIENT)
    if not (place / own[1]).is_dir():
        raise InvalidInput(f"{place / own[1]} is not there yet: sordino deploy join {place}, as its owner")
    hand_over(place, deployment.account)
    sides = [_Side(own[0], place / own[1]), _Side(FLOWER, place / FLOWER)]
    stopping: list[int] = []
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, _: stopping.append(number))
    try:
        while not stopping and not _is_over(sides[0]):
            for side in sides:
                _look(side, deployment, place, door, say)
            time.sleep(0.2)
    finally:
        _end(sides)


def hand_over(place: Path, account: str) -> None:
    """Let Flower's files be its account's and its group's, once; no link is followed.

    Only what its maker or root owns is handed over: from one account of Flower's to another nothing is, since the first
    could have put anything there.
    """
    import pwd

    own, found = place / FLOWER, pwd.getpwnam(account)
    before, maker = own.stat().st_uid, place.stat().st_uid
    if before != found.pw_uid:
        if before not in (0, maker):
            raise InvalidInput(
                f"{own} belongs to another account: remove it there, copy it again from where the set-up was made, and "
                "start again"
            )
        for path in sorted(own.rglob("*"), reverse=True):
            if path.lstat().st_uid == before:
                os.chown(path, found.pw_uid, found.pw_gid, follow_symlinks=False)
        os.chown(own, found.pw_uid, found.pw_gid, follow_symlinks=False)
    for path in (place, place.parent):
        if (path / FILE).is_file():
            path.chmod(path.stat().st_mode & 0o777 | 0o011)  # to be passed through, not to be read


def _look(side: _Side, deployment: Deployment, place: Path, door: bool, say: Callable[[str], None]) -> None:
    if side.process is not None and (code := side.process.poll()) is not None:
        side.process, side.due = None, time.monotonic() + AGAIN
        if code:
            say(f"{side.name}: it ended with exit code {code}; it is started again")
    if side.process is None and time.monotonic() >= side.due:
        command = [sys.executable, "-m", "sordino", "deploy", "up", str(place), "--only", side.name]
        side.process = subprocess.Popen(
            [*command, *([] if door else ["--no-door"])], cwd=place, env=_environment(side), stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent, **identity(side.owner, deployment.account),
        )  # fmt: skip


def identity(owner: Path, account: str) -> dict[str, Any]:
    """The account of a folder with its own main group, and Flower's group beside it: who is in that may hand over a
    socket. Root's other groups, and those of whoever made the folder, are not taken along.
    """
    import pwd

    user, flower = owner.stat().st_uid, pwd.getpwnam(account)
    try:
        group = pwd.getpwuid(user).pw_gid
    except KeyError:
        group = flower.pw_gid if user == flower.pw_uid else owner.stat().st_gid
    return {"user": user, "group": group, "extra_groups": [flower.pw_gid]}


def _environment(side: _Side) -> dict[str, str]:
    """What a side finds in its environment: nothing that is root's own."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    return {**kept, "HOME": str(side.owner)}


def _is_over(own: _Side) -> bool:
    return own.process is not None and own.process.poll() == 0


def _end(sides: list[_Side]) -> None:
    running = [side.process for side in reversed(sides) if side.process is not None]
    for process in running:
        process.terminate()
    until = time.monotonic() + ENDING
    for process in running:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


__all__ = ["account_number", "check_account", "hand_over", "identity", "needs_root", "run_under_accounts"]
