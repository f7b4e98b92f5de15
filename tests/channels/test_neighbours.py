"""How many neighbours a sparse sum needs: bounds that hold, counted out where that can be done."""

import itertools
import math
from fractions import Fraction
from functools import cache
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.channels import neighbours
from sordino.channels.neighbours import BREACH, LOSS, MOST_ATTEMPTS, breach, honest, loss, neighbourhood
from sordino.channels.secagg import Session
from sordino.channels.secure_sum import WORTHWHILE, Summed
from sordino.mechanisms import Box, TwoPoint
from sordino.methods.upload import Upload


def tail(others: int, marked: int, drawn: int, least: int) -> Fraction:
    """P(X >= least), with whole numbers."""
    ways = sum(comb(marked, j) * comb(others - marked, drawn - j) for j in range(max(0, least), drawn + 1))
    return Fraction(ways, comb(others, drawn))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_tail_is_bounded_from_above_and_closely(data):
    others = data.draw(st.integers(1, 300), "others")
    marked = data.draw(st.integers(0, others), "marked")
    drawn = data.draw(st.integers(1, others), "drawn")
    least = data.draw(st.integers(-1, drawn), "least")
    table = neighbours._LogFactorials(others + 1)
    bound = np.exp(neighbours._above(table, others, np.array([marked]), drawn, least)[0])
    exact = tail(others, marked, drawn, least)
    assert Fraction(float(bound)) * Fraction(1 + 1e-12) >= exact
    if drawn - least <= 64:
        assert float(bound) <= float(exact) * (1 + 1e-6) + 1e-300


def expected(clients: int, colluders: int, size: int, quorum: int, starts=lambda m: 1) -> Fraction:
    """The docstring's formula with whole numbers: for one attempt, or for so many that begin in a set of m."""
    around, others = clients - colluders, clients - 1
    both = around * tail(others, colluders, size, 2 * quorum - size)
    return starts(1) * both + sum(
        starts(m) * comb(around, m) * tail(others, colluders + m - 1, size, quorum) ** m
        for m in range(1, honest(clients, colluders))
    )


@pytest.mark.parametrize(
    ("clients", "colluders", "size", "quorum"), [(30, 2, 12, 8), (100, 5, 25, 16), (60, 0, 16, 11)]
)
def test_a_breach_is_as_likely_as_the_formula_says(clients, colluders, size, quorum):
    exact = expected(clients, colluders, size, quorum, lambda m: MOST_ATTEMPTS * m)
    found = breach(clients, colluders, size, quorum)
    assert Fraction(found) >= min(exact, 1) and found <= float(exact) * (1 + 1e-5)


def breached(clients: int, helpers: set[int], quorum: int, drawn: dict[int, set[int]]) -> int:
    """In how many ways these draws let a server learn too much, by trying all clients and all small sets."""
    both = sum(2 * quorum <= len(own) + len(own & helpers) for own in drawn.values())
    small = [
        members
        for m in range(1, honest(clients, len(helpers)))
        for members in itertools.combinations(drawn, m)
        if all(len(drawn[u] & (helpers | set(members))) >= quorum for u in members)
    ]
    return both + len(small)


@pytest.mark.parametrize(
    ("clients", "helpers", "size", "quorum"),
    [(5, {4}, 2, 2), (5, {0, 1}, 2, 2), (5, {4}, 3, 2)],
    ids=str,
)
def test_over_all_draws_there_are_as_many_breaches_as_the_formula_says(clients, helpers, size, quorum):
    others = {u: [v for v in range(clients) if v != u] for u in range(clients) if u not in helpers}
    draws = list(itertools.product(*(map(set, itertools.combinations(own, size)) for own in others.values())))
    found = [breached(clients, helpers, quorum, dict(zip(others, drawn, strict=True))) for drawn in draws]
    assert Fraction(sum(found), len(draws)) == expected(clients, len(helpers), size, quorum)
    assert 0 < sum(count > 0 for count in found) <= sum(found)


def best_chance(left: tuple[int, ...], fits: float) -> float:
    """How likely a set is drawn as a server wants it that begins each attempt with whom it likes.

    `left` says how many attempts each member still joins, and a draw fits with so large a probability. An attempt goes
    on with the next member only where the draws so far fit.
    """

    @cache
    def chance(left: tuple[int, ...]) -> float:
        if min(left) == 0:
            return 0.0
        found = []
        for first in range(len(left)):
            order = [*range(first, len(left)), *range(first)]
            spent, reached, total = list(left), 1.0, 0.0
            for member in order:
                spent[member] -= 1
                total += reached * (1 - fits) * chance(tuple(sorted(spent)))
                reached *= fits
            found.append(total + reached)
        return max(found)

    return chance(left)


