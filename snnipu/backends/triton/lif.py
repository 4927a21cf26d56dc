"""Leaky integrate-and-fire over a whole sequence on a GPU: the equations of csrc/neuron/lif.hpp in Triton.

A program keeps the membranes of a block of elements (one neuron of one sample each) in registers over all steps, and
every value is read and written once. What a step reads is asked for several steps before. The number of steps and all
sizes are arguments at run time: a kernel is compiled for its options and dtypes, and for the few block sizes and
alignments there are, never for a shape.

Only what every Triton since 2.0 has is used in the kernels.
"""

from typing import Optional, Tuple

import torch
import triton
import triton.language as tl

from snnipu._layout import layout, saved_layout
from snnipu.backends import triton as backend
from snnipu.backends.host import _upstream
from snnipu.backends.triton.sequence import (
    _constants,
    _geometry,
    _offsets,
    _parameter,
    _reduced,
    _row,
    _store_sum,
    _through_spike,
)

_SUBTRACT = tl.constexpr(0)
_ZERO = tl.constexpr(1)


@triton.jit
def _clamp_unit(beta):
    low = tl.where(beta < 0.0, 0.0, beta)
    return tl.where(low > 1.0, 1.0, low)


@triton.jit
def _spike(mem, threshold, storage):
    """H(mem - threshold), decided on the membrane as it is stored."""
    stored = mem.to(storage.dtype.element_ty).to(mem.dtype)
    return (stored - threshold > 0.0).to(mem.dtype)


@triton.jit
def _next_membrane(state, was_above, current, decay, threshold, RESET: tl.constexpr):
    """The neuron's step, before an immediate reset."""
    if RESET == _SUBTRACT:
        u = (decay * state + current) - was_above * threshold
    elif RESET == _ZERO:
        u = decay * ((1.0 - was_above) * state) + current
    else:
        u = decay * state + current
    return u


@triton.jit(do_not_specialize=["steps", "units", "betas", "thresholds", "gradeds"])
def lif_sequence_fwd_kernel(
    x,
    mem0,
    beta,
    threshold,
    graded,
    spk,
    mem,
    pre_reset,
    last,
    steps,
    units,
    betas,
    thresholds,
    gradeds,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    AHEAD: tl.constexpr,
    RESET: tl.constexpr,
    IMMEDIATE: tl.constexpr,
    PER_ELEMENT: tl.constexpr,
    HAS_MEM0: tl.constexpr,
    CONSTANT_INPUT: tl.constexpr,
    STORE_SPK: tl.constexpr,
    STORE_MEM: tl.constexpr,
    STORE_PRE_RESET: tl.constexpr,
    STORE_LAST: tl.constexpr,
):
    # A product with UNIT tells the compiler how rows are aligned.
    elements = units.to(tl.int64) * UNIT
    offsets = _offsets(0, BLOCK, WIDE)
    mask = offsets < elements
    decay = _clamp_unit(_parameter(beta, betas, offsets, mask, PER_ELEMENT))
    thr = _parameter(threshold, thresholds, offsets, mask, PER_ELEMENT)
    factor = _parameter(graded, gradeds, offsets, mask, PER_ELEMENT)
    if HAS_MEM0:
        state = tl.load(mem0 + offsets, mask=mask, other=0.0)
    else:
        state = (offsets * 0).to(beta.dtype.element_ty)
    x0 = _row(x, 0, steps, elements, offsets)
    if not CONSTANT_INPUT:
        x1 = _row(x, 1, steps, elements, offsets)
        if AHEAD == 8:
            x2 = _row(x, 2, steps, elements, offsets)
            x3 = _row(x, 3, steps, elements, offsets)
            x4 = _row(x, 4, steps, elements, offsets)
            x5 = _row(x, 5, steps, elements, offsets)
            x6 = _row(x, 6, steps, elements, offsets)
            x7 = _row(x, 7, steps, elements, offsets)
    for t in range(0, steps):
        current = x0.to(state.dtype)
        if not CONSTANT_INPUT:
            coming = _row(x, t + AHEAD, steps, elements, offsets)
            x0 = x1
            if AHEAD == 8:
                x1 = x2
                x2 = x3
                x3 = x4
                x4 = x5
                x5 = x6
                x6 = x7
                x7 = coming
            else:
                x1 = coming
        was_above = _spike(state, thr, spk)
        u = _next_membrane(state, was_above, current, decay, thr, RESET)
        spike = _spike(u, thr, spk)
        row = t * elements + offsets
        if STORE_SPK:
            tl.store(spk + row, (spike * factor).to(spk.dtype.element_ty), mask=mask)
        if STORE_PRE_RESET:
            tl.store(pre_reset + row, u.to(pre_reset.dtype.element_ty), mask=mask)
        state = u
        if IMMEDIATE:
            if RESET == _SUBTRACT:
                state = u - (spike - was_above) * thr
            elif RESET == _ZERO:
                state = u - (spike - was_above) * u
        if STORE_MEM:
            tl.store(mem + row, state.to(mem.dtype.element_ty), mask=mask)
    if STORE_LAST:
        tl.store(last + offsets, state, mask=mask)


