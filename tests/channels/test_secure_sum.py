"""Rounds over secure sums: the model of the direct channel, without a single report at the coordinator."""

import itertools
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest

import sordino
from sordino.channels.direct import Direct
from sordino.channels.neighbours import BREACH
from sordino.channels.secagg import STEPS, SumClient, SumRefused, SumServer, _message
from sordino.channels.secure_sum import Assurance, Members, Summed, UnmaskedSums, _with_plan, guarantee
from sordino.errors import InvalidInput
from sordino.fleets.interface import Fleet, Reply
from sordino.fleets.simulated import SimulatedFleet
from sordino.fleets.workers import local
from sordino.mechanisms import Box, NoisySums, TwoPoint
from sordino.methods.selection import SelectAll, SelectCount, SelectProbability
from sordino.methods.upload import ReportSum, Same, Upload
from sordino.privacy.accountant import bit_epsilon
from sordino.privacy.amplification import shuffled_bits
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Budget,
    GaussianLoss,
    Guarantee,
    Infinite,
    RandomizedBit,
    Release,
    summed,
)
from sordino.privacy.ledger import Consents, MemoryLedger
from sordino.privacy.statement import ClientSet, Statement
from sordino.report.statement import trust
from sordino.runs.coordinator import Coordinator, NobodyLeft, Rules
from sordino.runs.observer import Observer
from sordino.wire.codec import join, numbers
from sordino.wire.messages import Answer, Plan
from tests.engine.federations import VALUES, work
from tests.engine.test_upload import BUILDERS, draw, upload, vectors
from tests.engine.tiny import TWO_POINT, left, recipe

CLIENTS = 9
ALL = SelectAll()


def builder(epsilon):
    return TwoPoint(epsilon, Box(0.0, 0.5))


def two_point(clients: int = CLIENTS, **changes):
    return work(clients, **({"build": builder, "epsilons": [1.0] * clients} | changes))


def members(given, rule=Summed.Spec()) -> Members:  # noqa: B008 (a frozen value)
    return Members(given.method, rule)


def fleet(given, rule=Summed.Spec(), ledger=None, workers=1) -> SimulatedFleet:  # noqa: B008
    hands = local(workers, [given.bench.device])
    return SimulatedFleet(given, ledger, hands=hands, members=members(given, rule))


class Watched(Fleet):
    """A fleet whose answers pass through a function, step by step."""

    def __init__(self, inner, change=lambda step, answers: answers):
        self.inner, self.change, self.seen = inner, change, {}

    def exchange(self, step, messages, deadline):
        self.seen[step] = dict(messages)
        answers = [(r.client, r.message) for r in self.inner.exchange(step, messages, deadline)]
        yield from (Reply(*answer) for answer in self.change(step, answers))


def hold(given, change=lambda step, answers: answers, rule=Summed.Spec(), rules=Rules(), rounds=1, ledger=None):  # noqa: B008
    own = Watched(fleet(given, rule, ledger), change)
    coordinator = Coordinator(given.method, own, Summed(given.method, rule), "test", rules)
    state, records = given.method.init(), []
    for _ in range(rounds):
        state, record = coordinator.round(state)
        records.append(record)
    return state, records


def direct(given, absent=(), rounds=1):
    """The state after rounds over the direct channel, without some clients."""
    own = SimulatedFleet(given, None)

    def present(step, answers):
        return [(client, answer) for client, answer in answers if client not in absent]

    coordinator = Coordinator(given.method, Watched(own, present), Direct(), "test")
    state = given.method.init()
    for _ in range(rounds):
        state, _ = coordinator.round(state)
    return state


# --- the same model as without ----------------------------------------------------------------------------------------

WHOLE = ["two-point", "two-point by value", "laplace", "laplace l1", "gaussian", "sign", "exponential"]


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("samples", [False, True], ids=["alike", "by samples"])
def test_adding_sums_is_adding_reports(name, samples):
    """Whole numbers to the last bit; reals, of which 6 decimals are kept, to that."""
    part = upload(name, samples=samples)
    sizes = [3, 1, 10, 2, 5, 40]
    sent = part.send(range(6), vectors(6), draw, sizes).bodies
    one, two = part.tally([1.0, 0.3, 0.7]), part.tally([1.0, 0.3, 0.7])
    one.add(list(range(6)), sent)
    for group, clients in two.classes(list(range(6))).items():
        summands = [two.summand(client, sent[client], 6) for client in clients]
        low, high = two.span(group, 6)
        assert all(low <= s.min() and s.max() <= high for s in summands)
        two.add_sum(ReportSum(group, clients, np.sum(summands, axis=0), 6))
    assert two.reports == one.reports and two.weight == one.weight
    if name in WHOLE:
        assert np.array_equal(one.mean(), two.mean())
    else:
        assert np.allclose(one.mean(), two.mean(), rtol=0, atol=1e-6)


