"""The noise that is predicted is the noise that comes, and the sentences say what the figures mean."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.mechanisms import (
    Box,
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
    Sphere,
    TwoPoint,
)
from sordino.privacy.accountant import equal_bits_epsilon
from sordino.privacy.guarantee import SERVER, Adjacency, Budget, Guarantee, Infinite, PoissonGaussian, Release
from sordino.randomness import Keystream
from sordino.report.expectations import LEVELS, sentences, verdict
from sordino.report.words import upper
from sordino.runs.preflight import ClientGroup, Facts, Preflight, groups_of, of_federation
from sordino.runs.senders import MechanismSender, PrivateSilo

BOX = Box(0.0, 0.1)


def two_point(epsilon=1.0, box=BOX):
    return MechanismSender(TwoPoint(epsilon, box))


def ahead(sender=None, clients=20, *, budget=None, values=650, rounds=10, asked=None, **more):
    group = ClientGroup(tuple(range(clients)), sender or two_point(), budget)
    return Preflight([group], values, rounds, asked, **more)


def silo(gains=(0.5,) * 20):
    loss = PoissonGaussian(0.1, 1.5, 20)
    guarantee = Guarantee(SERVER, Adjacency.RECORD_ADD_REMOVE, loss, "DP-SGD")
    return PrivateSilo(lambda _: guarantee, 1.5, clip=2.0, expected_batch=10.0, gains=gains)


# --- noise ----------------------------------------------------------------------------------------------------------


def test_the_noise_of_two_points_is_the_papers_formula():
    k = (math.e + 1) / (math.e - 1)
    assert ahead().noise == pytest.approx(0.1 * k * math.sqrt(650 / 20), rel=1e-6)


@pytest.mark.parametrize(
    "mechanism",
    [
        TwoPoint(1.0, BOX),
        Laplace(1.0, BOX),
        Laplace(4.0, L1Ball(1.0)),
        Piecewise(2.0, BOX),
        Gaussian(0.3, BOX),
        Gaussian(0.3, L2Ball(1.0)),
        PrivUnitG(4.0),
        Exponential(1e-9, IntegerRange(0.1, 10)),
        RandomizedSign.response(1.0, BOX),
    ],
    ids=lambda m: f"{m.name}-{type(m.domain).__name__}",
)
def test_the_average_of_simulated_reports_is_as_noisy_as_predicted(mechanism):
    """40 averages over 25 clients: the norm of 200 values strays by a few percent; 10 % is beyond 5 deviations."""
    randomness = Keystream.simulation(7, np.arange(1000), 1)
    estimates = mechanism.estimate(mechanism.randomize(np.zeros((1000, 200), np.float32), randomness).output)
    averages = np.asarray(estimates, np.float64).reshape(40, 25, 200).mean(axis=1)
    measured = math.sqrt(np.square(averages).sum(axis=1).mean())
    assert ahead(MechanismSender(mechanism), 25, values=200).noise == pytest.approx(measured, rel=0.1)


def test_ranges_of_their_own_for_each_layer_add_up():
    box = Box.per_tensor([600, 50], [0.0, 1.0], [0.1, 0.5])
    k = (math.e + 1) / (math.e - 1)
    expected = k * math.sqrt((600 * 0.1**2 + 50 * 0.5**2) / 20)
    assert ahead(two_point(1.0, box)).noise == pytest.approx(expected, rel=1e-6)


def test_clients_of_several_strengths_add_up_by_their_numbers():
    one, four = two_point(1.0), two_point(4.0)
    variances = {s: s.noise(650) for s in (one, four)}
    groups = groups_of([one, four], [0, 1, 1, 1])
    found = Preflight(groups, values=650, rounds=1)
    assert found.noise == pytest.approx(math.sqrt((variances[one] + 3 * variances[four]) / 4 / 4))


def test_weights_by_inverse_variance_give_the_least_noise():
    """{1, 1, 10}: 1 / (1 + 1 + 0.01), which is less than the plain mean's 102 / 9."""
    box = L2Ball(1.0)
    quiet, loud = (MechanismSender(Gaussian(sigma, box)) for sigma in (1.0, 10.0))
    plain = Preflight(groups_of([quiet, loud], [0, 0, 1]), values=100, rounds=1)
    weighed = Preflight(groups_of([quiet, loud], [0, 0, 1], weights=[1.0, 0.01]), values=100, rounds=1)
    assert plain.noise == pytest.approx(math.sqrt(100 * 102 / 9), rel=1e-4)
    assert weighed.noise == pytest.approx(math.sqrt(100 / 2.01), rel=1e-4)


