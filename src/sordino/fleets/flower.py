"""Clients behind Flower's nodes: each the owner's own process, reached through the relay that runs in its SuperNode.

Nodes come and go under numbers of Flower's; who a client is it says itself (its identity, in the answer to a hello) and
then gets its invitation under its number in the federation. What is asked of a client whose node vanished, or whose
process does not answer, is asked again once it is back, and gets the very answer that was recorded.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.client.invitation import Invitation
from sordino.client.settings import NAME
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.interface import WHOLE_STEPS, Fleet, Reply
from sordino.flower import bundles
from sordino.storage.files import write_whole
from sordino.wire.codec import join
from sordino.wire.requests import Request, Response, What

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message
    from flwr.serverapp import Grid


REFRESH = 1.0  #: seconds between two looks at which nodes are there
SOONEST, SLOWEST = 0.1, 1.0  #: seconds between two looks for replies: at first, and when nothing comes
AGAIN, SELDOM = 2.0, 20.0  #: seconds until a node that could not answer is tried again: at first, and at most
ANSWERING = 600.0  #: seconds that a client may take to say who it is, or to look at its invitation
LONGEST = 43_200.0  #: seconds that a message may take where no deadline is set
GRACE = 60.0  #: seconds beyond a deadline in which an answer is still seen, and noted as late
LONGEST_SENTENCE = 600  #: letters of what is said of a node
QUERY = "query"  #: the kind of message that the relay takes

_log = logging.getLogger("sordino.flower")


class Unknown(SordinoError):
    """A client that has no place in this federation."""


class Roster:
    """Which client has which number; in a file, so that a restarted server invites everyone as before.

    A client is known by its identity, a random number of its own. With `names`, only clients of these names are taken,
    each under the number of its name; the first that comes under a name keeps it.
    """

    def __init__(self, clients: int, path: Path | None = None, names: Sequence[str] = ()) -> None:
        if names and len(names) != clients:
            raise InvalidInput(f"{len(names)} names of clients were given and the recipe has {clients} clients")
        self._clients, self._path, self._names = clients, path, tuple(names)
        self._members: dict[int, tuple[str, str]] = {}  # number -> identity and name
        try:
            if path is not None and path.exists():
                found = json.loads(path.read_text(encoding="utf-8"))
                self._members = {int(number): (str(own["id"]), str(own["name"])) for number, own in found.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{path} is damaged ({error}): restore it from a backup, or run under another federation's name"
            ) from None

    def number_of(self, identity: str, name: str, *, node: str = "") -> int:
        """The number of a client, now or from now on; `Unknown` where there is no place for it.

        `node` is the name under which the server's operator registered the node's key: one that is registered under a
        client's name speaks for that client and for no other.
        """
        known = next((number for number, (own, _) in self._members.items() if own == identity), None)
        place = name if known is None or not self._names else self._names[known]
        if node in self._names and node != place:
            raise Unknown(f"its node is registered as {node}, and its client is {place}")
        if known is None:
            known = self._free(name)
            self._members[known] = identity, name
            if self._path is not None:
                listed = {
                    number: {"id": own, "name": called} for number, (own, called) in sorted(self._members.items())
                }
                write_whole(self._path, (json.dumps(listed, indent=1) + "\n").encode())
        return known

    def has(self, identity: str, number: int) -> bool:
        """Whether this client has this number already."""
        return self._members.get(number, ("", ""))[0] == identity

    def _free(self, name: str) -> int:
        if self._names and name not in self._names:
            raise Unknown(f"{name} is none of the clients that this federation names ({', '.join(self._names)})")
        wanted = [self._names.index(name)] if self._names else range(self._clients)
        free = [number for number in wanted if number not in self._members]
        if not free:
            why = f"another client came first as {name}" if self._names else f"all {self._clients} places are taken"
            raise Unknown(f"there is no place for {name}: {why}")
        return free[0]

    def name_of(self, number: int) -> str:
        """What a client calls itself; before it came, what is expected there."""
        if number in self._members:
            return self._members[number][1]
        return self._names[number] if self._names else f"client {number}"


@dataclass
class _FlowerNode:
    """One of Flower's nodes, from one activation to the next."""

    id: int
    since: str  #: when it was activated
    order: int  #: the later a node came, the higher
    name: str = ""  #: under which its key was registered, if it was
    client: int | None = None
    joined: bool = False
    refused: str = ""  #: why its client takes no part
    again: float = 0.0  #: nothing is sent to it before
    pause: float = 0.0

    def later(self) -> None:
        """Leave it alone for a while, longer each time."""
        self.pause = min(SELDOM, max(AGAIN, 2 * self.pause))
        self.again = time.monotonic() + self.pause


