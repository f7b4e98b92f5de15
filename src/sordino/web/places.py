"""Who holds which slot of a federation: identities, their proofs and invitations, kept in a file.

An identity is a random id with a proof that only its owner can make; the server keeps a hash of the first proof it
saw. A slot belongs to one identity until that leaves. Without invitations, somebody who needs a slot gets that of the
holder who has been absent longest, if that is longer than `absence`: a closed window does not hold a place for ever.
Somebody who comes from the network of one who left gets the place that was left there: leaving and joining anew under
another identity gives nobody a second place, nor a second report in a round. A native client that has not agreed yet
has its slot only while it is here or nobody else needs it: its owner may have said no where no network could carry it.
An invitation is a token for one slot, made from a key that lies beside the list of holders: nobody can invent one, and
after a restart they are the same. A shared link is one token for all: whoever shows it is treated as in an open
federation.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from sordino.errors import SordinoError
from sordino.storage.files import append_line, reading, whole_lines, write_whole
from sordino.web.limits import Limits
from sordino.wire.codec import canonical

ParticipantKind = Literal["page", "native"]
TOKEN_BYTES = 15
_UNINVITED = "this federation is by invitation: open the link that its operator sent you"
_STRANGE = "this invitation is not one of this federation's: ask its operator for another"
REMEMBERED = 1000  #: identities that have left of which the last place and the last receipt are known
KEY_BYTES = 32
KEY_FILE = "invitations.key"


class TurnedAway(SordinoError):
    """Somebody who may not join, or not now; `code` is one of docs/web-protocol.md."""

    def __init__(self, code: str, reason: str, *, retry: float | None = None) -> None:
        super().__init__(reason)
        self.code, self.retry = code, retry


@dataclass(frozen=True)
class Member:
    """Who holds a slot."""

    client: int
    id: str
    proof: str  #: SHA-256 of the proof
    kind: ParticipantKind


class Invitations:
    """Tokens for the slots of one federation."""

    def __init__(self, key: bytes, federation: str) -> None:
        self._key, self._federation = key, federation

    @classmethod
    def kept(cls, folder: Path, federation: str) -> Invitations:
        """The invitations of the key in a folder; a new key if there is none."""
        return cls(_kept_key(folder), federation)

    def token(self, client: int) -> str:
        """The token that admits one identity to a slot."""
        return f"{client}-{_tag(self._key, 'sordino slot 1', self._federation, str(client))}"

    def slot(self, token: str) -> int | None:
        """The slot of a token; None where it is not one of ours."""
        number, _, _ = token.partition("-")
        if not re.fullmatch(r"[0-9]{1,9}", number):
            return None
        return int(number) if hmac.compare_digest(self.token(int(number)).encode(), token.encode()) else None


class SharedLink:
    """One token that admits everybody who has it, to any free slot of one federation."""

    def __init__(self, folder: Path, federation: str) -> None:
        self._folder, self._federation = folder, federation
        self._key = _kept_key(folder)

    @property
    def token(self) -> str:
        """The token."""
        return f"link-{_tag(self._key, 'sordino link 1', self._federation)}"

    def admits(self, token: str) -> bool:
        """Whether a token is the one of this link."""
        return hmac.compare_digest(self.token.encode(), token.encode())

    def revoke(self) -> None:
        """Have another token from now on: the one before admits nobody any more."""
        _write_key(self._folder)
        self._key = _kept_key(self._folder)


def _kept_key(folder: Path) -> bytes:
    """The key that tokens are made from; a new one if there is none."""
    path = folder / KEY_FILE
    if not path.exists():
        _write_key(folder)
    with reading(path, "restore it, or delete it and invite anew"):
        key = bytes.fromhex(path.read_text().strip())
        if len(key) != KEY_BYTES:
            raise ValueError(f"it has {len(key)} bytes, and a key has {KEY_BYTES}")
        return key


def _write_key(folder: Path) -> None:
    write_whole(folder / KEY_FILE, secrets.token_hex(KEY_BYTES).encode(), mode=0o600)


def _tag(key: bytes, *parts: str) -> str:
    tag = hmac.digest(key, "\0".join(parts).encode(), hashlib.sha256)
    return base64.b32encode(tag[:TOKEN_BYTES]).decode().lower()


class Places:
    """The slots of one federation. A change counts once `settle` has returned: then it is on disk.

    Changes of many participants are written together: a thousand who come at once wait for a few writes, not for a
    thousand. Without personal invitations, one network may take `limits.places` slots; networks are not written down,
    so that after a restart a slot counts for the network from which its holder comes back. `freed` hears of each slot
    that is taken from its holder, `passed` of each that somebody from another network was given than the one that had
    it; after a restart, holders are absent since the start. The file is written anew when most of its lines are out of
    date.
    """

    _clock = staticmethod(time.monotonic)

    def __init__(
        self,
        path: Path,
        slots: range,
        invitations: Invitations | None = None,
        *,
        link: SharedLink | None = None,
        limits: Limits | None = None,
        freed: Callable[[int], None] = lambda _: None,
        passed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._path, self._slots, self._invitations, self._freed, self._passed = path, slots, invitations, freed, passed
        self._link = link
        self._most = math.inf if limits is None else limits.places
        self._absence = math.inf if limits is None else limits.absence
        self._networks: dict[int, str] = {}  # slot -> where its holder first came from, since the start
        self._left_by: dict[int, tuple[str, float]] = {}  # vacant slot -> the network of who left it last, and when
        self._members: dict[int, Member] = {}
        self._by_id: dict[str, Member] = {}
        self._agreed: set[int] = set()  # slots whose holder has agreed to its invitation
        self._ever_held: set[int] = set()  # slots that somebody has held: others are given first
        self._last_slots: dict[str, int] = {}  # id -> the slot that it had last
        self._connections: Counter[str] = Counter()  # id -> its connections
        self._absent_since: dict[str, float] = {}  # id of a holder without a connection -> since when
        self._pending: list[bytes] = []
        self._writing = threading.Lock()
        self._closed = False
        self._lines = 0  # in the file
        with reading(path):
            for line in whole_lines(path):
                self._read(line)
                self._lines += 1

    def _read(self, line: bytes) -> None:
        entry = json.loads(line)
        client = int(entry["client"])
        if entry["what"] == "left":
            gone = self._members.pop(client, None)
            self._by_id.pop(gone.id if gone is not None else "", None)
            self._absent_since.pop(gone.id if gone is not None else "", None)
            network = self._networks.pop(client, None)
            if network is not None:
                self._left_by[client] = (network, self._clock())
            self._agreed.discard(client)
            if "id" in entry:  # in a file that was written anew
                self._remember(str(entry["id"]), client)
        elif entry["what"] == "agreed":
            self._agreed.add(client)
        else:
            member = Member(client, str(entry["id"]), str(entry["proof"]), entry["kind"])
            self._members[client] = self._by_id[member.id] = member
            self._absent_since[member.id] = self._clock()
            self._remember(member.id, client)

    def _remember(self, id: str, client: int) -> None:
        self._ever_held.add(client)
        self._last_slots.pop(id, None)
        self._last_slots[id] = client
        while len(self._last_slots) - len(self._members) > REMEMBERED:
            del self._last_slots[next(known for known in self._last_slots if known not in self._by_id)]

    @property
    def members(self) -> dict[int, Member]:
        """Slot -> who holds it."""
        return dict(self._members)

    def find(self, id: str) -> Member | None:
        """Who has this id."""
        return self._by_id.get(id)

    @property
    def free(self) -> int:
        """Places that are free, or would be for somebody who comes now."""
        return len(self._vacant) + sum(self._is_reclaimable(member) for member in self._members.values())

    def recognises(self, id: str, proof: str, token: str) -> bool:
        """Whether somebody proves a known identity, or has an invitation of this federation's."""
        known = self.find(id)
        if known is not None and hmac.compare_digest(known.proof, hashlib.sha256(proof.encode()).hexdigest()):
            return True
        if self._link is not None:
            return self._link.admits(token)
        return self._invitations is not None and self._invitations.slot(token) in self._slots

    def admit(self, id: str, proof: str, kind: ParticipantKind, token: str, network: str = "") -> tuple[Member, bool]:
        """The slot of an identity, and whether it had it before; `TurnedAway` where it may not join."""
        hashed = hashlib.sha256(proof.encode()).hexdigest()
        known = self.find(id)
        if known is not None:
            if not hmac.compare_digest(known.proof, hashed):
                raise TurnedAway("proof", "this identity belongs to somebody else: its proof is another one")
            self._networks.setdefault(known.client, network)
            return known, True
        member = Member(self._free(id, token, network), id, hashed, kind)
        before, _ = self._left_by.pop(member.client, ("", 0.0))
        if before != network:
            self._passed(member.client)
        self._networks[member.client] = network
        self._note({"what": "joined", **asdict(member)})
        return member, False

    def come(self, member: Member) -> None:
        """Note that somebody has one more connection."""
        self._connections[member.id] += 1
        self._absent_since.pop(member.id, None)

    def go(self, member: Member) -> None:
        """Note that somebody has one connection less."""
        self._connections[member.id] -= 1
        if not self._connections[member.id]:
            del self._connections[member.id]
            if self.holds(member):
                self._absent_since[member.id] = self._clock()

    def holds(self, member: Member) -> bool:
        """Whether somebody still has the slot that it was given; it may have left over another connection."""
        return self._by_id.get(member.id) == member

    def agreed(self, member: Member) -> bool:
        """Whether the holder of a slot has agreed to its invitation, now or at any time before."""
        return self.holds(member) and member.client in self._agreed

    def agree(self, member: Member) -> None:
        """Note that the holder of a slot has agreed; who has before, or has left, changes nothing."""
        if self.holds(member) and not self.agreed(member):
            self._note({"what": "agreed", "client": member.client})

    def leave(self, member: Member) -> None:
        """Free a slot: its holder said that it will not come back. Who has left already changes nothing."""
        if self.holds(member):
            self._note({"what": "left", "client": member.client})

    def _note(self, entry: dict[str, object]) -> None:
        line = canonical(entry)
        self._pending.append(line)
        self._read(line)

    @property
    def unsettled(self) -> bool:
        """Whether there are changes that are not on disk yet."""
        return bool(self._pending)

    def settle(self) -> None:
        """Write down all changes so far, durably; from any thread. What could not be written is written next time."""
        with self._writing:
            lines = list(self._pending)
            if not lines or self._closed:
                return
            if self._lines + len(lines) > 2 * (2 * len(self._slots) + REMEMBERED):
                current = self._current_lines()
                write_whole(self._path, b"".join(line + b"\n" for line in current))
                self._lines = len(current)
            else:
                append_line(self._path, b"\n".join(lines))
                self._lines += len(lines)
            del self._pending[: len(lines)]

    def close(self) -> None:
        """Write down all changes so far, and none that come later."""
        try:
            self.settle()
        finally:
            self._closed = True

    def _current_lines(self) -> list[bytes]:
        """What the file would say if it were written anew: who left last, who is a member, and who has agreed."""
        entries: list[dict[str, object]] = [
            {"what": "left", "client": client, "id": id}
            for id, client in list(self._last_slots.items())
            if not self.find(id)
        ]
        for member in self.members.values():
            entries.append({"what": "joined", **asdict(member)})
            if self.agreed(member):
                entries.append({"what": "agreed", "client": member.client})
        return list(map(canonical, entries))

    def _free(self, id: str, token: str, network: str) -> int:
        if self._invitations is not None:
            return self._invited(self._invitations, token)
        if self._link is not None and not self._link.admits(token):
            raise TurnedAway("token", _STRANGE if token else _UNINVITED)
        if not self._vacant or self._has_all(network):
            self._take_back(self._slots)
        if self._has_all(network):
            self._take_from_absent([client for client, other in self._networks.items() if other == network])
        elif not self._vacant:
            self._take_from_absent(self._slots)
        if not self._vacant:
            raise TurnedAway("full", f"all {len(self._slots)} places of this federation are taken", retry=60.0)
        if self._has_all(network):
            raise TurnedAway(
                "address",
                f"{self._most} places of this federation are taken from your network address, and one address may "
                "take no more: ask its operator to allow more (--per-address), or to invite you",
                retry=60.0,
            )
        now = self._clock()
        own = {c for c, (other, since) in self._left_by.items() if other == network and now - since < self._absence}
        places = (
            (client != self._last_slots.get(id), client not in own, client in self._ever_held, client)
            for client in self._vacant
        )
        return min(places)[-1]

    @property
    def _vacant(self) -> list[int]:
        return [client for client in self._slots if client not in self._members]

    def _has_all(self, network: str) -> bool:
        """Whether one network holds as many slots as it may."""
        return sum(other == network for other in self._networks.values()) >= self._most

    def _take_back(self, slots: Iterable[int]) -> None:
        """Free those of `slots` that belong to native clients which are away and never agreed."""
        for member in [self._members[client] for client in slots if client in self._members]:
            if self._never_agreed(member):
                self._take(member)

    def _take_from_absent(self, slots: Iterable[int]) -> None:
        """Free the slot with the holder that has been absent longest, if that is too long."""
        absent = [m for client in slots if (m := self._members.get(client)) is not None and self._is_reclaimable(m)]
        if absent:
            self._take(min(absent, key=lambda member: self._absent_since[member.id]))

    def _take(self, member: Member) -> None:
        self.leave(member)
        self._freed(member.client)

    def _never_agreed(self, member: Member) -> bool:
        return member.kind == "native" and member.client not in self._agreed and not self._connections[member.id]

    def _is_reclaimable(self, member: Member) -> bool:
        """Whether a slot may be given to somebody else who needs it."""
        if self._never_agreed(member):
            return True
        since = self._absent_since.get(member.id)
        return self._invitations is None and since is not None and self._clock() - since >= self._absence

    def _invited(self, invitations: Invitations, token: str) -> int:
        if not token:
            raise TurnedAway("token", _UNINVITED)
        slot = invitations.slot(token)
        if slot is None or slot not in self._slots:
            raise TurnedAway("token", _STRANGE)
        self._take_back([slot])
        if slot in self._members:
            raise TurnedAway("token", "this invitation was used by somebody else: ask the operator for another")
        return slot


