"""Everything that `sordino audit` knows by name: mechanisms, private training, keys, channels."""

from __future__ import annotations

from collections.abc import Callable

from sordino.audits import channels, mechanisms, training
from sordino.audits.inspection import Subject
from sordino.errors import InvalidInput
from sordino.mechanisms import MECHANISMS, Mechanism
from sordino.mechanisms.cases import Case

PROGRAMS: dict[str, Callable[[], list[Subject]]] = {
    "dp-sgd": training.dp_sgd,
    "keys": mechanisms.fresh_keys,
    "secure-sum": channels.secure_sum,
    "shuffler": channels.shuffler,
}  #: what has no epsilon of its own
AUDITED = tuple(mechanism for mechanism in MECHANISMS if mechanism.randomizes)
NAMES = (*(mechanism.name for mechanism in AUDITED), *PROGRAMS)


def cases(mechanism: type[Mechanism], epsilon: float = 1.0) -> list[Case]:
    """All cases of one mechanism at this strength."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0.01 <= epsilon <= 20:
        raise InvalidInput(f"an audit's epsilon lies between 0.01 and 20, got {epsilon!r}")
    return list(mechanism.audit_cases(float(epsilon)))
