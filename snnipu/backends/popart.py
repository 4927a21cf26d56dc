"""The PopART backend: calls of PopART operators by ``poptorch.custom_op``, and host functions that replace them.

Modules call the PopART operator of their op while a real PopTorch traces the model, or while the host runtime runs it
on the IPU model (``Options.useIpuModel``). An op without a PopART operator raises an error there, because PopTorch
would drop its surrogate gradient silently. Without the IPU model, the host runtime calls the functions at the end of
this file in place of the operators.

A real PopTorch needs the library of :func:`snnipu.backends.popart_library.library_path`.
"""

import contextlib
import ctypes
import inspect
import os
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import torch

from snnipu import _route
from snnipu._layout import SINGLE_STEP, layout
from snnipu._names import installed, is_installed
from snnipu._version import __version__
from snnipu.ops import _neurons
from snnipu.ops._maps import Geometry, PoolGeometry
from snnipu.ops._sparse_currents import currents_apply
from snnipu.ops.connections import Delayed
from snnipu.ops.delay_linear import delay_linear as delayed_currents
from snnipu.ops.dense_to_sparse import DenseToSparse
from snnipu.ops.neuron_sequence import run_kernels
from snnipu.ops.select_spikes import SelectSpikes
from snnipu.ops.sparse_conv2d import OPERATORS as conv2d_operators
from snnipu.ops.sparse_linear import OPERATORS as linear_operators
from snnipu.ops.sparse_pool2d import MODES, SparsePool2d
from snnipu.ops.sparse_to_dense import SparseToDense
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import Kernel, spike

if TYPE_CHECKING:
    from snnipu.planning.targets import Target

DOMAIN = "ai.snnipu"
VERSION = 1
_POPTORCH_INSTALLED = is_installed("poptorch")
_running = threading.local()
# Value of SNNIPU_POPART_LIBRARY (None if it is not set) -> library, so that each is searched for only once.
_loaded: Dict[Optional[str], ctypes.CDLL] = {}


class IpuModelProtocol(Protocol):
    """The methods of :class:`snnipu.ipu.model.IpuModel` that this module calls."""

    def operators(self) -> Dict[Tuple[str, str, int], Dict[str, Any]]: ...

    def machine(self) -> "Tuple[Target, int]": ...


@contextlib.contextmanager
def running_on(model: IpuModelProtocol, custom_op: Callable[..., List[torch.Tensor]]) -> Iterator[None]:
    """Let modules call the PopART operators of ``model``, by ``custom_op`` of the host runtime, inside the block."""
    before = getattr(_running, "model", None), getattr(_running, "custom_op", None)
    _running.model, _running.custom_op = model, custom_op
    try:
        yield
    finally:
        _running.model, _running.custom_op = before


def on_ipu_model() -> bool:
    """Return True if modules call the operators of an IPU model in this thread."""
    return getattr(_running, "model", None) is not None


def on_real_ipu() -> bool:
    """Return True if a real PopTorch traces modules."""
    return _tracing_poptorch() is not None


def on_ipu() -> bool:
    """Return True if modules call PopART operators: on an IPU model, or while a real PopTorch traces them."""
    return getattr(_running, "model", None) is not None or (_POPTORCH_INSTALLED and _tracing_poptorch() is not None)


def is_traced() -> bool:
    """Return True inside a model's ``forward`` that PopTorch runs, the real one or snnipu's host runtime."""
    runtimes = [sys.modules.get(name) for name in ("poptorch", "snnipu.poptorch")]
    return any(module is not None and bool(module.isRunningOnIpu()) for module in runtimes)


def _tracing_poptorch() -> Optional[ModuleType]:
    """Return the module of a real PopTorch while it traces, else None."""
    if not _POPTORCH_INSTALLED:
        return None
    poptorch = sys.modules.get("poptorch")
    traces = poptorch is not None and poptorch.isRunningOnIpu() and not hasattr(poptorch, "is_host_runtime")
    return poptorch if traces else None


