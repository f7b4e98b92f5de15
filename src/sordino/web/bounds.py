"""Whether a federation that anybody may join bounds every report: one visitor must not be able to destroy the model."""

from __future__ import annotations

from typing import Any

from sordino.errors import InvalidInput
from sordino.methods.robust import RobustSpec
from sordino.wiring import Federation

FEWEST = 3  #: reports of a round, below which no rule can tell the hostile one from the others


def check_bounds(parts: Federation) -> None:
    """Refuse an open federation in which a report may hold anything; what would bound it is named.

    A report is bounded by the mechanism's output set, by the announced norm or clamp, or by a robust rule over enough
    reports. The rule "agreement" looks at directions only, so it needs a norm beside it.
    """
    recipe, upload = parts.recipe, parts.upload
    given: Any = recipe.method
    if all(mechanism.name != "none" for mechanism in upload.mechanisms):
        return
    if upload.norm is not None or upload.clamp is not None:
        return
    rule = isinstance(given.aggregation, RobustSpec) and not given.aggregation.remembers
    if rule and recipe.rounds.quorum >= FEWEST:
        return
    scaled = given.sends_updates and hasattr(given, "norm")
    remedies = [
        *(["--set method.norm=LENGTH, a little above the length of an honest report"] if scaled else []),
        f"--set method.aggregation.kind=trimmed-mean --set rounds.quorum={FEWEST} (or more)",
        "--invite, which admits only whom you give a link",
    ]
    raise InvalidInput(
        f"{recipe.name} is open to everybody, and nothing bounds a report of {given.name} without a mechanism: one "
        f"visitor could destroy the model. Take one of these: {'; '.join(remedies)} (docs/malicious.md)"
    )


__all__ = ["FEWEST", "check_bounds"]
