"""``poptorch.Options`` and its groups (PopTorch user guide, "API reference", "Options").

Every method returns the object it was called on, as PopTorch's do, and checks its arguments: a wrong value raises
``poptorch.Error`` naming the option. What an option does here:

* it changes the result: ``deviceIterations``, ``replicationFactor``, ``inputReplicaGrouping``, ``outputMode``,
  ``randomSeed``, ``Training.gradientAccumulation``, ``Training.accumulationAndReplicationReductionType``,
  ``Distributed``, ``connectionType``, ``setExecutionStrategy`` (checks only), ``anchorTensor``;
* it concerns hardware, memory or logs: checked and kept, with no effect on a host.
"""

import copy
import json
import os
from types import SimpleNamespace
from typing import Any, Callable, ClassVar, Dict, List, Optional, Tuple, Union

import torch

from snnipu.poptorch import _execution, _tensor_locations, enums
from snnipu.poptorch._errors import (
    ConfigFileError,
    Error,
    InvalidArgument,
    InvalidType,
    check_bool,
    check_enum,
    check_fraction,
    check_int,
    check_str,
)
from snnipu.poptorch._execution import PipelinedExecution, _IExecutionStrategy
from snnipu.poptorch._hardware import IPU_VERSIONS
from snnipu.poptorch._logging import logger
from snnipu.poptorch._options_base import OptionsDict
from snnipu.poptorch._popart_options import _PopartOptions
from snnipu.poptorch._tensor_locations import TensorLocationSettings, _TensorLocationOptions

__all__ = ["ConfigFileError", "Options", "TensorLocationSettings"]


class _JitOptions(OptionsDict):
    """``Options.Jit``: PyTorch's tracer, which PopTorch no longer uses."""

    def traceModel(self, trace_model: bool) -> "_JitOptions":
        """Deprecated: only ``False`` is accepted."""
        if check_bool(trace_model, "Jit.traceModel"):
            raise InvalidArgument("Jit.traceModel: True is no longer supported, PopTorch always dispatches")
        return self


