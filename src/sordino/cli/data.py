"""`sordino data`: data sets known by name, fetching them, and whether their files are intact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.options import AsJson
from sordino.cli.printing import Cell, Col, left, print_json, print_table, with_progress

if TYPE_CHECKING:
    from sordino.learning.datasets import FileState, Listing

app = typer.Typer(
    no_args_is_help=True,
    help="Data sets known by name: where they are, fetching them, and whether their files are intact.",
)


@app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """Show every known data set, its size, where its files were found, and its licence."""
    from sordino.learning import datasets

    listings = list(datasets.KNOWN.values())
    if as_json:
        print_json([_listing_as_json(listing) for listing in listings])
        return
    columns = [Col("name", no_wrap=True), Col("what", min_width=20)]
    columns += [Col(name, "right", no_wrap=True) for name in ("train", "test", "classes", "download")]
    columns += left("where", "licence", min_width=15)
    print_table("Data sets", columns, map(_listing_row, listings), spare=("licence", "classes", "test", "train"))
    for listing in listings:
        if listing.note:
            typer.echo(f"{listing.name}: {listing.note}.")
    folders = " and ".join(map(str, datasets.search_folders()))
    typer.echo(f"Looked in {folders}. Name a folder of your own by {datasets.FOLDER_VARIABLE}.")


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

    listings = list(datasets.KNOWN.values()) if name is None else [datasets.known(name)]
    states = [(listing, state) for listing in with_progress(listings, "Checking") for state in datasets.check(listing)]
    if name is None:
        here = {listing.name for listing, state in states if state.path}
        states = [(listing, state) for listing, state in states if listing.name in here]
    if as_json:
        print_json([_state_as_json(listing, state) for listing, state in states])
    else:
        columns = [*left("data set", "file", "state"), *left("where, and what is wrong", min_width=20)]
        print_table("Files", columns, (_state_row(listing, state) for listing, state in states))
    wrong = {"damaged"} if name is None else {"damaged", "not here"}
    if any(state.state in wrong for _, state in states):
        raise typer.Exit(1)


def _state_as_json(listing: Listing, state: FileState) -> dict[str, str | None]:
    path = None if state.path is None else str(state.path)
    fault = state.fault or None
    return {"dataset": listing.name, "file": state.file.path, "state": state.state, "path": path, "fault": fault}


def _state_row(listing: Listing, state: FileState) -> tuple[Cell, ...]:
    style = {"intact": "green", "damaged": "bold red"}.get(state.state, "")
    place = "; ".join(str(part) for part in (state.path, state.fault) if part)
    return listing.name, state.file.path, (state.state, style), place


def _listing_as_json(listing: Listing) -> dict[str, object]:
    from sordino.learning import datasets

    paths = datasets.locate(listing)
    train, test = listing.sizes
    return {
        "name": listing.name,
        "title": listing.title,
        "train": train,
        "test": test,
        "shape": list(listing.shape),
        "classes": len(listing.classes),
        "download_bytes": listing.download_size,
        "files": len(paths),
        "files_found": sum(path is not None for path in paths),
        "found": _place_of(paths),
        "licence": listing.licence,
        "source": listing.source,
        "note": listing.note or None,
    }


def _place_of(paths: Sequence[Path | None]) -> str | None:
    """The folder of a set that is here with all its files; sets without files come with Sordino."""
    here = sorted({str(path.parent) for path in paths if path is not None})
    return ", ".join(here) or "built in" if None not in paths else None


def _listing_row(listing: Listing) -> tuple[str, ...]:
    from sordino.learning import datasets

    paths = datasets.locate(listing)
    found = sum(path is not None for path in paths)
    place = _place_of(paths) or (f"not here ({found} of {len(paths)} files)" if found else "not here")
    size = f"{listing.download_size / 1e6:,.0f} MB" if listing.download_size else ""
    counts = (*(f"{count:,}" for count in listing.sizes), str(len(listing.classes)), size)
    return listing.name, listing.title, *counts, place, listing.licence
