"""The PopART backend: which operators go through ``poptorch.custom_op``, and what stands for them without PopART.

While a real PopTorch traces a model, or the host runtime runs one on the IPU model (``Options.useIpuModel``), a module
of this package calls the PopART operator of its op. An op without such an operator is refused there: as plain PyTorch
it would lose the surrogate gradient without a word.

The operators' library for a real PopTorch is the one that :func:`snnipu.backends.popart_library.library_path` finds.
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
# By SNNIPU_POPART_LIBRARY; None where it is not set, and the library is looked for only once.
_loaded: Dict[Optional[str], ctypes.CDLL] = {}


class IpuModel(Protocol):
    """What is asked of a :class:`snnipu.ipu.model.IpuModel`."""

    def operators(self) -> Dict[Tuple[str, str, int], Dict[str, Any]]: ...

    def machine(self) -> "Tuple[Target, int]": ...


@contextlib.contextmanager
def running_on(model: IpuModel, custom_op: Callable[..., List[torch.Tensor]]) -> Iterator[None]:
    """The context in which modules call the operators of ``model``, by ``custom_op`` of the host runtime."""
    before = getattr(_running, "model", None), getattr(_running, "custom_op", None)
    _running.model, _running.custom_op = model, custom_op
    try:
        yield
    finally:
        _running.model, _running.custom_op = before


def on_ipu_model() -> bool:
    """Whether modules call the operators of an IPU model here."""
    return getattr(_running, "model", None) is not None


def on_real_ipu() -> bool:
    """Whether a real PopTorch traces modules here."""
    return _tracing_poptorch() is not None


def on_ipu() -> bool:
    """Whether either is the case."""
    return getattr(_running, "model", None) is not None or (_POPTORCH_INSTALLED and _tracing_poptorch() is not None)


def is_traced() -> bool:
    """Whether PopTorch runs a model's ``forward`` here, the real one or the host runtime, which stands for it."""
    found = [sys.modules.get(name) for name in ("poptorch", "snnipu.poptorch")]
    return any(module is not None and bool(module.isRunningOnIpu()) for module in found)


def _tracing_poptorch() -> Optional[ModuleType]:
    """The real PopTorch while it traces, else None."""
    if not _POPTORCH_INSTALLED:
        return None
    poptorch = sys.modules.get("poptorch")
    traces = poptorch is not None and poptorch.isRunningOnIpu() and not hasattr(poptorch, "is_host_runtime")
    return poptorch if traces else None


def _machine() -> "Tuple[Target, int]":
    """What plans are made for: the target and IPUs of the model, else one Mk2. Planning is loaded at the first plan."""
    from snnipu.planning.targets import TARGETS

    model: Optional[IpuModel] = getattr(_running, "model", None)
    return (TARGETS["mk2"], 1) if model is None else model.machine()


def _load_operators(op: str) -> None:
    override = os.environ.get("SNNIPU_POPART_LIBRARY")
    if override in _loaded:
        return
    from snnipu.backends import popart_library  # loaded where a real PopTorch traces

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
        found = library.snnipu_popart_version().decode()
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"{op} cannot run on an IPU: {path} cannot be loaded: {error}") from None
    if found != __version__:
        raise RuntimeError(
            f"{op} cannot run on an IPU: {path} is of version {found}, the package of {__version__}: build it again, "
            f"with `{command}`"
        )
    _loaded[override] = library


