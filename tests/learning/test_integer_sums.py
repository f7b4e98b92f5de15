"""What a record adds to a sum: whole numbers, a function of that record and the plan alone, within the clip."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mechanisms.exact import probability
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning import linear_head, models
from sordino.learning.linear_head import LinearHead, rounded_within, split_clip
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import (
    PrivateTraining,
    Records,
    coarse_sensitivity,
    coarsened,
    grid_for,
    integer_noise,
    integer_sums,
    least_noise,
)
from sordino.learning.stacked_model import LOOP, StackedModel
from sordino.learning.tasks import MOST_CLASSES
from sordino.mechanisms.noise import DiscreteGaussian, Slack, discrete_gaussian
from sordino.methods.silo_dp import RECORDS
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import Adjacency, Infinite, PoissonGaussian
from sordino.randomness import Keystream

CPU = torch.device("cpu")


def training(**changes: object) -> PrivateTraining:
    fields: dict[str, object] = {
        "optimizer": SGD(0.1), "clip": 1.0, "noise_multiplier": 1.0, "sampling_rate": 1.0, "expected_batch": 10.0,
        "steps": 1, "loss": models.cross_entropy,
    }  # fmt: skip
    return PrivateTraining(**{**fields, **changes})  # type: ignore[arg-type]


def sums(model: nn.Module, parameters: Tensor, x: Tensor, y: Tensor, given: PrivateTraining) -> Tensor:
    stacked = StackedModel(model, given.loss, LOOP, CPU)
    records = Records(x, y, np.array([0]), np.array([len(x)]), np.array([0]))
    return integer_sums(stacked, given, parameters[None], records, Keystream.simulation(1, [0], 1), 0).sums[0]


def cnn() -> nn.Module:
    return models.build("cnn-mnist", input_shape=(1, 28, 28), classes=10)


class Own(nn.Module):
    """A network as a user writes one: two paths that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.out = nn.Linear(784, 12), nn.Linear(784, 4), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        found: Tensor = self.out(torch.cat([torch.relu(self.wide(flat)), torch.tanh(self.narrow(flat))], dim=1))
        return found


def logistic() -> nn.Module:
    return models.build("logistic", input_shape=(1, 28, 28), classes=10)


def hostile(size: int, classes: int = 10) -> dict[str, Tensor]:
    """Parameters under which the last bits of a score decide much: near-equal columns, huge and tiny scales."""
    rng = torch.Generator().manual_seed(3)
    column = torch.randn(size, generator=rng)
    return {
        "ordinary": 0.05 * column,
        "equal to 1e-7": torch.ones(size) + 1e-7 * column,
        "scale 1e8": 1e8 * (torch.ones(size) + 1e-7 * column),
        "scale 1e4": 1e4 * column,
        "not finite": torch.where(column > 1, math.inf, column),
    }


