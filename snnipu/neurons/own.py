"""``snnipu.neuron``: a custom neuron from a step function, as a fused operator over the sequence."""

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
from snnipu.neurons._external_values import external_values
from snnipu.neurons.fused import FusedNeuron
from snnipu.ops import _neurons, step_operators
from snnipu.ops._arguments import check_input, compute_dtype, state_argument
from snnipu.ops.neuron_sequence import apply_in_pytorch, neuron_apply
from snnipu.surrogate import SpikeGrad, as_surrogate

Value = Union[float, torch.Tensor]
StepFunction = Callable[..., Any]
_KEYWORDS = ("learn", "spike_grad", "init_hidden", "output")
# Device types that have kernels, or warn about their absence elsewhere.
_WITH_KERNELS = ("cpu", "cuda", "meta")


class OwnNeuron(FusedNeuron):
    """The base class of the neurons that :func:`snnipu.neuron` makes; an ``nn.Module``.

    A call is one step: ``spk, *states = layer(x, *states)``, with ``x`` ``[B, ...]``. A state has the shape of ``x``,
    or no dimensions if all neurons share its value. :meth:`sequence` and :meth:`spikes` run all steps as one operator;
    ``MultiStep`` calls them. For 16-bit inputs the states are float32.

    The fused operator needs a surrogate of ``snnipu.surrogate`` or ``snntorch.surrogate``. It runs on CPUs and, as
    Triton kernels, on NVIDIA GPUs. The first use compiles the kernels, for a CPU with the machine's C++ compiler. With
    any other function as ``spike_grad``, the step function runs in PyTorch, step by step.

    Args:
        learn: the names of the parameters that learn, or True for all of them. The others are buffers.
        spike_grad: surrogate gradient of ``spike``, from ``snnipu.surrogate`` or ``snntorch.surrogate``; or a function
            that takes the argument of ``spike`` and returns the spikes. None: ``atan()``.
        init_hidden: if True, the layer keeps its states from call to call: a call takes ``x`` alone and returns the
            spikes alone. If False, the caller passes the states to each step.
        output: if True, calls return the states also with ``init_hidden=True``.
        values: the step's parameters and options by name. A parameter is a number, or a tensor that broadcasts to one
            step ``[B, ...]``. Absent names have the values of the class.

    Raises:
        TypeError: unknown name; a parameter is neither a number nor a real tensor; ``spike_grad`` is not callable; an
            option is not hashable, or the step rejects it.
        ValueError: ``learn`` has a name that is no parameter.
    """

    # The function that the user wrote. In a loop in PyTorch it is the neuron, too.
    step: StepFunction
    _state_values: Dict[str, float]
    _parameter_values: Dict[str, Value]
    _option_values: Dict[str, Any]
    _external_values: Callable[[], Tuple[Any, ...]]
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
        _ = self.equation  # raise now if the step rejects the options

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._registered = {}

    # ---- the interface of FusedNeuron

    @property
    def equation(self) -> str:  # type: ignore[override]
        """The operators' name of this step with this layer's options."""
        if not step_operators.tracing():
            return self._recorded()
        _ = self._key() in self._registered  # guard: the compiled graph is valid for these options and numbers
        return self._recorded_now()

    def _key(self) -> Tuple[Any, ...]:
        return (*((type(value), value) for value in self._options().values()), self._external_values())

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

    def _fused_class(self) -> type:
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
        surrogate = self._surrogate()
        if surrogate is None or surrogate.kernel is None or is_exporting():
            return False
        return not (popart.on_ipu_model() or popart.on_real_ipu())

    @property
    def spikes_are_state(self) -> bool:
        """True if the first state is the spikes of the step before."""
        return "spk" in self._state_values

    # ---- states

    def reset_mem(self) -> Tuple[torch.Tensor, ...]:
        """Reset the states of a layer with ``init_hidden=True``.

        Returns:
            The states before a first step, tensors without dimensions.
        """
        for name in self._state_values:
            setattr(self, name, None)
        device = next((value.device for value in self._values().values()), None)
        return tuple(torch.tensor(value, device=device) for value in self._state_values.values())

    def detach_hidden(self) -> None:
        """Detach the states of a layer with ``init_hidden=True``: later gradients do not pass them."""
        for name in self._state_values:
            state = getattr(self, name)
            if state is not None:
                setattr(self, name, state.detach())

    def _starts(
        self, states: Sequence[Optional[torch.Tensor]], step_shape: torch.Size, x: torch.Tensor
    ) -> List[Optional[torch.Tensor]]:
        """Return the operators' initial states: missing ones are the layer's, or the values of a first step."""
        if self.init_hidden and all(state is None for state in states):
            states = self._hidden(step_shape)
        initial: List[Optional[torch.Tensor]] = []
        for (name, value), state in zip(self._state_values.items(), states):
            if state is None and value != 0:
                state = x.new_full((), value, dtype=compute_dtype(x.dtype))
            if isinstance(state, torch.Tensor) and state.dim() == 0:
                state = state.to(x.device).expand(step_shape)
            initial.append(None if state is None else state_argument(name, state, step_shape, x))
        return initial

    # ---- one step

    def forward(self, input_: torch.Tensor, *states: Optional[torch.Tensor], **named: Optional[torch.Tensor]) -> Any:
        """Run one time step.

        Args:
            input_: current, ``[B, ...]``.
            states: states after the step before, in order. Give all of them or none. None: the initial value, or with
                ``init_hidden=True`` the state after the last call.
            named: the same states by name.

        Returns:
            ``(spk, *states)`` after the step, each ``[B, ...]``, with spikes in the input's dtype. ``spk`` alone with
            ``init_hidden=True`` and ``output=False``.

        Raises:
            TypeError: too many or too few states, or any with ``init_hidden=True``; ``input_`` is no floating tensor.
            ValueError: wrong shape or device; the message names the argument.
        """
        names = self._states()
        _check_states(type(self).__name__, names, states, named)
        all_states = [*states, *(named.get(name) for name in names[len(states) :])]
        if self.init_hidden and any(state is not None for state in all_states):
            raise TypeError(f"{', '.join(names)} should not be passed as arguments while `init_hidden=True`")
        _check_missing(type(self).__name__, names, states, named)
        check_input(input_, 0, "[B, ...]")
        return self._exported(self._step, input_, all_states) if is_exporting() else self._step(input_, all_states)

    def _step(self, input_: torch.Tensor, passed: Sequence[Optional[torch.Tensor]]) -> Any:
        names, starts = self._states(), self._starts(passed, input_.shape, input_)
        after: Sequence[Any]
        if self._fuses():
            _warn_if_reference(input_.device)
            spk, after = self._kernel_step(input_, starts)
        else:
            # A surrogate runs as its PyTorch function, which exporters can record.
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

    def sequence(
        self, x: torch.Tensor, *states: Optional[torch.Tensor], num_steps: Optional[int] = None, **named: Any
    ) -> Any:
        if not self.init_hidden:
            _check_missing(type(self).__name__, self._states(), states, named)
        return super().sequence(x, *states, num_steps=num_steps, **named)

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
                _warn_if_reference(x.device)
        result, final = super()._sequence(x, states, num_steps, need_states, need_final)
        if self.init_hidden and final is not None and not self._replaces("forward"):
            for name, state in zip(self._states(), final):
                setattr(self, name, state)  # in the dtype of the computation, not of x
        return result, final

    def extra_repr(self) -> str:
        parts = [f"{name}={_formatted(value)}" for name, value in self._values().items()]
        parts += [f"{name}={value!r}" for name, value in self._options().items()]
        learning = [name for name in self._parameter_values if getattr(self, name).requires_grad]
        return ", ".join([*parts, *([f"learn={tuple(learning)}"] if learning else [])])


