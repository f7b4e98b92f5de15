"""LDPFL: records randomised once, what they lose, a network federated over them, and the idea done right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from sordino import run
from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.cohort import ClientData
from sordino.learning.splits import IidSplit
from sordino.learning.stacked_model import LOOP, Execution
from sordino.learning.training_tables import RmsPropSpec
from sordino.mechanisms import BitRandomizer, BitString, FixedPoint
from sordino.mechanisms.output import BitOutput
from sordino.mechanisms.privunit import best_cap
from sordino.mechanisms.record_tables import Optimised, Theorem1, Theorem2
from sordino.methods.blueprint import UNCONTAINED
from sordino.methods.chamikara_ldpfl import WHAT, Ldpfl
from sordino.methods.extractor_tables import OrientedExtractorSpec as Oriented
from sordino.methods.extractors import (
    PARAMETERS,
    OrientedExtractor,
    RandomExtractor,
    TrainedExtractor,
    derivatives,
    features_of,
)
from sordino.methods.interface import Bench, ClientState, Cohort
from sordino.methods.randomised_records import (
    CLEAR_LABELS,
    FEATURES,
    JOINT,
    LABELS,
    RECORDS,
    BitRecords,
    JointRecords,
    RecordStreams,
    Unpacked,
    unit,
)
from sordino.privacy.guarantee import Adjacency, Budget, Derived, Infinite, ParallelByRecord, Pure, Sequential
from sordino.privacy.ledger import cost
from sordino.randomness import Keystream
from sordino.recipe import Data, Model, Recipe, RecipeInvalid
from sordino.report.statement import sentences
from sordino.runs.federation import wire
from sordino.wire.messages import Plan
from tests.methods.own_networks import Plain

TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 7,
    "data": {"source": "digits", "train_limit": 60, "test_limit": 31},
    "split": {"kind": "iid", "clients": 3},
    "model": {"name": "ldpfl-dense", "options": {"hidden": [8]}},
    "training": {"epochs": 2, "batch_size": 8, "optimizer": {"name": "adam", "lr": 0.01}},
    "clients": {"epsilon": 0.5},
    "method": {
        "name": "ldpfl",
        "extractor": {
            "kind": "trained",
            "model": "ldp-fed",
            "training": {
                "epochs": 2,
                "batch_size": 10,
                "augmentation": {"shift": 0.1},
                "optimizer": {"name": "rmsprop", "lr": 0.001, "decay": 1e-6},
            },
        },
    },
    "rounds": {"count": 2},
}
BITS = 1280  #: 32 channels of 2x2 pixels, ten bits each
RANDOM = {"method.extractor": {"kind": "random", "model": "ldp-fed"}}
JOINTLY: dict[str, Any] = {
    "model": {"name": "logistic"},
    "method.extractor": {"kind": "oriented", "orientations": 4, "cells": 4},
    "method.mechanism": {"name": "record-privunit"},
    "clients.epsilon": 4.0,
    "training": {"steps": 1, "batch_size": 0, "optimizer": {"name": "sgd", "lr": 1.0, "weight_decay": 1.0}},
    "rounds.count": 1,
}


def tiny(changes: Mapping[str, Any] | None = None) -> Recipe:
    return Recipe.from_dict(TINY).with_(dict(changes or {}))


def bit_records(features: int, epsilon: float = 0.5, spec: Any = None) -> BitRecords:
    return BitRecords(spec or Theorem2(), FixedPoint(), features, [epsilon], "randomised")


def test_fits_are_log_likelihoods_and_records_of_another_label_do_not_fit():
    """By hand: of each bit the probability that it is reported as it was, multiplied."""
    records = bit_records(1, epsilon=2.0)
    mechanism, features = records._mechanism(0), np.array([[0.5], [-3.0], [7.0]], np.float32)
    labels = np.array([1, 1, 0])
    kept = records.randomise(features[:1], labels[:1], 0, Keystream.simulation(1, [0], 0))
    seen = np.unpackbits(kept[RECORDS], axis=1, count=10, bitorder="little")[0]
    bits = FixedPoint().encode(features)
    ones = np.where(bits == 1, mechanism.ones, mechanism.zeros) / 2**32
    wanted = np.log(np.where(seen == 1, ones, 1 - ones)).sum(axis=1)
    fits = records.fits(kept, features, labels, 0)[0]
    np.testing.assert_allclose(fits[:2] - fits[0], wanted[:2] - wanted[0])
    assert fits[2] == -np.inf


def prepared(recipe: Recipe) -> tuple[Ldpfl, dict[int, ClientState]]:
    """The recipe's method, and what each client made of its records."""
    federation = wire(recipe)
    method = federation.method
    assert isinstance(method, Ldpfl)
    normal, train = federation.dataset.normalisation, federation.dataset.train
    data = tuple(
        ClientData(torch.from_numpy(normal.apply(train.x[p])), torch.from_numpy(train.y[p]))
        for p in federation.parts
    )  # fmt: skip
    cohort = Cohort(tuple(range(len(data))), data, ({},) * len(data), tuple(map(len, data)))
    made = method.prepare(Plan("t", 0), cohort, lambda who: Keystream.simulation(recipe.seed, list(who), 0), Bench())
    return method, dict(enumerate(made))


