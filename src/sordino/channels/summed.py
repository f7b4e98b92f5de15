"""The securely summed channel: of each class of clients the coordinator gets the sum of their reports, and no report.

Only outputs of one mechanism can be added, so every class of clients has a sum of its own; the five steps of `secagg`
are run for all of them at once, and the first request carries the plan. Reports are added as whole numbers: bits and
integers as they are, so that the sum is the very one that the direct channel leads to, and reals with so many decimals.
A class whose sum is lost (too few clients stayed) does not count in that round, and nothing of it is known.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sordino.channels.direct import Exchange
from sordino.channels.secagg import STEPS, Client, Identity, Refused, Server, Session, SumLost, invitation
from sordino.errors import InvalidInput
from sordino.messages import Plan
from sordino.methods.interface import Method
from sordino.methods.upload import Lost, Sum, Tally
from sordino.privacy.guarantee import SERVER, Guarantee, Infinite, RandomizedBit, Release, summed

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Rule:
    """How many must stay, and how exactly reals are added: both sides know it, and clients hold the server to it."""

    share: float = 2 / 3  #: more than this share of those invited must stay to the end
    digits: int = 10  #: decimals kept of real values

    def __post_init__(self) -> None:
        if not 0.5 <= self.share < 1:
            raise InvalidInput(f"the share of clients that must stay lies in [0.5, 1), got {self.share!r}")
        if not 0 <= self.digits <= 18:
            raise InvalidInput(f"a sum of reals keeps 0 to 18 decimals, got {self.digits!r}")

    def threshold(self, clients: int) -> int:
        """How many of so many invited clients must stay."""
        return math.floor(self.share * clients + 1e-9) + 1

    def honest(self, clients: int) -> int:
        """How many honest clients a sum has, at least, if no more collude than the threshold allows for."""
        return clients - self.threshold(clients) + 1

    @property
    def fewest(self) -> int:
        """The smallest class: one may drop out, and nobody honest is alone in a sum."""
        return next(n for n in range(2, 10**6) if self.honest(n) >= 2)

    def check(self, method: Method, selection: Any) -> None:
        """Refuse classes that can never be summed, and sums that have no room in 64 bits: before any training."""
        tally = _first_tally(method)
        for group, members in tally.classes(range(method.clients)).items():
            most = min(len(members), selection.asked(method.clients))
            if most < self.fewest:
                strength = tally.upload.strengths[group]
                alike = "" if strength is None else f" of epsilon {strength:g}"
                raise InvalidInput(
                    f"a secure sum needs {self.fewest} clients, and at most {most}{alike} can be in one: only reports "
                    "of one epsilon can be added. Ask more clients, give more of them one epsilon (such as "
                    "clients.epsilon = { values = [2, 8], shares = [0.5, 0.5] }), or take method.channel.kind = direct"
                )
            self.session(Plan("", 1), tally, group, most)

    def honest_clients(self, method: Method, selection: Any) -> tuple[int, ...]:
        """For every class of releases, how many honest clients are in each of its sums, whatever round it is."""
        sure = selection.asked(method.clients) if selection.kind in ("all", "count", "fraction") else 0
        honest: dict[int, int] = {}
        for members in _first_tally(method).classes(range(method.clients)).values():
            always = self.honest(max(self.fewest, sure - (method.clients - len(members))))
            for client in members:
                c = method.class_of(client)
                honest[c] = min(honest.get(c, always), always)
        return tuple(honest[c] for c in range(len(honest)))

    def session(self, plan: Plan, tally: Tally, group: int, clients: int) -> Session:
        """The sum of one class in one round."""
        low, high = tally.span(group, self.digits)
        return Session(
            plan.federation, plan.round, group, plan.digest.hex(), tally.summands, low, high, clients,
            self.threshold(clients),
        )  # fmt: skip


def _first_tally(method: Method) -> Tally:
    return method.tally(method.plan(method.init(), ""))


def _with_plan(request: bytes, plan: bytes) -> bytes:
    return _LENGTH.pack(len(request)) + request + plan


def _without_plan(message: bytes) -> tuple[bytes, bytes]:
    if len(message) < _LENGTH.size:
        raise Refused("an invitation to a sum was cut off")
    start = _LENGTH.size + _LENGTH.unpack_from(message)[0]
    return message[_LENGTH.size : start], message[start:]


def plan_in(message: bytes) -> Plan:
    """The plan that comes with an invitation to a sum."""
    return Plan.decode(_without_plan(message)[1])


# --- at the server ----------------------------------------------------------------------------------------------------


class Summed:
    """The coordinator's side: five steps, then one sum (or the reason why there is none) for each class."""

    steps = STEPS

    def __init__(self, method: Method, rule: Rule) -> None:
        self._method, self._rule = method, rule

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[Sum | Lost]:
        """The sums of the reports on this plan."""
        sums = _Sums(self._rule, Plan.decode(plan), self._method, clients)
        for step in STEPS:
            requests = sums.requests(step)
            if step == "keys":
                joined = {id(r): _with_plan(r, plan) for r in requests.values()}  # one for all clients of a class
                requests = {client: joined[id(r)] for client, r in requests.items()}
            if not requests:
                break
            for client, body in exchange(step, requests):
                sums.receive(step, client, body)
        yield from sums.found()


