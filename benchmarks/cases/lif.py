"""LIF alone over a sequence, forward and backward."""

import functools
from dataclasses import replace

import snntorch
import torch

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Check, Contender, Workload
from benchmarks.checks import check_layer, tolerance_for

WORK = (
    "From x [T, B, N], which requires a gradient, and an upstream gradient of the stacked spikes: the spikes of all "
    "steps and the gradient of x. Threshold 1, reset by subtraction."
)


def snntorch_loop(neuron, steps, step=None):
    """Return spikes and membranes of all steps."""
    mem = neuron.reset_mem()
    spk_rec, mem_rec = [], []
    for current in steps:
        spk, mem = (step or neuron)(current, mem)
        spk_rec.append(spk)
        mem_rec.append(mem)
    return torch.stack(spk_rec), mem_rec


def indexed(x):
    """Yield ``x[step]``, the usual way to write the loop: each step has a gradient of the size of ``x``."""
    return (x[step] for step in range(x.shape[0]))


class Work:
    """The input of every contender, the work of each of them, and the expected results.

    Attributes:
        x, grad_spk: the input and the upstream gradient of its spikes, ``[T, B, N]``, standard normal.
        slack: factor on a layer's tolerance of gradients.
    """

    slack = 1

    def __init__(self, settings, part=None):
        """Draw the input; ``part`` limits the elements of x that are compared at a time (None: all)."""
        self.settings = settings
        self.shape = (settings.steps, settings.batch_size, settings.neurons)
        self.beta, self.dtype, self.device = settings.beta, settings.dtype, settings.device
        generator = torch.Generator(self.device).manual_seed(settings.seed)
        self.x, self.grad_spk = (
            torch.randn(self.shape, generator=generator, device=self.device).to(self.dtype) for _ in range(2)
        )
        self.x.requires_grad_()
        columns = settings.batch_size * settings.neurons
        width = columns if part is None else min(columns, max(1, part // settings.steps))
        self.parts = [(start, min(start + width, columns)) for start in range(0, columns, width)]
        # Contenders with the same reference share it, unless it has several parts.
        self.reference = functools.lru_cache(maxsize=1)(self._reference)

    def _columns(self, sequence, start, stop):
        """Return some of the neurons of all samples, ``[T, stop - start]``."""
        return sequence.detach().flatten(1)[:, start:stop]

    def _leaves(self, x, *part):
        return self._columns(x, *part).clone().requires_grad_(), self._columns(self.grad_spk, *part)

    def _flat(self, result):
        return result.flatten(1)

    def run(self, forward, leaf, grad_spk, parameters=()):
        """Return the spikes, and the gradients of ``leaf`` and of the neuron's parameters."""
        spk = forward(leaf)
        return (spk, *torch.autograd.grad(spk, [leaf, *parameters], grad_spk))

    def _reference(self, *part):
        neuron = self.neuron(snntorch)
        # unbind: with x[step] the time is proportional to the square of the number of steps.
        return self._expected(lambda x: self.loop_over(neuron, x.unbind()), self.x, *part)

    def _expected(self, forward, x, *part):
        return list(map(self._flat, self.run(forward, *self._leaves(x, *part))))

    def _check(self, results, reference, tolerance, against):
        parts = ((*(self._columns(result, *part) for result in results), *reference(*part)) for part in self.parts)
        return check_layer(parts, tolerance._replace(gradient=self.slack * tolerance.gradient), against)

    def as_snntorch(self, step):
        """Return the workload whose results must be snnTorch's."""
        tolerance = tolerance_for(self.dtype, self.device)
        return Workload(step, lambda: self._check(step()[:2], self.reference, tolerance, "snnTorch"))

    def follows(self, rule, forward, x, states=1):
        """Return the workload of a library with another neuron, which must follow its own update rule."""
        step = functools.partial(self.run, forward, x, self.grad_spk)
        tolerance = tolerance_for(self.dtype, self.device, same_operations=False)

        def expected(*part):
            return self._expected(lambda data: peers.over_time(rule, data, states), x, *part)

        return Workload(step, lambda: self._check(step(), expected, tolerance, "its own rule"))

    def neuron(self, library):
        return library.Leaky(beta=self.beta).to(self.device, self.dtype)

    def loop_over(self, neuron, steps, step=None):
        """Return the spikes of all steps."""
        return snntorch_loop(neuron, steps, step)[0]

    def forward(self, forward, parameters=()):
        return self.as_snntorch(functools.partial(self.run, forward, self.x, self.grad_spk, list(parameters)))

    def sequence(self):
        neuron = self.neuron(snnipu)
        return self.forward(lambda x: neuron.sequence(x)[0], neuron.parameters())

    def spikes(self):
        neuron = self.neuron(snnipu)
        return self.forward(neuron.spikes, neuron.parameters())

    def loop(self, steps=indexed):
        neuron = self.neuron(snntorch)
        return self.forward(lambda x: self.loop_over(neuron, steps(x)), neuron.parameters())

    def loop_unbind(self):
        return self.loop(torch.unbind)

    def loop_membrane(self):
        neuron = self.neuron(snntorch)

        def step():
            spk, mem_rec = snntorch_loop(neuron, indexed(self.x))
            return spk, torch.autograd.grad(spk, self.x, self.grad_spk)[0], torch.stack(mem_rec)

        return self.as_snntorch(step)

    def compiled(self):
        """Return snnTorch's loop under ``torch.compile``, or its step if compiling the loop would take too long."""
        neuron = self.neuron(snntorch)
        if compiles_whole_loop(self.settings):
            forward = peers.compiled(lambda x: self.loop_over(neuron, indexed(x)))
        else:
            step = peers.compiled(lambda current, mem: neuron(current, mem))

            def forward(x):
                return self.loop_over(neuron, x.unbind(), step)

        workload = self.forward(forward)
        return replace(workload, compile_seconds=peers.compile_seconds(workload.step))

    def spikingjelly(self):
        lif = peers.spikingjelly_lif(self.beta).to(self.device)

        def forward(x):
            lif.reset()
            return lif(x)

        return self.follows(peers.spikingjelly_rule(self.beta), forward, self.x)

    def scaled_for_norse(self):
        """Return x over 1 - beta, by which norse multiplies its input: its neurons get the same currents."""
        return (self.x.detach() / (1 - self.beta)).requires_grad_()

    def norse(self):
        lift = peers.norse_lift(peers.norse_lif(self.beta, self.dtype, self.device))
        return self.follows(peers.norse_rule(self.beta), lambda x: lift(x)[0], self.scaled_for_norse())


def compiles_whole_loop(settings):
    return settings.steps <= peers.LONGEST_COMPILED_LOOP


def copy_of_least_traffic(x):
    """Return a copy of the minimum of bytes that the work on ``x`` moves.

    These are six sequences. Forward reads x and writes spikes and membranes. Backward reads the membranes and the
    gradient of the spikes, and writes the gradient of x. A copy reads one sequence and writes one.
    """
    source = x.detach().unsqueeze(0).expand(3, *x.shape).contiguous()
    return Workload(source.clone, lambda: Check(torch.equal(source.clone(), source), "itself", "a copy"))


def contenders(settings):
    work = Work(settings)
    return [
        Contender("snnipu", "snnipu Leaky.sequence", work.sequence, floor="copy"),
        Contender(
            "snntorch",
            "snnTorch loop",
            work.loop,
            "snntorch",
            "its usual loop: lif(x[step], mem), then torch.stack of the spikes",
        ),
        Contender(
            "snntorch-unbind",
            "snnTorch loop, x.unbind()",
            work.loop_unbind,
            "snntorch",
            "tuned by hand: the gradients of the steps are stacked once, not added up in a full-size tensor each",
        ),
        Contender(
            "snntorch-membrane",
            "snnTorch loop, spk and mem",
            work.loop_membrane,
            "snntorch",
            "records and stacks the membrane too: what Leaky.sequence returns",
        ),
        Contender(
            "compile",
            f"snnTorch {'loop' if compiles_whole_loop(settings) else 'step'}, torch.compile",
            work.compiled,
            "compile",
            "where one step is compiled, a loop in Python calls it",
        ),
        *peers.multi_step_contenders(work.spikingjelly, work.norse),
        Contender(
            "copy",
            "copy of as many bytes",
            lambda: copy_of_least_traffic(work.x),
            "copy",
            "the least that the work reads and writes is six sequences",
            "copy",
        ),
    ]


CASE = Case(
    summary="LIF neurons alone over a sequence, forward + backward",
    work=WORK,
    title=lambda settings: (
        f"LIF alone, forward + backward: T={settings.steps} × B={settings.batch_size} × N={settings.neurons}, "
        f"{str(settings.dtype).replace('torch.', '')}"
    ),
    contenders=contenders,
    axes=("steps", "batch_size", "neurons"),
    dtypes=(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    repeats=20,
    min_seconds=5.0,
    # A loop over 500 steps starts thousands of kernels on a GPU.
    slow_seconds=0.25,
    on_cuda=(
        {"steps": 32, "batch_size": 64, "neurons": 65536, "dtype": torch.float16},
        {"steps": 500, "batch_size": 16, "neurons": 4096},
    ),
)
