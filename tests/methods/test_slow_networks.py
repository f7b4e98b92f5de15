"""Own networks that PyTorch cannot compute for many clients at once: they are trained one client after another."""

from typing import Any

import numpy as np
import pytest

import sordino
from sordino.errors import InvalidInput
from sordino.methods.blueprint import UNCONTAINED
from sordino.privacy.guarantee import Infinite
from sordino.report.expectations import ONE_BY_ONE
from sordino.runs.federation import wire
from tests.engine import tiny
from tests.methods.test_frozen_parts import METHODS

#: networks with their options, and whether many clients are computed side by side
NETWORKS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "LSTM": ("Recurrent", {}, False),
    "GRU": ("Recurrent", {"cell": "GRU"}, False),
    "dropout": ("Dropping", {}, False),
    "transformer": ("Attention", {}, False),
    "transformer without dropout": ("Attention", {"dropout": 0.0}, False),
    "tokens": ("Tokens", {}, True),
}


def recipe(network: str, method: str) -> sordino.Recipe:
    name, options, _ = NETWORKS[network]
    return tiny.recipe(
        {
            "model": {"name": f"tests.methods.own_networks:{name}", "options": options, "per_record": True},
            **METHODS[method],
        }
    )


@pytest.mark.parametrize(("method", "workers"), [("fedavg", 2), ("ldp-fl", 1)])  # workers load PyTorch: seconds
@pytest.mark.parametrize("network", NETWORKS)
def test_it_trains_and_the_same_seed_gives_the_same_model(network: str, method: str, workers: int) -> None:
    given = recipe(network, method)
    start = wire(given).method.init().parameters
    found = sordino.run(given)
    assert (found.parameters != start).mean() > 0.5
    assert np.array_equal(found.parameters, sordino.run(given, workers=workers).parameters)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_pre_flight_says_where_clients_are_computed_one_after_another(network: str) -> None:
    told = sordino.run(recipe(network, "fedavg")).result.preflight
    assert (ONE_BY_ONE in told) != NETWORKS[network][2]


@pytest.mark.parametrize("network", ["LSTM", "GRU", "transformer without dropout", "tokens"])
def test_private_training_computes_one_record_after_another(network: str) -> None:
    given = recipe(network, "silo-dp")
    method = wire(given).method
    (releases,) = method.releases(method.plan(method.init(), "f"))
    assert {guarantee.loss for guarantee in releases[0].guarantees} == {Infinite(UNCONTAINED)}
    assert np.isfinite(sordino.run(given.with_({"rounds.count": 1})).parameters).all()


@pytest.mark.parametrize("network", ["dropout", "transformer"])
def test_private_training_refuses_a_network_that_draws_before_any_training(network: str) -> None:
    with pytest.raises(InvalidInput, match=r"dropout to 0.*MaskedDropout"):
        wire(recipe(network, "silo-dp"))
