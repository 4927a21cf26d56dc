"""A training step of a network: the timed unit of the cases that train."""

import time

import torch

from benchmarks.case import Workload
from benchmarks.checks import both, without_onednn
from benchmarks.timing import synchronise

PHASE_STEPS = 3
# Relative difference between the gradient of one convolution over all steps and that of one for each step: 1e-4 was
# measured on an H200.
CUDNN_ROUNDING = 1e-3


def adam(net):
    """Return the optimizer of all contenders."""
    return torch.optim.Adam(net.parameters(), lr=5e-4)


def training_workload(optimizer, loss, check, device, compile_seconds=None):
    """Return a training step: the forward pass to the value of ``loss``, the backward pass, the optimizer's step."""
    values = []

    def backward():
        optimizer.zero_grad()
        values.pop().backward()

    phases = {"forward": lambda: values.append(loss()), "backward": backward, "optimizer": optimizer.step}

    def step():
        for run in phases.values():
            run()

    def seconds_of_phases():
        spent = dict.fromkeys(phases, 0.0)
        for _ in range(PHASE_STEPS):
            for name, run in phases.items():
                synchronise(device)
                start = time.perf_counter()
                run()
                synchronise(device)
                spent[name] += time.perf_counter() - start
        return spent

    return Workload(step, check, compile_seconds, seconds_of_phases)


def check_rounding(compared, tolerance, rounding, device):
    """Return the check ``compared(tolerance)``; if convolution libraries round more, check also without them.

    oneDNN's sums may be off by ``rounding``. cuDNN selects algorithms by the size, whose results differ by more.
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
