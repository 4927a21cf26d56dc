"""A linear layer with a delay for each synapse, beside the dense convolution over time: forward, and the gradients of
weights and delays."""

import functools
from dataclasses import replace
from typing import Any, Callable, List, Sequence

import torch
from torch.nn import functional

from snnipu import DelayLinear
from benchmarks import peers
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.checks import Check, relative_error
from benchmarks.options import Option, comma_separated
from benchmarks.sparse_problem import SparseProblem, check_activity, parse_activities

SUMMARY = "a linear layer with learnt delays beside a convolution over time, against activity and the longest delay"
DTYPES = (torch.float32,)
DEVICES = ("cpu",)
FULL = {"steps": 100, "batch_size": 64, "neurons": 256, "repeats": 9, "min_seconds": 0.0}
QUICK = {"steps": 10, "batch_size": 2, "neurons": 16, "repeats": 2, "min_seconds": 0.0}
ACTIVITIES = (0.01, 0.02, 0.05, 0.1, 0.2)
QUICK_ACTIVITIES = (0.05, 0.2)
LONGEST = (5, 25, 100)
QUICK_LONGEST = (3, 6)
TOLERANCE = 1e-4


def _parse_longest(text: str) -> List[int]:
    values = comma_separated(text, int, "whole numbers")
    if min(values, default=1) < 1:
        raise ValueError(f"must be 1 or more, but has {min(values)}")
    return values


OPTIONS = (
    Option(
        "delay_activities",
        f"default: {','.join(map(str, ACTIVITIES))}",
        parse_activities,
        ACTIVITIES,
        QUICK_ACTIVITIES,
        metavar="LIST",
    ),
    Option(
        "longest",
        f"longest delays, in steps; default: {','.join(map(str, LONGEST))}",
        _parse_longest,
        LONGEST,
        QUICK_LONGEST,
        metavar="LIST",
    ),
)
Tensors = List[torch.Tensor]


class Problem(SparseProblem):
    """As many inputs as neurons; spikes, weights, delays and an upstream gradient: the same for every contender."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        neurons = settings.neurons
        self.draw_input(neurons)
        weight = torch.randn(neurons, neurons, generator=self.generator) / neurons**0.5
        # Away from whole steps, where ways of interpolating between them have other derivatives: rounding, as in dcls's
        # positions, must not carry a delay over one.
        whole = torch.randint(settings.longest_delay, (neurons, neurons), generator=self.generator)
        delay = whole + 0.01 + 0.98 * torch.rand(neurons, neurons, generator=self.generator)
        self.layer = DelayLinear(neurons, neurons, settings.longest_delay, delay=delay)
        with torch.no_grad():
            self.layer.weight.copy_(weight)
        self.grad = torch.randn(settings.steps, settings.batch_size, neurons, generator=self.generator)
        self.by_neuron = self.dense_x.permute(1, 2, 0).contiguous()

    def events(self) -> Tensors:
        return self._with_gradients(self.layer(self.x))

    def from_dense(self) -> Tensors:
        return self._with_gradients(self.layer(self.dense_x))

    def convolution(self) -> Tensors:
        return self._with_gradients(self._convolved(self.layer.weight, self.layer.delay, self.by_neuron))

    @functools.cached_property
    def dcls_layer(self) -> Any:
        """The same layer of the package ``dcls``: positions in its kernel, from the middle on, run against time."""
        longest, neurons = self.settings.longest_delay, self.settings.neurons
        made = peers.imported("DCLS.construct.modules", "DCLS", "dcls").Dcls1d(
            neurons, neurons, 1, dilated_kernel_size=longest + 1, bias=False, version="v1"
        )
        with torch.no_grad():
            made.weight.copy_(self.layer.weight.unsqueeze(-1))
            made.P.copy_((longest - (longest + 1) // 2 - self.layer.delay)[None, :, :, None])
        return made

    def dcls(self) -> Tensors:
        layer = self.dcls_layer
        out = layer(functional.pad(self.by_neuron, (self.settings.longest_delay, 0))).permute(2, 0, 1)
        weight, position = torch.autograd.grad(out, [layer.weight, layer.P], self.grad)
        return [out.detach(), weight[..., 0], -position[0, ..., 0]]

    def _with_gradients(self, out: torch.Tensor) -> Tensors:
        return [out.detach(), *torch.autograd.grad(out, [self.layer.weight, self.layer.delay], self.grad)]

    def _convolved(self, weight: torch.Tensor, delay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """A kernel over time with each synapse's two taps, and the convolution of all steps."""
        longest = self.settings.longest_delay
        low = delay.detach().floor()
        behind = delay - low
        places = torch.stack([low, low + 1], -1).long()
        kernel = weight.new_zeros(*weight.shape, longest + 1)
        kernel = kernel.scatter(2, places, torch.stack([weight * (1 - behind), weight * behind], -1))
        return functional.conv1d(functional.pad(x, (longest, 0)), kernel.flip(-1)).permute(2, 0, 1)

    def check(self, made: Tensors) -> Check:
        weight, delay = (p.detach().double().requires_grad_() for p in (self.layer.weight, self.layer.delay))
        out = self._convolved(weight, delay, self.by_neuron.double())
        expected = [out.detach(), *torch.autograd.grad(out, [weight, delay], self.grad.double())]
        error = max(relative_error(one, other) for one, other in zip(made, expected))
        return Check(
            error <= TOLERANCE,
            "a dense convolution in float64",
            f"relative error {error:.1e} (allowed: {TOLERANCE:.0e})",
            {"error": error},
        )


