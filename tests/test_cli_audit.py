import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sordino.cli import app

FIELDS = {"mechanism", "unit", "adjacency", "adversary", "claimed", "proven", "audited", "confidence", "trials", "cap",
          "verdict", "seed", "attack", "basis", "delta"}  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_json_is_a_list_of_complete_rows():
    result = run("label", "--trials", "2000", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert len(rows) == 1
    assert set(rows[0]) >= FIELDS
    assert rows[0]["audited"] <= rows[0]["proven"]


def test_the_table_names_unit_adjacency_and_adversary_beside_every_epsilon():
    result = run("sign", "--trials", "2000")
    assert result.exit_code == 0
    for word in ("one value", "coordinate, server", "claimed", "proven", "audited", "consistent", "95% confidence"):
        assert word in result.stdout


def test_several_strengths_give_rows_for_each():
    result = run("label", "--trials", "2000", "--epsilon", "1", "--epsilon", "3", "--json")
    assert [round(row["proven"], 3) for row in json.loads(result.stdout)] == [1.0, 3.0]


def test_broken_copies_are_caught_and_that_is_a_success():
    result = run("--broken", "--json")
    assert result.exit_code == 0
    assert [row["verdict"] for row in json.loads(result.stdout)] == ["PROVEN BOUND VIOLATED"] * 3


def test_an_unnoticed_broken_copy_is_a_failure():
    assert run("--broken", "--trials", "100").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("laplacian",), "two-point"),
        (("label", "--trials", "5"), "100"),
        (("label", "--epsilon", "0"), "0.01"),
        (("label", "--all"), "--all"),
        (("--all", "--broken"), "not both"),
    ],
)
def test_bad_arguments_are_refused_with_a_remedy_and_no_traceback(arguments, remedy):
    result = run(*arguments)
    assert result.exit_code == 1
    assert remedy in result.stderr
    assert "Traceback" not in result.stderr


def test_the_installed_command_works_in_a_process_of_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "sordino", "audit", "label", "--trials", "2000", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)[0]["mechanism"] == "label"
    assert done.stderr == ""
