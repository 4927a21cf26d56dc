"""A linear layer with a delay for each synapse, and a dense convolution over time.

The work is the forward pass, and the gradients of weights and delays.
"""

import functools

import torch
from torch.nn import functional

from benchmarks import peers
from benchmarks.case import Case, Contender, Workload, cross
from benchmarks.checks import check_close
from benchmarks.sparse_problem import SparseProblem
from snnipu import DelayLinear

TOLERANCE = 1e-4


class Problem(SparseProblem):
    """A layer with as many inputs as neurons, its input and an upstream gradient: the same for every contender."""

    def __init__(self, settings):
        super().__init__(settings)
        neurons = settings.neurons
        self.draw_input(neurons)
        weight = torch.randn(neurons, neurons, generator=self.generator) / neurons**0.5
        # Delays keep away from whole steps, where methods of interpolation have different derivatives. Rounding, as in
        # the positions of dcls, must not move a delay across a whole step.
        whole_steps = torch.randint(settings.longest_delay, (neurons, neurons), generator=self.generator)
        delay = whole_steps + 0.01 + 0.98 * torch.rand(neurons, neurons, generator=self.generator)
        self.layer = DelayLinear(neurons, neurons, settings.longest_delay, delay=delay)
        with torch.no_grad():
            self.layer.weight.copy_(weight)
        self.grad = torch.randn(settings.steps, settings.batch_size, neurons, generator=self.generator)
        self.by_neuron = self.dense_x.permute(1, 2, 0).contiguous()

    def events(self):
        return self._with_gradients(self.layer(self.x))

    def from_dense(self):
        return self._with_gradients(self.layer(self.dense_x))

    def convolution(self):
        return self._with_gradients(self._convolved(self.layer.weight, self.layer.delay, self.by_neuron))

    @functools.cached_property
    def dcls_layer(self):
        """The same layer in the package ``dcls``.

        Its positions are relative to the kernel's middle, and run against time.
        """
        longest, neurons = self.settings.longest_delay, self.settings.neurons
        layer = peers.imported("DCLS.construct.modules", "DCLS", "dcls").Dcls1d(
            neurons, neurons, 1, dilated_kernel_size=longest + 1, bias=False, version="v1"
        )
        with torch.no_grad():
            layer.weight.copy_(self.layer.weight.unsqueeze(-1))
            layer.P.copy_((longest - (longest + 1) // 2 - self.layer.delay)[None, :, :, None])
        return layer

    def dcls(self):
        layer = self.dcls_layer
        out = layer(functional.pad(self.by_neuron, (self.settings.longest_delay, 0))).permute(2, 0, 1)
        weight, position = torch.autograd.grad(out, [layer.weight, layer.P], self.grad)
        return [out.detach(), weight[..., 0], -position[0, ..., 0]]

    def _with_gradients(self, out):
        return [out.detach(), *torch.autograd.grad(out, [self.layer.weight, self.layer.delay], self.grad)]

    def _convolved(self, weight, delay, x):
        """Return the convolution over all steps with a kernel that holds each synapse's two taps."""
        longest = self.settings.longest_delay
        low = delay.detach().floor()
        fraction = delay - low
        places = torch.stack([low, low + 1], -1).long()
        kernel = weight.new_zeros(*weight.shape, longest + 1)
        kernel = kernel.scatter(2, places, torch.stack([weight * (1 - fraction), weight * fraction], -1))
        return functional.conv1d(functional.pad(x, (longest, 0)), kernel.flip(-1)).permute(2, 0, 1)

    def workload(self, name):
        step = getattr(self, name)
        return Workload(step, lambda: self.check(step()))

    def check(self, results):
        weight, delay = (p.detach().double().requires_grad_() for p in (self.layer.weight, self.layer.delay))
        out = self._convolved(weight, delay, self.by_neuron.double())
        expected = [out, *torch.autograd.grad(out, [weight, delay], self.grad.double())]
        return check_close(results, expected, TOLERANCE, "a dense convolution in float64")


# A single entry: the next point of a sweep replaces the last one.
problem_of = functools.lru_cache(maxsize=1)(Problem)


def contenders(settings):
    def build(name):
        return lambda: problem_of(settings).workload(name)

    return [
        Contender("events", "snnipu DelayLinear, of spikes", build("events"), note="SparseSpikes"),
        Contender(
            "from-dense", "snnipu DelayLinear, of a tensor", build("from_dense"), note="which is made spikes first"
        ),
        Contender(
            "convolution",
            "convolution over time",
            build("convolution"),
            note="PyTorch's, of a kernel as long as the longest delay, into which the taps are scattered",
        ),
        Contender(
            "dcls",
            "dcls, Dcls1d",
            build("dcls"),
            "dcls",
            "a kernel made of positions, and PyTorch's convolution over time",
        ),
    ]


CASE = Case(
    summary="a linear layer with learnt delays beside a convolution over time, against activity and the longest delay",
    work=(
        "From random input spikes the currents of all steps, and from an upstream gradient those of weights and "
        "delays; no gradient of the input."
    ),
    title=lambda settings: (
        f"Delays up to {settings.longest_delay} steps, {settings.neurons}→{settings.neurons}, "
        f"{100 * settings.activity:.3g} % active: T={settings.steps} × B={settings.batch_size}"
    ),
    contenders=contenders,
    sizes={
        "steps": 100,
        "batch_size": 64,
        "neurons": 256,
        "activity": (0.01, 0.02, 0.05, 0.1, 0.2),
        "longest_delay": (5, 25, 100),
    },
    quick={"longest_delay": (3, 6)},
    points=cross,
    axes=("activity", "longest_delay"),
    tables=("milliseconds", "faults"),
    reference="convolution",
    devices=("cpu",),
    check=f"Within {TOLERANCE:.0e} of a dense convolution in float64, relative to the largest.",
)
