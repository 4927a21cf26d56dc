"""``poptorch.Options`` and its groups (PopTorch user guide, "API reference", "Options").

Every method checks its arguments and returns the object it was called on. A wrong value raises ``poptorch.Error``
naming the option. The tables (``_table``) list the options that take one argument. Most options concern hardware,
memory or logs: the host checks and stores their value, and the value has no effect.
"""

import copy
import json
import os
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Tuple, Union

import torch

from snnipu.poptorch import _execution, _tensor_locations, enums
from snnipu.poptorch._errors import (
    ConfigFileError,
    Error,
    InvalidArgument,
    check_bool,
    check_enum,
    check_fraction,
    check_int,
    check_str,
    check_type,
)
from snnipu.poptorch._execution import PipelinedExecution, _IExecutionStrategy
from snnipu.poptorch._hardware import IPU_VERSIONS
from snnipu.poptorch._logging import logger
from snnipu.poptorch._options_base import Check, OptionRow, OptionsDict, at_least, member_of
from snnipu.poptorch._popart_options import _PopartOptions
from snnipu.poptorch._tensor_locations import TensorLocationSettings, _TensorLocationOptions
from snnipu.poptorch.enums import (
    CommGroupType,
    ConnectionType,
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)

__all__ = ["ConfigFileError", "Options", "TensorLocationSettings"]


class _JitOptions(OptionsDict):
    """The group ``Options.Jit``: settings of PyTorch's tracer, which PopTorch no longer uses."""

    def traceModel(self, trace_model: bool) -> "_JitOptions":
        """Accept ``False`` only; the option is deprecated.

        Args:
            trace_model: False. True raises ``poptorch.Error``.
        """
        if check_bool(trace_model, "Jit.traceModel"):
            raise InvalidArgument("Jit.traceModel: True is no longer supported, PopTorch always dispatches")
        return self


def _half_float_casting(value: Any, name: str) -> Any:
    if check_enum(value, name, HalfFloatCastingBehavior) == HalfFloatCastingBehavior.FloatDowncastToHalf:
        logger.warning(
            "Precision.halfFloatCasting(FloatDowncastToHalf) has no effect: since PopTorch 3.0 operations on half "
            "and float operands always compute in float. Cast the float operands to half to get the old behaviour."
        )
    return value


class _PrecisionOptions(OptionsDict):
    """The group ``Options.Precision``: number formats. The host always rounds to nearest and sums in float32."""

    _prefix = "Precision."
    _table = (
        OptionRow("halfFloatCasting", "half_float_casting", _half_float_casting, stored_as="_casting"),
        OptionRow("runningStatisticsAlwaysFloat", "value", check_bool, stored_as="_statistics"),
        OptionRow("enableFloatingPointExceptions", "enabled", check_bool, popart="enableFloatingPointChecks"),
        OptionRow("enableStochasticRounding", "enabled", check_bool, popart="enableStochasticRounding"),
    )

    def setPartialsType(self, dtype: torch.dtype) -> "_PrecisionOptions":
        """Choose the format of partial sums; the host always sums in float32.

        Args:
            dtype: ``torch.float`` or ``torch.half``.
        """
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise InvalidArgument(f"Precision.setPartialsType: expected torch.float or torch.half, got {dtype!r}")
        self._Popart.set("partialsTypeMatMuls", names[dtype])
        self._Popart.set("convolutionOptions", {"partialsType": names[dtype]})
        return self


def _reduction(value: Any, name: str) -> Any:
    if check_enum(value, name, ReductionType) == ReductionType.NoReduction:
        raise InvalidArgument(f"{name}: expected ReductionType.Mean or ReductionType.Sum, got NoReduction")
    return value


def _dithering(value: Any, name: str) -> Dict[str, bool]:
    return {"enableConvDithering": check_bool(value, name)}


