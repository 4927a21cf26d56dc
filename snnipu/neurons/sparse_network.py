"""``snnipu.SparseNetwork``: fully connected spiking layers, spikes in and spikes out."""

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

import torch
from torch import nn

from snnipu import ops
from snnipu.backends import popart
from snnipu.neurons.multistep import MultiStep
from snnipu.neurons.sparse_leaky import Parameter, SparseLeaky
from snnipu.neurons.sparse_linear import check_features, check_path, choose_path
from snnipu.ops._arguments import reset_code
from snnipu.ops._slots import check_max_spikes, overflow_code
from snnipu.ops._spike_gradient import fused
from snnipu.ops.lif_sequence import learnt_decay
from snnipu.spikes import SparseSpikes
from snnipu.surrogate import SpikeGrad

if TYPE_CHECKING:
    from snnipu.ipu import Plan

PerLayer = Union[Parameter, Sequence[Parameter]]


class SparseNetwork(nn.Module):
    r"""Fully connected layers of leaky integrate-and-fire neurons that exchange spike ids.

    With ``delay=0`` a layer reads the spikes its predecessor makes in the same step; with ``delay=1`` those of the step
    before, so that all layers of a step can run at once. The first layer reads the input of the same step either way.

    .. code-block:: python

        net = snn.SparseNetwork([2312, 1466, 1466, 10], beta=0.95, max_spikes=[64, 30, 30, 10], grad_threshold=0.9)
        out = net(x)                                 # x: SparseSpikes or a dense [T, B, 2312]
        loss = torch.nn.functional.cross_entropy(out.spike_count(), labels)
        net.activity, net.overflow                   # one number for each layer

    Args:
        sizes: neurons of the input and of each layer; at least two entries.
        beta: decay of the membrane per step: a number for all layers, or one entry (number or tensor) for each layer.
        max_spikes: slots: None (as many as needed), an int for all, or one entry for each of ``sizes``, input first.
        grad_threshold: second threshold: None, a number for all layers, or one entry for each layer.
        delay: 0 or 1.
        threshold: firing threshold, as ``beta``.
        reset_mechanism, spike_grad, bias, learn_beta, learn_threshold, input_scale, overflow, path: as in
            :class:`SparseLeaky`, for all layers; ``input_scale`` may also have one entry for each layer.

    Attributes:
        layers: the :class:`SparseLeaky` layers.
        activity: mean spikes per neuron and step of each layer in the last forward, a list of floats; None before the
            first.
        overflow: spikes dropped in the last forward, of each layer, a list of ints; None before the first.
        input_activity, input_overflow: the same of the input.
        ipu_plan: where the layers are on an IPU: None, as :func:`snnipu.ipu.plan` has it for slots that are all in use,
            or a :class:`snnipu.ipu.Plan` of this network. The tiles change no result, up to the order of additions.

    Raises:
        TypeError, ValueError: the message names the argument.
    """

    takes_whole_sequences = True  # in a MultiStep

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        beta: PerLayer,
        max_spikes: Union[int, Sequence[Optional[int]], None] = None,
        grad_threshold: Union[float, Sequence[Optional[float]], None] = None,
        delay: int = 1,
        threshold: PerLayer = 1.0,
        reset_mechanism: str = "zero",
        spike_grad: Optional[SpikeGrad] = None,
        bias: bool = False,
        learn_beta: bool = False,
        learn_threshold: bool = False,
        input_scale: Union[float, Sequence[float]] = 1.0,
        overflow: str = "lowest",
        path: str = "auto",
    ) -> None:
        super().__init__()
        if isinstance(sizes, (str, int)) or not isinstance(sizes, Sequence):
            raise TypeError(f"sizes must be a sequence of ints, got {sizes!r}")
        if len(sizes) < 2:
            raise ValueError(f"sizes must have an entry for the input and one for each layer, got {list(sizes)}")
        self.sizes = [check_features("sizes", size) for size in sizes]
        if isinstance(delay, bool) or delay not in (0, 1):
            raise ValueError(f"delay must be 0 or 1, got {delay!r}")
        self.delay = int(delay)
        self.path = check_path(path)
        layers = len(self.sizes) - 1
        slots = _per_entry("max_spikes", max_spikes, layers + 1, "one for each entry of sizes")
        betas = _per_entry("beta", beta, layers, "one for each layer")
        thresholds = _per_entry("threshold", threshold, layers, "one for each layer")
        grad_thresholds = _per_entry("grad_threshold", grad_threshold, layers, "one for each layer")
        scales = _per_entry("input_scale", input_scale, layers, "one for each layer")
        check_max_spikes(slots[0])
        self.max_input_spikes: Optional[int] = slots[0]
        self.overflow_order = overflow
        self.layers: Sequence[SparseLeaky] = nn.ModuleList(  # type: ignore[assignment]
            SparseLeaky(
                self.sizes[i],
                self.sizes[i + 1],
                beta=betas[i],
                threshold=thresholds[i],
                grad_threshold=grad_thresholds[i],
                max_spikes=slots[i + 1],
                reset_mechanism=reset_mechanism,
                spike_grad=spike_grad,
                bias=bias,
                learn_beta=learn_beta,
                learn_threshold=learn_threshold,
                input_scale=scales[i],
                overflow=overflow,
                path=path,
            )
            for i in range(layers)
        )
        self._input: Optional[SparseSpikes] = None
        self.ipu_plan: Optional[Plan] = None

    def forward(
        self, x: Union[torch.Tensor, SparseSpikes], *, all_layers: bool = False
    ) -> Union[SparseSpikes, List[SparseSpikes]]:
        """All time steps of a batch through all layers.

        Args:
            x: SparseSpikes of ``sizes[0]`` neurons, or a dense ``[T, B, sizes[0]]`` of any real dtype.
            all_layers: return the spikes of every layer, not only of the last.

        Returns:
            SparseSpikes, or a list of them.

        Raises:
            TypeError, ValueError: ``x`` of another type, shape or device; the message says which.
        """
        first = self._limited(x)
        self._input = first._summary() if isinstance(first, SparseSpikes) else None
        out: Union[torch.Tensor, SparseSpikes] = first
        every: List[SparseSpikes] = []
        if isinstance(first, SparseSpikes) and self._one_operator():
            every = self._on_ipu(first)
            return every if all_layers else every[-1]
        for index, layer in enumerate(self.layers):
            spikes: SparseSpikes = layer(out, delay=self.delay if index else 0)
            every.append(spikes)
            out = spikes
        return every if all_layers else every[-1]

    def _one_operator(self) -> bool:
        """Whether the network runs as a PopART operator of its own; else its layers do."""
        if not (self.delay == 1 and popart.uses_operator("SparseNetwork", "SparseLinear")):
            return False
        same = {
            (layer.reset_mechanism, layer.overflow_order, layer.bias is None, layer.recurrent_weight is None)
            for layer in self.layers
        }
        kernels = {fused(layer.spike_grad)[0] for layer in self.layers}
        recurrent = any(layer.recurrent_weight is not None for layer in self.layers)
        return len(same) == len(kernels) == 1 and not recurrent and popart.has_operator("SparseNetwork")

    def _on_ipu(self, spikes: SparseSpikes) -> List[SparseSpikes]:
        """All layers as one operator."""
        first = self.layers[0]
        layers = [
            popart.NetworkLayer(
                layer.weight,
                learnt_decay(layer.beta.float()),
                layer.threshold,
                layer.bias,
                popart.static_slots(layer.max_spikes, layer.out_features),
                layer.grad_threshold,
                layer.input_scale,
            )
            for layer in self.layers
        ]
        every = popart.call_sparse_network(
            spikes,
            layers,
            reset_code(first.reset_mechanism),
            overflow_code(first.overflow_order),
            fused(first.spike_grad)[0],
            None if self.ipu_plan is None else self.ipu_plan.attribute(),
        )
        for layer, made in zip(self.layers, every):
            layer._last = made._summary()
        return every

    def _limited(self, x: Union[torch.Tensor, SparseSpikes]) -> Union[torch.Tensor, SparseSpikes]:
        """The input in at most ``max_spikes[0]`` slots."""
        limit = self.max_input_spikes
        if isinstance(x, SparseSpikes):
            return x if limit is None or x.capacity <= limit else x.limit(limit, overflow=self.overflow_order)
        first = self.layers[0]
        chosen = choose_path(x, first.weight, self.path if limit is None else "dense", first._measured)
        if limit is not None and isinstance(chosen, torch.Tensor):
            return ops.dense_to_sparse(chosen, limit, overflow=self.overflow_order)
        return chosen

    @property
    def activity(self) -> Optional[List[float]]:
        """Mean spikes per neuron and step of each layer in the last forward, 0 to 1; None where there was none."""
        found = [layer.activity for layer in self.layers]
        return None if None in found else [float(each) for each in found if each is not None]

    @property
    def overflow(self) -> Optional[List[int]]:
        """Spikes dropped in the last forward, of each layer; None where there was none."""
        found = [layer.overflow for layer in self.layers]
        return None if None in found else [int(each) for each in found if each is not None]

    @property
    def input_activity(self) -> Optional[float]:
        """Mean spikes per neuron and step of the input of the last forward; None where it ran as a dense tensor."""
        return None if self._input is None or self._input.device.type == "meta" else self._input.activity

    @property
    def input_overflow(self) -> int:
        """Input spikes beyond ``max_spikes[0]`` (or that the input itself says were dropped) in the last forward."""
        return 0 if self._input is None or self._input.device.type == "meta" else self._input.overflow

    # ---- to and from a stack of nn.Linear + Leaky

    def dense_state_dict(self) -> Dict[str, torch.Tensor]:
        """The ``state_dict`` of ``MultiStep(nn.Linear, Leaky, nn.Linear, Leaky, ...)`` with the same parameters."""
        state: Dict[str, torch.Tensor] = {}
        for index, layer in enumerate(self.layers):
            for name, value in layer.dense_state_dict().items():
                module, _, rest = name.partition(".")
                state[f"{2 * index + int(module)}.{rest}"] = value
        return state

    def load_dense_state_dict(self, state: Dict[str, torch.Tensor]) -> None:
        """The inverse of :meth:`dense_state_dict`; raises ValueError where keys or shapes do not fit."""
        highest = 2 * len(self.layers) - 1
        unknown = sorted(name for name in state if not 0 <= _index(name) <= highest)
        if unknown:
            raise ValueError(f"state must have the modules 0 to {highest}, got {unknown}")
        every = []
        for index, layer in enumerate(self.layers):
            part = {
                f"{_index(name) - 2 * index}.{name.partition('.')[2]}": value
                for name, value in state.items()
                if _index(name) // 2 == index
            }
            try:
                every.append(layer._own_state(part))
            except ValueError as error:
                raise ValueError(f"layer {index}: {error}") from None
        # Not before all of them fit.
        for layer, own in zip(self.layers, every):
            layer._load(own)

    def to_dense(self) -> MultiStep:
        """``MultiStep(nn.Linear, Leaky, ...)`` with the same parameters, which computes the same where no cap binds.

        Raises ValueError for ``delay=1``: ``MultiStep`` hands spikes on within a step.
        """
        if self.delay and len(self.layers) > 1:
            raise ValueError("to_dense: MultiStep hands spikes on within a step, and this network has delay=1")
        return MultiStep(*(module for layer in self.layers for module in layer.to_dense()))

    def extra_repr(self) -> str:
        return f"sizes={self.sizes}, delay={self.delay}"

    def __getstate__(self) -> Dict[str, Any]:
        state = self.__dict__.copy()
        state["_input"] = None
        return state


def _index(name: str) -> int:
    number = name.partition(".")[0]
    return int(number) if number.isdigit() else -1


def _per_entry(name: str, value: Any, count: int, meaning: str) -> List[Any]:
    """``value`` for each of ``count``: itself, or the entries of a list or tuple."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} must have {count} entries, {meaning}, got {len(value)}")
    return list(value)
