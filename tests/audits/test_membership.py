"""Members told by shadow models: well where a model remembers its records, and never beyond what is proven."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.membership import Gaussians, ShadowEffort, Told, tell, tell_members
from sordino.audits.server_view import Reporters, hear
from sordino.errors import InvalidInput
from sordino.fleets.workers import InProcess
from sordino.runs.simulation import run
from tests.audits.runs import RECIPES, SGD, small
from tests.engine.tiny import recipe

SMALL = ShadowEffort(shadows=64, held_out=4_000, trials=4_000, records=100, rounds=3, repeated=1e12, work=1e12)
#: 40 records in two silos: one noisy sum over all records in each of three rounds
NOISY: dict[str, Any] = {
    "training": SGD,
    "split": {"kind": "iid", "clients": 2},
    "method": {"name": "silo-dp", "clip": 1.0, "noise_multiplier": 8.0, "sampling_rate": 1.0, "steps": 1},
}
OVERFITTED = {"training.epochs": 20, "split.clients": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """Finished runs by name; each is run once, and opened anew every time."""

    @cache
    def folder(name: str):
        path = tmp_path_factory.mktemp("runs") / "run"
        given = {"overfitted": lambda: recipe(OVERFITTED), "noisy": lambda: recipe(NOISY)}
        run(given.get(name, lambda: small(name))(), folder=path, workers=1)
        return path

    return lambda name: FinishedRun.open(folder(name))


def test_members_of_an_overfitted_run_are_told(runs):
    reports, model = tell(runs("overfitted"), AttackOptions(), SMALL)
    assert (reports.variant, model.variant) == ("run", "run")
    assert reports.share.interval()[0] > 0.3  # 0.01 by chance
    assert model.share.interval()[0] > 0.1
    for leak in (reports, model):
        assert leak.figures["false_alarms_at_1"] < 0.03
        assert leak.figures["auc"] > 0.8
        assert leak.figures["tpr_at_1"] == leak.share.rate
        assert leak.bound is None
        assert not leak.is_violation
        assert leak.limit == ()
    assert reports.figures["rounds"] == 3
    assert reports.figures["auc"] > model.figures["auc"]  # who sees more tells more


def test_a_proof_bounds_what_is_told(runs):
    found = tell(runs("noisy"), AttackOptions(), SMALL)
    assert [leak.variant for leak in found] == ["run", "run", "bare", "bare"]
    for leak in found[:2]:
        assert leak.bound is not None
        assert leak.bound < 0.2
        assert leak.share.rate <= leak.bound
        assert not leak.is_violation
        assert max(y - limit for (_, y), (_, limit) in zip(leak.limit, leak.limit[1:], strict=False)) <= 0  # it rises
    for leak in found[2:]:
        assert leak.bound is None
        assert leak.share.rate > 3 * found[0].share.rate


def test_noise_that_is_left_out_violates_the_proof(runs):
    faulty = runs("noisy")
    assert faulty.statement.rows  # what was stated of the run as it should have been
    method = faulty.federation.method
    method.training = replace(method.training, noise_multiplier=1e-9)
    reports, model, *_ = tell(faulty, AttackOptions(), SMALL)
    assert reports.is_violation
    assert model.is_violation


def test_the_same_seed_gives_the_same_figures(runs):
    few = replace(SMALL, shadows=8, held_out=100, trials=100)
    first, again = (tell(runs("noisy"), AttackOptions(seed=3), few) for _ in range(2))
    timeless = [[replace(leak, figures={**leak.figures, "seconds": 0.0}) for leak in leaks] for leaks in (first, again)]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize("name", ["noisy", "two-point"])
def test_figures_do_not_depend_on_the_number_of_workers(runs, name):
    few, found = replace(SMALL, shadows=8, held_out=100, trials=100), []
    for workers in (1, 2):
        leaks = tell(runs(name), AttackOptions(workers=workers), few)
        found.append([replace(leak, figures={**leak.figures, "seconds": 0.0}) for leak in leaks])
    assert found[0]
    assert found[0] == found[1]


class Backwards(InProcess):
    """Does the last job first, as two workers of a busy machine may."""

    workers = 2

    def run(self, plan, jobs, deadline=None):
        return super().run(plan, list(jobs)[::-1], deadline)


def test_figures_do_not_depend_on_which_worker_is_done_first(runs):
    few = replace(SMALL, shadows=8, held_out=100, trials=100)
    options = (AttackOptions(workers=1), AttackOptions(pool=SimpleNamespace(hands=Backwards)))
    first, again = ([leak.curve for leak in tell(runs("two-point"), each, few)] for each in options)
    assert first == again


def test_a_named_client_is_attacked(runs):
    assert {leak.figures["client"] for leak in tell(runs("overfitted"), AttackOptions(client=1), SMALL)} == {1.0}
    with pytest.raises(InvalidInput, match="client 9"):
        tell(runs("overfitted"), AttackOptions(client=9), SMALL)


def test_behind_a_secure_sum_only_the_model_is_read(runs):
    found = tell(runs("summed"), AttackOptions(), SMALL)
    assert [(leak.variant, leak.how) for leak in found] == [
        ("run", "likelihood ratio, one model"),
        ("bare", "likelihood ratio, one model"),
    ]


@pytest.mark.parametrize("name", ["ldpfl", "central-dp", "private-head", "local-only"])
def test_methods_without_reports_of_trained_models_are_left_out(runs, name):
    assert tell_members(runs(name), AttackOptions()) == ()


def test_real_clients_are_refused(runs):
    with pytest.raises(InvalidInput, match="real"):
        tell_members(replace(runs("none"), simulated=False), AttackOptions())


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in RECIPES if name in ("none", "two-point", "silo-dp", "samples")])
def test_rounds_that_are_heard_again_are_the_run_s(runs, name):
    """The model after the last one is the run's own, to the last bit."""
    own = runs(name)
    heard = hear(own, AttackOptions(), own.rounds)
    method = own.federation.method
    tally = method.tally(heard[-1].plan)
    tally.add(list(heard[-1].bodies), list(heard[-1].bodies.values()))
    after = method.update(heard[-1].state, heard[-1].plan, tally).parameters
    from safetensors.numpy import load_file

    kept = load_file(own.folder.checkpoint / "state.safetensors")
    assert any(np.array_equal(after, array.reshape(-1)) for array in kept.values() if array.size == after.size)


