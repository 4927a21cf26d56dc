"""Memory and traces after very many steps of a stream.

The tests run a short stream. ``SNNIPU_ONLINE_SOAK_STEPS=100000 pytest -s tests/online/test_soak.py`` prints figures.
"""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import snnipu as snn

STEPS, CHUNK, BATCH, INPUTS, HIDDEN = int(os.environ.get("SNNIPU_ONLINE_SOAK_STEPS", "2000")), 50, 4, 20, 24
RULES = [
    ("sltt", {}, {}),
    ("ottt", {}, {}),
    ("eprop", {}, {}),
    ("eprop", {"feedback": "random"}, {}),
    ("decolle", {"readouts": 3}, {}),
    ("snap1", {}, {}),
    # Traces of each weight and neuron, and of the parameters.
    ("snap1", {}, {"reset_mechanism": "zero", "learn_beta": True}),
]


def network(dtype, leaky):
    torch.manual_seed(0)
    # Weights and decay are on a grid, so that both precisions have the same spikes.
    linears = [nn.Linear(INPUTS, HIDDEN, bias=False), nn.Linear(HIDDEN, 3, bias=False)]
    with torch.no_grad():
        for linear in linears:
            linear.weight.mul_(512).round_().div_(512)
    first = snn.Leaky(beta=0.875, threshold=0.25, **leaky)
    return snn.MultiStep(linears[0], first, linears[1], snn.Leaky(beta=0.875, reset_mechanism="none")).to(dtype)


def resident():
    """Return the resident memory of this process in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from tensors(part)


def drift(first, second):
    """Return the largest difference of two streams' states and traces, relative to the largest value of each."""
    pairs = list(zip(*(tensors(online.stream_state()["layers"]) for online in (first, second))))
    assert pairs
    return max(float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not report a process's memory")
@pytest.mark.parametrize(("rule", "options", "leaky"), RULES)
def test_memory_is_flat_and_traces_do_not_drift(rule, options, leaky):
    """Compare float32 with float64; both compute their own gradients, and the weights do not change."""
    torch.manual_seed(1)
    online = [snn.Online(network(dtype, leaky), rule=rule, **options) for dtype in (torch.float32, torch.float64)]
    for mine, other in zip(online[0].matrices, online[1].matrices):
        other.data.copy_(mine)
    generator, memory, drifts = torch.Generator().manual_seed(2), [], []
    for number in range(STEPS // CHUNK):
        x = (torch.rand(CHUNK, BATCH, INPUTS, generator=generator) < 0.2).float()
        spikes = []
        for net, part in zip(online, (x, x.double())):
            spk, mem = net(part)
            losses = [mem.square().mean(), *(readout.square().mean() for readout in net.readouts)]
            sum(losses).backward()
            spikes.append(spk)
        assert torch.equal(*(part.double() for part in spikes))
        if number % (STEPS // CHUNK // 10) == 0:
            memory.append(resident())
            drifts.append(drift(*online))
    figures = f"{memory[1]:.1f} to {memory[-1]:.1f} MiB, drift at most {max(drifts):.1e}"
    print(f"\n{rule} {options} {leaky}: {STEPS:,} steps, {figures}", end="")
    assert memory[-1] - memory[1] < 2
    assert max(drifts) < 1e-5
