"""One hostile page of five over real sockets: the model of the shipped federations loses less than two points.

The pages draw from the streams of a simulation, so that every run of a test is the same to the last bit.
"""

import asyncio
import contextlib
import json

import pytest
from benchmarks.attacks import Hostile, Party
from typer.testing import CliRunner

from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.web.hosted_federation import HostedFederation, HostingRules
from sordino.wire.messages import Plan
from sordino.wire.requests import Request
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
    found = HostedFederation(own, folder / "served")
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
    party = Party(
        HostedFederation(
            Recipe.load("webfed-digits", bare), tmp_path / "invited", HostingRules(by_invitation=True)
        ).parts
    )
    liar = Hostile(party)
    assert party.accuracy(lambda plan: attack(liar, plan)) < 0.5


def test_a_page_that_follows_the_past_of_the_model_gets_past_the_rule_at_one_of_five():
    """The known limit, which docs/malicious.md states: 21 points over ten seeds."""
    party = Party(wire(Recipe.load("webfed-digits", ["seed=2"])))
    liar = Hostile(party)
    honest, attacked = party.accuracy(liar.honest), party.accuracy(liar.adaptive)
    assert 0.5 < attacked < honest - 0.1


def test_the_directed_attack_runs_where_reports_are_weighed_by_their_noise():
    party = Party(wire(Recipe.load("personalized-digits", ["rounds.count=1", "method.mechanism.rounds=1"])))
    assert party.accuracy(Hostile(party).directed) < 0.3


def test_one_page_of_five_costs_the_paper_federation_less_than_two_points(tmp_path):
    few = ["rounds.count=3"]
    honest = trained(tmp_path / "honest", "webfed-digits-laplace", changes=few)
    assert honest > 0.9
    for attack in (Hostile.loud, Hostile.directed):
        assert trained(tmp_path / attack.__name__, "webfed-digits-laplace", attack, few) > honest - LOST


# --- who may host what ------------------------------------------------------------------------------------------------

PLAIN = {"method": {"name": "fedavg"}, "clients": {}}
WEIGHTS = {**PLAIN, "method": {"name": "fedavg", "upload": "weights"}}
FOUR = {"split.clients": 5, "rounds.quorum": 4}
SILOS = {**FOUR, **people.METHODS["silo-dp"], "clients.budget": None}
NOISE = {"method": {"name": "webfed", "range": {"kind": "fixed", "radius": 1.0}}}
NORM, RULE, ENOUGH = "method.norm=LENGTH", "method.aggregation.kind=", "rounds.quorum=4"


def _rule(kind):
    return {"method.aggregation": {"kind": kind}}


@pytest.mark.parametrize(
    ("changes", "remedies", "others"),
    [
        (PLAIN, (NORM, f"{RULE}trimmed-mean", ENOUGH, "split.clients=5"), ()),
        ({**PLAIN, **FOUR}, (NORM, f"{RULE}trimmed-mean", ENOUGH), ("split.clients",)),
        (WEIGHTS, (f"{RULE}trimmed-mean",), (NORM,)),
        ({**PLAIN, **_rule("median"), "rounds.quorum": 2}, (ENOUGH,), (NORM, RULE)),
        ({**NOISE, **_rule("trimmed-mean"), "rounds.quorum": 2}, (ENOUGH,), (NORM, RULE)),
        ({**PLAIN, **_rule("agreement"), "method.norm": 1.0, "rounds.quorum": 1}, (ENOUGH,), (NORM, RULE)),
        (SILOS, (f"{NORM} --set {RULE}agreement --set {ENOUGH}",), ("trimmed-mean",)),
        ({**SILOS, **_rule("trimmed-mean")}, (f"{NORM} --set {RULE}agreement --set {ENOUGH}",), ()),
    ],
    ids=[
        "updates", "enough places", "weights", "two reports", "noise and two reports", "a norm and one report",
        "silos", "silos and a rule alone",
    ],
)  # fmt: skip
def test_an_open_federation_that_bounds_no_report_is_refused_before_anything_is_made(
    changes, remedies, others, tmp_path
):
    with pytest.raises(InvalidInput) as caught:
        HostedFederation(recipe(changes), tmp_path / "open")
    told = str(caught.value)
    assert all(remedy in told for remedy in (*remedies, "--invite"))
    assert not any(other in told for other in others)
    assert not (tmp_path / "open").exists()


def test_the_length_of_an_honest_report_is_printed_by_the_command_that_the_refusal_names(tmp_path):
    command = ["run", "webfed-digits", "--set", "method.norm=1", "--set", "rounds.count=1"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "run")])
    assert "honest report has an L2 norm of about" in " ".join(result.output.split())


@pytest.mark.parametrize("name", ["webfed-digits", "webfed-digits-laplace"])
def test_the_federations_made_for_pages_begin_with_enough_reports_for_their_rules(name, tmp_path):
    assert Recipe.load(name).rounds.quorum >= 4
    with pytest.raises(InvalidInput) as caught:
        HostedFederation(Recipe.load(name, ["rounds.quorum=2"]), tmp_path / "open")
    assert ENOUGH in str(caught.value)
    HostedFederation(
        Recipe.load(name, ["rounds.quorum=1"]), tmp_path / "alone", HostingRules(by_invitation=True)
    ).stop()


@pytest.mark.parametrize(
    ("changes", "invited"),
    [
        ({}, False),  # bits
        (PLAIN, True),
        ({**PLAIN, "method.norm": 1.0}, False),
        ({**PLAIN, **_rule("median"), "rounds.quorum": 3}, False),
        ({**SILOS, **_rule("agreement"), "method.norm": 1.0}, False),
        (NOISE, True),
    ],
    ids=["bits", "by invitation", "norm", "rule", "silos", "noise from a table, by invitation"],
)
def test_a_federation_is_served_where_reports_are_bounded_or_people_are_known(changes, invited, tmp_path):
    HostedFederation(recipe(changes), tmp_path / "served", HostingRules(by_invitation=invited)).stop()
