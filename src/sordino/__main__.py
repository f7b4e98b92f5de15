"""`python -m sordino`: the same as the `sordino` command."""

from sordino.cli import app

app()
