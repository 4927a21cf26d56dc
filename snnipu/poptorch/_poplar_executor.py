"""``PoplarExecutor``: the wrapped model that ``trainingModel`` and ``inferenceModel`` return.

One copy of the model runs the micro-batches of all device iterations, accumulation steps and replicas in turn. The
user's model holds the weights, so copies to and from a device move nothing.
"""

import contextlib
import copy
import datetime
import time
from collections import OrderedDict
from typing import Any, Callable, ClassVar, Dict, Iterator, List, Optional, Tuple

import torch

from snnipu.poptorch import _storage, _tracing
from snnipu.poptorch._anchors import Anchors
from snnipu.poptorch._anchors import names as anchor_names
from snnipu.poptorch._attributes import CompiledAttributes
from snnipu.poptorch._blocks import Block, module_repr
from snnipu.poptorch._errors import (
    AlreadyWrapped,
    Error,
    InvalidArgument,
    InvalidUse,
    check_module,
    check_type,
    not_available,
)
from snnipu.poptorch._impl import is_wrapped, unwrapIfWrapped, wrap
from snnipu.poptorch._inputs import InputParser, Inputs, check_same, split
from snnipu.poptorch._instances import check_connected, sum_over_instances
from snnipu.poptorch._ipu_model import IpuModelRunner, uses_ipu_model
from snnipu.poptorch._logging import logger
from snnipu.poptorch._optimizer_runner import OptimizerRunner
from snnipu.poptorch._outputs import OutputCollector
from snnipu.poptorch._replicas import ReplicaBuffers
from snnipu.poptorch._structure import flatten
from snnipu.poptorch._watch import ModelWatch, accept_weights
from snnipu.poptorch.enums import CommGroupType, ConnectionType, OutputMode, ReductionType, VariableRetrievalMode
from snnipu.poptorch.optim import SGD, Optimizer
from snnipu.poptorch.options import Options

_Hooks = Dict[int, Callable[[], Any]]


def refuse_backward(*args: Any, **kwargs: Any) -> None:
    """Raise ``poptorch.Error``; the ``backward`` of a wrapped model's outputs."""
    raise Error(
        "backward(): outputs of a PopTorch model carry no gradient. A trainingModel runs the backward pass and the "
        "optimizer itself in every call; to train what is now an inferenceModel, make it a trainingModel."
    )


if hasattr(torch.serialization, "add_safe_globals"):  # saved outputs then load with weights_only=True
    torch.serialization.add_safe_globals([refuse_backward])


class _ModelParameter(torch.nn.Parameter):
    """A parameter read from an executor; it shares the model's memory and has PopTorch's ``replicaGrouping``."""

    def replicaGrouping(
        self, comm_group_type: CommGroupType, shards: int, variable_retrieval_mode: VariableRetrievalMode
    ) -> None:
        """Raise ``poptorch.Error`` unless all replicas share the parameter: the host has one copy of the weights.

        Args:
            comm_group_type: ``CommGroupType.All``, the only grouping on the host.
            shards: no effect on the host.
            variable_retrieval_mode: no effect on the host.
        """
        if comm_group_type != CommGroupType.All:
            raise not_available("replicaGrouping", "a host keeps one copy of the weights for all replicas.")