def test_products_of_large_sums_do_not_overflow():
    """A million clients with the largest output of LDP-Fed's integers: the sum times its factor needs 74 bits."""
    from sordino.methods.upload import _product

    total, factor = np.array([10**10 * 10**6, -(10**10) * 10**6, 12345]), np.array(2**20 + 12345)
    high, low = _product(total, factor)
    assert [h * 2**27 + el for h, el in zip(high.tolist(), low.tolist(), strict=True)] == [
        int(t) * (2**20 + 12345) for t in total
    ]


def test_a_sum_of_another_length_is_refused():
    with pytest.raises(InvalidInput, match="37"):
        upload("two-point").tally().add_sum(ReportSum(0, (0, 2), np.zeros(36, np.int64), 0))


@pytest.mark.parametrize("epsilons", [[1.0] * 9, [1.0, 4.0, 1.0, 4.0, 4.0, 1.0, 1.0, 4.0, 4.0]], ids=["one", "two"])
def test_rounds_lead_to_the_same_parameters_as_the_direct_channel(epsilons):
    given = two_point(epsilons=epsilons)
    state, records = hold(given, rounds=3)
    assert np.array_equal(state.parameters, direct(given, rounds=3).parameters)
    assert all(sorted(record.attendance.reported) == list(range(9)) for record in records)


MECHANISMS = {
    "two-point": {"mechanism": {"name": "two-point"}, "range": {"kind": "fixed", "radius": 0.1}},
    "sign": {"mechanism": {"name": "sign"}, "range": {"kind": "fixed", "radius": 0.1}},
    "laplace": {"mechanism": {"name": "laplace"}, "range": {"kind": "fixed", "radius": 0.1}},
    "gaussian": {"mechanism": {"name": "gaussian", "delta": 1e-6}, "range": {"kind": "fixed", "radius": 0.1}},
    "exponential": {"mechanism": {"name": "exponential"}, "range": {"kind": "fixed", "radius": 1.0}},
    "piecewise": {"mechanism": {"name": "piecewise"}, "range": {"kind": "fixed", "radius": 1.0}},
    "privunit": {"mechanism": {"name": "privunit"}, "range": {"kind": "fixed", "radius": 1.0}},
}


def both(changes):
    given = recipe({"split.clients": 8, "rounds.count": 2, **changes})
    return [sordino.run(given.with_({"method.channel": {"kind": kind}}), workers=1) for kind in ("direct", "summed")]


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_recipe_gives_exactly_the_same_parameters_over_either_channel(name):
    epsilon = {"values": [2.0, 8.0], "shares": [0.5, 0.5]}
    changes = {f"method.{key}": value for key, value in MECHANISMS[name].items()} | {"clients.epsilon": epsilon}
    plain, safe = both(changes)
    assert np.array_equal(plain.parameters, safe.parameters)
    assert plain.accuracy == safe.accuracy


@pytest.mark.parametrize("mechanism", ["none", "clip-only"])
def test_reals_are_added_with_ten_decimals(mechanism):
    ranged = {} if mechanism == "none" else {"method.range": {"kind": "fixed", "radius": 1.0}}
    plain, safe = both({"method.mechanism": {"name": mechanism}, **ranged})
    assert np.allclose(plain.parameters, safe.parameters, rtol=0, atol=1e-6)


def test_fewer_decimals_are_coarser():
    plain = recipe({"split.clients": 8, "rounds.count": 1})
    exact = sordino.run(plain, workers=1).parameters
    coarse = sordino.run(plain.with_({"method.channel": {"kind": "summed", "digits": 2}}), workers=1).parameters
    worst = np.abs(exact - coarse).max()
    assert 1e-4 < worst <= 0.005 * (1 + 1e-3)


def test_sample_counts_weigh_without_being_seen():
    changes = {
        "split": {"kind": "sizes", "sizes": [2, 3, 5, 8, 12], "at_least": 1},
        "method.aggregation": {"kind": "samples"},
    }
    given = recipe(changes)
    safe = sordino.run(given.with_({"method.channel": {"kind": "summed", "digits": 6}}), workers=1)
    assert np.allclose(safe.parameters, sordino.run(given, workers=1).parameters, rtol=0, atol=1e-5)


