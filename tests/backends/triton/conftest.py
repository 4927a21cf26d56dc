"""Triton's interpreter beside Triton's compiler, in one process; and the compiler without a GPU."""

import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import pytest
import torch

from snnipu.backends import triton as backend

# Modules as the interpreter needs them, from the first test that uses it to the next.
_interpreted: Dict[str, types.ModuleType] = {}


def _is_kernel_module(name):
    return name.startswith(backend.__name__ + ".")


def _has_two_lives(name):
    """Whether a module is one thing to the interpreter and another to the compiler: all that define kernels."""
    own_triton = name == "triton" or (name.startswith("triton.") and not name.startswith("triton._C"))
    return own_triton or _is_kernel_module(name)


def _exchange(modules):
    """Put ``modules`` in the place of those that have two lives, and return what was there."""
    before = {name: module for name, module in sys.modules.items() if _has_two_lives(name)}
    for name in before:
        del sys.modules[name]
        if _is_kernel_module(name):
            vars(backend).pop(name.rsplit(".", 1)[1], None)
    sys.modules.update(modules)
    for name, module in modules.items():
        if _is_kernel_module(name):
            setattr(backend, name.rsplit(".", 1)[1], module)
    return before


@pytest.fixture
def interpreted(monkeypatch) -> Callable[[str], types.ModuleType]:
    """``interpreted("neurons")`` is ``snnipu.backends.triton.neurons`` with its kernels run by the interpreter.

    Triton decides when a kernel is defined, and its own library is made of kernels: during the test both are imported
    anew, so that all other tests of the process keep those of the compiler.
    """
    reason = backend.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    if importlib.util.find_spec("triton.runtime.interpreter") is None:
        pytest.skip("this Triton has no interpreter that the environment turns on, 3.0 has")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    compiled = _exchange(_interpreted)
    try:
        yield lambda name: importlib.import_module(f"{backend.__name__}.{name}")
    finally:
        _interpreted.update(_exchange(compiled))


class Launch(NamedTuple):
    """A kernel's launch, compiled for a GPU and not run."""

    kernel: str
    key: Tuple[Any, ...]  # what Triton compiles a kernel anew for
    ptx: str
    resources: Dict[str, int]  # registers, and bytes a thread has in memory: REG, STACK, SHARED, LOCAL


def _resources(cubin: bytes) -> Dict[str, int]:
    """What ``cuobjdump``, which Triton brings, tells of a compiled kernel."""
    nvidia = importlib.import_module("triton.backends.nvidia")
    program = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([str(program), "--dump-resource-usage", file.name], stdout=subprocess.PIPE, check=True)
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", said.stdout.decode())}
    assert set(found) == {"REG", "STACK", "SHARED", "LOCAL"}
    return found


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
    """Compile ``kernel`` as a launch with these arguments (by name) would."""
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
def compiled(monkeypatch, tmp_path) -> Callable[..., List[Launch]]:
    """``compiled(function, *arguments, capability=90)``: the launches of ``function``, compiled for such a GPU.

    None of them runs: outputs of kernels are not set. No GPU is needed, as Triton brings NVIDIA's assembler.
    """
    reason = backend.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    try:
        importlib.import_module("triton.backends.compiler").GPUTarget  # noqa: B018
    except (ImportError, AttributeError):
        pytest.skip("this Triton cannot compile for a GPU that is not there")
    jit = importlib.import_module("triton.runtime.jit")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(backend, "check_launch", lambda *tensors: torch.device("cpu"))
    done: Dict[Tuple[Any, ...], Launch] = {}

    def launches(function, *arguments, capability=90):
        found = []

        def run(kernel, *values, grid, warmup, **keywords):
            named = dict(zip(kernel.arg_names, values))
            named.update({name: keywords.pop(name) for name in list(keywords) if name in kernel.arg_names})
            key, build = _compile(kernel, named, keywords, capability)
            if (capability, key) not in done:
                assembly = build().asm
                done[capability, key] = Launch(kernel.__name__, key, assembly["ptx"], _resources(assembly["cubin"]))
            found.append(done[capability, key])

        with monkeypatch.context() as patch:
            patch.setattr(jit.JITFunction, "run", run)
            function(*arguments)
        return found

    return launches
