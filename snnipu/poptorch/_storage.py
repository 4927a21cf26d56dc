"""Compiled models in files: what was compiled for, and on request the model, its options and its optimizer.

The files are pickles: load only those that you trust, as with PopTorch's own.
"""

import os
import pickle
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from snnipu.poptorch._errors import Error, InvalidArgument
from snnipu.poptorch._logging import logger
from snnipu.poptorch.enums import ConnectionType
from snnipu.poptorch.options import Options

if TYPE_CHECKING:
    from snnipu.poptorch._executor import PoplarExecutor

_FORMAT = "snnipu.poptorch/1"


def save(executor: "PoplarExecutor", filename: str, export_model: bool, save_rng_state: bool) -> None:
    if os.path.isdir(filename):
        logger.warning("save: %s is a folder, writing model.poptorch into it", filename)
        filename = os.path.join(filename, "model.poptorch")
    folder = os.path.dirname(filename)
    if folder:
        os.makedirs(folder, exist_ok=True)
    data: Dict[str, Any] = {"format": _FORMAT, "inputs": executor._compiled, "model": None}
    if export_model:
        data.update(
            model=executor._user_model,
            training=executor._training,
            options=executor._options,
            optimizer=executor._runner.optimizer if executor._runner is not None else None,
        )
    if save_rng_state:
        data["rng_state"] = executor.rng_state
    with open(filename, "wb") as file:
        pickle.dump(data, file, protocol=4)


def read(filename: str) -> Dict[str, Any]:
    """The contents of a file that :func:`save` wrote. Raises ``poptorch.Error`` for any other file."""
    try:
        with open(filename, "rb") as file:
            data = pickle.load(file)
    except pickle.UnpicklingError as error:
        raise Error(f"{filename} is no model file: {error}") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise Error(f"{filename} was not written by snnipu's host runtime of PopTorch")
    return data


def load(filename: str, edit_opts_fn: Optional[Callable[[Options], None]] = None) -> "PoplarExecutor":
    """The compiled model that ``compileAndExport`` or ``save`` wrote, wrapped again and ready to run.

    ``edit_opts_fn`` may change the options first. Raises ``poptorch.Error`` for a file saved without its model.
    """
    from snnipu.poptorch._executor import inferenceModel, trainingModel

    data = read(filename)
    if data["model"] is None:
        raise InvalidArgument(
            f"{filename} was saved with export_model=False: wrap the model and call loadExecutable({filename!r}) on it"
        )
    options: Options = data["options"]
    options._unfreeze()
    if options.connection_type == ConnectionType.Never:
        options.deleteIfExists("ipu_version")
        options.connectionType(ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    if data["training"]:
        executor = trainingModel(data["model"], options, data["optimizer"])
    else:
        executor = inferenceModel(data["model"], options)
    executor.loadExecutable(filename)
    if "rng_state" in data:
        executor.rng_state = data["rng_state"]
    return executor