# --- what a record loses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "proven"),
    [(1024, 34_884.836), (1152, 39_245.441), (2048, 69_769.673)],
    ids=["mnist", "fmnist", "cifar"],
)  # fmt: skip
def test_the_papers_setting_claims_half_and_is_proven_to_lose_tens_of_thousands(features, proven):
    released, _ = bit_records(features).releases("f/0", "records", 0, 1)
    (guarantee,) = released.guarantees
    assert guarantee.adjacency is Adjacency.RECORD_REPLACE
    assert isinstance(guarantee.loss, Pure) and guarantee.loss.epsilon == pytest.approx(proven, rel=1e-7)
    assert released.composition == ParallelByRecord()
    claim = released.claimed
    assert claim is not None and (claim.epsilon, claim.adjacency) == (0.5, Adjacency.RECORD_REPLACE)


def test_an_extractor_trained_on_all_records_multiplies_by_their_number():
    alone, group = (bit_records(1024).releases("f/0", "records", 0, n)[0] for n in (1, 27_000))
    losses = [release.guarantees[0].loss for release in (alone, group)]
    assert losses[1].epsilon == pytest.approx(27_000 * losses[0].epsilon, rel=1e-12)
    assert group.composition == Sequential() and "27,000 records" in group.guarantees[0].basis


def test_of_features_that_own_code_makes_nothing_is_proven(tmp_path):
    """One record may end the client's process."""
    save_file(Plain((1, 8, 8), 10).state_dict(), tmp_path / "net.safetensors")
    code = "tests.methods.own_networks:Plain"
    own = {"kind": "network", "model": code, "weights": str(tmp_path / "net.safetensors"), "elsewhere": True}
    losses = [
        [g.loss for g in wire(tiny({"method.extractor": extractor})).method.releases(Plan("t", 0))[0][0].guarantees]
        for extractor in (own, RANDOM["method.extractor"])
    ]
    assert losses[0] == [Infinite(UNCONTAINED)] and [type(loss) for loss in losses[1]] == [Pure]


@pytest.mark.parametrize("failure", [ValueError, SystemExit, BaseException])
def test_a_record_without_features_takes_no_other_with_it(monkeypatch, failure):
    extractor, x = RandomExtractor(network(), 128, 7), torch.rand(5, 1, 8, 8)
    whole, plain = features_of(extractor, x, {}), RandomExtractor.__call__

    def failing(self, given, kept):
        if any(torch.equal(one, x[3]) for one in given):
            raise failure("not this one")
        return plain(self, given, kept)

    monkeypatch.setattr(RandomExtractor, "__call__", failing)
    found = features_of(extractor, x, {})
    assert not found[3].any() and np.allclose(np.delete(found, 3, 0), np.delete(whole, 3, 0), atol=1e-5)


