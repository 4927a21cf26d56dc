"""Functions that kernels over a sequence share: blocks of elements, rows, surrogates, sums of gradients.

Kernels use only features that every Triton since 2.0 has.
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
    """Return a module with the source ``text``. Triton reads the source again when it compiles a function."""
    file = f"<snnipu {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType(f"{__name__}.{name}")
    exec(compile(text, file, "exec"), vars(module))
    return module


# grad * dS/du, a function of u, grad, the numbers of _constants, and the surrogate's index in equations.SURROGATES.
_through_spike = define("surrogates", _generator.print_triton_surrogates(equations.SURROGATES))._through_spike

# Rows whose length is a multiple of this are aligned for the widest loads.
_ALIGNED = 16
# Elements of a program: two per thread, which is the fastest of 1, 2 and 4 on an H100 for all sizes.
_WARPS, _BLOCK = 4, 256
# Older compilers of Triton fail at the backward kernel with more than one element per thread.
_WIDE_BLOCKS_SINCE = (2, 2)


@triton.jit
def _offsets(first, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Return the elements of this program, from block ``first`` on.

    ``first`` is an argument because Triton 2.1 needs a value that is not a constant.
    """
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
    """Return row t of a sequence; zeros outside of it."""
    t = t + steps * 0  # a tensor: in the interpreter, loop variables are Python integers
    length = elements * ((t >= 0) & (t < steps)).to(tl.int64)
    return tl.load(pointer + t * elements + offsets, mask=offsets < length, other=0.0)


@triton.jit
def _repeated(pointer, t, steps, elements, offsets, ROWS: tl.constexpr):
    """Return row t of a sequence; with ROWS 0, its only row, which stands for all steps. Zeros outside of it."""
    t = t + steps * 0  # a tensor: in the interpreter, loop variables are Python integers
    length = elements * ((t >= 0) & (t < steps)).to(tl.int64)
    return tl.load(pointer + t * ROWS * elements + offsets, mask=offsets < length, other=0.0)


@triton.jit
def _store_sum(pointer, total, offsets, mask, PER_ELEMENT: tl.constexpr):
    """Store a sum over time for each element, or one for the program's block."""
    if PER_ELEMENT:
        tl.store(pointer + offsets, total, mask=mask)
    else:
        tl.store(pointer + tl.program_id(0), tl.sum(tl.where(mask, total, 0.0), axis=0))


@lru_cache(maxsize=256)
def _constants(a: float, b: float) -> Tuple[float, ...]:
    """Return the parameters of a surrogate as arguments of a kernel, each as two float32."""
    return (*backend.split(a), *backend.split(b))


def _geometry(elements: int) -> Tuple[int, Dict[str, Any]]:
    """Return the number of programs and the launch options for the size of a step."""
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
    """Add up sums over time to the gradient of a parameter, in a fixed order; return an empty tensor for None."""
    if total is None:
        return like.new_empty(0)
    return total.reshape(-1, like.numel()).sum(0).reshape(like.shape)
