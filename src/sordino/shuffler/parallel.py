"""Opening envelopes with all cores of the server: each process gets the key and some positions, through a pipe.

The key travels in no argument and no variable of the environment, which others on the machine could see.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.errors import InvalidInput
from sordino.parts.hardware import cores
from sordino.shuffler.envelopes import OpenedBatch, Opening, Sealed, divide, envelope_bytes, join_parts
from sordino.shuffler.terms import Terms

WORTHWHILE = 10_000  #: envelopes for which another process is started: about 0.7 seconds of work

_PROGRAM = "from sordino.shuffler.parallel import _serve; _serve()"


def open_batch(batch: bytes, terms: Terms, server: X25519PrivateKey, workers: int | None = None) -> OpenedBatch:
    """Open a batch with so many processes, or as many as there are cores and work for; the result is the same."""
    if workers is not None and workers < 1:
        raise InvalidInput(f"a batch is opened by at least one process, got {workers}")
    enough = len(batch) // (WORTHWHILE * envelope_bytes(terms))
    parts = divide(batch, terms, workers or max(1, min(cores(), enough)))
    if len(parts) == 1:
        return join_parts(parts[0].group, [parts[0].open(terms, server)], terms)
    with ThreadPoolExecutor(len(parts)) as waiting:
        found = list(waiting.map(lambda part: _open_elsewhere(part, terms, server), parts))
    return join_parts(parts[0].group, found, terms)


def _open_elsewhere(part: Sealed, terms: Terms, server: X25519PrivateKey) -> Opening:
    """Open a part in another process; should that one fail, in this one."""
    job = pickle.dumps((part.group, part.clients, part.first, bytes(part.envelopes), terms, server.private_bytes_raw()))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=job, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        return part.open(terms, server)
    found: Opening = pickle.loads(done.stdout)  # of our own process
    return found


def _serve() -> None:
    """The whole life of such a process."""
    *place, terms, key = pickle.load(sys.stdin.buffer)
    pickle.dump(Sealed(*place).open(terms, X25519PrivateKey.from_private_bytes(key)), sys.stdout.buffer)


__all__ = ["WORTHWHILE", "open_batch"]
