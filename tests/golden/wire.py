"""Writes wire/*.bin and wire/index.json: what every version of the wire format's numbers must go on to read and write.

python -m tests.golden.wire        # rewrites the files; do so only when a format's version changes, and say so there

Every message of docs/wire.md is here, made from fixed keys and numbers. Sealed envelopes cannot be made again (each
has a key of its own from the operating system): `envelopes-*.bin` are kept from the first time, and are read only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.channels import secagg, shamir
from sordino.channels.secure_sum import _with_plan
from sordino.client.invitation import CommonTerms, Invitation
from sordino.mechanisms import Box, NoPrivacy, TwoPoint
from sordino.methods.upload import Upload
from sordino.randomness import Keystream
from sordino.shuffler import envelopes
from sordino.shuffler.terms import Terms
from sordino.wire.messages import Answer, Kind, Plan
from sordino.wire.receipt import Seal
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Author, SigningKey

FOLDER = Path(__file__).with_name("wire")
INDEX = FOLDER / "index.json"

FEDERATION, ROUND = "bakery", 3
KEY = bytes(range(32))
VALUES = 5
BITS = ((1, 0, 1, 1, 0), (0, 0, 1, 0, 1), (1, 1, 0, 0, 1))
ADDED = {0: (-3, 0, 7, 2), 2: (1, 1, 1, 1), 5: (7, -3, 0, 0)}  #: what three clients add to a sum; 9 drops out
SPARSE_ADDED = {**ADDED, 6: (0, 0, 0, -3), 7: (2, 4, 6, 7)}  #: the same on a sparse graph
SUMS = {"sum": ADDED, "sparse-sum": SPARSE_ADDED}  #: by the first words of their files' names


# --- plans, answers, reports ------------------------------------------------------------------------------------------


def plan() -> Plan:
    arrays = {"parameters": np.array([0.0, 1.5, -0.25, 3e-39, 65504], np.float32), "range": np.ones((1, 2), np.float32)}
    settings = {"columns": [0, 5], "share": [1, 20], "what": "caf\u00e9"}
    return Plan(FEDERATION, ROUND, settings, arrays)


def bare_plan() -> Plan:
    return Plan(FEDERATION, 0)


def bits_report() -> bytes:
    upload = Upload(lambda _: TwoPoint(1.0, Box(0.0, 1.0)), None, VALUES, clients=1, what="model update")
    return upload.send([0], [[1.0, -1.0, 0.5, 0.0, 2.0]], _fixed, [7]).bodies[0]


def counted_report() -> bytes:
    upload = Upload(lambda _: NoPrivacy(), None, VALUES, clients=1, what="model update", samples=True)
    return upload.send([0], [[1.0, -1.0, 0.5, 0.0, 2.0]], _fixed, [1234]).bodies[0]


def _fixed(clients: Any) -> Keystream:
    return Keystream(KEY, list(clients), 0)


# --- the client's socket ----------------------------------------------------------------------------------------------


def common_terms() -> CommonTerms:
    return CommonTerms(FEDERATION, 'name = "x"\n', (1, 8, 8), ("no", "yes"), (0.5,), (2.0,), author().first.hex())


def invitation() -> Invitation:
    return replace(common_terms().invitation(2, rotated()), receipt=receipt().hex())


def agreed() -> bytes:
    """The digest that every envelope names."""
    return common_terms().digest


def author() -> Author:
    """Of the key 000102.."""
    return Author(Ed25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw())


def signing() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(KEY), author())


def signed_plan() -> bytes:
    return signing().envelope("report", plan(), agreed(), (0, 2, 9), plan().encode())


def rotated() -> SigningKey:
    return signing().rotated(Ed25519PrivateKey.from_private_bytes(bytes(32)))


def receipt() -> bytes:
    with mock.patch.object(os, "urandom", Counted("receipt").bytes):
        return Seal(KEY).receipt(FEDERATION, "11" * 32)


# --- a secure sum -----------------------------------------------------------------------------------------------------


class Counted:
    """Bytes that look random and are the same every time, in the place of the operating system's."""

    def __init__(self, label: str) -> None:
        self._label, self._count = label, 0

    def bytes(self, count: int) -> bytes:
        out = b""
        while len(out) < count:
            out += hashlib.sha256(f"{self._label} {self._count}".encode()).digest()
            self._count += 1
        return out[:count]

    def below(self, limit: int) -> int:
        return int.from_bytes(self.bytes(64), "big") % limit

    def sample(self, population: Sequence[int], count: int) -> list[int]:
        left = list(population)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.bytes(32))


