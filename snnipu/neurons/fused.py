"""The base class of snnTorch's neurons on fused kernels. ``snnipu.equations`` holds their equations."""

import warnings
from types import BuiltinMethodType, MethodType
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import snntorch
import torch
from torch.nn.utils import parametrize

from snnipu import equations
from snnipu._layout import SINGLE_STEP
from snnipu._names import installed
from snnipu._route import is_exporting
from snnipu.backends import has_kernels, popart
from snnipu.backends.neuron_step import kernel_step, step_apply
from snnipu.neurons._hooks import is_hooked
from snnipu.neurons._states import MEM_RESET, STATE_FUNCTIONS, AttributeStates
from snnipu.ops import _neurons, step_operators
from snnipu.ops._arguments import RESET_MECHANISMS, check_sequence, is_compiling
from snnipu.ops.neuron_sequence import Results, neuron_apply
from snnipu.surrogate import Kernel, Surrogate, as_surrogate

# The fewest elements of one step for which its kernel runs on a GPU. For smaller steps the launch takes as long as that
# of snnTorch's few operations: 0.6 ms for Leaky, forward and backward, on an H200. The bound is an estimate.
FEWEST_OF_A_STEP = 1 << 21
# Attributes that determine the step of every neuron.
_KEYWORDS = ("spike_grad", "inhibition", "state_quant", "state_function")


def load_scalars(module: torch.nn.Module, state_dict: Any, prefix: str, names: Iterable[str]) -> None:
    """Reshape one-element entries of ``state_dict`` to ``module``'s shapes: FSDP2 saves ``[1]`` in place of ``[]``."""
    for name in names:
        current, saved = getattr(module, name, None), state_dict.get(prefix + name)
        if (
            isinstance(current, torch.Tensor)
            and isinstance(saved, torch.Tensor)
            and current.numel() == saved.numel() == 1
        ):
            state_dict[prefix + name] = saved.reshape(current.shape)


def values_of(module: torch.nn.Module, names: Iterable[str]) -> Dict[str, Any]:
    """Return ``module``'s parameters and buffers of these names."""
    fixed, learnt = module._buffers, module._parameters  # nn.Module.__getattr__ takes a microsecond per name
    return {
        name: fixed[name] if name in fixed else learnt[name] if name in learnt else getattr(module, name)
        for name in names
    }


_MISSING = object()


class StepDescription(NamedTuple):
    """The properties of a layer that determine its step, apart from its tensors.

    A layer makes a new description after one of these attributes, methods or classes has been replaced.

    Attributes:
        kind: the layer's class.
        attributes: names and values of the layer's attributes; ``_MISSING`` for an absent one.
        class_attributes: names and values of its class's attributes; None for an absent one.
        mem_reset: snnTorch's function of the reset signal.
        kernel: the kernels' form of the surrogate; None: it has none.
        plan: the equation with its options; None: snnTorch's code runs.
    """

    kind: type
    attributes: Tuple[Tuple[str, Any], ...]
    class_attributes: Tuple[Tuple[str, Any], ...]
    mem_reset: Any
    kernel: Optional[Kernel]
    plan: Optional[_neurons.NeuronPlan]

    def is_current(self, layer: "FusedNeuron") -> bool:
        """Return True if this is still the description of the layer's step."""
        kind, attributes, missing = type(layer), layer.__dict__, _MISSING
        if kind is not self.kind or layer.stock.mem_reset is not self.mem_reset:
            return False
        for name, value in self.attributes:
            if attributes.get(name, missing) is not value:
                return False
        for name, value in self.class_attributes:
            if getattr(kind, name, None) is not value:
                return False
        surrogate = layer._resolved[1]
        return self.kernel is (None if surrogate is None else surrogate.kernel)


