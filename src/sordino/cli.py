"""The command line: `sordino audit | ledger`."""

import typer

app = typer.Typer(no_args_is_help=True, help=__doc__)