@contextmanager
def drawn_from(label: str) -> Iterator[None]:
    """Everything that a secure sum draws comes from a label: for golden files, and never in a real sum."""
    source = Counted(label)
    keys = mock.Mock(generate=source.key, from_private_bytes=X25519PrivateKey.from_private_bytes)
    assert shamir.split.__kwdefaults__ is not None
    with (
        mock.patch.object(os, "urandom", source.bytes),
        mock.patch.object(secagg, "X25519PrivateKey", keys),
        mock.patch.object(secagg.random, "SystemRandom", lambda: source),
        mock.patch.dict(shamir.split.__kwdefaults__, draw=source.below),
    ):
        yield


def session(kind: str = "sum") -> secagg.Session:
    """Four clients of whom three must stay; on a sparse graph six and four, with two of three neighbours each."""
    graph = {"sum": {"clients": 4, "threshold": 3},
             "sparse-sum": {"clients": 6, "threshold": 4, "neighbours": 3, "quorum": 2}}[kind]  # fmt: skip
    return secagg.Session(FEDERATION, ROUND, 1, plan().digest.hex(), 4, -3, 7, **graph)


def sum_client(number: int, kind: str = "sum") -> secagg.SumClient:
    """A client that draws what is drawn in the golden files."""
    with drawn_from(f"client {number}"):
        return secagg.SumClient(session(kind), number, invited=(*SUMS[kind], 9))


def secure_sum(kind: str = "sum") -> dict[str, bytes]:
    """All messages of a sum of which client 9 is gone after it has shared its secrets."""
    added = SUMS[kind]
    clients = {number: sum_client(number, kind) for number in (*added, 9)}
    server = secagg.SumServer(session(kind), clients)
    found: dict[str, bytes] = {}
    for step in secagg.STEPS:
        for number, request in server.requests(step).items():
            if number == 9 and step == "masked":
                continue
            vector = np.array(added[number], np.int64) if step == "masked" else None
            with drawn_from(f"client {number} {step}"):
                answer = clients[number].answer(step, request, vector)
            server.receive(step, number, answer)
            found[f"{kind}-{step}-to-{number}"], found[f"{kind}-{step}-from-{number}"] = request, answer
    assert server.total().tolist() == np.sum(list(added.values()), axis=0).tolist()
    return found


def summed_invitation() -> bytes:
    request = secagg.SumServer(session(), (*ADDED, 9)).requests("keys")[0]
    return _with_plan(request, plan().encode())


# --- the shuffler -----------------------------------------------------------------------------------------------------


def terms() -> Terms:
    return Terms.of(plan(), VALUES, (3, 2), 600.0, group=2)


def sealed() -> dict[str, bytes]:
    """Bodies of three clients of class 0, and the batch that the shuffler makes of them."""
    server = X25519PrivateKey.from_private_bytes(KEY).public_key()
    reports = [np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes() for bits in BITS]
    bodies = [envelopes.seal(report, terms(), 0, server)[0] for report in reports]
    by_client = np.stack([envelopes.Body.decode(body).envelopes for body in bodies])
    mixed = envelopes.mix(by_client.transpose(1, 0, 2)).tobytes()
    made = {f"envelopes-body-{k}": body for k, body in enumerate(bodies)}
    return {**made, "envelopes-batch": envelopes.batch_head(terms(), 0, len(bodies)) + mixed}


# --- all of them ------------------------------------------------------------------------------------------------------

