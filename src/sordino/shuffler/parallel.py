"""Opening envelopes with all cores of the server: each process gets the key and some positions, through a pipe.

    to a process     blobs: class, clients and first position (u32 each), key, terms | envelopes
    back             blobs: what was refused (JSON), good ones at each position (i64) | contents

The key travels in no argument and no variable of the environment, which others on the machine could see.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.errors import InvalidInput
from sordino.parts.hardware import cores
from sordino.shuffler.envelopes import OpenedBatch, Opening, Sealed, divided, envelope_bytes, together
from sordino.shuffler.terms import Terms
from sordino.wire.codec import canonical, join, numbers, read_numbers, split

WORTHWHILE = 10_000  #: envelopes for which another process is started: about 0.7 seconds of work

_PROGRAM = "from sordino.shuffler.parallel import _serve; _serve()"


def open_in_parallel(batch: bytes, terms: Terms, server: X25519PrivateKey, workers: int | None = None) -> OpenedBatch:
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
    place = numbers((part.group, part.clients, part.first))
    head = join(place, server.private_bytes_raw(), terms.to_json().encode())
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=b"".join((head, part.envelopes)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return part.open(terms, server) if done.returncode else _read(done.stdout, part.clients, terms)


def _read(said: bytes, clients: int, terms: Terms) -> Opening:
    (refused, good), contents = split(said, 2, "an answer")
    opened = np.frombuffer(contents, np.uint8).reshape(clients, -1, terms.content_bytes)
    return Opening(opened, np.frombuffer(good, "<i8"), json.loads(refused))


def _serve() -> None:
    """The whole life of such a process."""
    (place, key, text), envelopes = split(memoryview(sys.stdin.buffer.read()), 3, "a job")
    group, clients, first = read_numbers(place, "a job")
    terms = Terms.from_json(text)
    found = Sealed(group, clients, first, envelopes).open(terms, X25519PrivateKey.from_private_bytes(key))
    counts = join(canonical(found.refused), found.good.astype("<i8").tobytes())
    sys.stdout.buffer.write(counts + found.contents.tobytes())


__all__ = ["WORTHWHILE", "open_in_parallel"]
