"""Peak resident memory of one step, in a process of its own: what the system sees, fragmentation and all.

The cross-check of :mod:`benchmarks.memory`, which counts live bytes of torch's allocator. Linux and CPU only.
"""

import ctypes
import dataclasses
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch

import snnipu
from snnipu.backends import release_memory
from benchmarks.case import Settings
from benchmarks.peers import Unavailable

METHOD = (
    "growth of VmHWM over VmRSS during one warm step in a fresh process, free heap returned to the system before it"
)


def supported(device: torch.device) -> bool:
    """Whether this system tells the peak of a process, and lets it be reset."""
    return device.type == "cpu" and Path("/proc/self/clear_refs").exists()


def resident_peak_bytes(case: str, contender: str, settings: Settings) -> Optional[int]:
    """Measure ``contender`` of ``case`` in a fresh process; None where it cannot run there beside this one."""
    request = {
        "case": case,
        "contender": contender,
        "threads": torch.get_num_threads(),
        "settings": {
            **{field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)},
            "dtype": str(settings.dtype).replace("torch.", ""),
            "device": str(settings.device),
        },
    }
    root = str(Path(__file__).resolve().parent.parent)
    script = f"import sys; sys.path.insert(0, {root!r}); from benchmarks import resident; resident.child()"
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(request), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the process that measures resident memory failed: {done.stderr.strip()[-150:]}")
    bytes_ = json.loads(done.stdout.split()[-1])
    return None if bytes_ is None else int(bytes_)


def _status(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def child() -> None:
    """What the fresh process runs: the request on stdin, the bytes, or null, on stdout."""
    from benchmarks import cases

    request: Dict[str, Any] = json.load(sys.stdin)
    torch.set_num_threads(request["threads"])
    values = request["settings"]
    settings = Settings(
        **{**values, "dtype": getattr(torch, values["dtype"]), "device": torch.device(values["device"])}
    )
    contenders = cases.available()[request["case"]].build(settings).contenders
    try:
        step = next(contender for contender in contenders if contender.name == request["contender"]).build().step
    except Unavailable:  # it was not in the process that asks: there is less memory left
        print("null")
        return
    step()
    gc.collect()
    release_memory()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    kept: List[Any] = [step()]
    print(max(0, _status("VmHWM") - before))
    kept.clear()
