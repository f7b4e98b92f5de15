"""Canaries: their patterns, their gradients, where they are planted, and what an adversary makes of an upload."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from sordino.audits.canaries import Ear, Flock, PlantedPopulation, SiloAttacker
from sordino.audits.canary_patterns import Gradients, made_up, patterns
from sordino.audits.findings import AuditOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.run_attack import attack
from sordino.audits.run_audit import audit
from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.cohort import ClientData
from sordino.learning.examples import Examples, Normalisation
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import PrivateTraining
from sordino.runs.federation import wire
from sordino.runs.simulation import run
from tests.audits.runs import small

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("one") / "run"
    run(small("one step"), folder=folder, workers=1)
    return FinishedRun.open(folder)


class Lookup(torch.nn.Module):
    """Scores of whole numbers, by a table."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table, self.last = torch.nn.Embedding(17, 2), torch.nn.Linear(2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(x.flatten(1).long()).mean(dim=1))


def test_of_a_model_of_tokens_no_records_are_made_up_and_other_attacks_go_on(tmp_path):
    tokens = {"model": {"name": f"{__name__}:Lookup", "per_record": True}}
    run(small("one step").with_(tokens), folder=tmp_path, workers=1)
    with pytest.raises(InvalidInput, match="tokens"):
        audit(tmp_path, AuditOptions(canaries=20))
    found = attack(tmp_path, ["reconstruction", "labels"])
    assert [words for words in found.left_out if words.startswith("reconstruction") and "tokens" in words]
    assert found.leaks


# --- records ----------------------------------------------------------------------------------------------------------


def test_patterns_are_orthogonal_and_come_again_under_other_labels():
    found, labels = patterns(8, 3, 24, np.random.default_rng(1))
    for block in range(3):
        own = found[8 * block : 8 * block + 8]
        assert own @ own.T == pytest.approx(np.eye(8), abs=1e-5)
    assert found[:8] == pytest.approx(found[8:16])
    pairs = {(tuple(np.round(x, 4)), int(y)) for x, y in zip(found, labels, strict=True)}
    assert len(pairs) == 24
    assert set(labels.tolist()) == {0, 1, 2}


def test_after_all_labels_there_are_new_patterns():
    found, _ = patterns(4, 2, 12, np.random.default_rng(1))
    assert not np.allclose(found[:4], found[8:12])


def test_large_records_get_random_signs_of_length_one():
    found, labels = patterns(3072, 10, 30, np.random.default_rng(1))
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(30), rel=1e-5)
    assert np.abs(found @ found.T - np.eye(30)).max() < 0.12
    assert labels.min() >= 0
    assert labels.max() < 10


def test_made_up_records_reach_the_clipping_bound():
    federation = wire(small("silo-dp"))
    records = made_up(federation, 100, 1)
    gradients = Gradients(federation.model, federation.method.training)
    norms = gradients.norms(torch.from_numpy(federation.method.init().parameters), records)
    assert float(norms.median()) >= 2 * federation.method.training.clip
    assert records.x.shape == (100, *federation.record_shape)


# --- gradients --------------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_single_records_clipped():
    model = models.build("logistic", input_shape=(5,), classes=3)
    training = PrivateTraining(SGD(0.1), 0.5, 1.0, 0.5, 4.0, 1)
    gradients = Gradients(model, training)
    x, y = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    w = torch.linspace(-1, 1, 18)
    each, weights, shifts = gradients.each(w, ClientData(x, y)), w[:15].view(3, 5), w[15:]
    for k in range(7):
        error = functional.softmax(weights @ x[k] + shifts, dim=0) - functional.one_hot(y[k], 3)
        by_hand = torch.cat([torch.outer(error, x[k]).flatten(), error])
        by_hand *= min(1.0, 0.5 / float(by_hand.norm())) / 0.5
        assert torch.allclose(each[k], by_hand, atol=0.02)
    assert torch.allclose(gradients.sum(w, ClientData(x, y)), each.sum(dim=0), atol=1e-5)
    losses = functional.cross_entropy(x @ weights.T + shifts, y, reduction="none")
    assert gradients.losses(w, ClientData(x, y)) == pytest.approx(losses.numpy(), abs=1e-5)


