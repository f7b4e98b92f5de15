"""Splits among clients: disjoint, complete, the same for a seed everywhere, and distributed as they say."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from sordino.errors import InvalidInput
from sordino.learning import partition
from sordino.learning.partition import (
    Indices,
    by_column,
    by_sizes,
    dirichlet,
    from_files,
    iid,
    label_counts,
    shards,
    validation_split,
)
from sordino.learning.splits import (
    ColumnSplit,
    DirichletSplit,
    FilesSplit,
    IidSplit,
    ShardsSplit,
    SizesSplit,
    SplitSpec,
)

seeds = st.integers(0, 2**64 - 1)
label_lists = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(np.array)


def as_lists(parts: Sequence[Indices]) -> list[list[int]]:
    return [part.tolist() for part in parts]


def assert_complete(parts: Sequence[Indices], examples: int) -> None:
    """Every example belongs to exactly one client, in ascending order."""
    assert sorted(np.concatenate(parts).tolist()) == list(range(examples))
    assert all((np.diff(part) > 0).all() and part.dtype == np.int64 for part in parts)


# --- draws ------------------------------------------------------------------------------------------------------------


def draws(seed: int) -> partition._Draws:
    return partition._Draws(seed, partition._Use.ORDER)


def test_every_order_of_three_is_equally_likely() -> None:
    counts = Counter(tuple(draws(seed).order(3).tolist()) for seed in range(6000))
    assert len(counts) == 6
    chi2 = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi2 < 30.9  # 5 degrees of freedom: false alarm 1e-5, and the seeds are fixed


def test_numbers_below_a_limit_are_exactly_uniform_where_scaling_alone_is_not() -> None:
    """Scaling 64 bits to 3*2^62 without redrawing would make multiples of three twice as likely as the others."""
    one = draws(7)
    counts = np.bincount([one.below(3 * 2**62) % 3 for _ in range(9000)], minlength=3)
    assert (abs(counts - 3000) < 230).all()  # 5 standard deviations


def test_equal_sorting_keys_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [np.array([5, 5, 1], np.uint64), np.array([9, 2, 4], np.uint64)]
    one = draws(1)
    monkeypatch.setattr(one, "_take", lambda count: answers.pop(0))
    assert one.order(3).tolist() == [1, 2, 0]
    assert not answers


def test_splits_are_the_same_on_every_machine() -> None:
    """Written down once; they change only if the keystream or a split changes, which would break recorded runs."""
    label = np.arange(12) % 3
    assert as_lists(iid(10, 3, 1)) == [[2, 3, 4, 5], [0, 6, 8], [1, 7, 9]]
    assert as_lists(dirichlet(label, 3, 0.5, 1)) == [[0, 1, 4, 5, 7, 9, 10, 11], [3, 6, 8], [2]]
    assert as_lists(shards(label, 3, 2, 1)) == [[1, 4, 5, 11], [0, 2, 3, 8], [6, 7, 9, 10]]


# --- IID and by sizes -------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 50), seeds)
def test_iid_deals_everything_evenly(examples: int, clients: int, seed: int) -> None:
    parts = iid(examples, clients, seed, at_least=0)
    assert_complete(parts, examples)
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1
    assert as_lists(iid(examples, clients, seed, at_least=0)) == as_lists(parts)


def test_another_seed_gives_another_split() -> None:
    assert as_lists(iid(100, 4, 1)) != as_lists(iid(100, 4, 2))


def test_iid_gives_every_client_the_same_mixture() -> None:
    """A client's share of a class is hypergeometric: 600 of 60,000, class share 1/10: sd 7.3, here within 6 of them."""
    label = np.repeat(np.arange(10), 6000)
    counts = label_counts(label, iid(60_000, 100, 3), 10)
    assert (abs(counts - 60) < 44).all()
    assert 6.5 < counts.std() < 8.1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=20), st.integers(0, 30), seeds)
def test_sizes_are_kept_and_the_rest_belongs_to_nobody(sizes: list[int], spare: int, seed: int) -> None:
    parts = by_sizes(sum(sizes) + spare, sizes, seed)
    assert [len(part) for part in parts] == sizes
    held = np.concatenate(parts)
    assert len(set(held.tolist())) == sum(sizes)
    assert held.max() < sum(sizes) + spare


