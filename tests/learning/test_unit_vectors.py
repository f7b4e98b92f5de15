"""What records add to sums of second moments and of gradients: whole, within bounds, of each record alone."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino.errors import InvalidInput
from sordino.learning import linear_head
from sordino.learning.linear_head import Digits, LinearHead, Rounded, residuals
from sordino.learning.unit_vectors import (
    LARGEST,
    MATRIX_BITS,
    VALUE_BITS,
    Form,
    WhitenedHead,
    Whitening,
    _normalised,
    moments_sensitivity,
    second_moments,
    unit_vectors,
    whitened,
)

LONGEST = 1448  #: the longest unit vectors that the method takes
CLASSES = 4
STRANGE = (math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e-45, -0.0)


def squared(vector: Tensor) -> int:
    """Exactly, in Python's whole numbers."""
    return sum(int(v) ** 2 for v in vector.reshape(-1).tolist())


@st.composite
def forms(draw: st.DrawFn) -> Form:
    groups = draw(st.integers(0, 3))
    maps = max(1, groups) * draw(st.integers(1, 3))
    return Form(maps, draw(st.sampled_from([1, 2, 7, 49, 200])), groups, draw(st.integers(0, 3)))


def strange(rng: torch.Generator, *shape: int) -> Tensor:
    """Numbers of every size, some of which are none; rows that are constant, and rows of zeros."""
    found = torch.randn(*shape, generator=rng) * 10.0 ** torch.randint(-12, 12, (shape[0],) + (1,) * (len(shape) - 1))
    odd = torch.tensor(STRANGE)[torch.randint(0, len(STRANGE), shape, generator=rng)]
    found = torch.where(torch.rand(*shape, generator=rng) < 0.1, odd, found)
    found[0] = 0.7
    found[1] = 0
    return found


@settings(max_examples=60, deadline=None)
@given(form=forms(), limit=st.integers(1, LONGEST), seed=st.integers(0, 2**31))
@example(form=Form(1, 200, 1, 1), limit=3, seed=0)
def test_a_record_moves_second_moments_by_their_sensitivity_at_most(form: Form, limit: int, seed: int) -> None:
    """Also where unit vectors are shorter than the root of the cells: then m has no room, and is 0."""
    rng = torch.Generator().manual_seed(seed)
    units = unit_vectors(strange(rng, 6, form.size), form, limit)
    everyone = second_moments(units, form, limit)
    for i in range(len(units)):
        alone = second_moments(units[i : i + 1], form, limit)
        assert squared(alone) <= 2 * limit**4 <= moments_sensitivity(limit) ** 2
        kept = torch.arange(len(units)) != i
        assert torch.equal(everyone - second_moments(units[kept], form, limit), alone)


def test_the_bound_of_second_moments_is_reached() -> None:
    """One map, one cell: A = limit^2 and m = limit^2, so a smaller sensitivity would be too small."""
    form, limit = Form(1, 1, 0, 0), 1000
    alone = second_moments(torch.tensor([[limit]], dtype=torch.int16), form, limit)
    assert alone.tolist() == [limit**2, limit**2]
    assert moments_sensitivity(limit) ** 2 < squared(alone) * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(form=forms(), limit=st.integers(1, LONGEST), seed=st.integers(0, 2**31))
