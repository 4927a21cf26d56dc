"""No result depends on the order in which the workers of a tile run: all operators, forward and backward."""

import pytest
import torch
from support.operators import backward, forward, machine, needs_model_and_host

pytestmark = needs_model_and_host

SURROGATE = {"surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
T, B, N, SLOTS = 5, 13, 45, 11


def slots():
    """Spikes with values; the ids of one row descend, as a user's may."""
    x = torch.randn(T, B, N) * (torch.rand(T, B, N) < 0.3)
    ids, values, counts, _ = torch.ops.snnipu.dense_to_sparse_fwd(x, SLOTS, False)
    spikes = int(counts[0, 0, 0])
    assert spikes > 3
    ids[0, 0, :spikes] = ids[0, 0, :spikes].flip(0)
    return [ids.float(), values, counts.float()]


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
    # Maps of 5 x 3 x 3 to 9 x 2 x 3, a channel, a line or some rows to a tile; and pools of these to 5 x 2 x 2.
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
HALF = {  # what may be float16
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


def run(name, order, half):
    """All outputs and gradients."""
    torch.manual_seed(0)
    inputs, attributes, with_gradient = CASES[name]()
    inputs = [tensor.half() if half and place in HALF[name] else tensor for place, tensor in enumerate(inputs)]
    model = machine(3, options=(("workerOrder", order),))
    outputs = forward(model, name, inputs, attributes)
    upstream = [torch.randn_like(out) if place in with_gradient else None for place, out in enumerate(outputs)]
    gradients = backward(model, name, inputs, attributes, outputs, upstream)
    return [*outputs, *(gradients[place] for place in sorted(gradients))]


def test_every_operator_has_a_case():
    operators = {name for domain, name, _ in machine(1).operators() if domain == "ai.snnipu"}
    assert operators == set(CASES) == set(HALF)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", sorted(CASES))
def test_shuffled_workers(name, half):
    expected = run(name, "ascending", half)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in expected)
    for order in ("descending", "shuffled:1", "shuffled:2", "shuffled:3", "check"):
        for place, (got, wanted) in enumerate(zip(run(name, order, half), expected)):
            assert torch.equal(got, wanted), (order, place)