# --- planting ---------------------------------------------------------------------------------------------------------


def test_canaries_lie_behind_a_silos_own_records_and_nobody_elses():
    examples = Examples(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    parts = (np.array([0, 1]), np.array([2, 3]), np.array([], np.int64))
    planted = {k: ClientData(torch.ones(n, 2), torch.ones(n, dtype=torch.int64)) for k, n in ((0, 3), (2, 1))}
    population = PlantedPopulation(examples, parts, Normalisation(), planted)
    assert [population.size(k) for k in range(3)] == [5, 2, 1]
    assert population.data(0, CPU).y.tolist() == [0, 0, 1, 1, 1]
    assert population.data(1, CPU).y.tolist() == [0, 0]
    assert population.data(2, CPU).y.tolist() == [1]


def test_a_flock_is_spread_evenly_and_only_those_that_are_in_are_planted(finished):
    flock = Flock.of(finished, range(10), 205, seed=3)
    assert sorted(np.bincount(flock.silos).tolist()) == [20] * 5 + [21] * 5
    planted = flock.planted()
    assert sum(len(own) for own in planted.values()) == int(flock.present.sum())
    first = flock.of_silo(0)
    assert torch.equal(planted[0].x, flock.records.x[first[flock.present[first]]])


# --- listening --------------------------------------------------------------------------------------------------------


def test_an_ear_that_hears_nothing_says_one_half():
    assert Ear(np.arange(3)).scores() == pytest.approx([0.5] * 3)


def test_an_ear_finds_the_coins_where_there_is_next_to_no_noise():
    shares = torch.randn(20, 50, generator=torch.Generator().manual_seed(1))
    coins = torch.arange(20) % 3 == 0
    ear = Ear(np.arange(20))
    ear.hear(shares, coins.float() @ shares, 1e-4)
    assert ear.scores() == pytest.approx(coins.numpy().astype(float), abs=1e-3)


def test_what_is_heard_again_counts_again():
    once, twice = Ear(np.arange(1)), Ear(np.arange(1))
    share = torch.ones(1, 1)
    once.hear(share, torch.ones(1), 0.5)
    for _ in range(2):
        twice.hear(share, torch.ones(1), 1.0)
    # prior 1/2 with precision 4, observation 1 with precision 2: (2 + 2)/(4 + 2)
    assert once.scores() == pytest.approx([4 / 6])
    assert twice.scores() == pytest.approx(once.scores())


def test_the_server_reads_the_sums_behind_an_upload(finished):
    """One step of plain descent: upload = -lr / expected batch * (sum of clipped gradients + noise)."""
    flock = Flock.of(finished, range(10), 20, seed=1)
    training = finished.federation.method.training
    adversary = SiloAttacker(finished, flock, Gradients(finished.federation.model, training), None)
    sums = torch.linspace(-2, 2, 650)
    upload = -training.optimizer.lr / training.expected_batch * training.clip * sums
    assert torch.allclose(adversary._sums(upload, 1), sums, atol=1e-5)


def test_scores_tell_coins_as_well_as_the_noise_allows(finished):
    """Of single Gaussian releases with mu = 1/sigma, in and out differ by mu deviations."""
    from sordino.audits.canaries import play_silos
    from sordino.audits.findings import AuditOptions

    flock = Flock.of(finished, range(40), 2000, seed=1)
    scores = play_silos(finished, flock, [None], AuditOptions()).by_uploads[None]
    inside, outside = scores[flock.present], scores[~flock.present]
    apart = (inside.mean() - outside.mean()) / math.sqrt((inside.var() + outside.var()) / 2)
    assert 0.85 * 0.75 < apart < 1.15 * 0.75


def test_more_canaries_than_memory_holds_are_refused(finished, monkeypatch):
    monkeypatch.setattr("sordino.audits.canaries.MOST_VALUES", 1000)
    flock = Flock.of(finished, range(10), 40, seed=1)
    training = finished.federation.method.training
    with pytest.raises(InvalidInput, match="--canaries"):
        SiloAttacker(finished, flock, Gradients(finished.federation.model, training), None)
