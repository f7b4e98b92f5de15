"""Attacks on a finished run: what is asked of the entry points, and what becomes of their leaks."""

import json
import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import sordino
from sordino.audits import run_attack
from sordino.audits.attack_interface import RunAttack, find_attack
from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.run_attack import attack
from sordino.errors import BoundViolated, InvalidInput
from sordino.parts.shipped import SHIPPED
from sordino.privacy.leaks import Leak, Share
from sordino.recipe import CodeNotAllowed, Recipe
from sordino.report.attack_file import FILE, AttackFile
from sordino.report.caveats import own_code_caveats
from sordino.report.leak_section import TITLE
from sordino.report.leak_words import sentences
from tests.audits.runs import small
from tests.engine.tiny import recipe
from tests.report.leaks import MEMBERS, PICTURES

ATTACKS = tuple(SHIPPED["attack"])
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
    """What each attack gives, or raises; and what it was called with."""
    found = {"reconstruction": PICTURES, "membership": MEMBERS, "labels": LABELS, "linking": InvalidInput("one round")}
    calls = []

    class Planted(RunAttack):
        needs = "luck"

        def __init__(self, name):
            self.name = name

        def carry_out(self, run, asked):
            calls.append((self.name, run, asked))
            if isinstance(found[self.name], Exception):
                raise found[self.name]
            return found[self.name]

        def deed(self, leak):
            return leak.deed

    monkeypatch.setattr(run_attack, "find_attack", lambda name: Planted(find_attack(name).name))
    found["calls"] = calls
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_calls_itself_what_recipes_call_it(name):
    own = find_attack(name)
    assert own.name == name
    assert own.needs


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


# --- an attack of one's own -------------------------------------------------------------------------------------------


class Guesser(RunAttack):
    """Guesses which client has most records."""

    name: ClassVar[str] = "most-records"
    needs: ClassVar[str] = "two clients"

    def carry_out(self, run, asked):
        return (Leak(self.name, "run", "guessing", Share(1, run.clients), 1 / run.clients, seed=asked.seed),)

    def deed(self, leak):
        return "clients the attack names"


class Impostor(Guesser):
    name: ClassVar[str] = "membership"


class Stranger(Guesser):
    def carry_out(self, run, asked):
        return LABELS


class Unreadable(Guesser):
    def carry_out(self, run, asked):
        return (replace(super().carry_out(run, asked)[0], chance=float("nan")),)


class Counting(Guesser):
    def carry_out(self, run, asked):
        hits = np.array([True, False])
        return (replace(super().carry_out(run, asked)[0], share=Share(hits.sum(), np.int64(len(hits)))),)


GUESSER = f"{__name__}:Guesser"


def test_an_attack_of_ones_own_is_named_by_its_address(folder):
    found = attack(folder, [GUESSER], AttackOptions(seed=3))
    found.write()
    assert [(leak.attack, leak.seed) for leak in found.leaks] == [("most-records", 3)]
    (sentence,) = sentences(AttackFile.read(folder).leaks)
    assert "of 4 clients the attack names 1 in this run" in sentence
    assert sentence.replace("'", "&#x27;") in (folder / "report.html").read_text()


def test_rows_of_ones_own_stand_below_those_of_shipped_attacks(folder, entries, monkeypatch):
    attack(folder, ["labels"]).write()
    monkeypatch.setattr(run_attack, "find_attack", find_attack)
    attack(folder, [GUESSER]).write()
    assert [leak.attack for leak in AttackFile.read(folder).leaks] == ["labels", "most-records"]


@pytest.mark.parametrize(
    ("address", "why"),
    [("Impostor", "no shipped name"), ("AttackOptions", "no attack"), ("Nobody", "could not be imported")],
)
def test_what_is_no_attack_is_refused(folder, address, why):
    with pytest.raises(InvalidInput, match=why):
        attack(folder, [f"{__name__}:{address}"])


def test_an_attack_that_gives_the_leaks_of_another_is_left_out(folder):
    found = attack(folder, [f"{__name__}:Stranger"])
    assert found.leaks == ()
    assert found.left_out[0].startswith("most-records: ")


def test_a_leak_that_could_not_be_read_again_does_not_spoil_the_file(folder):
    attack(folder, [GUESSER]).write()
    found = attack(folder, [f"{__name__}:Unreadable"])
    assert found.leaks == () and "no report can show" in found.left_out[0]
    found.write()
    assert AttackFile.read(folder).left_out == found.left_out


def test_numbers_of_numpy_are_written_as_numbers(folder):
    attack(folder, [f"{__name__}:Counting"]).write()
    (leak,) = AttackFile.read(folder).leaks
    assert leak.share == Share(1, 2)


def test_a_recipe_names_attacks_of_ones_own_and_says_so():
    given = recipe({"attacks": {"what": ["membership", GUESSER]}})
    assert given.attacks.what == ("membership", GUESSER)
    assert given.own_code == (GUESSER,)
    assert own_code_caveats(given) == ()  # it protects nothing
    with pytest.raises(CodeNotAllowed):
        Recipe.from_toml(given.to_toml())
