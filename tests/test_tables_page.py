"""The page on tables, from its first line to its last command: the table is made, the recipe run and its model used."""

import re
import shlex
import subprocess
import warnings
from pathlib import Path

import pytest

import sordino

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from sordino.cli import app

PAGE = (Path(__file__).parent.parent / "docs" / "tables.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found


@pytest.mark.process
def test_the_page_leads_from_a_table_to_a_model_that_reads_raw_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in blocks("python"):
        exec(compile(example, "docs/tables.md", "exec"), {})
    Path("visits.toml").write_text(blocks("toml")[0])
    outputs = [run(command) for command in re.findall(r"^\$ (.*)$", blocks("console")[0], re.MULTILINE)]
    classes = [line.split(",")[0] for line in outputs[-1].splitlines()[1:]]
    assert classes == ["back", "well"]
    result = sordino.load_run("runs/visits").result
    figures = (f"{result.accuracy:.1%}", f"{result.commonest:.1%}", f"{result.score:.2f}")
    assert all(figure.replace("%", " %") in PAGE for figure in figures), figures


def run(command: str) -> str:
    if not command.startswith("sordino "):
        return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    found = CliRunner().invoke(app, shlex.split(command)[1:])
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.process
def test_the_reader_of_the_page_trains_on_the_tokens_of_the_page(tmp_path, monkeypatch):
    """As the page says: in a file beside the recipe, under fedavg."""
    monkeypatch.chdir(tmp_path)
    table, reader = blocks("python")
    exec(compile(table, "docs/tables.md", "exec"), {})
    Path("page_reader.py").write_text(reader)
    Path("visits.toml").write_text(blocks("toml")[0])
    tokens = 'data.columns={ note = { kind = "tokens", vocabulary = "words.txt", length = 6, missing = "" } }'
    model = 'model={ name = "page_reader:Reader", options = { words = 4 } }'
    changes = [tokens, model, "method.name=fedavg", "rounds.count=1", "training.batch_size=100", "data.test=visits.csv"]
    taken = [f"method.{key}=" for key in ("sampling_rate", "steps", "announced_size", "target")]
    settings = [word for change in (*taken, *changes) for word in ("--set", change)]
    assert run(shlex.join(["sordino", "run", "visits.toml", "--out", "run", *settings]))
