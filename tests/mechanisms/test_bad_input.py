"""Bad input to every mechanism: a clear refusal or the right result; never a silent wrong one or a bare numpy error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from catalogue import ENTRIES, PERSONAL, PRIVATE, REALS, WHOLE, Entry, each, not_refused, reports, stream
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sordino.errors import InvalidInput
from sordino.mechanisms import (
    BitRandomizer,
    BitString,
    Box,
    Exponential,
    FiniteSet,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Piecewise,
    PrivUnitG,
    RandomizedLabel,
    RandomizedSign,
    Sphere,
    TwoPoint,
)

BOXED = [e for e in REALS if type(e.mechanism().domain) is Box and e.name != "none"]


class Tensor:
    """What a mechanism sees of a tensor on an accelerator with a gradient: only this chain leads to its values."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self._ready = array, 0

    def detach(self) -> Tensor:
        self._ready += 1
        return self

    def cpu(self) -> Tensor:
        self._ready += 1
        return self

    def numpy(self) -> np.ndarray:
        assert self._ready == 2, "a gradient or a device is still attached"
        return self._array


# --- values ---------------------------------------------------------------------------------------------------------


@each(REALS)
@settings(max_examples=15)
@given(
    bad=st.sampled_from([math.nan, math.inf, -math.inf]),
    where=st.integers(0, 25),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.dtype(">f4"), np.longdouble]),
)
def test_nan_and_infinity_are_refused_wherever_they_hide(entry: Entry, bad: float, where: int, dtype: Any) -> None:
    values = np.zeros((2, 13), dtype)
    values[where // 13, where % 13] = bad
    mechanism = entry.mechanism(13)
    for call in (lambda: mechanism.randomize(values, stream(2)), lambda: mechanism.bias(values),
                 lambda: mechanism.variance(values)):  # fmt: skip
        with pytest.raises(InvalidInput, match="NaN or infinity"):
            call()


finite = st.floats(allow_nan=False, allow_infinity=False)
extreme = st.one_of(finite, st.sampled_from([1e300, -1e300, 1.7e308, -1.7e308, 5e-324, 1e-310, 3.5e38, -0.0, 1e-45]))


@pytest.mark.process
@each(REALS)
@settings(max_examples=30)
@given(values=hnp.arrays(np.float64, (2, 5), elements=extreme))
def test_any_finite_doubles_give_a_valid_report_and_finite_moments(entry: Entry, values: np.ndarray) -> None:
    mechanism = entry.mechanism(5)
    output = mechanism.randomize(values, stream(2)).output
    decoded = mechanism.decode(mechanism.encode(output), 5)
    assert np.isfinite(mechanism.estimate(decoded)).all()
    assert np.isfinite(mechanism.variance(values)).all()
    if np.abs(values).max() < 1e300:
        assert np.isfinite(mechanism.bias(values)).all()


@each(BOXED)
@settings(max_examples=30)
@given(values=hnp.arrays(np.float64, (1, 5), elements=extreme))
def test_huge_values_count_as_the_ends_of_the_box(entry: Entry, values: np.ndarray) -> None:
    mechanism = entry.mechanism(5)
    low, high = (float(mechanism.domain.centre[0] + s * mechanism.domain.radius[0]) for s in (-1, 1))
    ends = np.clip(values, low, high).astype(np.float32)
    assert reports(mechanism, values, stream()) == reports(mechanism, ends, stream())


@each([e for e in REALS if "ball" in e.name or e.name in ("clip-l1", "clip-l2", "privunit")])
@settings(max_examples=30)
@given(values=hnp.arrays(np.float64, (1, 5), elements=st.floats(-1e3, 1e3)), power=st.integers(0, 1010))
def test_huge_vectors_count_as_their_direction(entry: Entry, values: np.ndarray, power: int) -> None:
    values[0, 0] = 5.0  # outside every ball, whatever the others are
    mechanism = entry.mechanism(5)
    small = mechanism.estimate(mechanism.randomize(values, stream()).output)
    huge = mechanism.estimate(mechanism.randomize(values * 2.0**power, stream()).output)
    assert huge == pytest.approx(small, rel=1e-3, abs=2e-3)


@each(REALS)
def test_other_types_than_floats_are_refused_with_the_remedy(entry: Entry) -> None:
    mechanism = entry.mechanism(2)
    bad = [
        np.ones((1, 2), int), np.ones((1, 2), bool), np.ones((1, 2), complex), np.ones((1, 2), object),
        np.array([["a", "b"]]), np.array([[b"a", b"b"]]), np.array([["2020-01-01", "2020-01-02"]], "datetime64[D]"),
        [[1, 2]], [["1.0", "2.0"]], [[None, 1.0]], "12", None, {}, {1.0, 2.0}, 3, [[1.0], [1.0, 2.0]], [[1.0, [2.0]]],
    ]  # fmt: skip
    assert not not_refused(lambda v: mechanism.randomize(v, stream()), bad)
    assert not not_refused(mechanism.bias, bad)
    assert not not_refused(mechanism.variance, bad)


@each(WHOLE)
def test_other_types_than_whole_numbers_are_refused(entry: Entry) -> None:
    mechanism = entry.mechanism(2)
    bad = [
        np.ones((1, 2)), np.ones((1, 2), np.float32), np.ones((1, 2), complex), np.ones((1, 2), object),
        np.array([["0", "1"]]), [[0.0, 1.0]], [[None, 1]], "01", None, {}, 3, [[1], [0, 1]],
        np.full((1, 2), -1), np.full((1, 2), 10), np.array([[0, 2**63]], np.uint64),
    ]  # fmt: skip
    assert not not_refused(lambda v: mechanism.randomize(v, stream()), bad)
    assert not not_refused(mechanism.bias, bad)
    assert not not_refused(mechanism.variance, bad)


@each(ENTRIES)
def test_other_shapes_than_vectors_and_cohorts_are_refused(entry: Entry) -> None:
    mechanism = entry.mechanism(4)
    whole = entry.inputs(4, 4)
    bad = [whole[0, 0], whole.reshape(2, 2, 4), whole[:0], whole[:, :0], whole[0, :0], whole.reshape(1, 1, 16)]
    assert not not_refused(lambda v: mechanism.randomize(v, stream(max(1, len(np.atleast_1d(v))))), bad)


@each(ENTRIES)
def test_one_vector_is_a_cohort_of_one(entry: Entry) -> None:
    mechanism, values = entry.mechanism(13), entry.inputs(1, 13)
    assert reports(mechanism, values[0], stream()) == reports(mechanism, values, stream())
    assert reports(mechanism, values.tolist(), stream()) == reports(mechanism, values, stream())


@pytest.mark.process
@each(ENTRIES)
@settings(max_examples=10)
@given(
    layout=st.sampled_from(["strided", "reversed", "transposed", "fortran", "offset", "big-endian", "read-only"]),
    clients=st.integers(1, 4),
    d=st.integers(2, 30),
)
def test_layout_in_memory_does_not_matter(entry: Entry, layout: str, clients: int, d: int) -> None:
    values = entry.inputs(clients, d)
    match layout:
        case "strided":
            wide = np.zeros((2 * clients, 3 * d), values.dtype)
            wide[::2, ::3] = values
            other = wide[::2, ::3]
        case "reversed":
            other = np.ascontiguousarray(values[::-1, ::-1])[::-1, ::-1]
        case "transposed":
            other = np.ascontiguousarray(values.T).T
        case "fortran":
            other = np.asfortranarray(values)
        case "offset":
            other = np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(values.dtype).reshape(values.shape)
        case "big-endian":
            other = values.astype(values.dtype.newbyteorder(">"))
        case _:
            other = values.copy()
            other.flags.writeable = False
    kept = other.copy()
    mechanism = entry.mechanism(d)
    assert reports(mechanism, other, stream(clients)) == reports(mechanism, values, stream(clients))
    assert (other == kept).all()
    assert (mechanism.variance(other) == mechanism.variance(values)).all()
    assert (mechanism.bias(other) == mechanism.bias(values)).all()


@each(REALS)
def test_precision_of_the_input_does_not_matter_where_it_holds_the_values(entry: Entry) -> None:
    values = (np.arange(-13, 13).reshape(2, 13) / 16).astype(np.float16)
    mechanism = entry.mechanism(13)
    expected = reports(mechanism, values.astype(np.float32), stream(2))
    for dtype in (np.float16, np.float64, np.longdouble):
        assert reports(mechanism, values.astype(dtype), stream(2)) == expected


@each(REALS)
def test_longdoubles_beyond_doubles_are_refused_or_clipped(entry: Entry) -> None:
    mechanism = entry.mechanism(2)
    try:
        output = mechanism.randomize(np.array([[np.longdouble("1e4000"), 0.0]]), stream()).output
    except InvalidInput:
        return
    assert np.isfinite(mechanism.estimate(output)).all()


@each(ENTRIES)
def test_a_tensor_is_taken_off_its_device_or_refused(entry: Entry) -> None:
    values, mechanism = entry.inputs(2, 13), entry.mechanism(13)
    try:
        got = reports(mechanism, Tensor(values), stream(2))
    except InvalidInput:
        assert entry.takes != "reals"
        return
    assert got == reports(mechanism, values, stream(2))


# --- cohorts --------------------------------------------------------------------------------------------------------


@each(PERSONAL)
def test_a_cohort_that_does_not_match_the_parameters_is_refused(entry: Entry) -> None:
    mechanism = entry.make(13, entry.personal)
    for clients in (1, 4, 6):
        values = entry.inputs(clients, 13)
        for call in (
            lambda v=values, c=clients: mechanism.randomize(v, stream(c)),
            lambda v=values: mechanism.variance(v),
        ):
            with pytest.raises(InvalidInput, match=f"for {clients}"):
                call()


@each(PRIVATE)
def test_randomness_for_another_number_of_clients_is_refused(entry: Entry) -> None:
    mechanism = entry.mechanism(13)
    for clients in (1, 2, 4):
        with pytest.raises(InvalidInput, match=f"randomness is for {clients}"):
            mechanism.randomize(entry.inputs(3, 13), stream(clients))


@each(PRIVATE)
def test_a_tensor_number_outside_16_bits_is_refused(entry: Entry) -> None:
    mechanism, values = entry.mechanism(13), entry.inputs(1, 13)
    bad = [-1, 2**16, 1.5, "a", None]
    assert not not_refused(lambda t: mechanism.randomize(values, stream(), tensor=t), bad)


# --- parameters -----------------------------------------------------------------------------------------------------

NOT_POSITIVE: list[Any] = [
    0, 0.0, -1, -1e-9, math.nan, math.inf, -math.inf, "1", "", None, True, 1j, [], [[1.0]], [1.0, math.nan],
    [1.0, 0.0], ["a"], [None], [[1.0], [1.0, 2.0]], {}, np.array([]), np.array([[1.0]]), np.array([True]), object(),
]  # fmt: skip
EPSILONS = {
    "two-point": lambda e: TwoPoint(e),
    "sign eq7": lambda e: RandomizedSign.eq7(e, 1e-5),
    "sign response": lambda e: RandomizedSign.response(e),
    "sign sigma": lambda e: RandomizedSign.gaussian(e),
    "laplace": lambda e: Laplace(e),
    "laplace ball": lambda e: Laplace(e, L1Ball(1.0)),
    "gaussian sigma": lambda e: Gaussian(e),
    "gaussian analytic": lambda e: Gaussian.analytic(e, 1e-5),
    "gaussian eq4": lambda e: Gaussian.eq4(e, 1e-5, sampling=0.5, rounds=3),
    "exponential": lambda e: Exponential(e, IntegerRange(1.0, 3)),
    "label": lambda e: RandomizedLabel(e, FiniteSet(5)),
    "piecewise": lambda e: Piecewise(e),
    "privunit": lambda e: PrivUnitG(e),
    "rappor": lambda e: BitRandomizer.rappor(e, BitString(6)),
    "optimised": lambda e: BitRandomizer.optimised(e, BitString(6, one_hot=True)),
    "theorem 1": lambda e: BitRandomizer.theorem1(e, BitString(6)),
    "theorem 2": lambda e: BitRandomizer.theorem2(e, BitString(6)),
}


@pytest.mark.parametrize("make", EPSILONS.values(), ids=EPSILONS)
def test_parameters_that_are_not_positive_numbers_are_refused(make: Any) -> None:
    assert not not_refused(make, NOT_POSITIVE)


@pytest.mark.parametrize("make", EPSILONS.values(), ids=EPSILONS)
@settings(max_examples=25)
@given(
    parameter=st.one_of(st.floats(), st.integers(-(10**30), 10**30), st.sampled_from([10**400, 1e-310, 5e-324, 1e308]))
)
def test_any_number_makes_a_mechanism_or_a_clear_refusal(make: Any, parameter: float) -> None:
    try:
        mechanism = make(parameter)
    except InvalidInput as error:
        assert len(str(error)) > 15
        return
    assert parameter > 0
    takes = {"bits": np.ones((1, 6), np.uint8), "label": np.ones((1, 6), int)}
    values = takes.get(mechanism.name, np.full((1, 6), 0.25))
    if mechanism.name == "bits" and mechanism.variant == "optimised":
        values = np.eye(6, dtype=np.uint8)[:1]
    assert np.isfinite(mechanism.estimate(mechanism.randomize(values, stream()).output)).all()


DELTAS = {
    "sign eq7": lambda x: RandomizedSign.eq7(1.0, x),
    "gaussian analytic": lambda x: Gaussian.analytic(1.0, x),
    "gaussian eq4": lambda x: Gaussian.eq4(1.0, x, sampling=0.5, rounds=3),
}


@pytest.mark.parametrize("make", DELTAS.values(), ids=DELTAS)
def test_deltas_outside_0_and_1_are_refused(make: Any) -> None:
    bad: list[Any] = [0, 1, 0.0, 1.0, -0.1, 1.1, math.nan, math.inf, -math.inf, "a", None, 1j, [1e-5], {}]
    assert not not_refused(make, bad)


def test_boxes_that_are_none_are_refused() -> None:
    bad: list[Any] = [
        (0.0, 0.0), (0.0, -1.0), (0.0, math.nan), (0.0, math.inf), (math.nan, 1.0), (math.inf, 1.0), (0.0, 1e300),
        (1e300, 1.0), (0.0, 1e-45), (0.0, 1e-300), ("a", 1.0), (0.0, "a"), (None, 1.0), (0.0, None), (0.0, True),
        (0.0, 1j), ([], 1.0), (0.0, []), ([[0.0]], 1.0), (0.0, [1.0, 0.0]), ([0.0, 0.0], [1.0, 1.0, 1.0]),
        ([[0.0], [0.0, 1.0]], 1.0), (0.0, [[1.0], [1.0, 2.0]]), (object(), 1.0),
    ]  # fmt: skip
    assert not not_refused(lambda given: Box(*given), bad)


def test_tensors_of_a_box_that_are_none_are_refused() -> None:
    bad: list[Any] = [
        ([], [], []), ([1, 2], [0.0], [1.0]), ([0], [0.0], [1.0]), ([-1], [0.0], [1.0]), ([2.5], [0.0], [1.0]),
        (["a"], [0.0], [1.0]), ([2], ["a"], [1.0]), ([2], [0.0], [None]), ([2], [0.0], [0.0]), ([2], [math.nan], [1.0]),
        ([None], [0.0], [1.0]),
    ]  # fmt: skip
    assert not not_refused(lambda given: Box.per_tensor(*given), bad)


@pytest.mark.parametrize("ball", [L1Ball, L2Ball, Sphere])
def test_balls_that_are_none_are_refused(ball: type) -> None:
    assert not not_refused(ball, [0, -1.0, math.nan, math.inf, "a", None, True, 1j, [1.0], 1e31, 1e-31, 10**400])


def test_boxes_are_values_that_can_be_compared() -> None:
    assert Box([0.0, 1.0], 2.0) == Box([0.0, 1.0], 2.0)
    assert Box([0.0, 1.0], 2.0) != Box([0.0, 1.5], 2.0)
    assert Box() != Box(0.0, [1.0, 1.0])


@pytest.mark.parametrize("make", [TwoPoint, Laplace, Piecewise, RandomizedSign.response], ids=lambda m: m.__name__)
def test_a_box_of_another_length_than_the_values_is_refused(make: Any) -> None:
    mechanism = make(1.0, Box(np.zeros(5), 1.0))
    for d in (1, 3, 7):
        values = np.zeros((1, d))
        for call in (lambda v=values: mechanism.randomize(v, stream()), lambda v=values: mechanism.bias(v),
                     lambda v=values: mechanism.variance(v)):  # fmt: skip
            with pytest.raises(InvalidInput, match="5 numbers"):
                call()


@pytest.mark.parametrize("make", [TwoPoint, Laplace, Piecewise], ids=lambda m: m.__name__)
def test_an_output_of_another_length_than_the_box_is_not_estimated(make: Any) -> None:
    for d in (1, 3, 7):
        output = make(1.0).randomize(np.zeros((2, d)), stream(2)).output
        with pytest.raises(InvalidInput, match="5"):
            make(1.0, Box(np.zeros(5), 1.0)).estimate(output)


@pytest.mark.parametrize("make", [TwoPoint, Laplace, Piecewise], ids=lambda m: m.__name__)
@pytest.mark.parametrize(("epsilon", "radius"), [(1e-6, 1e30), (22.0, 1e-30), (1e-6, 1e-30), (1.0, 1e30)])
def test_the_largest_and_smallest_boxes_give_finite_estimates(make: Any, epsilon: float, radius: float) -> None:
    mechanism = make(epsilon, Box(0.0, radius))
    values = np.array([[0.0, radius, -radius, radius / 2]])
    estimate = mechanism.estimate(mechanism.randomize(values, stream()).output)
    assert np.isfinite(estimate).all()
    assert np.isfinite(mechanism.variance(values)).all()
    assert (np.abs(mechanism.bias(values)) <= radius).all()


def test_the_parameters_of_a_mechanism_cannot_be_changed_afterwards() -> None:
    given = np.array([1.0, 2.0])
    mechanism = TwoPoint(given)
    before = reports(mechanism, np.zeros((2, 64)), stream(2))
    given[:] = 20.0
    assert reports(mechanism, np.zeros((2, 64)), stream(2)) == before
    with pytest.raises(ValueError, match="read-only"):
        mechanism.epsilon[0] = 20.0
    centre = np.zeros(3)
    box = Box(centre, 1.0)
    centre[0] = 9.0
    assert box.centre[0] == 0.0


def test_a_tensor_of_brain_floats_is_refused_with_the_remedy() -> None:
    import torch

    with pytest.raises(InvalidInput, match=r"\.float\(\)"):
        TwoPoint(1.0).randomize(torch.zeros(3, dtype=torch.bfloat16), stream())


def test_a_huge_ball_takes_tiny_vectors_without_a_warning() -> None:
    mechanism = Laplace(1.0, L1Ball(1e30))
    output = mechanism.randomize(np.array([[1e-305, 0.0]]), stream()).output
    assert np.isfinite(mechanism.estimate(output)).all()
