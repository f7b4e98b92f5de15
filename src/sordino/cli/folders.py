"""Where commands write: what can be refused about it before anything heavy is loaded, let alone trained."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

from sordino.errors import InvalidInput


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


__all__ = ["check_folder"]