class Receipts:
    """The last receipt of each identity, in a file. Slots change hands, and a receipt is its maker's alone.

    Those of members (`holds`) are kept, and of the last who left.
    """

    def __init__(self, path: Path, holds: Callable[[str], bool] = lambda _: False) -> None:
        self._path, self._holds = path, holds
        self._kept: dict[str, bytes] = {}  # id -> receipt
        self._unsettled = False
        self._turn = threading.Lock()
        self._closed = False
        if path.exists():
            with reading(path):
                self._kept = {str(id): bytes.fromhex(text) for id, text in json.loads(path.read_text()).items()}

    def of(self, member: Member) -> bytes:
        """The last receipt of a member; empty if it gave none."""
        return self._kept.get(member.id, b"")

    def take(self, member: Member, receipt: bytes) -> None:
        """Keep a receipt; it is on disk after `settle`."""
        with self._turn:
            self._kept.pop(member.id, None)
            self._kept[member.id] = receipt
            self._unsettled = True

    def settle(self) -> None:
        """Write them down, durably, if any are new; from any thread."""
        with self._turn:
            if self._unsettled and not self._closed:
                strangers = [id for id in self._kept if not self._holds(id)]
                for id in strangers[: max(0, len(strangers) - REMEMBERED)]:
                    del self._kept[id]
                kept = {id: receipt.hex() for id, receipt in self._kept.items()}
                write_whole(self._path, json.dumps(kept).encode())
                self._unsettled = False

    def close(self) -> None:
        """Write them down, and none that come later."""
        try:
            self.settle()
        finally:
            self._closed = True


__all__ = ["Invitations", "Member", "ParticipantKind", "Places", "Receipts", "SharedLink", "TurnedAway"]
