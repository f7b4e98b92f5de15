"""The page on recipes: its recipes are valid, its commands print what it shows, its table is the grammar's."""

import re
import shlex
import warnings
from pathlib import Path

import pytest

from sordino.recipe import Recipe

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from sordino.cli import app

PAGE = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found


def sordino(command: str) -> str:
    _, *arguments = shlex.split(command, comments=True)
    return CliRunner().invoke(app, arguments).output


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the page's largest recipe as mine.toml."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(max((text for text in blocks("toml") if 'name = "mine"' in text), key=len))


@pytest.mark.parametrize("text", blocks("toml"), ids=lambda text: text.split('"')[1])
def test_every_recipe_of_the_page_is_valid(text):
    assert Recipe.from_toml(text).to_toml()


@pytest.mark.parametrize("example", blocks("python"), ids=["loaded", "made"])
def test_every_python_example_runs(example):
    exec(compile(example, "docs/recipes.md", "exec"), {})


def test_commands_print_what_the_page_shows(here):
    for block in blocks("console"):
        for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            output = sordino(command)
            assert output, command
            if shown:
                assert output == shown


def test_the_table_of_keys_is_the_grammars():
    table = PAGE[PAGE.index("| key | allowed |") :]
    assert table == sordino("sordino recipes keys --markdown"), "run: sordino recipes keys --markdown"
