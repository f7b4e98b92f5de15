"""Reconstruction from reports: nearly all without noise, chance under much of it, never above what is proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino.audits import bit_decoder, candidate_likelihood, likeliest_update, proven_twin, reconstruction
from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.gradient_matching import LocalSteps, SearchEffort, invert_features
from sordino.audits.linear_decoder import decode, decode_noisy
from sordino.audits.reconstruction import reconstruct
from sordino.audits.reconstruction_game import RecordPool, leak_of, pool_beside, proven_bound
from sordino.audits.run_attack import attack as attack_run
from sordino.audits.update_attack import MATCHED, UpdateAttack
from sordino.errors import BoundViolated, InvalidInput
from sordino.learning import datasets, models
from sordino.mechanisms.noise import GaussianNoise
from sordino.methods import private_head
from sordino.privacy.guarantee import SERVER, Adjacency
from sordino.privacy.leaks import Leak, identification_bound
from sordino.recipe import Recipe
from sordino.runs.simulation import run as simulate
from tests.audits.runs import HEAD, RECIPES
from tests.engine.tiny import TINY

Run = Callable[..., FinishedRun]
DIGITS: dict[str, Any] = {**TINY, "data": {"source": "digits"}, "rounds": {"count": 2}}
TWO_POINTS: dict[str, Any] = {
    "method": {
        "name": "fedavg", "upload": "update", "mechanism": {"name": "two-point"},
        "range": {"kind": "fixed", "radius": 0.1},
    },
    "clients": {"epsilon": 0.1},
}  # fmt: skip


@pytest.fixture
def finished(tmp_path: Path) -> Run:
    def run(**changes: Any) -> FinishedRun:
        whole = {key: value for key, value in changes.items() if "." not in key}
        simulate(Recipe.from_dict({**DIGITS, **whole}), folder=tmp_path / "run", workers=1)
        return FinishedRun.open(tmp_path / "run")

    return run


def by_variant(found: tuple[Leak, ...], how: str = "") -> dict[str, Leak]:
    return {leak.variant: leak for leak in found if how in leak.how}


# --- networks ---------------------------------------------------------------------------------------------------------


def digits_attack(noise: float, epochs: int = 1, count: int = 16) -> float:
    """The share of digits identified from the updates of a small convolutional network."""
    pool = RecordPool(datasets.load("digits"), 1)
    targets = pool.draw(count)
    own = pool.records(targets)
    model = models.build("ldp-fed", 1, input_shape=(1, 8, 8), classes=10, norm="none")
    layout = models.parameter_layout(model)
    start = layout.flatten(models.initial_parameters(model, 1))
    rates = (0.1,) * epochs
    updates = LocalSteps(model, layout, start, rates).updates(own.x, own.y).detach()
    updates = updates + noise * updates.std() * torch.randn(updates.shape, generator=torch.Generator().manual_seed(1))
    pool, public = replace(pool, known=targets).without_public(800)
    attack = UpdateAttack(model, start, pool.pixels, rates, SearchEffort(steps=100), public=pool.pictures(public))
    return float(pool.identified(list(attack.of_one(updates).unsqueeze(1)), targets).mean())


@pytest.mark.parametrize("epochs", [1, 5])
def test_a_convolutional_network_gives_its_digits_away(epochs: int) -> None:
    assert digits_attack(noise=0.0, epochs=epochs) >= 0.9


def test_much_noise_hides_them() -> None:
    assert digits_attack(noise=300.0) <= 3 / 16  # chance is 1/1000 each: exceeded once in 10^9


def test_gradients_are_matched_without_a_dense_layer() -> None:
    pool = RecordPool(datasets.load("digits"), 1)
    targets = pool.draw(4)
    own = pool.records(targets)
    model = models.build("mlp", 1, input_shape=(1, 8, 8), classes=10, hidden=[32])
    layout = models.parameter_layout(model)
    start = layout.flatten(models.initial_parameters(model, 1))
    updates = LocalSteps(model, layout, start, (0.1,)).updates(own.x, own.y).detach()
    attack = UpdateAttack(model, start, pool.pixels, (0.1,), SearchEffort(steps=200, starts=2))
    assert pool.identified(list(attack.of_one(updates, MATCHED).unsqueeze(1)), targets).all()


def test_features_of_several_models_are_inverted_side_by_side() -> None:
    pool = RecordPool(datasets.load("digits"), 1)
    own = pool.records(pool.draw(2))
    model = models.build("ldp-fed", 1, input_shape=(1, 8, 8), classes=10, norm="none")
    before = UpdateAttack(model, torch.zeros(1), pool.pixels, (0.1,)).dense
    assert before is not None
    wanted = before.before(own.x).detach()
    shared = {name: value.detach() for name, value in model.named_parameters()}
    each = {name: torch.stack([value, value]) for name, value in shared.items()}
    effort = SearchEffort(steps=10, starts=2)
    found = [invert_features(before.before, wanted, pool.pixels, effort, 1, given) for given in (shared, each)]
    assert torch.allclose(*found, atol=0.02)


# --- the game ---------------------------------------------------------------------------------------------------------


@pytest.mark.unit
def test_a_blind_attack_wins_as_often_as_chance() -> None:
    pool = replace(RecordPool(datasets.load("digits"), 3), known=np.arange(1_700))
    assert pool.candidates == 98
    targets = np.arange(200)
    found = list(torch.rand(200, 1, 1, 8, 8, generator=torch.Generator().manual_seed(1)))
    assert pool.identified(found, targets).sum() <= 12  # 2 are expected: exceeded once in 10^6


@pytest.mark.unit
def test_the_record_itself_is_identified_and_doubles_are_no_candidates() -> None:
    pool = RecordPool(datasets.load("digits"), 1)
    targets = pool.draw(5)
    assert pool.identified(list(pool.pictures(targets).unsqueeze(1)), targets).all()
    others = pool.others(int(targets[0]))
    assert len(others) == 999 and len(set(others)) == 999 and targets[0] not in others


@pytest.mark.unit
def test_a_decoder_learns_what_bits_say() -> None:
    draws = torch.Generator().manual_seed(1)
    pictures, mixing = torch.rand(300, 16, generator=draws), torch.randn(16, 400, generator=draws)
    bits = ((pictures - 0.5) @ mixing > 0).float()
    assert (decode(bits[:250], pictures[:250], bits[250:]) - pictures[250:]).square().mean() < 0.01


@pytest.mark.unit
def test_a_decoder_of_noisy_values_goes_from_the_picture_to_the_mean_picture() -> None:
    draws = torch.Generator().manual_seed(1)
    pictures, mixing = torch.rand(300, 4, generator=draws), torch.randn(4, 40, generator=draws)
    seen = pictures @ mixing
    known, unknown, mean = seen[:250], seen[250:], pictures[:250].double().mean(0)
    clear, noisy, drowned = (decode_noisy(known, pictures[:250], unknown, v) for v in (0.0, 1.0, 1e9))
    errors = [float((found - pictures[250:]).square().mean()) for found in (clear, noisy, drowned)]
    assert errors[0] < 1e-6 < errors[1] < errors[2]
    assert torch.allclose(drowned, mean.expand(50, -1), atol=1e-4)


@pytest.mark.unit
def test_the_candidate_nearest_to_what_is_left_is_the_likeliest() -> None:
    parts = np.array([[0.0, 0.0], [4.0, 0.0], [10.0, 0.0]])
    assert candidate_likelihood.nearest_part(np.array([[1.0, 5.0], [5.0, 1.0], [99.0, 0.0]]), parts).tolist() == [
        0,
        1,
        2,
    ]


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_a_run_without_a_mechanism_gives_records_away(finished: Run) -> None:
    found = reconstruct(finished(), AttackOptions())
    alone = by_variant(found, "one record")
    assert alone["run"].share.rate >= 0.9 and alone["run"].bound is None
    assert alone["run"].share.trials == reconstruction.RECORDS
    assert len(alone["run"].originals) == len(alone["run"].pictures) == 8
    assert alone["run"].figures["ssim"] > 0.9
    assert {leak.variant for leak in found if "whole clients" in leak.how} == {"bare", "run"}


def test_two_points_hide_what_is_seen_without_them(finished: Run) -> None:
    found = by_variant(reconstruct(finished(**TWO_POINTS), AttackOptions()), "one record")
    assert found["bare"].share.rate >= 0.9
    assert found["run"].share.rate <= 0.2
    assert found["run"].bound is not None and not found["run"].is_violation


@pytest.mark.parametrize(("epsilon", "named"), [(8.0, (13, 64)), (0.1, (0, 2))])
def test_the_likeliest_candidate_is_named_where_noise_is_weak(
    finished: Run, epsilon: float, named: tuple[int, int]
) -> None:
    """Two bits a weight. At epsilon 8, which the search for pictures calls hidden, 25 are named; by chance 0.06."""
    run = finished(**{**TWO_POINTS, "clients": {"epsilon": epsilon}, "training": {**TINY["training"], "epochs": 5}})
    found = by_variant(reconstruct(run, AttackOptions()), "likeliest")
    assert found["bare"].share.hits >= 60
    assert named[0] <= found["run"].share.hits <= named[1]
    assert found["run"].figures["candidates"] == 1000 and not found["run"].pictures


GAUSSIAN: dict[str, Any] = {
    "method": {
        "name": "fedavg", "upload": "update", "range": {"kind": "fixed", "radius": 1.0},
        "mechanism": {"name": "gaussian", "calibration": "analytic", "delta": 1e-5, "norm": "l2"},
    },
    "clients": {"epsilon": 2.0},
}  # fmt: skip


def test_noise_that_is_left_out_is_a_violated_bound(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = finished(**GAUSSIAN), AttackOptions()
    with_noise = by_variant(tuple(likeliest_update.attack(run, 0, asked)))["run"]
    assert with_noise.bound is not None and with_noise.bound < 0.05 and not with_noise.is_violation
    drawn = GaussianNoise.draw
    monkeypatch.setattr(GaussianNoise, "draw", lambda self, words: 0 * drawn(self, words))
    assert by_variant(tuple(likeliest_update.attack(run, 0, asked)))["run"].is_violation
    with pytest.raises(BoundViolated, match="likeliest candidate"):
        attack_run(run.folder.path, ["reconstruction"])


def test_the_twins_noise_left_out_is_a_violated_bound(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = private_head._noise
    monkeypatch.setattr(private_head, "_noise", lambda *given: 0 * drawn(*given))
    (leak,) = proven_twin.attack(finished(**TWO_POINTS), 0, AttackOptions(), np.arange(8))
    assert leak.is_violation


def test_a_small_data_set_has_candidates_too(finished: Run) -> None:
    run = finished(**TWO_POINTS, data={"source": "digits", "train_limit": 20, "test_limit": 10})
    for leak in likeliest_update.attack(run, 0, AttackOptions()):
        assert leak.figures["candidates"] == 15


def test_the_largest_seed_is_a_seed(finished: Run) -> None:
    run, asked = finished(**TWO_POINTS), AttackOptions(seed=2**64 - 1)
    assert len(tuple(likeliest_update.attack(run, 0, asked))) == 2
    assert proven_twin.attack(run, 0, asked, np.arange(8))


def test_where_all_training_records_are_the_clients_own_nothing_is_proven_of_them(finished: Run) -> None:
    """Candidates of the test set were never as likely as theirs."""
    found = by_variant(
        reconstruct(finished(**TWO_POINTS, split={"kind": "iid", "clients": 3}), AttackOptions()), "whole"
    )
    assert found["run"].bound is None


def test_records_of_one_report_are_no_independent_trials(finished: Run) -> None:
    run = finished(**TWO_POINTS, split={"kind": "iid", "clients": 20})
    own = run.federation.parts[0]
    pool, equal = pool_beside(run, 1, own)
    others = pool.others(int(own[0]))
    assert equal and others.max() < len(run.federation.dataset.train) and not np.isin(others, own).any()
    found = by_variant(reconstruct(run, AttackOptions()), "whole")
    assert found["run"].bound is not None and found["run"].likelihood is not None


def test_doubles_are_one_candidate(finished: Run) -> None:
    dataset = datasets.load("digits")
    train = replace(dataset.train, x=dataset.train.x[np.arange(len(dataset.train)) % 50])
    pool = RecordPool(replace(dataset, train=train), 1, len(train) + np.arange(len(dataset.test)))
    assert pool.candidates > 900 and len(pool.others(7)) == 49
    targets = np.arange(5)
    leak = leak_of(finished(), 0, "run", "", pool, list(pool.pictures(targets).unsqueeze(1)), targets, {})
    assert leak.figures["candidates"] == 50 and leak.chance == 1 / 50


def test_a_proven_run_stays_under_its_bound_and_noise_is_what_keeps_it_there(finished: Run) -> None:
    head = {**HEAD, "clients": {"epsilon": 1.0}, "method": {**HEAD["method"], "channel": {"kind": "direct"}}}
    found = by_variant(reconstruct(finished(**head), AttackOptions()))
    run, bare = found["run"], found["bare"]
    assert run.bound is not None and run.bound < 0.05
    assert not run.is_violation and run.share.rate <= 0.1
    assert bare.share.rate >= 0.9
    assert replace(run, share=bare.share).is_violation  # what it would say if noise were left out


def test_the_bound_is_that_of_replacing_a_record(finished: Run) -> None:
    run = finished(**{**HEAD, "method": {**HEAD["method"], "channel": {"kind": "direct"}}})
    rows = run.stated(run.groups[0])
    (twice,) = (row for (_, adjacency), row in rows.items() if adjacency is Adjacency.RECORD_ADD_REMOVE)
    delta = (1 + np.exp(twice.proven)) * twice.delta
    assert proven_bound(run, 0, 1000) <= identification_bound(2 * twice.proven, delta, 1000)


def test_randomised_records_are_decoded(finished: Run) -> None:
    run = finished(
        split={"kind": "iid", "clients": 4},
        model={"name": "ldpfl-dense", "options": {"hidden": [8]}},
        clients={"epsilon": 0.5},
        method={"name": "ldpfl", "extractor": {"kind": "oriented", "orientations": 2, "cells": 4}},
    )
    every = reconstruct(run, AttackOptions())
    found = by_variant(every, "decoder")
    assert found["bare"].share.rate > 0.1
    assert found["bare"].share.trials == found["run"].share.trials == 64
    named = by_variant(every, "likeliest")  # an epsilon of 0.5 is claimed, and next to nothing is hidden
    assert named["run"].share.rate > 0.9 and named["run"].bound is None
    assert named["proven"].share.hits <= 3 and named["proven"].bound < 0.003  # 0.2 are expected: exceeded once in 10^4


def test_the_record_of_a_client_that_has_no_other_is_decoded_as_any(finished: Run) -> None:
    """Labels weigh as much beside one record as beside many."""
    public, attacked = torch.rand(50, 6), torch.rand(8, 6)
    labels = torch.arange(50) % 3
    many = bit_decoder._labelled((public, labels), (attacked, labels[:8]))[1]
    one = bit_decoder._labelled((public, labels), (attacked[:1], labels[:1]))[1]
    assert one.isfinite().all() and torch.equal(one[0], many[0])


def test_a_client_that_holds_nearly_all_records_leaves_none_to_learn_from(finished: Run) -> None:
    run = finished(
        **{**RECIPES["ldpfl"], "split": {"kind": "iid", "clients": 1}},
        data={"source": "digits", "train_limit": 20, "test_limit": 1},
    )
    with pytest.raises(InvalidInput, match="none are left to learn from"):
        reconstruct(run, AttackOptions())


def test_sums_are_attacked_as_sums(finished: Run) -> None:
    found = reconstruct(finished(method={**DIGITS["method"], "channel": {"kind": "summed"}}), AttackOptions())
    alone = by_variant(found, "one record")
    assert alone["run"].figures["clients"] == reconstruction.RECORDS and alone["bare"].figures["clients"] == 1
    assert alone["run"].share.rate < alone["bare"].share.rate


def test_real_clients_and_silent_ones_are_refused(finished: Run) -> None:
    run = finished(method={"name": "local-only"})
    with pytest.raises(InvalidInput):
        reconstruct(run, AttackOptions())
    with pytest.raises(InvalidInput, match="real clients"):
        reconstruct(replace(run, simulated=False), AttackOptions())


def test_records_that_may_be_left_out_of_a_round_are_given_away_by_the_others(finished: Run) -> None:
    """Each record is in a round's sample with a chance of 0.8: without noise, all rounds are seen as with it."""
    given = {**RECIPES["personalized"], "rounds": {"count": 3}}
    alone = by_variant(reconstruct(finished(**given), AttackOptions()), "one record")
    assert alone["bare"].share.rate > 0.9


