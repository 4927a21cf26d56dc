"""``snnipu.MultiStep``: ``nn.Sequential`` over time, and the rules for running a module over all steps at once."""

import threading
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import snntorch
import torch
from torch import nn

from snnipu._checks import check_int
from snnipu._layout import memory_order
from snnipu._names.stock import stock
from snnipu.backends import memory, popart
from snnipu.neurons._computed_weights import computed_for_all_steps
from snnipu.neurons._hooks import is_hooked, is_plain
from snnipu.neurons.leaky import Leaky
from snnipu.neurons.paths import PathRecorder, Paths
from snnipu.neurons.sparse_leaky import SparseNeurons
from snnipu.neurons.synaptic_delay import SynapticDelay
from snnipu.ops import sparse_input
from snnipu.ops._arguments import check_lengths, is_compiling, is_direct
from snnipu.ops.batch_norm import SMALL_STEP, batch_norm_over_time
from snnipu.ops.dense_pool2d import avg_pool2d, max_pool2d
from snnipu.spikes import DenseOrSparse, SparseSpikes

# Stateless modules: the output of a step is a function of that step's input alone, the same at every step.
_ELEMENTWISE = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Threshold,
    nn.Embedding,
)
_CHANNELWISE = (nn.Linear, nn.GroupNorm, nn.PReLU)
_MAPS = {  # spatial dimensions
    1: (nn.Conv1d, nn.ConvTranspose1d, nn.AvgPool1d, nn.MaxPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.AvgPool3d, nn.MaxPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
}
_CONVOLUTIONS: Dict[type, Callable[..., torch.Tensor]] = {
    nn.Conv1d: sparse_input.conv1d,
    nn.Conv2d: sparse_input.conv2d,
}
_DROPOUTS = (nn.Dropout, nn.AlphaDropout)
_CHANNEL_DROPOUTS = {1: (nn.Dropout1d,), 2: (nn.Dropout2d,), 3: (nn.Dropout3d,)}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

# Neurons whose first state is the spikes of the step before.
_SPIKES_ARE_STATE = (snntorch.RLeaky, snntorch.RSynaptic)

# In this thread, the network whose paths are recorded, and the recorder.
_recorders = threading.local()
_BATCH, _OPERATOR, _ONCE, _STEPS, _WHOLE = (
    "all steps as one batch",
    "all steps as one operator",
    "once, its input being constant",
    "step by step",
    "called once with all steps",
)

_BatchRule = Callable[[Any, int], bool]
_Named = List[Tuple[str, nn.Module]]

# The most bytes of one module's activation in a chunk of time.
CHUNK_BYTES = 24 * 2**20
_CHANNELS = 16


def _always(module: nn.Module, dims: int) -> bool:
    return True


def _has_batch(module: nn.Module, dims: int) -> bool:
    return dims >= 2


def _has_maps(spatial: int) -> _BatchRule:
    return lambda module, dims: dims == spatial + 2 and not getattr(module, "return_indices", False)


def _not_batch(attribute: str) -> _BatchRule:
    """Return a rule: the dimension that the module's ``attribute`` names is not the batch dimension."""

    def rule(module: Any, dims: int) -> bool:
        dim = getattr(module, attribute)
        return isinstance(dim, int) and dims > 0 and dim % dims > 0

    return rule


# For each type, a rule: may all steps, of so many dimensions each, run as one batch?
_STATELESS: Dict[type, _BatchRule] = {
    **dict.fromkeys(_ELEMENTWISE, _always),
    **dict.fromkeys(_CHANNELWISE, _has_batch),
    **{kind: _has_maps(spatial) for spatial, kinds in _MAPS.items() for kind in kinds},
    nn.ZeroPad2d: _has_maps(2),
    nn.PixelShuffle: _has_maps(2),
    nn.Upsample: lambda module, dims: dims >= 3,
    nn.LayerNorm: lambda module, dims: dims > len(module.normalized_shape),
    nn.Softmax: _not_batch("dim"),
    nn.LogSoftmax: _not_batch("dim"),
    nn.Flatten: _not_batch("start_dim"),
    nn.Unflatten: _not_batch("dim"),
}
# Dropouts draw another mask for each step, as one batch and in a loop.
_RANDOM: Dict[type, _BatchRule] = {
    **dict.fromkeys(_DROPOUTS, _always),
    nn.FeatureAlphaDropout: _has_batch,
    **{kind: _has_maps(spatial) for spatial, kinds in _CHANNEL_DROPOUTS.items() for kind in kinds},
}
_DeltaLeaky = stock("DeltaLeaky")
# Modules whose output of a step has the shape of its input.
_KEEP_SHAPE = (
    *_BATCH_NORMS,
    Leaky,
    snntorch.Leaky,
    snntorch.Lapicque,
    snntorch.Synaptic,
    snntorch.Alpha,
    snntorch.RLeaky,
    snntorch.RSynaptic,
    _DeltaLeaky,
)
# Modules that take whole sequences [T, B, ...]: recurrent layers and some of snnTorch's neurons.
_WHOLE_SEQUENCES = (*map(stock, ("StateLeaky", "AssociativeLeaky", "LeakyParallel")), nn.RNNBase)

_NEURONS = (snntorch.SpikingNeuron, SparseNeurons, *_WHOLE_SEQUENCES[:-1])


def is_stateless(module: nn.Module) -> bool:
    """Return True if each step's output is a function of that step's input alone, the same at every step."""
    if not is_plain(module):
        return False
    kind = type(module)  # a subclass may keep state
    if kind in _BATCH_NORMS:
        # In evaluation mode, a batch norm with running statistics is stateless.
        return not module.training and bool(module.track_running_stats)
    return kind in _STATELESS or (kind in _RANDOM and not module.training)


def is_random(module: nn.Module) -> bool:
    """Return True if the module is a dropout without hooks."""
    return type(module) in _RANDOM and is_plain(module)


def runs_as_one_batch(module: nn.Module, dims: int) -> bool:
    """Return True if all steps, of ``dims`` dimensions each, may run as one batch.

    The module must be stateless or a dropout, and must not depend on the batch dimension.
    """
    if not is_stateless(module) and not is_random(module):
        return False
    rule = _STATELESS.get(type(module)) or _RANDOM.get(type(module), _has_batch)
    return rule(module, dims)


def takes_whole_sequences(module: nn.Module) -> bool:
    """Return True if the module takes ``[T, B, ...]``: a recurrent or event-driven layer, or by its attribute."""
    return isinstance(module, _WHOLE_SEQUENCES) or getattr(module, "takes_whole_sequences", False) is True


class MultiStep(nn.Sequential):
    """``nn.Sequential`` over time: all steps of each module at once, as far as the module allows.

    .. code-block:: python

        net = snn.MultiStep(nn.Linear(784, 1000), snn.Leaky(beta=0.9), nn.Linear(1000, 10), snn.Leaky(beta=0.9))
        spk, mem = net(x)                  # x [T, B, 784]: one current for each step
        spk, mem = net(x, num_steps=25)    # x [B, 784], the same at every step: the first Linear runs once

        *hidden, (spk, mem) = net(x, all_layers=True)
        spk, mem = net(x, lengths=lengths)  # sample b has lengths[b] steps, the others are padding

    The results equal those of a loop over time that passes each step through all modules. A neuron passes its spikes
    alone to the next module. The network returns the last module's results, stacked over time: ``(spk, mem)`` if that
    is a :class:`Leaky`. With ``all_layers=True`` it also returns the spikes of the layers before.

    Each kind of module runs in its way:

    * One fused operator for the whole sequence: :class:`Leaky` and neurons of :func:`~snnipu.neuron`. On CPUs and
      NVIDIA GPUs also ``Lapicque``, ``Synaptic``, ``Alpha``, ``DeltaLeaky``, and one-to-one ``RLeaky`` and
      ``RSynaptic``. All-to-all ``RLeaky`` and ``RSynaptic`` run fused steps between their products.
    * :class:`SLSTM` and :class:`SConv2dLSTM`: the product with the input for all steps at once, the rest in a loop.
    * All steps as one batch, and one step for a constant input: PyTorch's stateless modules (linear, convolution,
      pooling, activations, layer norm, dropout; batch norm in evaluation mode). On a CPU, ``nn.Linear``, ``nn.Conv1d``
      and ``nn.Conv2d`` skip the zeros of an input that is mostly zeros; :func:`snnipu.dense_only` turns this off.
    * One call with ``[T, B, ...]``: ``nn.RNN``, ``nn.LSTM``, ``nn.GRU``, snnTorch's ``StateLeaky``, ``LinearLeaky``,
      ``AssociativeLeaky`` and ``LeakyParallel``, the event-driven layers, and modules with the attribute
      ``takes_whole_sequences = True``.
    * Step by step, in order: snnTorch's other neurons, cells such as ``nn.LSTMCell``, and any other module. The states
      of neurons and cells pass from step to step. Batch norm in training uses the statistics of each step.
    * ``nn.Sequential`` and nested ``MultiStep``: their modules, one after the other.

    ``weight_norm``, pruning and other parametrizations of a linear layer or convolution compute its weights once for
    all steps. If the computation changes buffers or draws random numbers, as ``spectral_norm`` does in training, the
    layer is called for each step.

    A module with other hooks or replaced parts (see :class:`Leaky`) is called for each step. With global hooks, every
    module is. :class:`~snnipu.SparseSpikes` become dense tensors for modules that are not event-driven.

    On a CPU, the steps run in chunks of time, so that activations stay in the caches: at most ``CHUNK_BYTES`` for each
    module. Each chunk runs through all modules before the next chunk.

    Neurons start from zeros in each call, also inside other modules. Neurons with ``init_hidden=True`` continue from
    the last call until ``utils.reset(net)``.

    Args:
        args: the modules in order, or one ``OrderedDict`` of them, as for ``nn.Sequential``.

    Raises:
        ValueError: a recurrent layer has ``batch_first=True``.
        TypeError: a module has no ``forward``.
    """

    # True after the first input whose shape looked wrong.
    _has_warned = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Bytes of the largest activation of one step, by the step's shape and the modules.
        self._step_bytes: Dict[Tuple[Any, ...], int] = {}
        for name, module in self.named_children():
            _check_module(name, module)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> List[str]:
        """Names of buffers that DistributedDataParallel must not broadcast: the states of snnTorch's neurons."""
        return [*self.__dict__.get("_ddp_ignored", ()), *_state_buffers(self)]

    @_ddp_params_and_buffers_to_ignore.setter
    def _ddp_params_and_buffers_to_ignore(self, names: Iterable[str]) -> None:
        self.__dict__["_ddp_ignored"] = list(names)

    def forward(  # type: ignore[override]
        self,
        x: DenseOrSparse,
        num_steps: Optional[int] = None,
        *,
        all_layers: bool = False,
        lengths: Optional[torch.Tensor] = None,
    ) -> Any:
        """Run all steps.

        Args:
            x: input, ``[T, B, ...]`` or :class:`~snnipu.SparseSpikes`. With ``num_steps``: ``[B, ...]``, the same input
                at every step.
            num_steps: number of steps ``T`` of a constant input; None: ``x`` has a time dimension.
            all_layers: if True, return the spikes of every layer.
            lengths: the number of steps of each sample, an int32 or int64 tensor ``[B]`` of 1 to ``T``. All results are
                0 at the later steps of a sample, and carry no gradient there. :class:`~snnipu.SparseSpikes` have no ids
                there. ``x`` may have any values there, even NaN. None: each sample has ``T`` steps.

        Returns:
            The last module's results, with time as first dimension. With ``all_layers`` a list: one entry for each
            module before the last that is or contains a neuron, then the last module's results. An entry is the
            module's output: the spikes ``[T, B, ...]`` of a neuron (its membranes if it returns only these), or
            :class:`~snnipu.SparseSpikes`. Modules of a nested ``nn.Sequential`` or ``MultiStep`` count one by one.

        Raises:
            TypeError: ``x`` is no tensor; ``num_steps`` is no int; a module returns neither tensors nor tuples of them;
                wrong dtype of ``lengths``.
            ValueError: no modules; ``x`` without a time (or batch) dimension; ``num_steps`` below 1; no time steps;
                ``x`` with ``num_steps`` and a dimension too many for the first module; shape, values or device of
                ``lengths`` are wrong, or a module would read steps of the padding: a neuron with ``init_hidden=True``,
                a bidirectional recurrent layer, one as the last module, batch norm in training.

        Warns:
            UserWarning: ``x`` has no batch dimension for a first linear layer, convolution or pool; ``x`` has one time
                step; or ``x`` with ``num_steps`` seems to have a time dimension. Once for each network, and never for
                networks with ``init_hidden=True`` or without neurons.
        """
        _check_input(x, num_steps)
        modules = [(name, computed_for_all_steps(name, module)) for name, module in _flat_modules(self)]
        if not modules:
            raise ValueError("MultiStep has no modules")
        last = modules[-1][1]
        padding = None if lengths is None else _padding(self, last, lengths, x, num_steps)
        if padding is not None and num_steps is None:
            x = _without_padding(x, padding)  # a NaN times a gradient of 0 is NaN
        doubt = _doubt(x, num_steps, *modules[0])
        if doubt and not self._has_warned and not is_compiling():
            self._has_warned = True
            neurons = [module for module in self.modules() if isinstance(module, snntorch.SpikingNeuron)]
            if neurons and not any(neuron.init_hidden for neuron in neurons):
                warnings.warn(f"MultiStep got x of shape {tuple(x.shape)}: {doubt}", stacklevel=4)
        network, watch = getattr(_recorders, "network", (None, None))
        watch = watch if network is self else None
        layers: Optional[List[Any]] = [] if all_layers else None
        out: Any = x
        constant = num_steps  # not None: `out` is the value of one step, the same at all steps
        while constant is not None and modules and is_stateless(modules[0][1]):
            name, module = modules.pop(0)
            before, out = out, module(out)
            if watch is not None:
                watch.ran(name, module, _ONCE, before)
        while modules:
            count = next((i for i, (_, module) in enumerate(modules) if not _runs_in_chunks(module)), len(modules))
            if isinstance(out, tuple):
                out = out[0]
            if isinstance(out, SparseSpikes) and not getattr(modules[0][1], "takes_whole_sequences", False):
                out = out.to_dense()
            if count:
                out = self._over_time(modules[:count], out, constant, count == len(modules), watch, layers)
            else:
                count = 1
                before, out = out, _run_whole(*modules[0], out, constant)
                if watch is not None:
                    watch.ran(*modules[0], _OPERATOR if _is_fused(modules[0][1]) else _WHOLE, before)
                _append_spikes(layers, modules[0][1], out)
            constant = None
            del modules[:count]
        if constant is not None:
            out = _expanded(out, constant)
        if layers is not None:
            out = [*(layers[:-1] if _has_neurons(last) else layers), out]
        return out if padding is None else _without_padding(out, padding)

    def paths(self, x: DenseOrSparse, num_steps: Optional[int] = None) -> Paths:
        """Run the network once, and return how each module ran.

        .. code-block:: python

            print(net.paths(x))

        The call changes ``init_hidden`` states, running averages and random numbers as ``net(x)`` does. Call it with
        gradients enabled to see training: a first convolution may then run by events, and dense under
        ``torch.no_grad()``.

        Args:
            x: input, as in :meth:`forward`.
            num_steps: number of steps of a constant input, as in :meth:`forward`.

        Returns:
            One :class:`~snnipu.neurons.paths.Path` for each module: name, class, how it ran, the share of its input
            that was not zero, and for a product the share up to which it runs by events. ``str`` returns a table.
        """
        before = getattr(_recorders, "network", (None, None))
        with sparse_input.watched() as choices:
            watch = PathRecorder(choices)
            _recorders.network = (self, watch)
            try:
                self(x, num_steps)
            finally:
                _recorders.network = before
        return watch.paths()

    def _over_time(
        self,
        modules: _Named,
        x: torch.Tensor,
        constant: Optional[int],
        need_mem: bool,
        watch: Optional[PathRecorder],
        layers: Optional[List[Any]],
    ) -> Any:
        """Run all steps through ``modules``, in chunks of time whose activations stay in the caches."""
        lengths = self._lengths(modules, x, constant)
        if len(lengths) == 1:
            return _run_chunk(modules, x, None, constant, need_mem, watch, layers)
        states: List[Any] = [None] * len(modules)
        chunks = [x] * len(lengths) if constant is not None else x.split(lengths)
        spikes: List[Optional[List[Any]]] = [None if layers is None else [] for _ in lengths]
        results = [
            _run_chunk(modules, part, states, None if constant is None else number, need_mem, watch, into)
            for part, number, into in zip(chunks, lengths, spikes)
        ]
        if layers is not None:
            layers += _concatenated([tuple(part or ()) for part in spikes])
        return _concatenated(results)

    def _lengths(self, modules: _Named, x: torch.Tensor, constant: Optional[int]) -> List[int]:
        """Return the lengths of the chunks. They depend on the shapes alone, so that equal calls have equal chunks."""
        steps = x.shape[0] if constant is None else constant
        if steps == 1:
            return [1]
        stateful = [module for _, module in modules if not is_stateless(module)]
        if (
            not is_direct(x, dispatched=True)  # transforms of torch.func do not support Join
            or x.numel() == 0
            or len(stateful) == len(modules)
            or len({id(module) for module in stateful}) < len(stateful)  # a repeated neuron continues its own states
            or popart.on_ipu_model()
            or popart.on_real_ipu()
        ):
            return [steps]
        step = x[0] if constant is None else x
        # A module and the layer with its computed weights have the same dictionary of hooks.
        key = (step.shape, step.dtype, *((id(module._forward_hooks), type(module)) for _, module in modules))
        if key not in self._step_bytes:
            self._step_bytes[key] = _largest_step(modules, step)
        return chunk_lengths(steps, self._step_bytes[key])


def _state_buffers(network: nn.Module) -> Iterator[str]:
    for name, module in network.named_modules():
        if isinstance(module, snntorch.SpikingNeuron):
            yield from (f"{name}.{state}" for state in module._non_persistent_buffers_set)


def _check_input(x: Any, num_steps: Optional[int]) -> None:
    if num_steps is not None:
        check_int("num_steps", num_steps)
    if isinstance(x, SparseSpikes):
        if num_steps is not None:
            raise TypeError(
                "x must be a torch.Tensor where num_steps is given, got SparseSpikes, which have their steps"
            )
        return
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x must be a torch.Tensor or SparseSpikes, got {type(x).__name__}")
    if x.dim() < (2 if num_steps is None else 1):
        raise ValueError(
            f"x must have shape {'[T, B, ...]' if num_steps is None else '[B, ...]'}, got {tuple(x.shape)}"
        )
    if num_steps is None and x.shape[0] == 0:
        raise ValueError(f"x must have at least one time step, got shape {tuple(x.shape)}")


def _doubt(x: Any, num_steps: Optional[int], name: str, first: nn.Module) -> str:
    """Return why the dimensions of ``x`` are probably not those that the user meant, or an empty string."""
    if isinstance(x, SparseSpikes):
        return ""
    given = f"module {name} ({type(first).__name__})"
    # Dimensions of a step with its batch.
    maps = next((spatial + 2 for spatial, kinds in _MAPS.items() if isinstance(first, kinds)), 0)
    dims = 2 if isinstance(first, (nn.Linear, nn.RNNBase)) else maps
    extra = x.dim() - (num_steps is None) - dims
    if num_steps is not None and dims and extra > 0 and not isinstance(first, nn.Linear):
        raise ValueError(
            f"x must have shape [B, ...] with {dims} dimensions for {given} where num_steps is given, got "
            f"{tuple(x.shape)}: leave num_steps out if x has a time dimension"
        )
    if extra < 0 and num_steps is None:
        return (
            f"its first dimension is time, and {given} gets steps without a batch. Pass num_steps if x is a batch "
            "[B, ...] of constant inputs, or x.unsqueeze(1) if it is one sample [T, ...]"
        )
    if extra < 0:
        return f"{given} gets no batch. Pass x.unsqueeze(0) if x is one sample"
    if num_steps is None and x.shape[0] == 1:
        return "it has one time step. Pass num_steps if x is a batch [B, ...] of constant inputs"
    if dims and extra == 1 and x.shape[0] == num_steps:
        return "its first dimension has num_steps values. Leave num_steps out if this is time"
    return ""


def _padding(network: nn.Module, last: nn.Module, lengths: Any, x: Any, num_steps: Optional[int]) -> torch.Tensor:
    """Return a mask ``[T, B]``: True at the steps after the last one of each sample."""
    shape = x.shape if num_steps is None else (num_steps, *x.shape)
    check_lengths(lengths, shape, x.device)
    for name, module in network.named_modules():
        if (
            getattr(module, "init_hidden", False)
            or getattr(module, "bidirectional", False)
            or (module is last and isinstance(module, nn.RNNBase))
            or (isinstance(module, _BATCH_NORMS) and (module.training or module.running_mean is None))
        ):
            raise ValueError(f"lengths must be None, because module {name} ({type(module).__name__}) reads the padding")
    return torch.arange(shape[0], device=x.device).unsqueeze(1) >= lengths


def _without_padding(out: Any, padding: torch.Tensor) -> Any:
    """Return results with zeros, or without spikes, at the steps of the padding."""
    if isinstance(out, (list, tuple)):
        parts = [_without_padding(part, padding) for part in out]
        return getattr(out, "_make", type(out))(parts)  # a named tuple has _make
    if isinstance(out, SparseSpikes):
        return out._map_tensors(lambda part: _without_padding(part, padding))
    if not isinstance(out, torch.Tensor) or out.shape[:2] != padding.shape:
        found = f"shape {tuple(out.shape)}" if isinstance(out, torch.Tensor) else repr(out)
        raise ValueError(f"lengths must be None for a result that is not [T, B, ...], got {found}")
    return out.masked_fill(padding.reshape(*padding.shape, *[1] * (out.dim() - 2)), 0)


def _check_module(name: str, module: nn.Module) -> None:
    """Raise an error that names the module if it cannot run over time."""
    if isinstance(module, nn.RNNBase) and module.batch_first:
        raise ValueError(
            f"MultiStep passes [T, B, ...] to module {name} ({type(module).__name__}), and it has batch_first=True: "
            "build it with batch_first=False"
        )
    if getattr(type(module), "forward", None) is nn.Module.forward and "forward" not in module.__dict__:
        raise TypeError(f"module {name} of MultiStep ({type(module).__name__}) has no forward")
    if type(module) is nn.Sequential:
        for inner, child in module.named_children():
            _check_module(f"{name}.{inner}", child)


def _flat_modules(modules: nn.Module, prefix: str = "") -> Iterator[Tuple[str, nn.Module]]:
    """Yield names and modules in order, with nested ``nn.Sequential`` and ``MultiStep`` replaced by their modules."""
    for name, module in modules._modules.items():
        if module is None:
            continue
        if type(module) in (nn.Sequential, MultiStep) and is_plain(module):
            yield from _flat_modules(module, f"{prefix}{name}.")
        else:
            yield prefix + name, module


def _expanded(x: torch.Tensor, steps: int) -> torch.Tensor:
    return x.unsqueeze(0).expand(steps, *x.shape)


def _is_fused(module: nn.Module) -> bool:
    """Return True if the module's ``over_time`` and ``resume`` may run in place of a loop of calls."""
    runs_fused: Any = getattr(module, "runs_fused", None)
    return runs_fused is not None and not is_hooked(module) and runs_fused()


def _runs_in_chunks(module: nn.Module) -> bool:
    """Return True if the module may run chunk after chunk of time."""
    if isinstance(module, MultiStep) or takes_whole_sequences(module):
        return False
    resumes: Any = getattr(module, "resumes", lambda: False)
    return resumes() or not _is_fused(module)


def _run_whole(name: str, module: nn.Module, x: Any, constant: Optional[int]) -> Any:
    """Run a module that takes all steps in one call."""
    if _is_fused(module):
        over_time: Any = module.over_time
        return over_time(x, num_steps=constant)
    if isinstance(module, MultiStep):
        return module(x) if constant is None else module(x, num_steps=constant)
    _check_module(name, module)
    return module(x if constant is None else _expanded(x, constant))


def _run_chunk(
    modules: _Named,
    x: torch.Tensor,
    states: Optional[List[Any]],
    constant: Optional[int],
    need_mem: bool,
    watch: Optional[PathRecorder],
    layers: Optional[List[Any]],
) -> Any:
    """Run a chunk of time through ``modules``, and append the spikes of neurons to ``layers``.

    ``states``: the states before the chunk, replaced by those after it; None: the chunk has all steps.
    """
    out: Any = x
    for place, (name, module) in enumerate(modules):
        if isinstance(out, tuple):
            out = out[0]
        before = out
        if _is_fused(module):
            neuron: Any = module
            store_states = need_mem and place == len(modules) - 1
            if states is None:
                out = neuron.over_time(out, num_steps=constant, need_mem=store_states)
            else:
                out, states[place] = neuron.resume(out, states[place], num_steps=constant, need_mem=store_states)
            constant = None
            _append_spikes(layers, module, out)
            if watch is not None:
                watch.ran(name, module, _OPERATOR, before)
            continue
        if constant is not None:
            out, constant = _expanded(out, constant), None
        _check_module(name, module)
        runs_as = _BATCH
        if runs_as_one_batch(module, out.dim() - 1):
            out = _as_one_batch(module, out)
        elif _norms_over_time(module, out):
            out = _batch_norm_steps(module, out)
        else:
            runs_as = _STEPS
            out, state = _by_steps(name, module, out, None if states is None else states[place])
            if states is not None:
                states[place] = state
        _append_spikes(layers, module, out)
        if watch is not None:
            watch.ran(name, module, runs_as, before)
    return out


def _has_neurons(module: nn.Module) -> bool:
    return any(isinstance(part, _NEURONS) for part in module.modules())


def _append_spikes(layers: Optional[List[Any]], module: nn.Module, out: Any) -> None:
    if layers is not None and _has_neurons(module):
        layers.append(out[0] if isinstance(out, tuple) else out)


def bytes_of_maps(values: int, channels: int, itemsize: int) -> int:
    """Return the bytes of a convolution's result: oneDNN pads fewer than 16 channels to 16."""
    return values * itemsize * max(channels, _CHANNELS) // max(channels, 1)


def _largest_step(modules: _Named, step: torch.Tensor) -> int:
    """Return the bytes of the largest result of one step, up to the first module of unknown output shape."""
    largest = step.numel() * step.element_size()
    with torch.no_grad():
        out = step.detach().unsqueeze(0)
        for _, module in modules:
            if is_stateless(module) and runs_as_one_batch(module, step.dim()):
                out = _as_one_batch(module, out)
                step = out[0]
            elif not (_is_fused(module) or type(module) in _KEEP_SHAPE or type(module) in _RANDOM):
                break
            channels = step.shape[1] if isinstance(module, nn.Conv2d) and step.dim() == 4 else _CHANNELS
            largest = max(largest, bytes_of_maps(step.numel(), channels, step.element_size()))
    return largest


def chunk_lengths(steps: int, step_bytes: int) -> List[int]:
    """Return the lengths of the chunks of ``steps`` steps whose largest activation has ``step_bytes`` bytes a step."""
    length = max(1, CHUNK_BYTES // max(1, step_bytes))
    count = -(-steps // length)
    return [steps // count + (part < steps % count) for part in range(count)]


class Join(torch.autograd.Function):
    """The concatenation of chunks over time, in their memory order. Their gradients are views of the output's."""

    @staticmethod
    def forward(ctx: Any, *parts: torch.Tensor) -> torch.Tensor:
        ctx.lengths = [part.shape[0] for part in parts]
        order = memory_order(parts[0], None) or tuple(range(parts[0].dim() - 1))
        axes = (0, *(1 + dim for dim in order))
        parts = tuple(part.permute(axes) for part in parts)
        out = memory.empty(parts[0], (sum(ctx.lengths), *parts[0].shape[1:]))
        torch.cat(parts, out=out)
        return out.permute(sorted(range(out.dim()), key=axes.__getitem__))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.split(ctx.lengths)


def _concatenated(parts: List[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(_concatenated(list(same)) for same in zip(*parts))
    return Join.apply(*parts)


def _norms_over_time(module: Any, x: torch.Tensor) -> bool:
    """Return True if the module is a batch norm with statistics of each step, of steps that fit one operator."""
    return (
        type(module) in _BATCH_NORMS
        and is_plain(module)
        and (module.training or (module.running_mean is None and module.running_var is None))
        and module.momentum is not None
        and x.dim() > 2
        and 0 < x[0].numel() <= SMALL_STEP
        and is_direct(x, dispatched=True)
    )


def _batch_norm_steps(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Run a batch norm with the statistics of each step over all steps ``[T, B, C, ...]``."""
    module._check_input_dim(x[0])
    averages = module.training and module.track_running_stats
    if averages and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(x.shape[0])
    mean, var = (module.running_mean, module.running_var) if averages else (None, None)
    return batch_norm_over_time(x, mean, var, module.weight, module.bias, True, module.momentum, module.eps)


def _as_one_batch(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(0, 1)
    m: Any = module
    if type(module) is nn.MaxPool2d:
        out = max_pool2d(rows, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)
    elif type(module) is nn.AvgPool2d:
        how = (m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override)
        out = avg_pool2d(rows, *how)
    elif type(module) is nn.Linear and rows.dim() == 2:
        out = sparse_input.linear(rows, m.weight, m.bias)
    elif type(module) in _CONVOLUTIONS and m.padding_mode == "zeros":
        function = _CONVOLUTIONS[type(module)]
        out = function(rows, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)
    else:
        out = module(rows)
    return out.unflatten(0, x.shape[:2])


def _start_from_zeros(module: nn.Module) -> Tuple[Any, ...]:
    """Reset the neurons in ``module``, except with ``init_hidden=True``; return the states of the first step's call."""
    for neuron in module.modules():
        if neuron is not module and isinstance(neuron, snntorch.SpikingNeuron) and not neuron.init_hidden:
            getattr(neuron, "reset_mem", tuple)()
        if isinstance(neuron, SynapticDelay):
            neuron.reset_delay()
    if not _passes_states(module):
        return ()
    reset = getattr(module, "reset_mem", tuple)
    state: Any = reset()
    if isinstance(module, _DeltaLeaky):
        return (state,)  # one argument holds both states
    if getattr(reset, "__module__", "").startswith(("snntorch.", "snnipu.")):
        return ()  # reset_mem has stored them on the module
    return state if isinstance(state, tuple) else (state,)


def _takes_spikes(module: nn.Module) -> bool:
    return isinstance(module, _SPIKES_ARE_STATE) or getattr(module, "spikes_are_state", False) is True


def _passes_states(module: nn.Module) -> bool:
    return isinstance(module, snntorch.SpikingNeuron) and not module.init_hidden


def _by_steps(name: str, module: nn.Module, x: torch.Tensor, state: Optional[Tuple[Any, ...]]) -> Any:
    """Run a module step by step; pass the states that a neuron or cell returns to its next step.

    Returns the results and the last states. ``state`` None: zeros.
    """
    neuron, cell = _passes_states(module), isinstance(module, nn.RNNCellBase)
    if state is None:
        state = _start_from_zeros(module)
    steps: List[Any] = []
    for current in x.unbind():
        out = module(current, *state)
        if neuron and isinstance(out, tuple):
            state = out if _takes_spikes(module) else out[1:]
        elif cell:
            state = (out,)
        steps.append(out)
    out = _stack(name, module, steps)
    if hasattr(module, "runs_fused"):
        # The dtype of the fused operator: snnTorch 1.0 returns float32 for 16-bit inputs.
        out = _in_dtype(out, x.dtype)
    return out, state


def _in_dtype(out: Any, dtype: torch.dtype) -> Any:
    return tuple(_in_dtype(part, dtype) for part in out) if isinstance(out, tuple) else out.to(dtype)


def _stack(name: str, module: nn.Module, steps: List[Any]) -> Any:
    first = steps[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(steps)
    if isinstance(first, (tuple, list)):
        return tuple(_stack(name, module, list(parts)) for parts in zip(*steps))
    raise TypeError(
        f"module {name} of MultiStep ({type(module).__name__}) must return a tensor or a tuple of them at each step, "
        f"got {type(first).__name__}"
    )
