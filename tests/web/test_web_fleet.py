"""The web fleet by itself: who is asked again, who is waited for, and what is dropped."""

import threading
import time

import pytest

from sordino.errors import InvalidInput
from sordino.fleets.interface import Reply
from sordino.fleets.punctuality import Punctuality
from sordino.fleets.web import Stopped, WebFleet
from sordino.wire.messages import Plan, answer_to
from sordino.wire.requests import Request, Response
from tests.client import people

PLAN = Plan("demo", 3)
EARLIER = Plan("demo", 2)


class Line:
    def __init__(self):
        self.frames = []

    def post(self, frame, plan):
        self.frames.append(Request.decode(frame))
        assert plan == Plan.decode(people.unsigned(self.frames[-1].payload)).digest


def response(plan=PLAN, body=b"x", reason=""):
    return Response(not reason, answer_to(plan, body), reason)


class Asking:
    """An exchange in a thread of its own."""

    def __init__(self, fleet, clients, deadline=None):
        self.replies, self.error = [], None
        messages = dict.fromkeys(clients, people.signed(PLAN))
        self.thread = threading.Thread(target=self._run, args=(fleet, messages, deadline), daemon=True)
        self.thread.start()
        while self.thread.is_alive():
            with fleet._changed:  # who opens an exchange hands out its plans before it lets go of this
                if fleet._open is not None:
                    break
            time.sleep(0.001)

    def _run(self, fleet, messages, deadline):
        try:
            for reply in fleet.exchange("report", messages, deadline):
                self.replies.append(reply)
        except Stopped as error:
            self.error = error

    @property
    def answers(self):
        return [(reply.client, reply.message) for reply in self.replies if reply.message is not None]

    @property
    def reasons(self):
        return {reply.client: reply.reason for reply in self.replies if reply.reason}

    @property
    def unreached(self):
        return {reply.client for reply in self.replies if not reply.reached}

    def ended(self, seconds=30.0):
        self.thread.join(seconds)
        return not self.thread.is_alive()


def test_who_is_here_is_asked_and_the_exchange_ends_with_the_last_answer():
    fleet, lines = WebFleet(3), [Line(), Line()]
    for number, line in enumerate(lines):
        assert fleet.come(number, line) is None
    asking = Asking(fleet, range(3))
    assert [len(line.frames) for line in lines] == [1, 1]
    assert lines[0].frames[0].payload == people.signed(PLAN)
    assert fleet.waiting_for == (0, 1)
    assert fleet.deliver(0, response()).new
    assert not asking.ended(0.05)
    fleet.deliver(1, response(body=None, reason="the owner's budget does not allow it"))
    assert asking.ended()
    assert [client for client, _ in asking.answers] == [0, 1]
    assert asking.reasons == {1: "the owner's budget does not allow it"}
    assert asking.unreached == {2}


def test_who_comes_back_gets_the_same_bytes_unless_it_has_answered():
    fleet, first, second, other = WebFleet(2), Line(), Line(), Line()
    fleet.come(0, first)
    fleet.come(1, other)
    asking = Asking(fleet, range(2))
    fleet.go(0, first)
    assert fleet.come(0, second) is None
    assert second.frames == first.frames
    fleet.deliver(0, response())
    third = Line()
    assert fleet.come(0, third) is second  # another tab: the one before is told
    assert third.frames == []
    fleet.go(0, second)  # the old line ends later than the new one began
    assert fleet.connected == {0, 1}
    fleet.deliver(1, response())
    assert asking.ended()


def test_who_is_away_is_waited_for_a_little_while_only():
    fleet, line, gone = WebFleet(3, patience=0.2), Line(), Line()
    fleet.come(0, line)
    fleet.come(1, gone)
    began = time.monotonic()
    asking = Asking(fleet, range(3))
    fleet.go(1, gone)
    fleet.deliver(0, response())
    assert asking.ended()
    assert 0.15 < time.monotonic() - began < 20
    assert asking.unreached == {2}  # the one that went had the plan


