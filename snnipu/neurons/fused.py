"""snnTorch's neurons on fused kernels: what they have in common. Their equations are those of ``snnipu.equations``."""

import warnings
from types import BuiltinMethodType, MethodType
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import snntorch
import torch
from torch.nn.utils import parametrize

from snnipu import equations
from snnipu._layout import SINGLE_STEP
from snnipu._names import installed
from snnipu._route import is_exporting
from snnipu.backends import has_kernels, popart
from snnipu.backends.neuron_step import kernel_step, step_apply
from snnipu.neurons import _instances
from snnipu.neurons._hooks import is_hooked
from snnipu.neurons._states import MEM_RESET, STATE_FUNCTIONS, PlainStates
from snnipu.ops import _neurons, step_operators
from snnipu.ops._arguments import RESET_MECHANISMS, check_sequence, is_compiling, reset_code
from snnipu.ops.neuron_sequence import Results, neuron_apply
from snnipu.surrogate import Kernel, Surrogate, as_surrogate

_SAID: Set[Tuple[Any, ...]] = set()
# Elements of one step from which on its kernel is taken on a GPU. Of a smaller step Python takes as long to launch the
# kernels as PyTorch to launch snnTorch's few operations: 0.6 ms of Leaky, forward and backward, on an H200. The bound
# itself is an estimate.
FEWEST_OF_A_STEP = 1 << 21
# Attributes of every neuron on which its step depends.
_KEYWORDS = ("spike_grad", "inhibition", "state_quant", "state_function")


def load_scalars(module: torch.nn.Module, state_dict: Any, prefix: str, names: Iterable[str]) -> None:
    """Give the entries of one element in ``state_dict`` the shapes of ``module``'s: FSDP2 takes ``[1]``, not ``[]``."""
    for name in names:
        own, saved = getattr(module, name, None), state_dict.get(prefix + name)
        if isinstance(own, torch.Tensor) and isinstance(saved, torch.Tensor) and own.numel() == saved.numel() == 1:
            state_dict[prefix + name] = saved.reshape(own.shape)


def values_of(module: torch.nn.Module, names: Iterable[str]) -> Dict[str, Any]:
    """``module``'s parameters and buffers of these names."""
    own, learnt = module._buffers, module._parameters  # where Module's own way to them takes a microsecond each
    return {
        name: own[name] if name in own else learnt[name] if name in learnt else getattr(module, name) for name in names
    }


_MISSING = object()


class StepDescription(NamedTuple):
    """A layer's step without its tensors.

    A layer makes it anew when an attribute, method or class on which it depends is another object.

    Attributes:
        kind: the layer's class.
        attributes: names and values of the layer's attributes; ``_MISSING`` for those that it lacks.
        class_attributes: names and values of its class's attributes; None for those that it lacks.
        mem_reset: snnTorch's function of the reset signal.
        kernel: the surrogate as the kernels take it.
        plan: the equation with its options; None: snnTorch's own code is to run.
    """

    kind: type
    attributes: Tuple[Tuple[str, Any], ...]
    class_attributes: Tuple[Tuple[str, Any], ...]
    mem_reset: Any
    kernel: Optional[Kernel]
    plan: Optional[_neurons.NeuronPlan]

    def holds(self, layer: "FusedNeuron") -> bool:
        """Return True if the layer's step is still this one."""
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


