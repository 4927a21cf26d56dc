"""Random programs with loops, compiled and not: results, gradients and side effects."""

import contextlib
import os

import pytest
import torch
from support import loop_programs
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
        nets = [loop_programs.make(program.source, seed) for _ in range(2)]
        compiled = snn.compile(nets[1])
        for batch in (*program.batches, program.batches[0]):
            loop_programs.check(program, nets, compiled, [batch])
            with torch.no_grad():
                for parameter in (*nets[0].parameters(), *nets[1].parameters()):
                    parameter.mul_(0.9)
    print(found)
