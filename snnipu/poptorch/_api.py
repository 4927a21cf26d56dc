"""The public names of the host runtime: all names of this module without a leading underscore."""

# ruff: noqa: F401

from snnipu._version import __version__ as _snnipu_version
from snnipu.poptorch._blocks import Attribute, module_repr
from snnipu.poptorch._dataloader import AsynchronousDataAccessor, DataLoader
from snnipu.poptorch._errors import (
    ConfigFileError,
    Error,
    RecoverableError,
    UnrecoverableError,
)
from snnipu.poptorch._execution import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from snnipu.poptorch._hardware import ipuHardwareIsAvailable, ipuHardwareVersion
from snnipu.poptorch._logging import logger, setLogLevel
from snnipu.poptorch._poplar_executor import (
    PoplarExecutor,
    inferenceModel,
    load,
    registerPostCompileHook,
    registerPreCompileHook,
    trainingModel,
)
from snnipu.poptorch._structure import ICustomArgParser, registerCustomArgParser
from snnipu.poptorch._tracing import isRunningOnIpu
from snnipu.poptorch.enums import *  # noqa: F403
from snnipu.poptorch.ops import *  # noqa: F403
from snnipu.poptorch.options import Options, TensorLocationSettings

# The version of PopTorch that the host runtime follows, and the version of snnipu.
_VERSION = f"3.4.0+snnipu.host.{_snnipu_version}"


def createPoptorchError(msg: str) -> Error:
    """Return a ``poptorch.Error`` with the message ``msg``."""
    return Error(msg)


__all__ = [name for name in globals() if not name.startswith("_")]