def test_a_round_that_could_not_count_waits_for_somebody_to_come():
    fleet, line, late = WebFleet(3, quorum=2, patience=0.05), Line(), Line()
    fleet.come(0, line)
    asking = Asking(fleet, range(3))
    fleet.deliver(0, response())
    assert not asking.ended(0.3)
    fleet.come(2, late)
    assert len(late.frames) == 1
    fleet.deliver(2, response())
    assert asking.ended()
    assert [client for client, _ in asking.answers] == [0, 2]


DECLINE = {"body": None, "reason": "the owner's budget does not allow it"}


def test_who_declines_does_not_count_towards_the_quorum():
    fleet, late = WebFleet(3, quorum=2, patience=0.05), Line()
    for client in range(2):
        fleet.come(client, Line())
    asking = Asking(fleet, range(3))
    fleet.deliver(0, response(**DECLINE))
    fleet.deliver(1, response())
    assert not asking.ended(0.2)
    fleet.come(2, late)
    fleet.deliver(2, response())
    assert asking.ended()
    assert [client for client, _ in asking.answers] == [1, 2, 0]  # who declined is told of at the end


def test_a_round_that_too_many_decline_waits_for_nobody_to_come():
    fleet = WebFleet(3, quorum=3, patience=0.05)
    fleet.come(0, Line())
    asking = Asking(fleet, range(3))
    fleet.deliver(0, response(**DECLINE))
    assert asking.ended()


def test_who_declined_and_comes_back_is_asked_in_the_next_round():
    """Its owner may have raised the budget; in this round it has answered."""
    fleet, line = WebFleet(2, quorum=1), Line()
    fleet.come(0, line)
    asking = Asking(fleet, range(2))
    fleet.deliver(0, response(**DECLINE))
    assert not asking.ended(0.1)
    fleet.go(0, line)
    fleet.come(0, Line())
    assert asking.ended()
    assert fleet.present == 1


def test_who_is_here_and_silent_holds_up_one_round_and_is_waited_for_again_once_it_answers():
    fleet, good, mute = WebFleet(2, patience=0.3), Line(), Line()
    fleet.come(0, good)
    fleet.come(1, mute)
    began = time.monotonic()
    asking = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert asking.ended()
    assert time.monotonic() - began >= 0.3
    fleet._patience = 600.0
    again = Asking(fleet, range(2))
    assert len(mute.frames) == 2 and fleet.waiting_for == (0,)  # it is asked, and not waited for
    for wrong in (EARLIER, Plan("demo", 4)):
        assert not fleet.deliver(1, response(wrong)).new  # no answer to anything that it was asked
    fleet.deliver(0, response())
    assert again.ended()
    third = Asking(fleet, range(2))
    fleet.deliver(1, response())
    fleet.deliver(0, response())
    assert third.ended()
    fourth = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert not fourth.ended(0.1)
    fleet.deliver(1, response())
    assert fourth.ended()


def test_a_round_has_one_end_whoever_comes_and_goes():
    fleet = WebFleet(3, patience=0.4)
    for client in range(2):
        fleet.come(client, Line())
    began = time.monotonic()
    asking = Asking(fleet, range(3))
    fleet.deliver(0, response())
    while fleet._open is not None and fleet._open.awaited is None:
        time.sleep(0.001)
    ends = set()
    while asking.thread.is_alive() and time.monotonic() < began + 20:
        fleet.come(1, Line())  # another window each time: it never leaves
        fleet.come(2, Line())  # a newcomer, after most have answered: not waited for
        opened = fleet._open
        ends |= {opened.end} if opened is not None else set()
        time.sleep(0.05)
    assert 0.4 <= time.monotonic() - began < 10
    assert len(ends) == 1
    assert [fleet._punctuality.awaits(client) for client in range(3)] == [True, False, True]


def test_who_left_twice_in_a_round_is_not_waited_for_in_it_nor_in_the_next():
    fleet, lines = WebFleet(2, patience=600.0), [Line(), Line(), Line()]
    fleet.come(0, Line())
    fleet.come(1, lines[0])
    asking = Asking(fleet, range(2))
    fleet.deliver(0, response())
    fleet.go(1, lines[0])
    fleet.come(1, lines[1])
    assert not asking.ended(0.1)
    fleet.go(1, lines[1])
    assert asking.ended()
    fleet.come(1, lines[2])
    again = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert again.ended()