class PoplarExecutor:
    """A wrapped model, made by ``trainingModel`` and ``inferenceModel``.

    Other attributes, for instance ``parameters`` and ``state_dict``, are read from the wrapped model.

    Args:
        model: the module to wrap, or the executor of one.
        options: None: the default options. The executor freezes them.
        training: True for a training model.
        optimizer: the optimizer of a training model; None: SGD with a learning rate of 0.01.
    """

    _precompile_hooks: ClassVar[_Hooks] = OrderedDict()
    _postcompile_hooks: ClassVar[_Hooks] = OrderedDict()

    def __init__(
        self,
        model: Any,
        options: Optional[Options],
        training: bool,
        optimizer: Optional[torch.optim.Optimizer] = None,
    ) -> None:
        model = check_module(model.model if isinstance(model, PoplarExecutor) else model, "model")
        options = Options() if options is None else check_type(options, "options", Options, "a poptorch.Options")
        self._training = training
        self._user_model: torch.nn.Module = model
        if training and is_wrapped(model):
            raise AlreadyWrapped(
                "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to "
                "unwrap before wrapping again."
            )
        options._freeze()
        self._options = options.clone()
        self._check_options()
        # PopTorch runs a shallow copy, too: it shares parameters and children, and has its own ``training`` flag.
        self._model = copy.copy(model)
        self._parser = InputParser(self._model.forward)
        self._runner: Optional[OptimizerRunner] = None
        self._executable: Optional[Inputs] = None
        self._watch_model()
        self._first_run = False
        self._dummy_run = False
        self._tensors_of_call = 1, 1
        self._anchored: Dict[str, torch.Tensor] = {}
        self._attached = False
        self._ipu_model = IpuModelRunner(self._user_model) if uses_ipu_model(self._options) else None
        self._compilation_time = datetime.timedelta()
        # The times at which the device iterations of the last call read inputs and returned outputs.
        self._input_times: List[float] = []
        self._output_times: List[float] = []
        if training:
            self._runner = OptimizerRunner(model, self._options)
            self.setOptimizer(SGD(model.parameters(), lr=0.01) if optimizer is None else optimizer)
        self._options._freeze()
        if training:
            wrap(model, self)

    def _check_options(self) -> None:
        options = self._options
        if options.defaultOutputMode():
            options.outputMode(OutputMode.Final if self._training else OutputMode.All)
        if not self._training and options.Training.gradient_accumulation != 1:
            raise InvalidArgument(
                "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value "
                "(1) when running a poptorch.inferenceModel(). Use poptorch.Options().deviceIterations to process a "
                "sufficient number of batches each run for pipelined execution instead. "
                f"Training.gradientAccumulation is {options.Training.gradient_accumulation}."
            )
        if self._training and options.Distributed.numProcesses > 1:
            check_connected(options.Distributed.numProcesses)
        OutputCollector(options)  # raises if the output period does not divide the device iterations
        options._replica_of_input()

    # The model and its options.

    @property
    def model(self) -> torch.nn.Module:
        """The wrapped model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The options, frozen."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self._user_model, name)
        if isinstance(value, torch.nn.Parameter):
            return torch.Tensor._make_subclass(_ModelParameter, value.data, value.requires_grad)
        return value

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def load_state_dict(self, state_dict: Dict[str, Any], strict: bool = True) -> Any:
        """Load the model's weights; the next call runs with them.

        Args:
            state_dict, strict: as in ``torch.nn.Module.load_state_dict``, whose result is returned.
        """
        result = self._user_model.load_state_dict(state_dict, strict)
        accept_weights(self._user_model.parameters())
        return result

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with ``optimizer`` and its present hyperparameters.

        Later changes of the hyperparameters, by a scheduler for instance, have no effect until the next
        ``setOptimizer``. A new optimizer of the same kind without a state takes over the previous optimizer's state.

        Args:
            optimizer: one of ``torch.optim`` or ``poptorch.optim``, holding parameters of this model.

        Raises:
            poptorch.Error: this is an inference model, PopTorch lacks this kind of optimizer, or a constant of the
                compiled model would change.
        """
        if self._runner is None:
            raise InvalidArgument("setOptimizer: an inferenceModel has no optimizer")
        self._runner.set(optimizer, self.isCompiled())

    # Compiling and running.

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model: run ``forward`` once on the first micro-batch, then restore the model's state.

        Args:
            args, kwargs: the inputs of a call, whose values are not used.

        Raises:
            poptorch.Error: the inputs do not divide into micro-batches, or a training model has no final loss, or
                more than one.
        """
        inputs = self._parser(args, kwargs)
        if self.isCompiled():
            logger.warning("compile: the model is compiled already; this call has no effect.")
            return
        with self._compiling(inputs), self._modes():
            groups, _ = self._options._replica_of_input()
            pieces = split(inputs, self._options, groups)
            buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
            # Some modules replace an attribute to change their state, so attributes are restored as well.
            attributes = [(module, dict(module.__dict__), dict(module._buffers)) for module in self._model.modules()]
            self._dummy_run = True
            try:
                with torch.random.fork_rng(devices=[]):
                    self._forward(inputs, [piece[0].clone() for piece in pieces])
            finally:
                self._dummy_run = False
            for module, values, module_buffers in attributes:
                module.__dict__.update(values)
                module._buffers.update(module_buffers)
            with torch.no_grad():
                for name, buffer in self._model.named_buffers():
                    if name in buffers:
                        buffer.copy_(buffers[name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run all micro-batches of the inputs; in training, step the optimizer after each accumulation.

        Args:
            args, kwargs: the arguments of ``forward``. Dim 0 of every tensor holds deviceIterations *
                gradientAccumulation * replicationFactor / input_group_size micro-batches.

        Returns:
            The outputs of ``forward``, joined along dim 0, for the micro-batches that ``Options.outputMode`` selects.

        Raises:
            poptorch.Error: the inputs differ from the inputs that the model was compiled for, or ``forward`` does
                something that an IPU cannot.
        """
        if self._options.connection_type == ConnectionType.Never:
            raise InvalidArgument(
                "ConnectionType.Never: the model can be compiled, with model.compile(inputs), but not run"
            )
        inputs = self._parser(args, kwargs)
        if self._executable is not None:
            check_same(self._executable, inputs)
            if not self._attached:
                self.attachToDevice()
            self._watch.warn_of_changed_weights()
            with self._modes():
                return self._run(inputs)
        with self._compiling(inputs), self._modes():
            return self._run(inputs)

    @contextlib.contextmanager
    def _compiling(self, inputs: Inputs) -> Iterator[None]:
        """Prepare the first run of ``forward``, and mark the model as compiled if it succeeds."""
        if self._options.exists("random_seed"):
            torch.manual_seed(self._options.random_seed)
        for hook in list(self._precompile_hooks.values()):
            hook()
        spec = inputs.spec()
        self._watch_model()
        named = set(self._options._Popart.options.get("updatableNamedBuffers", ()))
        missing = sorted(named - {name for name, _ in self._user_model.named_buffers()})
        if missing:
            raise InvalidArgument(f"updatableNamedBuffers: the model has no buffers {missing}")
        Anchors(self._options, self._user_model, len(inputs.tensors()), self._training)
        self._first_run = True
        start = time.perf_counter()
        try:
            yield
        finally:
            self._first_run = False
            for hook in list(self._postcompile_hooks.values()):
                hook()
        self._compilation_time = datetime.timedelta(seconds=time.perf_counter() - start)
        self._executable = spec
        if self._runner is not None:
            self._runner.note_compiled()
        self._attached = self._options.connection_type != ConnectionType.Never

    def _watch_model(self) -> None:
        self._module_modes = [(module, module.training) for module in self._model.modules()]
        self._needs_mode = True
        self._loss_position: Dict[int, int] = {}
        self._watch = ModelWatch(self._model, self._options)
        self._attributes = CompiledAttributes(self._model)
        self._replicas = ReplicaBuffers(self._model, self._options.replication_factor)

    @contextlib.contextmanager
    def _modes(self) -> Iterator[None]:
        """Switch every module to the mode (training or evaluation) in which it was compiled."""
        before = [(module, module.training) for module, _ in self._module_modes]
        for module, training in self._module_modes:
            module.training = training
        try:
            yield
        finally:
            for module, training in before:
                module.training = training

    def _run(self, inputs: Inputs) -> Any:
        options = self._options
        groups, group_of_replica = options._replica_of_input()
        accumulation = options.Training.gradient_accumulation
        pieces = split(inputs, options, groups)
        collector = OutputCollector(options)
        anchors = Anchors(options, self._user_model, len(pieces), self._training)
        self._input_times.clear()
        self._output_times.clear()
        if self._runner is not None:
            self._runner.warn_of_unset_changes()
        self._attributes.before_call()
        self._replicas.enter_call()
        for iteration in range(options.device_iterations):
            self._input_times.append(time.perf_counter())
            gradients = _Gradients(self._runner) if self._runner is not None else None
            for step in range(accumulation):
                for replica, group in enumerate(group_of_replica):
                    position = (iteration * accumulation + step) * groups + group
                    self._replicas.enter(replica)
                    tensors = [piece[position] for piece in pieces]
                    outputs, loss = self._forward(inputs, tensors)
                    anchors.add_forward((iteration, step, replica), tensors, loss)
                    if gradients is not None:
                        anchors.add_gradients((iteration, step, replica), gradients.backward(loss))
                    collector.add(outputs, iteration, step, replica)
            if gradients is not None:
                mean = options.Training.accumulation_and_replication_reduction_type == ReductionType.Mean
                instances = options.Distributed.numProcesses
                gradients.sum_over(instances)
                gradients.apply(instances * accumulation * len(group_of_replica) if mean else 1)
                for replica in range(len(group_of_replica)):
                    anchors.add_updates((iteration, accumulation - 1, replica))
            if collector.is_returned(iteration, accumulation - 1):
                self._output_times.append(time.perf_counter())
        self._replicas.leave_call()
        self._attributes.after_call()
        self._anchored = anchors.result()
        result = collector.result()
        self._tensors_of_call = len(pieces), len(flatten(result))
        for tensor in flatten(result):
            tensor.backward = refuse_backward  # type: ignore[method-assign]
        return result

    def _forward(self, inputs: Inputs, tensors: List[torch.Tensor]) -> Tuple[Any, Optional[torch.Tensor]]:
        """Return the outputs of one micro-batch, and in training its loss."""
        args, kwargs = inputs.with_tensors(tensors)
        self._attributes.restore()
        blocks = Block._manager = self._options._execution_strategy._start_run()
        grad_mode = torch.enable_grad() if self._training else torch.no_grad()
        try:
            on_model = self._ipu_model.running() if self._ipu_model is not None else contextlib.nullcontext()
            with torch.inference_mode(False), grad_mode, on_model, _tracing.tracing(self._training) as trace:
                trace.dummy = self._dummy_run
                checks = None
                if self._first_run:
                    weights = [*self._model.parameters(), *self._model.buffers()]
                    checks = _tracing.GraphChecks([*tensors, *weights], blocks.in_block)
                mode = _tracing.HostMode(trace, checks)
                with mode if self._needs_mode else contextlib.nullcontext():
                    outputs = self._model(*args, **kwargs)
                if self._first_run:
                    self._first_run = False
                    self._options._execution_strategy._check_run(self._options, self._training)
                    self._replicas.separate(self._watch.check_forward())
                loss = self._loss(trace) if self._training else None
                # An IPU repeats the first run exactly, so a mode that changed nothing then is not needed later.
                self._needs_mode = self._needs_mode and (mode.acted or (loss is not None and not loss.explicit))
                return outputs, (loss.tensor if loss is not None else None)
        finally:
            Block._manager = None

    def _loss(self, trace: _tracing.ForwardTrace) -> _tracing.Loss:
        count = len(trace.losses)
        if count not in self._loss_position:
            self._loss_position[count] = _tracing.find_loss(trace.losses)
        loss = trace.losses[self._loss_position[count]]
        if loss.tensor.numel() != 1:
            raise Error(
                f"forward: the final loss must be a scalar, got shape {tuple(loss.tensor.shape)}; reduce it, for "
                "instance with poptorch.identity_loss(loss, 'mean')"
            )
        if not loss.tensor.requires_grad and any(weight.requires_grad for weight in self._model.parameters()):
            raise Error("forward: the final loss depends on no parameter that requires a gradient")
        return loss

    def ipuModelReport(self) -> List[Dict[str, Any]]:
        """Return the IPU model's counts of each operator and gradient that ran; PopTorch has no such method.

        Each is a dict with ``operator``, the shapes of its ``inputs``, ``target`` and ``report``. All figures are
        computed by the model, not measured. Raises ``poptorch.Error`` if the IPU model is not in use, see
        ``Options.useIpuModel``.
        """
        if self._ipu_model is None:
            raise Error("ipuModelReport: there is no IPU model in use; set Options.useIpuModel(True)")
        return self._ipu_model.model.reports()

    # Weights and devices.

    def isCompiled(self) -> bool:
        """Return True after ``compile`` or the first call, until ``destroy``."""
        return self._executable is not None

    def isAttachedToDevice(self) -> bool:
        """Return True after compiling, until ``detachFromDevice`` or ``destroy``."""
        return self.isCompiled() and self._attached

    def attachToDevice(self) -> None:
        """Attach the model. Raises ``poptorch.Error`` if it is not compiled, is attached, or may not attach."""
        self._require_compiled()
        if self._options.connection_type == ConnectionType.Never:
            raise InvalidArgument("attachToDevice: ConnectionType.Never does not allow it")
        if self._attached:
            raise Error("attachToDevice: the model is attached already")
        self._attached = True
        accept_weights(self._user_model.parameters())

    def detachFromDevice(self) -> None:
        """Detach the model; the next call attaches it. Raises ``poptorch.Error`` if it is not compiled or attached."""
        self._require_compiled()
        if not self._attached:
            raise Error("detachFromDevice: the model is not attached")
        self._attached = False

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Return False: the weights on the host are always current."""
        return False

    def copyWeightsToHost(self) -> None:
        """Copy nothing: the host has the weights. Raises ``poptorch.Error`` if the model is not compiled."""
        self._require_compiled()

    def copyWeightsToDevice(self) -> None:
        """Copy nothing but replicated buffers: the host has the weights.

        Call it after changing weights on the host, since an IPU otherwise uses its old copy. Raises ``poptorch.Error``
        if the model is not compiled.
        """
        self._require_compiled()
        self._replicas.broadcast()
        accept_weights(self._user_model.parameters())

    def copyNamedBuffersToDevice(self) -> None:
        """Copy nothing. Raises ``poptorch.Error`` if ``Options.updatableNamedBuffers`` named no buffers."""
        self._require_compiled()
        if "updatableNamedBuffers" not in self._options._Popart.options:
            raise Error("copyNamedBuffersToDevice: no buffers were named with Options.updatableNamedBuffers")

    def destroy(self) -> None:
        """Discard the compiled model and unwrap the user's model, which can then be wrapped again."""
        self._executable = None
        self._attached = False
        if self._training:
            unwrapIfWrapped(self._user_model)

    def _require_compiled(self) -> Inputs:
        if self._executable is None:
            raise InvalidArgument("the model is not compiled: call it, or compile() it, first")
        return self._executable

    @property
    def rng_state(self) -> List[int]:
        """The seed and the state of PyTorch's random number generator."""
        self._require_compiled()
        return [torch.initial_seed(), *torch.get_rng_state().tolist()]

    @rng_state.setter
    def rng_state(self, state: List[int]) -> None:
        self._require_compiled()
        torch.manual_seed(state[0])
        torch.set_rng_state(torch.tensor(state[1:], dtype=torch.uint8))

    # Files.

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled model to a file.

        Args:
            filename: the file; its folder is created.
            export_model: True: write the model, options and optimizer, for ``poptorch.load``. False: write the compiled
                inputs only, for ``loadExecutable``.
            save_rng_state: write the state of the random number generator.
        """
        self._require_compiled()
        contents: Dict[str, Any] = {"inputs": self._executable, "model": None}
        if export_model:
            optimizer = self._runner.optimizer if self._runner is not None else None
            contents.update(model=self._user_model, training=self._training, options=self._options, optimizer=optimizer)
        if save_rng_state:
            contents["rng_state"] = self.rng_state
        _storage.save(filename, **contents)

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Call ``compile(*args, **kwargs)``, then ``save(filename, export_model)``."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str) -> None:
        """Take the compiled inputs from a file, without running ``forward``.

        Args:
            filename: a file that :meth:`save` wrote.
        """
        data = _storage.read(filename)
        self._executable = data["inputs"]
        self._watch_model()
        self._attached = self._options.connection_type != ConnectionType.Never

    # Measurements.

    def compilationTime(self) -> datetime.timedelta:
        """Return the duration of the first run of ``forward``."""
        self._require_compiled()
        if not self._options._show_compilation_progress_bar:
            raise Error("compilationTime: it is only measured with Options.showCompilationProgressBar(True)")
        return self._compilation_time

    def cycleCount(self) -> int:
        """Raise ``poptorch.Error``: the host has no IPU cycles to count."""
        raise not_available("cycleCount", "cycles can only be counted on IPU hardware.")

    def getTensorNames(self) -> List[str]:
        """Return the tensor names that ``Options.anchorTensor`` accepts on the host, and the hyperparameters' names.

        Raises ``poptorch.Error`` if the model is not compiled.
        """
        tensors = anchor_names(self._user_model, len(self._require_compiled().tensors()), self._training)
        optimizer = self._runner.optimizer if self._runner is not None else None
        return [*tensors, *((optimizer.state_dict()["ipu_param"] or {}) if isinstance(optimizer, Optimizer) else ())]

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return the values of an anchored tensor in the last call.

        Args:
            short_name: the name given to ``Options.anchorTensor``; any other raises ``poptorch.Error``.
        """
        if short_name not in self._anchored:
            raise InvalidArgument(
                f"getAnchoredTensor: no tensor with name {short_name} found. Name it with Options.anchorTensor before "
                f"the model is wrapped, and call the model; anchored tensors: {sorted(self._anchored)}"
            )
        return self._anchored[short_name]

    def getPerfCounters(self) -> Dict[str, List[List[float]]]:
        """Return the times at which the last call read inputs and returned outputs, in seconds.

        The keys are ``input``, ``input_complete``, ``output`` and ``output_complete``; each value is
        ``[tensor][device iteration]``.
        """
        inputs, outputs = self._tensors_of_call
        counters = {}
        for end in ("", "_complete"):
            counters["input" + end] = [list(self._input_times) for _ in range(inputs)]
            counters["output" + end] = [list(self._output_times) for _ in range(outputs)]
        return counters

    def getLatency(self) -> Tuple[float, float, float]:
        """Return the least, greatest and mean time from inputs to outputs in the last call, in seconds."""
        starts, ends = self._input_times, self._output_times
        if not ends:
            return 0.0, 0.0, 0.0
        # An output of several device iterations is timed from the first of them.
        iterations = len(starts) // len(ends)
        durations = [end - starts[number * iterations] for number, end in enumerate(ends)]
        return min(durations), max(durations), sum(durations) / len(durations)

    def getComputeLatency(self) -> Tuple[float, float, float]:
        """Return the result of :meth:`getLatency`, since the host has no transfers to subtract."""
        return self.getLatency()

    def getHostIpuLatency(self) -> Tuple[float, float, float]:
        """Return zeros: the host has no transfer to a device."""
        return 0.0, 0.0, 0.0

    def getIpuHostLatency(self) -> Tuple[float, float, float]:
        """Return zeros: the host has no transfer from a device."""
        return 0.0, 0.0, 0.0


