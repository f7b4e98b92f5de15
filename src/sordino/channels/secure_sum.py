"""The securely summed channel: of each class of clients the coordinator gets the sum of their reports, and no report.

Only outputs of one mechanism can be added, so every class of clients has a sum of its own; the five steps of `secagg`
are run for all of them at once, and the first request carries the plan. Reports are added as whole numbers: bits and
integers as they are, so that the sum is the very one that the direct channel leads to, and reals with so many decimals.
Where silos share a noise (`NoisySums`), the sum is one modulo 2^m, and of the sum in Z nothing is known.
A class whose sum is lost (too few clients stayed) does not count in that round, and nothing of it is known.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le, Lt
from pydantic import Field

from sordino.channels.interface import Channel, Exchange
from sordino.channels.neighbours import BREACH, MOST_ATTEMPTS, Neighbourhood, neighbourhood
from sordino.channels.secagg import (
    MOST_CLIENTS,
    STEPS,
    Identity,
    Session,
    SumClient,
    SumLost,
    SumRefused,
    SumServer,
    invitation,
)
from sordino.channels.spec import ChannelSpec, ReleasesOf, first_tally
from sordino.errors import InvalidInput
from sordino.mechanisms import NoisySums
from sordino.methods.upload import Lost, PerClass, ReportSum, Tally, Upload
from sordino.parts.tables import Says, tag
from sordino.privacy.guarantee import SERVER, Guarantee, Infinite, RandomizedBit, Release, summed
from sordino.wire.codec import join, split
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.methods.interface import Method, State
    from sordino.methods.selection import SelectionSpec
    from sordino.recipe import Recipe

WORTHWHILE = 4  #: neighbours are drawn where all clients are so many times as many


def _with_plan(request: bytes, plan: bytes) -> bytes:
    return join(request) + plan


def _without_plan(message: bytes) -> tuple[bytes, bytes]:
    try:
        (request,), plan = split(message, 1, "an invitation to a sum")
    except InvalidInput as error:
        raise SumRefused(str(error)) from None
    return request, bytes(plan)


def plan_in(message: bytes) -> Plan:
    """The plan that comes with an invitation to a sum."""
    return Plan.decode(_without_plan(message)[1])


@dataclass(frozen=True)
class Assurance:
    """Who is sure to be in a sum, and how likely that fails in a round with so large a share of helpers."""

    honest: int
    breach: float = 0.0
    colluders: float = 0.0


# --- at the server ----------------------------------------------------------------------------------------------------


class Summed(Channel):
    """The coordinator's side: five steps, then one sum (or the reason why there is none) for each class."""

    leaving = "masked"

    class Spec(ChannelSpec):
        """Secure aggregation: the server learns the sum of the reports of each epsilon, and no report by itself.

        Clients know these rules from the recipe, and hold the server to them.
        """

        uses: ClassVar[frozenset[str]] = frozenset({"sums"})
        sums: ClassVar[bool] = True
        unseen: ClassVar[str] = "in a secure sum the server sees no single report"
        kind: str = tag("summed", "in secure sums: the server sees no single report")
        threshold: Annotated[float, Ge(0.5), Lt(1), Says("a share from 0.5 to below 1")] = Field(
            default=2 / 3,
            description="more than this share of those asked must stay to the end, or nothing is revealed",
        )
        digits: Annotated[int, Ge(0), Le(18)] = Field(default=10, description="decimals kept of values that are reals")
        masks: Literal["always", "deployed"] = Field(
            default="always",
            description="whether simulated clients mask their reports too; without, the same sums come much sooner",
        )

        sparse_from: Annotated[int, Ge(2)] = Field(
            default=500,
            description="from so many clients on, each deals with a few others that it draws, where that is proven "
            "and much less work",
        )
        colluders: Annotated[float, Ge(0), Lt(0.5), Says("a share from 0 to below 0.5")] = Field(
            default=0.05, description="share of the clients that may side with the server where neighbours are drawn"
        )

        def least(self, clients: int) -> int:
            """How many of so many invited clients must stay, so are in the sum: with fewer, nothing is revealed."""
            return math.floor(self.threshold * clients + 1e-9) + 1

        def honest(self, clients: int) -> int:
            """How many honest clients a sum has, at least, if no more collude than the threshold allows for."""
            return clients - self.least(clients) + 1

        def neighbourhood(self, clients: int, upload: Upload, group: int) -> Neighbourhood | None:
            """How many others each client of a sum draws and deals with; None where it deals with all of them.

            Parts of one noise are added on the complete graph, where more honest clients are sure to be in a sum. More
            clients than a sum can have draw none: counting their neighbours would take long, for nothing.
            """
            if clients > MOST_CLIENTS or not self._may_draw(clients, upload, group):
                return None
            found = neighbourhood(clients, self.least(clients), math.ceil(self.colluders * clients - 1e-9))
            return None if found is None or found.size * WORTHWHILE > clients else found

        def _may_draw(self, clients: int, upload: Upload, group: int) -> bool:
            return clients >= self.sparse_from and not modulus(upload, group)

        @property
        def fewest(self) -> int:
            """The smallest class: one may drop out, and nobody honest is alone in a sum."""
            return next(n for n in range(2, 10**6) if self.honest(n) >= 2)

        def check(self, method: Method, selection: SelectionSpec) -> None:
            """Refuse classes that can never be summed, and sums that have no room in 64 bits: before any training."""
            tally = first_tally(method)
            for group, members in tally.classes(range(method.clients)).items():
                most = min(len(members), selection.asked(method.clients))
                if most < self.fewest:
                    strength = tally.upload.strengths[group]
                    alike = "" if strength is None else f" of epsilon {strength:g}"
                    raise InvalidInput(
                        f"a secure sum needs {self.fewest} clients, and at most {most}{alike} can be in one: only "
                        "reports of one epsilon can be added. Ask more clients, give more of them one epsilon (such "
                        "as clients.epsilon = { values = [2, 8], shares = [0.5, 0.5] }), or take the channel direct"
                    )
                self.session(Plan("", 1), tally, group, most)

        def assurances(self, method: Method, selection: SelectionSpec) -> tuple[Assurance, ...]:
            """For every class of releases, who is sure to be in each of its sums, whatever round it is."""
            sure = selection.asked(method.clients) if selection.steady else 0
            tally = first_tally(method)
            found: dict[int, Assurance] = {}
            for group, members in tally.classes(range(method.clients)).items():
                most = min(len(members), selection.asked(method.clients))
                least = max(self.fewest, sure - (method.clients - len(members)))
                draw = self.neighbourhood if least == most else self._may_draw
                drawn = draw(most, tally.upload, group)
                always = Assurance(self.honest(least), *((BREACH, self.colluders) if drawn else ()))
                for c in {method.class_of(client) for client in members}:
                    other = found.get(c, always)
                    found[c] = Assurance(
                        min(other.honest, always.honest),
                        max(other.breach, always.breach),
                        max(other.colluders, always.colluders),
                    )
            return tuple(found[c] for c in range(len(found)))

        def session(self, plan: Plan, tally: Tally, group: int, clients: int, attempt: str = "") -> Session:
            """The sum of one class in one round; one that is begun anew has another name for the attempt."""
            ring = modulus(tally.upload, group)
            low, high = (0, 0) if ring else tally.span(group, self.digits)
            drawn = self.neighbourhood(clients, tally.upload, group)
            return Session(
                plan.federation, plan.round, group, plan.digest.hex(), tally.summands, low, high, clients,
                self.least(clients), attempt, *((drawn.size, drawn.quorum) if drawn else (0, 0)), ring,
            )  # fmt: skip

        def build(self, recipe: Recipe, method: Method) -> Summed:
            self.check(method, recipe.method.selection)
            return Summed(method, self)

        def members(self, recipe: Recipe, method: Method, identities: Mapping[int, Identity] | None) -> Members:
            return Members(method, self, identities)

        def simulated_sides(self, recipe: Recipe, method: Method) -> tuple[Channel, Members | None]:
            if self.masks == "always":
                return super().simulated_sides(recipe, method)
            self.check(method, recipe.method.selection)
            return UnmaskedSums(method, self), None

        def releases(self, recipe: Recipe, method: Method) -> ReleasesOf:
            assurances = self.assurances(method, recipe.method.selection)

            def releases(plan: Plan) -> Sequence[Sequence[Release]]:
                found, upload = method.releases(plan), method.tally(plan).upload
                return PerClass(len(found), lambda c: [guarantee(own, assurances[c], upload) for own in found[c]])

            return releases

    def __init__(self, method: Method, rule: Summed.Spec) -> None:
        self._method, self._rule = method, rule

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[ReportSum | Lost]:
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


