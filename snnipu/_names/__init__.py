"""Import modules under other names: snnTorch's modules as ``snnipu.<name>`` (``passthrough``).

``snnipu._dropin`` does the reverse: it provides snnipu's modules under the names of other packages.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Callable, Optional, Sequence

from snnipu._extras import require

# Packages that modules of snnTorch import, but that its metadata does not list.
_NEEDED = {"snntorch.spikeplot": ("pandas", "matplotlib")}
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class AliasLoader(importlib.abc.Loader):
    """A loader that imports another module in place of the requested one: both names give the same object."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        return None

    def exec_module(self, module: ModuleType) -> None:
        for package in _NEEDED.get(self._target, ()):
            require(package, extra="plot", purpose=self._target)
        # importlib returns the entry of sys.modules after exec_module. So the target keeps its __spec__.
        sys.modules[module.__name__] = importlib.import_module(self._target)


class AliasFinder(importlib.abc.MetaPathFinder):
    """A finder that imports another module in place of the requested one.

    Args:
        target_of: a function from the requested name to the name of the other module; None: there is none.
    """

    def __init__(self, target_of: Callable[[str], Optional[str]]) -> None:
        self._target_of = target_of

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        name = self._target_of(fullname)
        return None if name is None else importlib.machinery.ModuleSpec(fullname, AliasLoader(name), is_package=True)


class PoptorchStandIn(AliasFinder):
    """The finder of ``snnipu._dropin``, which provides ``poptorch`` if it is not installed."""


def is_installed(name: str) -> bool:
    """Return True if a package of this name is installed. snnipu's stand-ins for it do not count.

    A folder of that name without ``__init__.py`` does not count either.
    """
    if name in sys.modules:
        return _is_package(name, getattr(sys.modules[name], "__spec__", None))
    finders = [finder for finder in sys.meta_path if not isinstance(finder, PoptorchStandIn)]
    return any(_is_package(name, finder.find_spec(name, None)) for finder in finders if hasattr(finder, "find_spec"))


def _is_package(name: str, spec: Optional[importlib.machinery.ModuleSpec]) -> bool:
    return (
        spec is not None
        and spec.name == name
        and spec.origin is not None
        and not spec.origin.startswith(_PACKAGE)
        and not isinstance(spec.loader, AliasLoader)
    )


def provides_poptorch() -> bool:
    """Return True if ``import poptorch`` imports snnipu's host runtime."""
    return any(isinstance(finder, PoptorchStandIn) for finder in sys.meta_path)
