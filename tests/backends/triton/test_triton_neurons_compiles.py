"""The generated Triton kernels of neurons, compiled for NVIDIA GPUs without a GPU."""

import importlib
import itertools
import re

import pytest
import torch
from backends.triton.test_triton_neurons import everything
from oracle import FUSED
from support import neuron_cases
from support.leaky_operator import RESETS

from snnipu import surrogate
from snnipu._generator.print_triton_kernels import AHEAD
from snnipu.backends import triton as backend
from snnipu.ops import _neurons

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
ATAN = surrogate.atan().kernel


@pytest.fixture
def kernels():
    if backend.unavailable_reason() is not None:
        pytest.skip(backend.unavailable_reason())
    return importlib.import_module("snnipu.backends.triton.neurons")


def assert_in_registers(launch):
    """Check that the loop over time needs no local memory."""
    assert launch.resources["STACK"] == launch.resources["LOCAL"] == 0, launch.resources


def arguments_of(name, variant=0, dtype=torch.float32, shape=(3, 4, 4096), each=False, state=False, constant=None):
    """Return the arguments of the forward kernel; ``each``: each neuron has parameters of its own."""
    inputs = neuron_cases.arguments_of(
        name, shape if constant is None else shape[1:], dtype, constant, None if each else ((),), state
    )
    return *inputs, name, variant, constant, neuron_cases.stored_states(name, variant), state


def backward_arguments(forward, kernel=ATAN, learn=False, stored=False):
    """Return the arguments of the backward kernel; with ``stored`` it reads stored states instead of the input."""
    x, initial, parameters, name, variant, constant, store, final = forward
    spk = x if constant is None else x.expand(constant, *x.shape)
    ends = [torch.zeros_like(parameters[0]).expand(spk.shape[1:]).contiguous() for _ in initial] if final else []
    grads = [spk if store >> place & 1 and final else None for place in range(len(initial))]
    need = [[final] * len(initial), [learn] * len(parameters)]
    what = (initial, parameters, name, variant, constant, *kernel, *need)
    return (spk, grads, ends, None, *what, [spk] * len(initial)) if stored else (spk, grads, ends, x, *what)


def compile_both(kernels, compiled, forward, capability=90, **backward):
    launches = (
        [] if backward.pop("only", False) else compiled(kernels.neuron_sequence_fwd, *forward, capability=capability)
    )
    launches += compiled(kernels.neuron_sequence_bwd, *backward_arguments(forward, **backward), capability=capability)
    for launch in launches:
        assert f".target sm_{capability}" in launch.ptx
        assert_in_registers(launch)
        assert "atom" not in launch.ptx
        assert "red.global" not in launch.ptx
    # Each product and each sum of the forward pass is rounded, as in PyTorch.
    for launch in launches[:-1]:
        assert launch.kernel.endswith("_fwd_kernel")
        fused = "fma.rn.f" in launch.ptx or "mad.rn.f" in launch.ptx
        assert not fused or name_has_division(forward[3])
    assert launches[-1].kernel.endswith("_bwd_kernel")
    return launches


def name_has_division(name):
    """Return True if the neuron needs divisions or exponentials, which use fused operations."""
    return any(value.operation in ("div", "exp", "log", "reciprocal", "tanh", "sigmoid") for value in _recorded(name))


def _recorded(name):
    return [value for step in _neurons.find(name).steps for value in step.graph.values]


# A thread loads its two elements of a row at once.
WIDE = {torch.float64: ".v2.b64", torch.float32: ".v2.b32", torch.float16: ".b32", torch.bfloat16: ".b32"}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_neurons.BUILT))
def test_every_neuron(kernels, compiled, name):
    """Each neuron compiles with all options; the backward pass also launches the forward kernel."""
    forward = arguments_of(name, each=True, state=True)
    assert len(compile_both(kernels, compiled, forward, 80, learn=True, only=True)) == 2


def assert_wide(launches, dtype):
    """Check that loads and stores are wide. A backward pass computes 16-bit states again, in 32 bits."""
    for launch in launches:
        assert f"ld.global{WIDE[dtype]}" in launch.ptx
        assert f"st.global{WIDE[dtype]}" in launch.ptx or launch.kernel.endswith("fwd_kernel")
        assert ".global.b16" not in launch.ptx
    assert f"st.global{WIDE[dtype]}" in launches[0].ptx


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_dtypes(kernels, compiled, dtype):
    assert_wide(compile_both(kernels, compiled, arguments_of("synaptic", dtype=dtype), learn=True), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False], ids=["states stored", "states computed again"])
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_leaky(kernels, compiled, dtype, capability, stored):
    launches = compile_both(kernels, compiled, arguments_of("leaky", dtype=dtype), capability, stored=stored)
    assert [launch.kernel for launch in launches[:: len(launches) - 1]] == ["leaky_fwd_kernel", "leaky_bwd_kernel"]
    assert len(launches) == 2 + (not stored)
    assert_wide(launches, dtype)