def test_noise_falls_with_the_root_of_the_clients_asked():
    assert ahead(clients=20, asked=5).noise == pytest.approx(2 * ahead(clients=20).noise)


def test_a_silos_noise_is_that_of_its_steps():
    each = 0.5 * 1.5 * 2.0 / 10.0  # lr * multiplier * clip / batch
    assert ahead(silo(), 5).noise == pytest.approx(each * math.sqrt(20 * 650 / 5))


@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.0, False), (0.8, False), (0.8, True)], ids=["plain", "momentum", "nesterov"]
)
def test_a_silo_that_trains_is_as_noisy_as_predicted(momentum, nesterov):
    """Noise so loud that nothing else shows: the norm of 20 updates of 130 values strays by 1.4 %."""
    torch = pytest.importorskip("torch")
    from sordino.learning.cohort import ClientData, CohortTrainer
    from sordino.learning.optimizers import SGD
    from sordino.learning.private_sgd import PrivateTraining

    optimizer = SGD(0.1, momentum=momentum, nesterov=nesterov)
    training = PrivateTraining(
        optimizer, clip=1.0, noise_multiplier=50.0, sampling_rate=0.5, expected_batch=4.0, steps=6
    )
    clients = [ClientData(torch.zeros(8, 12), torch.zeros(8, dtype=torch.int64))] * 20
    randomness = Keystream.simulation(3, np.arange(20), 1)
    moved = CohortTrainer(torch.nn.Linear(12, 10)).train(torch.zeros(130), clients, training, randomness).parameters
    measured = math.sqrt(float(moved.double().square().sum(dim=1).mean()))
    assert math.sqrt(PrivateSilo.of(training).noise(130)) == pytest.approx(measured, rel=0.07)


def test_an_optimiser_that_rescales_noise_is_not_guessed_at():
    found = ahead(silo(gains=()), 5, update_norm=1.0)
    assert found.noise is found.ratio is verdict(found) is None
    assert "not known in advance" in sentences(found)[0]


# --- updates, and what is left of them --------------------------------------------------------------------------------


def test_clipping_in_a_box_shortens_the_update():
    norm = math.sqrt(650)  # every value 1, the box reaches 0.1
    assert ahead(update_norm=norm).update == pytest.approx(0.1 * norm, rel=1e-6)
    assert ahead(update_norm=1.0).update == pytest.approx(1.0, rel=1e-6)


def test_balls_shorten_and_spheres_rescale_the_update():
    ball, sphere = Gaussian(0.5, L2Ball(0.4)), PrivUnitG(4.0, Sphere(0.4))
    assert ahead(MechanismSender(ball), update_norm=2.0).update == pytest.approx(0.4, rel=1e-2)
    assert ahead(MechanismSender(ball), update_norm=0.2).update == pytest.approx(0.2, rel=1e-2)
    assert ahead(MechanismSender(sphere), update_norm=0.1).update == pytest.approx(0.4, rel=1e-6)


def test_weights_are_compared_by_how_far_they_move_from_the_centre():
    box = Box(5.0, 0.1)
    assert ahead(two_point(1.0, box), update_norm=1.0).update == pytest.approx(1.0, rel=1e-4)


def test_the_noise_is_judged_beside_the_update():
    found = ahead(update_norm=0.02)
    assert found.ratio == pytest.approx(found.noise / 0.02, rel=1e-4)
    assert found.level == pytest.approx(found.ratio / math.sqrt(10))
    assert sentences(found)[0].startswith("20 clients a round, 650 values: over all 10 rounds the noise is 20 times")
    assert sentences(found)[0].endswith(f"{LEVELS[-1][1]}.")