def modulus(upload: Upload, group: int) -> int:
    """m, where the clients of a class share a noise and their sum is known modulo 2^m alone; else 0."""
    mechanism = upload.mechanisms[group]
    return mechanism.bits if isinstance(mechanism, NoisySums) else 0


class UnmaskedSums(Channel):
    """The same sums where all clients are simulated: nobody is there from whom masks would hide a report."""

    def __init__(self, method: Method, rule: Summed.Spec) -> None:
        self._method, self._rule = method, rule

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[ReportSum | Lost]:
        """The sums of the reports on this plan; a class of which too few stayed has none."""
        told = Plan.decode(plan)
        tally, digits = self._method.tally(told), self._rule.digits
        groups = tally.classes(clients)
        of = {client: group for group, members in groups.items() for client in members}
        totals = {group: np.zeros(tally.summands, np.int64) for group in groups}
        there: dict[int, list[int]] = {group: [] for group in groups}
        for client, body in exchange("report", dict.fromkeys(clients, plan)):
            totals[of[client]] += tally.summand(client, body, digits)
            there[of[client]].append(client)
        for group, members in groups.items():
            least = self._rule.least(len(members))
            if len(members) < self._rule.fewest:
                yield Lost(group, _too_few(group, len(members), self._rule))
            elif len(there[group]) < least:
                yield Lost(group, f"{len(there[group])} of {len(members)} clients stayed, and {least} are needed")
            else:
                session, added = self._rule.session(told, tally, group, len(members)), tuple(sorted(there[group]))
                yield ReportSum(group, added, session.decoded(totals[group], len(added)), digits)


