"""What a client keeps of a secure sum, so that it goes on after a restart, and reveals no more than if there were none.

    federations/NAME/sum/plan-SHA256       the plan of the round
    federations/NAME/sum/state             blob: JSON | the last answer

Before an answer leaves, the file says that it was given, and to which request. Asked the same again, after a crash or a
lost connection, the client gives the same bytes; a different request for the same step finds that the sum has gone on
without it. A client that was killed therefore stands where it stood, and no step has two answers. The secrets of a sum
are in the file until its last answer is, and then no longer; those of one that was given up go when the next begins.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from sordino.storage.files import make_folder, reading, write_whole
from sordino.wire.codec import canonical, join, split
from sordino.wire.messages import Plan


@dataclass(frozen=True)
class SumProgress:
    """How far a client has come in a sum."""

    plan: str  #: SHA-256 of the plan, in hexadecimal
    session: str  #: what messages call the sum, in hexadecimal
    step: str  #: the last one that was answered
    request: str  #: SHA-256 of what was asked then
    part: str  #: as `Members.kept` wrote it
    answer: bytes = b""  #: empty where the last request was refused

    def again(self, step: str, message: bytes) -> bytes | None:
        """The answer, if this is the request that was answered last."""
        return self.answer if self.answer and (step, _hashed(message)) == (self.step, self.request) else None


def _hashed(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


@dataclass(frozen=True)
class SumFolder:
    """The files of one federation's last sum."""

    folder: Path

    def load(self) -> SumProgress | None:
        """How far the last sum has come; None where there was none."""
        path = self.folder / "state"
        if not path.is_file():
            return None
        with reading(path, "restore it, or remove it and miss this round"):
            (text,), answer = split(path.read_bytes(), 1, "a sum's state")
            return SumProgress(**json.loads(text), answer=bytes(answer))

    def plan(self, standing: SumProgress) -> Plan:
        """The plan of the round."""
        path = self._plan(standing.plan)
        with reading(path, "the sum cannot go on"):
            return Plan.decode(path.read_bytes())

    def begin(self, plan: Plan) -> None:
        """Keep the plan of a sum to come."""
        make_folder(self.folder, 0o700)
        path = self._plan(_hashed(plan.encode()))
        if not path.is_file():
            write_whole(path, plan.encode())

    def save(self, plan: Plan, session: bytes, step: str, message: bytes, part: bytes, answer: bytes) -> None:
        """Write down an answer that is about to leave, durably; an empty one, that the request was refused."""
        found = {
            "plan": _hashed(plan.encode()), "session": session.hex(), "step": step, "request": _hashed(message),
            "part": part.decode(),
        }  # fmt: skip
        write_whole(self.folder / "state", join(canonical(found)) + answer)
        for path in self.folder.glob("plan-*"):
            if path != self._plan(found["plan"]):
                path.unlink(missing_ok=True)

    def _plan(self, name: str) -> Path:
        return self.folder / f"plan-{name}"


__all__ = ["SumFolder", "SumProgress"]
