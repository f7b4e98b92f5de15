"""Secure aggregation: a server learns the sum of whole-number vectors, and of no vector by itself.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, Figure 4, with the
consistency check that holds against a server that lies. n clients are invited, t is the threshold, k the bits of a sum:

    keys      u draws the key pairs (c_u, s_u) and sends both public keys      server to U1: all keys
    shares    u draws b_u; splits b_u and s_u^SK, t out of |U1|; seals one     server to U2: what was sealed to each
              share of both to every v, under the key that c_u and c_v agree
    masked    y_u = x_u + PRG(b_u) + sum_{v in U2, v > u} PRG(s_uv)            server to U3: the names of U3
                                   - sum_{v in U2, v < u} PRG(s_uv)  mod 2^k
    confirm   u tells every v in U3, under their key, which U3 it was told     server to U4: what U4 confirmed
    unmask    u gives its shares of b_v for v in U3, of s_v^SK for v in U2 - U3

From t answers the server has every b_v of U3 and every s_v^SK of those that dropped out, and takes their masks off the
sum of the y_u. On a sparse graph (`neighbours`) u draws k of the others with its keys, shares its secrets among these
alone, and masks and confirms with these and with those who drew u; it unmasks once t of its k have confirmed.

The sum is one in the ring Z/2^k. Where silos share a noise, k is the `modulus` that the session names, k bits leave for
a value, and more is never known of the sum: what a silo adds is hidden by the others' noise in the ring, not in Z. Else
k is so large that the sum cannot wrap around, and is known in Z.

Both sides are steps on bytes, without clocks or sockets; docs/secure-aggregation.md says whom it withstands. Where the
paper signs, pairs of clients authenticate to each other with the keys they agreed on: whoever vouches for the public
keys (`Identity`) thereby vouches for everything.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sordino.channels import neighbours, shamir
from sordino.errors import InvalidInput, SordinoError
from sordino.wire.codec import Buffer, Layout, canonical, join, numbers, read_numbers, split

Int64s = NDArray[np.int64]
Words = NDArray[np.unsignedinteger]

STEPS = ("keys", "shares", "masked", "confirm", "unmask")
MOST_CLIENTS = 2**16
MOST_BITS = 64
MOST_MODULUS = 62
TILE = 2**17  #: bytes of a mask made at a time: they stay in the processor's cache
PIECE = 2**14  #: values packed at a time; a multiple of 8, so that pieces end with a byte

_SUM = Layout(b"SS", "a message of a secure sum", "16sI", kinds=range(len(STEPS)), blobs=1)  # session, client; clients
_KEY, _SIGNATURE = 32, 64
_NONCE, _TAG = 12, 16
_EVERYBODY = 2**32 - 1  # in the place of the client that a message is sent to
_SEALED = _NONCE + 2 * shamir.SHARE_BYTES + 16
_OF_NEIGHBOURS = ("neighbours", "quorum")


class SumRefused(SordinoError):
    """A message that is not accepted: damaged, forged, out of turn, or asking for more than a sum may reveal."""


class SumLost(SordinoError):
    """There is no sum: too few clients are left, or what they sent does not fit together."""


# --- what all parties agree on ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Session:
    """One sum: what is added, how many clients are invited, and how many must stay to the end."""

    federation: str
    round: int
    group: int  #: which of the round's sums
    subject: str  #: what the values are an answer to: a plan's digest
    values: int
    low: int  #: no client's value is below this; 0 in a ring that the session names
    high: int  #: nor above this
    clients: int  #: invited
    threshold: int
    attempt: str = ""  #: a sum that is begun anew has a new name, and shares no message with the one before
    neighbours: int = 0  #: k, drawn by each client to hold shares of its secrets; 0 where all clients do
    quorum: int = 0  #: how many of the neighbours must stay with it; 0 where it is the threshold
    modulus: int = 0  #: m of sums that are known modulo 2^m alone; 0 where they cannot wrap around

    def __post_init__(self) -> None:
        texts = ("federation", "subject", "attempt")
        whole = [f.name for f in fields(self) if f.name not in texts]
        if not all(type(getattr(self, name)) is int for name in whole):
            raise InvalidInput(f"of a session, {', '.join(whole)} must be whole numbers")
        if not all(isinstance(getattr(self, name), str) for name in texts):
            raise InvalidInput(f"a session's {', '.join(texts)} are texts")
        if not 2 <= self.clients <= MOST_CLIENTS:
            raise InvalidInput(f"a secure sum is of 2 to {MOST_CLIENTS:,} clients, got {self.clients}")
        if not self.clients < 2 * self.threshold <= 2 * self.clients:
            raise InvalidInput(
                f"the threshold must be more than half of the {self.clients} clients and at most all of them, got "
                f"{self.threshold}: with half or less, a server could unmask one client's vector"
            )
        if self.is_sparse and not self.neighbours // 2 < self.quorum <= self.neighbours < self.clients:
            raise InvalidInput(
                f"{self.quorum} of {self.neighbours} neighbours must stay: allowed are more than half of them, and "
                f"fewer neighbours than the {self.clients} clients"
            )
        if not self.is_sparse and (self.neighbours, self.quorum) != (0, 0):
            raise InvalidInput(f"without neighbours there is no quorum of them, got {self.neighbours}, {self.quorum}")
        if self.values < 1 or self.round < 0 or self.group < 0:
            raise InvalidInput("a session needs values >= 1, round >= 0 and group >= 0")
        if self.modulus:
            if not 1 <= self.modulus <= MOST_MODULUS or (self.low, self.high) != (0, 0):
                raise InvalidInput(
                    f"a sum modulo 2^m has an m from 1 to {MOST_MODULUS}, and low = high = 0, got 2^{self.modulus}, "
                    f"{self.low} and {self.high}"
                )
            if self.is_sparse:
                raise InvalidInput("noise is shared among all clients of a sum: no neighbours are drawn in its ring")
        elif self.high <= self.low:
            raise InvalidInput(f"a sum that has no modulus needs low < high, got {self.low} and {self.high}")
        elif self.bits > MOST_BITS or max(-self.low, self.high) * self.clients >= 2**63:
            raise InvalidInput(
                f"sums of {self.clients} numbers from {self.low} to {self.high} need more than {MOST_BITS} bits: keep "
                "fewer decimals, or add up fewer clients"
            )

    @property
    def bits(self) -> int:
        """k: sums are taken modulo 2^k; without a modulus, whole bytes and so large that no sum can wrap around."""
        return self.modulus or -(-(self.clients * (self.high - self.low)).bit_length() // 8) * 8

    @property
    def vector_bytes(self) -> int:
        """Bytes of a masked vector."""
        return -(-self.values * self.bits // 8)

    @property
    def is_sparse(self) -> bool:
        """Whether each client draws neighbours, and does not deal with everybody."""
        return self.neighbours > 0

    @property
    def shares_needed(self) -> int:
        """Of a client's secrets."""
        return self.quorum if self.is_sparse else self.threshold

    @cached_property
    def colluders(self) -> int:
        """How many clients may side with a server that lies without it learning more than one sum."""
        if self.is_sparse:
            return neighbours.most_colluders(self.clients, self.neighbours, self.quorum)
        return 2 * self.threshold - self.clients - 1

    @property
    def honest(self) -> int:
        """How many honest clients' values are in the sum, at least, if no more than `colluders` collude."""
        if self.is_sparse:
            return neighbours.honest(self.clients, self.colluders)
        return self.threshold - self.colluders

    def decoded(self, total: NDArray[np.integer], clients: int) -> Int64s:
        """The sum of so many clients' vectors, given modulo 2^k or more.

        Where a modulus is named, around zero; else as the only sum in Z that it can be.
        """
        lowest = -(1 << (self.modulus - 1)) if self.modulus else clients * self.low
        above = total.astype(np.uint64) - np.uint64(lowest % 2**64)
        above &= np.uint64(2**self.bits - 1)
        if not self.modulus and int(above.max()) > clients * (self.high - self.low):
            raise SumLost(
                f"the sum holds a number that {clients} clients cannot have made: one of them sent a value out of "
                "range or a false share"
            )
        return above.astype(np.int64) + lowest

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of it: messages of another session are recognised."""
        return hashlib.sha256(b"sordino secure sum v1" + self.encode()).digest()

    def encode(self) -> bytes:
        """Canonical JSON; a sum without neighbours does not speak of them, nor one without a modulus of that."""
        unspoken = (*(() if self.is_sparse else _OF_NEIGHBOURS), *(() if self.modulus else ("modulus",)))
        return canonical({name: value for name, value in asdict(self).items() if name not in unspoken})

    def is_common(self, step: str) -> bool:
        """Whether all clients are sent the same in this step."""
        return step == "keys" or (step == "shares" and not self.is_sparse)

    @classmethod
    def decode(cls, text: Buffer) -> Session:
        """The session that `encode` wrote; anything else is refused."""
        try:
            return cls(**json.loads(bytes(text)))
        except (ValueError, TypeError, RecursionError) as error:
            raise SumRefused(f"this is not a session of a secure sum ({error})") from None


class Identity(Protocol):
    """Who vouches that a public key is a client's: without it, the server could put its own keys in their place."""

    def sign(self, message: bytes) -> bytes:
        """This client's signature."""
        ...  # fmt: skip

    def verify(self, client: int, message: bytes, signature: bytes) -> bool:
        """Whether that client signed this."""
        ...  # fmt: skip


