"""``snnipu.Online``: a network that learns chunk by chunk, in memory that does not grow with time."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from snnipu.backends import popart
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.fused import FusedNeuron
from snnipu.neurons.multistep import MultiStep
from snnipu.neurons.sparse_conv import SparseConv2d, SparseConvLeaky
from snnipu.neurons.sparse_leaky import FullyConnectedNeurons
from snnipu.neurons.sparse_network import SparseNetwork
from snnipu.neurons.zoo import DeltaLeaky
from snnipu.online.events import DenseOrSparse, Events, in_turn, is_event_driven
from snnipu.online.held import Held
from snnipu.online.layer import Layer, Memory, Part, Signals, Work, check_same, parts_of
from snnipu.online.rules import RULES
from snnipu.online.traces import Trace, Traces, filter_of
from snnipu.online.weights import computed_once
from snnipu.spikes import SparseSpikes

# Dimensions of a step by the type of the first module that tells.
_DIMS: Sequence[Any] = (
    ((2,), (nn.Linear, DelayLinear, FullyConnectedNeurons)),
    ((4, 2), (SparseConv2d, SparseConvLeaky)),  # maps, or all of them as a row
    ((3,), (nn.Conv1d, nn.ConvTranspose1d, nn.AvgPool1d, nn.MaxPool1d)),
    ((4,), (nn.Conv2d, nn.ConvTranspose2d, nn.AvgPool2d, nn.MaxPool2d, nn.BatchNorm2d)),
    ((5,), (nn.Conv3d, nn.ConvTranspose3d, nn.AvgPool3d, nn.MaxPool3d, nn.BatchNorm3d)),
)


class Online(nn.Module):
    r"""A network over time that learns chunk by chunk, in memory that does not grow with time.

    .. code-block:: python

        online = snn.Online(snn.MultiStep(nn.Linear(700, 512), snn.Leaky(0.9), nn.Linear(512, 20), snn.Leaky(0.9)))
        for chunk in stream:  # [Tc, B, 700], or one step, [B, 700]
            spk, mem = online(chunk)  # what the network returns
            loss(mem).backward()  # adds this chunk's gradients to .grad
        optimizer.step()
        online.reset()  # another stream begins

    The parameters are the network's own. States, and traces of what they owe to the parameters, go on from call to
    call; gradients are the same however the stream is cut. With :math:`h_t = f(h_{t-1}, x_t)` a layer's states,
    :math:`x_t = W u_t` its currents and :math:`s_t` its spikes,

    .. math::

        \nabla W = \sum_t L_t \, \frac{d s_t}{d W}, \qquad
        \frac{d h_t}{d W} = \frac{\partial h_t}{\partial x_t} u_t + J_t \frac{d h_{t-1}}{d W}

    where :math:`L_t` is the gradient of the spikes of step t at that step alone, as it comes from the layer above:
    nothing goes back through time. Rules differ in what of :math:`J_t = \partial h_t / \partial h_{t-1}` they keep,
    neuron by neuron, and in :math:`L_t`. Weights, biases and the neurons' own parameters learn.

    * ``"sltt"`` (Meng et al., ICCV 2023): no :math:`J_t`, each step by itself. It alone takes a :class:`DelayLinear`,
      before all other layers with parameters: its weights and delays learn from what arrives at a step.
    * ``"ottt"`` (Xiao et al., NeurIPS 2022): :math:`J_t` without the derivative of the reset. Options: ``input_trace``,
      whether the first layer's input has a trace; ``bias_trace``, whether biases do.
    * ``"eprop"`` (Bellec et al., Nature Communications 2020): :math:`J_t` with the reset. :math:`L_t` is the error of
      the last layer, which gets to the layers below by the weights between, without their neurons' surrogates
      (``feedback="symmetric"``), by fixed random matrices (``"random"``) or by such that learn as the last weights do
      (``"adaptive"``: give the optimizer ``online.parameters()``). With ``low_pass`` what the last layer's membranes
      remember of earlier spikes counts, too.
    * ``"decolle"`` (Kaiser et al., Frontiers in Neuroscience 2020): :math:`J_t` without the reset, and no :math:`L_t`
      from above: each layer has a loss of its own, on ``online.readouts`` ``[Tc, B, readouts]``, which fixed random
      matrices make of its spikes. The option ``readouts`` is their number.
    * ``"snap1"`` (Menick et al., ICLR 2021): all of :math:`J_t` that leads from a neuron to itself, recurrent weights
      included.

    Left out by all is what spikes of one layer owe to earlier states through another, and through other neurons of a
    recurrent layer. A network of one layer learns as by backpropagation through time with ``"snap1"``, with
    ``"eprop"``, and without reset with ``"ottt"``. Where :math:`J_t` is the same for all neurons, a trace is one of the
    layer's input; else it is one of each weight.

    Event-driven layers take ``"sltt"`` and ``"ottt"``, with spikes or a dense tensor as their input: they return spikes
    with the slots of their own call, and only neurons with a slot get an error. The traces are those of all spikes. A
    recurrent one needs ``reset_mechanism="subtract"`` or ``"none"``, and no ``max_spikes``.

    Weights that a linear layer or a convolution computes from others (``weight_norm``, parametrizations, pruning) are
    computed once in each chunk; the gradient reaches what they are computed from. An input ``x`` that requires a
    gradient gets that of each step by itself; ``"eprop"`` has one for it with ``feedback="symmetric"`` and
    ``low_pass=False``.

    Args:
        net: a :class:`~snnipu.MultiStep` or an ``nn.Sequential`` of neurons of snnipu, event-driven layers and
            PyTorch's stateless modules, or a :class:`SparseNetwork` with ``delay=0``. ``init_hidden`` states are left
            alone.
        rule: one of the above.
        options: the rule's.

    Attributes:
        chunk_shape, chunk_dtype: after :meth:`prepare`, of all chunks; None without.
        readouts: of ``decolle``, what each layer's readout made of the last chunk.

    Raises:
        TypeError, ValueError: no such rule or option; a module that the rule cannot treat, by name; a step of another
            shape, dtype or device in the middle of a stream, or other modules.
        RuntimeError: in ``backward``: a loss that reaches back into an earlier chunk, or a second call for one; a
            result, an input or a parameter that was changed in place after the call.
    """

    def __init__(self, net: nn.Module, rule: str = "ottt", **options: Any) -> None:
        super().__init__()
        if rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}, got {rule!r}")
        if not isinstance(net, (MultiStep, nn.Sequential, SparseNetwork)):
            raise TypeError(f"net must be a MultiStep, an nn.Sequential or a SparseNetwork, got {type(net).__name__}")
        self.rule = RULES[rule].with_options(options)
        self.net = net
        self.chunks = 0
        self._memory: Optional[List[Memory]] = None
        self._seen: Optional[Tuple[Any, ...]] = None
        # The modules for which the stream has states and traces.
        self._parts: Optional[List[Part]] = None
        # After prepare().
        self._held: Optional[Held] = None
        # Event-driven layers, by name, from call to call.
        self._events: Dict[str, Events] = {}
        # Of e-prop's feedback and DECOLLE's readouts, one for each layer.
        self.matrices = nn.ParameterList()
        # The layers' numbers of neurons when the matrices were made.
        self._sizes: Optional[List[Optional[int]]] = None
        # What DECOLLE's local readouts made of the last chunk, [T, B, readouts] each.
        self.readouts: List[torch.Tensor] = []
        self._make_matrices()

    def _make_matrices(self) -> None:
        rule, layers = self.rule, self._layers()
        sizes = [layer.size for layer in layers]
        outputs, count = rule.options.get("readouts"), len(layers)
        if rule.name == "eprop":
            outputs, count = sizes[-1], (0 if rule.options["feedback"] == "symmetric" else count - 1)
        elif rule.name != "decolle":
            return
        self._sizes = sizes if count else None
        for layer, size in zip(layers[:count], sizes):
            if size is None or outputs is None:
                raise TypeError(
                    f'rule "{rule.name}" must know how many neurons module {layer.name} has: a linear layer in front '
                    "of it tells"
                )
            learns = rule.options.get("feedback") == "adaptive"
            like = next(self.net.parameters())
            matrix = nn.Linear(size, outputs, bias=False, device=like.device, dtype=like.dtype).weight
            self.matrices.append(matrix.requires_grad_(learns))

    def _layers(self) -> List[Layer]:
        rule = self.rule
        layers: List[Layer] = []
        between: List[Tuple[str, Any]] = []
        for name, module in in_turn(self.net):
            neuron: Any = module if isinstance(module, FusedNeuron) else None
            if neuron is None:
                events = self._events_of(name, module) if is_event_driven(module) else None
                between.append((name, computed_once(name, module) if events is None else events))
                neuron = None if events is None else events.neuron
            if neuron is not None:
                layers.append(Layer(between, (name, neuron), rule, is_first=not layers))
                between = []
        if between or not layers:
            layers.append(Layer(between, None, rule, is_first=not layers))
        layers[-1].is_readout = True
        for layer in layers:
            layer.low_passes = bool(rule.options.get("low_pass")) and layers[-1].dynamics is not None
            layer.check()
        if self._sizes is not None and self._sizes != [layer.size for layer in layers]:
            raise ValueError(
                f'rule "{rule.name}" has matrices for layers of {self._sizes} neurons, and the network has others now: '
                "make a new Online"
            )
        if rule.name == "eprop":
            for layer, matrix in zip(layers, self.matrices):
                layer.feedback = matrix
        return layers

    def _events_of(self, name: str, layer: nn.Module) -> Events:
        known = self._events.get(name)
        if known is None or not known.is_of(layer):
            known = self._events[name] = Events(name, layer, self.rule.name)
        return known

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_events": {}}

    def prepare(self, x: torch.Tensor) -> None:
        """Keep states and traces in buffers, and a chunk as one graph, which is compiled once: for PopTorch.

        From here on all chunks have the shape of ``x``. The results and gradients are the same. Where a stream begins
        ``begins`` tells in each call, as a compiled graph sees nothing of :meth:`reset`. ``state_dict`` has where the
        stream is. For ``"sltt"`` and ``"ottt"`` with their default options and ``Leaky``; with ``"ottt"`` its ``beta``
        is one number that does not learn, and its membrane not reset to zero.

        Args:
            x: such a chunk, ``[Tc, B, ...]``; its values do not matter.

        Raises:
            TypeError, ValueError: what cannot be held in one graph, by name.
        """
        if not isinstance(x, torch.Tensor) or x.dim() < 2 or not x.numel():
            raise ValueError(f"x must be a chunk, [Tc, B, ...], got {x!r}")
        for name in [name for name in self._buffers if name.startswith("held_")]:
            del self._buffers[name]
        layers = self._layers()
        layers[0].check_input(x)
        self._held = Held(self, layers, self.rule, x)
        self.reset()

    @property
    def chunk_shape(self) -> Optional[torch.Size]:
        """What :meth:`prepare` was given; None without."""
        return None if self._held is None else self._held.shape

    @property
    def chunk_dtype(self) -> Optional[torch.dtype]:
        return None if self._held is None else self._held.dtype

    def forward(self, x: DenseOrSparse, *, single: Optional[bool] = None, begins: Optional[torch.Tensor] = None) -> Any:
        """The next chunk of the stream.

        Args:
            x: ``[Tc, B, ...]``, or one step, ``[B, ...]``; for event-driven layers also SparseSpikes.
            single: whether it is one step; None: by its dimensions, as far as the first layer tells them.
            begins: after :meth:`prepare`: 1 where another stream begins with this chunk, else 0; one element, or one
                for each sample.

        Returns:
            What the network returns, with time as first dimension, or of one step without; SparseSpikes keep it.
        """
        layers = self._layers()
        if self._held is not None:
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"x must be a torch.Tensor after prepare(), got {type(x).__name__}")
            return _as_returned(layers[-1], self._held.run(self, layers, x, begins))
        if begins is not None:
            raise ValueError("begins is for networks whose states prepare() holds: call reset()")
        if popart.is_traced():
            raise RuntimeError(
                "Online: a compiled graph carries no state from call to call but in buffers: call prepare(chunk) "
                "before the model is compiled"
            )
        if isinstance(x, SparseSpikes):
            single = False  # it keeps its dimensions
        else:
            single = x.dim() in _step_dims(self.net) if single is None else single
            x = x.unsqueeze(0) if single else x
        seen, parts = self._checked(x, layers)
        signals = Signals()
        works: List[Work] = []
        readouts: List[torch.Tensor] = []
        is_local = self.rule.name == "decolle"
        for number, layer in enumerate(layers):
            work, out = layer.run(x, None if self._memory is None else self._memory[number], self, signals)
            works.append(work)
            self._check_size(layer, out[0])
            x = layer.handed_on(out, layers[number + 1] if number + 1 < len(layers) else None)
            if is_local:
                readouts.append(nn.functional.linear(out[0].flatten(2), self.matrices[number]))
                x = x.detach()
        memory = self._carried(layers, works)
        # A call that ends in an error leaves the stream where it was.
        self._memory, self._seen, self._parts, self.readouts = memory, seen, parts, readouts
        self.chunks += 1
        result = x if isinstance(x, SparseSpikes) else _as_returned(layers[-1], out)
        return _first(result) if single else result

    def _check_size(self, layer: Layer, spk: torch.Tensor) -> None:
        """Raise if the layer's matrix is for another number of neurons."""
        count, size = spk.shape[2:].numel(), layer.size
        if self._sizes is not None and size is not None and count != size:
            raise ValueError(
                f'module {layer.name}: rule "{self.rule.name}" has a matrix for {size} neurons, as many as the linear '
                f"layer in front of them has outputs, and a step has {count}: put nn.Flatten() in front of that layer"
            )

    def _refuse_held(self, what: str) -> None:
        if self._held is not None:
            raise RuntimeError(f"{what}: after prepare() states and traces are buffers, and in state_dict()")

    def _carried(self, layers: List[Layer], works: List[Work]) -> List[Memory]:
        by = None
        last, chunk = layers[-1].dynamics, works[-1].chunk
        if self.rule.options.get("low_pass") and last is not None and chunk is not None:
            with torch.no_grad():
                by = filter_of(last, chunk)
        return [layer.remember(work, None if layer.is_readout else by) for layer, work in zip(layers, works)]

    def _checked(self, x: DenseOrSparse, layers: List[Layer]) -> Tuple[Tuple[Any, ...], List[Part]]:
        """Check ``x`` and the network against the stream; return (shape of a step, device, dtype) and the modules."""
        if not len(x):
            raise ValueError(f"x must have at least one time step, got shape {tuple(x.shape)}")
        seen = (x.shape[1:], x.device, x.dtype)
        if self._seen is not None and self._seen != seen:
            raise ValueError(
                f"a stream goes on with steps of shape {tuple(self._seen[0])}, {self._seen[2]} on {self._seen[1]}; got "
                f"{tuple(x.shape[1:])}, {x.dtype} on {x.device}: call reset() where another stream begins"
            )
        parts = parts_of(layers)
        if self._parts is not None:
            check_same(self._parts, parts, "call reset() where another stream begins")
        layers[0].check_input(x)
        given = x.values if isinstance(x, SparseSpikes) else x
        if self.rule.name == "eprop" and given.requires_grad and torch.is_grad_enabled():
            options = self.rule.options
            if options["feedback"] != "symmetric" or layers[0].low_passes:
                raise ValueError(
                    'x must not require a gradient: rule "eprop" has one for it with feedback="symmetric" and '
                    "low_pass=False alone; take these, or x.detach()"
                )
        return seen, parts

    def reset(self) -> None:
        """Begin a new sequence: the next call starts from the neurons' first states, without traces."""
        if self._held is not None:
            for buffer in self._held.buffers(self):
                buffer.zero_()
        self._memory, self._seen, self._parts = None, None, None
        self.chunks = 0

    def stream_state(self) -> Dict[str, Any]:
        """Where the stream is: states and traces, as plain lists and tensors that ``torch.save`` writes.

        With the ``state_dict`` of the network and that of the optimizer, learning goes on exactly from here.

        Raises:
            RuntimeError: after :meth:`prepare`, when all of it is in ``state_dict``.
        """
        self._refuse_held("stream_state")
        shape, dtype = (None, None) if self._seen is None else (list(self._seen[0]), self._seen[2])
        memory = None if self._memory is None else [_plain(layer) for layer in self._memory]
        return {
            "rule": self.rule.name,
            "chunks": self.chunks,
            "step": shape,
            "dtype": dtype,
            "layers": memory,
            "modules": None if self._parts is None else list(map(str, self._parts)),
        }

    def load_stream_state(self, state: Dict[str, Any]) -> None:
        """Go on in the middle of a stream, from what :meth:`stream_state` returned.

        Raises:
            ValueError: it is of another rule, or of a network of other modules.
            RuntimeError: after :meth:`prepare`.
        """
        self._refuse_held("load_stream_state")
        if state["rule"] != self.rule.name:
            raise ValueError(f'the stream is of rule "{state["rule"]}", and this network\'s is "{self.rule.name}"')
        layers, modules = state["layers"], parts_of(self._layers())
        if layers is not None:
            check_same(state["modules"], list(map(str, modules)), "the stream is of another network")
        device = next(self.parameters()).device
        self.chunks = state["chunks"]
        self._seen = None if state["step"] is None else (torch.Size(state["step"]), device, state["dtype"])
        self._parts = None if layers is None else modules
        self._memory = None if layers is None else [_memory(_on(layer, device)) for layer in layers]


