"""The relay: everyone sends and pays, k unnamed reports arrive, and the choice depends on nobody's order of arrival."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.channels.relay import Relay
from sordino.errors import InvalidInput
from sordino.recipe import Recipe
from sordino.runs.simulation import run
from sordino.wire.messages import Plan
from tests.engine.tiny import TINY


def plan(round: int = 1) -> bytes:
    return Plan("test", round).encode()


def exchange(order: list[int]):
    """Clients whose reports arrive in this order, each saying who sent it."""

    def answers(step: str, messages: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        assert step == "report"
        yield from ((client, b"from %d" % client) for client in order if client in messages)

    return answers


def collected(relay: Relay, clients: int, order: list[int] | None = None, round: int = 1) -> list[tuple[int, bytes]]:
    return list(relay.collect(exchange(order or list(range(clients))), plan(round), range(clients)))


def test_k_reports_arrive_under_names_that_say_nothing() -> None:
    relay = Relay.simulated(3, [0] * 20, seed=1)
    got = collected(relay, 20)
    assert [name for name, _ in got] == [0, 1, 2]
    senders = [int(body.split()[1]) for _, body in got]
    assert len(set(senders)) == 3 and senders != [0, 1, 2]


def test_a_report_keeps_its_class_and_nothing_else() -> None:
    class_of = [0, 1, 0, 1, 1, 2]
    got = collected(Relay.simulated(6, class_of, seed=1), 6)
    assert len({name for name, _ in got}) == 6
    for name, body in got:
        assert class_of[name] == class_of[int(body.split()[1])]


@given(order=st.permutations(range(9)), missing=st.integers(0, 5))
def test_the_choice_does_not_depend_on_who_is_first(order: list[int], missing: int) -> None:
    there = [client for client in order if client >= missing]
    relay = Relay.simulated(4, [0] * 9, seed=3)
    assert collected(relay, 9, there) == collected(relay, 9, sorted(there))
    assert len(collected(relay, 9, there)) == 4


def test_fewer_than_k_reports_are_all_handed_on() -> None:
    assert len(collected(Relay.simulated(5, [0] * 6, seed=1), 6, [2, 4])) == 2


def test_every_client_is_drawn_equally_often() -> None:
    """600 rounds, 2 of 6: each is drawn 200 times on average, standard deviation 11.5; five of them are allowed."""
    relay = Relay.simulated(2, [0] * 6, seed=5)
    drawn = Counter(int(body.split()[1]) for r in range(1, 601) for _, body in collected(relay, 6, round=r))
    assert max(abs(drawn[client] - 200) for client in range(6)) < 58


def test_k_beyond_the_clients_is_refused() -> None:
    with pytest.raises(InvalidInput, match="from 1 to 3"):
        Relay.simulated(4, [0] * 3, seed=1)


def relayed(**changes: object) -> Recipe:
    return Recipe.from_dict(TINY).with_({"method.channel": {"kind": "relay", "k": 2}, **changes})


def test_all_clients_send_and_spend_and_the_server_gets_k() -> None:
    outcome = run(
        relayed(
            **{
                "method.mechanism": {"name": "two-point"},
                "method.range": {"kind": "fixed", "radius": 0.1},
                "clients.epsilon": [1.0, 2.0, 1.0, 2.0],
            }
        ),
        workers=1,
    )
    assert [(r.asked, r.reported) for r in outcome.rounds] == [(4, 2)] * 3
    assert [own.reports for own in outcome.result.budgets] == [3] * 4
    assert outcome.result.bytes_up == 3 * 4 * (24 + 82)  # four envelopes and 650 bits each, in three rounds


def test_the_mean_is_of_those_handed_on() -> None:
    everyone = run(relayed(**{"method.channel.k": 4}), workers=1).parameters
    assert np.array_equal(everyone, run(Recipe.from_dict(TINY), workers=1).parameters)
    assert not np.array_equal(everyone, run(relayed(), workers=1).parameters)
