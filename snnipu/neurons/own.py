"""``snnipu.neuron``: a neuron of one's own from the equations of its step, fused over the sequence."""

import inspect
import keyword
import math
import warnings
from functools import lru_cache
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type, Union

import torch
from torch import nn

from snnipu import _generator
from snnipu._generator import TraceError
from snnipu._layout import SINGLE_STEP
from snnipu._route import is_exporting
from snnipu.backends import popart, why_reference
from snnipu.neurons._outside import outside
from snnipu.neurons.fused import FusedNeuron
from snnipu.ops import _neurons, step_operators
from snnipu.ops._arguments import check_input, compute_dtype, state_argument
from snnipu.ops.neuron_sequence import apply_in_pytorch, neuron_apply
from snnipu.surrogate import SpikeGrad, as_surrogate

Value = Union[float, torch.Tensor]
StepFunction = Callable[..., Any]
_KEYWORDS = ("learn", "spike_grad", "init_hidden", "output")
# Devices that have kernels, or say themselves why they have none.
_WITH_KERNELS = ("cpu", "cuda", "meta")


class OwnNeuron(FusedNeuron):
    """What the classes that :func:`snnipu.neuron` makes have in common; an ``nn.Module``.

    Args:
        parameters: by name, each a number, or a tensor that broadcasts to one step of the input: one value a neuron.
        learn: the names of the parameters that learn, or True for all; the others are buffers.
        spike_grad: the surrogate gradient of ``spike``; None: snnTorch's default, ``atan()``.
        init_hidden: keep the states from call to call, and return spikes alone.
        output: return the states also with ``init_hidden=True``.
        options: by name: keywords of the step that have a default there.

    A call is one step, ``layer(x, *states) -> (spk, *states)``: ``x [B, ...]``, each state of its shape, or of no
    dimension for the same in every neuron; a state that is None, or all where none is given, start anew. For all steps
    at once there are :meth:`sequence` and :meth:`spikes`, ``MultiStep`` calls them. In 16 bit, states are float32.

    Fused: with a surrogate of snnipu's or snnTorch's, on CPUs and, by Triton, on NVIDIA GPUs. The kernels are compiled
    at the first use, for a CPU with the machine's compiler. A Python function as ``spike_grad`` is looped in PyTorch.
    """

    # The function as it was written: looped in PyTorch it is the neuron, too.
    step: StepFunction
    _state_values: Dict[str, float]
    _parameter_values: Dict[str, Value]
    _option_values: Dict[str, Any]
    _outside: Callable[[], Tuple[Any, ...]]
    _registered: Dict[Any, str]

    def __init__(
        self,
        *,
        learn: Union[bool, str, Iterable[str]] = (),
        spike_grad: Optional[SpikeGrad] = None,
        init_hidden: bool = False,
        output: bool = False,
        **values: Any,
    ) -> None:
        nn.Module.__init__(self)
        kind = type(self)
        if not hasattr(self, "step"):
            raise TypeError(
                f"{kind.__name__} has no step: neurons are made by @snnipu.neuron(states=..., parameters=...)"
            )
        known = [*self._parameter_values, *self._option_values]
        for name in values:
            if name not in known:
                raise TypeError(f"{kind.__name__} has no {name!r}; it has {', '.join([*known, *_KEYWORDS])}")
        if spike_grad is not None and not callable(spike_grad):
            raise TypeError(f"spike_grad must be callable or None, got {spike_grad!r}")
        self.spike_grad = as_surrogate(spike_grad) or spike_grad
        self.init_hidden, self.output = bool(init_hidden), bool(output)
        self._resolved = (None, None)
        self._last_step = None
        learning = _learning(kind.__name__, learn, list(self._parameter_values))
        for name, default in self._parameter_values.items():
            value = _parameter(name, values.get(name, default))
            if name in learning:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        for name, default in self._option_values.items():
            setattr(self, name, values.get(name, default))
        for name in self._state_values:
            setattr(self, name, None)
        _ = self.equation  # options that the step refuses are refused here

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._registered = {}

    # ---- what FusedNeuron asks for

    @property
    def equation(self) -> str:  # type: ignore[override]
        """The name by which the operators know this step with this layer's options."""
        if not step_operators.tracing():
            return self._recorded()
        _ = self._key() in self._registered  # what is compiled holds for these options and numbers
        return self._recorded_now()

    def _key(self) -> Tuple[Any, ...]:
        return (*((type(value), value) for value in self._options().values()), self._outside())

    def _recorded(self) -> str:
        key = self._key()
        try:
            if key not in self._registered:
                name = _neurons.register(self.step, self._options())
                _neurons.prepare(name)
                self._registered[key] = name
        except TypeError as error:
            if isinstance(error, TraceError) or "unhashable" not in str(error):
                raise
            raise TypeError(f"options of {type(self).__name__} must be hashable, got {self._options()}") from None
        return self._registered[key]

    @step_operators.at_trace_time
    def _recorded_now(self) -> str:
        return self._recorded()

    def _home(self) -> type:
        return OwnNeuron

    def _replaced(self) -> List[str]:
        return []

    def _states(self) -> Tuple[str, ...]:
        return tuple(self._state_values)

    def _parameters_of_equation(self) -> Tuple[str, ...]:
        return tuple(self._parameter_values)

    def _options(self) -> Dict[str, Any]:
        return {name: getattr(self, name) for name in self._option_values}

    def _fuses(self) -> bool:
        known = self._surrogate()
        if known is None or known.kernel is None or is_exporting():
            return False
        return not (popart.on_ipu_model() or popart.on_real_ipu())

    @property
    def spikes_are_state(self) -> bool:
        """Whether a step takes the spikes of the step before, in front of the other states."""
        return "spk" in self._state_values

    # ---- states

    def reset_mem(self) -> Tuple[torch.Tensor, ...]:
        """Forget the states of an ``init_hidden`` layer; returns those a first step starts from, of no dimension."""
        for name in self._state_values:
            setattr(self, name, None)
        device = next((value.device for value in self._values().values()), None)
        return tuple(torch.tensor(value, device=device) for value in self._state_values.values())

    def detach_hidden(self) -> None:
        """Let gradients end at the states that an ``init_hidden`` layer keeps."""
        for name in self._state_values:
            state = getattr(self, name)
            if state is not None:
                setattr(self, name, state.detach())

    def _starts(
        self, states: Sequence[Optional[torch.Tensor]], step_shape: torch.Size, x: torch.Tensor
    ) -> List[Optional[torch.Tensor]]:
        """States as the operators take them: those left out from the layer, or the values they start from."""
        if self.init_hidden and all(state is None for state in states):
            states = self._hidden(step_shape)
        found: List[Optional[torch.Tensor]] = []
        for (name, value), state in zip(self._state_values.items(), states):
            if state is None and value != 0:
                state = x.new_full((), value, dtype=compute_dtype(x.dtype))
            if isinstance(state, torch.Tensor) and state.dim() == 0:
                state = state.to(x.device).expand(step_shape)
            found.append(None if state is None else state_argument(name, state, step_shape, x))
        return found

    # ---- one step

    def forward(self, input_: torch.Tensor, *states: Optional[torch.Tensor], **named: Optional[torch.Tensor]) -> Any:
        """One time step.

        Args:
            input_: current, ``[B, ...]``.
            states: before the step, in order or by name; None: where a sequence starts, or with ``init_hidden=True``
                where the last call ended.

        Returns:
            ``(spk, *states)`` after the step, spikes in the input's dtype; with ``init_hidden=True`` and not ``output``
            spikes alone.

        Raises:
            TypeError: more states than there are, or any with ``init_hidden=True``; ``input_`` no floating tensor.
            ValueError: a shape or device that does not fit; the message names the argument.
        """
        names = self._states()
        _check_states(type(self).__name__, names, states, named)
        given = [*states, *(named.get(name) for name in names[len(states) :])]
        if self.init_hidden and any(state is not None for state in given):
            raise TypeError(f"{', '.join(names)} should not be passed as arguments while `init_hidden=True`")
        _check_missing(type(self).__name__, names, states, named)
        check_input(input_, 0, "[B, ...]")
        return self._exported(self._step, input_, given) if is_exporting() else self._step(input_, given)

    def _step(self, input_: torch.Tensor, given: Sequence[Optional[torch.Tensor]]) -> Any:
        names, starts = self._states(), self._starts(given, input_.shape, input_)
        after: Sequence[Any]
        if self._fuses():
            _say_reference(input_.device)
            spk, after = self._kernel_step(input_, starts)
        else:
            # Also of a surrogate by its function, which other tools can record.
            how = (self._options(), SINGLE_STEP, lambda u: self.spike_grad(u), [False] * len(names), True)
            spk, _, last = apply_in_pytorch(self.equation, input_, starts, self._values(), *how)
            assert last is not None
            after = last
        if self.init_hidden:
            for name, state in zip(names, after):
                setattr(self, name, state)
            if not self.output:
                return spk
        return (spk, *(state for name, state in zip(names, after) if name != "spk"))

    def _kernel_step(self, x: torch.Tensor, states: List[Optional[torch.Tensor]]) -> Tuple[torch.Tensor, Any]:
        if step_operators.tracing():
            return super()._kernel_step(x, states)
        result = neuron_apply(
            self.equation,
            x,
            states,
            self._values(),
            options=self._options(),
            num_steps=SINGLE_STEP,
            spike_grad=self._surrogate(),
            store=[False] * len(states),
            need_final=True,
        )
        return result.spk, result.final

    def sequence(self, x: torch.Tensor, *states: Optional[torch.Tensor], num_steps: Optional[int] = None) -> Any:
        if not self.init_hidden:
            _check_missing(type(self).__name__, self._states(), states, {})
        return super().sequence(x, *states, num_steps=num_steps)

    sequence.__doc__ = FusedNeuron.sequence.__doc__

    def _sequence(
        self,
        x: torch.Tensor,
        states: Sequence[Optional[torch.Tensor]],
        num_steps: Optional[int],
        need_states: bool,
        need_final: bool = False,
    ) -> Tuple[Any, Optional[List[torch.Tensor]]]:
        if isinstance(x, torch.Tensor) and x.dim() >= (num_steps is None) and x.dtype.is_floating_point:
            states = self._starts(states, x.shape[1:] if num_steps is None else x.shape, x)
            if self._fuses():
                _say_reference(x.device)
        made, final = super()._sequence(x, states, num_steps, need_states, need_final)
        if self.init_hidden and final is not None and not self._replaces("forward"):
            for name, state in zip(self._states(), final):
                setattr(self, name, state)  # in the precision they are computed in
        return made, final

    def extra_repr(self) -> str:
        shown = [f"{name}={_shown(value)}" for name, value in self._values().items()]
        shown += [f"{name}={value!r}" for name, value in self._options().items()]
        learning = [name for name in self._parameter_values if getattr(self, name).requires_grad]
        return ", ".join([*shown, *([f"learn={tuple(learning)}"] if learning else [])])


