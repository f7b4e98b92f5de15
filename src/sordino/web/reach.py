"""How far one report reaches: whether a federation that anybody may join holds what a single visitor can say.

A hostile visitor sends any legal report. Its worth is the L2 length of the longest one, times its weight, in units of
an honest report: the length of the noise, or of the first model where there is no noise. Two points are worth 1.
Laplace and Gaussian tables end 10 to 20 deviations away, and a norm or a clamp can be anything. Ranges that follow the
mean grow with a lie in every round.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from sordino.errors import InvalidInput
from sordino.learning.private_sgd import PrivateTraining
from sordino.methods.robust import Agreement, Median, NormFilter, TrimmedMean
from sordino.methods.upload import Float64s
from sordino.recipe import Recipe
from sordino.runs.federation import Federation
from sordino.runs.preflight import PrivateSilo

WORTH = 3.0  #: honest reports that the worst one may be worth
FEWEST = 3  #: reports below which a rule cannot tell the hostile one from the others
INVITE = "--invite, which admits only whom you give a link"
ENOUGH = 20  #: reports of a round, of which one that adapts to method and rule cost about a point


def worth(parts: Federation, reports: int) -> float:
    """How many honest reports the worst legal one is worth in the last round, if so many report in each."""
    return _worth_at_first(parts) * _growth(parts.recipe, reports)


def _worth_at_first(parts: Federation) -> float:
    upload, method = parts.upload, parts.method
    weights = method.tally(method.plan(method.init(), "f")).weights
    worst = max(float(weights[c]) * upload.farthest(int(c)) for c in np.unique(upload.class_of))
    honest = float(np.median((weights * _lengths(parts))[upload.class_of]))
    samples = upload.most_samples * parts.clients / sum(parts.parts.sizes) if upload.samples else 1.0
    return worst / honest * samples if honest > 0 else math.inf


def _growth(recipe: Recipe, reports: int) -> float:
    """By how much one client can widen a range that follows the mean, until the last round."""
    given: Any = recipe.method
    follows = getattr(getattr(given, "range", None), "kind", "") == "adaptive"
    return (1 + 1 / reports) ** (recipe.rounds.count - 1) if follows else 1.0


def _lengths(parts: Federation) -> Float64s:
    """About how long an honest report of each class is: its noise; without noise, the first model, or 1."""
    upload, training = parts.upload, getattr(parts.method, "training", None)
    if isinstance(training, PrivateTraining):
        square = PrivateSilo.of(training).noise(upload.values)  # None: the optimiser scales the noise
        squares = np.full(len(upload.strengths), square or 0.0)
    else:
        squares = upload.values * upload.variances()
    plain = max(1.0, float(np.linalg.norm(parts.method.init().parameters)))
    return np.where(squares > 0, np.sqrt(squares), plain)


def check_reach(parts: Federation) -> None:
    """Refuse an open federation in which the worst legal report is worth many honest ones; remedies are named."""
    recipe, quorum = parts.recipe, max(1, parts.recipe.rounds.quorum)
    if recipe.method.name == "silo-dp" and not isinstance(recipe.method.aggregation, Agreement):
        raise InvalidInput(
            f"{recipe.name} is open to everybody, and reports of silo-dp are nearly all noise: in their "
            f"{recipe.method.aggregation.kind} one lie of the same length outweighs what all others learn. Take one of "
            f"these: --set method.aggregation.kind=agreement; {INVITE} (docs/malicious.md)"
        )
    if _rule_holds(recipe.method, quorum):
        return
    found = worth(parts, quorum)
    if found > WORTH:
        raise InvalidInput(
            f"{recipe.name} is open to everybody, and one legal report is worth {_rounded(found)} honest ones in the "
            f"mean (at most {WORTH:g} are accepted): one visitor could destroy the model. Take one of these: "
            f"{'; '.join(_remedies(parts))} (docs/malicious.md)"
        )


def _rule_holds(given: Any, quorum: int) -> bool:
    """Whether a rule keeps single values near those of honest reports, however large the worst ones are."""
    match getattr(given, "aggregation", None):
        case TrimmedMean() | Median():
            return quorum >= FEWEST
        case NormFilter(factor=factor):
            return quorum >= FEWEST and factor <= WORTH
    return False


def _remedies(parts: Federation) -> list[str]:
    """Settings with which the federation is accepted; bits take neither a norm nor a rule."""
    given: Any = parts.recipe.method
    at_first, found = _worth_at_first(parts), []
    enough = (k for k in range(1, parts.clients + 1) if at_first * _growth(parts.recipe, k) <= WORTH)
    if at_first <= WORTH:
        found += [f"--set rounds.quorum={k} (or more)" for k in itertools.islice(enough, 1)]
    elif any(mechanism.name in ("two-point", "sign") for mechanism in parts.upload.mechanisms):
        found += ["one epsilon for all (clients.epsilon), or --set method.aggregation.kind=inverse-variance"]
    else:
        if given.name == "silo-dp" or getattr(given, "upload", "") == "update":
            found += ["--set method.norm=LENGTH, LENGTH being about that of an honest report"]
        if given.name != "silo-dp":
            places = "" if parts.clients >= FEWEST else f"--set split.clients={FEWEST} "
            found += [f"{places}--set method.aggregation.kind=trimmed-mean --set rounds.quorum={FEWEST} (or more)"]
    return [*found, INVITE]


def notice(parts: Federation) -> str:
    """What the operator of an open federation with few reports in a round should know; empty where there are many."""
    quorum = max(1, parts.recipe.rounds.quorum)
    if quorum >= ENOUGH:
        return ""
    return (
        f"NOTICE: {parts.recipe.name} is open to everybody, and a round may count with {quorum} of its reports "
        "(rounds.quorum). One hostile visitor of so few can still cost accuracy: with 5 reports 2 to 3 points where "
        f"reports are single bits and about 20 where they are noisy gradients, with {ENOUGH} about a point "
        "(docs/malicious.md). --invite admits only whom you give a link."
    )


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


__all__ = ["ENOUGH", "WORTH", "check_reach", "notice", "worth"]