def test_answers_differ_from_world_to_world(runs):
    own = runs("noisy")
    plan = hear(own, AttackOptions(), 1)[0].plan
    data = own.federation.population.data(0, "cpu")
    noisy = Reporters(own, "run").answers(plan, [(0, data)] * 3, seed=1).changes
    bare = Reporters(own, "bare").answers(plan, [(0, data)] * 3, seed=1).changes
    assert len(np.unique(noisy, axis=0)) == 3
    assert np.allclose(bare[0], bare[1], atol=1e-5)
    assert not np.allclose(noisy[0], bare[0], atol=1e-2)


def test_gaussians_are_fitted_to_each_side():
    rng = np.random.default_rng(1)
    scores, coins = rng.normal(size=(12, 3)), rng.random((12, 3)) < 0.5
    fitted = Gaussians.fit(scores, coins)
    for record in range(3):
        mine, rest = scores[coins[:, record], record], scores[~coins[:, record], record]
        assert fitted.inside[record] == pytest.approx(mine.mean())
        assert fitted.outside[record] == pytest.approx(rest.mean())
        assert fitted.inner[record] == pytest.approx(mine.var(ddof=1), rel=1e-4)


def test_scores_without_a_trace_of_members_tell_none():
    """Of 20,000 trials 1 % are beyond the threshold, whoever is in: more than 1.5 % have a chance below 1e-6."""
    rng = np.random.default_rng(2)
    scores, coins = rng.normal(size=(160, 500)), rng.random((160, 500)) < 0.5
    told = Told.of([{"confidence": scores}], coins, 64, 32)
    members, alarms = told.at("1")
    assert 0.005 < members.rate < 0.015
    assert 0.005 < alarms.rate < 0.015
    assert told.auc == pytest.approx(0.5, abs=0.02)


def test_a_shift_of_two_deviations_is_told_as_often_as_it_should_be():
    """At 1 % false alarms N(2, 1) is told from N(0, 1) with a chance of 1 - Phi(2.326 - 2) = 0.372."""
    rng = np.random.default_rng(3)
    coins = rng.random((384, 500)) < 0.5
    told = Told.of([{"confidence": rng.normal(size=(384, 500)) + 2 * coins}], coins, 128, 128)
    assert told.at("1")[0].rate == pytest.approx(0.372, abs=0.03)
    assert told.accuracy == pytest.approx(0.841, abs=0.01)
    assert told.curve()[0][0] == 0.0
    assert told.curve()[-1] == (1.0, 1.0)


def worlds_that_shift(seed: int) -> Told:
    """Nobody leaves a trace, and noise of each world moves all its records alike."""
    rng = np.random.default_rng(seed)
    coins = rng.random((128, 500)) < 0.5
    scores = rng.normal(size=(128, 500)) + rng.normal(size=(128, 1)) / 2
    return Told(scores[96:], coins[96:], {"1": 1.118 * norm.isf(0.01)}, 0.01)


def test_false_alarms_of_the_same_world_count_for_few():
    """Beyond the threshold are 1 % of N(0, 5/4): 32 worlds say less about it than their 8,000 records would alone."""
    for seed in range(20):
        told = worlds_that_shift(seed)
        alone = told.at("1")[1].interval(1e-6)[1]
        assert max(0.01, 1.1 * alone) < told.most_alarms("1") < 0.1


def test_how_many_guesses_are_judged_is_fixed_beforehand():
    made = {worlds_that_shift(seed).guesses.made for seed in range(5)}
    assert made == {160}