@triton.jit(
    do_not_specialize=["steps", "units", "betas", "thresholds", "gradeds", "p_high", "p_low", "q_high", "q_low"]
)
def lif_sequence_bwd_kernel(
    grad_spk,
    grad_mem,
    grad_last,
    mem,
    pre_reset,
    mem0,
    beta,
    threshold,
    graded,
    grad_x,
    grad_mem0,
    grad_beta,
    grad_threshold,
    grad_graded,
    steps,
    units,
    betas,
    thresholds,
    gradeds,
    p_high,
    p_low,
    q_high,
    q_low,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    AHEAD: tl.constexpr,
    RESET: tl.constexpr,
    IMMEDIATE: tl.constexpr,
    SURROGATE: tl.constexpr,
    PER_ELEMENT: tl.constexpr,
    HAS_MEM0: tl.constexpr,
    CONSTANT_INPUT: tl.constexpr,
    HAS_PRE_RESET: tl.constexpr,
    HAS_GRAD_SPK: tl.constexpr,
    HAS_GRAD_MEM: tl.constexpr,
    HAS_GRAD_LAST: tl.constexpr,
    SPK_ROWS: tl.constexpr,
    MEM_ROWS: tl.constexpr,
    NEED_MEM0: tl.constexpr,
    NEED_BETA: tl.constexpr,
    NEED_THRESHOLD: tl.constexpr,
    NEED_GRADED: tl.constexpr,
):
    elements = units.to(tl.int64) * UNIT
    offsets = _offsets(0, BLOCK, WIDE)
    mask = offsets < elements
    raw_beta = _parameter(beta, betas, offsets, mask, PER_ELEMENT)
    decay = _clamp_unit(raw_beta)
    thr = _parameter(threshold, thresholds, offsets, mask, PER_ELEMENT)
    factor = _parameter(graded, gradeds, offsets, mask, PER_ELEMENT)
    zeros = (offsets * 0).to(beta.dtype.element_ty)
    p = (zeros + p_high) + p_low
    q = (zeros + q_high) + q_low
    carry = zeros
    if HAS_GRAD_LAST:
        carry = tl.load(grad_last + offsets, mask=mask, other=0.0)
    sum_x = zeros
    sum_beta = zeros
    sum_threshold = zeros
    sum_graded = zeros
    # Gradients the same at every step have one row: SPK_ROWS and MEM_ROWS are 0 then, otherwise 1. m: membranes before
    # the step, v: the membrane a spike was decided on.
    last = steps - 1
    v0 = _row(mem, last, steps, elements, offsets)
    m0 = _row(mem, last - 1, steps, elements, offsets)
    m1 = _row(mem, last - 2, steps, elements, offsets)
    if HAS_PRE_RESET:
        v0 = _row(pre_reset, last, steps, elements, offsets)
        v1 = _row(pre_reset, last - 1, steps, elements, offsets)
    if HAS_GRAD_SPK:
        g0 = _row(grad_spk, last * SPK_ROWS, steps, elements, offsets)
        g1 = _row(grad_spk, (last - 1) * SPK_ROWS, steps, elements, offsets)
    if HAS_GRAD_MEM:
        h0 = _row(grad_mem, last * MEM_ROWS, steps, elements, offsets)
        h1 = _row(grad_mem, (last - 1) * MEM_ROWS, steps, elements, offsets)
    if AHEAD == 8:
        m2 = _row(mem, last - 3, steps, elements, offsets)
        m3 = _row(mem, last - 4, steps, elements, offsets)
        m4 = _row(mem, last - 5, steps, elements, offsets)
        m5 = _row(mem, last - 6, steps, elements, offsets)
        m6 = _row(mem, last - 7, steps, elements, offsets)
        m7 = _row(mem, last - 8, steps, elements, offsets)
        if HAS_PRE_RESET:
            v2 = _row(pre_reset, last - 2, steps, elements, offsets)
            v3 = _row(pre_reset, last - 3, steps, elements, offsets)
            v4 = _row(pre_reset, last - 4, steps, elements, offsets)
            v5 = _row(pre_reset, last - 5, steps, elements, offsets)
            v6 = _row(pre_reset, last - 6, steps, elements, offsets)
            v7 = _row(pre_reset, last - 7, steps, elements, offsets)
        if HAS_GRAD_SPK:
            g2 = _row(grad_spk, (last - 2) * SPK_ROWS, steps, elements, offsets)
            g3 = _row(grad_spk, (last - 3) * SPK_ROWS, steps, elements, offsets)
            g4 = _row(grad_spk, (last - 4) * SPK_ROWS, steps, elements, offsets)
            g5 = _row(grad_spk, (last - 5) * SPK_ROWS, steps, elements, offsets)
            g6 = _row(grad_spk, (last - 6) * SPK_ROWS, steps, elements, offsets)
            g7 = _row(grad_spk, (last - 7) * SPK_ROWS, steps, elements, offsets)
        if HAS_GRAD_MEM:
            h2 = _row(grad_mem, (last - 2) * MEM_ROWS, steps, elements, offsets)
            h3 = _row(grad_mem, (last - 3) * MEM_ROWS, steps, elements, offsets)
            h4 = _row(grad_mem, (last - 4) * MEM_ROWS, steps, elements, offsets)
            h5 = _row(grad_mem, (last - 5) * MEM_ROWS, steps, elements, offsets)
            h6 = _row(grad_mem, (last - 6) * MEM_ROWS, steps, elements, offsets)
            h7 = _row(grad_mem, (last - 7) * MEM_ROWS, steps, elements, offsets)
    for back in range(0, steps):
        t = last - back
        before_stored = m0
        u = v0.to(zeros.dtype)
        coming = _row(mem, t - 1 - AHEAD, steps, elements, offsets)
        m0 = m1
        if AHEAD == 8:
            m1 = m2
            m2 = m3
            m3 = m4
            m4 = m5
            m5 = m6
            m6 = m7
            m7 = coming
        else:
            m1 = coming
        if HAS_PRE_RESET:
            coming = _row(pre_reset, t - AHEAD, steps, elements, offsets)
            v0 = v1
            if AHEAD == 8:
                v1 = v2
                v2 = v3
                v3 = v4
                v4 = v5
                v5 = v6
                v6 = v7
                v7 = coming
            else:
                v1 = coming
        else:
            v0 = before_stored
        from_spk = zeros
        if HAS_GRAD_SPK:
            from_spk = g0.to(zeros.dtype)
            coming = _row(grad_spk, (t - AHEAD) * SPK_ROWS, steps, elements, offsets)
            g0 = g1
            if AHEAD == 8:
                g1 = g2
                g2 = g3
                g3 = g4
                g4 = g5
                g5 = g6
                g6 = g7
                g7 = coming
            else:
                g1 = coming
        grad_state = carry
        if HAS_GRAD_MEM:
            grad_state = carry + h0.to(zeros.dtype)
            coming = _row(grad_mem, (t - AHEAD) * MEM_ROWS, steps, elements, offsets)
            h0 = h1
            if AHEAD == 8:
                h1 = h2
                h2 = h3
                h3 = h4
                h4 = h5
                h5 = h6
                h6 = h7
                h7 = coming
            else:
                h1 = coming
        # A row before the first is zeros.
        before = before_stored.to(zeros.dtype)
        if HAS_MEM0:
            length = elements * (t == 0).to(tl.int64)
            before = before + tl.load(mem0 + offsets, mask=offsets < length, other=0.0)
        was_above = _spike(before, thr, grad_x)
        shifted = u - thr
        spike = (shifted > 0.0).to(zeros.dtype)
        grad_spike = from_spk * factor
        grad_u = grad_state
        if IMMEDIATE:
            if RESET == _SUBTRACT:
                grad_spike = grad_spike - grad_state * thr
                sum_threshold = sum_threshold - grad_state * (spike - was_above)
            elif RESET == _ZERO:
                grad_spike = grad_spike - grad_state * u
                grad_u = grad_state * (1.0 - (spike - was_above))
        through = _through_spike(shifted, grad_spike, p, q, SURROGATE)
        grad_u = grad_u + through
        sum_threshold = sum_threshold - through
        if RESET == _ZERO:
            sum_beta = sum_beta + grad_u * ((1.0 - was_above) * before)
            carry = (decay * (1.0 - was_above)) * grad_u
        else:
            sum_beta = sum_beta + grad_u * before
            carry = decay * grad_u
        if RESET == _SUBTRACT:
            sum_threshold = sum_threshold - grad_u * was_above
        sum_graded = sum_graded + from_spk * spike
        if CONSTANT_INPUT:
            sum_x = sum_x + grad_u
        else:
            tl.store(grad_x + t * elements + offsets, grad_u.to(grad_x.dtype.element_ty), mask=mask)
    if CONSTANT_INPUT:
        tl.store(grad_x + offsets, sum_x.to(grad_x.dtype.element_ty), mask=mask)
    if NEED_MEM0:
        tl.store(grad_mem0 + offsets, carry, mask=mask)
    if NEED_BETA:
        inside = (raw_beta >= 0.0) & (raw_beta <= 1.0)
        _store_sum(grad_beta, tl.where(inside, sum_beta, zeros), offsets, mask, PER_ELEMENT)
    if NEED_THRESHOLD:
        _store_sum(grad_threshold, sum_threshold, offsets, mask, PER_ELEMENT)
    if NEED_GRADED:
        _store_sum(grad_graded, sum_graded, offsets, mask, PER_ELEMENT)