@pytest.mark.parametrize(("level", "words"), LEVELS)
def test_each_level_of_noise_has_its_words(level, words):
    loud = ahead(clients=1, update_norm=0.1).level
    clients = int((loud / (1.05 * level or 0.9 * LEVELS[1][0])) ** 2)
    assert verdict(ahead(clients=clients, update_norm=0.1)) == words


@given(st.lists(st.tuples(st.floats(0.05, 2.0), st.integers(1, 500), st.integers(2, 400)), min_size=2, max_size=6))
@settings(max_examples=40, deadline=None)
def test_the_verdict_is_a_falling_function_of_the_number_that_is_printed(cases):
    """Whatever the update, the rounds and the clients: the same number has the same verdict, a larger none better."""
    worse = {words: k for k, (_, words) in enumerate(LEVELS)}
    said = []
    for norm, rounds, clients in cases:
        found = ahead(clients=clients, rounds=rounds, update_norm=norm)
        first = sentences(found)[0]
        (shown,) = re.findall(r"the noise is ([\d.,e+-]+) times the updates", first)
        assert first.endswith(f"{verdict(found)}.")
        said.append((float(shown.replace(",", "")), worse[verdict(found)]))
    assert all(a[1] <= b[1] for a in said for b in said if a[0] <= b[0])


def test_the_borders_are_those_that_the_recorded_runs_teach():
    """And the share that runs keep falls with the level: the function that is fitted is far from flat."""
    noise = pytest.importorskip("benchmarks.noise")
    points = json.loads(noise.RESULTS.read_text())
    learnt = noise.learn(points)
    assert json.loads(noise.TABLE.read_text()) == learnt
    assert tuple(least for least, _ in LEVELS) == (0.0, *learnt["borders"])
    assert learnt["experiments"] > 50
    kept = [share for _, share in noise.levels(points)]
    fitted = noise.falling(kept)
    assert fitted == sorted(fitted, reverse=True)
    mean = sum(kept) / len(kept)
    unexplained = sum((a - b) ** 2 for a, b in zip(kept, fitted, strict=True)) / sum((a - mean) ** 2 for a in kept)
    assert unexplained < 0.2


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_the_fit_is_the_nearest_falling_sequence(kept):
    noise = pytest.importorskip("benchmarks.noise")
    fitted = noise.falling(kept)
    assert len(fitted) == len(kept) and fitted == sorted(fitted, reverse=True)
    assert sum(fitted) == pytest.approx(sum(kept))
    for other in ([sum(kept) / len(kept)] * len(kept), sorted(kept, reverse=True)):
        assert _distance(fitted, kept) <= _distance(other, kept) + 1e-9


def _distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def test_a_level_that_is_not_known_has_no_verdict():
    """An even update below half a step of the noise's grid is rounded away: what passes is not known in advance."""
    found = ahead(MechanismSender(Laplace(3.0, Box(0.0, 9.0))), update_norm=1e-4)
    assert found.ratio == math.inf and found.level is None and verdict(found) is None
    assert "lost in its grid" in sentences(found)[0]


def test_it_says_how_many_clients_would_make_training_barely_notice_the_noise():
    found = ahead(update_norm=0.1)
    wanted = int(sentences(found)[1].split(": with ")[1].split(" a round")[0].replace(",", ""))
    assert ahead(clients=wanted, update_norm=0.1).level == pytest.approx(LEVELS[1][0], rel=1e-3)


def test_without_an_update_it_only_says_how_much_noise_there_is():
    found = ahead()
    assert found.ratio is found.level is verdict(found) is None
    assert sentences(found)[0] == "20 clients a round, 650 values: the noise of the average has an L2 norm of 1.23."


def test_no_noise_is_called_none():
    found = ahead(MechanismSender(NoPrivacy()), update_norm=1.0)
    assert sentences(found)[0] == "20 clients a round, 650 values: no noise is added."
    assert "nothing is proven (no noise is added" in sentences(found)[1]