def _machine() -> "Tuple[Target, int]":
    """Return the target and the number of IPUs to plan for. They come from the IPU model; without it, one Mk2."""
    from snnipu.planning.targets import TARGETS  # imported here, because planning takes time to load

    model: Optional[IpuModelProtocol] = getattr(_running, "model", None)
    return (TARGETS["mk2"], 1) if model is None else model.machine()


def _load_operators(op: str) -> None:
    override = os.environ.get("SNNIPU_POPART_LIBRARY")
    if override in _loaded:
        return
    from snnipu.backends import popart_library  # needed only for a real PopTorch

    path, searched, command = popart_library.library_path(), popart_library.searched(), popart_library.COMMAND
    if not path.is_file():
        raise RuntimeError(
            f"{op} cannot run on an IPU: there are no PopART operators of snnipu in {searched}, and without "
            "them the gradient of the spikes would be lost silently. With the Poplar SDK enabled, "
            f"`{command}` builds them; SNNIPU_POPART_LIBRARY names a library elsewhere. Or run the model without "
            "PopTorch, or on a machine without it, where snnipu.poptorch runs the same script on the host."
        )
    try:
        library = ctypes.CDLL(str(path))
        library.snnipu_popart_version.restype = ctypes.c_char_p
        version = library.snnipu_popart_version().decode()
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"{op} cannot run on an IPU: {path} cannot be loaded: {error}") from None
    if version != __version__:
        raise RuntimeError(
            f"{op} cannot run on an IPU: {path} is of version {version}, the package of {__version__}: build it again, "
            f"with `{command}`"
        )
    _loaded[override] = library


def uses_operator(op: str, operator: Optional[str] = None) -> bool:
    """Return True if ``op`` must call the PopART operator of this name, by :func:`call`.

    Args:
        op: name of the op, for error messages.
        operator: name of its operator in the domain ``ai.snnipu``; None if it has none.

    Raises:
        RuntimeError: it must, but there is no such operator.
    """
    model = getattr(_running, "model", None)
    if model is not None:
        if operator is None or (DOMAIN, operator, VERSION) not in model.operators():
            raise RuntimeError(
                f"{op} cannot run on the IPU model: there are no PopART operators of snnipu for it yet. Without "
                "Options.useIpuModel and POPTORCH_IPU_MODEL it runs on the host."
            )
        return True
    if _tracing_poptorch() is None:
        return False
    if operator is None:
        raise RuntimeError(
            f"{op} cannot run on an IPU yet: there are no PopART operators of snnipu for it, and without them the "
            "gradient of the spikes would be lost silently. Run the model without PopTorch, or on a machine without "
            "it, where snnipu.poptorch runs the same script on the host."
        )
    _load_operators(op)
    return True


def call(
    operator: str, inputs: Sequence[torch.Tensor], examples: Sequence[torch.Tensor], attributes: Dict[str, Any]
) -> List[torch.Tensor]:
    """Call an operator of this package by ``poptorch.custom_op``, and return its outputs.

    Args:
        operator: name of the operator.
        inputs: its inputs.
        examples: tensors with the shapes and dtypes of its outputs.
        attributes: its attributes.
    """
    poptorch = _tracing_poptorch()
    custom_op = _running.custom_op if poptorch is None else poptorch.custom_op
    outputs: List[torch.Tensor] = custom_op(
        list(inputs), operator, DOMAIN, VERSION, example_outputs=list(examples), attributes=attributes
    )
    return outputs


_NOT_NATIVE = (
    "spike_grad cannot run on an IPU: an operator takes the surrogates of snnipu.surrogate whose gradient is native, "
    "not a Python function, and not SSO or custom_surrogate"
)


def _surrogate_attributes(kernel: Optional[Kernel]) -> Dict[str, Any]:
    """Return the attributes of a surrogate. Raise RuntimeError if it is not native: operators cannot call Python."""
    if kernel is None:
        raise RuntimeError(_NOT_NATIVE)
    return {"surrogate": kernel.id, "surrogate_a": float(kernel.a), "surrogate_b": float(kernel.b)}