def _too_few(group: int, clients: int, rule: Summed.Spec) -> str:
    """Why so few clients are not added up at all."""
    why = f"{clients} clients of class {group} were chosen, and a secure sum needs {rule.fewest}"
    return f"{why}: ask more clients, or give more of them one epsilon"


class _Sums:
    """The sums of one round, all at the same step."""

    def __init__(self, rule: Summed.Spec, plan: Plan, method: Method, clients: Sequence[int]) -> None:
        tally, attempt = method.tally(plan), secrets.token_hex(8)
        self._digits = rule.digits
        self._servers: dict[int, SumServer] = {}
        self._of: dict[int, int] = {}  # client -> class
        self._lost: dict[int, str] = {}  # class -> why there is no sum of it
        self._refused: dict[int, dict[int, str]] = {}  # class -> client -> what was wrong with its message
        for group, members in tally.classes(clients).items():
            if len(members) < rule.fewest:
                self._lost[group] = _too_few(group, len(members), rule)
            else:
                self._servers[group] = SumServer(rule.session(plan, tally, group, len(members), attempt), members)
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
        except SumRefused as error:
            self._refused.setdefault(self._of[client], {})[client] = str(error)

    def found(self) -> Iterator[ReportSum | Lost]:
        for group, server in self._servers.items():
            refused = self._refused.get(group, {})
            try:
                yield ReportSum(group, server.summed, server.total(), self._digits, refused)
            except SumLost as error:
                yield Lost(group, str(error), refused)
        for group, why in self._lost.items():
            yield Lost(group, why, self._refused.get(group, {}))


# --- at the clients ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _JoinedSums:
    """One client's part in the sums of one round: which it joined, and whose sum it has helped to reveal."""

    round: int
    plan: str  #: the digest
    sessions: tuple[str, ...] = ()  #: digests, in the order in which they were joined
    pledge: tuple[int, ...] = ()  #: whose sum was revealed; empty where none was


