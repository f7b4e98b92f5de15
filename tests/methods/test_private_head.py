"""A linear head on public features: what a record adds, what is lost by it, and what nobody can make of either."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from sordino.channels.secagg import STEPS
from sordino.channels.secure_sum import Members, Summed, UnmaskedSums
from sordino.errors import InvalidInput
from sordino.fleets.interface import Fleet, Reply
from sordino.fleets.simulated import SimulatedFleet
from sordino.learning import models
from sordino.learning.cohort import ClientData
from sordino.learning.stacked_model import LOOP, Execution
from sordino.learning.unit_vectors import Form
from sordino.mechanisms import noise
from sordino.methods import private_head
from sordino.methods.blueprint import UNCONTAINED
from sordino.methods.interface import PARAMETERS, Bench, Cohort
from sordino.methods.private_head import CENTRE, COUNT, GRADIENT, LEFT, MOMENTS, RECORDS, NoisySum, PrivateHead
from sordino.methods.upload import Tally
from sordino.privacy.accountant import Account, compose
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Adversary,
    Budget,
    Destination,
    Infinite,
    PoissonGaussian,
    summed,
)
from sordino.randomness import Keystream
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs.coordinator import Coordinator, Rules
from sordino.runs.federation import Federation, wire
from sordino.runs.simulation import run
from sordino.wire.messages import Plan
from tests.engine.test_preparation import StopsAfter
from tests.engine.tiny import left
from tests.methods.own_networks import Beside, Counting, Picky, Plain

TINY: dict[str, Any] = {
    "name": "tiny-head",
    "seed": 7,
    "data": {"source": "digits", "train_limit": 60, "test_limit": 30},
    "split": {"kind": "iid", "clients": 6},
    "model": {"name": "logistic"},
    "clients": {"epsilon": 4.0},
    "method": {
        "name": "private-head",
        "extractor": {"kind": "scattering", "scales": 1, "angles": 2},
        "channel": {"kind": "summed", "threshold": 0.8, "masks": "deployed"},  # five of six must stay
    },
    "rounds": {"count": 4},
}
ADD, REPLACE, CLIENT = Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE, Adjacency.CLIENT
DELTA = 1e-5
ALONE = {"method.channel": {"kind": "direct"}}
PERSONAL = {"clients.epsilon": [0.5, 2.0, 8.0, 0.5, 2.0, 8.0]}
WHOLE_CLIENTS = {"method.protects": "client"}
VARIANTS: dict[str, dict[str, Any]] = {
    "summed": {},
    "alone": ALONE,
    "personal": PERSONAL,
    "personal, far apart": {"clients.epsilon": [0.01, 20.0, 20.0, 20.0, 20.0, 20.0]},
    "personal, alone": {**PERSONAL, **ALONE},
    "coarse": {"method.resolution": 8},
    "long": {"method.resolution": 24, "clients.epsilon": 100.0},
    "clients": WHOLE_CLIENTS,
    "clients, personal": {**WHOLE_CLIENTS, **PERSONAL},
    "oriented": {"method.extractor": {"kind": "oriented", "orientations": 2, "cells": 4}},
}


def settings_of(changes: Mapping[str, Any] | None = None) -> Recipe:
    return Recipe.from_dict(TINY).with_(dict(changes or {}))


@cache
def federation(name: str) -> Federation:
    return wire(settings_of(VARIANTS[name]))


def method_of(name: str) -> PrivateHead:
    method = federation(name).method
    assert isinstance(method, PrivateHead)
    return method


def parts_of(method: PrivateHead) -> list[NoisySum]:
    own = method.budgeting
    return [part for part in (own.moments, own.gradient) if part is not None]


def plan_of(method: PrivateHead, part: NoisySum, arrays: Mapping[str, Any] | None = None) -> Plan:
    """A plan of the round in which this is summed, with a server's own numbers."""
    plan = method.plan(replace(method.init(), round=int(part.what == GRADIENT)), "test")
    return replace(plan, arrays={**plan.arrays, **(arrays or {})}) if part.what == GRADIENT else plan


def summed_of(method: PrivateHead, plan: Plan, group: int, data: ClientData, bench: Bench | None = None) -> list[int]:
    """The exact sum over some records, in Python's whole numbers."""
    return [int(v) for v in method.exact(plan, group, data, bench or Bench(LOOP))]


def squared(vector: Sequence[int]) -> int:
    return sum(v * v for v in vector)


# --- what a record adds -----------------------------------------------------------------------------------------------

STRANGE = np.array([math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e-45, -0.0, 1e4], np.float32)


def images(rng: np.random.Generator, count: int) -> Tensor:
    """Ordinary, huge and tiny images, constant ones, black ones, and some that hold what is no number."""
    x = rng.random((count, 1, 8, 8)) * 10.0 ** rng.integers(-20, 20, (count, 1, 1, 1))
    x = x.astype(np.float32)
    x = np.where(rng.random(x.shape) < 0.05 * (np.arange(count) % 3)[:, None, None, None], rng.choice(STRANGE), x)
    x[:2] = np.array([0.0, 0.7])[:, None, None, None]
    return torch.from_numpy(x.astype(np.float32))


