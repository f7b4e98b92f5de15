"""The tour and the pages about data and models of one's own: each is run as it stands."""

import contextlib
import io
import re
import runpy
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from sordino.cli import app

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"(?:^`([\w.]+)`:\n\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MOST_WORDS = 800
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Step:
    """A file to write, or a command to run with what the page shows of its output."""

    file: str | None
    text: str
    shown: str = ""


def steps(page: str) -> Iterator[Step]:
    """What a reader of the page does, in order."""
    for file, kind, text in BLOCK.findall((DOCS / page).read_text()):
        if kind != "console":
            assert file, f"{page}: a block of {kind} without the name of its file"
            yield Step(file, text)
            continue
        yield from commands(text)


def commands(text: str) -> Iterator[Step]:
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        yield Step(None, command, shown)


def output(command: str) -> str:
    program, *arguments = shlex.split(command)
    if program == "python":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if arguments[0] == "-c":
                exec(arguments[1], {})
            else:
                runpy.run_path(arguments[0], run_name="__main__")
        return out.getvalue()
    assert program == "sordino"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def figures(line: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(line)]


def says(printed: str, shown: str) -> bool:
    """Whether a line of what was printed has all figures of the line that is shown, up to a fiftieth."""
    return any(
        all(any(abs(own - wanted) <= 0.02 * wanted for own in figures(line)) for wanted in figures(shown))
        for line in printed.splitlines()
    )


def can_run(command: str) -> bool:
    """Installing is not for tests, and exporting needs an extra, which `make test-more` installs."""
    exports = command.startswith("sordino export")
    return not command.startswith("pip ") and (not exports or find_spec("onnxscript") is not None)


def follow(step: Step) -> None:
    """Of what a command prints, a page shows some lines; all figures of a line are printed in one."""
    printed = output(step.text)
    for shown in step.shown.splitlines():
        assert says(printed, shown), f"{step.text} does not print {shown!r}:\n{printed}"


@pytest.mark.parametrize(
    "page", ["own-hospitals.md", "own-sequences.md", pytest.param("own-pretrained.md", marks=pytest.mark.process)]
)
def test_a_page_runs_from_files_to_a_model_and_shows_what_comes_out(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for step in steps(page):
        if step.file is not None:
            (tmp_path / step.file).write_text(step.text)
        elif can_run(step.text):
            follow(step)


@pytest.mark.parametrize("page", ["own-hospitals.md", "own-sequences.md", "own-pretrained.md"])
def test_a_page_is_short(page: str) -> None:
    assert len((DOCS / page).read_text().split()) <= MOST_WORDS


@pytest.mark.process
@pytest.mark.parametrize("page", ["tour.md", "use-the-model.md"])
def test_the_commands_of_a_page_print_what_it_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for _, kind, text in BLOCK.findall((DOCS / page).read_text()):
        for step in commands(text) if kind == "console" else ():
            if can_run(step.text):
                follow(step)
