"""Properties of every PopART operator, forward and backward.

* No result depends on the order in which the workers of a tile run.
* Ids, counts, parameters, states and sums are float32, also for float16 values. Inputs that float16 can represent give
  results that differ from float32 only by the final rounding.
* ``poptorch.custom_op`` on the host gives the results of the IPU model.
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

from snnipu import poptorch

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
    # A convolution of maps of 5 x 3 x 3 to 9 x 2 x 3 on several tiles; a pool of the same maps to 5 x 2 x 2.
    "SparseConv2d": lambda: (
        [*slots(), torch.randn(9, 5, 2, 3), torch.randn(9)],
        {
            "geometry": [5, 3, 3, 9, 2, 3, 2, 3, 1, 1, 0, 1, 1, 1, 1],
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


def run(name, model, halved=(), rounded=()):
    """Return all outputs, and the gradients by input.

    The inputs at positions ``halved`` are float16; those at positions ``rounded`` are float32 with float16 values.
    """
    torch.manual_seed(0)
    inputs, attributes, with_gradient = CASES[name]()
    inputs = [tensor.half().float() if place in rounded else tensor for place, tensor in enumerate(inputs)]
    inputs = [tensor.half() if place in halved else tensor for place, tensor in enumerate(inputs)]
    outputs = forward(model, name, inputs, attributes)
    upstream = [torch.randn(out.shape).half() if place in with_gradient else None for place, out in enumerate(outputs)]
    upstream = [None if grad is None else grad.to(out.dtype) for grad, out in zip(upstream, outputs)]
    return outputs, backward(model, name, inputs, attributes, outputs, upstream)


def test_every_operator_has_a_case():
    operators = {name for domain, name, _ in machine(1).operators() if domain == "ai.snnipu"}
    assert operators == set(CASES) == set(HALF)


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
    upstream = [torch.randn(out.shape).half() if place in with_gradient else None for place, out in enumerate(outputs)]
    grads = torch.autograd.grad(
        [host[place] for place in with_gradient],
        inputs,
        [upstream[place].to(host[place].dtype) for place in with_gradient],
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
