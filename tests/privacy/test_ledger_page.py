"""docs/ledger.md is followed in an empty folder; what it shows is what comes out."""

import re
import shlex
from pathlib import Path

from tests.client.test_commands import CliRunner, app
from tests.client.test_page import follow

from sordino.privacy.accountant import Account, epsilon
from sordino.privacy.guarantee import SERVER, Adjacency, Budget, Guarantee, PoissonGaussian, Release

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()


def test_the_page_can_be_followed_and_shows_what_comes_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    *steps, (_, check) = re.findall(r"```(console|python|text)\n(.*?)```", PAGE, re.DOTALL)
    printed = ""
    for kind, block in steps:
        if kind == "console":
            follow(block, [])
        elif kind == "python":
            exec(compile(block, "docs/ledger.md", "exec"), {})
            printed = capsys.readouterr().out
        else:
            assert block == printed
    assert CliRunner().invoke(app, shlex.split(check)[2:]).exit_code == 1  # this ledger does not contain that head


def test_what_a_round_asks_for_depends_on_the_budget():
    loss, change = PoissonGaussian(q=0.2, sigma=1.5609, steps=5), Adjacency.RECORD_ADD_REMOVE
    round_ = Release("u", "wards", "update", (Guarantee(SERVER, change, loss, "DP-SGD"),))
    spent = {limit: Account.opening(Budget(limit, 1e-5, adjacency=change)).after(round_).spent for limit in (0.5, 2.5)}
    figures = [epsilon(loss, 1e-5, adjacency=change), spent[2.5], spent[0.5]]
    assert {f"{figure:.3g}" for figure in figures} <= set(re.findall(r"\d+\.\d+", PAGE))