def test_labels_are_unprotected_and_part_of_the_claim():
    features, labels = bit_records(16).releases("f/0", "records", 0, 1)
    assert {g.adjacency: type(g.loss) for g in labels.guarantees} == {
        Adjacency.RECORD_REPLACE: Infinite, Adjacency.LABEL: Infinite,
    }  # fmt: skip
    assert labels.claimed == features.claimed  # one figure for both: claims of a whole schedule count once
    assert "of features alone, epsilon is 546" in labels.guarantees[0].loss.why  # 160 bits at (2.303 + 4.511)/2


def test_rounds_are_derived_and_cost_nothing_however_many():
    method = wire(tiny(RANDOM)).method
    once = [tuple(own) for own in method.releases(Plan("t", 0))]
    assert [[release.what for release in own] for own in once] == [[FEATURES, CLEAR_LABELS]]
    ((later,),) = method.releases(Plan("t", 5))
    assert later.what == WHAT and later.composition == Derived(tuple(release.id for release in once[0]))
    assert not later.guarantees and later.claimed is None


def test_the_statement_does_not_grow_with_rounds():
    one, three = (run(tiny({**RANDOM, "rounds.count": count}), workers=1).statement.rows for count in (1, 3))
    assert one == three
    record, label = one
    assert (record.adjacency, label.adjacency) == (Adjacency.RECORD_REPLACE, Adjacency.LABEL)
    assert math.isinf(record.proven) and record.claimed is not None and record.claimed.epsilon == 0.5
    assert record.verdict == "claim not supported"


def test_the_guarantee_of_a_trained_extractor_comes_from_a_public_bound_and_not_from_the_records():
    changes = {"clients.epsilon": [0.5, 0.5, 1.0], "method.extractor.most_records": 15}
    told = []
    for sizes in ([20, 10, 20], [10, 30, 10]):
        method = wire(tiny({**changes, "split": {"kind": "sizes", "sizes": sizes}})).method
        assert [method.class_of(k) for k in range(3)] == [0, 0, 1]
        told.append(method.releases(Plan("t", 0)))
    assert told[0] == told[1]  # nothing of it depends on how many records anybody has
    alone = wire(tiny({"clients.epsilon": [0.5, 0.5, 1.0], **RANDOM})).method.releases(Plan("t", 0))
    for group, one in zip(told[0], alone, strict=True):
        assert group[0].guarantees[0].loss.epsilon == pytest.approx(15 * one[0].guarantees[0].loss.epsilon)


def test_without_a_public_bound_nothing_is_proven_of_a_trained_extractor():
    for sizes in ([20, 10, 20], [20, 20, 20]):
        method = wire(tiny({"split": {"kind": "sizes", "sizes": sizes}})).method
        (own,) = method.releases(Plan("t", 0))
        assert isinstance(own[0].guarantees[0].loss, Infinite)
        assert own[0].claimed is not None and own[0].claimed.epsilon == 0.5  # the paper's own, for one record
    (joint,) = JointRecords(4, 10, [1.0]).releases("f/0", "records", 0, None)
    assert isinstance(joint.guarantees[0].loss, Infinite) and joint.claimed is None


def test_clients_with_more_records_than_the_bound_use_the_first_so_many():
    recipe = tiny({"split": {"kind": "sizes", "sizes": [20, 10, 20]}, "method.extractor.most_records": 15})
    _, made = prepared(recipe)
    assert [len(kept[RECORDS]) for kept in made.values()] == [15, 10, 15]


@pytest.mark.parametrize(("spec", "proven"), [(Theorem1(), 0.909), (Optimised(), 0.5)], ids=["theorem-1", "oue"])
def test_the_other_randomisers_keep_about_their_word(spec, proven):
    released, _ = bit_records(1024, spec=spec).releases("f/0", "records", 0, 1)
    assert released.guarantees[0].loss.epsilon == pytest.approx(proven, abs=1e-3)


def test_optimised_keeps_ones_with_an_even_chance():
    mechanism = BitRandomizer.optimised(0.5, BitString(10240))
    assert set(mechanism.ones) == {2**31}
    assert mechanism.zeros[0] / 2**32 == pytest.approx(1 / (1 + math.exp(0.5 / 5120)), abs=1e-9)
    assert mechanism.record_loss() <= 0.5 * (1 + 1e-4)