class FusedNeuron(AttributeStates):
    """A neuron of snnTorch whose step is an equation of ``snnipu.equations``.

    A subclass lists it before snnTorch's class. A call is one step, as in snnTorch. :meth:`sequence` and
    :meth:`spikes` run all steps.

    The fused operator covers every keyword except ``inhibition``, ``state_quant`` and a Python function as
    ``spike_grad``. It runs on CPUs and, as Triton kernels, on NVIDIA GPUs; there a single step must have two million
    elements. Otherwise snnTorch's code runs. It also runs if a subclass or an instance replaces a part of snnTorch's
    step, with a warning.
    """

    # The name of the equation, and its options; set by each neuron.
    equation: str
    options: Tuple[str, ...] = ("reset_mechanism",)
    # The methods of snnTorch's step.
    parts: Tuple[str, ...] = ("_base_state_function", *STATE_FUNCTIONS, "fire", "mem_reset")
    # The same methods as our class inherits them, to find replaced ones.
    stock_parts: Dict[str, Any]
    # The reset mechanisms for which the installed snnTorch's step equals the equation.
    fusable: Tuple[str, ...] = tuple(RESET_MECHANISMS)
    # From the equation's signature.
    state_names: Tuple[str, ...]
    parameter_names: Tuple[str, ...]

    reset_mechanism_val: torch.Tensor
    _reset_mechanism: str
    # True if snnTorch's step has so many operations that kernels are faster at any size.
    has_long_step = False
    # True if the operator of a step is also used in graphs of other compilers than ours.
    fuses_when_compiled = False
    # The description of the last step, and the attributes that it compares.
    _description: Optional[StepDescription] = None
    _keywords: Tuple[str, ...]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(cls.__dict__.get("equation"), str):
            cls.state_names, cls.parameter_names = _neurons.arguments(cls.equation)
        if "stock" in cls.__dict__:
            cls.stock_parts = {name: getattr(cls, name) for name in cls.parts if hasattr(cls, name)}
            options = (f"_{name}" if name == "reset_mechanism" else name for name in cls.options)
            cls._keywords = tuple(dict.fromkeys((*_KEYWORDS, *options, *cls.parts)))
            names = (getattr(equations, cls.equation), cls.state_names, cls.parameter_names)
            is_known = len(cls.stock_parts) == len(cls.parts)
            cls.fusable = installed.reset_mechanisms(cls.stock, *names, equations.OPTIONS) if is_known else ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._warn_if_unfused_reset()

    def _take_over(self) -> None:
        super()._take_over()
        _neurons.prepare(self.equation)  # torch.compile cannot trace it
        self._resolved: Tuple[Any, Optional[Surrogate]] = (self.spike_grad, as_surrogate(self.spike_grad))
        # The source of `reset`: the reset signal itself, or the membrane before the step (None: zeros).
        self._last_step: Optional[Tuple[str, Optional[torch.Tensor]]] = None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        load_scalars(self, state_dict, prefix, self._parameters_of_equation())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    # ---- attributes of snnTorch's neurons

    @property
    def reset_mechanism(self) -> str:
        """``"subtract"``, ``"zero"``, ``"none"`` or another one of the installed snnTorch; may be set any time."""
        return self._reset_mechanism

    @reset_mechanism.setter
    def reset_mechanism(self, reset_mechanism: str) -> None:
        self._check_mechanism(reset_mechanism)
        code = RESET_MECHANISMS.get(reset_mechanism)
        if code is None or not hasattr(self, STATE_FUNCTIONS[code]):  # of a later snnTorch
            snntorch.SpikingNeuron.reset_mechanism.fset(self, reset_mechanism)
        else:
            self.reset_mechanism_val = torch.as_tensor(code, device=self.reset_mechanism_val.device)
            self._reset_mechanism = reset_mechanism
            self.state_function = getattr(self, STATE_FUNCTIONS[code])
        self._warn_if_unfused_reset()

    def _warn_if_unfused_reset(self) -> None:
        """Warn if no kernel equals the installed snnTorch's step."""
        if self._reset_mechanism not in self.fusable:
            warnings.warn(
                f"{self.stock.__name__} of snnTorch {snntorch.__version__} resets by {self._reset_mechanism!r} as no "
                "kernel does: it runs step by step, in PyTorch",
                stacklevel=4,
            )

    @property
    def reset(self) -> torch.Tensor:
        """The detached reset signal of the last step; after a fused step, computed when it is read."""
        if self._last_step is None:
            raise AttributeError("reset: this layer has not run a step yet")
        kind, tensor = self._last_step
        if kind == "reset" and tensor is not None:
            return tensor
        if kind == "compiled":
            raise AttributeError("reset: torch.compile ran this layer's last step, which does not keep it")
        return self.mem_reset(torch.zeros_like(self.mem) if tensor is None else tensor)

    @reset.setter
    def reset(self, reset: torch.Tensor) -> None:
        self._last_step = ("reset", reset)

    # ---- choice between the kernels and snnTorch's code

    def _is_snntorchs_on_gpu(self, x: torch.Tensor) -> bool:
        """Return True if a single step with this input runs as snnTorch's code: small, or of a layer on another device.

        PyTorch's operations accept scalar parameters on the CPU, kernels do not.
        """
        if not x.is_cuda:
            return False
        small = x.numel() < FEWEST_OF_A_STEP and not (self.has_long_step or is_compiling())
        return small or x.device != self.threshold.device

    def _surrogate(self) -> Optional[Surrogate]:
        """Return the known surrogate that equals ``spike_grad``, which may be set at any time; None: there is none."""
        if step_operators.tracing() and self._calls_a_method():
            return None  # TorchDynamo cannot compare methods, and no known surrogate is a method
        if self._resolved[0] is not self.spike_grad:
            self._resolved = (self.spike_grad, as_surrogate(self.spike_grad))
        return self._resolved[1]

    @step_operators.at_trace_time
    def _calls_a_method(self) -> bool:
        """Return True if ``spike_grad`` is a method, such as the ``apply`` of an autograd function."""
        return isinstance(self.spike_grad, (BuiltinMethodType, MethodType))  # `apply` is a C method since PyTorch 2.14

    def _fuses(self) -> bool:
        # An export records each step as snnTorch's operations.
        if is_exporting() or self._reset_mechanism not in self.fusable:
            return False
        return self._has_kernel() and not (self.inhibition or self.state_quant or self._replaced())

    def _has_kernel(self) -> bool:
        """Return True if the current device has a kernel for the surrogate."""
        surrogate = self._surrogate()
        if surrogate is None or surrogate.kernel is None:
            return False
        if popart.on_ipu():
            return popart.has_operator("NeuronSequence")
        return has_kernels(self.threshold.device)

    def _on_ipu(self) -> bool:
        """Return True if the layer runs as a PopART operator; raise RuntimeError if it needs one and has none."""
        return False

    def _replaced(self) -> List[str]:
        """Return the names of parts of snnTorch's step that a subclass or this instance replaces."""
        kind, attributes = type(self), self.__dict__
        names = [
            name for name, part in self.stock_parts.items() if name in attributes or getattr(kind, name) is not part
        ]
        if self.stock.mem_reset is not MEM_RESET:
            names.append("mem_reset")  # replaced for all neurons, on snnTorch's class
        if step_operators.tracing():
            step_operators.guard_methods(self, self.stock_parts)
        function = getattr(self, "state_function", None)
        if function is not None and self.stock_parts and not names and self._reset_mechanism in self.fusable:
            expected = self.stock_parts[STATE_FUNCTIONS[RESET_MECHANISMS[self._reset_mechanism]]]
            # TorchDynamo of PyTorch 2.9 supports __code__ of a bound method, not __func__.
            if getattr(function, "__code__", None) is not expected.__code__:
                names.append("state_function")
        for name in self._parameters_of_equation():
            # The property of a parametrization is constant over the steps; any other property may depend on the state.
            if getattr(kind, name, None) is not None and not parametrize.is_parametrized(self, name):
                names.append(name)
        return names

    def _describe(self) -> StepDescription:
        """Return the description of the layer's step; warn of replaced parts."""
        description = self._description
        if description is not None and description.is_current(self):
            return description
        attributes, kind = self.__dict__, type(self)
        surrogate = self._surrogate()
        kernel = None if surrogate is None else surrogate.kernel
        replaced = self._replaced()
        is_stock = bool(kernel is None or self.inhibition or self.state_quant or replaced)
        is_stock = is_stock or self._reset_mechanism not in self.fusable
        names = (*self.parts, *self.state_names, *self.parameter_names)
        description = attributes["_description"] = StepDescription(
            kind,
            tuple([(name, attributes.get(name, _MISSING)) for name in self._keywords]),
            tuple([(name, getattr(kind, name, None)) for name in names]),
            self.stock.mem_reset,
            kernel,
            None if is_stock else _neurons.plan(self.equation, self._options()),
        )
        if replaced:
            self._warn_replaced(stacklevel=6)  # the caller of nn.Module.__call__
        return description

    def _replaces(self, *methods: str) -> bool:
        """Return True if a subclass or this instance overrides one of our ``methods``."""
        fused_class = self._fused_class()
        kind, attributes = type(self), self.__dict__
        if kind is fused_class and not any(name in attributes for name in methods):
            return False
        return any(name in attributes or getattr(kind, name) is not getattr(fused_class, name) for name in methods)

    def _fused_class(self) -> type:
        """Return snnipu's class of this neuron, of which a user's class is a subclass."""
        return self.fused_class

    def runs_fused(self) -> bool:
        """Return True if ``MultiStep`` may call :meth:`sequence`, one operator, in place of a loop of calls."""
        return self._fuses() and not self._replaces("forward", "reset_mem")

    def resumes(self) -> bool:
        """Return True if :meth:`resume` over chunks of time equals :meth:`over_time` over all steps."""
        return not self._replaces("sequence", "spikes", "over_time")

    # ---- the equation's arguments

    def _states(self) -> Tuple[str, ...]:
        return self.state_names

    def _parameters_of_equation(self) -> Tuple[str, ...]:
        return self.parameter_names

    def _values(self) -> Dict[str, Any]:
        return values_of(self, self._parameters_of_equation())

    def _options(self) -> Dict[str, Any]:
        return {name: getattr(self, name) for name in self.options}

    def _hidden(self, step_shape: torch.Size) -> List[Optional[torch.Tensor]]:
        """Return the states that this layer keeps; None for a state of another shape."""
        states = [getattr(self, name) for name in self._states()]
        return [s if s is not None and s.shape == step_shape and s.numel() else None for s in states]

    def _kernels(self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], **how: Any) -> Results:
        if how.get("num_steps") == SINGLE_STEP:
            return step_apply(
                self.equation,
                x,
                self._kernel_states(x, states),
                self._step_values(x),
                options=self._options(),
                spike_grad=self._surrogate(),
            )
        return neuron_apply(
            self.equation,
            x,
            states,
            self._values(),
            options=self._options(),
            spike_grad=self._surrogate(),
            **how,
        )

    # ---- one step

    def _kernel_states(
        self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]]
    ) -> Sequence[Optional[torch.Tensor]]:
        """Return the arguments of a step's kernel for these states."""
        return states

    def _step_values(self, x: torch.Tensor) -> Dict[str, Any]:
        """Return the parameters for a step's kernel."""
        return self._values()

    def _direct_step(self, description: StepDescription, x: Any, passed: Sequence[Any]) -> Any:
        """Run the most frequent kind of step: float32 input, states of its shape or none; return None for any other."""
        if type(x) is not torch.Tensor or x.dtype is not torch.float32 or self._is_snntorchs_on_gpu(x):
            return None
        attributes, names, plan = self.__dict__, self.state_names, description.plan
        if len(passed) > len(names):
            return None
        init_hidden = attributes["init_hidden"]
        states: List[Optional[torch.Tensor]] = []
        for place, name in enumerate(names):
            state = passed[place] if place < len(passed) else None
            if state is None:
                state = attributes.get(name)
            elif init_hidden:
                return None  # the caller raises
            if not isinstance(state, torch.Tensor):
                return None
            if state.shape == x.shape:
                states.append(state)  # kernel_step checks dtype and device
            elif state.numel() <= 1 < x.numel():
                states.append(None)  # zeros of a first step
            else:
                return None
        assert plan is not None
        assert description.kernel is not None
        values = self._step_values(x)
        stepped = kernel_step(plan, description.kernel, x, self._kernel_states(x, states), values)
        if stepped is None:
            return None
        spk, after = stepped
        last = states[-1]
        # For an existing attribute this equals Module.__setattr__, and is faster.
        attributes["_last_step"] = ("before", last.detach() if last is not None and last.requires_grad else last)
        attributes.update(zip(names, after))
        if init_hidden and not attributes["output"]:
            return spk
        return (spk, *after) if names[0] != "spk" else (spk, *after[1:])

    def _reset_hidden(self) -> None:
        """Reset this neuron in a trace, as snnTorch's ``reset_hidden`` does."""
        self.reset_mem()

    def forward(self, input_: torch.Tensor, *states: Any, **named: Any) -> Any:
        """Run one time step, as snnTorch's ``forward``: the same arguments, results, dtypes and errors.

        Args:
            input_: current, ``[B, ...]``.
            states: states after the step before, ``[B, ...]``, in the order of snnTorch's ``forward``. None: the
                layer's attributes, or zeros if their shape differs from the input's.
            named: the same states by name.

        Returns:
            ``(spk, *states)``, each ``[B, ...]``; ``spk`` alone with ``init_hidden=True`` and ``output=False``.

        Raises:
            TypeError: a state is passed although ``init_hidden=True``.

        Warns:
            UserWarning: ``mem`` of :class:`Leaky` has another shape than ``input_``; the step starts from zeros.
        """
        if named:
            states, named = self._by_position(states, named)
        if step_operators.enabled and self._reset_in_trace():
            self._reset_hidden()
        if is_exporting():
            return self._exported(super().forward, input_, *states, **named)
        if is_compiling():
            self._check_step(input_, states)
            result = None if named else self._fused_step(input_, states)
            if result is None and self._replaced():
                self._warn_replaced(stacklevel=6)
            if result is None and self.inhibition and step_operators.tracing():
                # TorchDynamo cannot trace the indexing of snnTorch's inhibition.
                return step_operators.call_untraced(super().forward, input_, *states, **named)
            if result is None:
                return super().forward(input_, *(states if named else self._stock_states(states)), **named)
            return result
        description = self._describe()
        result = None
        if description.plan is not None and not named:
            result = self._direct_step(description, input_, states)
        if result is None:
            self._check_step(input_, states)
            if not named and (description.plan is not None or self._on_ipu()):
                result = self._fused_step(input_, states)
        return super().forward(input_, *states, **named) if result is None else result

    def _by_position(self, states: Tuple[Any, ...], named: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
        """Return the states in order, also those given by name. snnTorch's code raises an error for unknown names."""
        missing = self._states()[len(states) :]
        if not set(named) <= set(missing):
            return states, named
        return (*states, *(named.get(name) for name in missing)), {}

    def _check_step(self, input_: Any, states: Sequence[Any]) -> None:
        """Check the arguments of a step that the direct call does not take; snnTorch's code has its own checks."""

    def _fused_step(self, input_: torch.Tensor, states: Sequence[Any]) -> Any:
        """Run a step on a kernel; return None if snnTorch's code must run."""
        if is_compiling() and not (step_operators.tracing() or self.fuses_when_compiled):
            return None  # another compiler than ours fuses snnTorch's operations
        names = self._states()
        if (
            not isinstance(input_, torch.Tensor)
            or input_.dtype not in (torch.float32, torch.float64)
            or input_.dim() == 0
            or len(states) > len(names)
            or (self.init_hidden and any(s is not None for s in states))
            or self._is_snntorchs_on_gpu(input_)
            or not self._fuses()
        ):
            return None
        passed = [*states, *[None] * (len(names) - len(states))]
        hidden = [getattr(self, name) if state is None else state for name, state in zip(names, passed)]
        initial: List[Optional[torch.Tensor]] = []
        for name, state in zip(names, hidden):
            if not isinstance(state, torch.Tensor):
                return None
            if state.shape != input_.shape:
                state = None  # zeros, as in snnTorch
            elif state.dtype != input_.dtype and not (
                name == "spk" and state.dtype == installed.spike_dtype(input_.dtype)
            ):
                return None
            initial.append(state)
        dims = input_.dim()
        for p in self._values().values():
            if isinstance(p, torch.Tensor) and (p.dim() > dims or (p.dim() > 0 and p.dtype != input_.dtype)):
                return None
        fired, after = self._kernel_step(input_, initial)
        spk = fired if fired.dtype == torch.float32 else fired.to(self._spike_dtype(fired.dtype))
        for name, state in zip(names, after):
            setattr(self, name, spk if name == "spk" else state)
        if self.init_hidden and not self.output:
            return spk
        return (spk, *(state for name, state in zip(names, after) if name != "spk"))

    def _kernel_step(
        self, x: torch.Tensor, states: List[Optional[torch.Tensor]]
    ) -> Tuple[torch.Tensor, Sequence[Optional[torch.Tensor]]]:
        """Run a kernel for one step; return spikes and states."""
        if step_operators.tracing():
            spk, *after = self._step_node(x, tuple(states), "hooks" if is_hooked(self) else "")
            self._last_step = ("compiled", None)
            return spk, after
        result = self._kernels(x, states, num_steps=SINGLE_STEP)
        self._last_step = ("before", None if states[-1] is None else states[-1].detach())
        return result.spk, result.states

    def _step_node(self, x: torch.Tensor, states: Tuple[Optional[torch.Tensor], ...], why_not: str) -> Sequence[Any]:
        """Call a step as one node of a compiled graph.

        ``why_not``: the reason why the compiler must not merge this step with others; empty: it may.
        """
        surrogate, values = self._surrogate(), self._values()
        assert surrogate is not None
        assert surrogate.kernel is not None
        step, tensors, more = self._step_operator()
        return step(  # type: ignore[no-any-return]
            x,
            states,
            (*values.values(), *tensors),
            surrogate.kernel.plain(),
            (self.equation, tuple(values), tuple(self._options().items()), *more),
            why_not,
        )

    def _step_operator(self) -> Tuple[Any, Sequence[Any], Sequence[Any]]:
        """Return the step operator, and its further parameters and options."""
        return step_operators.neuron_step, (), ()

    def _spike_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of snnTorch's spikes of a membrane of ``dtype``."""
        factor: Any = getattr(self, "graded_spikes_factor", None)
        base = installed.spike_dtype(dtype)
        return torch.promote_types(base, factor.dtype) if isinstance(factor, torch.Tensor) and factor.dim() else base

    # ---- all steps

    def sequence(
        self, x: torch.Tensor, *states: Optional[torch.Tensor], num_steps: Optional[int] = None, **named: Any
    ) -> Any:
        """Run all time steps as one fused operator.

        Args:
            x: current, ``[T, B, ...]``. With ``num_steps``: ``[B, ...]``, the same current at every step.
            states: states before the first step, ``[B, ...]``, in the order of snnTorch's ``forward``. None: zeros, or
                with ``init_hidden=True`` the states after the last call.
            named: the same states by name.
            num_steps: number of steps ``T`` of a constant current; None: ``x`` has a time dimension.

        Returns:
            ``(spk, *states)``, each ``[T, B, ...]`` in x's dtype, in the order in which a step returns them.

        Raises:
            TypeError: more states than the neuron has, or any with ``init_hidden=True``; ``x`` is no floating tensor.
            ValueError: wrong shape or device; the message names the argument.
        """
        names = self._states()
        if named:
            states, named = self._by_position(states, named)
        if named or len(states) > len(names):
            raise TypeError(f"{type(self).__name__} has the states {', '.join(names)}, got {[*named] or len(states)}")
        if self.init_hidden and any(state is not None for state in states):
            raise TypeError(f"`{'`, `'.join(names)}` should not be passed as arguments while `init_hidden=True`")
        return self._sequence(x, [*states, *[None] * (len(names) - len(states))], num_steps, need_states=True)[0]

    def spikes(self, x: torch.Tensor, *, num_steps: Optional[int] = None) -> torch.Tensor:
        """Return the spikes of :meth:`sequence` without the states, which the backward pass computes again.

        Args:
            x: current, ``[T, B, ...]``. With ``num_steps``: ``[B, ...]``, the same current at every step.
            num_steps: number of steps ``T`` of a constant current; None: ``x`` has a time dimension.

        Returns:
            Spikes ``[T, B, ...]`` in x's dtype.

        Raises:
            TypeError, ValueError: as :meth:`sequence`.
        """
        return self._sequence(x, [None] * len(self._states()), num_steps, need_states=False)[0]

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        """Run all steps for ``MultiStep``: return a step's results over time, spikes alone if not ``need_mem``."""
        need_mem = need_mem and self._returns_states()
        if self._replaces("sequence"):
            return self.sequence(x, num_steps=num_steps)
        result = self._single_step(x, need_mem) if num_steps is None else None
        if result is not None:
            return result
        return self.sequence(x, num_steps=num_steps) if need_mem else self.spikes(x, num_steps=num_steps)

    def _single_step(self, x: torch.Tensor, need_mem: bool) -> Any:
        """Run a sequence of one step with ``init_hidden=True`` as a step; return None for any other sequence.

        A stream that arrives step by step then costs what a loop of calls costs.
        """
        if (
            not self.init_hidden
            or is_compiling()
            or type(x) is not torch.Tensor
            or x.dtype is not torch.float32
            or x.dim() < 2
            or x.shape[0] != 1
        ):
            return None
        description = self._describe()
        if description.plan is None:
            return None
        result = self._direct_step(description, x[0], ())
        if result is None:
            return None
        names = self._states()
        spk: torch.Tensor = result[0] if isinstance(result, tuple) else result
        # Copies: a caller may write into the results of a sequence, which must not change the layer's states.
        spk = (spk.clone() if "spk" in names else spk).unsqueeze(0)
        return (
            (spk, *(getattr(self, name).clone().unsqueeze(0) for name in names if name != "spk")) if need_mem else spk
        )

    def _returns_states(self) -> bool:
        """Return True if a step returns states besides spikes."""
        return self.output or not self.init_hidden

    def resume(
        self, x: torch.Tensor, states: Optional[Any], *, num_steps: Optional[int] = None, need_mem: bool = True
    ) -> Tuple[Any, Any]:
        """Run a chunk of a sequence: return the result of :meth:`over_time`, and the states after the chunk.

        ``states``: the states before the chunk; None: the first chunk. Gradients pass from chunk to chunk.
        """
        start = [None] * len(self._states()) if states is None else states
        return self._sequence(x, start, num_steps, need_mem and self._returns_states(), need_final=True)

    def _sequence(
        self,
        x: torch.Tensor,
        states: Sequence[Optional[torch.Tensor]],
        num_steps: Optional[int],
        need_states: bool,
        need_final: bool = False,
    ) -> Tuple[Any, Optional[List[torch.Tensor]]]:
        self._on_ipu()
        check_sequence(x, num_steps)
        step_shape = x.shape[1:] if num_steps is None else x.shape
        if self.init_hidden and all(state is None for state in states):
            states = self._hidden(step_shape)
        replaced = self._replaces("forward")
        if replaced and not self._replaced():
            self._warn_replaced()
        if replaced or not self._fuses():
            result_by_steps = self._sequence_by_steps(x, states, num_steps)
            return (result_by_steps[0] if need_states else result_by_steps[0][0]), result_by_steps[1]
        result = self._kernels(
            x,
            states,
            num_steps=num_steps,
            store=[need_states] * len(states),
            need_final=need_final or self.init_hidden,
        )
        if self.init_hidden and result.final is not None and result.spk.shape[0]:
            for name, final in zip(self._states(), result.final):
                setattr(self, name, final.to(x.dtype))
        spk = result.spk
        stored = [s for name, s in zip(self._states(), result.states) if name != "spk"] if need_states else []
        return ((spk, *stored) if need_states else spk), result.final

    def _sequence_by_steps(
        self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], num_steps: Optional[int]
    ) -> Tuple[Tuple[torch.Tensor, ...], List[torch.Tensor]]:
        """Call :meth:`forward` for each step; return spikes and states of all steps, and the last states."""
        steps = x.shape[0] if num_steps is None else num_steps
        step_shape = x.shape[1:] if num_steps is None else x.shape
        names = self._states()
        for name, state in zip(names, states):
            if state is not None and state.shape != step_shape:
                raise ValueError(
                    f"{name} must have the shape of one step of x, {tuple(step_shape)}, got {tuple(state.shape)}"
                )
        current_states: List[Any] = [x.new_zeros(step_shape) if state is None else state for state in states]
        if steps == 0:
            return (torch.empty_like(x),) * (1 + len(names) - ("spk" in names)), current_states
        rows: List[Tuple[torch.Tensor, ...]] = []
        if self.init_hidden:
            for name, state in zip(names, current_states):
                setattr(self, name, state)
        for t in range(steps):
            out = self._call(x if num_steps is not None else x[t], current_states)
            row = out if isinstance(out, tuple) else (out,)
            if len(row) == 1:
                row = (row[0], *(getattr(self, name) for name in names if name != "spk"))
            rows.append(row)
            current_states = list(row) if "spk" in names else list(row[1:])
        return tuple(torch.stack(values).to(x.dtype) for values in zip(*rows)), current_states

    def _call(self, x: torch.Tensor, states: List[Any]) -> Any:
        return self.forward(x) if self.init_hidden else self.forward(x, *states)

    def __getstate__(self) -> Dict[str, Any]:
        state = super().__getstate__()
        state["_last_step"] = state["_description"] = None
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        _neurons.prepare(self.equation)
