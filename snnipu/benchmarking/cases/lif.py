"""LIF alone over a sequence, forward and backward."""

import dataclasses
import functools
from typing import Callable, List, Optional, Tuple

import snntorch
import torch

import snnipu
from snnipu.benchmarking import peers
from snnipu.benchmarking.case import Case, Contender, Settings, Workload
from snnipu.benchmarking.checks import Check, check_layer, tolerance_for

SUMMARY = "LIF neurons alone over a sequence, forward + backward"
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# On a GPU a contender that takes longer takes part in fewer rounds: a loop over 500 steps starts thousands of kernels.
_SLOW_SECONDS_ON_CUDA = 0.05

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


def _snntorch_compiled_steps(lif: snntorch.Leaky, device: torch.device) -> Forward:
    """The loop in Python over a compiled step."""
    step = peers.compiled(lambda cur, mem: lif(cur, mem), device)

    def forward(x: torch.Tensor) -> torch.Tensor:
        mem = lif.reset_mem()
        spk_rec = []
        for cur in x.unbind():
            spk, mem = step(cur, mem)
            spk_rec.append(spk)
        return torch.stack(spk_rec)

    return forward


def _plain_loop(rule: peers.Rule, x: torch.Tensor) -> torch.Tensor:
    v = torch.zeros_like(x[0])
    spk_rec = []
    for cur in x.unbind():
        spk, v = rule(cur, v)
        spk_rec.append(spk)
    return torch.stack(spk_rec)


def variants(settings: Settings) -> List[Settings]:
    """The tables where no sizes were asked for: on a GPU wide layers in half precision, and a long sequence."""
    if settings.device.type != "cuda":
        return [settings]
    return [
        dataclasses.replace(settings, steps=32, batch_size=64, neurons=65536, dtype=torch.float16),
        dataclasses.replace(settings, steps=500, batch_size=16, neurons=4096, dtype=torch.float32),
    ]


def copy_of_least_traffic(x: torch.Tensor) -> Workload:
    """As many bytes as the work on ``x`` moves at least, copied by PyTorch.

    Six sequences: forward reads x and writes spikes and membranes; backward reads the membranes and the gradient of the
    spikes, and writes the gradient of x. A copy reads one and writes one.
    """
    source = x.detach().unsqueeze(0).expand(3, *x.shape).contiguous()

    def check() -> Check:
        return Check(torch.equal(source.clone(), source), "itself", "a copy")

    return Workload(lambda: source.clone(), check)


def build(settings: Settings) -> Case:
    """The case at the given sizes: ``x`` and the upstream gradient of the spikes are standard normal, ``[T, B, N]``."""
    shape = (settings.steps, settings.batch_size, settings.neurons)
    dtype, device, beta = settings.dtype, settings.device, settings.beta
    generator = torch.Generator(device).manual_seed(settings.seed)

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

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

    whole_loop = settings.steps <= peers.LONGEST_COMPILED_LOOP

    def compile_loop() -> Workload:
        lif = snntorch_lif()
        forward = (
            peers.compiled(functools.partial(_snntorch_loop, lif), device)
            if whole_loop
            else _snntorch_compiled_steps(lif, device)
        )
        step = functools.partial(_run, forward, x, grad_spk)
        return Workload(step, same_as_snntorch(step), peers.compile_seconds(step))

    def spikingjelly(backend: Optional[str] = None) -> Workload:
        lif = peers.spikingjelly_lif(beta, backend=backend).to(device)

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
        Contender(
            "compile",
            f"snnTorch {'loop' if whole_loop else 'step'}, torch.compile",
            compile_loop,
            peer="compile",
            note="" if whole_loop else "one step is compiled, and a loop in Python calls it",
        ),
        *peers.multi_step_contenders(spikingjelly, norse, device),
    ]
    contenders.append(
        Contender(
            "copy",
            "copy of as many bytes",
            lambda: copy_of_least_traffic(x),
            peer="copy",
            note="the least the work reads and writes is six sequences: its time over a row's is that row's share of "
            "the bandwidth of a copy",
        )
    )
    element_type = "" if dtype == torch.float32 else f", {str(dtype).replace('torch.', '')}"
    return Case(
        name="lif",
        title=f"LIF alone, forward + backward: T={shape[0]} × B={shape[1]} × N={shape[2]}{element_type}",
        caption=(
            "The work: from x [T, B, N], which requires a gradient, and an upstream gradient of the stacked spikes, "
            f"compute the spikes of all steps and the gradient of x. beta {beta}, threshold 1, reset by subtraction."
        ),
        contenders=contenders,
        parameters={
            "steps": shape[0],
            "batch_size": shape[1],
            "neurons": shape[2],
            "dtype": str(dtype).replace("torch.", ""),
        },
        slow_seconds=_SLOW_SECONDS_ON_CUDA if device.type == "cuda" else None,
    )
