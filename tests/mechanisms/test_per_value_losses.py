"""Mechanisms that randomise every value by itself say so: what an upload loses is composed from what its values lose.

The reference is the true privacy loss of the samplers' own laws for two and three values, by enumeration, and the
closed form of so many randomised bits (Kairouz, Oh & Viswanath 2015), which dominates it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from catalogue import law

from sordino.mechanisms import Box, Exponential, IntegerRange, L1Ball, Laplace, Mechanism, Piecewise
from sordino.privacy import accountant
from sordino.privacy.accountant import equal_bits_epsilon
from sordino.privacy.guarantee import SERVER, Adjacency, Budget, Destination, Guarantee, Metric, Pure, Release
from sordino.privacy.ledger import Standing, admit
from sordino.privacy.planning import largest

Law = tuple[np.ndarray, np.ndarray]  #: the probabilities of one value's outputs, from either end of its domain

PER_VALUE: dict[str, Mechanism] = {
    "laplace": Laplace(1.0, Box(0.0, 0.5)),
    "piecewise": Piecewise(1.0, Box(0.0, 0.5)),
    "exponential": Exponential(0.05, IntegerRange(20.0, 0)),
    "exponential, large steps": Exponential(2.0, IntegerRange(3.0, 0)),
}
VALUES = 650


def from_ends(mechanism: Mechanism) -> Law:
    return law(mechanism, 100.0), law(mechanism, -100.0)


def together(one: Law, values: int) -> Law:
    """The law of as many values: all of them at one end, against all of them at the other."""
    p, q = one
    for _ in range(values - 1):
        p, q = _merged(p, q)
        p, q = (np.multiply.outer(many, single).ravel() for many, single in ((p, one[0]), (q, one[1])))
    return p, q


def true_delta(law: Law, epsilon: float) -> float:
    """P(S) - e^epsilon P'(S) at its largest."""
    p, q = law
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def _merged(p: np.ndarray, q: np.ndarray) -> Law:
    """Outputs of equal loss put together: nothing is lost by that."""
    _, which = np.unique(np.round(np.log(p / q), 9), return_inverse=True)
    return np.bincount(which, p), np.bincount(which, q)


@pytest.mark.parametrize("name", PER_VALUE)
@pytest.mark.parametrize("values", [1, 2, 3])
def test_no_set_of_outputs_tells_more_than_is_stated(name: str, values: int) -> None:
    mechanism = PER_VALUE[name]
    one = _merged(*from_ends(mechanism))
    assert sum(one[0]) == pytest.approx(1.0) and sum(one[1]) == pytest.approx(1.0)
    loss, all_of_them = mechanism.guarantee(values=values).loss, together(one, values)
    total = accountant.epsilon(loss)
    for epsilon in np.linspace(0, total, 12)[:-1]:
        true, stated = true_delta(all_of_them, float(epsilon)), accountant.delta(loss, float(epsilon))
        assert true <= stated * (1 + 1e-6) + 1e-12
    assert true_delta(all_of_them, 0.0) >= 0.3 * accountant.delta(loss, 0.0)  # no bit's law, but not far from it


@pytest.mark.parametrize("name", PER_VALUE)
def test_an_upload_is_as_many_equal_losses_as_it_has_values(name: str) -> None:
    mechanism = PER_VALUE[name]
    one = mechanism.guarantee(Adjacency.COORDINATE, values=VALUES).loss
    each = accountant.epsilon(one)
    for adjacency in (Adjacency.CLIENT, Adjacency.RECORD_REPLACE, Adjacency.RECORD_ADD_REMOVE):
        upload = mechanism.guarantee(adjacency, values=VALUES).loss
        assert isinstance(upload, (Pure, Metric)) and (upload.count, one.count) == (VALUES, 1)  # type: ignore[union-attr]
        assert accountant.epsilon(upload) == pytest.approx(VALUES * each, rel=1e-12)
        assert accountant.epsilon(upload, 1e-5) == pytest.approx(equal_bits_epsilon(each, VALUES, 1e-5), rel=1e-9)


