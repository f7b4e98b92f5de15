"""The page on recipes has valid recipes and shows what its commands print. The printed table of keys is complete."""

import json
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.recipe import Recipe, shipped

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


def test_the_python_example_runs():
    (example,) = blocks("python")
    exec(compile(example, "docs/recipes.md", "exec"), {})


def test_commands_print_what_the_page_shows(here):
    for block in blocks("console"):
        for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            output = sordino(command)
            assert output, command
            if shown:
                assert output == shown


def table_of_keys() -> list[list[str]]:
    head, rule, *rows = sordino("sordino recipes keys --markdown").splitlines()
    assert head.count("|") == rule.count("|") == 5
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


def test_the_table_of_keys_is_the_grammars():
    """The site has it as a page: each row must be one of Markdown, with four cells."""
    known = json.loads(sordino("sordino recipes keys --json"))
    wanted = [[f"`{key['key']}`", key["allowed"], key["default"]] for key in known]
    assert [[key, allowed, default.strip("`")] for key, allowed, default, _ in table_of_keys()] == wanted
    for (*_, meaning), key in zip(table_of_keys(), known, strict=True):
        assert key["description"] in meaning and all(form in meaning for form in key["forms"])


def test_the_table_of_keys_has_every_setting_of_the_shipped_recipes():
    keys = {cells[0].strip("`") for cells in table_of_keys()}
    settings = {path for name in shipped() for path in paths(Recipe.load(name).to_dict())}
    assert not [path for path in sorted(settings) if not keys & {*prefixes(path)}]


def paths(table: dict, above: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from paths(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def prefixes(path: str) -> Iterator[str]:
    """The path and all above it: a key may take a table, such as `model.options`."""
    keys = path.split(".")
    return (".".join(keys[:length]) for length in range(1, len(keys) + 1))
