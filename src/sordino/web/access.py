"""Who asks a server of pages: somebody at this machine, or somebody with a token; and what each of them may see."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers

from sordino.errors import InvalidInput
from sordino.storage.files import write_whole

LOCAL = ("127.0.0.1", "localhost", "::1")  #: this machine
#: what proxies add: visitors may write anything into it, and some proxies call this machine's name for them
PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
TOKEN_BYTES = 24  #: of randomness
SHORTEST = 20  #: letters of a token
_EXAMPLE = '{"tokens": [{"role": "operator", "token": "..."}, {"role": "member", "member": "NAME", "token": "..."}]}'
_FORM = f"{_EXAMPLE}; roles are operator, member and reader, and a token has {SHORTEST} of the letters a-z A-Z 0-9 _ -"


# --- rights -----------------------------------------------------------------------------------------------------------


class Role(StrEnum):
    """What somebody may see: everything, what members may see of each other, or figures without names."""

    OPERATOR = "operator"
    MEMBER = "member"
    READER = "reader"


@dataclass(frozen=True)
class Rights:
    """A role; `member` is whose own token it is, where it is a member's own."""

    role: Role
    member: str = ""


OPERATOR = Rights(Role.OPERATOR)


class TokenRights(BaseModel):
    """One token in the file, and what it is good for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Role
    token: Annotated[str, Field(pattern=rf"^[A-Za-z0-9_-]{{{SHORTEST},}}$")]
    member: str = ""


class TokenList(BaseModel):
    """All that a file of tokens says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: Annotated[tuple[TokenRights, ...], Field(min_length=1)]


def make_tokens(path: str | Path, members: Sequence[str] = ()) -> None:
    """Write a file with new tokens, for its owner's eyes only: an operator's, a reader's, and one for each member.

    Without members there is one token for all of them. A file that is there already is left alone, and refused. Take a
    line out to revoke its token: a server reads the file again when it has changed.
    """
    path = Path(path)
    if path.exists():
        raise InvalidInput(f"{path} is there already: use its tokens, or move it away")
    wanted = [
        {"role": "operator"},
        *({"role": "member", "member": name} for name in members or [""]),
        {"role": "reader"},
    ]
    lines = [json.dumps({**one, "token": secrets.token_urlsafe(TOKEN_BYTES)}) for one in wanted]
    write_whole(path, ('{"tokens": [\n  ' + ",\n  ".join(lines) + "\n]}\n").encode(), 0o600)


def read_tokens(path: str | Path) -> tuple[TokenRights, ...]:
    """The tokens in a file; refused where others can read it, or it is not what `make_tokens` writes."""
    path = Path(path)
    try:
        text, state = path.read_bytes(), path.stat()
    except OSError as error:
        raise InvalidInput(f"the tokens in {path} cannot be read ({error.strerror or error})") from None
    if os.name == "posix" and state.st_mode & 0o077:
        raise InvalidInput(f"others can read the tokens in {path}: chmod 600 {path}")
    try:
        found = TokenList.model_validate_json(text).tokens
    except ValidationError:
        raise InvalidInput(f"{path} is no file of tokens; allowed is {_FORM}") from None
    if len({one.token for one in found}) < len(found):
        raise InvalidInput(f"{path} has the same token twice: each has one role")
    return found


class TokenFile:
    """The tokens of a file that may change while it is used: one that cannot be read admits nobody."""

    def __init__(self, path: str | Path) -> None:
        """Read the file; `InvalidInput` where it is no file of tokens."""
        self._path = Path(path)
        self._known: tuple[TokenRights, ...] = ()
        self._stamp = self._now()
        self._known = read_tokens(self._path)

    def _now(self) -> tuple[int, int, int] | None:
        try:
            state = self._path.stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_ino, state.st_mode

    def find(self, token: str) -> Rights | None:
        """What a token is good for; None for an unknown one. It takes as long for every token."""
        if (stamp := self._now()) != self._stamp:
            self._stamp = stamp
            try:
                self._known = read_tokens(self._path)
            except InvalidInput:
                self._known = ()
        given, found = _digest(token), None
        for one in self._known:
            if hmac.compare_digest(given, _digest(one.token)):
                found = Rights(one.role, one.member)
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True)
class Gate:
    """Tells what somebody may see: with tokens by token alone, even at this machine; else only this machine's user."""

    tokens: TokenFile | None = None

    def rights(self, request: Request) -> Rights | None:
        """What whoever asks may see; None where that is nothing but what everybody may."""
        if self.tokens is None:
            return OPERATOR if at_this_machine(request) else None
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return self.tokens.find(token.strip()) if kind.lower() == "bearer" and token else None

    def admit(self, request: Request) -> Rights:
        """The same; whoever has no rights is refused."""
        if (found := self.rights(request)) is not None:
            return found
        if self.tokens is None:
            raise HTTPException(
                403, "open this on the server's own machine, as localhost; from elsewhere, tunnel (ssh -L), or have "
                "the operator give out tokens (--live-tokens)"
            )  # fmt: skip
        raise HTTPException(
            401, "this view needs a token: open the link that the operator gave you", {"WWW-Authenticate": "Bearer"}
        )

    def require_operator(self, request: Request) -> None:
        """Refuse whoever is not the operator, and pages of others in the operator's browser."""
        found = self.rights(request)
        if found is not None and found.role is Role.OPERATOR and of_own_page(request.headers):
            return
        how = (
            "open /live on the server's own machine, as localhost"
            if self.tokens is None
            else "open /live with an operator's token"
        )
        raise HTTPException(403, f"only the operator may do this: {how}")


# --- where a request comes from ---------------------------------------------------------------------------------------


def at_this_machine(request: Request) -> bool:
    """Whether somebody at this machine asks.

    What a proxy on this machine passes on says so, or comes to another host; so does what a page from elsewhere asks
    for whose name was made to point here. What a bare TCP forwarder passes on looks like this machine: tokens help.
    """
    address = request.client.host if request.client is not None else ""
    passed_on = any(name in request.headers for name in PASSED_ON)
    return address in LOCAL and request.url.hostname in LOCAL and not passed_on


def of_own_page(headers: Headers) -> bool:
    """Whether a request comes from this server's own page, or from no page: any page in a browser can reach it."""
    origin = headers.get("origin")
    own = origin is None or is_own(origin, headers)
    return own and headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def is_own(origin: str, headers: Headers) -> bool:
    """Whether an origin is the one that was asked."""
    try:
        place = urlsplit(origin)
        return place.scheme in ("http", "https") and bool(place.netloc) and place.netloc == headers.get("host")
    except ValueError:
        return False


__all__ = ["OPERATOR", "Gate", "Rights", "Role", "TokenFile", "is_own", "make_tokens", "read_tokens"]
