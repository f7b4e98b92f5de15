"""What a hostile server or relay may try: it is refused or counted in full, and nothing is ever drawn twice."""

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.client.client import Client, fresh
from sordino.client.refusal import Reason, Refused
from sordino.errors import LedgerUnavailable
from sordino.learning import datasets
from sordino.learning.examples import Dataset, Examples, Normalisation
from sordino.learning.stacked_model import Execution
from sordino.mechanisms import PrivUnitG
from sordino.mechanisms.privunit import best_cap
from sordino.recipe import Recipe
from sordino.wire.messages import Answer, Kind, Plan
from tests.client import people
from tests.client.people import COST, NAME, body, invitation, joined, plans, recipe, settings, signed
from tests.engine import tiny


class Draws:
    """Fresh randomness that counts how often it was asked for, and by which keys."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def __call__(self, round: int) -> Any:
        self.rounds.append(round)
        return fresh(round)


@pytest.fixture
def draws() -> Draws:
    return Draws()


@pytest.fixture
def member(tmp_path: Path, draws: Draws) -> Iterator[Client]:
    joined(tmp_path / "a").close()
    with Client.open(tmp_path / "a", randomness=draws) as found:
        yield found


def refused(
    client: Client, plan: Plan | bytes, reason: Reason, step: str = "report", given: Recipe | None = None
) -> None:
    """The plan of a recipe is declined for this reason, and nothing was spent or recorded."""
    before = client.standing.spent, client.ledger.head()
    message = plan if isinstance(plan, bytes) else signed(plan, step, given=given)
    reply = client.reply(step, message)
    assert reply.reason == reason.value
    if isinstance(plan, Plan):
        answer = Answer.decode(reply.payload)
        assert (answer.kind, answer.round, answer.digest, answer.body) == (
            Kind.DECLINED, plan.round, plan.digest, b"",
        )  # fmt: skip
    assert (client.standing.spent, client.ledger.head()) == before
    assert not any(figure in reply.reason for figure in "0123456789")


def unprotected() -> Recipe:
    """The same federation without a mechanism."""
    some = {key: value for key, value in people.TWO_POINT.items() if key not in tiny.TWO_POINT}
    return tiny.recipe(some)


def changed(plan: Plan, **arrays: Any) -> Plan:
    return replace(plan, arrays={**plan.arrays, **arrays})


# --- repeated and old rounds


def test_the_same_plan_again_gets_the_same_bytes_and_costs_nothing(member, draws):
    plan = plans()(1)
    first = member.answer("report", signed(plan))
    assert len(body(first)) == 82  # 650 bits
    assert member.standing.spent == pytest.approx(COST)
    assert [member.answer("report", signed(plan)) for _ in range(3)] == [first] * 3
    assert member.standing.spent == pytest.approx(COST)
    assert draws.rounds == [1]


def test_the_same_bytes_after_a_restart(member, draws, tmp_path):
    plan = signed(plans()(1))
    first = member.answer("report", plan)
    member.close()
    with Client.open(tmp_path / "a") as again:
        assert again.answer("report", plan) == first
        assert again.standing.spent == pytest.approx(COST)


def test_a_round_again_with_other_parameters_is_refused(member, draws):
    plan = plans()(1)
    member.answer("report", signed(plan))
    refused(member, changed(plan, parameters=plan.arrays["parameters"] + 1), Reason.OUT_OF_ORDER)
    assert draws.rounds == [1]


def test_a_round_again_with_other_ranges_is_refused(tmp_path):
    given = people.method_recipe("ldp-fl")
    with joined(tmp_path / "a", given) as member:
        plan = plans(given)(1)
        member.answer("report", signed(plan, given=given))
        spent = member.standing.spent
        refused(member, changed(plan, range=plan.arrays["range"] * np.float32(1.5)), Reason.OUT_OF_ORDER, given=given)
        assert member.standing.spent == spent > 0


def test_rounds_do_not_go_backwards(member):
    of = plans()
    member.answer("report", signed(of(2)))
    refused(member, of(1), Reason.OUT_OF_ORDER)
    body(member.answer("report", signed(of(3))))


@pytest.mark.parametrize("round", [0, 4, 2**31])
def test_rounds_outside_the_schedule_are_refused(member, round):
    refused(member, replace(plans()(1), round=round), Reason.NOT_IN_RECIPE)


def test_a_negative_round_is_unreadable(member):
    message = Plan(NAME, -1, {}, plans()(1).arrays).encode()
    reply = member.reply("report", people.KEY.envelope("report", plans()(1), people.terms().digest, [0], message))
    assert (reply.payload, reply.reason) == (b"", Reason.UNREADABLE.value)


def test_two_federations_of_one_recipe_get_two_draws_and_both_are_counted(member, draws):
    member.join(invitation(name="another").encode())
    first = body(member.answer("report", signed(plans()(1))))
    second = body(member.answer("report", signed(plans(name="another")(1))))
    assert first != second
    assert member.standing.spent == pytest.approx(2 * COST)
    assert draws.rounds == [1, 1]


# --- plans that ask for more


def test_an_epsilon_in_a_plan_is_refused(member):
    refused(member, replace(plans()(1), settings={"epsilon": 8.0}), Reason.NOT_IN_RECIPE)


def test_a_larger_share_of_the_budget_than_the_schedule_has_is_refused(tmp_path):
    given = people.method_recipe("ldp-fed")
    with joined(tmp_path / "a", given, settings(limit=1e12)) as member:
        plan = plans(given)(1)
        for share in ([1, 1], [2 * plan.settings["share"][0], plan.settings["share"][1]]):
            larger = replace(plan, settings={**plan.settings, "share": share})
            refused(member, larger, Reason.NOT_IN_RECIPE, given=given)
        other = plans(given)(2).settings
        refused(member, replace(plan, settings={**other, "columns": [0, 1]}), Reason.NOT_IN_RECIPE, given=given)
        body(member.answer("report", signed(plan, given=given)))


@pytest.mark.parametrize(
    "arrays",
    [
        {"parameters": np.zeros(650, np.float32), "labels": np.zeros(20, np.float32)},
        {},
        {"parameters": np.zeros(651, np.float32)},
        {"parameters": np.zeros((650, 1), np.float32)},
        {"weights": np.zeros(650, np.float32)},
        {"parameters": np.full(650, np.nan, np.float32)},
        {"parameters": np.full(650, np.inf, np.float32)},
    ],
    ids=["added", "none", "longer", "other shape", "other name", "nan", "infinite"],
)
def test_other_tensors_than_the_recipes_are_refused(member, arrays):
    refused(member, Plan(NAME, 1, {}, arrays), Reason.NOT_IN_RECIPE)


@pytest.mark.parametrize("radius", [0.0, -1.0], ids=str)
def test_a_range_without_room_is_refused(tmp_path, radius):
    given = people.method_recipe("ldp-fl")
    with joined(tmp_path / "a", given) as member:
        plan = plans(given)(1)
        ranges = plan.arrays["range"].copy()
        ranges[1] = radius
        refused(member, changed(plan, range=ranges), Reason.NOT_IN_RECIPE, given=given)


def test_a_plan_written_in_another_way_is_refused(member):
    encoded = plans()(1).encode()
    (length,) = struct.unpack_from("<I", encoded, 4)
    header = json.dumps(json.loads(encoded[8 : 8 + length])).encode()  # with spaces: another digest, the same plan
    message = encoded[:4] + struct.pack("<I", len(header)) + header + encoded[8 + length :]
    refused(member, people.KEY.envelope("report", plans()(1), people.terms().digest, [0], message), Reason.UNREADABLE)


def test_unknown_steps_are_refused(member):
    for step in ("reveal", "", "prepare", "keys"):
        reply = member.reply(step, signed(plans()(1), step))
        assert reply.reason not in ("", Reason.NOT_SIGNED.value)
    assert member.standing.spent == 0


@pytest.mark.usefixtures("sum_graph")
def test_a_report_asked_for_outside_its_secure_sum_is_refused(tmp_path):
    given = recipe({"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}})
    with joined(tmp_path / "a", given) as member:
        refused(member, plans(given)(1), Reason.NOT_IN_RECIPE, given=given)


@pytest.mark.usefixtures("sum_graph")
def test_a_report_that_is_in_a_secure_sum_does_not_leave_by_itself_afterwards(tmp_path):
    given = recipe({"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}})
    federation = people.wire(given)
    clients = people.members(tmp_path, federation)
    _, held = people.coordinator(federation, people.DirectFleet(clients)).round(federation.method.init())
    plan = federation.method.plan(federation.method.init(), NAME)
    assert held.attendance.reported == [0, 1, 2, 3]
    for step in ("report", "post", "prepare"):  # the ledger has the bytes: they are not handed out by another step
        reply = clients[0].reply(step, signed(plan, step, given=given))
        assert reply.reason == Reason.NOT_IN_RECIPE.value
        assert reply.payload == b"", "nor is it called declined"


@pytest.mark.usefixtures("sum_graph")
def test_a_client_adds_its_report_to_one_sum_and_to_no_second(tmp_path):
    given = recipe({"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}})
    federation = people.wire(given)
    clients = people.members(tmp_path, federation)
    seen: list[tuple[str, bytes]] = []

    class Recording(people.DirectFleet):
        def exchange(self, step, messages, deadline):
            seen.append((step, messages[0]))
            yield from super().exchange(step, messages, deadline)

    _, held = people.coordinator(federation, Recording(clients)).round(federation.method.init())
    assert held.attendance.reported == [0, 1, 2, 3]
    spent = clients[0].standing.spent
    for step, message in seen[:-1]:
        assert clients[0].reply(step, message).reason, step
    assert clients[0].reply(*seen[-1]).reason, "what was refused in between has ended even the repetition"
    assert clients[0].standing.spent == spent


@pytest.mark.usefixtures("sum_graph")
def test_the_last_answer_is_given_again_and_says_nothing_new(tmp_path):
    given = recipe({"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}})
    federation = people.wire(given)
    clients = people.members(tmp_path, federation)

    class Twice(people.DirectFleet):
        def exchange(self, step, messages, deadline):
            first, again = (list(super(Twice, self).exchange(step, messages, deadline)) for _ in range(2))
            assert [replace(reply, receipt=b"") for reply in again] == [replace(reply, receipt=b"") for reply in first]
            assert all(a.receipt != b.receipt for a, b in zip(first, again, strict=True))  # sealed anew
            yield from first

    _, held = people.coordinator(federation, Twice(clients)).round(federation.method.init())
    assert held.attendance.reported == [0, 1, 2, 3]
    assert clients[0].standing.spent == pytest.approx(COST)


# --- federations and terms


def test_a_plan_of_a_federation_that_nobody_agreed_to_is_refused(member):
    refused(member, signed(plans(name="elsewhere")(1)), Reason.NOT_AGREED)
    refused(member, signed(replace(plans()(1), federation="../a")), Reason.NOT_AGREED)


@pytest.mark.parametrize(
    "changes",
    [{"clients.epsilon": 4.0}, {"method.range.radius": 0.2}, {"method.mechanism": {"name": "none"}}, {"seed": 8}],
    ids=["weaker epsilon", "other range", "no mechanism", "other start"],
)
def test_other_terms_under_an_agreed_name_are_refused(member, changes):
    given = unprotected() if "method.mechanism" in changes else recipe(changes)
    with people.refused(Reason.OTHER_TERMS):
        member.join(invitation(given).encode())
    with people.refused(Reason.OTHER_TERMS):
        member.join(invitation(number=1).encode())


def test_nothing_leaves_unprotected_that_the_owner_did_not_allow(tmp_path):
    given = tmp_path / "a", recipe({"method.aggregation": {"kind": "samples"}})
    with pytest.raises(Refused, match="'sample count'") as caught:
        joined(*given)
    assert caught.value.reason is Reason.CONSENT
    with joined(tmp_path / "b", given[1], settings(unproven=["sample count"])) as allowed:
        offer = allowed.offer(invitation(given[1]).encode())
        assert offer.unprotected == ("sample count",)
        body(allowed.answer("report", signed(plans(given[1])(1), given=given[1])))
        assert allowed.standing.unprotected == 1


def test_records_that_are_computed_together_are_refused_by_a_proven_budget(tmp_path):
    """One may change the last bits of another: nothing is proven of what is computed several at a time."""
    given = people.method_recipe("silo-dp").with_({"model": {"name": "mlp", "options": {"hidden": [8]}}})
    own = settings(limit=1e9, budget={"delta": 1e-5, "adjacency": "record-add-remove"})
    people.client(tmp_path / "a", own).close()
    with Client.open(tmp_path / "a") as client:
        assert client.offer(invitation(given).encode()).fits == given.rounds.count
    with Client.open(tmp_path / "a", execution=Execution(16)) as client, pytest.raises(Refused) as caught:
        client.offer(invitation(given).encode())
    assert caught.value.reason is Reason.CONSENT


FLOATS = {"method.mechanism": {"name": "privunit"}, "method.range.radius": 1.0, "clients.epsilon": 0.05}


def test_a_proven_budget_refuses_a_mechanism_of_floats_and_names_others(tmp_path):
    with pytest.raises(Refused, match=r"floats.*norm l2.*norm l1") as caught:
        joined(tmp_path / "a", recipe(FLOATS))
    assert caught.value.reason is Reason.CONSENT


def test_five_rounds_of_floats_name_no_pixel_that_is_not_zero(tmp_path):
    """Where an owner lets it go all the same: what 32-bit noise alone cannot give would be said of other pixels only.

    Shares within 6 standard deviations, false alarm 2e-9; with noise kept in 32 bits no weight of a blank pixel has
    one, and nearly half of the others have.
    """
    given = recipe({**FLOATS, "rounds.count": 5})
    digits = datasets.load("digits")
    pixels = np.asarray(digits.normalisation.apply(digits.train.x[:20])).reshape(20, 64)
    inked = np.append(np.tile(np.abs(pixels).max(axis=0) > 0, 10), np.ones(10, bool))
    assert 200 < inked.sum() < 550
    scale, named = 1 / best_cap(0.05).m, np.zeros(650, bool)
    with joined(tmp_path / "a", given, settings(unproven=["model update"])) as client:
        for round in range(1, 6):
            mechanism = PrivUnitG(0.05)
            sent = body(client.answer("report", signed(plans(given)(round), given=given)))
            said = mechanism.estimate(mechanism.decode([sent], 650))[0]
            near = (said / scale).astype(np.float32)
            tried = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
            named |= ~np.logical_or.reduce([(x.astype(np.float64) * scale).astype(np.float32) == said for x in tried])
    share = named.mean()
    deviation = np.sqrt(share * (1 - share) * (1 / inked.sum() + 1 / (~inked).sum()))
    assert abs(named[inked].mean() - named[~inked].mean()) <= 6 * deviation


def test_a_claim_for_one_round_does_not_pay_for_the_whole_schedule(tmp_path):
    """Eq. 4's claim is for R rounds of records sampled with q: counted once, it must be of this very recipe."""
    noise = {"name": "gaussian", "calibration": "analytic", "delta": 1e-6}
    honest = recipe({"method.mechanism": noise, "rounds.count": 1000})
    lines = 'calibration = "eq4"\nsampling = 0.001\nrounds = '
    own = settings(limit=1.0, claimed=True, budget={"basis": "claimed", "delta": 1e-5})
    with people.client(tmp_path / "a", own) as client:
        for rounds in (1, 1000):
            text = honest.to_toml().replace('calibration = "analytic"', f"{lines}{rounds}")
            with pytest.raises(Refused) as caught:
                client.join(replace(people.terms(honest), recipe=text).invitation(0, people.KEY).encode())
            assert caught.value.reason is Reason.NOT_IN_RECIPE
            assert "method.mechanism.sampling" in str(caught.value)
            assert ("method.mechanism.rounds" in str(caught.value)) is (rounds == 1)
        assert client.federations() == {}


