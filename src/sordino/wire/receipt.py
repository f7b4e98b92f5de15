"""Receipts: the head of the client's ledger, which a server hands back so that an older ledger is noticed.

    "SH" | version u8 | 1 | nonce (12 bytes) | ChaCha20-Poly1305 of the head, bound to the federation (48 bytes)

The client sends one with every answer; the server keeps the last and returns it at the next join. A head is a hash over
all that the ledger holds, of which a server knows nearly everything: it could try reports and budgets until the hash
fits. So it is sealed under the client's own key, with a fresh nonce, and tells a server nothing: not whether anything
was recorded since, nor that two federations have the same client. The key stays in the client's folder, so that no
server can invent a receipt and stop a client with it.

Versions before sealed nothing (kind 0: head, HMAC-SHA256); what they sent is still understood when it comes back.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sordino.errors import InvalidInput
from sordino.wire.codec import Layout

_BARE = Layout(b"SH", "a receipt", "32s32s", rest=False)
_SEALED = Layout(b"SH", "a receipt", "12s48s", kinds=(1,), rest=False)
RECEIPT_BYTES = _SEALED.size


class Seal:
    """Makes and checks the receipts of one client."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = ChaCha20Poly1305(HKDF(SHA256(), 32, None, b"sordino receipt 2").derive(key))

    def receipt(self, federation: str, head: str) -> bytes:
        """The receipt of a ledger's head, for one federation; another one each time."""
        nonce = os.urandom(12)
        sealed = self._cipher.encrypt(nonce, bytes.fromhex(head), federation.encode())
        return _SEALED.pack(nonce, sealed, kind=1)

    def head(self, federation: str, receipt: bytes) -> str:
        """The head in a receipt of this client's own for this federation; any other is refused."""
        head = self._bare_head(federation, receipt) if receipt[3:4] == b"\0" else self._sealed_head(federation, receipt)
        if head is None:
            raise InvalidInput(
                f"this receipt was not made by this client for {federation!r}: it is forged, or the client's folder "
                "was made anew"
            )
        return head.hex()

    def _sealed_head(self, federation: str, receipt: bytes) -> bytes | None:
        _, (nonce, sealed), _, _ = _SEALED.unpack(receipt)
        try:
            return self._cipher.decrypt(nonce, sealed, federation.encode())
        except InvalidTag:
            return None

    def _bare_head(self, federation: str, receipt: bytes) -> bytes | None:
        _, (head, tag), _, _ = _BARE.unpack(receipt)
        signed = b"sordino receipt 1\0" + federation.encode() + b"\0" + head
        return head if hmac.compare_digest(tag, hmac.digest(self._key, signed, hashlib.sha256)) else None


__all__ = ["RECEIPT_BYTES", "Seal"]
