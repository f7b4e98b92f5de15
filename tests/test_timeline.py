"""A timeline adds up: whatever happens in its block is in exactly one phase."""

import time

import pytest

from sordino.parts import timeline as module
from sordino.parts.timeline import OTHER, START, Timeline, count_beside, phase, process_start


class Clock:
    """A clock that goes on when it is told to."""

    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", clock.monotonic)
    return clock


def found(timeline):
    return {(span.phase, span.round): span.seconds for span in timeline.spans}


def test_a_phase_inside_another_stops_its_clock(clock):
    with Timeline(since=clock.now - 5) as timeline:
        clock.now += 1
        with phase("round", 1):
            clock.now += 2
            with phase("train"):
                clock.now += 4
            clock.now += 8
    assert found(timeline) == {(START, None): 5, (OTHER, None): 1, ("round", 1): 10, ("train", 1): 4}
    assert timeline.seconds == 20


def test_a_phase_that_comes_again_is_added_to_the_same_span_of_its_round(clock):
    with Timeline() as timeline:
        for number in (1, 1, 2):
            with phase("train", number):
                clock.now += 3
    train = [span for span in timeline.spans if span.phase == "train"]
    assert [(span.round, span.begin, span.seconds, span.times) for span in train] == [(1, 0, 6, 2), (2, 6, 3, 1)]


def test_what_workers_spent_lies_beside_and_is_not_added_to_the_whole(clock):
    with Timeline() as worker, phase("train"):
        clock.now += 7
    spans = worker.take()
    with Timeline() as timeline, phase("round", 3):
        count_beside(spans)
        clock.now += 1
    (train,) = [span for span in timeline.spans if span.phase == "train"]
    assert (train.round, train.seconds, train.beside) == (3, 7, True)
    assert timeline.seconds == 1
    assert not worker.spans


def test_a_phase_ends_where_an_error_leaves_it(clock):
    with pytest.raises(ValueError, match="stop"), Timeline() as timeline, phase("train"):
        clock.now += 2
        raise ValueError("stop")
    with phase("afterwards"):
        clock.now += 1
    assert found(timeline)["train", None] == 2
    assert timeline.seconds == 2


def test_a_process_began_before_now():
    assert 0 <= time.monotonic() - process_start() < 86_400
