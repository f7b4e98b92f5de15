"""Central differential privacy: what the server clips, adds and divides by, who takes part, and what is proven."""

import math
from typing import Any

import numpy as np
import pytest

from sordino.errors import InvalidInput
from sordino.methods.central_dp import CentralDp, ClippedTally, Noise, Unprotected
from sordino.methods.upload import Upload
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import MODEL_READER, SERVER, Adjacency, Infinite, PoissonGaussian
from sordino.privacy.statement import Row, Statement
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs.federation import wire
from sordino.runs.simulation import run
from tests.engine.tiny import TINY


def tally(
    clip: float | None, *, sigma: float = 1e-12, expected: float = 2.0, values: int = 2, seed: int = 1
) -> ClippedTally:
    upload = Upload(lambda _: Unprotected(0.0), None, values, clients=50, what="update")
    return ClippedTally(upload, Noise(clip, sigma, 0.5, expected, seed), round=1)


def body(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def settings(changes: dict[str, Any] | None = None) -> Recipe:
    """Four clients with a few digits each, half of them in a round, with other settings by dotted key."""
    method = {
        "name": "central-dp",
        "clip": 1.0,
        "noise_multiplier": 2.0,
        "selection": {"kind": "probability", "p": 0.5},
    }
    return Recipe.from_dict({**TINY, "method": method}).with_(changes or {})


# --- the server's sum -------------------------------------------------------------------------------------------------


def test_updates_are_clipped_to_the_bound_and_shorter_ones_left_alone() -> None:
    sums = tally(1.0)
    assert sums.add([0, 1], [body(3, 4), body(0.375, -0.5)]) == {}
    assert sums.mean().tolist() == pytest.approx([(0.6 + 0.375) / 2, (0.8 - 0.5) / 2], abs=1e-5)
    assert sums.bound == 1


def test_the_median_of_the_norms_is_the_bound() -> None:
    sums = tally(None)
    sums.add([0, 1, 2], [body(3, 4), body(0, 2), body(0, 0.5)])
    assert sums.bound == pytest.approx(2)
    assert sums.mean().tolist() == pytest.approx([1.2 / 2, (1.6 + 2 + 0.5) / 2], abs=1e-5)


@pytest.mark.parametrize("clip", [1.0, None], ids=["constant", "median"])
def test_the_sum_is_the_same_however_reports_arrive(clip: float | None) -> None:
    rows = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)
    together, alone = tally(clip, values=5), tally(clip, values=5)
    together.add(list(range(9)), [row.tobytes() for row in rows])
    for client in (4, 8, 0, 2, 6, 1, 3, 7, 5):
        alone.add([client], [rows[client].tobytes()])
    assert np.array_equal(together.mean(), alone.mean())


def test_the_sum_is_divided_by_a_public_number_whoever_comes() -> None:
    sums = tally(10.0, expected=8.0)
    sums.add([0, 1, 2], [body(4, 0), b"", b""])
    assert sums.reports == 3
    assert sums.mean().tolist() == pytest.approx([0.5, 0], abs=1e-5)
    assert sums.weight == 8


@pytest.mark.parametrize("clip", [3.0, None], ids=["constant", "median"])
def test_a_round_in_which_everybody_sits_out_is_noise_alone(clip: float | None) -> None:
    sums = tally(clip, sigma=1.0)
    sums.add([0, 1], [b"", b""])
    assert sums.weight > 0
    assert np.any(sums.mean()) == (clip is not None)


def test_noise_has_the_multiplier_times_the_bound_over_the_divisor() -> None:
    """20,000 values of deviation 0.5 * 3 / 10; its estimate is within five of its own deviations, 0.5 % each."""
    sums = tally(3.0, sigma=0.5, expected=10.0, values=20_000)
    sums.add([0], [np.zeros(20_000, "<f4").tobytes()])
    noise = sums.mean()
    assert abs(noise.std() / 0.15 - 1) < 5 / math.sqrt(2 * 20_000)
    assert sums.noise() == pytest.approx(0.15 * math.sqrt(20_000))
    assert np.array_equal(noise, sums.mean())
    assert not np.array_equal(noise, tally(3.0, sigma=0.5, expected=10.0, values=20_000, seed=2).mean())


def test_a_bad_report_is_refused_and_the_others_count() -> None:
    sums = tally(10.0)
    assert list(sums.add([0, 1], [body(1, 1), b"short"])) == [1]
    assert sums.mean().tolist() == pytest.approx([0.5, 0.5], abs=1e-5)


# --- who takes part ---------------------------------------------------------------------------------------------------


def test_each_client_takes_part_with_its_own_probability() -> None:
    """80 coins of 1/2: between 20 and 60 heads but for a chance of 10^-5. All are asked, and all answer."""
    outcome = run(settings({"rounds.count": 20}), workers=1)
    assert {(r.asked, r.reported) for r in outcome.rounds} == {(4, 4)}
    envelope, update = 24, 4 * 650
    took_part = [(r.bytes_up - 4 * envelope) / update for r in outcome.rounds]
    assert set(took_part) <= {0, 1, 2, 3, 4}
    assert 20 <= sum(took_part) <= 60
    assert len(set(took_part)) > 1


def test_a_certain_coin_is_plain_averaging_of_clipped_updates() -> None:
    quiet = {
        "method.selection": {"kind": "probability", "p": 1.0},
        "method.noise_multiplier": 1e-9,
        "method.clip": 30.0,
    }
    ours = run(settings({**quiet, "rounds.count": 2}), workers=1)
    plain = run(Recipe.from_dict(TINY).with_({"rounds.count": 2}), workers=1)
    assert np.allclose(ours.parameters, plain.parameters, atol=1e-5)