def _forward(
    x: torch.Tensor,
    mem0: Optional[torch.Tensor],
    parameters: Tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    outputs: Tuple[Optional[torch.Tensor], ...],
    steps: int,
    elements: int,
    constant_input: bool,
    reset: int,
    reset_delay: bool,
) -> None:
    """Launch the forward kernel; spk, mem, pre_reset and last of ``outputs`` are written where there is one."""
    spk, mem, pre_reset, last = outputs
    device = backend.check_launch(x, mem0, *parameters, *outputs)
    programs, options = _geometry(elements, x)
    counts = [parameter.numel() for parameter in parameters]
    with backend.on_device(device):
        lif_sequence_fwd_kernel[(programs,)](
            x,
            parameters[0] if mem0 is None else mem0,
            *parameters,
            *(x if output is None else output for output in outputs),
            steps,
            elements // options["UNIT"],
            *counts,
            RESET=reset,
            IMMEDIATE=not reset_delay,
            PER_ELEMENT=max(counts) > 1,
            HAS_MEM0=mem0 is not None,
            CONSTANT_INPUT=constant_input,
            STORE_SPK=spk is not None,
            STORE_MEM=mem is not None,
            STORE_PRE_RESET=pre_reset is not None,
            STORE_LAST=last is not None,
            **options,
            **backend.exact(),
        )


