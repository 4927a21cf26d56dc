"""PopART operators on the IPU model."""

import math

import pytest
import torch

from snnipu import poptorch
from snnipu.backends import host
from snnipu.ipu import model as ipu_model
from snnipu.ipu.model import IpuModel, IpuModelTarget, tensor_type
from snnipu.planning.linear import plan_linear
from snnipu.planning.search import operator_plan

needs_library = pytest.mark.skipif(not ipu_model.available(), reason=f"no IPU model: {ipu_model.unavailable_reason()}")
needs_host_runtime = pytest.mark.skipif(
    not hasattr(poptorch, "is_host_runtime"), reason="a real PopTorch is installed, this is about the host runtime"
)
needs_model_and_host = [
    needs_library,
    pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}"),
]

# Tiles per IPU (0: all 1472), IPUs.
MACHINES = [(1, 1), (4, 1), (0, 1), (3, 2)]
# Run every vertex twice, in two orders of its workers, with guards around its fields.
STRICT = (("workerOrder", "check"), ("guardFields", "true"))
# Attributes of an operator with a surrogate.
SURROGATE = {"surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
SURROGATES = {0: (0.3, 0.0), 1: (0.7, 0.0), 2: (25.0, -math.inf), 3: (2.0, 0.0), 4: (5.0, 0.0), 5: (1.5, 0.8)}


def slots_of(x, slots):
    """Return ids, values and counts of the spikes of a dense tensor."""
    return torch.ops.snnipu.dense_to_sparse_fwd(x, slots, False)[:3]


def as_floats(ids, values, counts):
    """Return spikes as a PopART operator takes them."""
    return [ids.float(), values, counts.float()]


def machine(tiles, ipus=1, options=STRICT):
    return IpuModel(IpuModelTarget("mk2", tiles, ipus, options))


class WatchedLibrary:
    """The IPU model's library; ``calls`` are the names of the functions that were called."""

    def __init__(self):
        self.calls, self._library = [], ipu_model.library()

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self._library, name)


def planned(model, name, shapes, attributes):
    """Add the plan that the layers would choose, if the operator takes a plan and none is given."""
    if "plan" in attributes or name not in ("SparseLinear", "DelayLinear", "SparseNetwork"):
        return attributes
    (steps, batch, slots), weight = shapes[0], shapes[3]
    if name == "SparseNetwork":
        recurrent = attributes.get("recurrent", [0] * len(attributes["slots"]))
        places, place = [], 3
        for reads_itself in recurrent:
            places.append(place)
            place += 3 + attributes["has_bias"] + reads_itself
        sizes = (weight[1], *(shapes[place][0] for place in places))
        all_slots = (min(slots, weight[1]), *map(min, attributes["slots"], sizes[1:]))
        plan = operator_plan(
            sizes, all_slots, tuple(map(bool, recurrent)), batch, steps, "float32", True, *model.machine()
        )
    elif name == "DelayLinear":
        plan = plan_linear(weight[1], weight[0], batch, steps * slots, 4, *model.machine(), *weight[2:])
    else:
        plan = plan_linear(*weight, steps * batch, slots, 4, *model.machine())
    return {**attributes, "plan": list(plan)}


def compiled(model, name, specs, attributes, gradient=None):
    return model.compile(
        name, specs, planned(model, name, [spec.shape for spec in specs], attributes), gradient=gradient
    )


def forward(model, name, inputs, attributes):
    return compiled(model, name, [tensor_type(tensor, name) for tensor in inputs], attributes).run(inputs)


def forward_steps(program):
    """Return the report's steps of an operator's forward pass."""
    return [step for step in program.report()["steps"] if step["name"].endswith("forward")]


def backward(model, name, inputs, attributes, outputs, upstream):
    """Return gradients by input; ``upstream`` has the outputs' gradients (None: not on the path to the loss)."""
    which = [place for place, grad in enumerate(upstream) if grad is not None]
    program = compiled(model, name, [tensor_type(tensor, name) for tensor in inputs], attributes, which)
    tensors = {ipu_model.GRAD_OUT: upstream, ipu_model.IN: inputs, ipu_model.OUT: outputs}
    return dict(zip(program.targets, program.run([tensors[source.kind][source.place] for source in program.sources])))
