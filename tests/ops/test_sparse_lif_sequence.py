"""Tests specific to ``snnipu.ops.sparse_lif_sequence``; test_sparse_contract.py tests the common contract."""

import itertools
import sys

import pytest
import torch
from oracle import (
    RESETS,
    assert_all_equal,
    densified,
    needs_kernel,
    on_grid,
    random_spikes,
)

from snnipu import SparseSpikes, ops, surrogate
from snnipu.backends import memory, sparse_call


def test_gradient_only_slots_of_the_input_add_nothing_but_get_their_gradient():
    ids = torch.tensor([[[1, 0, 9]]], dtype=torch.int32)
    values = torch.tensor([[[1.0, 50.0, 50.0]]], requires_grad=True)
    spikes = SparseSpikes(ids, values, torch.tensor([[[1, 2]]], dtype=torch.int32), 2)
    weight = torch.tensor([[4.0, 0.5], [2.0, 3.0]], requires_grad=True)
    ste = surrogate.straight_through_estimator()
    out = ops.sparse_lif_sequence(spikes, weight, beta=0.5, spike_grad=ste, input_scale=2.0)
    assert out.ids[0, 0].tolist() == [1, 0]
    assert out.counts.tolist() == [[[1, 2]]]
    out.values.backward(torch.tensor([[[10.0, 1.0]]]))
    assert values.grad.tolist() == [[[2 * (0.5 + 30.0), 2 * (4.0 + 20.0), 0.0]]]
    assert weight.grad.tolist() == [[0.0, 2.0], [0.0, 20.0]]


def test_an_input_scale_is_a_number():
    with pytest.raises(TypeError, match="input_scale must be a number, got True"):
        ops.sparse_lif_sequence(random_spikes(2, 1, 3, 0.5, 0.0), torch.rand(4, 3), beta=0.5, input_scale=True)


@pytest.mark.parametrize("reset", RESETS)
def test_nan_never_spikes(reset, poisoned):
    spikes = random_spikes(6, 3, 40, 0.3, 0.0).requires_grad_()
    tensors = {"weight": on_grid(65, 40) + 1 / 8, "bias": on_grid(65, most=0.25)}
    tensors["weight"][[3, 64]] = float("nan")
    tensors["bias"][7] = float("inf")
    recurrences = {}, {"recurrent_weight": on_grid(65, 65, most=0.25)}
    for recurrent, grad_threshold in itertools.product(recurrences, (None, 0.1)):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in {**tensors, **recurrent}.items()}
        out = ops.sparse_lif_sequence(
            spikes, **leaves, beta=0.9, threshold=0.7, reset_mechanism=reset, grad_threshold=grad_threshold
        )
        read = (densified(spikes.values, spikes) != 0).any(-1).cumsum(0) > 0
        dense = out.to_dense().detach()
        assert not dense[..., [3, 64]][read].any()
        assert dense[0, :, 7].all()
        assert dense[..., 8:60].any()
        taken = densified(torch.ones_like(out.values), out)[..., [3, 64]][read]
        assert (taken == (1 if grad_threshold is None else 0)).all()
        out.values.sum().backward()


def test_dropped_spikes_reset_all_the_same(poisoned):
    """A neuron whose spike was dropped has the membrane of a neuron whose spike has a slot."""
    none = torch.zeros(6, 1, 0)
    spikes = SparseSpikes(none.int(), none, torch.zeros(6, 1, 2, dtype=torch.int32), 3)
    weight, bias = torch.zeros(10, 3), torch.full((10,), 0.75)
    for reset, every in (("zero", [0, 1, 0, 1, 0, 1]), ("subtract", [0, 1, 1, 1, 0, 1])):
        out = ops.sparse_lif_sequence(spikes, weight, bias, beta=1.0, max_spikes=4, reset_mechanism=reset)
        # Subtract, from 0: 0.75, 1.5, 1.25, 1, 1.75, ... There is no spike at exactly 1.
        expected = every if reset == "zero" else [0, 1, 1, 0, 1, 1]
        assert out.counts[:, 0, 0].tolist() == [4 * spike for spike in expected]
        assert out.dropped[:, 0, 0].tolist() == [6 * spike for spike in expected]


def test_the_layer_sees_its_own_spikes_that_fitted():
    """Neuron 1 has no slot, so that neuron 2, which it would excite, stays silent."""
    none = torch.zeros(3, 1, 0)
    spikes = SparseSpikes(none.int(), none, torch.zeros(3, 1, 2, dtype=torch.int32), 1)
    recurrent = torch.zeros(3, 3)
    recurrent[2, 1] = 5.0
    options = {"beta": 0.0, "recurrent_weight": recurrent}
    bias = torch.tensor([2.0, 2.0, 0.0])
    capped = ops.sparse_lif_sequence(spikes, torch.zeros(3, 1), bias, max_spikes=1, **options)
    assert capped.to_dense()[:, 0].tolist() == [[1, 0, 0]] * 3
    free = ops.sparse_lif_sequence(spikes, torch.zeros(3, 1), bias, max_spikes=3, **options)
    assert free.to_dense()[:, 0].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]


@needs_kernel("sparse_lif_sequence_fwd")
@pytest.mark.parametrize("cap", [None, 5])
def test_errors_pass_through_the_library(cap, monkeypatch):
    """The library calls back for memory when the slots are known: the caller gets an error of that call."""
    spikes, weight = random_spikes(4, 3, 20), torch.rand(30, 20)
    expected = ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=cap)

    def failing(*_):
        raise MemoryError("no memory for slots")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "empty_varying", failing)
        with pytest.raises(MemoryError, match="no memory for slots"):
            ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=cap)
    again = ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=cap)
    assert_all_equal([(again.ids, again.values, again.counts), (expected.ids, expected.values, expected.counts)])
    # Invalid ids raise before the library asks for memory.
    spikes.ids[0, 0, 0], spikes.counts[0, 0] = 20, 1
    with pytest.raises(ValueError, match="ids must be from 0 to 19"):
        ops.sparse_lif_sequence(spikes, weight, beta=0.9, max_spikes=cap)


@needs_kernel("sparse_lif_sequence_fwd")
def test_a_signal_that_comes_as_the_library_asks_for_room_is_no_silence(monkeypatch):
    """The signal ends the callback before its first line. ctypes prints that error and continues."""
    spikes, weight = random_spikes(4, 3, 20), torch.rand(30, 20)
    expected = ops.sparse_lif_sequence(spikes, weight, beta=0.9)
    kind = sparse_call._ROOM

    def ended(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sparse_call, "_ROOM", lambda _: kind(ended))
        patched.setattr(sys, "unraisablehook", lambda _: None)
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                ops.sparse_lif_sequence(spikes, weight, beta=0.9)
    again = ops.sparse_lif_sequence(spikes, weight, beta=0.9)
    assert_all_equal([(again.ids, again.values, again.counts), (expected.ids, expected.values, expected.counts)])
