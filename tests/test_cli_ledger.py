"""`sordino ledger show|verify|budget|consent|compact`, as its users call it."""

import json
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Derived, Guarantee, Infinite, Pure, Release
from sordino.privacy.ledger import Ledger, Released, ReportKey
from sordino.privacy.statement import PlannedFor, Statement
from sordino.report.caveats import MOD_TRUST
from sordino.report.statement import APP_TRUST, lead_facts, lead_text

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from click.testing import Result
    from typer.testing import CliRunner

    from sordino.cli import app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def sordino(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)], input=answer)


def as_json(*arguments: object) -> Any:
    result = sordino(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def fill(path: Path) -> str:
    """A budget of 2, one proven release of 0.5 with a claim, one unprotected one, one derived one; gives the head."""
    assert sordino("budget", path, "wards", "--epsilon", 2).exit_code == 0
    assert sordino("consent", path, "wards", "--unproven", "labels").exit_code == 0
    proven = Guarantee(SERVER, Adjacency.CLIENT, Pure(0.5), "Theorem 7")
    bare = Guarantee(SERVER, Adjacency.LABEL, Infinite("sent as they are"), "none")
    with Ledger.open(path) as ledger:
        update = Release("u1", "wards", "update [bold]", (proven,), Claim(0.1, 1e-5, "eps = 0.1"))
        ledger.record(ReportKey("wards", "north", 1, "ab"), update, b"1")
        ledger.record(ReportKey("wards", "north", 2, "ab"), Release("l1", "wards", "labels", (bare,)), b"2")
        model = Release("m1", "wards", "model", (), composition=Derived(("u1",)))
        ledger.record(ReportKey("wards", "north", 3, "ab"), model, b"3")
        return ledger.head()


def test_budget_makes_the_ledger_and_says_so(path: Path) -> None:
    result = sordino("budget", path, "wards", "--epsilon", 2, "--delta", 1e-5, "--adjacency", "record-replace")
    assert result.exit_code == 0
    assert f"Made a new ledger: {path}" in result.output
    assert "epsilon 2 (proven, against server, adjacency record (replace), delta 1e-5)" in result.stdout
    with Ledger.open(path) as ledger:
        assert ledger.standing("wards").left == 2


def test_options_left_out_keep_their_value_and_lowering_needs_no_question(path: Path) -> None:
    sordino("budget", path, "wards", "--epsilon", 2, "--adjacency", "label", "--adversary", "model-reader")
    budget = as_json("budget", path, "wards", "--epsilon", 1)["budget"]
    assert budget == {"limit": 1.0, "delta": 0.0, "basis": "proven", "adjacency": "label", "adversary": "model reader"}


@pytest.mark.parametrize("change", [["--epsilon", 3], ["--epsilon", 2, "--delta", 0.1]])
def test_loosening_a_budget_is_asked_about(path: Path, change: list[object]) -> None:
    sordino("budget", path, "wards", "--epsilon", 2)
    refused = sordino("budget", path, "wards", *change, answer="n\n")
    assert refused.exit_code == 1
    assert "More may leave then" in refused.output
    assert len(as_json("show", path)["entries"]) == 2
    assert sordino("budget", path, "wards", *change, answer="y\n").exit_code == 0
    assert len(as_json("show", path)["entries"]) == 3


def test_other_terms_are_asked_about_unless_yes(path: Path) -> None:
    sordino("budget", path, "wards", "--epsilon", 2)
    assert sordino("budget", path, "wards", "--epsilon", 1, "--adjacency", "coordinate", answer="").exit_code == 1
    assert sordino("budget", path, "wards", "--epsilon", 1, "--adjacency", "coordinate", "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--epsilon", -1], "> 0"),
        (["--epsilon", "nan"], "> 0"),
        (["--epsilon", 1, "--delta", 1], "delta must lie in [0, 1)"),
        (["--epsilon", 1, "--basis", "hoped"], "'proven' or 'claimed'"),
        (["--epsilon", 1, "--adjacency", "record"], "record-add-remove"),
        (["--epsilon", 1, "--adversary", "shuffled(0)"], "whole number from 1"),
        (["--epsilon", 1, "--adversary", "nobody"], "allowed: server, model-reader, shuffled(N), summed(N)"),
    ],
)
def test_bad_options_are_refused_with_what_is_allowed_and_make_no_file(
    path: Path, options: list[object], sentence: str
) -> None:
    result = sordino("budget", path, "wards", *options)
    assert result.exit_code == 1
    assert sentence in result.output
    assert not path.exists()