def test_claimed_accounting_needs_the_owners_consent(tmp_path):
    given = recipe({"clients.budget": {"limit": 10.0, "basis": "claimed"}})
    with pytest.raises(Refused, match="claimed") as caught:
        joined(tmp_path / "a", given)
    assert caught.value.reason is Reason.CONSENT
    joined(tmp_path / "b", given, settings(claimed=True)).close()


def test_a_budget_of_claims_needs_consent_too(tmp_path):
    with pytest.raises(Exception, match="claimed epsilons"):
        people.client(tmp_path / "a", settings(budget={"basis": "claimed"}))


def test_code_of_the_servers_choice_is_not_imported(tmp_path):
    given = recipe({"model": {"name": "tests.client.boom:Net"}})
    with pytest.raises(Refused, match=r"tests\.client\.boom:Net") as caught:
        joined(tmp_path / "a", given)
    assert caught.value.reason is Reason.CONSENT


def test_a_silo_is_not_told_to_divide_by_its_own_size(tmp_path):
    """A coordinator of ours does not even ask; one of somebody else's may."""
    honest = people.terms(people.method_recipe("silo-dp"))
    asked = Recipe.from_toml(honest.recipe).with_({"method.announced_size": 0}).to_toml()
    forged = replace(honest, recipe=asked).invitation(0, people.KEY)
    with people.client(tmp_path / "a") as client, pytest.raises(Refused, match="announced_size"):
        client.join(forged.encode())