@dataclass(frozen=True)
class _PendingMessage:
    """A message that was pushed and has no reply yet."""

    what: What
    node: _FlowerNode
    client: int | None
    exchange: int
    requests: int  #: how many requests are in it; the last is what it is about
    expires: float


class FlowerFleet(Fleet):
    """Clients behind the nodes of a `Grid`.

    To be invited, all clients have `wait` seconds, in which their owners may still agree; whoever comes later is
    invited then. A client that cannot be reached for `patience` seconds is not waited for in that exchange any longer;
    while its process is at work on an answer, only a deadline ends the wait.
    """

    def __init__(self, grid: Grid, roster: Roster, *, wait: float = 600.0, patience: float = 60.0) -> None:
        self._grid, self._roster, self._wait, self._patience = grid, roster, wait, patience
        self._invitations: dict[int, Invitation] = {}
        self._nodes: dict[int, _FlowerNode] = {}
        self._asked: dict[str, _PendingMessage] = {}
        self._exchange = 0
        self._refreshed = -REFRESH
        self._said: dict[int, str] = {}  # node -> what was said of it last
        self._spoke: dict[int, int] = {}  # node -> the client for which it spoke first, and for no other
        self._receipts: dict[int, bytes] = {}  # the last one of each client
        self._returned: dict[int, bytes] = {}  # those that went back already
        self._unreached: set[int] = set()  # clients to whose nodes nothing of this exchange was sent

    # --- who is there

    def invite(self, invitations: Mapping[int, bytes]) -> dict[int, str]:
        """Hand every client that comes its invitation; those that have not joined in time, with the reason."""
        self._invitations = {client: Invitation.decode(message) for client, message in invitations.items()}
        self._receipts |= {c: bytes.fromhex(i.receipt) for c, i in self._invitations.items() if i.receipt}
        until, pause = time.monotonic() + self._wait, SOONEST
        while True:
            self._turn({}, None)
            missing = {client: self._why_missing(client) for client in invitations if self._at(client) is None}
            if not missing or time.monotonic() > until:
                return missing
            pause = min(SLOWEST, 1.5 * pause)
            time.sleep(pause)

    def _why_missing(self, number: int) -> str:
        refused = [node.refused for node in self._nodes.values() if node.client == number and node.refused]
        return refused[-1] if refused else "no node answers for it"

    def _at(self, client: int, *, joined: bool = True) -> _FlowerNode | None:
        """The node of a client that has joined; the newest, where an older one has not been noticed to be gone."""
        own = [node for node in self._nodes.values() if node.client == client and node.joined >= joined]
        return max(own, key=lambda node: node.order, default=None)

    def _refresh(self) -> None:
        """Notice nodes that came, went, or were started again; whoever is not known yet is asked who it is."""
        if time.monotonic() - self._refreshed < REFRESH:
            return
        present = {info.node_id: info for info in self._grid.get_nodes()}
        for gone in set(self._nodes) - set(present):
            self._say(self._nodes.pop(gone), "is gone")
        for id, info in present.items():
            if id not in self._nodes or self._nodes[id].since != info.last_activated_at:
                order = max((node.order for node in self._nodes.values()), default=0) + 1
                self._nodes[id] = _FlowerNode(id, info.last_activated_at, order, info.name)
        self._refreshed = time.monotonic()

    def _greet(self) -> None:
        """Say hello to nodes that have not said who they are, and invite those that have not joined."""
        now = time.monotonic()
        busy = {id(asked.node) for asked in self._asked.values() if asked.what is not What.STEP}
        for node in self._nodes.values():
            if node.joined or id(node) in busy or now < node.again:
                continue
            request, client = Request(What.HELLO), node.client
            if client is not None and client in self._invitations:
                self._returned[client] = self._receipts.get(client, b"")
                invitation = replace(self._invitations[client], receipt=self._returned[client].hex())
                request = Request(What.JOIN, "", invitation.encode())
            self._push([(node, request, ())], ANSWERING)

    # --- asking

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        """The clients' replies as they come; whoever cannot be reached in time does not answer."""
        self._unreached = set(messages)
        self._exchange += 1
        waiting = {client: Request(What.STEP, step, message) for client, message in messages.items()}
        reached = dict.fromkeys(waiting, time.monotonic())
        pause = SOONEST
        while waiting and (deadline is None or time.monotonic() <= deadline):
            found = self._turn(waiting, deadline)
            for exchange, reply in found:
                if exchange == self._exchange:
                    waiting.pop(reply.client, None)
                    yield reply
                elif step in (*WHOLE_STEPS, "keys"):  # one of an earlier step of the same sum means nothing any more
                    yield replace(reply, reason="")
            yield from self._give_up(waiting, reached)
            pause = SOONEST if found else min(SLOWEST, 1.5 * pause)
            if waiting:
                time.sleep(pause)
        yield from (Reply(client, reached=False) for client in sorted(self._unreached))

    def _turn(self, work: Mapping[int, Request], deadline: float | None) -> list[tuple[int, Reply]]:
        """Look who is there, take what came, send what is due; the replies to steps, each with its exchange."""
        self._refresh()
        found = [answer for reply in self._pull() for answer in self._taken(reply)]
        self._greet()
        heard = {reply.client for exchange, reply in found if exchange == self._exchange}
        self._send({client: request for client, request in work.items() if client not in heard}, deadline)
        return found

    def _send(self, work: Mapping[int, Request], deadline: float | None) -> None:
        """Push what is not under way to the node where its client is now."""
        due = []
        for client, request in work.items():
            node = self._at(client)
            if node is None or time.monotonic() < node.again or self._under_way(node):
                continue
            due.append((node, request, self._receipt_due(client)))
            self._unreached.discard(client)  # before it is tried: a failure does not say how far the message came
        seconds = LONGEST if deadline is None else max(1.0, deadline - time.monotonic()) + GRACE
        self._push(due, seconds)

    def _receipt_due(self, client: int) -> tuple[Request, ...]:
        """The receipt that a client has not had back: it travels with what is sent next, which costs no message."""
        receipt = self._receipts.get(client, b"")
        if receipt == self._returned.get(client, b""):
            return ()
        self._returned[client] = receipt
        return (Request(What.RECEIPT, self._invitations[client].federation, receipt),)

    def _under_way(self, node: _FlowerNode) -> bool:
        """Whether this node is at work on a message of this exchange."""
        return any(
            asked.node is node and asked.what is What.STEP and asked.exchange == self._exchange
            for asked in self._asked.values()
        )

    def _give_up(self, waiting: dict[int, Request], reached: dict[int, float]) -> Iterator[Reply]:
        """Wait no more for clients that refused to join, or were out of reach for too long."""
        now = time.monotonic()
        for client in list(waiting):
            node = self._at(client)
            if node is not None and self._under_way(node):
                reached[client] = now
            elif node is None and (newest := self._at(client, joined=False)) is not None and newest.refused:
                del waiting[client]
                yield Reply(client, reason=newest.refused)
            elif now - reached[client] > self._patience:
                del waiting[client]
                yield Reply(client, reason=f"could not be reached for {self._patience:g} seconds")

    def _push(self, letters: Sequence[tuple[_FlowerNode, Request, Sequence[Request]]], seconds: float) -> None:
        from flwr.app import Message

        shared: dict[int, ArrayRecord] = {}  # one array for all that are sent the same
        for node, request, before in letters:
            if id(request.payload) not in shared:
                shared[id(request.payload)] = bundles.array(join(request.encode()))
            content = bundles.content(shared[id(request.payload)], before)
            message = Message(content, node.id, QUERY, ttl=seconds)
            for pushed in filter(None, self._grid.push_messages([message])):
                until = time.monotonic() + seconds
                asked = _PendingMessage(request.what, node, node.client, self._exchange, len(before) + 1, until)
                self._asked[pushed] = asked

    def close(self, seconds: float = 15.0) -> None:
        """Return the receipts that are still due, for so many seconds; who is gone hears of it at the next join."""
        there = {client: node for client in self._invitations if (node := self._at(client)) is not None}
        due = [(node, request, ()) for client, node in there.items() for request in self._receipt_due(client)]
        self._push(due, seconds + GRACE)
        until = time.monotonic() + seconds
        while any(a.what is What.RECEIPT for a in self._asked.values()) and time.monotonic() < until:
            for reply in self._pull():
                self._asked.pop(reply.metadata.reply_to_message_id, None)
            time.sleep(SOONEST)

    # --- taking

    def _pull(self) -> Iterable[Message]:
        now = time.monotonic()
        self._asked = {id: asked for id, asked in self._asked.items() if asked.expires > now}
        return self._grid.pull_messages(list(self._asked)) if self._asked else ()

    def _taken(self, reply: Message) -> Iterator[tuple[int, Reply]]:
        """Take a message in; where it answers a step, the client's reply and its exchange."""
        asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
        if asked is None:
            return
        responses = self._responses(asked, reply)
        if len(responses) < asked.requests:
            asked.node.joined = False  # who is back after that is asked anew who it is, and invited with its receipt
            asked.node.client = None
            asked.node.later()
            return
        response = responses[asked.requests - 1]
        if asked.what is What.HELLO:
            self._introduced(asked.node, response)
        elif asked.what is What.JOIN:
            self._joined(asked.node, response)
        else:
            assert asked.client is not None
            if response.receipt:
                self._receipts[asked.client] = response.receipt
            yield asked.exchange, Reply.of(asked.client, response)

    def _responses(self, asked: _PendingMessage, reply: Message) -> list[Response]:
        """What came; nothing where the relay failed or could not reach its client."""
        if reply.has_error():
            self._say(asked.node, f"did not answer: {reply.error.reason}")
            return []
        try:
            found = bundles.responses(bundles.bundle_in(reply))
        except InvalidInput as error:
            self._say(asked.node, f"sent what cannot be read: {error}")
            return []
        if not found:
            self._say(asked.node, "has a relay that cannot reach the owner's client")
        return found

    def _introduced(self, node: _FlowerNode, response: Response) -> None:
        try:
            known = json.loads(response.payload)
            identity, name = str(known["id"]), str(known["name"])
            if not response.fine or not NAME.fullmatch(name) or not NAME.fullmatch(identity):
                raise InvalidInput(response.reason or "a name that is none")
            before = self._spoke.get(node.id)
            if before is not None and not self._roster.has(identity, before):
                raise Unknown(f"it spoke for {self._roster.name_of(before)} before, and a node speaks for one client")
            node.client = self._spoke[node.id] = self._roster.number_of(identity, name, node=node.name)
        except (SordinoError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._say(node, f"takes no part: {error}")
            node.later()

    def _joined(self, node: _FlowerNode, response: Response) -> None:
        node.joined, node.refused = response.fine, response.reason
        self._say(node, "has joined" if response.fine else f"has not joined: {response.reason}")
        if response.fine:
            node.again = node.pause = 0.0
        else:
            node.later()

    def _say(self, node: _FlowerNode, news: str) -> None:
        """Say it of a node in the log, once; some of it may be the node's own words."""
        called = f"node {node.id}" if node.client is None else self._roster.name_of(node.client)
        said = f"{called} {news}"[:LONGEST_SENTENCE]
        sentence = "".join(letter if letter.isprintable() else " " for letter in said)
        if self._said.get(node.id) != sentence:
            self._said[node.id] = sentence
            _log.info(sentence)


__all__ = ["FlowerFleet", "Roster", "Unknown"]