def uses_operator(op: str, operator: Optional[str] = None) -> bool:
    """Whether ``op`` must go through the PopART operator of this name, by :func:`call`.

    Args:
        op: for messages.
        operator: of domain ``ai.snnipu``; None: there is none.

    Raises:
        RuntimeError: it must, and there is no such operator.
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
    """``poptorch.custom_op`` of an operator of this package; ``examples`` have the shapes and types of its outputs."""
    poptorch = _tracing_poptorch()
    custom_op = _running.custom_op if poptorch is None else poptorch.custom_op
    made: List[torch.Tensor] = custom_op(
        list(inputs), operator, DOMAIN, VERSION, example_outputs=list(examples), attributes=attributes
    )
    return made


_NOT_NATIVE = (
    "spike_grad cannot run on an IPU: an operator takes the surrogates of snnipu.surrogate whose gradient is native, "
    "not a Python function, and not SSO or custom_surrogate"
)


def _surrogate_attributes(kernel: Optional[Kernel]) -> Dict[str, Any]:
    """Raises RuntimeError for a surrogate that is not native: an operator cannot call Python."""
    if kernel is None:
        raise RuntimeError(_NOT_NATIVE)
    return {"surrogate": kernel.id, "surrogate_a": float(kernel.a), "surrogate_b": float(kernel.b)}


def call_surrogate_spike(u: torch.Tensor, kernel: Optional[Kernel]) -> torch.Tensor:
    """``SurrogateSpike``: spikes of ``u``, of its shape and snnTorch's dtype."""
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
    """``NeuronSequence``: spikes and the states that are stored, shaped as :func:`snnipu._layout.layout` tells.

    ``read``: the states that the backward pass reads, by bits; ``output``: the state that is the output. Raises
    RuntimeError for a surrogate that is not native.
    """
    surrogate = _surrogate_attributes(kernel)
    steps, step_shape, shape = layout(x, num_steps)
    if num_steps == SINGLE_STEP:
        x = x.unsqueeze(0)
    elif num_steps is not None:
        x = x.unsqueeze(0).expand(steps, *step_shape)
    made_of = [x.new_zeros(step_shape, dtype=parameters[0].dtype) if state is None else state for state in initial]
    own = 0 if output is None else 1 << output
    states = sum(1 << place for place, stored in enumerate(store) if stored) & ~own
    missing = read & ~states & ~own
    if missing and torch.is_grad_enabled():
        from snnipu.planning.search import keeps_states

        if keeps_states(bin(missing).count("1") * x.numel() * min(x.element_size(), 4), *_machine()):
            states |= missing
    attributes = {"neuron": neuron, "variant": variant, "states": states, **surrogate}
    example = torch.empty_like(x)
    made = call("NeuronSequence", [x, *made_of, *parameters], [example] * (1 + bin(states).count("1")), attributes)
    spk, *kept = [out.reshape(shape) for out in made]
    rest = iter(kept)
    found = [next(rest) if states >> place & 1 else None for place in range(len(store))]
    return spk, [state if stored else None for state, stored in zip(found, store)]


# Between operators ids and counts are floats, exact up to 2^24: PopTorch stops the gradient at an integer output, and
# PopART then drops that of the whole operator.


def _weight(weight: torch.Tensor) -> torch.Tensor:
    """As the operators take it: in float16 it stays, and takes half of the memory; sums are in float32 anyway."""
    return weight if weight.dtype == torch.float16 else weight.float()


def _slots(spikes: SparseSpikes) -> List[torch.Tensor]:
    """ids, values and counts as the operators take them."""
    return [spikes.ids.float(), spikes.values.float(), spikes.counts.float()]


def _made_slots(operator: str, inputs: Sequence[torch.Tensor], attributes: Dict[str, Any]) -> SparseSpikes:
    """The spikes that an operator makes of its first input, ``[T, B, N]``; ids and counts are floats."""
    steps, batch, neurons = inputs[0].shape
    slots = inputs[0].new_empty((steps, batch, attributes["capacity"]), dtype=torch.float32)
    counts = slots.new_empty((steps, batch, 2))
    ids, values, found, dropped = call(operator, inputs, [slots, slots, counts, counts], attributes)
    return SparseSpikes._trusted(ids, values, found, neurons, dropped)


def static_slots(max_spikes: Optional[int], neurons: int) -> int:
    """Slots of a compiled graph: without a cap as many as neurons, as nobody knows how many are needed.

    Raises ValueError for none: an IPU has no tensors without elements.
    """
    if max_spikes == 0:
        raise ValueError("max_spikes must be at least 1 on an IPU, got 0")
    return neurons if max_spikes is None else min(max_spikes, neurons)


def call_dense_to_sparse(x: torch.Tensor, max_spikes: Optional[int], rotate: bool) -> SparseSpikes:
    """``DenseToSparse``."""
    attributes = {"capacity": static_slots(max_spikes, x.shape[2]), "rotate": int(rotate)}
    return _made_slots("DenseToSparse", [x.float()], attributes)