@pytest.mark.parametrize("step_aside", ["pause", "forget"])
def test_who_steps_aside_when_a_round_waits_for_it_alone_has_let_it_pass(step_aside):
    """Else one visitor could hold up every round, and be waited for anew in the next."""
    fleet, line = WebFleet(2, patience=600.0), Line()
    fleet.come(0, Line())
    fleet.come(1, line)
    asking = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert not asking.ended(0.1)
    if step_aside == "pause":
        fleet.pause(1)
    else:
        fleet.go(1, line)
        fleet.forget(1)
    assert asking.ended()
    fleet.come(1, Line())  # somebody else, as far as anybody can tell
    again = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert again.ended()


def test_a_late_answer_counts_as_one_in_time_once_and_only_within_the_time_of_its_round():
    fleet = WebFleet(2, patience=0.2)
    for client in range(2):
        fleet.come(client, Line())
    punctual = fleet._punctuality
    first = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert first.ended() and not punctual.awaits(1)
    assert not fleet.deliver(1, response()).new
    assert not punctual.awaits(1)  # the round has waited for it
    fleet._patience = 0.1
    second = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert second.ended()
    time.sleep(0.2)
    fleet.deliver(1, response())
    assert not punctual.awaits(1)  # too late
    fleet._patience = 600.0
    third = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert third.ended()
    fleet.deliver(1, response())
    assert punctual.awaits(1)  # the others were quicker, and it was not slow
    punctual.note_miss(1)
    for _ in range(5):
        fleet.deliver(1, response())  # the same again
    assert not punctual.awaits(1)


def test_every_round_let_pass_asks_for_more_answers_in_time():
    punctual, needed = Punctuality(), []
    for _ in range(8):
        punctual.note_miss(0)
        needed.append(0)
        while not punctual.awaits(0):
            punctual.note_answer(0)
            needed[-1] += 1
    assert needed == [1, 3, 7, 15, 31, 63, 63, 63]
    assert punctual.awaits(1)


def test_with_a_deadline_who_is_here_has_until_then_and_who_is_away_a_little_while():
    fleet, gone = WebFleet(3, patience=0.1), Line()
    for client in range(2):
        fleet.come(client, Line())
    fleet.come(2, gone)
    asking = Asking(fleet, range(3), time.monotonic() + 600)
    fleet.go(2, gone)
    fleet.deliver(0, response())
    assert not asking.ended(0.4)
    fleet.deliver(1, response())
    assert asking.ended()


@pytest.mark.parametrize(("clients", "most"), [(2, 1), (4, 2), (10, 5), (12, 7), (30, 20)])
def test_most_are_half_of_a_few_and_two_thirds_of_many(clients, most):
    """A server that takes in thousands of reports needs as long for the second half as for the first."""
    fleet = WebFleet(clients, patience=600.0)
    for client in range(clients):
        fleet.come(client, Line())
    asking = Asking(fleet, range(clients))
    for answered in range(1, most + 1):
        fleet.deliver(answered - 1, response())
        with fleet._changed:
            fleet._wait(fleet._open, None)
            assert (fleet._open.awaited is not None) is (answered == most)
    fleet.stop()
    assert asking.ended()


def test_most_who_are_silent_hold_up_one_round_until_the_longest_silence():
    fleet = WebFleet(4, patience=0.05, silence=0.3)
    for client in range(4):
        fleet.come(client, Line())
    began = time.monotonic()
    asking = Asking(fleet, range(4))
    fleet.deliver(0, response())
    assert asking.ended() and time.monotonic() - began >= 0.3
    fleet._silence = 600.0
    again = Asking(fleet, range(4))
    fleet.deliver(0, response())
    assert again.ended()


def test_a_flood_of_strays_does_not_keep_a_round_open():
    fleet = WebFleet(2, patience=0.1)
    for client in range(2):
        fleet.come(client, Line())
    asking = Asking(fleet, range(2))
    fleet.deliver(0, response())
    until = time.monotonic() + 20
    while asking.thread.is_alive() and time.monotonic() < until:
        fleet.deliver(1, response(EARLIER))
    assert asking.ended(0)