def _plain(value: Any) -> Any:
    """Lists in place of tuples, copies of tensors."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_on(part, device) for part in value]
    return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value


def _memory(layer: List[Any]) -> Memory:
    states, traces, filtered, *rest = layer
    return Memory(states, _traces(traces), _traces(filtered), *rest)


def _traces(saved: Optional[List[Any]]) -> Optional[Traces]:
    if saved is None:
        return None
    inputs, parameters = saved
    return Traces([[None if t is None else Trace(*t) for t in state] for state in inputs], parameters)


def _step_dims(net: nn.Module) -> Sequence[int]:
    """How many dimensions a step may have; none where no layer tells."""
    for _, module in in_turn(net):
        for dims, kinds in _DIMS:
            if isinstance(module, kinds):
                return dims
        if isinstance(module, (nn.Flatten, nn.Unflatten)):
            return ()
    return ()


def _as_returned(layer: Layer, out: List[torch.Tensor]) -> Any:
    """As the last module's ``sequence`` returns it."""
    if layer.dynamics is None:
        return out[0]
    neuron = layer.dynamics.neuron
    if not neuron._returns_states():
        return out[0]
    states = [state for name, state in zip(neuron._states(), out[1:]) if name != "spk"]
    return (out[0], tuple(states)) if isinstance(neuron, DeltaLeaky) else (out[0], *states)


def _first(made: Any) -> Any:
    if isinstance(made, SparseSpikes):
        return made  # it keeps its dimensions
    return tuple(_first(part) for part in made) if isinstance(made, tuple) else made[0]
