"""What all commands have in common: refusals, tables that fit the terminal, and help that flows."""

import inspect
import re
import warnings
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer
    from typer.testing import CliRunner

    from sordino.cli import app
    from sordino.cli.printing import _fit, _widths, plain_errors


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("torch.func", "Refused: this needs PyTorch: pip install 'sordino[learn]'\n"),
        ("uvicorn", "Refused: this needs uvicorn: pip install 'sordino[service]'\n"),
    ],
    ids=["torch", "uvicorn"],
)
def test_a_package_that_an_extra_brings_is_asked_for_in_a_sentence(module, sentence, capsys):
    with pytest.raises(typer.Exit) as ended, plain_errors():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert ended.value.exit_code == 1 and capsys.readouterr().err == sentence


@pytest.mark.parametrize("module", ["sordino.nothing", "mine"])
def test_a_module_that_no_extra_brings_is_a_fault_of_its_own(module):
    with pytest.raises(ModuleNotFoundError), plain_errors():
        raise ModuleNotFoundError(name=module)


# --- tables -----------------------------------------------------------------------------------------------------------


def table() -> Table:
    found = Table()
    found.add_column("name", no_wrap=True)
    found.add_column("what it is", min_width=10)
    found.add_column("size")
    found.add_row("a name", "a word " * 7 + "a", "1,000")
    return found


def fitted(width: int, *spare: str) -> Table:
    found = table()
    _fit(found, Console(width=width), spare)
    return found


def test_columns_get_their_least_and_what_is_left_goes_to_what_is_folded_most():
    assert [column.width for column in fitted(31).columns] == [6, 10, 5]  # 3 columns take 10 for lines and spaces
    assert [column.width for column in fitted(40).columns] == [6, 19, 5]
    assert [column.width for column in fitted(200).columns] == [6, 50, 5]


def test_spare_columns_go_in_their_order_and_only_as_far_as_needed():
    for width, kept in {
        31: "name, what it is, size",
        30: "name, what it is",
        23: "name, what it is",
        22: "name",
    }.items():
        found = fitted(width, "size", "what it is")
        assert ", ".join(str(column.header) for column in found.columns) == kept
    assert found.caption == "A wider terminal, and --json, show also: what it is; size."
    assert fitted(31, "size").caption is None


needs = st.tuples(st.integers(0, 30), st.integers(0, 60), st.integers(0, 20)).map(
    lambda each: (each[0], each[0] + each[1], each[0] + each[1] + each[2])
)


@given(st.lists(needs, min_size=1, max_size=8), st.integers(1, 250))
def test_widths_use_the_room_there_is_and_no_more(needs, width):
    found, lines = _widths(needs, width), 3 * len(needs) + 1
    if found is None:
        assert sum(least for least, *_ in needs) + lines > width
        return
    assert sum(found) + lines == min(width, sum(most for *_, most in needs) + lines)
    assert all(least <= got <= most for got, (least, _, most) in zip(found, needs, strict=True))
    if any(got < cells for got, (_, cells, _) in zip(found, needs, strict=True)):  # cells come before headings
        assert all(got <= cells for got, (_, cells, _) in zip(found, needs, strict=True))


# --- help -------------------------------------------------------------------------------------------------------------

COMMANDS = ["run", "reproduce", "plan", "join", "audit", "ledger show", "ledger budget"]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_broken_where_the_terminal_ends(command, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = CliRunner().invoke(app, [*command.split(), "--help"]).stdout
    prose, _, _ = re.sub(r"\x1b\[[0-9;]*m", "", text).partition("╭")
    for paragraph in re.split(r"\n\s*\n", prose.strip())[1:]:
        lines = [line.strip() for line in paragraph.splitlines()]
        for line, following in pairwise(lines):
            assert len(f"{line} {following.split()[0]}") > columns - 2


def test_help_is_the_docstring():
    run = next(each for each in app.registered_commands if each.callback and each.callback.__name__ == "run")
    assert run.help is not None and run.callback is not None
    assert run.help.split() == (inspect.getdoc(run.callback) or "").split()