class _Gradients:
    """The gradients of one optimizer step, summed over micro-batches in float32, or float64 for float64 parameters."""

    def __init__(self, runner: OptimizerRunner) -> None:
        self._runner = runner
        self._parameters = [parameter for parameter in runner.parameters() if parameter.requires_grad]
        self._sums: Dict[torch.nn.Parameter, torch.Tensor] = {}

    def backward(self, loss: Any) -> Dict[torch.nn.Parameter, torch.Tensor]:
        """Add the gradients of a micro-batch, and return them with the loss scaling, as an IPU has them."""
        if not self._parameters or not loss.requires_grad:
            return {}
        scale = torch.full_like(loss, self._runner.loss_scaling)
        results = torch.autograd.grad(loss, self._parameters, scale, allow_unused=True)
        # Sparse gradients (nn.Embedding(sparse=True)) are dense on an IPU; dense ones also sum over processes.
        gradients = [grad if grad is None or grad.layout is torch.strided else grad.to_dense() for grad in results]
        for parameter, gradient in zip(self._parameters, gradients):
            if gradient is None:
                continue
            if self._runner.accumulates_in_half:  # rounded as a half accumulator would
                gradient = gradient.half()
            if parameter in self._sums:
                self._sums[parameter].add_(gradient)
            elif gradient.dtype == torch.float16:
                self._sums[parameter] = gradient.float()
            else:
                self._sums[parameter] = gradient.detach().clone()
        return {parameter: gradient for parameter, gradient in zip(self._parameters, gradients) if gradient is not None}

    def sum_over(self, instances: int) -> None:
        """Sum the gradients over all processes. A parameter without a gradient here may have one in another."""
        if instances > 1:
            for parameter in self._parameters:
                self._sums.setdefault(parameter, torch.zeros_like(parameter, dtype=torch.float32))
            sum_over_instances(self._sums[parameter] for parameter in self._parameters)

    def apply(self, divisor: int) -> None:
        """Divide the sums by ``divisor`` and the loss scaling, and step the optimizer."""
        factor = 1.0 / (divisor * self._runner.loss_scaling)
        if factor != 1.0:
            for total in self._sums.values():
                total.mul_(factor)
        self._runner.step(self._sums)
        accept_weights(self._runner.parameters())


