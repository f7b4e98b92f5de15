"""`sordino predict` and `sordino export`: using the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import check_folder
from sordino.errors import InvalidInput

FinishedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or its model.safetensors.")
]


def predict(
    run: FinishedRun,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A .csv table, or an .npz file with x.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="CSV", help="Write here, not on the standard output.")
    ] = None,
) -> None:
    """Say the class (or the labels, or the number) of each record of a file: `sordino predict runs/mine patients.csv`.

    Give records as they are: the model normalises them. A label is not needed. Where the run learned from a table with
    names, columns are found by these, in any order, and others are left out. Otherwise a .csv has no header and one
    column per value, and the x of an .npz file has the shape of the training data.

    The result is a table with the columns class and probability, one row per record, in order. Of labels it has those
    that are set and a probability for each, of a number one column in the unit of the training data.
    """
    if out is not None:
        _check_output(out, "--out", run, data)
    from sordino.runs.model_file import load_model
    from sordino.runs.prediction import predict_file
    from sordino.storage.files import make_folder, write_whole

    found = predict_file(load_model(run), data)
    if out is None:
        typer.echo(found.to_csv(), nl=False)
        return
    make_folder(out.parent)
    write_whole(out, found.to_csv().encode())
    typer.echo(f"{len(found):,} predictions are in {out}.")


def export(
    run: FinishedRun,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="Write the model here, as ONNX.")],
) -> None:
    r"""Write the model of a run for other programs: `sordino export runs/quickstart --onnx model.onnx`.

    The file takes raw records as float32 and gives probabilities, or values; its metadata has the names. It is compared
    with PyTorch on random records first, and what differs is not written. Needs pip install 'sordino\[export]'.
    """
    _check_output(onnx, "--onnx", run)
    from sordino.runs.model_file import load_model
    from sordino.runs.onnx_export import export_onnx

    found = export_onnx(load_model(run), onnx)
    typer.echo(f"{onnx} agrees with PyTorch: answers for random records differ by {found:.1e} at most.")


def _check_output(out: Path, option: str, *sources: Path) -> None:
    """Refuse a place that cannot be written to, or that would replace what is read."""
    check_folder(out.parent, option)
    files = [source / "model.safetensors" if source.is_dir() else source for source in sources]
    if out.is_dir() or any(out.exists() and file.exists() and out.samefile(file) for file in files):
        raise InvalidInput(f"{out} is a folder or a file that is read: choose another name with {option}")
