"""Triton kernels of a layer of leaky integrate-and-fire neurons, from spikes to spikes.

A forward pass has three launches: the currents of all steps, the membranes over time with the state in registers, and
the slots of all rows. In a recurrent layer the last two are launched for each step, which needs the spikes of the step
before.
"""

from typing import Dict, Tuple

import torch
import triton
import triton.language as tl

from snnipu.backends import triton as backend
from snnipu.backends.triton.sequence import _constants as surrogate_constants
from snnipu.backends.triton.sequence import _through_spike as through_spike
from snnipu.backends.triton.sparse_linear import add_weights, dot_block, packed_weight, slot_dots
from snnipu.backends.triton.sparse_maths import (
    block_of,
    clamp_unit,
    membrane_adjoint,
    next_membrane,
    number,
    per_neuron,
    scalar,
    where_all,
)
from snnipu.backends.triton.sparse_select import Selection, carried_in_row, through_spikes
from snnipu.ops._slots import AS_NEEDED
from snnipu.ops._sparse_layers import WORD_BITS, LayerBackward, LayerForward, words
from snnipu.ops.select_spikes import SelectBackward

# Neurons of a program: one for each thread of four warps, so that a warp writes a word of bits.
_NEURON_BLOCK = 128
# Steps in the body of a loop. Copying a prefetched row to another variable waits for its load; with an unrolled body
# only the last rows are copied.
_UNROLL = 4
_CONSTANTS = ["p_high", "p_low", "q_high", "q_low"]


@triton.jit
def _neurons(block, BLOCK_WORDS: tl.constexpr):
    """Return the ids ``[BLOCK_WORDS, 32]`` of a block of neurons."""
    word = block * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    return word[:, None] * 32 + tl.arange(0, 32)[None, :]


@triton.jit
def _packed_bits(flags):
    return tl.sum(flags.to(tl.int32) << tl.arange(0, 32)[None, :], 1)


@triton.jit
def _row(pointer, t, steps, stride, offsets, mask):
    """Return row t of a sequence; zeros outside of it."""
    return tl.load(pointer + t * stride + offsets, mask=where_all(mask, (t < steps) & (t >= 0)), other=0)