def test_a_claimed_budget_needs_the_consent_first(path: Path) -> None:
    refused = sordino("budget", path, "wards", "--epsilon", 1, "--basis", "claimed")
    assert refused.exit_code == 1
    assert "--claimed" in refused.output
    assert as_json("consent", path, "wards", "--claimed")["consents"] == {"unproven": [], "claimed": True}
    result = sordino("budget", path, "wards", "--epsilon", 1, "--basis", "claimed")
    assert result.exit_code == 0
    assert "epsilon 1 (claimed, against server, adjacency client, delta 0)" in result.stdout


def test_consents_are_given_and_withdrawn(path: Path) -> None:
    given = as_json("consent", path, "wards", "--unproven", "labels", "--unproven", "counts")
    assert given["consents"]["unproven"] == ["counts", "labels"]
    assert given["budget"] is None
    withdrawn = as_json("consent", path, "wards", "--unproven", "labels", "--withdraw")
    assert withdrawn["consents"]["unproven"] == ["counts"]
    assert sordino("consent", path, "wards").exit_code == 1


def test_show_gives_every_epsilon_with_its_terms_and_flags_what_is_unprotected(path: Path) -> None:
    fill(path)
    shown = sordino("show", path).stdout
    assert "0.5, client, against server (Theorem 7)" in shown
    assert "0.1 at delta 1e-5 by eps = 0.1" in shown
    assert "labels UNPROTECTED" in shown
    assert "infinite, label, against server (none)" in shown
    assert "nothing new: derived from u1" in shown
    assert "3, 1 UNPROTECTED" in shown
    assert "update [bold]" in shown, "names are not markup"


def test_show_as_json_holds_the_same(path: Path) -> None:
    head = fill(path)
    shown = as_json("show", path)
    assert shown["head"] == head
    (wards,) = shown["datasets"]
    assert (wards["spent"], wards["left"], wards["releases"], wards["unprotected"]) == (0.5, 1.5, 3, 1)
    update, labels, model = (entry["releases"][0] for entry in shown["entries"] if entry["kind"] == "release")
    assert update["proven"] == [
        {"epsilon": 0.5, "delta": 0.0, "adjacency": "client", "adversary": "server", "basis": "Theorem 7"}
    ]
    terms = {"adjacency": "client", "adversary": "server", "covers": "release"}
    assert update["claimed"] == {"epsilon": 0.1, "delta": 1e-5, "formula": "eps = 0.1", **terms}
    assert labels["proven"][0]["epsilon"] == "infinite"
    assert labels["unprotected"]
    assert model["proven"] == [{"epsilon": 0.0, "derived_from": ["u1"]}]
    assert [entry["kind"] for entry in shown["entries"]][:3] == ["opened", "budget", "consent"]


def test_show_gives_the_verdict_in_words_and_its_figures(path: Path) -> None:
    fill(path)
    said, (packed,) = sordino("show", path).stdout, as_json("show", path)["datasets"]
    statement = Statement.from_json(packed["statement"])
    assert lead_text(statement) in said
    with Ledger.open(path) as ledger:
        left = [each for e in ledger.entries() if isinstance(e.event, Released) for each in e.event.releases]
        budget = ledger.standing(packed["dataset"]).budget
    own = Statement.of(left, delta=budget.delta or 1e-5)
    assert {(r.adversary, r.adjacency, r.proven) for r in statement.rows} == {
        (r.adversary, r.adjacency, r.proven) for r in own.rows
    }
    assert statement.planned == PlannedFor(budget.adjacency, budget.adversary.kind)


