"""What goes wrong around a run: each time a plain sentence with the remedy, and nothing lost that was there before."""

import errno
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets import workers
from sordino.fleets.workers import NoRoom
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs import store
from sordino.storage.files import NotWritten
from tests.engine.tiny import BATCH_NORM, TWO_POINT, VALUES, left, recipe

# --- clients and their records ----------------------------------------------------------------------------------------


def test_clients_without_records_take_part_and_change_nothing():
    """Two empty clients among six: the mean of the updates shrinks by a third, and nothing else happens."""
    sizes = {"training.batch_size": 0, "rounds.count": 1, "data.train_limit": 40}
    four = sordino.run(recipe(sizes, split={"kind": "sizes", "sizes": [10, 10, 10, 10]}))
    six = sordino.run(recipe(sizes, split={"kind": "sizes", "sizes": [10, 10, 10, 10, 0, 0], "at_least": 0}))
    start = sordino.run(recipe(sizes, **{"method.server_lr": 1e-30})).parameters.astype(np.float64)
    assert np.allclose(six.parameters - start, (four.parameters - start) * 4 / 6, atol=1e-7)
    assert six.rounds[0].reported == 6 and six.rounds[0].simulation.failed == 0  # type: ignore[union-attr]
    assert six.rounds[0].simulation.train_loss == pytest.approx(  # type: ignore[union-attr]
        four.rounds[0].simulation.train_loss  # type: ignore[union-attr]
    )


def test_clients_of_one_record_train_on_it():
    outcome = sordino.run(recipe({"split": {"kind": "iid", "clients": 40}, "rounds.count": 1}))
    assert outcome.rounds[0].reported == 40
    assert np.sum(outcome.result.label_counts, axis=1).tolist() == [1] * 40


