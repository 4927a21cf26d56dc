"""Properties of every PopART operator, forward and backward.

* No result depends on the order in which the workers of a tile run.
* Ids, counts, parameters, states and sums are float32, also for float16 values. Inputs that float16 can represent give
  results that differ from float32 only by the final rounding.
* ``poptorch.custom_op`` on the host gives the results of the IPU model.
* Wrong inputs and attributes are refused by name.
"""

import pytest
import torch
from support.operators import (
    MACHINES,
    SURROGATE,
    as_floats,
    backward,
    forward,
    machine,
    needs_host_runtime,
    needs_model_and_host,
    planned,
    slots_of,
)
from support.tables import cells_of

from snnipu import poptorch
from snnipu.ipu.model import IpuModelError

pytestmark = needs_model_and_host

T, B, N, SLOTS = 5, 13, 45, 11


def slots():
    """Return spikes with values; the ids of one row descend, which users may pass."""
    x = torch.randn(T, B, N) * (torch.rand(T, B, N) < 0.3)
    ids, values, counts = slots_of(x, SLOTS)
    spikes = int(counts[0, 0, 0])
    assert spikes > 3
    ids[0, 0, :spikes] = ids[0, 0, :spikes].flip(0)
    return as_floats(ids, values, counts)


def select(**more):
    return {"capacity": SLOTS, "rotate": 1, "has_grad_threshold": 1, "grad_threshold": 0.1, **SURROGATE, **more}


# A convolution of maps of 5 x 3 x 3 to 9 x 2 x 3.
GEOMETRY = [5, 3, 3, 9, 2, 3, 2, 3, 1, 1, 0, 1, 1, 1, 1]
# Inputs, attributes, and the outputs that have a gradient.
CASES = {
    "NeuronSequence": lambda: (
        [torch.randn(T, B, N), *torch.randn(3, B, N), *torch.rand(5, N)],
        {"neuron": "alpha", "variant": 0, "states": 0, **SURROGATE},
        (0,),
    ),
    "SurrogateSpike": lambda: ([torch.randn(B, N)], SURROGATE, (0,)),
    "SelectSpikes": lambda: ([torch.randn(T, B, N), torch.rand(N)], select(), (1,)),
    "DenseToSparse": lambda: ([torch.randn(T, B, N)], {"capacity": SLOTS, "rotate": 1}, (1,)),
    "SparseToDense": lambda: (slots(), {"num_neurons": N}, (0,)),
    "SparseLinear": lambda: ([*slots(), torch.randn(29, N), torch.randn(29)], {"unit_values": 0}, (0,)),
    "DelayLinear": lambda: (
        [*slots(), torch.randn(N, 29, 2), torch.randint(T, (N, 29)).float(), torch.randn(29)],
        {"unit_values": 0},
        (0,),
    ),
    # The convolution is on several tiles; a pool of the same maps to 5 x 2 x 2.
    "SparseConv2d": lambda: (
        [*slots(), torch.randn(9, 5, 2, 3), torch.randn(9)],
        {
            "geometry": GEOMETRY,
            "plan": [5, 1, 20],
            "input_gradient": 1,
        },
        (0,),
    ),
    "SparsePool2d": lambda: (slots(), {"geometry": [5, 3, 3, 2, 2, 2, 2, 1, 1, 0, 0], "mode": 0, "capacity": 20}, (1,)),
    "SparseNetwork": lambda: (
        [
            *slots(),
            torch.randn(31, N),
            torch.rand(31),
            torch.rand(31),
            torch.randn(7, 31),
            torch.rand(7),
            torch.rand(7),
        ],
        {
            "slots": [9, 7],
            "has_grad_threshold": [1, 0],
            "grad_threshold": [0.1, 0.0],
            "input_scale": [0.5, 1.5],
            "reset": 0,
            "rotate": 1,
            "has_bias": 0,
            "unit_values": 0,
            "input_gradient": 1,
            **SURROGATE,
        },
        (1, 6),
    ),
}
HALF = {  # positions of the inputs that may be float16
    "NeuronSequence": (0,),
    "SurrogateSpike": (0,),
    "SelectSpikes": (0,),
    "DenseToSparse": (0,),
    "SparseToDense": (1,),
    "SparseLinear": (1, 3),
    "DelayLinear": (1, 3),
    "SparseNetwork": (1, 3, 6),
    "SparseConv2d": (1, 3),
    "SparsePool2d": (1,),
}