@pytest.mark.parametrize(
    ("build", "size", "count"),
    [(logistic, 7850, 601), (cnn, 21840, 24), (Own, 12_730, 24)],
    ids=["linear", "cnn", "own"],
)
@pytest.mark.parametrize("kind", hostile(1))
def test_no_record_changes_what_another_adds(build: Callable[[], nn.Module], size: int, count: int, kind: str) -> None:
    """The sum of all is exactly the sum of each alone: in any order, with any left out."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(count, 1, 28, 28, generator=rng) * torch.logspace(-3, 3, count)[:, None, None, None]
    y = torch.randint(0, 10, (count,), generator=rng)
    model, parameters, given = build(), hostile(size)[kind], training()
    everyone = sums(model, parameters, x, y, given)
    order = torch.randperm(count, generator=rng)
    assert torch.equal(everyone, sums(model, parameters, x[order], y[order], given))
    for i in (0, 1, count // 2, count - 1):
        kept = torch.arange(count) != i
        without = sums(model, parameters, x[kept], y[kept], given)
        alone = sums(model, parameters, x[i : i + 1], y[i : i + 1], given)
        assert torch.equal(everyone - without, alone)
        assert sum(int(v) ** 2 for v in alone) <= given.grid(size).clip ** 2


def test_a_records_part_does_not_depend_on_the_number_of_threads() -> None:
    """Where two threads compute, gradients of this network have other last bits."""
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 1, 28, 28, generator=rng), torch.randint(0, 10, (12,), generator=rng)
    parameters, fine = 0.3 * torch.randn(21_840, generator=rng), training(resolution=24, noise_multiplier=2.0)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(sums(cnn(), parameters, x, y, fine))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@settings(max_examples=60, deadline=None)
@given(
    scale=st.floats(-30, 30),
    weight=st.floats(-6, 6),
    clip=st.floats(1e-3, 1e3),
    steps=st.integers(8, 2**23),
    features=st.integers(1, 40),
    bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_records_part_of_a_linear_sum_is_whole_and_within_the_clip(
    scale: float, weight: float, clip: float, steps: int, features: int, bias: bool, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    head = LinearHead(features, 4, bias)
    x = torch.randn(5, features, generator=rng) * 10.0**scale
    y = torch.randint(0, 4, (5,), generator=rng)
    parameters = torch.randn(head.size, generator=rng) * 10.0**weight
    for i in range(5):
        row = slice(i, i + 1)
        found = head.sums(
            head.weights(parameters), head.rounded(x[row], steps), y[row], clip, split_clip(steps)[1]
        ).sums
        assert sum(int(v) ** 2 for v in found) <= steps**2


def test_a_linear_sum_is_that_of_clipped_gradients() -> None:
    """The direction and the size of real gradients, to what the grid resolves."""
    rng = torch.Generator().manual_seed(7)
    x, y = torch.randn(50, 20, generator=rng), torch.randint(0, 5, (50,), generator=rng)
    weight = torch.randn(5, 21, generator=rng)
    head = LinearHead(20, 5, True)
    parameters = torch.cat([weight[:, :20].reshape(-1), weight[:, 20]])
    steps = 2**20
    found = head.sums(head.weights(parameters), head.rounded(x, steps), y, 2.0, split_clip(steps)[1]).sums.double() * (
        2.0 / steps
    )
    long = torch.cat([x, torch.ones(50, 1)], 1).double()
    residual = torch.softmax(long @ weight.double().T, 1) - nn.functional.one_hot(y, 5)
    rows = residual[:, :, None] * long[:, None, :]
    factor = (2.0 / rows.flatten(1).norm(dim=1)).clamp(max=1)
    wanted = head.flat((rows * factor[:, None, None]).sum(0))
    assert float((found - wanted).norm() / wanted.norm()) < 0.02
    assert split_clip(steps) == (4096, 256)
    assert split_clip(512) == (64, 8)


@settings(max_examples=50, deadline=None)
@given(limit=st.integers(1, 2000), width=st.integers(1, 60), seed=st.integers(0, 2**31), longer=st.floats(0.1, 5))
def test_rounding_never_leaves_the_ball_and_rows_do_not_meet(limit: int, width: int, seed: int, longer: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(6, width, generator=rng, dtype=torch.float64)
    rows *= longer * limit / rows.norm(dim=1, keepdim=True)
    together, _ = rounded_within(rows.clone(), limit)
    assert int((together * together).sum(dim=1).max()) <= limit * limit
    for i in range(6):
        assert torch.equal(rounded_within(rows[i : i + 1].clone(), limit)[0], together[i : i + 1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
def test_a_row_that_is_not_a_number_is_zero_and_leaves_the_others_alone(bad: float) -> None:
    rows = torch.tensor([[3.0, 4.0], [bad, 1.0], [30.0, 40.0]], dtype=torch.float64)
    whole, scale = rounded_within(rows.clone(), 5)
    assert whole[0].tolist() == [3, 4]
    assert (whole * whole).sum(dim=1).le(25).all()
    assert whole.isfinite().all()
    assert scale.isfinite().all()


@pytest.mark.parametrize("clip", [1e-30, 1e30])
def test_the_farthest_clips_keep_records_within_the_grid(clip: float) -> None:
    x = torch.tensor([[[[3e38, -3e38]]], [[[1e-38, 0.0]]], [[[0.0, 0.0]]]])
    for name, options in (("logistic", {}), ("mlp", {"hidden": [3]})):
        model = models.build(name, input_shape=(1, 1, 2), classes=3, **options)
        parameters = models.parameter_layout(model).flatten(models.initial_parameters(model, 0))
        for i in range(3):
            found = sums(model, parameters, x[i : i + 1], torch.tensor([1]), training(clip=clip))
            assert sum(int(v) ** 2 for v in found) <= training().grid(len(parameters)).clip ** 2


def test_own_networks_of_one_dense_layer_are_linear_heads_and_others_are_not() -> None:
    loss = models.cross_entropy
    assert linear_head.of(nn.Sequential(nn.Flatten(), nn.Linear(6, 3, bias=False)), loss) == LinearHead(6, 3, False)
    assert linear_head.of(nn.Linear(6, 3), loss) == LinearHead(6, 3, True)
    assert linear_head.of(logistic(), loss) == LinearHead(784, 10, True)
    assert linear_head.of(logistic(), models.one_versus_rest) is None
    assert linear_head.of(nn.Sequential(nn.Linear(6, 3), nn.ReLU()), loss) is None
    assert linear_head.of(cnn(), loss) is None
    hooked = nn.Linear(6, 3)
    hooked.register_forward_hook(lambda module, given, scores: 3 * scores)
    assert linear_head.of(hooked, loss) is None


def test_models_so_large_that_sums_would_not_be_exact_are_no_linear_heads() -> None:
    """The longest record has `split_clip` steps, a weight 2^30: by Cauchy and Schwarz no partial sum exceeds 2^53."""
    longest = max(split_clip(clip)[0] for bits in range(4, 24) for clip in (1 << bits, (1 << bits) - 1))
    assert (longest * 2**30) ** 2 * linear_head.MOST_FEATURES <= 2**106
    assert MOST_CLASSES * int(linear_head.exponentials(CPU)[0]) <= 2**53
    loss = models.cross_entropy
    with torch.device("meta"):
        assert linear_head.of(nn.Linear(2**16 - 1, 2), loss) is not None
        assert linear_head.of(nn.Linear(2**16, 2), loss) is None
        assert linear_head.of(nn.Linear(2, 2**13), loss) is not None
        assert linear_head.of(nn.Linear(2, 2**13 + 1), loss) is None


# --- coarsening -------------------------------------------------------------------------------------------------------


def test_a_coarsened_sum_is_a_stochastic_rounding_and_neighbours_share_their_dither() -> None:
    """Every dither of three bits in turn: E[coarse] is the sum over 8, and one record moves it by its own rounding."""

    class Dither:
        clients = 1

        def __init__(self, value: int) -> None:
            self.value = value

        def words(self, rows: object, purpose: int, tensor: int, first: int, count: int) -> np.ndarray:
            return np.full((1, count), self.value << 29, np.uint32)

    total, record = torch.tensor([[-13, 0, 5, 1000]]), torch.tensor([[3, -7, 8, -1]])
    rows = np.array([0])
    each = [coarsened(total, 3, rows, Dither(u), 0) for u in range(8)]
    assert torch.equal(torch.stack(each).double().mean(0), total.double() / 8)
    moved = [coarsened(total + record, 3, rows, Dither(u), 0) - each[u] for u in range(8)]
    for part, value in zip(torch.stack(moved)[:, 0].T.tolist(), record[0].tolist(), strict=True):
        assert set(part) <= {value // 8, -(-value // 8)}
        assert Fraction(sum(part), 8) == Fraction(value, 8)


@pytest.mark.parametrize("risk", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("values", [1, 2, 3])
def test_the_coarse_sensitivity_holds_but_for_its_risk(values: int, risk: float) -> None:
    """By enumeration: all dithers of every whole vector of norm at most 6, in steps of a quarter."""
    worst = 0.0
    for vector in itertools.product(range(0, 25, 3), repeat=values):
        clip = math.sqrt(sum(v * v for v in vector)) / 4
        bound = coarse_sensitivity(clip, values, risk) ** 2
        beyond = Fraction(0)
        for up in itertools.product((0, 1), repeat=values):
            chance = Fraction(1)
            for v, u in zip(vector, up, strict=True):
                chance *= Fraction(v % 4, 4) if u else 1 - Fraction(v % 4, 4)
            if sum((v // 4 + u) ** 2 for v, u in zip(vector, up, strict=True)) > bound:
                beyond += chance
        worst = max(worst, float(beyond))
    assert worst <= risk


def test_the_clip_of_a_coarse_grid_keeps_the_noise_that_was_asked_for() -> None:
    for coarsening, values in ((4, 100), (9, 30_000), (8, 7850)):
        grid = grid_for(2.0, values, shares=5, resolution=12, coarsening=coarsening)
        assert grid.sensitivity == coarse_sensitivity(grid.clip / 2**coarsening, values)
        proven = grid.noise.slack(5).sigma / grid.sensitivity
        assert 2.0 <= proven < 2.02
    with pytest.raises(InvalidInput, match="resolution"):
        grid_for(2.0, 100, resolution=20, coarsening=10)
    with pytest.raises(InvalidInput, match="resolution"):
        grid_for(50.0, 10**6, resolution=8, coarsening=8)


# --- what is stated ---------------------------------------------------------------------------------------------------


def test_the_guarantee_counts_the_sampler_and_the_coarsening() -> None:
    own = training(noise_multiplier=3.0, steps=4, shares=9, resolution=14, coarsening=6)
    alone, together = own.guarantee(1000).loss, own.shared_guarantee(1000).loss
    assert isinstance(alone, PoissonGaussian)
    assert isinstance(together, PoissonGaussian)
    assert 3.0 <= together.sigma < 3.001
    assert together.sigma / alone.sigma == pytest.approx(3.0, rel=1e-6)
    assert together.tau >= 8e-9  # of four coarsened sums, for an exchange at twice the risk
    assert together.eta > alone.eta > 0
    assert own.shared_guarantee(1000).adversary.parties == 9


def test_noise_below_a_sixteenth_of_a_record_is_stated_as_nothing() -> None:
    assert isinstance(training(noise_multiplier=0.06).guarantee(100).loss, Infinite)
    assert isinstance(training(noise_multiplier=0.063).guarantee(100).loss, PoissonGaussian)
    crowd = training(noise_multiplier=1.0, shares=300)
    assert isinstance(crowd.guarantee(100).loss, Infinite)
    together = crowd.shared_guarantee(100).loss
    assert isinstance(together, PoissonGaussian)
    assert 1.0 <= together.sigma < 1.001


def test_an_exchange_moves_a_sum_twice_as_far_and_needs_twice_the_noise_to_be_stated() -> None:
    """At 1/12 the tables miss sums of the other record altogether: with them apart no epsilon would be true."""
    for multiplier, proven in ((1 / 12, False), (0.1249, False), (0.125, True), (1.0, True)):
        own = training(noise_multiplier=multiplier, resolution=9)
        added, exchanged = (own.guarantee(1, adjacency) for adjacency in RECORDS)
        assert isinstance(added.loss, PoissonGaussian)
        assert isinstance(exchanged.loss, PoissonGaussian) == proven
        grid = own.grid(1)
        impossible = sum(
            probability(grid.noise, k - grid.clip)
            for k in range(-grid.noise.reach, grid.noise.reach + grid.clip + 1)
            if probability(grid.noise, k + grid.clip) == 0
        )
        if proven:
            assert exchanged.loss == added.loss
            assert impossible < exchanged.loss.tau  # type: ignore[union-attr]
    crowd = training(noise_multiplier=1.0, shares=100)
    assert isinstance(crowd.guarantee(100).loss, PoissonGaussian)
    assert isinstance(crowd.guarantee(100, Adjacency.RECORD_REPLACE).loss, Infinite)
    assert isinstance(crowd.shared_guarantee(100, Adjacency.RECORD_REPLACE).loss, PoissonGaussian)


@pytest.mark.parametrize(("multiplier", "shares", "resolution"), [(0.07, 1, 20), (0.1, 1, 24), (1.0, 10_000, 20)])
def test_the_slack_is_that_of_the_table_that_is_drawn(multiplier: float, shares: int, resolution: int) -> None:
    own = training(noise_multiplier=multiplier, shares=shares, resolution=resolution, steps=3)
    drawn = own.grid(1000).noise
    assert drawn.bits < resolution
    loss = own.shared_guarantee(1000).loss
    assert isinstance(loss, PoissonGaussian)
    assert loss.eta == 3000 * drawn.slack(shares).eta
    assert loss.tau == pytest.approx(3000 * drawn.slack(shares).tau, rel=1e-12)


def test_noise_is_sought_until_the_slack_that_was_assumed_covers_the_table_that_is_drawn() -> None:
    """A solver that asks for the noise 1/4 at little slack and 1/2 at more, of which fewer bits are drawn than 12."""
    asked: list[Slack] = []

    def least(slack: Slack) -> float:
        asked.append(slack)
        return 0.25 if slack.eta < discrete_gaussian(5).slack().eta else 0.5

    def drawn(multiplier: float) -> DiscreteGaussian:
        return discrete_gaussian(5 if multiplier < 0.5 else 6)

    assert least_noise(least, drawn, 12) == 0.5
    assert [slack.eta for slack in asked] == [discrete_gaussian(bits).slack().eta for bits in (12, 5)]


@pytest.mark.parametrize(("epsilon", "values", "shares"), [(2.0, 100, 1), (90.0, 10**6, 4), (2.0, 1000, 10_000)])
def test_noise_sought_for_a_target_keeps_it_with_the_slack_of_its_own_table(
    epsilon: float, values: int, shares: int
) -> None:
    own = training(shares=shares).with_noise_for(epsilon, 1e-6, 3, values)
    loss = own.shared_guarantee(values).loss
    assert not isinstance(loss, Infinite)
    assert compose([loss] * 3, adjacency=Adjacency.RECORD_ADD_REMOVE).epsilon(1e-6) <= epsilon


@pytest.mark.parametrize("multiplier", [1e-9, 1e-3, 0.1, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("shares", [1, 7, 500])
def test_there_is_as_much_noise_as_was_asked_for_and_hardly_more(multiplier: float, shares: int) -> None:
    grid = grid_for(multiplier, 1000, shares=shares)
    found = math.sqrt(shares) * grid.noise.sigma / grid.clip
    assert multiplier <= found <= max(1.01 * multiplier, 1e-5)


def test_noise_is_in_every_coordinate_and_whole() -> None:
    """20,000 draws of 50 coordinates: each variance within 7 of its standard errors of 4^20 (false alarm 1e-10)."""
    noise = integer_noise(training(), np.arange(20_000), Keystream.simulation(1, np.arange(20_000), 1), 0, 50)
    assert noise.dtype == np.int64
    shares = noise.astype(np.float64).var(axis=0) / 4.0**20
    assert np.abs(shares - 1).max() < 7 * math.sqrt(2 / 20_000)
