"""The running sum: exact, independent of order, the same as averaging estimates, and closed to forged reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.mechanisms import (
    Box,
    ClipOnly,
    Exponential,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    NoPrivacy,
    Piecewise,
    PrivUnitG,
    RandomizedSign,
    TwoPoint,
)
from sordino.methods.upload import MAX_SAMPLES, PLAIN_LIMIT, RecordingDraw, Upload
from sordino.randomness import Keystream

D = 37
BUILDERS = {
    "none": lambda e: NoPrivacy(),
    "clip-only": lambda e: ClipOnly(Box(0.0, 0.5)),
    "two-point": lambda e: TwoPoint(e, Box(0.1, 0.5)),
    "two-point by value": lambda e: TwoPoint(e, Box(0.0, np.linspace(0.1, 1.0, D))),
    "laplace": lambda e: Laplace(e, Box(0.0, 0.5)),
    "laplace l1": lambda e: Laplace(e, L1Ball(2.0)),
    "gaussian": lambda e: Gaussian.analytic(e, 1e-5, L2Ball(1.0), values=D),
    "sign": lambda e: RandomizedSign.response(e, Box(0.0, 0.5)),
    "exponential": lambda e: Exponential(e * 1e-3, IntegerRange(1.0, 6)),
    "piecewise": lambda e: Piecewise(e, Box(0.0, 0.5)),
    "privunit": lambda e: PrivUnitG(e),
}
EPSILONS = [1.0, 4.0, 1.0, 2.0, 4.0, 2.0]


def draw(clients):
    return Keystream.simulation(7, list(clients), 1)


def vectors(clients: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(-0.4, 0.4, (clients, D)).astype(np.float32)


def upload(name: str, **changes) -> Upload:
    return Upload(BUILDERS[name], EPSILONS, D, **({"clients": len(EPSILONS), "what": "model update"} | changes))


def test_what_is_handed_to_the_mechanism_can_be_recorded_and_changes_no_report():
    who, rows, recorded = range(len(EPSILONS)), vectors(len(EPSILONS)), RecordingDraw(draw)
    sent = [upload("gaussian").send(who, rows, own, [1] * len(who)).bodies for own in (draw, recorded)]
    assert sent[0] == sent[1]
    assert np.array_equal(np.concatenate(recorded.vectors), rows)


def estimates(name: str, sent: list[bytes]) -> np.ndarray:
    """Each report's estimate by itself, through the mechanism alone."""
    rows = []
    for epsilon, body in zip(EPSILONS, sent, strict=True):
        mechanism = BUILDERS[name](epsilon)
        rows.append(mechanism.estimate(mechanism.decode([body], D))[0])
    return np.array(rows, np.float64)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_mean_is_the_mean_of_the_estimates(name):
    part = upload(name)
    clients = range(len(EPSILONS))
    sent = part.send(clients, vectors(len(EPSILONS)), draw, [1] * len(EPSILONS)).bodies
    tally = part.tally()
    assert tally.add(list(clients), sent) == {}
    expected = estimates(name, sent).mean(axis=0)
    assert np.allclose(tally.mean(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert tally.reports == len(EPSILONS)


@pytest.mark.parametrize("name", BUILDERS)
def test_weights_by_class_weigh(name):
    part = upload(name)
    assert part.strengths == (1.0, 2.0, 4.0)
    sent = part.send(range(6), vectors(6), draw, [1] * 6).bodies
    tally = part.tally([1.0, 3.0, 6.0])
    tally.add(list(range(6)), sent)
    weights = np.array([1, 6, 1, 3, 6, 3]) / 20
    expected = weights @ estimates(name, sent)
    assert np.allclose(tally.mean(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 6), st.sampled_from(sorted(BUILDERS)))
def test_order_and_grouping_do_not_change_a_bit(order, piece, name):
    part = upload(name)
    sent = part.send(range(6), vectors(6), draw, [1] * 6).bodies
    whole, pieces = part.tally([1.0, 0.3, 0.7]), part.tally([1.0, 0.3, 0.7])
    whole.add(list(range(6)), sent)
    for first in range(0, 6, piece):
        some = order[first : first + piece]
        pieces.add(some, [sent[k] for k in some])
    assert np.array_equal(whole.mean(), pieces.mean())


@pytest.mark.parametrize("name", BUILDERS)
def test_what_a_client_sends_does_not_depend_on_its_neighbours(name):
    part = upload(name)
    values = vectors(6)
    together = part.send(range(6), values, draw, [1] * 6).bodies
    alone = [part.send([k], values[k : k + 1], draw, [1]).bodies[0] for k in range(6)]
    assert together == alone


def test_sample_counts_weigh_exactly_and_are_a_release():
    part = upload("none", samples=True)
    values = vectors(6)
    sizes = [1, 10, 100, 3, 5, 1000]
    sent = part.send(range(6), values, draw, sizes).bodies
    tally = part.tally()
    tally.add(list(range(6)), sent)
    assert np.allclose(tally.mean(), np.average(values.astype(np.float64), axis=0, weights=sizes), rtol=1e-9)
    assert [r.what for r in part.releases("f/1", "records")[0]] == ["model update", "sample count"]
    assert "Infinite" in repr(part.releases("f/1", "records")[0][1].guarantees)


def test_a_boasted_sample_count_is_refused_alone():
    part = upload("none", samples=True)
    sent = part.send(range(6), vectors(6), draw, [1] * 6).bodies
    sent[2] = (MAX_SAMPLES + 1).to_bytes(4, "little") + sent[2][4:]
    tally = part.tally()
    assert list(tally.add(list(range(6)), sent)) == [2]
    assert tally.reports == 5


@pytest.mark.parametrize("name", BUILDERS)
def test_a_forged_report_is_refused_and_the_others_are_kept(name):
    part = upload(name)
    sent = part.send(range(6), vectors(6), draw, [1] * 6).bodies
    forged = list(sent)
    forged[4] = sent[4][:-1]
    tally, honest = part.tally(), part.tally()
    refused = tally.add(list(range(6)), forged)
    assert list(refused) == [4] and "bytes" in refused[4]
    honest.add([0, 1, 2, 3, 5], [sent[k] for k in (0, 1, 2, 3, 5)])
    assert np.array_equal(tally.mean(), honest.mean())


def test_values_beyond_reason_and_nan_never_reach_the_sum():
    part = upload("none")
    for bad in (np.nan, np.inf, 2 * PLAIN_LIMIT, -1e30):
        body = np.zeros(D, np.float32)
        body[3] = bad
        tally = part.tally()
        assert list(tally.add([0], [body.astype("<f4").tobytes()])) == [0]
        with pytest.raises(InvalidInput, match="no report"):
            tally.mean()


def test_memory_does_not_grow_with_clients():
    part = Upload(BUILDERS["two-point"], None, 1000, clients=10**6, what="model update")
    with pytest.raises(Exception):  # noqa: B017 (two-point needs an epsilon: it is refused when built)
        part.mechanisms[0]
    part = Upload(lambda _: TwoPoint(1.0, Box(0.0, 0.5)), None, 1000, clients=10**6, what="model update")
    tally = part.tally()
    rng = np.random.default_rng(0)
    for first in range(0, 4096, 256):
        bodies = [row.tobytes() for row in rng.integers(0, 256, (256, 125), np.uint8)]
        tally.add(range(first, first + 256), bodies)
    held = [v for v in vars(tally).values() if isinstance(v, np.ndarray)]
    assert sum(array.nbytes for array in held) < 50_000


def test_predicted_noise_is_that_of_the_mean():
    """Two-point at the centre of the box: variance r^2 K^2 per value, over n clients."""
    n, radius = 16, 0.5
    part = Upload(lambda _: TwoPoint(1.0, Box(0.0, radius)), None, D, clients=n, what="model update")
    sent = part.send(range(n), np.zeros((n, D), np.float32), draw, [1] * n)
    tally = part.tally()
    tally.add(list(range(n)), sent.bodies)
    k = (np.e + 1) / (np.e - 1)
    assert tally.noise() == pytest.approx(radius * k * np.sqrt(D / n), rel=1e-6)


def test_the_guarantee_is_that_of_the_whole_upload():
    (release,) = upload("two-point").releases("f/1", "records")[0]
    client, coordinate = release.guarantees
    assert (client.loss.count, coordinate.loss.count) == (D, 1)
    assert release.claimed.epsilon == pytest.approx(D * 1.0)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0]], ids=["few", "negative", "zero"])
