"""A fully connected layer of leaky neurons, as in the Open Neuromorphic benchmark, against its size."""

import functools
import math

import torch
from torch.nn import functional

from benchmarks import peers
from benchmarks.case import Case, Contender
from benchmarks.cases import lif

# Fraction of the inputs that spike at each step.
ACTIVITY = 0.1
# Standard deviation of the neurons' current: they spike now and then at the threshold 1.
CURRENT = 0.5
# Weights are integers up to this limit, times a power of two. Their sums are exact in float32 in any order, and the
# integers in TF32, so that all contenders have the same currents.
LARGEST_WEIGHT = 1023


class Work(lif.Work):
    """Random input spikes ``[T, B, n]``, and a matrix product without bias before the neurons.

    Attributes:
        x: the weights ``[n, n]``.
    """

    slack = 10

    def __init__(self, settings):
        self.settings, self.parts = settings, [()]
        self.beta, self.dtype, self.device = settings.beta, settings.dtype, settings.device
        neurons, shape = settings.neurons, (settings.steps, settings.batch_size, settings.neurons)
        options = {"generator": torch.Generator(self.device).manual_seed(settings.seed), "device": self.device}
        self.input = (torch.rand(shape, **options) < ACTIVITY).to(self.dtype)
        integers = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (neurons, neurons), **options)
        spread = math.sqrt(neurons * ACTIVITY / 3) * LARGEST_WEIGHT
        self.x = (integers.to(self.dtype) * 2.0 ** round(math.log2(CURRENT / spread))).requires_grad_()
        self.grad_spk = torch.randn(shape, dtype=self.dtype, **options)
        self.reference = functools.lru_cache(maxsize=1)(self._reference)

    def run(self, forward, leaf, grad_spk, parameters=()):
        return super().run(lambda weight: forward(functional.linear(self.input, weight)), leaf, grad_spk)

    def _leaves(self, x):
        return x, self.grad_spk

    def _flat(self, result):
        """Return a row for each step and sample (for a gradient: for each input), and a column for each neuron."""
        return result.flatten(0, 1) if result.dim() == 3 else result.t()

    _columns = _flat


def contenders(settings):
    work = Work(settings)
    return [
        Contender("snnipu", "snnipu Leaky.sequence", work.sequence),
        Contender("snntorch", "snnTorch loop", work.loop_unbind, "snntorch"),
        Contender(
            "compile",
            "snnTorch step, torch.compile",
            work.compiled,
            "compile",
            "one step is compiled, and a loop in Python calls it",
        ),
        *peers.multi_step_contenders(work.spikingjelly, work.norse),
    ]


CASE = Case(
    summary="Linear layer n × n and LIF neurons over 500 steps, forward + backward, against n",
    work=(
        f"From input spikes [T, B, n], {ACTIVITY:.0%} of them set: one matrix product over all steps, the spikes of "
        "all steps, and from their upstream gradient that of the weights. For every library the product is taken out "
        "of the loop. Threshold 1, reset by subtraction. The sizes are those of the Open Neuromorphic benchmark."
    ),
    title=lambda settings: (
        f"Linear {settings.neurons} × {settings.neurons} and LIF, forward + backward: T={settings.steps} × "
        f"B={settings.batch_size}"
    ),
    contenders=contenders,
    sizes={"steps": 500, "batch_size": 16, "neurons": 512, "beta": 0.9},
    quick={"steps": 60},
    axes=("neurons",),
    repeats=10,
    min_seconds=1.0,
    slow_seconds=0.05,
    on_cuda=tuple({"steps": 500, "batch_size": 16, "neurons": neurons} for neurons in (512, 2048, 4096, 16384)),
)
