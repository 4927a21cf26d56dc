"""The Triton kernels compiled for NVIDIA GPUs, without one: what is in the code, and how often it is compiled."""

import importlib
import itertools

import pytest
import torch

from snnipu import surrogate
from snnipu.backends import triton as backend

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SURROGATES = [
    surrogate.LSO(0.3),
    surrogate.triangular(0.7),
    surrogate.fast_sigmoid(10),
    surrogate.atan(3.0),
    surrogate.sigmoid(2.0),
    surrogate.spike_rate_escape(1.5, 2.0),
]


@pytest.fixture
def lif():
    if backend.unavailable_reason() is not None:
        pytest.skip(backend.unavailable_reason())
    return importlib.import_module("snnipu.backends.triton.lif")


def forward_arguments(dtype=torch.float32, shape=(3, 4, 4096), count=None, reset=0, delay=True, mem0=False):
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    parameters = [torch.ones((), dtype=compute) if count is None else torch.ones(count, dtype=compute)] * 3
    state = torch.zeros(shape[1:], dtype=compute) if mem0 else None
    return (torch.zeros(shape, dtype=dtype), state, *parameters, None, reset, delay, True, not delay, mem0)


ATAN = surrogate.atan().kernel


def backward_arguments(forward, kernel=ATAN, needs=(False,) * 4, grad_mem=False):
    x, mem0, beta, threshold, graded, num_steps, reset, delay = forward[:8]
    saved = (None, x, None if delay else x)
    upstream = (x, x if grad_mem else None)
    return (*upstream, *saved, mem0, beta, threshold, graded, num_steps, reset, delay, *kernel, *needs, mem0)


def assert_in_registers(launch):
    """Nothing of a sequence is kept in memory between its steps."""
    assert launch.resources["STACK"] == launch.resources["LOCAL"] == 0, launch.resources


@pytest.fixture(params=["few", "many"])
def work(request, monkeypatch):
    """Few elements, one to a thread, or many, whole loads of 16 bytes."""
    processors = 132 if request.param == "few" else 1
    monkeypatch.setattr(backend, "multiprocessors", lambda device: processors)
    return request.param


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_both_directions(lif, compiled, work, dtype, capability):
    forward = forward_arguments(dtype)
    (ahead,) = compiled(lif.lif_sequence_fwd, *forward, capability=capability)
    (back,) = compiled(lif.lif_sequence_bwd, *backward_arguments(forward), capability=capability)
    assert [ahead.kernel, back.kernel] == ["lif_sequence_fwd_kernel", "lif_sequence_bwd_kernel"]
    for launch in (ahead, back):
        assert f".target sm_{capability}" in launch.ptx
        assert_in_registers(launch)
        assert "atom" not in launch.ptx
        assert "red.global" not in launch.ptx
        if work == "many":
            wide = ".v2.b64" if dtype == torch.float64 else ".v4.b32"
            assert f"ld.global{wide}" in launch.ptx
            assert f"st.global{wide}" in launch.ptx
    # Every product and every sum is rounded, as in PyTorch: spikes and membranes are those of the reference.
    assert "fma.rn.f" not in ahead.ptx
    assert "mad.rn.f" not in ahead.ptx


@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
@pytest.mark.parametrize("reset", range(3), ids=["subtract", "zero", "none"])
def test_resets(lif, compiled, reset, delay):
    forward = forward_arguments(reset=reset, delay=delay, mem0=True, count=4096)
    (ahead,) = compiled(lif.lif_sequence_fwd, *forward)
    (back,) = compiled(lif.lif_sequence_bwd, *backward_arguments(forward, needs=(True,) * 4, grad_mem=True))
    for launch in (ahead, back):
        assert_in_registers(launch)
    assert "fma.rn.f" not in ahead.ptx


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spike_grad", SURROGATES, ids=lambda s: s.name)
def test_surrogates(lif, compiled, spike_grad, dtype):
    arguments = backward_arguments(forward_arguments(dtype), spike_grad.kernel, needs=(True,) * 4)
    (back,) = compiled(lif.lif_sequence_bwd, *arguments)
    assert_in_registers(back)


def test_constant_input_and_recomputed_membranes(lif, compiled):
    x, _, beta, *rest = forward_arguments()
    forward = (x[0], None, beta, *rest[:2], 7, *rest[3:])
    (ahead,) = compiled(lif.lif_sequence_fwd, *forward)
    assert_in_registers(ahead)
    back = compiled(lif.lif_sequence_bwd, x, None, x[0], None, None, *forward[1:8], *ATAN, *(False,) * 4)
    assert [launch.kernel for launch in back] == ["lif_sequence_fwd_kernel", "lif_sequence_bwd_kernel"]
    for launch in back:
        assert_in_registers(launch)


def test_compiled_once_for_every_length_and_shape(lif, compiled, monkeypatch):
    """What a kernel is compiled for are alignments and block sizes, of which there are few, and no shape."""
    monkeypatch.setattr(backend, "multiprocessors", lambda device: 1)
    keys = {"fwd": set(), "bwd": set()}
    lengths = (1, 2, 16, 48, 500)
    for steps, shape in itertools.product(lengths, [(1, 16384), (2, 16400), (16, 1), (3, 48)]):
        forward = forward_arguments(shape=(steps, *shape))
        keys["fwd"].add(compiled(lif.lif_sequence_fwd, *forward)[0].key)
        keys["bwd"].add(compiled(lif.lif_sequence_bwd, *backward_arguments(forward))[0].key)
    # Large blocks and small ones.
    assert len(keys["fwd"]) == len(keys["bwd"]) == 2
    forward = forward_arguments(shape=(7, 16385))
    assert compiled(lif.lif_sequence_fwd, *forward)[0].key not in keys["fwd"]
