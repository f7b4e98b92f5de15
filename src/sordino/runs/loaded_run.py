"""`load_run(folder)`: the figures of a run that is over, from its folder."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from sordino.errors import InvalidInput
from sordino.privacy.history import RoundReleases
from sordino.report.folder import RunFolder
from sordino.runs.journal import read_past
from sordino.runs.run_figures import RunFigures
from sordino.storage.files import whole_lines


def load_run(run: str | Path) -> RunFigures:
    """The figures of a finished run, by its folder; `sordino.load_model` gives its model.

    Neither the data nor code that the recipe names is needed.
    """
    folder = RunFolder.open(run)
    result, statement = folder.final_result(), folder.statement()
    if result is None or statement is None:
        raise InvalidInput(
            f"the run in {folder.path} is not over: finish it with 'sordino run --resume {quote(str(folder.path))}'"
        )
    return RunFigures(result, folder.rounds(), statement, folder=folder.path, releases=_releases(folder))


def _releases(folder: RunFolder) -> tuple[RoundReleases, ...]:
    """What clients released: a simulation has lines of it, a run with real clients a journal."""
    lines = whole_lines(folder.checkpoint / "releases.jsonl")
    return tuple(map(RoundReleases.from_line, lines)) or tuple(read_past(folder).spent)


__all__ = ["load_run"]
