"""The PopART operators on spike ids of maps, through the IPU model, against the host's kernels."""

import pytest
import torch
from support.operators import MACHINES, backward, forward, machine, needs_model_and_host

from snnipu.ipu.model import IpuModelError
from snnipu.ops._maps import Geometry, PoolGeometry, conv_geometry, pool_geometry

pytestmark = needs_model_and_host

T, B, SLOTS = 3, 4, 20


def spikes(neurons, density=0.15, slots=SLOTS, seed=0, held=False):
    """ids, values, counts of random spikes and gradient-only slots."""
    torch.manual_seed(seed)
    x = torch.randn(T, B, neurons) * (torch.rand(T, B, neurons) < density)
    ids, values, counts, _ = torch.ops.snnipu.dense_to_sparse_fwd(x, slots, False)
    # Behind the spikes, a few that only carry gradient.
    counts[..., 0] -= torch.randint(0, 4, counts.shape[:2]).clamp(max=counts[..., 0])
    values[torch.arange(slots) >= counts[..., :1]] = 0
    return ids, values.half().float() if held else values, counts


def as_floats(ids, values, counts):
    return [ids.float(), values, counts.float()]


def geometry(in_channels, size, out, kernel, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    return conv_geometry(torch.empty(out, in_channels // groups, *kernel), size, stride, padding, dilation, groups)


CONVOLUTIONS = {
    "3x3": geometry(3, (7, 9), 10, (3, 3)),
    "padded": geometry(2, (6, 5), 5, (3, 3), padding=(1, 2)),
    "strides": geometry(4, (9, 8), 6, (3, 2), stride=(2, 3), padding=(1, 0)),
    "dilated": geometry(2, (9, 9), 7, (2, 3), stride=(2, 1), padding=(2, 3), dilation=(3, 2)),
    "groups": geometry(6, (5, 6), 9, (2, 2), groups=3),
    "depthwise": geometry(4, (5, 5), 4, (3, 3), padding=(1, 1), groups=4),
    "1x1": geometry(5, (4, 3), 20, (1, 1)),
    "one place": geometry(3, (4, 4), 3, (4, 4)),
    "larger than the map": geometry(2, (2, 2), 4, (5, 5), padding=(2, 2)),
    "wide": geometry(1, (3, 2), 70, (3, 2), padding=(1, 1)),
}
# (channels of a block, lines of a band, rows of a share): one part; two channels, a line and a row each; and between.
PLANS = [(64, 99, 99), (2, 1, 1), (4, 2, 5)]


def attributes(sizes, plan, input_gradient=1):
    return {"geometry": list(sizes), "plan": list(plan), "input_gradient": input_gradient}


def weight_of(sizes):
    return torch.randn(
        sizes.out_channels, sizes.in_channels // sizes.groups, sizes.kernel_height, sizes.kernel_width
    )


def check_conv(model, sizes, plan, bias=True):
    ids, values, counts = spikes(sizes.inputs)
    weight, offset, grad = weight_of(sizes), torch.randn(sizes.out_channels), torch.randn(T, B, sizes.neurons)
    inputs = [*as_floats(ids, values, counts), weight, *([offset] if bias else [])]
    expected = torch.ops.snnipu.sparse_conv2d_fwd(ids, values, counts, weight, offset if bias else None, list(sizes))
    (made,) = forward(model, "SparseConv2d", inputs, attributes(sizes, plan))
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    got = backward(model, "SparseConv2d", inputs, attributes(sizes, plan), [made], [grad])
    wanted = torch.ops.snnipu.sparse_conv2d_bwd(grad, ids, values, counts, weight, list(sizes), True, True, bias)
    carried = torch.arange(SLOTS) < counts[..., 1:]
    torch.testing.assert_close(got[1][carried], wanted[0][carried], rtol=1e-5, atol=2e-5)
    assert not got[1][~carried].any()
    for place, gradient in zip((3, 4), wanted[1:]):
        if place < len(inputs):
            torch.testing.assert_close(got[place], gradient, rtol=1e-5, atol=2e-5)
    # Carriers: without them PopART would drop the gradient of whoever made the spikes.
    assert torch.equal(got[0], torch.zeros(T, B, SLOTS))
    assert torch.equal(got[2], torch.zeros(T, B, 2))


@pytest.mark.parametrize(("tiles", "ipus"), MACHINES)
@pytest.mark.parametrize("plan", PLANS)
def test_sparse_conv2d(tiles, ipus, plan):
    check_conv(machine(tiles, ipus), CONVOLUTIONS["3x3"], plan)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_sizes_of_convolutions(name, plan):
    check_conv(machine(4), CONVOLUTIONS[name], plan, bias=name != "groups")
