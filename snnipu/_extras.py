"""Optional packages. They are imported when a function needs them; the error names the extra that installs them."""

import importlib
import importlib.metadata
import re
from typing import Any, List

LEAST_NIR = "1.0.6"  # the first version whose neurons have v_reset


class MissingExtra(ImportError):
    """A package of one of snnipu's optional extras is not installed, too old, or does not load."""


def require(module: str, extra: str, purpose: str, least: str = "") -> Any:
    """Import and return an optional module.

    Args:
        module: name of the module.
        extra: the extra of snnipu that installs it, for the error message.
        purpose: the function that needs the module, for the error message.
        least: the oldest version that works; "" for any.

    Raises:
        MissingExtra: ``module`` is not installed, is older than ``least``, or fails to import. A build for another
            PyTorch may fail so.
    """
    package = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
    try:
        imported = importlib.import_module(module)
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
    return imported


def _numbers(version: str) -> List[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
