"""Bit randomisation of LDPFL: the figures its proof misses, brute force, the decoder, the fixed-point code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from catalogue import stream
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.mechanisms import BitRandomizer, BitString, FixedPoint
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, Infinite, Release
from sordino.privacy.statement import Statement

ONE = 2**32


def test_per_bit_losses_of_theorem_2() -> None:
    losses = BitRandomizer.theorem2(0.5, BitString(10240)).bit_losses()
    assert losses[0::2] == pytest.approx(2.302674, abs=1e-6)
    assert losses[1::2] == pytest.approx(4.510771, abs=1e-6)


@pytest.mark.parametrize(
    ("length", "a", "total", "tolerance"),
    [
        (10240, 10.0, 34884.836, 1e-3), (11520, 10.0, 39245.441, 1e-3), (20480, 10.0, 69769.673, 3e-3),
        (10240, 4.0, 20230, 1), (11520, 4.0, 22759, 1), (20480, 4.0, 40461, 1), (10, 10.0, 34.07, 5e-2),
    ],
)  # fmt: skip
def test_a_record_under_theorem_2_loses_tens_of_thousands(
    length: int, a: float, total: float, tolerance: float
) -> None:
    mechanism = BitRandomizer.theorem2(0.5, BitString(length), a=a)
    assert accountant.epsilon(mechanism.guarantee().loss) == pytest.approx(total, abs=tolerance)
    assert mechanism.claim().epsilon == 0.5


@pytest.mark.parametrize("theorem", [BitRandomizer.theorem1, BitRandomizer.theorem2], ids=["1", "2"])
def test_what_is_claimed_of_a_record_is_not_claimed_of_a_client(theorem: Callable[..., BitRandomizer]) -> None:
    """The paper's epsilon is for one record's bit string; of a client with 40 of them it says nothing."""
    mechanism = theorem(0.5, BitString(10))
    assert mechanism.claim().adjacency is Adjacency.RECORD_REPLACE
    guarantees = tuple(
        mechanism.guarantee(adjacency, values=40) for adjacency in (Adjacency.CLIENT, Adjacency.RECORD_REPLACE)
    )
    client, record = Statement.of([Release("r", "d", "bits", guarantees, mechanism.claim())]).rows
    assert (client.adjacency, client.claimed, client.verdict) == (Adjacency.CLIENT, None, "no claim")
    assert record.claimed is not None
    assert (record.claimed.epsilon, record.verdict) == (0.5, "claim not supported")


def test_theorem_1_is_nearly_right_and_says_nearly_nothing() -> None:
    mechanism = BitRandomizer.theorem1(0.5, BitString(10240))
    assert mechanism.record_loss() == pytest.approx(0.909, abs=1e-3)
    up = math.log(mechanism.ones[0] / mechanism.zeros[0])
    down = math.log((ONE - mechanism.zeros[0]) / (ONE - mechanism.ones[0]))
    assert up == pytest.approx(8.88e-5, rel=2e-3)
    assert down == pytest.approx(8.9e-6, rel=1e-2)
    assert 5120 * (up + down) == pytest.approx(0.500, abs=1e-3)  # balanced pairs: what the theorem means
    assert (mechanism.ones[0] - mechanism.zeros[0]) / ONE == pytest.approx(8.1e-6, rel=1e-2)


def exact_worst(mechanism: BitRandomizer, strings: list[tuple[int, ...]]) -> float:
    """The largest ln Pr[y|x]/Pr[y|x'] over all pairs of these strings and all outputs, in exact rationals."""
    p, q = mechanism.ones.tolist(), mechanism.zeros.tolist()
    worst = Fraction(1)
    for y in itertools.product((0, 1), repeat=len(p)):
        chances = []
        for x in strings:
            chance = 1
            for i, (bit, said) in enumerate(zip(x, y, strict=True)):
                one = p[i] if bit else q[i]
                chance *= one if said else ONE - one
            chances.append(chance)
        worst = max(worst, Fraction(max(chances), min(chances)))
    return math.log(worst)


@pytest.mark.parametrize(
    "mechanism",
    [
        BitRandomizer.theorem2(0.5, BitString(6)),
        BitRandomizer.theorem2(3.0, BitString(6), a=2.5),
        BitRandomizer.theorem1(0.5, BitString(6)),
        BitRandomizer.rappor(2.0, BitString(6)),
    ],
    ids=lambda m: m.variant,
)
def test_the_formula_equals_brute_force_over_all_strings_and_outputs(mechanism: BitRandomizer) -> None:
    strings = list(itertools.product((0, 1), repeat=6))
    assert mechanism.record_loss() == pytest.approx(exact_worst(mechanism, strings), rel=1e-13)


def one_hot(length: int) -> list[tuple[int, ...]]:
    return [tuple(int(i == j) for i in range(length)) for j in range(length)]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 20.0])