class FusedNeuron(PlainStates):
    """A neuron of snnTorch whose step is an equation of ``snnipu.equations``; stands before snnTorch's class.

    Fused: every keyword but ``inhibition``, ``state_quant`` and a Python function as ``spike_grad``, on CPUs and,
    by Triton, on NVIDIA GPUs, where a single step must have two million elements. Otherwise, and where a subclass or an
    instance replaces a part of snnTorch's step, snnTorch's own code runs, and the last is said once. Public methods:
    :meth:`sequence`, :meth:`spikes`; a call is one step, as in snnTorch.
    """

    # The name of the equation, and its options; set by each neuron.
    equation: str
    options: Tuple[str, ...] = ("reset_mechanism",)
    # What snnTorch's step consists of.
    parts: Tuple[str, ...] = ("_base_state_function", *STATE_FUNCTIONS, "fire", "mem_reset")
    # Those of the stock class: what a subclass or an instance may have in their place.
    stock_parts: Dict[str, Any]
    # The reset mechanisms by which the installed snnTorch's step is the equation.
    fusable: Tuple[str, ...] = tuple(RESET_MECHANISMS)
    # Of the equation's signature.
    state_names: Tuple[str, ...]
    parameter_names: Tuple[str, ...]

    reset_mechanism_val: torch.Tensor
    _reset_mechanism: str
    # Whether snnTorch's step takes so many operations that kernels are faster at any size.
    has_long_step = False
    # The last step without its tensors, and the attributes on which it depends.
    _description: Optional[StepDescription] = None
    _keywords: Tuple[str, ...]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(cls.__dict__.get("equation"), str):
            cls.state_names, cls.parameter_names = _neurons.arguments(cls.equation)
        if "stock" in cls.__dict__:
            cls.stock_parts = {name: getattr(cls, name) for name in cls.parts if hasattr(cls, name)}
            own = (f"_{name}" if name == "reset_mechanism" else name for name in cls.options)
            cls._keywords = tuple(dict.fromkeys((*_KEYWORDS, *own, *cls.parts)))
            names = (getattr(equations, cls.equation), cls.state_names, cls.parameter_names)
            known = len(cls.stock_parts) == len(cls.parts)
            cls.fusable = installed.reset_mechanisms(cls.stock, *names, equations.OPTIONS) if known else ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _instances.hold_weakly()
        if "reset_mechanism" in kwargs:
            self._check_mechanism(kwargs["reset_mechanism"])
        super().__init__(*args, **kwargs)
        self._say_unlike()
        self._take_over()

    def _take_over(self) -> None:
        super()._take_over()
        _neurons.prepare(self.equation)  # nothing that torch.compile could trace
        self._resolved: Tuple[Any, Optional[Surrogate]] = (self.spike_grad, as_surrogate(self.spike_grad))
        # What `reset` is made from: the reset signal itself, or the membrane before the step (None: zeros).
        self._last_step: Optional[Tuple[str, Optional[torch.Tensor]]] = None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        load_scalars(self, state_dict, prefix, self._parameters_of_equation())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    # ---- what snnTorch's neurons have

    @property
    def reset_mechanism(self) -> str:
        """``"subtract"``, ``"zero"`` or ``"none"``, or another of the installed snnTorch's; may be set at any time."""
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
        self._say_unlike()

    def _check_mechanism(self, reset_mechanism: str) -> None:
        """Refuse what neither the equations nor the installed snnTorch have."""
        if reset_mechanism not in self.stock.reset_dict:
            reset_code(reset_mechanism)

    def _say_unlike(self) -> None:
        """Say that the installed snnTorch's step is none that kernels have."""
        if self._reset_mechanism not in self.fusable:
            warnings.warn(
                f"{self.stock.__name__} of snnTorch {snntorch.__version__} resets by {self._reset_mechanism!r} as no "
                "kernel does: it runs step by step, in PyTorch",
                stacklevel=4,
            )

    @property
    def reset(self) -> torch.Tensor:
        """The detached reset signal of the last step; after a fused step, computed when it is asked for."""
        if self._last_step is None:
            raise AttributeError("reset: this layer has not made a step yet")
        kind, tensor = self._last_step
        if kind == "reset" and tensor is not None:
            return tensor
        if kind == "compiled":
            raise AttributeError("reset: torch.compile ran this layer's last step, which does not keep it")
        return self.mem_reset(torch.zeros_like(self.mem) if tensor is None else tensor)

    @reset.setter
    def reset(self, reset: torch.Tensor) -> None:
        self._last_step = ("reset", reset)

    # ---- whether the kernels do what snnTorch's code does

    def _is_snntorchs_on_gpu(self, x: torch.Tensor) -> bool:
        """Whether one step with this input is to run as snnTorch's: small, and in no graph; or of a layer that was not
        moved there, whose numbers PyTorch's operations take from the CPU."""
        if not x.is_cuda:
            return False
        small = x.numel() < FEWEST_OF_A_STEP and not (self.has_long_step or is_compiling())
        return small or x.device != self.threshold.device

    def _surrogate(self) -> Optional[Surrogate]:
        """What the kernels take for ``spike_grad``, which may be exchanged at any time."""
        if step_operators.tracing() and self._calls_a_method():
            return None  # TorchDynamo compares no methods, and no kernel is one
        if self._resolved[0] is not self.spike_grad:
            self._resolved = (self.spike_grad, as_surrogate(self.spike_grad))
        return self._resolved[1]

    @step_operators.at_trace_time
    def _calls_a_method(self) -> bool:
        """Whether ``spike_grad`` is the ``apply`` of an autograd function, say."""
        return isinstance(self.spike_grad, (BuiltinMethodType, MethodType))  # of C from PyTorch 2.14 on

    def _fuses(self) -> bool:
        # An exported sequence is a loop of exported steps.
        if is_exporting() or self._reset_mechanism not in self.fusable:
            return False
        return self._has_kernel() and not (self.inhibition or self.state_quant or self._replaced())

    def _has_kernel(self) -> bool:
        """Whether there is one for the surrogate, here."""
        known = self._surrogate()
        if known is None or known.kernel is None:
            return False
        if popart.on_ipu():
            return popart.has_operator("NeuronSequence")
        return has_kernels(self.threshold.device)

    def _on_ipu(self) -> bool:
        """Whether the layer runs as a PopART operator; raises RuntimeError where it must and cannot."""
        return False

    def _replaced(self) -> List[str]:
        """Names of what a subclass or this instance has in place of parts of snnTorch's step."""
        kind, own = type(self), self.__dict__
        names = [name for name, part in self.stock_parts.items() if name in own or getattr(kind, name) is not part]
        if self.stock.mem_reset is not MEM_RESET:
            names.append("mem_reset")  # which somebody has given to all of snnTorch's neurons
        if step_operators.tracing():
            step_operators.look_up(self, self.stock_parts)
        function = getattr(self, "state_function", None)
        if function is not None and self.stock_parts and not names and self._reset_mechanism in self.fusable:
            expected = self.stock_parts[STATE_FUNCTIONS[RESET_MECHANISMS[self._reset_mechanism]]]
            # TorchDynamo of PyTorch 2.9 knows a bound method's code, not its __func__.
            if getattr(function, "__code__", None) is not expected.__code__:
                names.append("state_function")
        for name in self._parameters_of_equation():
            # A parametrization's property gives the same value in every step; any other may look at the state.
            if getattr(kind, name, None) is not None and not parametrize.is_parametrized(self, name):
                names.append(name)
        return names

    def _describe(self) -> StepDescription:
        """Return the description of the layer's step; say, once, which replaced parts make it snnTorch's."""
        description = self._description
        if description is not None and description.holds(self):
            return description
        own, kind = self.__dict__, type(self)
        surrogate = self._surrogate()
        kernel = None if surrogate is None else surrogate.kernel
        replaced = self._replaced()
        is_stock = bool(kernel is None or self.inhibition or self.state_quant or replaced)
        is_stock = is_stock or self._reset_mechanism not in self.fusable
        names = (*self.parts, *self.state_names, *self.parameter_names)
        description = own["_description"] = StepDescription(
            kind,
            tuple([(name, own.get(name, _MISSING)) for name in self._keywords]),
            tuple([(name, getattr(kind, name, None)) for name in names]),
            self.stock.mem_reset,
            kernel,
            None if is_stock else _neurons.plan(self.equation, self._options()),
        )
        if replaced:
            self._say_slow(stacklevel=6)  # past this method, forward and two functions of nn.Module
        return description

    def _replaces(self, *methods: str) -> bool:
        """Whether a subclass or this instance has own versions of our ``methods``."""
        home = self._home()
        kind, own = type(self), self.__dict__
        if kind is home and not any(name in own for name in methods):
            return False
        return any(name in own or getattr(kind, name) is not getattr(home, name) for name in methods)

    def _home(self) -> type:
        """Our class of this neuron."""
        return self.home

    def runs_fused(self) -> bool:
        """Whether :meth:`sequence` gives what a loop of calls gives, as one operator (in ``MultiStep``)."""
        return self._fuses() and not self._replaces("forward", "reset_mem")

    def resumes(self) -> bool:
        """Whether :meth:`resume` gives, part by part, what :meth:`over_time` gives at once."""
        return not self._replaces("sequence", "spikes", "over_time")

    @step_operators.at_trace_time
    def _say_slow(self, stacklevel: int = 4) -> None:
        """Say, once for each class and what it replaces, that the fused operator does not run."""
        names = self._replaced() or ["forward"]
        key = (type(self), *names)
        if key not in _SAID:
            _SAID.add(key)
            warnings.warn(
                f"{type(self).__name__} replaces {', '.join(names)} of {self.stock.__name__}: it runs step by step, in "
                "PyTorch",
                stacklevel=stacklevel,
            )

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
        """The states this layer keeps; None for those of another shape."""
        found = [getattr(self, name) for name in self._states()]
        return [s if s is not None and s.shape == step_shape and s.numel() else None for s in found]

    def _kernels(self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], **how: Any) -> Results:
        """Run the kernels."""
        if how.get("num_steps") == SINGLE_STEP:
            return step_apply(
                self.equation,
                x,
                self._into_step(x, states),
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

    def _into_step(self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]]) -> Sequence[Optional[torch.Tensor]]:
        """Return the states as the kernel of one step takes them."""
        return states

    def _step_values(self, x: torch.Tensor) -> Dict[str, Any]:
        """Return the parameters as the kernel of one step takes them."""
        return self._values()

    def _direct_step(self, description: StepDescription, x: Any, given: Sequence[Any]) -> Any:
        """Run the usual step: a float32 input, states of its shape or none; return None for any other."""
        if type(x) is not torch.Tensor or x.dtype is not torch.float32 or self._is_snntorchs_on_gpu(x):
            return None
        own, names, plan = self.__dict__, self.state_names, description.plan
        if len(given) > len(names):
            return None
        init_hidden = own["init_hidden"]
        states: List[Optional[torch.Tensor]] = []
        for place, name in enumerate(names):
            state = given[place] if place < len(given) else None
            if state is None:
                state = own.get(name)
            elif init_hidden:
                return None  # an error
            if not isinstance(state, torch.Tensor):
                return None
            if state.shape == x.shape:
                states.append(state)  # kernel_step compares the rest
            elif state.numel() <= 1 < x.numel():
                states.append(None)  # zeros of a first step
            else:
                return None
        assert plan is not None
        assert description.kernel is not None
        values = self._step_values(x)
        stepped = kernel_step(plan, description.kernel, x, self._into_step(x, states), values)
        if stepped is None:
            return None
        spk, after = stepped
        last = states[-1]
        # Module.__setattr__ does the same for a name that is an attribute already, and takes longer.
        own["_last_step"] = ("before", last.detach() if last is not None and last.requires_grad else last)
        own.update(zip(names, after))
        if init_hidden and not own["output"]:
            return spk
        return (spk, *after) if names[0] != "spk" else (spk, *after[1:])

    def _reset_hidden(self) -> None:
        """Resets this neuron as snnTorch's ``reset_hidden`` does, in a trace."""
        self.reset_mem()

    def forward(self, input_: torch.Tensor, *states: Any, **named: Any) -> Any:
        """One time step, as snnTorch's ``forward``: the same arguments, results, dtypes and errors."""
        if step_operators.enabled and self._reset_in_trace():
            self._reset_hidden()
        if is_exporting():
            return self._exported(super().forward, input_, *states, **named)
        if is_compiling():
            made = self._fused_step(input_, states, named)
            if made is None and self._replaced():
                self._say_slow(stacklevel=6)
            if made is None and self.inhibition and step_operators.tracing():
                # TorchDynamo fails at the indices of the inhibition.
                return step_operators.apart(super().forward, input_, *states, **named)
            if made is None:
                return super().forward(input_, *(states if named else self._left_to_give(states)), **named)
            return made
        description = self._describe()
        if description.plan is None:
            return super().forward(input_, *states, **named)
        made = None if named else self._direct_step(description, input_, states)
        if made is None:
            made = self._fused_step(input_, states, named)
        return super().forward(input_, *states, **named) if made is None else made

    def _fused_step(self, input_: torch.Tensor, states: Sequence[Any], named: Dict[str, Any]) -> Any:
        """The step by the kernel; None where snnTorch's code is to run."""
        if is_compiling() and not step_operators.tracing():
            return None  # the compiler fuses the step itself
        names = self._states()
        if (
            not isinstance(input_, torch.Tensor)
            or input_.dtype not in (torch.float32, torch.float64)
            or input_.dim() == 0
            or len(states) > len(names)
            or not set(named) <= set(names[len(states) :])
            or (self.init_hidden and any(s is not None for s in (*states, *named.values())))
            or self._is_snntorchs_on_gpu(input_)
            or not self._fuses()
        ):
            return None
        given = {**dict(zip(names, states)), **named}
        hidden = [getattr(self, name) if given.get(name) is None else given[name] for name in names]
        taken: List[Optional[torch.Tensor]] = []
        for name, state in zip(names, hidden):
            if not isinstance(state, torch.Tensor):
                return None
            if state.shape != input_.shape:
                state = None  # zeros, as in snnTorch
            elif state.dtype != input_.dtype and not (
                name == "spk" and state.dtype == installed.spike_dtype(input_.dtype)
            ):
                return None
            taken.append(state)
        if any(p.dim() > 0 and p.dtype != input_.dtype for p in self._values().values() if isinstance(p, torch.Tensor)):
            return None
        made, after = self._kernel_step(input_, taken)
        spk = made if made.dtype == torch.float32 else made.to(self._spike_dtype(made.dtype))
        for name, state in zip(names, after):
            setattr(self, name, spk if name == "spk" else state)
        if self.init_hidden and not self.output:
            return spk
        return (spk, *(state for name, state in zip(names, after) if name != "spk"))

    def _kernel_step(
        self, x: torch.Tensor, states: List[Optional[torch.Tensor]]
    ) -> Tuple[torch.Tensor, Sequence[Optional[torch.Tensor]]]:
        """Spikes and states of one step."""
        if step_operators.tracing():
            spk, *after = self._leaf(x, tuple(states), "hooks" if is_hooked(self) else "")
            self._last_step = ("compiled", None)
            return spk, after
        made = self._kernels(x, states, num_steps=SINGLE_STEP)
        self._last_step = ("before", None if states[-1] is None else states[-1].detach())
        return made.spk, made.states

    def _leaf(self, x: torch.Tensor, states: Tuple[Optional[torch.Tensor], ...], why_not: str) -> Sequence[Any]:
        """A step as one node of a compiled graph; ``why_not``: why it must stay a step."""
        surrogate, values = self._surrogate(), self._values()
        assert surrogate is not None
        assert surrogate.kernel is not None
        return step_operators.neuron_step(
            x,
            states,
            tuple(values.values()),
            surrogate.kernel.plain(),
            (self.equation, tuple(values), tuple(self._options().items())),
            why_not,
        )

    def _spike_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of snnTorch's spikes of a membrane of ``dtype``."""
        factor: Any = getattr(self, "graded_spikes_factor", None)
        found = installed.spike_dtype(dtype)
        return torch.promote_types(found, factor.dtype) if isinstance(factor, torch.Tensor) and factor.dim() else found

    # ---- all steps

    def sequence(self, x: torch.Tensor, *states: Optional[torch.Tensor], num_steps: Optional[int] = None) -> Any:
        """All time steps as one fused operator.

        Args:
            x: current, ``[T, B, ...]``; or ``[B, ...]``, held constant, with ``num_steps``.
            states: before the first step, ``[B, ...]``, in the order of snnTorch's step; None: zeros, or with
                ``init_hidden=True`` where the last call ended.
            num_steps: number of steps of a constant current.

        Returns:
            ``(spk, *states)``, all ``[T, B, ...]`` in x's dtype, in the order in which a step returns them.

        Raises:
            TypeError: more states than the neuron has, or any with ``init_hidden=True``; ``x`` not a floating tensor.
            ValueError: a shape or device that does not fit; the message names the argument.
        """
        names = self._states()
        if len(states) > len(names):
            raise TypeError(f"{type(self).__name__} has the states {', '.join(names)}, got {len(states)}")
        if self.init_hidden and any(state is not None for state in states):
            raise TypeError(f"{', '.join(names)} should not be passed as arguments while `init_hidden=True`")
        return self._sequence(x, [*states, *[None] * (len(names) - len(states))], num_steps, need_states=True)[0]

    def spikes(self, x: torch.Tensor, *, num_steps: Optional[int] = None) -> torch.Tensor:
        """The spikes of :meth:`sequence` alone: the states are not stored, and computed again for the gradient.

        Args:
            x: current, ``[T, B, ...]``; or ``[B, ...]``, held constant, with ``num_steps``.
            num_steps: number of steps of a constant current.

        Returns:
            Spikes ``[T, B, ...]`` in x's dtype.

        Raises:
            TypeError, ValueError: as :meth:`sequence`.
        """
        return self._sequence(x, [None] * len(self._states()), num_steps, need_states=False)[0]

    def over_time(self, x: torch.Tensor, *, num_steps: Optional[int] = None, need_mem: bool = True) -> Any:
        """What ``MultiStep`` calls: what a step returns, over time; the spikes alone where no more is asked for."""
        need_mem = need_mem and self._returns_states()
        if self._replaces("sequence"):
            return self.sequence(x, num_steps=num_steps)
        made = self._single_step(x, need_mem) if num_steps is None else None
        if made is not None:
            return made
        return self.sequence(x, num_steps=num_steps) if need_mem else self.spikes(x, num_steps=num_steps)

    def _single_step(self, x: torch.Tensor, need_mem: bool) -> Any:
        """A sequence of one step of a stream, by what a step prepares; None where it is none, or not float32."""
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
        made = self._direct_step(description, x[0], ())
        if made is None:
            return None
        names = self._states()
        spk: torch.Tensor = made[0] if isinstance(made, tuple) else made
        # The layer's own states are not handed out: a result of a sequence may be written to.
        spk = (spk.clone() if "spk" in names else spk).unsqueeze(0)
        return (
            (spk, *(getattr(self, name).clone().unsqueeze(0) for name in names if name != "spk")) if need_mem else spk
        )

    def _returns_states(self) -> bool:
        """Whether a step returns more than spikes."""
        return self.output or not self.init_hidden

    def resume(
        self, x: torch.Tensor, states: Optional[Any], *, num_steps: Optional[int] = None, need_mem: bool = True
    ) -> Tuple[Any, Any]:
        """:meth:`over_time` for a part of a sequence: its result, and the states the next part starts from.

        ``states`` None: the first part. Their gradient is exact.
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
            self._say_slow()
        if replaced or not self._fuses():
            made = self._sequence_by_steps(x, states, num_steps)
            return (made[0] if need_states else made[0][0]), made[1]
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
        kept = [s for name, s in zip(self._states(), result.states) if name != "spk"] if need_states else []
        return ((spk, *kept) if need_states else spk), result.final

    def _sequence_by_steps(
        self, x: torch.Tensor, states: Sequence[Optional[torch.Tensor]], num_steps: Optional[int]
    ) -> Tuple[Tuple[torch.Tensor, ...], List[torch.Tensor]]:
        """By calls, as a user's loop."""
        steps = x.shape[0] if num_steps is None else num_steps
        step_shape = x.shape[1:] if num_steps is None else x.shape
        names = self._states()
        for name, state in zip(names, states):
            if state is not None and state.shape != step_shape:
                raise ValueError(
                    f"{name} must have the shape of one step of x, {tuple(step_shape)}, got {tuple(state.shape)}"
                )
        now: List[Any] = [x.new_zeros(step_shape) if state is None else state for state in states]
        if steps == 0:
            return (torch.empty_like(x),) * (1 + len(names) - ("spk" in names)), now
        rows: List[Tuple[torch.Tensor, ...]] = []
        if self.init_hidden:
            for name, state in zip(names, now):
                setattr(self, name, state)
        for t in range(steps):
            out = self._call(x if num_steps is not None else x[t], now)
            row = out if isinstance(out, tuple) else (out,)
            if len(row) == 1:
                row = (row[0], *(getattr(self, name) for name in names if name != "spk"))
            rows.append(row)
            now = list(row) if "spk" in names else list(row[1:])
        return tuple(torch.stack(values).to(x.dtype) for values in zip(*rows)), now

    def _call(self, x: torch.Tensor, states: List[Any]) -> Any:
        return self.forward(x) if self.init_hidden else self.forward(x, *states)

    def __getstate__(self) -> Dict[str, Any]:
        state = super().__getstate__()
        state["_last_step"] = state["_description"] = None
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        _neurons.prepare(self.equation)