@pytest.mark.parametrize(
    ("sender", "sizes", "words"),
    [
        (two_point(), {"largest_value": 0.5}, "Values lie up to 0.5 from the centre of their range, which reaches 0.1"),
        (two_point(), {"largest_value": 0.002}, "50 times the largest value (0.002)"),
        (two_point(), {"largest_value": 0.08}, "it fits"),
        (MechanismSender(Gaussian(1.0, L2Ball(1.0))), {"update_norm": 4.0}, "shortened to the radius 1"),
        (
            MechanismSender(Gaussian(1.0, L2Ball(1.0))),
            {"update_norm": 0.05},
            "20 times the size of an update",
        ),
        (MechanismSender(Laplace(1.0, L1Ball(1.0))), {"update_norm": 1.0}, "L1 norm about 25.5"),
        (MechanismSender(PrivUnitG(4.0)), {"update_norm": 0.3}, "rescaled to the norm 1: its own size (here 0.3)"),
        (
            MechanismSender(Exponential(1e-9, IntegerRange(0.1, 10))),
            {"largest_value": 0.2},
            "will be clipped",
        ),
    ],
    ids=["clipped", "wide", "fits", "shortened", "large-ball", "l1", "sphere", "integers"],
)
def test_ranges_are_held_against_the_sizes_of_values(sender, sizes, words):
    assert any(words in sentence for sentence in sentences(ahead(sender, **sizes)))


# --- budgets --------------------------------------------------------------------------------------------------------


def test_budgets_that_run_out_are_announced_with_the_round():
    """Each upload costs 650: budgets of 2,000 and 7,000 admit 3 and 10 of them."""
    budgets = [Budget(2000.0)] * 5 + [Budget(7000.0)] * 15
    found = Preflight(groups_of([two_point()], [0] * 20, budgets=budgets), values=650, rounds=10)
    assert [(o.clients, o.reports, o.lasts) for o in found.outlooks] == [
        (tuple(range(5)), 3, False),
        (tuple(range(5, 20)), 10, True),
    ]
    assert sentences(found)[1] == (
        "The budget of clients 0-4 (epsilon 2,000, proven, against server, adjacency client, delta 0) is spent after "
        "round 3 of 10; they will decline from round 4."
    )
    assert sentences(found)[2] == (
        "The budget of clients 5-19 (epsilon 7,000, proven, against server, adjacency client, delta 0) lasts for all "
        "10 rounds."
    )


def test_a_budget_below_one_report_is_announced():
    words = sentences(ahead(clients=1, budget=Budget(10.0)))[1]
    assert words.startswith("The budget of the only client")
    assert words.endswith("does not cover a single report: it will decline from round 1.")


def test_clients_who_are_not_asked_every_time_spend_less():
    found = ahead(clients=20, asked=4, budget=Budget(2000.0), rounds=20)
    assert found.outlooks[0].expected == pytest.approx(4.0)
    assert "admits 3 reports, and they will be asked for about 4 in 20 rounds" in sentences(found)[1]
    assert ahead(clients=20, asked=4, budget=Budget(2000.0), rounds=15).outlooks[0].lasts


def test_many_different_budgets_are_summed_up():
    budgets = [Budget(700.0 * k) for k in range(1, 11)]
    found = Preflight(groups_of([two_point()], [0] * 10, budgets=budgets), values=650, rounds=6)
    assert sentences(found)[1] == (
        "The budgets of 5 of 10 clients last for all 6 rounds; the others run out after 1 to 5 reports each, and these "
        "clients then decline."
    )


def test_what_the_owner_lets_go_unproven_does_not_count():
    upload = two_point().releases(650)[0]
    why = Guarantee(SERVER, Adjacency.CLIENT, Infinite("sent as it is"), "none")
    count = Release("count", "planned", "sample count", (why,))
    group = ClientGroup((0,), two_point(), Budget(2000.0), schedule=((upload, count),))
    assert Preflight([group], values=650, rounds=10).outlooks[0].reports == 0
    consenting = Preflight([group], values=650, rounds=10, facts=Facts(allow_unproven=("sample count", "model update")))
    assert consenting.outlooks[0].reports == 3


# --- wired recipes --------------------------------------------------------------------------------------------------


