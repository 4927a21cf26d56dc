"""``snnipu.Online``: a network that learns chunk by chunk, in memory that does not grow with time."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from snnipu.backends import popart
from snnipu.neurons._computed_weights import computed_once
from snnipu.neurons.delay_linear import DelayLinear
from snnipu.neurons.fused import FusedNeuron
from snnipu.neurons.multistep import MultiStep
from snnipu.neurons.sparse_conv import ConvolutionalNeurons, SparseConv2d
from snnipu.neurons.sparse_leaky import FullyConnectedNeurons
from snnipu.neurons.sparse_network import SparseNetwork
from snnipu.neurons.zoo import DeltaLeaky
from snnipu.online.events import DenseOrSparse, EventLayer, is_event_driven, modules_in_order
from snnipu.online.held import PreparedState
from snnipu.online.layer import (
    ChunkRecord,
    Layer,
    LayerMemory,
    LearningSignals,
    ModuleDescription,
    check_same,
    describe_modules,
)
from snnipu.online.rules import RULES
from snnipu.online.traces import Traces, WeightTrace, readout_filter
from snnipu.spikes import SparseSpikes

# Number of dimensions of a step, by the type of the first module that determines it.
_DIMS: Sequence[Any] = (
    ((2,), (nn.Linear, DelayLinear, FullyConnectedNeurons)),
    ((4, 2), (SparseConv2d, ConvolutionalNeurons)),  # maps [B, C, H, W] or flattened maps [B, C * H * W]
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

    ``Online`` shares the parameters of ``net``. A trace holds the derivative of the states with respect to a parameter.
    States and traces continue from call to call. The gradients are the same for every division of the stream into
    chunks. Let :math:`h_t = f(h_{t-1}, x_t)` be a layer's states, :math:`u_t` its inputs, :math:`x_t = W u_t` its
    currents and :math:`s_t` its spikes. Then

    .. math::

        \nabla W = \sum_t L_t \, \frac{d s_t}{d W}, \qquad
        \frac{d h_t}{d W} = \frac{\partial h_t}{\partial x_t} u_t + J_t \frac{d h_{t-1}}{d W}

    where the learning signal :math:`L_t` is the gradient of the loss with respect to the spikes of step t, computed
    within that step. No gradient flows back through time. The rules differ in :math:`L_t` and in the part of
    :math:`J_t = \partial h_t / \partial h_{t-1}` that they keep for each neuron. Weights, biases and the parameters of
    the neurons learn.

    * ``"sltt"`` (Meng et al., ICCV 2023): :math:`J_t` is zero. Only this rule supports a :class:`DelayLinear`, which
      must precede all other layers with parameters. Its weights and delays learn from the inputs that arrive at a step.
    * ``"ottt"`` (Xiao et al., NeurIPS 2022): :math:`J_t` without the derivative of the reset. The options
      ``input_trace`` and ``bias_trace`` (both True) keep a trace of the first layer's input and of the biases.
    * ``"eprop"`` (Bellec et al., Nature Communications 2020): :math:`J_t` with the reset. :math:`L_t` is the error of
      the last layer, sent to each hidden layer. The option ``feedback`` selects the path: the weights in between,
      without the surrogates of their neurons (``"symmetric"``), fixed random matrices (``"random"``), or matrices that
      learn like the last weights (``"adaptive"``: give ``online.parameters()`` to the optimizer). The option
      ``low_pass`` (True) adds the effect of earlier spikes through the membranes of the last layer.
    * ``"decolle"`` (Kaiser et al., Frontiers in Neuroscience 2020): :math:`J_t` without the reset, and no :math:`L_t`
      from the layer above. Each layer has a local loss on its entry of ``online.readouts``, ``[Tc, B, readouts]``:
      its spikes times a fixed random matrix. The option ``readouts`` is the size of each readout.
    * ``"snap1"`` (Menick et al., ICLR 2021): the block diagonal of :math:`J_t`, that is each neuron's effect on itself,
      including its recurrent weight.

    All rules neglect the effect of earlier states through other layers and through other neurons of a recurrent layer.
    In a network of one layer the gradients equal those of backpropagation through time for ``"snap1"``, for
    ``"eprop"``, and, without a reset, for ``"ottt"``. If :math:`J_t` is the same for all neurons, the layer has a trace
    for each input, else for each weight.

    Event-driven layers support ``"sltt"`` and ``"ottt"``, with spikes or a dense tensor as input. They return spikes in
    the slots of an ordinary call, and only neurons with a slot get an error. Traces include all spikes. A recurrent
    event-driven layer needs ``reset_mechanism="subtract"`` or ``"none"``, and no ``max_spikes``.

    Weights that a linear layer or a convolution computes (``weight_norm``, parametrizations, pruning) are computed once
    for each chunk. The gradient reaches the parameters from which they are computed. An input ``x`` that requires a
    gradient gets the gradient within each step; ``"eprop"`` computes it only with ``feedback="symmetric"`` and
    ``low_pass=False``.

    Args:
        net: a :class:`~snnipu.MultiStep` or an ``nn.Sequential`` of neurons of snnipu, event-driven layers and
            PyTorch's stateless modules, or a :class:`SparseNetwork` with ``delay=0``. States that neurons store
            (``init_hidden``) are neither read nor changed.
        rule: the name of a rule above.
        options: options of the rule.

    Attributes:
        chunk_shape, chunk_dtype: shape and dtype of every chunk after :meth:`prepare`; None before.
        readouts: for ``"decolle"``, the readout of each layer for the last chunk.

    Raises:
        TypeError, ValueError: an unknown rule or option; a module that the rule does not support, by name; in the
            middle of a stream, a step of another shape, dtype or device, or a changed network.
        RuntimeError: in ``backward``, if the loss reaches back into an earlier chunk, if it is the chunk's second call,
            or if a result, an input or a parameter was changed in place after the chunk.
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
        self._memory: Optional[List[LayerMemory]] = None
        self._step_format: Optional[Tuple[Any, ...]] = None
        # The modules to which the states and traces of the stream belong.
        self._descriptions: Optional[List[ModuleDescription]] = None
        # Set by prepare().
        self._prepared: Optional[PreparedState] = None
        # Event-driven layers by name, reused by the next call.
        self._events: Dict[str, EventLayer] = {}
        # Matrices of e-prop's feedback or DECOLLE's readouts, one for each layer, [outputs, neurons].
        self.matrices = nn.ParameterList()
        # Number of neurons of each layer at the creation of the matrices.
        self._layer_sizes: Optional[List[Optional[int]]] = None
        # DECOLLE's local readouts of the last chunk, [T, B, readouts] each.
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
        self._layer_sizes = sizes if count else None
        for layer, size in zip(layers[:count], sizes):
            if size is None or outputs is None:
                raise TypeError(
                    f'rule "{rule.name}" must know how many neurons module {layer.name} has: put an nn.Linear in front '
                    "of it"
                )
            learns = rule.options.get("feedback") == "adaptive"
            parameter = next(self.net.parameters())
            matrix = nn.Linear(size, outputs, bias=False, device=parameter.device, dtype=parameter.dtype).weight
            self.matrices.append(matrix.requires_grad_(learns))

    def _layers(self) -> List[Layer]:
        rule = self.rule
        layers: List[Layer] = []
        between: List[Tuple[str, Any]] = []
        for name, module in modules_in_order(self.net):
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
            layer.has_low_pass = bool(rule.options.get("low_pass")) and layers[-1].dynamics is not None
            layer.check()
        if self._layer_sizes is not None and self._layer_sizes != [layer.size for layer in layers]:
            raise ValueError(
                f'rule "{rule.name}" has matrices for layers of {self._layer_sizes} neurons, and the network has '
                "changed: make a new Online"
            )
        if rule.name == "eprop":
            for layer, matrix in zip(layers, self.matrices):
                layer.feedback = matrix
        return layers

    def _events_of(self, name: str, layer: nn.Module) -> EventLayer:
        events = self._events.get(name)
        if events is None or not events.matches(layer):
            events = self._events[name] = EventLayer(name, layer, self.rule.name)
        return events

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_events": {}, "readouts": [readout.detach() for readout in self.readouts]}

    def prepare(self, x: torch.Tensor) -> None:
        """Store states and traces in buffers, so that PopTorch compiles a chunk once as one graph.

        Afterwards every chunk must have the shape of ``x``. Results and gradients do not change. A compiled graph does
        not see :meth:`reset`: pass ``begins`` to each call instead. ``state_dict`` includes the position in the stream.
        Supported are the rules ``"sltt"`` and ``"ottt"`` with their default options, and ``Leaky``. With ``"ottt"``,
        ``beta`` must be a single fixed number, and the reset must not be to zero.

        Args:
            x: an example of a chunk, ``[Tc, B, ...]``. Its values are not used.

        Raises:
            TypeError, ValueError: a module that one graph does not support, by name.
        """
        if not isinstance(x, torch.Tensor) or x.dim() < 2 or not x.numel():
            raise ValueError(f"x must be a chunk, [Tc, B, ...], got {x!r}")
        for name in [name for name in self._buffers if name.startswith("held_")]:
            del self._buffers[name]
        layers = self._layers()
        layers[0].check_input(x)
        self._prepared = PreparedState(self, layers, self.rule, x)
        self.reset()

    @property
    def chunk_shape(self) -> Optional[torch.Size]:
        """Shape of every chunk after :meth:`prepare`, ``[Tc, B, ...]``; None before."""
        return None if self._prepared is None else self._prepared.shape

    @property
    def chunk_dtype(self) -> Optional[torch.dtype]:
        return None if self._prepared is None else self._prepared.dtype

    def forward(self, x: DenseOrSparse, *, single: Optional[bool] = None, begins: Optional[torch.Tensor] = None) -> Any:
        """Run the network on the next chunk of the stream.

        Args:
            x: a chunk ``[Tc, B, ...]`` or a single step ``[B, ...]``; for event-driven layers also SparseSpikes.
            single: True if ``x`` is a single step. None: derived from the dimensions of ``x`` and the first layer.
            begins: only after :meth:`prepare`: 1 if another stream begins with this chunk, else 0. A tensor of one
                element, or of one for each sample.

        Returns:
            The result of the network, time first. For a single step, tensors have no time dimension; SparseSpikes
            always have it.
        """
        layers = self._layers()
        if self._prepared is not None:
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"x must be a torch.Tensor after prepare(), got {type(x).__name__}")
            return _network_result(layers[-1], self._prepared.run(self, layers, x, begins))
        if begins is not None:
            raise ValueError("begins is for networks whose states prepare() holds: call reset()")
        if popart.is_traced():
            raise RuntimeError(
                "Online: a compiled graph carries state from call to call in buffers alone: call prepare(chunk) "
                "before the model is compiled"
            )
        if isinstance(x, SparseSpikes):
            single = False  # SparseSpikes always have a time dimension
        else:
            single = x.dim() in _step_dims(self.net) if single is None else single
            x = x.unsqueeze(0) if single else x
        step_format, descriptions = self._check_chunk(x, layers)
        signals = LearningSignals()
        records: List[ChunkRecord] = []
        readouts: List[torch.Tensor] = []
        is_local = self.rule.name == "decolle"
        for number, layer in enumerate(layers):
            record, out = layer.run(x, None if self._memory is None else self._memory[number], self, signals)
            records.append(record)
            self._check_size(layer, out[0])
            x = layer.output_for(out, layers[number + 1] if number + 1 < len(layers) else None)
            if is_local:
                readouts.append(nn.functional.linear(out[0].flatten(2), self.matrices[number]))
                x = x.detach()
        memory = self._remember(layers, records)
        # A call that raises leaves the stream unchanged.
        self._memory, self._step_format, self._descriptions, self.readouts = memory, step_format, descriptions, readouts
        self.chunks += 1
        result = x if isinstance(x, SparseSpikes) else _network_result(layers[-1], out)
        return _without_time(result) if single else result

    def _check_size(self, layer: Layer, spk: torch.Tensor) -> None:
        """Check that the layer's matrix has a column for each neuron."""
        count, size = spk.shape[2:].numel(), layer.size
        if self._layer_sizes is not None and size is not None and count != size:
            raise ValueError(
                f'module {layer.name}: rule "{self.rule.name}" has a matrix for {size} neurons, as many as the linear '
                f"layer in front of them has outputs, and a step has {count}: put nn.Flatten() in front of that layer"
            )

    def _check_not_prepared(self, method: str) -> None:
        if self._prepared is not None:
            raise RuntimeError(f"{method}: after prepare() states and traces are buffers, and in state_dict()")

    def _remember(self, layers: List[Layer], records: List[ChunkRecord]) -> List[LayerMemory]:
        readout = None
        last, chunk = layers[-1].dynamics, records[-1].chunk
        if self.rule.options.get("low_pass") and last is not None and chunk is not None:
            with torch.no_grad():
                readout = readout_filter(last, chunk)
        return [layer.remember(record, None if layer.is_readout else readout) for layer, record in zip(layers, records)]

    def _check_chunk(self, x: DenseOrSparse, layers: List[Layer]) -> Tuple[Tuple[Any, ...], List[ModuleDescription]]:
        """Check ``x`` and the network against the stream; return (shape of a step, device, dtype) and the modules."""
        if not len(x):
            raise ValueError(f"x must have at least one time step, got shape {tuple(x.shape)}")
        step_format = (x.shape[1:], x.device, x.dtype)
        if self._step_format is not None and self._step_format != step_format:
            shape, device, dtype = self._step_format
            raise ValueError(
                f"a stream goes on with steps of shape {tuple(shape)}, {dtype} on {device}; got "
                f"{tuple(x.shape[1:])}, {x.dtype} on {x.device}: call reset() where another stream begins"
            )
        descriptions = describe_modules(layers)
        if self._descriptions is not None:
            check_same(self._descriptions, descriptions, "call reset() where another stream begins")
        layers[0].check_input(x)
        values = x.values if isinstance(x, SparseSpikes) else x
        if self.rule.name == "eprop" and values.requires_grad and torch.is_grad_enabled():
            options = self.rule.options
            if options["feedback"] != "symmetric" or layers[0].has_low_pass:
                raise ValueError(
                    'x must not require a gradient: rule "eprop" has one for it with feedback="symmetric" and '
                    "low_pass=False alone; use these, or x.detach()"
                )
        return step_format, descriptions

    def reset(self) -> None:
        """Begin a new sequence: the next call starts from the neurons' initial states, without traces."""
        if self._prepared is not None:
            for buffer in self._prepared.buffers(self):
                buffer.zero_()
        self._memory, self._step_format, self._descriptions = None, None, None
        self.chunks = 0

    def stream_state(self) -> Dict[str, Any]:
        """Return the position in the stream: states and traces, as lists and tensors for ``torch.save``.

        Together with the ``state_dict`` of the network and of the optimizer it resumes learning exactly.

        Raises:
            RuntimeError: after :meth:`prepare`: the position is part of ``state_dict``.
        """
        self._check_not_prepared("stream_state")
        shape, dtype = (None, None) if self._step_format is None else (list(self._step_format[0]), self._step_format[2])
        memory = None if self._memory is None else _copied(self._memory)
        return {
            "rule": self.rule.name,
            "chunks": self.chunks,
            "step": shape,
            "dtype": dtype,
            "layers": memory,
            "modules": None if self._descriptions is None else list(map(str, self._descriptions)),
        }

    def load_stream_state(self, state: Dict[str, Any]) -> None:
        """Resume a stream from the result of :meth:`stream_state`.

        Args:
            state: the dictionary that :meth:`stream_state` returned.

        Raises:
            ValueError: ``state`` belongs to another rule or to a network of other modules.
            RuntimeError: after :meth:`prepare`.
        """
        self._check_not_prepared("load_stream_state")
        if state["rule"] != self.rule.name:
            raise ValueError(f'the stream is of rule "{state["rule"]}", and this network\'s is "{self.rule.name}"')
        layers, modules = state["layers"], describe_modules(self._layers())
        if layers is not None:
            check_same(state["modules"], list(map(str, modules)), "the stream is of another network")
        device = next(self.parameters()).device
        self.chunks = state["chunks"]
        self._step_format = None if state["step"] is None else (torch.Size(state["step"]), device, state["dtype"])
        self._descriptions = None if layers is None else modules
        self._memory = None if layers is None else list(map(_restore_memory, _copied(layers, device)))


