"""Rounds with a fleet that misbehaves: what is good counts once, all else is counted as what it is."""

import itertools
import time

import numpy as np
import pytest

from sordino.channels.direct import Direct
from sordino.errors import InvalidInput
from sordino.fleets.interface import Fleet, Reply
from sordino.methods.selection import SelectCount, SelectProbability
from sordino.privacy.guarantee import Budget
from sordino.privacy.ledger import Consents, MemoryLedger
from sordino.runs.coordinator import Coordinator, NobodyLeft, Rules
from sordino.wire.messages import Answer, Kind, Plan, answer_to
from tests.engine.federations import VALUES, fleet, work


class Unruly(Fleet):
    """A fleet whose answers pass through a function on their way."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change

    def exchange(self, step, messages, deadline):
        answers = [(r.client, r.message) for r in self.inner.exchange(step, messages, deadline)]
        yield from (Reply(*answer) for answer in self.change(answers, messages))


def hold(change=lambda answers, messages: answers, rules=Rules(), given=None, rounds=1):  # noqa: B008
    given = given or work()
    coordinator = Coordinator(given.method, Unruly(fleet(given), change), Direct(), "test", rules)
    state, records = given.method.init(), []
    for _ in range(rounds):
        state, record = coordinator.round(state)
        records.append(record)
    return state, records


def test_a_round_moves_the_model_to_the_mean_of_the_clients():
    given = work(sends="weights")
    own = list(
        fleet(given).exchange(
            "report", dict.fromkeys(range(6), given.method.plan(given.method.init(), "test").encode()), None
        )
    )
    weights = [np.frombuffer(reply.answer.body, "<f4") for reply in own]
    state, (record,) = hold(given=given)
    assert np.allclose(state.parameters, np.mean(weights, axis=0), atol=1e-7)
    assert record.counted and sorted(record.attendance.reported) == list(range(6))
    assert record.attendance.bytes_up == 6 * (24 + 4 * VALUES)


def test_updates_and_weights_lead_to_the_same_model():
    one, _ = hold(given=work(sends="weights"), rounds=3)
    two, _ = hold(given=work(sends="update"), rounds=3)
    assert np.allclose(one.parameters, two.parameters, atol=1e-6)


def test_duplicates_count_once():
    honest, _ = hold()
    state, (record,) = hold(lambda answers, _: [a for a in answers[:-1] for _ in range(3)] + answers[-1:])
    assert np.array_equal(state.parameters, honest.parameters)
    assert record.attendance.strays["duplicate"] == 10


def test_answers_to_an_earlier_round_are_late_and_do_not_count():
    kept = []

    def change(answers, messages):
        kept.extend(answers[:2])
        return list(kept)[:2] + answers[2:] if Plan.decode(messages[0]).round == 2 else answers

    _state, (_first, second) = hold(change, rounds=2)
    assert second.attendance.strays["late"] == 2
    assert sorted(second.attendance.reported) == [2, 3, 4, 5]


def test_an_answer_to_another_plan_of_the_same_round_does_not_count():
    def change(answers, _):
        client, message = answers[0]
        answer = Answer.decode(message)
        return [(client, Answer(answer.kind, answer.round, b"x" * 16, answer.body).encode()), *answers[1:]]

    _, (record,) = hold(change)
    assert record.attendance.strays["another plan"] == 1 and 0 not in record.attendance.reported


def test_strangers_are_not_heard():
    _, (record,) = hold(lambda answers, _: [(99, answers[0][1]), *answers[1:], answers[0]])
    assert record.attendance.strays["not asked"] == 1 and len(record.attendance.reported) == 6


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m[:10],
        lambda m: m[:-1],
        lambda m: b"",
        lambda m: m[:24] + np.full(VALUES, np.nan, "<f4").tobytes(),
        lambda m: m[:24] + np.full(VALUES, 1e20, "<f4").tobytes(),
    ],
    ids=["envelope cut", "body cut", "empty", "NaN", "huge"],
)
def test_a_bad_report_is_refused_with_a_reason_and_the_round_goes_on(spoil):
    without, _ = hold(lambda answers, _: answers[1:])
    state, (record,) = hold(lambda answers, _: [(answers[0][0], spoil(answers[0][1])), *answers[1:]])
    assert np.array_equal(state.parameters, without.parameters)
    assert list(record.attendance.refused) == [answers_first()] and record.counted


def answers_first() -> int:
    given = work()
    plan = given.method.plan(given.method.init(), "test").encode()
    return next(iter(fleet(given).exchange("report", dict.fromkeys(range(6), plan), None))).client


def test_a_client_that_sends_rubbish_first_may_still_report():
    _state, (record,) = hold(lambda answers, _: [(answers[0][0], b"rubbish"), *answers])
    assert len(record.attendance.reported) == 6 and not record.attendance.refused


def test_without_a_quorum_the_model_stays_and_the_round_is_over():
    start = work().method.init()
    state, (record,) = hold(lambda answers, _: answers[:2], Rules(quorum=3))
    assert np.array_equal(state.parameters, start.parameters)
    assert state.round == 1 and not record.counted


def test_a_deadline_ends_the_wait():
    def slow(answers, _):
        yield from answers[:3]
        time.sleep(2.5)
        yield from answers[3:]

    began = time.monotonic()
    _, (record,) = hold(slow, Rules(quorum=2, deadline=2.0))
    assert time.monotonic() - began < 20
    assert len(record.attendance.reported) == 3 and record.attendance.strays["late"] == 1 and record.counted


def test_all_decline_ends_the_run_with_the_remedy():
    def decline(answers, _):
        return [(c, Answer(Kind.DECLINED, a.round, a.digest).encode()) for c, m in answers if (a := Answer.decode(m))]

    with pytest.raises(NobodyLeft, match=r"6 clients.*round 1.*clients.budget"):
        hold(decline)


def test_spent_clients_decline_and_the_round_goes_on():
    """Two-point, epsilon 1 per value: an upload costs VALUES; two clients can afford one, four can afford two."""
    from sordino.mechanisms import Box, TwoPoint

    given = work(build=lambda e: TwoPoint(e, Box(0.0, 0.5)), epsilons=[1.0] * 6)
    budgets = [Budget(VALUES * 1.001)] * 2 + [Budget(VALUES * 2.001)] * 4
    own = fleet(given, MemoryLedger(budgets, Consents()))
    coordinator = Coordinator(given.method, own, Direct(), "test")
    state = given.method.init()
    seen = []
    for _ in range(2):
        state, record = coordinator.round(state)
        seen.append((sorted(record.attendance.reported), sorted(record.attendance.declined)))
    assert seen == [(list(range(6)), []), ([2, 3, 4, 5], [0, 1])]
    with pytest.raises(NobodyLeft):
        coordinator.round(state)


def test_selection_asks_those_and_no_others():
    given = work(selection=SelectCount(k=2))
    asked = []

    def listen(answers, messages):
        asked.append(tuple(messages))
        return answers

    hold(listen, given=given, rounds=8)
    assert all(len(clients) == 2 for clients in asked)
    assert len(set(asked)) > 1 and set(itertools.chain(*asked)) == set(range(6))


def test_a_round_in_which_nobody_is_asked_is_over_at_once():
    state, (record,) = hold(given=work(selection=SelectProbability.model_construct(p=0.0)))
    assert record.attendance.asked == 0 and not record.counted and state.round == 1


def test_training_that_fails_reports_no_change_and_nobody_else_notices():
    """One client's records make its loss overflow: it reports zeros through the mechanism, and the sum stays finite."""
    from tests.engine.federations import examples

    data = examples(48)
    data.x[:8] = 3e38
    given = work(data=data)
    own = fleet(given)
    plan = given.method.plan(given.method.init(), "test")
    answers = {r.client: r for r in own.exchange("report", dict.fromkeys(range(6), plan.encode()), None)}
    body = np.frombuffer(answers[0].answer.body, "<f4")
    assert not body.any() and own.diagnostics.failed == [0]
    state, (record,) = hold(given=given)
    assert np.isfinite(state.parameters).all() and len(record.attendance.reported) == 6


