"""One client sends the worst legal report: the model moves by the bound, and by no more."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks import attacks
from benchmarks import influence as page
from benchmarks.influence_bounds import in_sum, on_mean, on_model, worst_class
from pydantic import ValidationError

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, Laplace, NoPrivacy, TwoPoint
from sordino.methods.aggregation import NoisySamples
from sordino.methods.blueprint import blueprint_of
from sordino.methods.silo_dp import SiloDp
from sordino.methods.upload import MAX_SAMPLES, PLAIN_LIMIT, ReportSum, Upload
from sordino.runs.coordinator import Attendance, _add_sum
from tests.engine.test_upload import BUILDERS, D, draw, upload, vectors
from tests.engine.tiny import TWO_POINT, recipe

PAGE = Path(__file__).parents[2] / "docs" / "malicious.md"
EACH = 10  #: records of a client

DP_SGD = {"training": {"optimizer": {"name": "sgd", "lr": 0.1}}}  #: it draws its own batches

METHODS = {
    "fedavg": TWO_POINT,
    "fedavg, slow server": {**TWO_POINT, "method.server_lr": 0.25},
    "weights": {**TWO_POINT, "method.upload": "weights"},
    "by budget": {**TWO_POINT, "clients.epsilon": [1.0, 2.0, 1.0, 4.0], "method.aggregation": {"kind": "budget"}},
    "inverse variance": {
        **TWO_POINT,
        "clients.epsilon": [1.0, 2.0, 1.0, 4.0],
        "method.aggregation": {"kind": "inverse-variance"},
    },
    "by samples": {"method.aggregation": {"kind": "samples"}},
    "laplace": {**TWO_POINT, "method.mechanism": {"name": "laplace"}},
    "gaussian": {
        "method.mechanism": {"name": "gaussian", "calibration": "sigma", "sigma": 0.2},
        "method.range": {"kind": "fixed", "radius": 0.1},
    },
    "privunit": {**TWO_POINT, "method.mechanism": {"name": "privunit"}},
    "votes": {
        **TWO_POINT,
        "method.mechanism": {"name": "sign"},
        "method.aggregation": {"kind": "sign", "step": 0.01},
    },
    "ldp-fed": {
        "method": {
            "name": "ldp-fed", "scope": {"kind": "all"}, "range": {"kind": "fixed", "radius": 1.0},
            "mechanism": {"name": "exponential", "precision": 3},
        },
        "clients.epsilon": 100.0,
    },
    "ldp-fl": {"method": {"name": "ldp-fl", "range": {"kind": "fixed", "radius": 0.1}}, "clients.epsilon": 1.0},
    "webfed": {"method": {"name": "webfed", "range": {"kind": "fixed", "radius": 0.5}}, "clients.epsilon": 1.0},
    "webfed, noisy samples": {
        "method": {
            "name": "webfed", "range": {"kind": "fixed", "radius": 0.5},
            "aggregation": {"kind": "noisy-samples", "epsilon": 1.0, "limit": 50},
        },
        "clients.epsilon": 1.0,
    },
    "personalised": {
        "method": {
            "name": "personalized", "range": {"kind": "fixed", "radius": 1.0},
            "mechanism": {"name": "gaussian", "calibration": "sigma", "sigma": 1.0},
            "aggregation": {"kind": "inverse-deviation"},
        },
    },
    "personalised signs": {
        "method": {
            "name": "personalized", "sends": "signs", "range": {"kind": "fixed", "radius": 1.0},
            "mechanism": {"name": "sign"},
        },
        "clients.epsilon": 1.0,
    },
    "silo-dp": {**DP_SGD, "method": {"name": "silo-dp", "noise_multiplier": 1.0}},
    "silo-dp, clamped": {**DP_SGD, "method": {"name": "silo-dp", "noise_multiplier": 1.0, "clamp": 0.5}},
}  # fmt: skip


def built(changes):
    found = recipe(changes)
    blueprint, _ = blueprint_of(found, (1, 8, 8), 10, (EACH,) * found.number_of_clients)
    return found, blueprint.recipe.method.build(blueprint)


def counts_of(tally):
    return np.bincount(tally.upload.class_of).tolist()


@pytest.mark.parametrize("name", METHODS)
def test_the_worst_legal_report_moves_the_model_by_the_bound(name):
    found, method = built(METHODS[name])
    state = method.init()
    plan = method.plan(state, "f")
    part = method.tally(plan).upload
    votes = "vote" in name or "signs" in name
    for client in range(part.clients):
        group = int(part.class_of[client])
        others = [k for k in range(part.clients) if k != client]
        told = (part.clients - 1) * EACH
        bound = on_model(found.method, on_mean(method.tally(plan), counts_of(method.tally(plan)), group, samples=told))
        prefix = part.most_samples.to_bytes(4, "little") if part.samples else b""
        sent = part.send(others, np.zeros((len(others), part.values)), draw, [EACH] * len(others)).bodies
        if votes:  # three others can be outvoted by none: let one of them be missing, and the others disagree
            others, sent = others[:2], [b"\0" * len(sent[0]), (2**part.values - 1).to_bytes(len(sent[0]), "little")]
        models = []
        for end in bound.reach.ends:
            tally = method.tally(plan)
            assert tally.add([*others, client], [*sent, prefix + end]) == {}
            models.append(method.update(state, plan, tally).parameters.astype(np.float64))
        shift = models[1] - models[0]
        assert np.abs(shift).max() == pytest.approx(bound.value, rel=1e-4)
        assert np.linalg.norm(shift) == pytest.approx(bound.length, rel=1e-4)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_worst_legal_report_moves_the_mean_by_the_bound(name):
    part = upload(name)
    weights = [1.0, 0.5, 0.25]
    sent = part.send(range(6), vectors(6), draw, [1] * 6).bodies
    for client in range(6):
        group = int(part.class_of[client])
        bound = on_mean(part.tally(weights), counts_of(part.tally()), group)
        means = []
        for end in bound.reach.ends:
            tally = part.tally(weights)
            assert tally.add(list(range(6)), [*sent[:client], end, *sent[client + 1 :]]) == {}
            means.append(tally.mean())
        assert np.abs(means[1] - means[0]).max() == pytest.approx(bound.value, rel=1e-6)
        assert np.linalg.norm(means[1] - means[0]) == pytest.approx(bound.length, rel=1e-6)
        assert bound.share == pytest.approx(weights[group] / (2 * 1.0 + 2 * 0.5 + 2 * 0.25))


def test_a_report_that_was_made_for_another_class_is_read_as_the_clients_own_or_refused():
    """The server knows who is of which class: whose bits are read as whose is not the client's choice."""
    part = upload("two-point")
    louder = part.send([0], vectors(1), draw, [1]).bodies[0]  # of epsilon 1, whose points lie furthest apart
    tally = part.tally()
    assert tally.add([1], [louder]) == {}  # client 1 has epsilon 4
    k = (math.exp(4) + 1) / (math.exp(4) - 1)
    assert np.abs(tally.mean() - 0.1).max() == pytest.approx(0.5 * k, rel=1e-6)
    wide, narrow = (upload("laplace").mechanisms[c].grid(D) for c in (0, 2))
    assert wide.limit != narrow.limit
    forged = upload("laplace").mechanisms[0].encode(
        upload("laplace").mechanisms[0].randomize(np.zeros((1, D), np.float32), draw([0])).output
    )[0]  # fmt: skip
    assert list(upload("laplace").tally().add([1], [forged])) == [1] or wide.limit < narrow.limit