def test_unary_encodings_keep_epsilon_for_one_hot_codes(epsilon: float) -> None:
    domain = BitString(5, one_hot=True)
    for mechanism in (
        BitRandomizer.rappor(epsilon, domain),
        BitRandomizer.optimised(epsilon, domain),
        BitRandomizer.rappor(epsilon, domain),
    ):
        worst = exact_worst(mechanism, one_hot(5))
        assert worst <= accountant.epsilon(mechanism.guarantee().loss) * (1 + 1e-14) <= epsilon * (1 + 1e-14)
        assert worst >= epsilon * (1 - 1e-3) or epsilon > 15


def test_one_hot_loss_takes_the_worst_pair_of_positions_not_the_first() -> None:
    mechanism = BitRandomizer([2**31, 2**31, 2**31], [2**30, 2**30, 2**20], BitString(3, one_hot=True))
    assert mechanism.record_loss() >= exact_worst(mechanism, one_hot(3)) * (1 - 1e-12)


def test_a_guarantee_for_one_hot_codes_refuses_other_strings() -> None:
    """Two strings that are no codes differ in more bits than the guarantee allows for."""
    mechanism = BitRandomizer.optimised(1.0, BitString(4, one_hot=True))
    for bad in ([1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]):
        with pytest.raises(InvalidInput, match="one-hot"):
            mechanism.randomize(np.array([bad], dtype=np.uint8), stream())


def test_labels_and_clients_are_told_apart() -> None:
    mechanism = BitRandomizer.theorem2(0.5, BitString(10))
    assert isinstance(mechanism.guarantee(Adjacency.LABEL).loss, Infinite)
    record = accountant.epsilon(mechanism.guarantee(Adjacency.RECORD_REPLACE).loss)
    assert accountant.epsilon(mechanism.guarantee(Adjacency.CLIENT, values=7).loss) == pytest.approx(7 * record)
    assert accountant.epsilon(mechanism.guarantee(Adjacency.COORDINATE).loss) == pytest.approx(
        max(mechanism.bit_losses())
    )


def test_bits_come_out_with_their_thresholds_exactly() -> None:
    """Compared with the words themselves: bit = word < threshold of the input bit."""
    mechanism = BitRandomizer.theorem2(0.5, BitString(1001))
    bits = np.random.default_rng(1).integers(0, 2, (3, 1001))
    words = stream(3).words(np.arange(3), 1, 0, 0, 1001)
    expected = words < np.where(bits == 1, mechanism.ones, mechanism.zeros)
    assert (mechanism.randomize(bits, stream(3)).output.bits() == expected).all()


def test_published_moments_of_the_decoder() -> None:
    """x = 5.40625 (whole 5, fraction .40625): variance 699.9; naive decoding has mean 5.733 and variance 7.05."""
    code = FixedPoint()
    bits = code.encode(np.array([[5.40625]]))
    mechanism = BitRandomizer.theorem2(0.5, BitString(10240))
    p, q = mechanism.ones[:10] / ONE, mechanism.zeros[:10] / ONE
    b, places = bits[0], code.place_values
    variance = (b * p * (1 - p) + (1 - b) * q * (1 - q)) / (p - q) ** 2
    assert (places**2 * variance).sum() == pytest.approx(699.9, abs=0.05)
    part = BitRandomizer(mechanism.ones[:10], mechanism.zeros[:10], BitString(10))
    assert part.variance(bits)[0] == pytest.approx(variance)
    naive = np.where(b == 1, p, q)
    assert (places * naive).sum() == pytest.approx(5.733, abs=5e-4)
    assert (places**2 * naive * (1 - naive)).sum() == pytest.approx(7.05, abs=5e-3)