def test_a_number_that_the_recipe_does_not_have_is_refused(tmp_path):
    with people.client(tmp_path / "a") as client, people.refused(Reason.NOT_IN_RECIPE):
        client.join(invitation(number=3).encode())


# --- the budget


def test_a_plan_beyond_the_budget_is_declined_and_the_rest_stays(tmp_path, draws):
    joined(tmp_path / "a", own=settings(limit=2 * COST + 1)).close()
    with Client.open(tmp_path / "a", randomness=draws) as member:
        of = plans()
        for round in (1, 2):
            body(member.answer("report", signed(of(round))))
        refused(member, of(3), Reason.BUDGET)
        assert draws.rounds == [1, 2]  # refused before any record was touched
        assert "of 1301 is spent" in (tmp_path / "a" / "log.txt").read_text()


def test_a_federation_of_which_not_one_round_fits_is_not_joined(tmp_path):
    with pytest.raises(Refused, match="650") as caught:
        joined(tmp_path / "a", own=settings(limit=COST - 1))
    assert caught.value.reason is Reason.BUDGET


def test_a_report_that_could_not_be_recorded_does_not_leave_and_the_next_is_another_draw(member, draws, monkeypatch):
    plan = plans()(1)
    lost: list[bytes] = []

    def full(key: Any, releases: Any, report: bytes, **_: Any) -> None:
        lost.append(report)
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(member.ledger, "record", full)
        refused(member, plan, Reason.UNAVAILABLE)
    assert body(member.answer("report", signed(plan))) != lost[0]
    assert draws.rounds == [1, 1]
    assert member.standing.spent == pytest.approx(COST)