def test_senseless_weights_are_refused(weights):
    with pytest.raises(InvalidInput, match="one weight"):
        upload("none").tally(weights)


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("name", BUILDERS)
def test_processes_that_add_up_apart_come_to_the_same_sum_to_the_last_bit(name, samples):
    own = upload(name, samples=samples)
    bodies = own.send(range(6), vectors(6), draw, [3, 1, 4, 1, 5, 9]).bodies
    one, together = own.tally(), own.tally()
    one.add(list(range(6)), bodies)
    part = own.tally()
    for clients in ([4], [0, 5, 2], [], [1, 3]):
        part = part.emptied()
        assert part.add(clients, [bodies[k] for k in clients]) == {}
        together.add_partial(part.partial_sum())
    assert together.mean().tobytes() == one.mean().tobytes()
    assert (together.reports, together.weight, together.noise()) == (one.reports, one.weight, one.noise())


def test_a_partial_sum_at_the_limit_of_one_whole_number_is_exact():
    """256 reports of the largest value: their fixed-point sum is just below 2^62."""
    own = Upload(BUILDERS["none"], None, 1, clients=512, what="model update")
    body = np.full(1, -PLAIN_LIMIT, "<f4").tobytes()
    one, together = own.tally(), own.tally()
    one.add(list(range(512)), [body] * 512)
    for first in (0, 256):
        part = own.tally()
        part.add(list(range(first, first + 256)), [body] * 256)
        assert part.partial_sum().low is None
        together.add_partial(part.partial_sum())
    assert together.mean() == one.mean() == -PLAIN_LIMIT
    part.add([0], [body])
    assert part.partial_sum().low is not None  # 257 might not fit


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf, 2 * PLAIN_LIMIT, -2 * PLAIN_LIMIT])
def test_a_real_report_with_one_value_beyond_all_bounds_is_refused(value):
    own = upload("none")
    bodies = own.send(range(6), vectors(6), draw, [1] * 6).bodies
    row = np.frombuffer(bodies[2], "<f4").copy()
    row[17] = value
    bodies[2] = row.tobytes()
    tally = own.tally()
    assert list(tally.add(range(6), bodies)) == [2]
    assert tally.reports == 5