def test_a_class_that_nobody_holds_is_never_found_and_the_report_says_whose_there_are(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (np.eye(3, 4)[y] + rng.normal(0, 0.1, (60, 4))).astype(np.float32)
    known = y < 2
    np.savez(tmp_path / "x.npz", x_train=x[known], y_train=y[known], x_test=x, y_test=y)
    data = {"source": str(tmp_path / "x.npz"), "classes": ["a", "b", "c"], "mean": [0.0], "std": [1.0]}
    given = recipe({"data": data, "training.optimizer": {"name": "sgd", "lr": 1.0}, "rounds.count": 4})
    outcome = sordino.run(given, folder=tmp_path / "run")
    assert outcome.accuracy == pytest.approx(2 / 3)
    assert np.array(outcome.result.label_counts)[:, 2].sum() == 0 and outcome.result.confusion[2][2] == 0  # type: ignore[index]


def test_more_clients_than_examples_name_both_remedies():
    with pytest.raises(RecipeInvalid, match=r"60 clients.*40.*split.at_least"):
        recipe({"split": {"kind": "iid", "clients": 60}})


def test_a_federation_without_a_single_record_is_refused(tmp_path):
    nothing = {"split": {"kind": "sizes", "sizes": [0, 0], "at_least": 0}}
    with pytest.raises(InvalidInput, match=r"split\.sizes"):
        sordino.run(recipe(nothing), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("x", "y"), [("x", "y"), ("x_train", "y_train")], ids=["plain", "train"])
def test_an_archive_without_a_test_part_is_no_data_set_of_a_simulation(x, y, tmp_path):
    np.savez(tmp_path / "own.npz", **{x: np.ones((8, 3)), y: np.arange(8) % 2})
    data = {"source": str(tmp_path / "own.npz"), "classes": ["a", "b"], "mean": [0.0], "std": [1.0]}
    with pytest.raises(InvalidInput, match=r"own\.npz.*x_test and y_test"):
        sordino.run(recipe({"data": data}), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- numbers that are none --------------------------------------------------------------------------------------------


def own_numbers(folder: Path, spoil: Any) -> dict[str, Any]:
    """Four clients' ten records each, those of the first spoilt."""
    rng = np.random.default_rng(1)
    y = np.arange(60) % 2
    x = (y[:, None] + rng.normal(0, 0.3, (60, 3))).astype(np.float32)
    x[:10] = spoil
    np.savez(folder / "own.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    for client in range(4):
        (folder / f"{client}.txt").write_text("\n".join(str(10 * client + k) for k in range(10)))
    return {
        "data": {"source": str(folder / "own.npz"), "classes": ["a", "b"], "mean": [0.0], "std": [1.0]},
        "split": {"kind": "files", "files": [str(folder / f"{client}.txt") for client in range(4)]},
    }


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["NaN", "infinity"])
def test_records_that_are_no_numbers_are_refused_with_their_place(value, tmp_path):
    with pytest.raises(InvalidInput, match=r"own\.npz.*(finite|NaN)"):
        sordino.run(recipe(own_numbers(tmp_path, value)))


@pytest.mark.parametrize("upload", ["update", "weights"])
def test_one_client_whose_training_fails_reports_no_change_and_its_owner_is_told(upload, tmp_path):
    """Records of 3e38 overflow: as if this client were empty, and a NaN never reaches the sum."""
    given = own_numbers(tmp_path, 3e38)
    outcome = sordino.run(recipe(given, **{"method.upload": upload}))
    assert [record.simulation.failed for record in outcome.rounds] == [1, 1, 1]  # type: ignore[union-attr]
    assert [record.reported for record in outcome.rounds] == [4, 4, 4]
    assert any("1 of 4 clients" in sentence and "lr" in sentence for sentence in outcome.result.preflight)
    (tmp_path / "0.txt").write_text("")
    given["split"] = {**given["split"], "at_least": 0}
    without = sordino.run(recipe(given, **{"method.upload": upload}))
    assert np.array_equal(outcome.parameters, without.parameters)


def test_everybodys_training_fails_and_the_model_stays_as_it_is(tmp_path):
    changes = {"training.optimizer": {"name": "sgd", "lr": 1e38}}
    outcome = sordino.run(recipe(changes), folder=tmp_path / "run")
    start = sordino.run(recipe({"method.server_lr": 1e-30}))
    assert np.array_equal(outcome.parameters, start.parameters)
    assert [record.simulation.failed for record in outcome.rounds] == [4, 4, 4]  # type: ignore[union-attr]
    assert "4 of 4 clients" in outcome.result.preflight[0]


@pytest.mark.parametrize(
    ("mechanism", "radius", "epsilon"),
    [
        ({"name": "clip-only", "norm": "box"}, 0.1, None),
        ({"name": "clip-only", "norm": "l1"}, 0.1, None),
        ({"name": "clip-only", "norm": "l2"}, 0.1, None),
        ({"name": "two-point"}, 0.1, 1.0),
        ({"name": "laplace", "norm": "l1"}, 0.1, 1.0),
        ({"name": "gaussian", "norm": "l2", "calibration": "sigma", "sigma": 1.0}, 0.1, None),
        ({"name": "sign"}, 0.1, 1.0),
        ({"name": "exponential", "precision": 6}, 0.1, 0.01),
        ({"name": "piecewise"}, 0.1, 1.0),
        ({"name": "privunit"}, 0.1, 1.0),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_updates_beyond_all_measure_are_clipped_and_stay_finite(mechanism, radius, epsilon):
    """A learning rate of 1e30 gives updates of 1e30, whose squares no float32 holds."""
    changes = {
        "training.optimizer": {"name": "sgd", "lr": 1e30},
        "method.mechanism": mechanism,
        "method.range": {"kind": "fixed", "radius": radius},
        "rounds.count": 1,
    }
    outcome = sordino.run(recipe(changes, **({} if epsilon is None else {"clients.epsilon": epsilon})))
    assert outcome.rounds[0].reported == 4 and outcome.rounds[0].counted
    assert np.isfinite(outcome.parameters).all() and np.abs(outcome.parameters).max() < 100


def test_plain_updates_beyond_all_measure_are_refused_and_the_run_says_why(tmp_path):
    changes = {"training.optimizer": {"name": "sgd", "lr": 1e30}, "rounds.count": 9}
    outcome = sordino.run(recipe(changes), folder=tmp_path / "run")
    assert [(record.refused, record.counted) for record in outcome.rounds] == [(4, False)] * 3
    assert "3 rounds in a row did not count" in outcome.result.stopped and "has diverged" in outcome.result.stopped


def test_a_server_step_beyond_all_measure_leaves_the_model_finite():
    changes = {"method.server_lr": 1e38, "training.optimizer": {"name": "sgd", "lr": 100.0}, "rounds.count": 9}
    outcome = sordino.run(recipe(changes))
    assert np.isfinite(outcome.parameters).all()
    assert outcome.result.rounds == 3 and "lower method.server_lr" in outcome.result.stopped


# --- budgets and quorum -----------------------------------------------------------------------------------------------


def test_budgets_run_out_one_by_one_and_then_the_run_ends(tmp_path):
    """An upload is claimed to cost 650: the four clients can afford one, one, two and three."""
    limits = [700.0, 700.0, 1400.0, 2000.0]
    given = recipe(TWO_POINT, **{"clients.budget": {"limit": limits, "basis": "claimed"}, "rounds.count": 9})
    outcome = sordino.run(given, folder=tmp_path / "run")
    assert [(record.reported, record.declined) for record in outcome.rounds] == [(4, 0), (2, 2), (1, 3)]
    assert [(b.reports, b.declined) for b in outcome.result.budgets] == [(1, 2), (1, 2), (2, 1), (3, 0)]
    assert [b.spent for b in outcome.result.budgets] == [650, 650, 1300, 1950]
    assert "all 4 clients declined in round 4" in outcome.result.stopped
    assert outcome.result.stopped in (tmp_path / "run/report.html").read_text().replace("&#x27;", "'")
    claimed = [r["claimed"]["epsilon"] for r in outcome.statement.to_json()["rows"] if r["adjacency"] == "client"]
    assert sorted(claimed) == [650, 1300, 1950]


def test_a_budget_too_small_for_one_round_ends_with_a_report_of_nothing_released(tmp_path):
    given = recipe(TWO_POINT, **{"clients.budget": {"limit": 10.0}})
    outcome = sordino.run(given, folder=tmp_path / "run")
    assert outcome.result.rounds == 0 and "declined in round 1" in outcome.result.stopped
    assert outcome.statement.to_json()["rows"] == [] and (tmp_path / "run/report.html").exists()
    assert outcome.accuracy is not None
    assert any("decline from round 1" in sentence for sentence in outcome.result.preflight)


def test_what_has_no_proof_leaves_only_if_the_recipe_says_so():
    budget = {"clients.budget": {"limit": 10.0}}
    refused = sordino.run(recipe(budget))
    assert refused.result.rounds == 0 and "clients.allow_unproven" in refused.result.stopped
    allowed = sordino.run(recipe(budget, **{"clients.allow_unproven": ["model update"]}))
    assert allowed.result.rounds == 3


def test_clients_without_a_budget_left_do_not_end_a_run_that_asks_others():
    """One client is asked a round; who has spent its budget declines, and the others still report."""
    limits = [700.0, 700.0, 700.0, 1e9]
    changes = {
        "clients.budget": {"limit": limits, "basis": "claimed"},
        "method.selection": {"kind": "count", "k": 1},
        "rounds.count": 40,
    }
    outcome = sordino.run(recipe(TWO_POINT, **changes))
    assert outcome.result.stopped == "all 40 rounds are done"
    assert [b.reports for b in outcome.result.budgets][:3] == [1, 1, 1]
    assert outcome.result.budgets[3].reports + sum(b.declined for b in outcome.result.budgets) == 37
    declined = [record for record in outcome.rounds if record.declined]
    assert len(declined) > 5 and not any(record.counted for record in declined)


def test_a_run_ends_when_fewer_than_the_quorum_have_budget_left():
    limits = [700.0, 700.0, 1e9, 1e9]
    changes = {"clients.budget": {"limit": limits, "basis": "claimed"}, "rounds.quorum": 3, "rounds.count": 9}
    outcome = sordino.run(recipe(TWO_POINT, **changes))
    assert [record.counted for record in outcome.rounds] == [True, False]
    assert "2 of 4 clients have budget left, fewer than the quorum of 3" in outcome.result.stopped


def test_a_quorum_that_is_never_met_ends_the_run():
    outcome = sordino.run(recipe({"rounds.quorum": 4, "rounds.deadline": 1e-9, "rounds.count": 9}))
    assert [record.counted for record in outcome.rounds] == [False] * 3
    assert "0 reports came and the quorum is 4" in outcome.result.stopped and "deadline" in outcome.result.stopped


# --- models and machines ----------------------------------------------------------------------------------------------


def test_a_model_without_parameters_is_refused(tmp_path, monkeypatch):
    (tmp_path / "bare.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Bare(nn.Module):\n"
        "    def forward(self, x):\n        return torch.zeros(len(x), 10)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match="Bare"):
        sordino.run(recipe({"model.name": "bare:Bare"}), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("device", "remedy"),
    [("cuda", "--device cpu"), ("cuda:7", "--device cpu"), ("tpu", "cpu, cuda and cuda:N"), ("meta", "cpu, cuda and")],
)
def test_a_device_that_is_not_there_is_refused(device, remedy, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InvalidInput, match=remedy):
        sordino.run(recipe(), device=device)


@pytest.mark.parametrize("workers", [0, -3])
def test_no_workers_do_no_work(workers, tmp_path):
    with pytest.raises(InvalidInput, match=f"at least 1, got {workers}"):
        sordino.run(recipe(), workers=workers, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("table", [{"fc": 0.1, "conv1": 0.2}, {"conv1": 0.2}], ids=["one too many", "another"])
@pytest.mark.parametrize("which", ["radius", "centre"])
def test_a_table_of_layers_that_the_model_does_not_have_is_refused(table, which):
    changes = {**TWO_POINT, "method.range": {"kind": "fixed", "radius": 0.1, which: table}}
    with pytest.raises(InvalidInput, match=rf"method\.range\.{which}"):
        sordino.run(recipe(changes))


def test_a_model_that_fails_in_training_is_named_before_the_first_round(tmp_path):
    changes = {**BATCH_NORM, "training.batch_size": 1}
    with pytest.raises(InvalidInput, match="record"):
        sordino.run(recipe(changes), folder=tmp_path / "run")
    sordino.run(recipe(BATCH_NORM), folder=tmp_path / "run")  # and the folder is free


# --- disks ------------------------------------------------------------------------------------------------------------


class FullDisk:
    """A disk that has room for so many more writes of the engine."""

    def __init__(self, patch: pytest.MonkeyPatch, room: int) -> None:
        self.room, self.write = room, os.write
        patch.setattr(os, "write", self)

    def __call__(self, descriptor: int, data: Any) -> int:
        self.room -= 1
        if self.room < 0:
            self.write(descriptor, bytes(data)[:3])  # what fits still gets in
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(descriptor, data)


def test_a_disk_that_fills_up_costs_nothing_that_was_written(tmp_path, monkeypatch):
    """After any number of writes: the error names the remedy, and what is there still resumes to the same end."""
    monkeypatch.setattr(store, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    given = recipe({"rounds.count": 2})
    whole = left(sordino.run(given, folder=tmp_path / "whole").folder or Path())
    resumed = 0
    for room in range(16):
        folder = tmp_path / str(room)
        with monkeypatch.context() as patch:
            FullDisk(patch, room)
            try:
                sordino.run(given, folder=folder)
                break
            except NotWritten as error:
                assert "No space left on device" in str(error) and "Make room" in str(error)
        assert not list(folder.rglob(".*.draft"))
        if (folder / "recipe.toml").exists():
            sordino.run(given, folder=folder, resume=True)
            assert left(folder) == whole
            resumed += 1
    assert resumed == 11  # two lines and a checkpoint for each round, and five files at the end


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_a_folder_that_cannot_be_made_is_refused_with_the_remedy(place, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SordinoError, match="choose another"):
        sordino.run(recipe(), folder=tmp_path / place)
    assert (tmp_path / "file").read_text() == "not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "fixed").mkdir(mode=0o500)
    with pytest.raises(SordinoError, match="choose another"):
        sordino.run(recipe(), folder=tmp_path / "fixed/run")


def test_a_checkpoint_folder_that_cannot_be_made_is_said(tmp_path, monkeypatch):
    made = Path.mkdir

    def mkdir(self: Path, *arguments: Any, **more: Any) -> None:
        if self.name == "checkpoint":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        made(self, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(NotWritten, match=r"checkpoint.*Read-only"):
        sordino.run(recipe(), folder=tmp_path / "run")


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_measurement(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sordino.runs.execution.WORTH_MEASURING", 0.0)
    assert sordino.run(recipe()).result.rounds == 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    (tmp_path / "other/sordino").mkdir(parents=True)
    (tmp_path / "other/sordino/execution.json").write_text("{ damaged")
    measured = sordino.run(recipe())
    assert len(json.loads((tmp_path / "other/sordino/execution.json").read_text())) == 1
    assert np.array_equal(sordino.run(recipe()).parameters, measured.parameters)


def test_no_room_for_the_workers_copy_of_the_data_names_the_remedy(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
        with pytest.raises(NoRoom, match=r"TMPDIR.*--workers 1"):
            sordino.run(recipe(), workers=2)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(workers.tempfile, "TemporaryFile", full)
    with pytest.raises(NoRoom, match=r"No space left.*TMPDIR"):
        sordino.run(recipe(), workers=2)


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_a_recipe_that_was_edited_by_hand_in_its_folder_is_checked_again(tmp_path):
    sordino.run(recipe(), folder=tmp_path / "run")
    edited = (tmp_path / "run/recipe.toml").read_text().replace("count = 3", "count = -3")
    with pytest.raises(RecipeInvalid, match=r"rounds\.count"):
        Recipe.from_toml(edited)


def test_figures_stay_finite_where_the_model_gives_none():
    """A model whose scores overflow has no loss to report; that is said as null, never as NaN."""
    outcome = sordino.run(
        recipe({"method.server_lr": 1e20, "training.optimizer": {"name": "sgd", "lr": 1.0}, "rounds.count": 1})
    )
    text = json.dumps(outcome.to_json(), allow_nan=False)
    assert outcome.result.loss is None or math.isfinite(outcome.result.loss)
    assert f'"parameters": {VALUES}' in text
