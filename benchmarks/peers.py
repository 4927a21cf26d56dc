"""The peers: how each is imported, and the update rule it claims, in plain PyTorch.

snnTorch is a dependency of snnipu; the others are optional and are only imported when a case builds their contender.
"""

import functools
import importlib
import inspect
import math
import os
import shutil
import time
import warnings
from typing import Callable, Tuple

import torch

from benchmarks.case import Contender, Unavailable

PEERS = {
    "snntorch": "snnTorch, eager: its step in a Python loop",
    "compile": "the same snnTorch loop under torch.compile",
    "spikingjelly": "SpikingJelly's multi-step LIFNode",
    "norse": "norse's LIFBoxCell over the sequence",
    "braintrace": "BrainTrace's online learning, compiled by JAX",
    "dcls": "dilated convolutions with learnable spacings, beside delays",
    "copy": "a copy of as many bytes as the work reads and writes at least: the floor of memory",
}

# A step: spikes and new states, of a current and the states.
Rule = Callable[..., Tuple[torch.Tensor, ...]]


def imported(module, package, extra="bench"):
    """Import ``module`` of a peer's ``package``; raise Unavailable where it is not there, with the extra that has it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise Unavailable(f'not installed: pip install "snnipu[{extra}]"') from error
        raise Unavailable(f"installed, but its import fails: {type(error).__name__}: {error}") from error
    except Exception as error:  # a binary package built for another version may raise anything
        raise Unavailable(f"installed, but its import fails: {type(error).__name__}: {error}") from error


def spikingjelly(module):
    """``spikingjelly.activation_based.<module>``."""
    return imported(f"spikingjelly.activation_based.{module}", "spikingjelly")


def spikingjelly_lif(beta, store_v_seq=False, backend=None, hard_reset_slope=None):
    """Return SpikingJelly's ``LIFNode`` with snnTorch's recurrence: no input decay, a detached reset.

    The reset is by subtraction and the surrogate ATan(2); with ``hard_reset_slope`` to zero and SoftSign of that slope.
    ``backend`` is ``"cupy"`` or ``"triton"``, of a SpikingJelly whose neurons have that argument.
    """
    neuron, surrogate = spikingjelly("neuron"), spikingjelly("surrogate")
    chosen = {}
    if backend is not None:
        if "backend" not in inspect.signature(neuron.LIFNode.__init__).parameters:
            raise Unavailable(
                "this SpikingJelly chooses its kernels itself, see its first row: "
                "SJ_LIF_CUDA_IMPLEMENTATION=triton (or cuda, torch) in the environment chooses for it"
            )
        if backend == "cupy":
            imported("cupy", "cupy")
        chosen["backend"] = backend
    soft = hard_reset_slope is None
    return neuron.LIFNode(
        tau=1 / (1 - beta),
        decay_input=False,
        v_threshold=1.0,
        v_reset=None if soft else 0.0,
        surrogate_function=surrogate.ATan(alpha=2.0) if soft else surrogate.SoftSign(alpha=hard_reset_slope),
        detach_reset=True,
        step_mode="m",
        store_v_seq=store_v_seq,
        **chosen,
    )


def norse_lif(beta, dtype, device):
    """norse's ``LIFBoxCell`` (a LIF neuron without synaptic current) with decay ``beta`` and soft reset."""
    lif_box = imported("norse.torch.module.lif_box", "norse")
    reset = imported("norse.torch.functional.reset", "norse")

    def scalar(value):
        return torch.tensor(value, dtype=dtype, device=device)

    parameters = lif_box.LIFBoxParameters(
        tau_mem_inv=scalar(1 - beta),
        v_leak=scalar(0.0),
        v_th=scalar(1.0),
        v_reset=scalar(0.0),
        reset_method=reset.reset_subtract,
    )
    return lif_box.LIFBoxCell(parameters, dt=1.0)


def norse_synaptic(alpha, beta, dtype):
    """norse's ``LIFCell``, with synaptic decay ``alpha``, membrane decay ``beta`` and a reset to zero."""
    lif = imported("norse.torch.functional.lif", "norse")
    parameters = lif.LIFParameters(
        tau_syn_inv=torch.tensor(1 - alpha, dtype=dtype),
        tau_mem_inv=torch.tensor(1 - beta, dtype=dtype),
        v_leak=torch.tensor(0.0, dtype=dtype),
        v_th=torch.tensor(1.0, dtype=dtype),
        v_reset=torch.tensor(0.0, dtype=dtype),
        alpha=torch.tensor(1.0, dtype=dtype),
    )
    return imported("norse.torch.module.lif", "norse").LIFCell(parameters, dt=1.0)


def norse_lift(cell):
    """norse's own loop over the first dimension."""
    return imported("norse.torch.module.lift", "norse").Lift(cell)


def _spike(distance, primitive, at_threshold):
    """Heaviside forward, the derivative of ``primitive`` backward."""
    hard = torch.heaviside(distance.detach(), torch.tensor(at_threshold, dtype=distance.dtype, device=distance.device))
    return hard + (primitive - primitive.detach())


