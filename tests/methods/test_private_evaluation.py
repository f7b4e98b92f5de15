"""Private evaluation: exact counts, intervals that cover, what is charged, and records that never meet."""

from __future__ import annotations

import json
import math
import re
import shlex
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino.channels import releases as releases_of
from sordino.errors import InvalidInput
from sordino.fleets.tasks import Task
from sordino.learning.cohort import ClientData
from sordino.learning.evaluation import Exam, ExamPiece, score
from sordino.learning.examples import Examples
from sordino.learning.held_out import held_out
from sordino.methods.blueprint import UNCONTAINED, UNDECLARED
from sordino.methods.interface import Bench
from sordino.methods.private_evaluation import FIGURES, NUMBER_FIGURES, WHAT, PrivateEvaluation, Ratio, with_sides
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Infinite, Pure, Release
from sordino.recipe import Recipe
from sordino.report.expectations import evaluation
from sordino.report.records import RoundRecord, from_json, to_line
from sordino.runs.federation import Federation, wire
from sordino.runs.observer import Observer
from sordino.runs.preflight import of_evaluation
from sordino.runs.run_figures import numbers
from sordino.runs.simulation import run
from tests.engine import tiny
from tests.methods.own_networks import LEAVING

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from sordino.cli import app


class Linear(torch.nn.Linear):
    """A network of somebody's own."""

    def __init__(self, classes: int) -> None:
        super().__init__(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1))


class FewRows(Linear):
    """Each record by itself; it fails for a first pixel beyond 16, and ends the process for one beyond 200."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.rows = torch.nn.Embedding(17, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.flatten()[0]) > 200:
            raise SystemExit(1)
        return super().forward(x) + self.rows(x.flatten(1)[:, 0].round().long())


class OneScoreMore(Linear):
    """One more score, the largest, for a record with a first pixel beyond 50."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x)
        more = scores.new_full((len(scores), int(float(x.flatten()[0]) > 50)), 1e9)
        return torch.cat([scores, more], dim=1)


class Remembers(Linear):
    """It adds the last record to the next one."""

    last: Any = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x + self.last)
        self.last = x.detach().mean() * 100
        return scores


