import json
import re
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import sordino
from sordino.audits import catalogue, channels, faults
from sordino.audits.faults import FAULTS, Fault
from sordino.audits.finished_run import FinishedRun
from sordino.cli import app
from sordino.mechanisms import TwoPoint
from tests.audits.runs import small

FIELDS = {"mechanism", "unit", "adjacency", "adversary", "claimed", "proven", "audited", "confidence", "trials", "cap",
          "verdict", "seed", "attack", "basis", "delta"}  # fmt: skip


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    """What is checked with many values is checked with fewer: here it is about the command."""
    monkeypatch.setattr("sordino.mechanisms.cases.WIDE", (128, 3_001))


def run(*arguments):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_json_has_complete_rows_and_checks():
    result = run("label", "--trials", "2000", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    rows, checks = found["rows"], found["checks"]
    assert len(rows) == 1
    assert set(rows[0]) >= FIELDS
    assert rows[0]["audited"] <= rows[0]["proven"]
    assert [one["subject"] for one in checks] == ["label, 257 values", "label, 3,001 values"]
    assert all(one["passed"] and {"check", "p", "sees", "where"} == set(one["looks"][0]) for one in checks)


def test_the_table_names_unit_adjacency_and_adversary_beside_every_epsilon():
    result = run("sign", "--trials", "2000")
    assert result.exit_code == 0
    for word in ("one value", "coordinate, server", "claimed", "proven", "audited", "consistent", "95% confidence"):
        assert word in result.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_the_verdict_can_be_read_on_any_terminal(columns, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", run("laplace", "--trials", "2000").stdout)
    cells = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    verdicts = " ".join(" ".join(row[-1].strip() for row in cells).split())
    assert verdicts == "consistent consistent claim refuted by experiment" + 4 * " passed"
    assert ("show also:" in text and "trials" in text.partition("show also:")[2].partition("Checks")[0]) == (
        columns == 80
    )
    assert "1 published claim is refuted by experiment" in text


def test_several_strengths_give_rows_for_each():
    result = run("label", "--trials", "2000", "--epsilon", "1", "--epsilon", "3", "--json")
    assert [round(row["proven"], 3) for row in json.loads(result.stdout)["rows"]] == [1.0, 3.0]


PLANTED = FAULTS[0], Fault("none at all", "shuffler", channels.shuffler)


def test_planted_faults_are_caught_and_that_is_a_success(monkeypatch):
    monkeypatch.setattr(faults, "FAULTS", PLANTED[:1])
    result = run("--broken", "--json")
    assert result.exit_code == 0
    (found,) = json.loads(result.stdout)
    assert (found["fault"], found["caught"]) == ("noise halved", True)
    assert {one["check"] for one in found["looks"]} >= {"noise by coordinate", "noise of all"}
    assert "1 of 1 planted faults were caught" in run("--broken").stdout


def test_an_unnoticed_fault_is_a_failure(monkeypatch):
    monkeypatch.setattr(faults, "FAULTS", PLANTED)
    result = run("--broken")
    assert result.exit_code == 1
    assert "MISSED" in result.stdout


def test_a_failed_check_is_a_violation_of_every_row_of_its_mechanism(monkeypatch):
    (halved,) = PLANTED[0].build()
    monkeypatch.setattr("sordino.audits.mechanisms.subjects", lambda mechanism, epsilon: [halved])
    result = run("sign", "--trials", "2000", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert {row["verdict"] for row in found["rows"]} == {"PROVEN BOUND VIOLATED"}
    assert "noise of all" in found["rows"][0]["note"]
    assert not found["checks"][0]["passed"]


def test_the_help_names_everything_that_can_be_audited():
    words = " ".join(re.sub(r"[^\w,.-]", " ", run("--help").stdout).split())
    for name in [*catalogue.audited(), *catalogue.PROGRAMS]:
        assert name in words


def test_programs_without_an_epsilon_are_checked_by_name():
    result = run("shuffler", "--checks")
    assert result.exit_code == 0
    for word in ("shuffler, single values", "smallest fault it sees", "pairs of rows", "passed"):
        assert word in result.stdout


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("laplacian",), "two-point"),
        (("label", "--trials", "5"), "100"),
        (("label", "--epsilon", "0"), "0.01"),
        (("label", "--all"), "--all"),
        (("--all", "--broken"), "not both"),
        (("--broken", "--trials", "5000"), "--trials"),
        (("label", "--client", "1"), "name its folder"),
        (("--canaries", "100"), "name its folder"),
        (("runs/none",), "not a run's folder"),
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
    assert json.loads(done.stdout)["rows"][0]["mechanism"] == "label"
    assert done.stderr == ""


# --- runs -------------------------------------------------------------------------------------------------------------


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


def test_a_runs_table_goes_into_its_statement(folder):
    result = run("runs/tiny", "--trials", "2000")
    assert result.exit_code == 0
    for word in ("Audit of runs/tiny, client 3", "upload of round 1, 650 values", "one value", "coordinate, server",
                 "its own records against those of client 0", "Written: runs/tiny/statement.json"):  # fmt: skip
        assert word in result.stdout
    audited = [row["audited"] for row in json.loads((folder / "statement.json").read_text())["rows"]]
    assert sum(found is not None for found in audited) == 2
    assert re.search(r"^row 1: ", result.stdout, re.MULTILINE)


def test_a_runs_audit_as_json_has_rows_and_statement(folder):
    result = run("runs/tiny", "--trials", "2000", "--client", "0", "--round", "2", "--seed", "5", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert set(found["rows"][0]) >= FIELDS
    assert found["rows"][0]["seed"] == 5
    assert found["rows"][0]["unit"].startswith("upload of round 2")
    assert found["clients"] == "clients 0-1"
    assert found["statement"]["rows"][0]["audited"]["epsilon"] > 0


def test_a_violated_proof_is_exit_code_1_and_leaves_the_statement_alone(folder, monkeypatch):
    honest = FinishedRun.open

    def weakened(path, data=None):
        found = honest(path, data)
        upload = found.federation.upload
        upload.__dict__["mechanisms"] = tuple(TwoPoint(2 * m.epsilon, m.domain) for m in upload.mechanisms)
        return found

    monkeypatch.setattr(FinishedRun, "open", weakened)
    before = (folder / "statement.json").read_bytes()
    result = run("runs/tiny", "--trials", "20000")
    assert result.exit_code == 1
    assert "PROVEN BOUND VIOLATED (one value, coordinate, server): at delta" in result.stdout
    assert "The run's statement was left as it was." in result.stdout
    assert (folder / "statement.json").read_bytes() == before
    assert not (folder / "audit.json").exists()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("tiny",), "runs/tiny: give that"),
        (("runs/tiny", "--epsilon", "2"), "leave --epsilon out"),
        (("runs/tiny", "--client", "9"), "0 to 3"),
        (("runs/tiny", "--broken"), "--broken"),
        (("runs",), "no recipe.toml"),
    ],
)
def test_bad_requests_about_a_run_are_refused_with_a_remedy(folder, arguments, remedy):
    result = run(*arguments)
    assert result.exit_code == 1
    assert remedy in result.stderr
    assert "Traceback" not in result.stderr
