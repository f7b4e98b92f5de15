"""Hybrid-One: a part of the noise from each silo, all of it in the sum, and nothing between the two."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sordino.channels.secure_sum import Summed
from sordino.learning.cohort import ClientData
from sordino.mechanisms import NoisySums
from sordino.methods.hybrid_one import HybridOne
from sordino.methods.interface import Bench, Cohort
from sordino.methods.upload import ReportSum
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import SERVER, Adjacency, PoissonGaussian, summed
from sordino.randomness import Keystream
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs.federation import wire
from sordino.runs.simulation import run
from tests.engine.tiny import TINY

RECORD = Adjacency.RECORD_ADD_REMOVE


def settings(changes: dict[str, Any] | None = None) -> Recipe:
    hybrid = {
        "name": "hybrid-one",
        "sampling_rate": 0.5,
        "noise_multiplier": 2.0,
        "channel": {"kind": "summed"},  # five of six silos must stay, and one of them may collude
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


def test_the_noise_of_the_honest_who_remain_is_all_the_noise() -> None:
    """Five of six stay, one of them colludes: four share it, and each record's clip follows from theirs."""
    method = method_of()
    grid = method.training.grid(650)
    assert method.training.shares == 4
    assert 2.0 <= math.sqrt(4) * grid.noise.sigma / grid.clip < 2.0001


def test_a_sum_is_protected_by_all_the_noise_and_an_upload_by_its_own() -> None:
    in_sums, alone, *exchanged = release(method_of()).guarantees
    assert (in_sums.adversary, in_sums.adjacency) == (summed(4), RECORD)
    assert (alone.adversary, alone.adjacency) == (SERVER, RECORD)
    for guarantee, sigma in ((in_sums, 2.0), (alone, 1.0)):
        assert isinstance(guarantee.loss, PoissonGaussian)
        assert (guarantee.loss.q, guarantee.loss.steps) == (0.5, 1)
        assert guarantee.loss.sigma == pytest.approx(sigma, rel=1e-5)
        assert guarantee.loss.eta > 0
        assert guarantee.loss.tau > 0
    assert {g.adjacency for g in exchanged} == {Adjacency.RECORD_REPLACE}


@pytest.mark.parametrize(("colluding", "honest"), [(1, 6), (2, 5), (4, 3)])
def test_colluders_are_left_out_of_the_honest(colluding: int, honest: int) -> None:
    """Of nine at least seven are in a sum; the noise is calibrated to the seven less the colluders, never to all."""
    changes = {"split": {"kind": "iid", "clients": 9}, "method.colluding": colluding}
    method = method_of(changes)
    assert method.training.shares == honest
    assert release(method).guarantees[0].adversary == summed(honest)


def test_the_target_is_proven_against_the_sum_for_the_whole_run() -> None:
    outcome = run(
        settings({"method.noise_multiplier": None, "method.target": {"epsilon": 3.0, "delta": 1e-5}}), workers=1
    )
    rows = {(row.adversary, row.adjacency): row for row in outcome.statement.rows}
    assert 2.0 < rows[summed(4), RECORD].proven <= 3.0
    assert rows[SERVER, RECORD].proven > 3.0  # who sees a single upload sees it under half the noise


# --- nothing between noise and sum ------------------------------------------------------------------------------------


def uploads(method: HybridOne, parameters: np.ndarray, rounds: int) -> np.ndarray:
    """`[rounds, d]`: what one silo without records uploads, in grid steps, under a server's own parameters."""
    plan = replace(method.plan(method.init(), "test"), arrays={"parameters": parameters.astype(np.float32)})
    mechanism = method.upload(plan).mechanisms[0]
    data = ClientData(torch.zeros(1, 8, 8), torch.zeros(1, dtype=torch.int64))
    cohort = Cohort((0,) * rounds, (data,) * rounds, ({},) * rounds, (1,) * rounds)
    bodies = method.report(plan, cohort, lambda own: Keystream.simulation(5, np.arange(len(own)), 1), Bench()).bodies
    return np.asarray(mechanism.decode(bodies, 650).array, np.float64)


@pytest.mark.parametrize("bias", [0.0, 786_432.0, 3e38], ids=["honest", "equal biases of 786,432", "the largest"])
def test_no_parameters_of_a_server_round_the_noise_away(bias: float) -> None:
    """Equal biases change no softmax; with them an update would be rounded to one unit in the last place.

    400 uploads of 650 values: the variance is within 6 standard errors of 4^20 (false alarm 2e-9), and coordinates
    take on hundreds of thousands of values.
    """
    parameters = np.zeros(650)
    parameters[640:] = bias
    found = uploads(method_of(), parameters, 400)
    assert abs(found.var() / 4.0**20 - 1) < 6 * math.sqrt(2 / found.size)
    assert len(np.unique(found)) > 0.8 * found.size