def test_clients_that_sit_out_a_round_are_attacked_by_their_other_reports(finished: Run) -> None:
    """A coin of each client's own decides, and the server that central privacy trusts sees all reports."""
    given = {**RECIPES["central-dp"], "rounds": {"count": 5}}
    alone = by_variant(reconstruct(finished(**given), AttackOptions()), "one record")
    assert alone["run"].share.rate > 0.8 and alone["run"].bound is None


# --- the proven recipe beside a run -----------------------------------------------------------------------------------


def test_a_run_has_a_twin_that_proves_its_epsilon(finished: Run) -> None:
    """Of 64 records it names none at epsilon 0.1, and without the twin's noise all that no other candidate equals."""
    own = finished(**TWO_POINTS)
    every = reconstruct(own, AttackOptions())
    leak, run = by_variant(every)["proven"], by_variant(every, "one record")["run"]
    assert leak.originals == run.originals != () and len(leak.pictures) == len(leak.originals)
    assert leak.figures["epsilon"] == 0.1
    twin = proven_twin.proven_twin(own, 0.1)
    row = twin.stated(twin.group_of(0))[SERVER, Adjacency.RECORD_ADD_REMOVE]
    assert 0.09 < row.proven <= 0.1
    twice = identification_bound(2 * row.proven, (1 + np.exp(row.proven)) * row.delta, 1000)
    assert leak.bound is not None and 0.001 < leak.bound <= twice < 0.0013
    assert leak.share.hits <= 2 and not leak.is_violation  # 0.08 are expected: exceeded once in 10^4
    (bare,) = candidate_likelihood.attack(twin, AttackOptions(), ("bare",))
    assert bare.share.rate > 0.9