def test_weights_that_leave_no_room_in_64_bits_are_refused_with_the_remedy(tmp_path):
    given = recipe(
        {"split.clients": 8, "method.aggregation": {"kind": "samples"}, "method.channel": {"kind": "summed"}}
    )
    with pytest.raises(InvalidInput, match="64 bits"):
        sordino.run(given, workers=1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.process
def test_the_number_of_workers_does_not_change_a_bit():
    given = two_point()
    expected = direct(given, rounds=2).parameters
    own = fleet(given, workers=2)
    try:
        coordinator = Coordinator(given.method, own, Summed(given.method, Summed.Spec()), "test")
        state = given.method.init()
        for _ in range(2):
            state, _ = coordinator.round(state)
    finally:
        own.close()
    assert np.array_equal(state.parameters, expected)


@pytest.mark.process
def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path):
    """Masks are drawn anew, from the operating system; what they hide is the same."""
    given = recipe({"split.clients": 6, **TWO_POINT, "method.channel": {"kind": "summed"}})
    sordino.run(given, workers=1, folder=tmp_path / "whole")

    class Stop(Observer):
        def round(self, record, attendance):
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sordino.run(given, workers=1, folder=tmp_path / "parts", observer=Stop())
    sordino.run(given, workers=1, folder=tmp_path / "parts", resume=True)
    assert left(tmp_path / "parts") == left(tmp_path / "whole")


# --- what the coordinator gets ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sum_graph")
def test_no_report_reaches_the_coordinator_in_the_clear():
    """The direct channel's body of 3,003 bits is nowhere in what clients send, and masks differ between two runs."""
    given = two_point(features=1000)
    plan = given.method.plan(given.method.init(), "test")
    plain = SimulatedFleet(given, None).exchange("report", dict.fromkeys(range(CLIENTS), plan.encode()), None)
    bodies = [reply.answer.body for reply in plain]
    heard = []

    def listen(step, answers):
        heard.extend((step, client, answer) for client, answer in answers)
        return answers

    for _ in range(2):
        hold(given, listen)
    assert len(heard) == 2 * len(STEPS) * CLIENTS
    assert not any(body in answer for body, (_, _, answer) in itertools.product(bodies, heard))
    masked = [(client, answer) for step, client, answer in heard if step == "masked"]
    assert len(set(masked)) == 2 * CLIENTS


@pytest.mark.usefixtures("sum_graph")
@pytest.mark.parametrize("step", STEPS)
def test_whoever_drops_out_is_left_out_and_the_others_count(step):
    gone = {1, 4}
    given = two_point()
    state, (record,) = hold(given, lambda at, answers: [a for a in answers if at != step or a[0] not in gone])
    absent = gone if STEPS.index(step) <= STEPS.index("masked") else set()
    assert np.array_equal(state.parameters, direct(given, absent).parameters)
    assert set(record.attendance.reported) == set(range(CLIENTS)) - absent


@pytest.mark.usefixtures("sum_graph")
@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_sends_rubbish_is_refused_and_the_others_count(step):
    def spoil(at, answers):
        client, message = answers[0]
        answer = Answer.decode(message)
        rubbish = Answer(answer.kind, answer.round, answer.digest, answer.body[:-1]).encode()
        return [(client, rubbish), *answers[1:]] if at == step else answers

    given = two_point()
    first = 0
    state, (record,) = hold(given, lambda at, answers: spoil(at, sorted(answers)))
    absent = {first} if STEPS.index(step) <= STEPS.index("masked") else set()
    assert np.array_equal(state.parameters, direct(given, absent).parameters)
    assert re.search("cut off|ha(s|ve) ", record.attendance.refused[first])


@pytest.mark.usefixtures("sum_graph")
@pytest.mark.parametrize("step", STEPS)
def test_a_sum_without_enough_clients_is_lost_and_the_model_stays(step):
    given = two_point()
    state, (record,) = hold(given, lambda at, answers: answers if at != step else sorted(answers)[:6])
    assert np.array_equal(state.parameters, given.method.init().parameters)
    assert not record.counted and not record.attendance.reported
    assert "6 of 9 clients answered" in record.why_lost and "7 are needed" in record.why_lost
    assert not record.attendance.refused


@pytest.mark.usefixtures("sum_graph")
def test_a_class_that_loses_its_sum_does_not_take_the_others_with_it():
    given = two_point(epsilons=[1.0] * 4 + [4.0] * 5)
    state, (record,) = hold(given, lambda at, answers: [a for a in answers if at != "masked" or a[0] not in (0, 1)])
    assert sorted(record.attendance.reported) == [4, 5, 6, 7, 8] and record.counted
    assert np.array_equal(state.parameters, direct(given, absent={0, 1, 2, 3}).parameters)


