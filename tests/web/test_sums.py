"""Sums on public features in web pages: the task that says it all, what is refused, and native clients beside pages."""

from dataclasses import replace

import numpy as np
import pytest

from sordino.errors import InvalidInput
from sordino.learning.stacked_model import Execution
from sordino.learning.unit_vectors import MATRIX_BITS
from sordino.methods.private_head import GRADIENT, MOMENTS
from sordino.privacy.history import ranges
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.runs.simulation import run
from sordino.web.hosted_federation import HostedFederation, HostingRules
from sordino.web.native_participant import Link
from sordino.web.page_task import MOST_BITS, check, compile_task
from sordino.web.report_bounds import check_bounds
from sordino.wire.messages import Plan
from tests.client import people
from tests.web.test_join import Member
from tests.web.visitors import server

SMALL = (
    "name=demo", "method.announced_size=20", "data.train_limit=60", "data.test_limit=30", "rounds.count=3",
    'clients.budget={ limit = 1.0, delta = 1e-5, adjacency = "record-add-remove" }',
)  # fmt: skip


def recipe(*changes):
    return Recipe.load("proven-digits", [*SMALL, *changes])


def task_of(given):
    return compile_task(wire(given), "demo-1", people.KEY.author)


def test_a_task_has_the_stages_limits_and_plans_of_the_method():
    given = recipe()
    parts = wire(given)
    content, budgeting = task_of(given).content, parts.method.budgeting
    assert content["training"] == {
        "kind": "sums", "extractor": {"kind": "scattering", "scales": 1, "angles": 8, "orders": 2}, "maps": 9,
        "cells": 16, "roots": 1, "groups": 1, "bias": 0.1, "clip": 0.03,
    }  # fmt: skip
    (strength,) = content["strengths"]
    limits = {"unit": budgeting.limit, "row": budgeting.row, "residual": budgeting.residual}
    assert strength["mechanism"]["limits"] == limits
    first, second = strength["mechanism"]["stages"]
    assert (first["rounds"], first["what"], first["values"]) == ([1, 1], MOMENTS, 9 * 10 // 2 + 9)
    assert (second["rounds"], second["what"], second["values"]) == ([2, 3], GRADIENT, 1450)
    assert first["sensitivity"] == pytest.approx(2**0.5 * budgeting.limit**2)
    assert second["sensitivity"] == budgeting.row * budgeting.residual
    assert content["upload"]["what"] == "sums"
    assert content["plan"] == {
        "step": "report", "settings": {}, "arrays": {"parameters": [1450], "left": [9, 9], "centre": [9]}, "bare": 1
    }  # fmt: skip
    assert [release["rounds"] for release in strength["releases"]] == [[1, 1], [2, 3]]


def test_the_largest_report_is_that_of_the_longest_stage():
    bits = task_of(recipe()).content["strengths"][0]["mechanism"]["stages"][1]["modulus"]
    assert task_of(recipe()).largest_report == 1450 * -(-bits // 8)


def test_without_second_moments_there_is_one_stage_and_every_plan_is_whole():
    content = task_of(recipe("method.moments.share=0")).content
    (stage,) = content["strengths"][0]["mechanism"]["stages"]
    assert (stage["rounds"], stage["what"], content["plan"]["bare"]) == ([1, 3], GRADIENT, 0)


def test_a_smaller_budget_has_shorter_vectors_and_a_smaller_sensitivity():
    small, large = task_of(recipe("clients.epsilon=[0.5, 1.0, 1.0]")).content["strengths"]
    assert (small["clients"], large["clients"]) == ([0], [1, 2])
    for own, other in zip(small["mechanism"]["stages"], large["mechanism"]["stages"], strict=True):
        assert own["sensitivity"] < other["sensitivity"]
    own, row, residual = small["mechanism"]["limits"].values()
    moments, gradient = (stage["sensitivity"] for stage in small["mechanism"]["stages"])
    assert 2**0.5 * own**2 <= moments
    assert row * residual <= gradient


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ('method.extractor={ kind = "oriented" }', "method.extractor.kind"),
        ("method.protects=client", "method.protects"),
        ("method.announced_size=0", "method.announced_size"),
        ('method.channel={ kind = "summed", threshold = 0.5 }', "method.channel.kind"),
    ],
)
def test_what_pages_cannot_sum_is_named(change, part):
    with pytest.raises(InvalidInput, match=part):
        check(recipe(change, "method.colluding=0"))


def test_opponent_colours_are_named():
    changes = ["method.announced_size=100", 'method.channel={ kind = "direct" }']
    with pytest.raises(InvalidInput, match="opponent"):
        check(Recipe.load("proven-cifar-10", changes))


def test_a_modulus_that_pages_cannot_hold_is_refused():
    with pytest.raises(InvalidInput, match=f"2\\^{MOST_BITS}"):
        task_of(recipe("method.announced_size=100000000"))


def test_the_shipped_recipe_runs_in_pages():
    check(Recipe.load("proven-mnist-pages"))
    check(Recipe.load("proven-digits-pages"))


def test_a_federation_that_anybody_may_join_is_refused_and_invitations_are_the_remedy(tmp_path):
    with pytest.raises(InvalidInput, match="--invite"):
        check_bounds(wire(recipe()))
    with pytest.raises(InvalidInput, match="--invite"):
        HostedFederation(recipe(), tmp_path / "open", HostingRules())
    assert HostedFederation(recipe(), tmp_path / "invited", HostingRules(by_invitation=True)).name == "demo"


def test_native_clients_come_to_the_simulations_model_and_the_server_hands_out_what_scores_take(tmp_path):
    found = HostedFederation(
        recipe("rounds.quorum=3"), tmp_path / "demo", HostingRules(patience=0.3, by_invitation=True)
    )
    round, model = found.model()
    assert (round, model.size) == (0, 1450 + 9 + 81)
    assert np.array_equal(model[1459:].reshape(9, 9), np.eye(9))
    budget = {"adjacency": "record-add-remove", "delta": 1e-5}
    with server(found) as port:
        members = []
        for number, part in enumerate(found.parts.parts):
            folder = tmp_path / f"client{number}"
            people.client(folder, people.settings(ranges(part), 1.0, budget=budget)).close()
            link = Link(f"http://127.0.0.1:{port}", "demo", found.invitations.token(number))
            injected = {"randomness": people.seeded(found.recipe.seed, number), "execution": Execution()}
            members.append(Member(folder, link, found.federation, **injected))
        for member in members:
            member.join(60)
        assert [m.error for m in members] == [None] * 3
        assert [(m.result.client, m.result.answered) for m in members] == [(number, 3) for number in range(3)]
        round, model = found.model()
    simulated = run(found.recipe, workers=1)
    assert round == 3
    assert np.array_equal(model[:1450], simulated.parameters)
    assert np.abs(model[1459:]).max() == 1.0
    assert not np.array_equal(model[1459:].reshape(9, 9), np.eye(9))


def test_the_model_of_a_bare_plan_is_the_one_before_it(tmp_path):
    found = HostedFederation(recipe(), tmp_path / "demo", HostingRules(by_invitation=True))
    method = found.parts.method
    left = np.full((9, 9), 2.0**MATRIX_BITS, np.float32)
    later = Plan("f", 2, {}, {**method.plan(replace(method.init(), round=1), "f").arrays, "left": left})
    for plan, first in ((Plan("f", 1), [1.0, 0.0]), (later, [1.0, 1.0])):
        found.fleet.last_message = people.KEY.envelope("report", plan, bytes(32), [0], plan.encode())
        round, model = found.model()
        assert (round, model[1459:1461].tolist()) == (plan.round - 1, first)
