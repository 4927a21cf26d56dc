"""Running PopART operators on the IPU model."""

import math

import pytest

from snnipu import poptorch
from snnipu.backends import host
from snnipu.ipu import model as ipu_model
from snnipu.ipu.model import IpuModel, IpuModelTarget, spec_of

needs_library = pytest.mark.skipif(not ipu_model.available(), reason=f"no IPU model: {ipu_model.unavailable_reason()}")
needs_host_runtime = pytest.mark.skipif(
    not hasattr(poptorch, "is_host_runtime"), reason="a real PopTorch is installed, this is about the host runtime"
)
needs_model_and_host = [
    needs_library,
    pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}"),
]

# Tiles of an IPU (0: all 1472), IPUs.
MACHINES = [(1, 1), (4, 1), (0, 1), (3, 2)]
# Every vertex twice, in two orders of its workers, with guards around its fields.
STRICT = (("workerOrder", "check"), ("guardFields", "true"))
SURROGATES = {0: (0.3, 0.0), 1: (0.7, 0.0), 2: (25.0, -math.inf), 3: (2.0, 0.0), 4: (5.0, 0.0), 5: (1.5, 0.8)}


def machine(tiles, ipus=1, options=STRICT):
    return IpuModel(IpuModelTarget("mk2", tiles, ipus, options))


def forward(model, name, inputs, attributes):
    return model.compile(name, [spec_of(tensor, name) for tensor in inputs], attributes).run(inputs)


def backward(model, name, inputs, attributes, outputs, upstream):
    """Gradients by input, where ``upstream`` has the outputs' (None: not on the path to the loss)."""
    which = [place for place, grad in enumerate(upstream) if grad is not None]
    program = model.compile(name, [spec_of(tensor, name) for tensor in inputs], attributes, gradient=which)
    tensors = {ipu_model.GRAD_OUT: upstream, ipu_model.IN: inputs, ipu_model.OUT: outputs}
    return dict(zip(program.targets, program.run([tensors[source.kind][source.place] for source in program.sources])))
