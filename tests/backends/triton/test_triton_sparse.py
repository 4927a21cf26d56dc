"""Special cases of the event-driven operators' Triton kernels, in Triton's interpreter; no GPU is needed.

tests/ops/test_sparse_contract.py compares the kernels with the references.
"""

import itertools

import pytest
import torch
from oracle import assert_all_equal, poison_new_tensors, reference_of
from support.interpreter import event_driven, small_blocks
from support.sparse_cases import arguments, assert_is_the_reference, backward_values, case

from snnipu.ops._maps import conv_geometry
from snnipu.ops._slots import AS_NEEDED


@pytest.fixture
def kernels(interpreted, monkeypatch):
    poison_new_tensors(monkeypatch)
    return small_blocks(interpreted, monkeypatch)


# ---- selection


@pytest.mark.parametrize("rotate", [False, True], ids=["lowest", "rotate"])
def test_without_a_scan(rotate, kernels, interpreted, monkeypatch):
    """Triton 2.0 has no scan."""
    select = interpreted("sparse_select")
    monkeypatch.setattr(select, "_prefix_sums", select._sums_one_by_one)
    for capacity in (AS_NEEDED, 30):
        options = {"neurons": 130, "rows": (3, 2), "capacity": capacity, "rotate": rotate}
        assert_is_the_reference(lambda operator: getattr(kernels, operator), "select_spikes", **options)


