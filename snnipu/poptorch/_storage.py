"""Files of compiled models: the compiled inputs, and optionally the model, its options and its optimizer.

The files are pickles: load only files that you trust, as with PopTorch.
"""

import os
import pickle
from typing import Any, Dict

from snnipu.poptorch._errors import Error
from snnipu.poptorch._logging import logger

_FORMAT = "snnipu.poptorch/3"  # 1, 2: options and inputs were stored in other forms


def save(filename: str, **contents: Any) -> None:
    if os.path.isdir(filename):
        logger.warning("save: %s is a folder, writing model.poptorch into it", filename)
        filename = os.path.join(filename, "model.poptorch")
    folder = os.path.dirname(filename)
    if folder:
        os.makedirs(folder, exist_ok=True)
    with open(filename, "wb") as file:
        pickle.dump({"format": _FORMAT, **contents}, file, protocol=4)


def read(filename: str) -> Dict[str, Any]:
    """Return the contents of a file that :func:`save` wrote. Raises ``poptorch.Error`` for any other file."""
    try:
        with open(filename, "rb") as file:
            data = pickle.load(file)
    except pickle.UnpicklingError as error:
        raise Error(f"{filename} is no model file: {error}") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise Error(f"{filename} was not written by this version of snnipu's host runtime of PopTorch: compile again")
    return data
