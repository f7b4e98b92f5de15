"""What joining a federation would mean, for the owner to read before agreeing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sordino.client.invitation import Invitation
from sordino.privacy import history
from sordino.privacy.history import RoundReleases
from sordino.privacy.statement import Statement
from sordino.report.statement import to_text


@dataclass(frozen=True)
class Offer:
    """What joining a federation would mean, for the owner to read."""

    invitation: Invitation
    schedule: tuple[RoundReleases, ...]  #: everything that would leave, round by round
    delta: float  #: at which the statement gives its figures
    fits: int  #: rounds of the schedule that the budget allows, from now on
    rounds: int  #: rounds of the schedule
    unprotected: tuple[str, ...]  #: kinds of release that would leave without a proof, with the owner's consent
    agreed: bool  #: whether the owner has agreed to these very terms before
    pinned: bool | None = None  #: whether the keys of all others are listed; None where there is no secure sum
    budgets: int = 1  #: how many budgets the releases have to fit
    caveats: tuple[str, ...] = ()  #: what the statement's figures rest on besides
    set_aside: float = 0.0  #: share of the records that are set aside for private evaluation
    evaluations: int = 0  #: how often these are counted
    unreadable: str = ""  #: why none of the owner's records takes part, where there are some: for the owner alone
    lacking: str = ""  #: how to give the consents that the schedule lacks; empty where it has them all
    consent_stops: bool = False  #: whether a consent, and no budget, is what the first round that does not fit lacks

    @cached_property
    def statement(self) -> Statement:
        """What the whole schedule tells, computed when it is looked at."""
        title = f"What {self.invitation.federation} would learn of you"
        return replace(history.statement(self.schedule, 1, delta=self.delta, title=title), caveats=self.caveats)

    def to_text(self, width: int = 110) -> str:
        """The statement, and how many of the rounds the budget allows."""
        lines = [to_text(self.statement, width)]
        lines.append(
            f"This client answers to one coordinator: the holder of the key {self.invitation.author.in_words}. "
            "Compare it with what the coordinator tells you in person."
        )
        allow = "budget allows" if self.budgets == 1 else "two budgets, against the server and against the sum, allow"
        allow = "consents allow" if self.consent_stops else allow
        lines.append(f"Of {self.rounds} rounds your {allow} {self.fits}; then this client declines.")
        if self.lacking:
            lines.append(
                "What nothing proves stays here without your consent. To give it for the whole schedule: "
                f"{self.lacking}."
            )
        if self.evaluations:
            lines.append(
                f"About {self.set_aside:.0%} of your records are set aside, by a public rule, and never trained on. "
                f"{'Once' if self.evaluations == 1 else f'{self.evaluations} times'} this client counts, with noise, "
                "how the model answers them. If your budget is too small for that, it still trains."
            )
        if self.pinned is False:
            lines.append(
                "What is said of the secure sum holds against a server that keeps to the protocol: you have not listed "
                f"the others' keys under peers.{self.invitation.federation} in client.toml. Your budget against the "
                "server alone decides."
            )
        if self.unreadable:
            lines.append(
                "WARNING: none of your records can be read as this federation has them, so that you would take part "
                f"without records: {self.unreadable}"
            )
        if self.unprotected:
            kinds = ", ".join(self.unprotected)
            lines.append(f"Without any proof, as you allowed in client.toml, would leave: {kinds}.")
        return "\n".join(lines) + "\n"


__all__ = ["Offer"]
