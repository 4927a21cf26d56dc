"""The machine and the software that a result was measured on."""

import datetime
import importlib.metadata
import platform
import sys
from typing import Any, Dict, Optional

import torch

import snnipu
from snnipu import ops
from snnipu.backends import backend_for, host


def cpu_model() -> str:
    """Marketing name of the processor, or its architecture where the system does not tell."""
    if sys.platform.startswith("linux"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model"):
                    return value.strip()
    return platform.processor() or platform.machine()


def torch_instruction_set() -> Optional[str]:
    """Instruction set of PyTorch's own CPU kernels; None where this PyTorch does not tell."""
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", None)
    return None if capability is None else str(capability())


def package_version(name: str) -> Optional[str]:
    """Version of an installed distribution, else None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def record(device: torch.device, dtype: torch.dtype) -> Dict[str, Any]:
    """What a reader needs to judge or repeat a measurement."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        "cpu_model": cpu_model(),
        "architecture": platform.machine(),
        "instruction_set": torch_instruction_set(),
        "native_instruction_set": host.isa(),
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).replace("torch.", ""),
        "tf32": bool(device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability(device)))
        if device.type == "cuda"
        else None,
        "backends": {op: backend_for(op, device) for op in sorted(ops.__all__)},
        "versions": {
            "snnipu": snnipu.__version__,
            "torch": str(torch.__version__),
            **{
                name: package_version(name)
                for name in ("snntorch", "spikingjelly", "norse", "braintrace", "dcls", "numpy", "triton", "cupy")
            },
        },
    }
