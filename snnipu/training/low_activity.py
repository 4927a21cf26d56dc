"""Help for training at low activity, when few neurons spike.

A second threshold that rises, initial weights scaled to an activity of each layer, and a loss on rates that are too low
or too high.
"""

import math
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from snnipu.neurons import SparseNetwork
from snnipu.neurons.sparse_leaky import SparseNeurons
from snnipu.ops._sparse_layers import delayed
from snnipu.spikes import SparseSpikes
from snnipu.training.config import check_positive_int, is_number

PerLayer = Union[float, Sequence[Optional[float]], None]
# The scale is at most 2**20 and at least 2**-20.
_WIDEST = 2.0**20


class GradThresholdSchedule:
    r"""A schedule that raises the second threshold of a network while it trains.

    .. math::

        g_k = g_\infty + (g_0 - g_\infty)\, 2^{-\lfloor k / n \rfloor}

    after :math:`k` calls of :meth:`step`. At :math:`g_0 = -100` almost every neuron has a gradient, as far as there are
    slots. Near :math:`g_\infty = 0.9` only neurons close to the firing threshold have one.

    .. code-block:: python

        schedule = GradThresholdSchedule(network, every=50)
        for x, labels in batches:
            ...
            optimizer.step()
            schedule.step()

    Args:
        network: a module. The schedule sets ``grad_threshold`` of all its event-driven layers of neurons, at once and
            in each :meth:`step`.
        start: :math:`g_0`, in the unit of the membrane; at most ``target``.
        target: :math:`g_\infty`.
        every: :math:`n`, calls of :meth:`step` between two halvings of the distance.

    Attributes:
        value: the present second threshold.

    Raises:
        TypeError, ValueError: the message starts with the argument's name.

    Source: Gruen et al., "Sparse spiking neural networks on the IPU", arXiv 2311.04386, 2023.
    """

    def __init__(self, network: nn.Module, start: float = -100.0, target: float = 0.9, every: int = 1) -> None:
        if not isinstance(network, nn.Module):
            raise TypeError(f"network: expected a module, got {type(network).__name__}")
        self._layers = [module for module in network.modules() if isinstance(module, SparseNeurons)]
        if not self._layers:
            raise ValueError("network: expected a module with SparseLeaky or SparseConvLeaky layers, got one without")
        for name, value in (("start", start), ("target", target)):
            if not is_number(value) or not math.isfinite(value):
                raise ValueError(f"{name}: expected a finite number, got {value!r}")
        if start > target:
            raise ValueError(f"start: expected a number up to target={target:g}, got {start:g}")
        check_positive_int("every", every)
        self.start, self.target, self.every = float(start), float(target), every
        self._calls = 0
        self._apply()

    @property
    def value(self) -> float:
        # 0.5**k underflows to 0; 2.0**k would raise OverflowError.
        return self.target + (self.start - self.target) * 0.5 ** (self._calls // self.every)

    def _apply(self) -> None:
        for layer in self._layers:
            layer.grad_threshold = self.value

    def step(self) -> float:
        """Count a batch or an epoch as done; return the second threshold of the next."""
        self._calls += 1
        self._apply()
        return self.value

    def state_dict(self) -> Dict[str, Any]:
        """Return the number of calls; the settings are the constructor's."""
        return {"calls": self._calls}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Resume from ``state``, the result of :meth:`state_dict`."""
        self._calls = int(state["calls"])
        self._apply()


class LayerScale(NamedTuple):
    """The result of :func:`scale_to_activity` for a layer.

    Attributes:
        scale: factor by which the weight was multiplied.
        before: mean spikes per neuron and step with the old weight, 0 to 1.
        activity: mean spikes per neuron and step with the new weight.
        target: the requested activity; None: the layer was not scaled.
        reached: True if ``activity`` is within the tolerance of ``target``.
    """

    scale: float
    before: float
    activity: float
    target: Optional[float]
    reached: bool


@torch.no_grad()
def scale_to_activity(
    network: SparseNetwork,
    x: Union[torch.Tensor, SparseSpikes],
    target: Union[float, Sequence[Optional[float]]] = 0.05,
    *,
    tolerance: float = 0.05,
    max_iterations: int = 40,
) -> List[LayerScale]:
    r"""Scale the weights of a network, layer by layer, until each layer has a given activity on a batch.

    The input of layer :math:`l` are the spikes of the previous layers with their new weights. Then

    .. math::

        W_l \leftarrow c\, W_l, \qquad \Big| \frac{1}{T B N_l} \sum_{tbn} s_{tbn}(c\,W_l) - a \Big| \le \epsilon\, a

    where :math:`c` is doubled or halved until :math:`a` lies between two scales, and then found by bisection of
    :math:`\log c`. All spikes are counted: ``max_spikes`` and ``grad_threshold`` have no effect. Silent layers begin to
    spike. Biases are not changed.

    Args:
        network: changed in place.
        x: a batch of input spikes, SparseSpikes or a dense ``[T, B, sizes[0]]`` (for a network of maps also
            ``[T, B, C, H, W]``), on the network's device.
        target: :math:`a`, mean spikes per neuron and step, above 0 and below 1. A number for all layers, or one entry
            for each layer; layers with None are not scaled.
        tolerance: :math:`\epsilon`, relative.
        max_iterations: maximum number of measured activities for each layer.

    Returns:
        One :class:`LayerScale` for each layer.

    Raises:
        TypeError, ValueError: a wrong argument, or a layer whose input is silent, so that no weight makes it spike; the
            message names the argument and the layer.

    Warns:
        RuntimeWarning: a target was not reached, such as high activities with weights of mean zero. The closest scale
            is used.

    Source: layer-sequential scaling is that of LSUV: Mishkin & Matas, "All you need is a good init", ICLR 2016. Spiking
    activity replaces the variance: Gruen et al., arXiv 2311.04386, 2023.
    """
    if not isinstance(network, SparseNetwork):
        raise TypeError(f"network: expected a SparseNetwork, got {type(network).__name__}")
    targets = _per_layer("target", target, len(network.layers))
    for layer_target in targets:
        if layer_target is not None and not (is_number(layer_target) and 0 < layer_target < 1):
            raise ValueError(f"target: expected numbers above 0 and below 1, got {layer_target!r}")
    if not (is_number(tolerance) and tolerance > 0):
        raise ValueError(f"tolerance: expected a number above 0, got {tolerance!r}")
    check_positive_int("max_iterations", max_iterations)
    spikes = x.to_dense() if isinstance(x, SparseSpikes) else x
    if not isinstance(spikes, torch.Tensor):
        raise TypeError(f"x: expected SparseSpikes or a torch.Tensor, got {type(x).__name__}")
    if spikes.dim() == 5:
        spikes = spikes.flatten(2)
    if spikes.dim() != 3 or spikes.shape[2] != network.sizes[0] or 0 in spikes.shape:
        raise ValueError(f"x: expected a non-empty [T, B, {network.sizes[0]}], got {tuple(spikes.shape)}")

    done = []
    for index, (layer, layer_target) in enumerate(zip(network.layers, targets)):
        # The product is linear in the scale, so it is computed once.
        current = layer.weighted(spikes) * layer.input_scale
        current = delayed(current, network.delay if index else 0)
        if layer_target is not None and not bool(current.any()):
            raise ValueError(
                f"x: layer {index} cannot be scaled, its input current is 0 throughout: "
                + ("the batch is silent" if index == 0 else f"layer {index - 1} is silent on it")
            )
        result = _find_scale(layer, current, layer_target, tolerance, max_iterations)
        if not result.reached:
            warnings.warn(
                f"layer {index}: scaling its weight reached an activity of {result.activity:.3g} instead of "
                f"{layer_target:.3g}; the scale is {result.scale:.3g}",
                RuntimeWarning,
                stacklevel=3,
            )
        layer.weight.mul_(result.scale)
        spikes = network.pooled_densely(index, _spikes(layer, current, result.scale))
        done.append(result)
    return done


def _spikes(layer: SparseNeurons, current: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the layer's spikes ``[T, B, N]`` with its weight multiplied by ``scale``."""
    return layer.stepped(current * scale).spk


def _find_scale(
    layer: SparseNeurons, current: torch.Tensor, target: Optional[float], tolerance: float, max_iterations: int
) -> LayerScale:
    def measure(scale: float) -> float:
        return float(_spikes(layer, current, scale).mean())

    before = measure(1.0)
    if target is None:
        return LayerScale(1.0, before, before, None, True)
    best: Tuple[float, float] = (1.0, before)
    low, high = (1.0, None) if before < target else (None, 1.0)
    for _ in range(max_iterations - 1):
        if abs(best[1] - target) <= tolerance * target:
            break
        if high is None:
            assert low is not None
            scale = 2 * low
        else:
            scale = high / 2 if low is None else math.sqrt(low * high)
        if not 1 / _WIDEST <= scale <= _WIDEST or scale in (low, high):
            break
        activity = measure(scale)
        if activity < target:
            low = scale
        else:
            high = scale
        if abs(activity - target) < abs(best[1] - target):
            best = scale, activity
    return LayerScale(best[0], before, best[1], target, abs(best[1] - target) <= tolerance * target)


class ActivityRegularizer(nn.Module):
    r"""A loss on neurons that spike too rarely or too often.

    .. math::

        L = \sum_l \frac{\lambda_l}{N_l} \sum_n \big[\max(0,\, r_{ln} - r^+_l)^2 + \max(0,\, r^-_l - r_{ln})^2\big],
        \qquad r_{ln} = \frac{1}{T B} \sum_{tb} s_{tbln}

    in spikes per neuron and step. The gradient flows through ``SparseSpikes.values``, that is through the slots with a
    gradient. So the lower bound helps a silent neuron only while its membrane is above the second threshold.

    .. code-block:: python

        regularizer = ActivityRegularizer(lower=0.001, upper=0.05, strength=10.0)
        *hidden, out = network(x, all_layers=True)
        loss = torch.nn.functional.cross_entropy(out.spike_count(), labels) + regularizer(hidden)

    Args:
        lower: :math:`r^-`, 0 to 1; None: no lower bound. A number for all layers, or one entry for each layer.
        upper: :math:`r^+`, 0 to 1; None: no upper bound. A number or a list, like ``lower``.
        strength: :math:`\lambda`, 0 or more. A number or a list, like ``lower``.

    Raises:
        TypeError, ValueError: the message starts with the argument's name.

    Source: bounds on rates: Zenke & Vogels, "The remarkable robustness of surrogate gradient learning for instilling
    complex function in spiking neural networks", Neural Computation 33(4), 2021. Here they apply to means over batch
    and time.
    """

    def __init__(self, lower: PerLayer = None, upper: PerLayer = None, strength: PerLayer = 1.0) -> None:
        super().__init__()
        self.lower, self.upper, self.strength = lower, upper, strength
        for name, highest in (("lower", 1.0), ("upper", 1.0), ("strength", math.inf)):
            value: Any = getattr(self, name)
            for entry in value if isinstance(value, (list, tuple)) else [value]:
                if entry is None and name != "strength":
                    continue
                if not is_number(entry) or not 0 <= entry <= highest:
                    raise ValueError(f"{name}: expected numbers from 0 to {highest:g}, got {entry!r}")

    def forward(
        self, layers: Union[SparseSpikes, torch.Tensor, Sequence[Union[SparseSpikes, torch.Tensor]]]
    ) -> torch.Tensor:
        """Return the loss, a scalar, for the spikes of one or more layers, SparseSpikes or dense ``[T, B, N]``."""
        if isinstance(layers, (SparseSpikes, torch.Tensor)):
            layers = [layers]
        if not isinstance(layers, (list, tuple)) or not layers:
            raise TypeError(f"layers: expected SparseSpikes or a list of one or more, got {layers!r}")
        bounds = [_per_layer(name, getattr(self, name), len(layers)) for name in ("lower", "upper", "strength")]
        total: Optional[torch.Tensor] = None
        for spikes, lower, upper, strength in zip(layers, *bounds):
            rate = _rate(spikes)
            excess = torch.zeros_like(rate)
            if upper is not None:
                excess = excess + (rate - upper).clamp(min=0) ** 2
            if lower is not None:
                excess = excess + (lower - rate).clamp(min=0) ** 2
            term = strength * excess.mean()
            total = term if total is None else total + term
        assert total is not None
        return total

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}, strength={self.strength}"


def _rate(spikes: object) -> torch.Tensor:
    """Return the mean spikes per step of each neuron ``[N]``, over batch and time."""
    if isinstance(spikes, SparseSpikes):
        return spikes.spike_count().sum(0) / max(spikes.num_steps * spikes.batch_size, 1)
    if isinstance(spikes, torch.Tensor) and spikes.dim() == 3:
        return spikes.mean((0, 1))
    given_type = tuple(spikes.shape) if isinstance(spikes, torch.Tensor) else type(spikes).__name__
    raise TypeError(f"layers: expected SparseSpikes or dense [T, B, N] entries, got {given_type}")


def _per_layer(name: str, value: Any, count: int) -> List[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name}: expected {count} entries, one for each layer, got {len(value)}")
    return list(value)


__all__ = ["ActivityRegularizer", "GradThresholdSchedule", "LayerScale", "scale_to_activity"]
