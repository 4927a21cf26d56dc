"""LIF alone over a sequence, forward and backward."""

import functools
from dataclasses import replace
from typing import Callable, List, Optional, Tuple

import snntorch
import torch

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Settings, Workload
from benchmarks.checks import Check, Tolerance, check_layer_parts, tolerance_for

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
        replace(settings, steps=32, batch_size=64, neurons=65536, dtype=torch.float16),
        replace(settings, steps=500, batch_size=16, neurons=4096, dtype=torch.float32),
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


def caption(beta: float) -> str:
    """What is done, as a sentence."""
    return (
        "The work: from x [T, B, N], which requires a gradient, and an upstream gradient of the stacked spikes, "
        f"compute the spikes of all steps and the gradient of x. beta {beta}, threshold 1, reset by subtraction."
    )


class Work:
    """The same input for every contender, what each of them does with it, and what must come out.

    Attributes:
        x, grad_spk: the input and the upstream gradient of its spikes, ``[T, B, N]``, standard normal.
    """

    def __init__(self, settings: Settings, part: Optional[int] = None) -> None:
        """``part``: about so many elements of x are compared with their reference at a time; None: all."""
        self.settings = settings
        self.shape = (settings.steps, settings.batch_size, settings.neurons)
        self.beta, self.dtype, self.device = settings.beta, settings.dtype, settings.device
        generator = torch.Generator(self.device).manual_seed(settings.seed)

        def normal() -> torch.Tensor:
            return torch.randn(self.shape, generator=generator, device=self.device).to(self.dtype)

        self.x = normal().requires_grad_()
        self.grad_spk = normal()
        columns = settings.batch_size * settings.neurons
        width = columns if part is None else min(columns, max(1, part // settings.steps))
        self.parts = [(start, min(start + width, columns)) for start in range(0, columns, width)]
        # Contenders that are compared with the same reference share it while there is one part.
        self._reference = functools.lru_cache(maxsize=1)(self._run_reference)

    def _columns(self, sequence: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Some of the neurons of all samples, ``[T, stop - start]``."""
        return sequence.detach().flatten(1)[:, start:stop]

    def _run_reference(self, start: int, stop: int) -> SpikesAndGradient:
        x = self._columns(self.x, start, stop).clone().requires_grad_()
        grad_spk = self._columns(self.grad_spk, start, stop)
        # Over x[step] it takes time in proportion to the square of the steps.
        return _run(functools.partial(_snntorch_loop_unbind, self.snntorch_lif()), x, grad_spk)

    def _check(
        self,
        results: SpikesAndGradient,
        reference: Callable[[int, int], SpikesAndGradient],
        tolerance: Tolerance,
        against: str,
    ) -> Check:
        for result in results:
            if result.shape != self.shape:
                raise ValueError(f"expected results of shape {self.shape}, got {tuple(result.shape)}")
        parts = (
            (*(self._columns(result, start, stop) for result in results), *reference(start, stop))
            for start, stop in self.parts
        )
        return check_layer_parts(parts, tolerance, against)  # type: ignore[arg-type]

    def _same_as_snntorch(self, step: Callable[[], Tuple[torch.Tensor, ...]]) -> Callable[[], Check]:
        def check() -> Check:
            spk, grad_x = step()[:2]
            return self._check((spk, grad_x), self._reference, tolerance_for(self.dtype, self.device), "snnTorch")

        return check

    def _follows(
        self, rule: peers.Rule, step: Callable[[], SpikesAndGradient], data: torch.Tensor
    ) -> Callable[[], Check]:
        def expected(start: int, stop: int) -> SpikesAndGradient:
            x = self._columns(data, start, stop).clone().requires_grad_()
            return _run(functools.partial(_plain_loop, rule), x, self._columns(self.grad_spk, start, stop))

        def check() -> Check:
            tolerance = tolerance_for(self.dtype, self.device, same_operations=False)
            return self._check(step(), expected, tolerance, "its own rule")

        return check

    def snntorch_lif(self) -> snntorch.Leaky:
        return snntorch.Leaky(beta=self.beta).to(self.device, self.dtype)

    def _forward(self, forward: Forward) -> Workload:
        step = functools.partial(_run, forward, self.x, self.grad_spk)
        return Workload(step, self._same_as_snntorch(step))

    def sequence(self) -> Workload:
        """``snnipu.Leaky.sequence``."""
        lif = snnipu.Leaky(beta=self.beta).to(self.device, self.dtype)
        return self._forward(lambda data: lif.sequence(data)[0])

    def spikes(self) -> Workload:
        """``snnipu.Leaky.spikes``."""
        return self._forward(snnipu.Leaky(beta=self.beta).to(self.device, self.dtype).spikes)

    def loop(self) -> Workload:
        """snnTorch's loop over ``x[step]``."""
        return self._forward(functools.partial(_snntorch_loop, self.snntorch_lif()))

    def loop_unbind(self) -> Workload:
        """snnTorch's loop over ``x.unbind()``."""
        return self._forward(functools.partial(_snntorch_loop_unbind, self.snntorch_lif()))

    def loop_membrane(self) -> Workload:
        """snnTorch's loop over ``x[step]`` that stacks the membranes too."""
        lif = self.snntorch_lif()

        def step() -> Tuple[torch.Tensor, ...]:
            spk, mem = _snntorch_loop_membrane(lif, self.x)
            (grad_x,) = torch.autograd.grad(spk, self.x, self.grad_spk)
            return spk, grad_x, mem

        return Workload(step, self._same_as_snntorch(step))

    @property
    def compiles_whole_loop(self) -> bool:
        return self.settings.steps <= peers.LONGEST_COMPILED_LOOP

    def compiled(self) -> Workload:
        """snnTorch's loop, or its step where that would take too long, under ``torch.compile``."""
        lif = self.snntorch_lif()
        forward = (
            peers.compiled(functools.partial(_snntorch_loop, lif), self.device)
            if self.compiles_whole_loop
            else _snntorch_compiled_steps(lif, self.device)
        )
        workload = self._forward(forward)
        return replace(workload, compile_seconds=peers.compile_seconds(workload.step))

    def spikingjelly(self, backend: Optional[str] = None) -> Workload:
        """SpikingJelly's multi-step neuron."""
        lif = peers.spikingjelly_lif(self.beta, backend=backend).to(self.device)

        def forward(data: torch.Tensor) -> torch.Tensor:
            lif.reset()
            return lif(data)

        step = functools.partial(_run, forward, self.x, self.grad_spk)
        return Workload(step, self._follows(peers.spikingjelly_rule(self.beta), step, self.x))

    def norse(self) -> Workload:
        """norse's neuron over the sequence."""
        lift = peers.norse_lift(peers.norse_lif(self.beta, self.dtype, self.device))
        # norse multiplies its input by 1 - beta: scaled beforehand, its neurons see the currents the others see.
        scaled = (self.x.detach() / (1 - self.beta)).requires_grad_()
        step = functools.partial(_run, lambda data: lift(data)[0], scaled, self.grad_spk)
        return Workload(step, self._follows(peers.norse_rule(self.beta), step, scaled))


def build(settings: Settings) -> Case:
    """The case at the given sizes: ``x`` and the upstream gradient of the spikes are standard normal, ``[T, B, N]``."""
    work = Work(settings)
    shape, dtype, device, beta = work.shape, work.dtype, work.device, work.beta
    contenders: List[Contender] = [
        Contender("snnipu", "snnipu Leaky.sequence", work.sequence, ratio_label="snnipu"),
        Contender(
            "snntorch",
            "snnTorch loop",
            work.loop,
            peer="snntorch",
            note="its usual loop: lif(x[step], mem), then torch.stack of the spikes",
        ),
        Contender(
            "snntorch-unbind",
            "snnTorch loop, x.unbind()",
            work.loop_unbind,
            peer="snntorch",
            note="tuned by hand: the gradients of the steps are stacked once, not added up in a full-size tensor each",
        ),
        Contender(
            "snntorch-membrane",
            "snnTorch loop, spk and mem",
            work.loop_membrane,
            peer="snntorch",
            note="records and stacks the membrane too: what Leaky.sequence returns",
        ),
        Contender(
            "compile",
            f"snnTorch {'loop' if work.compiles_whole_loop else 'step'}, torch.compile",
            work.compiled,
            peer="compile",
            note="" if work.compiles_whole_loop else "one step is compiled, and a loop in Python calls it",
        ),
        *peers.multi_step_contenders(work.spikingjelly, work.norse, device),
    ]
    contenders.append(
        Contender(
            "copy",
            "copy of as many bytes",
            lambda: copy_of_least_traffic(work.x),
            peer="copy",
            note="the least the work reads and writes is six sequences: its time over a row's is that row's share of "
            "the bandwidth of a copy",
        )
    )
    element_type = "" if dtype == torch.float32 else f", {str(dtype).replace('torch.', '')}"
    return Case(
        name="lif",
        title=f"LIF alone, forward + backward: T={shape[0]} × B={shape[1]} × N={shape[2]}{element_type}",
        caption=caption(beta),
        contenders=contenders,
        parameters={
            "steps": shape[0],
            "batch_size": shape[1],
            "neurons": shape[2],
            "dtype": str(dtype).replace("torch.", ""),
        },
        slow_seconds=_SLOW_SECONDS_ON_CUDA if device.type == "cuda" else None,
    )
