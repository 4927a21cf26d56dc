"""``python -m snnipu info``: versions, instruction set, threads, and the backend of each op."""

import argparse
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

import torch

import snnipu
from snnipu import _native_sources, _wait_policy, backends, ops
from snnipu._files import write_text
from snnipu._names import is_installed
from snnipu.backends import host, memory, popart_library
from snnipu.cli._streams import called, output_path
from snnipu.ipu import model

# Prefixes of the environment variables that change which code runs.
_VARIABLES = (
    *("SNNIPU_", "POPTORCH_", "OMP_", "KMP_", "GOMP_", "MKL_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "CUDA_"),
    *_wait_policy.VARIABLES,
)
_OPTIONAL = ("poptorch", "triton", "torchvision", "sklearn", "matplotlib", "spikingjelly", "norse")
# Import name -> name of its distribution, if the two differ.
_DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def _processor() -> str:
    """Return the marketing name of the processor; its architecture if the system does not report the name."""
    if sys.platform.startswith("linux"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model"):
                    return value.strip()
    return platform.processor() or platform.machine()


def _torch_instruction_set() -> Optional[str]:
    """Return the instruction set of PyTorch's CPU kernels; None if this PyTorch does not report it."""
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", None)
    return None if capability is None else str(capability())


def _version(module: str) -> Optional[str]:
    try:
        return metadata.version(_DISTRIBUTIONS.get(module, module))
    except metadata.PackageNotFoundError:
        return "installed, version unknown" if is_installed(module) else None


def _ipu() -> Dict[str, Any]:
    library = popart_library.library_path()
    missing = []
    if not is_installed("poptorch"):
        missing.append("PopTorch is not installed")
    if not library.is_file():
        searched, command = popart_library.searched(), popart_library.COMMAND
        missing.append(f"no PopART operators in {searched}; with the Poplar SDK, `{command}` builds them")
    return {"available": not missing, "reason": "; ".join(missing) or None}


def _backends() -> Dict[str, Dict[str, Any]]:
    cuda = "PyTorch finds no CUDA device" if not torch.cuda.is_available() else None
    reasons = [reason for reason in (cuda, backends.why_reference(torch.device("cuda"))) if reason is not None]
    return {
        "host": {"available": host.library is not None, "reason": host.unavailable_reason},
        "cuda": {"available": not reasons, "reason": "; ".join(reasons) or None},
        "ipu": _ipu(),
        "ipu-model": {"available": model.available(), "reason": model.unavailable_reason()},
        "reference": {"available": True, "reason": None},
    }


def collect() -> Dict[str, Any]:
    """Return everything that ``info`` prints, as a dictionary that can be written as JSON."""
    devices = [torch.device("cpu")] + ([torch.device("cuda")] if torch.cuda.is_available() else [])
    record = _native_sources.record(host.native_folder()) or {}
    return {
        "versions": {
            "snnipu": snnipu.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: _version(name) for name in ("snntorch", "numpy", *_OPTIONAL)},
        },
        "processor": _processor(),
        "torch_instruction_set": _torch_instruction_set(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "system": f"{platform.platform()}, {' '.join(platform.libc_ver())}",
        "native": {
            "folder": str(host.native_folder()),
            "instruction_sets": host.available_isas(),
            "in_use": host.isa(),
            "threads": torch.get_num_threads(),
            "thread_runtime": host.thread_runtime(),
            "freed_memory_kept": memory.enabled_caches() if host.library is not None else {},
            "waiting": {name: os.environ[name] for name in _wait_policy.VARIABLES if name in os.environ},
            **{f"built_{name}": record.get(name) for name in ("compiler", "flags", "sources")},
        },
        "backends": _backends(),
        "ops": {
            op: {device.type: backends.backend_for(op, device) for device in devices} for op in sorted(ops.__all__)
        },
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_VARIABLES)},
    }


def _text(value: Any) -> str:
    if not isinstance(value, dict):
        return ", ".join(value) or "none" if isinstance(value, list) else str("none" if value is None else value)
    if "available" in value:
        return "available" if value["available"] else f"not available: {value['reason']}"
    return ", ".join(f"{name}: {entry}" for name, entry in value.items()) or "none"


def render(report: Dict[str, Any]) -> str:
    """Return the result of ``collect()`` as text, without the name of the user's folder, suitable for bug reports."""
    lines = []
    for section, entries in report.items():
        if isinstance(entries, dict):
            width = max(map(len, entries), default=0)
            lines += [section, *(f"  {name:{width}} {_text(entries[name])}" for name in entries)]
        else:
            lines.append(f"{section}: {_text(entries)}")
    return "\n".join(lines).replace(os.path.expanduser("~") + os.sep, f"~{os.sep}")


def _json_path(text: str) -> Union[Path, str]:
    return text if text == "-" else output_path()(text)


def main(argv: List[str]) -> int:
    """Print the versions and abilities of this installation."""
    parser = argparse.ArgumentParser(
        prog=called("info"),
        description="Versions, instruction set, threads, on which backend each op runs here, and the environment "
        "variables that change it: for a report of a bug, too.",
    )
    parser.add_argument(
        "--json", type=_json_path, metavar="FILE", help="write the same as JSON to FILE ('-': to standard output)"
    )
    args = parser.parse_args(argv)
    report = collect()
    if args.json == "-":
        json.dump(report, sys.stdout, indent=2)
        print()
        return 0
    print(render(report))
    if args.json:
        write_text(args.json, json.dumps(report, indent=2) + "\n")
    return 0
