"""`sordino attack`, and attacks at the end of `sordino run`, as their users see them."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import sordino
from sordino.audits import run_attack
from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.parts.shipped import SHIPPED
from sordino.privacy.leaks import Share
from sordino.report.attack_file import FILE, AttackFile
from sordino.report.leak_words import CAVEAT
from tests.audits.runs import small
from tests.engine.tiny import recipe
from tests.report.leaks import LEAKS

ATTACKS = tuple(SHIPPED["attack"])


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here") / "runs" / "tiny"
    sordino.run(small("two-point"), folder=folder, workers=1)
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """A finished run at runs/tiny of the current folder."""
    shutil.copytree(finished, tmp_path / "runs" / "tiny")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "tiny"


@pytest.fixture
def planted(monkeypatch):
    """Leaks by hand in place of attacks; every call's names and options."""
    calls, leaks = [], list(LEAKS)

    def carry_out(run, attacks, asked):
        names = tuple(attack.name for attack in attacks)
        calls.append((names, asked))
        return tuple(leak for leak in leaks if leak.attack in names), ("linking: one round",)

    monkeypatch.setattr(run_attack, "_carry_out", carry_out)
    return calls, leaks


def test_the_table_shows_found_guessing_and_bound(folder, planted):
    result = run("attack", "runs/tiny")
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in result.stdout.splitlines() if "│" in line]
    assert rows == [
        ["reconstruction, gradient matching", "without protection", "31 of 32, 96.9 % (83.8 to 99.9 %)", "0.1 %",
         "no proof"],
        ["reconstruction, gradient matching", "this run", "2 of 32, 6.2 % (0.8 to 20.8 %)", "0.1 %", "100.0 %"],
        ["membership, likelihood ratio", "without protection", "210 of 500, 42.0 % (37.6 to 46.5 %)", "1.0 %",
         "no proof"],
        ["membership, likelihood ratio", "this run", "9 of 500, 1.8 % (0.8 to 3.4 %)", "1.0 %", "7.4 %"],
    ]  # fmt: skip
    assert CAVEAT in result.stdout
    assert "No linking attack: one round." in result.stdout
    assert AttackFile.read(folder).leaks == LEAKS


def test_options_reach_the_attacks(folder, planted):
    which = ("--what", "labels", "--what", "membership", "--client", 3)
    result = run("attack", folder, *which, "--seed", 8, "--thorough", "--workers", 2)
    assert result.exit_code == 0, result.output
    ((names, asked),) = planted[0]
    assert names == ("membership", "labels")
    assert (asked.client, asked.seed, asked.thorough, asked.device, asked.workers) == (3, 8, True, "cpu", 2)


def test_json_has_all_leaks(folder, planted):
    found = json.loads(run("attack", folder, "--json").stdout)
    assert set(found) == {"run", "leaks", "left_out", "seconds"}
    assert [leak["share"]["hits"] for leak in found["leaks"]] == [31, 2, 210, 9]
    assert len(found["leaks"][0]["interval"]) == 2


def test_a_violated_bound_is_exit_code_1_and_nothing_is_written(folder, planted):
    planted[1][-1] = replace(LEAKS[-1], share=Share(400, 500))
    before = (folder / "report.html").read_bytes()
    result = run("attack", folder)
    assert result.exit_code == 1
    assert "PROVEN BOUND VIOLATED" in result.stderr
    assert not (folder / FILE).exists()
    assert (folder / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("tiny",), "runs/tiny: give that"),
        (("runs",), "no recipe.toml"),
        (("nowhere",), "not a run's folder"),
        (("runs/tiny", "--what", "guess"), "membership"),
        (("runs/tiny", "--client", "9"), "0 to 3"),
        (("runs/tiny", "--device", "tpu"), "cuda"),
        (("runs/tiny", "--workers", "0"), "workers"),
    ],
)
def test_bad_requests_are_refused_with_a_remedy(folder, planted, arguments, remedy):
    result = run("attack", *arguments)
    assert result.exit_code == 1
    assert remedy in result.stderr
    assert "Traceback" not in result.stderr
    assert planted[0] == []


def test_the_help_names_every_attack():
    words = " ".join(re.sub(r"[^\w,.-]", " ", run("attack", "--help").stdout).split())
    assert all(name in words for name in ATTACKS)


# --- in a recipe ------------------------------------------------------------------------------------------------------


def test_a_recipe_can_have_its_run_attacked(tmp_path, planted):
    path = tmp_path / "tiny.toml"
    path.write_text(f'{recipe().to_toml()}\n[attacks]\nwhat = ["membership"]\nthorough = true\n')
    result = run("run", path, "--out", tmp_path / "run", "--workers", 1, "--json")
    assert result.exit_code == 0, result.output
    ((names, asked),) = planted[0]
    assert (names, asked.thorough, asked.seed) == (("membership",), True, 7)
    assert [leak["attack"] for leak in json.loads(result.stdout)["attacks"]["leaks"]] == ["membership"] * 2
    assert len(AttackFile.read(tmp_path / "run").leaks) == 2


def test_every_run_of_a_sweep_is_attacked_once(tmp_path, planted):
    path, out = tmp_path / "tiny.toml", tmp_path / "sweep"
    path.write_text(f'{recipe({"rounds.count": 1}).to_toml()}\n[attacks]\nwhat = ["membership", "linking"]\n')
    for _ in range(2):  # the second time everything is there
        result = run("sweep", path, "--seeds", 2, "--out", out, "--workers", 1)
        assert result.exit_code == 0, result.output
    assert [(names, asked.seed, asked.workers) for names, asked in planted[0]] == [
        (("membership", "linking"), 7, 1),
        (("membership", "linking"), 8, 1),
    ]
    assert [len(AttackFile.read(out / f"seed={seed}").leaks) for seed in (7, 8)] == [2, 2]
    AttackFile().write(out / "seed=8")
    assert run("sweep", path, "--seeds", 2, "--out", out, "--json").exit_code == 0
    assert [asked.seed for _, asked in planted[0]] == [7, 8, 8]


def test_a_run_without_the_table_is_not_attacked(tmp_path, planted):
    path = tmp_path / "tiny.toml"
    path.write_text(recipe().to_toml())
    result = run("run", path, "--out", tmp_path / "run", "--workers", 1)
    assert result.exit_code == 0, result.output
    assert planted[0] == []
    assert not (tmp_path / "run" / FILE).exists()


def test_real_clients_are_not_asked_for_reports_to_be_attacked(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(recipe({"attacks": {}}).to_toml())
    sockets = [word for number in range(4) for word in ("--client", tmp_path / f"{number}.sock")]
    result = run("run", path, *sockets, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "--set attacks=" in result.stderr
    assert not (tmp_path / "run").exists()


def test_attacks_change_no_other_recipe():
    assert "attacks" not in recipe().to_dict()
    assert recipe().attacks is None
    assert recipe({"attacks": {}}).attacks.what == ATTACKS
    assert recipe({"attacks": {}}).override(["attacks="]).fingerprint == recipe().fingerprint


@pytest.mark.parametrize("wrong", [{"what": ["all"]}, {"what": []}, {"what": 3}, {"client": 1}, {"thorough": "yes"}])
def test_a_wrong_table_is_refused_by_its_key(wrong):
    with pytest.raises(InvalidInput, match=f"attacks.{next(iter(wrong))}"):
        recipe({"attacks": wrong})
