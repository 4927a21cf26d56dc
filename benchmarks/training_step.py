"""One training step of a network: the timed unit of the cases that train."""

import time

import torch

from benchmarks.case import Workload
from benchmarks.checks import both, without_onednn
from benchmarks.timing import synchronise

_PHASE_STEPS = 3
# Of a gradient by a convolution over all samples and steps, and by one a step: 1e-4 was seen on an H200.
CUDNN_ROUNDING = 1e-3


def adam(net):
    """The optimizer of all contenders."""
    return torch.optim.Adam(net.parameters(), lr=5e-4)


def training_workload(
    optimizer,
    loss,
    check,
    device,
    compile_seconds=None,
):
    """Return the forward pass to the value of ``loss``, the backward pass and the optimizer's step, with their times."""

    def step(lap=lambda phase: None):
        value = loss()
        lap("forward")
        optimizer.zero_grad()
        value.backward()
        lap("backward")
        optimizer.step()
        lap("optimizer")
        return value

    def phases():
        spent = {}
        for _ in range(_PHASE_STEPS):
            synchronise(device)
            last = time.perf_counter()

            def lap(phase):
                nonlocal last
                synchronise(device)
                now = time.perf_counter()
                spent[phase] = spent.get(phase, 0.0) + (now - last) / _PHASE_STEPS
                last = now

            step(lap)
        return spent

    return Workload(step, check, compile_seconds, phases)


def check_rounding(compared, tolerance, rounding, device):
    """Return the gate ``compared(tolerance)``; where convolutions' libraries round more, also without them.

    oneDNN's sums may then be off by ``rounding``; cuDNN chooses by the size among algorithms that differ by more.
    """
    if rounding <= tolerance:
        return compared(tolerance)
    if device.type == "cpu":
        with without_onednn():
            exact = compared(tolerance)
        return both(compared(rounding), exact, "without oneDNN, whose sums over samples are long, and without events")
    with torch.backends.cudnn.flags(enabled=False):
        exact = compared(rounding)
    return both(compared(CUDNN_ROUNDING), exact, "without cuDNN, which takes other algorithms for other sizes")
