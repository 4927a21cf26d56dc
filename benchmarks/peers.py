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
from typing import Any, Callable, List, Optional, Tuple

import torch

from snnipu._extras import MissingExtra, require
from benchmarks.case import Contender, Workload

PEERS = {
    "snntorch": "snnTorch, eager: its step in a Python loop",
    "compile": "the same snnTorch loop under torch.compile",
    "spikingjelly": "SpikingJelly's multi-step LIFNode",
    "norse": "norse's LIFBoxCell over the sequence",
    "braintrace": "BrainTrace's online learning, compiled by JAX",
    "dcls": "dilated convolutions with learnable spacings, beside delays",
    "copy": "a copy of as many bytes as the work reads and writes at least: the floor of memory",
}

Rule = Callable[[torch.Tensor, torch.Tensor], Tuple[torch.Tensor, torch.Tensor]]


class Unavailable(RuntimeError):
    """A contender cannot run here; the message says why and what would help."""


def imported(module: str, package: str, extra: str = "bench") -> Any:
    """``module`` of a peer's ``package``; raises Unavailable where it is not there, with the extra that has it."""
    try:
        return require(module, extra, f"the {package} row")
    except MissingExtra as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == package:
            raise Unavailable(f'not installed: pip install "snnipu[{extra}]"') from error
        raise Unavailable(f"installed, but its import fails: {type(cause).__name__}: {cause}") from error


def spikingjelly(module: str) -> Any:
    """``spikingjelly.activation_based.<module>``."""
    return imported(f"spikingjelly.activation_based.{module}", "spikingjelly")


def spikingjelly_lif(beta: float, store_v_seq: bool = False, backend: Optional[str] = None) -> Any:
    """SpikingJelly's ``LIFNode`` with snnTorch's recurrence: no input decay, soft detached reset, ATan(2) surrogate.

    ``backend``: ``"cupy"`` or ``"triton"``, of a SpikingJelly whose neurons have that argument; None: its default.
    """
    neuron = spikingjelly("neuron")
    surrogate = spikingjelly("surrogate")
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
    return neuron.LIFNode(
        tau=1 / (1 - beta),
        decay_input=False,
        v_threshold=1.0,
        v_reset=None,
        surrogate_function=surrogate.ATan(alpha=2.0),
        detach_reset=True,
        step_mode="m",
        store_v_seq=store_v_seq,
        **chosen,
    )


def spikingjelly_hard_reset_lif(beta: float, slope: float) -> Any:
    """SpikingJelly's ``LIFNode`` with a detached reset to zero and its ``SoftSign`` surrogate."""
    neuron = spikingjelly("neuron")
    surrogate = spikingjelly("surrogate")
    return neuron.LIFNode(
        tau=1 / (1 - beta),
        decay_input=False,
        v_threshold=1.0,
        v_reset=0.0,
        surrogate_function=surrogate.SoftSign(alpha=slope),
        detach_reset=True,
        step_mode="m",
    )


def norse_lif(beta: float, dtype: torch.dtype, device: torch.device) -> Any:
    """norse's ``LIFBoxCell`` (a LIF neuron without synaptic current) with decay ``beta`` and soft reset."""
    lif_box = imported("norse.torch.module.lif_box", "norse")
    reset = imported("norse.torch.functional.reset", "norse")

    def scalar(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=dtype, device=device)

    parameters = lif_box.LIFBoxParameters(
        tau_mem_inv=scalar(1 - beta),
        v_leak=scalar(0.0),
        v_th=scalar(1.0),
        v_reset=scalar(0.0),
        reset_method=reset.reset_subtract,
    )
    return lif_box.LIFBoxCell(parameters, dt=1.0)


def norse_synaptic(alpha: float, beta: float, dtype: torch.dtype) -> Any:
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


def norse_lift(cell: Any) -> Any:
    """norse's own loop over the first dimension."""
    return imported("norse.torch.module.lift", "norse").Lift(cell)


