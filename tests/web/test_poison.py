"""One hostile page of five over real sockets: the model of the shipped federations loses less than two points.

The pages draw from the streams of a simulation, so that every run of a test is the same to the last bit.
"""

import asyncio
import contextlib
import json

import pytest
from benchmarks.attacks import Hostile, Party

from sordino.client.frames import Request
from sordino.errors import InvalidInput
from sordino.messages import Plan
from sordino.recipe import Recipe
from sordino.web.hosting import Hosted
from tests.client import people
from tests.web.visitors import get, recipe, server, visit

HOSTILE = 4
CAUTIOUS = 16.341  #: the noise multiplier of the strongest class, an eighth of the epsilon
LOST = 0.02


async def _page(port, found, secret, answer):
    async with visit(port, found, secret) as visitor:
        client = (await visitor.until("welcome"))["client"]
        async for message in visitor.socket:
            if isinstance(message, bytes):
                plan = Plan.decode(people.unsigned(Request.decode(message).payload))
                await visitor.report(plan, answer(client, plan))
            elif json.loads(message)["type"] == "ended":
                return


def trained(folder, name, hostile=Hostile.honest, changes=()):
    """Accuracy of a federation whose last page sends what `hostile` says; no report is refused."""
    own = Recipe.load(name, ["rounds.quorum=5", "evaluation.every=20", *changes])
    found = Hosted(own, folder / "served")
    party = Party(found.parts)
    liar = Hostile(party)

    def answer(client, plan):
        return hostile(liar, plan) if client == HOSTILE else party.bodies(plan, [client])[0]

    async def everybody(port):
        async with asyncio.timeout(60):
            await asyncio.gather(*(_page(port, found, secret, answer) for secret in "abcde"))

    with server(found) as port:
        asyncio.run(everybody(port))
        told = get(port, f"/api/federations/{name}")
    assert sum(entry["refused"] for entry in told["history"]) == 0
    assert len(told["history"]) == own.rounds.count
    return told["accuracy"]


def cautious(liar, plan):
    return liar.party.bodies(plan, [liar.client], noise=CAUTIOUS)[0]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("honest"), "webfed-digits")


@pytest.mark.parametrize(
    "attack",
    [Hostile.loud, Hostile.directed, Hostile.one_class, cautious],
    ids=["largest", "directed", "one class", "cautious"],
)
def test_one_page_of_five_costs_the_private_federation_less_than_two_points(attack, honest, tmp_path):
    assert honest > 0.86
    assert trained(tmp_path, "webfed-digits", attack) > honest - LOST


@pytest.mark.parametrize("attack", [Hostile.loud, Hostile.directed], ids=["largest", "directed"])
def test_without_the_norm_and_the_rule_the_same_page_destroys_the_model(attack, tmp_path):
    bare = ["method.norm=", 'method.aggregation={ kind = "mean" }']
    with contextlib.suppress(InvalidInput):  # an open federation like that is refused now
        trained(tmp_path, "webfed-digits", attack, bare)
        pytest.fail("an open federation without any bound was served")
    party = Party(Hosted(Recipe.load("webfed-digits", bare), tmp_path / "invited", by_invitation=True).parts)
    liar = Hostile(party)
    assert party.accuracy(lambda plan: attack(liar, plan)) < 0.5


def test_one_page_of_five_costs_the_paper_federation_less_than_two_points(tmp_path):
    few = ["rounds.count=3"]
    honest = trained(tmp_path / "honest", "webfed-digits-laplace", changes=few)
    assert honest > 0.9
    for attack in (Hostile.loud, Hostile.directed):
        assert trained(tmp_path / attack.__name__, "webfed-digits-laplace", attack, few) > honest - LOST


# --- who may host what ------------------------------------------------------------------------------------------------

PLAIN = {"method": {"name": "fedavg"}, "clients": {}}
WEIGHTS = {**PLAIN, "method": {"name": "fedavg", "upload": "weights"}}


@pytest.mark.parametrize(
    ("changes", "remedies"),
    [
        (PLAIN, ("method.norm", "trimmed-mean", "--invite")),
        (WEIGHTS, ("trimmed-mean", "--invite")),
        ({**PLAIN, "method.aggregation": {"kind": "median"}, "rounds.quorum": 2}, ("rounds.quorum=3",)),
        ({**PLAIN, "method.aggregation": {"kind": "agreement"}, "rounds.quorum": 3}, ("method.norm",)),
    ],
    ids=["updates", "weights", "two reports", "directions only"],
)
def test_an_open_federation_that_bounds_no_report_is_refused_before_anything_is_made(changes, remedies, tmp_path):
    with pytest.raises(InvalidInput) as caught:
        Hosted(recipe(changes), tmp_path / "open")
    assert all(remedy in str(caught.value) for remedy in remedies)
    assert ("method.norm" in str(caught.value)) == ("method.norm" in remedies or changes is not WEIGHTS)
    assert not (tmp_path / "open").exists()


@pytest.mark.parametrize(
    ("changes", "invited"),
    [
        ({}, False),  # bits
        (PLAIN, True),
        ({**PLAIN, "method.norm": 1.0}, False),
        ({**PLAIN, "method.aggregation": {"kind": "median"}, "rounds.quorum": 3}, False),
        ({"method": {"name": "webfed", "range": {"kind": "fixed", "radius": 1.0}}}, False),
    ],
    ids=["bits", "by invitation", "norm", "rule", "noise from a table"],
)
def test_a_federation_is_served_where_reports_are_bounded_or_people_are_known(changes, invited, tmp_path):
    Hosted(recipe(changes), tmp_path / "served", by_invitation=invited).stop()