class Ed25519Identity:
    """Long-term signing keys that clients know of each other from elsewhere: not from the server.

    A client that knows nobody's (None) signs for those who know its own, and takes all keys as the server has them.
    """

    def __init__(self, private: Ed25519PrivateKey, known: Mapping[int, Ed25519PublicKey] | None) -> None:
        self._private, self._known = private, known

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)

    def verify(self, client: int, message: bytes, signature: bytes) -> bool:
        if self._known is None:
            return True
        if client not in self._known:
            return False
        try:
            self._known[client].verify(signature, message)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class _PublicKeys:
    """One client's public keys: `mask` agrees on masks, `seal` on sealing and vouching."""

    client: int
    mask: bytes
    seal: bytes
    signature: bytes = bytes(_SIGNATURE)  #: zero where nobody vouches

    def signed(self, session: Session) -> bytes:
        return b"sordino secure sum keys" + session.digest + numbers([self.client]) + self.mask + self.seal

    def encode(self) -> bytes:
        return self.mask + self.seal + self.signature

    @classmethod
    def decode(cls, client: int, raw: bytes) -> _PublicKeys:
        return cls(client, raw[:_KEY], raw[_KEY : 2 * _KEY], raw[2 * _KEY :])


def _message(step: str, session: Session, client: int, clients: Iterable[int] = (), rest: bytes = b"") -> bytes:
    listed = numbers(sorted(clients))
    return _SUM.pack(session.digest[:16], client, kind=STEPS.index(step), blobs=[listed], rest=rest)


