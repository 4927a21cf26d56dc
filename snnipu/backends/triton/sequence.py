"""What kernels over a sequence have in common: blocks of elements, rows, surrogates, sums of gradients.

Only what every Triton since 2.0 has is used in the kernels.
"""

import linecache
import types
from functools import lru_cache
from typing import Any, Dict, Optional, Tuple

import torch
import triton
import triton.language as tl

from snnipu import _generator, equations
from snnipu.backends import triton as backend


def define(name: str, text: str) -> Any:
    """Return the module of this text, which Triton reads again when it compiles the module's functions."""
    file = f"<snnipu {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType(f"{__name__}.{name}")
    exec(compile(text, file, "exec"), vars(module))
    return module


# grad * dS/du: a function of u, grad, the numbers of _constants, and the surrogate's place in equations.SURROGATES.
_through_spike = define("surrogates", _generator.print_triton_surrogates(equations.SURROGATES))._through_spike

# Rows whose length is a multiple of it are aligned to the widest loads.
_ALIGNED = 16
# Elements of a program: two to a thread, fastest of 1, 2 and 4 on an H100 whatever the size.
_WARPS, _BLOCK = 4, 256
# Before it Triton's compiler fails at the backward kernel with more than one element to a thread.
_WIDE_BLOCKS_SINCE = (2, 2)


@triton.jit
def _offsets(first, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """The elements of this program, from ``first`` on: an argument, as Triton 2.1 wants one that is no constant."""
    block = first + tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    return block * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _parameter(pointer, count, offsets, mask, PER_ELEMENT: tl.constexpr):
    if PER_ELEMENT:
        value = tl.load(pointer + offsets % count, mask=mask, other=0.0)
    else:
        value = tl.load(pointer)
    return value


@triton.jit
def _row(pointer, t, steps, elements, offsets):
    """Row t of a sequence; zeros outside of it."""
    t = t + steps * 0  # the interpreter's loops count in Python's numbers
    length = elements * ((t >= 0) & (t < steps)).to(tl.int64)
    return tl.load(pointer + t * elements + offsets, mask=offsets < length, other=0.0)


@triton.jit
def _repeated(pointer, t, steps, elements, offsets, ROWS: tl.constexpr):
    """Row t of a sequence, or with ROWS 0 the one row of a sequence that is the same at every step; zeros outside."""
    t = t + steps * 0  # the interpreter's loops count in Python's numbers
    length = elements * ((t >= 0) & (t < steps)).to(tl.int64)
    return tl.load(pointer + t * ROWS * elements + offsets, mask=offsets < length, other=0.0)


@triton.jit
def _store_sum(pointer, total, offsets, mask, PER_ELEMENT: tl.constexpr):
    """A sum over time for each element, or one for the program's block."""
    if PER_ELEMENT:
        tl.store(pointer + offsets, total, mask=mask)
    else:
        tl.store(pointer + tl.program_id(0), tl.sum(tl.where(mask, total, 0.0), axis=0))


@lru_cache(maxsize=256)
def _constants(a: float, b: float) -> Tuple[float, ...]:
    """The surrogate's numbers for the kernel, each as two float32."""
    return (*backend.split(a), *backend.split(b))


def _geometry(elements: int) -> Tuple[int, Dict[str, Any]]:
    """Number of programs, and the options that follow from a step's size."""
    block = _BLOCK if backend.version() >= _WIDE_BLOCKS_SINCE else 32 * _WARPS
    programs = -(-elements // block)
    return programs, {
        "UNIT": _ALIGNED if elements % _ALIGNED == 0 else 1,
        "BLOCK": block,
        "WIDE": programs * block >= 2**31,
        "num_warps": _WARPS,
        "num_stages": 1,
    }


def _reduced(total: Optional[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """A parameter's gradient from sums over time, always added in the same order; empty without any."""
    if total is None:
        return like.new_empty(0)
    return total.reshape(-1, like.numel()).sum(0).reshape(like.shape)
