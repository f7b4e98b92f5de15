"""Whether a federation that anybody may join bounds every report: one visitor must not be able to destroy the model."""

from __future__ import annotations

from typing import Any

from sordino.errors import InvalidInput
from sordino.methods.robust import RobustSpec
from sordino.runs.federation import Federation

FEWEST = 3  #: reports of a round, below which no rule can tell the hostile one from the others
ENOUGH = 4  #: reports of a round, with which the rules hold one hostile report well

_INVITE = "--invite, which admits only whom you give a link"
_LENGTH = "LENGTH being about that of an honest report (`sordino run RECIPE --set method.norm=1` prints it)"


def check_bounds(parts: Federation) -> None:
    """Refuse an open federation in which a report may hold anything; what would bound it is named.

    A report is bounded by the mechanism's output set, by the announced norm or clamp, or by a robust rule. A rule needs
    enough reports in every round. It does not bound noisy gradients by itself, as a hostile report hides in the noise.
    """
    _check_quorum(parts)
    upload, method = parts.upload, parts.recipe.method
    if all(mechanism.bounded for mechanism in upload.mechanisms):
        return
    if upload.norm is not None or upload.clamp is not None:
        return
    rule = getattr(method, "aggregation", None)
    if method.name != "silo-dp" and isinstance(rule, RobustSpec) and not rule.remembers:
        return
    raise InvalidInput(
        f"{parts.recipe.name} is open to everybody, and nothing bounds a report of {method.name} without a mechanism: "
        f"one visitor could destroy the model. Take one of these: {'; '.join(_remedies(parts))} (docs/malicious.md)"
    )


def _check_quorum(parts: Federation) -> None:
    """Refuse a robust rule whose rounds may have too few reports for it."""
    recipe = parts.recipe
    aggregation = getattr(recipe.method, "aggregation", None)
    if isinstance(aggregation, RobustSpec) and recipe.rounds.quorum < FEWEST:
        raise InvalidInput(
            f"{recipe.name} is open to everybody, and a round may count with {recipe.rounds.quorum} of its reports "
            f"(rounds.quorum): with fewer than {FEWEST} the rule {aggregation.kind} cannot tell a hostile report from "
            f"the others, and one visitor could destroy the model. Take one of these: {_quorum(parts)}; {_INVITE} "
            "(docs/malicious.md)"
        )


def _remedies(parts: Federation) -> list[str]:
    method: Any = parts.recipe.method
    if method.name == "silo-dp":
        rule = f"--set method.norm=LENGTH --set method.aggregation.kind=agreement {_quorum(parts)}"
        return [f"{rule}, {_LENGTH}", _INVITE]
    sends_updates = getattr(method, "upload", "") == "update"
    rule = f"--set method.aggregation.kind=trimmed-mean {_quorum(parts)}"
    return [*([f"--set method.norm=LENGTH, {_LENGTH}"] if sends_updates else []), rule, _INVITE]


def _quorum(parts: Federation) -> str:
    """The options with which rounds have enough reports for a rule."""
    places = "" if parts.clients >= ENOUGH else f"--set split.clients={ENOUGH + 1} "
    return f"{places}--set rounds.quorum={ENOUGH}"


__all__ = ["ENOUGH", "FEWEST", "check_bounds"]