class _PrecisionOptions(OptionsDict):
    """``Options.Precision``: number formats."""

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__()
        self.__dict__["_popart"] = popart

    def halfFloatCasting(self, half_float_casting: enums.HalfFloatCastingBehavior) -> "_PrecisionOptions":
        """Deprecated: operations on half and float operands always compute in float, as in PopTorch 3."""
        self.checkIsFrozen()
        behaviour = enums.HalfFloatCastingBehavior
        if check_enum(half_float_casting, "Precision.halfFloatCasting", behaviour) == behaviour.FloatDowncastToHalf:
            logger.warning(
                "Precision.halfFloatCasting(FloatDowncastToHalf) has no effect: since PopTorch 3.0 operations on half "
                "and float operands always compute in float. Cast the float operands to half to get the old behaviour."
            )
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> "_PrecisionOptions":
        """Deprecated: normalisation statistics keep the format that the model gives them."""
        self.checkIsFrozen()
        check_bool(value, "Precision.runningStatisticsAlwaysFloat")
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> "_PrecisionOptions":
        """Stop on invalid arithmetic; no effect on a host."""
        check_bool(enabled, "Precision.enableFloatingPointExceptions")
        self._popart.set("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> "_PrecisionOptions":
        """Round to half stochastically; a host rounds to nearest."""
        check_bool(enabled, "Precision.enableStochasticRounding")
        self._popart.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> "_PrecisionOptions":
        """Format of partial sums: ``torch.float`` or ``torch.half``; a host always sums in float."""
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise InvalidArgument(f"Precision.setPartialsType: expected torch.float or torch.half, got {dtype!r}")
        self._popart.set("partialsTypeMatMuls", names[dtype])
        self._popart.set("convolutionOptions", {"partialsType": names[dtype]})
        return self


def _reduction(value: Any) -> enums.ReductionType:
    name = "Training.accumulationAndReplicationReductionType"
    if check_enum(value, name, enums.ReductionType) == enums.ReductionType.NoReduction:
        raise InvalidArgument(f"{name}: expected ReductionType.Mean or ReductionType.Sum, got NoReduction")
    return enums.ReductionType(value)


class _TrainingOptions(OptionsDict):
    """``Options.Training``: for training models only."""

    _validators: ClassVar[Dict[str, Callable[[Any], Any]]] = {
        "gradient_accumulation": lambda value: check_int(value, "Training.gradientAccumulation", 1),
        "accumulation_and_replication_reduction_type": _reduction,
        "meanAccumulationAndReplicationReductionStrategy": lambda value: check_enum(
            value, "Training.setMeanAccumulationAndReplicationReductionStrategy", enums.MeanReductionStrategy
        ),
    }

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=enums.ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=enums.MeanReductionStrategy.Post,
        )
        self.__dict__["_popart"] = popart

    def gradientAccumulation(self, gradient_accumulation: int) -> "_TrainingOptions":
        """Micro-batches whose gradients are combined before one step of the optimizer (default 1)."""
        self.set(gradient_accumulation=gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(self, reduction_type: enums.ReductionType) -> "_TrainingOptions":
        """How gradients of micro-batches and replicas are combined: ``Mean`` (default) or ``Sum``."""
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: enums.MeanReductionStrategy
    ) -> "_TrainingOptions":
        """When the mean divides; the host accumulates in float and divides last."""
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> "_TrainingOptions":
        """Let the device choose the loss scaling; the host uses the optimizer's ``loss_scaling``."""
        check_bool(enabled, "Training.setAutomaticLossScaling")
        self._popart.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> "_TrainingOptions":
        """Spread convolutions over tiles; no effect on a host."""
        check_bool(enabled, "Training.setConvolutionDithering")
        self._popart.set("convolutionOptions", {"enableConvDithering": enabled})
        return self


