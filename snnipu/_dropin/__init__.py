"""Provide snnipu's modules under other names: ``poptorch`` is ``snnipu.poptorch``, and ``snntorch`` is ``snnipu``.

``python -m snnipu run`` calls these functions. ``import snnipu`` alone does not change any name.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, Dict, Iterable, List, Optional, Sequence

from snnipu._names import AliasFinder, PoptorchStandIn, is_installed, provides_poptorch

# Folder from which child processes import ``poptorch`` and ``popdist``; see its docstring.
CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "children")


_PROVIDED = ("poptorch", "popdist", "popart")


def _poptorch_module(fullname: str) -> Optional[str]:
    """Return ``snnipu.poptorch.x`` for ``poptorch.x``; likewise for ``popdist`` and ``popart``."""
    top = fullname.partition(".")[0]
    if top not in _PROVIDED or is_installed(top):
        return None
    name = "snnipu." + fullname
    return name if name in sys.modules or importlib.util.find_spec(name) is not None else None


class _SnntorchFinder(AliasFinder):
    """A finder for ``snntorch.x``: snnipu's module ``x`` if snnipu has a file for it, else snnTorch's."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__(_snnipu_module)
        self._roots: Dict[str, Iterable[str]] = {"snntorch": list(real.__path__)}

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if not fullname.startswith("snntorch."):
            return None
        return super().find_spec(fullname, path, target) or self._real_spec(fullname)

    def _real_spec(self, fullname: str) -> Optional[importlib.machinery.ModuleSpec]:
        parent = fullname.rpartition(".")[0]
        if parent not in self._roots:
            spec = self._real_spec(parent)
            locations = spec.submodule_search_locations if spec is not None else None
            self._roots[parent] = list(locations or [])
        return importlib.machinery.PathFinder.find_spec(fullname, list(self._roots[parent]))


def _snnipu_module(fullname: str) -> Optional[str]:
    """Return ``snnipu.functional`` for ``snntorch.functional`` if snnipu has a file for it, else None."""
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
    """Let ``poptorch``, ``popdist`` and ``popart`` be imported from snnipu if they are not installed.

    This also holds in processes that multiprocessing starts from this one.
    """
    if not is_installed("poptorch") and not provides_poptorch():
        sys.meta_path.insert(0, PoptorchStandIn(_poptorch_module))
    if provides_poptorch() and CHILDREN not in sys.path:
        sys.path.append(CHILDREN)


class _Facade(ModuleType):
    """A module in place of ``real`` of snnTorch: its dunder names are those of ``real``, other names are of ``source``.

    So ``__version__`` stays that of snnTorch.
    """

    def __init__(self, real: ModuleType, source: ModuleType) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__.update({name: value for name, value in vars(real).items() if name.startswith("__")})
        self.__dict__.setdefault("__all__", [name for name in dir(real) if not name.startswith("_")])
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __dir__(self) -> List[str]:
        return sorted({*vars(self), *dir(self._source)} - {"_source"})


def _has_replaced_classes(module: ModuleType) -> bool:
    """Return True if a name of snnTorch's module is a class for which snnipu has a subclass of the same name."""
    return any(_replacement(value) is not value for value in vars(module).values())


def _replacement(value: Any) -> Any:
    """Return snnipu's subclass of a class of snnTorch, or ``value`` if there is none."""
    import snnipu

    if not (isinstance(value, type) and value.__module__.startswith("snntorch.")):
        return value
    ours = vars(snnipu).get(value.__name__)
    return ours if isinstance(ours, type) and issubclass(ours, value) else value


def provide_snntorch() -> None:
    """Let ``import snntorch`` import snnipu, and its submodules those of snnipu; snnTorch's where snnipu has none.

    The module keeps snnTorch's version, because scripts compare it. The modules of snnTorch's neurons, such as
    ``snntorch._neurons.leaky``, get snnipu's classes, too. snnTorch's code still sees its own.

    Modules of snnipu that replace one of snnTorch are imported here first, because they import the real snnTorch.
    """
    import snntorch

    import snnipu

    if isinstance(snntorch, _Facade):
        return
    finder = _SnntorchFinder(snntorch)
    loaded = {name: module for name, module in sys.modules.items() if name.startswith("snntorch.")}
    modules: Dict[str, ModuleType] = {}
    for name, real in loaded.items():
        ours = _snnipu_module(name)
        if ours is not None:
            modules[name] = importlib.import_module(ours)
        elif name.startswith("snntorch._") and _has_replaced_classes(real):
            modules[name] = _Facade(real, real)
            vars(modules[name]).update({key: _replacement(v) for key, v in vars(real).items() if key[0] != "_"})
    modules["snntorch"] = _Facade(snntorch, snnipu)
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
    sys.meta_path.insert(0, finder)
    sys.modules.update(modules)