def test_a_wired_recipe_is_looked_at_as_it_will_run():
    pytest.importorskip("torch")
    from sordino.recipe import Recipe
    from sordino.runs.federation import wire

    settings = ["clients.epsilon=2", "clients.budget.limit=4000", "rounds.count=5", "split.clients=8"]
    federation = wire(Recipe.load("two-point-digits", settings))
    found = of_federation(federation, update_norm=0.5)
    assert (found.clients, found.asked, found.values, found.rounds) == (8, 8, 650, 5)
    mechanism = federation.upload.mechanisms[0]
    assert found.noise == pytest.approx(math.sqrt(mechanism.variance(np.zeros(650)).sum() / 8))
    assert found.outlooks[0].reports == 3  # each upload costs 1,300
    assert found.losses[0].what == "model update"


def test_a_wired_silo_is_looked_at_as_it_will_run():
    pytest.importorskip("torch")
    from sordino.recipe import Recipe
    from sordino.runs.federation import wire

    federation = wire(Recipe.load("quickstart"))
    found = of_federation(federation)
    assert found.losses[0].guarantee.adjacency is Adjacency.RECORD_ADD_REMOVE
    assert found.losses[0].total <= federation.recipe.method.target.epsilon
    assert found.noise > 0


def test_rounds_of_a_silo_record_the_noise_that_was_foreseen_and_the_clipping_of_gradients():
    pytest.importorskip("torch")
    from sordino.recipe import Recipe
    from sordino.runs.federation import wire
    from sordino.runs.simulation import run

    def seen(*settings):
        recipe = Recipe.load("quickstart", ["rounds.count=2", *settings])
        foreseen = of_federation(wire(recipe)).noise
        records = [record.simulation for record in run(recipe, workers=1).rounds]
        assert [record.noise_norm for record in records] == pytest.approx([foreseen] * 2)
        return records

    assert all(record.clipped > 0.9 for record in seen())  # at first every gradient is longer than 1
    assert all(record.clipped == 0 for record in seen("method.clip=100.0"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.buffers=local"], "scored with those of the test examples, 1,000 at a time"),
        (["model.buffers=release"], "are released with the noise of all values, 0.02"),
        (["model.buffers=release", "method.mechanism.name=none", "method.range=", "clients.epsilon="], None),
    ],
)
def test_what_becomes_of_batch_norm_is_said(settings, said):
    pytest.importorskip("torch")
    from sordino.recipe import Recipe
    from sordino.runs.federation import wire

    federation = wire(Recipe.load("two-point-digits", ["model.name=tests.engine.tiny:Normed", *settings]))
    found = [words for words in sentences(of_federation(federation)) if "batch norm" in words]
    assert len(found) == (said is not None) and (said is None or said in found[0])
    assert not any("batch norm" in words for words in sentences(of_federation(wire(Recipe.load("two-point-digits")))))


# --- rounds that differ ---------------------------------------------------------------------------------------------


def wired(given):
    pytest.importorskip("torch")
    from sordino.runs.federation import wire

    return wire(given)


def ldp_fed(alpha, **changes):
    """Four rounds of LDP-Fed: 90 values of fc2, then three times the 520 of fc1, with 1/3 of the alpha for each value.

    alpha 6.1e-8 on 10^10 integers makes epsilon 1 for each of the 90, and 1/3 for each of the 520.
    """
    from tests.methods.test_ldp_fed import settings as ldp_fed_settings

    return wired(ldp_fed_settings({"clients.epsilon": alpha, **changes}))


def test_layers_that_take_turns_are_summed_up_over_their_own_rounds():
    """The alphas of all rounds add up to 1, which is 10^10 in epsilon; four times the first round is 5.9 * 10^9."""
    (loss,) = of_federation(ldp_fed(1.0)).losses
    assert loss.proven == pytest.approx(90 / 610 * 1e10, rel=1e-6)
    assert loss.total == pytest.approx(1e10, rel=1e-6)
    assert loss.differs


