"""Modules under further names: snnTorch's under ours (``passthrough``); ``snnipu._dropin`` has ours under others'."""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Optional

from snnipu._extras import require

# Packages that modules of snnTorch import and its metadata does not require.
_NEEDED = {"snntorch.spikeplot": ("pandas", "matplotlib")}
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class AliasLoader(importlib.abc.Loader):
    """Loads one module under another name: both names give the same object."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        return None

    def exec_module(self, module: ModuleType) -> None:
        for package in _NEEDED.get(self._target, ()):
            require(package, extra="plot", purpose=self._target)
        # importlib hands out what stands in sys.modules after exec_module: the target keeps its own __spec__.
        sys.modules[module.__name__] = importlib.import_module(self._target)


class PoptorchStandIn(importlib.abc.MetaPathFinder):
    """What ``snnipu._dropin`` finds ``poptorch`` with where it is not installed."""


def is_installed(name: str) -> bool:
    """True where a package of this name is installed, our stand-ins for it left aside.

    A folder of that name without ``__init__.py`` is no such package.
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
    """True once ``import poptorch`` gives the host runtime."""
    return any(isinstance(finder, PoptorchStandIn) for finder in sys.meta_path)
