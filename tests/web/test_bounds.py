"""An open federation is refused where the worst legal report is worth many honest ones, whatever bounds it in name."""

import pytest

from sordino.errors import InvalidInput
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.web.hosted_federation import HostedFederation, HostingRules
from sordino.web.report_bounds import MANY, WORTH, check_bounds, notice, worth

MEAN = 'method.aggregation={ kind = "mean" }'
DIRECT = 'method.channel={ kind = "direct" }'
SMALL = ("data.source=digits", "data.train_limit=0", "model.name=logistic")


def parts(name, *changes):
    return wire(Recipe.load(name, list(changes)))


def test_worth_by_hand():
    """A norm of 5 against noise of 2 * 2.6473 / 56 * sqrt(5 * 650) = 5.39; two points are as far out as each other."""
    assert worth(parts("webfed-digits"), 5) == pytest.approx(5 / 5.39, rel=1e-3)
    assert worth(parts("two-point-digits", "clients.epsilon=0.001"), 20) == pytest.approx(1, rel=1e-3)


def test_a_range_that_follows_the_mean_is_widened_in_every_round():
    """Nine times by a fifth in ten rounds."""
    found = parts("ldp-fl-digits", DIRECT, "split.clients=5")
    assert worth(found, 5) == pytest.approx(1.2**9, rel=1e-3)
    assert worth(found, 20) == pytest.approx(1.05**9, rel=1e-3)


def test_a_client_that_may_announce_any_number_of_samples_is_worth_as_many():
    kind = 'kind = "noisy-samples", epsilon = 1.0'
    noisy = (f"method.aggregation={{ {kind}, limit = {limit} }}" for limit in (100, 1000))
    few, many = (worth(parts("webfed-digits-laplace", each), 5) for each in noisy)
    assert many == pytest.approx(10 * few)


@pytest.mark.parametrize(
    ("name", "changes", "remedy"),
    [
        ("webfed-mnist", SMALL, "trimmed-mean"),
        ("personalized-digits", (), "trimmed-mean"),
        ("webfed-digits", ("method.norm=16777216",), "method.norm"),
        ("webfed-digits", (MEAN, "method.norm=", "method.clamp=16384"), "agreement"),
        ("webfed-digits", (MEAN,), "agreement"),
        ("webfed-digits", ('method.aggregation={ kind = "median" }', "rounds.quorum=5"), "agreement"),
        ("webfed-digits-laplace", (MEAN, "clients.epsilon=0.001", "method.mechanism.records=1"), "trimmed-mean"),
        (
            "webfed-digits-laplace",
            ("rounds.quorum=5", 'method.aggregation={ kind = "norm-filter", factor = 1e9 }'),
            "trimmed-mean",
        ),
        ("fedavg-digits", ("method.norm=1e6",), "method.norm"),
        ("two-point-digits", ("split.clients=5", "clients.epsilon=[4.0,4.0,4.0,4.0,0.001]"), "inverse-variance"),
        ("ldp-fl-digits", (DIRECT, "rounds.quorum=5"), "rounds.quorum=8"),
    ],
    ids=[
        "paper", "Gaussian table", "vast norm", "vast clamp", "mean of noisy gradients", "median of noisy gradients",
        "little epsilon", "vast factor", "vast norm of updates", "one loud class", "range that follows",
    ],
)  # fmt: skip
def test_an_open_federation_whose_single_report_reaches_far_is_refused(name, changes, remedy, tmp_path):
    with pytest.raises(InvalidInput) as caught:
        check_bounds(parts(name, *changes))
    assert remedy in str(caught.value)
    assert "--invite" in str(caught.value)
    with pytest.raises(InvalidInput):
        HostedFederation(Recipe.load(name, list(changes)), tmp_path / "open")
    assert not (tmp_path / "open").exists()
    HostedFederation(Recipe.load(name, list(changes)), tmp_path / "invited", HostingRules(by_invitation=True)).stop()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("webfed-digits", ("rounds.quorum=4",)),
        ("webfed-digits-laplace", ("rounds.quorum=4",)),
        ("two-point-digits", ()),
        ("fedavg-digits", ("method.norm=1.0",)),
        ("personalized-digits", ("rounds.quorum=3", 'method.aggregation={ kind = "trimmed-mean" }')),
        (
            "two-point-digits",
            ("clients.epsilon=[4.0,4.0,0.001]", "split.clients=3", 'method.aggregation={ kind = "inverse-variance" }'),
        ),
        ("ldp-fl-digits", (DIRECT, "rounds.quorum=8")),
    ],
)
def test_what_the_remedies_name_is_accepted(name, changes):
    found = parts(name, *changes)
    check_bounds(found)
    assert found.recipe.method.aggregation.kind == "trimmed-mean" or worth(found, found.recipe.rounds.quorum) <= WORTH


def test_the_operator_of_few_reports_is_told_what_one_visitor_can_cost(tmp_path):
    told = []
    HostedFederation(Recipe.load("two-point-digits"), tmp_path / "open", HostingRules(say=told.append)).stop()
    assert "--invite" in " ".join(told)
    told.clear()
    HostedFederation(
        Recipe.load("two-point-digits"), tmp_path / "invited", HostingRules(by_invitation=True, say=told.append)
    ).stop()
    assert told == []
    assert notice(parts("two-point-digits", f"rounds.quorum={MANY}")) == ""
