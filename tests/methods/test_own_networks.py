"""Own networks under private training: what keeps something from one record to the next is stated as unbounded."""

from typing import Any

import pytest

from sordino.methods.blueprint import UNCONTAINED, UNDECLARED, blueprint_of
from sordino.methods.silo_dp import REMEMBERS
from sordino.privacy.guarantee import Infinite, PoissonGaussian
from sordino.recipe import Recipe, RecipeInvalid
from tests.engine import tiny

PRIVATE: dict[str, dict[str, Any]] = {
    "silo-dp": {"name": "silo-dp", "noise_multiplier": 1.0},
    "hybrid-one": {"name": "hybrid-one", "noise_multiplier": 1.0, "channel": {"kind": "summed"}},
}


def losses(method: str, network: str, **model: Any) -> list[Any]:
    recipe = tiny.recipe(
        {
            "method": PRIVATE[method],
            "model": {"name": f"tests.methods.own_networks:{network}", "per_record": True, **model},
            "training": {"optimizer": {"name": "sgd", "lr": 0.1}},
            "clients.epsilon": None,
        }
    )
    made = recipe.method.build(blueprint_of(recipe, (1, 8, 8), 10, (20,) * recipe.number_of_clients)[0])
    (releases,) = made.releases(made.plan(made.init(), "t"))
    return [guarantee.loss for guarantee in releases[0].guarantees]


@pytest.mark.parametrize("method", PRIVATE)
@pytest.mark.parametrize("model", [{}, {"name": "logistic", "loss": {"kind": "torch.nn:CrossEntropyLoss"}}])
def test_of_own_code_nothing_is_proven_as_one_record_may_end_the_process(method: str, model: dict[str, Any]) -> None:
    assert set(losses(method, "Plain", **model)) == {Infinite(UNCONTAINED)}


@pytest.mark.parametrize("method", PRIVATE)
def test_a_shipped_network_and_loss_are_proven(method: str) -> None:
    assert {type(loss) for loss in losses(method, "", name="mlp")} == {PoissonGaussian}


@pytest.mark.parametrize("method", PRIVATE)
@pytest.mark.parametrize("network", ["RunningMean", "Counting", "Failing"])
def test_of_a_network_that_keeps_something_between_records_nothing_is_proven(method: str, network: str) -> None:
    found = losses(method, network)
    assert len(found) == (2 if method == "silo-dp" else 4)
    assert set(found) == {Infinite(REMEMBERS)}


@pytest.mark.parametrize("method", PRIVATE)
@pytest.mark.parametrize(
    "model",
    [{"per_record": False}, {"per_record": False, "name": "logistic", "loss": {"kind": "torch.nn:CrossEntropyLoss"}}],
    ids=["network", "loss"],
)
def test_of_own_code_that_nobody_vouches_for_nothing_is_proven(method: str, model: dict[str, Any]) -> None:
    """Tests on public records cannot see what code keeps from a rare record, or after its thousandth call."""
    assert set(losses(method, "Plain", **model)) == {Infinite(UNDECLARED)}


def test_an_own_kind_of_column_asks_for_the_same_word() -> None:
    """It sees one cell at a time, and may still remember a rare one."""
    columns = {"born": {"kind": "tests.learning.test_columns:Year", "first": 1950}}
    data = {"source": "own.csv", "label": "a", "classes": ["0", "1"], "test": 0.5, "columns": columns}
    method = {**PRIVATE["silo-dp"], "announced_size": 20}
    plain = tiny.recipe({"method": method, "training": {"optimizer": {"name": "sgd", "lr": 0.1}}})
    given = {**plain.to_dict(), "data": data}
    given.pop("clients", None)
    assert Recipe.from_dict(given).is_foreign
    assert not Recipe.from_dict({**given, "model": {**given["model"], "per_record": True}}).is_foreign
    with pytest.raises(RecipeInvalid, match=r"data\.columns"):
        Recipe.load("ldpfl-digits").with_({"data": data})


def test_an_untrained_extractor_is_no_code_of_ones_own() -> None:
    with pytest.raises(RecipeInvalid, match=r"method\.extractor\.model"):
        Recipe.load("proven-digits").with_(
            {"method.extractor": {"kind": "random", "model": "tests.methods.own_networks:Plain"}}
        )
