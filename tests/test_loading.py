"""Modules load without Python looking for garbage, and afterwards everything is as it was."""

import gc
import subprocess
import sys

import pytest
import typer

from sordino.cli import app_for
from sordino.parts.lazy import loading


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_rests_while_modules_load_and_is_then_as_it_was(before):
    try:
        gc.enable() if before else gc.disable()
        with pytest.raises(ImportError), loading():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is before
    finally:
        gc.enable()


EVERY_COMMAND = {
    "attack", "audit", "client", "compare", "coordinator", "data", "deploy", "export", "join", "keys", "ledger", "plan",
    "predict", "recipes", "reproduce", "run", "serve", "shuffler", "sweep",
}  # fmt: skip
#: frozen: never looked at again. Old: looked at last
STATE = """
import gc, sys
from sordino.parts import lazy
lazy.FEW = int(sys.argv[1])
with lazy.loading():
    with lazy.loading():
        made = [[] for _ in range(1000)]
    assert not gc.isenabled()
print(gc.isenabled(), gc.get_freeze_count() > 1000, len(gc.get_objects(0)) < 1000)
"""


@pytest.mark.process
@pytest.mark.parametrize(("few", "frozen"), [(10**9, True), (0, False)], ids=["at the start", "later"])
def test_what_is_loaded_at_the_start_is_never_looked_at_again(few, frozen):
    done = subprocess.run([sys.executable, "-c", STATE, str(few)], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", str(frozen), "True"]


HEAVY = {"torch", "numpy", "scipy", "pydantic", "cryptography", "dp_accounting"}
OTHERS = {f"sordino.cli.{name}" for name in ("audit", "client", "deploy", "run", "serve")}


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["--help"], HEAVY),
        (["--version"], HEAVY),
        (["recipes"], HEAVY | OTHERS | {"sordino.recipe"}),
        (["recipes", "--json"], HEAVY | OTHERS | {"sordino.recipe", "rich.console"}),
        (["plan", "--help"], HEAVY | OTHERS),
    ],
    ids=["help", "version", "recipes", "recipes as JSON", "help of a command"],
)
def test_a_command_loads_no_more_than_it_needs(words, unused):
    assert not unused & loaded_by(words)


def loaded_by(words: list[str]) -> set[str]:
    """The modules that a command has loaded when it ends."""
    program = (
        "import sys\nfrom sordino.__main__ import main\n"
        f"sys.argv = ['sordino', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("word", "found"),
    [("plan", {"plan"}), ("--help", EVERY_COMMAND), (None, EVERY_COMMAND), ("plam", EVERY_COMMAND)],
    ids=["a command", "help", "nothing", "a typo"],
)
def test_the_first_word_decides_which_commands_are_made(word, found):
    commands = typer.main.get_command(app_for(word))
    assert set(commands.commands) == found