def hostile(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray:
    found = rng.normal(size=shape) * scale
    return np.where(rng.random(shape) < 0.1, rng.choice(STRANGE, shape), found).astype(np.float32)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(list(VARIANTS)),
    scale=st.floats(-10, 38),
    weight=st.floats(-10, 38),
    seed=st.integers(0, 2**31),
)
def test_one_record_moves_a_sum_by_at_most_its_sensitivity(name: str, scale: float, weight: float, seed: int) -> None:
    """In whole numbers, for both sums, whatever records and plans hold, for clients of every budget.

    What it moves the sum by is what it adds alone: no other record has a part in it.
    """
    rng = np.random.default_rng(seed)
    method = method_of(name)
    data = ClientData(images(rng, 3), torch.from_numpy(rng.integers(0, 10, 3)))
    maps = method.form.maps
    arrays = {
        LEFT: hostile(rng, (maps, maps), 10.0**scale),
        CENTRE: hostile(rng, (maps,), 10.0**scale),
        PARAMETERS: hostile(rng, (method.head.size,), 10.0**weight),
    }
    for part in parts_of(method):
        plan = plan_of(method, part, arrays)
        for group, own in enumerate(method.scales):
            most = Fraction(part.sensitivity) * Fraction(own) * (1 + Fraction(2) ** -50)
            everyone = summed_of(method, plan, group, data)
            if method.spec.protects == "client":
                assert squared(everyone) <= most**2
                continue
            for i in range(len(data)):
                kept = np.arange(len(data)) != i
                without = summed_of(method, plan, group, ClientData(data.x[kept], data.y[kept]))
                moved = [a - b for a, b in zip(everyone, without, strict=True)]
                assert squared(moved) <= most**2
                assert moved == summed_of(method, plan, group, ClientData(data.x[i : i + 1], data.y[i : i + 1]))


@pytest.mark.parametrize("name", ["summed", "oriented", "personal"])
@pytest.mark.parametrize("what", [MOMENTS, GRADIENT])
def test_a_record_adds_the_same_bits_in_any_company(name: str, what: str) -> None:
    """In any order, with one thread or two, beside any others: in the way that real clients compute."""
    method, population = method_of(name), federation(name).population
    own = population.data(0, torch.device("cpu"))
    assert own is not None
    (part,) = (p for p in parts_of(method) if p.what == what)
    rng = np.random.default_rng(3)
    plan = plan_of(method, part, {PARAMETERS: rng.normal(size=method.head.size).astype(np.float32)})
    rows = [summed_of(method, plan, 0, ClientData(own.x[i : i + 1], own.y[i : i + 1])) for i in range(len(own))]
    wanted = [sum(column) for column in zip(*rows, strict=True)]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            order = torch.from_numpy(rng.permutation(len(own)))
            assert summed_of(method, plan, 0, ClientData(own.x[order], own.y[order])) == wanted
    finally:
        torch.set_num_threads(before)


def test_features_are_made_one_record_at_a_time_where_bits_could_depend_on_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, int]] = []
    for name, exact in (("oriented", False), ("summed", True)):
        method = method_of(name)
        assert method.extractor.exact is exact
        make = type(method.extractor).__call__

        def listened(self: Any, x: Tensor, kept: Any, make: Any = make) -> Tensor:
            seen.append((len(x), torch.get_num_threads()))
            return make(self, x, kept)

        monkeypatch.setattr(type(method.extractor), "__call__", listened)
        data = ClientData(torch.rand(7, 1, 8, 8), torch.zeros(7, dtype=torch.int64))
        plan = plan_of(method, parts_of(method)[0])
        for execution, pieces in ((LOOP, [7] if exact else [1] * 7), (Execution(8), [7])):
            seen.clear()
            summed_of(method, plan, 0, data, Bench(execution))
            assert [count for count, _ in seen] == pieces
            assert exact or execution.width > 1 or all(threads == 1 for _, threads in seen)
        assert method.computes_records_apart(Bench(LOOP))
        assert method.computes_records_apart(Bench(Execution(8))) is exact


# --- features of somebody's own ---------------------------------------------------------------------------------------


def network(tmp_path: Path, kind: type[Plain], **more: object) -> dict[str, Any]:
    """An own frozen network, as a recipe names it."""
    torch.manual_seed(1)
    save_file(kind((1, 8, 8), 10).state_dict(), tmp_path / "net.safetensors")
    return {
        "method.extractor": {
            "kind": "network", "model": f"tests.methods.own_networks:{kind.__name__}",
            "weights": str(tmp_path / "net.safetensors"), "elsewhere": True, **more,
        }
    }  # fmt: skip


