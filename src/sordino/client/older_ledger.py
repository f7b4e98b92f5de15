"""Receipts, and a ledger that is older than one: it was restored from a backup, and what left since is missing in it.

    older-ledger.json      heads of the ledger that receipts name and it lacks; while it is there, nothing is answered
    accepted-heads.txt     a line for each loss that the owner accepted: the ledger's head when all was counted, then
                           the heads that it stands for

An acceptance holds for ledgers with its first head alone: one that is restored once more has lost the count too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sordino.client.folder import Agreements
from sordino.client.refusal import Reason, Refused, refusing
from sordino.errors import InvalidInput
from sordino.privacy.ledger import Ledger
from sordino.storage.files import append_line, whole_lines, write_whole
from sordino.wire.receipt import Seal


class OlderLedger:
    """Compares a client's ledger with the receipts in its folder, and stops the client where it lacks an entry."""

    def __init__(self, folder: Path, ledger: Ledger, seal: Seal, agreements: Agreements) -> None:
        self._ledger, self._seal, self._agreements = ledger, seal, agreements
        self.marker = folder / "older-ledger.json"
        self._acceptances_file = folder / "accepted-heads.txt"

    @property
    def stopped(self) -> bool:
        """Whether the ledger is older than a receipt, so that nothing is answered."""
        return self.marker.exists()

    def require_none(self) -> None:
        """Refuse everything while the ledger is older than a receipt."""
        if self.stopped:
            raise Refused(
                Reason.OLDER_LEDGER,
                "the ledger is older than a receipt of this client's: it was restored from a backup, and what left "
                "since is missing in it. Restore the newest copy, or count everything that may have left: "
                "sordino client join FOLDER INVITATION --accept-older-ledger",
            )

    def compare(self, federation: str, receipt: bytes) -> None:
        """Stop where a receipt of this client's own is not in its ledger."""
        with refusing(Reason.UNREADABLE):
            head = self._seal.head(federation, receipt)
        if self._lacks(head):
            self._stop(head)
            self.require_none()

    def receive(self, federation: str, receipt: bytes) -> None:
        """Keep a receipt, unless it is of an earlier entry than the one kept: that could hide a restored ledger."""
        self.compare(federation, receipt)
        now, before = self._seal.head(federation, receipt), self._kept_head(federation)
        if before is None or (not self._lacks(before) and self._ledger.position(now) >= self._ledger.position(before)):
            self._agreements.keep_receipt(federation, receipt)

    def look(self, log: Callable[[str], None]) -> None:
        """Compare what lies in the folder: a ledger alone may have been restored. A newest copy resolves it."""
        missing = self.missing_heads()
        if missing and not any(self._lacks(head) for head in missing):
            self.marker.unlink(missing_ok=True)
            if all(self._ledger.position(head) for head in missing):  # else a crash came after the acceptance
                log("the ledger has the entries that were missing: it is the newest copy again")
        for counted, *_ in self.lost_acceptances():
            self._stop(counted)
        for federation in self._agreements.names():
            receipt = self._agreements.receipt(federation)
            if receipt is not None:
                with suppress(Refused):  # the marker stays, and every answer says why
                    self.compare(federation, receipt)

    def missing_heads(self) -> list[str]:
        """The heads that stopped this client; none where the file that lists them is not there, or damaged."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return [str(head) for head in json.loads(self.marker.read_text())["heads"]]
        return []

    def lost_acceptances(self) -> list[list[str]]:
        """Acceptances that this ledger has lost, and not counted since."""
        return [line for line in self._acceptances() if self._lacks(line[0])]

    def heads_of_loss(self, missing: Sequence[str]) -> list[str]:
        """All heads that one acceptance stands for: those that are missing, of receipts here, of lost acceptances."""
        kept = [self._kept_head(federation) for federation in self._agreements.names()]
        beside = [head for head in kept if head is not None and self._lacks(head)]
        lost = [head for line in self.lost_acceptances() for head in line]
        return list(dict.fromkeys([*missing, *beside, *lost]))

    def accept(self, heads: Sequence[str]) -> None:
        """Go on: the ledger has counted all that these heads stand for."""
        append_line(self._acceptances_file, " ".join([self._ledger.head(), *heads]).encode())
        self.marker.unlink(missing_ok=True)

    def _kept_head(self, federation: str) -> str | None:
        """The head in the receipt that is kept; None where there is none, or one that says nothing."""
        with suppress(InvalidInput):
            return self._seal.head(federation, self._agreements.receipt(federation) or b"")
        return None

    def _lacks(self, head: str) -> bool:
        """Whether the ledger has neither this head nor the count of everything that may have been lost with it."""
        return not self._ledger.position(head) and head not in self._accepted()

    def _accepted(self) -> set[str]:
        """The heads that this ledger has counted as lost."""
        lines = (line for line in self._acceptances() if self._ledger.position(line[0]))
        return {head for _, *heads in lines for head in heads}

    def _acceptances(self) -> list[list[str]]:
        lines = whole_lines(self._acceptances_file)
        return [line.decode(errors="replace").split() for line in lines if line.strip()]

    def _stop(self, head: str) -> None:
        """Answer nothing from now on; all heads that were missing until the owner decides are one loss."""
        if head not in (noted := self.missing_heads()):
            write_whole(self.marker, json.dumps({"heads": [*noted, head]}, indent=1).encode())


__all__ = ["OlderLedger"]
