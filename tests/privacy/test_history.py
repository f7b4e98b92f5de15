"""What a run's clients released: round trips, who is alike, and statements of many clients."""

import json
import math
import random
import time
import tracemalloc
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import InvalidInput, UnsupportedLoss
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Claim,
    Derived,
    Guarantee,
    Infinite,
    Loss,
    Pure,
    RandomizedBit,
    Release,
)
from sordino.privacy.history import Group, RoundReleases, groups, members, ranges, statement
from sordino.privacy.statement import Statement
from sordino.report.statement import sentences, to_text

CLIENT = Adjacency.CLIENT


def upload(number: int, loss: Loss, claim: float | None = None, what: str = "update") -> Release:
    claimed = None if claim is None else Claim(claim, 0.0, "eps")
    guarantee = Guarantee(SERVER, CLIENT, loss, "a theorem")
    return Release(f"run/{number}/{what}", "records", what, (guarantee,), claimed)


def rounds_of(taking_part: Iterable[Sequence[int]], epsilon: float = 1.0) -> list[RoundReleases]:
    """One class of clients that all release the same; who took part in each round."""
    return [RoundReleases(n, ((upload(n, Pure(epsilon)),),), (who,)) for n, who in enumerate(taking_part, 1)]


# --- lines ----------------------------------------------------------------------------------------------------------


numbers = st.sets(st.integers(0, 2**32 - 1) | st.integers(0, 60), max_size=60)


@given(numbers)
def test_ranges_list_exactly_their_members(chosen: set[int]) -> None:
    assert members(ranges(chosen)) == sorted(chosen)


@pytest.mark.parametrize(
    ("chosen", "written"),
    [((), ""), ((5,), "5"), ((4, 0, 1, 2, 3, 7), "0-4, 7"), ((1, 3, 5), "1, 3, 5"), ((0, 1, 5, 6, 7), "0-1, 5-7")],
    ids=["nobody", "one", "a run", "single", "two runs"],
)
def test_ranges_are_written_as_people_do(chosen: tuple[int, ...], written: str) -> None:
    assert ranges(chosen) == written


@pytest.mark.parametrize("text", ["a", "-3", "3-", "5-2", "1, 1", "4, 2", "1,2", "5-4294967296"])
def test_ranges_that_nobody_wrote_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        members(text)


def test_ranges_of_negative_numbers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="-2"):
        ranges([3, -2])


losses = st.one_of(
    st.builds(Pure, st.floats(0, 1e6)),
    st.builds(RandomizedBit, st.integers(1, 2**31), st.integers(1, 10**6)),
    st.builds(Infinite, st.text(min_size=1, max_size=10)),
)
claims = st.none() | st.floats(0, 1e6)


@st.composite
def spent(draw: st.DrawFn) -> RoundReleases:
    """A round of up to three classes, some of whose clients declined."""
    number = draw(st.integers(0, 1000))
    everyone = sorted(draw(st.sets(st.integers(0, 10**6), max_size=30)))
    classes = draw(st.integers(1, 3))
    place = [draw(st.integers(0, classes)) for _ in everyone]  # the last place is for those who declined
    releases = []
    for c in range(classes):
        what = draw(st.text(min_size=1, max_size=8))
        made = upload(number, draw(losses), draw(claims), what)
        derived = Release(f"{c}", "records", "model", (), composition=Derived((made.id,)))
        releases.append((made, derived)[: draw(st.integers(1, 2))])
    reasons = st.sampled_from(["budget spent", "no data", 'say "no" \N{SNOWMAN}\n'])
    return RoundReleases(
        number,
        tuple(releases),
        tuple(tuple(c for c, p in zip(everyone, place, strict=True) if p == k) for k in range(classes)),
        {c: draw(reasons) for c, p in zip(everyone, place, strict=True) if p == classes},
    )


@given(spent())
def test_a_round_comes_back_from_its_line(given_round: RoundReleases) -> None:
    line = given_round.to_line()
    assert "\n" not in line
    assert RoundReleases.from_line(line) == given_round
    assert RoundReleases.from_line(line.encode()) == given_round
    assert RoundReleases.from_line(line).to_line() == line


