"""Hybrid-One: a part of the noise from each silo, all of it in the sum; a proof only where sums are sums of noise."""

import math
from typing import Any

import pytest

from sordino.learning.private_sgd import PrivateTraining
from sordino.methods.hybrid_one import HybridOne, linear
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import SERVER, Adjacency, PoissonGaussian, summed
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs import run
from sordino.wiring import wire
from tests.engine.tiny import TINY

RECORD = Adjacency.RECORD_ADD_REMOVE


def settings(changes: dict[str, Any] | None = None) -> Recipe:
    hybrid = {
        "name": "hybrid-one",
        "honest": 4,
        "sampling_rate": 0.5,
        "steps": 1,
        "noise_multiplier": 2.0,
        "channel": {"kind": "summed"},  # five of six silos must stay
    }
    training = {"optimizer": {"name": "sgd", "lr": 0.5}}
    split = {"kind": "iid", "clients": 6}
    return Recipe.from_dict({**TINY, "split": split, "training": training, "method": hybrid}).with_(changes or {})


def method_of(changes: dict[str, Any] | None = None) -> HybridOne:
    method = wire(settings(changes)).method
    assert isinstance(method, HybridOne)
    return method


def release(method: HybridOne) -> Any:
    ((found,),) = method.releases(method.plan(method.init(), "test"))
    return found


def test_each_silo_adds_its_part_so_that_honest_ones_together_add_all() -> None:
    method = method_of()
    assert isinstance(method.training, PrivateTraining)
    assert method.training.noise_multiplier == 1.0  # 2 / sqrt(4)
    together = math.sqrt(4 * method.training.noise_multiplier**2)
    assert together == 2.0


def test_a_sum_is_protected_by_all_the_noise_and_an_upload_by_its_own() -> None:
    in_sums, alone, *exchanged = release(method_of()).guarantees
    assert (in_sums.adversary, in_sums.adjacency, in_sums.loss) == (summed(4), RECORD, PoissonGaussian(0.5, 2.0, 1))
    assert (alone.adversary, alone.adjacency, alone.loss) == (SERVER, RECORD, PoissonGaussian(0.5, 1.0, 1))
    assert {g.adjacency for g in exchanged} == {Adjacency.RECORD_REPLACE}


def test_the_target_is_proven_against_the_sum_for_the_whole_run() -> None:
    outcome = run(
        settings({"method.noise_multiplier": None, "method.target": {"epsilon": 3.0, "delta": 1e-5}}), workers=1
    )
    rows = {(row.adversary, row.adjacency): row for row in outcome.statement.rows}
    assert 2.0 < rows[summed(4), RECORD].proven <= 3.0
    assert rows[SERVER, RECORD].proven > 3.0  # who sees a single upload sees it under half the noise


@pytest.mark.parametrize(
    "changes",
    [{"method.steps": 2}, {"training.optimizer": {"name": "adam", "lr": 0.01}}],
    ids=["two steps", "adam"],
)
def test_where_a_sum_is_no_sum_of_noise_the_formula_is_a_claim(changes: dict[str, Any]) -> None:
    found = release(method_of(changes))
    assert [g.adversary for g in found.guarantees] == [summed(4), SERVER] * 2
    assert {g.loss for g in found.guarantees} == {PoissonGaussian(0.5, 1.0, changes.get("method.steps", 1))}
    claim = found.claimed
    steps = changes.get("method.steps", 1)
    expected = compose([PoissonGaussian(0.5, 2.0, steps)] * 3, adjacency=RECORD).epsilon(1e-5)
    assert (claim.epsilon, claim.adversary, claim.covers) == (pytest.approx(expected), summed(4), "schedule")
    outcome = run(settings(changes), workers=1)
    row = next(r for r in outcome.statement.rows if (r.adversary, r.adjacency) == (summed(4), RECORD))
    assert row.verdict == "claim not supported"


def test_momentum_is_linear_in_a_single_step() -> None:
    assert linear(method_of({"training.optimizer.momentum": 0.9}).training)
    assert not linear(method_of({"method.steps": 2}).training)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method.channel": {"kind": "direct"}}, r"method\.channel\.kind: got direct; each silo of hybrid-one"),
        ({"method.honest": 6}, r"method\.honest: got 6; allowed: at most 5, the fewest that a sum of 6"),
        ({"method.honest": 5, "method.channel.threshold": 0.5}, r"method\.honest: got 5; allowed: at most 4"),
        ({"clients.epsilon": 1.0}, r"clients\.epsilon: .* takes none"),
        ({"method.noise_multiplier": None}, r"method\.target: neither given"),
        ({"method.aggregation": {"kind": "samples"}}, r"method\.aggregation"),
    ],
    ids=["direct", "honest", "threshold", "epsilon", "noise", "samples"],
)
def test_recipes_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeInvalid, match=said):
        settings(changes)