@pytest.mark.parametrize("digits", [0, 1, 10])
def test_decimals_of_a_channel_do_not_touch_whole_numbers(digits: int) -> None:
    method = method_of({"method.channel.digits": digits})
    plan = method.plan(method.init(), "test")
    tally = method.tally(plan)
    whole = np.random.default_rng(1).integers(-(2**20), 2**20, 650)
    mechanism = method.upload(plan).mechanisms[0]
    assert isinstance(mechanism, NoisySums)
    (body,) = mechanism.encode(mechanism.output(whole[None]))
    assert np.array_equal(tally.summand(0, body, digits), whole)


def test_the_sum_of_six_uploads_has_six_shares_of_noise() -> None:
    """Whole uploads add up exactly; the variance of the sum is 6 * 4^20 within 6 standard errors (2e-9)."""
    found = uploads(method_of(), np.zeros(650), 600).reshape(6, 100, 650).sum(axis=0)
    assert abs(found.var() / (6 * 4.0**20) - 1) < 6 * math.sqrt(2 / found.size)


def test_a_sum_that_wraps_around_is_read_around_zero() -> None:
    """Two silos whose numbers add up to 2^m + 5: what is known of the sum is 5."""
    method = method_of()
    plan = method.plan(method.init(), "test")
    tally = method.tally(plan)
    mechanism = tally.upload.mechanisms[0]
    assert isinstance(mechanism, NoisySums)
    rule = method.spec.channel
    assert isinstance(rule, Summed.Spec)
    session, half = rule.session(plan, tally, 0, 6), 1 << (mechanism.bits - 1)
    assert session.modulus == mechanism.bits
    assert {g.modulus for g in release(method).guarantees} == {mechanism.bits, None}
    assert all(g.basis.endswith(f"modulo 2^{mechanism.bits}") for g in release(method).guarantees)
    tally.add_sum(ReportSum(0, (0, 1), session.decoded(np.full(650, 2 * half + 5), 2), 10))
    assert tally.mean() == pytest.approx(np.full(650, 5 * mechanism.unit / 2), rel=1e-6)
    assert mechanism.wrapped(np.array([half, -half - 1, 3])).tolist() == [-half, half - 1, 3]


def test_a_server_takes_the_step_that_the_silos_would() -> None:
    """With next to no noise and all records, one round is a step of plain descent along the mean clipped gradient."""
    quiet = {"method.noise_multiplier": 1e-6, "method.sampling_rate": 1.0, "rounds.count": 1}
    ours = run(settings(quiet), workers=1)
    alone = {"name": "silo-dp", "noise_multiplier": 1e-6, "sampling_rate": 1.0, "steps": 1}
    theirs = run(Recipe.from_dict({**settings(quiet).to_dict(), "method": alone}), workers=1)
    assert np.allclose(ours.parameters, theirs.parameters, atol=1e-4)
    assert float(np.abs(ours.parameters).max()) > 0.01


def test_the_statement_is_the_composition_of_the_rounds() -> None:
    outcome = run(settings(), workers=1)
    row = next(r for r in outcome.statement.rows if (r.adversary, r.adjacency) == (summed(4), RECORD))
    loss = release(method_of()).guarantees[0].loss
    assert row.proven == pytest.approx(compose([loss] * 3, adjacency=RECORD).epsilon(1e-5))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method.channel": {"kind": "direct"}}, r"method\.channel\.kind: got direct; each silo of hybrid-one"),
        ({"method.colluding": 4}, r"method\.colluding: got 4; allowed: at most 3"),
        ({"method.channel.threshold": 0.5, "method.colluding": 2}, r"method\.colluding: got 2; allowed: at most 1"),
        ({"method.colluding": 0}, r"method\.colluding"),
        ({"method.steps": 2}, r"method\.steps"),
        ({"method.selection": {"kind": "probability", "p": 0.9}}, r"method\.selection\.kind: got probability"),
        ({"clients.epsilon": 1.0}, r"clients\.epsilon: .* takes none"),
        ({"method.noise_multiplier": None}, r"method\.target: neither given"),
        ({"method.aggregation": {"kind": "samples"}}, r"method\.aggregation"),
    ],
    ids=["direct", "colluding", "threshold", "nobody", "steps", "selection", "epsilon", "noise", "samples"],
)
def test_recipes_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeInvalid, match=said):
        settings(changes)
