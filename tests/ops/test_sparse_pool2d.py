"""The contract of ``snnipu.ops.sparse_pool2d``; random windows are in test_sparse_conv_properties.py."""

import pytest
import torch
from oracle import assert_all_equal, needs_kernel, random_spikes, reference_of, with_threads
from support.versions import needs_compile

from snnipu import SparseSpikes, ops
from snnipu.ops._maps import pool_geometry
from snnipu.ops._slots import AS_NEEDED

SPIKES = SparseSpikes.from_dense(torch.ones(2, 1, 2 * 3 * 4)).with_maps((2, 3, 4))


def one_map(rows, carried=()):
    """One map at one step; ``carried``: ids of neurons that only carry gradient."""
    dense = torch.tensor(rows)
    flat = dense.flatten()
    spiking = flat.nonzero().flatten().tolist()
    ids = torch.tensor([[[*spiking, *carried]]], dtype=torch.int32)
    values = torch.tensor([[[*flat[spiking].tolist(), *[0.0] * len(carried)]]], requires_grad=True)
    counts = torch.tensor([[[len(spiking), len(spiking) + len(carried)]]], dtype=torch.int32)
    return SparseSpikes(ids, values, counts, flat.numel(), map_shape=(1, *dense.shape))


def test_a_maximum_and_where_its_gradient_goes():
    spikes = one_map(
        [[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [-1.0, 0.0, -1.0, -2.0], [0.0, 0.0, -3.0, -4.0]], (2, 7)
    )
    out = ops.sparse_pool2d(spikes, 2)
    # 3 of the first window, a silent one with two carried neurons, a hidden negative one, and one that is all negative.
    assert out.ids.tolist() == [[[0, 3, 1]]]
    assert out.values.tolist() == [[[3.0, -1.0, 0.0]]]
    assert out.counts.tolist() == [[[2, 3]]]
    out.values.backward(torch.tensor([[[1.0, 10.0, 100.0]]]))
    assert spikes.ids.tolist() == [[[1, 4, 8, 10, 11, 14, 15, 2, 7]]]
    assert spikes.values.grad.tolist() == [[[0.0, 1.0, 0.0, 10.0, 0.0, 0.0, 0.0, 100.0, 0.0]]]


@pytest.mark.parametrize(("mode", "divisor"), [("average", 4), ("sum", 1)])
def test_sums_carry_values(mode, divisor):
    spikes = one_map([[1.0, 1.0, 0.0], [0.0, 2.0, -2.0]], (2,))
    out = ops.sparse_pool2d(spikes, 2, 1, mode=mode)
    assert out.ids.tolist() == [[[0, 1]]]
    assert out.values.tolist() == [[[4 / divisor, 1 / divisor]]]
    out.values.backward(torch.tensor([[[1.0, 10.0]]]))
    assert spikes.ids.tolist() == [[[0, 1, 4, 5, 2]]]
    assert spikes.values.grad.tolist() == [[[1 / divisor, 11 / divisor, 11 / divisor, 10 / divisor, 10 / divisor]]]


def test_a_sum_of_zero_carries_gradient_and_is_no_spike():
    out = ops.sparse_pool2d(one_map([[1.0, -1.0]]), (1, 2), mode="sum")
    assert out.counts.tolist() == [[[0, 1]]]


@needs_kernel("sparse_pool2d_fwd")
@pytest.mark.parametrize("order", ["ascending", "shuffled"])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [((2, 2), (2, 2), (0, 0)), ((2, 1), (3, 2), (1, 0))])
def test_windows_apart_of_spikes_that_are_all_one(kernel, stride, padding, order):
    spikes = random_spikes(3, 4, 2 * 7 * 8, 0.3, 0.2)
    ids, values = spikes.ids.clone(), spikes.values.detach()
    if order == "shuffled":
        for row_ids, (firing, carried) in zip(ids.flatten(0, 1), spikes.counts.flatten(0, 1).tolist()):
            row_ids[:firing] = row_ids[:firing].flip(0)
            row_ids[firing:carried] = row_ids[firing:carried].roll(1)
    geometry = list(pool_geometry((2, 7, 8), kernel, stride, padding))
    given = (ids, values, spikes.counts, geometry, 0, AS_NEEDED)
    own = torch.ops.snnipu.sparse_pool2d_fwd(*given)
    assert_all_equal([own, reference_of("sparse_pool2d_fwd")(*given)])