def test_training_that_breaks_looks_like_any_report(member, monkeypatch):
    plan = plans()(1)
    kind = type(member._member(NAME))
    monkeypatch.setattr(kind, "report", lambda *_: 1 / 0)
    assert len(body(member.answer("report", signed(plan)))) == 82
    assert member.standing.spent == pytest.approx(COST)
    assert "training failed" in (member.folder / "log.txt").read_text()


def test_private_training_that_breaks_sends_its_noise_alone_and_is_counted(tmp_path, monkeypatch):
    given = people.method_recipe("silo-dp")
    with joined(tmp_path / "a", given, settings(budget={"adjacency": "record-add-remove", "delta": 1e-5})) as member:
        monkeypatch.setattr(type(member._member(NAME)), "report", lambda *_: 1 / 0)
        sent = np.frombuffer(body(member.answer("report", signed(plans(given)(1), given=given))), "<f4")
        # two steps of noise with standard deviation 1, divided by 0.5 * 20; 15 % are above 5 sigma for 650 values
        assert sent.size == 650
        assert np.std(sent) == pytest.approx(np.sqrt(2) / 10, rel=0.15)
        assert abs(np.mean(sent)) < 0.03
        assert member.standing.spent > 0
        assert "training failed" in (member.folder / "log.txt").read_text()


