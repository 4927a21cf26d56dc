"""``snnipu.ListedLinear``: the weights of a pruned ``SparseLinear`` as a list."""

import pytest
import torch
from oracle import random_spikes, relative_error
from support.operators import needs_library
from support.tables import assert_refused, each_row
from torch.nn.utils import prune

import snnipu as snn
from snnipu import poptorch
from snnipu.ops import connections


def pruned(inputs=30, outputs=20, left=0.2, bias=True, path="sparse", dtype=torch.float64):
    layer = snn.SparseLinear(inputs, outputs, bias, path=path).to(dtype)
    prune.random_unstructured(layer, "weight", amount=1 - left)
    return layer


def results(layer, spikes, upstream):
    """Return the output and the gradients; the weight's gradient as ``[out, in]``, zero where pruned."""
    x = spikes.to(upstream.dtype).requires_grad_()
    out = layer(x)
    of_weight = layer.weight_orig if hasattr(layer, "weight_orig") else layer.weight
    leaves = (x.values, of_weight, *([] if layer.bias is None else [layer.bias]))
    values, weight, *bias = torch.autograd.grad((out * upstream).sum(), leaves)
    if isinstance(layer, snn.ListedLinear):
        matrix = upstream.new_zeros(layer.out_features, layer.in_features)
        weight = matrix.index_put((layer.synapses[0], layer.synapses[1]), weight)
    return [out, values.nan_to_num(), weight, *bias]


@pytest.mark.parametrize("pairs", [7, connections._PAIRS])
@pytest.mark.parametrize("path", ["sparse", "dense", "auto"])
@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "outputs", "left", "rate"),
    [
        (6, 4, 30, 20, 0.2, 0.3),
        (5, 3, 63, 1, 0.5, 0.2),
        (5, 3, 1, 63, 0.5, 0.5),
        (3, 2, 40, 9, 1.0, 0.2),  # unpruned
        (3, 2, 8, 9, 0.0, 0.2),  # all weights pruned
        (3, 2, 8, 9, 0.3, 0.0),  # no spikes
        (0, 2, 8, 9, 0.3, 0.2),
        (3, 0, 8, 9, 0.3, 0.2),
    ],
)
def test_equals_the_masked_layer(steps, batch, inputs, outputs, left, rate, path, pairs, monkeypatch):
    monkeypatch.setattr(connections, "_PAIRS", pairs)
    layer = pruned(inputs, outputs, left)
    small = layer.listed()
    small.path = path
    assert small.weight.shape == (int(layer.weight_mask.sum()),)
    spikes = random_spikes(steps, batch, inputs, rate, 0.2, graded=True)
    upstream = torch.randn(steps, batch, outputs, dtype=torch.float64)
    for actual, expected in zip(results(small, spikes, upstream), results(layer, spikes, upstream)):
        assert actual.shape == expected.shape
        if actual.numel():
            assert relative_error(actual, expected, terms=torch.ones(1)) <= 1e-12


def test_dense_input():
    """A dense input that needs a gradient gets all of it, as with a matrix."""
    layer = pruned(path="auto")
    x = (torch.rand(6, 4, 30, dtype=torch.float64) < 0.3).double().requires_grad_()
    grads = [torch.autograd.grad(each(x).square().sum(), x)[0] for each in (layer.listed(), layer)]
    assert relative_error(*grads) <= 1e-12
    small = layer.listed()
    for dtype in (torch.bool, torch.int64):
        assert torch.equal(small(x.detach().to(dtype)), small(x.detach()))


def test_masks_and_zeros():
    """A mask keeps zero weights; without a mask zeros are pruned. Frozen parameters stay frozen."""
    layer = snn.SparseLinear(3, 2).double().eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 1.0, 0.0], [2.0, 3.0, 4.0]]))
    layer.weight.requires_grad_(False)
    small = layer.listed()
    assert small.synapses.tolist() == [[1, 0, 1, 1], [0, 1, 1, 2]]
    assert small.weight.tolist() == [2, 1, 3, 4]
    assert (small.weight.requires_grad, small.training, small.bias) == (False, False, None)
    prune.custom_from_mask(layer, "weight", torch.tensor([[1, 0, 0], [0, 1, 1]]))
    assert layer.listed().synapses.tolist() == [[0, 1, 1], [0, 1, 2]]
    assert layer.listed().weight.tolist() == [0, 3, 4]
    prune.remove(layer, "weight")
    assert layer.listed().synapses.tolist() == [[1, 1], [1, 2]]


