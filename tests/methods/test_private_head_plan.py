"""From a budget to noise, grids and bytes of a linear head, by public rules, and what a run says of them first."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from sordino.learning import models
from sordino.learning.unit_vectors import Form
from sordino.methods import private_head
from sordino.methods.private_head import HeadQuestion, PrivateHead
from sordino.parts import registry
from sordino.privacy.guarantee import SERVER, Adjacency, Infinite
from sordino.recipe import Recipe
from sordino.report.words import upper
from sordino.runs import preflight
from sordino.runs.federation import wire
from sordino.runs.head_plan import HeadPlan


def question(epsilon=1.0, clients=100, records=600.0, maps=81, cells=49, gradients=50, **keys):
    spec = PrivateHead.Spec(extractor=registry.make("extractor", "plain"), **keys)
    return HeadQuestion(Form(maps, cells), 10, [epsilon], spec, gradients, clients, records)


def noise_of_moments(asked, sigma, share):
    """The spectral norm of the noise in A/n by the formula: all silos' noise, of which the honest have their part."""
    each = math.sqrt(2) * sigma / math.sqrt(share) / math.sqrt(asked.shares)
    return 2 * each * math.sqrt(asked.clients) * math.sqrt(asked.form.maps) / (asked.clients * asked.counted)


@given(
    sigma=st.floats(0.1, 20),
    clients=st.sampled_from([10, 20, 100, 500]),
    records=st.floats(10, 10_000),
    maps=st.integers(1, 300),
    floor=st.floats(1e-4, 0.1),
)
def test_the_share_of_the_moments_is_the_least_that_keeps_their_noise_to_half_the_floor(
    sigma, clients, records, maps, floor
):
    asked = question(clients=clients, records=records, maps=maps, moments={"floor": floor})
    share = private_head.share_for(asked, sigma)
    if noise_of_moments(asked, sigma, 0.1) > floor / 2 * (1 + 1e-9):
        assert share == 0.05, "no share in reach is enough: the usual one"
        return
    assert 0.01 <= share <= 0.1
    assert noise_of_moments(asked, sigma, share) <= floor / 2 * (1 + 1e-9)
    if share > 0.01:
        assert noise_of_moments(asked, sigma, share * 0.99) > floor / 2


def test_the_share_that_is_given_holds_and_none_means_no_moments():
    assert HeadPlan.of(question(moments={"share": 0.2})).budgeting.share == 0.2
    without = HeadPlan.of(question(moments={"share": 0.0}))
    assert without.budgeting.moments is None and without.whitening_noise is None and len(without.sums) == 1


def test_a_plan_that_follows_the_rule_has_the_noise_that_the_rule_promises():
    plan = HeadPlan.of(question(10.0, clients=10, records=6000.0))
    assert 0.01 < plan.budgeting.share < 0.1
    assert plan.whitening_noise == pytest.approx(0.003 / 2, rel=0.02)
    rng = np.random.default_rng(1)
    noise = rng.normal(0, plan.question.mean_noise(plan.budgeting.moments), (81, 81))
    symmetric = np.triu(noise) + np.triu(noise, 1).T
    assert np.linalg.norm(symmetric, 2) == pytest.approx(plan.whitening_noise, rel=0.15)


@settings(max_examples=15)
@given(
    epsilon=st.sampled_from([0.1, 0.5, 1.0, 4.0, 10.0]),
    clients=st.sampled_from([10, 50, 200]),
    gradients=st.integers(1, 150),
    maps=st.sampled_from([4, 81]),
)
def test_what_is_planned_is_proven_and_uses_the_budget(epsilon, clients, gradients, maps):
    plan = HeadPlan.of(question(epsilon, clients, maps=maps, gradients=gradients))
    assert 0.85 * epsilon < plan.proven <= epsilon < plan.alone
    assert plan.epsilon(plan.question.adversary, Adjacency.RECORD_REPLACE) > plan.proven
    assert plan.epsilon(SERVER, Adjacency.RECORD_ADD_REMOVE) == plan.alone


# --- the first lines of a run


def first_lines(**changes):
    changes = {"data.train_limit": 400, "split.clients": 10, "rounds.count": 6, **changes}
    federation = wire(Recipe.load("proven-digits").with_(changes))
    return federation, preflight.expected(federation, "run")


def test_a_run_says_first_what_is_sent_what_is_proven_and_how_loud_the_noise_is():
    federation, said = first_lines(**{"method.channel": {"kind": "summed", "threshold": 0.89}})
    plan = HeadPlan.of_method(federation.method)
    moments, gradient = plan.sums
    text = " ".join(said)
    for figure in (f"{moments.values:,}", f"{moments.report_bytes:,}", f"{gradient.values:,}", "summed(8)", "5 later"):
        assert figure in text
    assert f"epsilon {upper(plan.proven)}" in text and f"epsilon {upper(plan.alone)}" in text
    assert "update" not in text, "what is sent is no update"


def test_silos_alone_and_budgets_are_said_too():
    budget = {"limit": 0.5, "basis": "proven", "adjacency": "record-add-remove", "delta": 1e-5}
    _, said = first_lines(**{"clients.budget": budget})
    text = " ".join(said)
    assert "against server" in text and "own reports" not in text
    assert "The budget of all 10 clients (epsilon 0.5" in text and "will decline" in text


def frozen(tmp_path, model, **keys):
    """An extractor of a network with weights in a file."""
    network = models.untried(model, input_shape=(1, 8, 8), classes=10)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    return {"kind": "network", "model": model, "weights": str(tmp_path / "w.safetensors"), **keys}


@pytest.mark.parametrize(
    ("model", "elsewhere", "reason"),
    [
        ("mlp", False, "elsewhere"),
        ("mlp", True, ""),
        ("tests.methods.own_networks:Plain", True, "silence"),
        ("tests.methods.own_networks:Counting", True, "keeps nothing"),
        ("tests.methods.own_networks:RunningMean", True, "keeps nothing"),
        ("tests.methods.own_networks:Failing", True, "keeps nothing"),
    ],
)
def test_an_extractor_that_may_know_other_records_proves_nothing(tmp_path, model, elsewhere, reason):
    federation, said = first_lines(**{"method.extractor": frozen(tmp_path, model, elsewhere=elsewhere)})
    plan = HeadPlan.of_method(federation.method)
    assert math.isinf(plan.proven) == bool(reason) and reason in plan.unproven
    assert any("nothing is proven" in sentence for sentence in said) == bool(reason)
    for release in federation.releases(federation.method.plan(federation.method.init(), "run"))[0]:
        assert all(isinstance(own.loss, Infinite) == bool(reason) for own in release.guarantees)