# --- randomised once --------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 90), st.data())
def test_every_record_has_its_own_words_however_records_are_grouped(records, each, data):
    stream = Keystream.simulation(3, [5], 0)
    streams = RecordStreams(stream, np.arange(records), each)
    stride = -(-each // 4) * 4
    whole = stream.words(np.zeros(1, np.intp), 1, 0, 0, records * stride).reshape(records, stride)
    some = np.array(data.draw(st.lists(st.integers(0, records - 1), min_size=1, unique=True)))
    assert np.array_equal(streams.words(some, 1, 0, 0, each), whole[some, :each])
    assert np.array_equal(streams.words(np.arange(records), 1, 0, 0, stride), whole)


@pytest.mark.parametrize("first", [2**29 - 1, 2**29, 2**30 - 2, 2**31 + 5])
def test_more_records_than_one_stream_has_words_for_are_randomised_too(first):
    """A stream has 2^34 words, and how many records there are is private: no number of them is refused."""
    streams = RecordStreams(Keystream.fresh(), np.arange(first, first + 4), 32)
    found = streams.words(np.arange(4), 1, 0, 0, 32)
    assert found.shape == (4, 32) and len(np.unique(found)) > 120
    simulated = RecordStreams(Keystream.simulation(3, [5], 0), np.arange(first, first + 4), 32)
    alone = [simulated.words(np.array([k]), 1, 0, 0, 32)[0] for k in range(4)]
    assert np.array_equal(simulated.words(np.arange(4), 1, 0, 0, 32), np.stack(alone))
    other = RecordStreams(Keystream.simulation(3, [5], 0), np.arange(first % 2**29, first % 2**29 + 1), 32)
    assert np.array_equal(other.words(np.arange(1), 1, 0, 0, 32)[0], alone[0]) == (first < 2**29)
    tested = RecordStreams(Keystream.simulation(3, [5], 0), np.arange(first, first + 1), 32)
    assert not np.array_equal(tested.words(np.arange(1), 1, 1, 0, 32)[0], alone[0])


def test_words_beyond_a_records_own_are_refused():
    streams = RecordStreams(Keystream.simulation(3, [5], 0), np.arange(2), 8)
    with pytest.raises(InvalidInput, match="word 8"):
        streams.words(np.array([0]), 1, 0, 4, 5)


def test_bits_are_kept_and_flipped_as_equation_13_says():
    """64,000 bits of each kind; the bounds are five standard deviations, so a false alarm has probability 4e-6."""
    records, n = bit_records(16), 8_000
    ones = np.full((n, 16), 15.96875, np.float32)  # sixteen codes of 0 111111111
    kept = records.randomise(ones, np.zeros(n, np.int64), 0, Keystream.simulation(1, [0], 0))
    bits = BitOutput(kept[RECORDS], 160).bits().reshape(n, 16, 10)
    q = 1 / (1 + 10 * math.exp(0.5 / 80))
    for place, wanted in [(0, q), *((k, 10 / 11 if k % 2 == 0 else 1 / 1001) for k in range(1, 10))]:
        found = bits[:, :, place].mean()
        assert abs(found - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / (16 * n)), place


def test_a_client_keeps_packed_bits_labels_and_its_own_extractor():
    recipe = tiny()
    _, made = prepared(recipe)
    assert made[0][RECORDS].shape == (20, BITS // 8) and made[0][RECORDS].dtype == np.uint8
    federation = wire(recipe)
    assert np.array_equal(made[1][LABELS], federation.dataset.train.y[federation.parts[1]])
    assert not np.array_equal(made[0][PARAMETERS], made[1][PARAMETERS])  # each trained on its own records
    again = prepared(recipe)[1]
    assert all(np.array_equal(made[k][name], again[k][name]) for k in made for name in made[k])


def test_what_is_kept_is_the_randomised_code_of_the_extractors_features():
    recipe = tiny()
    method, made = prepared(recipe)
    federation = wire(recipe)
    x = torch.from_numpy(federation.dataset.normalisation.apply(federation.dataset.train.x[federation.parts[2]]))
    code = FixedPoint().encode(features_of(method.extractor, x, made[2]))
    streams = RecordStreams(Keystream.simulation(7, [2], 0), np.arange(20), BITS)
    output = BitRandomizer.theorem2(0.5, BitString(BITS)).randomize(code, streams).output
    assert isinstance(output, BitOutput) and np.array_equal(output.packed, made[2][RECORDS])


@pytest.mark.parametrize(
    ("extractor", "apart"),
    [({"kind": "oriented"}, (True, False)), ({"kind": "scattering", "scales": 1}, (True, True)), (None, (True, True))],
    ids=["public", "exact", "trained"],
)
def test_real_clients_make_features_of_public_extractors_one_record_at_a_time(monkeypatch, extractor, apart):
    """Those of a trained one depend on all records anyway, and its figure counts them all."""
    recipe = tiny() if extractor is None else tiny({"method.extractor": extractor})
    method, pieces = wire(recipe).method, []
    honest = type(method.extractor).__call__
    listen = lambda own, x, kept: pieces.append(len(x)) or honest(own, x, kept)  # noqa: E731
    monkeypatch.setattr(type(method.extractor), "__call__", listen)
    benches = Bench(LOOP), Bench(Execution(8))
    assert tuple(method.computes_records_apart(bench) for bench in benches) == apart
    data = ClientData(torch.rand(5, 1, 8, 8), torch.zeros(5, dtype=torch.int64))
    streams = lambda clients: Keystream.simulation(7, clients, 0)  # noqa: E731
    for bench, usual in zip(benches, (1, 5), strict=True):
        pieces.clear()
        method.prepare(method.preparation("x"), Cohort((0,), (data,), ({},), (5,)), streams, bench)
        exact = extractor is not None and extractor["kind"] == "scattering"
        assert pieces == ([5] if exact or usual == 5 else [1] * 5)


def test_a_client_without_records_has_nothing_and_reports_no_change():
    recipe = tiny({"split": {"kind": "sizes", "sizes": [20, 0, 20], "at_least": 0}})
    outcome = run(recipe, workers=1)
    assert [record.reported for record in outcome.rounds] == [3, 3]
    assert sum(map(sum, outcome.result.confusion)) == 21  # clients 0 and 2 see their shares of 31 test examples


# --- extractors -------------------------------------------------------------------------------------------------------


def network() -> models.Network:
    found = models.build("ldp-fed", input_shape=(1, 8, 8), classes=10)
    assert isinstance(found, models.Network)
    return found


def test_a_trained_extractor_works_with_the_clients_own_statistics():
    recipe = tiny()
    method, made = prepared(recipe)
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    features = features_of(method.extractor, x, made[0])
    assert features.shape == (6, 128)
    assert np.allclose(features[:2], features_of(method.extractor, x[:2], made[0]))  # no record sees its neighbours
    other = {**made[0], "statistics.bn1.running_mean": made[0]["statistics.bn1.running_mean"] + 1}
    assert not np.allclose(features, features_of(method.extractor, x, other))


@pytest.mark.parametrize(("start", "same"), [("common", True), ("own", False)])
def test_networks_start_together_or_each_by_itself(start, same):
    recipe = tiny({"method.extractor.start": start})
    given: Any = recipe.method
    extractor = given.extractor.build((1, 8, 8), 10, recipe.seed)
    assert isinstance(extractor, TrainedExtractor)
    starts = [extractor._start_of(k, lambda who: Keystream.simulation(7, list(who), 0)) for k in (0, 1)]
    assert torch.equal(*starts) == same


def test_public_extractors_know_nothing_of_records():
    for extractor in (RandomExtractor(network(), 128, 1), OrientedExtractor(4, 2, (1, 8, 8))):
        assert extractor.public
        assert extractor.fit([0, 1], [], lambda who: Keystream.simulation(1, list(who), 0), Bench()) == [{}, {}]


def test_oriented_features_tell_directions_apart_and_not_brightness():
    slopes = derivatives(4)
    assert slopes.shape == (4, 1, 5, 5) and torch.allclose(slopes.abs().sum((1, 2, 3)), torch.ones(4))
    assert torch.allclose(slopes.sum((1, 2, 3)), torch.zeros(4), atol=1e-6)
    ramp = torch.arange(9.0).expand(1, 1, 9, 9)  # brighter to the right
    features = OrientedExtractor(4, 1, (1, 9, 9))(ramp, {})[0]
    right, down, left, up = features.tolist()
    assert right > max(down, left, up) and features.sum().abs() < 1e-5
    blank = OrientedExtractor(4, 3, (1, 9, 9))(torch.full((1, 1, 9, 9), 5.0), {})
    assert torch.allclose(blank, torch.zeros(1, 36), atol=1e-4)


def test_images_smaller_than_the_cells_are_refused():
    with pytest.raises(InvalidInput, match="9x9 cells"):
        OrientedExtractor(4, 9, (1, 8, 8))


# --- learning ---------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 50))
def test_a_network_over_bytes_sees_their_bits(bits):
    drawn = np.random.default_rng(bits).random((3, bits)) < 0.5
    seen = Unpacked(torch.nn.Identity(), bits)(torch.from_numpy(BitOutput.pack(drawn).packed))
    assert seen.dtype == torch.float32 and np.array_equal(seen.numpy(), drawn.astype(np.float32))


def test_a_round_is_plain_averaging_of_networks_trained_on_randomised_records():
    recipe = tiny({**RANDOM, "rounds.count": 1, "training.steps": 1, "training.epochs": None, "training.batch_size": 0,
                   "training.optimizer": {"name": "sgd", "lr": 0.1}})  # fmt: skip
    _, made = prepared(recipe)
    federation = wire(recipe)
    start = models.initial_parameters(federation.model, recipe.seed)
    ends = []
    for own in made.values():
        x = torch.from_numpy(BitOutput(own[RECORDS], BITS).bits().astype(np.float32))
        named = {name: value.clone().requires_grad_() for name, value in start.items()}
        loss = torch.nn.functional.cross_entropy(
            torch.func.functional_call(federation.model, named, (x,)), torch.from_numpy(own[LABELS])
        )
        gradients = torch.autograd.grad(loss, list(named.values()))
        moved = {n: v - 0.1 * g for (n, v), g in zip(start.items(), gradients, strict=True)}
        ends.append(federation.layout.flatten(moved).numpy())
    assert np.allclose(run(recipe, workers=1).parameters, np.mean(ends, axis=0), atol=1e-6)


def test_each_test_example_is_seen_once_through_one_clients_extractor():
    outcome = run(tiny(), workers=1)
    assert sum(map(sum, outcome.result.confusion)) == 31
    assert outcome.accuracy == pytest.approx(np.trace(outcome.result.confusion) / 31)


def test_test_examples_are_randomised_or_not_as_the_recipe_says():
    recipe = tiny(RANDOM)
    plain, randomised = (
        prepared(tiny({**RANDOM, "method.examined": how}))[0].records.examined for how in ("plain", "randomised")
    )
    features = np.random.default_rng(0).random((4, 128), np.float32)
    draw = Keystream.simulation(recipe.seed, [0], 0)
    code = BitOutput.pack(FixedPoint().encode(features).astype(bool)).packed
    assert np.array_equal(plain(features, np.arange(4), 0, draw), code)
    first, again = (randomised(features, np.arange(4), 0, draw) for _ in range(2))
    assert np.array_equal(first, again) and not np.array_equal(first, code)
    trained = prepared(recipe)[0].records.randomise(features, np.zeros(4, np.int64), 0, draw)
    assert not np.array_equal(first, trained[RECORDS])  # other words than those of the records


def test_the_network_learns_from_bits_that_are_not_randomised():
    changes = {"data": {"source": "digits", "train_limit": 400, "test_limit": 100}, "split.clients": 2,
               "method.mechanism": {"name": "none"}, "clients.epsilon": None, "training.epochs": 6,
               "rounds.count": 3, **RANDOM}  # fmt: skip
    outcome = run(tiny(changes), workers=1)
    assert outcome.accuracy is not None and outcome.accuracy > 0.7
    assert "features are not randomised" in " ".join(sentences(outcome.statement))


def test_alone_every_client_trains_its_own_network_and_sends_nothing():
    outcome = run(tiny({"method.learning": "alone"}), workers=1)
    assert outcome.statement.rows == () and outcome.result.preflight == ("Clients send nothing.",)
    assert sum(map(sum, outcome.result.confusion)) == 31
    assert outcome.accuracy is not None


def test_a_proven_budget_is_enforced_before_anything_is_made():
    budget = {"limit": 0.5, "adjacency": "record-replace"}
    outcome = run(tiny({"clients.budget": budget}), workers=1)
    assert outcome.result.rounds == 0 and "all 3 clients declined to prepare" in outcome.result.stopped
    assert outcome.accuracy is None and outcome.statement.rows == ()


def test_the_claimed_budget_of_the_paper_is_spent_once():
    budget = {"limit": 0.5, "basis": "claimed", "adjacency": "record-replace"}
    outcome = run(tiny({"clients.budget": budget, "rounds.count": 3}), workers=1)
    assert [record.spent_max for record in outcome.rounds] == [0.5, 0.5, 0.5]
    assert [own.reports for own in outcome.result.budgets] == [3, 3, 3]


def test_only_some_of_the_clients_may_decline():
    budget = {"limit": [0.5, 0.4, 0.5], "basis": "claimed", "adjacency": "record-replace"}
    outcome = run(tiny({"clients.budget": budget}), workers=1)
    assert [(r.reported, r.declined) for r in outcome.rounds] == [(2, 1), (2, 1)]
    assert sum(map(sum, outcome.result.confusion)) == 21  # the third that declined has no extractor to look through


# --- done right -------------------------------------------------------------------------------------------------------


def test_features_and_label_together_are_claimed_for_the_whole_record():
    outcome = run(tiny({**JOINTLY, "rounds.count": 3}), workers=1)
    (row,) = outcome.statement.rows
    assert row.adjacency is Adjacency.RECORD_REPLACE and row.proven == math.inf
    assert row.claimed is not None and row.claimed.epsilon == 4.0  # once, whatever is made of the records
    budget = {"limit": 4.0, "adjacency": "record-replace", "basis": "claimed"}
    assert run(tiny({**JOINTLY, "clients.budget": budget}), workers=1).result.rounds == 1


def test_no_client_with_a_proven_budget_randomises_its_records_with_floats():
    budget = {"limit": 1000.0, "adjacency": "record-replace"}
    outcome = run(tiny({**JOINTLY, "clients.budget": budget}), workers=1)
    assert [own.reports for own in outcome.result.budgets] == [0, 0, 0]
    assert outcome.rounds == () and outcome.statement.rows == ()


def test_a_randomised_record_names_no_feature_that_is_not_zero():
    """At 0.01, of 600 records: the values that plain 32-bit noise cannot give are as many among zeros as elsewhere.

    Both shares within 6 standard deviations of each other, false alarm 2e-9; with noise kept in 32 bits, none of the
    zeros has one, and about a tenth of the others.
    """
    n, epsilon, joint = 600, 0.01, JointRecords(20, 4, [0.01])
    features = np.zeros((n, 20), np.float32)
    features[:, ::3] = np.random.default_rng(2).normal(size=(n, 7))
    labels = np.arange(n) % 4
    z = joint.randomise(features, labels, 0, Keystream.simulation(4, [0], 0))[RECORDS]
    scale = math.sqrt(3 / 4) / best_cap(epsilon).m
    near = (z / scale).astype(np.float32)
    tried = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    odd = ~np.logical_or.reduce([(x.astype(np.float64) * scale).astype(np.float32) == z for x in tried])
    zero = joint.directions(features, labels) == 0
    share = odd.mean()
    deviation = math.sqrt(share * (1 - share) * (1 / zero.sum() + 1 / (~zero).sum()))
    assert abs(odd[zero].mean() - odd[~zero].mean()) <= 6 * deviation


def test_one_step_takes_the_network_to_the_mean_of_the_randomised_records():
    recipe = tiny(JOINTLY)
    _, made = prepared(recipe)
    mean = np.mean([own[RECORDS].astype(np.float64).mean(axis=0) for own in made.values()], axis=0)
    found = run(recipe, workers=1).parameters
    assert np.allclose(found[:640], mean, atol=1e-4) and np.allclose(found[640:], 0, atol=1e-6)


def test_directions_are_what_logistic_regression_learns_first():
    features, labels = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32), np.array([0, 1, 2, 3, 0])
    joint = JointRecords(3, 4, [1.0])
    found = joint.directions(features, labels)
    weight = torch.zeros(4, 3, requires_grad=True)
    for k in range(5):
        scores = weight @ torch.from_numpy(unit(features)[k])
        (gradient,) = torch.autograd.grad(
            torch.nn.functional.cross_entropy(scores[None], torch.tensor([labels[k]])), weight
        )
        assert np.allclose(found[k], -gradient.flatten(), atol=1e-6)
    assert np.allclose(np.linalg.norm(found, axis=1), math.sqrt(3 / 4), atol=1e-6)


def test_randomised_directions_are_unbiased():
    """The mean of 4,000 draws lies within five standard errors in each of 8 coordinates: false alarms below 5e-6."""
    joint, n = JointRecords(2, 4, [2.0]), 4_000
    features, labels = np.tile(np.float32([0.6, 0.8]), (n, 1)), np.full(n, 2)
    z = joint.randomise(features, labels, 0, Keystream.simulation(4, [0], 0))[RECORDS].astype(np.float64)
    wanted = joint.directions(features[:1], labels[:1])[0]
    assert (np.abs(z.mean(axis=0) - wanted) < 5 * z.std(axis=0) / math.sqrt(n)).all()


def test_a_trained_extractor_multiplies_here_too():
    released = JointRecords(4, 10, [1.0]).releases("f/0", "records", 0, 50)
    assert [release.what for release in released] == [JOINT]
    assert isinstance(released[0].guarantees[0].loss, Infinite)
    assert released[0].claimed is not None and released[0].claimed.epsilon == 50.0


# --- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"training.augmentation": {"flip": True}},
            r"training\.augmentation: .* give it to method\.extractor\.training",
        ),
        ({"method.mechanism": {"name": "record-privunit"}}, r"model\.name: got ldpfl-dense; .* take logistic"),
        ({"clients.epsilon": None}, r"clients\.epsilon: missing"),
        ({"method.mechanism": {"name": "theorem-2", "alpha": 1.0}}, r"method\.mechanism\.alpha"),
    ],
    ids=["augmentation", "model", "epsilon", "alpha"],
)
def test_what_does_not_fit_is_said_before_any_work(changes, match):
    with pytest.raises(RecipeInvalid, match=match):
        tiny(changes)