def test_lying_about_epsilon_pays_towards_the_larger_product_of_weight_and_reach():
    """Two-point in [-1, 1]: a report of epsilon e reaches K(e) to both sides; nine others have epsilon 1."""
    k = {e: (math.exp(e) + 1) / (math.exp(e) - 1) for e in (0.1, 1.0, 8.0)}
    part = Upload(
        lambda e: TwoPoint(e, Box(0.0, 1.0)), [0.1, 1.0, 1.0, 1.0, 8.0], 3, clients=5, what="update"
    )  # fmt: skip
    counts = [1, 3, 1]
    plain, by_budget = part.tally(), part.tally([0.1, 1.0, 8.0])
    assert worst_class(plain, counts, own=1).group == 0  # in a plain mean, the noisiest shout loudest
    assert worst_class(plain, counts, own=1).value == pytest.approx(2 * k[0.1] / 5, rel=1e-6)
    assert worst_class(by_budget, counts, own=1).group == 2  # where budgets weigh, those who claim to spend most
    assert worst_class(by_budget, counts, own=1).value == pytest.approx(2 * k[8.0] * 8 / (0.1 + 2 + 16), rel=1e-6)
    assert on_mean(by_budget, counts, 1).value == pytest.approx(2 * k[1.0] / 11.1, rel=1e-6)


def test_announced_samples_buy_nearly_the_whole_mean_up_to_the_limit():
    part = Upload(lambda _: NoPrivacy(), None, 3, clients=10, what="update", samples=True)
    assert on_mean(part.tally(), [10], 0, samples=900).share == pytest.approx(MAX_SAMPLES / (MAX_SAMPLES + 900))
    part = Upload(lambda _: NoPrivacy(), None, 3, clients=10, what="update", samples=True, most_samples=100)
    assert on_mean(part.tally(), [10], 0, samples=900).share == pytest.approx(0.1)
    boast = (101).to_bytes(4, "little") + np.zeros(3, "<f4").tobytes()
    assert "100 is the most" in part.tally().add([0], [boast])[0]


