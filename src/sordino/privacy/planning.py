"""From a budget to the parameters of each round, and back: how many rounds a budget allows.

Everything here counts as a client's ledger does (`sordino.privacy.accountant.Account`), so that what is planned is
admitted, round after round, even where a server chooses each round after seeing the last. A statement about the same
schedule, once it is over, may prove less loss than the ledger counted: `Allowance.total` says how much.

A mechanism is known only by what it says of itself: a function from its parameter (an epsilon, an alpha, a standard
deviation) to the guarantee or release of one round. What is found is rounded to five digits, towards privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import cache

from sordino.errors import InvalidInput
from sordino.privacy.accountant import Account, compose, covers
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Budget,
    Guarantee,
    Infinite,
    PoissonGaussian,
    Release,
    check_count,
)
from sordino.privacy.ledger import terms
from sordino.privacy.roots import brentq

DIGITS = 5  #: significant digits of what is planned
MOST_ROUNDS = 10**9  #: where counting rounds stops

_GAP = 1e-6  #: how near to the border a search goes, in proportion, before it rounds
_FAR = 50.0  #: stands for ln(0) and ln(infinity) in a search
_LEAST_MULTIPLIER, _LARGEST_MULTIPLIER = 2.0**-6, 2.0**19

ReleaseOf = Callable[[float], "Release | Guarantee"]


# --- how many rounds ------------------------------------------------------------------------------------------------


def account_after(budget: Budget, round_: Release | Guarantee | Sequence[Release], rounds: int) -> Account:
    """The account after so many rounds, each with the same releases; sums are exact, so it is what the ledger has."""
    check_count("rounds", rounds)
    account = Account.opening(budget)
    for times in (1, rounds - 1):  # a claim for a whole schedule counts in the first round only
        for release in _releases(round_) if times else ():
            account = account.after(release, times=times)
    return account


def rounds_allowed(budget: Budget, round_: Release | Guarantee | Sequence[Release], *, most: int = MOST_ROUNDS) -> int:
    """How many rounds with these releases the budget admits, exactly; counting stops at `most`.

    A release for which nothing is proven in the budget's terms is never admitted: leave out what the owner lets go
    unproven, as the ledger does.
    """
    check_count("most", most)

    def fits(rounds: int) -> bool:
        return account_after(budget, round_, rounds).permits

    if not fits(1):
        return 0
    fitting, beyond = 1, 2
    while beyond <= most and fits(beyond):
        fitting, beyond = beyond, 2 * beyond
    beyond = min(beyond, most + 1)
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if fits(middle) else (fitting, middle)
    return fitting


def stated_epsilon(budget: Budget, round_: Release | Guarantee, rounds: int = 1) -> float:
    """What a statement proves of so many equal rounds, in the budget's terms; infinite where nothing is proven.

    One value of one upload occurs in a single round, so under that adjacency rounds do not add up.
    """
    check_count("rounds", rounds)
    count = 1 if budget.adjacency is Adjacency.COORDINATE else rounds
    (release,) = _releases(round_)
    usable = [g for g in release.guarantees if covers(g, budget)]
    proven = (compose([g.loss] * count, adjacency=g.adjacency).epsilon(budget.delta) for g in usable)
    return min(proven, default=math.inf)


def _releases(round_: Release | Guarantee | Sequence[Release]) -> tuple[Release, ...]:
    if isinstance(round_, Guarantee):
        return (Release("planned", "planned", "planned", (round_,)),)
    return (round_,) if isinstance(round_, Release) else tuple(round_)


# --- which parameter ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allowance:
    """What a budget allows each of several equal rounds; made by `largest`, `least` and `private_training`."""

    budget: Budget
    rounds: int
    parameter: float  #: of the mechanism, for every round
    release: Release  #: what one round releases with it
    spent: float  #: epsilon on the ledger after all rounds, in the budget's terms

    @property
    def guarantee(self) -> Guarantee:
        """What one round guarantees in the budget's terms."""
        return next((g for g in self.release.guarantees if covers(g, self.budget)), self.release.guarantees[0])

    @property
    def each(self) -> float:
        """Epsilon that a statement proves for one round, at the budget's delta."""
        return stated_epsilon(self.budget, self.release)

    @property
    def total(self) -> float:
        """Epsilon that a statement proves for all rounds, at the budget's delta: at most what the ledger counts."""
        counted = self.spent if self.budget.basis == "proven" else math.inf
        return min(stated_epsilon(self.budget, self.release, self.rounds), counted)


def largest(budget: Budget, rounds: int, release_of: ReleaseOf, *, between: tuple[float, float]) -> Allowance:
    """The largest parameter (an epsilon, an alpha) with which the budget admits all rounds.

    `release_of` must lose more the larger its parameter is; where it refuses a parameter (`InvalidInput`), that counts
    as finer than the mechanism can do.
    """
    return _planned(budget, rounds, release_of, safe=between[0], risky=between[1])


def least(budget: Budget, rounds: int, release_of: ReleaseOf, *, between: tuple[float, float]) -> Allowance:
    """The least parameter (a standard deviation of noise) with which the budget admits all rounds."""
    return _planned(budget, rounds, release_of, safe=between[1], risky=between[0])