MADE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "plan": ("a plan with settings and two arrays, one of the numbers subnormal", lambda: plan().encode()),
    "plan-bare": ("a plan of round 0 without settings or arrays", lambda: bare_plan().encode()),
    "report-bits": ("a report of five two-point bits", bits_report),
    "report-counted": ("a report of five float32 values after a number of samples, 1234", counted_report),
    "answer-report": (
        "an answer to `plan` with the body `report-bits`",
        lambda: Answer(Kind.REPORT, ROUND, plan().digest, bits_report()).encode(),
    ),
    "answer-declined": (
        "a refusal to answer `plan`",
        lambda: Answer(Kind.DECLINED, ROUND, plan().digest).encode(),
    ),
    "request-hello": ("who is there?", lambda: Request(What.HELLO).encode()),
    "request-join": ("join: `invitation`", lambda: Request(What.JOIN, "", invitation().encode()).encode()),
    "signed-plan": (
        "`plan` for the step report, signed with the key 000102.. for the clients 0, 2 and 9",
        signed_plan,
    ),
    "signed-sum": (
        "`sum-masked-to-2` as a step of `plan`, signed for client 2 with the key 000000.., after `rotation`",
        lambda: rotated().envelope("masked", plan(), agreed(), (2,), secure_sum()["sum-masked-to-2"]),
    ),
    "rotation": ("the key 000102.. hands over to the key 000000..", lambda: rotated().author.rotations[0]),
    "request-step": (
        "the step report: `signed-plan`",
        lambda: Request(What.STEP, "report", signed_plan()).encode(),
    ),
    "request-receipt": (
        "what the server received: `receipt`",
        lambda: Request(What.RECEIPT, FEDERATION, receipt()).encode(),
    ),
    "response-fine": (
        "`answer-report`, with the receipt of the ledger as it is now",
        lambda: Response(True, Answer(Kind.REPORT, ROUND, plan().digest, bits_report()).encode(), "", receipt())
        .encode(),
    ),
    "response-refused": ("a refusal in words", lambda: Response(False, b"", "not agreed", b"").encode()),
    "invitation": ("an invitation with a receipt, signed with the key 000000.., after `rotation`",
                   lambda: invitation().encode()),
    "receipt": ("the receipt of a ledger whose head is 1111.., under the key 000102..", receipt),
    "sum-session": ("the session of the sum below", lambda: session().encode()),
    "sparse-sum-session": (
        "the session of the sum in which each client draws three neighbours",
        lambda: session("sparse-sum").encode(),
    ),
    "sum-invitation": ("what the first step of the summed channel sends: a request for keys and `plan`",
                       summed_invitation),
    "terms": ("the terms of a shuffled round: five values, two in an envelope, classes of 3 and 2 clients",
              lambda: terms().to_json().encode()),
}  # fmt: skip


def made() -> dict[str, bytes]:
    """Everything that comes out the same every time."""
    return {name: make() for name, (_, make) in MADE.items()} | secure_sum() | secure_sum("sparse-sum")


def described(name: str) -> str:
    """What a file is, in words."""
    if name in MADE:
        return MADE[name][0]
    if name.startswith(("sum-", "sparse-sum-")):
        step, way, client = name.split("-")[-3:]
        graph = "secure sum on a sparse graph" if name.startswith("sparse-") else "secure sum"
        return f"{graph}, step {step}: " + (f"to client {client}" if way == "to" else f"client {client}'s answer")
    if name == "envelopes-batch":
        return "a batch of class 0 as it leaves the shuffler; the server's key is 000102.."
    return f"envelopes of client {name[-1]} as they are sent to the shuffler, sealed to the public half of 000102.."


def index(files: dict[str, bytes]) -> dict[str, Any]:
    """The description of all files, with what they say."""
    return {
        "key_hex": KEY.hex(),
        "plan_digest_hex": plan().digest.hex(),
        "terms_digest_hex": agreed().hex(),
        **{kind: {str(client): list(vector) for client, vector in added.items()} for kind, added in SUMS.items()},
        "envelopes": [list(bits) for bits in BITS],
        "files": {
            name: {"what": described(name), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(files.items())
        },
    }


def kept() -> dict[str, bytes]:
    """What lies in the folder."""
    return {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.bin"))}


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    files = made()
    old = {name: data for name, data in kept().items() if name.startswith("envelopes-")}
    files |= old or sealed()
    for path in FOLDER.glob("*.bin"):
        path.unlink()
    for name, data in files.items():
        (FOLDER / f"{name}.bin").write_bytes(data)
    INDEX.write_text(json.dumps(index(files), indent=1) + "\n")


if __name__ == "__main__":
    write()
