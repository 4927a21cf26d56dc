"""The logger of the host runtime: on stderr, with PopTorch's name and levels."""

import logging
import os
from typing import Union

from snnipu.poptorch._errors import InvalidArgument

logger = logging.getLogger("poptorch::python")

# Name: (PopTorch's number, Python's level).
_LEVELS = {
    "TRACE": (0, logging.DEBUG),
    "DEBUG": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, logging.CRITICAL + 1),
}


def setLogLevel(level: Union[str, int]) -> None:
    """Show messages of a level and above.

    Args:
        level: ``"TRACE"``, ``"DEBUG"``, ``"INFO"``, ``"WARN"``, ``"ERR"`` or ``"OFF"``, or PopTorch's number of it: 0,
            1, 2, 3, 4 or 6. Anything else raises ``poptorch.Error`` (a ``ValueError``).
    """
    for name, (number, python_level) in _LEVELS.items():
        if level == name or (level == number and not isinstance(level, bool)):
            logger.setLevel(python_level)
            return
    raise InvalidArgument(f"level: expected one of {', '.join(_LEVELS)}, got {level!r}")


def _install() -> None:
    if not logger.handlers:
        console = logging.StreamHandler()
        console.setFormatter(logging.Formatter("[%(name)s] [%(levelname)s] %(message)s"))
        logger.addHandler(console)
    setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))


_install()