@pytest.mark.parametrize("kind", ["npz", "csv"])
@pytest.mark.parametrize("records", [0, 1])
def test_a_silo_without_records_takes_part_as_one_with_a_record_does(tmp_path, kind, records):
    """That it holds none is not shown: nothing is refused, and noise is sent and counted."""
    if kind == "npz":
        np.savez(tmp_path / "own.npz", x=np.zeros((records, 4), np.float32), y=np.zeros(records, np.int64))
    else:
        (tmp_path / "own.csv").write_text("a,b,c,d,label\n" + "0,0,0,0,no\n" * records)
    public = {"classes": ["no", "yes"], "mean": [0.0], "std": [1.0]}
    columns = {"label": "label"} if kind == "csv" else {}
    data = {"source": f"./x.{kind}", **public, **columns} | ({"test": 0.5} if columns else {})
    given = people.method_recipe("silo-dp").to_dict() | {"data": data}
    given["method"] |= {"announced_size": 20}
    some = Examples(np.zeros((2, 4), np.float32), np.zeros(2, np.int64))
    known = Dataset("x", some, some, ("no", "yes"), Normalisation(), "", "")
    terms = people.CommonTerms.of(Recipe.from_dict(given), NAME, known, people.KEY.author)
    own = {"source": f"../own.{kind}", "classes": ["no", "yes"], **columns}
    budget = {"limit": 1e6, "adjacency": "record-add-remove", "delta": 1e-5}
    with people.client(tmp_path / "a", people.Settings.of({"data": own, "budget": budget})) as member:
        member.join(terms.invitation(0, people.KEY).encode())
        plan = member._member(NAME).expected(1)
        asked = people.KEY.envelope("report", plan, terms.digest, range(3), plan.encode())
        sent = np.frombuffer(body(member.answer("report", asked)), "<f4")
        assert sent.size == 10
        assert 0.01 < np.std(sent) < 1  # two steps of noise of 1, divided by 0.5 * 20, in ten values
        assert member.standing.spent > 0
        assert "training failed" not in (member.folder / "log.txt").read_text()


def test_training_that_breaks_says_nothing_where_no_mechanism_hides_it(tmp_path, monkeypatch):
    given = unprotected()
    with joined(tmp_path / "a", given, settings(unproven=["model update"])) as member:
        monkeypatch.setattr(type(member._member(NAME)), "report", lambda *_: 1 / 0)
        refused(member, plans(given)(1), Reason.UNAVAILABLE, given=given)


# --- randomness


def test_no_two_draws_share_a_key(monkeypatch):
    keys: list[bytes] = []
    real = people.Keystream.__init__
    monkeypatch.setattr(
        people.Keystream, "__init__", lambda self, key, *rest: (keys.append(key), real(self, key, *rest))[1]
    )
    for round in (0, 1, 1, 2):
        draw = fresh(round)
        draw([0]), draw([0])
    assert len(set(keys)) == len(keys) == 8


def test_nothing_of_the_recipe_selects_randomness(tmp_path):
    bodies = set()
    for name in ("a", "b"):
        with joined(tmp_path / name) as member:
            bodies.add(body(member.answer("report", signed(plans()(1)))))
    assert len(bodies) == 2  # the same records, recipe, number and plan