def bytes_of_a_step(launch):
    """Return the bytes per neuron and step that the loop over time moves, in float32; a thread has two neurons."""
    lines = launch.ptx.splitlines()
    labels = {line.split(":")[0]: place for place, line in enumerate(lines) if line.startswith("$L")}
    loops = [
        lines[labels[label] : place]
        for place, line in enumerate(lines)
        for label in re.findall(r"bra\S*\s+(\$L\w+);", line)
        if labels[label] < place
    ]
    # The remaining steps have a second, shorter loop.
    body, tail = sorted(loops, key=len, reverse=True)
    moved = []
    for loop in (body, tail):
        accesses = [re.search(r"(ld|st)\.global\.v(\d)\.b(\d+)", line) for line in loop if ".global" in line]
        moved.append(sum(int(access.group(2)) * int(access.group(3)) // 8 for access in accesses) // 2)
    assert moved[0] == AHEAD * moved[1]
    return moved[1]


def resident_share(launch):
    """Return the share of an A100's or H100's 2,048 threads that its 65,536 registers allow."""
    threads = int(re.search(r"\.reqntid (\d+)", launch.ptx).group(1))
    registers = -(-launch.resources["REG"] // 8) * 8  # allocated in units of eight
    return min(2048, 65536 // (registers * threads) * threads) / 2048


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stored", "moved"),
    # Forward: x, spikes and states; the same without states. Backward: reads two of three sequences, writes one.
    [("leaky", True, [12, 12]), ("leaky", False, [12, 8, 12]), ("synaptic", False, [16, 8, 12])],
)
def test_what_a_step_moves_and_how_many_threads_there_are(kernels, compiled, name, stored, moved):
    launches = compile_both(kernels, compiled, arguments_of(name), stored=stored)
    assert [bytes_of_a_step(launch) for launch in launches] == moved
    assert min(map(resident_share, launches)) >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("delay", [True, False], ids=["delayed", "immediate"])
@pytest.mark.parametrize("reset", RESETS)
def test_resets(kernels, compiled, reset, delay):
    variant = _neurons.find("leaky").variant(reset_mechanism=reset, reset_delay=delay)
    for stored in (True, False):
        forward = arguments_of("leaky", variant, each=True, state=True)
        assert len(compile_both(kernels, compiled, forward, learn=True, stored=stored)) == 2 + (not stored)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUSED)
def test_surrogates_of_leaky(kernels, compiled, name, dtype):
    forward = arguments_of("leaky", dtype=dtype)
    arguments = backward_arguments(forward, FUSED[name][0].kernel, learn=True, stored=True)
    (back,) = compiled(kernels.neuron_sequence_bwd, *arguments)
    assert_in_registers(back)


def test_constant_input(kernels, compiled):
    launches = compile_both(kernels, compiled, arguments_of("leaky", constant=7))
    assert [launch.kernel[-10:] for launch in launches] == ["fwd_kernel", "fwd_kernel", "bwd_kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=lambda dtype: str(dtype)[6:])
def test_a_neuron_of_a_user(kernels, compiled, dtype):
    name = _neurons.register(everything, {})
    launches = compiled(kernels.neuron_sequence_bwd, *backward_arguments(arguments_of(name, dtype=dtype), learn=True))
    assert [launch.kernel for launch in launches] == ["everything_fwd_kernel", "everything_bwd_kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leaky", "synaptic"])
def test_compiled_once_for_every_length_and_shape(name, kernels, compiled):
    """Triton specialises a kernel for alignments, not for shapes."""
    keys = {"fwd": set(), "bwd": set()}
    lengths = (1, 2, 16, 48, 500) if name == "leaky" else (1, 500)
    for steps, shape in itertools.product(lengths, [(1, 16384), (2, 16400), (16, 1), (3, 48)]):
        forward = arguments_of(name, shape=(steps, *shape))
        backward = backward_arguments(forward, stored=name == "leaky")
        keys["fwd"].add(compiled(kernels.neuron_sequence_fwd, *forward)[0].key)
        keys["bwd"].add(compiled(kernels.neuron_sequence_bwd, *backward)[-1].key)
    assert len(keys["fwd"]) == len(keys["bwd"]) == 1
    forward = arguments_of(name, shape=(7, 16385))
    assert compiled(kernels.neuron_sequence_fwd, *forward)[0].key not in keys["fwd"]