def call_surrogate_spike(u: torch.Tensor, kernel: Optional[Kernel]) -> torch.Tensor:
    """Call ``SurrogateSpike``, and return the spikes of ``u``, with the dtype of snnTorch's spikes."""
    attributes = _surrogate_attributes(kernel)
    spikes = call("SurrogateSpike", [u], [torch.empty_like(u)], attributes)[0]
    return spikes.to(installed.spike_dtype(u.dtype))


def call_neuron_sequence(
    neuron: str,
    variant: int,
    read: int,
    x: torch.Tensor,
    initial: Sequence[Optional[torch.Tensor]],
    parameters: Sequence[torch.Tensor],
    num_steps: Optional[int],
    store: Sequence[bool],
    output: Optional[int],
    kernel: Optional[Kernel],
) -> Tuple[torch.Tensor, List[Optional[torch.Tensor]]]:
    """Call ``NeuronSequence``.

    Args:
        neuron: name of the equation.
        variant: number of the choice of its options.
        read: bits of the states that the backward pass reads.
        x: input current, ``[T, B, ...]``; ``[B, ...]`` with ``num_steps``.
        initial: states before the first step; None for zeros.
        parameters: parameters of the kernels.
        num_steps: number of steps if x is constant over time; None if x is ``[T, B, ...]``.
        store: for each state, True if the caller needs it after each step.
        output: index of the state that is the output; None if there is none.
        kernel: the surrogate.

    Returns:
        Spikes, and the states after each step (None for those that are not stored), with the shapes of
        :func:`snnipu._layout.layout`.

    Raises:
        RuntimeError: the surrogate is not native.
    """
    surrogate = _surrogate_attributes(kernel)
    steps, step_shape, shape = layout(x, num_steps)
    if num_steps == SINGLE_STEP:
        x = x.unsqueeze(0)
    elif num_steps is not None:
        x = x.unsqueeze(0).expand(steps, *step_shape)
    before = [x.new_zeros(step_shape, dtype=parameters[0].dtype) if state is None else state for state in initial]
    output_bit = 0 if output is None else 1 << output
    states = sum(1 << place for place, stored in enumerate(store) if stored) & ~output_bit
    missing = read & ~states & ~output_bit
    if missing and torch.is_grad_enabled():
        from snnipu.planning.search import stores_states

        if stores_states(bin(missing).count("1") * x.numel() * min(x.element_size(), 4), *_machine()):
            states |= missing
    attributes = {"neuron": neuron, "variant": variant, "states": states, **surrogate}
    example = torch.empty_like(x)
    outputs = call("NeuronSequence", [x, *before, *parameters], [example] * (1 + bin(states).count("1")), attributes)
    spk, *sequences = [out.reshape(shape) for out in outputs]
    remaining = iter(sequences)
    after = [next(remaining) if states >> place & 1 else None for place in range(len(store))]
    return spk, [state if stored else None for state, stored in zip(after, store)]


# Between operators ids and counts are floats, which are exact up to 2^24. With integer outputs PopTorch stops the
# gradient at them, and PopART then drops the gradient of the whole operator.


