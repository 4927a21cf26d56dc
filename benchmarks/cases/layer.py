"""A fully connected layer of leaky neurons, as the Open Neuromorphic benchmark has it, against its size."""

import dataclasses
import functools
import math
from typing import Callable, List, Optional, Tuple

import snntorch
import torch
from torch.nn import functional

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Settings, Workload
from benchmarks.checks import Check, check_layer, tolerance_for

SUMMARY = "Linear layer n × n and LIF neurons over 500 steps, forward + backward, against n"
DTYPES = (torch.float32,)
FULL = {"steps": 500, "batch_size": 16, "neurons": 512, "repeats": 10, "min_seconds": 1.0}
QUICK = {"steps": 60, "batch_size": 2, "neurons": 32, "repeats": 2, "min_seconds": 0.0}
SIZES_ON_CUDA = (512, 2048, 4096, 16384)
_SLOW_SECONDS = 0.05
# Share of the inputs that spike at each step.
_ACTIVITY = 0.1
# Standard deviation of the neurons' current, of which they spike now and then at the threshold 1.
_CURRENT = 0.5
# Weights are whole numbers up to this, times a power of two: sums of any of them in any order are exact in float32
# (and the numbers are TF32's), so that all contenders see the same currents.
_LARGEST_WEIGHT = 1023

Layer = Callable[[torch.Tensor], torch.Tensor]
Step = Callable[[torch.Tensor, torch.Tensor], Tuple[torch.Tensor, torch.Tensor]]
SpikesAndGradient = Tuple[torch.Tensor, torch.Tensor]


def variants(settings: Settings) -> List[Settings]:
    """The tables where no sizes were asked for: on a GPU from 512 to 16384 neurons."""
    if settings.device.type != "cuda":
        return [settings]
    return [dataclasses.replace(settings, neurons=neurons) for neurons in SIZES_ON_CUDA]


def build(settings: Settings) -> Case:
    """The case at the given sizes: random spikes ``[T, B, n]`` in, weights ``[n, n]``, no bias."""
    steps, batch_size, neurons = settings.steps, settings.batch_size, settings.neurons
    dtype, device, beta = settings.dtype, settings.device, settings.beta

    @functools.lru_cache(maxsize=1)
    def data() -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Input spikes, weights and the upstream gradient of the spikes."""
        generator = torch.Generator(device).manual_seed(settings.seed)
        shape = (steps, batch_size, neurons)
        spikes = (torch.rand(shape, generator=generator, device=device) < _ACTIVITY).to(dtype)
        whole = torch.randint(
            -_LARGEST_WEIGHT, _LARGEST_WEIGHT + 1, (neurons, neurons), generator=generator, device=device
        )
        spread = math.sqrt(neurons * _ACTIVITY / 3) * _LARGEST_WEIGHT
        weight = whole.to(dtype) * 2.0 ** round(math.log2(_CURRENT / spread))
        return spikes, weight.requires_grad_(), torch.randn(shape, generator=generator, device=device, dtype=dtype)

    def run(layer: Layer) -> SpikesAndGradient:
        """``layer`` makes spikes of the input spikes."""
        x, weight, upstream = data()
        spk = layer(x)
        (gradient,) = torch.autograd.grad(spk, weight, upstream)
        return spk, gradient

    def linear(x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, data()[1])

    def snntorch_lif() -> snntorch.Leaky:
        return snntorch.Leaky(beta=beta).to(device, dtype)

    def snntorch_layer(lif: Step, start: Callable[[], torch.Tensor]) -> Layer:
        def layer(x: torch.Tensor) -> torch.Tensor:
            mem = start()
            spk_rec = []
            for cur in linear(x).unbind():
                spk, mem = lif(cur, mem)
                spk_rec.append(spk)
            return torch.stack(spk_rec)

        return layer

    @functools.lru_cache(maxsize=1)
    def reference() -> SpikesAndGradient:
        lif = snntorch_lif()
        return run(snntorch_layer(lif, lif.reset_mem))

    def compare(actual: SpikesAndGradient, expected: SpikesAndGradient, against: str, same_operations: bool) -> Check:
        """A neuron's spikes and the gradient of its weights."""
        tolerance = tolerance_for(dtype, device, same_operations)
        (spk, gradient), (reference_spk, reference_gradient) = actual, expected
        rows = (spk.flatten(0, 1), gradient.t(), reference_spk.flatten(0, 1), reference_gradient.t())
        return check_layer(*rows, dataclasses.replace(tolerance, gradient=10 * tolerance.gradient), against)

    def workload(layer: Layer, compile_time: bool = False) -> Workload:
        step = functools.partial(run, layer)
        seconds = peers.compile_seconds(step) if compile_time else None
        return Workload(step, lambda: compare(step(), reference(), "snnTorch", True), seconds)

    def follows(rule: peers.Rule, layer: Layer, scale: float = 1.0) -> Workload:
        """A library whose neuron is another function: against its rule in plain PyTorch."""
        step = functools.partial(run, layer)

        def plain(x: torch.Tensor) -> torch.Tensor:
            currents = linear(x) * scale
            v = torch.zeros_like(currents[0])
            spk_rec = []
            for cur in currents.unbind():
                spk, v = rule(cur, v)
                spk_rec.append(spk)
            return torch.stack(spk_rec)

        return Workload(step, lambda: compare(step(), run(plain), "its own rule", False))

    def own() -> Workload:
        lif = snnipu.Leaky(beta=beta).to(device, dtype)
        return workload(lambda x: lif.sequence(linear(x))[0])

    def snntorch_loop() -> Workload:
        lif = snntorch_lif()
        return workload(snntorch_layer(lif, lif.reset_mem))

    def compiled_step() -> Workload:
        lif = snntorch_lif()
        step = peers.compiled(lambda cur, mem: lif(cur, mem), device)
        return workload(snntorch_layer(step, lif.reset_mem), compile_time=True)

    def spikingjelly(backend: Optional[str] = None) -> Workload:
        lif = peers.spikingjelly_lif(beta, backend=backend).to(device)

        def layer(x: torch.Tensor) -> torch.Tensor:
            lif.reset()
            return lif(linear(x))

        return follows(peers.spikingjelly_rule(beta), layer)

    def norse() -> Workload:
        lift = peers.norse_lift(peers.norse_lif(beta, dtype, device))
        # norse multiplies its input by 1 - beta.
        scale = 1 / (1 - beta)
        return follows(peers.norse_rule(beta), lambda x: lift(linear(x) * scale)[0], scale)

    contenders = [
        Contender("snnipu", "snnipu Leaky.sequence", own, ratio_label="snnipu"),
        Contender("snntorch", "snnTorch loop", snntorch_loop, peer="snntorch"),
        Contender(
            "compile",
            "snnTorch step, torch.compile",
            compiled_step,
            peer="compile",
            note="one step is compiled, and a loop in Python calls it",
        ),
        *peers.multi_step_contenders(spikingjelly, norse, device),
    ]
    return Case(
        name="layer",
        title=f"Linear {neurons} × {neurons} and LIF, forward + backward: T={steps} × B={batch_size}",
        caption=(
            f"The work: from input spikes [T, B, n], {_ACTIVITY:.0%} of them set, one matrix product over all steps, "
            "the spikes of all steps, and from their upstream gradient that of the weights: for every library the "
            f"product is taken out of the loop. beta {beta}, threshold 1, reset by subtraction. The sizes are those of "
            "the Open Neuromorphic benchmark."
        ),
        contenders=contenders,
        parameters={"steps": steps, "batch_size": batch_size, "neurons": neurons},
        slow_seconds=_SLOW_SECONDS,
    )