def test_empty_clients_only_when_asked_for() -> None:
    with pytest.raises(InvalidInput, match=r"client 2 of 5.*0 of 2.*at_least=0"):
        iid(2, 5, 1)
    assert [len(part) for part in iid(2, 5, 1, at_least=0)] == [1, 1, 0, 0, 0]
    with pytest.raises(InvalidInput, match="client 1 of 2"):
        by_sizes(10, [3, 0], 1)
    assert [len(part) for part in by_sizes(10, [3, 0], 1, at_least=0)] == [3, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(10, 2, -1), "a seed is a whole number"),
        (lambda: by_sizes(10, [6, 5], 1), "11.*10 examples"),
    ],
)
def test_impossible_sizes_are_refused(call: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()  # type: ignore[operator]


# --- Dirichlet --------------------------------------------------------------------------------------------------------


@given(label_lists, st.integers(1, 12), st.sampled_from([1e-6, 0.1, 0.3, 1.0, 7.5, 1e6]), seeds, st.integers(0, 3))
@settings(max_examples=80)
def test_dirichlet_is_complete_and_keeps_the_least_size(
    label: NDArray[np.int64], clients: int, beta: float, seed: int, at_least: int
) -> None:
    if label.size < clients * at_least:
        with pytest.raises(InvalidInput, match="take fewer clients"):
            dirichlet(label, clients, beta, seed, at_least=at_least)
        return
    parts = dirichlet(label, clients, beta, seed, at_least=at_least)
    assert len(parts) == clients
    assert_complete(parts, label.size)
    assert min(len(part) for part in parts) >= at_least
    assert as_lists(dirichlet(label, clients, beta, seed, at_least=at_least)) == as_lists(parts)


@pytest.mark.process
@pytest.mark.parametrize("beta", [0.1, 0.5, 2.0])
def test_dirichlet_counts_have_the_variance_of_the_distribution(beta: float) -> None:
    """Dirichlet-multinomial: mean n/K, variance n/K (1-1/K) (n+K beta)/(1+K beta); one client of each of 3,000 splits.

    The tolerance is a tenth; halving or doubling beta moves the variance by at least 16 %.
    """
    n, clients = 30, 4
    held = np.array([len(dirichlet(np.zeros(n, int), clients, beta, seed, at_least=0)[0]) for seed in range(3000)])
    total = clients * beta
    variance = n / clients * (1 - 1 / clients) * (n + total) / (1 + total)
    assert held.mean() == pytest.approx(n / clients, abs=5 * (variance / 3000) ** 0.5)
    assert held.var() == pytest.approx(variance, rel=0.1)


def test_tiny_beta_gives_each_class_to_one_client() -> None:
    label = np.repeat(np.arange(10), 300)
    counts = label_counts(label, dirichlet(label, 8, 1e-6, 5, at_least=0), 10)
    assert ((counts > 0).sum(axis=0) == 1).all()


def test_huge_beta_gives_every_client_the_same_mixture() -> None:
    label = np.repeat(np.arange(10), 2000)
    counts = label_counts(label, dirichlet(label, 10, 1e6, 5), 10)
    assert (abs(counts - 200) < 6 * 180**0.5).all()  # multinomial: 2,000 draws of 1/10, six standard deviations


def test_examples_for_empty_clients_come_from_the_largest() -> None:
    """All of one class with one client; seven others need four each, so the one keeps 100 - 28."""
    sizes = sorted(len(part) for part in dirichlet(np.zeros(100, int), 8, 1e-6, 1, at_least=4))
    assert sizes == [4] * 7 + [72]


@pytest.mark.parametrize(
    ("table", "keys"),
    [(DirichletSplit, {"beta": beta, "clients": 2}) for beta in (0, -1, math.nan, math.inf, 1e-9, "0.5", None)]
    + [
        (IidSplit, {"clients": 0}),
        (IidSplit, {"clients": 2.0}),
        (IidSplit, {"at_least": -1, "clients": 2}),
        (SizesSplit, {"sizes": [6, -1]}),
        (SizesSplit, {"sizes": []}),
        (ShardsSplit, {"labels_per_client": 0, "clients": 2}),
        (FilesSplit, {"files": []}),
        (ColumnSplit, {"clients": 0, "column": "ward"}),
        (ColumnSplit, {"clients": [], "column": "ward"}),
        (ColumnSplit, {"clients": ["Bern", "Bern"], "column": "ward"}),
        (ColumnSplit, {"clients": [1, "1"], "column": "ward"}),
        (ColumnSplit, {"clients": ["Bern", " "], "column": "ward"}),
        (ColumnSplit, {"clients": ["Bern "], "column": "ward"}),
        (ColumnSplit, {"clients": [True, False], "column": "ward"}),
        (ColumnSplit, {"clients": 1.5, "column": "ward"}),
        (ColumnSplit, {"column": 1.5, "clients": 2}),
    ],
)
def test_impossible_splits_are_refused_by_their_tables(table: type[SplitSpec], keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(keys))):
        table(**keys)