class Members:
    """The clients' side, for as many clients as live in one process; each draws its own secrets, for one sum.

    A round is summed once. Where its sum did not come to its end (a server that was killed begins it anew), a client
    joins another, with secrets of its own and the same report, and gives the earlier one up. A client that has helped
    to reveal a sum helps with none over other clients: two sums over nearly the same ones would show the others by
    their difference. Who is in the class that a round asks for, each client knows from the recipe.
    """

    steps = STEPS

    def __init__(self, method: Method, rule: Summed.Spec, identities: Mapping[int, Identity] | None = None) -> None:
        self._method, self._rule = method, rule
        self._identities = identities  # by client; without them, keys are taken as the server hands them out
        self._at: _Round | None = None
        self._clients: dict[int, SumClient] = {}
        self._parts: dict[tuple[str, int], _JoinedSums] = {}  # federation, client -> the last round it took part in

    def begin(self, message: bytes) -> Plan:
        """The plan that comes with a request for keys: a new sum, in which nobody takes part yet."""
        plan = plan_in(message)
        self._at, self._clients = self._round_of(plan), {}
        return plan

    def _round_of(self, plan: Plan) -> _Round:
        tally = self._method.tally(plan)
        asked = self._method.select(replace(self._start, round=plan.round - 1))
        return _Round(plan, tally, {group: frozenset(own) for group, own in tally.classes(list(asked)).items()})

    @cached_property
    def _start(self) -> State:
        return self._method.init()

    @property
    def plan(self) -> Plan:
        """The plan of the round at hand."""
        return self._round.plan

    @property
    def _round(self) -> _Round:
        if self._at is None:
            raise SumRefused("a secure sum begins with the step 'keys', which brings the plan")
        return self._at

    def answer(self, step: str, client: int, message: bytes, body: bytes | None = None) -> bytes:
        """The answer to a step; `body` is the report, in the step `masked`. What is not right is refused."""
        if step == "keys":
            return self._join(client, message)
        if client not in self._clients:
            raise SumRefused(f"client {client} takes part in no sum, and was asked for the step {step!r}")
        own = self._clients[client]
        vector = None if body is None else self._round.tally.summand(client, body, self._rule.digits)
        try:
            answer = own.answer(step, message, vector)
        finally:
            if own.over:
                del self._clients[client]  # its secrets with it
        if own.over:
            where = self.plan.federation, client
            self._parts[where] = replace(self._parts[where], pledge=own.survivors)
        return answer

    def _join(self, client: int, message: bytes) -> bytes:
        """The keys of a client that agrees to take part in the sum it is invited to."""
        request, encoded = _without_plan(message)
        at, session = self._round, invitation(request)
        if encoded != at.plan.encode():
            raise SumRefused("this client was sent another plan than the others")
        (group,) = at.tally.classes([client])
        if session.clients < self._rule.fewest:
            raise SumRefused(f"the sum is of {session.clients} clients, fewer than {self._rule.fewest}")
        invited = at.invited.get(group, frozenset())
        if client not in invited or session.clients != len(invited):
            raise SumRefused(
                f"the sum is of {session.clients} clients, and this round asks {len(invited)} of this class"
                + ("" if client in invited else ", this client not among them")
            )
        if session != self._rule.session(at.plan, at.tally, group, session.clients, session.attempt):
            raise SumRefused("the invitation is to a sum that does not fit the plan, or has another threshold")
        part = self._joined(client, session)
        if session.is_sparse and part.pledge:
            raise SumRefused(
                f"this client has helped to reveal a sum of round {session.round}, and where clients draw neighbours "
                "it helps with no second one: the two might differ by one report. The round goes on without its sum"
            )
        identity = None if self._identities is None else self._identities[client]
        self._parts[at.plan.federation, client] = part
        self._clients[client] = SumClient(session, client, identity=identity, invited=invited, pledge=part.pledge)
        return self._clients[client].answer("keys", request)

    def _joined(self, client: int, session: Session) -> _JoinedSums:
        """This client's part in the round, with one more sum; refused where it is none that may come now."""
        plan = self.plan
        known = self._parts.get((plan.federation, client))
        name = session.digest.hex()
        if known is None or known.round < plan.round:
            return _JoinedSums(plan.round, plan.digest.hex(), (name,))
        if (known.round, known.plan) != (plan.round, plan.digest.hex()):
            raise SumRefused(f"this client took part in a sum of round {known.round} already, on another plan")
        if name in known.sessions or len(known.sessions) >= MOST_ATTEMPTS:
            raise SumRefused(
                f"this client took part in this sum of round {plan.round} already: one that is begun anew has a name "
                f"of its own, and {MOST_ATTEMPTS} are the most"
            )
        return replace(known, sessions=(*known.sessions, name))

    # --- across restarts

    def kept(self, client: int) -> bytes:
        """How far a client of the round at hand has come, for a file: its secrets, as long as they are needed."""
        part = self._parts.get((self.plan.federation, client))
        own = self._clients.get(client)
        found = {"part": None if part is None else asdict(part), "client": None if own is None else own.kept()}
        return json.dumps(found, separators=(",", ":")).encode()

    def remember(self, federation: str, client: int, kept: bytes) -> None:
        """Which sums a client joined, and what it has helped to reveal: that binds it in the sums to come."""
        if (part := json.loads(kept)["part"]) is not None:
            self._parts[federation, client] = _JoinedSums(
                part["round"], part["plan"], tuple(part["sessions"]), tuple(part["pledge"])
            )

    def take_up(self, plan: Plan, client: int, kept: bytes) -> None:
        """Go on where `kept` was written, with the plan of that round."""
        self._at, self._clients = self._round_of(plan), {}
        self.remember(plan.federation, client, kept)
        if (own := json.loads(kept)["client"]) is not None:
            identity = None if self._identities is None else self._identities[client]
            self._clients[client] = SumClient.restored(own, identity)