def neuron(
    states: Union[Sequence[str], Mapping[str, float]],
    parameters: Optional[Mapping[str, Value]] = None,
) -> Callable[[StepFunction], Type[OwnNeuron]]:
    """Make a neuron's step function an ``nn.Module`` class, fused over the sequence.

    .. code-block:: python

        @snn.neuron(states=("mem", "adapt"), parameters=dict(beta=0.9, rho=0.98, strength=1.7, threshold=1.0))
        def AdaptiveLeaky(x, mem, adapt, *, beta, rho, strength, threshold, spike):
            spk = spike(mem - threshold - strength * adapt)
            mem = beta * mem + x - spk.detach() * threshold
            adapt = rho * adapt + spk
            return spk, mem, adapt

        net = snn.MultiStep(nn.Linear(784, 1000), AdaptiveLeaky(beta=0.95, learn=("beta",)), nn.Linear(1000, 10))

    The function takes the input, the states before the step, by keyword the parameters, and ``spike``, the step
    function whose derivative is a surrogate's; it returns spikes and the states after the step. It is run once, on
    symbols, when the class is made: it is made of elementwise operations of tensors and of the torch module.
    Keywords with a default are options: chosen when a layer is made, and no tensors. A state called ``spk``, the first
    one, is the output of the step before, and is returned once.

    Args:
        states: names, in the order of the function's arguments; or names with the numbers they start from (default: 0).
        parameters: names with their values where a layer is not given others: numbers, or tensors.

    Returns:
        A decorator. The class it gives is a :class:`~snnipu.neurons.own.OwnNeuron`.

    Raises:
        TypeError: what does not fit the function's signature; a step that kernels cannot be made of (an ``if`` on a
            tensor's values, a sum over neurons, a matrix product, a write in place), with the operation and its line.
    """
    if callable(states):
        raise TypeError("snnipu.neuron takes names first: @snnipu.neuron(states=(...), parameters=dict(...))")
    starts = _checked_states(states)
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, Mapping):
        raise TypeError(f"parameters must be a dict of names and values, got {type(parameters).__name__}")
    values = {name: _parameter(name, value) for name, value in parameters.items()}

    def decorate(function: StepFunction) -> Type[OwnNeuron]:
        if not inspect.isfunction(function):
            raise TypeError(f"snnipu.neuron decorates a function, got {type(function).__name__}")
        found = _generator.signature(function)
        name = function.__name__
        for what, given, taken in (
            ("states", tuple(starts), found.states),
            ("parameters", tuple(sorted(values)), tuple(sorted(found.parameters))),
        ):
            if given != taken:
                raise TypeError(
                    f"{name}: {what}= names ({', '.join(given)}), the function's arguments are ({', '.join(taken)})"
                )
        _check_names(name, [*starts, *values, *found.options])
        namespace = {
            "__doc__": inspect.getdoc(function) or f"``{name}``: a neuron made by ``snnipu.neuron``.",
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__signature__": _signature({p: values[p] for p in found.parameters}, found.options),
            "step": staticmethod(function),
            "_outside": staticmethod(outside(function)),
            "_state_values": starts,
            "_parameter_values": {p: values[p] for p in found.parameters},
            "_option_values": dict(found.options),
            **found.options,
        }
        made: Type[OwnNeuron] = type(name, (OwnNeuron,), namespace)
        made.stock = made
        _neurons.register(function, found.options)  # what cannot be traced is refused now
        return made

    return decorate