def _read(message: bytes, step: str, session: Session, client: int) -> tuple[tuple[int, ...], bytes]:
    """The clients that a message lists and what follows them; refused where it is not of this step, sum and client."""
    try:
        number, (digest, whose), (listed,), rest = _SUM.unpack(message)
        clients = read_numbers(listed, "a list of clients")
    except InvalidInput as error:
        raise SumRefused(str(error)) from None
    if number != STEPS.index(step):
        raise SumRefused(f"a message of another step came in the step {step!r}")
    if digest != session.digest[:16]:
        raise SumRefused(f"a message of another round or another sum came in round {session.round}")
    if whose != client:
        raise SumRefused(f"a message from or to client {whose} came in the place of client {client}'s")
    if list(clients) != sorted(set(clients)):
        raise SumRefused("clients must be listed once each, in rising order")
    return clients, bytes(rest)


def _pieces(raw: bytes, count: int, length: int) -> list[bytes]:
    """So many pieces of one length, and nothing else."""
    if len(raw) != count * length:
        raise SumRefused(f"a message should end with {count} pieces of {length} bytes, and has {len(raw)} bytes there")
    return [raw[first : first + length] for first in range(0, len(raw), length)]


def invitation(message: bytes) -> Session:
    """The session that a request for keys invites to; whether to take part is for the client to judge."""
    try:
        return Session.decode(_SUM.unpack(message).rest)
    except InvalidInput as error:
        raise SumRefused(str(error)) from None


def _extended(digest: bytes, *parts: bytes) -> bytes:
    """What has been agreed so far, and this: two clients with equal digests were told the same all along."""
    return hashlib.sha256(digest + b"".join(parts)).digest()


# --- keys, seals and masks --------------------------------------------------------------------------------------------


def _agree(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SumRefused("a public key of the roster is none: it agrees on the same secret with everybody") from None


def _derive(secret: bytes, purpose: bytes, context: bytes, *clients: int) -> bytes:
    info = purpose + context + numbers(clients)
    return HKDF(hashes.SHA256(), 32, None, b"sordino " + info).derive(secret)


def _tag(secret: bytes, step: str, context: bytes, sender: int, receiver: int) -> bytes:
    key = _derive(secret, b"vouch", context, sender, receiver)
    return hmac.digest(key, step.encode() + context, "sha256")[:_TAG]


def _seal(secret: bytes, context: bytes, sender: int, receiver: int, text: bytes) -> bytes:
    nonce, about = os.urandom(_NONCE), _about(context, sender, receiver)
    return nonce + ChaCha20Poly1305(_derive(secret, b"seal", context, sender, receiver)).encrypt(nonce, text, about)


def _unseal(secret: bytes, context: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
    cipher = ChaCha20Poly1305(_derive(secret, b"seal", context, sender, receiver))
    try:
        return cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _about(context, sender, receiver))
    except InvalidTag:
        raise SumRefused(
            f"the shares that client {sender} is said to have sealed are damaged, forged or of another round"
        ) from None


def _about(context: bytes, sender: int, receiver: int) -> bytes:
    """Data that a seal is bound to: the context holds federation, round, sum and everybody's keys."""
    return b"shares" + context + numbers((sender, receiver))


def _words(session: Session) -> np.dtype[np.unsignedinteger]:
    """The machine's words for numbers modulo 2^k: the smallest that hold k bits."""
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= session.bits)}")