def lif_sequence_fwd(
    x: torch.Tensor,
    mem0: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    graded: torch.Tensor,
    num_steps: Optional[int],
    reset: int,
    reset_delay: bool,
    store_mem: bool,
    store_pre_reset: bool,
    store_last: bool = False,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """CUDA kernel of ``snnipu::lif_sequence_fwd``."""
    steps, step_shape, shape = layout(x, num_steps)
    elements = step_shape.numel()
    spk = x.new_empty(shape)
    mem = x.new_empty(shape if store_mem else 0)
    pre_reset = x.new_empty(shape if store_pre_reset else 0)
    last = beta.new_empty(step_shape if store_last else 0)
    if elements and steps:
        _forward(
            x.contiguous(),
            None if mem0 is None else mem0.contiguous(),
            (beta.contiguous(), threshold.contiguous(), graded.contiguous()),
            (
                spk,
                mem if store_mem else None,
                pre_reset if store_pre_reset else None,
                last if store_last else None,
            ),
            steps,
            elements,
            num_steps is not None,
            reset,
            reset_delay,
        )
    elif store_last:
        last = last.zero_() if mem0 is None else mem0.clone()
    return spk, mem, pre_reset, last


def lif_sequence_bwd(
    grad_spk: Optional[torch.Tensor],
    grad_mem: Optional[torch.Tensor],
    x: Optional[torch.Tensor],
    mem: Optional[torch.Tensor],
    pre_reset: Optional[torch.Tensor],
    mem0: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    graded: torch.Tensor,
    num_steps: Optional[int],
    reset: int,
    reset_delay: bool,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
    need_mem0: bool,
    need_beta: bool,
    need_threshold: bool,
    need_graded: bool,
    grad_last: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """CUDA kernel of ``snnipu::lif_sequence_bwd``: gradients of x, mem0 and the parameters, empty if not needed.

    Without ``mem`` the forward kernel writes the membranes once more, for as long as this call takes: the recurrence
    runs backward from the last step, and registers do not hold a sequence.
    """
    steps, step_shape, like = saved_layout(x, mem, num_steps)
    elements = step_shape.numel()
    constant_input = num_steps is not None
    parameters = (beta.contiguous(), threshold.contiguous(), graded.contiguous())
    needed = (need_beta, need_threshold, need_graded)
    grad_x = like.new_empty(step_shape if constant_input else (steps, *step_shape))
    grad_mem0 = beta.new_empty(step_shape if need_mem0 else 0)
    if not (elements and steps):
        empty = beta.new_empty(0)
        gradients = [torch.zeros_like(p) if need else empty for p, need in zip(parameters, needed)]
        grad_mem0 = grad_mem0.zero_() if grad_last is None or not need_mem0 else grad_last.clone()
        return (grad_x.zero_(), grad_mem0, gradients[0], gradients[1], gradients[2])
    mem0 = None if mem0 is None else mem0.contiguous()
    if mem is None:
        assert x is not None
        mem = like.new_empty(steps, elements)
        pre_reset = None if reset_delay else like.new_empty(steps, elements)
        outputs = (None, mem, pre_reset, None)
        _forward(x.contiguous(), mem0, parameters, outputs, steps, elements, constant_input, reset, reset_delay)
    mem = mem.contiguous()
    pre_reset = None if pre_reset is None or reset_delay else pre_reset.contiguous()
    grad_spk, grad_spk_constant = _upstream(grad_spk)
    grad_mem, grad_mem_constant = _upstream(grad_mem)
    grad_last = None if grad_last is None else grad_last.contiguous()
    device = backend.check_launch(like, grad_spk, grad_mem, grad_last, mem, pre_reset, mem0, *parameters)
    programs, options = _geometry(elements, like)
    counts = [parameter.numel() for parameter in parameters]
    per_element = max(counts) > 1
    sums = [beta.new_empty(elements if per_element else programs) if need else None for need in needed]
    with backend.on_device(device):
        lif_sequence_bwd_kernel[(programs,)](
            mem if grad_spk is None else grad_spk,
            mem if grad_mem is None else grad_mem,
            beta if grad_last is None else grad_last,
            mem,
            mem if pre_reset is None else pre_reset,
            parameters[0] if mem0 is None else mem0,
            *parameters,
            grad_x,
            grad_mem0 if need_mem0 else beta,
            *(parameters[0] if total is None else total for total in sums),
            steps,
            elements // options["UNIT"],
            *counts,
            *_constants(surrogate, surrogate_a, surrogate_b),
            RESET=reset,
            IMMEDIATE=not reset_delay,
            SURROGATE=surrogate,
            PER_ELEMENT=per_element,
            HAS_MEM0=mem0 is not None,
            CONSTANT_INPUT=constant_input,
            HAS_PRE_RESET=pre_reset is not None,
            HAS_GRAD_SPK=grad_spk is not None,
            HAS_GRAD_MEM=grad_mem is not None,
            HAS_GRAD_LAST=grad_last is not None,
            SPK_ROWS=int(not grad_spk_constant),
            MEM_ROWS=int(not grad_mem_constant),
            NEED_MEM0=need_mem0,
            NEED_BETA=need_beta,
            NEED_THRESHOLD=need_threshold,
            NEED_GRADED=need_graded,
            **options,
            **backend.fused(),
        )
    gradients = [_reduced(total, parameter) for total, parameter in zip(sums, parameters)]
    return (grad_x, grad_mem0, gradients[0], gradients[1], gradients[2])
