"""A fully connected layer of leaky neurons, as the Open Neuromorphic benchmark has it, against its size."""

import functools
import math
from typing import Callable

import snntorch
import torch
from torch.nn import functional

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Workload
from benchmarks.cases.lif import snntorch_loop
from benchmarks.checks import check_layer, tolerance_for

# Share of the inputs that spike at each step.
ACTIVITY = 0.1
# Standard deviation of the neurons' current, of which they spike now and then at the threshold 1.
CURRENT = 0.5
# Weights are whole numbers up to this, times a power of two: sums of any of them in any order are exact in float32
# (and the numbers are TF32's), so that all contenders see the same currents.
LARGEST_WEIGHT = 1023

# Makes spikes of currents.
Neurons = Callable[[torch.Tensor], torch.Tensor]


def contenders(settings):
    """Random spikes ``[T, B, n]`` in, weights ``[n, n]``, no bias."""
    neurons, dtype, device, beta = settings.neurons, settings.dtype, settings.device, settings.beta

    @functools.lru_cache(maxsize=1)
    def data():
        """Return input spikes, weights and the upstream gradient of the spikes."""
        generator = torch.Generator(device).manual_seed(settings.seed)
        shape = (settings.steps, settings.batch_size, neurons)
        where = {"generator": generator, "device": device}
        spikes = (torch.rand(shape, **where) < ACTIVITY).to(dtype)
        whole = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (neurons, neurons), **where)
        spread = math.sqrt(neurons * ACTIVITY / 3) * LARGEST_WEIGHT
        weight = whole.to(dtype) * 2.0 ** round(math.log2(CURRENT / spread))
        return spikes, weight.requires_grad_(), torch.randn(shape, dtype=dtype, **where)

    def run(neurons_, scale=1.0):
        x, weight, upstream = data()
        currents = functional.linear(x, weight)
        spk = neurons_(currents if scale == 1 else currents * scale)
        return spk, torch.autograd.grad(spk, weight, upstream)[0]

    def snntorch_lif():
        return snntorch.Leaky(beta=beta).to(device, dtype)

    @functools.lru_cache(maxsize=1)
    def reference():
        lif = snntorch_lif()
        return run(lambda currents: snntorch_loop(lif, currents.unbind())[0])

    def workload(neurons_, rule=None, scale=1.0, compiles=False):
        """Return the workload of a library, whose results must be snnTorch's or follow its own ``rule``."""

        def check():
            expected = reference() if rule is None else run(lambda data: peers.over_time(rule, data), scale)
            tolerance = tolerance_for(dtype, device, rule is None)
            # A neuron's spikes and the gradient of its weights.
            (spk, gradient), (reference_spk, reference_gradient) = run(neurons_, scale), expected
            rows = (spk.flatten(0, 1), gradient.t(), reference_spk.flatten(0, 1), reference_gradient.t())
            tolerance = tolerance._replace(gradient=10 * tolerance.gradient)
            return check_layer([rows], tolerance, "snnTorch" if rule is None else "its own rule")

        step = functools.partial(run, neurons_, scale)
        return Workload(step, check, peers.compile_seconds(step) if compiles else None)

    def own():
        lif = snnipu.Leaky(beta=beta).to(device, dtype)
        return workload(lambda currents: lif.sequence(currents)[0])

    def loop():
        lif = snntorch_lif()
        return workload(lambda currents: snntorch_loop(lif, currents.unbind())[0])

    def compiled_step():
        lif = snntorch_lif()
        step = peers.compiled(lambda current, mem: lif(current, mem), device)
        return workload(lambda currents: snntorch_loop(lif, currents.unbind(), step)[0], compiles=True)

    def spikingjelly(backend=None):
        lif = peers.spikingjelly_lif(beta, backend=backend).to(device)

        def forward(currents):
            lif.reset()
            return lif(currents)

        return workload(forward, peers.spikingjelly_rule(beta))

    def norse():
        lift = peers.norse_lift(peers.norse_lif(beta, dtype, device))
        # norse multiplies its input by 1 - beta.
        return workload(lambda currents: lift(currents)[0], peers.norse_rule(beta), 1 / (1 - beta))

    return [
        Contender("snnipu", "snnipu Leaky.sequence", own),
        Contender("snntorch", "snnTorch loop", loop, "snntorch"),
        Contender(
            "compile",
            "snnTorch step, torch.compile",
            compiled_step,
            "compile",
            "one step is compiled, and a loop in Python calls it",
        ),
        *peers.multi_step_contenders(spikingjelly, norse, device),
    ]


CASE = Case(
    summary="Linear layer n × n and LIF neurons over 500 steps, forward + backward, against n",
    work=(
        f"From input spikes [T, B, n], {ACTIVITY:.0%} of them set: one matrix product over all steps, the spikes of all "
        "steps, and from their upstream gradient that of the weights. For every library the product is taken out of the "
        "loop. Threshold 1, reset by subtraction. The sizes are those of the Open Neuromorphic benchmark."
    ),
    title=lambda settings: (
        f"Linear {settings.neurons} × {settings.neurons} and LIF, forward + backward: T={settings.steps} × "
        f"B={settings.batch_size}"
    ),
    contenders=contenders,
    sizes={"steps": 500, "batch_size": 16, "neurons": 512, "beta": 0.9},
    quick={"steps": 60, "batch_size": 2, "neurons": 32},
    axes=("neurons",),
    repeats=10,
    min_seconds=1.0,
    slow_seconds=0.05,
    on_cuda=tuple({"steps": 500, "batch_size": 16, "neurons": neurons} for neurons in (512, 2048, 4096, 16384)),
)