def test_at_a_positive_delta_many_small_losses_prove_far_less_than_their_sum() -> None:
    """650 values of epsilon 0.1: 65 in sum; of a loss with mean about e^2/2 each, 3.25, and 4.26 deviations of 2.55."""
    loss = Laplace(0.1, Box()).guarantee(values=VALUES).loss
    assert accountant.epsilon(loss) == pytest.approx(65, rel=1e-4)
    mean, deviation = VALUES * 0.1 * math.tanh(0.05), 0.1 * math.sqrt(VALUES)
    assert accountant.epsilon(loss, 1e-5) == pytest.approx(mean + 4.0 * deviation, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_noise_for_a_ball_is_one_loss_of_the_whole_vector(epsilon: float) -> None:
    """A vector in an L1 ball may move in one value alone, by all of the ball's diameter: values share the epsilon."""
    loss = Laplace(epsilon, L1Ball(1.0)).guarantee(values=VALUES).loss
    assert isinstance(loss, Pure) and loss.count == 1
    assert accountant.epsilon(loss, 1e-5) == pytest.approx(epsilon, rel=1e-3)


# --- the ledger -------------------------------------------------------------------------------------------------------


def upload(epsilon: float, number: int = 0) -> Release:
    guarantee = Laplace(epsilon, Box()).guarantee(values=VALUES)
    return Release(f"r{number}", "data", "update", (guarantee,))


def test_a_budget_without_delta_counts_the_plain_sum() -> None:
    standing = Standing.opening(Budget(200.0))
    for number in range(3):
        standing = admit(standing, upload(0.1, number), Destination("f"))
    assert standing.spent == pytest.approx(195, rel=1e-4)


@pytest.mark.parametrize("rounds", [1, 5, 50])
def test_a_ledger_never_counts_less_than_a_statement_proves(rounds: int) -> None:
    """What holds when the server chooses every plan anew is more than what holds of a schedule that is over."""
    account = accountant.Account.opening(Budget(1e6, 1e-5))
    for number in range(rounds):
        account = account.after(upload(0.1, number))
    stated = accountant.compose([upload(0.1).guarantees[0].loss] * rounds).epsilon(1e-5)
    assert stated < account.spent < 65 * rounds


def test_a_ledger_counts_losses_of_values_as_it_counts_bits() -> None:
    """A value's loss is dominated by a randomised bit of its epsilon, and by nothing less: both cost the same."""
    budget = Budget(50.0, 1e-5)
    pure = Release("r", "d", "w", (Guarantee(SERVER, Adjacency.CLIENT, Pure(0.1, VALUES), "x"),))
    single = [Release(f"r{k}", "d", "w", (Guarantee(SERVER, Adjacency.CLIENT, Pure(0.1), "x"),)) for k in range(VALUES)]
    together, one_by_one = accountant.Account.opening(budget).after(pure), accountant.Account.opening(budget)
    for release in single:
        one_by_one = one_by_one.after(release)
    assert together.cost == one_by_one.cost


def test_plans_for_budgets_with_a_delta_may_use_larger_epsilons() -> None:
    """Within 10 at delta 1e-5 over five rounds: 10 / 3250 a value in plain sums, and more than ten times that here."""

    def planned(budget: Budget) -> float:
        return largest(budget, 5, lambda e: Laplace(e, Box()).guarantee(values=VALUES), between=(1e-4, 20.0)).parameter

    plain, with_delta = planned(Budget(10.0)), planned(Budget(10.0, 1e-5))
    assert plain == pytest.approx(10 / 3250, rel=1e-3)
    assert with_delta > 10 * plain
    spent = accountant.Account.opening(Budget(10.0, 1e-5))
    for number in range(5):
        spent = spent.after(upload(with_delta, number))
    assert spent.permits
