"""Run ``python -m snnipu ... --device cuda``, or ``benchmarks CASE``, without a GPU: Triton's kernels are interpreted.

The measured times mean nothing. The run shows that each line executes and each check passes.
"""

import contextlib
import importlib
import os
import sys
import types
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.overrides import TorchFunctionMode

from snnipu.cli import main as command_line
from snnipu.ops import _library

# Each operator already has a CPU kernel.
OVERRIDE = {"allow_override": True}
CARD = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda *_: "a pretended card",
    "get_device_capability": lambda *_: (9, 0),
    "get_device_properties": lambda *_: types.SimpleNamespace(multi_processor_count=1, total_memory=1 << 34),
    "synchronize": lambda *_: None,
    "reset_peak_memory_stats": lambda *_: None,
    "memory_allocated": lambda *_: 0,
    "max_memory_allocated": lambda *_: 1 << 20,
    "mem_get_info": lambda *_: (1 << 34, 1 << 34),
    "empty_cache": lambda: None,
    "device": lambda *_: contextlib.nullcontext(),
    "is_current_stream_capturing": lambda: False,
}


def on_cpu(value):
    if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda")):
        return torch.device("cpu") if torch.device(value).type == "cuda" else value
    return value


class Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, on_cpu(device))


class OnCpu(TorchFunctionMode):
    """A mode that creates tensors for the GPU on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") == "cuda":
            return args[0]
        if function is torch.device or getattr(function, "__objclass__", None) is torch.device:
            return function(*args, **(kwargs or {}))
        return function(*map(on_cpu, args), **{name: on_cpu(value) for name, value in (kwargs or {}).items()})


def main():
    for name, function in CARD.items():
        setattr(torch.cuda, name, function)
    # Register Triton's kernels in place of the CPU's.
    library = torch.library.Library("snnipu", "IMPL")
    for operator, kernels in _library.REGISTERED.items():
        if "CUDA" in kernels:
            library.impl(operator, kernels["CUDA"], "CPU", **OVERRIDE)
            kernels["CPU"] = kernels["CUDA"]
    torch.Generator = Generator
    # Module.to is a method that function modes do not intercept.
    to = torch.nn.Module.to
    torch.nn.Module.to = lambda module, *args, **kwargs: to(
        module, *map(on_cpu, args), **{name: on_cpu(value) for name, value in kwargs.items()}
    )
    with OnCpu():
        if sys.argv[1] == "benchmarks":
            sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
            return importlib.import_module("benchmarks.__main__").main(sys.argv[2:])
        return command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
