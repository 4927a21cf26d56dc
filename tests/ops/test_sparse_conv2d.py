"""The contract of ``snnipu.ops.sparse_conv2d``; random sizes are in test_sparse_conv_properties.py."""

import itertools

import pytest
import torch
from oracle import assert_all_equal, needs_kernel, on_grid, poison_new_tensors, random_spikes, with_threads
from support.versions import needs_compile

from snnipu import SparseSpikes, ops
from snnipu.ops._maps import conv_geometry

SPIKES = SparseSpikes.from_dense(torch.ones(2, 1, 2 * 3 * 4)).with_maps((2, 3, 4))
WEIGHT = torch.zeros(5, 2, 2, 2)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    poison_new_tensors(monkeypatch)


@pytest.mark.parametrize("outputs", [1, 16, 17, 64, 65, 130])
def test_blocks_of_output_channels(outputs, poisoned):
    spikes = random_spikes(4, 3, 3 * 6 * 7, graded=True).with_maps((3, 6, 7)).requires_grad_()
    dense = torch.where(torch.arange(spikes.capacity) < spikes.counts[..., :1], spikes.values.detach(), torch.zeros(()))
    x = SparseSpikes._trusted(spikes.ids, dense, spikes.counts, spikes.num_neurons).to_dense().requires_grad_()
    own, other = (on_grid(outputs, 3, 3, 3).requires_grad_() for _ in range(2))
    other.data.copy_(own.data)
    out = ops.sparse_conv2d(spikes, own, padding=1, stride=(2, 1))
    expected = torch.nn.functional.conv2d(x.reshape(-1, 3, 6, 7), other, padding=1, stride=(2, 1))
    assert torch.equal(out.flatten(0, 1), expected)
    upstream = on_grid(*expected.shape)
    expected.backward(upstream)
    out.backward(upstream.reshape(out.shape))
    assert torch.equal(own.grad, other.grad)


@pytest.mark.parametrize("size", [1, 5, 63])
def test_long_maps(size, poisoned):
    spikes = random_spikes(2, 2, size, graded=True).with_maps((1, 1, size))
    weight = on_grid(2, 1, 1, 3)
    out = ops.sparse_conv2d(spikes, weight, padding=(0, 1))
    values = torch.where(torch.arange(spikes.capacity) < spikes.counts[..., :1], spikes.values, torch.zeros(()))
    x = SparseSpikes._trusted(spikes.ids, values, spikes.counts, size).to_dense()
    expected = torch.nn.functional.conv2d(x.reshape(-1, 1, 1, size), weight, padding=(0, 1))
    assert torch.equal(out.flatten(0, 1), expected)


