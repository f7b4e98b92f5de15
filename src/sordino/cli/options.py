"""Options and arguments that several commands share, and what can be refused about them before anything heavy loads."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from sordino.errors import InvalidInput
from sordino.parts.hardware import check_device, check_workers

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Agree without being asked.")]
RECIPE = typer.Argument(metavar="RECIPE", help="A shipped recipe by name (`sordino recipes`), or a TOML file.")
RecipeName = Annotated[str, RECIPE]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the recipe, e.g. training.epochs=5; an empty value takes it away. May be repeated.",
    ),
]

# --- where to compute -------------------------------------------------------------------------------------------------

WorkerCount = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes; one per core if left out, or on a GPU as many as a short measurement finds fastest. Results "
        "do not depend on it (on a GPU: but for rounding).",
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda for a GPU, or cuda:0,1 for several.")]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Compute on a Ray cluster: auto for this machine's, or HOST:PORT."),
]

# --- where to listen --------------------------------------------------------------------------------------------------

Host = Annotated[str, typer.Option("--host", help="Where to listen; 0.0.0.0 for all addresses.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 for any that is free.")]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", metavar="PEM", help="A certificate chain, for HTTPS.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="PEM", help="The certificate's key.")]
Trusted = Annotated[
    Path | None, typer.Option("--trusted", metavar="PEM", help="A certificate to trust; the system's if left out.")
]

# --- an owner's records and consents ----------------------------------------------------------------------------------

DATA = "A data set by name, an .npz or .csv file, or a folder of images."
BUDGET = "The largest epsilon that may ever be spent, above 0."
ADJACENCY = "What is hidden: client, record-replace, record-add-remove, label or coordinate"
Rows = Annotated[str | None, typer.Option("--rows", help='Rows of the source, such as "0-598"; all if left out.')]
Label = Annotated[str | None, typer.Option("--label", help="The label's column of a .csv file.")]
Columns = Annotated[
    Path | None,
    typer.Option(
        "--columns",
        metavar="TOML",
        help="A file with data.columns or data.features, such as the federation's recipe: what to read of a .csv file.",
    ),
]
Classes = Annotated[str | None, typer.Option("--classes", help="The names of all classes of own data, with commas.")]
Labels = Annotated[str | None, typer.Option("--labels", help="In place of classes: the names of labels, with commas.")]
Target = Annotated[
    tuple[float, float] | None,
    typer.Option("--target", metavar="LOW HIGH", help="In place of classes: the public range of a number to learn."),
]
Unproven = Annotated[
    list[str] | None,
    typer.Option(
        "--unproven",
        metavar="WHAT",
        help="A kind of release that may leave without a proof, such as labels; may be repeated.",
    ),
]


def check_place(workers: int | None, device: str | None) -> None:
    """Refuse what can be refused at once: loading PyTorch takes seconds."""
    check_workers(workers)
    if device is not None:
        check_device(device)


def check_folder(folder: Path, option: str = "--out") -> None:
    """Refuse a folder that cannot be made or written to; nothing is made here."""
    nearest = next(each for each in (folder, *folder.parents) if os.path.lexists(each) or each == each.parent)
    if not os.path.isdir(nearest):  # noqa: PTH112  Path.is_dir raises where a link leads to a closed folder
        raise InvalidInput(
            f"nothing can be written to {folder}: {nearest} is not a folder. Choose another place ({option}), or move "
            f"{nearest} away"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidInput(
            f"nothing can be written to {folder}: {nearest} is read-only to you. Choose another place ({option}), or "
            f"allow writing there (chmod u+wx {quote(str(nearest))})"
        )