@triton.jit(do_not_specialize=["steps", "batch"])
def membranes_kernel(
    mem_ptr,
    fired_ptr,
    beta_ptr,
    threshold_ptr,
    steps,
    batch,
    neurons,
    num_words,
    RESET: tl.constexpr,
    BETAS: tl.constexpr,
    THRESHOLDS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Overwrite the currents of one sample and a block of neurons by their membranes.

    A bit for every neuron and step is set in ``fired`` if the membrane is above the threshold.
    """
    blocks = tl.cdiv(num_words, BLOCK_WORDS)
    program = tl.program_id(0)
    sample = (program // blocks).to(tl.int64)
    cols = _neurons(program % blocks, BLOCK_WORDS)
    mask = cols < neurons
    word = program % blocks * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    decay = clamp_unit(per_neuron(beta_ptr, cols, mask, BETAS))
    threshold = per_neuron(threshold_ptr, cols, mask, THRESHOLDS)
    offsets = sample * neurons + cols
    stride = batch.to(tl.int64) * neurons
    word_offsets = sample * num_words + word
    word_stride = batch.to(tl.int64) * num_words
    state = tl.zeros([BLOCK_WORDS, 32], dtype=mem_ptr.dtype.element_ty)
    # Rows are loaded eight steps before they are needed.
    x0 = _row(mem_ptr, 0, steps, stride, offsets, mask)
    x1 = _row(mem_ptr, 1, steps, stride, offsets, mask)
    x2 = _row(mem_ptr, 2, steps, stride, offsets, mask)
    x3 = _row(mem_ptr, 3, steps, stride, offsets, mask)
    x4 = _row(mem_ptr, 4, steps, stride, offsets, mask)
    x5 = _row(mem_ptr, 5, steps, stride, offsets, mask)
    x6 = _row(mem_ptr, 6, steps, stride, offsets, mask)
    x7 = _row(mem_ptr, 7, steps, stride, offsets, mask)
    for first in range(0, steps, UNROLL):
        for i in tl.static_range(UNROLL):
            t = first + i
            prefetched = _row(mem_ptr, t + 8, steps, stride, offsets, mask)
            state = next_membrane(state, x0, decay, threshold, mem_ptr, RESET)
            x0 = x1
            x1 = x2
            x2 = x3
            x3 = x4
            x4 = x5
            x5 = x6
            x6 = x7
            x7 = prefetched
            tl.store(mem_ptr + t * stride + offsets, state, mask=where_all(mask, t < steps))
            bits = _packed_bits((state - threshold > 0.0) & mask)
            tl.store(fired_ptr + t * word_stride + word_offsets, bits, mask=where_all(word < num_words, t < steps))


@triton.jit(do_not_specialize=["t", "batch", "slots", "scale"])
def recurrent_step_kernel(
    mem_ptr,
    fired_ptr,
    ids_ptr,
    counts_ptr,
    weight_ptr,
    beta_ptr,
    threshold_ptr,
    scale,
    t,
    batch,
    slots,
    neurons,
    num_words,
    stride,
    RESET: tl.constexpr,
    BETAS: tl.constexpr,
    THRESHOLDS: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Run one step of :func:`membranes_kernel`, adding the recurrent weights of the spikes of the step before."""
    blocks = tl.cdiv(num_words, BLOCK_WORDS)
    program = tl.program_id(0)
    sample = program // blocks
    cols = _neurons(program % blocks, BLOCK_WORDS)
    mask = cols < neurons
    word = program % blocks * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    decay = clamp_unit(per_neuron(beta_ptr, cols, mask, BETAS))
    threshold = per_neuron(threshold_ptr, cols, mask, THRESHOLDS)
    row = sample.to(tl.int64) + t * batch
    before = row - batch
    state = tl.load(mem_ptr + before * neurons + cols, mask=where_all(mask, before >= 0), other=0.0)
    count = tl.minimum(tl.load(counts_ptr + 2 * before, mask=before >= 0, other=0), slots)
    recurrent = tl.zeros([BLOCK_WORDS, 32], dtype=mem_ptr.dtype.element_ty)
    # The values of these spikes are 1 and are not read.
    ids_ptr += before * slots
    recurrent = add_weights(recurrent, ids_ptr, ids_ptr, count, weight_ptr, stride, neurons, cols, mask, False, UNROLL)
    x = tl.load(mem_ptr + row * neurons + cols, mask=mask, other=0.0) + recurrent * scalar(scale, DOUBLE)
    state = next_membrane(state, x, decay, threshold, mem_ptr, RESET)
    tl.store(mem_ptr + row * neurons + cols, state, mask=mask)
    bits = _packed_bits((state - threshold > 0.0) & mask)
    tl.store(fired_ptr + row * num_words + word, bits, mask=word < num_words)


@triton.jit(do_not_specialize=["begin", "end", "batch"])
def adjoint_kernel(
    grad_ptr,
    fired_ptr,
    mem_ptr,
    beta_ptr,
    threshold_ptr,
    carry_ptr,
    sum_grad_ptr,
    sum_beta_ptr,
    sum_threshold_ptr,
    begin,
    end,
    batch,
    neurons,
    num_words,
    RESET: tl.constexpr,
    BETAS: tl.constexpr,
    THRESHOLDS: tl.constexpr,
    NEED_BETA: tl.constexpr,
    RESUME: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Overwrite gradients that have passed the spike functions by those of the membranes, for steps end - 1 to begin.

    A program has one sample and a block of neurons. It also adds up the gradients of the parameters over time. RESUME:
    load the carry and the sums, and continue from them.
    """
    blocks = tl.cdiv(neurons, BLOCK)
    program = tl.program_id(0)
    sample = (program // blocks).to(tl.int64)
    cols = program % blocks * BLOCK + tl.arange(0, BLOCK)
    mask = cols < neurons
    decay = clamp_unit(per_neuron(beta_ptr, cols, mask, BETAS))
    threshold = per_neuron(threshold_ptr, cols, mask, THRESHOLDS)
    offsets = sample * neurons + cols
    # A word has the bits of 32 neurons.
    word_offsets = sample * num_words + cols // 32
    bit = cols % 32
    stride = batch.to(tl.int64) * neurons
    word_stride = batch.to(tl.int64) * num_words
    carry = tl.zeros([BLOCK], dtype=grad_ptr.dtype.element_ty)
    sum_grad = carry
    sum_beta = carry
    sum_threshold = carry
    # Before the first step the membrane is 0, which is above a negative threshold.
    above_first = carry - threshold > 0.0
    # If membranes are not stored, any value on the same side of the threshold gives the same gradients.
    reach = tl.abs(threshold) + 1.0
    if RESUME:
        carry = tl.load(carry_ptr + offsets, mask=mask, other=0.0)
        sum_grad = tl.load(sum_grad_ptr + offsets, mask=mask, other=0.0)
        sum_threshold = tl.load(sum_threshold_ptr + offsets, mask=mask, other=0.0)
        if NEED_BETA:
            sum_beta = tl.load(sum_beta_ptr + offsets, mask=mask, other=0.0)
    last = end - 1
    g0 = _row(grad_ptr, last, end, stride, offsets, mask)
    g1 = _row(grad_ptr, last - 1, end, stride, offsets, mask)
    g2 = _row(grad_ptr, last - 2, end, stride, offsets, mask)
    g3 = _row(grad_ptr, last - 3, end, stride, offsets, mask)
    w0 = _row(fired_ptr, last - 1, end, word_stride, word_offsets, mask)
    w1 = _row(fired_ptr, last - 2, end, word_stride, word_offsets, mask)
    w2 = _row(fired_ptr, last - 3, end, word_stride, word_offsets, mask)
    w3 = _row(fired_ptr, last - 4, end, word_stride, word_offsets, mask)
    if NEED_BETA:
        m0 = _row(mem_ptr, last - 1, end, stride, offsets, mask)
        m1 = _row(mem_ptr, last - 2, end, stride, offsets, mask)
        m2 = _row(mem_ptr, last - 3, end, stride, offsets, mask)
        m3 = _row(mem_ptr, last - 4, end, stride, offsets, mask)
    for first in range(0, end - begin, UNROLL):
        for i in tl.static_range(UNROLL):
            t = last - first - i
            live = t >= begin
            g_prefetched = _row(grad_ptr, t - 4, end, stride, offsets, mask)
            w_prefetched = _row(fired_ptr, t - 5, end, word_stride, word_offsets, mask)
            if NEED_BETA:
                before = m0  # 0 before the first step
            else:
                above = where_all((w0 >> bit) & 1 != 0, t > 0) | where_all(above_first, t == 0)
                before = threshold + tl.where(above, reach, -reach)
            gradients = membrane_adjoint(g0, carry, before, decay, threshold, grad_ptr, RESET)
            grad, carry_before, of_beta, of_threshold = gradients
            carry = tl.where(live, carry_before, carry)
            sum_grad += tl.where(live, grad, 0.0)
            sum_threshold += tl.where(live, of_threshold, 0.0)
            if NEED_BETA:
                m_prefetched = _row(mem_ptr, t - 5, end, stride, offsets, mask)
                sum_beta += tl.where(live, of_beta, 0.0)
                m0 = m1
                m1 = m2
                m2 = m3
                m3 = m_prefetched
            g0 = g1
            g1 = g2
            g2 = g3
            g3 = g_prefetched
            w0 = w1
            w1 = w2
            w2 = w3
            w3 = w_prefetched
            tl.store(grad_ptr + t * stride + offsets, grad, mask=where_all(mask, live))
    if RESUME:
        tl.store(carry_ptr + offsets, carry, mask=mask)
    tl.store(sum_grad_ptr + offsets, sum_grad, mask=mask)
    tl.store(sum_threshold_ptr + offsets, sum_threshold, mask=mask)
    if NEED_BETA:
        tl.store(sum_beta_ptr + offsets, sum_beta, mask=mask)


@triton.jit(do_not_specialize=["scale", *_CONSTANTS, "t", "steps", "batch", "slots"])
def recurrent_through_kernel(
    grad_ptr,
    slot_mem_ptr,
    threshold_ptr,
    ids_ptr,
    counts_ptr,
    weight_ptr,
    dense_ptr,
    scale,
    p_high,
    p_low,
    q_high,
    q_low,
    t,
    steps,
    batch,
    slots,
    neurons,
    stride,
    KIND: tl.constexpr,
    THRESHOLDS: tl.constexpr,
    DOUBLE: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradient that has passed the spike function, for some slots of a sample at step t.

    It is written to a dense row of zeros. The gradient of the spikes includes that of the recurrent weights at step
    t + 1.
    """
    row = tl.program_id(0).to(tl.int64) + t * batch
    at = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    inside = at < carried_in_row(counts_ptr, row, slots)
    ids = tl.load(ids_ptr + row * slots + at, mask=inside, other=0)
    inside = inside & (ids >= 0) & (ids < neurons)
    grad = tl.load(grad_ptr + row * slots + at, mask=inside, other=0.0)
    if t + 1 < steps:
        later = dense_ptr + (row + batch) * neurons
        grad += slot_dots(ids, inside, later, weight_ptr, neurons, stride, SLOTS, BLOCK) * scalar(scale, DOUBLE)
    u = tl.load(slot_mem_ptr + row * slots + at, mask=inside, other=0.0)
    u = u - per_neuron(threshold_ptr, ids, inside, THRESHOLDS)
    zeros = tl.zeros([SLOTS], dtype=dense_ptr.dtype.element_ty)
    p = (zeros + p_high) + p_low
    q = (zeros + q_high) + q_low
    tl.store(dense_ptr + row * neurons + ids, through_spike(u, grad, p, q, KIND), mask=inside)


def _blocks(neurons: int) -> Tuple[int, Dict[str, int]]:
    """Return the number of programs for one row, and their launch options."""
    block = block_of(neurons, WORD_BITS, _NEURON_BLOCK)
    return triton.cdiv(neurons, block), {"BLOCK": block, "num_warps": block // WORD_BITS}


def select_slots(
    mem: torch.Tensor, beta: torch.Tensor, threshold: torch.Tensor, a: LayerForward
) -> Tuple[Selection, torch.Tensor]:
    """Run a layer: overwrite its currents by membranes, and select its slots.

    Args:
        mem: the currents, ``[T, B, N]``.
        beta: one element, or one for each neuron.
        threshold: one element, or one for each neuron.
        a: the record of the operator.

    Returns:
        The slots, and the words of bits of the neurons that fired.
    """
    device = backend.check_launch(mem, beta, threshold, a.recurrent_weight)
    beta, threshold = beta.contiguous(), threshold.contiguous()
    steps, batch, neurons = mem.shape
    blocks, sizes = _blocks(neurons)
    fired = torch.empty((steps, batch, words(neurons)), dtype=torch.int32, device=mem.device)
    in_words = {"BLOCK_WORDS": sizes["BLOCK"] // WORD_BITS, "num_warps": sizes["num_warps"], **backend.exact()}
    per_neuron_parameters = {"BETAS": beta.numel() > 1, "THRESHOLDS": threshold.numel() > 1}
    if a.recurrent_weight is None:
        if mem.numel():
            with backend.on_device(device):
                membranes_kernel[(batch * blocks,)](
                    mem,
                    fired,
                    beta,
                    threshold,
                    steps,
                    batch,
                    neurons,
                    fired.shape[2],
                    RESET=a.reset,
                    UNROLL=_UNROLL,
                    **per_neuron_parameters,
                    **in_words,
                )
        selection = Selection(mem, threshold, a.grad_threshold, a.capacity, a.rotate, slot_x=True)
        selection.run(0, selection.rows)
        return selection, fired
    # The number of slots that the busiest row needs is known after the last step only.
    slots = neurons if a.capacity == AS_NEEDED else a.capacity
    selection = Selection(mem, threshold, a.grad_threshold, slots, a.rotate, slot_x=True)
    packed = packed_weight(a.recurrent_weight)
    for t in range(steps if batch else 0):
        with backend.on_device(device):
            recurrent_step_kernel[(batch * blocks,)](
                mem,
                fired,
                selection.ids,
                selection.counts,
                packed,
                beta,
                threshold,
                number(a.input_scale, mem.dtype),
                t,
                batch,
                slots,
                neurons,
                fired.shape[2],
                packed.shape[1],
                RESET=a.reset,
                DOUBLE=mem.dtype == torch.float64,
                UNROLL=4,
                **per_neuron_parameters,
                **in_words,
            )
        selection.run(t * batch, batch)
    if a.capacity == AS_NEEDED:
        selection.trim()
    return selection, fired


def membrane_gradient(
    a: LayerBackward, mem: torch.Tensor, beta: torch.Tensor, threshold: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradient of the membranes, and sums over time for the gradients of the parameters.

    Args:
        a: the record of the operator.
        mem: the membranes, ``[T, B, N]``; read only if the gradient of beta is needed.
        beta: one element, or one for each neuron.
        threshold: one element, or one for each neuron.

    Returns:
        The gradient of the membranes ``[T, B, N]``, its sum over time ``[B, N]``, and likewise the sums for beta (not
        set unless needed) and for the threshold.
    """
    neurons, surrogate = a.connection.neurons, (a.surrogate, a.surrogate_a, a.surrogate_b)
    device = backend.check_launch(a.grad, beta, threshold, a.ids_out, a.counts_out, a.slot_mem, a.fired)
    grad, slot_mem, fired, mem = a.grad.contiguous(), a.slot_mem.contiguous(), a.fired.contiguous(), mem.contiguous()
    ids_out, counts_out = a.ids_out.contiguous(), a.counts_out.contiguous()
    beta, threshold = beta.contiguous(), threshold.contiguous()
    steps, batch, slots = ids_out.shape
    # In a recurrent layer the kernel adds to them in each step.
    make = grad.new_empty if a.recurrent_weight is None and steps else grad.new_zeros
    carry, sum_grad, sum_beta, sum_threshold = (make((batch, neurons)) for _ in range(4))
    blocks, sizes = _blocks(neurons)

    def adjoint(dense: torch.Tensor, begin: int, end: int, resume: bool) -> None:
        with backend.on_device(device):
            adjoint_kernel[(batch * blocks,)](
                dense,
                fired,
                mem,
                beta,
                threshold,
                carry,
                sum_grad,
                sum_beta,
                sum_threshold,
                begin,
                end,
                batch,
                neurons,
                fired.shape[2],
                RESET=a.reset,
                BETAS=beta.numel() > 1,
                THRESHOLDS=threshold.numel() > 1,
                NEED_BETA=a.need_beta,
                RESUME=resume,
                UNROLL=1 if resume else _UNROLL,
                **sizes,
                **backend.exact(),
            )

    if a.recurrent_weight is None:
        record = SelectBackward(grad, slot_mem, threshold, ids_out, counts_out, *surrogate)
        dense, _ = through_spikes(record, neurons, at_slots=True)
        if dense.numel():
            adjoint(dense, 0, steps, resume=False)
    else:
        dense = grad.new_zeros((steps, batch, neurons))
        packed = packed_weight(a.recurrent_weight, trusted=True)
        options = dot_block(neurons)
        for t in range(steps - 1, -1, -1) if batch else ():
            if slots:
                with backend.on_device(device):
                    recurrent_through_kernel[(batch, triton.cdiv(slots, options["SLOTS"]))](
                        grad,
                        slot_mem,
                        threshold,
                        ids_out,
                        counts_out,
                        packed,
                        dense,
                        number(a.input_scale, grad.dtype),
                        *surrogate_constants(*surrogate[1:]),
                        t,
                        steps,
                        batch,
                        slots,
                        neurons,
                        packed.shape[1],
                        KIND=surrogate[0],
                        THRESHOLDS=threshold.numel() > 1,
                        DOUBLE=grad.dtype == torch.float64,
                        **options,
                        **backend.exact(),
                    )
            adjoint(dense, t, t + 1, resume=True)
    return dense, sum_grad, sum_beta, sum_threshold
