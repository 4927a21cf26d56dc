"""Random programs with loops, compiled and not: results, gradients and side effects."""

import contextlib
import os

import pytest
import torch
from support import loop_programs
from support.versions import needs_backend
from support.zeros import events_taken

from snnipu.compiler import backend, reasons
from snnipu.neurons import multistep

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
PROGRAMS = int(os.environ.get("SNNIPU_COMPILE_EXAMPLES", "20"))


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    """A graph that cannot be rolled is an error here."""
    monkeypatch.setattr(backend, "strict", True)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_compiled_programs_give_what_the_loop_gives(seed, monkeypatch):
    program = loop_programs.Writer(seed)
    monkeypatch.setattr(multistep, "PART_BYTES", program.part_bytes)
    print(program.source)
    with events_taken() if seed % 2 else contextlib.nullcontext():
        reports = compare(program, seed)
    left = [(neuron.name, neuron.why_not) for neuron in neurons(reports) if not neuron.rolled]
    if program.steps == 2:  # too few to tell what is done again with a state
        left = [one for one in left if one[1] != reasons.KINDS["state"].why]
    assert program.feedback or not left


def compare(program, seed):
    """Reports of the graphs, once the program compiled has done what it does."""
    net, other = (loop_programs.make(program.source, seed) for _ in range(2))
    reports = []

    def collect(module, inputs, **options):
        return backend.compile_graph(module, inputs, observer=reports.append, **options)

    backend.enable()
    # As snn.auto() does: .item() is an operation.
    scalars = torch._dynamo.config.patch(capture_scalar_outputs=True)
    compiled = scalars(torch.compile(other, backend=collect, dynamic=program.dynamic))
    for batch in program.batches:
        x = torch.rand(program.steps, batch, *program.input) * 2 - 0.5
        inputs = [x.clone().requires_grad_(program.train and program.input_gradient) for _ in range(2)]
        expected = loop_programs.run(net, net, inputs[0], program.train)
        found = loop_programs.run(compiled, other, inputs[1], program.train)
        assert sorted(found) == sorted(expected)
        check(found, expected)
        for module in (net, other):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(0.9)
    return reports


def check(found, expected):
    """Equal to rounding, which for gradients is that of the largest one."""
    largest = max(
        (float(g.abs().max()) for k, g in expected.items() if k.startswith("gradient") and g is not None), default=0
    )
    for name, wanted in expected.items():
        one = found[name]
        if one is None or wanted is None:
            assert one is wanted, f"{name} is {one}, expected {wanted}"
        else:
            atol = 1e-5 * max(1.0, largest if name.startswith("gradient") else 1.0)
            torch.testing.assert_close(one, wanted, rtol=1e-5, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def neurons(reports):
    return [neuron for report in reports for neuron in report.neurons if neuron.steps > 1]
