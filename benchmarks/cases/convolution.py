"""A sparse and a dense convolution over all steps: the currents alone, or the weight gradient alone.

The layers are those that ``conv`` measures with their neurons; the spikes are random.
"""

import functools

import torch
from torch.nn import functional

from benchmarks.case import Case, Contender, Workload
from benchmarks.cases.conv import LAYERS
from benchmarks.checks import check_close
from benchmarks.sparse_problem import SparseProblem
from snnipu import SparseConv2d
from snnipu.neurons.multistep import CHUNK_BYTES

# Libraries sum over all positions, samples and steps in one accumulator, whose rounding error is larger.
TOLERANCES = {"currents": 1e-5, "weights": 1e-4}


class Problem(SparseProblem):
    """A layer, its input and an upstream gradient: the same for every contender."""

    def __init__(self, settings):
        super().__init__(settings)
        shape, out, kernel = LAYERS[settings.layer]
        self.layer = SparseConv2d(shape[0], out, kernel, input_size=shape[1:], path="sparse")
        with torch.no_grad():
            self.layer.weight.uniform_(-1, 1, generator=self.generator)
            self.draw_input(*shape)
            self.grad = torch.randn(self.sparse()[0].shape, generator=self.generator)
        self.maps = self.dense_x.flatten(0, 1)

    def sparse(self):
        return [self.layer(self.x)]

    def dense(self):
        return [functional.conv2d(self.maps, self.layer.weight)]

    def in_parts(self):
        row = self.grad[0, 0].numel() * self.grad.element_size()
        return [functional.conv2d(part, self.layer.weight) for part in self.maps.split(max(1, CHUNK_BYTES // row))]

    def workload(self, currents):
        """Return the workload of ``settings.work`` for a convolution with these currents."""
        weight = self.layer.weight
        if self.settings.work == "currents":
            step = torch.no_grad()(currents)
        else:
            results = currents()
            rows = self.grad.flatten(0, 1).split([part.flatten(0, -4).shape[0] for part in results])
            upstream = [grad.reshape(part.shape) for grad, part in zip(rows, results)]

            def step():
                return list(torch.autograd.grad(results, [weight], upstream, retain_graph=True))

        return Workload(step, lambda: self._check(step()))

    def _check(self, results):
        weight = self.layer.weight.detach().double().requires_grad_()
        expected = functional.conv2d(self.maps.double(), weight)
        if self.settings.work != "currents":
            expected = torch.autograd.grad(expected, weight, self.grad.double().reshape(expected.shape))[0]
        together = torch.cat([part.reshape(-1, *expected.shape[1:]) for part in results])
        tolerance = TOLERANCES[self.settings.work]
        return check_close([together], [expected], tolerance, "a dense convolution in float64")


# A single entry: the next point of a sweep replaces the last one.
problem_of = functools.lru_cache(maxsize=1)(Problem)


def contenders(settings):
    def build(name):
        return lambda: problem_of(settings).workload(getattr(problem_of(settings), name))

    return [
        Contender(
            "sparse",
            "snnipu SparseConv2d",
            build("sparse"),
            note="path='sparse'; its currents lie as nn.Conv2d's do",
        ),
        Contender(
            "dense",
            "dense convolution",
            build("dense"),
            note="PyTorch's, of all steps and samples as one batch: results of more than 32 MiB are newly allocated",
        ),
        Contender(
            "dense-parts",
            "dense convolution, in parts",
            build("in_parts"),
            note=f"the same for parts of the batch, currents of {CHUNK_BYTES // 2**20} MiB each, like MultiStep",
        ),
    ]


def title(settings):
    shape, out, kernel = LAYERS[settings.layer]
    return (
        f"Convolution {shape[0]}→{out}, {shape[1]}×{shape[2]}, {kernel}×{kernel}, {100 * settings.activity:.3g} % "
        f"active, {settings.work}: T={settings.steps} × B={settings.batch_size}"
    )


CASE = Case(
    summary="one sparse convolution and a dense one: currents, and the weights' gradient, against activity",
    work=(
        "From random input spikes the currents of all steps, without autograd; or from an upstream gradient of these "
        "that of the weights."
    ),
    title=title,
    contenders=contenders,
    sizes={
        "steps": 20,
        "batch_size": 16,
        "activity": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
        "layer": tuple(LAYERS),
        "work": ("currents", "weights"),
    },
    quick={"layer": next(iter(LAYERS))},
    axes=("activity",),
    tables=("milliseconds", "faults"),
    choices={"layer": list(LAYERS), "work": ["currents", "weights"]},
    reference="dense",
    repeats=15,
    devices=("cpu",),
    check="Currents within 1e-5 and gradients within 1e-4 of a dense convolution in float64, relative to the largest.",
)
