"""``snnipu.MultiStep``: ``nn.Sequential`` over time."""

from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import snntorch
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from snnipu.neurons.leaky import Leaky
from snnipu.ops.lif_sequence import check_num_steps
from snnipu.spikes import SparseSpikes

# Modules whose output at a step is a function of that step's input alone, the same at every step.
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
_DROPOUTS = (nn.Dropout, nn.AlphaDropout)
_CHANNEL_DROPOUTS = {1: (nn.Dropout1d,), 2: (nn.Dropout2d,), 3: (nn.Dropout3d,)}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_Fits = Callable[[Any, int], bool]


def _always(module: nn.Module, dims: int) -> bool:
    return True


def _has_batch(module: nn.Module, dims: int) -> bool:
    return dims >= 2


def _has_maps(spatial: int) -> _Fits:
    return lambda module, dims: dims == spatial + 2 and not getattr(module, "return_indices", False)


def _behind_batch(attribute: str) -> _Fits:
    """The dimension that ``attribute`` names is not the batch's."""

    def fits(module: Any, dims: int) -> bool:
        dim = getattr(module, attribute)
        return isinstance(dim, int) and dims > 0 and dim % dims > 0

    return fits


# Type -> whether the samples of all steps may run as one batch, for steps of so many dimensions.
_STATELESS: Dict[type, _Fits] = {
    **dict.fromkeys(_ELEMENTWISE, _always),
    **dict.fromkeys(_CHANNELWISE, _has_batch),
    **{kind: _has_maps(spatial) for spatial, kinds in _MAPS.items() for kind in kinds},
    nn.ZeroPad2d: _has_maps(2),
    nn.PixelShuffle: _has_maps(2),
    nn.Upsample: lambda module, dims: dims >= 3,
    nn.LayerNorm: lambda module, dims: dims > len(module.normalized_shape),
    nn.Softmax: _behind_batch("dim"),
    nn.LogSoftmax: _behind_batch("dim"),
    nn.Flatten: _behind_batch("start_dim"),
    nn.Unflatten: _behind_batch("dim"),
}
# Their masks differ from step to step anyway.
_RANDOM: Dict[type, _Fits] = {
    **dict.fromkeys(_DROPOUTS, _always),
    nn.FeatureAlphaDropout: _has_batch,
    **{kind: _has_maps(spatial) for spatial, kinds in _CHANNEL_DROPOUTS.items() for kind in kinds},
}
# snnTorch's neurons that take whole sequences, [T, B, ...]; as recurrent layers do.
_WHOLE_SEQUENCES = (snntorch.StateLeaky, snntorch.AssociativeLeaky, snntorch.LeakyParallel, nn.RNNBase)

