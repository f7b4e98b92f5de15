"""Attacks on a finished run: what is asked of the entry points, and what becomes of their leaks."""

import json
import shutil
import sys
from dataclasses import replace
from types import ModuleType

import pytest

import sordino
from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.run_attack import ENTRY_POINTS, attack
from sordino.errors import BoundViolated, InvalidInput
from sordino.privacy.leaks import ATTACKS, Leak, Share
from sordino.report.attack_file import FILE, AttackFile
from sordino.report.leak_section import TITLE
from tests.audits.runs import small
from tests.report.leaks import MEMBERS, PICTURES

LABELS = (Leak("labels", "run", "signs", Share(5, 10), chance=0.1, bound=0.9),)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    sordino.run(small("two-point"), folder=folder, workers=1)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def entries(monkeypatch):
    """What each entry point gives, or raises; and what it was called with."""
    found = {"reconstruction": PICTURES, "membership": MEMBERS, "labels": LABELS, "linking": InvalidInput("one round")}
    calls = []

    def planted(name):
        def entry(run, asked):
            calls.append((name, run, asked))
            if isinstance(found[name], Exception):
                raise found[name]
            return found[name]

        return entry

    for name, (module, entry) in ENTRY_POINTS.items():
        home = ModuleType(module)
        setattr(home, entry, planted(name))
        monkeypatch.setitem(sys.modules, f"sordino.audits.{module}", home)
    found["calls"] = calls
    return found


def test_every_attack_has_an_entry_point():
    assert tuple(ENTRY_POINTS) == ATTACKS


def test_all_attacks_are_tried_on_the_same_run_with_the_same_options(folder, entries):
    options = AttackOptions(client=2, seed=5, thorough=True)
    found = attack(folder, options=options)
    assert [name for name, *_ in entries["calls"]] == list(ATTACKS)
    assert {id(run) for _, run, _ in entries["calls"]} == {id(found.run)}
    assert all(asked == options for *_, asked in entries["calls"])
    assert found.leaks == (*PICTURES, *MEMBERS, *LABELS)
    assert found.left_out == ("linking: one round",)
    assert found.seconds > 0
    assert not (folder / FILE).exists()


def test_only_what_is_asked_for_is_tried_once_each(folder, entries):
    found = attack(folder, ["labels", "membership", "labels"])
    assert [name for name, *_ in entries["calls"]] == ["membership", "labels"]
    assert found.leaks == (*MEMBERS, *LABELS)


def test_an_attack_that_gives_nothing_is_left_out(folder, entries):
    entries["labels"] = ()
    (words,) = attack(folder, ["labels"]).left_out
    assert words.startswith("labels: ")


def test_what_was_found_is_written_and_stands_on_the_page(folder, entries):
    found = attack(folder)
    found.write()
    assert AttackFile.read(folder) == AttackFile(found.leaks, found.left_out)
    page = (folder / "report.html").read_text()
    assert TITLE in page and PICTURES[1].pictures[0] in page
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["leaks"][0]["share"] == {"hits": 31, "trials": 32}


def test_attacks_that_are_not_asked_for_keep_their_rows(folder, entries):
    attack(folder).write()
    better = (replace(LABELS[0], share=Share(7, 10)),)
    entries["labels"] = better
    entries["membership"] = InvalidInput("no thresholds")
    attack(folder, ["labels", "membership"]).write()
    after = AttackFile.read(folder)
    assert after.leaks == (*PICTURES, *better)
    assert set(after.left_out) == {"linking: one round", "membership: no thresholds"}


def test_a_damaged_file_of_earlier_attacks_is_replaced(folder, entries):
    (folder / FILE).write_text("{")
    attack(folder, ["labels"]).write()
    assert AttackFile.read(folder).leaks == LABELS


def test_more_than_is_proven_is_an_error(folder, entries):
    entries["labels"] = (replace(LABELS[0], share=Share(99, 100), bound=0.2),)
    with pytest.raises(BoundViolated, match=r"labels .*99 of 100"):
        attack(folder)
    assert not (folder / FILE).exists()


def test_runs_of_real_clients_are_refused(folder, entries, monkeypatch):
    honest = FinishedRun.open
    monkeypatch.setattr(FinishedRun, "open", lambda path, data=None: replace(honest(path, data), simulated=False))
    with pytest.raises(InvalidInput, match="real clients"):
        attack(folder)
    assert entries["calls"] == []


@pytest.mark.parametrize(
    ("what", "options", "remedy"),
    [
        (["guessing"], {}, "reconstruction"),
        (None, {"client": 9}, "0 to 3"),
        (None, {"device": "tpu"}, "cuda"),
        (None, {"seed": -1}, "seed"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_any_attack(folder, entries, what, options, remedy):
    with pytest.raises(InvalidInput, match=remedy):
        attack(folder, what, AttackOptions(**options))
    assert entries["calls"] == []
