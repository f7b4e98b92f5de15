"""Descriptions are frozen, checked where they are made, and survive a round trip through JSON."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.privacy.guarantee import (
    MODEL_READER,
    SERVER,
    Adjacency,
    Adversary,
    Budget,
    Claim,
    Derived,
    GaussianLoss,
    Guarantee,
    Infinite,
    Metric,
    ParallelByRecord,
    PoissonGaussian,
    Pure,
    RandomizedBit,
    Release,
    Sequential,
    from_json,
    shuffled,
    summed,
    to_json,
)

nonnegative = st.floats(0, 1e308)
losses = st.one_of(
    st.builds(Pure, nonnegative, st.integers(1, 10**9)),
    st.builds(Metric, nonnegative, nonnegative, st.integers(1, 10**9)),
    st.builds(RandomizedBit, st.integers(1, 2**31), st.integers(1, 10**9)),
    st.builds(GaussianLoss, nonnegative, nonnegative, nonnegative),
    st.builds(PoissonGaussian, st.floats(1e-9, 1), st.floats(1e-9, 1e9), st.integers(1, 10**6),
              nonnegative, nonnegative),
    st.builds(Infinite, st.text(min_size=1)),
)  # fmt: skip
adversaries = st.one_of(
    st.sampled_from([SERVER, MODEL_READER]), st.integers(1, 10**6).map(shuffled), st.integers(1, 10**6).map(summed)
)
guarantees = st.one_of(
    st.builds(Guarantee, adversaries, st.sampled_from(Adjacency), losses, st.text()),
    st.builds(Guarantee, st.just(summed(7)), st.sampled_from(Adjacency), losses, st.text(), st.integers(1, 62)),
)
names = st.text(min_size=1, max_size=20)
releases = st.builds(
    Release,
    names,
    names,
    names,
    st.lists(guarantees, min_size=1, max_size=3).map(tuple),
    st.none()
    | st.builds(
        Claim, nonnegative, st.floats(0, 0.99), st.text(), st.sampled_from(Adjacency), adversaries,
        st.sampled_from(["release", "schedule"]),
    ),
    st.sampled_from([Sequential(), ParallelByRecord()]),
) | st.builds(Release, names, names, names, st.just(()), st.none(), st.just(Derived(("a", "b"))))  # fmt: skip


@given(releases)
def test_releases_survive_json_and_equal_ones_give_equal_bytes(release: Release) -> None:
    text = to_json(release)
    again = from_json(Release, text)
    assert again == release
    assert to_json(again) == text
    assert json.loads(text)["type"] == "Release"


def test_sampled_noise_written_before_it_had_slack_is_still_read() -> None:
    loss = PoissonGaussian(0.1, 2.0, 10)
    text = to_json(Guarantee(SERVER, Adjacency.CLIENT, loss, "b"))
    packed = json.loads(text)
    del packed["loss"]["eta"], packed["loss"]["tau"]
    assert from_json(Guarantee, json.dumps(packed)).loss == loss
    assert to_json(from_json(Guarantee, json.dumps(packed))) == text


@given(st.builds(Budget, st.floats(1e-9, 1e9), st.floats(0, 0.99), st.sampled_from(["proven", "claimed"]),
                 st.sampled_from(Adjacency), adversaries))  # fmt: skip
def test_budgets_survive_json(budget: Budget) -> None:
    assert from_json(Budget, to_json(budget)) == budget


def test_a_sum_without_a_modulus_hides_no_more_than_the_report_in_it() -> None:
    """But for bits, of which a sum shows the number, and for what is infinite."""
    record, client = Adjacency.RECORD_ADD_REMOVE, Adjacency.CLIENT
    given = [
        Guarantee(SERVER, record, GaussianLoss(3.0), "alone"),
        Guarantee(summed(5), record, GaussianLoss(1.0), "together"),
        Guarantee(summed(5), record, GaussianLoss(1.0), "together", 20),
        Guarantee(summed(5), record, RandomizedBit(2**30, 1), "bits"),
        Guarantee(summed(5), record, GaussianLoss(3.0), "as alone"),
        Guarantee(summed(5), client, Pure(1.0), "nothing is said of a report"),
    ]
    found = Release("r", "d", "sums", tuple(given)).guarantees
    assert found[1] == dataclasses.replace(given[0], adversary=summed(5))
    assert found[0] == given[0] and list(found[2:5]) == given[2:5]
    assert isinstance(found[5].loss, Infinite)


@pytest.mark.parametrize(("adversary", "modulus"), [(SERVER, 20), (shuffled(5), 20), (summed(5), 0)])
def test_a_modulus_is_one_of_sums(adversary: Adversary, modulus: int) -> None:
    with pytest.raises(InvalidInput):
        Guarantee(adversary, Adjacency.CLIENT, Pure(1.0), "x", modulus)


def test_descriptions_are_frozen_and_hashable() -> None:
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0), "enumerated")
    with pytest.raises(dataclasses.FrozenInstanceError):
        guarantee.basis = "changed"  # type: ignore[misc]
    assert len({guarantee, Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0), "enumerated")}) == 1


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1", None])
def test_figures_must_be_finite_and_nonnegative(bad: Any) -> None:
    for make in (lambda: Pure(bad), lambda: Metric(bad, 1.0), lambda: Metric(1.0, bad), lambda: GaussianLoss(bad),
                 lambda: GaussianLoss(1.0, bad), lambda: GaussianLoss(1.0, 0.0, bad), lambda: Claim(bad, 0.0, "x"),
                 lambda: PoissonGaussian(0.5, 1.0, 1, bad), lambda: PoissonGaussian(0.5, 1.0, 1, 0.0, bad),
                 lambda: Budget(bad)):  # fmt: skip
        with pytest.raises(InvalidInput):
            make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomizedBit(0, 1),
        lambda: RandomizedBit(2**31 + 1, 1),
        lambda: RandomizedBit(5, 0),
        lambda: Pure(1.0, 0),
        lambda: Pure(1.0, 1.5),
        lambda: Metric(1.0, 1.0, 0),
        lambda: RandomizedBit(0.5, 1),
        lambda: PoissonGaussian(0.0, 1.0, 1),
        lambda: PoissonGaussian(1.1, 1.0, 1),
        lambda: PoissonGaussian(0.5, 0.0, 1),
        lambda: PoissonGaussian(0.5, 1.0, 0),
        lambda: Infinite(""),
        lambda: Claim(1.0, 1.0, "x"),
        lambda: Budget(0.0),
        lambda: Budget(1.0, delta=1.0),
        lambda: Budget(1.0, basis="hoped"),
        lambda: Derived(()),
        lambda: Derived(("",)),
        lambda: shuffled(0),
        lambda: Adversary("server", 5),
        lambda: Adversary("shuffled"),
        lambda: Adversary("nobody"),
        lambda: Release("", "d", "w", (Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0), "b"),)),
        lambda: Release("r", "d", "w", ()),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_a_derived_release_needs_no_guarantee_of_its_own() -> None:
    assert Release("r", "d", "w", (), composition=Derived(("q",))).guarantees == ()


def test_a_derived_release_cannot_carry_a_guarantee_or_a_claim_past_the_ledger() -> None:
    raw = Guarantee(SERVER, Adjacency.CLIENT, Infinite("raw data"), "none")
    for guarantees, claim in (((raw,), None), ((), Claim(1.0, 0.0, "eps"))):
        with pytest.raises(InvalidInput, match="derived"):
            Release("r", "d", "w", guarantees, claim, Derived(("q",)))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"type":"Secret"}', '{"type":"Pure"}', '{"type":"Pure","epsilon":1,"more":2}',
     '{"type":"Pure","epsilon":-1}'],
)  # fmt: skip
def test_unknown_or_incomplete_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        from_json(Pure, text)


def test_descriptions_written_before_there_were_counts_are_of_one_output() -> None:
    assert from_json(Pure, '{"type":"Pure","epsilon":0.5}') == Pure(0.5, 1)
    assert from_json(Metric, '{"type":"Metric","alpha":0.5,"distance":2.0}') == Metric(0.5, 2.0, 1)


def test_adversaries_are_named_for_people() -> None:
    assert [str(a) for a in (SERVER, MODEL_READER, shuffled(7), summed(3))] == [
        "server",
        "model reader",
        "shuffled(7)",
        "summed(3)",
    ]


def test_a_bit_that_is_surely_hidden_is_written_as_before_there_was_a_chance_that_it_is_not():
    def written(loss: RandomizedBit) -> str:
        return to_json(Guarantee(SERVER, Adjacency.CLIENT, loss, "b"))

    assert "tau" not in written(RandomizedBit(5, 3))
    text = written(RandomizedBit(5, 3, 2.0**-40))
    assert from_json(Guarantee, text).loss == RandomizedBit(5, 3, 2.0**-40) and "tau" in text
    with pytest.raises(InvalidInput, match="tau"):
        RandomizedBit(5, 3, -1.0)