def test_silence_ends_no_round_that_could_not_count():
    fleet, line, mute = WebFleet(2, quorum=2, silence=0.05), Line(), Line()
    fleet.come(0, line)
    fleet.come(1, mute)
    asking = Asking(fleet, range(2))
    fleet.deliver(0, response())
    assert not asking.ended(0.2)
    fleet.deliver(1, response())
    assert asking.ended()


def test_a_deadline_ends_the_exchange():
    fleet, line = WebFleet(1), Line()
    fleet.come(0, line)
    asking = Asking(fleet, [0], time.monotonic() + 0.1)
    assert asking.ended()
    assert asking.answers == []


def test_who_pauses_is_not_waited_for_and_may_resume():
    fleet, line, pausing = WebFleet(2), Line(), Line()
    fleet.come(0, line)
    fleet.come(1, pausing)
    asking = Asking(fleet, range(2))
    fleet.pause(1)
    assert fleet.present == 1
    fleet.deliver(0, response())
    assert asking.ended()
    fleet.resume(1)
    assert fleet.present == 2


def test_duplicates_and_late_answers_are_known_as_such():
    fleet, line, other = WebFleet(2), Line(), Line()
    fleet.come(0, line)
    fleet.come(1, other)
    asking = Asking(fleet, range(2))
    assert fleet.deliver(0, response()).new
    assert not fleet.deliver(0, response()).new
    assert not fleet.deliver(0, response(EARLIER)).new
    fleet.deliver(1, response())
    assert asking.ended()
    assert len(asking.answers) == 4  # the coordinator counts what is wrong with them
    fleet.deliver(0, response())
    fleet.deliver(0, response(EARLIER))
    assert fleet.strays == {"duplicate": 1, "late": 1}


def test_who_comes_into_a_left_place_reports_for_itself_and_declines_for_nobody_else():
    """The one who left had the plan: its report may have been on its way."""
    for answer, heard in ((response(), 1), (response(**DECLINE), 0)):
        fleet, line, other = WebFleet(1), Line(), Line()
        fleet.come(0, line)
        asking = Asking(fleet, [0])
        fleet.go(0, line)
        fleet.forget(0)
        fleet.come(0, other)
        assert fleet.deliver(0, answer).new
        assert asking.ended()
        assert len(asking.answers) == heard and asking.unreached == set()


def test_who_comes_into_a_place_that_was_left_before_the_round_may_decline():
    fleet, line, other = WebFleet(1), Line(), Line()
    fleet.come(0, line)
    fleet.go(0, line)
    fleet.forget(0)
    fleet.come(0, other)
    asking = Asking(fleet, [0])
    fleet.deliver(0, response(**DECLINE))
    assert asking.ended() and len(asking.answers) == 1


def test_strays_are_taken_once_each_while_others_come():
    fleet = WebFleet(1)
    coming = threading.Thread(target=lambda: [fleet.deliver(0, response(EARLIER)) for _ in range(2000)])
    coming.start()
    taken: list[Reply] = []
    while coming.is_alive():
        taken += fleet.exchange("report", {}, None)
        assert set(fleet.strays) <= {"late"}
    coming.join()
    taken += fleet.exchange("report", {}, None)
    assert taken == [Reply(0, stray="late")] * 2000 and not fleet.strays


UNABLE = "this client cannot answer now"


def test_a_refusal_without_an_answer_is_not_waited_for_and_no_answer_at_all_is_an_error():
    fleet, line = WebFleet(1), Line()
    fleet.come(0, line)
    asking = Asking(fleet, [0])
    with pytest.raises(InvalidInput, match="neither"):
        fleet.refuse(0, PLAN.digest, "")
    with pytest.raises(InvalidInput):
        fleet.deliver(0, Response(True, b"no answer"))
    assert not asking.ended(0.05)
    fleet.refuse(0, PLAN.digest, UNABLE)
    assert asking.ended()
    assert asking.reasons == {0: UNABLE}


