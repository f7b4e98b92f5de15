"""The privacy statement of a run: claimed, proven and audited epsilon side by side, with the trust each one needs.

This module has the figures; `sordino.report.statement` puts them into words. Every epsilon stands beside what may
change (adjacency), who is looking (adversary), its delta and its basis. A statement is about a schedule that is over or
was fixed in advance; a client's enforcement is `sordino.privacy.accountant.Account`.

Where clients have guarantees of their own the figures are a vector: every group of equal clients has its rows.

A guarantee of `RandomizedBit` against `shuffled(n)` says that each of these bits is mixed among those of n clients: the
statement computes the amplification from it, and gives what an attacker surely reaches beside what is proven. Against
`summed(h)` it says that each bit is counted among those of at least h honest clients, which reveals as much; where
that fails with a probability tau, it is taken off delta.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from sordino.errors import InvalidInput, UnsupportedLoss
from sordino.privacy.accountant import Composed, bit_epsilon, compose, implies
from sordino.privacy.amplification import SMALLEST_DELTA, Interval, shuffled_bits
from sordino.privacy.guarantee import (
    NO_MODULUS,
    SERVER,
    Adjacency,
    Adversary,
    Claim,
    Derived,
    Guarantee,
    Infinite,
    Loss,
    PoissonGaussian,
    RandomizedBit,
    Release,
    as_adjacency,
    kind,
)
from sordino.privacy.guessing import best_guess
from sordino.privacy.terms import adversary_named

NO_MEANINGFUL_PROTECTION = 20.0  #: epsilon above which e^epsilon is half a billion: the words say so
NO_CLAIM, PROVEN, PARTLY = "no claim", "claim proven", "partly claimed"
NOT_SUPPORTED, REFUTED = "claim not supported", "claim refuted by experiment"

Counted = Sequence[tuple[Release, int]]  #: releases, each with how often it was made

_ADJACENCIES = (
    Adjacency.CLIENT,
    Adjacency.RECORD_REPLACE,
    Adjacency.RECORD_ADD_REMOVE,
    Adjacency.LABEL,
    Adjacency.COORDINATE,
)
_ADVERSARIES = ("server", "shuffled", "summed", "model reader")
_PARTIAL = (Adjacency.LABEL, Adjacency.COORDINATE)  #: less than a record
_VERSION = 2  #: of statement.json; before, sums of shared noise had false figures
_SIMULATED = "This was a simulation."  #: how a sentence begins by which older files say that a run was simulated


@dataclass(frozen=True)
class AuditBound:
    """An experiment's lower bound on epsilon at `delta`, right with this confidence."""

    epsilon: float
    confidence: float
    trials: int
    attack: str
    delta: float = 0.0


@dataclass(frozen=True)
class ClientSet:
    """Whom figures hold for; without names, for a client like all others."""

    names: tuple[str, ...] = ()  #: to be shown; a name may stand for many clients
    count: int = 0
    members: str = ""  #: all of them, where the names do not say it

    def to_json(self) -> dict[str, object]:
        """Names and numbers, ready for `json.dumps`."""
        return {"clients": list(self.names), "count": self.count, "members": self.members}

    @classmethod
    def from_json(cls, packed: Mapping[str, Any]) -> ClientSet:
        """The clients that `to_json` wrote."""
        names = tuple(packed.get("clients", ()))
        return cls(names, packed.get("count", len(names)), packed.get("members", ""))