def test_the_number_of_workers_changes_nothing() -> None:
    recipe = settings({"method.clip": "median"})
    one, two = (run(recipe, workers=count).parameters for count in (1, 2))
    assert np.array_equal(one, two)


def test_noise_differs_between_rounds_and_seeds() -> None:
    noise = Noise(1.0, 1.0, 0.5, 2.0, seed=1)
    assert not np.array_equal(noise.draw(1, 8), noise.draw(2, 8))
    assert not np.array_equal(noise.draw(1, 8), Noise(1.0, 1.0, 0.5, 2.0, seed=2).draw(1, 8))
    assert np.array_equal(noise.draw(1, 8), noise.draw(1, 8))


# --- what is proven ---------------------------------------------------------------------------------------------------


def row(statement: Statement, adversary: Any) -> Row:
    (found,) = [r for r in statement.rows if r.adversary == adversary and r.adjacency is Adjacency.CLIENT]
    return found


def test_everyones_account_counts_every_round() -> None:
    statement = run(settings({"rounds.count": 5}), workers=1).statement
    assert len(statement.rows) == 2
    expected = compose([PoissonGaussian(0.5, 2.0, 5)], adjacency=Adjacency.CLIENT).epsilon(1e-5)
    assert row(statement, MODEL_READER).proven == pytest.approx(expected, rel=1e-5)
    assert math.isinf(row(statement, SERVER).proven)
    assert "trusted" in row(statement, SERVER).unproven[0]


def test_with_the_median_nothing_is_proven_and_the_papers_figure_is_a_claim() -> None:
    """Half of 100 clients, multiplier 1, 11 rounds, delta 1e-3: the paper reports epsilon 8."""
    recipe = Recipe.load(
        "central-dp-mnist", ["data.source=digits", "data.train_limit=200", "model.options=", "model.name=logistic"]
    )
    method = wire(recipe).method
    assert isinstance(method, CentralDp)
    releases = [release for n in range(11) for release in method.releases(_plan(method, n))[0]]
    found = row(Statement.of(releases, delta=1e-3), MODEL_READER)
    assert found.claimed is not None
    assert found.claimed.epsilon == pytest.approx(7.79, abs=0.01)
    assert math.isinf(found.proven)
    assert found.verdict == "claim not supported"


def _plan(method: CentralDp, rounds: int) -> Any:
    state = method.init()
    for _ in range(rounds):
        state = state.unchanged()
    return method.plan(state, "test")


def test_a_target_is_met_for_an_exchanged_client() -> None:
    target = {"method.noise_multiplier": None, "method.target": {"epsilon": 3.0, "delta": 1e-4}}
    statement = run(settings({**target, "rounds.count": 4}), workers=1).statement
    assert statement.delta == 1e-4
    assert 1.5 < row(statement, MODEL_READER).proven <= 3.0


@pytest.mark.parametrize(("multiplier", "proven"), [(0.05, False), (0.124, False), (0.125, True)])
def test_noise_that_an_exchanged_client_outreaches_is_stated_as_nothing(multiplier: float, proven: bool) -> None:
    """Tables reach 28 standard deviations: from further apart some models are possible with one client only."""
    method = wire(settings({"method.noise_multiplier": multiplier})).method
    assert isinstance(method, CentralDp)
    (release,) = method.releases(_plan(method, 0))[0]
    (loss,) = [g.loss for g in release.guarantees if g.adversary == MODEL_READER]
    assert isinstance(loss, PoissonGaussian if proven else Infinite)
    if isinstance(loss, PoissonGaussian):
        drawn = method._noise.grid(method.first_upload.values).noise
        assert loss.eta == method.first_upload.values * drawn.slack().eta


def test_a_weak_target_gets_the_least_noise_that_can_be_stated() -> None:
    target = {"method.noise_multiplier": None, "method.target": {"epsilon": 1e5, "delta": 1e-4}, "rounds.count": 1}
    method = wire(settings(target)).method
    assert isinstance(method, CentralDp)
    assert method._noise.sigma == 0.125


def test_a_budget_against_model_readers_is_enforced() -> None:
    """The ledger counts in Renyi divergences, and stops before the statement's figure comes to the limit."""
    budget = {"limit": 5.0, "delta": 1e-5, "adversary": "model-reader"}
    outcome = run(settings({"clients.budget": budget, "method.noise_multiplier": 2.5, "rounds.count": 9}), workers=1)
    proven = row(outcome.statement, MODEL_READER).proven
    assert 1 <= len(outcome.rounds) < 9
    assert proven <= 5


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"method.target": {"epsilon": 1.0, "delta": 1e-5}}, "both given of target"),
        ({"method.noise_multiplier": None}, "neither given of target"),
        ({"clients.epsilon": 1.0}, "central-dp takes none"),
        ({"method.clip": "mean"}, "median"),
        ({"method.clip": 0.0}, "method.clip"),
        ({"method.selection": {"kind": "count", "k": 2}}, "method.selection.kind"),
    ],
    ids=["both", "neither", "epsilon", "mean", "zero", "count"],
)
def test_what_cannot_be_had_is_said_before_anything_runs(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeInvalid) as caught:
        settings(changes)
    assert problem in str(caught.value)


def test_a_noise_that_no_proof_covers_is_refused() -> None:
    with pytest.raises(InvalidInput):
        wire(settings({"method.noise_multiplier": None, "method.target": {"epsilon": 1e-9, "delta": 1e-12}}))