def spikingjelly_rule(beta, hard_reset_slope=None):
    """``h = v - v/tau + x``; ``spk = H(h - 1)``, ``H(0) = 1``; ``v' = h - spk``, detached: a reset in the same step.

    With ``hard_reset_slope``: ``v' = (1 - spk) h``, and the surrogate is ``slope / 2 / (1 + slope |h - 1|)^2``. This is
    snnTorch's neuron with the reset to zero, up to rounding and the factor of the surrogate.
    """
    tau = 1 / (1 - beta)

    def rule(x, v):
        h = v - v / tau + x
        if hard_reset_slope is None:
            spk = _spike(h - 1, torch.atan(math.pi * (h - 1)) / math.pi, 1.0)
            return spk, h - spk.detach()
        u = hard_reset_slope * (h - 1)
        spk = _spike(h - 1, u / (1 + u.abs()) / 2, 1.0)
        return spk, (1 - spk.detach()) * h

    return rule


def norse_rule(beta):
    """``h = v + (1 - beta)(x - v)``; ``spk = H(h - 1)``; ``v' = h - spk``, with gradient through the reset."""

    def rule(x, v):
        h = v + (1 - beta) * (x - v)
        spk = _spike(h - 1, (h - 1) / (1 + (h - 1).abs()), 0.0)
        return spk, (1 - spk) * h + spk * (h - 1)

    return rule


def norse_synaptic_rule(alpha, beta):
    """``i = i + x``; ``h = v + (1 - beta)(i - v)``; ``spk = H(h - 1)``; ``v' = (1 - spk) h``; ``i' = alpha i``."""

    def rule(x, i, v):
        i = i + x
        h = v + (1 - beta) * (i - v)
        spk = _spike(h - 1, (h - 1) / (1 + (h - 1).abs()), 0.0)
        return spk, i - (1 - alpha) * i, (1 - spk) * h

    return rule


def over_time(rule, currents, states=1):
    """Return the spikes of all steps by ``rule``, whose states begin as zeros."""
    before = [torch.zeros_like(currents[0])] * states
    spk_rec = []
    for current in currents.unbind():
        spk, *before = rule(current, *before)
        spk_rec.append(spk)
    return torch.stack(spk_rec)


def forget_compiled():
    """A process compiles several variants of the same loop; each must start from a clean slate of recompilations."""
    importlib.import_module("torch._dynamo").reset()


def compiled(function, device):
    """``torch.compile`` of the whole ``function`` (a graph break is an error: the row would not be what it says)."""
    if not hasattr(torch, "compile"):
        raise Unavailable(f"torch {torch.__version__} has no torch.compile")
    compilers = (os.environ.get("CXX", ""), "g++", "clang++", "cl")
    if device.type == "cpu" and not any(map(shutil.which, compilers)):
        raise Unavailable("torch.compile needs a C++ compiler: install g++ or clang++, or set CXX")
    forget_compiled()
    try:
        return torch.compile(function, fullgraph=True)
    except RuntimeError as error:  # this Python, or this system, is one that this PyTorch cannot compile on
        raise Unavailable(f"torch.compile: {error}") from error


# The time to compile a loop grows with its steps: longer ones are compiled step by step.
LONGEST_COMPILED_LOOP = 50


def compile_seconds(run):
    """Return the time until ``run`` is compiled, forward and backward, without compilations cached on disk.

    Two calls: snnTorch's neurons keep their membrane, whose shape is only there after the first, as an attribute.
    """
    inductor_config = importlib.import_module("torch._inductor.config")
    patch = {"force_disable_caches": True} if hasattr(inductor_config, "force_disable_caches") else {}
    start = time.perf_counter()
    with warnings.catch_warnings(), inductor_config.patch(patch):
        warnings.simplefilter("ignore")  # it says that the caches are off
        for _ in range(2):
            run()
    return time.perf_counter() - start


def multi_step_contenders(spikingjelly, norse, device):
    """Return the rows of libraries that run all steps of a layer by themselves, of what makes their workloads.

    On CUDA ``spikingjelly`` is called with a ``backend``, too.
    """
    contenders = [
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            spikingjelly,
            peer="spikingjelly",
            note="LIFNode resets in the step of the spike, snnTorch in the next one: the same work, other numbers",
        ),
        Contender(
            "norse",
            "norse LIFBoxCell, Lift",
            norse,
            peer="norse",
            note="resets in the step of the spike, with gradient through the reset; norse's SuperSpike surrogate",
        ),
    ]
    if device.type == "cuda":
        contenders += [
            Contender(
                f"spikingjelly-{backend}",
                f"SpikingJelly multi-step, {backend}",
                functools.partial(spikingjelly, backend=backend),
                peer="spikingjelly",
            )
            for backend in ("cupy", "triton")
        ]
    return contenders
