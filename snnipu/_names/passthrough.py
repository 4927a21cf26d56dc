"""Resolve names that snnipu does not define to the objects of snnTorch.

``import snnipu.spikegen`` and ``from snnipu.functional import loss`` give snnTorch's modules, the same objects.
snnipu's modules take precedence.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, List, Optional

import snntorch

from snnipu._names import AliasFinder

PREFIX = "snnipu."


def snntorch_module_name(fullname: str) -> Optional[str]:
    """Return ``snntorch.functional.loss`` for ``snnipu.functional.loss``; None if snnTorch has no such module."""
    name = "snntorch." + fullname[len(PREFIX) :]
    if name in sys.modules:
        return name
    try:
        return name if importlib.util.find_spec(name) is not None else None
    except ModuleNotFoundError:
        return None


def _is_snnipu_module(fullname: str) -> bool:
    path = Path(__file__).parent.parent.joinpath(*fullname[len(PREFIX) :].split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _target_of(fullname: str) -> Optional[str]:
    is_ours = not fullname.startswith(PREFIX) or _is_snnipu_module(fullname)
    return None if is_ours else snntorch_module_name(fullname)


_FINDER = AliasFinder(_target_of)


def install() -> None:
    """Put the finder first on ``sys.meta_path``, once. Python's path finder would load a second copy of a module."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def resolve(name: str) -> Any:
    """Return the attribute ``name`` of snnTorch, or the submodule of that name of snnipu or else of snnTorch."""
    attribute = getattr(snntorch, name, None)
    if attribute is not None and not isinstance(attribute, ModuleType):
        return attribute
    if not name.startswith("_") and importlib.util.find_spec(PREFIX + name) is not None:
        return importlib.import_module(PREFIX + name)
    if attribute is not None:
        return attribute
    raise AttributeError(f"module 'snnipu' has no attribute {name!r}, and neither has snntorch {snntorch.__version__}")


def names() -> List[str]:
    """Return snnTorch's public names, for ``dir(snnipu)``."""
    return [name for name in dir(snntorch) if not name.startswith("_")]
