"""Whether a federation that anybody may join bounds every report: one visitor must not be able to destroy the model.

A hostile visitor sends any legal report. Its worth is the L2 length of the longest one, times its weight, in units of
an honest report: the length of the noise, or of the first model where there is no noise. Two points are worth 1.
Laplace and Gaussian tables end 10 to 20 deviations away, and a norm or a clamp can be anything. Ranges that follow the
mean grow with a lie in every round. A robust rule needs enough reports in every round.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from sordino.errors import InvalidInput
from sordino.learning.private_sgd import PrivateTraining
from sordino.methods.robust import Agreement, Median, NormFilter, RobustSpec, TrimmedMean
from sordino.methods.upload import Float64s
from sordino.recipe import Recipe
from sordino.runs.federation import Federation
from sordino.runs.senders import PrivateSilo

WORTH = 3.0  #: honest reports that the worst one may be worth
FEWEST = 3  #: reports of a round, below which no rule can tell the hostile one from the others
ENOUGH = 4  #: reports of a round, with which the rules hold one hostile report well
MANY = 20  #: reports of a round, of which one that adapts to method and rule costs about a point

_INVITE = "--invite, which admits only whom you give a link"
_NORM = "--set method.norm=LENGTH"
_LENGTH = "LENGTH being about that of an honest report (`sordino run RECIPE --set method.norm=1` prints it)"


def check_bounds(parts: Federation) -> None:
    """Refuse an open federation in which one report could decide the model; remedies are named."""
    recipe = parts.recipe
    method, quorum = recipe.method, max(1, recipe.rounds.quorum)
    rule = method.aggregation
    if isinstance(rule, RobustSpec) and quorum < FEWEST:
        raise _refusal(
            recipe,
            f"a round may count with {quorum} of its reports (rounds.quorum): with fewer than {FEWEST} the rule "
            f"{rule.kind} cannot tell a hostile report from the others",
            [_quorum(parts), _INVITE],
        )
    if method.name == "silo-dp" and not isinstance(rule, Agreement):
        raise _refusal(
            recipe,
            f"reports of silo-dp are nearly all noise: in their {rule.kind} one lie of the same length outweighs what "
            "all others learn",
            [f"{_NORM} --set method.aggregation.kind=agreement {_quorum(parts)}, {_LENGTH}", _INVITE],
        )
    if method.name == "private-head":
        raise _refusal(
            recipe,
            "a sum modulo a power of two may be any: nothing bounds what one report adds to the others'",
            [_INVITE],
        )
    if not _rule_holds(rule) and (found := worth(parts, quorum)) > WORTH:
        raise _refusal(
            recipe,
            f"one legal report is worth {_rounded(found)} honest ones in the mean (at most {WORTH:g} are accepted)",
            _remedies(parts),
        )


def _refusal(recipe: Recipe, why: str, remedies: list[str]) -> InvalidInput:
    return InvalidInput(
        f"{recipe.name} is open to everybody, and {why}: one visitor could destroy the model. Take one of these: "
        f"{'; '.join(remedies)} (docs/malicious.md)"
    )


def notice(parts: Federation) -> str:
    """What the operator of an open federation with few reports in a round should know; empty where there are many."""
    quorum = max(1, parts.recipe.rounds.quorum)
    if quorum >= MANY:
        return ""
    return (
        f"NOTICE: {parts.recipe.name} is open to everybody, and a round may count with {quorum} of its reports "
        "(rounds.quorum). One hostile visitor of so few can still cost accuracy: with 5 reports 2 to 3 points where "
        f"reports are single bits and about 20 where they are noisy gradients, with {MANY} about a point "
        "(docs/malicious.md). --invite admits only whom you give a link."
    )


# --- how far one report reaches ---------------------------------------------------------------------------------------


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
    range_ = getattr(recipe.method, "range", None)
    return (1 + 1 / reports) ** (recipe.rounds.count - 1) if range_ is not None and range_.adapts else 1.0


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


def _rule_holds(rule: object) -> bool:
    """Whether a rule keeps single values near those of honest reports, however large the worst ones are."""
    return isinstance(rule, TrimmedMean | Median) or (isinstance(rule, NormFilter) and rule.factor <= WORTH)


# --- remedies ---------------------------------------------------------------------------------------------------------


def _remedies(parts: Federation) -> list[str]:
    """Settings with which the federation is accepted; bits take neither a norm nor a rule."""
    method = parts.recipe.method
    at_first = _worth_at_first(parts)
    if at_first <= WORTH:
        enough = (k for k in range(1, parts.clients + 1) if at_first * _growth(parts.recipe, k) <= WORTH)
        return [*(f"--set rounds.quorum={k} (or more)" for k in itertools.islice(enough, 1)), _INVITE]
    if any(mechanism.name in ("two-point", "sign") for mechanism in parts.upload.mechanisms):
        return ["one epsilon for all (clients.epsilon), or --set method.aggregation.kind=inverse-variance", _INVITE]
    found = [f"{_NORM}, {_LENGTH}"] if method.name == "silo-dp" or getattr(method, "upload", "") == "update" else []
    if method.name != "silo-dp":
        found += [f"--set method.aggregation.kind=trimmed-mean {_quorum(parts)}"]
    return [*found, _INVITE]


def _quorum(parts: Federation) -> str:
    """The options with which rounds have enough reports for a rule."""
    places = "" if parts.clients >= ENOUGH else f"--set split.clients={ENOUGH + 1} "
    return f"{places}--set rounds.quorum={ENOUGH}"


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


__all__ = ["ENOUGH", "FEWEST", "MANY", "WORTH", "check_bounds", "notice", "worth"]
