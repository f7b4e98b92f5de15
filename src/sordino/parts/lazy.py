"""Libraries that load when first used: a run that needs no scipy or mpmath should not wait for them.

The caller keeps its types by importing the same name under `TYPE_CHECKING`:

    if TYPE_CHECKING:
        from scipy import special
    else:
        special = lazy_module("scipy.special")
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """Stands for a module until it is used; `sys.modules` never holds it, so that nobody else loads it by looking."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def lazy_module(name: str) -> ModuleType:
    """The module of that name, which loads itself when one of its attributes is first asked for."""
    return sys.modules.get(name) or _LazyModule(name)


FEW = 100_000  #: objects, as many as a program has that has loaded numpy and little else


@contextmanager
def loading() -> Iterator[None]:
    """Load modules in this block without looking for garbage in them, now or later.

    Looking takes a quarter of the time that it takes to load them, and again as long when Python ends. Where a program
    has many objects of its own by now, what was loaded is looked at later, with them.
    """
    if not gc.isenabled():  # whoever disabled it goes on from here
        yield
        return
    few = len(gc.get_objects()) < FEW
    gc.disable()
    try:
        yield
    finally:
        if few:
            gc.freeze()
        elif not gc.get_freeze_count():  # what was loaded joins what is old at once, not after three more looks at it
            gc.freeze()
            gc.unfreeze()
        gc.enable()