def test_a_class_of_which_too_few_were_chosen_is_not_asked():
    given = two_point(epsilons=[1.0] * 3 + [4.0] * 6)
    own = Watched(fleet(given))
    coordinator = Coordinator(given.method, own, Summed(given.method, Summed.Spec()), "test")
    _, record = coordinator.round(given.method.init())
    assert set(own.seen["keys"]) == {3, 4, 5, 6, 7, 8}
    assert record.counted and "3 clients of class 0 were chosen, and a secure sum needs 4" in record.attendance.lost[0]


def test_spent_clients_decline_and_the_sum_goes_on_without_them():
    """An upload costs VALUES: two clients can afford one, seven can afford two, and nine none of the third."""
    given = two_point()
    budgets = [Budget(VALUES * 1.001)] * 2 + [Budget(VALUES * 2.001)] * 7
    own = fleet(given, ledger=MemoryLedger(budgets, Consents()))
    coordinator = Coordinator(given.method, own, Summed(given.method, Summed.Spec()), "test")
    state = given.method.init()
    seen = []
    for _ in range(2):
        state, record = coordinator.round(state)
        seen.append((sorted(record.attendance.reported), sorted(record.attendance.declined)))
    assert seen == [(list(range(9)), []), ([2, 3, 4, 5, 6, 7, 8], [0, 1])]
    with pytest.raises(NobodyLeft):
        coordinator.round(state)


def test_a_deadline_is_for_each_step():
    """Every step takes most of the time allowed, and all five together several times as much."""

    def slow(step, answers):
        time.sleep(1.0)
        return answers

    began = time.monotonic()
    _, (record,) = hold(two_point(), slow, rules=Rules(deadline=4.5))
    assert record.counted and time.monotonic() - began > 4.5


@pytest.mark.usefixtures("sum_graph")
def test_who_misses_the_deadline_has_dropped_out():
    def late(step, answers):
        yield from (a for a in answers if a[0] != 3)
        if step == "masked":
            time.sleep(5.0)
        yield from (a for a in answers if a[0] == 3)

    given = two_point()
    state, (record,) = hold(given, late, rules=Rules(deadline=4.0))
    assert record.attendance.strays["late"] == 1
    assert np.array_equal(state.parameters, direct(given, absent={3}).parameters)


def test_training_that_diverges_is_a_dropout():
    """Values that the sum has no room for do not leave their client."""
    given = work(CLIENTS, sends="weights")
    given.method._initial[0] = 1e20
    own = fleet(given)
    _, record = Coordinator(given.method, own, Summed(given.method, Summed.Spec()), "test").round(given.method.init())
    assert "0 of 9 clients answered the step 'masked'" in record.why_lost
    assert set(own.diagnostics.dropped) == set(range(CLIENTS)) and "training has diverged" in own.diagnostics.dropped[0]


# --- the clients' side ------------------------------------------------------------------------------------------------


def invited(given, rule=Summed.Spec(), *, number=1, clients=tuple(range(CLIENTS)), **changes) -> bytes:  # noqa: B008
    plan = Plan("test", number, {}, {"parameters": given.method.init().parameters})
    tally = given.method.tally(plan)
    session = rule.session(plan, tally, 0, len(clients))
    agreed = type(session)(**(vars(session) | changes)) if changes else session
    return _with_plan(SumServer(agreed, clients).requests("keys")[clients[0]], plan.encode())


@pytest.mark.usefixtures("sum_graph")
def test_a_client_joins_a_sum_once_and_none_of_an_earlier_round():
    given = two_point()
    own = members(given)
    for number in (1, 2):
        message = invited(given, number=number)
        own.begin(message)
        own.answer("keys", 3, message)
        own.begin(message)
        with pytest.raises(SumRefused, match=f"round {number} already"):
            own.answer("keys", 3, message)
    message = invited(given, attempt="anew")
    own.begin(message)
    with pytest.raises(SumRefused, match="round 2 already"):
        own.answer("keys", 3, message)


@pytest.mark.usefixtures("sum_graph")
def test_a_sum_that_is_begun_anew_has_fresh_keys_and_there_are_not_many_of_them():
    given = two_point()
    own = members(given)
    keys = set()
    for attempt in range(50):
        message = invited(given, attempt=str(attempt))
        own.begin(message)
        keys.add(own.answer("keys", 3, message)[24:])
    assert len(keys) == 50
    message = invited(given, attempt="one more")
    own.begin(message)
    with pytest.raises(SumRefused, match="50"):
        own.answer("keys", 3, message)