def test_the_order_in_which_clients_answered_does_not_matter() -> None:
    first, second = (RoundReleases(1, ((upload(1, Pure(1.0)),),), (who,)) for who in ((2, 0, 1), (0, 1, 2)))
    assert first == second
    assert json.loads(first.to_line())["clients"] == ["0-2"]


def test_a_line_of_many_clients_is_short() -> None:
    everyone = RoundReleases(1, ((upload(1, Pure(1.0)),),), (range(100_000),))
    assert len(everyone.to_line()) < 1000


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        '{"round":1,"releases":[],"clients":[],"declined":[]}',
        '{"round":1,"releases":[],"clients":["0-4"],"declined":{}}',
        '{"round":1,"releases":[[]],"clients":["4-0"],"declined":{}}',
        '{"round":1,"releases":[[]],"clients":["4294967295-4294967296"],"declined":{}}',
        '{"round":1,"releases":[[{"type":"Pure","epsilon":1}]],"clients":["0"],"declined":{}}',
        '{"round":1,"releases":[[{"type":"Surprise"}]],"clients":["0"],"declined":{}}',
    ],
    ids=["empty", "list", "bare", "declined", "classes", "backwards", "too large", "no release", "unknown"],
)
def test_damaged_lines_are_refused(line: str) -> None:
    with pytest.raises(InvalidInput):
        RoundReleases.from_line(line)