def test_show_says_whom_the_figures_of_a_flower_apps_mod_trust(path: Path) -> None:
    fill(path)
    (before,) = as_json("show", path)["datasets"]
    with Ledger.open(path) as ledger:
        proven = Guarantee(SERVER, Adjacency.CLIENT, Pure(0.5), "Theorem 7")
        ledger.record(ReportKey("wards", "flower 17", 1, "ab"), Release("x", "wards", "update", (proven,)), b"4")
    (after,) = as_json("show", path)["datasets"]
    assert (before["statement"]["caveats"], after["statement"]["caveats"]) == ([], [MOD_TRUST])
    facts = [lead_facts(Statement.from_json(each["statement"])) for each in (before, after)]
    assert [each["trusted"] == APP_TRUST for each in facts] == [False, True]
    assert ["claims" in each for each in facts] == [True, False]
    assert not [each for each in after["statement"]["sentences"] if "nobody is trusted" in each]
    earlier = "What left by the privacy mod of a Flower app is protected as long as the app is honest: ..."
    made = replace(Statement.from_json(after["statement"]), caveats=(earlier,))
    assert lead_facts(made)["trusted"] == APP_TRUST


def test_names_that_share_a_budget_and_names_that_do_not_are_shown(path: Path) -> None:
    fill(path)
    assert sordino("budget", path, "beds", "--epsilon", 2).exit_code == 0
    assert "beds has one account with wards" in sordino("show", path).stdout
    beds, wards = as_json("show", path)["datasets"]
    assert beds["spent"] == wards["spent"] == 0.5 and beds["disjoint_from"] == []
    assert beds["statement"]["rows"] == wards["statement"]["rows"]
    assert sordino("disjoint", path, "beds", "wards", answer="n\n").exit_code == 1
    assert len(as_json("show", path)["entries"]) == 7
    assert sordino("disjoint", path, "beds", "wards", answer="y\n").exit_code == 0
    later = Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0), "Theorem 7")
    with Ledger.open(path) as ledger:
        ledger.record(ReportKey("beds", "north", 4, "ab"), Release("u2", "beds", "update", (later,)), b"4")
    found = as_json("show", path)
    assert [each["spent"] for each in found["datasets"]] == [1.5, 0.5]
    assert [each["disjoint_from"] for each in found["datasets"]] == [["wards"], ["beds"]]
    for caveat in (each["statement"]["caveats"][-1] for each in found["datasets"]):
        assert "beds" in caveat and "Equal rows count as one person's" in caveat
    declared = found["entries"][-2]
    assert (declared["kind"], declared["dataset"], declared["other"], declared["after"]) == (
        "disjoint",
        "beds",
        "wards",
        7,
    )
    assert "beds is declared disjoint from wards" in sordino("show", path).stdout
    assert sordino("verify", path).exit_code == 0
    assert sordino("disjoint", path, "wards", "beds", "--withdraw").exit_code == 0
    assert [each["spent"] for each in as_json("show", path)["datasets"]] == [1.5, 1.5]


def test_a_clients_names_are_declared_where_its_rows_are_compared(tmp_path: Path) -> None:
    fill(tmp_path / "ledger.sqlite")
    (tmp_path / "client.toml").touch()
    for place in (tmp_path, tmp_path / "ledger.sqlite"):
        refused = sordino("disjoint", place, "beds", "wards", answer="y\n")
        assert refused.exit_code == 1 and "data.disjoint_from" in refused.output
        assert "?" not in refused.output, "nobody is asked before that"
    assert as_json("show", tmp_path)["datasets"][0]["disjoint_from"] == []