def _weight(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight as the operators take it: in float16, which halves its memory, or else in float32.

    The operators add in float32 in both cases.
    """
    return weight if weight.dtype == torch.float16 else weight.float()


def _slots(spikes: SparseSpikes) -> List[torch.Tensor]:
    """Return ids, values and counts as the operators take them."""
    return [spikes.ids.float(), spikes.values.float(), spikes.counts.float()]


def _call_for_slots(operator: str, inputs: Sequence[torch.Tensor], attributes: Dict[str, Any]) -> SparseSpikes:
    """Call an operator that makes spikes of its first input, ``[T, B, N]``. Their ids and counts are floats."""
    steps, batch, neurons = inputs[0].shape
    slots = inputs[0].new_empty((steps, batch, attributes["capacity"]), dtype=torch.float32)
    counts = slots.new_empty((steps, batch, 2))
    ids, values, counts, dropped = call(operator, inputs, [slots, slots, counts, counts], attributes)
    return SparseSpikes._trusted(ids, values, counts, neurons, dropped)


def static_slots(max_spikes: Optional[int], neurons: int) -> int:
    """Return the number of slots in a compiled graph, where it is fixed: ``max_spikes``, or one for each neuron.

    Args:
        max_spikes: most slots; None for as many as needed.
        neurons: number of neurons.

    Raises:
        ValueError: ``max_spikes`` is 0, because an IPU has no empty tensors.
    """
    if max_spikes == 0:
        raise ValueError("max_spikes must be at least 1 on an IPU, got 0")
    return neurons if max_spikes is None else min(max_spikes, neurons)


def call_dense_to_sparse(x: torch.Tensor, max_spikes: Optional[int], rotate: bool) -> SparseSpikes:
    """Call ``DenseToSparse`` for ``x [T, B, N]``."""
    attributes = {"capacity": static_slots(max_spikes, x.shape[2]), "rotate": int(rotate)}
    return _call_for_slots("DenseToSparse", [x.float()], attributes)


def call_select_spikes(
    mem: torch.Tensor,
    threshold: torch.Tensor,
    grad_threshold: Optional[float],
    max_spikes: Optional[int],
    rotate: bool,
    kernel: Optional[Kernel],
) -> SparseSpikes:
    """Call ``SelectSpikes`` for ``mem [T, B, N]``. Raise RuntimeError for a surrogate that is not native."""
    attributes = {
        "capacity": static_slots(max_spikes, mem.shape[2]),
        "rotate": int(rotate),
        "has_grad_threshold": int(grad_threshold is not None),
        "grad_threshold": 0.0 if grad_threshold is None else grad_threshold,
        **_surrogate_attributes(kernel),
    }
    return _call_for_slots("SelectSpikes", [mem.float(), threshold.float().reshape(-1)], attributes)


def call_sparse_to_dense(spikes: SparseSpikes) -> torch.Tensor:
    """Call ``SparseToDense``, and return ``[T, B, N]``."""
    example = spikes.values.new_empty(spikes.shape, dtype=torch.float32)
    return call("SparseToDense", _slots(spikes), [example], {"num_neurons": spikes.num_neurons})[0]


def call_sparse_linear(spikes: SparseSpikes, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    """Call ``SparseLinear``, and return ``[T, B, out]``."""
    steps, batch, _ = spikes.shape
    return _call_linear("SparseLinear", spikes, weight, None, bias, steps * batch, spikes.capacity)


def call_delay_linear(spikes: SparseSpikes, connected: Delayed, bias: Optional[torch.Tensor]) -> torch.Tensor:
    """Call ``DelayLinear``, and return ``[T, B, out]``."""
    steps, batch, _ = spikes.shape
    return _call_linear("DelayLinear", spikes, connected.weight, connected.lags, bias, batch, steps * spikes.capacity)


def _call_linear(
    operator: str,
    spikes: SparseSpikes,
    weight: torch.Tensor,
    lags: Optional[torch.Tensor],
    bias: Optional[torch.Tensor],
    rows: int,
    slots: int,
) -> torch.Tensor:
    from snnipu.planning.linear import plan_linear

    weight = _weight(weight)
    if lags is None:
        (neurons, inputs), taps = weight.shape, 0
    else:
        inputs, neurons, taps = weight.shape
    # Plan for one row if there are none: the operator then raises its error for an empty input.
    plan = plan_linear(neurons, inputs, max(1, rows), slots, weight.element_size(), *_machine(), taps)
    tensors = [*_slots(spikes), weight, *(tensor.float() for tensor in (lags, bias) if tensor is not None)]
    example = tensors[1].new_empty((*spikes.shape[:2], neurons))
    return call(operator, tensors, [example], {"unit_values": 0, "plan": list(plan)})[0]


def call_sparse_conv2d(
    spikes: SparseSpikes, weight: torch.Tensor, bias: Optional[torch.Tensor], geometry: Geometry
) -> torch.Tensor:
    """Call ``SparseConv2d``, and return ``[T, B, neurons of the output]``."""
    from snnipu.planning.convolution import plan_convolution

    slots, weight = _slots(spikes), _weight(weight)
    steps, batch = spikes.shape[:2]
    dtype = "float16" if weight.dtype == torch.float16 else "float32"
    rows = max(1, steps * batch)  # the operator raises the error for an empty input
    plan = plan_convolution(geometry, spikes.capacity, rows, dtype, torch.is_grad_enabled(), *_machine())
    attributes = {
        "geometry": list(geometry),
        "plan": list(plan.attribute),
        # It has not been tested if a tracing PopTorch marks the outputs of custom operators as requiring gradients. So
        # the gradient is always computed there: slower, but never missing.
        "input_gradient": int(spikes.requires_grad or on_real_ipu()),
    }
    example = slots[1].new_empty((steps, batch, geometry.neurons))
    return call("SparseConv2d", [*slots, weight, *([] if bias is None else [bias.float()])], [example], attributes)[0]


def pool_slots(geometry: PoolGeometry, slots: int) -> int:
    """Return the slots of a pool's output: the most windows that ``slots`` inputs can reach. None is dropped."""
    windows = 1
    for size, kernel, stride in zip(geometry[3:5], geometry[5:7], geometry[7:9]):
        windows *= min(size, -(-kernel // stride))
    return min(geometry.neurons, slots * windows)


def call_sparse_pool2d(spikes: SparseSpikes, geometry: PoolGeometry, mode: int) -> SparseSpikes:
    """Call ``SparsePool2d``."""
    capacity = pool_slots(geometry, spikes.capacity)
    slots = _slots(spikes)
    example = slots[1].new_empty((*spikes.shape[:2], capacity))
    attributes = {"geometry": list(geometry), "mode": mode, "capacity": capacity}
    examples = [example, example, slots[2], example]
    ids, values, counts, _ = call("SparsePool2d", slots, examples, attributes)
    return SparseSpikes._trusted(ids, values, counts, geometry.neurons, None)


def has_operator(operator: str) -> bool:
    """Return True if the IPU model has this operator. The library for a real PopTorch has all of them."""
    model = getattr(_running, "model", None)
    return model is None or (DOMAIN, operator, VERSION) in model.operators()


class NetworkLayer(NamedTuple):
    """The tensors and options of a layer of ``SparseNetwork``; beta and threshold have one element or ``[neurons]``."""

    weight: torch.Tensor
    beta: torch.Tensor
    threshold: torch.Tensor
    bias: Optional[torch.Tensor]
    slots: int
    grad_threshold: Optional[float]
    input_scale: float
    recurrent_weight: Optional[torch.Tensor] = None


def call_sparse_layer(
    spikes: SparseSpikes,
    weight: torch.Tensor,
    beta: torch.Tensor,
    threshold: torch.Tensor,
    bias: Optional[torch.Tensor],
    max_spikes: Optional[int],
    grad_threshold: Optional[float],
    input_scale: float,
    recurrent_weight: Optional[torch.Tensor],
    reset: int,
    rotate: bool,
    kernel: Optional[Kernel],
) -> SparseSpikes:
    """Call ``SparseNetwork`` with a single layer."""
    slots = static_slots(max_spikes, weight.shape[0])
    layer = NetworkLayer(weight, beta, threshold, bias, slots, grad_threshold, input_scale, recurrent_weight)
    return call_sparse_network(spikes, [layer], reset, rotate, kernel)[0]


def call_sparse_network(
    spikes: SparseSpikes,
    layers: Sequence[NetworkLayer],
    reset: int,
    rotate: bool,
    kernel: Optional[Kernel],
    plan: Optional[Sequence[int]] = None,
) -> List[SparseSpikes]:
    """Call ``SparseNetwork``, which runs all layers as a pipeline: each layer is a step behind the one before.

    Args:
        spikes: the input.
        layers: the layers.
        reset: number of the reset mechanism.
        rotate: True to take turns if a step has more spikes than slots.
        kernel: the surrogate.
        plan: the placement of the layers on tiles, from :meth:`snnipu.ipu.Plan.attribute`. None: plan it here.

    Returns:
        The spikes of each layer.

    Raises:
        RuntimeError: the surrogate is not native.
    """
    steps, batch, _ = spikes.shape
    inputs, examples = _slots(spikes), []
    for layer in layers:
        parameters = [
            layer.beta.reshape(-1),
            layer.threshold.reshape(-1),
            *([] if layer.bias is None else [layer.bias]),
        ]
        weight = _weight(layer.weight)
        inputs += [weight, *(parameter.float() for parameter in parameters)]
        if layer.recurrent_weight is not None:
            inputs.append(layer.recurrent_weight.to(weight.dtype))
        ids = inputs[0].new_empty((steps, batch, layer.slots))
        counts = ids.new_empty((steps, batch, 2))
        values = ids.to(inputs[1].dtype)
        examples += [ids, values, counts, counts, ids.new_empty((steps, batch, layer.weight.shape[0]))]
    if plan is None:
        from snnipu.planning.search import operator_plan

        dtype = "float16" if all(layer.weight.dtype == torch.float16 for layer in layers) else "float32"
        plan = operator_plan(
            (spikes.num_neurons, *(layer.weight.shape[0] for layer in layers)),
            (min(spikes.capacity, spikes.num_neurons), *(layer.slots for layer in layers)),
            tuple(layer.recurrent_weight is not None for layer in layers),
            batch,
            steps,
            dtype,
            torch.is_grad_enabled(),
            *_machine(),
        )
    attributes = {
        "slots": [layer.slots for layer in layers],
        "has_grad_threshold": [int(layer.grad_threshold is not None) for layer in layers],
        "grad_threshold": [0.0 if layer.grad_threshold is None else layer.grad_threshold for layer in layers],
        "input_scale": [float(layer.input_scale) for layer in layers],
        "recurrent": [int(layer.recurrent_weight is not None) for layer in layers],
        "reset": reset,
        "rotate": int(rotate),
        "has_bias": int(layers[0].bias is not None),
        "unit_values": 0,
        "input_gradient": int(spikes.requires_grad),
        **_surrogate_attributes(kernel),
        "plan": list(plan),
    }
    outputs = call("SparseNetwork", inputs, examples, attributes)
    layer_spikes = []
    for index, layer in enumerate(layers):
        ids, values, counts, dropped, _ = outputs[5 * index : 5 * index + 5]
        layer_spikes.append(SparseSpikes._trusted(ids, values, counts, layer.weight.shape[0], dropped))
    return layer_spikes


# ---- functions that the host runtime calls in place of the operators, without the IPU model

_SURROGATE = ("surrogate", "surrogate_a", "surrogate_b")


def _expect(operator: str, inputs: Sequence[Any], names: Sequence[str], attributes: Dict[str, Any], *keys: str) -> None:
    """Raise ValueError unless there is an input for each of ``names`` and the attributes are ``keys``."""
    if len(inputs) != len(names):
        raise ValueError(f"{operator} takes {len(names)} inputs ({', '.join(names)}), got {len(inputs)}")
    if set(attributes) != set(keys):
        raise ValueError(f"{operator} takes the attributes {sorted(keys)}, got {sorted(attributes)}")


def _kernel(attributes: Dict[str, Any]) -> Kernel:
    return Kernel(*(attributes[key] for key in _SURROGATE))


def _as_floats(slots: Sequence[torch.Tensor], dtype: torch.dtype) -> List[torch.Tensor]:
    """Return ids, values, counts and dropped as floats, values in ``dtype``. float16 is too coarse for ids."""
    ids, values, counts, dropped = slots
    return [ids.to(values.dtype), values.to(dtype), counts.to(values.dtype), dropped.to(values.dtype)]


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a float16 tensor as float32, in which the host's kernels compute; others unchanged."""
    return tensor.float() if tensor.dtype == torch.float16 else tensor


_Outputs = Sequence[torch.Tensor]
_HostOperator = Callable[[List[torch.Tensor], Dict[str, Any]], _Outputs]
HOST_OPERATORS: Dict[Tuple[str, str, int], _HostOperator] = {}


def _host_operator(function: Callable[..., _Outputs]) -> Callable[..., _Outputs]:
    """Decorator: register a function in place of the operator of this name (``SelectSpikes`` for ``select_spikes``).

    Positional parameters are the operator's inputs; the last one is optional if it has a default. Keyword-only
    parameters are its attributes.
    """
    operator = "".join(part.capitalize() for part in function.__name__.split("_"))
    inputs: List[str] = []
    attributes: List[str] = []
    required = 0
    for parameter in inspect.signature(function).parameters.values():
        names = attributes if parameter.kind is parameter.KEYWORD_ONLY else inputs
        names.append(parameter.name)
        required += names is inputs and parameter.default is parameter.empty

    def run(tensors: List[torch.Tensor], values: Dict[str, Any]) -> _Outputs:
        names = inputs if len(tensors) == len(inputs) else inputs[:required]
        _expect(operator, tensors, names, values, *attributes)
        return function(*tensors, **values)

    HOST_OPERATORS[operator, DOMAIN, VERSION] = run
    return function


@_host_operator
def surrogate_spike(u: torch.Tensor, *, surrogate: int, surrogate_a: float, surrogate_b: float) -> _Outputs:
    """Return the spikes of u, with its shape and dtype."""
    return [spike(u, Kernel(surrogate, surrogate_a, surrogate_b)).to(u.dtype)]


@_host_operator
def select_spikes(
    mem: torch.Tensor,
    threshold: torch.Tensor,
    *,
    capacity: int,
    rotate: int,
    has_grad_threshold: int,
    grad_threshold: float,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
) -> _Outputs:
    """Return ids and values ``[T, B, capacity]``, counts and dropped ``[T, B, 2]``, all as floats.

    ``mem [T, B, N]`` may be float16; values have its dtype. ``threshold`` has one element or is ``[N]``.
    """
    second = grad_threshold if has_grad_threshold else None
    kernel = Kernel(surrogate, surrogate_a, surrogate_b)
    slots = SelectSpikes.apply(_widen(mem), threshold, second, capacity, bool(rotate), kernel, None)
    return _as_floats(slots, mem.dtype)


@_host_operator
def dense_to_sparse(x: torch.Tensor, *, capacity: int, rotate: int) -> _Outputs:
    """Return the same tensors as :func:`select_spikes`, for the nonzero elements of ``x [T, B, N]``."""
    return _as_floats(DenseToSparse.apply(_widen(x), capacity, bool(rotate)), x.dtype)


@_host_operator
def sparse_to_dense(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, *, num_neurons: int) -> _Outputs:
    """Return ``[T, B, num_neurons]`` with the dtype of values."""
    return [SparseToDense.apply(_widen(values), ids.int(), counts.int(), num_neurons).to(values.dtype)]


@_host_operator
def sparse_linear(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    unit_values: int,
    plan: Sequence[int],
) -> _Outputs:
    """Return ``[T, B, out]`` with the dtype of values.

    ids and counts are floats; ``weight [out, in]``, ``bias [out]``. Either of values and weight may be float16.
    ``unit_values`` is 1 if all values are 1; ``plan`` does not change the result.
    """
    slots = (ids.int(), _widen(values), counts.int())
    return [currents_apply(linear_operators, *slots, _widen(weight), bias).to(values.dtype)]


@_host_operator
def delay_linear(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    lags: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    unit_values: int,
    plan: Sequence[int],
) -> _Outputs:
    """Return the result of :func:`sparse_linear` with delays.

    ``weight [in, out, taps]``; ``lags [in, out]`` are the steps, whole numbers, until the first tap of a synapse
    arrives. Each further tap arrives one step later.
    """
    spikes = SparseSpikes._trusted(ids.int(), _widen(values), counts.int(), weight.shape[0])
    # The span: the last tap of any synapse, plus one.
    connected = Delayed(_widen(weight), lags.int(), int(lags.max()) + weight.shape[2])
    return [delayed_currents(spikes, connected, bias).to(values.dtype)]


@_host_operator
def sparse_conv2d(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    geometry: List[int],
    plan: Sequence[int],
    input_gradient: int,
) -> _Outputs:
    """Return ``[T, B, neurons of the output]`` with the dtype of values.

    The inputs are those of :func:`sparse_linear`, with ``weight [out, in / groups, kh, kw]``. ``geometry`` has the
    numbers of :class:`snnipu.ops._maps.Geometry`. ``plan`` and ``input_gradient`` do not change the result.
    """
    slots = (ids.int(), _widen(values), counts.int())
    return [currents_apply(conv2d_operators, *slots, _widen(weight), bias, geometry).to(values.dtype)]


@_host_operator
def sparse_pool2d(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    *,
    geometry: List[int],
    mode: int,
    capacity: int,
) -> _Outputs:
    """Return ids and values ``[T, B, capacity]``, counts ``[T, B, 2]``, and source ``[T, B, capacity]``.

    Values have the dtype of the input; source is zeros. ``geometry`` has the numbers of
    :class:`snnipu.ops._maps.PoolGeometry`. ``capacity`` is large enough for all windows that are reached.
    """
    if mode not in MODES.values():
        raise ValueError(f"SparsePool2d: mode must be from 0 to 2, got {mode}")
    ids_out, values_out, counts_out, _ = SparsePool2d.apply(
        _widen(values), ids.int(), counts.int(), geometry, mode, capacity
    )
    floats = values_out.dtype
    slots = [ids_out.to(floats), values_out.to(values.dtype), counts_out.to(floats)]
    return [*slots, torch.zeros_like(values_out).detach()]


def neuron_sequence(inputs: List[torch.Tensor], attributes: Dict[str, Any]) -> Sequence[torch.Tensor]:
    """Run ``ai.snnipu.NeuronSequence``, version 1, on the host.

    Args:
        inputs: x ``[T, B, ...]``, the states before the first step ``[B, ...]``, and the parameters of the kernels, in
            the order of the generated struct. A parameter has one value, or one for each element of the trailing
            dimensions, flattened.
        attributes: ``neuron``, the name of an equation of ``snnipu.equations``; ``variant``, the number of a choice of
            its options; ``states``, bits of the states to return; and those of the surrogate.

    Returns:
        spk and the chosen states after each step, ``[T, B, ...]``. They are differentiable in every input.
    """
    if set(attributes) != {"neuron", "variant", "states", *_SURROGATE}:
        keys = sorted(["neuron", "variant", "states", *_SURROGATE])
        raise ValueError(f"NeuronSequence takes the attributes {keys}, got {sorted(attributes)}")
    if attributes["neuron"] not in _neurons.BUILT:
        raise ValueError(
            f"NeuronSequence: neuron must be one of {', '.join(_neurons.BUILT)} on a host, got {attributes['neuron']!r}"
        )
    neuron = _neurons.find(attributes["neuron"])
    _expect("NeuronSequence", inputs, ("x", *neuron.states, *neuron.parameters), attributes, *attributes)
    count = len(neuron.states)
    store = [bool(attributes["states"] >> place & 1) for place in range(count)]
    x, initial, parameters = inputs[0], inputs[1 : 1 + count], inputs[1 + count :]
    results = run_kernels(neuron.name, attributes["variant"], x, initial, parameters, None, _kernel(attributes), store)
    return [results.spk, *(state for state in results.states if state is not None)]


_route.register(sys.modules[__name__])
