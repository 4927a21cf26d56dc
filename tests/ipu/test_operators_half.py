"""PopART operators with values and weights that float16 rounds, on the IPU model, compared with runs in float32.

Rounding may move a membrane over its threshold. Such spikes must be few, and their membranes near the threshold.
test_every_operator.py tests numbers that float16 can represent.
"""

import pytest
import torch
from support.operators import SURROGATE, as_floats, forward, machine, needs_model_and_host, slots_of

from snnipu.ipu.model import IpuModelError

pytestmark = needs_model_and_host

T, B, N, SLOTS = 4, 5, 70, 9
SELECT = {"capacity": SLOTS, "rotate": 0, "has_grad_threshold": 1, "grad_threshold": 0.25}


SIZES, CAPS = (40, 37, 21, 10), (12, 9, 8, 10)


def network(weights):
    """Return inputs of SparseNetwork, the weights converted by ``weights``."""
    torch.manual_seed(0)
    inputs = as_floats(*slots_of((torch.rand(8, 6, SIZES[0]) < 0.25) * torch.randn(8, 6, SIZES[0]).abs(), CAPS[0]))
    for before, neurons in zip(SIZES, SIZES[1:]):
        weight = torch.randn(neurons, before) * 1.2 / (before / 4) ** 0.5
        inputs += [weights(weight), torch.rand(neurons), torch.rand(neurons) * 0.5 + 0.5]
    return inputs


NETWORK = {
    "slots": list(CAPS[1:]),
    "has_grad_threshold": [1] * 3,
    "grad_threshold": [0.2] * 3,
    "input_scale": [1.0, 0.5, 1.25],
    "reset": 1,
    "rotate": 0,
    "has_bias": 0,
    "unit_values": 0,
    "input_gradient": 1,
    **SURROGATE,
}
MEM = 4  # position of the membranes in a layer's five outputs


def same(tensor):
    return tensor


def test_a_network_differs_at_the_threshold_first():
    """With rounded weights, a neuron's first different spike has a membrane near the threshold."""
    model = machine(16, options=())
    exact, halved = network(same), network(torch.Tensor.half)
    runs = [forward(model, "SparseNetwork", inputs, NETWORK) for inputs in (exact, halved)]
    threshold = exact[5]
    spikes = [run[MEM] > threshold for run in runs]
    other = spikes[0] != spikes[1]
    share = float(other.float().mean())
    assert share < 0.01
    first = other & (other.cumsum(0) == 1)
    distance = (runs[0][MEM] - threshold).abs()
    # At most 12 weights of about 2, each with a relative error of 2^-11, and the decayed errors of earlier steps.
    assert not first.any() or float(distance[first].max()) < 0.02
    unchanged = other.cumsum(0) == 0
    torch.testing.assert_close(runs[1][MEM][unchanged], runs[0][MEM][unchanged], rtol=0, atol=0.02)


def test_half_weights_take_half_the_memory():
    model = machine(16, options=())
    sizes = []
    for weights in (same, torch.Tensor.half):
        forward(model, "SparseNetwork", network(weights), NETWORK)
        sizes.append(sum(model.programs()[-1].report()["tile_variables_bytes"]))
    weights = sum(a * b for a, b in zip(SIZES, SIZES[1:]))
    # Float16 saves 2 bytes for each weight that PopART stores, and as much for a padded copy on the tiles.
    assert 2 * weights <= sizes[0] - sizes[1] <= 5 * weights


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("SparseLinear", 0, "ids must be FLOAT"),
        ("SparseLinear", 2, "counts must be FLOAT"),
        ("SparseLinear", 4, "bias must be FLOAT"),
        ("SparseNetwork", 0, "ids must be FLOAT"),
        ("SparseNetwork", 4, "beta must be FLOAT"),
        ("SparseNetwork", 5, "threshold must be FLOAT"),
        ("SelectSpikes", 1, "threshold must be FLOAT"),
    ],
)
def test_tensors_that_stay_in_float(name, place, message):
    """Ids and counts exceed the integers of float16, up to 2048. Parameters of neurons are float32, like states."""
    slots = as_floats(*slots_of((torch.rand(T, B, N) < 0.15).float(), SLOTS))
    inputs = {
        "SparseLinear": [*slots, torch.randn(3, N), torch.zeros(3)],
        "SparseNetwork": network(same),
        "SelectSpikes": [torch.zeros(T, B, N), torch.ones(1)],
    }[name]
    inputs[place] = inputs[place].half()
    attributes = {"SparseLinear": {"unit_values": 0}, "SparseNetwork": NETWORK, "SelectSpikes": {**SELECT, **SURROGATE}}
    with pytest.raises(IpuModelError, match=message):
        forward(machine(4), name, inputs, attributes[name])
