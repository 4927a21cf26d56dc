"""Random programs with loops, compiled and not: results, gradients and side effects."""

import contextlib
import os

import pytest
import torch
from support import loop_programs
from support.loops import check
from support.versions import needs_backend
from support.zeros import events_taken

import snnipu as snn
from snnipu.neurons import multistep

pytestmark = [needs_backend, pytest.mark.filterwarnings("ignore")]
PROGRAMS = int(os.environ.get("SNNIPU_COMPILE_EXAMPLES", "20"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_compiled_programs_give_what_the_loop_gives(seed, monkeypatch, found):
    program = loop_programs.Writer(seed)
    monkeypatch.setattr(multistep, "CHUNK_BYTES", program.part_bytes)
    print(program.source)
    with events_taken() if seed % 2 else contextlib.nullcontext():
        net, other = (loop_programs.make(program.source, seed) for _ in range(2))
        compiled = snn.compile(other)
        for batch in (*program.batches, program.batches[0]):
            x = torch.rand(program.steps, batch, *program.input) * 2 - 0.5
            inputs = [x.clone().requires_grad_(program.train and program.input_gradient) for _ in range(2)]
            expected = loop_programs.run(net, net, inputs[0], program.train)
            check(loop_programs.run(compiled, other, inputs[1], program.train), expected)
            with torch.no_grad():
                for parameter in (*net.parameters(), *other.parameters()):
                    parameter.mul_(0.9)
    print(found)