def test_what_is_foreseen_of_rounds_that_differ_is_what_is_stated_after_them():
    from sordino.runs.simulation import run

    federation = ldp_fed(6.1e-8)
    found = of_federation(federation)
    statement = run(federation.recipe, workers=1).statement
    (stated,) = (row.proven for row in statement.rows if row.adjacency is Adjacency.CLIENT)
    assert found.losses[0].total == stated < 610
    assert any(
        s.startswith("Model update of fc2, 4 rounds, which differ, of all 4 clients (client, against server): proven")
        and upper(stated) in s
        for s in sentences(found)
    )
    assert "90 values in round 1" in sentences(found)[0]


def test_a_budget_is_counted_down_round_by_round():
    """90, then three times 173.33: a budget of 300 is spent after the second, though it is thrice the first."""
    budget = {"clients.budget": {"limit": 300.0}}
    found = of_federation(ldp_fed(6.1e-8, **budget))
    assert (found.outlooks[0].reports, found.outlooks[0].lasts) == (2, False)
    (words,) = (s for s in sentences(found) if "budget" in s)
    assert words.endswith("covers 2 rounds of 4; they will decline round 3 and later ones that cost as much.")
    assert of_federation(ldp_fed(6.1e-8, **{"clients.budget": {"limit": 611.0}})).outlooks[0].lasts


def test_clients_who_are_not_asked_in_every_round_are_counted_on_for_the_dearest():
    budget = {"clients.budget": {"limit": 300.0}, "method.selection": {"kind": "count", "k": 2}}
    found = of_federation(ldp_fed(6.1e-8, **budget))
    assert (found.outlooks[0].reports, found.outlooks[0].expected) == (1, 2.0)  # 173.33 twice is too much
    assert any(
        "admits at least 1 report, and they will be asked for about 2 in 4 rounds" in s for s in sentences(found)
    )


def test_what_is_announced_in_the_first_round_only_is_counted_once():
    """Three uploads of 650 weights at 3 each, and a number of samples at 5, once: 5,855."""
    from tests.methods.test_webfed import NOISY_COUNTS
    from tests.methods.test_webfed import settings as webfed_settings

    federation = wired(webfed_settings({**NOISY_COUNTS, "clients.budget": {"limit": 5855.0}}))
    found = of_federation(federation)
    assert found.outlooks[0].lasts and not found.losses[0].differs


def test_a_schedule_has_an_entry_for_every_round():
    group = ClientGroup((0,), two_point(), schedule=(two_point().releases(650),) * 3)
    with pytest.raises(InvalidInput, match="10 rounds"):
        Preflight([group], values=650, rounds=10)


# --- noise that the server adds -------------------------------------------------------------------------------------


def test_noise_in_proportion_to_the_median_of_norms_is_not_called_none():
    """sigma S sqrt(d) / m with sigma 2, 650 values and 2 of 4 clients; S is known when updates were measured."""
    from tests.methods.test_central_dp import settings as central_settings

    federation = wired(central_settings({"method.clip": "median"}))
    measured = of_federation(federation, update_norm=0.5)
    assert measured.noise == pytest.approx(2.0 * 0.5 * math.sqrt(650) / 2, rel=1e-6)
    assert measured.ratio == pytest.approx(math.sqrt(650), rel=1e-6)
    unmeasured = of_federation(federation)
    assert unmeasured.noise is None
    assert sentences(unmeasured)[0].endswith("in proportion to the median of the updates' norms.")
    assert not any("no noise is added" in s for found in (measured, unmeasured) for s in sentences(found))
    constant = of_federation(wired(central_settings({"method.clip": 0.5})))
    assert constant.noise == pytest.approx(measured.noise, rel=1e-6)


def test_a_claim_about_another_onlooker_says_so():
    from tests.methods.test_central_dp import settings as central_settings

    found = of_federation(wired(central_settings({"method.clip": "median"})))
    assert any("(client, against model reader), by sampled Gaussian noise" in s for s in sentences(found))


# --- what reports lose and weigh ------------------------------------------------------------------------------------