# --- shards -----------------------------------------------------------------------------------------------------------


@given(label_lists, st.integers(1, 12), st.integers(1, 4), seeds)
def test_shards_bound_the_labels_of_each_client(
    label: NDArray[np.int64], clients: int, labels_per_client: int, seed: int
) -> None:
    if not len(set(label.tolist())) <= clients * labels_per_client <= label.size:
        with pytest.raises(InvalidInput, match="or their labels"):
            shards(label, clients, labels_per_client, seed)
        return
    parts = shards(label, clients, labels_per_client, seed)
    assert len(parts) == clients
    assert_complete(parts, label.size)
    assert all(len(part) >= labels_per_client for part in parts)
    assert all(len(set(label[part].tolist())) <= labels_per_client for part in parts)
    assert as_lists(shards(label, clients, labels_per_client, seed)) == as_lists(parts)


def test_balanced_classes_give_equal_shards() -> None:
    label = np.tile(np.arange(10), 600)
    parts = shards(label, 100, 2, 9)
    assert {len(part) for part in parts} == {60}
    assert 1 < np.mean([len(set(label[part].tolist())) for part in parts]) <= 2


def test_larger_classes_are_cut_into_more_shards() -> None:
    label = np.repeat([0, 1], [90, 10])
    assert sorted(len(part) for part in shards(label, 10, 1, 2)) == [10] * 10


def test_shards_are_drawn_from_the_whole_class() -> None:
    """A shard is not a run of neighbours in the file."""
    assert not all((np.diff(part) == 1).all() for part in shards(np.zeros(40, int), 4, 1, 1))


# --- written down -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], [2, 1]], "1.npy: example 1 already .*0.npy"),
        ([[0, 0]], "0.npy: example 0 .*twice"),
        ([[0], [5]], "1.npy.* no example 5; .* 0 to 4"),
        ([[0], [-1]], "1.npy.* no example -1"),
        ([[0], []], "1.npy: 0 examples, at least 1"),
        ([[0.5]], "0.npy: .*whole numbers"),
        ([[True, False]], "0.npy: .*whole numbers"),
        ([[[1], [2]]], "0.npy: .*one list"),
    ],
)
def test_splits_that_overlap_or_miss_are_refused(tmp_path: Path, parts: list[list[int]], message: str) -> None:
    for k, part in enumerate(parts):
        np.save(tmp_path / f"{k}.npy", np.array(part))
    with pytest.raises(InvalidInput, match=message):
        from_files([tmp_path / f"{k}.npy" for k in range(len(parts))], 5)


def test_splits_are_read_from_text_and_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([4, 2]))
    (tmp_path / "b.txt").write_text("0\n\n 3 \n")
    assert as_lists(from_files([tmp_path / "a.npy", tmp_path / "b.txt"], 5)) == [[2, 4], [0, 3]]


