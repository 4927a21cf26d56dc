"""Random programs with loops, compiled and not: forward, gradients and side effects."""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from support import loop_programs as made
from support.versions import needs_compile

EXAMPLES = int(os.environ.get("SNNIPU_COMPILE_EXAMPLES", "20"))


def _close(found, expected):
    if found is None or expected is None:
        return (found is None or not found.any()) and (expected is None or not expected.any())
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


@needs_compile
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES < 100)
@given(made.programs)
def test_compiled_programs_give_what_the_loop_gives(program):
    from snnipu.compiler import backend

    backend.strict = True
    backend.enable()
    torch._dynamo.reset()
    net, other, inputs = made.make(program)
    reports = []
    collect = lambda m, i, **o: backend.compile_graph(m, i, observer=reports.append, **o)
    compiled = torch.compile(other, backend=collect)
    exact = not any(kind.startswith("norm") for kind, _, _ in program.layers)
    try:
        for x in inputs:
            train = not program.no_grad
            expected, gradients = made.run(net, net, x, train)
            found, own = made.run(compiled, other, x, train)
            for report in reports:
                note(report.code)
            assert len(found) == len(expected)
            for a, b in zip(found, expected):
                assert a.shape == b.shape and a.dtype == b.dtype
                assert torch.equal(a, b) if exact else torch.allclose(a, b, atol=1e-5)
            assert len(own) == len(gradients)
            for a, b in zip(own, gradients):
                assert _close(a, b)
            for a, b in zip(made.states(other), made.states(net)):
                assert torch.equal(a, b) if exact else torch.allclose(a, b, atol=1e-5)
            assert other.counter == net.counter
    finally:
        backend.strict = False


pytestmark = pytest.mark.filterwarnings("ignore")
