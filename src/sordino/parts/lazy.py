"""Libraries that load when first used: a run that needs no scipy or mpmath should not wait for them.

The caller keeps its types by importing the same name under `TYPE_CHECKING`:

    if TYPE_CHECKING:
        from scipy import special
    else:
        special = lazy_module("scipy.special")
"""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def lazy_module(name: str) -> ModuleType:
    """The module of that name, which loads itself when one of its attributes is first asked for."""
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