class _DistributedOptions(OptionsDict):
    """``Options.Distributed``: this process among those that share the data."""

    _validators: ClassVar[Dict[str, Callable[[Any], Any]]] = {
        "num_distributed_processes": lambda value: check_int(value, "Distributed: num_processes", 1),
        "distributed_process_id": lambda value: check_int(value, "Distributed: process_id"),
    }

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        _DistributedOptions.setEnvVarNames(self, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> "_DistributedOptions":
        """One process, whatever the environment says."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> "_DistributedOptions":
        """Read the number of processes and this one's number from two environment variables."""
        return _DistributedOptions.configureProcessId(
            self, int(os.environ.get(var_process_id, "0")), int(os.environ.get(var_num_processes, "1"))
        )

    def configureProcessId(self, process_id: int, num_processes: int) -> "_DistributedOptions":
        """This is process ``process_id`` (from 0) of ``num_processes``."""
        check_int(process_id, "Distributed.configureProcessId: process_id")
        if process_id >= check_int(num_processes, "Distributed.configureProcessId: num_processes", 1):
            raise InvalidArgument(
                f"Distributed.configureProcessId: process_id {process_id} is not below num_processes {num_processes}"
            )
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """The number of this process."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """How many processes there are."""
        return int(self.num_distributed_processes)


def _check_repeat_logs(value: Any) -> int:
    return check_int(value, "maxRepeatLogs")


class Options(OptionsDict):
    """How a model is compiled and run; given to ``trainingModel``, ``inferenceModel`` and ``DataLoader``.

    Using the options freezes them: a later change raises ``poptorch.Error``. ``clone()`` gives a copy that can change.
    The environment variables ``POPTORCH_CACHE_DIR`` and ``POPTORCH_DEFAULT_OPTIONS`` are read, as by PopTorch.
    """

    _validators: ClassVar[Dict[str, Callable[[Any], Any]]] = {
        "replication_factor": lambda value: check_int(value, "replicationFactor", 1),
        "device_iterations": lambda value: check_int(value, "deviceIterations", 1),
        "input_group_size": lambda value: check_int(value, "inputReplicaGrouping: input_group_size", 1),
        "input_cgt": lambda value: check_enum(value, "inputReplicaGrouping", enums.CommGroupType),
        "broadcast_buffers": lambda value: check_bool(value, "broadcastBuffers"),
        "log_dir": lambda value: check_str(value, "logDir"),
        "max_repeat_logs": _check_repeat_logs,
        "auto_round_num_ipus": lambda value: check_bool(value, "autoRoundNumIPUs"),
        "output_mode": lambda value: enums.OutputMode(value),
        "output_return_period": lambda value: check_int(value, "outputMode: output_return_period", 1),
        "connection_type": lambda value: enums.ConnectionType(value),
        "sync_pattern": lambda value: enums.SyncPattern(value),
        "model_name": lambda value: check_str(value, "modelName"),
        "use_model": lambda value: check_bool(value, "useIpuModel"),
        "ipu_id": lambda value: check_int(value, "useIpuId"),
        "random_seed": lambda value: check_int(value, "randomSeed", -(2**63)),
    }

    def __init__(self) -> None:
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_cgt=enums.CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=4,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=enums.OutputMode.Default,
            output_return_period=1,
            connection_type=enums.ConnectionType.Always,
            sync_pattern=enums.SyncPattern.Full,
            available_memory_proportion={},
        )
        popart = _PopartOptions()
        self.__dict__.update(
            _jit=_JitOptions(),
            _popart=popart,
            _precision=_PrecisionOptions(popart),
            _training=_TrainingOptions(popart),
            _distributed=_DistributedOptions(),
            _tensor_locations=_TensorLocationOptions(),
            _execution_strategy=PipelinedExecution(),
            _source_location_excludes=["site-packages/torch", "site-packages/poptorch"],
            _show_compilation_progress_bar=True,
            _relax_optimizer_checks=False,
            _module_namescope_enabled=True,
        )
        cache = os.environ.get("POPTORCH_CACHE_DIR", "")
        if cache:
            self.enableExecutableCaching(cache)
        self.from_json(os.environ.get("POPTORCH_DEFAULT_OPTIONS", "{}"))

    # Groups.

    @property
    def Jit(self) -> _JitOptions:
        """Options of PyTorch's tracer."""
        return self.__dict__["_jit"]

    @property
    def Precision(self) -> _PrecisionOptions:
        """Options of number formats."""
        return self.__dict__["_precision"]

    @property
    def Training(self) -> _TrainingOptions:
        """Options for training models only."""
        return self.__dict__["_training"]

    @property
    def Distributed(self) -> _DistributedOptions:
        """Options of running in several processes."""
        return self.__dict__["_distributed"]

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Options of where tensors are stored."""
        return self.__dict__["_tensor_locations"]

    @property
    def _Popart(self) -> _PopartOptions:
        """Options of the PopART session."""
        return self.__dict__["_popart"]

    # What changes the result.

    def deviceIterations(self, device_iterations: int) -> "Options":
        """Iterations (training: optimizer steps) that one call runs (default 1)."""
        self.set(device_iterations=device_iterations)
        return self

    def replicationFactor(self, replication_factor: int) -> "Options":
        """Replicas of the model, each with its own micro-batch (default 1). A host runs them one after another."""
        self.set(replication_factor=replication_factor)
        return self

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: enums.CommGroupType) -> "Options":
        """Give groups of ``input_group_size`` replicas the same micro-batch.

        Raises ``poptorch.Error`` where the size does not divide ``replicationFactor`` (set that first), and for
        ``CommGroupType.All``.
        """
        check_int(input_group_size, "inputReplicaGrouping: input_group_size", 1)
        check_enum(input_group_type, "inputReplicaGrouping: input_group_type", enums.CommGroupType)
        if input_group_type == enums.CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, enums.CommGroupType.Consecutive
        if input_group_type == enums.CommGroupType.All:
            raise InvalidArgument("inputReplicaGrouping: input_group_type cannot be CommGroupType.All")
        if self.replication_factor % input_group_size:
            raise InvalidArgument(
                f"inputReplicaGrouping: input_group_size {input_group_size} does not divide "
                f"replicationFactor {self.replication_factor}"
            )
        self.set(input_group_size=input_group_size, input_cgt=input_group_type)
        return self

    def outputMode(self, output_mode: enums.OutputMode, output_return_period: Optional[int] = None) -> "Options":
        """Which micro-batches' outputs a call returns; ``output_return_period`` is the N of ``EveryN``."""
        check_enum(output_mode, "outputMode", enums.OutputMode)
        if output_mode == enums.OutputMode.EveryN:
            if output_return_period is None:
                raise InvalidArgument("outputMode: EveryN needs a positive output_return_period")
            check_int(output_return_period, "outputMode: output_return_period", 1)
        elif output_return_period:
            logger.info("outputMode: output_return_period is ignored with %s", output_mode)
        self.set(output_mode=output_mode, output_return_period=output_return_period or 1)
        return self

    def defaultOutputMode(self) -> bool:
        """True where no output mode was chosen."""
        return bool(self.output_mode == enums.OutputMode.Default)

    def randomSeed(self, random_seed: int) -> "Options":
        """Seed the random numbers of the model, now and when it is compiled."""
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        return self

    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> "Options":
        """How the model's blocks are spread over IPUs; a host runs them in the order of the code."""
        self.checkIsFrozen()
        if not isinstance(strategy, _IExecutionStrategy):
            raise InvalidType(
                "setExecutionStrategy: expected a PipelinedExecution, ShardedExecution, ParallelPhasedExecution or "
                f"SerialPhasedExecution, got {strategy!r}"
            )
        self.__dict__["_execution_strategy"] = strategy
        return self

    def connectionType(self, connection_type: enums.ConnectionType) -> "Options":
        """When to attach to a device. With ``Never``, models compile but refuse to run, here as well."""
        self.set(connection_type=check_enum(connection_type, "connectionType", enums.ConnectionType))
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> "Options":
        """Compile only, for an IPU of version 1, 2 or 21; the same as ``connectionType(ConnectionType.Never)``."""
        if ipu_version not in IPU_VERSIONS.values():
            raise InvalidArgument(f"useOfflineIpuTarget: expected ipu_version 1, 2 or 21, got {ipu_version!r}")
        self.connectionType(enums.ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)
        return self

    # Checked and kept, with no effect on a host.

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> "Options":
        """Round the number of IPUs up to a power of two."""
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: Dict[str, float]) -> "Options":
        """Temporary memory by IPU: ``{"IPU0": 0.5}``."""
        proportions = {}
        for key, proportion in available_memory_proportion.items():
            if not (isinstance(key, str) and key.startswith("IPU") and key[3:].isdigit()):
                raise InvalidArgument(f"setAvailableMemoryProportion: expected keys like 'IPU0', got {key!r}")
            proportions[int(key[3:])] = check_fraction(proportion, f"setAvailableMemoryProportion[{key!r}]")
        self.set(available_memory_proportion=proportions)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> "Options":
        """Whether replicas share their buffers, which they then must not change; False: each has its own."""
        self.set(broadcast_buffers=broadcast_buffers)
        return self

    def logDir(self, log_dir: str) -> "Options":
        """Where log files go."""
        self.set(log_dir=log_dir)
        return self

    def maxRepeatLogs(self, max_lines: Optional[int]) -> "Options":
        """Lines after which a repeated message is left out; None: never."""
        self.set(max_repeat_logs=2**64 - 1 if max_lines is None else max_lines)
        return self

    def modelName(self, name: str) -> "Options":
        """A name for profiles."""
        self.createOrSet(model_name=name)
        return self

    def enableExecutableCaching(self, path: Optional[str]) -> "Options":
        """Cache compiled programs in ``path``; None: do not. A host compiles nothing worth caching."""
        if path is not None:
            self._Popart.set("cachePath", os.fspath(path))
        self._Popart.set("enableEngineCaching", path is not None)
        return self

    def useIpuModel(self, use_model: bool) -> "Options":
        """Run custom operators of ``ai.snnipu`` on the IPU model: tile by tile, counted, and far slower than the host.

        So does ``POPTORCH_IPU_MODEL=1``. What else the model computes runs on the host either way.
        """
        self.createOrSet(use_model=use_model)
        return self

    def syncPattern(self, sync_pattern: enums.SyncPattern) -> "Options":
        """How IPUs synchronise."""
        self.set(sync_pattern=check_enum(sync_pattern, "syncPattern", enums.SyncPattern))
        return self

    def useIpuId(self, ipu_id: int) -> "Options":
        """Use the device of this number."""
        self.createOrSet(ipu_id=ipu_id)
        return self

    def enableStableNorm(self, enabled: bool) -> "Options":
        """Use stable normalisation."""
        self._Popart.set("enableStableNorm", check_bool(enabled, "enableStableNorm"))
        return self

    def enableSyntheticData(self, enabled: Union[bool, int]) -> "Options":
        """Feed random data made on the device; a host always uses the data it is given.

        ``enabled``: or a number of ``popart.SyntheticDataMode``, as Graphcore's examples have it.
        """
        mode = 2 * enabled if isinstance(enabled, bool) else check_int(enabled, "enableSyntheticData")
        if mode:
            logger.warning("enableSyntheticData(True) has no effect on a host: the data given is used.")
        self._Popart.set("syntheticDataMode", mode)
        return self

    def logCycleCount(self, log_cycle_count: bool) -> "Options":
        """Count IPU cycles; a host has none to count, so ``cycleCount()`` raises."""
        self._Popart.set("instrumentWithHardwareCycleCounter", check_bool(log_cycle_count, "logCycleCount"))
        return self

    def enableProfiling(self, profile_dir: Optional[str] = None) -> "Options":
        """Ask Poplar for a profile report; a host writes none."""
        engine = {
            **self._Popart.options.get("engineOptions", {}),
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": profile_dir or ".",
            "autoReport.all": "true",
        }
        self._Popart.setEngineOptions(engine)
        return self

    def showCompilationProgressBar(self, show: bool = True) -> "Options":
        """Show progress while compiling."""
        return self._set_private("_show_compilation_progress_bar", check_bool(show, "showCompilationProgressBar"))

    def disableModuleNamescope(self) -> "Options":
        """Leave modules' names out of operators' names."""
        return self._set_private("_module_namescope_enabled", False)

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> "Options":
        """Do not warn of optimizer attributes that PopTorch does not know."""
        return self._set_private("_relax_optimizer_checks", check_bool(relax, "relaxOptimizerAttributesChecks"))

    def sourceLocationExcludes(self, excludes: List[str]) -> "Options":
        """Source files to leave out of debug information."""
        return self._set_private("_source_location_excludes", list(excludes))

    def appendToLocationExcludes(self, *excludes: str) -> "Options":
        """More source files to leave out of debug information."""
        return self._set_private("_source_location_excludes", [*self._source_location_excludes, *excludes])

    def updatableNamedBuffers(self, buffers: List[str]) -> "Options":
        """Buffers that ``copyNamedBuffersToDevice`` copies."""
        if not isinstance(buffers, (list, tuple)) or not all(isinstance(name, str) for name in buffers):
            raise InvalidType(f"updatableNamedBuffers: expected a list of buffer names, got {buffers!r}")
        self._Popart.set("updatableNamedBuffers", list(buffers))
        return self

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: Optional[enums.OutputMode] = None,
        output_return_period: int = 1,
    ) -> None:
        """Keep the tensor ``long_name`` of every call as ``short_name``, for ``getAnchoredTensor``.

        A host has weights, their gradients and new values, inputs and the loss, see ``getTensorNames``; another name
        raises ``poptorch.Error`` when the model is compiled. ``output_mode``: None: that of the outputs.
        """
        self.checkIsFrozen()
        check_str(short_name, "anchorTensor: short_name")
        check_str(long_name, "anchorTensor: long_name")
        if output_mode is not None:
            check_enum(output_mode, "anchorTensor: output_mode", enums.OutputMode)
        period = 1
        if output_mode == enums.OutputMode.EveryN:
            period = check_int(output_return_period, "anchorTensor: output_return_period", 1)
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]

    # Reading and copying.

    def from_json(self, string: str) -> "Options":
        """Apply ``{"name.of.method": value or [arguments]}``; a value ``"Enum.Member"`` is that enumeration's."""
        for path, value in json.loads(string).items():
            target: Any = self
            for name in path.split("."):
                target = getattr(target, name)
            arguments = [_enum_or_same(argument) for argument in (value if isinstance(value, list) else [value])]
            target(*arguments)
        return self

    def loadFromFile(self, filepath: str) -> "Options":
        """Apply a file with one setting a line, written as in Python without ``options.``; ``#`` starts a comment.

        Raises ``poptorch.ConfigFileError`` (a ``poptorch.Error``) naming the line that cannot be applied.
        """
        names = {
            name: value
            for module in (enums, _execution, _tensor_locations)
            for name, value in vars(module).items()
            if not name.startswith("_")
        }
        known = {"options": self, "poptorch": SimpleNamespace(**names, enums=enums, Options=Options)}
        with open(filepath) as file:
            lines = [line.strip() for line in file]
        for number, line in enumerate(lines, start=1):
            if not line or line.startswith("#"):
                continue
            try:
                eval(f"options.{line}", {"__builtins__": {}}, known)
            except (SyntaxError, NameError, AttributeError, TypeError, Error) as error:
                raise ConfigFileError(
                    f"{os.path.basename(filepath)}, line {number}: {line}: {type(error).__name__}: {error}"
                ) from error
        return self

    def toDict(self) -> Dict[str, Any]:
        """All options in one dictionary. Raises ``poptorch.Error`` while the output mode is the default."""
        if self.defaultOutputMode():
            raise InvalidArgument("toDict: choose an output mode first (outputMode)")
        merged: Dict[str, Any] = {**self._execution_strategy.backendOptions(), **self._Popart.options, **self._values}
        for group in (self.Training, self.Distributed, self.TensorLocations):
            merged.update(group.toDict())
        return merged

    def clone(self) -> "Options":
        """A copy that is not frozen."""
        return copy.deepcopy(self)

    def _set_frozen(self, frozen: bool) -> None:
        super()._set_frozen(frozen)
        self._Popart._is_frozen = frozen

    def _set_private(self, name: str, value: Any) -> "Options":
        self.checkIsFrozen()
        self.__dict__[name] = value
        return self

    def _replica_of_input(self) -> Tuple[int, List[int]]:
        """How many micro-batches the replicas of one step share, and which of them each replica reads."""
        replicas, size = self.replication_factor, self.input_group_size
        if replicas % size:
            raise InvalidArgument(
                f"inputReplicaGrouping: input_group_size {size} does not divide replicationFactor {replicas}"
            )
        groups = replicas // size
        orthogonal = self.input_cgt == enums.CommGroupType.Orthogonal
        return groups, [replica % groups if orthogonal else replica // size for replica in range(replicas)]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        groups = ", ".join(
            f"{name}={getattr(self, name)!r}"
            for name in ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")
        )
        return f"Options({values}, {groups})"


def _enum_or_same(value: Any) -> Any:
    if isinstance(value, str) and value.count(".") == 1:
        enum_name, member = value.split(".")
        return getattr(getattr(enums, enum_name, None), member, value)
    return value