@pytest.mark.usefixtures("sum_graph")
def test_a_client_knows_whom_a_round_asks_and_takes_part_in_no_other_sum():
    """Six of nine, by the recipe's own draw: neither five of these nor six others."""
    selection = SelectCount(k=6)
    given = two_point(selection=selection)
    asked = given.method.select(given.method.init())
    other = next(c for c in range(CLIENTS) if c not in asked)
    rule, own = Summed.Spec(), members(given)
    for clients, client in ((asked[:5], asked[0]), ([*asked[:5], other], other)):
        message = invited(given, rule, clients=tuple(sorted(clients)))
        own.begin(message)
        with pytest.raises(SumRefused, match="6 of this class"):
            own.answer("keys", client, message)
    message = invited(given, rule, clients=tuple(sorted([*asked[:5], other])))  # the right number, and a stranger
    own.begin(message)
    own.answer("keys", asked[0], message)
    plan = Plan("test", 1, {}, {"parameters": given.method.init().parameters})
    session = rule.session(plan, given.method.tally(plan), 0, 6)
    names = sorted([*asked[:5], other])
    everybody = {c: SumClient(session, c, invited=names) for c in names if c != asked[0]} | {
        asked[0]: own._clients[asked[0]]
    }
    keys = {c: everybody[c]._entry.encode() for c in names}
    receiver, rest = 2**32 - 1, b"".join(keys.values())
    if session.is_sparse:
        drew_it = [c for c in names if c != asked[0]]
        receiver, rest = asked[0], join(numbers(drew_it)) + b"".join(keys[c] for c in drew_it)
    with pytest.raises(SumRefused, match=f"client {other} sent keys"):
        own.answer("shares", asked[0], _message("shares", session, receiver, names, rest))


@pytest.mark.usefixtures("sum_graph")
@pytest.mark.parametrize(
    "changes",
    [{"threshold": 5}, {"low": -1}, {"values": 17}, {"group": 1}, {"federation": "x"}, {"round": 2}, {"subject": ""}],
    ids=str,
)
def test_an_invitation_to_another_sum_than_the_plan_calls_for_is_refused(changes):
    given = two_point()
    own = members(given)
    message = invited(given, **changes)
    own.begin(message)
    with pytest.raises(SumRefused, match="another threshold"):
        own.answer("keys", 0, message)


@pytest.mark.usefixtures("sum_graph")
def test_a_sum_of_too_few_is_refused_by_the_client_too():
    given = two_point()
    own = members(given)
    message = invited(given, clients=(0, 1, 2))
    own.begin(message)
    with pytest.raises(SumRefused, match="fewer than 4"):
        own.answer("keys", 0, message)


@pytest.mark.usefixtures("sum_graph")
def test_clients_that_are_sent_different_plans_notice():
    given = two_point()
    own = members(given)
    own.begin(invited(given))
    with pytest.raises(SumRefused, match="another plan"):
        own.answer("keys", 0, invited(given, number=2))


@pytest.mark.usefixtures("sum_graph")
def test_steps_before_the_first_are_refused():
    own = members(two_point())
    with pytest.raises(SumRefused, match="step 'keys'"):
        own.plan  # noqa: B018
    own.begin(invited(two_point()))
    with pytest.raises(SumRefused, match="no sum"):
        own.answer("unmask", 0, b"")
    with pytest.raises(SumRefused, match="cut off"):
        own.begin(b"")


# --- neighbours -------------------------------------------------------------------------------------------------------

MANY = 100
DRAWN = Summed.Spec(threshold=0.9, sparse_from=50)  #: of 100 clients, each draws 25


def drawn(build=builder, **rule):
    upload = Upload(build, [1.0] * MANY, 3, clients=MANY, what="bits")
    return Summed.Spec(**({"threshold": 0.9, "sparse_from": 50} | rule)).neighbourhood(MANY, upload, 0)


def test_neighbours_are_drawn_where_many_are_invited_and_few_may_drop_out():
    assert (drawn().size, drawn().quorum) == (25, 16)
    assert drawn(sparse_from=101) is None
    assert drawn(threshold=2 / 3) is None, "75 of 100: no less work to speak of"
    assert drawn(colluders=0.3) is None
    assert drawn(lambda epsilon: NoisySums(1.0, 20, 3.0)) is None, "which count on more honest clients than are proven"
    assert Summed.Spec().sparse_from == 500


@pytest.mark.process
def test_with_neighbours_the_model_is_the_direct_channels():
    given, absent = two_point(MANY), (3, 50, 77)

    def present(step, answers):
        return [a for a in answers if step in ("keys", "shares") or a[0] not in absent]

    own = Watched(fleet(given, DRAWN), present)
    state, record = Coordinator(given.method, own, Summed(given.method, DRAWN), "test").round(given.method.init())
    assert record.counted and not record.attendance.refused
    assert sorted(record.attendance.reported) == [c for c in range(MANY) if c not in absent]
    assert np.array_equal(state.parameters, direct(given, absent=set(absent)).parameters)


