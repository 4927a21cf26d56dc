"""Random programs with loops, compiled and not: forward, gradients and side effects."""

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, event, example, given, note, settings
from support import loop_programs as made
from support.versions import needs_backend

from snnipu.compiler import backend
from snnipu.neurons import multistep

EXAMPLES = int(os.environ.get("SNNIPU_COMPILE_EXAMPLES", "12"))


def _close(found, expected, atol):
    if found is None or expected is None:
        return (found is None or not found.any()) and (expected is None or not expected.any())
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=atol)


def _rounding(gradients, exact):
    """What gradients may differ by: norms of samples that hardly vary multiply them by 1000, and their sums cancel."""
    largest = max((float(one.abs().max()) for one in gradients if one is not None and one.numel()), default=0.0)
    return 1e-5 if exact else max(1e-5, 2.0**-22 * largest)


@needs_backend
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=EXAMPLES < 100,
    phases=(Phase.explicit, Phase.generate),  # to make a program smaller compiles hundreds of them
)
@given(made.programs)
@example(  # a step of what becomes a sequence later, among the pieces of another
    made.Program(
        steps=3,
        layers=[("neuron", 0, 6), ("cat", 5, 2), ("branch", 1, 4), ("scale", 3, 1)],
        records=[("cat", 0), ("stack", 6)],
        input="reversed",
        states="none",
        calls=1,
        learn=False,
        init_hidden=True,
        no_grad=True,
        batches=(3, 2),
        surrogate="straight_through_estimator",
        reset_mechanism="none",
        reset_delay=True,
        seed=3,
        part_bytes=1,
        dynamic=None,
    )
)
def test_compiled_programs_give_what_the_loop_gives(program):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multistep, "PART_BYTES", program.part_bytes)
        _compare(program)


def _compare(program):
    torch._dynamo.reset()
    backend.enable()
    net, other, inputs = made.make(program)
    reports = []

    def collect(module, example_inputs, **options):
        return backend.compile_graph(module, example_inputs, observer=reports.append, **options)

    compiled = torch.compile(other, backend=collect, dynamic=program.dynamic)
    exact = not any(kind.startswith("norm") for kind, _, _ in program.layers)

    def same(found, expected):
        return torch.equal(found, expected) if exact else torch.allclose(found, expected, atol=1e-5)

    train = not program.no_grad
    for x in inputs:
        try:
            expected, gradients = made.run(net, net, x, train)
        except (RuntimeError, ValueError):
            return  # a norm of one sample, or hidden states of a graph that was freed: no program
        found, own = made.run(compiled, other, x, train)
        note("\n".join(report.code for report in reports))
        assert not any(report.failed for report in reports)
        assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in expected]
        assert all(map(same, found, expected))
        assert len(own) == len(gradients)
        atol = _rounding(gradients, exact)
        assert all(_close(one, wanted, atol) for one, wanted in zip(own, gradients))
        assert all(map(same, made.states(other), made.states(net)))
        assert other.counter == net.counter
    # For --hypothesis-show-statistics.
    for kind in {n.reason and n.reason.kind for report in reports for n in report.neurons}:
        event("a neuron rolled" if kind is None else f"a neuron did not: {kind}")
    event("all neurons rolled" if all(n.rolled for report in reports for n in report.neurons) else "not all rolled")


pytestmark = pytest.mark.filterwarnings("ignore")