@pytest.mark.parametrize("recipe", [{}, HEAD])
def test_a_run_without_an_epsilon_or_with_a_proven_head_has_no_twin(finished: Run, recipe: dict[str, Any]) -> None:
    assert "proven" not in by_variant(reconstruct(finished(**recipe), AttackOptions()))


# --- data of one's own ------------------------------------------------------------------------------------------------

ABOUT: dict[str, Any] = {"classes": ["no", "yes"], "mean": [0.0], "std": [1.0]}


def table() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(200, 5)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def test_data_of_ones_own_may_have_the_name_of_a_known_set(finished: Run, tmp_path: Path) -> None:
    x, y = table()
    np.savez(tmp_path / "digits.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])
    run = finished(**TWO_POINTS, data={"source": str(tmp_path / "digits.npz"), **ABOUT})
    assert run.federation.dataset.name == "digits"
    (leak,) = proven_twin.attack(run, 0, AttackOptions(), np.arange(8))
    assert leak.bound is not None


def test_records_without_a_test_set_are_attacked(finished: Run, tmp_path: Path) -> None:
    rows = [f"{','.join(map(str, x))},{ABOUT['classes'][y]}" for x, y in zip(*table(), strict=True)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,c,d,e,answer", *rows]))
    run = finished(
        **TWO_POINTS,
        data={"source": str(tmp_path / "own.csv"), "label": "answer", **ABOUT},
        evaluation={"private": {"share": 0.25, "every": 2, "target": {"epsilon": 4.0, "delta": 1e-5}}},
    )
    assert not len(run.federation.dataset.test)
    found = by_variant(reconstruct(run, AttackOptions()), "")
    assert set(found) == {"bare", "run", "proven"} and found["proven"].bound < 0.01


@pytest.mark.parametrize("declared", [False, True])
def test_a_twin_stands_for_no_more_than_it_proves(finished: Run, tmp_path: Path, declared: bool) -> None:
    """A column's own code might end the client at one record, whatever was declared of it."""
    lines = [f"{1950 + k % 70}-05-01,{ABOUT['classes'][k % 2]}" for k in range(120)]
    (tmp_path / "own.csv").write_text("\n".join(["born,answer", *lines]))
    columns = {"born": {"kind": "tests.learning.test_columns:Year", "first": 1950}}
    file = str(tmp_path / "own.csv")
    run = finished(
        **TWO_POINTS,
        data={"source": file, "label": "answer", "classes": ABOUT["classes"], "columns": columns, "test": file},
        model={"name": "logistic", "per_record": declared},
    )
    found = proven_twin.attack(run, 0, AttackOptions(), np.arange(8))
    assert not found