# Operator; changes of attributes, and of inputs by their places (None: it is missing); the error.
BAD = cells_of(
    r"""
NeuronSequence | {"neuron": "izhikevich"} | neuron must be one of leaky, lapicque, .*, got izhikevich
NeuronSequence | {"variant": 50} | variant of alpha must be from 0 to \d, got 50
NeuronSequence | {"states": 8} | states of alpha has bits for 3 states, got 8
NeuronSequence | {"neuron": "rsynaptic", "states": 1} | a bit for state 0, which is its output
NeuronSequence | {"states": None} | no attribute states
NeuronSequence | {"slope": 1.0} | has no attribute slope
NeuronSequence | {8: None} | takes x, state, .*, parameter, parameter: input 8 is missing
NeuronSequence | {1: torch.rand(2, N)} | must fit one step of x, 585 elements
NeuronSequence | {4: torch.Tensor.half} | parameter must be FLOAT
NeuronSequence | {0: torch.randn(0, B, N)} | x must have shape
SelectSpikes | {"capacity": None} | no attribute capacity
SelectSpikes | {1: torch.Tensor.half} | threshold must be FLOAT
DenseToSparse | {"capacity": 0} | capacity must be 1 or more, got 0
DenseToSparse | {0: torch.zeros(3, 4)} | three dimensions
SparseToDense | {2: torch.zeros(T, B, 4)} | counts must have shape .steps, batch, 2
SparseToDense | {0: torch.Tensor.int} | ids must be FLOAT
SparseLinear | {0: torch.Tensor.half} | ids must be FLOAT
SparseLinear | {2: torch.Tensor.half} | counts must be FLOAT
SparseLinear | {4: torch.Tensor.half} | bias must be FLOAT
DelayLinear | {3: torch.zeros(N, 29)} | weight must be .inp
DelayLinear | {4: torch.zeros(29, N)} | lags must be .inputs, neurons
SparseConv2d | {"geometry": GEOMETRY[:-1]} | geometry must have 15
SparseConv2d | {"geometry": [*GEOMETRY[:4], 4, *GEOMETRY[5:]]} | makes maps of 2 x 3, not of 4 x 3
SparseConv2d | {"plan": [2, 1]} | plan must have 3 entries
SparseConv2d | {"plan": [65, 1, 1]} | from 1 to 64 channels
SparseConv2d | {3: torch.zeros(8, 5, 2, 3)} | weight must be .out, in
SparseConv2d | {4: torch.zeros(3)} | bias must be
SparseConv2d | {0: torch.Tensor.half} | ids
SparsePool2d | {"mode": 3} | mode must be from 0 to 2
SparsePool2d | {"capacity": 0} | capacity must be 1 or more
SparsePool2d | {"geometry": [0, 3, 3, 2, 2, 2, 2, 1, 1, 0, 0]} | sizes of maps, kernels, strides and dilations
SparseNetwork | {0: torch.Tensor.half} | ids must be FLOAT
SparseNetwork | {4: torch.Tensor.half} | beta must be FLOAT
SparseNetwork | {5: torch.Tensor.half} | threshold must be FLOAT
"""
)


def upstream_of(outputs, with_gradient):
    """Return random gradients, which float16 can represent, of the outputs that have one."""
    grads = [torch.randn(out.shape).half() if place in with_gradient else None for place, out in enumerate(outputs)]
    return [None if grad is None else grad.to(out.dtype) for grad, out in zip(grads, outputs)]


def run(name, model, halved=(), rounded=()):
    """Return all outputs, and the gradients by input.

    The inputs at positions ``halved`` are float16; those at positions ``rounded`` are float32 with float16 values.
    """
    torch.manual_seed(0)
    inputs, attributes, with_gradient = CASES[name]()
    inputs = [tensor.half().float() if place in rounded else tensor for place, tensor in enumerate(inputs)]
    inputs = [tensor.half() if place in halved else tensor for place, tensor in enumerate(inputs)]
    outputs = forward(model, name, inputs, attributes)
    upstream = upstream_of(outputs, with_gradient)
    return outputs, backward(model, name, inputs, attributes, outputs, upstream)


def test_every_operator_has_a_case():
    operators = {name for domain, name, _ in machine(1).operators() if domain == "ai.snnipu"}
    assert operators == set(CASES) == set(HALF)


