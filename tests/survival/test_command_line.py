"""`sordino run --client SOCKET ...`: a federation of real clients from the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sordino.cli import app
from sordino.fleets.sockets import SocketFleet
from sordino.report.folder import RunFolder
from sordino.runs.serving import read_notes
from sordino.runs.store import REAL
from sordino.web.access import Role, read_tokens
from sordino.wire.signing import key_file
from tests.client import people
from tests.client.people import NAME
from tests.survival.unruly import clients


def sordino(*arguments: Any) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, re.sub(r"\s+", " ", done.stderr)


def recipe_in(place: Path, **changes: Any) -> Path:
    path = place / "recipe.toml"
    path.write_text(people.recipe({"rounds.count": 2, **changes}).to_toml())
    return path


def sockets(place: Path) -> list[Any]:
    return [part for number in range(3) for part in ("--client", place / f"{number}.sock")]


def test_a_run_with_real_clients_leaves_the_same_folder_as_a_simulation():
    with clients(people.recipe(), {}) as (place, _):
        code, out, err = sordino(
            "run", recipe_in(place), "--out", place / "run", *sockets(place), "--federation", NAME, "--json"
        )
        assert code == 0, err
        told = json.loads(out)
        assert (told["rounds"], told["stopped"]) == (2, "all 2 rounds are done")
        names = {Path(path).name for path in told["files"]}
        assert names == {
            "environment.json", "metrics.jsonl", "model.safetensors", "recipe.toml", "report.html", "result.json",
            "statement.json", "statement.txt",
        }  # fmt: skip
        simulated = json.loads(sordino("run", place / "recipe.toml", "--out", place / "sim", "--json")[1])
        assert simulated["statement"]["sentences"].pop().startswith("This was a simulation.")
        assert (simulated["statement"].pop("simulated"), told["statement"].pop("simulated")) == (True, False)
        assert told["statement"] == simulated["statement"]  # the same releases of the same clients
        result = json.loads((place / "run/result.json").read_text())
        assert result["label_counts"] is None and [own["reports"] for own in result["budgets"]] == [2, 2, 2]
        page = (place / "run/report.html").read_text()
        assert "What a simulation can see" not in page and "Labels by client" not in page
        code, out, err = sordino("run", "--resume", place / "run")
        assert code == 0 and "is over already: all 2 rounds are done" in err


def test_an_interrupted_run_finds_its_clients_again():
    with clients(people.recipe(), {}) as (place, _):
        given = recipe_in(place, **{"rounds.count": 4})
        with pytest.MonkeyPatch.context() as patch:
            from sordino.cli.run import Display

            def interrupt(own: Display, record: Any, attendance: Any) -> None:
                raise KeyboardInterrupt

            patch.setattr(Display, "round", interrupt)
            arguments = ("--out", place / "run", *sockets(place), "--federation", NAME, "--patience", 7)
            code, out, err = sordino("run", given, *arguments)
        assert (code, out) == (130, "") and f"sordino run --resume {place / 'run'}" in err
        notes = read_notes(place / "run")
        assert notes is not None and (notes["federation"], notes["patience"]) == (NAME, 7)
        code, out, err = sordino("run", "--resume", place / "run", "--json")
        assert code == 0 and json.loads(out)["rounds"] == 4
        assert "Going on from round 2" in err


def test_a_run_can_be_watched_with_tokens_that_are_made_for_it():
    with clients(people.recipe(), {}) as (place, _):
        tokens = place / "tokens.json"
        watching = ("--live", "0", "--live-tokens", tokens)
        arguments = ("run", recipe_in(place), "--out", place / "run", *sockets(place), "--federation", NAME, *watching)
        people.KEY.write(key_file(place / "run"))
        # a process of its own: its server's thread would write into whatever stands for the terminal here
        done = subprocess.run(
            [sys.executable, "-m", "sordino", *map(str, arguments)], capture_output=True, text=True, check=False
        )
        err = " ".join(done.stderr.split())
        assert done.returncode == 0, err
        found = read_tokens(tokens)
        assert [one.member for one in found if one.role is Role.MEMBER] == ["0", "1", "2"]  # as their sockets
        assert re.search(r"http://localhost:\d+/live", err) and str(tokens) in err
        assert not [one for one in found if one.token in err], "what is no terminal may be a log"


def test_without_the_extra_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "sordino.web.live_server", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    code, out, err = sordino("run", recipe_in(tmp_path), "--out", tmp_path / "run", *sockets(tmp_path), "--live", "0")
    assert (code, out) == (1, "") and "pip install 'sordino[service]'" in err
    assert not (tmp_path / "run").exists()


def test_owners_who_have_not_agreed_are_named_with_what_to_do():
    with clients(people.recipe(), {}, allowed="another") as (place, _):
        code, out, err = sordino("run", recipe_in(place), "--out", place / "run", *sockets(place), "--federation", NAME)
        assert (code, out) == (1, "")
        assert "Refused: 0 of 3 clients take part" in err and "sordino client join" in err
        assert not (place / "run/recipe.toml").exists()
        assert (place / f"0/invitations/{NAME}.invitation").exists()


def test_what_does_not_fit_together_is_refused_before_anything_is_sent(tmp_path):
    given = recipe_in(tmp_path)
    three = ["--client", tmp_path / "a", "--client", tmp_path / "b", "--client", tmp_path / "c"]
    for arguments, said in [
        (["--client", tmp_path / "a"], r"3 clients and 1 sockets were named.*--set split\.clients=1"),
        ([*three[:4], "--client", tmp_path / "b"], "named twice"),
        ([*three, "--workers", 2], "are for simulations"),
        ([*three, "--patience", 0], "--patience is a number of seconds > 0"),
        ([*three, "--shuffler-key", tmp_path / "key"], "go through no shuffler"),
        (["--federation", NAME], "go with --client"),
        (["--live", "8001"], "--live shows real clients"),
        ([*three, "--live", "somewhere"], "allowed is PORT or HOST:PORT"),
        ([*three, "--live-tokens", tmp_path / "tokens.json"], "give both, or neither"),
        ([*three, "--live", "0.0.0.0:0"], "would be open to nobody"),
    ]:
        code, out, err = sordino("run", given, "--out", tmp_path / "run", *arguments)
        assert (code, out) == (1, "") and re.search(said, err), err
        assert not (tmp_path / "run/recipe.toml").exists()


def test_a_run_that_lost_its_clients_addresses_is_not_simulated_instead(tmp_path):
    """Killed between its first two files: nothing says where the clients were."""
    given = recipe_in(tmp_path)
    RunFolder.create(tmp_path / "run", given.read_text(), device=REAL)
    code, out, err = sordino("run", "--resume", tmp_path / "run")
    assert (code, out) == (1, "") and "is a run with real clients" in err and "--client" in err


def test_an_impatient_start_is_taken_up_where_it_was(tmp_path):
    """Ctrl-C while invitations are out: the run is there, and knows its clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SocketFleet, "invite", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        arguments = ("--out", tmp_path / "run", *sockets(tmp_path), "--federation", NAME)
        code, _, err = sordino("run", recipe_in(tmp_path), *arguments)
    assert code == 130 and "--resume" in err
    notes = read_notes(tmp_path / "run")
    assert notes is not None and notes["sockets"] == [str(tmp_path / f"{number}.sock") for number in range(3)]