def test_behind_a_secure_sum_a_report_is_weighed_as_it_is_masked(monkeypatch):
    """A sum of nine bits has four bits, which travel as a byte: 650 bytes, where the bits alone would be 82."""
    pytest.importorskip("torch")
    from sordino.channels import secagg
    from sordino.runs.simulation import run
    from tests.engine.tiny import TWO_POINT, recipe

    given = recipe(TWO_POINT, **{"method.channel": {"kind": "summed"}, "split.clients": 9, "rounds.count": 1})
    found = of_federation(wired(given))
    assert found.report_bytes == (650, 650)
    assert sentences(found)[-1] == (
        "A report, masked for the secure sum (keys and shares come beside it), has 650 bytes for 650 values."
    )
    honest, lengths = secagg.SumServer.receive, set()

    def weighed(self, step, client, message):
        if step == "masked":
            lengths.add(len(secagg._SUM.unpack(message).rest))
        return honest(self, step, client, message)

    monkeypatch.setattr(secagg.SumServer, "receive", weighed)
    run(given, workers=1)
    assert lengths == {650 + 8 * secagg._TAG}  # each client vouches to the eight others for what it was told


def test_reports_of_layers_that_take_turns_are_of_several_sizes():
    found = of_federation(ldp_fed(1.0))
    assert found.report_values == (90, 520)
    least, most = found.report_bytes
    assert most / least == pytest.approx(520 / 90, rel=0.05)
    assert sentences(found)[-1] == f"A report has {least:,} to {most:,} bytes for 90 to 520 values."


def test_claims_stand_beside_proofs_with_all_their_terms():
    sender = MechanismSender(Laplace(3.0, BOX))
    ten = upper(equal_bits_epsilon(3.0, 6500, 1e-5))
    (words,) = (s for s in sentences(ahead(sender)) if "claimed" in s)
    assert words == (
        f"Model update, 10 rounds, of all 20 clients (client, against server): proven epsilon {ten} at delta 1e-5, no "
        "meaningful protection; claimed epsilon 3 for one, by Lap(Delta s / eps) per weight, Delta s = 2C (a reading) "
        "(WebFed, Algorithm 1)."
    )


def test_many_kinds_of_clients_are_told_by_their_extremes():
    senders = [two_point(e) for e in (5.0, 1.0, 2.0, 3.0, 4.0)]
    found = Preflight(groups_of(senders, [0, 1, 2, 3, 4]), values=10, rounds=1)
    assert [loss.clients for loss in found.losses] == [(0,), (1,)]
    assert "These are the extremes of 5 kinds of clients; all others lie in between." in sentences(found)


@pytest.mark.parametrize(
    ("sender", "size"),
    [
        (two_point(), 82),
        (MechanismSender(NoPrivacy()), 2600),
        (silo(), 2600),
        (MechanismSender(PrivUnitG(4.0)), 1950),
    ],
    ids=["bits", "floats", "silo", "privunit"],
)
def test_reports_are_weighed_by_their_encoding(sender, size):
    found = ahead(sender)
    assert found.report_bytes == (size, size)
    assert sentences(found)[-1] == f"A report has {size:,} bytes for 650 values."


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True))
def test_groups_hold_every_client_once(chosen):
    class_of = [1 if client in chosen else 0 for client in range(31)]
    groups = groups_of([two_point(1.0), two_point(2.0)], class_of)
    assert sorted(client for group in groups for client in group.clients) == list(range(31))
    assert {group.clients for group in groups if group.sender == groups[-1].sender} == {groups[-1].clients}


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (lambda: ahead(asked=21), "at most 20"),
        (lambda: Preflight([], values=1, rounds=1), "at least one group"),
        (lambda: ClientGroup((), two_point()), "at least one client"),
        (lambda: ClientGroup((0,), two_point(), weight=0.0), "weight"),
        (lambda: MechanismSender(TwoPoint([1.0, 2.0])), "of its own"),
        (lambda: groups_of([two_point()], [0, 0], budgets=[Budget(1.0)]), "one each"),
        (lambda: ahead(two_point(1.0, Box(0.0, np.full(3, 0.1)))).noise, "650 values"),
    ],
    ids=["asked", "groups", "clients", "weight", "many", "budgets", "box"],
)
def test_wrong_input_is_refused_with_a_remedy(wrong, remedy):
    with pytest.raises(InvalidInput, match=remedy):
        wrong()
