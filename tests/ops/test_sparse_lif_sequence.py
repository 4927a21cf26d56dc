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

from snnipu import ops
from snnipu.backends import memory, sparse_call


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
