"""What to expect of a federation before its first round, in words: the sentences around a `Preflight`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from sordino.privacy.guarantee import Claim, Guarantee
from sordino.privacy.history import ranges
from sordino.privacy.ledger import terms
from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION
from sordino.report.words import capital, count, counted, figure, span, upper

if TYPE_CHECKING:
    from sordino.runs.preflight import BatchNorm, EvaluationOutlook, Outlook, Preflight, ReportLoss
    from sordino.runs.senders import RangeFit

#: learnt from recorded runs (benchmarks/noise.py): from which level on they kept less than each share
_BORDERS: list[float] = json.loads((files("sordino.report") / "noise_levels.json").read_text(encoding="utf-8"))[
    "borders"
]
#: (noise / update / sqrt(T) from which on, what to expect)
LEVELS = tuple(
    zip(
        (0.0, *_BORDERS),
        (
            "training should barely notice it",
            "expect a somewhat lower accuracy",
            "expect a clearly lower accuracy",
            "expect little more than chance",
        ),
        strict=True,
    )
)
OWN_LIMITS = "Budgets are those of the recipe: each owner's own limit (client.toml) decides, and may be smaller."
ONE_BY_ONE = (
    "Clients are computed one after another, which is slower: PyTorch cannot compute this model for many at once, or "
    "it draws random numbers."
)
CLIPPED_WEIGHTS = (
    "A class weight above 1 lengthens gradients that clipping shortens again, and may change nothing: scale weights "
    "so that the largest is 1, or raise method.clip."
)
WIDE = 3.0  #: a range this many times as wide as it need be is pointed out
MOST_SENTENCES = 4  #: groups of clients told apart in words; beyond, they are summed up


def announced(size: int, held: float) -> str:
    """That the announced size is far from what clients hold, which a simulation can see."""
    return (
        f"Steps are scaled for {size:,} records a client (method.announced_size), and the clients of this simulation "
        f"hold {held:,.0f} on average: steps are too {'short' if size > held else 'long'}, so correct it."
    )


def verdict(ahead: Preflight) -> str | None:
    """What to expect of training, by the level as it is printed; None where updates or noise are not known."""
    level = ahead.level
    return None if level is None else next(words for least, words in reversed(LEVELS) if printed(level) >= least)


def printed(level: float) -> float:
    """A level with the two digits that people see, and that the verdict goes by."""
    return float(f"{level:.2g}")


def sentences(ahead: Preflight | None) -> tuple[str, ...]:
    """Everything in plain words, the most important first; `ahead` is None where clients send nothing."""
    if ahead is None:
        return ("Clients send nothing.",)
    said = _of_preparation(ahead) if ahead.facts.prepared else _of_rounds(ahead)
    return tuple(f"{capital(words)}." for words in said)


def budgets(ahead: Preflight | None) -> tuple[str, ...]:
    """How far budgets go, where there are any."""
    return () if ahead is None else tuple(f"{capital(words)}." for words in _budgets(ahead))


def _of_rounds(ahead: Preflight) -> Iterable[str]:
    yield from _noise(ahead)
    yield from _budgets(ahead)
    yield from _losses(ahead)
    yield from dict.fromkeys(map(_range, ahead.ranges))
    if ahead.facts.norm is not None:
        yield norm_sentence(ahead.facts.norm, ahead.honest_norm)
    yield _bytes(ahead)
    if ahead.facts.batch_norm is not None:
        yield _batch_norm(ahead.facts.batch_norm)
    if ahead.facts.stops_by_set_aside:
        yield (
            "when to stop is decided by examples that clients set aside: a release of its own, without noise, so that "
            'nothing is proven of the run as a whole (rounds.stop_on = "test" looks at none of them)'
        )
    if left_out := ahead.facts.left_out:
        yield f"{counted(left_out, 'row')} of split.files, held out as test examples, go to no client"


def _of_preparation(ahead: Preflight) -> Iterable[str]:
    yield "clients prepare before the first round, and what they release then is all: later reports are derived from it"
    yield from _losses(ahead)
    for what, why in ahead.facts.unproven:
        yield f"{what}: nothing is proven ({why})"
    for outlook in ahead.outlooks:
        budget = _budget([outlook], ahead.clients)
        yield f"{budget} covers it" if outlook.lasts else f"{budget} does not cover it: they will decline"
    yield _bytes(ahead)


def evaluation(ahead: EvaluationOutlook) -> tuple[str, ...]:
    """What a private evaluation costs, how loud its noise is, and what budgets leave of it."""
    times = "once" if ahead.times == 1 else f"{ahead.times:,} times"
    each = "" if ahead.times == 1 else f" in all, {upper(ahead.one)} each"
    costs = (
        f"epsilon {upper(ahead.epsilon)} at delta {figure(ahead.delta)}{each}, for one record added or removed, "
        "against the server. It adds to what training costs."
    )
    if math.isinf(ahead.epsilon):
        costs = "epsilon infinite, as nothing is proven of it."
    said = [f"Clients evaluate the model on records that they set aside, {times}: {costs}"]
    noise = f"The noise in their counts is about {count(round(ahead.noise))} records, all clients together"
    if ahead.records is None:
        said.append(f"{noise}: a figure needs many times as many records to be heard.")
    else:
        drowned = ahead.records <= 2 * ahead.noise
        heard = "which drowns every figure" if drowned else f"{100 * ahead.noise / ahead.records:.2g} % of them"
        said.append(f"{noise}, beside {ahead.records:,} that are set aside: {heard}.")
    if ahead.declined:
        said.append(
            "Clients will decline it: their budgets are in terms in which nothing is proven of an evaluation. Set "
            'clients.budget.adjacency = "record-add-remove" and a clients.budget.delta above 0, or leave '
            "evaluation.private out."
        )
    elif ahead.fits is not None and ahead.fits < ahead.rounds:
        said.append(
            f"With evaluations the smallest budget covers {ahead.fits:,} of {ahead.rounds:,} rounds; then clients "
            "decline what does not fit. Raise clients.budget.limit, or lower evaluation.private.target.epsilon or the "
            "epsilon of training."
        )
    return tuple(said)


def rehearsal(failed: int, rehearsed: int) -> tuple[str, ...]:
    """What is to be said of clients that rehearsed a round, some of which failed."""
    if not failed:
        return ()
    return (
        f"The training of {failed} of {rehearsed} clients that rehearsed a round stopped being finite, so that they "
        "would report no change: lower training.optimizer.lr, or look at their data.",
    )


# --- noise ------------------------------------------------------------------------------------------------------------


def _noise(ahead: Preflight) -> Iterable[str]:
    first = " in round 1" if ahead.report_values[0] < ahead.report_values[1] else ""
    who = f"{counted(ahead.asked, 'client')} a round, {counted(ahead.values, 'value')}{first}"
    if ahead.noise is None:
        why = f": {ahead.unknown}" if ahead.unknown else ""
        yield f"{who}: how much noise there will be in an update is not known in advance{why}"
        return
    if ahead.noise == 0:
        yield f"{who}: no noise is added"
        return
    if ahead.level is None:
        lost = "" if ahead.ratio is None else "; an update spread evenly over all values is lost in its grid"
        yield f"{who}: the noise of the average has an L2 norm of {_short(ahead.noise)}{lost}"
        return
    rounds = "in the one round" if ahead.rounds == 1 else f"over all {ahead.rounds:,} rounds"
    yield (
        f"{who}: {rounds} the noise is {printed(ahead.level):,g} times the updates (L2 norms in a round: noise "
        f"{_short(ahead.noise)}, update {_update(ahead)}): {verdict(ahead)}"
    )
    if printed(ahead.level) >= LEVELS[1][0]:
        wanted = math.ceil(ahead.asked * (ahead.level / LEVELS[1][0]) ** 2)
        yield f"noise falls with the root of the number of clients: with {wanted:,} a round, training barely notices it"


def _update(ahead: Preflight) -> str:
    kept, before = ahead.update or 0.0, ahead.update_norm or 0.0
    if math.isclose(kept, before, rel_tol=0.02):
        return _short(kept)
    return f"{_short(before)}, in the reports {_short(kept)}"


# --- budgets ----------------------------------------------------------------------------------------------------------


def _budgets(ahead: Preflight) -> Iterable[str]:
    by_reports: dict[tuple[int, str, float], list[Outlook]] = {}
    for outlook in ahead.outlooks:
        reports = ahead.rounds if outlook.lasts else outlook.reports
        by_reports.setdefault((reports, terms(outlook.budget), outlook.expected), []).append(outlook)
    if len(by_reports) > MOST_SENTENCES:
        yield _budget_summary(ahead)
        return
    for _, alike in sorted(by_reports.items()):
        yield f"{_budget(alike, ahead.clients)} {_lasts(alike, ahead)}"


def _budget(alike: Sequence[Outlook], total: int) -> str:
    clients = tuple(client for outlook in alike for client in outlook.clients)
    limit = span(outlook.budget.limit for outlook in alike)
    return f"the budget of {_who(clients, total)} (epsilon {limit}, {terms(alike[0].budget)})"


def _lasts(alike: Sequence[Outlook], ahead: Preflight) -> str:
    """How far these budgets go."""
    first, rounds = alike[0], counted(ahead.rounds, "round")
    they = "it" if sum(len(outlook.clients) for outlook in alike) == 1 else "they"
    reports = min(outlook.reports for outlook in alike)
    if first.lasts:
        return f"lasts for all {rounds}"
    if reports == 0:
        return f"does not cover a single report: {they} will decline from round 1"
    if first.expected >= ahead.rounds and ahead.uneven:
        covers = f"covers {counted(reports, 'round')} of {ahead.rounds}"
        return f"{covers}; {they} will decline round {reports + 1} and later ones that cost as much"
    if first.expected >= ahead.rounds:
        return f"is spent after round {reports} of {ahead.rounds}; {they} will decline from round {reports + 1}"
    least = "at least " if ahead.uneven else ""
    return (
        f"admits {least}{counted(reports, 'report')}, and {they} will be asked for about {first.expected:.3g} in "
        f"{rounds}: {they} will decline the rest"
    )


def _budget_summary(ahead: Preflight) -> str:
    total = sum(len(outlook.clients) for outlook in ahead.outlooks)
    lasting = sum(len(outlook.clients) for outlook in ahead.outlooks if outlook.lasts)
    reports = [outlook.reports for outlook in ahead.outlooks if not outlook.lasts]
    rounds = counted(ahead.rounds, "round")
    if not reports:
        return f"all {total} budgets last for all {rounds}"
    return (
        f"the budgets of {lasting} of {total} clients last for all {rounds}; the others run out after "
        f"{min(reports)} to {max(reports)} reports each, and these clients then decline"
    )


# --- what reports lose ------------------------------------------------------------------------------------------------


def _losses(ahead: Preflight) -> Iterable[str]:
    for loss in ahead.losses:
        yield _loss(loss, ahead)
    if ahead.kinds > len(ahead.losses):
        yield f"these are the extremes of {ahead.kinds} kinds of clients; all others lie in between"


def _loss(loss: ReportLoss, ahead: Preflight) -> str:
    g, claim = loss.guarantee, loss.claimed
    differing = ", which differ" if loss.differs else ""
    every = f"the one {loss.what}" if ahead.rounds == 1 else f"{loss.what}, {ahead.rounds:,} rounds{differing}"
    who = f"{every}, of {_who(loss.clients, ahead.clients)} ({g.adjacency}, against {g.adversary})"
    claimed = "" if claim is None else f"; {_claimed(claim, g)}"
    if math.isinf(loss.total):
        why = getattr(g.loss, "why", f"at delta {upper(loss.delta)}")
        return f"{who}: nothing is proven ({why}){claimed}"
    worth = ", no meaningful protection" if loss.total > NO_MEANINGFUL_PROTECTION else ""
    return f"{who}: proven epsilon {upper(loss.total)} at delta {upper(loss.delta)}{worth}{claimed}"


def _claimed(claim: Claim, beside: Guarantee) -> str:
    """A claim with what it is about, where that is not what it stands beside."""
    own, other = ((g.adjacency, g.adversary.kind) for g in (claim, beside))
    about = "" if own == other else f" ({claim.adjacency}, against {claim.adversary})"
    covers = "all of them" if claim.covers == "schedule" else "one"
    return f"claimed epsilon {figure(claim.epsilon)} for {covers}{about}, by {claim.formula}"


def _who(clients: Sequence[int], total: int) -> str:
    """all 20 clients; client 3; clients 0-4, 7."""
    if len(clients) == total:
        return "the only client" if total == 1 else f"all {total} clients"
    runs = ranges(clients).split(", ")
    if len(runs) > 6:
        return f"{len(clients)} clients ({', '.join(runs[:3])}, ...)"
    return f"client{'s' if len(clients) > 1 else ''} {', '.join(runs)}"


# --- ranges, norms, bytes ---------------------------------------------------------------------------------------------


def _range(fit: RangeFit) -> str:
    if fit.shape == "sphere":
        size = "" if fit.size is None else f" (here {_short(fit.size)})"
        return f"every update is rescaled to the norm {_short(fit.least)}: its own size{size} is lost"
    assert fit.size is not None
    return _box(fit, fit.size) if fit.shape == "box" else _ball(fit, fit.size)


def _box(fit: RangeFit, largest: float) -> str:
    reach = span((fit.least, fit.most), shown=_short)
    if largest > fit.least:
        where = f"values lie up to {_short(largest)} from the centre of their range, which reaches {reach}"
        return f"{where}: they will be clipped"
    if fit.least > WIDE * largest:
        return (
            f"the range reaches {reach} from its centre, {_times(fit.least / largest)} the largest value "
            f"({_short(largest)}): a narrower one would mean as much less noise"
        )
    return f"the range reaches {reach} from its centre and values {_short(largest)}: it fits"


def _ball(fit: RangeFit, norm: float) -> str:
    radius, size = fit.least, f"{'L2 norm' if fit.shape == 'L2 ball' else 'L1 norm about'} {_short(norm)}"
    if norm > radius:
        return f"updates ({size}) will be shortened to the radius {_short(radius)}"
    if radius > WIDE * norm:
        return (
            f"the radius {_short(radius)} is {_times(radius / norm)} the size of an update ({size}): a smaller one "
            "would mean as much less noise"
        )
    return f"the radius {_short(radius)} holds updates ({size})"


def norm_sentence(norm: float, honest_norm: float | None) -> str:
    """How the announced norm fits honest reports."""
    if honest_norm is None:
        return f"reports are shortened to method.norm = {_short(norm)}; how long honest ones are is not known"
    honest = f"an honest report has an L2 norm of about {_short(honest_norm)}"
    if honest_norm > 1.2 * norm:
        return f"{honest}, and method.norm = {_short(norm)} shortens it: training slows down as much"
    if norm > 1.5 * honest_norm:
        return (
            f"{honest}, and method.norm = {_short(norm)} lets a hostile one be {_times(norm / honest_norm)} as "
            "long: choose it at about the length of honest ones"
        )
    return f"{honest}, and longer ones are shortened to method.norm = {_short(norm)}: it fits"


def _bytes(ahead: Preflight) -> str:
    masked = ", masked for the secure sum (keys and shares come beside it)," if ahead.facts.masked else ""
    values = f"{span(ahead.report_values, shown=count)} value{'' if ahead.report_values[1] == 1 else 's'}"
    return f"a report{masked} has {span(ahead.report_bytes, shown=count)} bytes for {values}"


def _batch_norm(found: BatchNorm) -> str:
    if found.noise is None:
        return (
            "the statistics of batch norm stay with the clients: the common model is scored with those of the test "
            f"examples, {found.examples:,} at a time, which a model in use does not have"
        )
    return (
        f"the statistics of batch norm are released with the noise of all values, {_short(found.noise)} on average: "
        "where that is more than a variance, the variance can fall to 0 and break the model; model.buffers=local keeps "
        "them with the clients"
    )


def _short(number: float) -> str:
    return f"{number:.3g}"


def _times(ratio: float) -> str:
    if math.isinf(ratio):
        return "infinitely many times"
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"
