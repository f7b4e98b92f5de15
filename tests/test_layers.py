"""Every test is in one layer, and unit tests stay in their process."""

import socket
import subprocess
import sys

import pytest

from tests import conftest
from tests.conftest import LAYERS, PLACES, TESTS, layers_of, place_of


def test_every_test_is_in_exactly_one_layer(request: pytest.FixtureRequest) -> None:
    """Of those that were collected: all of them, where all are run."""
    assert not [item.nodeid for item in request.session.items if len(layers_of(item)) != 1]


def test_every_place_with_a_layer_is_there() -> None:
    assert set(PLACES.values()) <= set(LAYERS)
    assert not [place for place in PLACES if not (TESTS / place).exists()]


def test_the_longest_path_decides_and_the_rest_is_unit() -> None:
    assert place_of(TESTS / "browser" / "test_pages.py") == "browser"
    assert place_of(TESTS / "test_recipe.py") == "unit"
    assert place_of(TESTS / "methods" / "test_webfed.py") == "process"


@pytest.mark.network
def test_processes_and_sockets_are_noticed() -> None:
    assert not conftest.left_by
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert "subprocess.Popen" in conftest.left_by
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
    assert "socket.bind" in conftest.left_by