# --- a server's own limits --------------------------------------------------------------------------------------------


def test_a_clamp_bounds_what_plain_values_can_do_and_honest_values_keep_their_place():
    part = Upload(lambda _: NoPrivacy(), None, 3, clients=2, what="update", clamp=0.5)
    tally = part.tally()
    assert tally.add([0, 1], [np.array(v, "<f4").tobytes() for v in ([0.25, -0.5, 0.0], [1e30, -1e30, 0.125])]) == {}
    assert tally.mean() == pytest.approx([0.375, -0.5, 0.0625])
    assert on_mean(tally, [2], 0).value == 0.5
    for bad in (np.nan, np.inf):
        assert list(part.tally().add([0], [np.full(3, bad, "<f4").tobytes()])) == [0]


def test_without_a_clamp_plain_values_end_at_the_servers_limit():
    part = Upload(lambda _: NoPrivacy(), None, 3, clients=2, what="update")
    assert on_mean(part.tally(), [2], 0).value == PLAIN_LIMIT
    assert list(part.tally().add([0], [np.full(3, np.nextafter(np.float32(PLAIN_LIMIT), 1e9), "<f4").tobytes()])) == [0]


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        (SiloDp.Spec, {"clamp": 0.0}),
        (SiloDp.Spec, {"clamp": 1e9}),
        (SiloDp.Spec, {"norm": 0.0}),
        (NoisySamples, {"limit": 0, "epsilon": 1.0}),
        (NoisySamples, {"limit": MAX_SAMPLES + 1, "epsilon": 1.0}),
    ],
)
def test_senseless_limits_are_refused_by_their_tables(table, wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        table(**wrong)


def test_hybrid_one_takes_no_clamp():
    """Nobody sees a single report of a secure sum that could be clamped."""
    with pytest.raises(InvalidInput, match="clamp"):
        built(
            {
                "method": {
                    "name": "hybrid-one", "noise_multiplier": 1.0, "clamp": 1.0,
                    "channel": {"kind": "summed"},
                },
                "split.clients": 8,
                **DP_SGD,
            }
        )  # fmt: skip


# --- sums -------------------------------------------------------------------------------------------------------------


def test_in_a_secure_sum_one_client_can_put_the_sum_of_its_class_anywhere_in_its_range():
    part = upload("two-point")
    tally = part.tally()
    group, members = 0, (0, 2)
    bound = in_sum(tally, [2, 2, 2], group)
    means = []
    for total in (0, len(members)):  # all ones, whatever the other one sent: sums that two clients can have made
        tally = part.tally()
        others = part.send([1, 3, 4, 5], vectors(4), draw, [1] * 4).bodies
        tally.add([1, 3, 4, 5], others)
        tally.add_sum(ReportSum(group, members, np.full(D, total, np.int64), 0))
        means.append(tally.mean())
    assert np.abs(means[1] - means[0]).max() == pytest.approx(bound.value, rel=1e-6)
    assert bound.share == pytest.approx(1 / 3)


def test_a_weighed_sum_that_its_samples_cannot_have_is_lost_and_not_added():
    """Values and samples are summed apart: a few samples cannot stand behind the values of many."""
    part = upload("two-point", samples=True)
    tally, attendance = part.tally(), Attendance()
    honest = np.append(np.full(D, 10), 20)
    false = np.append(np.full(D, 21), 20)
    _add_sum(tally, ReportSum(0, (0, 2), false, 0), attendance)
    assert tally.reports == 0 and attendance.reported == [] and "20 samples" in attendance.lost[0]
    _add_sum(tally, ReportSum(0, (0, 2), honest, 0), attendance)
    assert tally.reports == 2 and attendance.reported == [0, 2]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_tables_of_the_page_are_what_the_code_computes(tmp_path):
    copy = tmp_path / "malicious.md"
    copy.write_text(re.sub(r"(<!-- \w+ -->\n).*?(<!-- end)", r"\1\2", PAGE.read_text(), flags=re.DOTALL))
    recorded = json.loads(attacks.RESULTS.read_text())
    page.insert(copy, page.tables() | {"attacks": attacks.rows(recorded)})
    assert copy.read_text() == PAGE.read_text(), "run: python -m benchmarks.influence, or of attacks benchmarks.attacks"


def test_the_example_of_the_page_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, PAGE.name, "exec"), {})


def test_clamping_biases_laplace_hardly_at_the_edge_of_its_domain():
    assert 0 < -Laplace(1.0, Box(0.0, 1.0)).bias([[1.0]])[0, 0] < 1e-7
