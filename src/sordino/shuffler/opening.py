"""Opening envelopes with all cores of the server: each process gets the key and some positions, through a pipe.

    to a process     class u16 | length of the terms u16 | clients u32 | first position u32 | key (32 bytes) | terms |
                     envelopes
    back             length of the counts u32 | what was refused, JSON | good ones at each position i64 | contents

The key travels in no argument and no variable of the environment, which others on the machine could see.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.errors import InvalidInput
from sordino.hardware import cores
from sordino.shuffler.envelopes import Opened, Opening, Sealed, divided, envelope_bytes, together
from sordino.shuffler.terms import Terms

WORTHWHILE = 10_000  #: envelopes for which another process is started: about 0.7 seconds of work

_JOB = struct.Struct("<HHII32s")
_COUNTS = struct.Struct("<I")
_PROGRAM = "from sordino.shuffler.opening import _serve; _serve()"


def opened(batch: bytes, terms: Terms, server: X25519PrivateKey, workers: int | None = None) -> Opened:
    """Open a batch with so many processes, or as many as there are cores and work for; the result is the same."""
    if workers is not None and workers < 1:
        raise InvalidInput(f"a batch is opened by at least one process, got {workers}")
    enough = len(batch) // (WORTHWHILE * envelope_bytes(terms))
    parts = divided(batch, terms, workers or max(1, min(cores(), enough)))
    if len(parts) == 1:
        return together(parts[0].group, [parts[0].open(terms, server)], terms)
    with ThreadPoolExecutor(len(parts)) as waiting:
        found = list(waiting.map(lambda part: _elsewhere(part, terms, server), parts))
    return together(parts[0].group, found, terms)


def _elsewhere(part: Sealed, terms: Terms, server: X25519PrivateKey) -> Opening:
    """Opened by another process; should that one fail, by this one."""
    text = terms.to_json().encode()
    head = _JOB.pack(part.group, len(text), part.clients, part.first, server.private_bytes_raw())
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=b"".join((head, text, part.envelopes)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return part.open(terms, server) if done.returncode else _read(done.stdout, part.clients, terms)


def _read(said: bytes, clients: int, terms: Terms) -> Opening:
    (length,) = _COUNTS.unpack_from(said)
    start = _COUNTS.size + length
    rest = np.frombuffer(said, np.uint8, offset=start)
    count = rest.size // (8 + clients * terms.content_bytes)
    contents = rest[8 * count :].reshape(clients, count, terms.content_bytes)
    return Opening(contents, rest[: 8 * count].view("<i8"), json.loads(said[_COUNTS.size : start]))


def _serve() -> None:
    """The whole life of such a process."""
    job = sys.stdin.buffer.read()
    group, length, clients, first, key = _JOB.unpack_from(job)
    start = _JOB.size + length
    terms = Terms.from_json(job[_JOB.size : start])
    found = Sealed(group, clients, first, memoryview(job)[start:]).open(terms, X25519PrivateKey.from_private_bytes(key))
    refused = json.dumps(dict(found.refused)).encode()
    answer: Sequence[bytes] = (
        _COUNTS.pack(len(refused)), refused, found.good.astype("<i8").tobytes(), found.contents.tobytes(),
    )  # fmt: skip
    sys.stdout.buffer.write(b"".join(answer))


__all__ = ["WORTHWHILE", "opened"]