@pytest.mark.parametrize("changes", [{"neighbours": 24}, {"quorum": 17}, {"neighbours": 0, "quorum": 0}], ids=str)
def test_how_many_neighbours_there_are_is_not_for_the_server_to_say(changes):
    given = two_point(MANY)
    own = members(given, DRAWN)
    message = invited(given, DRAWN, clients=tuple(range(MANY)), **changes)
    own.begin(message)
    with pytest.raises(SumRefused, match="does not fit the plan"):
        own.answer("keys", 0, message)


def test_how_many_are_invited_is_checked_before_neighbours_are_counted_for_them(monkeypatch):
    """For the most clients of a sum, the count takes seconds."""
    given = two_point(MANY)
    own = members(given, DRAWN)
    message = invited(given, DRAWN, clients=tuple(range(4 * MANY)))
    own.begin(message)
    calls = []
    monkeypatch.setattr(Summed.Spec, "neighbourhood", lambda *given: calls.append(given))
    with pytest.raises(SumRefused, match="100 of this class"):
        own.answer("keys", 0, message)
    assert not calls


def test_a_client_that_drew_neighbours_helps_to_reveal_one_sum_of_a_round():
    given = two_point(MANY)
    own = members(given, DRAWN)
    for attempt in ("first", "second"):
        message = invited(given, DRAWN, clients=tuple(range(MANY)), attempt=attempt)
        own.begin(message)
        own.answer("keys", 3, message)
    part = own._parts["test", 3]
    own._parts["test", 3] = replace(part, pledge=tuple(range(MANY)))
    message = invited(given, DRAWN, clients=tuple(range(MANY)), attempt="third")
    own.begin(message)
    with pytest.raises(SumRefused, match="no second one"):
        own.answer("keys", 3, message)
    assert own._parts["test", 3].sessions == part.sessions


def test_the_chance_of_a_breach_is_taken_off_delta():
    given = recipe(
        {
            "split.clients": MANY,
            "split.at_least": 0,
            "rounds.count": 2,
            "method.mechanism": {"name": "two-point"},
            "method.range": {"kind": "fixed", "radius": 0.1},
            "clients.epsilon": 1.0,
            "method.channel": {"kind": "summed", "threshold": 0.9, "sparse_from": 50, "masks": "deployed"},
        }
    )
    rows = {(row.adversary, row.adjacency): row for row in sordino.run(given, workers=1).statement.rows}
    row = rows[summed(10), Adjacency.COORDINATE]
    each = bit_epsilon(math.ceil(2**32 / (math.e + 1)))
    assert row.proven == shuffled_bits(each, 10, 1e-5 - math.nextafter(BREACH, 1)).upper
    assert row.proven > shuffled_bits(each, 10, 1e-5).upper
    assert "2^-40" in row.basis[0] and "5 %" in row.basis[0]
    assert row.pure == rows[SERVER, Adjacency.COORDINATE].pure, "without a delta, nothing rests on neighbours"


BITS = Upload(builder, [1.0] * MANY, 3, clients=MANY, what="bits")
SHARED = Upload(Same(NoisySums(1.0, 20, 3.0)), None, 3, clients=MANY, what="sums")


def test_bits_that_may_be_seen_one_by_one_have_no_better_figure():
    local = Guarantee(SERVER, Adjacency.CLIENT, RandomizedBit(2**30, 1), "a bit")
    found = [guarantee(release(local), Assurance(50, breach), BITS) for breach in (0.0, 1e-9, 1e-4)]
    rows = [{row.adversary: row.proven for row in Statement.of([own]).rows} for own in found]
    proven = [row[summed(50)] for row in rows]
    assert proven[0] < proven[1] < proven[2] == rows[2][SERVER]


def test_the_chances_of_all_rounds_are_taken_off_delta():
    local = Guarantee(SERVER, Adjacency.CLIENT, RandomizedBit(2**30, 1), "a bit")
    own = guarantee(release(local), Assurance(50, 1e-6), BITS)
    made = Statement.of_groups([(ClientSet(), [(own, 3)])])
    (row,) = (row for row in made.rows if row.adversary == summed(50))
    assert row.proven == shuffled_bits(bit_epsilon(2**30), 50, 1e-5 - math.nextafter(3e-6, 1), 3).upper
    assert row.proven > shuffled_bits(bit_epsilon(2**30), 50, 1e-5 - 1e-6, 3).upper


def test_where_a_class_may_be_small_or_large_a_breach_is_counted():
    given = two_point(MANY, epsilons=[1.0] * 60 + [2.0] * 40)
    rule = Summed.Spec(threshold=0.9, sparse_from=50)
    assert [a.breach for a in rule.assurances(given.method, SelectCount(k=70))] == [BREACH, 0.0]


