"""Packages that only some commands need: asked for where they are used, with the way to install them."""

import importlib
from typing import Any


class MissingExtra(ImportError):
    """A package of one of snnipu's optional extras is not installed, or does not load."""


def require(module: str, extra: str, purpose: str) -> Any:
    """Import ``module``; where that fails, say what it is needed for and which extra installs it.

    Raises:
        MissingExtra: ``module`` is not installed, or its import fails (a build that does not fit this PyTorch, say).
    """
    package = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f'{purpose} needs {package}, which cannot be imported ({error}): pip install "snnipu[{extra}]"'
        ) from error
    except Exception as error:  # a binary package built for another version may raise anything
        raise MissingExtra(
            f"{purpose} needs {package}, which is installed but fails to load ({type(error).__name__}: {error}): "
            f'install a build that fits this PyTorch, or reinstall with pip install "snnipu[{extra}]"'
        ) from error
