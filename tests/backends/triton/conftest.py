"""Fixtures: Triton's compiler without a GPU, and Triton's interpreter."""

import contextlib
import importlib
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, NamedTuple, Tuple

import pytest
import torch
from support.interpreter import interpreted  # noqa: F401

from snnipu.backends import triton as backend


class Launch(NamedTuple):
    """The launch of a kernel that is compiled for a GPU and not run."""

    kernel: str
    key: Tuple[Any, ...]  # a new key makes Triton compile again
    ptx: str
    resources: Dict[str, int]  # registers, and bytes of memory per thread: REG, STACK, SHARED, LOCAL


def _resources(cubin):
    """Return the resources of a compiled kernel, read with the ``cuobjdump`` that Triton ships."""
    nvidia = importlib.import_module("triton.backends.nvidia")
    program = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        dump = subprocess.run([str(program), "--dump-resource-usage", file.name], stdout=subprocess.PIPE, check=True)
    numbers = {
        name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", dump.stdout.decode())
    }
    assert set(numbers) == {"REG", "STACK", "SHARED", "LOCAL"}
    return numbers


_POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


def _compile(kernel, arguments, options, capability):
    """Compile ``kernel`` for a launch with these arguments (by name)."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        name, value = parameter.name, arguments[parameter.name]
        if parameter.is_constexpr:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
            if value.data_ptr() % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            signature[name], constants[name] = "constexpr", value
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", 16]]
    key = (kernel.__name__, *(str(sorted(part.items())) for part in (signature, constants, attributes, options)))
    build = importlib.import_module("triton").compile
    return key, lambda: build(
        ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """``compiled(function, *arguments, capability=90)`` returns the launches of ``function``, compiled for that GPU.

    No kernel runs: its outputs keep their values. No GPU is needed, as Triton ships NVIDIA's assembler.
    """
    reason = backend.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    try:
        importlib.import_module("triton.backends.compiler").GPUTarget  # noqa: B018
    except (ImportError, AttributeError):
        pytest.skip("this Triton cannot compile without a GPU")
    jit = importlib.import_module("triton.runtime.jit")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(backend, "check_launch", lambda *tensors: torch.device("cpu"))
    done = {}

    def launches(function, *arguments, capability=90):
        launched = []

        def run(kernel, *values, grid, warmup, **keywords):
            named = dict(zip(kernel.arg_names, values))
            named.update({name: keywords.pop(name) for name in list(keywords) if name in kernel.arg_names})
            key, build = _compile(kernel, named, keywords, capability)
            if (capability, key) not in done:
                assembly = build().asm
                done[capability, key] = Launch(kernel.__name__, key, assembly["ptx"], _resources(assembly["cubin"]))
            launched.append(done[capability, key])

        with monkeypatch.context() as patch:
            patch.setattr(jit.JITFunction, "run", run)
            function(*arguments)
        return launched

    return launches


@pytest.fixture
def large_memory():
    """Reserve 40 GiB of GPU memory for one test process at a time."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):  # Windows
            fcntl = importlib.import_module("fcntl")
            lock = stack.enter_context(open(Path(tempfile.gettempdir()) / "snnipu-large-memory", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        if torch.cuda.mem_get_info()[0] < 40 * 2**30:
            pytest.skip("needs 40 GiB of free GPU memory")
        yield
        torch.cuda.empty_cache()