def test_a_network_without_a_place_to_split_is_refused():
    with pytest.raises(InvalidInput, match=r"ldpfl-mnist.*pixels"):
        wire(tiny({"method.extractor.model": "ldpfl-mnist"}))


def test_weight_decay_can_be_for_some_tensors_only():
    rule = RmsPropSpec(lr=0.001, weight_decay=1e-4, decayed=("conv*.weight",)).build().weight_decay
    rates = rule.per_value({"conv1.weight": 2, "conv1.bias": 1, "fc.weight": 1})
    assert torch.equal(rates, torch.tensor([1e-4, 1e-4, 0.0, 0.0]))


def test_a_recipe_can_be_made_of_objects():
    recipe = Recipe(
        name="mine", data=Data(source="digits"), split=IidSplit(clients=2), model=Model(name="logistic"),
        clients={"epsilon": 1.0},
        method={"name": "ldpfl", "extractor": Oriented(cells=4), "mechanism": {"name": "record-privunit"}},
    )  # fmt: skip
    assert recipe.method.extractor.kind == "oriented"


def test_a_budget_for_proven_figures_counts_the_features_of_a_public_extractor():
    features, _ = bit_records(1024).releases("f/0", "records", 0, 1)
    assert cost(Budget(1.0, adjacency=Adjacency.RECORD_REPLACE), features) == pytest.approx(34_884.836, rel=1e-6)