def shared_noise(bits: int | None) -> Release:
    """A release of which every silo adds a part of the noise, and what its method says of the sum."""
    return release(
        Guarantee(SERVER, Adjacency.CLIENT, GaussianLoss(3.0), "one silo's noise"),
        Guarantee(summed(9), Adjacency.CLIENT, GaussianLoss(1.0), "shared noise", bits),
    )


def test_what_a_method_says_of_sums_is_not_proven_where_neighbours_are_drawn():
    own = shared_noise(20)
    first, second = guarantee(own, Assurance(5, BREACH), SHARED).guarantees
    assert first == own.guarantees[0]
    assert isinstance(second.loss, Infinite) and "sparse_from" in second.loss.why


def test_noise_that_is_shared_is_proven_for_sums_in_its_own_ring():
    own = shared_noise(20)
    assert guarantee(own, Assurance(5), SHARED) == own
    for bits, sums in ((21, SHARED), (20, BITS)):
        _, second = guarantee(shared_noise(bits), Assurance(5), sums).guarantees
        assert isinstance(second.loss, Infinite)


def test_noise_that_is_shared_hides_nothing_in_a_sum_without_a_modulus():
    first, second = guarantee(shared_noise(None), Assurance(5), BITS).guarantees
    assert (second.adversary, second.loss, second.basis) == (summed(9), first.loss, first.basis)


def test_shared_noise_is_summed_modulo_its_power_of_two_and_a_session_in_z_is_refused():
    """What a server proposes in its place, for as many clients, no client joins."""
    rule, plan = Summed.Spec(threshold=0.9), Plan("test", 1)
    agreed = rule.session(plan, SHARED.tally(), 0, MANY)
    assert (agreed.modulus, agreed.bits, agreed.low, agreed.high, agreed.is_sparse) == (20, 20, 0, 0, False)
    ordinary = rule.session(plan, BITS.tally(), 0, MANY)
    assert (ordinary.modulus, ordinary.high) == (0, 1)


@pytest.mark.parametrize(
    "changes", [{"modulus": 0, "low": -(2**19), "high": 2**19 - 1}, {"modulus": 48}, {"modulus": 8}], ids=str
)
def test_the_ring_is_not_for_the_server_to_say(changes):
    given = work(CLIENTS, build=lambda epsilon: NoisySums(1.0, 20, 3.0))
    own = members(given)
    message = invited(given)
    own.begin(message)
    assert own.answer("keys", 0, message)
    message = invited(given, attempt="another", **changes)
    own.begin(message)
    with pytest.raises(SumRefused):
        own.answer("keys", 0, message)


# --- who can be summed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "clients", "threshold", "honest"),
    [(2 / 3, 3, 3, 1), (2 / 3, 4, 3, 2), (2 / 3, 9, 7, 3), (2 / 3, 100, 67, 34), (0.5, 3, 2, 2), (0.5, 100, 51, 50)],
)
def test_how_many_must_stay(share, clients, threshold, honest):
    assert Summed.Spec(threshold=share).least(clients) == threshold
    assert Summed.Spec(threshold=share).honest(clients) == honest


@pytest.mark.parametrize(("share", "fewest"), [(0.5, 3), (2 / 3, 4), (0.75, 5), (0.9, 11)])
def test_the_smallest_class_has_room_for_one_dropout_and_two_honest_clients(share, fewest):
    rule = Summed.Spec(threshold=share)
    assert rule.fewest == fewest
    assert rule.least(fewest) == fewest - 1 and rule.honest(fewest) == 2
    assert rule.honest(fewest - 1) == 1


@pytest.mark.parametrize("rule", [{"threshold": 0.49}, {"threshold": 1.0}, {"digits": -1}, {"digits": 19}], ids=str)
def test_senseless_rules_are_refused(rule):
    with pytest.raises(ValueError):
        Summed.Spec(**rule)


def test_classes_too_small_to_sum_are_refused_before_anything_is_written(tmp_path):
    given = recipe(
        {
            "split.clients": 8,
            "method.mechanism": {"name": "two-point"},
            "method.range": {"kind": "fixed", "radius": 0.1},
            "clients.epsilon": {"linear": [2, 8]},
            "method.channel": {"kind": "summed"},
        }
    )
    with pytest.raises(InvalidInput, match="epsilon 2"):
        sordino.run(given, workers=1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_small_a_selection_is_refused():
    given = recipe(
        {"split.clients": 8, "method.channel": {"kind": "summed"}, "method.selection": {"kind": "count", "k": 3}}
    )
    with pytest.raises(InvalidInput, match="at most 3"):
        sordino.run(given, workers=1)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (SelectAll(), (4, 7)),  # classes of 10 and 20
        (SelectCount(k=25), (2, 5)),  # at least 5 and 15 of them
        (SelectCount(k=15), (2, 2)),  # perhaps none of a class: then it is not asked, and otherwise there are 4
        (SelectProbability(p=0.5), (2, 2)),
    ],
    ids=["all", "25 of 30", "15 of 30", "by probability"],
)
def test_honest_clients_are_those_of_the_smallest_sum_that_can_happen(selection, expected):
    given = two_point(30, epsilons=[1.0] * 10 + [2.0] * 20)
    assert Summed.Spec().assurances(given.method, selection) == tuple(map(Assurance, expected))


