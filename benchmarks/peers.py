"""The peers: the import of each, and its update rule in plain PyTorch.

snnTorch is a dependency of snnipu. The others are optional and are imported when a case builds their contender.
"""

import importlib
import math
import time
import warnings

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


def imported(module, package, extra="bench"):
    """Import ``module`` of a peer's ``package``; raise Unavailable, with the extra to install, if it is missing."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a binary package built for another version may raise any error
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise Unavailable(f'not installed: pip install "snnipu[{extra}]"') from error
        raise Unavailable(f"installed, but its import fails: {type(error).__name__}: {error}") from error


def spikingjelly(module):
    """Import ``spikingjelly.activation_based.<module>``."""
    return imported(f"spikingjelly.activation_based.{module}", "spikingjelly")


def spikingjelly_lif(beta, store_v_seq=False, hard_reset_slope=None):
    """Return SpikingJelly's ``LIFNode`` with snnTorch's recurrence: no input decay, a detached reset.

    The reset is by subtraction and the surrogate ATan(2). With ``hard_reset_slope`` the reset is to zero and the
    surrogate SoftSign of that slope.
    """
    surrogate, soft = spikingjelly("surrogate"), hard_reset_slope is None
    return spikingjelly("neuron").LIFNode(
        tau=1 / (1 - beta),
        decay_input=False,
        v_threshold=1.0,
        v_reset=None if soft else 0.0,
        surrogate_function=surrogate.ATan(alpha=2.0) if soft else surrogate.SoftSign(alpha=hard_reset_slope),
        detach_reset=True,
        step_mode="m",
        store_v_seq=store_v_seq,
    )


def _scalars(dtype, device, **values):
    return {name: torch.tensor(value, dtype=dtype, device=device) for name, value in values.items()}


def norse_lif(beta, dtype, device):
    """Return norse's ``LIFBoxCell`` (a LIF neuron without synaptic current) with decay ``beta`` and soft reset."""
    lif_box = imported("norse.torch.module.lif_box", "norse")
    reset = imported("norse.torch.functional.reset", "norse").reset_subtract
    scalars = _scalars(dtype, device, tau_mem_inv=1 - beta, v_leak=0.0, v_th=1.0, v_reset=0.0)
    return lif_box.LIFBoxCell(lif_box.LIFBoxParameters(reset_method=reset, **scalars), dt=1.0)


def norse_synaptic(alpha, beta, dtype):
    """Return norse's ``LIFCell``, with synaptic decay ``alpha``, membrane decay ``beta`` and a reset to zero."""
    decays = {"tau_syn_inv": 1 - alpha, "tau_mem_inv": 1 - beta}
    scalars = _scalars(dtype, None, **decays, v_leak=0.0, v_th=1.0, v_reset=0.0, alpha=1.0)
    parameters = imported("norse.torch.functional.lif", "norse").LIFParameters(**scalars)
    return imported("norse.torch.module.lif", "norse").LIFCell(parameters, dt=1.0)


def norse_lift(cell):
    """Return norse's loop over the first dimension."""
    return imported("norse.torch.module.lift", "norse").Lift(cell)


def _spike(distance, primitive, at_threshold):
    """Return the Heaviside function, with the derivative of ``primitive`` in the backward pass."""
    hard = torch.heaviside(distance.detach(), torch.tensor(at_threshold, dtype=distance.dtype, device=distance.device))
    return hard + (primitive - primitive.detach())


def spikingjelly_rule(beta, hard_reset_slope=None):
    """Return SpikingJelly's step: ``h = v - v/tau + x``, ``spk = H(h - 1)``, ``H(0) = 1``, ``v' = h - spk``.

    The reset is detached and within the same step. With ``hard_reset_slope``, ``v' = (1 - spk) h`` and the surrogate is
    ``slope / 2 / (1 + slope |h - 1|)^2``. This is snnTorch's neuron with the reset to zero, up to rounding and the
    factor of the surrogate.
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
    """Return norse's step: ``h = v + (1 - beta)(x - v)``, ``spk = H(h - 1)``, ``v' = h - spk``.

    The gradient flows through the reset.
    """

    def rule(x, v):
        h = v + (1 - beta) * (x - v)
        spk = _spike(h - 1, (h - 1) / (1 + (h - 1).abs()), 0.0)
        return spk, (1 - spk) * h + spk * (h - 1)

    return rule


def norse_synaptic_rule(alpha, beta):
    """Return norse's step with a synaptic current.

    ``i = i + x``, ``h = v + (1 - beta)(i - v)``, ``spk = H(h - 1)``, ``v' = (1 - spk) h``, ``i' = alpha i``.
    """

    def rule(x, i, v):
        i = i + x
        h = v + (1 - beta) * (i - v)
        spk = _spike(h - 1, (h - 1) / (1 + (h - 1).abs()), 0.0)
        return spk, i - (1 - alpha) * i, (1 - spk) * h

    return rule


def over_time(rule, currents, states=1):
    """Return the spikes of all steps by ``rule``, whose initial states are zeros."""
    before = [torch.zeros_like(currents[0])] * states
    spk_rec = []
    for current in currents.unbind():
        spk, *before = rule(current, *before)
        spk_rec.append(spk)
    return torch.stack(spk_rec)


def forget_compiled():
    """Reset TorchDynamo, so that variants of one loop do not count as recompilations of each other."""
    importlib.import_module("torch._dynamo").reset()


def compiled(function):
    """Return ``torch.compile`` of all of ``function``; a graph break is an error."""
    forget_compiled()
    return torch.compile(function, fullgraph=True)


# The compilation time of a loop grows with its steps: longer loops compile the step alone.
LONGEST_COMPILED_LOOP = 50


def compile_seconds(run):
    """Return the time until ``run`` is compiled, forward and backward, without cached compilations.

    It takes two calls: snnTorch's neurons store their membrane as an attribute, whose shape is unknown in the first
    call.
    """
    inductor_config = importlib.import_module("torch._inductor.config")
    patch = {"force_disable_caches": True} if hasattr(inductor_config, "force_disable_caches") else {}
    start = time.perf_counter()
    with warnings.catch_warnings(), inductor_config.patch(patch):
        warnings.simplefilter("ignore")  # PyTorch warns that the caches are off
        for _ in range(2):
            run()
    return time.perf_counter() - start


def multi_step_contenders(spikingjelly, norse, floor=""):
    """Return the rows of libraries that run all steps of a layer in one call; the arguments build their workloads."""
    return [
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            spikingjelly,
            "spikingjelly",
            "LIFNode resets in the step of the spike, snnTorch in the next one: the same work, other numbers",
            floor,
        ),
        Contender(
            "norse",
            "norse LIFBoxCell, Lift",
            norse,
            "norse",
            "resets in the step of the spike, with gradient through the reset; norse's SuperSpike surrogate",
            floor,
        ),
    ]