def test_non_contiguous(poisoned):
    spikes = random_spikes(4, 3, 2 * 5 * 5)
    across = SparseSpikes(*(part.transpose(0, 1) for part in (spikes.ids, spikes.values, spikes.counts)), 50)
    weight = on_grid(3, 3, 2, 6).permute(3, 2, 0, 1)
    assert not weight.is_contiguous()
    out = ops.sparse_conv2d(across, weight, input_size=5)
    assert torch.equal(out.transpose(0, 1), ops.sparse_conv2d(spikes, weight.contiguous(), input_size=5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_weights_are_computed_in_float32(dtype):
    spikes = random_spikes(3, 2, 2 * 5 * 5, graded=True).with_maps((2, 5, 5))
    weight = on_grid(4, 2, 3, 3).to(dtype).requires_grad_()
    full = weight.detach().float().requires_grad_()
    out, expected = ops.sparse_conv2d(spikes, weight), ops.sparse_conv2d(spikes, full)
    assert out.dtype == torch.float32
    assert torch.equal(out, expected)
    upstream = torch.randn_like(out)
    out.backward(upstream)
    expected.backward(upstream)
    assert weight.grad.dtype == dtype
    assert torch.equal(weight.grad, full.grad.to(dtype))


@needs_kernel("sparse_conv2d_fwd")
def test_threads_do_not_change_a_bit():
    spikes = random_spikes(20, 9, 6 * 9 * 9, graded=True)
    weight, bias = torch.randn(70, 3, 3, 3), torch.randn(70)
    geometry = conv_geometry(weight, (9, 9), (1, 1), (1, 1), (1, 1), 2)
    upstream = torch.randn(20, 9, geometry.neurons)

    def run():
        arguments = (spikes.ids, spikes.values, spikes.counts, weight)
        out = torch.ops.snnipu.sparse_conv2d_fwd(*arguments, bias, list(geometry))
        return out, *torch.ops.snnipu.sparse_conv2d_bwd(upstream, *arguments, list(geometry), True, True, True)

    assert_all_equal(with_threads(run))


@pytest.mark.parametrize("need", list(itertools.product((False, True), repeat=3)))
def test_each_gradient_alone(need, poisoned):
    spikes = random_spikes(4, 3, 18, graded=True)
    tensors = (spikes.values.clone(), on_grid(5, 2, 2, 2), on_grid(5))

    def gradients(need):
        values, weight, bias = (t.clone().requires_grad_(n) for t, n in zip(tensors, need))
        out = ops.sparse_conv2d(SparseSpikes(spikes.ids, values, spikes.counts, 18, map_shape=(2, 3, 3)), weight, bias)
        assert out.requires_grad == any(need)
        if any(need):
            out.backward(torch.arange(out.numel()).reshape(out.shape) / 8)
        return [values.grad, weight.grad, bias.grad]

    for own, expected, wanted in zip(gradients(need), gradients((True, True, True)), need):
        assert (own is not None) == wanted
        assert own is None or torch.equal(own, expected)


def test_second_derivative_is_refused():
    weight = torch.randn(4, 2, 2, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad((ops.sparse_conv2d(SPIKES, weight) ** 2).sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative through snnipu's sparse_conv2d"):
        gradient.sum().backward()


def test_opcheck():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.library.opcheck came with torch 2.4")
    tests = ("test_schema", "test_faketensor")
    for rows in ((3, 2), (0, 2)):
        spikes = random_spikes(*rows, 24, graded=True)
        weight = torch.randn(4, 2, 2, 3)
        geometry = conv_geometry(weight, (3, 4), (1, 1), (0, 0), (1, 1), 1)
        own = (spikes.ids, spikes.values, spikes.counts, weight)
        torch.library.opcheck(
            torch.ops.snnipu.sparse_conv2d_fwd.default, (*own, None, list(geometry)), test_utils=tests
        )
        grad = torch.randn(*rows, geometry.neurons)
        for need in ((True, True, True), (False, True, False)):
            arguments = (grad, *own, list(geometry), *need)
            torch.library.opcheck(torch.ops.snnipu.sparse_conv2d_bwd.default, arguments, test_utils=tests)


@needs_compile
def test_compiles_into_one_graph():
    def loss(values, weight):
        own = SparseSpikes._trusted(SPIKES.ids, values, SPIKES.counts, 24, map_shape=(2, 3, 4))
        return (ops.sparse_conv2d(own, weight, padding=1) ** 2).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        torch.manual_seed(1)
        values, weight = SPIKES.values.clone().requires_grad_(), torch.randn(4, 2, 2, 2, requires_grad=True)
        out = function(values, weight)
        out.backward()
        results.append((out.detach(), values.grad, weight.grad))
    assert_all_equal(results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spikes: spikes.ids[1, 0].fill_(24), "ids must be from 0 to 23, got 24 at step 1, sample 0, slot 0"),
        (lambda spikes: spikes.ids[1, 0].fill_(-1), "ids must be from 0 to 23, got -1"),
        (lambda spikes: spikes.counts[1, 0].fill_(99), "counts must satisfy .* at step 1, sample 0"),
        (lambda spikes: spikes.counts[1, 0, 0].fill_(-1), "counts must satisfy"),
    ],
)
def test_tensors_changed_after_construction_are_noticed(change, message):
    spikes = SPIKES.clone()
    change(spikes)
    with pytest.raises(ValueError, match=message):
        ops.sparse_conv2d(spikes, WEIGHT)
    geometry = list(conv_geometry(WEIGHT, (3, 4), (1, 1), (0, 0), (1, 1), 1))
    with pytest.raises(ValueError, match=message):
        torch.ops.snnipu.sparse_conv2d_bwd(
            torch.ones(2, 1, 30), spikes.ids, spikes.values, spikes.counts, WEIGHT, geometry, True, True, True
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spikes": torch.zeros(1, 4, 4)}, TypeError, "spikes must be a snnipu.SparseSpikes, got Tensor"),
        ({"weight": [[1.0]]}, TypeError, "weight must be a torch.Tensor, got list"),
        ({"weight": torch.zeros(5, 2, 2, 2, dtype=torch.int64)}, TypeError, "weight must be float32"),
        ({"weight": torch.zeros(5, 2, 2)}, ValueError, r"weight must have shape \[out, in / groups, kh, kw\]"),
        ({"weight": torch.zeros(0, 2, 2, 2)}, ValueError, r"weight must have shape \[out, in / groups, kh, kw\]"),
        ({"weight": torch.zeros(5, 3, 2, 2)}, ValueError, "spikes must be of 3 channels, got .*map_shape=.2, 3, 4."),
        ({"weight": torch.zeros(5, 2, 2, 2, device="meta")}, ValueError, "weight must be on the device of the spikes"),
        ({"weight": torch.zeros(5, 2, 4, 2)}, ValueError, "kernel_size: the kernel's height, 4 .* at most .* 3"),
        ({"dilation": 4}, ValueError, "kernel_size: the kernel's height, 5 with its dilation"),
        ({"bias": torch.zeros(4)}, ValueError, r"bias must have shape \(5,\).* got \(4,\)"),
        ({"bias": 1.0}, TypeError, "bias must be a floating torch.Tensor or None"),
        ({"stride": 0}, ValueError, "stride must be at least 1, got 0"),
        ({"stride": 1.5}, TypeError, "stride must be an int or two, got 1.5"),
        ({"stride": True}, TypeError, "stride must be an int or two, got True"),
        ({"padding": -1}, ValueError, "padding must be at least 0, got -1"),
        ({"padding": (1, 2, 3)}, TypeError, "padding must be an int or two"),
        ({"dilation": 0}, ValueError, "dilation must be at least 1, got 0"),
        ({"groups": 2}, ValueError, "groups must divide weight's output channels, 5, got 2"),
        ({"groups": "2"}, TypeError, "groups must be an int, got '2'"),
        ({"input_size": (4, 3)}, ValueError, r"spikes must be of maps \(2, 4, 3\), .* got map_shape=\(2, 3, 4\)"),
        ({"input_size": 0}, ValueError, "input_size must be at least 1, got 0"),
        ({"spikes": SPIKES.with_maps(None)}, ValueError, "input_size must be given"),
        (
            {"spikes": SPIKES.with_maps(None), "input_size": (3, 5)},
            ValueError,
            "spikes must be of 2 x 3 x 5 = 30 neurons, as input_size says, got 24",
        ),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.sparse_conv2d(**{"spikes": SPIKES, "weight": WEIGHT, **arguments})