class _TrainingOptions(OptionsDict):
    """The group ``Options.Training``: options of training models. The last three have no effect on the host."""

    _prefix = "Training."
    _table = (
        OptionRow(
            "gradientAccumulation", "gradient_accumulation", at_least(1), 1, "Set the micro-batches per optimizer step."
        ),
        OptionRow(
            "accumulationAndReplicationReductionType",
            "reduction_type",
            _reduction,
            ReductionType.Mean,
            "Combine the gradients of micro-batches and replicas by ``Mean`` (default) or ``Sum``.",
            stored_as="accumulation_and_replication_reduction_type",
        ),
        OptionRow(
            "setMeanAccumulationAndReplicationReductionStrategy",
            "mean_reduction_strategy",
            member_of(MeanReductionStrategy),
            MeanReductionStrategy.Post,
            "Choose when the mean divides; the host accumulates in float32 and divides last.",
            stored_as="meanAccumulationAndReplicationReductionStrategy",
        ),
        OptionRow("setAutomaticLossScaling", "enabled", check_bool, popart="automaticLossScalingSettings.enabled"),
        OptionRow("setConvolutionDithering", "enabled", _dithering, popart="convolutionOptions"),
    )


class _DistributedOptions(OptionsDict):
    """The group ``Options.Distributed``: the number of processes that share the data, and the number of this one."""

    _table = (
        OptionRow("Distributed: num_processes", "num_distributed_processes", at_least(1), 1),
        OptionRow("Distributed: process_id", "distributed_process_id", check_int, 0),
        OptionRow("Distributed: ipuof_configs", "ipuof_configs", default={}),
    )

    def __init__(self) -> None:
        super().__init__()
        _DistributedOptions.setEnvVarNames(self, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> "_DistributedOptions":
        """Ignore the environment variables: this process is the only one."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> "_DistributedOptions":
        """Read the number of processes and the number of this process from the environment.

        Args:
            var_num_processes: the variable with the number of processes; 1 if it is not set.
            var_process_id: the variable with the number of this process, from 0; 0 if it is not set.
        """
        return _DistributedOptions.configureProcessId(
            self, int(os.environ.get(var_process_id, "0")), int(os.environ.get(var_num_processes, "1"))
        )

    def configureProcessId(self, process_id: int, num_processes: int) -> "_DistributedOptions":
        """Set the number of this process and the number of processes.

        Args:
            process_id: from 0, below ``num_processes``.
            num_processes: at least 1.
        """
        check_int(process_id, "Distributed.configureProcessId: process_id")
        if process_id >= check_int(num_processes, "Distributed.configureProcessId: num_processes", 1):
            raise InvalidArgument(
                f"Distributed.configureProcessId: process_id {process_id} is not below num_processes {num_processes}"
            )
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """The number of this process, from 0."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """The number of processes."""
        return int(self.num_distributed_processes)


def _proportions(value: Dict[str, float], name: str) -> Dict[int, float]:
    proportions = {}
    for key, proportion in value.items():
        if not (isinstance(key, str) and key.startswith("IPU") and key[3:].isdigit()):
            raise InvalidArgument(f"{name}: expected keys like 'IPU0', got {key!r}")
        proportions[int(key[3:])] = check_fraction(proportion, f"{name}[{key!r}]")
    return proportions


def _synthetic_data_mode(value: Union[bool, int], name: str) -> int:
    mode = 2 * value if isinstance(value, bool) else check_int(value, name)
    if mode:
        logger.warning("enableSyntheticData(True) has no effect on a host: a call uses the inputs that it gets.")
    return mode


def _strategy(value: Any, name: str) -> _IExecutionStrategy:
    expected = "a PipelinedExecution, ShardedExecution, ParallelPhasedExecution or SerialPhasedExecution"
    return check_type(value, name, _IExecutionStrategy, expected)


def _buffer_names(value: Any, name: str) -> List[str]:
    return [check_str(buffer, name) for buffer in check_type(value, name, (list, tuple), "a list of buffer names")]


def _or_unlimited(value: Any, name: str) -> Any:
    return 2**64 - 1 if value is None else value


def _to_list(value: Any, name: str) -> List[Any]:
    return list(value)


def _to(enum_type: Any) -> Check:
    return lambda value, name: enum_type(value)


class Options(OptionsDict):
    """Settings for compiling and running a model, passed to ``trainingModel``, ``inferenceModel`` and ``DataLoader``.

    A model or data loader freezes the options that it uses: a later change raises ``poptorch.Error``. ``clone()`` gives
    a copy that can be changed. As in PopTorch, the environment variables ``POPTORCH_CACHE_DIR`` (a folder, see
    :meth:`enableExecutableCaching`) and ``POPTORCH_DEFAULT_OPTIONS`` (see :meth:`from_json`) set defaults.
    """

    _table = (
        OptionRow(
            "replicationFactor", "replication_factor", at_least(1), 1, "Set the replicas; the host runs them in turn."
        ),
        OptionRow("inputReplicaGrouping: input_group_size", "input_group_size", at_least(1), 1),
        OptionRow("inputReplicaGrouping", "input_cgt", member_of(CommGroupType), CommGroupType.Consecutive),
        OptionRow(
            "broadcastBuffers",
            "broadcast_buffers",
            check_bool,
            True,
            "True: replicas share their buffers and must not change them. False: each replica has its own buffers.",
            call_default=True,
        ),
        OptionRow(
            "deviceIterations", "device_iterations", at_least(1), 1, "Set the iterations (optimizer steps) of a call."
        ),
        OptionRow("logDir", "log_dir", check_str, "."),
        OptionRow("maxRepeatLogs", "max_lines", check_int, 4, convert=_or_unlimited, stored_as="max_repeat_logs"),
        OptionRow("autoRoundNumIPUs", "auto_round_num_ipus", check_bool, False, call_default=True),
        OptionRow("anchorTensor", "anchored_tensors", default={}),
        OptionRow("outputMode", "output_mode", _to(OutputMode), OutputMode.Default),
        OptionRow("outputMode: output_return_period", "output_return_period", at_least(1), 1),
        OptionRow(
            "connectionType",
            "connection_type",
            _to(ConnectionType),
            ConnectionType.Always,
            "Choose when to attach to a device. With ``Never``, models compile but refuse to run, on the host as well.",
            convert=member_of(ConnectionType),
        ),
        OptionRow("syncPattern", "sync_pattern", _to(SyncPattern), SyncPattern.Full, convert=member_of(SyncPattern)),
        OptionRow("setAvailableMemoryProportion", "available_memory_proportion", default={}, convert=_proportions),
        OptionRow("randomSeed", "random_seed", at_least(-(2**63))),
        OptionRow("modelName", "name", check_str, stored_as="model_name"),
        OptionRow(
            "useIpuModel",
            "use_model",
            check_bool,
            doc="Run custom operators of ``ai.snnipu`` on the IPU model, which simulates and counts each tile and is "
            "far slower than the host. ``POPTORCH_IPU_MODEL=1`` does the same. All other operators run on the host.",
        ),
        OptionRow("useIpuId", "ipu_id", check_int),
        OptionRow("enableStableNorm", "enabled", check_bool, popart="enableStableNorm"),
        OptionRow(
            "enableSyntheticData",
            "enabled",
            _synthetic_data_mode,
            doc="Take True, False or a number of ``popart.SyntheticDataMode``. The host always uses the real inputs.",
            popart="syntheticDataMode",
        ),
        OptionRow("logCycleCount", "log_cycle_count", check_bool, popart="instrumentWithHardwareCycleCounter"),
        OptionRow(
            "updatableNamedBuffers",
            "buffers",
            _buffer_names,
            doc="Name the buffers that ``copyNamedBuffersToDevice`` copies.",
            popart="updatableNamedBuffers",
        ),
        OptionRow(
            "setExecutionStrategy",
            "strategy",
            _strategy,
            PipelinedExecution(),
            "Choose how blocks are placed on IPUs; the host runs them in the order of the code.",
            stored_as="_execution_strategy",
        ),
        OptionRow(
            "sourceLocationExcludes",
            "excludes",
            _to_list,
            ["site-packages/torch", "site-packages/poptorch"],
            stored_as="_source_location_excludes",
        ),
        OptionRow(
            "showCompilationProgressBar",
            "show",
            check_bool,
            True,
            "False: ``compilationTime`` raises ``poptorch.Error``.",
            call_default=True,
            stored_as="_show_compilation_progress_bar",
        ),
        OptionRow(
            "relaxOptimizerAttributesChecks",
            "relax",
            check_bool,
            False,
            "True: do not warn of optimizer attributes that PopTorch does not know.",
            call_default=True,
            stored_as="_relax_optimizer_checks",
        ),
    )

    def __init__(self) -> None:
        popart = _PopartOptions()
        super().__init__(
            Jit=_JitOptions(),
            Precision=_PrecisionOptions(_Popart=popart),
            Training=_TrainingOptions(_Popart=popart),
            Distributed=_DistributedOptions(),
            TensorLocations=_TensorLocationOptions(),
            _Popart=popart,
        )
        cache = os.environ.get("POPTORCH_CACHE_DIR", "")
        if cache:
            self.enableExecutableCaching(cache)
        self.from_json(os.environ.get("POPTORCH_DEFAULT_OPTIONS", "{}"))

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> "Options":
        """Give all replicas of a group the same micro-batch.

        Args:
            input_group_size: replicas in a group. It must divide ``replicationFactor``, which must be set first.
            input_group_type: the replicas that form a group; ``CommGroupType.All`` raises ``poptorch.Error``.
        """
        check_int(input_group_size, "inputReplicaGrouping: input_group_size", 1)
        check_enum(input_group_type, "inputReplicaGrouping: input_group_type", CommGroupType)
        if input_group_type == CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        if input_group_type == CommGroupType.All:
            raise InvalidArgument("inputReplicaGrouping: input_group_type cannot be CommGroupType.All")
        if self.replication_factor % input_group_size:
            raise InvalidArgument(
                f"inputReplicaGrouping: input_group_size {input_group_size} does not divide "
                f"replicationFactor {self.replication_factor}"
            )
        self.set(input_group_size=input_group_size, input_cgt=input_group_type)
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: Optional[int] = None) -> "Options":
        """Choose the micro-batches whose outputs a call returns.

        Args:
            output_mode: a member of :class:`OutputMode`.
            output_return_period: the N of ``EveryN``; ignored in the other modes.
        """
        check_enum(output_mode, "outputMode", OutputMode)
        if output_mode == OutputMode.EveryN:
            if output_return_period is None:
                raise InvalidArgument("outputMode: EveryN needs a positive output_return_period")
            check_int(output_return_period, "outputMode: output_return_period", 1)
        elif output_return_period:
            logger.info("outputMode: output_return_period is ignored with %s", output_mode)
        self.set(output_mode=output_mode, output_return_period=output_return_period or 1)
        return self

    def defaultOutputMode(self) -> bool:
        """Return True if no output mode was chosen."""
        return bool(self.output_mode == OutputMode.Default)

    def randomSeed(self, random_seed: int) -> "Options":
        """Seed PyTorch's random numbers, now and when the model is compiled.

        Args:
            random_seed: a signed 64-bit integer.
        """
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> "Options":
        """Compile models without running them; sets ``connectionType(ConnectionType.Never)``.

        Args:
            ipu_version: the IPU to compile for: 1 (Mk1), 2 (Mk2) or 21 (Bow).
        """
        if ipu_version not in IPU_VERSIONS.values():
            raise InvalidArgument(f"useOfflineIpuTarget: expected ipu_version 1, 2 or 21, got {ipu_version!r}")
        self.connectionType(ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)
        return self

    def enableExecutableCaching(self, path: Optional[str]) -> "Options":
        """Set the folder for compiled programs; the host compiles none, so it caches nothing.

        Args:
            path: the folder; None turns caching off.
        """
        if path is not None:
            self._Popart.set("cachePath", os.fspath(path))
        self._Popart.set("enableEngineCaching", path is not None)
        return self

    def enableProfiling(self, profile_dir: Optional[str] = None) -> "Options":
        """Ask Poplar for a profile report; the host writes none.

        Args:
            profile_dir: the folder of the report; None: the current folder.
        """
        engine = {
            **self._Popart.options.get("engineOptions", {}),
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": profile_dir or ".",
            "autoReport.all": "true",
        }
        self._Popart.setEngineOptions(engine)
        return self

    def disableModuleNamescope(self) -> "Options":
        """Leave the names of modules out of the names of operators; no effect on the host."""
        self.checkIsFrozen()
        return self

    def appendToLocationExcludes(self, *excludes: str) -> "Options":
        """Add source files to leave out of debug information; no effect on the host.

        Args:
            excludes: parts of the files' paths.
        """
        return self.sourceLocationExcludes([*self._source_location_excludes, *excludes])

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: Optional[OutputMode] = None,
        output_return_period: int = 1,
    ) -> None:
        """Keep a tensor of every call for ``getAnchoredTensor``.

        Args:
            short_name: the name for ``getAnchoredTensor``.
            long_name: PopART's name of the tensor. The host has weights, their gradients, their updated values, inputs
                and the loss, see ``getTensorNames``. Any other name raises ``poptorch.Error`` when the model is
                compiled.
            output_mode: the micro-batches whose tensor is kept; None: the output mode of the model.
            output_return_period: the N of ``OutputMode.EveryN``.
        """
        self.checkIsFrozen()
        check_str(short_name, "anchorTensor: short_name")
        check_str(long_name, "anchorTensor: long_name")
        if output_mode is not None:
            check_enum(output_mode, "anchorTensor: output_mode", OutputMode)
        period = 1
        if output_mode == OutputMode.EveryN:
            period = check_int(output_return_period, "anchorTensor: output_return_period", 1)
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]

    # Reading and copying.

    def from_json(self, string: str) -> "Options":
        """Apply options written as JSON: ``{"name.of.method": value or [arguments]}``.

        Args:
            string: the JSON text. A value ``"Enum.Member"`` stands for that member of a PopTorch enumeration.
        """
        for path, value in json.loads(string).items():
            target: Any = self
            for name in path.split("."):
                target = getattr(target, name)
            arguments = [_enum_or_same(argument) for argument in (value if isinstance(value, list) else [value])]
            target(*arguments)
        return self

    def loadFromFile(self, filepath: str) -> "Options":
        """Apply a file with one option per line, for instance ``deviceIterations(4)``; ``#`` starts a comment.

        Args:
            filepath: the file. A line that cannot be applied raises ``poptorch.ConfigFileError`` naming the line.
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
        """Return all options in one dictionary. Raises ``poptorch.Error`` while the output mode is the default."""
        if self.defaultOutputMode():
            raise InvalidArgument("toDict: choose an output mode first (outputMode)")
        merged: Dict[str, Any] = {**self._execution_strategy.backendOptions(), **self._Popart.options, **self._values}
        for group in (self.Training, self.Distributed, self.TensorLocations):
            merged.update(group.toDict())
        return merged

    def clone(self) -> "Options":
        """Return a copy that is not frozen."""
        return copy.deepcopy(self)

    def _replica_of_input(self) -> Tuple[int, List[int]]:
        """Return the number of micro-batches that the replicas of a step read, and the micro-batch of each replica."""
        replicas, size = self.replication_factor, self.input_group_size
        if replicas % size:
            raise InvalidArgument(
                f"inputReplicaGrouping: input_group_size {size} does not divide replicationFactor {replicas}"
            )
        groups = replicas // size
        orthogonal = self.input_cgt == CommGroupType.Orthogonal
        return groups, [replica % groups if orthogonal else replica // size for replica in range(replicas)]

    def __repr__(self) -> str:
        groups = ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")
        values = {**self._values, **{name: getattr(self, name) for name in groups}}
        return f"Options({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def _enum_or_same(value: Any) -> Any:
    if isinstance(value, str) and value.count(".") == 1:
        enum_name, member = value.split(".")
        return getattr(getattr(enums, enum_name, None), member, value)
    return value