def test_only_names_that_a_ledger_knows_are_declared_disjoint(path: Path) -> None:
    head = fill(path)
    for names in (("wards", "beds"), ("beds", "wards")):
        refused = sordino("disjoint", path, *names, "--yes")
        assert refused.exit_code == 1 and "'beds'" in refused.output and "'wards'" in refused.output
        assert sordino("disjoint", path, *names, "--withdraw").exit_code == 1, "none is declared"
    assert as_json("show", path)["head"] == head


def test_a_clients_own_budget_and_consents_are_set_in_its_client_toml_alone(tmp_path: Path) -> None:
    """Another name's stay: client.toml says nothing of a name that its data had before."""
    path = tmp_path / "ledger.sqlite"
    head = fill(path)
    own = '[data]\nsource = "digits"\nname = "{}"\n[budget]\nlimit = 2\n'
    changes: dict[str, tuple[object, ...]] = {
        "budget": ("--epsilon", 9, "--yes"),
        "consents.unproven": ("--unproven", "labels"),
        "consents.claimed": ("--claimed",),
    }
    (tmp_path / "client.toml").write_text(own.format("wards"))
    for key, options in changes.items():
        refused = sordino(key.partition("s.")[0], path, "wards", *options)
        assert refused.exit_code == 1 and key in refused.output and "client.toml" in refused.output
    assert as_json("show", path)["head"] == head
    (tmp_path / "client.toml").write_text(own.format("beds"))
    for key, options in changes.items():
        assert sordino(key.partition("s.")[0], path, "wards", *options).exit_code == 0


def test_a_clients_folder_stands_for_its_ledger(tmp_path: Path) -> None:
    fill(tmp_path / "ledger.sqlite")
    for words in (("show",), ("verify",), ("compact", "--older-than", 30, "--dry-run")):
        own, folder = (as_json(words[0], place, *words[1:]) for place in (tmp_path / "ledger.sqlite", tmp_path))
        assert own == folder and own["path"] == str(tmp_path / "ledger.sqlite")