# --- what is said about it --------------------------------------------------------------------------------------------


def test_the_statement_says_that_sums_alone_are_seen_and_counts_bits_among_honest_clients():
    given = recipe(
        {
            "split.clients": 20,
            "rounds.count": 2,
            "method.mechanism": {"name": "two-point"},
            "method.range": {"kind": "fixed", "radius": 0.1},
            "clients.epsilon": 1.0,
            "method.channel": {"kind": "summed"},
        }
    )
    statement = sordino.run(given, workers=1).statement
    rows = {(row.adversary, row.adjacency): row for row in statement.rows}
    assert {adversary for adversary, _ in rows} == {SERVER, summed(7)}
    safe, plain = rows[summed(7), Adjacency.COORDINATE], rows[SERVER, Adjacency.COORDINATE]
    assert safe.proven == pytest.approx(shuffled_bits(1.0, 7, 1e-5).upper, rel=1e-6)
    assert safe.proven < plain.proven and plain.pure == pytest.approx(1.0, rel=1e-6)
    assert rows[summed(7), Adjacency.CLIENT].proven <= rows[SERVER, Adjacency.CLIENT].proven
    assert any(
        "sees sums of reports and no single one" in s and "7 honest clients" in s for s in map(trust, statement.views)
    )


def test_bits_weighed_by_sample_counts_are_not_amplified():
    given = recipe(
        {
            "split.clients": 20,
            "rounds.count": 1,
            "method.mechanism": {"name": "two-point"},
            "method.range": {"kind": "fixed", "radius": 0.1},
            "method.aggregation": {"kind": "samples"},
            "clients.epsilon": 1.0,
            "method.channel": {"kind": "summed"},
        }
    )
    statement = sordino.run(given, workers=1).statement
    (row,) = [r for r in statement.rows if r.adversary == summed(7)]
    assert row.proven == np.inf and any("sample" in why and "in a sum only" in why for why in row.unproven)


def test_many_bits_among_few_clients_have_a_figure_too():
    """From epsilon 700 on, e^-epsilon underflows; both ends of the figure go on rising evenly with the bits."""
    ends = [shuffled_bits(1.0, 2, 1e-5, count) for count in (1900, 1950, 2000)]
    for low, middle, high in ([e.lower for e in ends], [e.upper for e in ends]):
        assert high - middle == pytest.approx(middle - low, rel=0.02)


def release(*guarantees: Guarantee) -> Release:
    return Release("r", "records", "model update", guarantees)


def test_without_a_better_proof_the_local_guarantee_holds_of_the_sum():
    local = Guarantee(SERVER, Adjacency.CLIENT, GaussianLoss(1.0), "the Gaussian mechanism")
    (first, second) = guarantee(release(local), Assurance(5), BITS).guarantees
    assert first == local and second.adversary == summed(5) and second.loss == local.loss


def test_nothing_proven_stays_nothing():
    local = Guarantee(SERVER, Adjacency.CLIENT, Infinite("no noise"), "none")
    (_, second) = guarantee(release(local), Assurance(5), BITS).guarantees
    assert isinstance(second.loss, Infinite) and second.loss.why.startswith("no noise (seen in a sum only")


# --- simulated clients without masks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("absent", "counts"), [((), True), ((4,), True), ((4, 7), False)])
def test_sums_without_masks_are_those_with_masks_and_need_as_many_clients(absent, counts):
    """Of ten clients nine must stay."""
    given, rule = two_point(10, epsilons=[1.0] * 10), Summed.Spec(threshold=0.89, masks="deployed")

    def present(step, answers):
        return [(client, answer) for client, answer in answers if client not in absent]

    def once(channel, own):
        return Coordinator(given.method, Watched(own, present), channel, "test").round(given.method.init())

    plain, record = once(UnmaskedSums(given.method, rule), SimulatedFleet(given, None))
    masked, other = once(Summed(given.method, rule), fleet(given, rule))
    assert record.counted == other.counted == counts
    assert np.array_equal(plain.parameters, masked.parameters)
    if counts:
        assert np.array_equal(plain.parameters, direct(given, absent).parameters)
