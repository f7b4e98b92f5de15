"""Everything that `sordino audit` knows by name: mechanisms, private training, keys, channels."""

from __future__ import annotations

from collections.abc import Callable

from sordino.audits import channels, evaluation, one_record, training
from sordino.audits.inspection import Subject
from sordino.audits.mechanisms import fresh_keys
from sordino.errors import InvalidInput
from sordino.mechanisms import Mechanism, mechanisms
from sordino.mechanisms.cases import Case

PROGRAMS: dict[str, Callable[[], list[Subject]]] = {
    "account": one_record.account,
    "dp-sgd": training.dp_sgd,
    "keys": fresh_keys,
    "one-record": one_record.one_record,
    "private-evaluation": evaluation.private_evaluation,
    "secure-sum": channels.secure_sum,
    "shuffler": channels.shuffler,
}  #: what has no epsilon of its own


def audited() -> dict[str, type[Mechanism]]:
    """The mechanisms that randomise, by name."""
    return {name: mechanism for name, mechanism in mechanisms().items() if mechanism.randomizes}


def cases(mechanism: type[Mechanism], epsilon: float = 1.0) -> list[Case]:
    """All cases of one mechanism at this strength."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0.01 <= epsilon <= 20:
        raise InvalidInput(f"an audit's epsilon lies between 0.01 and 20, got {epsilon!r}")
    return list(mechanism.audit_cases(float(epsilon)))