def test_published_variance_of_the_decoder_by_monte_carlo() -> None:
    """Magnitudes decoded from 100,000 records within 6 standard errors (false alarm 4e-9)."""
    code, n = FixedPoint(), 100_000
    whole = BitRandomizer.theorem2(0.5, BitString(10240))
    part = BitRandomizer(whole.ones[:10], whole.zeros[:10], BitString(10))
    bits = np.repeat(code.encode(np.array([[5.40625]])), n, axis=0)
    decoded = part.estimate(part.randomize(bits, stream(n)).output) @ code.place_values
    assert decoded.mean() == pytest.approx(5.40625, abs=6 * math.sqrt(699.9 / n))
    square = (decoded - 5.40625) ** 2
    assert square.mean() == pytest.approx(699.9, abs=6 * square.std() / math.sqrt(n))


def test_decoder_is_unbiased_by_monte_carlo() -> None:
    """Features within 6 standard errors of their codes (false alarm below 1e-8); the estimator uses (B - q)/(p - q)."""
    code = FixedPoint(2, 2)
    features = np.array([[1.25, -2.5, 0.0, 3.75]])
    n = 40_000
    bits = np.repeat(code.encode(features), n, axis=0)
    mechanism = BitRandomizer.theorem2(1.0, BitString(20), a=2.0)
    decoded = code.decode(mechanism.estimate(mechanism.randomize(bits, stream(n)).output))
    error = decoded.std(axis=0) / math.sqrt(n)
    assert (np.abs(decoded.mean(axis=0) - features[0]) <= 6 * error).all()
    assert error.max() < 0.2


@given(
    st.integers(0, 8), st.integers(1, 8), st.sampled_from(["msb", "lsb"]), st.sampled_from(["text", "equation"]),
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8),
)  # fmt: skip
def test_fixed_point_round_trip(whole: int, fraction: int, order: str, reading: str, features: list[float]) -> None:
    code = FixedPoint(whole, fraction, order, reading)  # type: ignore[arg-type]
    x = np.array([features])
    bits = code.encode(x)
    assert bits.shape == (1, len(features) * (whole + fraction + 1))
    assert set(np.unique(bits)) <= {0, 1}
    decoded = code.decode(bits)[0]
    unit = 2.0 ** -(fraction if reading == "text" else whole)
    top = 2.0**whole - unit if reading == "text" else 2.0 ** (fraction + 1) - unit
    for value, back in zip(features, decoded, strict=True):
        if reading == "text":
            expected = math.copysign(min(math.floor(abs(value) / unit) * unit, top), value)
        else:
            expected = min(math.floor(max(value, 0.0) / unit) * unit, top)
        assert back == expected or (back == 0 and expected == 0)
    assert (code.encode(code.decode(bits)) == bits).all()


def test_orders_are_mirror_images_and_the_default_is_that_of_the_text() -> None:
    x = np.array([[5.40625, -3.5]])
    msb, lsb = FixedPoint(order="msb").encode(x), FixedPoint(order="lsb").encode(x)
    assert (msb.reshape(2, 10)[:, ::-1] == lsb.reshape(2, 10)).all()
    # sign, then 0101 whole (5), then 01101 fraction (13/32)
    assert msb[0, :10].tolist() == [0, 0, 1, 0, 1, 0, 1, 1, 0, 1]
    assert FixedPoint().bits == 10
    # Eq. 10 as printed: 4 fraction bits, 6 whole ones, no sign; -3.5 cannot be coded
    equation = FixedPoint(reading="equation").encode(x)
    assert equation[0, :10].tolist() == [0, 0, 0, 1, 0, 1, 0, 1, 1, 0]
    assert not equation[0, 10:].any()


def test_features_beyond_the_code_are_clipped() -> None:
    assert FixedPoint().decode(FixedPoint().encode(np.array([[100.0, -100.0]])))[0].tolist() == [15.96875, -15.96875]


@pytest.mark.parametrize("value", [1e300, 1.7e308, 5e-324])
def test_extreme_features_are_coded_without_an_overflow(value: float) -> None:
    decoded = FixedPoint().decode(FixedPoint().encode(np.array([[value, -value]])))[0]
    assert decoded.tolist() == ([15.96875, -15.96875] if value > 1 else [0.0, 0.0])


