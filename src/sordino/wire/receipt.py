"""Receipts: the head of the client's ledger, which a server hands back so that an older ledger is noticed.

    "SH" | version u8 | 0 u8 | head (32 bytes) | HMAC-SHA256 of federation and head under the client's own key

The client sends one with every answer; the server keeps the last and returns it at the next join. The head is a hash
over a random identity and everything recorded: it tells a server nothing. The key stays in the client's folder, so that
no server can invent a receipt and stop a client with it.
"""

from __future__ import annotations

import hashlib
import hmac

from sordino.errors import InvalidInput
from sordino.wire.codec import Layout

_RECEIPT = Layout(b"SH", "a receipt", "32s32s", rest=False)
RECEIPT_BYTES = _RECEIPT.size


class Seal:
    """Makes and checks the receipts of one client."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def receipt(self, federation: str, head: str) -> bytes:
        """The receipt of a ledger's head, for one federation."""
        raw = bytes.fromhex(head)
        return _RECEIPT.pack(raw, self._tag(federation, raw))

    def head(self, federation: str, receipt: bytes) -> str:
        """The head in a receipt of this client's own for this federation; any other is refused."""
        _, (raw, tag), _, _ = _RECEIPT.unpack(receipt)
        if not hmac.compare_digest(tag, self._tag(federation, raw)):
            raise InvalidInput(
                f"this receipt was not made by this client for {federation!r}: it is forged, or the client's folder "
                "was made anew"
            )
        return str(raw.hex())

    def _tag(self, federation: str, head: bytes) -> bytes:
        return hmac.digest(self._key, b"sordino receipt 1\0" + federation.encode() + b"\0" + head, hashlib.sha256)


__all__ = ["RECEIPT_BYTES", "Seal"]
