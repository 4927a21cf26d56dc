"""Randman: random manifolds whose coordinates are spike times."""

import math
from typing import Optional, Tuple

import numpy as np
import torch

from snnipu._checks import check_int
from snnipu.datasets.event_data import EventData, EventDataset


class _SpikeTimes:
    """A reader: recording ``i``, in which each neuron spikes once."""

    def __init__(self, steps: np.ndarray) -> None:
        self._steps = steps

    def __call__(self, index: int) -> Tuple[np.ndarray, np.ndarray]:
        return self._steps[index], np.arange(self._steps.shape[1])


def _manifold(
    points: torch.Tensor, neurons: int, alpha: float, cutoff: int, generator: torch.Generator
) -> torch.Tensor:
    """Return a random manifold at ``points`` ``[n, dim]``: float64 ``[n, neurons]``, scaled to 0..1 for each neuron."""
    number, dim = points.shape
    height, rate, phase = torch.rand(3, dim, neurons, cutoff, generator=generator, dtype=torch.float64)
    k = torch.arange(1, cutoff + 1, dtype=torch.float64)
    height, rate = height / k**alpha, rate * k
    values = torch.ones(number, neurons, dtype=torch.float64)
    block = max(1, 2**20 // (number * cutoff))  # neurons of a block, so that its waves take a few MiB
    for start in range(0, neurons, block):
        part = slice(start, start + block)
        for d in range(dim):
            waves = torch.sin(2 * math.pi * (points[:, d, None, None] * rate[d, part] + phase[d, part]))
            values[:, part] *= (waves * height[d, part]).sum(-1)
    low, high = values.min(0).values, values.max(0).values
    return (values - low) / (high - low).clamp(min=torch.finfo(torch.float64).tiny)


def randman(
    num_neurons: int = 128,
    num_classes: int = 10,
    samples_per_class: int = 1000,
    num_steps: int = 100,
    *,
    dim: int = 1,
    alpha: float = 2.0,
    cutoff: Optional[int] = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    cache: bool = True,
) -> EventData:
    r"""Return Randman data: each class is a smooth random manifold in the space of spike times.

    The space has one dimension for each neuron, which spikes once. The time of neuron :math:`i` is coordinate :math:`i`
    of a point of the manifold,

    .. math::
        f_i(x) = \prod_{d=1}^{D} \sum_{k=1}^{K} \frac{a_{idk}}{k^\alpha} \sin(2\pi (k\, b_{idk}\, x_d + c_{idk})),

    with :math:`a, b, c` and the points :math:`x` uniform in 0..1. Each coordinate is scaled to 0..1 over the samples of
    a class. Value :math:`v` becomes step :math:`\min(\lfloor v T \rfloor, T - 1)`. Only spike times distinguish the
    classes, since every neuron spikes once in each class.

    Sample ``i`` of the training or the test set has class ``i % num_classes``. The data depend on the arguments alone.

    Args:
        num_neurons: inputs N.
        num_classes: number of classes.
        samples_per_class: samples of a class, training and test together.
        num_steps: time steps T.
        dim: dimension D of the manifolds.
        alpha: smoothness: a higher value means less fine structure and an easier task.
        cutoff: number of waves K; None: those with :math:`k^{-\alpha}` above 0.001, at most 1000.
        test_fraction: fraction of each class in the test set, between 0 and 1, both excluded.
        seed: seed of the random numbers.
        cache: True: keep binned samples in memory.

    Returns:
        An :class:`EventData`.

    Raises:
        TypeError, ValueError: an argument is out of range.

    Source: Zenke & Vogels, The remarkable robustness of surrogate gradient learning for instilling complex function in
    spiking neural networks, Neural Computation 33 (2021), who give this data set its name. The defaults are those of
    the published runs on sparse networks, arXiv 2311.04386.
    """
    check_int("num_neurons", num_neurons)
    check_int("num_classes", num_classes)
    check_int("samples_per_class", samples_per_class, 2)
    check_int("num_steps", num_steps)
    check_int("dim", dim)
    check_int("cutoff", cutoff, or_none=True)
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha must be a number of 0 or more, got {alpha!r}")
    held_out = round(samples_per_class * test_fraction) if 0 < test_fraction < 1 else 0
    if not 1 <= held_out < samples_per_class:
        raise ValueError(
            f"test_fraction must be between 0 and 1 and leave samples for training and test, got {test_fraction!r} of "
            f"{samples_per_class} per class"
        )
    if cutoff is None:
        # 1000 ** (1 / alpha) overflows if alpha is tiny.
        cutoff = 1000 if alpha <= 1 else math.ceil(1000 ** (1 / alpha))
    generator = torch.Generator().manual_seed(seed)
    steps = []
    for _ in range(num_classes):
        points = torch.rand(samples_per_class, dim, generator=generator, dtype=torch.float64)
        values = _manifold(points, num_neurons, alpha, cutoff, generator)
        steps.append((values * num_steps).long().clamp(max=num_steps - 1))
    by_sample = torch.stack(steps, 1).to(torch.int32).numpy()  # [samples, classes, neurons]

    def part(samples: np.ndarray) -> EventDataset:
        return EventDataset(
            _SpikeTimes(samples.reshape(-1, num_neurons)),
            torch.arange(num_classes).repeat(len(samples)),
            num_steps=num_steps,
            num_neurons=num_neurons,
            cache=cache,
        )

    train = samples_per_class - held_out
    return EventData("randman", part(by_sample[:train]), part(by_sample[train:]), num_neurons, num_steps, num_classes)