@pytest.mark.parametrize(("name", "changes", "message"), BAD)
def test_bad_arguments(name, changes, message):
    """Ids and counts exceed the integers of float16, up to 2048. Parameters of neurons are float32, like states."""
    inputs, attributes, _ = CASES[name]()
    arguments = {**dict(enumerate(inputs)), **attributes}
    for key, value in eval(changes).items():
        arguments[key] = value(arguments[key]) if callable(value) else value
    inputs = [arguments[place] for place in range(len(inputs)) if arguments[place] is not None]
    attributes = {key: value for key, value in arguments.items() if isinstance(key, str) and value is not None}
    with pytest.raises(IpuModelError, match=message):
        forward(machine(4), name, inputs, attributes)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", sorted(CASES))
def test_shuffled_workers(name, half):
    def with_order(order):
        outputs, gradients = run(name, machine(3, options=(("workerOrder", order),)), HALF[name] if half else ())
        return [*outputs, *(gradients[place] for place in sorted(gradients))]

    expected = with_order("ascending")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in expected)
    for order in ("descending", "shuffled:1", "shuffled:2", "shuffled:3", "check"):
        for place, (got, value) in enumerate(zip(with_order(order), expected)):
            assert torch.equal(got, value), (order, place)


def halves():
    """Yield operators and positions: float16 values, weights and both; dense neurons and pools have other tests."""
    for name in sorted(set(CASES) - {"NeuronSequence", "SurrogateSpike", "SparsePool2d"}):
        places = HALF[name]
        chosen = [places] if len(places) == 1 else [places, places[1:]]
        chosen += [places[:1]] if name in ("SparseLinear", "DelayLinear", "SparseConv2d") else []
        yield from ((name, halved) for halved in chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("tiles", "ipus"), [*MACHINES, (16, 1)])
@pytest.mark.parametrize(("name", "halved"), list(halves()))
def test_half_rounds_results_only(name, halved, tiles, ipus):
    model = machine(tiles, ipus)
    expected, expected_gradients = run(name, model, rounded=halved)
    outputs, gradients = run(name, model, halved, halved)
    with_gradient = CASES[name]()[2]
    for place, (got, exact) in enumerate(zip(outputs, expected)):
        half = place in with_gradient and HALF[name][0] in halved
        assert got.dtype == (torch.float16 if half else torch.float32)
        assert torch.equal(got, exact.to(got.dtype)), place
    for place, got in gradients.items():
        assert got.dtype == (torch.float16 if place in halved else torch.float32)
        if name in ("DenseToSparse", "SparseToDense", "SparseConv2d"):
            assert torch.equal(got, expected_gradients[place].to(got.dtype))
            continue
        # A float32 sum may round either way, so float16 results may differ by a unit in the last place.
        scale = float(expected_gradients[place].abs().max()) if name == "SparseNetwork" else 1.0
        close = {"rtol": 2.0**-10, "atol": 2.0**-20 * scale} if place in halved else {"rtol": 1e-6, "atol": 1e-6}
        torch.testing.assert_close(got.float(), expected_gradients[place], **close)


@pytest.mark.slow
@needs_host_runtime
@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", sorted(set(CASES) - {"SparseNetwork"}))
def test_by_name_on_the_host(name, half, tiles, ipus):
    """``poptorch.custom_op`` without the IPU model gives the model's types, values and gradients."""
    model, halved = machine(tiles, ipus), HALF[name] if half else ()
    outputs, gradients = run(name, model, halved, halved)
    torch.manual_seed(0)
    inputs, attributes, with_gradient = CASES[name]()
    inputs = [(tensor.half() if place in halved else tensor).requires_grad_() for place, tensor in enumerate(inputs)]
    attributes = planned(model, name, [tuple(tensor.shape) for tensor in inputs], attributes)
    host = poptorch.custom_op(inputs, name, "ai.snnipu", 1, outputs, attributes=attributes)
    upstream = upstream_of(host, with_gradient)
    grads = torch.autograd.grad(
        [host[place] for place in with_gradient],
        inputs,
        [upstream[place] for place in with_gradient],
        allow_unused=True,
    )
    if name == "SparsePool2d":  # only the gradient reads the last output
        host, outputs = host[:3], outputs[:3]
    # The host may fuse a product with its sum, and sum in another order.
    tolerance = 2e-3 if half else 0 if name in ("DenseToSparse", "SparseToDense") else 2e-5
    for got, expected in zip([*host, *grads], [*outputs, *(gradients[place] for place in range(len(inputs)))]):
        if got is not None:
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