def _add_mask(total: Words, key: bytes, sign: int) -> None:
    """Add or take off PRG(key): AES-256 in counter mode from zero on. Every key makes one mask."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    step = TILE // total.itemsize
    zeros, tile = bytes(TILE), np.empty(TILE + 15, np.uint8)
    for first in range(0, total.size, step):
        part = total[first : first + step]
        stream.update_into(memoryview(zeros)[: part.nbytes], tile.data)
        mask = tile[: part.nbytes].view(total.dtype)
        (np.add if sign > 0 else np.subtract)(part, mask, out=part)


def _packed(words: Words, session: Session) -> bytes:
    """k bits of every value, and nothing of what its word holds above them; the last byte is filled up with zeros."""
    lanes, bits = words.view(np.uint8).reshape(-1, words.itemsize), session.bits
    if bits % 8 == 0:
        return lanes[:, : bits // 8].tobytes()
    pieces = (lanes[first : first + PIECE] for first in range(0, len(lanes), PIECE))
    return b"".join(
        np.packbits(np.unpackbits(piece, axis=1, count=bits, bitorder="little"), bitorder="little").tobytes()
        for piece in pieces
    )


def _unpacked(sent: bytes, session: Session) -> Words:
    bits, form = session.bits, _words(session)
    if len(sent) != session.vector_bytes:
        raise SumRefused(f"{session.values} masked values have {session.vector_bytes} bytes, got {len(sent)}")
    lanes, given = np.zeros((session.values, form.itemsize), np.uint8), np.frombuffer(sent, np.uint8)
    if bits % 8 == 0:
        lanes[:, : bits // 8] = given.reshape(session.values, bits // 8)
        return lanes.reshape(-1).view(form)
    if (padding := -session.values * bits % 8) and given[-1] >> (8 - padding):
        raise SumRefused("the bits behind the last masked value must be zero: the message was damaged or forged")
    for first in range(0, session.values, PIECE):
        count = min(PIECE, session.values - first)
        part = given[first * bits // 8 :][: -(-count * bits // 8)]
        spread = np.unpackbits(part, count=count * bits, bitorder="little").reshape(count, bits)
        lanes[first : first + count, : -(-bits // 8)] = np.packbits(spread, axis=1, bitorder="little")
    return lanes.reshape(-1).view(form)


# --- the client's side ------------------------------------------------------------------------------------------------


class SumClient:
    """One client in one sum. Every step is answered once; after anything that it refuses, it answers no more.

    All its secrets are drawn here, from the operating system, and serve this session alone.
    """

    def __init__(
        self,
        session: Session,
        client: int,
        *,
        identity: Identity | None = None,
        invited: Iterable[int] | None = None,
        pledge: Iterable[int] = (),
    ) -> None:
        """`invited` are the only ones who may take part, where that is known beforehand: neighbours are drawn of them.

        `pledge` are those whose sum this client has helped to reveal, of the very vectors that are to be added again:
        it helps to reveal that sum a second time, and none over others, since the difference would show them.
        """
        self.session, self.client = session, client
        self._identity = identity
        self._invited = None if invited is None else frozenset(invited)
        self._pledge = tuple(sorted(pledge))
        self._holders = self._drawn() if session.is_sparse else ()  # of shares of this client's secrets, by point
        self._wards: tuple[int, ...] = ()  # whose shares this client holds
        self._next = 0  # the step that may come
        self._mask_key, self._seal_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._self_seed = os.urandom(shamir.SECRET_BYTES)
        entry = _PublicKeys(
            client, self._mask_key.public_key().public_bytes_raw(), self._seal_key.public_key().public_bytes_raw()
        )
        self._entry = entry if identity is None else replace(entry, signature=identity.sign(entry.signed(session)))
        self._roster: dict[int, _PublicKeys] = {}
        self._secrets: dict[int, bytes] = {}  # agreed with each peer, for sealing and vouching
        self._shares: dict[int, tuple[bytes, bytes]] = {}  # of everybody's self-mask seed and masking key
        self._listed: tuple[int, ...] = ()  # U1, then U2
        self._context = session.digest  # everything that this client has been told so far
        self._masked: tuple[int, ...] = ()  # U3

    def _drawn(self) -> tuple[int, ...]:
        """This client's own neighbours: nobody else has a say in them."""
        others = set() if self._invited is None else self._invited - {self.client}
        if len(others) != self.session.clients - 1:
            raise InvalidInput(f"neighbours are drawn of the {self.session.clients} clients invited: name them all")
        return tuple(sorted(random.SystemRandom().sample(sorted(others), self.session.neighbours)))

    @property
    def over(self) -> bool:
        """Whether this client answers nothing more in this sum."""
        return self._next == len(STEPS)

    @property
    def survivors(self) -> tuple[int, ...]:
        """U3 as this client confirmed it: the clients in the sum that it helps to reveal."""
        return self._masked

    def kept(self) -> dict[str, object]:
        """All that is needed to go on in another process, ready for JSON: secrets, and what this client was told."""
        return {
            "session": asdict(self.session),
            "client": self.client,
            "invited": None if self._invited is None else sorted(self._invited),
            "pledge": list(self._pledge),
            "holders": list(self._holders),
            "wards": list(self._wards),
            "next": self._next,
            "mask_key": self._mask_key.private_bytes_raw().hex(),
            "seal_key": self._seal_key.private_bytes_raw().hex(),
            "self_seed": self._self_seed.hex(),
            "entry": self._entry.encode().hex(),
            "roster": {str(client): entry.encode().hex() for client, entry in self._roster.items()},
            "shares": {str(client): [share.hex() for share in pair] for client, pair in self._shares.items()},
            "listed": list(self._listed),
            "context": self._context.hex(),
            "masked": list(self._masked),
        }

    @classmethod
    def restored(cls, kept: Mapping[str, Any], identity: Identity | None = None) -> SumClient:
        """The client that `kept` described; what an earlier version kept is refused."""
        if "holders" not in kept or "modulus" not in kept["session"]:
            raise SumRefused("this client stopped in a sum that an earlier version began: the sum has to begin anew")
        own = cls(
            Session(**kept["session"]), kept["client"], identity=identity, invited=kept["invited"],
            pledge=kept["pledge"],
        )  # fmt: skip
        own._holders, own._wards = tuple(kept["holders"]), tuple(kept["wards"])
        own._next = kept["next"]
        own._mask_key = X25519PrivateKey.from_private_bytes(bytes.fromhex(kept["mask_key"]))
        own._seal_key = X25519PrivateKey.from_private_bytes(bytes.fromhex(kept["seal_key"]))
        own._self_seed = bytes.fromhex(kept["self_seed"])
        own._entry = _PublicKeys.decode(own.client, bytes.fromhex(kept["entry"]))
        own._roster = {int(c): _PublicKeys.decode(int(c), bytes.fromhex(raw)) for c, raw in kept["roster"].items()}
        own._secrets = own._agreed()
        own._shares = {int(c): (bytes.fromhex(seed), bytes.fromhex(key)) for c, (seed, key) in kept["shares"].items()}
        own._listed, own._context = tuple(kept["listed"]), bytes.fromhex(kept["context"])
        own._masked = tuple(kept["masked"])
        return own

    def answer(self, step: str, request: bytes, vector: Int64s | None = None) -> bytes:
        """The answer to a step's request; `vector` is what this client adds to the sum, in the step `masked`."""
        if step not in STEPS:
            raise SumRefused(f"unknown step {step!r}; allowed: {', '.join(STEPS)}")
        expected, self._next = self._next, len(STEPS)  # fail closed: only a step that succeeds lets the next one come
        if STEPS.index(step) != expected:
            what = "is over for this client" if expected == len(STEPS) else f"is at the step {STEPS[expected]!r}"
            raise SumRefused(f"a request for the step {step!r} came, but the sum {what}: nothing is answered twice")
        clients, rest = _read(request, step, self.session, _EVERYBODY if self.session.is_common(step) else self.client)
        given = (clients, rest, vector) if step == "masked" else (clients, rest)
        parts: list[bytes] = getattr(self, f"_to_{step}")(*given)
        self._next = expected + 1
        return _message(step, self.session, self.client, self._pledge if step == "keys" else (), b"".join(parts))

    def _to_keys(self, clients: Sequence[int], session: bytes) -> list[bytes]:
        if clients or session != self.session.encode():
            raise SumRefused("the invitation is to another sum than the one this client agreed to")
        return [self._entry.encode(), numbers(self._holders)]

    def _to_shares(self, clients: tuple[int, ...], rest: bytes) -> list[bytes]:
        if len(clients) > self.session.clients:
            raise SumRefused(f"{len(clients)} clients sent keys, but {self.session.clients} were invited")
        if self._invited is not None:
            _refuse_strangers(clients, self._invited, "sent keys, and is none of those whom this round asks")
        if self.session.is_sparse:
            self._read_neighbours(clients, rest)
        else:
            self._holders = self._wards = clients
            self._read_roster(clients, rest)
        self._check_crowd(clients, "sent keys")
        self._listed = clients
        self._context = _extended(self._context, numbers(clients), b"" if self.session.is_sparse else rest)
        self._secrets = self._agreed()
        secrets = self._self_seed, self._mask_key.private_bytes_raw()
        points = range(1, len(self._holders) + 1)
        seeds, keys = (shamir.split(int.from_bytes(s, "big"), self.session.shares_needed, points) for s in secrets)
        sealed = []
        for client, seed, key in zip(self._holders, seeds, keys, strict=True):
            pair = seed.to_bytes(shamir.SHARE_BYTES, "big"), key.to_bytes(shamir.SHARE_BYTES, "big")
            if client == self.client:
                self._shares[client] = pair
            elif client in self._roster:
                sealed.append(_seal(self._secrets[client], self._context, self.client, client, b"".join(pair)))
        return sealed

    def _read_neighbours(self, clients: Sequence[int], rest: bytes) -> None:
        """Those who drew this client, and the keys of all whom it deals with."""
        try:
            (listed,), keys = split(rest, 1, "a list of neighbours")
            self._wards = read_numbers(listed, "a list of neighbours")
        except InvalidInput as error:
            raise SumRefused(str(error)) from None
        if list(self._wards) != sorted(set(self._wards)):
            raise SumRefused("neighbours must be listed once each, in rising order")
        _refuse_strangers(self._wards, set(clients) - {self.client}, "drew this client, but never sent keys")
        peers = {*self._wards, *self._holders} & set(clients)
        self._read_roster(sorted(peers), bytes(keys))
        self._roster[self.client] = self._entry

    def _read_roster(self, clients: Sequence[int], keys: bytes) -> None:
        entries = list(map(_PublicKeys.decode, clients, _pieces(keys, len(clients), 2 * _KEY + _SIGNATURE)))
        self._roster = {entry.client: entry for entry in entries}
        if self._roster.get(self.client, self._entry) != self._entry:
            raise SumRefused("the roster holds other keys for this client than it sent: do not trust the server")
        everybody = {**self._roster, self.client: self._entry}.values()
        if len({key for entry in everybody for key in (entry.mask, entry.seal)}) != 2 * len(everybody):
            raise SumRefused("the roster holds one key twice: the server is not to be trusted")
        for entry in entries:
            if self._identity is not None and not self._vouched(entry):
                raise SumRefused(
                    f"the keys of client {entry.client} are not signed by it: the server may have forged them"
                )

    def _agreed(self) -> dict[int, bytes]:
        """The secrets for sealing and vouching, with each peer; of both entries where no context holds all keys."""
        found = {}
        for client, entry in self._roster.items():
            if client != self.client:
                secret = _agree(self._seal_key, entry.seal)
                pair = sorted([self._entry.encode(), entry.encode()])
                found[client] = _derive(secret, b"pair", b"".join(pair)) if self.session.is_sparse else secret
        return found

    def _peers(self, members: Iterable[int]) -> list[int]:
        """Those of a list with whom this client agreed on secrets."""
        return [client for client in members if client in self._secrets]

    def _vouched(self, entry: _PublicKeys) -> bool:
        assert self._identity is not None
        own = entry.client == self.client
        return own or self._identity.verify(entry.client, entry.signed(self.session), entry.signature)

    def _check_crowd(self, clients: Sequence[int], did: str) -> None:
        """Refuse a list that is too short, strange, or without this client: a small sum tells of those in it."""
        if self.client not in clients:
            raise SumRefused(f"this client must be listed among those who {did}")
        if len(clients) < self.session.threshold:
            raise SumRefused(f"{len(clients)} clients {did}, fewer than the threshold of {self.session.threshold}")
        there = set(self._holders) & set(clients)
        if len(there) < self.session.shares_needed:
            raise SumRefused(
                f"{len(there)} of this client's {len(self._holders)} neighbours {did}, fewer than the quorum of "
                f"{self.session.shares_needed}"
            )

    def _to_masked(self, members: tuple[int, ...], sealed_pairs: bytes, vector: Int64s | None) -> list[bytes]:
        self._check_crowd(members, "shared their secrets")
        _refuse_strangers(members, self._listed, "shares a secret, but never sent keys")
        wards = sorted({*self._wards} & {*members})
        givers = [client for client in wards if client != self.client]
        for client, sealed in zip(givers, _pieces(sealed_pairs, len(givers), _SEALED), strict=True):
            text = _unseal(self._secrets[client], self._context, client, self.client, sealed)
            self._shares[client] = text[: shamir.SHARE_BYTES], text[shamir.SHARE_BYTES :]
        self._shares = {client: self._shares[client] for client in wards}
        self._listed = members
        self._context = _extended(self._context, numbers(members))
        peers = self._peers(members)
        return [*self._tags("masked", peers), _packed(self._masks_on(vector, peers), self.session)]

    def _masks_on(self, vector: Int64s | None, peers: Sequence[int]) -> Words:
        masked = _checked_vector(vector, self.session).astype(_words(self.session))
        _add_mask(masked, _derive(self._self_seed, b"self", self._context), +1)
        for client in peers:
            secret = _agree(self._mask_key, self._roster[client].mask)
            _add_mask(masked, _derive(secret, b"mask", self._context), +1 if client > self.client else -1)
        return masked

    def _tags(self, step: str, receivers: Iterable[int]) -> list[bytes]:
        return [_tag(self._secrets[c], step, self._context, self.client, c) for c in self._peers(receivers)]

    def _check_tags(self, step: str, senders: Sequence[int], tags: bytes) -> None:
        peers = self._peers(senders)
        for client, tag in zip(peers, _pieces(tags, len(peers), _TAG), strict=True):
            expected = _tag(self._secrets[client], step, self._context, client, self.client)
            if not hmac.compare_digest(tag, expected):
                raise SumRefused(
                    f"client {client} was told other names or keys than this client: the server's lists differ"
                )

    def _to_confirm(self, members: tuple[int, ...], tags: bytes) -> list[bytes]:
        self._check_crowd(members, "sent masked vectors")
        _refuse_strangers(members, self._listed, "is said to have sent a vector, but shared no secrets")
        if self._pledge and members != self._pledge:
            raise SumRefused(
                "a sum of these vectors over other clients was revealed before: the difference of the two would show "
                "those who are in one of them only"
            )
        self._check_tags("masked", members, tags)
        self._masked = members
        self._context = _extended(self._context, numbers(members))
        return self._tags("confirm", members)

    def _to_unmask(self, members: Sequence[int], tags: bytes) -> list[bytes]:
        """Shares of the seeds of those in the sum and of the keys of all others: of nobody both."""
        self._check_crowd(members, "confirmed the list")
        _refuse_strangers(members, self._masked, "is said to have confirmed the list, but sent no vector")
        self._check_tags("confirm", members, tags)
        survivors = frozenset(self._masked)
        return [seed if client in survivors else key for client, (seed, key) in sorted(self._shares.items())]