def test_a_pruned_bias():
    """The bias keeps its mask. With a mask, ``layer.bias`` is the bias of the last call."""
    layer = pruned()
    prune.custom_from_mask(layer, "bias", torch.arange(20) % 2)
    with torch.no_grad():
        layer.bias_orig += 1
    small = layer.listed()
    for each in (small, small.to_linear()):
        assert torch.equal(each.bias, layer.bias_orig * layer.bias_mask)
        each(torch.ones(1, 1, 30)).sum().backward()
        assert torch.equal(each.bias_orig.grad, layer.bias_mask)


def test_back_and_pruned_again():
    layer, spikes = pruned(), random_spikes(6, 4, 30).to(torch.float64)
    small = layer.listed()
    whole = small.to_linear()
    assert torch.equal(whole.weight, layer.weight)
    assert torch.equal(whole.bias, layer.bias)
    prune.l1_unstructured(small, "weight", amount=0.5)
    smaller = small.listed()
    assert smaller.weight.numel() == small.weight.numel() // 2
    assert relative_error(smaller(spikes), small(spikes)) <= 1e-12
    prune.remove(small, "weight")
    assert torch.equal(small.listed().synapses, smaller.synapses)


def test_copies_and_files():
    layer, spikes = pruned(dtype=torch.float32).listed(), random_spikes(6, 4, 30)
    out = layer(spikes)
    state = layer.state_dict()
    assert list(state) == ["weight", "bias", "synapses"]
    other = snn.ListedLinear(30, 20, layer.synapses.flip(1), bias=True, path="sparse")
    other.load_state_dict(state)
    assert torch.equal(other(spikes), out)
    for synapses, message in (
        (layer.synapses.flip(1), "synapses must be sorted by input"),
        (layer.synapses + 30, r"synapses: neurons must be in \[0, 20\)"),
        (layer.synapses[:, 1:], "size mismatch for synapses"),
    ):
        with pytest.raises(RuntimeError, match=message):
            other.load_state_dict({**state, "synapses": synapses})
    with torch.no_grad():  # half precision computes in float32
        assert layer.half()(spikes).dtype == torch.float32


def test_second_derivative_and_changed_synapses():
    layer, spikes = pruned(path="sparse").listed(), random_spikes(4, 3, 30).to(torch.float64)
    (grad,) = torch.autograd.grad(layer(spikes).square().sum(), layer.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="listed_linear"):
        grad.sum().backward()
    out = layer(spikes)
    layer.synapses.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("left", [0.2, 0.0])
@needs_library
def test_on_the_ipu_model(left):
    layer = pruned(left=left, path="sparse", dtype=torch.float32).listed()
    x = (torch.rand(6, 4, 30) < 0.3).float()
    out = poptorch.inferenceModel(layer, poptorch.Options().useIpuModel(True))(x)
    assert relative_error(out, layer(x), terms=torch.ones(1)) <= 1e-6


@each_row(r"""
layer([[0], [1]]) | TypeError: synapses must be an int32 or int64 torch.Tensor, got list
layer(torch.zeros(2, 3)) | TypeError: synapses must be an int32 or int64 torch.Tensor, got torch.float32
layer(torch.zeros(3, 2, dtype=torch.int64)) | ValueError: synapses must have shape \[2, kept\], got \(3, 2\)
layer(torch.tensor([[0, 4], [1, 1]])) | ValueError: synapses: neurons must be in \[0, 4\), got 0 to 4
layer(torch.tensor([[0, 1], [-1, 1]])) | ValueError: synapses: inputs must be in \[0, 3\), got -1 to 1
layer(torch.tensor([[0, 1, 0], [1, 1, 1]])) | ValueError: must not hold a pair of neuron and input twice
""")
def test_bad_synapses(row):
    assert_refused(row, globals(), layer=lambda synapses: snn.ListedLinear(3, 4, synapses))


def test_ids_that_are_none():
    layer = snn.ListedLinear(3, 4, torch.tensor([[0, 3], [1, 2]]), path="sparse")
    bad = random_spikes(2, 2, 3, 1.0, 0.0, slack=0)
    bad.ids[0, 0, 0] = 3
    with pytest.raises(ValueError, match="ids must be from 0 to 2, got 3"):
        layer(bad)