def test_a_server_that_begins_attempts_with_different_clients_stays_within_the_bound(monkeypatch):
    """6 clients with 2 neighbours each: 3 of them are alone with probability 1/1000, 20 sets are alike."""
    monkeypatch.setattr(neighbours, "MOST_ATTEMPTS", 5)
    chance = best_chance((5, 5, 5), 0.1)
    assert chance > 2 * 5 * 0.1**3, "twice as likely as in five attempts to which all are invited"
    assert 20 * chance <= breach(6, 0, 2, 2)


def parts(drawn: dict[int, set[int]]) -> list[set[int]]:
    """The graph taken apart: who deals with whom, directly or by others."""
    left, found = set(drawn), []
    while left:
        part, border = set(), {left.pop()}
        while border:
            u = border.pop()
            part.add(u)
            near = {v for v in left if v in drawn[u] or u in drawn[v]}
            left -= near
            border |= near
        found.append(part)
    return found


def test_a_graph_that_falls_apart_is_a_breach():
    """Two triangles: nobody in them can tell, and the bound counts each of them."""
    drawn = {u: {v for v in range(3 * (u // 3), 3 * (u // 3) + 3) if v != u} for u in range(6)}
    assert sorted(map(sorted, parts(drawn))) == [[0, 1, 2], [3, 4, 5]]
    assert breached(6, set(), 2, drawn) == 2


def test_breaches_are_no_more_frequent_than_the_bound_allows():
    """1,000 graphs of 8 clients. 81 breaches or more would happen less than once in a million times."""
    clients, size, quorum = 8, 2, 2
    rng = np.random.default_rng(5)
    happened = 0
    for _ in range(1000):
        draws = rng.permuted(np.tile(np.arange(1, clients), (clients, 1)), axis=1)[:, :size]
        drawn = {u: set(((u + draws[u]) % clients).tolist()) for u in range(clients)}
        small = breached(clients, set(), quorum, drawn) > 0
        assert small or len(parts(drawn)) == 1
        happened += small
    assert 1000 * float(expected(clients, 0, size, quorum)) < 36
    assert 5 < happened < 81


@pytest.mark.parametrize(("clients", "share"), [(100, 0.9), (500, 0.9), (1000, 0.9), (1000, 0.8), (5000, 2 / 3)])
def test_neighbourhoods_keep_what_they_promise_and_are_no_larger_than_they_must(clients, share):
    stay, colluders = int(share * clients) + 1, clients // 20
    found = neighbourhood(clients, stay, colluders)
    assert found is not None
    assert breach(clients, colluders, found.size, found.quorum) <= BREACH
    assert loss(clients, stay, found.size, found.quorum) <= LOSS
    assert neighbours._works(clients, stay, colluders, found.size - 1) is None


def test_neighbourhoods_grow_with_the_logarithm_of_clients():
    sizes = [neighbourhood(n, 9 * n // 10, n // 20).size for n in (1_000, 2_000, 4_000, 8_000)]
    steps = np.diff(sizes)
    assert (steps > 0).all() and steps.max() <= 12
    assert sizes[0] < 110


@pytest.mark.parametrize(("clients", "stay", "colluders"), [(1000, 500, 0), (1000, 525, 50)])
def test_where_too_few_stay_no_neighbourhood_will_do(clients, stay, colluders):
    assert neighbourhood(clients, stay, colluders) is None


def test_more_helpers_dropouts_or_a_smaller_quorum_make_it_worse():
    assert breach(200, 10, 45, 28) < breach(200, 14, 45, 28) < breach(200, 14, 45, 27)
    assert loss(200, 181, 45, 28) < loss(200, 175, 45, 28) < loss(200, 175, 45, 29)


def test_as_many_helpers_are_withstood_as_the_bound_allows():
    most = neighbours.most_colluders(1000, 92, 60)
    assert most >= 50
    assert breach(1000, most, 92, 60) <= BREACH < breach(1000, most + 1, 92, 60)
    assert neighbours.most_colluders(20, 3, 2) == -1


@pytest.mark.parametrize("share", [0.5, 2 / 3, 0.8, 0.9, 0.99])
@pytest.mark.parametrize("colluders", [0.0, 0.05, 0.45])
def test_at_every_size_a_sum_is_one_of_as_many_honest_clients_as_the_statement_says(share, colluders):
    """Just where clients begin to draw, and far from it: either all deal with all, or the bound holds."""
    upload = Upload(lambda _: TwoPoint(1.0, Box(0.0, 0.5)), None, 3, clients=2, what="bits")
    rule = Summed.Spec(threshold=share, colluders=colluders, sparse_from=2)
    for clients in (*range(2, 40), 60, 99, 100, 101, 160, 240):
        drawn, helpers = rule.neighbourhood(clients, upload, 0), math.ceil(colluders * clients)
        if drawn is None:
            continue
        assert WORTHWHILE * drawn.size <= clients
        assert breach(clients, helpers, drawn.size, drawn.quorum) <= BREACH
        assert honest(clients, helpers) >= rule.honest(clients)
        assert Session("f", 1, 0, "", 3, 0, 1, clients, rule.least(clients), "", *vars(drawn).values()).is_sparse