@dataclass(frozen=True)
class Row:
    """All figures for one adversary and one adjacency, and the clients they hold for."""

    adversary: Adversary
    adjacency: Adjacency
    delta: float
    proven: float  #: epsilon at `delta`
    pure: float  #: epsilon at delta 0
    basis: tuple[str, ...]
    unproven: tuple[str, ...] = ()  #: why nothing is proven, where nothing is
    claimed: Claim | None = None
    supported: bool = False  #: whether what is claimed is proven, at the claim's own delta
    proven_as_claimed: float | None = None  #: epsilon proven at that delta, of what is claimed; old files lack it
    covered: tuple[str, ...] = ()  #: what the claim is about, where that is not all that was released
    unclaimed: tuple[str, ...] = ()  #: and what no claim is about
    audited: AuditBound | None = None
    who: ClientSet = ClientSet()
    reached: float | None = None  #: epsilon that an attacker behind a shuffler surely reaches at `delta`
    losses: tuple[tuple[str, int], ...] = ()  #: types of loss, and how many releases have each; old files lack them

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients' names; none where they are not told apart."""
        return self.who.names

    @property
    def best_guess(self) -> float:
        """How often an attacker can be right, at most, by what is proven: 0.5 is a tossed coin, 1.0 no bound."""
        return min(best_guess(self.proven, self.delta), best_guess(self.pure))

    @property
    def verdict(self) -> str:
        """What proof and experiment say about the claim.

        One that leaves out a part of what was released is never proven here, even where it holds of its own part.
        """
        claim, found = self.claimed, self.audited
        if claim is None:
            return NO_CLAIM
        # an experiment attacks all that was released: it says nothing about a claim of a part
        if found and not self.unclaimed and found.delta >= claim.delta and found.epsilon > claim.epsilon:
            return REFUTED
        if not self.supported:
            return NOT_SUPPORTED
        return PARTLY if self.unclaimed else PROVEN

    def to_json(self) -> dict[str, object]:
        """All figures, unrounded; infinity is the text "infinity"."""
        claim = self.claimed and {
            "epsilon": self.claimed.epsilon,
            "delta": self.claimed.delta,
            "formula": self.claimed.formula,
            "adjacency": str(self.claimed.adjacency),
            "covered": list(self.covered),
            "unclaimed": list(self.unclaimed),
            "proven": None if self.proven_as_claimed is None else _number(self.proven_as_claimed),
        }
        return {
            **self.who.to_json(),
            "adversary": str(self.adversary),
            "adjacency": str(self.adjacency),
            "basis": list(self.basis),
            "losses": dict(self.losses),
            "claimed": claim,
            "proven": {"epsilon": _number(self.proven), "delta": self.delta, "unproven": list(self.unproven)},
            "proven_pure": {"epsilon": _number(self.pure), "delta": 0.0},
            "reached": self.reached,
            "audited": self.audited and asdict(self.audited),
            "verdict": self.verdict,
        }

    @classmethod
    def from_json(cls, packed: Mapping[str, Any]) -> Row:
        """The row that `to_json` wrote."""
        adversary, adjacency = adversary_named(packed["adversary"]), as_adjacency(packed["adjacency"])
        proven, claim, audited = packed["proven"], packed.get("claimed") or {}, packed.get("audited")
        about, exact = claim.get("adjacency", adjacency), claim.get("proven")
        return cls(
            adversary,
            adjacency,
            float(proven["delta"]),
            proven=float(proven["epsilon"]),
            pure=float(packed["proven_pure"]["epsilon"]),
            basis=tuple(packed["basis"]),
            unproven=tuple(proven.get("unproven", ())),
            claimed=Claim(claim["epsilon"], claim["delta"], claim["formula"], about, adversary) if claim else None,
            supported=packed["verdict"] in (PROVEN, PARTLY),
            proven_as_claimed=None if exact is None else float(exact),
            covered=tuple(claim.get("covered", ())),
            unclaimed=tuple(claim.get("unclaimed", ())),
            audited=None if audited is None else AuditBound(**audited),
            who=ClientSet.from_json(packed),
            reached=packed.get("reached"),
            losses=tuple(packed.get("losses", {}).items()),
        )