_GLOBAL_HOOKS = tuple(f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook, its own or a global one, wants to see the module's calls."""
    own = module.__dict__
    return any(own.get(name) for name in _HOOKS) or any(getattr(torch_module, name, None) for name in _GLOBAL_HOOKS)


def _is_plain(module: nn.Module) -> bool:
    """Whether calling the module is running its class's ``forward``."""
    return "forward" not in module.__dict__ and not is_hooked(module)


def is_stateless(module: nn.Module) -> bool:
    """Whether every step's output is a function of the same step's input, the same for every step."""
    if not _is_plain(module):
        return False
    kind = type(module)  # a subclass may keep state
    if kind in _BATCH_NORMS:
        # In evaluation a batch norm uses its running statistics, if it keeps any.
        return not module.training and bool(module.track_running_stats)
    return kind in _STATELESS or (kind in _RANDOM and not module.training)


def is_random(module: nn.Module) -> bool:
    """Whether the module is a dropout, and nothing else sees its calls."""
    return type(module) in _RANDOM and _is_plain(module)


def runs_as_one_batch(module: nn.Module, dims: int) -> bool:
    """Whether all steps, of so many dimensions each, may run as one batch.

    That is: stateless, or dropout, and nothing looks at the batch's dimension.
    """
    if not is_stateless(module) and not is_random(module):
        return False
    fits = _STATELESS.get(type(module)) or _RANDOM.get(type(module), _has_batch)
    return fits(module, dims)


def takes_whole_sequences(module: nn.Module) -> bool:
    """Whether the module is called once, with ``[T, B, ...]``: recurrent and event-driven layers, what says so."""
    return isinstance(module, _WHOLE_SEQUENCES) or getattr(module, "takes_whole_sequences", False) is True


class MultiStep(nn.Sequential):
    """Modules in sequence, over time.

    .. code-block:: python

        net = snn.MultiStep(nn.Linear(784, 1000), snn.Leaky(beta=0.9), nn.Linear(1000, 10), snn.Leaky(beta=0.9))
        spk, mem = net(x)                  # x [T, B, 784]: one current for each step
        spk, mem = net(x, num_steps=25)    # x [B, 784], held constant: the first Linear runs once

    The result is that of a loop over time which passes each step through all modules; spikes are what goes from a
    neuron to the next module, and the last module's result is returned with all steps stacked (``(spk, mem)`` from a
    :class:`Leaky`). What runs how:

    * :class:`Leaky`: the whole sequence as one fused operator;
    * PyTorch's own stateless modules (linear, convolution, pooling, activations, layer norm, dropout; batch norm in
      evaluation): all steps as one batch, and once for a constant input;
    * what takes whole sequences is called once, with ``[T, B, ...]``: ``nn.RNN``, ``nn.LSTM``, ``nn.GRU``, snnTorch's
      ``StateLeaky``, ``LinearLeaky``, ``AssociativeLeaky`` and ``LeakyParallel``, the event-driven layers, and modules
      that have the attribute ``takes_whole_sequences = True``;
    * snnTorch's other neurons, ``nn.LSTMCell`` and its like, and any other module: step by step, in order. The states
      of neurons and cells are passed from step to step. Batch norm in training uses each step's statistics;
    * ``nn.Sequential`` and nested ``MultiStep``: their modules in turn.

    A module with hooks, or with parts replaced (:class:`Leaky` tells which), is called as a module, step by step; so is
    every module while there are global hooks. :class:`~snnipu.SparseSpikes` are made dense for modules that are not
    event-driven.

    Neurons start from zeros in each call, those inside other modules too; those with ``init_hidden=True`` go on where
    they ended, until ``utils.reset(net)``.

    Raises:
        ValueError, TypeError: a module that cannot run over time: a recurrent layer with ``batch_first=True``, one
            without ``forward``.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for name, module in self.named_children():
            _check_module(name, module)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> List[str]:
        """What DistributedDataParallel must not broadcast: states of snnTorch's neurons, which it has as buffers."""
        return [*self.__dict__.get("_ddp_ignored", ()), *_state_buffers(self)]

    @_ddp_params_and_buffers_to_ignore.setter
    def _ddp_params_and_buffers_to_ignore(self, names: Iterable[str]) -> None:
        self.__dict__["_ddp_ignored"] = list(names)

    def forward(  # type: ignore[override]
        self, x: Union[torch.Tensor, SparseSpikes], num_steps: Optional[int] = None
    ) -> Any:
        """Run all steps.

        Args:
            x: ``[T, B, ...]``, or :class:`~snnipu.SparseSpikes`; with ``num_steps``, ``[B, ...]``.
            num_steps: number of steps for which ``x`` is held constant.

        Returns:
            What the last module returns, with time as first dimension.

        Raises:
            TypeError: ``x`` is not a tensor; ``num_steps`` is not an int; a module returned something else than tensors
                and tuples of them.
            ValueError: no modules; ``x`` without a time (or batch) dimension; ``num_steps`` below 1; no time steps.
        """
        _check_input(x, num_steps)
        modules = list(_in_turn(self))
        if not modules:
            raise ValueError("MultiStep has no modules")
        out: Any = x
        constant = num_steps  # not None: `out` is one step's value, the same at all of them
        for position, (name, module) in enumerate(modules):
            if isinstance(out, tuple):
                out = out[0]
            if isinstance(out, SparseSpikes) and not getattr(module, "takes_whole_sequences", False):
                out = out.to_dense()
            if constant is not None and is_stateless(module):
                out = module(out)
            elif isinstance(module, Leaky) and not is_hooked(module) and module.runs_fused():
                out = module.over_time(out, num_steps=constant, need_mem=position == len(modules) - 1)
                constant = None
            elif isinstance(module, MultiStep):
                out = module(out) if constant is None else module(out, num_steps=constant)
                constant = None
            else:
                if constant is not None:
                    out = out.unsqueeze(0).expand(constant, *out.shape)
                    constant = None
                _check_module(name, module)
                if takes_whole_sequences(module):
                    out = module(out)
                elif runs_as_one_batch(module, out.dim() - 1):
                    out = _as_one_batch(module, out)
                else:
                    out = _by_steps(name, module, out)
        if constant is not None:
            out = out.unsqueeze(0).expand(constant, *out.shape)
        return out


def _state_buffers(network: nn.Module) -> Iterator[str]:
    for name, module in network.named_modules():
        if isinstance(module, snntorch.SpikingNeuron):
            yield from (f"{name}.{state}" for state in module._non_persistent_buffers_set)


def _check_input(x: Any, num_steps: Optional[int]) -> None:
    if num_steps is not None:
        check_num_steps(num_steps)
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


def _check_module(name: str, module: nn.Module) -> None:
    """Raise for what cannot run over time; the message names the module."""
    if isinstance(module, nn.RNNBase) and module.batch_first:
        raise ValueError(
            f"MultiStep hands [T, B, ...] to module {name} ({type(module).__name__}), and it has batch_first=True: "
            "build it with batch_first=False"
        )
    if getattr(type(module), "forward", None) is nn.Module.forward and "forward" not in module.__dict__:
        raise TypeError(f"module {name} of MultiStep ({type(module).__name__}) has no forward")
    if type(module) is nn.Sequential:
        for inner, child in module.named_children():
            _check_module(f"{name}.{inner}", child)


def _in_turn(modules: nn.Module, prefix: str = "") -> Iterator[Tuple[str, nn.Module]]:
    """Name and module, those of plain ``nn.Sequential`` and ``MultiStep`` in their place."""
    for name, module in modules._modules.items():
        if module is None:
            continue
        if type(module) in (nn.Sequential, MultiStep) and _is_plain(module):
            yield from _in_turn(module, f"{prefix}{name}.")
        else:
            yield prefix + name, module


def _as_one_batch(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = module(x.flatten(0, 1))
    return out.unflatten(0, x.shape[:2])


def _start_from_zeros(module: nn.Module) -> Tuple[Any, ...]:
    """Clear the states of the neurons in ``module`` that a call does not go on with; what its first step is given."""
    for neuron in module.modules():
        if neuron is not module and isinstance(neuron, snntorch.SpikingNeuron) and not neuron.init_hidden:
            getattr(neuron, "reset_mem", tuple)()
    if not _passes_states(module):
        return ()
    reset = getattr(module, "reset_mem", tuple)
    state: Any = reset()
    if isinstance(module, snntorch.DeltaLeaky):
        return (state,)  # its two states are one argument
    if getattr(reset, "__module__", "").startswith("snntorch."):
        return ()  # they are the module's own now
    return state if isinstance(state, tuple) else (state,)


def _passes_states(module: nn.Module) -> bool:
    return isinstance(module, snntorch.SpikingNeuron) and not module.init_hidden


def _by_steps(name: str, module: nn.Module, x: torch.Tensor) -> Any:
    """Step by step; a neuron or cell that returns its state gets it back in the next step."""
    neuron, cell = _passes_states(module), isinstance(module, nn.RNNCellBase)
    state: Tuple[Any, ...] = _start_from_zeros(module)
    steps: List[Any] = []
    for current in x.unbind():
        out = module(current, *state)
        if neuron and isinstance(out, tuple):
            state = out[1:]
        elif cell:
            state = (out,)
        steps.append(out)
    out = _stack(name, module, steps)
    if isinstance(module, Leaky):
        # As the fused operator; snnTorch's steps give float32 for 16-bit inputs.
        return tuple(part.to(x.dtype) for part in out) if isinstance(out, tuple) else out.to(x.dtype)
    return out


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
