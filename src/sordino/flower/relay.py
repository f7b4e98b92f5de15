"""What goes between the coordinator's process and the relay that Flower runs: calls, and their results.

    message    "SR" | version u8 | what u8 | blob: header (canonical JSON) | blobs

The relay connects to the coordinator's socket and then serves it: it knows nodes and messages of Flower's and nothing
else. So no app that Flower runs needs the coordinator's key, its run or its records. Everything that a relay says is
checked: whoever can run an app on the server can pose as one, and is then where Flower itself is, between the
coordinator and the clients.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

from sordino.client.socket_service import listen_at
from sordino.errors import InvalidInput
from sordino.fleets.carrier import Carrier, CarrierLost, Letter, LetterReply, NodeFacts
from sordino.wire import requests
from sordino.wire.codec import Layout, canonical, join, split

CALL = 300.0  #: seconds until a relay must have done what it was asked for
GREETING = 10.0  #: seconds in which a relay must have said what it is
AGAIN = 1.0  #: seconds until a relay calls again where nobody listens
PATIENCE = 600.0  #: seconds after which it gives up
PIECE = 2**26  #: bytes of one message, about
AT_ONCE = 64  #: letters whose replies are fetched in one call
MOST_BYTES = 2**30  #: of all results of a call
MOST_NODES = 100_000
LONGEST_HEADER = 2**24  #: bytes
MOST_BLOBS = 2**17
LARGEST_REPLY = 2**27  #: bytes of one node's reply: what is larger is its node's fault, and nobody else's
LONGEST_TEXT = 1000  #: letters of a name or a reason
SOON, REMIND = 10.0, 60.0  #: seconds until it is said what is waited for: at first, and again

_log = logging.getLogger("sordino.flower")


class Call(IntEnum):
    """What the coordinator asks of a relay; its result has the same number."""

    HELLO = 1
    NODES = 2
    PUSH = 3
    PULL = 4
    END = 5


_MESSAGE = Layout(b"SR", "a message of a relay", kinds=Call, blobs=1)


def _encode(call: Call, header: dict[str, object], blobs: Iterable[bytes] = ()) -> bytes:
    return _MESSAGE.pack(kind=call, blobs=[canonical(header)], rest=join(*blobs))


def _decode(body: bytes, expected: Call | None = None) -> tuple[Call, dict[str, Any], list[bytes]]:
    kind, _, (text,), rest = _MESSAGE.unpack(memoryview(body))
    try:
        header = json.loads(text) if len(text) <= LONGEST_HEADER else None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or expected not in (None, kind):
        raise InvalidInput("a message of a relay is damaged")
    blobs: list[bytes] = []
    while len(rest):
        (blob,), rest = split(rest, 1, "a message of a relay")
        blobs.append(blob)
        if len(blobs) > MOST_BLOBS:
            raise InvalidInput(f"a message of a relay has at most {MOST_BLOBS:,} parts")
    return Call(kind), header, blobs


# --- the coordinator's side -------------------------------------------------------------------------------------------


class RelayedCarrier(Carrier):
    """Nodes behind the relay that has connected last; where there is none, every call ends in `CarrierLost`."""

    def __init__(self, path: Path, federation: str, *, group: str | None = None) -> None:
        """Listen at a socket that this account alone may open, and the accounts of a group if one is given."""
        self._federation, self._path = federation, path
        self._listening = listen_at(path, group)
        self._changed = threading.Condition()
        self._relay: socket.socket | None = None
        self._calling: socket.socket | None = None  # the relay from which an answer is expected now
        self._replaced: list[socket.socket] = []  # to be closed by whoever makes calls
        self._reminded = time.monotonic() - REMIND + SOON
        self._stopped = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def nodes(self) -> list[NodeFacts]:
        """All nodes that are online."""
        ((header, _),) = self._call(Call.NODES, {})
        with _reading():
            found = [NodeFacts(_whole(id), _text(since), _text(name)) for id, since, name in header["nodes"]]
        if len(found) > MOST_NODES:
            raise CarrierLost(f"a relay names {len(found):,} nodes: {MOST_NODES:,} are the most")
        return found

    def push(self, letters: Sequence[Letter]) -> list[str]:
        """Send letters; what many nodes are sent alike goes through the socket once."""
        return [id for group in _groups(letters) for id in self._pushed(group)]

    def _pushed(self, letters: Sequence[Letter]) -> list[str]:
        blobs = {blob: number for number, blob in enumerate(dict.fromkeys(b for e in letters for b in _parts(e)))}
        listed = [[each.node, blobs[each.frames], blobs[each.before], each.seconds] for each in letters]
        ((header, _),) = self._call(Call.PUSH, {"letters": listed}, blobs)
        with _reading():
            ids = [_text(id) for id in header["ids"]]
        if len(ids) != len(letters):
            raise CarrierLost("a relay did not say what became of every letter")
        return ids

    def pull(self, letters: Sequence[str]) -> list[LetterReply]:
        """Those replies to these letters that have come."""
        groups = (letters[first : first + AT_ONCE] for first in range(0, len(letters), AT_ONCE))
        return [reply for group in groups for reply in self._pulled(group)]

    def _pulled(self, letters: Sequence[str]) -> list[LetterReply]:
        found: list[LetterReply] = []
        for header, blobs in self._call(Call.PULL, {"letters": list(letters)}):
            with _reading():
                told = [(_text(id), _text(error)) for id, error in header["replies"]]
            if len(told) != len(blobs):
                raise CarrierLost("a relay did not bring what it announced")
            found += [LetterReply(id, frames, error) for (id, error), frames in zip(told, blobs, strict=True)]
        named = [reply.letter for reply in found]
        if len(set(named)) != len(named) or not set(named) <= set(letters):
            raise CarrierLost("a relay brought what nobody asked for")
        return found

    def end(self) -> None:
        """Let the relay go: the federation is over."""
        with self._changed:
            relay = self._relay
        if relay is not None:
            with suppress(OSError):
                requests.send(relay, _encode(Call.END, {}))

    def close(self) -> None:
        """Stop listening."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes who waits there
        self._thread.join(GREETING)
        self._listening.close()
        for relay in (*self._replaced, self._relay):
            self._drop(relay)
        self._path.unlink(missing_ok=True)

    def _call(
        self, call: Call, header: dict[str, object], blobs: Iterable[bytes] = ()
    ) -> list[tuple[dict[str, Any], list[bytes]]]:
        """All results of a call; `CarrierLost` where the relay is gone, and its messages with it.

        A call has one time and one number of bytes, however many results it has.
        """
        relay, found, size = self._wait_for_relay(), list[tuple[dict[str, Any], list[bytes]]](), 0
        until = time.monotonic() + CALL
        try:
            relay.settimeout(CALL)
            requests.send(relay, _encode(call, header, blobs))
            while True:
                relay.settimeout(max(0.01, until - time.monotonic()))
                body = requests.receive(relay)
                _, result, parts = _decode(body, call)
                found.append((result, parts))
                size += len(body)
                if call is not Call.PULL or result.get("more") is not True:
                    return found
                if size > MOST_BYTES or len(found) > AT_ONCE:
                    raise InvalidInput("a relay's answer does not end")
        except (OSError, requests.Closed, InvalidInput) as error:
            self._drop(relay)
            raise CarrierLost(f"the relay is gone ({error})") from None
        finally:
            with self._changed:
                self._calling = None

    def _wait_for_relay(self) -> socket.socket:
        with self._changed:
            while self._replaced:
                self._replaced.pop().close()
            if self._relay is None:
                self._changed.wait(AGAIN)
            if self._relay is not None:
                self._calling = self._relay
                return self._relay
            if time.monotonic() - self._reminded >= REMIND and not self._stopped:
                self._reminded = time.monotonic()
                _log.info(f"{self._federation}: waiting for Flower: is flower-superlink up, and was flwr run given?")
        raise CarrierLost("there is no relay")

    def _drop(self, relay: socket.socket | None) -> None:
        with self._changed:
            if self._relay is relay:
                self._relay = None
        if relay is not None:
            relay.close()

    def _accept(self) -> None:
        """Let relays in, one after the other, whatever they do, until the end."""
        while not self._stopped:
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:  # as where there are too many open files: that passes
                time.sleep(AGAIN / 10)
                continue
            try:
                connection.settimeout(GREETING)
                _, header, _ = _decode(requests.receive(connection, 2**16), Call.HELLO)
                requests.send(connection, _encode(Call.HELLO, {"federation": self._federation}))
            except (OSError, requests.Closed, InvalidInput):
                connection.close()
                continue
            self._take(connection, str(header.get("run", ""))[:LONGEST_TEXT])

    def _take(self, connection: socket.socket, run: str) -> None:
        """The newest relay counts: an older one may be a dead server's. It is told that it is not needed any more."""
        with self._changed:
            before, self._relay = self._relay, connection
            in_use = before is not None and before is self._calling
            if in_use and before is not None:
                self._replaced.append(before)  # for whoever waits for its answer to close
            self._changed.notify_all()
        if before is not None:
            with suppress(OSError):
                before.settimeout(0.5)
                requests.send(before, _encode(Call.END, {}))
            with suppress(OSError):
                before.shutdown(socket.SHUT_RDWR)
            if not in_use:
                before.close()
        _log.info(f"{self._federation}: a relay has come{f' (run {run})' if run.isdecimal() else ''}")


