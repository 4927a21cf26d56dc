"""LIF alone over a sequence, forward and backward."""

import functools
from typing import Callable, List, Tuple

import snntorch
import torch

import snnipu
from snnipu.benchmarking import peers
from snnipu.benchmarking.case import Case, Contender, Settings, Workload
from snnipu.benchmarking.checks import Check, check_layer, tolerance_for

SUMMARY = "LIF neurons alone over a sequence, forward + backward"
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Forward = Callable[[torch.Tensor], torch.Tensor]
SpikesAndGradient = Tuple[torch.Tensor, torch.Tensor]


def _run(forward: Forward, x: torch.Tensor, grad_spk: torch.Tensor) -> SpikesAndGradient:
    spk = forward(x)
    (grad_x,) = torch.autograd.grad(spk, x, grad_spk)
    return spk, grad_x


def _snntorch_loop(lif: snntorch.Leaky, x: torch.Tensor) -> torch.Tensor:
    mem = lif.reset_mem()
    spk_rec = []
    for step in range(x.shape[0]):
        spk, mem = lif(x[step], mem)
        spk_rec.append(spk)
    return torch.stack(spk_rec)


def _snntorch_loop_unbind(lif: snntorch.Leaky, x: torch.Tensor) -> torch.Tensor:
    mem = lif.reset_mem()
    spk_rec = []
    for cur in x.unbind():
        spk, mem = lif(cur, mem)
        spk_rec.append(spk)
    return torch.stack(spk_rec)


def _snntorch_loop_membrane(lif: snntorch.Leaky, x: torch.Tensor) -> SpikesAndGradient:
    mem = lif.reset_mem()
    spk_rec, mem_rec = [], []
    for step in range(x.shape[0]):
        spk, mem = lif(x[step], mem)
        spk_rec.append(spk)
        mem_rec.append(mem)
    return torch.stack(spk_rec), torch.stack(mem_rec)


def _plain_loop(rule: peers.Rule, x: torch.Tensor) -> torch.Tensor:
    v = torch.zeros_like(x[0])
    spk_rec = []
    for cur in x.unbind():
        spk, v = rule(cur, v)
        spk_rec.append(spk)
    return torch.stack(spk_rec)


def build(settings: Settings) -> Case:
    """The case at the given sizes: ``x`` and the upstream gradient of the spikes are standard normal, ``[T, B, N]``."""
    shape = (settings.steps, settings.batch_size, settings.neurons)
    generator = torch.Generator().manual_seed(settings.seed)
    dtype, device, beta = settings.dtype, settings.device, settings.beta

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x = normal().requires_grad_()
    grad_spk = normal()

    def snntorch_lif() -> snntorch.Leaky:
        return snntorch.Leaky(beta=beta).to(device, dtype)

    @functools.lru_cache(maxsize=1)
    def reference() -> SpikesAndGradient:
        return _run(functools.partial(_snntorch_loop, snntorch_lif()), x, grad_spk)

    def same_as_snntorch(step: Callable[[], Tuple[torch.Tensor, ...]]) -> Callable[[], Check]:
        def check() -> Check:
            spk, grad_x = step()[:2]
            return check_layer(spk, grad_x, *reference(), tolerance_for(dtype, device), "snnTorch")

        return check

    def follows(rule: peers.Rule, run: Callable[[], SpikesAndGradient], data: torch.Tensor) -> Callable[[], Check]:
        def check() -> Check:
            expected = _run(functools.partial(_plain_loop, rule), data, grad_spk)
            tolerance = tolerance_for(dtype, device, same_operations=False)
            return check_layer(*run(), *expected, tolerance, "its own rule")

        return check

    def from_forward(forward: Forward) -> Workload:
        step = functools.partial(_run, forward, x, grad_spk)
        return Workload(step, same_as_snntorch(step))

    def own() -> Workload:
        lif = snnipu.Leaky(beta=beta).to(device, dtype)
        return from_forward(lambda data: lif.sequence(data)[0])

    def membrane() -> Workload:
        lif = snntorch_lif()

        def step() -> Tuple[torch.Tensor, ...]:
            spk, mem = _snntorch_loop_membrane(lif, x)
            (grad_x,) = torch.autograd.grad(spk, x, grad_spk)
            return spk, grad_x, mem

        return Workload(step, same_as_snntorch(step))

    def compile_loop() -> Workload:
        forward = peers.compiled(functools.partial(_snntorch_loop, snntorch_lif()), device)
        step = functools.partial(_run, forward, x, grad_spk)
        return Workload(step, same_as_snntorch(step), peers.compile_seconds(step))

    def spikingjelly() -> Workload:
        lif = peers.spikingjelly_lif(beta).to(device)

        def forward(data: torch.Tensor) -> torch.Tensor:
            lif.reset()
            return lif(data)

        step = functools.partial(_run, forward, x, grad_spk)
        return Workload(step, follows(peers.spikingjelly_rule(beta), step, x))

    def norse() -> Workload:
        lift = peers.norse_lift(peers.norse_lif(beta, dtype, device))
        # norse multiplies its input by 1 - beta: scaled beforehand, its neurons see the currents the others see.
        scaled = (x.detach() / (1 - beta)).requires_grad_()
        step = functools.partial(_run, lambda data: lift(data)[0], scaled, grad_spk)
        return Workload(step, follows(peers.norse_rule(beta), step, scaled))

    contenders: List[Contender] = [
        Contender("snnipu", "snnipu Leaky.sequence", own, ratio_label="snnipu"),
        Contender(
            "snntorch",
            "snnTorch loop",
            lambda: from_forward(functools.partial(_snntorch_loop, snntorch_lif())),
            peer="snntorch",
            note="its usual loop: lif(x[step], mem), then torch.stack of the spikes",
        ),
        Contender(
            "snntorch-unbind",
            "snnTorch loop, x.unbind()",
            lambda: from_forward(functools.partial(_snntorch_loop_unbind, snntorch_lif())),
            peer="snntorch",
            note="tuned by hand: the gradients of the steps are stacked once, not added up in a full-size tensor each",
        ),
        Contender(
            "snntorch-membrane",
            "snnTorch loop, spk and mem",
            membrane,
            peer="snntorch",
            note="records and stacks the membrane too: what Leaky.sequence returns",
        ),
        Contender("compile", "snnTorch loop, torch.compile", compile_loop, peer="compile"),
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            spikingjelly,
            peer="spikingjelly",
            note="LIFNode resets in the step of the spike, snnTorch in the next one: the same work, other numbers",
        ),
        Contender(
            "norse",
            "norse LIFBoxCell, Lift",
            norse,
            peer="norse",
            note="resets in the step of the spike, with gradient through the reset; norse's SuperSpike surrogate",
        ),
    ]
    return Case(
        name="lif",
        title=f"LIF alone, forward + backward: T={shape[0]} × B={shape[1]} × N={shape[2]}",
        caption=(
            "The work: from x [T, B, N], which requires a gradient, and an upstream gradient of the stacked spikes, "
            f"compute the spikes of all steps and the gradient of x. beta {beta}, threshold 1, reset by subtraction."
        ),
        contenders=contenders,
    )
