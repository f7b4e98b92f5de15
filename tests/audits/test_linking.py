"""Reports without names: linked by their values where they stay whole, and by their times where nobody waits."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.linking import attributed, link, links
from sordino.channels.shuffle import mixed_models, mixed_parameters
from sordino.errors import InvalidInput
from sordino.runs.simulation import run
from tests.audits.runs import small
from tests.engine.tiny import recipe

TEN: dict[str, Any] = {"split.clients": 10, "data.train_limit": 200, "rounds.count": 5}
DELAY = {"latency": 10.0, "computing": {"uniform": [1, 1000]}, "communication": 1}


def shuffled(**channel: Any) -> dict[str, Any]:
    """LDP-FL through a shuffler."""
    method = {"name": "ldp-fl", "range": {"kind": "fixed", "radius": 0.2}, "channel": {"kind": "shuffled", **channel}}
    return {**TEN, "clients": {"epsilon": 0.5}, "method": method}


RUNS: dict[str, dict[str, Any]] = {
    "direct": TEN,
    "models": shuffled(granularity="model"),
    "parameters": shuffled(granularity="parameter"),
    "delayed": shuffled(granularity="parameter", delay=DELAY),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """Finished runs by name, of which each is run once."""

    @cache
    def opened(name: str) -> FinishedRun:
        path = tmp_path_factory.mktemp("runs") / "run"
        run(recipe(RUNS[name]) if name in RUNS else small(name), folder=path, workers=1)
        return FinishedRun.open(path)

    return opened


def test_whole_reports_are_linked_by_their_values(runs):
    (leak,) = link(runs("direct"), AttackOptions())
    assert (leak.attack, leak.variant, leak.how, leak.share.trials) == ("linking", "run", "values", 40)
    assert leak.chance == pytest.approx(0.1)
    assert leak.share.interval()[0] > 0.5


def test_a_shuffler_of_whole_reports_does_not_unlink_what_is_under_the_noise(runs):
    noisy, bare = link(runs("models"), AttackOptions())
    assert (noisy.variant, bare.variant) == ("run", "bare")
    assert bare.share.interval()[0] > 0.5
    assert noisy.share.rate < bare.share.rate


@pytest.mark.parametrize("name", ["parameters", "summed", "private-head"])
def test_there_is_nothing_to_link_without_whole_reports(runs, name):
    assert link(runs(name), AttackOptions()) == ()


def test_delays_hide_senders_where_everybody_waits(runs):
    """By chance 2,000 of 20,000 messages are attributed right: 10 % within 1 point, but for 3 in a million times."""
    waiting, hasty = link(runs("delayed"), AttackOptions())
    assert (waiting.how, waiting.variant, hasty.variant) == ("timing", "run", "bare")
    assert waiting.share.rate == pytest.approx(0.1, abs=0.01)
    assert hasty.share.rate > 0.5


def test_real_clients_are_refused(runs):
    with pytest.raises(InvalidInput, match="real"):
        link(replace(runs("direct"), simulated=False), AttackOptions())


def test_mixed_parameters_are_linked_by_chance_alone_and_mixed_models_are_not():
    """Ten clients whose bits are alike in two rounds: of 100 repetitions one link in each is right by chance."""
    rng = np.random.default_rng(1)
    hits = dict.fromkeys((mixed_models, mixed_parameters), 0)
    for seed in range(100):
        own = rng.integers(256, size=(10, 40), dtype=np.uint8)
        for mix in hits:
            before, after = (np.unpackbits(mix(own, rng), axis=1).astype(np.float32) for _ in range(2))
            whole = np.unpackbits(own, axis=1).astype(np.float32)
            # whose a row is: the client that it is the same as, or nearest to
            first, second = (np.argmin(((one[:, None] - whole) ** 2).sum(2), axis=1) for one in (before, after))
            if mix is mixed_models:
                hits[mix] += links(before[np.argsort(first)], after[np.argsort(second)], seed)
            else:
                hits[mix] += links(before, after, seed)
    assert hits[mixed_models] == 1000
    assert 60 < hits[mixed_parameters] < 145  # 100 and a standard deviation of 10


def test_messages_at_the_same_time_are_attributed_by_chance():
    assert attributed(np.zeros(4), 1.0, seed=1).rate == pytest.approx(0.25, abs=0.02)
    assert attributed(np.arange(4.0) * 2, 1.0, seed=1).rate == 1.0
