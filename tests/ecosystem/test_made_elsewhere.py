"""What Opacus and flwr-datasets make works as it is. These tests need both libraries (`make test-more`)."""

import pytest

pytest.importorskip("opacus")
pytest.importorskip("flwr_datasets")

import numpy as np

import sordino

pytestmark = pytest.mark.filterwarnings("ignore")  # both libraries warn of their own dependencies
HERE = "tests.ecosystem.made_elsewhere"


def trained(model: str) -> sordino.Outcome:
    settings = [f'model={{ name = "{HERE}:{model}" }}', "rounds.count=2", "data.train_limit=200"]
    return sordino.run(sordino.Recipe.load("quickstart", settings), workers=1)


@pytest.mark.parametrize("model", ["fixed", "wrapped", "Rows"])
def test_a_model_of_opacus_trains_privately_with_a_proof(model):
    outcome = trained(model)
    assert len(outcome.rounds) == 2
    assert 0 < outcome.lead.proven[1] < 10


def test_a_wrapped_model_is_the_model_inside():
    one, other = trained("fixed"), trained("wrapped")
    assert np.array_equal(one.parameters, other.parameters)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_partitions_of_flwr_datasets_are_dealt_to_the_clients_they_are_of(alpha):
    from tests.ecosystem.made_elsewhere import dealt

    settings = {
        "data": {"source": f"{HERE}:dealt", "arguments": {"alpha": alpha}},
        "split": {"kind": "column", "column": "client", "clients": 5},
        "rounds.count": 2,
    }
    outcome = sordino.run(sordino.Recipe.load("fedavg-digits").with_(settings), workers=1)
    given = dealt(alpha)
    owners, labels = given.columns["client"], given.train.y
    own = [np.bincount(labels[owners == str(k)], minlength=10).tolist() for k in range(5)]
    assert [list(row) for row in outcome.result.label_counts] == own
    assert outcome.accuracy > 0.3