@given(st.lists(st.sampled_from(["held out", 0, 1, 2]), min_size=1, max_size=40))
def test_indices_in_files_are_rows_of_the_source(
    tmp_path_factory: pytest.TempPathFactory, places: list[str | int]
) -> None:
    folder = tmp_path_factory.mktemp("split")
    held_out = np.array([row for row, place in enumerate(places) if place == "held out"], np.int64)
    kept = np.array([row for row, place in enumerate(places) if place != "held out"], np.int64)
    for client in range(3):  # the first lists the rows held out too
        rows = [row for row, place in enumerate(places) if place == client or (client == 0 and place == "held out")]
        np.save(folder / f"{client}.npy", np.array(rows, np.int64))
    parts = from_files([folder / f"{k}.npy" for k in range(3)], len(kept), held_out=held_out, at_least=0)
    wanted = [[row for row, place in enumerate(places) if place == client] for client in range(3)]
    assert [kept[part].tolist() for part in parts] == wanted
    with pytest.raises(InvalidInput, match=f"there is no example {len(places)}"):
        np.save(folder / "more.npy", np.array([len(places)]))
        from_files([folder / "more.npy"], len(kept), held_out=held_out)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"0\nseven\n", r"a\.txt, line 2: 'seven'"),
        ("a.txt", b"0\n" + b"9" * 30, r"a\.txt, line 2: there is no example 9999"),
        ("a.txt", b"0\n5\n", r"a\.txt: there is no example 5"),
        ("a.txt", b"\xff\xfe\xff", r"a\.txt: cannot be read"),
        ("a.npy", b"nonsense", r"a\.npy: cannot be read"),
        ("missing.txt", None, r"missing\.txt: cannot be read"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        from_files([tmp_path / name], 5)


# --- by a column ------------------------------------------------------------------------------------------------------

WARDS = np.array(["Zug", "Bern", "Zug", "Chur", "Bern", "Zug"])


def test_a_column_deals_rows_to_the_clients_in_the_order_of_their_names() -> None:
    assert as_lists(by_column(WARDS, ["Zug", "Bern", "Chur"], 6)) == [[0, 2, 5], [1, 4], [3]]
    assert as_lists(by_column(WARDS, ["Chur", "Bern", "Zug"], 6)) == [[3], [1, 4], [0, 2, 5]]


def test_counted_clients_are_in_rising_order_numbers_as_numbers() -> None:
    assert as_lists(by_column(WARDS, 3, 6)) == [[1, 4], [3], [0, 2, 5]]
    assert as_lists(by_column(np.array(["10", "9", "-1", "10"]), 3, 4)) == [[2], [1], [0, 3]]
    assert as_lists(by_column(np.array(["10", "9", "u1", "10"]), 3, 4)) == [[0, 3], [1], [2]]


def test_rows_that_are_held_out_or_beyond_the_limit_go_to_nobody() -> None:
    held_out = np.array([0, 4])  # what is left: Bern, Zug, Chur, Zug
    assert as_lists(by_column(WARDS, 3, 4, held_out=held_out)) == [[0], [2], [1, 3]]
    assert as_lists(by_column(WARDS, 3, 2, held_out=held_out, at_least=0)) == [[0], [], [1]]


@given(st.lists(st.tuples(st.text("ab1 é", min_size=1, max_size=3), st.booleans()), min_size=1, max_size=60), st.data())
def test_every_row_goes_to_the_client_of_its_value(rows: list[tuple[str, bool]], data: st.DataObject) -> None:
    values = np.array([value for value, _ in rows], np.str_)
    kept = np.array([row for row, (_, aside) in enumerate(rows) if not aside], np.int64)
    held_out = np.array([row for row, (_, aside) in enumerate(rows) if aside], np.int64)
    names = data.draw(st.permutations(sorted({value for value, _ in rows} | {"nobody"})))
    parts = by_column(values, names, len(kept), held_out=held_out, at_least=0)
    wanted = [[row for row in kept.tolist() if rows[row][0] == name] for name in names]
    assert [kept[part].tolist() for part in parts] == wanted
    again = by_column(values, len(set(values.tolist())), len(kept), held_out=held_out, at_least=0)
    assert sorted(kept[part].tolist() for part in again) == sorted(
        part for name, part in zip(names, wanted, strict=True) if name != "nobody"
    )


@pytest.mark.parametrize(
    ("clients", "changes", "message"),
    [
        (4, {}, r"3 different values \('Bern', 'Chur', 'Zug'\) for 4 clients.*set clients to 3"),
        (2, {}, "3 different values .* for 2 clients"),
        (["Zug", "Bern"], {}, r"row 3 \(from 0\) has 'Chur'.*add it"),
        (
            ["Zug", "Bern", "Chur", "Thun"],
            {},
            r"1 of 4 clients .*'Thun' with 0 \(no row.*leave the client out.*at_least=0",
        ),
        (3, {"at_least": 2}, r"1 of 3 clients .* fewer than 2 .*'Chur' with 1 \(these are all.*at_least=1"),
        (3, {"examples": 5, "held_out": np.array([3])}, r"'Chur' with 0 \(1 of its 1 rows held out.*hold out fewer"),
        (3, {"at_least": 3, "examples": 2}, r"3 of 3 clients .*'Chur' with 0 .*at_least=0"),
        (3, {"examples": 3}, r"'Chur' with 0 \(1 of its 1 rows .*limit.*raise the limit"),
    ],
)
def test_columns_that_do_not_fit_the_clients_are_refused(clients: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        by_column(WARDS, clients, **({"examples": 6} | changes))


def test_a_column_without_rows_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no rows"):
        by_column(np.zeros(0, np.str_), 2, 0)


def test_thousands_of_users_are_dealt_in_a_moment() -> None:
    users = np.char.add("user-", (np.arange(60_000) * 7919 % 10_000).astype(str))
    start = time.perf_counter()
    parts = by_column(users, 10_000, 60_000)
    assert time.perf_counter() - start < 2
    assert_complete(parts, 60_000)
    assert {part.size for part in parts} == {6}


# --- tuning and reporting ---------------------------------------------------------------------------------------------


@given(
    st.sets(st.integers(0, 10_000), max_size=60), st.floats(0, 1, exclude_max=True), seeds, st.integers(0, 2**32 - 1)
)
def test_validation_sets_a_fraction_aside(held: set[int], fraction: float, seed: int, client: int) -> None:
    rows = np.array(sorted(held), np.int64)
    train, validation = validation_split(rows, fraction, seed, client=client)
    assert sorted([*train.tolist(), *validation.tolist()]) == rows.tolist()
    assert len(train) >= min(1, len(rows))
    if len(train) > 1:
        assert abs(len(validation) - fraction * len(rows)) <= 0.5
    again = validation_split(rows, fraction, seed, client=client)
    assert as_lists(again) == as_lists([train, validation])


def test_clients_set_aside_different_places() -> None:
    rows = np.arange(100)
    first, second = (validation_split(rows, 0.1, 1, client=client)[1].tolist() for client in (0, 1))
    assert len(first) == len(second) == 10
    assert first != second


def test_label_counts_by_hand() -> None:
    parts = [np.array([0, 1, 2]), np.zeros(0, np.int64), np.array([4])]
    assert label_counts(np.array([0, 2, 2, 1, 1]), parts, 4).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("split", ["iid", "dirichlet", "shards"])
def test_ten_thousand_clients_take_about_a_second(split: str) -> None:
    label = np.arange(60_000) % 10
    started = time.process_time()
    parts = {
        "iid": lambda: iid(60_000, 10_000, 1),
        "dirichlet": lambda: dirichlet(label, 10_000, 0.1, 1),
        "shards": lambda: shards(label, 10_000, 2, 1),
    }[split]()
    assert_complete(parts, 60_000)
    assert min(len(part) for part in parts) >= 1
    assert time.process_time() - started < 3


@given(parts=st.lists(st.lists(st.integers(0, 1000), max_size=5), max_size=20))
def test_a_split_kept_in_two_arrays_is_the_same_split(parts: list[list[int]]) -> None:
    given_parts = [np.array(part, np.int64) for part in parts]
    kept = partition.Partition(given_parts)
    assert [part.tolist() for part in kept] == parts
    assert kept.sizes == [len(part) for part in parts]
    assert [part.tolist() for part in kept[1:3]] == parts[1:3]
    if parts:
        assert kept[-1].tolist() == parts[-1]
    with pytest.raises(IndexError):
        kept[len(parts)]