def own_method(changes: Mapping[str, Any]) -> PrivateHead:
    method = wire(settings_of(changes)).method
    assert isinstance(method, PrivateHead)
    return method


def test_a_record_without_features_does_not_stop_the_others(tmp_path: Path) -> None:
    """Otherwise a client would send no change at all: one record would move a sum by all the others."""
    method = own_method(network(tmp_path, Picky))
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.random((6, 1, 8, 8)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 6))
    x[3, 0, 0, 0] = 1e6
    kept = np.arange(6) != 3
    for part in parts_of(method):
        plan = plan_of(method, part)
        for bench in (Bench(LOOP), Bench(Execution(8))):
            everyone = summed_of(method, plan, 0, ClientData(x, y), bench)
            assert any(everyone)
            without = summed_of(method, plan, 0, ClientData(x[kept], y[kept]), Bench(LOOP))
            assert squared([a - b for a, b in zip(everyone, without, strict=True)]) <= part.sensitivity**2


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        (Plain, {}, UNCONTAINED),
        (Plain, {"model": "mlp"}, None),
        (Plain, {"elsewhere": False}, private_head.NOT_PUBLIC),
        (Counting, {}, private_head.REMEMBERS),
        (Beside, {}, private_head.REMEMBERS),
    ],
    ids=["own code", "shipped", "perhaps trained here", "remembers", "mixes"],
)
def test_nothing_is_proven_of_features_that_know_other_records(
    tmp_path: Path, kind: type[Plain], more: dict[str, object], why: str | None
) -> None:
    given = network(tmp_path, kind, **more)
    if more.get("model") == "mlp":
        save_file(models.build("mlp", input_shape=(1, 8, 8), classes=10).state_dict(), tmp_path / "net.safetensors")
    method = own_method(given)
    for part in parts_of(method):
        ((release,),) = method.releases(plan_of(method, part))
        for guarantee in release.guarantees:
            if why is None:
                assert isinstance(guarantee.loss, PoissonGaussian)
            else:
                assert guarantee.loss == Infinite(why)


# --- what is lost by it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_the_stated_loss_is_what_the_noise_and_the_bound_say(name: str) -> None:
    """mu = sensitivity * scale / sigma, whoever looks; eta and tau of one value, times the values."""
    method = method_of(name)
    shares = method.budgeting.shares
    adjacencies = (CLIENT,) if method.spec.protects == "client" else RECORDS
    for part in parts_of(method):
        for scale, (release,) in zip(method.scales, method.releases(plan_of(method, part)), strict=True):
            stated = {(g.adversary, g.adjacency): g.loss for g in release.guarantees}
            onlookers = {SERVER: 1} | ({summed(shares): shares} if shares > 1 else {})
            assert set(stated) == {(by, adjacency) for by in onlookers for adjacency in adjacencies}
            for (by, adjacency), loss in stated.items():
                slack = part.noise.slack(onlookers[by])
                far = private_head.private_sgd.FARTHEST * math.sqrt(onlookers[by]) * part.noise.sigma
                twice = 1 if adjacency is ADD else 2
                if twice * part.sensitivity * scale > far:
                    assert isinstance(loss, Infinite)
                    continue
                assert isinstance(loss, PoissonGaussian)
                assert (loss.q, loss.steps) == (1.0, 1)
                assert 1 / loss.sigma >= part.sensitivity * scale / slack.sigma
                assert loss.sigma == pytest.approx(slack.sigma / (part.sensitivity * scale), rel=1e-12)
                assert loss.eta >= part.values * slack.eta > 0
                assert loss.tau >= part.values * slack.tau > 0


@pytest.mark.parametrize(("adjacency", "times"), [(ADD, 1), (REPLACE, 2)])
def test_with_a_spare_silo_nothing_is_stated_beyond_what_the_others_reach(adjacency: Adjacency, times: int) -> None:
    """16 deviations of the noise of two silos, where three are honest and one is spare."""
    part = replace(method_of("summed").budgeting.gradient, spare=1)
    far = 16 * math.sqrt(2) * part.noise.sigma / times
    near, beyond = (replace(part, sensitivity=far * by).guarantee(summed(3), adjacency).loss for by in (0.999, 1.001))
    assert isinstance(near, PoissonGaussian) and isinstance(beyond, Infinite)
    assert isinstance(
        replace(part, sensitivity=far * 1.001, spare=0).guarantee(summed(3), adjacency).loss, PoissonGaussian
    )


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-11])
def test_sums_of_many_silos_can_be_planned_at_small_deltas(delta: float) -> None:
    """What tables lack would take all of delta, from second moments too: then one silo's noise is not counted on."""
    method = method_of("summed")
    spec = method.spec.model_copy(update={"delta": delta})
    form = Form(*Recipe.load("proven-mnist").method.extractor.build((1, 28, 28), 10, 1).shape, 1, 1)
    asked = replace(method.question, form=form, clients=400, records=100.0, spec=spec)
    found, (scale,) = private_head.planned(asked)
    assert private_head.spent(asked, found, scale) <= asked.strengths[-1]
    assert found.moments is not None
    assert found.gradient.spare == found.moments.spare == (delta < 1e-6)


