"""The commands of the page run in the order in which it has them, and its figures come out of the code."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import shuffler

from sordino.privacy.accountant import equal_bits_epsilon
from sordino.privacy.amplification import shuffled_bits, shuffled_reports
from sordino.recipe import Recipe

PAGE = (Path(__file__).parents[2] / "docs" / "shuffler.md").read_text()
(RECIPE,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_recipe_of_the_page_is_one():
    recipe = Recipe.from_toml(RECIPE)
    assert (recipe.method.channel.kind, recipe.method.channel.at_least) == ("shuffler", 3)


@pytest.mark.process
def test_the_page_can_be_followed_and_shows_what_comes_out(tmp_path):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sordino"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sordino "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shells, shown, made = [], [], tmp_path / "made.txt"
    try:
        for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
            typed = "\n".join(line[2:] for line in block.splitlines() if line.startswith(("$ ", "> ")))
            typed = typed.replace("8470", port).replace("shuffler serve", f"shuffler serve --port {port}")
            with made.open("ab") as out:
                shells.append(subprocess.Popen(["bash", "-ec", typed], cwd=tmp_path, env=environment, stdout=out,
                                               start_new_session=True))  # fmt: skip
            assert shells[-1].wait(240) == 0
            (key,) = re.findall(r'method\.channel\.key = "(\w+)"', made.read_text())
            recipe = re.sub(r'^key = ".*"', f'key = "{key}"', RECIPE.replace("8470", port), flags=re.MULTILINE)
            (tmp_path / "recipe.toml").write_text(recipe)
            shown += [line for line in block.splitlines() if line.startswith(("Epsilon", "The shuffler"))]
        printed = made.read_text().splitlines()
        assert shown and all(line.replace("8470", port) in printed for line in shown)
    finally:
        for shell in shells:
            os.killpg(shell.pid, signal.SIGTERM)


def test_the_costs_of_the_page_are_those_recorded():
    rows = shuffler.beside(json.loads(shuffler.RESULTS.read_text()))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    place = PAGE.partition("<!-- beside -->\n")[2].partition("<!-- end of beside -->")[0].splitlines()
    assert lines == [place[0], *place[2:]], "run: python -m benchmarks.shuffler --write"


def test_against_the_server_the_example_has_the_epsilon_that_stands_beside_it():
    recipe = Recipe.from_toml(RECIPE)
    local = equal_bits_epsilon(recipe.clients.epsilon, 650 * recipe.rounds.count, 1e-5)
    (stated,) = re.findall(r"against the server it is ([\d,]+)", PAGE)
    assert 0 <= int(stated.replace(",", "")) - local < 10


def test_what_groups_give_away():
    found = [int(text.replace(",", "")) for text in re.findall(r"^\| \d[^|]*\| [\d,]+ \| ([\d,]+)", PAGE, re.MULTILINE)]
    values, clients, delta = 21_840, 100, 1e-5
    amplified = [shuffled_reports(float(g), clients, delta, values // g) for g in (2, 4, 8)]
    local = equal_bits_epsilon(1.0, values, delta)
    assert amplified[2] > local, "with eight values in an envelope the shuffler adds nothing"
    assert found == [pytest.approx(x, abs=0.5) for x in
                     (shuffled_bits(1.0, clients, delta, values).upper, *amplified[:2], local)]  # fmt: skip