class _reading:
    """Turns whatever is wrong with a relay's answer into the loss of it."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError)):
            raise CarrierLost(f"a relay sent what cannot be read ({type(error).__name__})") from None


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**64:
        raise ValueError(value)
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(value)
    return "".join(letter if letter.isprintable() else " " for letter in value[:LONGEST_TEXT])


def _parts(letter: Letter) -> tuple[bytes, bytes]:
    return letter.frames, letter.before


def _groups(letters: Sequence[Letter]) -> Iterator[list[Letter]]:
    """Letters in groups that fit into one message each."""
    group, blobs = list[Letter](), set[bytes]()
    for letter in letters:
        if group and sum(map(len, blobs | set(_parts(letter)))) > PIECE:
            yield group
            group, blobs = [], set()
        group.append(letter)
        blobs |= set(_parts(letter))
    if group:
        yield group


# --- the relay's side -------------------------------------------------------------------------------------------------


def relay(carrier: Carrier, path: Path, run: int = 0, *, patience: float = PATIENCE) -> None:
    """Serve the coordinator that listens at a socket, until it says that the federation is over.

    A coordinator that is not there, or no longer, is called again; `InvalidInput` where it stays away.
    """
    alone, said = time.monotonic(), ""
    while time.monotonic() < alone + patience:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            try:
                connection.settimeout(GREETING)
                connection.connect(str(path))
                requests.send(connection, _encode(Call.HELLO, {"run": str(run)}))
                _decode(requests.receive(connection, 2**16), Call.HELLO)
                connection.settimeout(None)
                alone = float("inf")
                _serve(carrier, connection)
                return
            except (OSError, requests.Closed) as error:
                said, alone = str(error), min(alone, time.monotonic())
        time.sleep(AGAIN)
    raise InvalidInput(
        f"no coordinator answers at {path} ({said}): start it with sordino coordinator serve FOLDER, and let this "
        "account open its socket (group in coordinator.toml)"
    )


def _serve(carrier: Carrier, connection: socket.socket) -> None:
    """Do what is asked for, until the federation is over or another relay has come."""
    while True:
        call, header, blobs = _decode(requests.receive(connection))
        if call is Call.END:
            return
        for result in _DOES[call](carrier, header, blobs):
            requests.send(connection, result)


def _nodes(carrier: Carrier, _: dict[str, Any], __: list[bytes]) -> Iterator[bytes]:
    yield _encode(Call.NODES, {"nodes": [[node.id, node.since, node.name] for node in carrier.nodes()]})


def _push(carrier: Carrier, header: dict[str, Any], blobs: list[bytes]) -> Iterator[bytes]:
    letters = [Letter(node, blobs[one], blobs[own], seconds) for node, one, own, seconds in header["letters"]]
    yield _encode(Call.PUSH, {"ids": list(carrier.push(letters))})


def _pull(carrier: Carrier, header: dict[str, Any], _: list[bytes]) -> Iterator[bytes]:
    group, size = list[LetterReply](), 0
    for reply in map(_bounded, carrier.pull(header["letters"])):
        if group and size + len(reply.frames) > PIECE:
            yield _pulled(group, more=True)
            group, size = [], 0
        group.append(reply)
        size += len(reply.frames)
    yield _pulled(group, more=False)


def _bounded(reply: LetterReply) -> LetterReply:
    """A reply that is too large is an error of its own node, and costs nobody else theirs."""
    if len(reply.frames) <= LARGEST_REPLY:
        return reply
    return LetterReply(reply.letter, error=f"sent {len(reply.frames):,} bytes: {LARGEST_REPLY:,} are the most")


def _pulled(replies: Sequence[LetterReply], *, more: bool) -> bytes:
    header = {"replies": [[reply.letter, reply.error] for reply in replies], "more": more}
    return _encode(Call.PULL, header, [reply.frames for reply in replies])


_DOES: dict[Call, Callable[[Carrier, dict[str, Any], list[bytes]], Iterator[bytes]]] = {
    Call.NODES: _nodes,
    Call.PUSH: _push,
    Call.PULL: _pull,
}

__all__ = ["RelayedCarrier", "relay"]