def _checked_states(states: Any) -> Dict[str, float]:
    if isinstance(states, str) or not isinstance(states, (Mapping, Sequence)):
        raise TypeError(f'states must be a tuple of names, as states=("mem",), got {states!r}')
    starts = dict(states) if isinstance(states, Mapping) else dict.fromkeys(states, 0.0)
    if not starts or len(starts) != len(states):
        raise TypeError(f"states must be one name or more, each once, got {states!r}")
    for name, value in starts.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise TypeError(f"state {name!r} must start from a finite number, got {value!r}")
    if "spk" in starts and next(iter(starts)) != "spk":
        raise TypeError("the state spk, the output of the step before, must be the first one")
    if "spk" in starts and len(starts) == 1:
        raise TypeError("a neuron needs a state besides spk")
    return {name: float(value) for name, value in starts.items()}


def _check_names(neuron_name: str, names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise TypeError(f"{neuron_name}: {name!r} is no name that an argument may have")
        if name.startswith("_") or name in (*_KEYWORDS, "input_", "x", "step") or _is_taken(name):
            raise TypeError(
                f"{neuron_name}: the name {name!r} is taken: modules have an attribute or argument called so"
            )


def _is_taken(name: str) -> bool:
    # snnTorch's modules have a reset_mechanism; here it is an option like others.
    return name != "reset_mechanism" and (hasattr(OwnNeuron, name) or hasattr(nn.Identity(), name))


def _signature(values: Mapping[str, torch.Tensor], options: Mapping[str, Any]) -> inspect.Signature:
    keywords = {**{name: value.item() if value.dim() == 0 else value for name, value in values.items()}, **options}
    keywords.update(learn=(), spike_grad=None, init_hidden=False, output=False)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter(name, kind, default=value) for name, value in keywords.items()])