def test_unit_vectors_are_within_their_limit_and_do_not_meet(form: Form, limit: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    features = strange(rng, 7, form.size)
    together = unit_vectors(features, form, limit)
    order = torch.randperm(7, generator=rng)
    assert torch.equal(unit_vectors(features[order], form, limit), together[order])
    for i in range(7):
        assert squared(together[i]) <= limit**2
        assert torch.equal(unit_vectors(features[i : i + 1], form, limit)[0], together[i])


@settings(max_examples=60, deadline=None)
@given(
    form=forms(), limit=st.integers(1, 256), bias=st.floats(0.001, 1), hostile=st.booleans(), seed=st.integers(0, 99)
)
def test_whitened_records_are_within_their_limit_whatever_the_plan_holds(
    form: Form, limit: int, bias: float, hostile: bool, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    units = unit_vectors(strange(rng, 7, form.size), form, LONGEST)
    left, centre = torch.randn(form.maps, form.maps, generator=rng), torch.randn(form.maps, generator=rng)
    if hostile:
        left = torch.cat([strange(rng, 2, form.maps), 2.0**20 * left])[: form.maps]
        centre = strange(rng, 2, form.maps)[1] + 2.0**50 * centre
    together = whitened(units, form, left, centre, bias, limit)
    assert together.longest == limit
    assert together.scale.isfinite().all()
    for i in range(7):
        assert squared(together.whole[i]) <= limit**2
        alone = whitened(units[i : i + 1], form, left, centre, bias, limit)
        assert torch.equal(alone.whole[0], together.whole[i])
        assert torch.equal(alone.scale[0], together.scale[i])


@settings(max_examples=40, deadline=None)
@given(form=forms(), limit=st.integers(1, 5000), clip=st.floats(1e-3, 1e3), seed=st.integers(0, 2**31))
def test_a_record_moves_a_gradient_by_the_product_of_its_limits_at_most(
    form: Form, limit: int, clip: float, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    head, row = LinearHead(form.size, CLASSES, True), 97
    units = unit_vectors(strange(rng, 6, form.size), form, LONGEST)
    none = Whitening.none(form, 1.0)
    records = whitened(units, form, torch.from_numpy(none.left), torch.from_numpy(none.centre), 0.1, row)
    y, weights = torch.randint(0, CLASSES, (6,), generator=rng), strange(rng, 2, head.size)[torch.tensor(0)]
    weights = torch.where(torch.rand(head.size, generator=rng) < 0.5, weights, strange(rng, 3, head.size)[2])
    everyone = head.sums(head.weights(weights), records, y, clip, limit).sums
    for i in range(6):
        one, others = slice(i, i + 1), torch.arange(6) != i
        alone = head.sums(head.weights(weights), records.rows(one), y[one], clip, limit).sums
        assert squared(alone) <= (row * limit) ** 2
        assert torch.equal(
            everyone - head.sums(head.weights(weights), records.rows(others), y[others], clip, limit).sums, alone
        )


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_threads_and_blocks_change_no_bit(threads: Callable[[int], None]) -> None:
    """Records enough for several blocks of each step."""
    form, rng = Form(81, 25), torch.Generator().manual_seed(1)
    features = torch.rand(700, form.size, generator=rng)
    left, centre = torch.randn(81, 81, generator=rng) * 2**14, torch.randn(81, generator=rng) * 2**20
    head, y = LinearHead(form.size, CLASSES, True), torch.randint(0, CLASSES, (700,), generator=rng)
    weights, found = torch.randn(head.size, generator=rng), []
    for count in (1, 2):
        threads(count)
        units = unit_vectors(features, form, 1000)
        records = whitened(units, form, left, centre, 0.1, 200)
        sums = head.sums(head.weights(weights), records, y, 0.03, 40).sums
        found.append((units, records.whole, records.scale, sums, second_moments(units, form, 1000)))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    parts = [
        head.sums(head.weights(weights), records.rows(slice(i, i + 7)), y[i : i + 7], 0.03, 40).sums
        for i in range(0, 700, 7)
    ]
    assert torch.equal(torch.stack(parts).sum(dim=0), sums)


# --- the bounds of whole numbers in floats, at their extremes ---------------------------------------------------------


@pytest.mark.parametrize("size", [1, 127, 128, 512, 32_768, 65_535])
@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("roots", [0, 1])
def test_the_largest_features_leave_sums_of_squares_exact(size: int, groups: int, roots: int) -> None:
    form = Form(1, size, groups, roots)
    ends = torch.full((1, size), LARGEST / 2**VALUE_BITS)
    ends[0, ::2] *= -1
    for features in (ends, ends.abs(), ends * torch.rand(size, generator=torch.Generator().manual_seed(2))):
        whole = _normalised(features, form)
        assert torch.equal(whole, torch.round(whole))
        assert squared(whole) <= 2**53
        assert int((whole * whole).sum()) == squared(whole)
        assert squared(unit_vectors(features, form, LONGEST)) <= LONGEST**2


@pytest.mark.parametrize("size", [3, 1000, 65_535])
def test_group_norm_is_that_of_whole_numbers(size: int) -> None:
    """Ends of all sorts, so that deviations are as large as may be: squares add up exactly, in any order."""
    ends = torch.full((1, size), LARGEST / 2**VALUE_BITS)
    ends[0, : size // 3] *= -1
    values = [round(v * 2**VALUE_BITS) for v in ends[0].tolist()]
    reach = 2 ** ((53 - math.ceil(math.log2(size))) // 2)
    mean = sum(values) / size
    centred = [max(-reach, min(reach, round(v - mean))) for v in values]
    squares = sum(v * v for v in centred)
    assert squares <= 2**53
    spread = math.sqrt(squares / size + 1)
    wanted = [round(v / spread * 2**12) for v in centred]
    assert [int(v) for v in _normalised(ends, Form(1, size, 1, 0))[0].tolist()] == wanted


def test_records_longer_than_exact_sums_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"65,535 is the most"):
        Form(2**16, 1)


def test_the_largest_whitening_is_exact() -> None:
    """The longest unit vectors under the largest matrix and centre: what is added up stays far below 2^53."""
    form = Form(2000, 1, 1, 1)
    units = torch.zeros(2, 2000, dtype=torch.int16)
    units[0] = 32  # 2000 * 32^2 < 1448^2
    units[1, 7] = LONGEST
    left, centre = torch.full((2000, 2000), 1e9), torch.full((2000,), -1e30)
    exact = [[2**MATRIX_BITS * sum(row) + 2**40] * 2000 for row in units.tolist()]
    assert max(map(max, exact)) < 2**53
    found = whitened(units, form, left, centre, 1.0, 256)
    assert (found.whole[:, :-1] == found.whole[:, :1]).all()
    assert squared(found.whole[0]) <= 256**2


@pytest.mark.parametrize(("width", "longest"), [(65_536, 256), (65_536, 4096), (401, 97), (2, 2)])
def test_products_of_digits_are_those_of_whole_numbers(width: int, longest: int) -> None:
    """Weights of the largest digits against records as long as may be, all of one sign: sums reach 2^23 and more."""
    bits = 24 - math.ceil(math.log2(longest * math.sqrt(width)))
    each = max(1, math.isqrt(longest * longest // width))
    records = torch.full((3, width), each, dtype=torch.int64)
    records[1] *= -1
    records[2, : width // 2] *= -1
    assert squared(records[0]) <= longest**2
    digit, largest = 2 ** (bits - 1) - 1, 2**30
    row = sum(digit << (bits * k) for k in range(29 // bits))
    weights = torch.tensor([row, -row, largest, -largest, largest - 1, 1], dtype=torch.float64)
    weights = weights.unsqueeze(1).expand(-1, width).clone()
    digits = Digits.of(weights, longest)
    assert max(squared(own) for own in digits.digits.double()) * longest**2 <= 2**48
    wanted = [[int(w) * sum(r) for r in records.tolist()] for w in weights[:, 0].tolist()]
    assert [[int(v) for v in line] for line in digits.products(records.float()).tolist()] == wanted


@pytest.mark.parametrize("longest", [1, 2, 255, 256, 4096, 32_767])
def test_digits_are_as_long_as_float32_has_room_for(longest: int) -> None:
    """A row of one weight: the largest that is a digit by itself, and one more, which takes two."""
    room = 2**24 // longest
    for weight, count in ((room, 1), (-room, 1), (room + 1, 2)):
        digits = Digits.of(torch.tensor([[float(weight)]], dtype=torch.float64), longest)
        assert len(digits.digits) == count
        assert digits.products(torch.tensor([[float(longest)]])).tolist() == [[weight * longest]]


@pytest.mark.parametrize("width", [785, 3970])
def test_weights_of_an_ordinary_model_take_two_digits(width: int) -> None:
    """Every digit is one more product: in the worst case these take three."""
    weights = torch.round(0.1 * 2**16 * torch.randn(10, width, generator=torch.Generator().manual_seed(1)).double())
    assert len(Digits.of(weights, 4096).digits) == 2 * len(weights)


class Chosen:
    """Records and residuals at their limits: `whole [n, width]`, and residuals as given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, whole: Tensor, residual: Tensor) -> None:
        def given(own: Rounded, products: Tensor, labels: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
            return residual[labels].double(), torch.zeros(len(labels)), torch.ones(len(labels))

        monkeypatch.setattr(linear_head, "residuals", given)
        n = len(whole)
        longest = math.isqrt(max(squared(row) for row in whole[:1]))
        self.records = Rounded(whole, torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64), longest)


@pytest.mark.parametrize(
    ("longest", "limit", "in_float32"), [(4095, 255, True), (1023, 1025, True), (256, 4096, True), (256, 4097, False)]
)
def test_float32_is_given_no_sums_beyond_2_to_the_24(
    monkeypatch: pytest.MonkeyPatch, longest: int, limit: int, in_float32: bool
) -> None:
    """Odd values in one column and all in one class: sixteen records fill float32, and there are many more."""
    features = 1024
    whole = torch.zeros(linear_head.SCORES // 2 + 700, features + 1, dtype=torch.int16)
    whole[:, 3] = longest
    own = Chosen(monkeypatch, whole, torch.tensor([[limit, 0], [-limit, 1]]))
    y = torch.zeros(len(whole), dtype=torch.int64)
    y[-1] = 1
    used: list[Tensor] = []
    joined = Digits.joined
    monkeypatch.setattr(Digits, "joined", lambda self, products: (used.append(products), joined(self, products))[1])
    head = LinearHead(features, 2, True)
    found = head.sums(head.weights(torch.ones(head.size)), own.records, y, 1.0, limit).sums
    assert bool(used) == in_float32
    assert int(found[3]) == (len(whole) - 2) * longest * limit
    assert int(found[features + 3]) == longest


@given(st.integers(17, 300), st.integers(16 * 9, 900), st.integers(0, 9))
def test_pieces_are_as_long_as_sums_allow(n: int, reach: int, seed: int) -> None:
    """Sixteen residuals up to 9 always fit; pieces are multiples of so many."""
    residual = torch.randint(-9, 10, (2, n), generator=torch.Generator().manual_seed(seed)).double()
    pieces = list(linear_head._exact_pieces(residual, 16, reach))
    assert [i for piece in pieces for i in range(n)[piece]] == list(range(n))
    sizes = [float(residual[:, piece].abs().sum(dim=1).max()) for piece in pieces]
    assert max(sizes) <= reach
    longer = (slice(piece.start, piece.stop + 16) for piece in pieces[:-1])
    assert all(float(residual[:, piece].abs().sum(dim=1).max()) > reach for piece in longer)


def test_the_largest_value_of_records_is_known() -> None:
    """It bounds what float32 adds up."""
    form, rng = Form(3, 12), torch.Generator().manual_seed(2)
    x = torch.randn(90, 36, generator=rng)
    none = Whitening.none(form, 1.0)
    units = unit_vectors(x, form, LONGEST)
    left, centre = torch.from_numpy(none.left), torch.from_numpy(none.centre)
    for limit, kind in ((127, torch.int8), (128, torch.int16), (2**15 - 1, torch.int16)):
        for records in (Rounded.of(x, True, limit), whitened(units, form, left, centre, 0.1, limit)):
            assert records.whole.dtype == kind
            assert records.bound == int(records.whole.int().abs().max()) < limit
    assert Rounded.of(torch.zeros(3, 2), False, 9).bound == 1


def test_sums_beyond_2_to_the_53_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """More records than a float64 can count the steps of: the sum is kept in whole numbers."""
    n, longest, limit = 70_000, 255, 2**31 - 1
    whole = torch.zeros(n, 3, dtype=torch.int16)
    whole[:, 0] = longest
    own = Chosen(monkeypatch, whole, torch.tensor([[limit, -1]]))
    head = LinearHead(2, 2, True)
    found = head.sums(
        head.weights(torch.zeros(head.size)), own.records, torch.zeros(n, dtype=torch.int64), 1.0, limit
    ).sums
    assert n * longest * limit > 2**53
    assert found.tolist()[0] == n * longest * limit
    assert found.tolist()[2] == -n * longest


@pytest.mark.parametrize("precision", ["high", "medium", "autocast"])
def test_float32_that_rounds_factors_is_not_used(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Own code may have set it for the whole process; sums are the same, from float64."""
    rng = torch.Generator().manual_seed(3)
    head, form = LinearHead(30, CLASSES, True), Form(3, 10)
    units = unit_vectors(torch.rand(50, 30, generator=rng), form, 1000)
    none = Whitening.none(form, 1.0)
    records = whitened(units, form, torch.from_numpy(none.left), torch.from_numpy(none.centre), 0.1, 200)
    y, weights = torch.randint(0, CLASSES, (50,), generator=rng), torch.randn(head.size, generator=rng)
    wanted = head.sums(head.weights(weights), records, y, 0.03, 30).sums
    monkeypatch.setattr(Digits, "joined", lambda *_: pytest.fail("float32 was multiplied"))
    torch.set_float32_matmul_precision("highest" if precision == "autocast" else precision)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            assert torch.equal(head.sums(head.weights(weights), records, y, 0.03, 30).sums, wanted)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_sums_are_those_of_python_integers() -> None:
    """The float32 path of ordinary records against products and outer products in Python's whole numbers."""
    rng = torch.Generator().manual_seed(4)
    form, head = Form(5, 8), LinearHead(40, CLASSES, True)
    units = unit_vectors(torch.rand(30, 40, generator=rng), form, 1000)
    left, centre = torch.randn(5, 5, generator=rng) * 2**14, torch.randn(5, generator=rng) * 2**12
    records = whitened(units, form, left, centre, 0.1, 200)
    y, weights = torch.randint(0, CLASSES, (30,), generator=rng), 3 * torch.randn(head.size, generator=rng)
    whole, w = records.whole.tolist(), [[int(v) for v in row] for row in head.weights(weights).whole.tolist()]
    products = [[sum(a * b for a, b in zip(u, row, strict=True)) for row in w] for u in whole]
    found, _, _ = residuals(records, torch.tensor(products, dtype=torch.float64), y, 0.03, 30)
    total = [[0] * 41 for _ in range(CLASSES)]
    for u, r in zip(whole, found.tolist(), strict=True):
        for k in range(CLASSES):
            total[k] = [t + int(r[k]) * v for t, v in zip(total[k], u, strict=True)]
    wanted = head.flat(torch.tensor(total))
    assert torch.equal(head.sums(head.weights(weights), records, y, 0.03, 30).sums, wanted)


# --- what it is for ---------------------------------------------------------------------------------------------------


def test_whitening_makes_maps_alike() -> None:
    """Maps of very different sizes: after whitening by their exact moments all have about the same, and the mean 0."""
    rng = torch.Generator().manual_seed(5)
    form, limit = Form(4, 9, 0, 0), 1000
    maps = torch.rand(400, 4, 9, generator=rng) * torch.tensor([1.0, 0.5, 0.3, 0.2])[:, None] + 0.1
    units = unit_vectors(maps.flatten(1), form, limit)
    exact = second_moments(units, form, limit).double().numpy() / limit**2
    found = Whitening.of(exact, form, limit, 1e-6)
    assert found.count == pytest.approx(400, rel=0.01)
    records = whitened(units, form, torch.from_numpy(found.left), torch.from_numpy(found.centre), 0.1, 256)
    x = records.whole[:, :-1].reshape(400, 4, 9).double().transpose(0, 1).reshape(4, -1)
    assert float((x.mean(dim=1).abs() / x.std(dim=1)).max()) < 0.1
    spread = np.linalg.eigvalsh((x @ x.T).numpy())
    assert spread[-1] / spread[0] < 1.2
    before = np.linalg.eigvalsh((maps.transpose(0, 1).flatten(1) @ maps.transpose(0, 1).flatten(1).T).numpy())
    assert before[-1] / before[0] > 10


def test_moments_too_short_for_a_mean_whiten_without_centring() -> None:
    form, limit = Form(2, 100, 0, 0), 9
    assert form.mean_factor(limit) == 0
    assert form.mean_factor(10) == 1
    units = unit_vectors(torch.rand(50, 200), form, limit)
    found = Whitening.of(second_moments(units, form, limit).double().numpy() / limit**2, form, limit, 0.01)
    assert not found.centre.any()
    assert np.isfinite(found.left).all()


def test_the_scored_head_sees_what_was_trained_on() -> None:
    rng = torch.Generator().manual_seed(6)
    form = Form(3, 12)
    units = unit_vectors(torch.rand(20, 36, generator=rng), form, 1400)
    left, centre = torch.randint(-(2**16), 2**16, (3, 3), generator=rng).float(), torch.tensor([5e5, -3e5, 0.0])
    records = whitened(units, form, left, centre, 0.1, 256)
    head = WhitenedHead(form, CLASSES, 0.1)
    with torch.no_grad():
        head.left.copy_(left * 2.0**-MATRIX_BITS)
        head.centre.copy_(centre * 2.0**-MATRIX_BITS)
        head.fc.weight.copy_(torch.randn(CLASSES, 36, generator=rng))
        scores = head(units)
    inputs = records.whole.double() / records.scale.unsqueeze(1)
    mine = inputs[:, :-1] @ head.fc.weight.detach().double().T
    assert torch.allclose(mine, scores.double(), atol=0.05)
    assert torch.allclose(inputs[:, -1], torch.full((20,), 0.1, dtype=torch.float64), atol=0.01)


@pytest.mark.parametrize("limit", [200, 6000, 2**17])
def test_clients_computed_side_by_side_have_the_sums_they_have_alone(limit: int) -> None:
    """As a GPU does it: more records than float32 adds up exactly at once, and residuals that it cannot add at all."""
    head, rng = LinearHead(6, 3, bias=True), torch.Generator().manual_seed(4)
    weights = head.weights(torch.randn(head.size, generator=rng))
    x = [torch.randn(n, 6, generator=rng) for n in (1, 700, 33, 33)]
    y = [torch.randint(3, (len(own),), generator=rng) for own in x]
    records = [Rounded.of(own, True, 256) for own in x]
    alone = [head.sums(weights, own, labels, 0.03, limit) for own, labels in zip(records, y, strict=True)]
    found = head.sums_apart(weights, records, y, 0.03, limit)
    for sums, loss, clipped, other in zip(found.sums, found.loss, found.clipped, alone, strict=True):
        assert torch.equal(sums, other.sums)
        assert loss == pytest.approx(other.loss) and clipped == other.clipped
