"""`sordino data`: data sets known by name, fetching them, and whether their files are intact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.printing import AsJson, plain_errors, print_json, print_tables, with_progress

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.learning.datasets import Listing

app = typer.Typer(
    no_args_is_help=True,
    help="Data sets known by name: where they are, fetching them, and whether their files are intact.",
)


@app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """Show every known data set, its size, where its files were found, and its licence."""
    from sordino.learning import datasets

    with plain_errors():
        rows = [_listing_as_json(listing) for listing in datasets.KNOWN.values()]
        folders = [str(folder) for folder in datasets.search_folders()]
    if as_json:
        print_json(rows)
        return
    print_tables(_listings_table(rows), spare=("licence", "classes", "test", "train"))
    for row in rows:
        if row["note"]:
            typer.echo(f"{row['name']}: {row['note']}.")
    typer.echo(f"Looked in {' and '.join(folders)}. Name a folder of your own by {datasets.FOLDER_VARIABLE}.")


@app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="The data set; `sordino data list` shows them all.")],
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Put it here, not in the user's cache.")] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Fetch the files from below this address, by their bare names.")
    ] = None,
) -> None:
    """Download what is missing of a data set from its public home, and compare checksums."""
    from sordino.learning import datasets

    with plain_errors():
        listing = datasets.known(name)
        folders = datasets.search_folders() if to is None else (to,)
        paths = datasets.fetch(listing, folders=folders, mirror=mirror)
    if not paths:
        typer.echo(f"{listing.title}: nothing to fetch, {listing.note}")
    for path in paths:
        typer.echo(f"intact  {path}")


@app.command("check")
def data_check(
    name: Annotated[str | None, typer.Argument(help="One data set; all if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the checksums of the files that are here; sets of which nothing is here are left out unless named.

    The exit code is 1 if a file is damaged, or if files of the data set named are not here.
    """
    from sordino.learning import datasets

    with plain_errors():
        listings = list(datasets.KNOWN.values()) if name is None else [datasets.known(name)]
        states = [
            (listing, state) for listing in with_progress(listings, "Checking") for state in datasets.check(listing)
        ]
    if name is None:
        here = {listing.name for listing, state in states if state.path}
        states = [(listing, state) for listing, state in states if listing.name in here]
    rows = [
        {
            "dataset": listing.name,
            "file": state.file.path,
            "state": state.state,
            "path": str(state.path) if state.path else None,
            "fault": state.fault or None,
        }
        for listing, state in states
    ]
    if as_json:
        print_json(rows)
    else:
        print_tables(_files_table(rows))
    wrong = {"damaged"} if name is None else {"damaged", "not here"}
    if any(row["state"] in wrong for row in rows):
        raise typer.Exit(1)


def _listing_as_json(listing: Listing) -> dict[str, Any]:
    from sordino.learning import datasets

    paths = datasets.locate(listing)
    return {
        "name": listing.name,
        "title": listing.title,
        "train": listing.sizes[0],
        "test": listing.sizes[1],
        "shape": list(listing.shape),
        "classes": len(listing.classes),
        "download_bytes": listing.download_size,
        "files": len(paths),
        "files_found": sum(path is not None for path in paths),
        "found": _place_of(listing, paths),
        "licence": listing.licence,
        "source": listing.source,
        "note": listing.note or None,
    }


def _place_of(listing: Listing, paths: tuple[Path | None, ...]) -> str | None:
    """The folder of a set all of whose files are here; sets without files come with Sordino."""
    if not paths:
        return "built in"
    here = [path for path in paths if path is not None]
    return ", ".join(sorted({str(path.parent) for path in here})) if len(here) == len(paths) else None


def _listings_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Data sets", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("what", min_width=20)
    for column in ("train", "test", "classes", "download"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("where", min_width=15, overflow="fold")
    table.add_column("licence", min_width=15, overflow="fold")
    for row in rows:
        partly = f"not here ({row['files_found']} of {row['files']} files)" if row["files_found"] else "not here"
        size = f"{row['download_bytes'] / 1e6:,.0f} MB" if row["download_bytes"] else ""
        counts = (f"{row['train']:,}", f"{row['test']:,}", str(row["classes"]), size)
        table.add_row(*map(Text, (row["name"], row["title"], *counts, row["found"] or partly, row["licence"])))
    return table


def _files_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Files", title_justify="left")
    for column in ("data set", "file", "state"):
        table.add_column(column, overflow="fold")
    table.add_column("where, and what is wrong", min_width=20, overflow="fold")
    colours = {"intact": "green", "damaged": "bold red"}
    for row in rows:
        place = "; ".join(part for part in (row["path"], row["fault"]) if part)
        state = Text(row["state"], style=colours.get(row["state"], ""))
        table.add_row(Text(row["dataset"]), Text(row["file"]), state, Text(place))
    return table