@pytest.mark.parametrize("clients", [((0,), (1,)), ((-1,),), ((2**32,),), (("zero",),)], ids=str)
def test_impossible_rounds_are_refused(clients: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(InvalidInput):
        RoundReleases(1, ((upload(1, Pure(1.0)),),), clients)


# --- groups ---------------------------------------------------------------------------------------------------------


def seen(found: Sequence[Group]) -> list[tuple[tuple[int, ...], int]]:
    """Clients and how many releases they made."""
    return [(group.clients, sum(times for _, times in group.releases)) for group in found]


def test_clients_are_grouped_by_how_often_they_took_part() -> None:
    """k of N: clients 0 and 3 thrice, 1 twice, 2 and 5 once, 4 never."""
    rounds = rounds_of([(0, 1, 3), (0, 1, 3, 5), (3, 2, 0)])
    assert seen(groups(rounds, 6)) == [((0, 3), 3), ((1,), 2), ((2, 5), 1), ((4,), 0)]


def test_releases_that_say_the_same_are_counted_together_and_others_apart() -> None:
    weak, strong = upload(1, Pure(1.0)), upload(1, Pure(2.0))
    rounds = [
        RoundReleases(1, ((weak,), (strong,)), ((0, 1), (2, 3))),
        RoundReleases(2, ((upload(2, Pure(1.0)),), (upload(2, Pure(2.0)),)), ((1, 2), (0, 3))),
    ]
    found = {group.clients: [(r.guarantees[0].loss, n) for r, n in group.releases] for group in groups(rounds, 4)}
    assert found == {
        (0, 2): [(Pure(1.0), 1), (Pure(2.0), 1)],  # in another order, which says the same
        (1,): [(Pure(1.0), 2)],
        (3,): [(Pure(2.0), 2)],
    }


def test_claims_and_kinds_of_release_tell_clients_apart() -> None:
    made = [upload(1, Pure(1.0)), upload(1, Pure(1.0), claim=0.5), upload(1, Pure(1.0), what="sample count")]
    rounds = [RoundReleases(1, tuple((r,) for r in made), ((0,), (1,), (2,)))]
    assert [group.clients for group in groups(rounds, 3)] == [(0,), (1,), (2,)]


def test_several_releases_of_one_round_are_all_counted() -> None:
    both = (upload(1, Pure(1.0)), upload(1, Infinite("in clear"), what="sample count"))
    rounds = [RoundReleases(1, (both,), ((0, 1),)), RoundReleases(2, (both,), ((1,),))]
    assert [(g.clients, [n for _, n in g.releases]) for g in groups(rounds, 2)] == [((1,), [2, 2]), ((0,), [1, 1])]


def test_without_rounds_everybody_is_silent() -> None:
    assert seen(groups([], 3)) == [((0, 1, 2), 0)]
    assert groups([], 0) == []


@given(st.lists(st.lists(st.integers(0, 2), min_size=12, max_size=12), max_size=6))
@settings(max_examples=60, deadline=None)
def test_groups_are_those_of_counting_by_hand(rounds: list[list[int]]) -> None:
    """Per round and client: silent, or one of two classes."""
    made = [
        RoundReleases(
            n,
            ((upload(n, Pure(1.0)),), (upload(n, Pure(2.0)),)),
            tuple(tuple(c for c in range(12) if choice[c] == k) for k in (1, 2)),
        )
        for n, choice in enumerate(rounds)
    ]
    by_hand: dict[tuple[int, int], list[int]] = {}
    for client in range(12):
        history = [choice[client] for choice in rounds]
        by_hand.setdefault((history.count(1), history.count(2)), []).append(client)
    found = {}
    for group in groups(made, 12):
        times = {r.guarantees[0].loss: n for r, n in group.releases}
        found[times.get(Pure(1.0), 0), times.get(Pure(2.0), 0)] = list(group.clients)
    assert found == by_hand


def test_what_is_derived_costs_nothing_and_must_have_an_origin() -> None:
    features = upload(0, Pure(3.0), what="features")
    trained = Release("run/1/update", "records", "update", (), composition=Derived((features.id,)))
    rounds = [
        RoundReleases(0, ((features,),), ((0, 1),)),
        RoundReleases(1, ((trained,),), ((0,),)),
        RoundReleases(2, ((trained,),), ((0, 1),)),
    ]
    assert seen(groups(rounds, 2)) == [((0, 1), 1)]
    assert statement(rounds, 2, delta=0.0, title="x").rows[0].proven == 3.0
    with pytest.raises(UnsupportedLoss, match="run/0/features"):
        groups([*rounds, RoundReleases(3, ((trained,),), ((0, 2),))], 3)


def test_a_client_beyond_the_federation_is_refused() -> None:
    with pytest.raises(InvalidInput, match="client 3"):
        groups(rounds_of([(0, 3)]), 3)


@pytest.mark.parametrize(
    ("clients", "name"),
    [
        ((4,), "client 4"),
        ((4, 5, 6, 9), "clients 4-6, 9"),
        (tuple(range(0, 2000, 2)), "1,000 clients (0, 2, 4, 6, 8, 10, ...)"),
        (tuple(range(100_000)), "clients 0-99999"),
    ],
    ids=["one", "few", "many", "a run"],
)
def test_a_group_is_named_briefly(clients: tuple[int, ...], name: str) -> None:
    assert Group(clients, ()).name == name
    assert len(name) < 45


# --- statements -----------------------------------------------------------------------------------------------------


def test_clients_alike_have_one_row_and_no_names() -> None:
    stated = statement(rounds_of([(0, 1, 2)] * 4, 0.5), 3, delta=0.0, title="Run 7")
    (row,) = stated.rows
    assert (row.clients, row.proven, row.basis) == ((), 2.0, ("4 x a theorem",))
    assert stated.title == "Run 7"
    assert stated.silent is None


def test_a_statement_counts_each_clients_own_participations() -> None:
    stated = statement(rounds_of([(0, 1, 3), (0, 1, 3, 5), (3, 2, 0)]), 6, delta=0.0, title="x")
    figures = {row.clients[0]: (row.proven, row.who.count) for row in stated.rows}
    assert figures == {"clients 0, 3": (3.0, 2), "client 1": (2.0, 1), "clients 2, 5": (1.0, 2)}
    assert sentences(stated)[-1] == "Clients who sent nothing lost nothing: client 4."
    assert "from epsilon 1 (clients 2, 5) to epsilon 3 (clients 0, 3)" in " ".join(sentences(stated))


def test_a_lone_group_is_named_where_others_were_silent() -> None:
    stated = statement(rounds_of([(0, 1)]), 5, delta=0.0, title="x")
    assert stated.rows[0].clients == ("clients 0-1",)
    assert "Clients who sent nothing lost nothing: clients 2-4." in to_text(stated)


@pytest.mark.parametrize("rounds", [[], rounds_of([()])], ids=["no rounds", "nobody reported"])
def test_a_run_without_reports_says_that_nothing_was_released(rounds: list[RoundReleases]) -> None:
    stated = statement(rounds, 5, delta=1e-5, title="x")
    assert stated.rows == ()
    assert "Nothing was released" in to_text(stated)


def test_json_tells_every_client_its_figure() -> None:
    chooser = random.Random(7)
    rounds = rounds_of([sorted(chooser.sample(range(500), 150)) for _ in range(8)])
    packed = statement(rounds, 500, delta=0.0, title="x").to_json()
    figures = {client: row["proven"]["epsilon"] for row in packed["rows"] for client in members(row["members"])}
    taken = {client: sum(client in own.clients[0] for own in rounds) for client in range(500)}
    assert figures == {client: float(times) for client, times in taken.items() if times}
    assert members(packed["silent"]["members"]) == [client for client, times in taken.items() if not times]


def windows(clients: int, rounds: int = 50) -> list[RoundReleases]:
    """In each round half of the clients, beginning with one chosen by chance."""
    chooser = random.Random(3)
    starts = [chooser.randrange(0, clients // 2) for _ in range(rounds)]
    return rounds_of(range(start, start + clients // 2) for start in starts)


def test_a_hundred_thousand_clients_and_fifty_rounds_take_seconds() -> None:
    """Half a second's work."""
    began = time.process_time()
    stated = statement(windows(100_000), 100_000, delta=0.0, title="x")
    text = to_text(stated)
    assert time.process_time() - began < 10
    assert len(text.splitlines()) < 40
    assert max(row.proven for row in stated.rows) == 50.0  # the one in the middle is in every half
    assert sum(row.who.count for row in stated.rows) + (stated.silent.count if stated.silent else 0) == 100_000


def test_memory_is_four_bytes_for_each_release_and_little_for_each_client() -> None:
    clients = 10_000
    tracemalloc.start()
    try:
        rounds = windows(clients)
        kept, _ = tracemalloc.get_traced_memory()
        groups(rounds, clients)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.3 * 4 * sum(len(own.clients[0]) for own in rounds)
    assert peak < kept + 300 * clients


@pytest.mark.process
def test_many_budgets_and_chance_participation_take_seconds() -> None:
    """3,000 clients of 600 classes, each in a third of 20 rounds: thousands of groups, a few seconds' work."""
    chooser, classes = random.Random(5), 600
    thresholds = [math.ceil(2**32 / (math.exp(0.5 + k / 80) + 1)) for k in range(classes)]
    rounds = []
    for n in range(20):
        releases = tuple((upload(n, RandomizedBit(t, 650)),) for t in thresholds)
        who = tuple(tuple(c for c in range(k, 3000, classes) if chooser.random() < 1 / 3) for k in range(classes))
        rounds.append(RoundReleases(n, releases, who))
    began = time.process_time()
    stated = statement(rounds, 3000, delta=1e-5, title="x")
    text = to_text(stated)
    assert time.process_time() - began < 15
    assert len(stated.rows) > 2000
    assert len(text.splitlines()) < 40


# --- members by name ------------------------------------------------------------------------------------------------


def named_rounds(holders: Sequence[dict[int, str]], first: int = 1) -> list[RoundReleases]:
    """Rounds in which whoever holds a number releases something of epsilon 1."""
    return [
        RoundReleases(n, ((upload(n, Pure(1.0)),),), (tuple(names),), {}, names)
        for n, names in enumerate(holders, first)
    ]


def by_member(rounds: Sequence[RoundReleases], clients: int) -> dict[str, float]:
    stated = statement(rounds, clients, delta=0.0, title="x")
    return {name: row.proven for row in stated.rows for name in row.clients}


def test_members_that_are_alike_have_one_row_with_their_names() -> None:
    rounds = named_rounds([{0: "north", 1: "east", 2: "south"}] * 4)
    stated = statement(rounds, 3, delta=0.0, title="x")
    (row,) = stated.rows
    assert (row.clients, row.who.count, row.proven) == (("north", "east", "south"), 3, 4.0)
    assert Statement.from_json(json.loads(json.dumps(stated.to_json()))) == stated


def test_each_holder_of_a_number_has_its_own_releases() -> None:
    before, after = {0: "north", 1: "east"}, {0: "north", 1: "west"}
    assert by_member(named_rounds([before] * 8 + [after] * 2), 2) == {
        "north": 10.0,
        "east (until round 8)": 8.0,
        "west (from round 9, in the place of east)": 2.0,
    }


def test_a_member_that_left_and_came_back_or_moved_is_one_member() -> None:
    rounds = named_rounds([{0: "north", 1: "east"}, {0: "north"}, {0: "north", 2: "east"}])
    assert by_member(rounds, 3) == {"north": 3.0, "east (in rounds 1, 3)": 2.0}


def test_a_vacant_place_is_nobody_and_a_silent_member_is_named() -> None:
    rounds = [RoundReleases(n, ((upload(n, Pure(1.0)),),), ((0,),), {}, {0: "north", 2: "south"}) for n in (1, 2)]
    stated = statement(rounds, 4, delta=0.0, title="x")
    assert by_member(rounds, 4) == {"north": 2.0}
    assert stated.silent is not None and stated.silent.names == ("south",)
    assert "south" in to_text(stated) and "client" not in " ".join(name for row in stated.rows for name in row.clients)


def test_what_a_number_released_before_members_had_names_counts_for_whoever_held_it() -> None:
    rounds = [*rounds_of([(0, 1)] * 3), *named_rounds([{0: "north", 1: "east"}, {0: "north", 1: "west"}], 4)]
    assert by_member(rounds, 2) == {
        "north": 5.0,
        "east (until round 4)": 4.0,
        "west (from round 5, in the place of east)": 4.0,
    }


def test_two_numbers_that_one_member_held_add_up_also_where_a_round_names_nobody() -> None:
    rounds = [*rounds_of([(0, 1)]), *named_rounds([{0: "x"}, {1: "x"}], 2)]
    assert by_member(rounds, 2) == {"x": 4.0}


@given(st.lists(st.dictionaries(st.integers(0, 3), st.sampled_from("abcdef"), max_size=4), min_size=1, max_size=8))
def test_every_member_is_charged_what_it_released_under_whatever_number(holders: list[dict[int, str]]) -> None:
    rounds = named_rounds([{n: f"{name}{n}" for n, name in own.items()} for own in holders])
    expected: dict[str, int] = {}
    for own in rounds:
        for name in own.names.values():
            expected[name] = expected.get(name, 0) + 1
    found = {name.partition(" ")[0]: proven for name, proven in by_member(rounds, 4).items()}
    assert found == {name: float(times) for name, times in expected.items()}
    assert [RoundReleases.from_line(own.to_line()) for own in rounds] == rounds


@pytest.mark.parametrize("names", [{0: "a\nb"}, {0: ""}, {0: "x" * 101}, {0: "\x1b[31m"}, {0: 7}, {0: "x", 1: "x"}])
def test_names_that_no_line_can_show_or_two_numbers_share_are_refused(names: dict[int, str]) -> None:
    with pytest.raises(InvalidInput):
        named_rounds([names])


def test_a_line_of_a_run_without_names_is_as_it_was() -> None:
    (line,) = (own.to_line() for own in rounds_of([(0, 1)]))
    assert list(json.loads(line)) == ["round", "releases", "clients", "declined"]