@pytest.mark.parametrize(
    "bad",
    [
        {"whole": -1}, {"whole": 21}, {"fraction": 1.5}, {"whole": 0, "fraction": 0}, {"whole": "4"},
        {"order": "middle"}, {"reading": "other"}, {"order": None},
    ],
)  # fmt: skip
def test_codes_that_are_none_are_refused(bad: dict) -> None:
    with pytest.raises(InvalidInput):
        FixedPoint(**bad)


@pytest.mark.parametrize("bad", [[0.1], [[0.1] * 9], [[[0.1] * 10]], [["a"] * 10], [[1.0], [1.0, 2.0]]])
def test_decoding_what_is_no_code_is_refused(bad: list) -> None:
    with pytest.raises(InvalidInput):
        FixedPoint().decode(bad)


@pytest.mark.parametrize(
    ("ones", "zeros"),
    [([1, 2, 3], [4, 5, 6]), ([0], [1]), ([1], [2**32]), (["a"], [1]), ([0.5], [0.25]), ([1.7], [2.2]), ([None], [1])],
)
def test_thresholds_that_are_none_are_refused(ones: list, zeros: list) -> None:
    with pytest.raises(InvalidInput):
        BitRandomizer(ones, zeros, BitString(6))


@pytest.mark.parametrize(
    ("length", "one_hot"),
    [
        (0, False), (-1, False), (2.0, False), (True, False), ("4", False), (6, 0), (6, None), (6, 2.5), (6, "a"),
    ],
)  # fmt: skip
def test_bit_strings_that_are_none_are_refused(length: object, one_hot: object) -> None:
    with pytest.raises(InvalidInput):
        BitString(length, one_hot)  # type: ignore[arg-type]


@pytest.mark.parametrize("a", [1.0, 0.0, -2.0, math.nan, math.inf, 1001.0, "10", None, True])
def test_coefficients_out_of_range_are_refused(a: object) -> None:
    with pytest.raises(InvalidInput, match="alpha"):
        BitRandomizer.theorem2(0.5, BitString(10), a=a)  # type: ignore[arg-type]


def test_rounding_towards_each_other_never_lets_p_and_q_change_places() -> None:
    """Where p and q fall between the same two thresholds, rounding each past the other would raise the ratio."""
    with pytest.raises(InvalidInput, match="raise epsilon"):
        BitRandomizer.rappor(1e-6, BitString(10240))
    for epsilon in (1e-7, 1e-6, 1e-5):
        try:
            mechanism = BitRandomizer.theorem1(epsilon, BitString(10240))
        except InvalidInput as refusal:
            assert "raise epsilon" in str(refusal)
            continue
        assert mechanism.record_loss() <= 2 * epsilon


def test_optimised_encoding_of_other_codes_spends_a_share_on_every_bit() -> None:
    """Half of the bits may differ either way: 2 eps/length each, and up to twice that proven over all of them."""
    mechanism = BitRandomizer.optimised(1.0, BitString(10))
    assert mechanism.zeros[0] / 2**32 == pytest.approx(1 / (1 + math.exp(0.2)), abs=1e-9)
    assert 1.0 < mechanism.record_loss() <= 2.0


def test_other_lengths_are_refused() -> None:
    mechanism = BitRandomizer.rappor(1.0, BitString(6))
    with pytest.raises(InvalidInput, match="6"):
        mechanism.randomize(np.zeros((1, 5), np.uint8), stream())
    with pytest.raises(InvalidInput, match="6"):
        mechanism.decode([b"\0"], 5)
    with pytest.raises(InvalidInput, match="0 or 1"):
        mechanism.randomize(np.full((1, 6), 2), stream())


def test_a_finite_epsilon_is_never_given_for_adding_or_removing_a_record() -> None:
    with pytest.raises(InvalidInput, match="number of reports"):
        BitRandomizer.rappor(1.0, BitString(8)).guarantee(Adjacency.RECORD_ADD_REMOVE)


def test_strings_that_are_not_one_hot_pay_for_every_bit() -> None:
    mechanism = BitRandomizer.rappor(1.0, BitString(16))
    assert mechanism.record_loss() == pytest.approx(1.0, abs=1e-6)
    assert mechanism.bit_losses()[0] == pytest.approx(1 / 16, abs=1e-6)