def _copied(value: Any, device: Optional[torch.device] = None) -> Any:
    """Replace tuples by lists, and tensors by copies on ``device``; None: on their own."""
    if isinstance(value, (list, tuple)):
        return [_copied(part, device) for part in value]
    return value.detach().to(device or value.device, copy=True) if isinstance(value, torch.Tensor) else value


def _restore_memory(layer: List[Any]) -> LayerMemory:
    states, traces, filtered, *others = layer
    return LayerMemory(states, _restore_traces(traces), _restore_traces(filtered), *others)


def _restore_traces(saved: Optional[List[Any]]) -> Optional[Traces]:
    if saved is None:
        return None
    inputs, parameters = saved
    return Traces([[None if t is None else WeightTrace(*t) for t in state] for state in inputs], parameters)


def _step_dims(net: nn.Module) -> Sequence[int]:
    """Return the possible numbers of dimensions of a step; empty if no layer determines them."""
    for _, module in modules_in_order(net):
        for dims, kinds in _DIMS:
            if isinstance(module, kinds):
                return dims
        if isinstance(module, (nn.Flatten, nn.Unflatten)):
            return ()
    return ()


def _network_result(layer: Layer, out: List[torch.Tensor]) -> Any:
    """Return spikes and states in the form of the last module's ``sequence``."""
    if layer.dynamics is None:
        return out[0]
    neuron = layer.dynamics.neuron
    if not neuron._returns_states():
        return out[0]
    states = [state for name, state in zip(neuron._states(), out[1:]) if name != "spk"]
    return (out[0], tuple(states)) if isinstance(neuron, DeltaLeaky) else (out[0], *states)


def _without_time(result: Any) -> Any:
    if isinstance(result, SparseSpikes):
        return result  # SparseSpikes always have a time dimension
    return tuple(_without_time(part) for part in result) if isinstance(result, tuple) else result[0]
