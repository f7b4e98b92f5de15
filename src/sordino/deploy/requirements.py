"""What a federation asks of its clients: the budget that all of its rounds need, and what would leave without a proof.

Computed as a client computes it, from the invitation and a ledger's own arithmetic. It is a figure for the owner to
think about, not one to take over: the commands that are written with it can be changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sordino.client.invitation import Invitation
from sordino.client.membership import Membership, weights_of
from sordino.client.own_records import OwnRecords
from sordino.client.refusal import Refused
from sordino.client.settings import OwnConsents, Settings
from sordino.errors import InvalidInput
from sordino.privacy.accountant import Account
from sordino.privacy.guarantee import SERVER, Adjacency, Budget, Derived, Release
from sordino.privacy.ledger import cost, terms
from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION
from sordino.recipe import EVERYTHING, Recipe

FIRST = 10.0  #: the limit that is tried first
TRIES = 8  #: limits that are tried


@dataclass(frozen=True)
class Requirements:
    """What one client's ledger must allow for all rounds."""

    budget: Budget  #: its limit is what all rounds cost in its terms, rounded up; 1 where they cost nothing
    costs: bool  #: whether anything is counted in these terms
    unproven: tuple[str, ...]  #: kinds of release that these terms do not cover

    def to_text(self) -> str:
        """One or two sentences."""
        cost = f"epsilon {self.budget.limit:g}" if self.costs else "no epsilon"
        words = f"All rounds together cost {cost} ({terms(self.budget)})."
        if self.budget.basis == "proven" and self.budget.limit > NO_MEANINGFUL_PROTECTION:
            words += f" A proven epsilon above {NO_MEANINGFUL_PROTECTION:g} is no meaningful protection."
        if self.unproven:
            words += f" Without any proof would leave: {', '.join(self.unproven)}."
        return words


def requirements(invitation: Invitation, records: OwnRecords) -> Requirements:
    """What this client would have to allow; a federation that every client would refuse is refused here."""
    recipe = Recipe.from_toml(invitation.recipe, EVERYTHING)
    schedule = list(_schedule(invitation, records))
    found = [_costed(budget, schedule) for budget in _terms(recipe, invitation.client)]
    return min(found, key=lambda each: len(each.unproven))  # the first of these


def _schedule(invitation: Invitation, records: OwnRecords) -> Iterator[Release]:
    """Everything that an owner would be asked for who agreed to all of it."""
    settings = Settings.of({"data": {"source": "any"}, "budget": {"limit": 1.0}})
    recipe = Recipe.from_toml(invitation.recipe, EVERYTHING)
    weights = weights_of(recipe)
    consents = OwnConsents(claimed=True, code=recipe.own_code, weights=() if weights is None else (weights,))
    willing = settings.model_copy(update={"consents": consents})
    try:
        membership = Membership(invitation.terms, willing, records)
        for _, releases in membership.everything():
            yield from releases
    except Refused as error:
        raise InvalidInput(f"every client would refuse this federation: {error}") from None


def _terms(recipe: Recipe, client: int) -> Sequence[Budget]:
    """In which terms to count: the recipe's own, else whole clients if that can be, else records."""
    own = recipe.budgets()
    if own is not None:
        return [replace(own[client], adversary=SERVER)]
    whole = Budget(FIRST)
    record = Budget(FIRST, adjacency=Adjacency.RECORD_ADD_REMOVE)
    return [whole, replace(whole, delta=1e-5), record, replace(record, delta=1e-5)]


def _costed(budget: Budget, schedule: Sequence[Release]) -> Requirements:
    """The least limit found that a schedule fits in, in a budget's terms, and what these terms do not cover."""
    unproven = dict.fromkeys(each.what for each in schedule if math.isinf(cost(budget, each)))
    counted = [each for each in schedule if each.what not in unproven and not isinstance(each.composition, Derived)]
    fits, account = None, Account.opening(budget)
    for _ in range(TRIES):  # what is spent depends a little on the limit, where delta > 0
        account = Account.opening(budget)
        for release in counted:
            account = account.after(release)
        if account.permits:
            fits = budget
        limit = _rounded_up(account.spent)
        if fits is not None and limit >= fits.limit:
            break
        budget = replace(budget, limit=limit)
    return Requirements(fits or budget, account.spent > 0, tuple(unproven))


def _rounded_up(epsilon: float) -> float:
    """To four digits, never below; a ledger wants a limit above 0 also where nothing is spent."""
    if epsilon <= 0:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return float(f"{math.ceil(epsilon / unit) * unit:.4g}")


__all__ = ["Requirements", "requirements"]