def test_who_gives_no_answer_is_not_counted_on_until_it_reports():
    """Else every round of the others would begin, and end as lost, with their reports."""
    fleet = WebFleet(3, quorum=2)
    for client in range(2):
        fleet.come(client, Line())
    asking = Asking(fleet, range(3))
    fleet.refuse(0, PLAN.digest, UNABLE)
    assert fleet.present == 1
    fleet.deliver(1, response())
    assert not asking.ended(0.2)
    fleet.come(2, Line())
    fleet.deliver(2, response())
    assert asking.ended()
    again = Asking(fleet, range(3))  # whoever is here is asked, counted on or not
    for client in range(3):
        fleet.deliver(client, response())
    assert again.ended()
    assert fleet.present == 3


def test_no_round_begins_while_all_who_are_here_can_give_no_answer():
    fleet = WebFleet(1)
    fleet.come(0, Line())
    asking = Asking(fleet, [0])
    fleet.refuse(0, PLAN.digest, UNABLE)
    assert asking.ended()
    waiting = threading.Thread(target=fleet.await_quorum, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    fleet.come(0, Line())
    waiting.join(30)
    assert not waiting.is_alive()


def test_who_gave_no_answer_and_comes_back_is_asked_again_in_the_same_round():
    fleet, line, back = WebFleet(3, quorum=2), Line(), Line()
    fleet.come(0, line)
    fleet.come(1, Line())
    asking = Asking(fleet, range(3))
    fleet.refuse(0, PLAN.digest, UNABLE)
    fleet.deliver(1, response())
    fleet.go(0, line)
    fleet.come(0, back)
    assert back.frames == line.frames
    assert not asking.ended(0.1)
    fleet.deliver(0, response())
    assert asking.ended()
    assert [client for client, _ in asking.answers] == [1, 0]


def test_a_refusal_of_an_earlier_plan_says_nothing_of_this_one():
    fleet = WebFleet(3, quorum=3)
    for client in range(3):
        fleet.come(client, Line())
    asking = Asking(fleet, range(3))
    fleet.refuse(1, EARLIER.digest, UNABLE)
    fleet.deliver(0, response())
    assert not asking.ended(0.1)
    assert (fleet.present, asking.reasons, fleet.waiting_for) == (3, {}, (1, 2))
    assert fleet.deliver(1, response()).new
    fleet.refuse(1, PLAN.digest, UNABLE)  # over a connection that another one has replaced
    assert (fleet.present, asking.reasons) == (3, {})
    fleet.deliver(2, response())
    assert asking.ended()


def test_stopping_frees_whoever_waits():
    fleet, line = WebFleet(1), Line()
    fleet.come(0, line)
    asking = Asking(fleet, [0])
    fleet.stop()
    assert asking.ended()
    assert isinstance(asking.error, Stopped)
    with pytest.raises(Stopped):
        WebFleet.await_quorum(fleet)


def test_rounds_are_not_used_up_by_those_who_decline():
    fleet, line, other = WebFleet(2, quorum=1), Line(), Line()
    fleet.come(0, line)
    asking = Asking(fleet, range(2))
    fleet.deliver(0, response(**DECLINE))
    assert fleet.present == 0
    assert not asking.ended(0.1)
    fleet.come(1, other)  # somebody who may be willing
    fleet.deliver(1, response(**DECLINE))
    assert asking.ended()
    fleet.await_quorum()  # all places are taken and nobody is willing: the coordinator ends the run
    fleet.go(1, other)
    waiting = threading.Thread(target=fleet.await_quorum, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    fleet.come(0, line)  # came back, perhaps with a larger budget
    waiting.join(30)
    assert not waiting.is_alive()
    assert fleet.present == 1


def test_a_first_round_waits_for_more_but_not_when_all_are_here():
    fleet = WebFleet(2, quorum=1)
    fleet.come(0, Line())
    began = time.monotonic()
    fleet.await_quorum(0.2)
    assert time.monotonic() - began >= 0.2
    fleet.come(1, Line())
    began = time.monotonic()
    fleet.await_quorum(60.0)
    assert time.monotonic() - began < 20