def _spike(distance: torch.Tensor, primitive: torch.Tensor, at_threshold: float) -> torch.Tensor:
    """Heaviside forward, the derivative of ``primitive`` backward."""
    hard = torch.heaviside(distance.detach(), torch.tensor(at_threshold, dtype=distance.dtype, device=distance.device))
    return hard + (primitive - primitive.detach())


def spikingjelly_rule(beta: float) -> Rule:
    """``h = v - v/tau + x``; ``spk = H(h - 1)``, ``H(0) = 1``; ``v' = h - spk``, detached: a reset in the same step."""
    tau = 1 / (1 - beta)

    def rule(x: torch.Tensor, v: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        h = v - v / tau + x
        spk = _spike(h - 1, torch.atan(math.pi * (h - 1)) / math.pi, 1.0)
        return spk, h - spk.detach()

    return rule


def spikingjelly_hard_reset_rule(beta: float, slope: float) -> Rule:
    """``h = v - v/tau + x``; ``spk = H(h - 1)``, ``H(0) = 1``; ``v' = (1 - spk) h``, ``spk`` detached.

    The surrogate is ``slope / 2 / (1 + slope |h - 1|)^2``, the derivative of ``slope u / (1 + slope |u|) / 2``. With it
    and the reset to zero this is snnTorch's neuron, up to rounding and the factor of the surrogate.
    """
    tau = 1 / (1 - beta)

    def rule(x: torch.Tensor, v: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        h = v - v / tau + x
        u = slope * (h - 1)
        spk = _spike(h - 1, u / (1 + u.abs()) / 2, 1.0)
        return spk, (1 - spk.detach()) * h

    return rule


def norse_rule(beta: float) -> Rule:
    """``h = v + (1 - beta)(x - v)``; ``spk = H(h - 1)``; ``v' = h - spk``, with gradient through the reset."""

    def rule(x: torch.Tensor, v: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        h = v + (1 - beta) * (x - v)
        spk = _spike(h - 1, (h - 1) / (1 + (h - 1).abs()), 0.0)
        return spk, (1 - spk) * h + spk * (h - 1)

    return rule


def norse_synaptic_rule(alpha: float, beta: float) -> Callable[..., Tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """``i = i + x``; ``h = v + (1 - beta)(i - v)``; ``spk = H(h - 1)``; ``v' = (1 - spk) h``; ``i' = alpha i``."""

    def rule(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        i = i + x
        h = v + (1 - beta) * (i - v)
        spk = _spike(h - 1, (h - 1) / (1 + (h - 1).abs()), 0.0)
        return spk, i - (1 - alpha) * i, (1 - spk) * h

    return rule


def forget_compiled() -> None:
    """A process compiles several variants of the same loop; each must start from a clean slate of recompilations."""
    importlib.import_module("torch._dynamo").reset()


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
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


def compile_seconds(run: Callable[[], Any]) -> float:
    """Time until ``run`` is compiled, forward and backward, with no help from compilations cached on disk.

    Two calls: snnTorch's neurons keep their membrane, whose shape is only there after the first, as an attribute.
    """
    import torch._inductor.config as inductor_config

    patch = {"force_disable_caches": True} if hasattr(inductor_config, "force_disable_caches") else {}
    start = time.perf_counter()
    with warnings.catch_warnings(), inductor_config.patch(patch):
        warnings.simplefilter("ignore")  # it says that the caches are off
        for _ in range(2):
            run()
    return time.perf_counter() - start


def multi_step_contenders(
    spikingjelly: Callable[..., Workload], norse: Callable[[], Workload], device: torch.device
) -> List[Contender]:
    """The rows of libraries that run all steps of a layer by themselves.

    Args:
        spikingjelly: makes SpikingJelly's workload; on CUDA also with ``backend``, the name of one.
        norse: makes norse's.
        device: where they run.
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