def test_a_client_without_records_reports_no_change():
    given = work(sizes=[8, 0, 8])
    plan = given.method.plan(given.method.init(), "test").encode()
    answers = {r.client: r for r in fleet(given).exchange("report", dict.fromkeys(range(3), plan), None)}
    assert not np.frombuffer(answers[1].answer.body, "<f4").any()
    assert np.frombuffer(answers[0].answer.body, "<f4").any()


def test_a_plan_that_was_written_down_is_sent_as_it_is_and_must_be_this_rounds():
    given = work()
    state, sent = given.method.init(), []

    def listen(answers, messages):
        sent.extend(messages.values())
        return answers

    coordinator = Coordinator(given.method, Unruly(fleet(given), listen), Direct(), "test")
    plan = Plan.decode(given.method.plan(state, "test").encode())
    after, held = coordinator.round(state, plan)
    assert set(sent) == {plan.encode()} and held.plan is plan and held.attendance.clients == tuple(range(6))
    with pytest.raises(InvalidInput, match="round 1"):
        coordinator.round(after, plan)


def test_whoever_declines_in_a_later_step_has_withdrawn_and_may_have_sent_something():
    given = work()

    class TwoSteps(Direct):
        def collect(self, exchange, plan, clients):
            heard = [client for client, _ in exchange("report", dict.fromkeys(clients, plan))]
            yield from exchange("report", dict.fromkeys(heard, plan))

    calls = []

    def change(answers, messages):
        calls.append(len(messages))
        plan = Plan.decode(messages[0] if 0 in messages else messages[1])
        last = max(messages)
        return [(c, answer_to(plan, None)) if c == last else (c, m) for c, m in answers]

    coordinator = Coordinator(given.method, Unruly(fleet(given), change), TwoSteps(), "test")
    _, held = coordinator.round(given.method.init())
    assert calls == [6, 5]
    assert held.attendance.declined == [5] and held.attendance.withdrawn == [4]
    assert sorted(held.attendance.reported) == [0, 1, 2, 3] and held.counted
