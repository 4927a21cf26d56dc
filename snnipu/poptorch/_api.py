"""The public names of the host runtime."""

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
from snnipu.poptorch.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from snnipu.poptorch.ops import *  # noqa: F403
from snnipu.poptorch.ops import __all__ as _operators
from snnipu.poptorch.options import Options, TensorLocationSettings

# The version of PopTorch that the host runtime follows, and the version of snnipu.
VERSION = f"3.4.0+snnipu.host.{_snnipu_version}"


def createPoptorchError(msg: str) -> Error:
    """Return a ``poptorch.Error`` with the message ``msg``."""
    return Error(msg)


__all__ = [
    *_operators,
    "AsynchronousDataAccessor",
    "Attribute",
    "AutoStage",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "createPoptorchError",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "isRunningOnIpu",
    "load",
    "logger",
    "module_repr",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "setLogLevel",
    "trainingModel",
]
