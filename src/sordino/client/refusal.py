"""Why a client refuses: a full sentence for its owner, and a short one that says nothing of other federations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from sordino.errors import SordinoError


class Reason(StrEnum):
    """What travels back. No figures: how much of a budget is left tells of other federations and other servers."""

    UNREADABLE = "the message cannot be read"
    NOT_SIGNED = "the coordinator that the owner agreed to did not sign this, for this client and this step"
    NOT_AGREED = "the owner has not agreed to this federation"
    OTHER_TERMS = "the owner agreed to other terms under this name"
    NOT_IN_RECIPE = "this is not what the agreed recipe asks for"
    OUT_OF_ORDER = "this round was answered with another plan, or lies behind one that was answered"
    COMPACTED = "this was answered before, and the client no longer keeps that answer"
    BUDGET = "the owner's budget does not allow it"
    CONSENT = (
        "the owner has not consented to a release without a proof, to claims, or to code or a network of this name"
    )
    OLDER_LEDGER = "this client's ledger is older than its receipt: its owner must look"
    UNAVAILABLE = "the client cannot answer now"
    LIMIT_PARAMETERS = "the model exceeds this client's limits.parameters"
    LIMIT_LAYERS = "the model exceeds this client's limits.layers"
    LIMIT_ROUNDS = "the schedule exceeds this client's limits.rounds"
    LIMIT_SECONDS = "the work of a round exceeds this client's limits.seconds"
    LIMIT_DELAY = "the shuffler's delay exceeds this client's limits.delay"
    LIMIT_STRENGTHS = "the clients' different epsilons exceed this client's limits.strengths"
    LIMIT_MEMORY = "the work of a round exceeds this client's limits.memory"
    LIMIT_ACCOUNTING = "the schedule exceeds this client's limits.accounting"

    @property
    def limit(self) -> str:
        """The name of the limit in client.toml, where it is one."""
        return self.value.rpartition("this client's ")[2] if self.name.startswith("LIMIT_") else ""


class Refused(SordinoError):
    """A message that the client does not act on; the text is for the owner, `reason` is all that others hear."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@contextmanager
def refusing(reason: Reason, about: str = "") -> Iterator[None]:
    """Raise whatever is wrong inside as a refusal for this reason; `about` says what it is about."""
    try:
        yield
    except Refused:
        raise
    except (SordinoError, ValueError) as error:
        raise Refused(reason, f"{about}: {error}" if about else str(error)) from None


__all__ = ["Reason", "Refused", "refusing"]