class KeepsMean(Linear):
    """Somebody's own batch norm, which keeps a mean in a buffer, and changes its input."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x.flatten(1) - self.mean)
        self.mean.mul_(0.5).add_(x.detach().flatten(1).mean(0) * 50)
        x.add_(1)
        return scores


def own_model(network: type, **more: Any) -> dict[str, Any]:
    return {"model": {"name": f"{__name__}:{network.__name__}", "start": "fresh", "per_record": True}, **more}


PRIVATE: dict[str, Any] = {
    "evaluation.private": {"share": 0.25, "every": 2, "target": {"epsilon": 4.0, "delta": 1e-5}},
    "data.train_limit": 400,
    "rounds.count": 5,
}
SILOS: dict[str, Any] = {
    **PRIVATE,
    "method": {
        "name": "silo-dp", "noise_multiplier": 2.0, "sampling_rate": 0.5, "steps": 1, "announced_size": 75,
    },
    "training": {"optimizer": {"name": "sgd", "lr": 1.0}},
}  # fmt: skip


def silos(changes: dict[str, Any] | None = None) -> Recipe:
    whole = {key: value for key, value in tiny.TINY.items() if key not in ("method", "training")}
    return Recipe.from_dict({**whole, "method": SILOS["method"], "training": SILOS["training"]}).with_(
        {**PRIVATE, **(changes or {})}
    )


def evaluation_of(federation: Federation) -> PrivateEvaluation:
    assert federation.evaluation is not None
    return federation.evaluation


def own(federation: Federation, client: int) -> ClientData:
    rows, train = federation.held_out[client], federation.dataset.train
    return ClientData(federation.dataset.normalisation.apply(train.x[rows]), train.y[rows])


# --- what is counted


@pytest.mark.parametrize("figures", [["accuracy"], ["recall"], ["f1", "recall", "accuracy"], ["accuracy", "loss"]])
def test_counts_are_those_of_the_model_on_the_same_records(figures: list[str]) -> None:
    """Exact counts, without their noise, give the figures that scoring all records at once gives."""
    federation = wire(tiny.recipe({**PRIVATE, "evaluation.private.figures": figures}))
    evaluation, state = evaluation_of(federation), federation.method.init()
    rng = np.random.default_rng(2)
    state = replace(state, parameters=rng.normal(0, 0.1, state.parameters.size).astype(np.float32))
    total = sum(evaluation.exact(evaluation.plan(state, "x"), own(federation, k)) for k in range(federation.clients))
    counts = np.asarray(total, np.float64) / evaluation.counts.weight
    found = {ratio.name: ratio.estimate(counts, 0.0).value for ratio in evaluation.tallying.ratios()}

    rows = np.concatenate(federation.held_out)
    exam = Exam(federation.dataset.train.take(rows), federation.dataset.normalisation, 10)
    model, loss = federation.graded
    scores = score(model, state.parameters, None, loss, ExamPiece(exam, slice(0, len(rows))))
    right, there, taken = np.diag(scores.confusion), scores.confusion.sum(axis=1), scores.confusion.sum(axis=0)
    wanted = {"accuracy": scores.accuracy, "loss": scores.loss}
    wanted |= {f"recall of {k}": right[k] / there[k] for k in range(10)}
    wanted |= {f"f1 of {k}": 2 * right[k] / (there[k] + taken[k]) for k in range(10)}
    assert counts[: evaluation.tallying.cells].sum() == len(rows)
    assert {name.partition(" ")[0] for name in found} == set(figures)
    assert found == pytest.approx({name: wanted[name] for name in found}, abs=1e-4)


@pytest.mark.parametrize(
    ("data", "figure", "bound"),
    [({"target": [0.0, 9.0]}, "mae", 9.0), ({"labels": ["a", "b", "c"]}, "label-accuracy", 1.0)],
)
def test_numbers_and_labels_have_a_figure_too(tmp_path: Path, data: dict[str, Any], figure: str, bound: float) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, (80, 4)).astype(np.float32)
    y = rng.uniform(0, 9, 80).astype(np.float32) if "target" in data else rng.integers(0, 2, (80, 3))
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    source = {"source": str(tmp_path / "own.npz"), "mean": [0.0], "std": [1.0], **data}
    changes = {
        **PRIVATE,
        "evaluation.private.share": 0.9,
        "data": source,
        "method": {"name": "fedavg", "mechanism": {"name": "none"}},
    }
    changes.pop("data.train_limit")
    federation = wire(tiny.recipe(changes))
    evaluation = evaluation_of(federation)
    plan = evaluation.plan(federation.method.init(), "x")
    total = sum(evaluation.exact(plan, own(federation, k)) for k in range(federation.clients))
    (ratio,) = evaluation.tallying.ratios()
    found = ratio.estimate(np.asarray(total) / evaluation.counts.weight, 0.0)
    assert found.name == figure
    assert found.value is not None and 0 < found.value < bound
    assert 0 <= found.interval[0] <= found.value <= found.interval[1] <= bound


def test_one_record_moves_the_counts_by_its_own_vector_whatever_lies_beside_it() -> None:
    federation = wire(tiny.recipe({**PRIVATE, "evaluation.private.figures": ["f1", "loss"]}))
    evaluation = evaluation_of(federation)
    plan, data = evaluation.plan(federation.method.init(), "x"), own(federation, 0)
    weight, cells = evaluation.counts.weight, evaluation.tallying.cells
    for n in (2, 5, len(data.x)):
        with_it, without = (evaluation.exact(plan, ClientData(data.x[first:n], data.y[first:n])) for first in (0, 1))
        moved = with_it - without
        alone = evaluation.exact(plan, ClientData(data.x[:1], data.y[:1]))
        assert moved.tolist() == alone.tolist()
        assert sorted(moved[:cells].tolist())[-2:] == [0, weight]
        assert 0 <= moved[cells] <= weight


def test_a_loss_that_is_no_number_counts_as_the_worst() -> None:
    federation = wire(tiny.recipe({**PRIVATE, "evaluation.private.figures": ["accuracy", "loss"]}))
    evaluation, state = evaluation_of(federation), federation.method.init()
    plan = evaluation.plan(replace(state, parameters=np.full_like(state.parameters, 3e38)), "x")
    data = own(federation, 0)
    assert evaluation.exact(plan, data)[-1] == len(data.x) * evaluation.counts.weight


def odd_records(*first_pixels: float) -> ClientData:
    """Blank digits, but for their first pixels, all of class 9."""
    x = torch.zeros(len(first_pixels), 1, 8, 8)
    x[:, 0, 0, 0] = torch.tensor(first_pixels)
    return ClientData(x, torch.full((len(first_pixels),), 9))


@pytest.mark.parametrize(("network", "odd"), [(FewRows, 99.0), (FewRows, 999.0), (OneScoreMore, 99.0)])
def test_a_record_that_cannot_be_scored_adds_nothing_and_takes_no_other_with_it(network: type, odd: float) -> None:
    federation = wire(silos(own_model(network, **{"evaluation.private.figures": ["f1", "loss"]})))
    evaluation = evaluation_of(federation)
    plan = evaluation.plan(federation.method.init(), "x")
    without = evaluation.exact(plan, odd_records(0.0, 1.0, 2.0))
    assert without[:-1].sum() == 3 * evaluation.counts.weight
    assert evaluation.exact(plan, odd_records(0.0, odd, 1.0, 2.0)).tolist() == without.tolist()
    assert not evaluation.exact(plan, odd_records(odd)).any()


@pytest.mark.parametrize("label", [-1, 10])
def test_a_record_of_no_known_class_adds_nothing(label: int) -> None:
    federation = wire(tiny.recipe({**PRIVATE, "evaluation.private.figures": ["recall", "loss"]}))
    evaluation, data = evaluation_of(federation), odd_records(1.0)
    plan = evaluation.plan(federation.method.init(), "x")
    assert not evaluation.exact(plan, ClientData(data.x, torch.tensor([label]))).any()


def test_buffers_and_inputs_that_a_model_changes_are_fresh_for_each_record() -> None:
    federation = wire(tiny.recipe({**PRIVATE, **own_model(KeepsMean)}))
    evaluation, data = evaluation_of(federation), odd_records(0.0, 3.0, 3.0)
    plan = evaluation.plan(federation.method.init(), "x")
    alone = [evaluation.exact(plan, ClientData(data.x[k : k + 1], data.y[k : k + 1])) for k in range(3)]
    assert evaluation.exact(plan, data).tolist() == sum(alone).tolist()
    assert data.x.sum() == 6


@pytest.mark.parametrize("kind", LEAVING, ids=lambda kind: kind.__name__)
def test_counts_are_those_without_the_record_at_which_a_model_leaves_something(kind: type) -> None:
    model = {"name": f"{kind.__module__}:{kind.__name__}", "start": "fresh", "per_record": True}
    federation = wire(tiny.recipe({**PRIVATE, "model": model, "evaluation.private.figures": ["loss"]}))
    evaluation, data = evaluation_of(federation), odd_records(0.0, 3.0, 1000.0, 3.0, 4.0)
    plan = evaluation.plan(federation.method.init(), "x")
    alone = [evaluation.exact(plan, ClientData(data.x[k : k + 1], data.y[k : k + 1])) for k in range(5)]
    assert evaluation.exact(plan, data).tolist() == sum(alone).tolist()


def test_one_thread_scores_records() -> None:
    threads, before = [], torch.get_num_threads()
    federation = wire(silos())
    evaluation = evaluation_of(federation)
    evaluation._model.register_forward_hook(lambda *_: threads.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        evaluation.exact(evaluation.plan(federation.method.init(), "x"), odd_records(0.0, 1.0))
        assert (threads, torch.get_num_threads()) == ([1, 1], 2)
    finally:
        torch.set_num_threads(before)


# --- intervals


@pytest.mark.parametrize("of_amounts", [False, True])
def test_the_interval_covers_the_truth_in_95_of_100_runs(of_amounts: bool) -> None:
    """2,000 runs of 300 records, noise of 12: fewer than 93.5 % covered is a chance of one in a thousand."""
    rng, truth, runs = np.random.default_rng(5), 0.8, 2000
    right = rng.binomial(300, truth, runs)
    columns = (right, np.full(runs, 300)) if of_amounts else (right, 300 - right)
    noisy = np.stack(columns, axis=1) + rng.normal(0, 12, (runs, 2))
    everything = np.array([0.0, 1.0]) if of_amounts else np.ones(2)
    ratio = Ratio("accuracy", np.array([1.0, 0.0]), everything, of_amounts=of_amounts)
    found = [ratio.estimate(counts, 144.0) for counts in noisy]
    covered = np.mean([own.interval[0] <= truth <= own.interval[1] for own in found])
    assert 0.935 <= covered <= 0.985
    narrow = [ratio.estimate(counts, 36.0) for counts in noisy]
    assert np.mean([own.interval[0] <= truth <= own.interval[1] for own in narrow]) < 0.935, "half the noise shows"
    assert all(own.value is not None for own in found)


def test_noise_as_large_as_the_number_of_records_drowns_a_figure() -> None:
    ratio = Ratio("loss", np.array([1.0, 0.0]), np.ones(2), scale=4.0)
    for counts in ([3.0, 2.0], [-4.0, 1.0], [0.0, 0.0]):
        found = ratio.estimate(np.array(counts), 100.0)
        assert (found.value, found.interval) == (None, (0.0, 4.0))
    assert ratio.estimate(np.array([300.0, 200.0]), 100.0).value == pytest.approx(2.4)


# --- sides


def test_records_that_are_set_aside_are_in_nobodys_training_and_change_no_report() -> None:
    """With other labels of held-out records, all training reports are the same bytes, and the counts are not."""
    recipe, bodies, sums = silos(), [], []
    for flip in (False, True):
        federation = wire(recipe)
        train = federation.dataset.train
        aside = np.concatenate(federation.held_out)
        assert not np.isin(np.concatenate(list(federation.parts)), aside).any()
        assert held_out(train.x, 0.25, recipe.seed)[aside].all()
        y = train.y.copy()
        y[aside] = (y[aside] + flip) % 10
        federation = replace(federation, dataset=replace(federation.dataset, train=Examples(train.x, y)))
        work, method = federation.work(Bench()), federation.method
        plan = method.plan(method.init(), "x")
        clients = tuple(range(federation.clients))
        bodies.append(Task(clients, ({},) * 4).do(work, plan)[1].bodies)
        evaluation = evaluation_of(federation)
        sums.append(evaluation.exact(evaluation.plan(method.init(), "x"), own(federation, 0)).tolist())
    assert bodies[0] == bodies[1]
    assert sums[0] != sums[1]


def _release(*guarantees: Guarantee) -> Release:
    return Release("a", "d", "w", guarantees)


def test_an_exchange_that_may_move_a_record_needs_a_figure_for_a_removed_one() -> None:
    replaced = Guarantee(SERVER, Adjacency.RECORD_REPLACE, Pure(1.0), "why")
    added = Guarantee(SERVER, Adjacency.RECORD_ADD_REMOVE, Pure(0.5), "why")
    client = Guarantee(SERVER, Adjacency.CLIENT, Pure(3.0), "why")
    label = Guarantee(SERVER, Adjacency.LABEL, Pure(0.2), "why")
    none = Guarantee(SERVER, Adjacency.RECORD_ADD_REMOVE, Infinite("no proof"), "none")
    for fine in ((replaced, added), (added,)):
        assert with_sides(_release(*fine)) == _release(*fine)
    assert with_sides(_release(replaced, client)).guarantees[0].loss == client.loss
    assert with_sides(_release(replaced, none, client)).guarantees[0].loss == client.loss
    assert with_sides(_release(label, client)).guarantees[0].loss == client.loss
    for lacking in (
        (label, added),
        (replaced,),
        (replaced, none),
        (replaced, replace(none, adjacency=Adjacency.CLIENT)),
    ):
        assert isinstance(with_sides(_release(*lacking)).guarantees[0].loss, Infinite)


def test_training_is_charged_as_before_beside_an_evaluation() -> None:
    federation = wire(silos())
    plan = federation.method.plan(federation.method.init(), "x")
    assert list(releases_of(federation.recipe, federation.method)(plan)) == list(federation.method.releases(plan))


# --- runs


def test_a_run_records_figures_releases_and_spending(tmp_path: Path) -> None:
    budget = {"limit": 60.0, "delta": 1e-5, "adjacency": "record-add-remove"}
    outcome = run(silos({"clients.budget": budget}), folder=tmp_path / "run", workers=1)
    evaluated = [record.round for record in outcome.rounds if record.private is not None]
    assert evaluated == [2, 4, 5]
    last = outcome.rounds[-1]
    assert last.private is not None
    assert (last.private.asked, last.private.reported, last.private.delta) == (4, 4, 1e-5)
    assert outcome.result.private == last.private
    assert from_json(RoundRecord, json.loads(to_line(last))) == last
    made = [release for spent in outcome.releases for own in spent.releases for release in own if release.what == WHAT]
    assert [release.id for release in made] == [f"tiny/{k}/{WHAT}" for k in evaluated]
    evaluation = evaluation_of(wire(silos()))
    assert {release.guarantees for release in made} == {
        tuple(evaluation.counts.guarantee(a) for a in (Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE))
    }
    rows = {row.adjacency: row for row in outcome.statement.rows}
    assert dict(rows[Adjacency.RECORD_ADD_REMOVE].losses) == {"PoissonGaussian": 5, "Gaussian": 3}
    assert numbers(last)["private.accuracy"] == last.private.figures[0].value
    assert json.loads(json.dumps(outcome.to_json()))["private"]["reported"] == 4
    assert any("private evaluation" in sentence for sentence in outcome.statement.caveats)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "On records that clients set aside" in page


def test_all_evaluations_together_stay_within_their_target() -> None:
    evaluation = evaluation_of(wire(silos()))
    assert evaluation.spec.times(5) == 3
    assert [round for round in range(1, 9) if evaluation.due(round)] == [2, 4, 5]
    assert 3.9 < evaluation.counts.epsilon(Adjacency.RECORD_ADD_REMOVE, 1e-5, 3) <= 4.0


def test_who_has_no_budget_for_an_evaluation_declines_it_and_goes_on_training(tmp_path: Path) -> None:
    """A budget for whole clients can count no evaluation: all decline it, and no round is lost."""
    changes = {**PRIVATE, **tiny.TWO_POINT, "clients.budget": {"limit": 1e6}}
    outcome = run(tiny.recipe(changes), workers=1)
    assert [record.reported for record in outcome.rounds] == [4] * 5
    private = outcome.result.private
    assert private is not None
    assert (private.reported, private.declined, private.figures[0].value) == (0, 4, None)
    assert all(release.what != WHAT or not len(who) for spent in outcome.releases
               for own, who in zip(spent.releases, spent.clients, strict=True) for release in own)  # fmt: skip
    assert any("decline" in sentence for sentence in outcome.result.preflight)


def test_a_run_that_is_interrupted_goes_on_to_the_same_figures(tmp_path: Path) -> None:
    class Stop(Observer):
        def round(self, record: RoundRecord, attendance: object) -> None:
            if record.round == 4:
                raise KeyboardInterrupt

    budget = {"clients.budget": {"limit": 60.0, "delta": 1e-5, "adjacency": "record-add-remove"}}
    run(silos(budget), folder=tmp_path / "whole", workers=1)
    with pytest.raises(KeyboardInterrupt):
        run(silos(budget), folder=tmp_path / "parts", workers=1, observer=Stop())
    run(silos(budget), folder=tmp_path / "parts", workers=2, resume=True)
    assert tiny.left(tmp_path / "parts") == tiny.left(tmp_path / "whole")


# --- what is refused


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation.private.figures": ["mae"]},
        {**tiny.BATCH_NORM},
        {"method": {"name": "local-only"}},
        {"evaluation.private.target": {"epsilon": 1e-7, "delta": 1e-9}},
    ],
    ids=["figure", "batch norm", "no common model", "too fine"],
)
def test_what_no_figure_can_be_made_of_is_refused_before_any_work(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"evaluation|figures|epsilon"):
        wire(tiny.recipe({**PRIVATE, **changes}))


def test_a_size_that_depends_on_who_is_set_aside_must_be_announced() -> None:
    with pytest.raises(InvalidInput, match="announced_size"):
        silos({"method.announced_size": 0})


def test_own_code_that_nobody_vouches_for_proves_nothing() -> None:
    own_model = {"model": {"name": "tests.methods.test_private_evaluation:Linear", "start": "fresh"}}
    for declared, why in ((False, UNDECLARED), (True, UNCONTAINED)):
        recipe = tiny.recipe({**PRIVATE, **own_model, "model.per_record": declared})
        federation = wire(recipe)
        (release,) = evaluation_of(federation).releases("x", 2)
        assert {own.loss for own in release.guarantees} == {Infinite(why)}
        ahead = of_evaluation(federation, simulated=True)
        assert ahead is not None
        assert ahead.epsilon == ahead.one == evaluation_of(federation).epsilon == math.inf
        assert not [line for line in evaluation(ahead) if "one record added" in line]


@pytest.mark.parametrize("base", [silos, lambda changes: tiny.recipe({**PRIVATE, **changes})])
def test_nothing_is_proven_of_a_model_that_public_records_show_to_remember(base: Any) -> None:
    for network, remembers in ((Remembers, True), (Linear, False)):
        federation = wire(base(own_model(network)))
        (release,) = evaluation_of(federation).releases("x", 2)
        assert all(isinstance(own.loss, Infinite) for own in release.guarantees)
        assert all((own.loss == Infinite(UNCONTAINED)) != remembers for own in release.guarantees)


# --- the page

PAGE = (Path(__file__).parents[2] / "docs" / "private-evaluation.md").read_text()


def test_the_page_shows_what_its_command_prints_and_a_table_that_a_recipe_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```console\n\$ sordino (.*?)\n(.*?)```", PAGE, re.DOTALL)
    printed = CliRunner().invoke(app, shlex.split(block[0]), env={"COLUMNS": "200"}).output
    lines = {" ".join(line.replace("│", " ").split()) for line in printed.splitlines()}
    for shown in block[1].splitlines():
        assert " ".join(shown.split()) in lines
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (given,) = tomllib.loads(table)["evaluation"].values()
    assert silos({"evaluation.private": given}).evaluation.private is not None
    named = set(re.findall(r"^\| `([\w-]+)`", PAGE, re.MULTILINE))
    assert named == {name for names in FIGURES.values() for name in names} | set(NUMBER_FIGURES)


def test_a_recipe_without_a_test_set_is_judged_by_clients_own_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(0, 1, (240, 2))
    lines = [f"{a:.4f},{b:.4f},{'yes' if a > b else 'no'}" for a, b in rows]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,ill", *lines]) + "\n")
    source = {
        "source": str(tmp_path / "own.csv"),
        "classes": ["no", "yes"],
        "label": "ill",
        "mean": [0.0],
        "std": [1.0],
    }
    plain = {"data": source, "method": {"name": "fedavg", "mechanism": {"name": "none"}}, "rounds.count": 2}
    with pytest.raises(InvalidInput, match=r"data\.test"):
        tiny.recipe(plain)
    private = {**plain, "evaluation.private": PRIVATE["evaluation.private"]}
    with pytest.raises(InvalidInput, match=r"rounds\.stop_on"):
        tiny.recipe({**private, "rounds.patience": 2, "rounds.stop_on": "test"})
    outcome = run(tiny.recipe(private), folder=tmp_path / "run", workers=1)
    result = outcome.result
    assert (result.accuracy, result.test_examples, result.loss) == (None, 0, None)
    assert result.private is not None and result.private.figures[0].value is not None
    assert "Accuracy not measured" not in (tmp_path / "run" / "report.html").read_text()


def test_a_plan_for_training_says_what_evaluation_adds() -> None:
    own = ["--set", "evaluation.private.target={epsilon=1.0,delta=1e-6}", "--set", "method.announced_size=383"]
    with_it, without = (CliRunner().invoke(app, ["plan", "quickstart", *more]).output for more in (own, own[2:]))
    assert len(with_it.splitlines()) == len(without.splitlines()) + 1
    assert with_it.splitlines()[-1].startswith("Private evaluation (4 in 20 rounds) adds epsilon 1 at delta 1e-6")


def test_a_share_that_leaves_a_client_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"evaluation\.private\.share"):
        wire(tiny.recipe({**PRIVATE, "evaluation.private.share": 0.99, "data.train_limit": 8}))
