"""``python -m snnipu info``: versions, instruction set, threads, and what runs where."""

import argparse
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

import snntorch
import torch

import snnipu
from snnipu import _native_sources, _wait_policy, backends, ops
from snnipu._files import write_text
from snnipu._names import is_installed
from snnipu.backends import host, memory, popart_library
from snnipu.cli._streams import output_path
from snnipu.ipu import model

# Environment variables that change what runs, by their beginnings.
_TOLD = ("SNNIPU_", "POPTORCH_", "OMP_", "KMP_", "GOMP_", "MKL_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "CUDA_")
_OPTIONAL = ("poptorch", "triton", "torchvision", "sklearn", "matplotlib", "spikingjelly", "norse")
# Import name -> name of its distribution, where the two differ.
_DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def _processor() -> str:
    """Marketing name of the processor, or its architecture where the system does not tell."""
    if sys.platform.startswith("linux"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model"):
                    return value.strip()
    return platform.processor() or platform.machine()


def _torch_instruction_set() -> Optional[str]:
    """Instruction set of PyTorch's own CPU kernels; None where this PyTorch does not tell."""
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
    """Everything ``info`` prints, as a dictionary that can be written as JSON."""
    devices = [torch.device("cpu")] + ([torch.device("cuda")] if torch.cuda.is_available() else [])
    ran_by = {op: {device.type: backends.backend_for(op, device) for device in devices} for op in sorted(ops.__all__)}
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
        "native": {
            "folder": str(host.native_folder()),
            "instruction_sets": host.available_isas(),
            "in_use": host.isa(),
            "threads": torch.get_num_threads(),
            "thread_runtime": host.thread_runtime(),
            "freed_memory_kept": memory.what_is_kept() if host.library is not None else {},
            "waiting": {name: os.environ[name] for name in _wait_policy.VARIABLES if name in os.environ},
        },
        "backends": _backends(),
        "ops": ran_by,
    }


def render(found: Dict[str, Any]) -> str:
    """``collect()``'s result as text."""
    lines = ["versions"]
    lines += [f"  {name:13} {version or 'not installed'}" for name, version in found["versions"].items()]
    native = found["native"]
    lines += [f"machine         {found['machine']}", "native library"]
    lines += [f"  folder        {native['folder']}"]
    lines += [f"  built for     {', '.join(native['instruction_sets']) or 'nothing'}"]
    lines += [f"  in use        {native['in_use'] or 'none'}"]
    runtime = native["thread_runtime"] or "none"
    waiting = "".join(f", {name}={value}" for name, value in native["waiting"].items())
    lines += [f"  threads       {native['threads']} (torch.get_num_threads), run by {runtime}{waiting}"]
    kept = ", ".join(name for name, is_kept in native["freed_memory_kept"].items() if is_kept)
    lines += [f"  keeps memory  {kept or 'none'}"]
    lines += ["backends"]
    for name, backend in found["backends"].items():
        lines.append(f"  {name:13} {'available' if backend['available'] else 'not available: ' + backend['reason']}")
    lines += ["ops"]
    for op, where in found["ops"].items():
        lines.append(f"  {op:13} " + ", ".join(f"{device}: {backend}" for device, backend in where.items()))
    return "\n".join(lines)


def _differs_from_snntorch() -> List[str]:
    """What of a layer's spikes and gradients is not snnTorch's, in this installation."""
    beta, kernel = torch.linspace(0.5, 0.95, 37), snnipu.surrogate.fast_sigmoid(slope=25.0)
    made = []
    for leaky in (snnipu.Leaky, snntorch.Leaky):
        x = torch.sin(torch.arange(12 * 5 * 37.0)).mul_(2).reshape(12, 5, 37).requires_grad_()
        layer = leaky(beta=beta, threshold=0.75, spike_grad=kernel)
        if leaky is snnipu.Leaky:
            spk = layer.sequence(x)[0]
        else:
            mem, spikes = layer.reset_mem(), []
            for step in x:
                spike, mem = layer(step, mem)
                spikes.append(spike)
            spk = torch.stack(spikes)
        made.append({"spikes": spk.detach(), "gradients": torch.autograd.grad((spk * x.detach()).sum(), x)[0]})
    ours, theirs = made
    return [name for name in theirs if not torch.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)]


def report(found: Dict[str, Any]) -> str:
    """What a report of a bug needs, to be pasted into it: ``render``'s text, the system, the build, and a small run."""
    record = _native_sources.record(host.native_folder()) or {}
    set_here = sorted(name for name in os.environ if name.startswith(_TOLD) or name in _wait_policy.VARIABLES)
    try:
        differs = _differs_from_snntorch()
        ran = f"not snnTorch's: {', '.join(differs)}" if differs else "spikes and gradients are snnTorch's"
    except Exception as error:
        ran = f"failed: {type(error).__name__}: {error}"
    libc = " ".join(platform.libc_ver())
    lines = [
        render(found),
        f"system          {platform.platform()}{', ' + libc if libc.strip() else ''}",
        f"processor       {found['processor']}, PyTorch uses {found['torch_instruction_set']}",
        f"built by        {record.get('compiler', 'unknown')}, flags {record.get('flags', 'unknown')}",
        f"built from      {record.get('sources', 'unknown')}",
        f"environment     {', '.join(f'{name}={os.environ[name]}' for name in set_here) or 'nothing set'}",
        f"a layer         {ran}",
    ]
    # Whose machine it is need not be told.
    text = "\n".join(lines).replace(str(Path.home()), "~")
    title = f"snnipu {found['versions']['snnipu']}, PyTorch {found['versions']['torch']}, {found['machine']}"
    return f"<details><summary>{title}</summary>\n\n```text\n{text}\n```\n\n</details>"


def _json_path(text: str) -> Union[Path, str]:
    return text if text == "-" else output_path()(text)


def main(argv: List[str]) -> int:
    """Print what this installation is and can do."""
    parser = argparse.ArgumentParser(
        prog="snnipu info", description="Versions, instruction set, threads, and on which backend each op runs here."
    )
    parser.add_argument(
        "--json", type=_json_path, metavar="FILE", help="write the same as JSON to FILE ('-': to standard output)"
    )
    parser.add_argument(
        "--report", action="store_true", help="print all that a report of a bug needs, as Markdown; a layer runs for it"
    )
    args = parser.parse_args(argv)
    found = collect()
    if args.json == "-":
        json.dump(found, sys.stdout, indent=2)
        print()
        return 0
    print(report(found) if args.report else render(found))
    if args.json:
        write_text(args.json, json.dumps(found, indent=2) + "\n")
    return 0
