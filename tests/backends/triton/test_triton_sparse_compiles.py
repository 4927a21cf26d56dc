"""The Triton kernels of the sparse operators, compiled for NVIDIA GPUs without a GPU."""

import importlib

import pytest
import torch
from support.interpreter import event_driven
from support.sparse_cases import arguments, case

from snnipu import surrogate
from snnipu.backends import triton as backend

ATAN = surrogate.atan().kernel


@pytest.fixture
def sparse(monkeypatch):
    if backend.unavailable_reason() is not None:
        pytest.skip(backend.unavailable_reason())
    linear = importlib.import_module("snnipu.backends.triton.sparse_linear")
    monkeypatch.setattr(linear, "by_product", lambda *_: False)
    return event_driven(lambda name: importlib.import_module(f"snnipu.backends.triton.{name}"))


def layer_calls(sparse, neurons, inputs, capacity=4, input_slots=5, **options):
    """Call the forward and backward pass of a layer. PyTorch's operations between the kernels do run."""
    values = case("sparse_lif_sequence", neurons, inputs, rates=(0.0, 0.0), rotate=True, delay=1, **options)
    rows, dtype = values["counts"].shape[:2], values["weight"].dtype
    for name, kind in (("ids", torch.int32), ("values", dtype)):
        values[name] = torch.zeros((*rows, input_slots), dtype=kind)
    results = {name: torch.zeros((*rows, capacity), dtype=dtype) for name in ("grad", "slot_mem")}
    results["ids_out"], results["counts_out"] = results["grad"].int(), values["counts"]
    results["fired"] = torch.zeros((*rows, (neurons + 31) // 32), dtype=torch.int32)
    results["mem"] = torch.ones((*rows, neurons), dtype=dtype)
    values.update(results, capacity=capacity)
    names = ("sparse_lif_sequence_fwd", "sparse_lif_sequence_bwd")
    return [(getattr(sparse, name), *arguments(name, values)) for name in names]


def launched(compiled, capability, *calls):
    launches = [
        launch for function, *arguments in calls for launch in compiled(function, *arguments, capability=capability)
    ]
    for launch in launches:
        assert f".target sm_{capability}" in launch.ptx
        assert launch.resources["STACK"] == launch.resources["LOCAL"] == 0, (launch.kernel, launch.resources)
        # Sums in a fixed order.
        assert "atom." not in launch.ptx, launch.kernel
        assert "red.global" not in launch.ptx, launch.kernel
    return {launch.kernel: launch for launch in launches}


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_kernel(dtype, capability, sparse, compiled):
    sizes = {"neurons": 1466, "inputs": 2312, "rows": (3, 2), "dtype": dtype}
    layer = layer_calls(sparse, each=dtype == torch.float64, **sizes)
    ids, values, counts, weight, bias = layer[0][1:6]
    dense, threshold = torch.ones(3, 2, 1466, dtype=dtype), torch.ones((), dtype=dtype)
    taps, lags, delays = torch.ones(2312, 1466, 2, dtype=dtype), torch.ones(2312, 1466, dtype=torch.int32), [26, 2]
    kernels = launched(
        compiled,
        capability,
        *layer,
        *layer_calls(sparse, recurrent=True, **sizes),
        (sparse.sparse_linear_fwd, ids, values, counts, weight, bias),
        (sparse.sparse_linear_bwd, dense, ids, values, counts, weight, True, True, True),
        (sparse.delay_linear_fwd, ids, values, counts, taps, bias, delays, lags),
        (sparse.delay_linear_bwd, dense, ids, values, counts, taps, delays, True, True, True, lags),
        (sparse.dense_to_sparse_fwd, dense, 4, False),
        (sparse.select_spikes_fwd, dense, threshold, None, 4, False),
        (sparse.select_spikes_bwd, values, dense, threshold, ids, counts, *ATAN),
        (sparse.sparse_to_dense_fwd, ids, values, counts, 1466),
        (sparse.sparse_to_dense_bwd, dense, ids, counts),
        (sparse.spike_count_fwd, ids, values, counts, 1466),
        (sparse.spike_count_bwd, dense[0], ids, counts),
    )
    assert set(kernels) == {
        "adjoint_kernel",
        "arriving_kernel",
        "gather_kernel",
        "gather_weights_kernel",
        "grad_input_kernel",
        "grad_taps_kernel",
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
    # A layer of any size reads its weights in loads of 16 bytes.
    wide = "ld.global.v2.b64" if dtype == torch.float64 else "ld.global.v4.b32"
    for name in ("gather_weights_kernel", "grad_values_kernel", "recurrent_through_kernel"):
        assert wide in kernels[name].ptx, name
    # Each product and each sum of the forward pass is rounded, as in PyTorch.
    for name in ("arriving_kernel", "gather_weights_kernel", "membranes_kernel", "recurrent_step_kernel"):
        assert "fma.rn.f" not in kernels[name].ptx, name


def test_slots_as_needed(sparse, compiled, monkeypatch):
    """The kernel that counts slots compiles; its result is not set, as it does not run."""
    monkeypatch.setattr(torch, "empty", torch.zeros)
    dense = torch.ones(3, 2, 100)
    kernels = launched(compiled, 90, (sparse.select_spikes_fwd, dense, torch.ones(100), 0.5, -1, False))
    assert set(kernels) == {"count_kernel", "select_kernel"}


@pytest.mark.slow
@pytest.mark.parametrize("reset", range(3), ids=["subtract", "zero", "none"])
def test_layer_of_one_neuron(reset, sparse, compiled):
    """Triton treats sizes of 1 as constants."""
    for recurrent in (False, True):
        options = {"rows": (1, 1), "dtype": torch.float64, "recurrent": recurrent, "reset": reset, "capacity": 1}
        launched(compiled, 80, *layer_calls(sparse, 1, 1, **options))


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, True], ids=["feed-forward", "recurrent"])
def test_compiled_once_for_every_number_of_steps_samples_and_slots(recurrent, sparse, compiled):
    keys = {}
    for steps, batch, capacity in ((1, 1, 3), (5, 3, 17), (16, 16, 32)):
        options = {"rows": (steps, batch), "capacity": capacity, "recurrent": recurrent}
        for function, *inputs in layer_calls(sparse, 70, 100, **options):
            for launch in compiled(function, *inputs):
                keys.setdefault(launch.kernel, set()).add(launch.key)
    assert {name: len(compiled_keys) for name, compiled_keys in keys.items()} == dict.fromkeys(keys, 1)
