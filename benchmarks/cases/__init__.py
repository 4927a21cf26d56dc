"""The cases: a module each, found by its name, that has ``CASE``."""

import importlib
import pkgutil

CASES = {name: importlib.import_module(f"{__name__}.{name}").CASE for _, name, _ in pkgutil.iter_modules(__path__)}
