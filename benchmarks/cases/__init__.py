"""The cases: each module has a ``CASE`` and is found by its name."""

import importlib
import pkgutil

CASES = {name: importlib.import_module(f"{__name__}.{name}").CASE for _, name, _ in pkgutil.iter_modules(__path__)}