def test_thresholds_are_compared_in_full_precision(kernels):
    close = 0.1 + 2.0**-50
    mem = torch.tensor([[[0.1, close, 0.1, close, -close]]], dtype=torch.float64)
    threshold = torch.tensor(0.5, dtype=torch.float64)
    for second in (0.1, close, -close, 1e-300, 0.0):
        values = (mem, threshold, second, 5, False)
        selected = kernels.select_spikes_fwd(*values)
        assert_all_equal([reference_of("select_spikes_fwd")(*values), selected])
    assert selected[2].tolist() == [[[0, 4]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_spikes_are_counted_some_steps_at_a_time(dtype, kernels, interpreted, monkeypatch):
    values = case("sparse_linear", 3, 20, rows=(7, 2), rates=(0.3, 0.2), shuffled=True, dtype=dtype)
    slots = tuple(values[name] for name in ("ids", "values", "counts"))
    expected = reference_of("spike_count_fwd")(*slots, 20)
    for steps in (1, 3, 100):
        monkeypatch.setattr(interpreted("sparse_select"), "_COUNTED_AT_ONCE", steps * 40)
        assert torch.equal(kernels.spike_count_fwd(*slots, 20), expected)
    grad = torch.randn(2, 20, dtype=dtype)
    expected = reference_of("spike_count_bwd")(grad, slots[0], slots[2])
    assert torch.equal(kernels.spike_count_bwd(grad, slots[0], slots[2]), expected)


# ---- linear


def linear(kernels, values):
    return kernels.sparse_linear_fwd(*arguments("sparse_linear_fwd", values))


def random_linear(inputs, neurons, dtype=torch.float32, bias=False):
    """Return a case with weights whose sums are not exact."""
    values = case("sparse_linear", neurons, inputs, rows=(3, 2), rates=(0.3, 0.2), shuffled=True, dtype=dtype)
    values["bias"] = torch.randn(neurons, dtype=dtype) if bias else None
    return {**values, "weight": torch.randn(neurons, inputs, dtype=dtype)}


@pytest.mark.parametrize(("inputs", "neurons"), [(1, 130), (5, 1), (63, 5), (130, 63)])
def test_sums_are_in_the_order_of_the_slots(inputs, neurons, kernels):
    for dtype, bias, strided in ((torch.float32, False, True), (torch.float64, True, False)):
        values = random_linear(inputs, neurons, dtype, bias)
        if strided:
            values["weight"] = values["weight"].t().contiguous().t()
        out = values["weight"].new_zeros(3, 2, neurons)
        for t, b in itertools.product(range(3), range(2)):
            for s in range(int(values["counts"][t, b, 0])):
                out[t, b] += values["values"][t, b, s] * values["weight"][:, int(values["ids"][t, b, s])]
        assert torch.equal(linear(kernels, values), out + values["bias"] if bias else out)


def test_gradients_of_many_slots_are_matrix_products(interpreted, monkeypatch):
    module, of_linear = event_driven(interpreted), interpreted("sparse_linear")
    sizes = []
    monkeypatch.setattr(of_linear, "by_product", lambda slots, inputs, _: bool(sizes.append((slots, inputs))) or True)

    def kernels(operator):
        return getattr(module, operator)

    assert_is_the_reference(kernels, "sparse_linear", neurons=9, inputs=20, rows=(3, 2))
    assert len(sizes) == 2
    assert len(set(sizes)) == 1
    assert sizes[0][1] == 20
    assert_is_the_reference(kernels, "sparse_lif_sequence", recurrent=True, delay=1, rows=(4, 2))
    assert len(sizes) == 5


def test_a_weight_changed_unseen_is_read(kernels):
    """A change through ``.data`` moves no version counter; both passes read the same weights."""
    values = random_linear(20, 9)
    first = linear(kernels, values)
    values["weight"].data.mul_(2)
    assert torch.equal(linear(kernels, values), 2 * first)
    backward = arguments("sparse_linear_bwd", backward_values("sparse_linear", values, first))
    before = kernels.sparse_linear_bwd(*backward)[0]
    values["weight"].mul_(2)
    assert torch.equal(kernels.sparse_linear_bwd(*backward)[0], 2 * before)


def test_packed_weights_do_not_outlive_their_weight(interpreted):
    linear = interpreted("sparse_linear")
    known = len(linear._cache)
    weight = torch.randn(3, 4)
    packed = linear.packed_weight(weight)
    assert packed.shape == (4, 16)
    assert torch.equal(packed[:, :3], weight.t())
    assert not packed[:, 3:].any()
    assert linear.packed_weight(weight, trusted=True) is packed
    assert linear.packed_weight(weight) is not packed
    assert len(linear._cache) == known + 1
    del weight
    assert len(linear._cache) == known


def test_what_is_out_of_range_is_not_read(kernels):
    """Invalid tensors raise no error, as reading them would make the host wait."""
    ids = torch.tensor([[[1, 7, -1, 2]]], dtype=torch.int32)
    values = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    counts = torch.tensor([[[3, 9]]], dtype=torch.int32)
    weight = torch.randn(5, 3)
    assert torch.equal(kernels.sparse_linear_fwd(ids, values, counts, weight, None)[0, 0], weight[:, 1])
    grad = torch.randn(1, 1, 5)
    grads = kernels.sparse_linear_bwd(grad, ids, values, counts, weight, True, True, False)
    expected = grad[0, 0] @ weight
    torch.testing.assert_close(
        grads[0], torch.stack([expected[1], expected[0] * 0, expected[0] * 0, expected[2]])[None, None]
    )
    assert torch.equal(grads[1], torch.nn.functional.pad(grad[0, 0, :, None], (1, 1)))
    assert torch.equal(kernels.sparse_to_dense_fwd(ids, values, counts, 3), torch.tensor([[[0.0, 1.0, 8.0]]]))
    assert torch.equal(
        kernels.sparse_to_dense_bwd(torch.tensor([[[3.0, 5.0, 6.0]]]), ids, counts), torch.tensor([[[5.0, 0, 0, 6.0]]])
    )


# ---- convolution


def test_what_is_out_of_range_of_maps_is_not_read(kernels):
    geometry = list(conv_geometry(torch.empty(1, 1, 1, 1), (2, 2), (1, 1), (0, 0), (1, 1), 1))
    ids = torch.tensor([[[1, -1, 4, 2]]], dtype=torch.int32)
    spikes = (ids, torch.tensor([[[1.0, 2.0, 4.0, 8.0]]]), torch.tensor([[[4, 9]]], dtype=torch.int32))
    out = kernels.sparse_conv2d_fwd(*spikes, torch.ones(1, 1, 1, 1), None, geometry)
    assert torch.equal(out, torch.tensor([[[0.0, 1.0, 8.0, 0.0]]]))
    grads = kernels.sparse_conv2d_bwd(out, *spikes, torch.ones(1, 1, 1, 1), geometry, False, True, False)
    assert grads[1].item() == 1 + 64


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_for_a_gpu(capability, compiled):
    from snnipu.backends.triton import sparse_layers

    op = "sparse_conv_lif_sequence"
    forward, backward = f"{op}_fwd", f"{op}_bwd"
    values = case(op, 6, rows=(3, 2), each=True, capacity=9, geometry=((4, 3, 3), (3, 2), (1, 1), (0, 0), (1, 1), 2))
    launches = compiled(sparse_layers.sparse_conv_lif_sequence_fwd, *arguments(forward, values), capability=capability)
    values = backward_values(op, values, reference_of(forward)(*arguments(forward, values)))
    launches += compiled(
        sparse_layers.sparse_conv_lif_sequence_bwd, *arguments(backward, values), capability=capability
    )
    by_kernel = {launch.kernel: launch for launch in launches}
    for name in ("gather_maps_kernel", "grad_taps_kernel"):
        assert "atom" not in by_kernel[name].ptx
        assert by_kernel[name].resources["LOCAL"] == 0
