"""`sordino client init|show|join|serve`, as owners call them."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino.client.client import Client
from tests.client import people
from tests.client.people import COST, NAME, invitation, plans, signed

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from click.testing import Result
    from typer.testing import CliRunner

    from sordino.cli import app


def sordino(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["client", *map(str, arguments)], input=answer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "clinic"
    done = sordino("init", made, "--data", "digits", "--rows", "0-19", "--budget", "2000", "--name", "north")
    assert done.exit_code == 0, done.output
    assert "Made the client north" in done.stdout and "20 records" in done.stdout
    return made


@pytest.fixture
def invited(tmp_path: Path) -> Path:
    path = tmp_path / "demo.invitation"
    path.write_bytes(invitation().encode())
    return path


def shown(folder: Path) -> dict[str, Any]:
    done = sordino("show", folder, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_joining_shows_the_statement_and_asks(folder, invited):
    done = sordino("join", folder, invited, answer="n\n")
    assert done.exit_code == 1
    assert "What digits-demo would learn of you" in done.stdout
    assert "Of 3 rounds your budget allows 3" in done.stdout
    assert shown(folder)["federations"] == {}
    assert sordino("join", folder, invited, answer="y\n").exit_code == 0
    assert shown(folder)["federations"] == {NAME: 0}
    again = sordino("join", folder, invited)
    assert "nothing has changed" in again.stdout


def test_yes_answers_and_show_tells_what_was_spent_in_its_terms(folder, invited):
    assert sordino("join", folder, invited, "--yes").exit_code == 0
    with Client.open(folder) as client:
        client.answer("report", signed(plans()(1)))
    found = shown(folder)
    assert found["budget"]["spent"] == pytest.approx(COST)
    assert found["budget"]["terms"] == "proven, against server, adjacency client, delta 0"
    assert found["federations"] == {NAME: 1}
    text = sordino("show", folder).stdout
    assert "Client      north" in text and "answered up to round 1" in text
    assert "epsilon 2000 (proven, against server, adjacency client, delta 0)" in text


def test_show_names_the_data_with_which_the_budget_is_shared(folder):
    settings = folder / "client.toml"
    own = settings.read_text()
    assert shown(folder)["one_budget_with"] == []
    settings.write_text(own.replace("[data]", '[data]\nname = "renamed"'))
    assert (shown(folder)["one_budget_with"], shown(folder)["disjoint_from"]) == (["records"], [])
    assert "records: epsilon 2000 (proven, against server, adjacency client" in sordino("show", folder).stdout
    settings.write_text(own.replace("[data]", '[data]\nname = "renamed"\ndisjoint_from = ["records"]'))
    assert (shown(folder)["one_budget_with"], shown(folder)["disjoint_from"]) == ([], ["records"])
    assert "also under records" in sordino("show", folder).stdout


def test_releases_without_a_proof_are_unprotected_wherever_their_number_stands(tmp_path):
    given = people.recipe({"method.mechanism": {"name": "none"}, "method.range": None, "clients.epsilon": None})
    with people.joined(tmp_path / "a", given, people.settings(unproven=["model update"])) as client:
        for round in (1, 2):
            client.answer("report", signed(plans(given)(round), given=given))
    assert shown(tmp_path / "a")["budget"]["unprotected"] == 2
    (spent,) = [line for line in sordino("show", tmp_path / "a").stdout.splitlines() if line.startswith("Spent")]
    answered = [line for line in (tmp_path / "a" / "log.txt").read_text().splitlines() if "answered" in line]
    assert "2 of them UNPROTECTED" in spent
    assert "1 release left UNPROTECTED" in answered[0] and "2 releases left UNPROTECTED" in answered[1]


def test_what_cannot_be_joined_is_refused_in_a_sentence(folder, tmp_path):
    path = tmp_path / "x.invitation"
    path.write_bytes(b"nonsense")
    done = sordino("join", folder, path, "--yes")
    assert (done.exit_code, done.stderr) == (1, "Refused: this is not an invitation\n")
    assert sordino("join", folder, tmp_path / "none", "--yes").exit_code == 1
    assert "no client's folder" in sordino("show", tmp_path).stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--data", "digit"), "unknown data set 'digit'; did you mean 'digits'?"),
        (("--data", "nowhere.csv"), "data.classes (--classes: "),
        (("--data", "nowhere.csv", "--classes", "a,b", "--label", "y"), f"{Path.cwd() / 'nowhere.csv'}"),
        (("--data", "digits", "--basis", "claimed"), "consents.claimed = true (--claimed)"),
    ],
    ids=["unknown data", "undescribed data", "missing data", "claims"],
)
def test_what_is_missing_or_misspelt_is_named_and_no_folder_is_made(tmp_path, options, said):
    done = sordino("init", tmp_path / "x", "--budget", 5, *options)
    assert done.exit_code == 1 and said in done.stderr
    assert not (tmp_path / "x").exists()


def test_bad_options_make_no_folder(tmp_path):
    done = sordino("init", tmp_path / "x", "--data", "digits", "--budget", "-1")
    assert done.exit_code == 1 and "budget.limit" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "with the invitation that shows it"])
def test_an_older_ledger_is_accepted_by_its_owner_only(folder, invited, tmp_path, noticed):
    sordino("join", folder, invited, "--yes")
    shutil.copytree(folder, tmp_path / "backup")
    with Client.open(folder) as client:
        receipt = client.reply("report", signed(plans()(1))).receipt
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    invited.write_bytes(replace(invitation(), receipt=receipt.hex()).encode())
    if noticed:
        refused = sordino("join", folder, invited, "--yes")
        assert refused.exit_code == 1 and "--accept-older-ledger" in refused.stderr
        assert "STOPPED" in sordino("show", folder).stdout
    done = sordino("join", folder, invited, "--yes", "--accept-older-ledger")
    assert done.exit_code == 0, done.output
    assert "epsilon 1950 is spent now (proven, against server, adjacency client, delta 0)" in done.stdout
    assert shown(folder)["budget"]["spent"] == pytest.approx(3 * COST)


def test_nothing_on_the_command_line_sets_randomness():
    for command in ("init", "show", "join", "serve"):
        words = sordino(command, "--help").stdout.lower()
        assert "seed" not in words and "random" not in words


def test_a_clients_folder_is_shown_and_its_budget_is_changed_elsewhere(folder):
    """`show` takes the folder for its ledger; what changes a budget or a consent names the file alone."""
    shown = CliRunner().invoke(app, ["ledger", "show", str(folder), "--json"])
    assert json.loads(shown.stdout)["path"] == str(folder / "ledger.sqlite")
    for words in (["budget", str(folder), "own", "--epsilon", "9"], ["consent", str(folder), "own", "--claimed"]):
        done = CliRunner().invoke(app, ["ledger", *words])
        assert done.exit_code == 1 and str(folder / "ledger.sqlite") in done.output
