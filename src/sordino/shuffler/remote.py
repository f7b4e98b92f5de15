"""How clients and the server speak to a shuffler elsewhere; no more than the standard library is needed for it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from sordino.errors import InvalidInput, SordinoError
from sordino.shuffler.terms import STRICT, Terms, read_json
from sordino.wire.messages import Plan
from sordino.wire.tls_address import is_loopback, trusting

AGAIN = 0.5  #: seconds between two attempts
PASSING = (429, 503)  #: too fast; cannot write now
Found = TypeVar("Found")


class ShufflerUnreachable(SordinoError):
    """No answer came: what was sent may have arrived or not, and the same bytes can be sent again."""


class Rejected(SordinoError):
    """The shuffler refused a request; `status` is the answer's."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"the shuffler refused: {why}")
        self.status = status


def patiently(ask: Callable[[], Found], seconds: float) -> Found:
    """Ask again, for so many seconds, while the shuffler is away or busy; a refusal is final."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except (ShufflerUnreachable, Rejected) as error:
            passing = isinstance(error, ShufflerUnreachable) or error.status in PASSING
            if not passing or time.monotonic() > until:
                raise
            time.sleep(AGAIN)


def _public_key(given: object) -> object:
    return X25519PublicKey.from_public_bytes(bytes.fromhex(given)) if isinstance(given, str) else given


@dataclass(frozen=True, config=STRICT)
class _Accepted:
    accepted: int


@dataclass(frozen=True, config=STRICT)
class Announcement:
    """What the shuffler tells everybody about a round."""

    terms: Terms
    key: Annotated[X25519PublicKey, BeforeValidator(_public_key)]  #: hexadecimal in JSON
    at_least: int
    latency: float  #: T

    def check(self, plan: Plan, crowd: int, pinned: X25519PublicKey | None = None) -> None:
        """At the client, before it seals: the plan that it was sent, the crowd it was promised, the key it knows."""
        self.terms.check_answer(plan)
        if self.at_least < crowd:
            raise InvalidInput(
                f"this shuffler mixes at least {self.at_least} clients, and the federation promised {crowd}: "
                "nothing was sealed"
            )
        if pinned is not None and pinned.public_bytes_raw() != self.key.public_bytes_raw():
            raise InvalidInput("the shuffler shows another key than the server's: nothing was sealed")

    @classmethod
    def from_json(cls, text: bytes) -> Announcement:
        """What the shuffler said; anything else is refused."""
        return read_json(cls, text, "how a shuffler announces a round")


class Remote:
    """A shuffler at an address, for whom the token belongs to: a client, or the server."""

    def __init__(self, url: str, token: str, *, trusted: Path | None = None, timeout: float = 60.0) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"a shuffler has an address such as https://shuffler.example:8470, got {url!r}")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise InvalidInput(f"{url}: away from this machine a shuffler is spoken to over https only")
        self._url, self._token, self._timeout = url.rstrip("/"), token, timeout
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=trusting(trusted)))
        self._opener = urllib.request.build_opener(*handlers)

    def _ask(self, method: str, path: str, body: bytes | None = None, most: int | None = 2**20) -> bytes:
        """The answer, which has at most so many bytes; None for whatever it announces."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"{self._url}/v1/{path}", body, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                found = bytes(answer.read(None if most is None else most + 1))
                missing = answer.length or 0  # of what it announced
        except urllib.error.HTTPError as error:
            with error:
                raise Rejected(error.code, _why(error)) from None
        except (OSError, HTTPException) as error:
            raise ShufflerUnreachable(f"{self._url} gave no answer ({error}): try again") from None
        if most is not None and len(found) > most:
            raise InvalidInput(f"{self._url} answered with more than {most:,} bytes: it is no shuffler")
        if missing:
            raise ShufflerUnreachable(f"{self._url} ended {missing:,} bytes before its answer did: try again")
        return found

    # --- clients

    def announced(self, round: int) -> Announcement:
        """The terms of a round, and the key to seal to."""
        return Announcement.from_json(self._ask("GET", f"rounds/{round}"))

    def send(self, round: int, body: bytes) -> int:
        """Send envelopes; how many of them the shuffler did not hold before."""
        told = self._ask("POST", f"rounds/{round}/envelopes", body)
        return read_json(_Accepted, told, f"how a shuffler says what it took ({self._url})").accepted

    def propose(self, seconds: float) -> None:
        """Propose T."""
        self._ask("PUT", "latency", json.dumps({"seconds": seconds}).encode())

    # --- the server

    def open_round(self, terms: Terms) -> None:
        """Open a round; the same again changes nothing."""
        self._ask("PUT", f"rounds/{terms.round}", terms.to_json().encode())

    def batch(self, round: int, group: int) -> bytes | None:
        """The batch of a class; none while it has not left. Where it never will, that is refused."""
        try:
            return self._ask("GET", f"rounds/{round}/batches/{group}", most=None)
        except Rejected as error:
            if error.status == 425:
                return None
            raise

    def withdraw(self, round: int, group: int) -> None:
        """This server waits for a class no longer: the shuffler deletes what it holds of it, unopened."""
        self._ask("POST", f"rounds/{round}/batches/{group}/withdraw", b"")

    def taken(self, round: int, group: int) -> None:
        """The batch is safe here: the shuffler may remove it."""
        self._ask("DELETE", f"rounds/{round}/batches/{group}")


def _why(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(10_000))["detail"])
    except (ValueError, TypeError, KeyError, OSError, HTTPException, RecursionError):
        return f"status {error.code}"


__all__ = ["Announcement", "Rejected", "Remote", "ShufflerUnreachable", "patiently"]