@pytest.mark.parametrize(
    ("changes", "honest"),
    [
        ({}, 4), ({"method.colluding": 0}, 5), ({"method.colluding": 3}, 2), (ALONE, 1),
        ({"split.clients": 20}, 15), ({"split.clients": 20, "method.channel.threshold": 0.9}, 17),
    ],
)  # fmt: skip
def test_noise_is_counted_of_those_who_stay_less_those_who_collude(changes: dict[str, Any], honest: int) -> None:
    """Five of six are in every sum, 17 of 20, or 19 with the higher threshold; a tenth collude if nothing is said."""
    assert own_method(changes).budgeting.shares == honest


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 6, 9, 12])
def test_small_sums_are_refused_with_settings_that_work(clients: int) -> None:
    """Under the default threshold ten silos are the fewest; two make no sum at all."""
    changes: dict[str, Any] = {"split.clients": clients, "method.channel.threshold": 0.89}
    if clients >= 10:
        settings_of(changes)
        return
    with pytest.raises(RecipeInvalid) as refused:
        settings_of(changes)
    told = re.search(r"method.channel.threshold = ([\d.]+) and method.colluding = (\d+)", str(refused.value))
    assert (told is None) == (clients == 2)
    if told is not None:
        threshold, colluding = float(told[1]), int(told[2])
        recipe = settings_of({**changes, "method.channel.threshold": threshold, "method.colluding": colluding})
        assert wire(recipe).method.budgeting.shares >= 2
    wire(settings_of({**changes, "method.channel": {"kind": "direct"}}))


def total(method: PrivateHead, client: int, by: Adversary, adjacency: Adjacency) -> float:
    """The epsilon of all rounds of a client, each release's loss added."""
    losses = []
    for part, times in zip(parts_of(method)[::-1], (3, 1), strict=False):
        (release,) = method.releases(plan_of(method, part))[method.class_of(client)]
        losses += [g.loss for g in release.guarantees if (g.adversary, g.adjacency) == (by, adjacency)] * times
    return compose(losses, adjacency=adjacency).epsilon(DELTA)


@pytest.mark.parametrize("name", VARIANTS)
def test_statements_add_up_all_rounds_and_keep_every_budget(name: str) -> None:
    outcome = run(settings_of(VARIANTS[name]), workers=1)
    method, epsilons = method_of(name), settings_of(VARIANTS[name]).epsilons()
    assert epsilons is not None
    by = summed(4) if method.budgeting.shares == 4 else SERVER
    adjacency = CLIENT if method.spec.protects == "client" else ADD
    rows = {row.who.names: row for row in outcome.statement.rows if (row.adversary, row.adjacency) == (by, adjacency)}
    assert len(rows) == len(set(epsilons))
    for row, epsilon in zip(rows.values(), sorted(set(epsilons)), strict=True):
        client = epsilons.index(epsilon)
        assert row.proven == pytest.approx(total(method, client, by, adjacency), rel=1e-6)
        assert row.proven <= epsilon
        if name not in ("personal, far apart", "coarse", "long"):  # whose grids leave more unused
            assert row.proven >= 0.95 * epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("rounds", [2, 30])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("more", [{}, ALONE, {"split.clients": 20}, WHOLE_CLIENTS], ids=["six", "alone", "20", "whole"])
def test_what_is_planned_is_just_within_the_budget(
    epsilon: float, rounds: int, share: float, more: dict[str, Any]
) -> None:
    """As statements count, and as a ledger does where clients keep one: one round more has no room in it."""
    changes = {"clients.epsilon": epsilon, "rounds.count": rounds, "method.moments": {"share": share}, **more}
    losses, stated = [], own_method(changes)
    for part, times in zip(parts_of(stated)[::-1], (rounds - (share > 0), 1), strict=False):
        ((release,),) = stated.releases(plan_of(stated, part))
        losses += [release.guarantees[0].loss] * times
    assert release.guarantees[0].adjacency in (ADD, CLIENT)
    assert 0.97 * epsilon <= compose(losses, adjacency=release.guarantees[0].adjacency).epsilon(DELTA) <= epsilon
    method = own_method({**changes, "clients.budget": {"limit": epsilon, "delta": DELTA}})
    adjacency = CLIENT if method.spec.protects == "client" else ADD
    shares = method.budgeting.shares
    by = summed(shares) if shares > 1 else SERVER
    account = Account.opening(Budget(epsilon, DELTA, adjacency=adjacency, adversary=by))
    for part, times in zip(parts_of(method)[::-1], (rounds - (share > 0), 1), strict=False):
        ((release,),) = method.releases(plan_of(method, part))
        account = account.after(release, Destination("test", pinned=True), times=times)
    assert account.permits
    assert account.spent >= 0.97 * epsilon
    ((last,),) = method.releases(plan_of(method, method.budgeting.gradient))
    assert not account.after(last, Destination("test", pinned=True)).permits