@needs_kernel("sparse_pool2d_fwd")
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_threads_do_not_change_a_bit(mode):
    spikes = random_spikes(20, 9, 6 * 9 * 9, graded=True)
    geometry = list(pool_geometry((6, 9, 9), (3, 3), (2, 2), (1, 1)))

    def run():
        out = torch.ops.snnipu.sparse_pool2d_fwd(spikes.ids, spikes.values, spikes.counts, geometry, mode, AS_NEEDED)
        grad = (torch.arange(out[1].numel()) % 13).reshape(out[1].shape).float()
        own = (spikes.ids, spikes.counts, out[0], out[2], out[3], geometry, mode)
        return *out, torch.ops.snnipu.sparse_pool2d_bwd(grad, *own)

    assert_all_equal(with_threads(run))


def test_opcheck():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    tests = ("test_schema", "test_faketensor")
    spikes = random_spikes(3, 2, 24)
    geometry = list(pool_geometry((2, 3, 4), (2, 2), (1, 2), (0, 1)))
    for mode in (0, 1):
        arguments = (spikes.ids, spikes.values, spikes.counts, geometry, mode, 18)
        forward, backward = torch.ops.snnipu.sparse_pool2d_fwd.default, torch.ops.snnipu.sparse_pool2d_bwd.default
        torch.library.opcheck(forward, arguments, test_utils=tests)
        out = forward(*arguments)
        own = (out[1], spikes.ids, spikes.counts, out[0], out[2], out[3], geometry, mode)
        torch.library.opcheck(backward, own, test_utils=tests)


@needs_compile
def test_compiles_into_one_graph():
    def loss(values):
        own = SparseSpikes._trusted(SPIKES.ids, values, SPIKES.counts, 24, map_shape=(2, 3, 4))
        return (ops.sparse_pool2d(own, 2).values ** 2).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        values = SPIKES.values.clone().requires_grad_()
        out = function(values)
        out.backward()
        results.append((out.detach(), values.grad))
    assert_all_equal(results)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spikes": torch.zeros(1, 4, 4)}, TypeError, "spikes must be a snnipu.SparseSpikes, got Tensor"),
        ({"spikes": SPIKES.with_maps(None)}, ValueError, "input_size must be given"),
        ({"input_size": (2, 4, 3)}, ValueError, "spikes must be of maps"),
        ({"input_size": (2, 5, 3)}, ValueError, "map_shape must be of num_neurons=24 neurons"),
        ({"kernel_size": 0}, ValueError, "kernel_size must be at least 1"),
        ({"kernel_size": 4}, ValueError, "kernel_size: the window's height, 4, must be at most .* 3"),
        ({"kernel_size": "2"}, TypeError, "kernel_size must be an int or two"),
        ({"stride": 0}, ValueError, "stride must be at least 1"),
        ({"padding": 2}, ValueError, r"padding must be at most half of kernel_size, \(2, 2\), got \(2, 2\)"),
        ({"mode": "lp"}, ValueError, "mode must be 'max', 'average' or 'sum', got 'lp'"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.sparse_pool2d(**{"spikes": SPIKES, "kernel_size": 2, **arguments})


def test_ids_out_of_range_are_noticed():
    spikes = SPIKES.clone()
    spikes.ids[1, 0, 3] = 24
    with pytest.raises(ValueError, match="ids must be from 0 to 23, got 24 at step 1, sample 0, slot 3"):
        ops.sparse_pool2d(spikes, 2)