# One at a time: the next point of a sweep takes the place of the last.
_problem = functools.lru_cache(maxsize=1)(Problem)


def _workload(settings: Settings, name: str) -> Workload:
    problem = _problem(settings)
    step: Callable[[], Tensors] = getattr(problem, name)
    return Workload(step, lambda: problem.check(step()))


def build(settings: Settings) -> Case:
    """One point: ``settings.neurons`` inputs and neurons at ``settings.activity``, up to ``settings.longest_delay``.

    Raises:
        ValueError: the activity is out of range.
    """
    check_activity(settings)
    return Case(
        name="delays",
        title=(
            f"Delays up to {settings.longest_delay} steps, {settings.neurons}→{settings.neurons}, "
            f"{100 * settings.activity:.3g} % active: T={settings.steps} × B={settings.batch_size}"
        ),
        caption=_CAPTION,
        contenders=[
            Contender(
                "events",
                "snnipu DelayLinear, of spikes",
                functools.partial(_workload, settings, "events"),
                ratio_label="DelayLinear",
                note="SparseSpikes",
            ),
            Contender(
                "from-dense",
                "snnipu DelayLinear, of a tensor",
                functools.partial(_workload, settings, "from_dense"),
                ratio_label="of a tensor",
                note="which is made spikes first",
            ),
            Contender(
                "convolution",
                "convolution over time",
                functools.partial(_workload, settings, "convolution"),
                ratio_label="convolution",
                note="PyTorch's, of a kernel as long as the longest delay, into which the taps are scattered",
            ),
            Contender(
                "dcls",
                "dcls, Dcls1d",
                functools.partial(_workload, settings, "dcls"),
                peer="dcls",
                ratio_label="dcls",
                note="a kernel made of positions, and PyTorch's convolution over time",
            ),
        ],
        memory_reference="convolution",
        memory_label="convolution",
        parameters={
            "activity": settings.activity,
            "longest_delay": settings.longest_delay,
            "neurons": settings.neurons,
            "steps": settings.steps,
            "batch_size": settings.batch_size,
        },
        show_faults=True,
        check_meaning=f"check: within {TOLERANCE:.0e} of a dense convolution in float64, relative to the largest.",
    )


_CAPTION = (
    "The work: from random input spikes the currents of all steps, and from an upstream gradient those of weights and "
    "delays; no gradient of the input."
)


def sweep(settings: Settings, delay_activities: Sequence[float], longest: Sequence[int]) -> Sweep:
    """The points against activity, with ``settings.longest_delay``, and against that, at ``settings.activity``.

    Raises:
        ValueError: as for :func:`build`.
    """
    activities, delays = sorted(set(delay_activities)), sorted(set(longest))
    settings = replace(
        settings,
        activity=settings.activity if settings.activity in activities else activities[0],
        longest_delay=settings.longest_delay if settings.longest_delay in delays else delays[0],
    )
    across = [replace(settings, activity=activity) for activity in activities]
    down = [replace(settings, longest_delay=delay) for delay in delays]
    tables: Any = ("time", "faults")
    return Sweep(
        name="delays",
        title=f"Delays, {settings.neurons}→{settings.neurons}, ms: T={settings.steps} × B={settings.batch_size}",
        caption=_CAPTION,
        points=list(dict.fromkeys([*across, *down])),
        axes=[
            Axis(
                "activity",
                "activity",
                activities,
                {"longest_delay": settings.longest_delay},
                percent=True,
                tables=tables,
                title=f"delays up to {settings.longest_delay} steps",
            ),
            Axis(
                "longest_delay",
                "longest delay",
                delays,
                {"activity": settings.activity},
                tables=tables,
                title=f"{100 * settings.activity:.3g} % active",
            ),
        ],
        reference="convolution",
        headline={"activity": settings.activity, "longest_delay": settings.longest_delay},
    )