def private_training(
    budget: Budget, rounds: int, *, sampling_rate: float, steps: int, eta: float = 0.0, tau: float = 0.0
) -> Allowance:
    """The least noise multiplier with which DP-SGD of `steps` steps a round fits the budget.

    Each step sums clipped gradients over a fresh Poisson sample of this rate (`PoissonGaussian`). What is protected is
    a record, so the budget's adjacency must be one of records; an exchanged record needs about twice the noise of one
    added or removed. `eta` and `tau` are what the noise of a round lacks of a Gaussian, whatever the multiplier.
    """
    if budget.adjacency not in (Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE):
        raise InvalidInput(
            f"DP-SGD protects records, not the adjacency {str(budget.adjacency)!r}: plan with "
            f"{str(Adjacency.RECORD_ADD_REMOVE)!r} or {str(Adjacency.RECORD_REPLACE)!r}"
        )
    if budget.delta == 0:
        raise InvalidInput("Gaussian noise proves nothing at delta 0: give the budget a delta, for example 1e-5")
    PoissonGaussian(sampling_rate, 1.0, check_count("steps", steps))  # refuses a rate that is none

    def trained(multiplier: float) -> Guarantee:
        loss = PoissonGaussian(sampling_rate, multiplier, steps, eta, tau)
        basis = f"DP-SGD: {steps} steps of noise multiplier {multiplier:g} on Poisson samples of rate {sampling_rate:g}"
        return Guarantee(SERVER, budget.adjacency, loss, basis)

    return least(budget, rounds, trained, between=(_LEAST_MULTIPLIER, _LARGEST_MULTIPLIER))


def _planned(budget: Budget, rounds: int, release_of: ReleaseOf, *, safe: float, risky: float) -> Allowance:
    """The riskiest parameter that all rounds admit; from `safe` to `risky` the loss grows."""
    check_count("rounds", rounds)
    if not (0 < safe < math.inf and 0 < risky < math.inf):
        raise InvalidInput(f"a parameter is sought between two finite numbers > 0, got {safe!r} and {risky!r}")

    @cache
    def attempt(parameter: float) -> Account | None:
        """The account after all rounds; None where the mechanism cannot do anything that fine."""
        try:
            round_ = release_of(parameter)
        except InvalidInput:
            return None
        return account_after(budget, round_, rounds)

    def refused(parameter: float) -> bool:
        account = attempt(parameter)
        return account is not None and not account.permits

    if refused(safe):
        raise _impossible(budget, rounds, release_of, safe)
    parameter = risky
    if refused(risky):
        parameter = _on_grid(_border(attempt, safe, risky), towards=risky)
    units = 1
    while refused(parameter):  # once or twice; longer strides end the search where a mechanism's tables are uneven
        parameter, units = _stepped(parameter, units, towards=safe), 2 * units
    account = attempt(parameter)
    if account is None:
        raise _impossible(budget, rounds, release_of, safe)
    (release,) = _releases(release_of(parameter))
    return Allowance(budget, rounds, parameter, release, account.spent)


def _border(attempt: Callable[[float], Account | None], safe: float, risky: float) -> float:
    """Where about the limit is reached between a parameter that fits and one that does not.

    On logarithmic scales what is spent is nearly a straight line, so Brent's method needs few attempts; where it is
    not, that method bisects.
    """

    ends = {math.log(safe): safe, math.log(risky): risky}

    def excess(log_parameter: float) -> float:
        account = attempt(ends.get(log_parameter) or math.exp(log_parameter))
        if account is None or account.spent == 0:
            return -_FAR
        return max(-_FAR, min(_FAR, math.log(account.spent / account.budget.limit)))

    return math.exp(brentq(excess, math.log(safe), math.log(risky), xtol=_GAP, rtol=1e-12))


def _on_grid(value: float, *, towards: float) -> float:
    """The nearest number of `DIGITS` digits in that direction, but not beyond it."""
    exact = Decimal(repr(value))
    rounded = float(exact.quantize(_unit(exact), rounding=ROUND_CEILING if towards > value else ROUND_FLOOR))
    return min(rounded, towards) if towards > value else max(rounded, towards)


def _stepped(value: float, units: int, *, towards: float) -> float:
    """So many numbers of `DIGITS` digits further in that direction, but not beyond it."""
    exact = Decimal(repr(value))
    step = units * _unit(exact)
    return towards if abs(towards - value) <= step else float(exact + step if towards > value else exact - step)


def _unit(value: Decimal) -> Decimal:
    """One in the last of the digits that are kept."""
    return Decimal(1).scaleb(value.adjusted() - DIGITS + 1)


def _impossible(budget: Budget, rounds: int, release_of: ReleaseOf, safe: float) -> InvalidInput:
    """Why no parameter fits, and what to change."""
    hint = "raise the budget, or spread it over fewer rounds or values"
    try:
        (release,) = _releases(release_of(safe))
        alone = account_after(budget, release, 1).spent
        spends = f"even with the most noise one round spends {alone:.4g}"
        if math.isinf(alone):
            spends = "nothing is proven of a single round, however much noise there is"
            why = [g.loss.why for g in release.guarantees if isinstance(g.loss, Infinite)]
            if why:
                spends, hint = f"{spends} ({'; '.join(why)})", "take a mechanism that is proven"
            elif budget.delta > 0:
                hint = "ask for an adjacency and an adversary that the mechanism's guarantee covers"
            else:
                hint = "give the budget a delta, for example 1e-5"
    except InvalidInput as error:
        spends = f"they ask for more noise than the mechanism can add ({error})"
    return InvalidInput(
        f"{rounds} rounds do not fit a budget of epsilon {budget.limit:g} ({terms(budget)}): {spends}. "
        f"What to do: {hint}"
    )
