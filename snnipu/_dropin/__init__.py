"""Other packages' names for our modules: ``poptorch`` for ``snnipu.poptorch``, ``snntorch`` for ``snnipu``.

``python -m snnipu run`` uses this; nothing here happens on ``import snnipu``.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, Dict, Iterable, List, Optional, Sequence

from snnipu._names import AliasLoader, PoptorchStandIn, is_installed, provides_poptorch

# Folder that gives child processes ``poptorch`` and ``popdist``; see its docstring.
CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "children")


def _alias(name: str, target: str) -> importlib.machinery.ModuleSpec:
    return importlib.machinery.ModuleSpec(name, AliasLoader(target), is_package=True)


_PROVIDED = ("poptorch", "popdist", "popart")


class _PoptorchFinder(PoptorchStandIn):
    """``poptorch`` and everything below it is ``snnipu.poptorch`` and what is below that; so for the others."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        top = fullname.partition(".")[0]
        if top not in _PROVIDED or is_installed(top):
            return None
        name = "snnipu." + fullname
        known = name in sys.modules or importlib.util.find_spec(name) is not None
        return _alias(fullname, name) if known else None


class _SnntorchFinder(importlib.abc.MetaPathFinder):
    """``snntorch.x`` is ``snnipu.x`` where snnipu has such a module of its own, else snnTorch's, from its own files."""

    def __init__(self, real: ModuleType) -> None:
        self._roots: Dict[str, Iterable[str]] = {"snntorch": list(real.__path__)}

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if not fullname.startswith("snntorch."):
            return None
        own = _own_module(fullname)
        return _alias(fullname, own) if own is not None else self._real_spec(fullname)

    def _real_spec(self, fullname: str) -> Optional[importlib.machinery.ModuleSpec]:
        parent = fullname.rpartition(".")[0]
        if parent not in self._roots:
            spec = self._real_spec(parent)
            locations = spec.submodule_search_locations if spec is not None else None
            self._roots[parent] = list(locations or [])
        return importlib.machinery.PathFinder.find_spec(fullname, list(self._roots[parent]))


def _own_module(fullname: str) -> Optional[str]:
    """``snntorch.functional`` -> ``snnipu.functional`` where snnipu has a file for it, not a pass-through."""
    import snnipu

    name, path = "snnipu", list(snnipu.__path__)
    for part in fullname.split(".")[1:]:
        name = f"{name}.{part}"
        spec = None if part.startswith("_") else importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return name


def provide_poptorch() -> None:
    """Make ``import poptorch``, ``popdist`` and ``popart`` work where they are not installed, here and in processes
    that multiprocessing starts from here.
    """
    if not is_installed("poptorch") and not provides_poptorch():
        sys.meta_path.insert(0, _PoptorchFinder())
    if provides_poptorch() and CHILDREN not in sys.path:
        sys.path.append(CHILDREN)


class _Facade(ModuleType):
    """snnTorch's module, dunder names and ``__version__`` included, except for what ``own`` has in its place."""

    def __init__(self, real: ModuleType, own: ModuleType) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__.update({name: value for name, value in vars(real).items() if name.startswith("__")})
        self.__dict__.setdefault("__all__", [name for name in dir(real) if not name.startswith("_")])
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __dir__(self) -> List[str]:
        return sorted({*vars(self), *dir(self._own)} - {"_own"})


def _hides_our_neurons(module: ModuleType) -> bool:
    """Whether a name of snnTorch's module is a class that snnipu has in a version of its own."""
    return any(_ours(value) is not value for value in vars(module).values())


def _ours(value: Any) -> Any:
    """snnipu's own version of a class of snnTorch's, or ``value`` itself."""
    import snnipu

    if not (isinstance(value, type) and value.__module__.startswith("snntorch.")):
        return value
    own = vars(snnipu).get(value.__name__)
    return own if isinstance(own, type) and issubclass(own, value) else value


def provide_snntorch() -> None:
    """Make ``import snntorch`` give snnipu's names, and its submodules ours where there are any, else snnTorch's own.

    The module keeps snnTorch's version, which scripts compare. In the modules of snnTorch's neurons, too
    (``snntorch._neurons.leaky``), the classes are ours where there are any; what snnTorch itself sees stays as it is.

    Modules of ours that stand for one of snnTorch's are imported here first: their own ``import snntorch`` must still
    give the real one.
    """
    import snntorch

    import snnipu

    if isinstance(snntorch, _Facade):
        return
    finder = _SnntorchFinder(snntorch)
    loaded = {name: module for name, module in sys.modules.items() if name.startswith("snntorch.")}
    modules: Dict[str, ModuleType] = {}
    for name, real in loaded.items():
        own = _own_module(name)
        if own is not None:
            modules[name] = importlib.import_module(own)
        elif name.startswith("snntorch._") and _hides_our_neurons(real):
            modules[name] = _Facade(real, real)
            vars(modules[name]).update({key: _ours(value) for key, value in vars(real).items() if key[0] != "_"})
    modules["snntorch"] = _Facade(snntorch, snnipu)
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
    sys.meta_path.insert(0, finder)
    sys.modules.update(modules)
