"""Packages that only some commands need: asked for where they are used, with the way to install them."""

import importlib
import importlib.metadata
import re
from typing import Any, List

LEAST_NIR = "1.0.6"  # its neurons have a v_reset


class MissingExtra(ImportError):
    """A package of one of snnipu's optional extras is not installed, too old, or does not load."""


def require(module: str, extra: str, purpose: str, least: str = "") -> Any:
    """Import ``module``; where that fails, say what it is needed for and which extra installs it.

    Raises:
        MissingExtra: ``module`` is not installed, of a version before ``least``, or its import fails (a build that does
            not fit this PyTorch, say).
    """
    package = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
    try:
        made = importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f'{purpose} needs {package}, which cannot be imported ({error}): pip install "snnipu[{extra}]"'
        ) from error
    except Exception as error:  # a binary package built for another version may raise anything
        raise MissingExtra(
            f"{purpose} needs {package}, which is installed but fails to load ({type(error).__name__}: {error}): "
            f'install a build that fits this PyTorch, or reinstall with pip install "snnipu[{extra}]"'
        ) from error
    if least and _numbers(importlib.metadata.version(package)) < _numbers(least):
        raise MissingExtra(
            f"{purpose} needs {package} {least} or later, found {importlib.metadata.version(package)}: "
            f'pip install "snnipu[{extra}]"'
        )
    return made


def _numbers(version: str) -> List[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