class _Sums:
    """The sums of one round, all at the same step."""

    def __init__(self, rule: Rule, plan: Plan, method: Method, clients: Sequence[int]) -> None:
        tally = method.tally(plan)
        self._digits = rule.digits
        self._servers: dict[int, Server] = {}
        self._of: dict[int, int] = {}  # client -> class
        self._lost: dict[int, str] = {}  # class -> why there is no sum of it
        self._refused: dict[int, dict[int, str]] = {}  # class -> client -> what was wrong with its message
        for group, members in tally.classes(clients).items():
            if len(members) < rule.fewest:
                why = f"{len(members)} clients of class {group} were chosen, and a secure sum needs {rule.fewest}"
                self._lost[group] = f"{why}: ask more clients, or give more of them one epsilon"
            else:
                self._servers[group] = Server(rule.session(plan, tally, group, len(members)), members)
                self._of |= dict.fromkeys(members, group)

    def requests(self, step: str) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for group, server in list(self._servers.items()):
            try:
                found |= server.requests(step)
            except SumLost as error:
                self._lost[group] = str(error)
                del self._servers[group]
        return found

    def receive(self, step: str, client: int, body: bytes) -> None:
        """A message that is refused is as good as none: its client has dropped out, and the others go on."""
        try:
            self._servers[self._of[client]].receive(step, client, body)
        except Refused as error:
            self._refused.setdefault(self._of[client], {})[client] = str(error)

    def found(self) -> Iterator[Sum | Lost]:
        for group, server in self._servers.items():
            refused = self._refused.get(group, {})
            try:
                yield Sum(group, server.summed, server.total(), self._digits, refused)
            except SumLost as error:
                yield Lost(group, str(error), refused)
        for group, why in self._lost.items():
            yield Lost(group, why, self._refused.get(group, {}))


# --- at the clients ---------------------------------------------------------------------------------------------------