@dataclass(frozen=True)
class View:
    """All figures for one kind of adversary and one adjacency: a single row, or one for each group of clients."""

    rows: tuple[Row, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The kind of adversary and the adjacency."""
        return self.rows[0].adversary.kind, str(self.adjacency)

    @property
    def adjacency(self) -> Adjacency:
        """What may change."""
        return self.rows[0].adjacency

    @property
    def is_partial(self) -> bool:
        """Whether less than a record may change: such a figure says little of a whole run."""
        return self.adjacency in _PARTIAL

    @property
    def adversaries(self) -> tuple[Adversary, Adversary]:
        """Those with the fewest and the most parties."""
        found = sorted((row.adversary for row in self.rows), key=lambda adversary: adversary.parties or 0)
        return found[0], found[-1]

    @property
    def proven(self) -> tuple[float, float]:
        """The smallest and the largest proven epsilon of any client."""
        return _ends(row.proven for row in self.rows)

    @property
    def best_guess(self) -> float:
        """The largest share of right guesses about any client, by what is proven."""
        return max(row.best_guess for row in self.rows)

    @property
    def claimed(self) -> tuple[float, float] | None:
        """The smallest and the largest claimed epsilon; none where nothing is claimed."""
        claims = [row.claimed.epsilon for row in self.rows if row.claimed is not None]
        return _ends(claims) if claims else None

    @property
    def deltas(self) -> tuple[float, ...]:
        """The deltas at which the proven epsilons hold."""
        return tuple(sorted({row.delta for row in self.rows}))

    @property
    def claimed_deltas(self) -> tuple[float, ...]:
        """The deltas of the claims."""
        return tuple(sorted({row.claimed.delta for row in self.rows if row.claimed is not None}))

    @property
    def audited(self) -> AuditBound | None:
        """The largest lower bound that an experiment found."""
        found = [row.audited for row in self.rows if row.audited is not None]
        return max(found, key=lambda bound: bound.epsilon) if found else None

    @property
    def verdicts(self) -> dict[str, int]:
        """Verdicts on the claims, with the number of clients each is about."""
        found: Counter[str] = Counter()
        for row in self.rows:
            found[row.verdict] += row.who.count
        return dict(found)

    @property
    def unproven(self) -> tuple[Row, ...]:
        """Those for whom nothing is proven."""
        return tuple(row for row in self.rows if math.isinf(row.proven))


def tied(rows: Sequence[Row], end: Callable[[Iterable[tuple[float, float]]], tuple[float, float]]) -> tuple[Row, ...]:
    """The rows with the least (`min`) or the largest (`max`) proven epsilon."""
    losses = [(row.proven, row.pure) for row in rows]
    extreme = end(losses)
    return tuple(row for row, loss in zip(rows, losses, strict=True) if loss == extreme)


def views(rows: Iterable[Row]) -> tuple[View, ...]:
    """Rows by kind of adversary and by adjacency, in the order in which these first occur."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault((row.adversary.kind, row.adjacency), []).append(row)
    return tuple(View(tuple(own)) for own in found.values())


def covering(found: Sequence[View]) -> tuple[View, ...]:
    """For each onlooker and change, the view that leaves out nobody who released something; none where there is none.

    Of several sums or shufflers, the strongest that every client is in; if there is no such one, all of them together.
    """
    everyone = {row.who for view in found for row in view.rows}
    together = views(row for view in found for row in view.rows)
    apart = [[view for view in found if view.key == whole.key] for whole in together]
    full = (
        [view for view in [*sorted(own, key=_largest), whole] if {row.who for row in view.rows} == everyone]
        for own, whole in zip(apart, together, strict=True)
    )
    return tuple(fitting[0] for fitting in full if fitting)


def leading(found: Sequence[View], planned: PlannedFor | None = None) -> View:
    """The view that a whole run is judged by: the one that it was planned for.

    Without a plan, or where nothing speaks of it, the strongest about a client, or about a record if there is none;
    where nothing is proven about either, the first. A figure for one value of one upload never leads, even if planned,
    nor one that leaves out clients: where the planned one does, the worst that does not leads.
    """
    whole = [view for view in found if not view.is_partial]
    full = [view for view in covering(found) if not view.is_partial]
    if not full:  # in older files alone
        return max(whole or found, key=_largest)
    if planned is not None and any(map(planned.fits, whole)):
        return next(filter(planned.fits, full), None) or max(full, key=_largest)
    proven = [view for view in full if not view.unproven]
    return min(proven, key=lambda view: (view.adjacency is not Adjacency.CLIENT, _largest(view)), default=full[0])


def _largest(view: View) -> float:
    return view.proven[1]


@dataclass(frozen=True)
class PlannedFor:
    """What a run's budget is about: what may change, and who is looking."""

    adjacency: Adjacency
    onlooker: str  #: the kind of adversary

    def fits(self, view: View) -> bool:
        """Whether a view is about the same."""
        return view.key == (self.onlooker, str(self.adjacency))


@dataclass(frozen=True)
class Statement:
    """The figures of a run; made with `Statement.of` or read with `Statement.from_json`."""

    rows: tuple[Row, ...]
    delta: float
    title: str = "Privacy statement"
    silent: ClientSet | None = None  #: those who released nothing, where there are such
    caveats: tuple[str, ...] = ()  #: what the figures leave out: the first that is said
    simulated: bool = False  #: whether the run's noise follows from a seed
    planned: PlannedFor | None = None  #: what the clients' budgets are about; None where there are none

    @classmethod
    def of(cls, releases: Iterable[Release], *, delta: float = 1e-5, title: str = "Privacy statement") -> Statement:
        """State what all releases of one client protect; what is derived must name others of these."""
        made = tuple(releases)
        known = {release.id for release in made}
        for release in made:
            if isinstance(release.composition, Derived) and (missing := set(release.composition.releases) - known):
                raise UnsupportedLoss(
                    f"release {release.id!r} is derived from {', '.join(sorted(missing))}, which this statement does "
                    "not contain; add what it was computed from"
                )
        own = [(release, 1) for release in made if not isinstance(release.composition, Derived)]
        return cls.of_groups([(ClientSet(), own)], delta=delta, title=title)

    @classmethod
    def of_groups(
        cls, groups: Iterable[tuple[ClientSet, Counted]], *, delta: float = 1e-5, title: str = "Privacy statement"
    ) -> Statement:
        """State what groups of clients released, each thing with how often; nothing derived is among it.

        The statement is a vector: every group has rows of its own, and no figure is averaged.
        """
        known = list(groups)
        if len(known) > 1 and not all(who.names for who, _ in known):
            raise InvalidInput("several groups of clients need names that tell them apart: give each of them one")
        rows = _rows([(who, own) for who, own in known if own], delta)
        silent = [who for who, own in known if not own]
        return cls(tuple(sorted(rows, key=_reading_order)), delta, title, _together(silent) if silent else None)

    @property
    def views(self) -> tuple[View, ...]:
        """The rows by kind of adversary and by adjacency; several sums or shufflers of one client stay apart."""
        found: list[View] = []
        for view in views(self.rows):
            if len({row.who for row in view.rows}) == len(view.rows):
                found.append(view)
            else:
                crowds = dict.fromkeys(row.adversary for row in view.rows)
                found += [View(tuple(row for row in view.rows if row.adversary == crowd)) for crowd in crowds]
        return tuple(found)

    @property
    def lead(self) -> View:
        """The view with the run's own figure; there is none where nothing was released."""
        return leading(self.views, self.planned)

    def to_json(self) -> dict[str, object]:
        """All figures of all clients, unrounded, ready for `json.dumps`; infinity is the text "infinity"."""
        packed: dict[str, object] = {
            "version": _VERSION,
            "title": self.title,
            "delta": self.delta,
            "rows": [row.to_json() for row in self.rows],
            "silent": self.silent and self.silent.to_json(),
            "caveats": list(self.caveats),
            "simulated": self.simulated,
            "planned": self.planned and {"adjacency": str(self.planned.adjacency), "onlooker": self.planned.onlooker},
        }
        json.dumps(packed, allow_nan=False)
        return packed

    @classmethod
    def from_json(cls, packed: Mapping[str, Any]) -> Statement:
        """The statement that `to_json` wrote; what older versions wrote opens too."""
        try:
            silent, planned = packed.get("silent"), packed.get("planned")
            told = any(sentence.startswith(_SIMULATED) for sentence in packed.get("sentences", ()))
            rows = tuple(map(Row.from_json, packed["rows"]))
            return cls(
                rows if packed.get("version", 1) >= _VERSION else _without_false_sums(rows),
                float(packed["delta"]),
                str(packed["title"]),
                None if silent is None else ClientSet.from_json(silent),
                tuple(packed.get("caveats", ())),
                bool(packed.get("simulated", told)),
                planned and PlannedFor(as_adjacency(planned["adjacency"]), str(planned["onlooker"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"statement.json is damaged or of another version: {error!r}") from None


def _without_false_sums(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of an older version; what it said of noise shared in a sum holds of the report alone (`Release`)."""
    alone = {(row.adjacency, row.who): row for row in rows if row.adversary == SERVER}

    def sound(row: Row) -> Row:
        counted = {name for name, _ in row.losses} == {RandomizedBit.__name__}
        if row.adversary.kind != "summed" or counted or math.isinf(row.proven):
            return row
        if (single := alone.get((row.adjacency, row.who))) is None:
            why = (NO_MODULUS.why,)
            return replace(row, proven=math.inf, pure=math.inf, basis=("none",), unproven=why, supported=False)
        return replace(single, adversary=row.adversary, audited=row.audited)

    return tuple(map(sound, rows))


# --- rows -----------------------------------------------------------------------------------------------------------


def _together(clients: Sequence[ClientSet]) -> ClientSet:
    names = tuple(name for who in clients for name in who.names)
    return ClientSet(names, sum(who.count for who in clients), ", ".join(who.members for who in clients if who.members))


def _rows(groups: Sequence[tuple[ClientSet, Counted]], delta: float) -> list[Row]:
    """Every group has a row for all that any group says of the server and of model readers.

    Behind a shuffler or a secure sum are only those who say so: the others' reports do not pass through it. Where
    nothing is said of every group, or only of less than a record, a row says that nothing is proven of all it sends.
    """
    own = [_views(releases) for _, releases in groups]
    common = [view for found in own for view in found if view[0].parties is None]
    kinds = [{(adversary.kind, adjacency) for adversary, adjacency in [*found, *common]} for found in own]
    if kinds and all(adjacency in _PARTIAL for _, adjacency in set.intersection(*kinds)):
        common.append((SERVER, Adjacency.CLIENT))
    return [
        _row(who, releases, *view, delta)
        for (who, releases), found in zip(groups, own, strict=True)
        for view in dict.fromkeys([*found, *common])
    ]


def _views(releases: Counted) -> list[tuple[Adversary, Adjacency]]:
    """What these releases say something about; a claim that none of it is about gets a place of its own."""
    views = dict.fromkeys((g.adversary, g.adjacency) for release, _ in releases for g in release.guarantees)
    claims = dict.fromkeys(release.claimed for release, _ in releases)
    for claim in claims:
        if claim is not None and not any(_speaks_of(claim, *view) for view in views):
            views[claim.adversary, claim.adjacency] = None
    return list(views)


def _row(who: ClientSet, releases: Counted, adversary: Adversary, adjacency: Adjacency, delta: float) -> Row:
    chosen = [(_best(r.what, r.guarantees, adversary, adjacency, delta), times) for r, times in releases]
    proof = _Proof.of(chosen, adjacency)
    claim, claimed = _claim(releases, adversary, adjacency)
    whole = claim is None or all(claimed)
    covered = [best for best, fits in zip(chosen, claimed, strict=True) if fits]
    exact = None if claim is None else (proof if whole else _Proof.of(covered, adjacency)).epsilon(claim.delta)
    return Row(
        adversary,
        adjacency,
        delta,
        proven=proof.epsilon(delta),
        pure=proof.epsilon(0.0),
        basis=_bases(chosen, adjacency),
        unproven=tuple(dict.fromkeys(why for part in proof.parts for why in part.unproven)),
        claimed=claim,
        supported=claim is not None and exact is not None and exact <= claim.epsilon * (1 + 1e-9),
        proven_as_claimed=exact,
        covered=() if whole else _named_parts(releases, claimed),
        unclaimed=() if whole else _named_parts(releases, [not fits for fits in claimed]),
        who=who,
        reached=proof.reached(delta) if adversary.kind == "shuffled" else None,
        losses=_losses(chosen, adjacency),
    )


def _bases(chosen: Sequence[tuple[Guarantee, int]], adjacency: Adjacency) -> tuple[str, ...]:
    """Why it holds, and for how many releases."""
    counts = _times(((guarantee.basis, times) for guarantee, times in chosen), adjacency)
    return tuple(basis if times == 1 or basis == "none" else f"{times:,} x {basis}" for basis, times in counts)


def _losses(chosen: Sequence[tuple[Guarantee, int]], adjacency: Adjacency) -> tuple[tuple[str, int], ...]:
    """The types of loss, and how many releases have each."""
    return _times(((_noise_of(guarantee.loss), times) for guarantee, times in chosen), adjacency)


def _noise_of(loss: Loss) -> str:
    """The type of a loss; one sum over a sample of everything is a Gaussian release like any other."""
    whole = isinstance(loss, PoissonGaussian) and loss.q == 1 and loss.steps == 1
    return "Gaussian" if whole else kind(loss)


def _times(found: Iterable[tuple[str, int]], adjacency: Adjacency) -> tuple[tuple[str, int], ...]:
    """Sums by name; one value of one upload is in a single release."""
    counts: Counter[str] = Counter()
    for name, times in found:
        counts[name] += times
    return tuple((name, 1 if adjacency is Adjacency.COORDINATE else times) for name, times in counts.items())


@lru_cache(maxsize=1024)
def _epsilon(composed: Composed, delta: float) -> float:
    """Computed once, however many clients and rounds share it."""
    return composed.epsilon(delta)


@lru_cache(maxsize=1024)
def _best(
    what: str, guarantees: tuple[Guarantee, ...], adversary: Adversary, adjacency: Adjacency, delta: float
) -> Guarantee:
    """The strongest of a release's guarantees for this adversary and adjacency; of equals, the most specific."""
    usable = [g for g in guarantees if _seen_through(g.adversary, adversary) and implies(g.adjacency, adjacency)]
    if not usable:
        why = f"{what} has no guarantee (adjacency {adjacency}, against {adversary})"
        return Guarantee(adversary, adjacency, Infinite(why), "none")
    if len(usable) == 1:
        return usable[0]

    def strength(g: Guarantee) -> tuple[float, bool, bool]:
        return _epsilon(_composed([(g, 1)]), delta), g.adversary != adversary, g.adjacency != adjacency

    return min(usable, key=strength)


@dataclass(frozen=True)
class _Proof:
    """Parts of which the worst counts, and how many equal bits were shuffled among how many clients, if they were."""

    parts: tuple[Composed, ...]
    shuffled: tuple[float, int, int] | None = None  #: (epsilon of a bit, clients, bits)
    tau: float = 0.0  #: how likely it is that they were not

    @classmethod
    def of(cls, chosen: Sequence[tuple[Guarantee, int]], adjacency: Adjacency) -> _Proof:
        """Everything adds up, save that one value of one upload occurs in a single release."""
        groups = [[(g, 1)] for g, _ in chosen] if adjacency is Adjacency.COORDINATE else [list(chosen)]
        parts = dict.fromkeys(_composed(group) for group in groups)
        shuffled = _shuffled_bits(chosen, max(groups, key=_bit_count))
        return cls(tuple(parts), shuffled, max(map(_bit_tau, groups)))

    def epsilon(self, delta: float) -> float:
        plain = max(_epsilon(part, delta) for part in self.parts)
        interval = self._behind_shuffler(delta)
        return plain if interval is None else min(plain, interval.upper)

    def reached(self, delta: float) -> float | None:
        interval = self._behind_shuffler(delta)
        return None if interval is None else interval.lower

    def _behind_shuffler(self, delta: float) -> Interval | None:
        left = delta - self.tau
        if self.shuffled is None or left < SMALLEST_DELTA:
            return None
        each, clients, bits = self.shuffled
        return shuffled_bits(each, clients, left, bits)


def _composed(group: Sequence[tuple[Guarantee, int]]) -> Composed:
    """All of a group's losses; sampled ones are about records added or removed only if all of them are."""
    sampled = {g.adjacency for g, _ in group if isinstance(g.loss, PoissonGaussian)}
    adjacency = Adjacency.RECORD_ADD_REMOVE if sampled == {Adjacency.RECORD_ADD_REMOVE} else Adjacency.CLIENT
    return compose((g.loss for g, times in group for _ in range(times)), adjacency=adjacency)


def _shuffled_bits(
    chosen: Sequence[tuple[Guarantee, int]], largest: Sequence[tuple[Guarantee, int]]
) -> tuple[float, int, int] | None:
    """Amplification applies where every release is of equal bits that pass through one and the same shuffler or sum.

    Of single bits that are mixed, nothing but the number of ones is seen, and that is what a sum of them is.
    """
    adversaries = {g.adversary for g, _ in chosen}
    thresholds = {g.loss.t_min if isinstance(g.loss, RandomizedBit) else None for g, _ in chosen}
    (adversary, *others), (t_min, *mixed) = adversaries, thresholds
    if others or mixed or t_min is None or adversary.parties is None:
        return None
    return bit_epsilon(t_min), adversary.parties, _bit_count(largest)


def _bit_count(group: Sequence[tuple[Guarantee, int]]) -> int:
    return sum(g.loss.count * times for g, times in group if isinstance(g.loss, RandomizedBit))


def _bit_tau(group: Sequence[tuple[Guarantee, int]]) -> float:
    taus = math.fsum(g.loss.tau * times for g, times in group if isinstance(g.loss, RandomizedBit))
    return math.nextafter(taus, math.inf) if taus else 0.0


def _seen_through(given: Adversary, wanted: Adversary) -> bool:
    """What holds against the server holds against all who see less; a model reader sees least."""
    return given in (SERVER, wanted) or wanted.kind == "model reader"


def _claim(releases: Counted, adversary: Adversary, adjacency: Adjacency) -> tuple[Claim | None, list[bool]]:
    """The claims about this adversary and adjacency, put together as their papers do, and which releases have one.

    They add up, but one for a whole schedule is made once, and for one value of one upload the largest counts.
    """
    claimed = [r.claimed is not None and _speaks_of(r.claimed, adversary, adjacency) for r, _ in releases]
    fitting = [(r.claimed, n) for (r, n), fits in zip(releases, claimed, strict=True) if r.claimed is not None and fits]
    if not fitting:
        return None, claimed
    claim = _joined(fitting, adversary, adjacency)
    if not all(claimed) and claim.epsilon == claim.delta == 0:
        return None, claimed  # that a part costs nothing says nothing of the rest, and "claimed 0" would mislead
    return claim, claimed


def _joined(fitting: Sequence[tuple[Claim, int]], adversary: Adversary, adjacency: Adjacency) -> Claim:
    once = dict.fromkeys(claim for claim, _ in fitting if claim.covers == "schedule")
    made = [claim for claim, times in fitting if claim.covers == "release" for _ in range(times)] + list(once)
    formula = "; ".join(dict.fromkeys(claim.formula for claim in made))
    about = made[0].adjacency if len({claim.adjacency for claim in made}) == 1 else adjacency
    if adjacency is Adjacency.COORDINATE:
        return Claim(max(c.epsilon for c in made), max(c.delta for c in made), formula, about, adversary)
    total, delta = math.fsum(c.epsilon for c in made), math.fsum(c.delta for c in made)
    return Claim(total, min(delta, 1 - 1e-16), formula, about, adversary)


def _named_parts(releases: Counted, chosen: Sequence[bool]) -> tuple[str, ...]:
    """These of the releases by name; where others of that name are not among them, with how many are."""
    every: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for (release, times), is_chosen in zip(releases, chosen, strict=True):
        every[release.what] += times
        own[release.what] += times * is_chosen
    return tuple(what if n == every[what] else f"{what} ({n:,} of {every[what]:,})" for what, n in own.items() if n)


def _speaks_of(claim: Claim, adversary: Adversary, adjacency: Adjacency) -> bool:
    """Whether a claim is one about this change, seen by this kind of onlooker.

    Changing a record or its label may change all that a client sends, so a claim about the client is about them too.
    One value of one upload is another thing: a figure for whole uploads would look proven beside it, and mean nothing.
    """
    if claim.adversary.kind != adversary.kind or adjacency is Adjacency.COORDINATE is not claim.adjacency:
        return False
    return implies(claim.adjacency, adjacency)


def _reading_order(row: Row) -> tuple[int, int, int]:
    return _ADVERSARIES.index(row.adversary.kind), row.adversary.parties or 0, _ADJACENCIES.index(row.adjacency)


# --- numbers --------------------------------------------------------------------------------------------------------


def _ends(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return min(found), max(found)


def _number(value: float) -> float | str:
    return "infinity" if math.isinf(value) else value
