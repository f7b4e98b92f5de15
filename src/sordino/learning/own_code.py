"""Models and data functions of a user's own, named in a recipe as `package.module:name`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType


def module(name: str) -> ModuleType:
    """The module of that name: an installed one, or else one in the current folder.

    Python searches the folder it is started in only when it runs a module or a file from there, so that a program
    installed as a script would not find the file beside the recipe. The folder stays the last place that is searched:
    no file in it takes the place of a library, and workers, which search where this process does, find it too.
    """
    here = str(Path.cwd())
    if not sys.flags.safe_path and here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


__all__ = ["module"]
