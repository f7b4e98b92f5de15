"""A malicious client sends whatever is accepted: how far that reaches, and that nothing further is accepted."""

import math

import numpy as np
import pytest
from catalogue import ENTRIES, Entry, each, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, Gaussian, Laplace, Mechanism, NoPrivacy, TwoPoint

D = 13
FLOAT32_MAX = float(np.finfo(np.float32).max)


def estimate(mechanism: Mechanism, report: bytes) -> np.ndarray:
    return np.asarray(mechanism.estimate(mechanism.decode([report], D))[0], np.float64)


def further(entry: Entry, mechanism: Mechanism, legal: bytes) -> list[bytes]:
    """Reports that say one more than the highest that there is: a longer one, and the next number where one is left."""
    more = [legal + b"\0", legal[:-1]]
    match entry.name.split("-")[0]:
        case "two" | "sign" | "bits":
            more.append(legal[:-1] + bytes([legal[-1] | 0x80]))  # 13 bits: three of the last byte are padding
        case "laplace" | "gaussian" | "exponential" | "label" | "piecewise" | "privunit":
            width = len(legal) // D
            most = 9 if entry.name == "label" else int.from_bytes(legal[:width], "little")
            if most + 1 < 256**width:
                more.append((most + 1).to_bytes(width, "little") + legal[width:])
        case _:
            next_up = np.frombuffer(legal, "<f4").copy()
            factor = 1.001 if entry.name.startswith("clip") else 1 + 1e-6  # clipping is checked to five digits
            with np.errstate(over="ignore"):
                next_up[0] *= np.float32(factor)
            more.append(next_up.tobytes())
    return more


@each(ENTRIES)
def test_the_worst_legal_reports_reach_exactly_the_bound(entry):
    mechanism = entry.mechanism(D)
    found = mechanism.reach(D)
    low, high = (estimate(mechanism, report) for report in found.ends)
    assert np.linalg.norm(high - low) == pytest.approx(found.length, rel=1e-7)
    if entry.name not in (
        "label",
        "clip-l1",
        "clip-l2",
        "privunit",
    ):  # of these, no report has all values at their ends
        assert np.array_equal(low.reshape(-1), found.lowest) and np.array_equal(high.reshape(-1), found.highest)
    assert max(np.abs(high - low).max(), 0) == pytest.approx(found.width, rel=1e-7)


@each(ENTRIES)
def test_anything_further_is_refused(entry):
    mechanism = entry.mechanism(D)
    forged = further(entry, mechanism, mechanism.reach(D).ends[1])
    assert len(forged) >= 3 or entry.name in ("laplace-ball", "piecewise"), entry.name  # these use all of their bytes
    for report in forged:
        with pytest.raises(InvalidInput):
            mechanism.decode([report], D)


@each(ENTRIES)
def test_honest_reports_lie_within_it(entry):
    mechanism = entry.mechanism(D)
    found = mechanism.reach(D)
    values = entry.inputs(40, D)
    for row, seed in zip(values, range(40), strict=True):
        report = mechanism.encode(mechanism.randomize(row, stream(1, seed=seed)).output)[0]
        said = estimate(mechanism, report).reshape(-1)
        assert (found.lowest <= said).all() and (said <= found.highest).all()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ENTRIES), st.data())
def test_no_report_that_is_accepted_lies_beyond_it(entry, data):
    mechanism = entry.mechanism(D)
    found = mechanism.reach(D)
    length = len(found.ends[0])
    report = data.draw(st.binary(min_size=length, max_size=length))
    try:
        said = estimate(mechanism, report).reshape(-1)
    except InvalidInput:
        return
    slack = 1e-5 if entry.name.startswith("clip") else 0
    assert (said >= found.lowest - slack * np.abs(found.lowest)).all()
    assert (said <= found.highest + slack * np.abs(found.highest)).all()


def test_bits_reach_two_points_whatever_the_noise_is():
    """K = (e + 1)/(e - 1) = 2.164 times the radius to both sides of the centre."""
    found = TwoPoint(1.0, Box(0.25, 2.0)).reach(D)
    k = (math.e + 1) / (math.e - 1)
    assert found.lowest == pytest.approx(0.25 - 2 * k, rel=1e-6)
    assert found.width == pytest.approx(4 * k, rel=1e-6)
    assert found.length == pytest.approx(4 * k * math.sqrt(D), rel=1e-6)


def test_noise_reaches_as_far_as_its_table():
    """Rounded Gaussian: steps + 2 steps + 9.6 sigma from the centre; Laplace: where the top digit of its table ends."""
    sigma, radius = 0.7, 1.0
    assert Gaussian(sigma, Box(0.0, radius)).reach(D).highest == pytest.approx(3 * radius + 9.6 * sigma, rel=2e-2)
    laplace = Laplace(1.0, Box(0.0, radius))
    grid = laplace.grid(D)
    assert laplace.reach(D).highest == pytest.approx(grid.limit / grid.steps)
    assert 20 * 2 * radius < laplace.reach(D).highest[0] < 60 * 2 * radius  # 20 scales of 2C/eps, and the domain


def test_plain_values_have_no_bound_but_the_servers():
    assert NoPrivacy().reach(D).width == pytest.approx(2 * FLOAT32_MAX)
    assert "no bound" in NoPrivacy().reach(D).bound
    assert NoPrivacy().reach(D, limit=2.0).width == 4.0


def test_a_mechanism_of_many_clients_has_no_single_reach():
    with pytest.raises(InvalidInput, match="one client"):
        TwoPoint([1.0, 2.0]).reach(D)


def test_nothing_is_said_of_the_reach_of_an_unknown_mechanism():
    class Own(Mechanism):
        domain = Box()
        randomize = estimate = bias = variance = guarantee = decode = None

    assert Own().reach(D) is None
