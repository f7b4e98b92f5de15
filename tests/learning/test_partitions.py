"""Parts that were dealt elsewhere become one data set with a column that says whose each record is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.learning import partition
from sordino.learning.examples import Normalisation
from sordino.learning.partitions import CLIENT, from_partitions

ABOUT = {"classes": ("no", "yes"), "normalisation": Normalisation()}
TEST = (np.zeros((2, 3)), np.array([0, 1]))


class Table:
    """What a Hugging Face data set offers."""

    def __init__(self, **columns):
        self._columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name):
        return self._columns[name]


class Picture:
    """What a picture of Pillow offers: its bands last."""

    def __init__(self, array):
        self._array = array

    def getbands(self):
        return ("R", "G", "B")

    def __array__(self, dtype=None, copy=None):
        return self._array


def part(records, first=0):
    return np.arange(first, first + 3 * records, dtype=np.float64).reshape(records, 3), np.arange(records) % 2


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_every_record_stays_with_its_client(sizes):
    parts = [part(size, 100 * k) for k, size in enumerate(sizes)]
    found = from_partitions(parts, TEST, **ABOUT)
    dealt = partition.by_column(found.columns[CLIENT], len(sizes), sum(sizes))
    for own, (x, y) in zip(dealt, parts, strict=True):
        assert np.array_equal(found.train.x[own], x) and np.array_equal(found.train.y[own], y)
    assert found.train.x.dtype == np.float32


def test_a_mapping_names_its_clients():
    found = from_partitions({"Bern": part(2), "Basel": part(1)}, TEST, **ABOUT)
    assert found.columns[CLIENT].tolist() == ["Bern", "Bern", "Basel"]


def test_tables_pairs_and_arrays_are_the_same():
    x, y = part(4)
    wide = Table(a=x[:, 0].tolist(), b=x[:, 1].tolist(), c=x[:, 2].tolist(), label=y.tolist())
    deep, pairs = Table(x=x.tolist(), y=y.tolist()), list(zip(x, y.tolist(), strict=True))
    several = from_partitions([wide], wide, x=["a", "b", "c"], y="label", **ABOUT)
    for other in ((x, y), deep, pairs):
        found = from_partitions([other], other, **ABOUT)
        assert np.array_equal(found.train.x, several.train.x) and np.array_equal(found.test.y, several.test.y)


def test_pictures_have_their_channels_first_and_stay_bytes():
    array = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    table = Table(x=[Picture(array)] * 2, y=[0, 1])
    found = from_partitions([table], table, **ABOUT)
    assert found.shape == (3, 2, 4) and found.train.x.dtype == np.uint8
    assert found.train.x[0, 1, 0, 2] == array[0, 2, 1]
    grey = Table(x=np.zeros((2, 4, 5), np.uint8), y=[0, 1])
    assert from_partitions([grey], grey, **ABOUT).shape == (1, 4, 5)


@pytest.mark.parametrize(
    ("given_part", "named"),
    [
        (Table(x=[[1.0]], label=[0]), "'y'"),
        ([1, 2], "pairs"),
        ((np.ones((2, 3)), np.array([0.5, 1.5])), "class numbers"),
        ((np.ones((2, 3)), np.array([0])), "class numbers"),
        ("text", "str"),
        (np.float64(3), "float64"),
        ([(np.ones(3), 0), (np.ones(4), 1)], "one shape"),
    ],
)
def test_what_is_no_part_is_refused_with_its_client(given_part, named):
    with pytest.raises(InvalidInput, match=rf"client 1.*{named}"):
        from_partitions([part(2), given_part], TEST, **ABOUT)


def test_parts_of_different_shapes_and_no_parts_are_refused():
    with pytest.raises(InvalidInput, match="shapes"):
        from_partitions([part(2), (np.ones((2, 4)), np.array([0, 1]))], TEST, **ABOUT)
    with pytest.raises(InvalidInput, match="no part"):
        from_partitions([], TEST, **ABOUT)
