"""PopART operators with values and weights that float16 rounds, on the IPU model, compared with runs in float32.

Rounding may move a membrane over its threshold. Such spikes must be few, and their membranes near the threshold.
test_every_operator.py tests numbers that float16 can represent.
"""

import torch
from ipu.test_operators_network import SIZES, network
from support.operators import as_floats, forward, machine, needs_model_and_host

pytestmark = needs_model_and_host


def network_of(weights):
    """Return inputs of SparseNetwork, the weights converted by ``weights``, and its attributes."""
    spikes, parameters, attributes = network(unit=False)
    tensors = [weights(tensor) if tensor.dim() == 2 else tensor for layer in parameters for tensor in layer]
    return [*as_floats(*spikes), *tensors], attributes


MEM = 4  # position of the membranes in a layer's five outputs


def same(tensor):
    return tensor


def test_a_network_differs_at_the_threshold_first():
    """With rounded weights, a neuron's first different spike has a membrane near the threshold."""
    model = machine(16, options=())
    runs = [forward(model, "SparseNetwork", *network_of(weights)) for weights in (same, torch.Tensor.half)]
    threshold = network_of(same)[0][5]
    spikes = [run[MEM] > threshold for run in runs]
    other = spikes[0] != spikes[1]
    assert float(other.float().mean()) < 0.01
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
        forward(model, "SparseNetwork", *network_of(weights))
        sizes.append(sum(model.programs()[-1].report()["tile_variables_bytes"]))
    weights = sum(a * b for a, b in zip(SIZES, SIZES[1:]))
    # Float16 saves 2 bytes for each weight that PopART stores, and as much for a padded copy on the tiles.
    assert 2 * weights <= sizes[0] - sizes[1] <= 5 * weights