def _refuse_strangers(members: Iterable[int], known: Iterable[int], what: str) -> None:
    if strangers := set(members) - set(known):
        raise SumRefused(f"client {min(strangers)} {what}")


def _checked_vector(vector: Int64s | None, session: Session) -> Int64s:
    """A vector of the right form; its values are none of the sum's business, which takes them modulo 2^k."""
    if vector is None or vector.shape != (session.values,) or vector.dtype != np.int64:
        raise InvalidInput(f"this sum is of int64 vectors [{session.values}]")
    return vector


# --- the server's side ------------------------------------------------------------------------------------------------


class SumServer:
    """The server in one sum: `requests(step)` for those still there, `receive` for each answer, in turn; then `total`.

    It keeps one running sum of masked vectors: memory does not grow with clients, save for their keys and shares.
    """

    def __init__(self, session: Session, clients: Iterable[int]) -> None:
        self.session = session
        self._asked = tuple(sorted(clients))
        if len(set(self._asked)) != session.clients or len(self._asked) != session.clients:
            raise InvalidInput(f"the session is of {session.clients} clients: name as many, each once")
        if self._asked[0] < 0 or self._asked[-1] >= _EVERYBODY:
            raise InvalidInput(f"clients have numbers from 0 to {_EVERYBODY - 1}")
        self._step = -1
        self._heard: dict[int, Any] = {}  # what each client sent in this step
        self._roster: dict[int, _PublicKeys] = {}  # U1
        self._drawn: dict[int, tuple[int, ...]] = {}  # by client: the neighbours it drew, on a sparse graph
        self._wards: dict[int, tuple[int, ...]] = {}  # by client: those of U1 who drew it, on a sparse graph
        self._sealed: dict[int, dict[int, bytes]] = {}  # by sender and receiver; U2
        self._context = session.digest
        self._sum: Words = np.zeros(session.values, _words(session))
        self._survivors: frozenset[int] = frozenset()  # U3
        self._pledges: dict[int, tuple[int, ...]] = {}  # by client: whose sum of these vectors it says to have revealed

    @property
    def summed(self) -> tuple[int, ...]:
        """U3: the clients in the sum."""
        return tuple(sorted(self._survivors))

    def requests(self, step: str) -> dict[int, bytes]:
        """Close the step before, and say what is sent to each client in this one; refused if too few are left."""
        if step not in STEPS or STEPS.index(step) != self._step + 1:
            raise InvalidInput(f"the steps of a sum are {', '.join(STEPS)}, in this order; got {step!r}")
        self._close()
        self._step += 1
        match step:
            case "keys":
                requests = self._to_all(step, self._asked, (), self.session.encode())
            case "shares":
                self._keep_to_pledge()
                requests = self._rosters()
            case "masked":
                requests = self._to_each(step, self._deliveries())
            case "confirm":
                requests = self._to_each(step, self._lists())
            case _:
                requests = self._to_each(step, self._forwarded(self._heard))
        self._asked, self._heard = tuple(requests), {}
        return requests

    def receive(self, step: str, client: int, message: bytes) -> None:
        """Take one client's answer. A client counts as gone when its answer is refused."""
        if self._step < 0 or step != STEPS[self._step]:
            raise SumRefused(f"an answer to the step {step!r} came out of turn")
        if client not in self._asked:
            raise SumRefused(f"client {client} was not asked in the step {step!r}")
        if client in self._heard:
            raise SumRefused(f"client {client} answered the step {step!r} twice")
        pledge, rest = _read(message, step, self.session, client)
        if pledge:
            self._check_pledge(step, client, pledge)
        self._heard[client] = getattr(self, f"_read_{step}")(client, rest)
        if pledge:
            self._pledges[client] = pledge

    def _close(self) -> None:
        if self._step >= 0 and len(self._heard) < self.session.threshold:
            raise SumLost(
                f"{len(self._heard)} of {self.session.clients} clients answered the step {STEPS[self._step]!r}, and "
                f"{self.session.threshold} are needed: nothing of their values was revealed. Ask more clients, give "
                "them more time, or set a lower threshold"
            )

    def _keep_to_pledge(self) -> None:
        """Where a sum of these vectors was revealed before, begin again with those in it, and nobody else.

        Whoever has a part in such a sum helps with no other, and it took as many as the threshold to reveal it: while
        as many are left who help with what is begun now, there was none. Then it goes on without those who say so.
        """
        there = set(self._heard)
        while (helpers := set(self._helpers(there))) != there:
            there = helpers
        if len(there) < self.session.threshold:
            before, _ = Counter(self._pledges.values()).most_common(1)[0]
            self._require_pledge(set(self._heard), before)
            there = set(before)
        self._heard = {client: entry for client, entry in self._heard.items() if client in there}

    def _helpers(self, members: Iterable[int]) -> list[int]:
        """Those of a sum's members who would help to reveal it."""
        ordered = tuple(sorted(members))
        return [client for client in ordered if self._pledges.get(client, ordered) == ordered]

    def _require_pledge(self, there: Set[int], before: Iterable[int]) -> None:
        if missing := set(before) - there:
            raise SumLost(
                f"clients say that a sum of this round's reports was revealed before, and client {min(missing)}, who "
                "is in it, is not there any more: they help with no sum over others, since the difference would show "
                "its report"
            )

    # --- what is sent

    def _to_all(self, step: str, clients: Iterable[int], listed: Iterable[int], rest: bytes) -> dict[int, bytes]:
        return dict.fromkeys(clients, _message(step, self.session, _EVERYBODY, listed, rest))

    def _to_each(self, step: str, sent: Mapping[int, bytes]) -> dict[int, bytes]:
        """Each gets the list of all of them, and what the others sent to it."""
        return {client: _message(step, self.session, client, sent, rest) for client, rest in sent.items()}

    def _rosters(self) -> dict[int, bytes]:
        """To everybody all keys; on a sparse graph to each who drew it, and the keys of those it deals with."""
        self._roster = dict(sorted(self._heard.items()))
        listed, keys = numbers(list(self._roster)), {c: entry.encode() for c, entry in self._roster.items()}
        if not self.session.is_sparse:
            everything = b"".join(keys.values())
            self._context = _extended(self._context, listed, everything)
            return self._to_all("shares", self._roster, self._roster, everything)
        self._context = _extended(self._context, listed)
        wards: dict[int, list[int]] = {client: [] for client in self._roster}
        for client in self._roster:
            for holder in self._drawn[client]:
                if holder in wards:
                    wards[holder].append(client)
        self._wards = {client: tuple(own) for client, own in wards.items()}
        return self._to_each("shares", {
            client: join(numbers(own)) + b"".join(keys[peer] for peer in self._peers(client))
            for client, own in self._wards.items()
        })  # fmt: skip

    def _holders(self, client: int) -> Sequence[int]:
        """Those among whom a client shared its secrets, by point."""
        return self._drawn[client] if self.session.is_sparse else tuple(self._roster)

    def _peers(self, client: int) -> Sequence[int]:
        """Those of U1 with whom a client agreed on masks, in rising order."""
        if not self.session.is_sparse:
            return [other for other in self._roster if other != client]
        return sorted({*self._wards[client], *self._drawn[client]} & self._roster.keys())

    def _deliveries(self) -> dict[int, bytes]:
        self._sealed = dict(sorted(self._heard.items()))
        self._context = _extended(self._context, numbers(list(self._sealed)))
        return self._forwarded(self._sealed)

    def _lists(self) -> dict[int, bytes]:
        self._survivors = frozenset(self._heard)
        if len(self._helpers(self._survivors)) < self.session.threshold:
            self._require_pledge(self._survivors, Counter(self._pledges.values()).most_common(1)[0][0])
        return self._forwarded(self._heard)

    def _forwarded(self, sent: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
        """For each sender, what its peers among them sent to it, in rising order."""
        nothing: dict[int, bytes] = {}
        return {to: b"".join(sent.get(by, nothing).get(to, b"") for by in self._peers(to)) for to in sorted(sent)}

    # --- what comes back

    def _read_keys(self, client: int, rest: bytes) -> _PublicKeys:
        size = 2 * _KEY + _SIGNATURE
        entry = _PublicKeys.decode(client, *_pieces(rest[:size], 1, size))
        self._drawn[client] = self._read_neighbours(client, rest[size:])
        taken = {key for other in self._heard.values() for key in (other.mask, other.seal)}
        if entry.mask == entry.seal or {entry.mask, entry.seal} & taken:
            raise SumRefused(f"client {client} sent keys that are not its own")
        return entry

    def _read_neighbours(self, client: int, raw: bytes) -> tuple[int, ...]:
        drawn = tuple(int.from_bytes(each, "little") for each in _pieces(raw, self.session.neighbours, 4))
        if list(drawn) != sorted(set(drawn)) or client in drawn or not set(drawn) <= set(self._asked):
            raise SumRefused(f"client {client} drew neighbours that are none: itself, strangers, or one twice")
        return drawn

    def _check_pledge(self, step: str, client: int, pledge: tuple[int, ...]) -> None:
        if step != "keys":
            raise SumRefused(f"client {client} lists clients in the step {step!r}, in which nobody does")
        if client not in pledge or not set(pledge) <= set(self._asked) or len(pledge) < self.session.threshold:
            raise SumRefused(f"client {client} says that it revealed a sum which cannot have been one of this round's")

    def _read_shares(self, client: int, rest: bytes) -> dict[int, bytes]:
        receivers = [holder for holder in self._holders(client) if holder in self._roster and holder != client]
        return dict(zip(receivers, _pieces(rest, len(receivers), _SEALED), strict=True))

    def _read_masked(self, client: int, rest: bytes) -> dict[int, bytes]:
        end = max(0, len(rest) - self.session.vector_bytes)
        tags = self._read_tags(client, rest[:end], self._sealed)
        self._sum += _unpacked(rest[end:], self.session)
        return tags

    def _read_tags(self, client: int, rest: bytes, receivers: Container[int]) -> dict[int, bytes]:
        peers = [peer for peer in self._peers(client) if peer in receivers]
        return dict(zip(peers, _pieces(rest, len(peers), _TAG), strict=True))

    def _read_confirm(self, client: int, rest: bytes) -> dict[int, bytes]:
        return self._read_tags(client, rest, self._survivors)

    def _read_unmask(self, client: int, rest: bytes) -> dict[int, int]:
        wards = [ward for ward in self._wards.get(client, self._sealed) if ward in self._sealed]
        shares = [int.from_bytes(s, "big") for s in _pieces(rest, len(wards), shamir.SHARE_BYTES)]
        if max(shares, default=0) >= shamir.PRIME:
            raise SumRefused(f"client {client} sent a share outside the field")
        return dict(zip(wards, shares, strict=True))

    # --- the sum

    def total(self) -> Int64s:
        """The exact sum over `summed`, without masks."""
        if self._step != len(STEPS) - 1:
            raise InvalidInput(f"a sum is known after its last step, {STEPS[-1]!r}")
        self._close()
        total, weights = self._sum.copy(), cache(shamir.weights)  # most clients miss the same holders, or nearly
        for client in self._sealed:
            answers = ((k, c) for k, c in enumerate(self._holders(client), 1) if client in self._heard.get(c, ()))
            there = list(itertools.islice(answers, self.session.shares_needed))
            if len(there) < self.session.shares_needed:
                raise SumLost(
                    f"{len(there)} of client {client}'s {len(self._holders(client))} neighbours stayed, and "
                    f"{self.session.shares_needed} are needed to unmask the sum: nothing of their values was revealed. "
                    "Give clients more time, or set a higher threshold, which is for fewer dropouts"
                )
            points, helpers = zip(*there, strict=True)
            shares = (self._heard[helper][client] for helper in helpers)
            secret = sum(w * share for w, share in zip(weights(points), shares, strict=True)) % shamir.PRIME
            if secret >= 2 ** (8 * shamir.SECRET_BYTES):
                raise SumLost(f"the shares of client {client}'s secret do not fit together: a client sent a false one")
            self._take_off(total, client, secret.to_bytes(shamir.SECRET_BYTES, "big"))
        return self.session.decoded(total, len(self._survivors))

    def _take_off(self, total: Words, client: int, secret: bytes) -> None:
        """The self-mask of a client in the sum, or all masks that others made with one that dropped out."""
        if client in self._survivors:
            _add_mask(total, _derive(secret, b"self", self._context), -1)
            return
        private = X25519PrivateKey.from_private_bytes(secret)
        if private.public_key().public_bytes_raw() != self._roster[client].mask:
            raise SumLost(f"the shares of client {client}'s key do not give its key: a client sent a false one")
        for other in self._survivors.intersection(self._peers(client)):
            mask = _derive(_agree(private, self._roster[other].mask), b"mask", self._context)
            _add_mask(total, mask, -1 if client > other else +1)