@pytest.mark.parametrize("rounds", [4, 5])
def test_a_ledger_with_that_limit_admits_all_rounds_and_not_one_more(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that asks for a round more than noise was planned for is declined by everybody."""
    planned = private_head.planned
    monkeypatch.setattr(private_head, "planned", lambda asked: planned(replace(asked, gradients=3)))
    budget = {"basis": "proven", "limit": 4.0, "delta": DELTA, "adjacency": "record (add/remove)"}
    outcome = run(settings_of({**ALONE, "clients.budget": budget, "rounds.count": rounds}), workers=1)
    assert [record.reported for record in outcome.rounds] == [6] * 4


def test_the_statement_counts_at_the_methods_delta() -> None:
    for delta in (1e-7, 1e-4):
        outcome = run(settings_of({"method.delta": delta}), workers=1)
        (row,) = (r for r in outcome.statement.rows if (r.adversary, r.adjacency) == (summed(4), ADD))
        assert row.delta == delta
        assert 3.7 < row.proven <= 4.0


# --- what leaves ------------------------------------------------------------------------------------------------------


def reports(method: PrivateHead, plan: Plan, data: ClientData | None, count: int, seed: int = 5) -> list[bytes]:
    cohort = Cohort((0,) * count, (data,) * count, ({},) * count, (0 if data is None else len(data),) * count)
    draw = lambda own: Keystream.simulation(seed, np.arange(len(own)), 1)  # noqa: E731
    return method.report(plan, cohort, draw, Bench(LOOP)).bodies


@pytest.mark.parametrize("name", ["summed", "personal, alone", "clients, personal"])
def test_clients_computed_side_by_side_report_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: features and sums of a whole cohort at once, one client being without records."""
    own, method = federation(name), method_of(name)
    found = {}
    for together in (False, True):
        monkeypatch.setattr(private_head, "_waits_for_orders", lambda device, told=together: told)
        population, bench = own.population, Bench()
        data = (*(population.data(client, bench.device) for client in range(5)), None)
        cohort = Cohort(tuple(range(6)), data, ({},) * 6, tuple(0 if each is None else len(each) for each in data))
        draw = lambda given: Keystream.simulation(5, list(given), 1)  # noqa: E731
        found[together] = [method.report(plan_of(method, part), cohort, draw, bench) for part in parts_of(method)]
    for one, other in zip(*found.values(), strict=True):
        assert one.bodies == other.bodies
        np.testing.assert_allclose(one.local.loss, other.local.loss)
        np.testing.assert_array_equal(one.local.clipped, other.local.clipped)


@pytest.mark.parametrize("name", ["summed", "alone", "clients"])
@pytest.mark.parametrize("what", [MOMENTS, GRADIENT])
def test_reports_are_as_long_and_as_noisy_whatever_the_records_are(name: str, what: str) -> None:
    """No records, a record that is no number, and far more than announced: the same bytes' length, range and noise.

    The variance of 200 reports is within 6 standard errors of 4^b (false alarm 2e-9).
    """
    method = method_of(name)
    (part,) = (p for p in parts_of(method) if p.what == what)
    plan = plan_of(method, part)
    many = ClientData(torch.rand(500, 1, 8, 8), torch.full((500,), 3))
    broken = ClientData(torch.full((1, 1, 8, 8), math.nan), torch.zeros(1, dtype=torch.int64))
    half = 1 << (part.bits - 1)
    for data in (None, broken, many):
        exact = np.zeros(part.values, np.int64) if data is None else method.exact(plan, 0, data, Bench(LOOP))
        bodies = reports(method, plan, data, 200)
        assert {len(body) for body in bodies} == {len(reports(method, plan, None, 1)[0])}
        sent = np.asarray(part.mechanism.decode(bodies, part.values).array, np.int64)
        assert sent.min() >= -half
        assert sent.max() < half
        noise = part.mechanism.wrapped(sent - exact)
        assert abs(noise.var() / 4.0**part.noise.bits - 1) < 6 * math.sqrt(2 / noise.size)
        assert len(np.unique(noise[0])) > 0.9 * part.values


def test_numbers_wrap_around_whatever_is_in_them() -> None:
    """A modulus far below the noise: every number of it comes up, with a thousand records and with none."""
    method = own_method({"method.bits": 8})
    part = method.budgeting.gradient
    assert part.bits == 8
    plan = plan_of(method, part)
    for data in (None, ClientData(torch.rand(1000, 1, 8, 8), torch.full((1000,), 3))):
        sent = np.asarray(part.mechanism.decode(reports(method, plan, data, 40), part.values).array)
        assert set(np.unique(sent)) == set(range(-128, 128))
        assert abs(float(np.mean(sent)) + 0.5) < 6 * 128 / math.sqrt(3 * sent.size)


class Heard:
    """What a run's server saw: the sums of every round in whole numbers, with their plans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sums: list[tuple[Plan, np.ndarray]] = []
        update = PrivateHead.update

        def listened(method: PrivateHead, state: Any, plan: Plan, tally: Tally) -> Any:
            unit = method._stage(plan.round).unit
            self.sums.append((plan, np.rint(tally.mean() * tally.weight / unit).astype(np.int64)))
            return update(method, state, plan, tally)

        monkeypatch.setattr(PrivateHead, "update", listened)


@pytest.mark.parametrize(("changes", "weights"), [({}, [1.0]), (ALONE, [1.0]), ({**PERSONAL, **ALONE}, None)])
def test_a_runs_sums_have_the_exact_sums_in_them_and_the_noise_of_all(
    changes: dict[str, Any], weights: list[float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less the exact sums, what is left has the variance of six shares: within 6 standard errors (false alarm 2e-9)."""
    heard = Heard(monkeypatch)
    recipe = settings_of({**changes, "rounds.count": 12})
    run(recipe, workers=1)
    own = wire(recipe)
    method = own.method
    assert isinstance(method, PrivateHead)
    assert len(heard.sums) == 12
    weights = weights or [scale / max(method.scales) for scale in method.scales]
    found, expected = [], 0.0
    for plan, total in heard.sums:
        part, exact = method._stage(plan.round), np.zeros(0)
        for client in range(6):
            data = own.population.data(client, torch.device("cpu"))
            assert data is not None
            group = method.class_of(client)
            share = weights[group] * method.exact(plan, group, data, Bench())
            exact = share if not exact.size else exact + share
        expected = sum(weights[method.class_of(client)] ** 2 for client in range(6))
        found.append((total - exact) / part.noise.sigma)
    noise = np.concatenate(found)
    assert abs(noise.var() / expected - 1) < 6 * math.sqrt(2 / noise.size)
    assert abs(noise.mean()) < 6 * math.sqrt(expected / noise.size)


# --- sums, masked or not, and who stays -------------------------------------------------------------------------------


class Absent(Fleet):
    """A fleet in which some clients are gone in some rounds."""

    def __init__(self, inner: Fleet, gone: Mapping[int, set[int]], step: str) -> None:
        self.inner, self.gone, self.step, self.round = inner, gone, step, 0

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Iterator[Reply]:
        self.round += step in ("keys", "report")
        for reply in self.inner.exchange(step, messages, deadline):
            if step != self.step or reply.client not in self.gone.get(self.round, set()):
                yield reply


def trained(masks: bool, gone: Mapping[int, set[int]], changes: Mapping[str, Any] | None = None) -> Any:
    own = wire(settings_of(changes))
    rule = own.recipe.method.channel
    work = own.work(Bench())
    members = Members(own.method, rule) if masks else None
    fleet = SimulatedFleet(work, None, members=members)
    channel = Summed(own.method, rule) if masks else UnmaskedSums(own.method, rule)
    coordinator = Coordinator(
        own.method, Absent(fleet, gone, STEPS[2] if masks else "report"), channel, "test", Rules(1)
    )
    state, records = own.method.init(), []
    for _ in range(own.recipe.rounds.count):
        state, record = coordinator.round(state)
        records.append(record)
    return state, records


def same(a: Any, b: Any) -> bool:
    return np.array_equal(a.parameters, b.parameters) and all(
        np.array_equal(a.arrays[name], b.arrays[name]) for name in a.arrays
    )


@pytest.mark.parametrize("changes", [{}, PERSONAL], ids=["one epsilon", "personal"])
def test_sums_without_masks_are_those_with_masks(changes: dict[str, Any]) -> None:
    """The same bits, also where one of six is gone in one round and two, which are too many, in another."""
    gone = {2: {4}, 3: {0, 5}}
    assert STEPS[2] == "masked"
    with_masks, without = trained(True, gone, changes), trained(False, gone, changes)
    assert same(with_masks[0], without[0])
    assert [bool(r.attendance.lost) for r in without[1]] == [False, False, True, False]
    assert [bool(r.attendance.lost) for r in with_masks[1]] == [False, False, True, False]


def test_a_lost_round_changes_nothing_but_its_number() -> None:
    before, _ = trained(False, {3: {0, 5}, 4: {0, 5}})
    whole, _ = trained(False, {4: {0, 5}, 3: {1, 2, 3}})
    assert before.round == whole.round == 4
    assert same(before, whole)


def test_training_goes_on_without_whitening_where_the_moments_are_lost() -> None:
    state, records = trained(False, {1: {0, 1}})
    start = wire(settings_of()).method.init()
    assert records[0].attendance.lost
    for name in (LEFT, CENTRE, COUNT):
        assert np.array_equal(state.arrays[name], start.arrays[name])
    assert float(start.arrays[COUNT][0]) == 10  # the public size of a silo
    assert state.parameters.any()


def test_a_deployment_masks_whatever_the_recipe_says_of_simulations() -> None:
    own = wire(settings_of())
    channel = own.recipe.method.channel
    assert channel.masks == "deployed"
    built = channel.build(own.recipe, own.method)
    assert type(built) is Summed
    assert isinstance(channel.members(own.recipe, own.method, None), Members)
    assert type(channel.simulated_sides(own.recipe, own.method)[0]) is UnmaskedSums


# --- personal budgets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, ALONE], ids=["summed", "alone"])
def test_every_client_keeps_its_own_budget(more: dict[str, Any]) -> None:
    """Of 0.5, 2 and 8 in one federation: by its own ledger, which has no room for a round more."""
    method = own_method({**PERSONAL, **more, "clients.budget": {"limit": 8.0, "delta": DELTA}})
    by = SERVER if more else summed(4)
    for client, epsilon in enumerate(PERSONAL["clients.epsilon"]):
        account = Account.opening(Budget(epsilon, DELTA, adjacency=ADD, adversary=by))
        for round in range(4):
            plan = method.plan(replace(method.init(), round=round), "test")
            (release,) = method.releases(plan)[method.class_of(client)]
            account = account.after(release, Destination("test", pinned=True))
        assert account.permits
        assert not account.after(release, Destination("test", pinned=True)).permits
    assert method.scales == sorted(method.scales)
    assert method.scales[-1] == 1.0


def test_a_shorter_budget_shortens_a_record_and_does_not_turn_it() -> None:
    """So a sum is the sum of all records with public weights, which the trace of the moments has in it too."""
    method, population = method_of("personal"), federation("personal").population
    data = population.data(0, torch.device("cpu"))
    assert data is not None
    plan = plan_of(method, method.budgeting.gradient)
    rows = [np.array(summed_of(method, plan, group, data), np.float64) for group in range(3)]
    for row, scale in zip(rows, method.scales, strict=True):
        along = float(row @ rows[-1] / (rows[-1] @ rows[-1]))
        assert along == pytest.approx(scale, rel=0.03)
        assert float(np.linalg.norm(row - along * rows[-1]) / np.linalg.norm(row)) < 0.1
    assert method.budgeting.moments is not None
    plan = plan_of(method, method.budgeting.moments)
    upper = method.form.maps * (method.form.maps + 1) // 2
    traces = [summed_of(method, plan, group, data)[0] for group in range(3)]
    assert upper > 0
    for trace, scale in zip(traces, method.scales, strict=True):
        assert trace / traces[-1] == pytest.approx(scale, rel=0.02)


def test_the_estimate_of_unequal_budgets_is_the_weighted_mean_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 300 draws of one round's noise, its mean is the weighted exact one to what is left of the noise."""
    method, population = method_of("personal, alone"), federation("personal, alone").population
    part = method.budgeting.gradient
    plan = plan_of(method, part)
    exact, weight = np.zeros(part.values), 0.0
    cohort = Cohort(
        tuple(range(6)), tuple(population.data(k, torch.device("cpu")) for k in range(6)), ({},) * 6, (10,) * 6
    )
    for client in range(6):
        group, data = method.class_of(client), cohort.data[client]
        assert data is not None
        scale = method.scales[group]
        exact += scale * method.exact(plan, group, data, Bench()) * part.unit
        weight += scale
    draws, bench = 300, Bench()
    mean = np.zeros(part.values)
    for draw in range(draws):
        tally = method.tally(plan)
        bodies = method.report(plan, cohort, lambda own, d=draw: Keystream.simulation(9, list(own), d), bench).bodies
        assert not tally.add(list(range(6)), bodies)
        mean += tally.mean() / draws
    noise = part.noise.sigma * part.unit * math.sqrt(sum(s**2 for s in method.scales) * 2) / weight / math.sqrt(draws)
    off = (mean - exact / weight) / noise
    assert float(np.abs(off).max()) < 6
    assert 0.5 < float(off.var()) < 1.5


# --- whole clients ----------------------------------------------------------------------------------------------------


def test_one_client_exchanged_moves_a_sum_by_twice_its_bound() -> None:
    """The statement counts both: mu of an exchange is twice sensitivity / sigma."""
    method = method_of("clients")
    part = method.budgeting.gradient
    ((release,),) = method.releases(plan_of(method, part))
    assert {g.adjacency for g in release.guarantees} == {CLIENT}
    loss = next(g.loss for g in release.guarantees if g.adversary == summed(4))
    sigma = part.noise.slack(4).sigma
    assert compose([loss], adjacency=CLIENT).mu == pytest.approx(2 * part.sensitivity / sigma, rel=1e-9)
    plan = plan_of(method, part)
    rng = np.random.default_rng(1)
    one, other = (
        summed_of(method, plan, 0, ClientData(images(rng, n), torch.from_numpy(rng.integers(0, 10, n))))
        for n in (3, 400)
    )
    assert squared([a - b for a, b in zip(one, other, strict=True)]) <= 4 * part.sensitivity**2


@pytest.mark.parametrize("group", [0, 1, 2])
def test_rounding_a_mean_does_not_lengthen_it(group: int) -> None:
    """Means that are far too long, and such as rounding makes longer."""
    method = method_of("clients, personal")
    data = ClientData(torch.rand(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))
    for part in parts_of(method):
        most = part.sensitivity * method.scales[group]
        each = 2 * int(most / math.sqrt(part.values)) + 1  # halves, which are rounded up every second time
        for value in (each, 10**12):
            (found,) = method._of_clients(torch.full((1, part.values), value), [data], part, method.scales[group])
            assert 0.8 * most < math.sqrt(squared([int(v) for v in found])) <= most


def test_a_clients_mean_is_cut_to_its_own_budget() -> None:
    """Many records, all alike: their mean is as long as one may be, and rounding must not make it longer."""
    method = method_of("clients, personal")
    data = ClientData(torch.rand(1, 1, 8, 8).expand(50, 1, 8, 8), torch.full((50,), 2))
    for part in parts_of(method):
        for group, scale in enumerate(method.scales):
            found = summed_of(method, plan_of(method, part), group, data)
            assert squared(found) <= (Fraction(part.sensitivity) * Fraction(scale)) ** 2
            assert squared(found) > (0.4 * part.sensitivity * scale) ** 2


# --- a run, however it is run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["summed", "personal, alone"])
def test_workers_kills_and_masks_change_no_bit(name: str, tmp_path: Path) -> None:
    recipe = settings_of(VARIANTS[name])
    run(recipe, folder=tmp_path / "one", workers=1)
    run(recipe, folder=tmp_path / "two", workers=2)
    for stop in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            run(recipe, folder=tmp_path / f"cut {stop}", workers=1, observer=StopsAfter(stop))
        run(recipe, folder=tmp_path / f"cut {stop}", resume=True, workers=1)
    wanted = left(tmp_path / "one")
    assert all(left(tmp_path / other) == wanted for other in ("two", "cut 1", "cut 2"))
    if name == "summed":
        masked = run(recipe.with_({"method.channel.masks": "always"}), workers=1)
        assert np.array_equal(masked.parameters, run(recipe, workers=1).parameters)


# --- recipes that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients.epsilon": None}, r"clients\.epsilon: missing"),
        ({"rounds.count": 1}, r"rounds\.count: got 1"),
        ({"method.moments": {"share": 1.0}}, r"method\.moments\.share"),
        ({"method.moments": {"share": -0.1}}, r"method\.moments\.share"),
        ({"method.colluding": 4}, r"method\.colluding: 4 of 6 silos"),
        ({"split.clients": 2}, r"method\.colluding: 1 of 2 silos"),
        ({"split.clients": 2, "method.colluding": 1}, r"method\.colluding"),
        ({"training": {"epochs": 2}}, r"training\.epochs"),
        ({"model.name": "mlp"}, r"model\.name: got \"mlp\""),
        ({"model": {"name": "logistic", "options": {"bias": False}}}, r"model\."),
        ({"method.extractor": {"kind": "trained", "model": "cnn-mnist"}}, r"method\.extractor\.kind: got trained"),
        ({"method.clip": 0.0}, r"method\.clip"),
        ({"method.bias": 0.0}, r"method\.bias"),
        ({"method.momentum": 1.0}, r"method\.momentum"),
        ({"method.delta": 0.0}, r"method\.delta"),
        ({"method.resolution": 3}, r"method\.resolution"),
        ({"method.bits": 7}, r"method\.bits"),
        ({"method.protects": "label"}, r"method\.protects"),
        ({"method.selection": {"kind": "count", "k": 2}}, r"method\.selection"),
        ({"method.aggregation": {"kind": "samples"}}, r"method\.aggregation"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeInvalid, match=said):
        settings_of(changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method.groups": 2}, r"set method\.groups to one of 1, 3, or to 0"),
        ({"method.resolution": 4, "clients.epsilon": 0.01}, r"raise method\.resolution, or leave it out"),
        ({"method.extractor": {"kind": "scattering", "scales": 5}}, r"scales"),
    ],
)
def test_what_does_not_fit_the_data_is_refused_before_any_work(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        wire(settings_of(changes))


def test_own_data_needs_an_announced_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((8, 8, 8), np.uint8), y=np.arange(8) % 2)
    with pytest.raises(RecipeInvalid, match=r"method\.announced_size: missing"):
        settings_of({"data": {"source": str(tmp_path / "own.npz")}})


def test_planning_makes_no_tables_of_noise_that_is_not_used():
    noise.discrete_gaussian.cache_clear()
    method = wire(Recipe.load("proven-digits")).method
    used = {method.budgeting.gradient.noise.sigma, method.budgeting.moments.noise.sigma}
    assert noise.discrete_gaussian.cache_info().misses == len(used)
