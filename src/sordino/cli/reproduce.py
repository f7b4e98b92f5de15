"""`sordino reproduce`: the papers' experiments, run again. They are in `papers/` of a clone and not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from sordino.cli.printing import let_help_flow
from sordino.errors import InvalidInput

CLONE = Path(__file__).resolve().parents[3]  #: the repository's root, where this package is run from a clone

#: Hand every argument on as it was given, `--help` included: the command in `papers/` reads them.
UNREAD = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
    "add_help_option": False,
}


def reproduce(context: typer.Context) -> None:
    """Run a paper's experiments again and set them beside its figures (in a clone of the repository)."""
    if not (CLONE / "papers" / "command.py").is_file():
        raise InvalidInput(
            "the papers' experiments are not part of the installed package: clone the repository, install it with "
            "`pip install -e '.[learn]'` (or `make setup`) and run `sordino reproduce` again"
        )
    if str(CLONE) not in sys.path:
        sys.path.append(str(CLONE))
    from papers.command import app

    let_help_flow(app)
    typer.main.get_command(app).main(args=context.args, prog_name=context.command_path)


__all__ = ["UNREAD", "reproduce"]
