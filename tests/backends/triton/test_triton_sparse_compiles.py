"""The Triton kernels of the sparse operators compiled for NVIDIA GPUs, without one."""

import importlib

import pytest
import torch

from snnipu import surrogate
from snnipu.backends import triton as backend

ATAN = surrogate.atan().kernel


@pytest.fixture
def sparse(monkeypatch):
    if backend.unavailable_reason() is not None:
        pytest.skip(backend.unavailable_reason())
    linear = importlib.import_module("snnipu.backends.triton.sparse_linear")
    monkeypatch.setattr(linear, "by_product", lambda *_: False)
    return importlib.import_module("snnipu.backends.triton.sparse")


def slots(steps=3, batch=2, capacity=4, dtype=torch.float32):
    """ids, values and counts; the kernels do not run, but PyTorch's operations between them do."""
    ids = torch.zeros((steps, batch, capacity), dtype=torch.int32)
    return ids, ids.to(dtype), torch.zeros((steps, batch, 2), dtype=torch.int32)


def layer_arguments(dtype, inputs, neurons, recurrent, reset=1, each=False, steps=3, batch=2, capacity=4):
    def parameter():
        return torch.ones(neurons if each else (), dtype=dtype)

    recurrent_weight = torch.ones(neurons, neurons, dtype=dtype) if recurrent else None
    weight, bias = torch.ones(neurons, inputs, dtype=dtype), torch.ones(neurons, dtype=dtype)
    forward = (
        *slots(steps, batch, 5, dtype),
        weight,
        bias,
        recurrent_weight,
        parameter(),
        parameter(),
        0.3,
        0.5,
        capacity,
        True,
        reset,
        1,
        True,
    )
    ids, _, counts = slots(steps, batch, capacity, dtype)
    fired = torch.zeros((steps, batch, (neurons + 31) // 32), dtype=torch.int32)
    saved = (ids, counts, ids.to(dtype), fired, torch.ones(steps, batch, neurons, dtype=dtype))
    backward = (ids.to(dtype), *forward[:4], *forward[5:8], 0.5, reset, 1, *saved, *ATAN)
    return forward, (*backward, True, True, True, recurrent, True, True)


def launched(compiled, capability, *calls):
    found = [
        launch for function, *arguments in calls for launch in compiled(function, *arguments, capability=capability)
    ]
    for launch in found:
        assert f".target sm_{capability}" in launch.ptx
        assert launch.resources["STACK"] == launch.resources["LOCAL"] == 0, (launch.kernel, launch.resources)
        # Sums in a fixed order.
        assert "atom." not in launch.ptx, launch.kernel
        assert "red.global" not in launch.ptx, launch.kernel
    return {launch.kernel: launch for launch in found}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_kernel(dtype, capability, sparse, compiled):
    forward, backward = layer_arguments(dtype, 2312, 1466, recurrent=False, each=dtype == torch.float64)
    recurrent, recurrent_backward = layer_arguments(dtype, 2312, 1466, recurrent=True)
    dense = torch.ones(3, 2, 1466, dtype=dtype)
    ids, values, counts = slots(dtype=dtype)
    threshold = torch.ones((), dtype=dtype)
    kernels = launched(
        compiled,
        capability,
        (sparse.sparse_lif_sequence_fwd, *forward),
        (sparse.sparse_lif_sequence_bwd, *backward),
        (sparse.sparse_lif_sequence_fwd, *recurrent),
        (sparse.sparse_lif_sequence_bwd, *recurrent_backward),
        (sparse.sparse_linear_fwd, *forward[:5]),
        (sparse.sparse_linear_bwd, dense, *forward[:4], True, True, True),
        (sparse.dense_to_sparse_fwd, dense, 4, False),
        (sparse.select_spikes_fwd, dense, threshold, None, 4, False),
        (sparse.select_spikes_bwd, values, dense, threshold, ids, counts, *ATAN),
        (sparse.sparse_to_dense_fwd, ids, values, counts, 1466),
        (sparse.sparse_to_dense_bwd, dense, ids, counts),
    )
    assert set(kernels) == {
        "adjoint_kernel",
        "fired_kernel",
        "gather_kernel",
        "gather_weights_kernel",
        "grad_values_kernel",
        "grad_weight_kernel",
        "membranes_kernel",
        "recurrent_step_kernel",
        "recurrent_through_kernel",
        "scatter_kernel",
        "select_kernel",
        "slot_keys_kernel",
        "through_spikes_kernel",
    }
    # A layer of any size reads its weights by 16 bytes.
    wide = "ld.global.v2.b64" if dtype == torch.float64 else "ld.global.v4.b32"
    for name in ("gather_weights_kernel", "grad_values_kernel", "recurrent_through_kernel"):
        assert wide in kernels[name].ptx, name
    # Every product and every sum of the forward pass is rounded, as in PyTorch.
    for name in ("gather_weights_kernel", "membranes_kernel", "recurrent_step_kernel"):
        assert "fma.rn.f" not in kernels[name].ptx, name


def test_slots_as_needed(sparse, compiled, monkeypatch):
    """The kernel that counts; nothing sets what it would have counted."""
    monkeypatch.setattr(torch, "empty", torch.zeros)
    dense = torch.ones(3, 2, 100)
    kernels = launched(compiled, 90, (sparse.select_spikes_fwd, dense, torch.ones(100), 0.5, -1, False))
    assert set(kernels) == {"found_kernel", "select_kernel"}


@pytest.mark.parametrize("reset", range(3), ids=["subtract", "zero", "none"])
def test_layer_of_one_neuron(reset, sparse, compiled):
    """Sizes of 1 are constants to Triton."""
    for recurrent in (False, True):
        forward, backward = layer_arguments(torch.float64, 1, 1, recurrent, reset, steps=1, batch=1, capacity=1)
        launched(compiled, 80, (sparse.sparse_lif_sequence_fwd, *forward), (sparse.sparse_lif_sequence_bwd, *backward))


@pytest.mark.parametrize("recurrent", [False, True], ids=["feed-forward", "recurrent"])
def test_compiled_once_for_every_number_of_steps_samples_and_slots(recurrent, sparse, compiled):
    keys = {}
    for steps, batch, capacity in ((1, 1, 3), (5, 3, 17), (16, 16, 32)):
        forward, backward = layer_arguments(
            torch.float32, 100, 70, recurrent, steps=steps, batch=batch, capacity=capacity
        )
        for function, arguments in (
            (sparse.sparse_lif_sequence_fwd, forward),
            (sparse.sparse_lif_sequence_bwd, backward),
        ):
            for launch in compiled(function, *arguments):
                keys.setdefault(launch.kernel, set()).add(launch.key)
    assert {name: len(found) for name, found in keys.items()} == dict.fromkeys(keys, 1)