def test_one_command_makes_a_ledger_for_each_node_of_a_flower_app(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "budgets"
    assert sordino("budget", folder, "records", "--epsilon", 3, "--nodes", 3).exit_code == 0
    assert sorted(each.name for each in folder.glob("*.db")) == ["0.db", "1.db", "2.db"]
    assert sordino("consent", folder, "records", "--unproven", "metric loss").exit_code == 0
    assert sordino("budget", folder, "records", "--epsilon", 2).exit_code == 0
    for each in folder.glob("*.db"):
        (packed,) = as_json("show", each)["datasets"]
        assert packed["budget"]["limit"] == 2 and packed["consents"]["unproven"] == ["metric loss"]
    assert sordino("budget", folder, "records", "--epsilon", 2, "--nodes", 4).exit_code == 0
    assert len(list(folder.glob("*.db"))) == 4
    assert sordino("show", folder).exit_code == 1
    refused = sordino("budget", folder / "0.db", "records", "--epsilon", 2, "--nodes", 4)
    assert refused.exit_code == 1 and isinstance(refused.exception, SystemExit)


def test_verify_accepts_a_sound_ledger_and_the_head_of_a_receipt(path: Path) -> None:
    head = fill(path)
    result = sordino("verify", path)
    assert result.exit_code == 0
    assert "6 entries, the chain is whole" in result.stdout
    assert "cannot notice" in result.stdout
    assert "contains the head of your receipt" in sordino("verify", path, "--head", head).stdout
    told = {"path": str(path), "sound": True, "entries": 6, "head": head}
    assert as_json("verify", path, "--head", head) == {**told, "reports": {"reports": 3, "size": 3, "hashes": 0}}


def test_verify_of_an_edited_ledger_is_a_sentence_and_exit_code_1(path: Path) -> None:
    fill(path)
    with closing(sqlite3.connect(path)) as connection:
        (trigger,) = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE name = 'entries_stay_as_they_are'"
        ).fetchone()
        connection.execute("DROP TRIGGER entries_stay_as_they_are")
        connection.execute("UPDATE entries SET round = 9 WHERE sequence = 4")
        connection.execute(trigger)
        connection.commit()
    for command in ("verify", "show"):
        result = sordino(command, path)
        assert result.exit_code == 1
        assert "entry 4 was edited" in result.output
        assert "Traceback" not in result.output
    result = sordino("verify", path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["sound"] is False


def test_verify_with_the_head_of_a_longer_ledger_fails(path: Path) -> None:
    fill(path)
    result = sordino("verify", path, "--head", "ab" * 32)
    assert result.exit_code == 1
    assert "of your receipt is not in it" in result.output


def test_compact_drops_bytes_and_show_and_verify_say_so(path: Path) -> None:
    head = fill(path)
    would = as_json("compact", path, "--older-than", 0, "--dry-run")
    assert would["dropped"] == {"reports": 2, "size": 2, "not_shrunk": ""}
    assert (would["head"], would["file_after"]) == (head, would["file_before"])
    assert as_json("compact", path, "--older-than", 1)["dropped"]["reports"] == 0
    done = as_json("compact", path, "--older-than", 0)
    assert done["dropped"] == would["dropped"]
    assert done["reports"] == {"reports": 1, "size": 1, "hashes": 2}
    assert done["head"] != head
    shown = as_json("show", path)
    assert shown["head"] == done["head"]
    assert shown["reports"] == done["reports"]
    assert [entry.get("report_bytes") for entry in shown["entries"]] == [None] * 3 + [0, 0, 1] + [None]
    last = shown["entries"][-1]
    assert (last["kind"], last["of"], last["size"]) == ("compaction", [[4, 5]], 2)
    assert as_json("verify", path, "--head", head)["reports"] == done["reports"]
    for command in ("show", "verify"):
        assert "Of 2 of 3 reports only the hash is kept" in sordino(command, path).stdout
    assert as_json("compact", path, "--older-than", 0, "--unacknowledged")["dropped"]["reports"] == 1


def test_compact_needs_to_know_for_how_long_reports_are_kept(path: Path) -> None:
    fill(path)
    result = sordino("compact", path)
    assert result.exit_code == 1
    assert "--older-than" in result.stderr
    path.with_name("client.toml").write_text(
        '[data]\nsource = "digits"\n[budget]\nlimit = 1\n[keep]\nreports_days = 0\n'
    )
    assert as_json("compact", path)["dropped"]["reports"] == 2


@pytest.mark.parametrize("given", ["abc", "g" * 64, "ab" * 33], ids=["short", "other digits", "long"])
def test_a_head_that_cannot_be_one_is_refused_and_says_nothing_about_the_ledger(path: Path, given: str) -> None:
    fill(path)
    result = sordino("verify", path, "--head", given)
    assert result.exit_code == 1
    assert "64 hexadecimal digits" in result.stderr and "was not looked at" in result.stderr
    assert "damaged" not in result.output and result.stdout == ""


def test_a_head_in_capitals_is_the_same_head(path: Path) -> None:
    head = fill(path)
    assert as_json("verify", path, "--head", f" {head.upper()} ")["sound"]


def test_on_a_narrow_terminal_what_is_unprotected_stays_in_sight(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    text = sordino("show", path).stdout
    _, _, entries = text.partition("Entries")
    assert "UNPROTECTED" in entries and "infinite," in entries and "…" not in text
    assert "show also: time." in entries


@pytest.mark.parametrize("command", ["show", "verify"])
def test_looking_at_a_missing_file_makes_none(path: Path, command: str) -> None:
    result = sordino(command, path)
    assert result.exit_code == 1
    assert "there is no ledger" in result.output
    assert not path.exists()


@pytest.mark.process
def test_the_installed_command_starts_quickly_and_explains_itself() -> None:
    heavy = {"numpy", "scipy", "torch", "pydantic", "rich.table"}
    program = f"import sys, sordino.cli; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]", "heavy modules are imported by the commands that need them"
    for command in ("show", "verify", "budget", "consent"):
        assert command in sordino("--help").stdout
        assert sordino(command, "--help").exit_code == 0