def _register(hooks: _Hooks, hook: Callable[[], Any]) -> torch.utils.hooks.RemovableHandle:
    if not callable(hook):
        raise InvalidUse(f"hook: expected a callable, got {hook!r}")
    handle = torch.utils.hooks.RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def registerPreCompileHook(hook: Callable[[], Any]) -> torch.utils.hooks.RemovableHandle:
    """Call a function before every compilation.

    Args:
        hook: called without arguments.

    Returns:
        A handle whose ``remove()`` removes the hook.
    """
    return _register(PoplarExecutor._precompile_hooks, hook)


def registerPostCompileHook(hook: Callable[[], Any]) -> torch.utils.hooks.RemovableHandle:
    """Call a function after every compilation.

    Args:
        hook: called without arguments.

    Returns:
        A handle whose ``remove()`` removes the hook.
    """
    return _register(PoplarExecutor._postcompile_hooks, hook)


def trainingModel(
    model: Any, options: Optional[Options] = None, optimizer: Optional[torch.optim.Optimizer] = None
) -> PoplarExecutor:
    """Wrap a model for training: every call runs forward, backward and the optimizer.

    Args:
        model: its ``forward`` computes the loss, and normally returns it with the outputs.
        options: None: the default options.
        optimizer: one of ``torch.optim`` or ``poptorch.optim``; None: SGD with a learning rate of 0.01.

    Raises:
        poptorch.Error: a ``trainingModel`` wraps the model already; ``model.destroy()`` unwraps it.
    """
    return PoplarExecutor(model, options, training=True, optimizer=optimizer)


def inferenceModel(model: Any, options: Optional[Options] = None) -> PoplarExecutor:
    """Wrap a model for inference: every call runs forward, without gradients.

    Args:
        model: a module, or the result of ``trainingModel``, whose weights are shared.
        options: None: the default options. Gradient accumulation raises ``poptorch.Error``.
    """
    return PoplarExecutor(model, options, training=False)


def load(filename: str, edit_opts_fn: Optional[Callable[[Options], None]] = None) -> PoplarExecutor:
    """Read a compiled model from a file and wrap it, ready to run.

    Args:
        filename: a file that ``compileAndExport`` or ``save`` wrote. A file without the model raises
            ``poptorch.Error``.
        edit_opts_fn: a function that may change the options before the model is wrapped.
    """
    data = _storage.read(filename)
    if data["model"] is None:
        raise InvalidArgument(
            f"{filename} was saved with export_model=False: wrap the model and call loadExecutable({filename!r}) on it"
        )
    options: Options = data["options"]
    options._freeze(False)
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