@dataclass(frozen=True)
class _Round:
    """The round at hand: its plan, what reports on it are, and whom it asks of every class."""

    plan: Plan
    tally: Tally
    invited: Mapping[int, frozenset[int]]


def guarantee(release: Release, assurance: Assurance, upload: Upload) -> Release:
    """The same release with what holds against a server that sees sums only, with so many honest clients in each.

    Of bits, such a server sees how many of the honest clients' are one: as much as behind a shuffler of so many. For
    everything else, and for bits that are multiplied by sample counts, nothing better than the local guarantee is
    proven. A method that knows better (its release says something of sums already) is left alone where it speaks of the
    modulus that its sums have, unless neighbours are drawn: its figure is one of the complete graph.
    """
    if any(g.adversary.kind == "summed" for g in release.guarantees):
        moduli = {modulus(upload, group) for group in range(len(upload.strengths))}
        return replace(release, guarantees=tuple(_in_ring(g, moduli, assurance) for g in release.guarantees))
    more = (_summed_guarantee(g, assurance, upload.samples) for g in release.guarantees if g.adversary == SERVER)
    return replace(release, guarantees=(*release.guarantees, *(g for g in more if g is not None)))


def _in_ring(known: Guarantee, moduli: set[int], assurance: Assurance) -> Guarantee:
    """What a method knows of its sums, if they are taken as it says; noise that is shared hides nothing in others."""
    if known.adversary.kind != "summed" or isinstance(known.loss, Infinite):
        return known
    if assurance.breach:
        why = (
            "proven for sums in which every client deals with all others: set method.channel.sparse_from above their "
            "number"
        )
    elif moduli != {known.modulus or 0}:
        why = "proven for sums modulo another number than these are taken by"
    else:
        return known
    return replace(known, loss=Infinite(why), basis="none")


def _summed_guarantee(local: Guarantee, assurance: Assurance, weighed: bool) -> Guarantee | None:
    onlooker = summed(assurance.honest)
    match local.loss:
        case Infinite(why=why):
            lost = Infinite(f"{why} (seen in a sum only, which proves nothing about one client)")
            return replace(local, adversary=onlooker, loss=lost)
        case RandomizedBit() if weighed:
            return None
        case RandomizedBit() as bits:
            basis = f"{local.basis}; of each value, the number of ones among {assurance.honest} honest clients or more"
            if assurance.breach:
                basis += (
                    f", if no more than {100 * assurance.colluders:g} % of a sum's clients help the server, but for a "
                    f"probability of 2^{math.log2(assurance.breach):g} in a round (neighbours are drawn)"
                )
            return replace(local, adversary=onlooker, loss=replace(bits, tau=assurance.breach), basis=basis)
    return replace(local, adversary=onlooker, basis=f"{local.basis}; what holds of the report holds of the sum")
