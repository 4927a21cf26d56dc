"""Every snnTorch name that snnipu does not accelerate resolves to snnTorch's own object.

``snnipu.Synaptic`` is ``snntorch.Synaptic``; ``import snnipu.spikegen`` and ``from snnipu.functional import loss``
give snnTorch's modules, the same objects. Modules of our own come first.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, List, Optional, Sequence

import snntorch

from snnipu._names import AliasLoader

PREFIX = "snnipu."


def snntorch_module_name(fullname: str) -> Optional[str]:
    """``snnipu.functional.loss`` -> ``snntorch.functional.loss``, or None where snnTorch has no such module."""
    name = "snntorch." + fullname[len(PREFIX) :]
    if name in sys.modules:
        return name
    try:
        return name if importlib.util.find_spec(name) is not None else None
    except ModuleNotFoundError:
        return None


def _is_own(fullname: str) -> bool:
    path = Path(__file__).parent.parent.joinpath(*fullname[len(PREFIX) :].split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


class PassthroughFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if not fullname.startswith(PREFIX) or _is_own(fullname):
            return None
        theirs = snntorch_module_name(fullname)
        return None if theirs is None else importlib.machinery.ModuleSpec(fullname, AliasLoader(theirs))


def install() -> None:
    """Put the finder on ``sys.meta_path``, once: before the path finder, which would load a module's second copy."""
    if not any(isinstance(finder, PassthroughFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PassthroughFinder())


def resolve(name: str) -> Any:
    """The submodule called ``name``, ours before snnTorch's, or the snnTorch attribute."""
    attribute = getattr(snntorch, name, None)
    if attribute is not None and not isinstance(attribute, ModuleType):
        return attribute
    if not name.startswith("_") and importlib.util.find_spec(PREFIX + name) is not None:
        return importlib.import_module(PREFIX + name)
    if attribute is not None:
        return attribute
    raise AttributeError(f"module 'snnipu' has no attribute {name!r}, and neither has snntorch {snntorch.__version__}")


def names() -> List[str]:
    """snnTorch's public names, for ``dir(snnipu)``."""
    return [name for name in dir(snntorch) if not name.startswith("_")]
