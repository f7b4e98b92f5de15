"""Clients behind Flower's nodes: each the owner's own process, reached through the relay that runs in its SuperNode.

Nodes come and go under numbers of Flower's; who a client is it says itself (its identity, in the answer to a hello) and
then gets its invitation under its number in the federation. What is asked of a client whose node vanished, or whose
process does not answer, is asked again once it is back, and gets the very answer that was recorded.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sordino.client.invitation import Invitation
from sordino.client.settings import NAME
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.carrier import Carrier, CarrierLost, Letter, LetterReply
from sordino.fleets.interface import WHOLE_STEPS, Fleet, Reply
from sordino.fleets.roster import Roster, Unknown
from sordino.flower import bundles
from sordino.wire.codec import join
from sordino.wire.requests import Request, Response, What

REFRESH = 1.0  #: seconds between two looks at which nodes are there
SOONEST, SLOWEST = 0.1, 1.0  #: seconds between two looks for replies: at first, and when nothing comes
AGAIN, SELDOM = 2.0, 20.0  #: seconds until a node that could not answer is tried again: at first, and at most
ANSWERING = 600.0  #: seconds that a client may take to say who it is, or to look at its invitation
LONGEST = 43_200.0  #: seconds that a message may take where no deadline is set
GRACE = 60.0  #: seconds beyond a deadline in which an answer is still seen, and noted as late
VACANT = "nobody holds this place"
LONGEST_SENTENCE = 600  #: letters of what is said of a node

_log = logging.getLogger("sordino.flower")


@dataclass
class _FlowerNode:
    """One of Flower's nodes, from one activation to the next."""

    id: int
    since: str  #: when it was activated
    order: int  #: the later a node came, the higher
    name: str = ""  #: under which its key was registered, if it was
    client: int | None = None
    identity: str = ""  #: of the client that it spoke for last
    member: str = ""  #: that client's name; a member who left before the first round is in no roster any more
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
    """Clients behind the nodes of a carrier: Flower's grid, or the relay in a server's app.

    To be invited, all clients have `wait` seconds, in which their owners may still agree; whoever comes later is
    invited then. A client that cannot be reached for `patience` seconds is not waited for any longer, nor in later
    exchanges, until it is back: then it is asked at once. While fewer than `quorum` of those asked are there, all are
    waited for, so that no round is held in vain. While a client's process is at work on an answer, only a deadline ends
    the wait. The roster is looked at before every round: what was retired is neither asked nor waited for.
    """

    def __init__(
        self, carrier: Carrier, roster: Roster, *, wait: float = 600.0, patience: float = 60.0, quorum: int = 1
    ) -> None:
        self._carrier, self._roster, self._wait, self._patience = carrier, roster, wait, patience
        self._quorum = quorum
        self._invitations: dict[int, Invitation] = {}
        self._nodes: dict[int, _FlowerNode] = {}
        self._asked: dict[str, _PendingMessage] = {}
        self._exchange = 0
        self._round = roster.begun + 1
        self._holders = roster.names(self._round)  # as of the last look at the roster
        self._away: dict[int, int] = {}  # clients that were given up and are not back -> the round
        self._refreshed = -REFRESH
        self._carriers = 0  # that were lost
        self._said: dict[int, str] = {}  # node -> what was said of it last
        self._spoke: dict[int, tuple[int, str]] = {}  # node -> number and name of the client that it speaks for
        self._receipts: dict[int, bytes] = {}  # the last one of each client
        self._returned: dict[int, bytes] = {}  # those that went back already
        self._unreached: set[int] = set()  # clients to whose nodes nothing of this exchange was sent

    # --- who is there

    def begin_round(self, round: int) -> None:
        """Look at the roster: this round is held with those who have a place in it."""
        self._roster.begin(round)
        self._look(round)

    def names(self, round: int) -> dict[int, str]:
        """The members' names in a round."""
        return self._roster.names(round)

    def vacant(self, round: int) -> Collection[int]:
        """Numbers that no member holds in a round."""
        return self._roster.vacant(round)

    def _look(self, round: int) -> None:
        """Part with the clients that have no place in a round, and with what was theirs: nothing of it is passed on."""
        self._round, before, self._holders = round, self._holders, self._roster.names(round)
        changed = {client for client, name in before.items() if self._holders.get(client) != name}
        self._asked = {  # late answers of former holders are never taken in
            id: asked for id, asked in self._asked.items() if asked.what is not What.STEP or asked.client not in changed
        }
        for client in changed:
            for known in (self._receipts, self._returned, self._away):
                known.pop(client, None)
        for node in self._nodes.values():
            if node.client is not None and not self._roster.has(node.identity, node.client, round):
                self._say(node, "has no place in this federation any more")
                node.client, node.joined, node.refused = None, False, ""
        if before != self._holders:
            for node in self._nodes.values():  # whoever was refused may have a place by now
                node.again = node.again if node.joined else 0.0

    def invite(self, invitations: Mapping[int, bytes]) -> dict[int, str]:
        """Hand every client that comes its invitation; those that have not joined in time, with the reason."""
        self._invitations = {client: Invitation.decode(message) for client, message in invitations.items()}
        self._receipts |= {c: bytes.fromhex(i.receipt) for c, i in self._invitations.items() if i.receipt}
        until, pause, carriers = time.monotonic() + self._wait, SOONEST, self._carriers
        while True:
            if self._roster.look():
                self._look(self._roster.begun + 1)
            self._turn({}, None)
            if self._carriers != carriers:  # nobody can come as long as there is no way to the nodes
                until, carriers = time.monotonic() + self._wait, self._carriers
            missing = {client: self._why_missing(client) for client in invitations if self._at(client) is None}
            vacant = self._roster.vacant(self._round)
            if vacant.issuperset(missing) or time.monotonic() > until:
                self._note_absent(set(missing) - vacant)
                return missing
            pause = min(SLOWEST, 1.5 * pause)
            time.sleep(pause)

    def _note_absent(self, clients: Collection[int]) -> None:
        """Who was waited for in vain before the first round is not waited for in it."""
        if self._wait >= self._patience:
            self._away |= dict.fromkeys(clients, self._round)

    def _why_missing(self, number: int) -> str:
        if number in self._roster.vacant(self._round):
            return VACANT
        refused = [node.refused for node in self._nodes.values() if node.client == number and node.refused]
        return refused[-1] if refused else "no node answers for it"

    def _at(self, client: int, *, joined: bool = True) -> _FlowerNode | None:
        """The node of a client that has joined; the newest, where an older one has not been noticed to be gone.

        A node whose client has no place in this round, or not this one, is none of them.
        """
        own = [
            node
            for node in self._nodes.values()
            if node.client == client and node.joined >= joined and self._roster.has(node.identity, client, self._round)
        ]
        return max(own, key=lambda node: node.order, default=None)

    def _refresh(self) -> None:
        """Notice nodes that came, went, or were started again; whoever is not known yet is asked who it is."""
        if time.monotonic() - self._refreshed < REFRESH:
            return
        present = {info.id: info for info in self._carrier.nodes()}
        for gone in set(self._nodes) - set(present):
            self._say(self._nodes.pop(gone), "is gone")
            self._said.pop(gone, None)
        latest = max((node.order for node in self._nodes.values()), default=0)
        for id, info in present.items():
            if id not in self._nodes or self._nodes[id].since != info.since:
                latest += 1
                self._nodes[id] = _FlowerNode(id, info.since, latest, info.name)
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
        held = messages.keys() - self._roster.vacant(self._round)
        waiting = {client: Request(What.STEP, step, messages[client]) for client in sorted(held)}
        reached, carriers = dict.fromkeys(waiting, time.monotonic()), self._carriers
        self._away = {client: since for client, since in self._away.items() if self._at(client) is None}
        pause = SOONEST
        while self._is_waiting(waiting, reached) and (deadline is None or time.monotonic() <= deadline):
            found = self._turn(waiting, deadline)
            if self._carriers != carriers:  # nobody could be reached meanwhile, and no client is to blame
                reached, carriers = dict.fromkeys(waiting, time.monotonic()), self._carriers
            for exchange, reply in found:
                if exchange == self._exchange:
                    waiting.pop(reply.client, None)
                    self._away.pop(reply.client, None)
                    yield reply
                elif step in (*WHOLE_STEPS, "keys"):  # one of an earlier step of the same sum means nothing any more
                    yield replace(reply, reason="")
            yield from self._give_up(waiting, reached)
            pause = SOONEST if found else min(SLOWEST, 1.5 * pause)
            if self._is_waiting(waiting, reached):
                time.sleep(pause)
        yield from (Reply(client, reason=self._why_away(client)) for client in waiting if client in self._away)
        yield from (Reply(client, reached=False) for client in sorted(self._unreached))

    def _is_waiting(self, waiting: Mapping[int, Request], reached: Mapping[int, float]) -> bool:
        """Whether somebody is still waited for: who is away is not, unless too few others are there."""
        if any(client not in self._away for client in waiting):
            return True
        too_few = len(reached) - len(self._away.keys() & reached.keys()) < self._quorum
        soon = time.monotonic() - self._patience
        return too_few and any(reached[client] >= soon for client in waiting)

    def _why_away(self, client: int) -> str:
        since = self._away[client]
        if since == self._round:
            return f"could not be reached for {self._patience:g} seconds"
        return f"has been out of reach since round {since}: it is asked again when it is back"

    def _turn(self, work: Mapping[int, Request], deadline: float | None) -> list[tuple[int, Reply]]:
        """Look who is there, take what came, send what is due; the replies to steps, each with its exchange."""
        found: list[tuple[int, Reply]] = []
        try:
            self._refresh()
            found += [answer for reply in self._pull() for answer in self._taken(reply)]
            self._greet()
            heard = {reply.client for exchange, reply in found if exchange == self._exchange}
            self._send({client: request for client, request in work.items() if client not in heard}, deadline)
        except CarrierLost:  # nothing is known of nodes and messages any more; there may be a new carrier soon
            self._nodes, self._asked, self._refreshed = {}, {}, -REFRESH
            self._carriers += 1
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
        """Wait no more for clients that refused to join, or were out of reach for too long; for who is back, again.

        Those who are out of reach stay in `waiting`: they are asked as soon as they are back.
        """
        now = time.monotonic()
        for client in list(waiting):
            node = self._at(client)
            is_back = node is not None and self._away.pop(client, None) is not None
            if is_back or (node is not None and self._under_way(node)):
                reached[client] = now
            elif node is None and (newest := self._at(client, joined=False)) is not None and newest.refused:
                del waiting[client]
                yield Reply(client, reason=newest.refused)
            elif now - reached[client] > self._patience:
                self._away.setdefault(client, self._round)

    def _push(self, work: Sequence[tuple[_FlowerNode, Request, Sequence[Request]]], seconds: float) -> None:
        frames = {id(request.payload): join(request.encode()) for _, request, _ in work}
        letters = [
            Letter(node.id, frames[id(request.payload)], join(*(each.encode() for each in before)), seconds)
            for node, request, before in work
        ]
        for (node, request, before), letter in zip(work, self._carrier.push(letters) if letters else (), strict=True):
            if letter:
                until = time.monotonic() + seconds
                asked = _PendingMessage(request.what, node, node.client, self._exchange, len(before) + 1, until)
                self._asked[letter] = asked

    def close(self, seconds: float = 15.0) -> None:
        """Return the receipts that are still due, for so many seconds; who is gone hears of it at the next join."""
        there = {client: node for client in self._invitations if (node := self._at(client)) is not None}
        due = [(node, request, ()) for client, node in there.items() for request in self._receipt_due(client)]
        with suppress(CarrierLost):
            self._push(due, seconds + GRACE)
            until = time.monotonic() + seconds
            while any(a.what is What.RECEIPT for a in self._asked.values()) and time.monotonic() < until:
                for reply in self._pull():
                    self._asked.pop(reply.letter, None)
                time.sleep(SOONEST)

    # --- taking

    def _pull(self) -> Sequence[LetterReply]:
        now = time.monotonic()
        self._asked = {id: asked for id, asked in self._asked.items() if asked.expires > now}
        return self._carrier.pull(list(self._asked)) if self._asked else ()

    def _taken(self, reply: LetterReply) -> Iterator[tuple[int, Reply]]:
        """Take a reply in; where it answers a step, the client's reply and its exchange."""
        asked = self._asked.pop(reply.letter, None)
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

    def _responses(self, asked: _PendingMessage, reply: LetterReply) -> list[Response]:
        """What came; nothing where the relay failed or could not reach its client."""
        if reply.error:
            self._say(asked.node, reply.error)
            return []
        try:
            found = bundles.responses(reply.frames)
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
            if before is not None and not self._roster.has(identity, before[0]):
                raise Unknown(f"its node spoke for {before[1]} before, and a node speaks for one client")
            number = self._roster.number_of(identity, name, node=node.name, round=self._round)
            node.client, node.identity, node.member = number, identity, self._roster.member(identity)
            self._spoke[node.id] = number, node.member
        except (SordinoError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._say(node, f"takes no part: {error}")
            node.later()

    def _joined(self, node: _FlowerNode, response: Response) -> None:
        if node.client is None:  # it has lost its place since it was invited
            return
        node.joined, node.refused = response.fine, response.reason[:LONGEST_SENTENCE]
        self._say(node, "has joined" if response.fine else f"has not joined: {response.reason}")
        if response.fine:
            node.again = node.pause = 0.0
        else:
            node.later()

    def _say(self, node: _FlowerNode, news: str) -> None:
        """Say it of a node in the log, once; some of it may be the node's own words."""
        called = node.member or node.name or f"node {node.id}"
        said = f"{called} {news}"[:LONGEST_SENTENCE]
        sentence = "".join(letter if letter.isprintable() else " " for letter in said)
        if self._said.get(node.id) != sentence:
            self._said[node.id] = sentence
            _log.info(sentence)


__all__ = ["FlowerFleet"]
