"""The Triton kernels of the operators on maps in Triton's interpreter, against the references; and compiled."""

import pytest
import torch
from oracle import on_grid, poison_new_tensors, random_spikes, reference_of, relative_error

from snnipu import surrogate
from snnipu.ops._maps import as_list, conv_geometry
from snnipu.ops._slots import AS_NEEDED

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}
ATAN = surrogate.atan(3.0).kernel


def _geometry(shape=(2, 4, 3), out=3, kernel=(3, 2), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    weight = torch.empty(out, shape[0] // groups, *kernel)
    return as_list(conv_geometry(weight, shape[1:], stride, padding, dilation, groups))


GEOMETRIES = {
    "plain": {},
    "padding": {"shape": (2, 3, 3), "kernel": (3, 3), "padding": (2, 1)},
    "stride": {"shape": (2, 5, 6), "stride": (2, 3), "padding": (1, 0)},
    "dilation": {"shape": (2, 5, 5), "dilation": (2, 3), "padding": (0, 1)},
    "groups": {"shape": (4, 3, 3), "out": 6, "groups": 2},
    "many channels": {"shape": (1, 3, 3), "out": 70, "kernel": (2, 2)},
    "one": {"shape": (1, 1, 1), "out": 1, "kernel": (1, 1)},
    "wide": {"shape": (1, 1, 20), "out": 2, "kernel": (1, 3)},
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def kernels(interpreted, monkeypatch):
    module = interpreted("sparse")
    monkeypatch.setattr(interpreted("sparse_conv"), "_SPLITS", 2)
    monkeypatch.setattr(interpreted("sparse_conv"), "_PLACE_BLOCK", 16)
    poison_new_tensors(monkeypatch)
    return module


def _spikes(geometry, steps=2, batch=2, dtype=torch.float32, rate=0.2):
    return random_spikes(steps, batch, geometry[0] * geometry[1] * geometry[2], rate, 0.2, graded=True, dtype=dtype)


def _weight(geometry, dtype=torch.float32):
    return on_grid(geometry[3], geometry[0] // geometry[14], *geometry[6:8], dtype=dtype) + 1 / 8


def _assert_close(actual, expected, dtype):
    assert len(actual) == len(expected)
    for own, other in zip(actual, expected):
        assert (own.shape, own.dtype, own.is_contiguous()) == (other.shape, other.dtype, True)
        if own.numel():
            terms = expected[1] if other.numel() == 1 and expected[1].numel() else None
            assert relative_error(own, other, terms) <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolution(name, kernels):
    dtype = torch.float32 if len(name) % 2 else torch.float64
    geometry = _geometry(**GEOMETRIES[name])
    spikes, weight = _spikes(geometry, dtype=dtype), _weight(geometry, dtype)
    bias = on_grid(geometry[3], dtype=dtype)
    given = (spikes.ids, spikes.values, spikes.counts, weight)
    for each in (bias, None):
        out = kernels.sparse_conv2d_fwd(*given, each, geometry)
        torch.testing.assert_close(out, reference_of("sparse_conv2d_fwd")(*given, each, geometry), rtol=0, atol=1e-12)
    grad = torch.randn_like(out)
    for needs in ((True, True, True), (False, False, False)):
        actual = kernels.sparse_conv2d_bwd(grad, *given, geometry, *needs)
        _assert_close(actual, reference_of("sparse_conv2d_bwd")(grad, *given, geometry, *needs), dtype)


def _layer(geometry, reset, delay, each, dtype, capacity=AS_NEEDED, second=0.2, steps=3):
    spikes, channels = _spikes(geometry, steps=steps, dtype=dtype), geometry[3]
    beta, threshold = torch.tensor(0.75, dtype=dtype), torch.tensor(0.5, dtype=dtype)
    if each:
        beta, threshold = torch.rand(channels, dtype=dtype) * 1.4 - 0.2, torch.rand(channels, dtype=dtype) - 0.2
    bias = on_grid(channels, most=0.25, dtype=dtype)
    parameters = (_weight(geometry, dtype), bias, beta, threshold, geometry)
    return spikes.ids, spikes.values, spikes.counts, *parameters, second, 0.5, capacity, True, reset, delay, True


def _backward(forward, saved):
    ids, values, counts, weight, _, beta, threshold, geometry, _, scale, _, _, reset, delay, _ = forward
    ids_out, _, counts_out, _, slot_mem, fired, mem = saved
    grad = torch.randn(slot_mem.shape, dtype=weight.dtype)
    grad[torch.arange(ids_out.shape[2]) >= counts_out[..., 1:]] = float("nan")  # padding
    made = (ids_out, counts_out, slot_mem, fired, mem)
    parameters = (weight, beta, threshold, geometry, scale, reset, delay)
    return (grad, ids, values, counts, *parameters, *made, *ATAN, *[True] * 5)


@pytest.mark.parametrize(
    ("name", "reset", "delay", "each", "dtype", "capacity"),
    [
        ("plain", 0, 0, False, torch.float32, AS_NEEDED),
        ("padding", 1, 1, True, torch.float64, 9),
        ("groups", 2, 5, True, torch.float32, AS_NEEDED),
        ("stride", 1, 0, False, torch.float64, 0),
    ],
)
def test_layer(name, reset, delay, each, dtype, capacity, kernels):
    forward = _layer(_geometry(**GEOMETRIES[name]), reset, delay, each, dtype, capacity)
    actual = kernels.sparse_conv_lif_sequence_fwd(*forward)
    expected = reference_of("sparse_conv_lif_sequence_fwd")(*forward)
    assert len(actual) == len(expected)
    for own, other in zip(actual, expected):
        assert own.dtype == other.dtype
        assert torch.equal(own, other)
    backward = _backward(forward, expected)
    grads = reference_of("sparse_conv_lif_sequence_bwd")(*backward)
    _assert_close(kernels.sparse_conv_lif_sequence_bwd(*backward), grads, dtype)


def test_membranes_that_were_not_stored_are_refused(kernels):
    forward = _layer(_geometry(), 1, 0, False, torch.float32)
    saved = reference_of("sparse_conv_lif_sequence_fwd")(*forward[:-1], False)
    with pytest.raises(ValueError, match=r"mem must be the .* membranes .* store_mem .* got \[0\]"):
        kernels.sparse_conv_lif_sequence_bwd(*_backward(forward, saved))


def test_what_is_out_of_range_is_not_read(kernels):
    geometry = _geometry(shape=(1, 2, 2), out=1, kernel=(1, 1))
    ids = torch.tensor([[[1, -1, 4, 2]]], dtype=torch.int32)
    given = (ids, torch.tensor([[[1.0, 2.0, 4.0, 8.0]]]), torch.tensor([[[4, 9]]], dtype=torch.int32))
    out = kernels.sparse_conv2d_fwd(*given, torch.ones(1, 1, 1, 1), None, geometry)
    assert torch.equal(out, torch.tensor([[[0.0, 1.0, 8.0, 0.0]]]))
    grads = kernels.sparse_conv2d_bwd(out, *given, torch.ones(1, 1, 1, 1), geometry, False, True, False)
    assert grads[1].item() == 1 + 64


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_nothing_to_do(shape, kernels):
    geometry = _geometry()
    forward = list(_layer(geometry, 1, 0, True, torch.float32))
    empty = _spikes(geometry, steps=1, batch=1)
    forward[0], forward[1] = (each.new_zeros((*shape, 4)) for each in (empty.ids, empty.values))
    forward[2] = empty.counts.new_zeros((*shape, 2))
    saved = kernels.sparse_conv_lif_sequence_fwd(*forward)
    grads = kernels.sparse_conv_lif_sequence_bwd(*_backward(forward, saved))
    assert grads[1].shape == forward[3].shape
    assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_for_a_gpu(capability, compiled):
    from snnipu.backends.triton import sparse

    geometry = _geometry(**GEOMETRIES["groups"])
    forward = _layer(geometry, 1, 0, True, torch.float32, capacity=9)
    launches = compiled(sparse.sparse_conv_lif_sequence_fwd, *forward, capability=capability)
    saved = reference_of("sparse_conv_lif_sequence_fwd")(*forward)
    launches += compiled(sparse.sparse_conv_lif_sequence_bwd, *_backward(forward, saved), capability=capability)
    found = {launch.kernel: launch for launch in launches}
    for name in ("gather_maps_kernel", "grad_taps_kernel"):
        assert "atom" not in found[name].ptx
        assert found[name].resources["LOCAL"] == 0
