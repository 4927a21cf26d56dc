"""The cases, one module each.

A module has ``SUMMARY`` (one line for ``--help``), ``DTYPES`` (the element types that it can run in) and
``build(settings) -> Case``. It may have

* ``DEVICES``: the types of device that it can run on, where not all;
* ``FULL`` and ``QUICK``: its own defaults in place of the command's, without and with ``--quick``;
* ``variants(settings) -> List[Settings]``: the tables it has where the command was asked for no sizes and no type;
* ``sweep(settings, ...) -> Sweep``: what the command runs when it is asked for this case alone;
* ``OPTIONS``: the options of the command for that sweep, each an argument of ``sweep`` or a field of the settings;
* ``NEURONS``: the field of the settings that ``--neurons`` sets, where not ``neurons``; the case has its own default.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Dict


def available() -> Dict[str, ModuleType]:
    """Every case by name, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}