class Members:
    """The clients' side, for as many clients as live in one process; each draws its own secrets, for one round.

    A client takes part in one sum a round: two sums over nearly the same clients would show the others by difference.
    """

    steps = STEPS

    def __init__(
        self,
        method: Method,
        rule: Rule,
        honest: Sequence[int],
        identities: Mapping[int, Identity] | None = None,
    ) -> None:
        self._method, self._rule, self._honest = method, rule, tuple(honest)
        self._identities = identities  # by client; without them, keys are taken as the server hands them out
        self._at: tuple[Plan, Tally] | None = None  # the round at hand
        self._clients: dict[int, Client] = {}
        self._latest: dict[tuple[str, int], int] = {}  # federation, client -> the last round it took part in

    def begin(self, message: bytes) -> Plan:
        """The plan that comes with a request for keys: a new round, in which nobody takes part yet."""
        plan = plan_in(message)
        self._at, self._clients = (plan, self._method.tally(plan)), {}
        return plan

    @property
    def plan(self) -> Plan:
        """The plan of the round at hand."""
        return self._round[0]

    @property
    def _round(self) -> tuple[Plan, Tally]:
        if self._at is None:
            raise Refused("a secure sum begins with the step 'keys', which brings the plan")
        return self._at

    def releases(self, plan: Plan) -> tuple[tuple[Release, ...], ...]:
        """What a client of every class releases: against the server as before, and against one that sees sums only."""
        weighed = self._method.tally(plan).upload.samples
        return tuple(
            tuple(behind_sum(release, honest, weighed) for release in own)
            for own, honest in zip(self._method.releases(plan), self._honest, strict=True)
        )

    def answer(self, step: str, client: int, message: bytes, body: bytes | None = None) -> bytes:
        """The answer to a step; `body` is the report, in the step `masked`. What is not right is refused."""
        if step == "keys":
            return self._join(client, message)
        if client not in self._clients:
            raise Refused(f"client {client} takes part in no sum, and was asked for the step {step!r}")
        vector = None if body is None else self._round[1].summand(client, body, self._rule.digits)
        return self._clients[client].answer(step, message, vector)

    def _join(self, client: int, message: bytes) -> bytes:
        """The keys of a client that agrees to take part in the sum it is invited to."""
        request, encoded = _without_plan(message)
        (plan, tally), session = self._round, invitation(request)
        if encoded != plan.encode():
            raise Refused("this client was sent another plan than the others")
        (group,) = tally.classes([client])
        if session != self._rule.session(plan, tally, group, session.clients):
            raise Refused("the invitation is to a sum that does not fit the plan, or has another threshold")
        if session.clients < self._rule.fewest:
            raise Refused(f"the sum is of {session.clients} clients, fewer than {self._rule.fewest}")
        if self._latest.get((plan.federation, client), 0) >= plan.round:
            raise Refused(f"this client took part in a sum of round {plan.round} or later already")
        self._latest[plan.federation, client] = plan.round
        identity = None if self._identities is None else self._identities[client]
        self._clients[client] = Client(session, client, identity=identity)
        return self._clients[client].answer("keys", request)


def behind_sum(release: Release, honest: int, weighed: bool) -> Release:
    """The same release with what holds against a server that sees sums only, with so many honest clients in each.

    Of bits, such a server sees how many of the honest clients' are one: as much as behind a shuffler of so many. For
    everything else, and for bits that are multiplied by sample counts, nothing better than the local guarantee is
    proven. A method that knows better (its release says something of sums already) is left alone.
    """
    if any(g.adversary.kind == "summed" for g in release.guarantees):
        return release
    more = (_summed_guarantee(g, honest, weighed) for g in release.guarantees if g.adversary == SERVER)
    return replace(release, guarantees=(*release.guarantees, *(g for g in more if g is not None)))


def _summed_guarantee(local: Guarantee, honest: int, weighed: bool) -> Guarantee | None:
    match local.loss:
        case Infinite(why=why):
            lost = Infinite(f"{why} (seen in a sum only, which proves nothing about one client)")
            return replace(local, adversary=summed(honest), loss=lost)
        case RandomizedBit() if weighed:
            return None
        case RandomizedBit():
            basis = f"{local.basis}; of each value, the number of ones among {honest} honest clients or more"
            return replace(local, adversary=summed(honest), basis=basis)
    return replace(local, adversary=summed(honest), basis=f"{local.basis}; what holds of the report holds of the sum")


__all__ = ["Members", "Rule", "Summed", "behind_sum", "plan_in"]