def call_select_spikes(
    mem: torch.Tensor,
    threshold: torch.Tensor,
    grad_threshold: Optional[float],
    max_spikes: Optional[int],
    rotate: bool,
    kernel: Optional[Kernel],
) -> SparseSpikes:
    """``SelectSpikes``. Raises RuntimeError for a surrogate that is not native."""
    attributes = {
        "capacity": static_slots(max_spikes, mem.shape[2]),
        "rotate": int(rotate),
        "has_grad_threshold": int(grad_threshold is not None),
        "grad_threshold": 0.0 if grad_threshold is None else grad_threshold,
        **_surrogate_attributes(kernel),
    }
    return _made_slots("SelectSpikes", [mem.float(), threshold.float().reshape(-1)], attributes)


def call_sparse_to_dense(spikes: SparseSpikes) -> torch.Tensor:
    """``SparseToDense``: ``[T, B, N]``."""
    example = spikes.values.new_empty(spikes.shape, dtype=torch.float32)
    return call("SparseToDense", _slots(spikes), [example], {"num_neurons": spikes.num_neurons})[0]


def call_sparse_linear(spikes: SparseSpikes, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    """``SparseLinear``: ``[T, B, out]``."""
    steps, batch, _ = spikes.shape
    return _call_linear("SparseLinear", spikes, weight, None, bias, steps * batch, spikes.capacity)


def call_delay_linear(spikes: SparseSpikes, connected: Delayed, bias: Optional[torch.Tensor]) -> torch.Tensor:
    """``DelayLinear``: ``[T, B, out]``."""
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
    # Of no rows the operator tells that it takes none.
    plan = plan_linear(neurons, inputs, max(1, rows), slots, weight.element_size(), *_machine(), taps)
    tensors = [*_slots(spikes), weight, *(each.float() for each in (lags, bias) if each is not None)]
    example = tensors[1].new_empty((*spikes.shape[:2], neurons))
    return call(operator, tensors, [example], {"unit_values": 0, "plan": list(plan)})[0]


def call_sparse_conv2d(
    spikes: SparseSpikes, weight: torch.Tensor, bias: Optional[torch.Tensor], geometry: Geometry
) -> torch.Tensor:
    """``SparseConv2d``: ``[T, B, neurons of the output]``."""
    from snnipu.planning.convolution import plan_convolution

    slots, own = _slots(spikes), _weight(weight)
    steps, batch = spikes.shape[:2]
    dtype = "float16" if own.dtype == torch.float16 else "float32"
    rows = max(1, steps * batch)  # of none the operator tells that it takes none
    plan = plan_convolution(geometry, spikes.capacity, rows, dtype, torch.is_grad_enabled(), *_machine())
    attributes = {
        "geometry": list(geometry),
        "plan": list(plan.attribute),
        # Where PopTorch traces nobody has seen what it tells of a custom operator's output: a gradient too many is
        # slow, one too few would be wrong.
        "input_gradient": int(spikes.requires_grad or on_real_ipu()),
    }
    example = slots[1].new_empty((steps, batch, geometry.neurons))
    return call("SparseConv2d", [*slots, own, *([] if bias is None else [bias.float()])], [example], attributes)[0]


def pool_slots(geometry: PoolGeometry, slots: int) -> int:
    """As many slots as ``slots`` of its input can reach windows: a pool drops nothing."""
    windows = 1
    for size, kernel, stride in zip(geometry[3:5], geometry[5:7], geometry[7:9]):
        windows *= min(size, -(-kernel // stride))
    return min(geometry.neurons, slots * windows)


def call_sparse_pool2d(spikes: SparseSpikes, geometry: PoolGeometry, mode: int) -> SparseSpikes:
    """``SparsePool2d``."""
    capacity = pool_slots(geometry, spikes.capacity)
    slots = _slots(spikes)
    example = slots[1].new_empty((*spikes.shape[:2], capacity))
    attributes = {"geometry": list(geometry), "mode": mode, "capacity": capacity}
    examples = [example, example, slots[2], example]
    ids, values, counts, _ = call("SparsePool2d", slots, examples, attributes)
    return SparseSpikes._trusted(ids, values, counts, geometry.neurons, None)


def has_operator(operator: str) -> bool:
    """Whether what :func:`uses_operator` tells of has this operator, too; a real PopTorch's library has all."""
    model = getattr(_running, "model", None)
    return model is None or (DOMAIN, operator, VERSION) in model.operators()


class NetworkLayer(NamedTuple):
    """What ``SparseNetwork`` takes of a layer; beta and threshold of one element or ``[neurons]``."""

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
    """``SparseNetwork`` of one layer."""
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
    """``SparseNetwork``: all layers, a step apart, as one operator; the spikes of each.

    ``plan``: where the layers are, as :meth:`snnipu.ipu.Plan.attribute` tells; None: as planned.
    Raises RuntimeError for a surrogate that is not native.
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
        inputs += [weight, *(each.float() for each in parameters)]
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
    made = call("SparseNetwork", inputs, examples, attributes)
    every = []
    for index, layer in enumerate(layers):
        ids, values, found, dropped, _ = made[5 * index : 5 * index + 5]
        every.append(SparseSpikes._trusted(ids, values, found, layer.weight.shape[0], dropped))
    return every


# ---- what stands for the operators in the host runtime, where the IPU model does not run them

_SURROGATE = ("surrogate", "surrogate_a", "surrogate_b")


def _expect(operator: str, inputs: Sequence[Any], names: Sequence[str], attributes: Dict[str, Any], *keys: str) -> None:
    """Raises ValueError for another number of inputs than ``names``, or other attributes than ``keys``."""
    if len(inputs) != len(names):
        raise ValueError(f"{operator} takes {len(names)} inputs ({', '.join(names)}), got {len(inputs)}")
    if set(attributes) != set(keys):
        raise ValueError(f"{operator} takes the attributes {sorted(keys)}, got {sorted(attributes)}")


def _kernel(attributes: Dict[str, Any]) -> Kernel:
    return Kernel(*(attributes[key] for key in _SURROGATE))


def _as_floats(made: Sequence[torch.Tensor], dtype: torch.dtype) -> List[torch.Tensor]:
    """Values in ``dtype``; float16 does not hold ids."""
    ids, values, counts, dropped = made
    return [ids.to(values.dtype), values.to(dtype), counts.to(values.dtype), dropped.to(values.dtype)]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """float16 as float32: what the host's kernels compute in."""
    return tensor.float() if tensor.dtype == torch.float16 else tensor


_Outputs = Sequence[torch.Tensor]
_HostOperator = Callable[[List[torch.Tensor], Dict[str, Any]], _Outputs]
HOST_OPERATORS: Dict[Tuple[str, str, int], _HostOperator] = {}


def _operator(function: Callable[..., _Outputs]) -> Callable[..., _Outputs]:
    """Decorator: what stands for the operator of this name.

    The signature is the operator's description: its inputs, of which the last may be missing where it has a default,
    and behind the asterisk its attributes.
    """
    operator = "".join(part.capitalize() for part in function.__name__.split("_"))
    inputs: List[str] = []
    attributes: List[str] = []
    required = 0
    for parameter in inspect.signature(function).parameters.values():
        names = attributes if parameter.kind is parameter.KEYWORD_ONLY else inputs
        names.append(parameter.name)
        required += names is inputs and parameter.default is parameter.empty

    def run(tensors: List[torch.Tensor], given: Dict[str, Any]) -> _Outputs:
        names = inputs if len(tensors) == len(inputs) else inputs[:required]
        _expect(operator, tensors, names, given, *attributes)
        return function(*tensors, **given)

    HOST_OPERATORS[operator, DOMAIN, VERSION] = run
    return function


@_operator
def surrogate_spike(u: torch.Tensor, *, surrogate: int, surrogate_a: float, surrogate_b: float) -> _Outputs:
    """Return spikes of u, of its shape and type."""
    return [spike(u, Kernel(surrogate, surrogate_a, surrogate_b)).to(u.dtype)]


@_operator
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
    """Return ids, values ``[T, B, capacity]``, counts, dropped ``[T, B, 2]``, all floats; values of the type of mem.

    ``mem [T, B, N]`` may be float16; threshold has one element or ``[N]``.
    """
    second = grad_threshold if has_grad_threshold else None
    kernel = Kernel(surrogate, surrogate_a, surrogate_b)
    made = SelectSpikes.apply(_wide(mem), threshold, second, capacity, bool(rotate), kernel, None)
    return _as_floats(made, mem.dtype)


@_operator
def dense_to_sparse(x: torch.Tensor, *, capacity: int, rotate: int) -> _Outputs:
    """Return what ``SelectSpikes`` does, of ``x [T, B, N]``."""
    return _as_floats(DenseToSparse.apply(_wide(x), capacity, bool(rotate)), x.dtype)


@_operator
def sparse_to_dense(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, *, num_neurons: int) -> _Outputs:
    """Return ``[T, B, num_neurons]`` of values' type."""
    return [SparseToDense.apply(_wide(values), ids.int(), counts.int(), num_neurons).to(values.dtype)]


@_operator
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
    """Return ``[T, B, out]`` of the values' type.

    ids and counts are floats; ``weight [out, in]``, ``bias [out]``. Values and weight may be float16, each for itself.
    ``unit_values`` is 1 where all values are 1; ``plan`` changes no result here.
    """
    slots = (ids.int(), _wide(values), counts.int())
    return [currents_apply(linear_operators, *slots, _wide(weight), bias).to(values.dtype)]


@_operator
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
    """Return what ``SparseLinear`` does, with delays.

    ``weight [in, out, taps]``; ``lags [in, out]``, whole numbers, when the first tap of a synapse arrives, the others
    each a step behind the one before.
    """
    spikes = SparseSpikes._trusted(ids.int(), _wide(values), counts.int(), weight.shape[0])
    # A spike's last tap is at most this far from it.
    connected = Delayed(_wide(weight), lags.int(), int(lags.max()) + weight.shape[2])
    return [delayed_currents(spikes, connected, bias).to(values.dtype)]


@_operator
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
    """Return ``[T, B, neurons of the output]`` of the values' type.

    As ``SparseLinear``, with ``weight [out, in / groups, kh, kw]``; ``geometry`` as
    :class:`snnipu.ops._maps.Geometry`. ``plan`` and ``input_gradient`` change no result here.
    """
    slots = (ids.int(), _wide(values), counts.int())
    return [currents_apply(conv2d_operators, *slots, _wide(weight), bias, geometry).to(values.dtype)]


@_operator
def sparse_pool2d(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    *,
    geometry: List[int],
    mode: int,
    capacity: int,
) -> _Outputs:
    """Return ids, values ``[T, B, capacity]``, counts ``[T, B, 2]``, and source ``[T, B, capacity]``, which is zeros
    here; values of the input's type.

    ``geometry`` as :class:`snnipu.ops._maps.PoolGeometry`; ``capacity`` is enough for all that is reached.
    """
    if mode not in MODES.values():
        raise ValueError(f"SparsePool2d: mode must be from 0 to 2, got {mode}")
    own_ids, own_values, own_counts = SparsePool2d.apply(
        _wide(values), ids.int(), counts.int(), geometry, mode, capacity
    )
    floats = own_values.dtype
    own = [own_ids.to(floats), own_values.to(values.dtype), own_counts.to(floats)]
    return [*own, torch.zeros_like(own_values).detach()]


def neuron_sequence(inputs: List[torch.Tensor], attributes: Dict[str, Any]) -> Sequence[torch.Tensor]:
    """``ai.snnipu.NeuronSequence``, version 1, on the host.

    Args:
        inputs: x ``[T, B, ...]``; the states before the first step ``[B, ...]`` and the parameters of the kernels (each
            one value, or one for each element of the trailing dimensions, flattened), in the order of the generated
            struct.
        attributes: ``neuron``, the name of an equation of ``snnipu.equations``; ``variant``, the number of a choice of
            its options; ``states``, those that are returned, by bits; the surrogate's.

    Returns:
        spk and the states after each step that were asked for, ``[T, B, ...]``; differentiable in every input.
    """
    if set(attributes) != {"neuron", "variant", "states", *_SURROGATE}:
        keys = sorted(["neuron", "variant", "states", *_SURROGATE])
        raise ValueError(f"NeuronSequence takes the attributes {keys}, got {sorted(attributes)}")
    if attributes["neuron"] not in _neurons.BUILT:
        raise ValueError(
            f"NeuronSequence: neuron must be one of {', '.join(_neurons.BUILT)} on a host, got {attributes['neuron']!r}"
        )
    found = _neurons.find(attributes["neuron"])
    _expect("NeuronSequence", inputs, ("x", *found.states, *found.parameters), attributes, *attributes)
    count = len(found.states)
    store = [bool(attributes["states"] >> place & 1) for place in range(count)]
    x, initial, parameters = inputs[0], inputs[1 : 1 + count], inputs[1 + count :]
    made = run_kernels(found.name, attributes["variant"], x, initial, parameters, None, _kernel(attributes), store)
    return [made.spk, *(state for state in made.states if state is not None)]


_route.register(sys.modules[__name__])