def neuron(
    states: Union[Sequence[str], Mapping[str, float]],
    parameters: Optional[Mapping[str, Value]] = None,
) -> Callable[[StepFunction], Type[OwnNeuron]]:
    """Turn the step function of a neuron into an ``nn.Module`` class with fused kernels.

    .. code-block:: python

        @snn.neuron(states=("mem", "adapt"), parameters=dict(beta=0.9, rho=0.98, strength=1.7, threshold=1.0))
        def AdaptiveLeaky(x, mem, adapt, *, beta, rho, strength, threshold, spike):
            spk = spike(mem - threshold - strength * adapt)
            mem = beta * mem + x - spk.detach() * threshold
            adapt = rho * adapt + spk
            return spk, mem, adapt

        net = snn.MultiStep(nn.Linear(784, 1000), AdaptiveLeaky(beta=0.95, learn=("beta",)), nn.Linear(1000, 10))

    The function's arguments are the input, the states before the step, and by keyword the parameters and ``spike``. It
    returns the spikes and the states after the step. ``spike(u)`` is the step function :math:`H(u)`, :math:`H(0) = 0`,
    whose derivative is the surrogate's.

    The decorator calls the function once, with symbols in place of tensors. The function may use elementwise operations
    of tensors and of the torch module. Keywords with a default are options, which a layer fixes at construction; they
    are no tensors. A first state called ``spk`` is the output of the step before, and is returned once.

    Args:
        states: names of the states, in the order of the function's arguments; or a dict from names to initial values.
            Without values the states start from 0.
        parameters: a dict from names to default values, which are numbers or tensors; None: no parameters.

    Returns:
        A decorator. It returns a subclass of :class:`~snnipu.neurons.own.OwnNeuron`.

    Raises:
        TypeError: ``states`` or ``parameters`` differ from the function's signature. Or no kernel can be made of the
            step: an ``if`` on a tensor's values, a sum over neurons, a matrix product, a write in place. The message
            names the operation and its line.
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
        signature = _generator.signature(function)
        name = function.__name__
        for argument, named, expected in (
            ("states", tuple(starts), signature.states),
            ("parameters", tuple(sorted(values)), tuple(sorted(signature.parameters))),
        ):
            if named != expected:
                raise TypeError(
                    f"{name}: {argument}= names ({', '.join(named)}), the function's arguments are "
                    f"({', '.join(expected)})"
                )
        _check_names(name, [*starts, *values, *signature.options])
        namespace = {
            "__doc__": inspect.getdoc(function) or f"``{name}``: a neuron made by ``snnipu.neuron``.",
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__signature__": _signature({p: values[p] for p in signature.parameters}, signature.options),
            "step": staticmethod(function),
            "_external_values": staticmethod(external_values(function)),
            "_state_values": starts,
            "_parameter_values": {p: values[p] for p in signature.parameters},
            "_option_values": dict(signature.options),
            **signature.options,
        }
        neuron_class: Type[OwnNeuron] = type(name, (OwnNeuron,), namespace)
        neuron_class.stock = neuron_class
        _neurons.register(function, signature.options)  # raise now if no kernel can be made of the step
        return neuron_class

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
    # snnTorch's modules have an attribute reset_mechanism; here it is an ordinary option.
    return name != "reset_mechanism" and (hasattr(OwnNeuron, name) or hasattr(nn.Identity(), name))


def _signature(values: Mapping[str, torch.Tensor], options: Mapping[str, Any]) -> inspect.Signature:
    keywords = {**{name: value.item() if value.dim() == 0 else value for name, value in values.items()}, **options}
    keywords.update(learn=(), spike_grad=None, init_hidden=False, output=False)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter(name, kind, default=value) for name, value in keywords.items()])


def _parameter(name: str, value: Any) -> torch.Tensor:
    """Return a copy of a parameter's value as a floating tensor."""
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
            f"{', '.join(missing)} missing: give all of them (None for an initial value), or none"
        )


def _formatted(value: torch.Tensor) -> str:
    return f"{value.item():g}" if value.numel() == 1 else f"tensor{tuple(value.shape)}"


def _warn_if_reference(device: torch.device) -> None:
    if device.type not in _WITH_KERNELS:
        _warn_of_reference(device.type)


@lru_cache(maxsize=None)
def _warn_of_reference(kind: str) -> None:
    warnings.warn(
        f"snnipu runs neurons of your own by its slow PyTorch reference: {why_reference(torch.device(kind))}",
        RuntimeWarning,
        stacklevel=5,
    )