def _parameter(name: str, value: Any) -> torch.Tensor:
    """A layer's own copy of a parameter's value."""
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            raise TypeError(f"{name} must be real, got {value.dtype}")
        value = value.detach().clone()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        value = torch.tensor(float(value))
    else:
        raise TypeError(f"{name} must be a number or a torch.Tensor, got {type(value).__name__}")
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())


def _learning(kind: str, learn: Any, names: List[str]) -> List[str]:
    if isinstance(learn, bool):
        return names if learn else []
    chosen = [learn] if isinstance(learn, str) else list(learn)
    for name in chosen:
        if name not in names:
            raise ValueError(
                f"learn must name parameters of {kind} ({', '.join(names) or 'it has none'}), got {name!r}"
            )
    return chosen


def _check_states(kind: str, names: Sequence[str], states: Sequence[Any], named: Mapping[str, Any]) -> None:
    if len(states) > len(names):
        raise TypeError(f"{kind} has the states {', '.join(names)}, got {len(states)}")
    for name in named:
        if name not in names:
            raise TypeError(f"{kind} has no state {name!r}; it has {', '.join(names)}")
        if name in names[: len(states)]:
            raise TypeError(f"{kind} was given the state {name} twice")


def _check_missing(kind: str, names: Sequence[str], states: Sequence[Any], named: Mapping[str, Any]) -> None:
    missing = [name for name in names[len(states) :] if name not in named]
    if 0 < len(missing) < len(names):
        raise TypeError(
            f"{kind} was given {len(names) - len(missing)} of its states ({', '.join(names)}), "
            f"{', '.join(missing)} missing: give all, None for one that starts anew, or none"
        )


def _shown(value: torch.Tensor) -> str:
    return f"{value.item():g}" if value.numel() == 1 else f"tensor{tuple(value.shape)}"


def _say_reference(device: torch.device) -> None:
    if device.type not in _WITH_KERNELS:
        _warn_of_reference(device.type)


@lru_cache(maxsize=None)
def _warn_of_reference(kind: str) -> None:
    warnings.warn(
        f"snnipu runs neurons of your own by its slow PyTorch reference: {why_reference(torch.device(kind))}",
        RuntimeWarning,
        stacklevel=5,
    )
