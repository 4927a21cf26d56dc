"""Triton kernels of the linear layer with a delay for each synapse: currents, and their gradients.

A program adds all spikes that reach its neurons in one sample, one after the other. So no additions are atomic, and
their order is fixed. Ids, counts and lags are not checked, because the host would have to wait for the result. Indices
out of range are skipped.
"""

from typing import Optional

import torch
import triton
import triton.language as tl

from snnipu.backends import triton as backend
from snnipu.backends.triton.sparse_linear import slots_of_inputs
from snnipu.backends.triton.sparse_maths import block_of, where_all
from snnipu.backends.triton.sparse_select import sparse_to_dense_bwd
from snnipu.ops._sparse_currents import CurrentsBackward, CurrentsForward, CurrentsGradients
from snnipu.ops.delay_linear import OPERATORS

# Each lane is a neuron. Programs have one warp, so that there are as many of them as possible.
_LANES = 32
_STEPS = 16


@triton.jit(do_not_specialize=["steps", "batch", "slots", "inputs", "taps"])
def arriving_kernel(
    ids_ptr,
    values_ptr,
    counts_ptr,
    weight_ptr,
    lags_ptr,
    bias_ptr,
    out_ptr,
    steps,
    batch,
    slots,
    inputs,
    neurons,
    taps,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the currents of all steps, for one sample and a block of neurons."""
    program = tl.program_id(0)
    sample = (program % batch).to(tl.int64)
    cols = program // batch * BLOCK + tl.arange(0, BLOCK)
    mask = cols < neurons
    start = tl.zeros([BLOCK], dtype=out_ptr.dtype.element_ty)
    if BIAS:
        start = tl.load(bias_ptr + cols, mask=mask, other=0.0)
    for step in range(steps):
        tl.store(out_ptr + (step * batch + sample) * neurons + cols, start, mask=mask)
    for step in range(steps):
        row = step * batch + sample
        count = tl.minimum(tl.load(counts_ptr + 2 * row), slots)
        for slot in range(count):
            neuron = tl.load(ids_ptr + row * slots + slot).to(tl.int64)
            value = tl.load(values_ptr + row * slots + slot)
            live = where_all(mask, (neuron >= 0) & (neuron < inputs))
            at = neuron * neurons + cols
            first = step + tl.load(lags_ptr + at, mask=live, other=0)
            for tap in range(taps):
                inside = live & (first + tap >= 0) & (first + tap < steps)
                to = out_ptr + ((first + tap) * batch + sample) * neurons + cols
                weight = tl.load(weight_ptr + at * taps + tap, mask=inside, other=0.0)
                tl.store(to, tl.load(to, mask=inside, other=0.0) + weight * value, mask=inside)


@triton.jit(do_not_specialize=["steps", "batch", "slots", "inputs", "taps"])
def grad_taps_kernel(
    grad_ptr,
    values_ptr,
    order_ptr,
    begin_ptr,
    lags_ptr,
    out_ptr,
    steps,
    batch,
    slots,
    inputs,
    neurons,
    taps,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Compute the gradient of one tap of the synapses from one input to a block of neurons, over the input's spikes."""
    program = tl.program_id(0)
    neuron = (program % inputs).to(tl.int64)
    tap = program // inputs % taps
    cols = program // inputs // taps * BLOCK + tl.arange(0, BLOCK)
    mask = cols < neurons
    begin = tl.load(begin_ptr + neuron)
    end = tl.load(begin_ptr + neuron + 1)
    later = tl.load(lags_ptr + neuron * neurons + cols, mask=mask, other=0) + tap
    total = tl.zeros([BLOCK], dtype=out_ptr.dtype.element_ty)
    for start in range(begin, end, UNROLL):
        for i in tl.static_range(UNROLL):
            there = start + i < end
            slot = tl.load(order_ptr + start + i, mask=there, other=0)
            value = tl.load(values_ptr + slot, mask=there, other=0.0)
            row = slot // slots
            when = row // batch + later
            inside = where_all(mask & (when >= 0) & (when < steps), there)
            total += value * tl.load(grad_ptr + (when * batch + row % batch) * neurons + cols, mask=inside, other=0.0)
    tl.store(out_ptr + (neuron * neurons + cols) * taps + tap, total, mask=mask)


@triton.jit(do_not_specialize=["steps", "batch", "inputs", "taps"])
def grad_input_kernel(
    grad_ptr,
    weight_ptr,
    lags_ptr,
    out_ptr,
    steps,
    batch,
    inputs,
    neurons,
    taps,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradient of one input of one sample for some steps.

    The gradient of the currents is ``[B, out, T]``, so that steps are contiguous.
    """
    program = tl.program_id(0)
    neuron = (program % inputs).to(tl.int64)
    sample = (program // inputs % batch).to(tl.int64)
    step = program // inputs // batch * STEPS + tl.arange(0, STEPS)
    total = tl.zeros([BLOCK, STEPS], dtype=out_ptr.dtype.element_ty)
    for start in range(0, neurons, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < neurons
        at = neuron * neurons + cols
        first = tl.load(lags_ptr + at, mask=mask, other=0)
        for tap in range(taps):
            when = (first + tap)[:, None] + step[None, :]
            inside = mask[:, None] & (when >= 0) & (when < steps)
            weight = tl.load(weight_ptr + at * taps + tap, mask=mask, other=0.0)
            grad = tl.load(grad_ptr + (sample * neurons + cols)[:, None] * steps + when, mask=inside, other=0.0)
            total += weight[:, None] * grad
    to = out_ptr + (step * batch + sample) * inputs + neuron
    tl.store(to, tl.sum(total, 0), mask=step < steps)


def _forward(a: CurrentsForward) -> torch.Tensor:
    device = backend.check_launch(a.ids, a.values, a.counts, a.weight, a.bias, a.lags)
    assert a.lags is not None
    (steps, batch, slots), (inputs, neurons, taps) = a.ids.shape, a.weight.shape
    out = torch.empty((steps, batch, neurons), dtype=a.weight.dtype, device=a.weight.device)
    if out.numel():
        bias: Optional[torch.Tensor] = None if a.bias is None else a.bias.contiguous()
        weight = a.weight.contiguous()
        with backend.on_device(device):
            arriving_kernel[(batch * triton.cdiv(neurons, _LANES),)](
                *(tensor.contiguous() for tensor in (a.ids, a.values, a.counts)),
                weight,
                a.lags.contiguous(),
                weight if bias is None else bias,
                out,
                steps,
                batch,
                slots,
                inputs,
                neurons,
                taps,
                BIAS=bias is not None,
                BLOCK=_LANES,
                num_warps=1,
                num_stages=1,  # with more stages, a load could precede the store for the previous spike
                **backend.exact(),
            )
    return out


def _grad_taps(a: CurrentsBackward, lags: torch.Tensor) -> torch.Tensor:
    (steps, batch, slots), (inputs, neurons, taps) = a.ids.shape, a.weight.shape
    if not (a.ids.numel() and a.weight.numel()):
        return a.weight.new_zeros(a.weight.shape)
    device = backend.check_launch(a.grad, a.ids, a.values, a.counts, lags)
    order, begin = slots_of_inputs(a.ids.contiguous(), a.counts.contiguous(), inputs)
    out = torch.empty((inputs, neurons, taps), dtype=a.grad.dtype, device=a.grad.device)
    block = block_of(neurons, 32, 256)
    with backend.on_device(device):
        grad_taps_kernel[(inputs * taps * triton.cdiv(neurons, block),)](
            a.grad.contiguous(),
            a.values.contiguous(),
            order,
            begin,
            lags.contiguous(),
            out,
            steps,
            batch,
            slots,
            inputs,
            neurons,
            taps,
            BLOCK=block,
            UNROLL=4,
            num_warps=max(1, block // 128),
            **backend.exact(),
        )
    return out


def delay_linear_input_bwd(grad: torch.Tensor, weight: torch.Tensor, lags: torch.Tensor, span: int) -> torch.Tensor:
    """CUDA kernel of ``snnipu::delay_linear_input_bwd``."""
    device = backend.check_launch(grad, weight, lags)
    (steps, batch), (inputs, neurons, taps) = grad.shape[:2], weight.shape
    out = torch.empty((steps, batch, inputs), dtype=grad.dtype, device=grad.device)
    if out.numel():
        with backend.on_device(device):
            grad_input_kernel[(inputs * batch * triton.cdiv(steps, _STEPS),)](
                grad.permute(1, 2, 0).contiguous(),
                weight.contiguous(),
                lags.contiguous(),
                out,
                steps,
                batch,
                inputs,
                neurons,
                taps,
                STEPS=_STEPS,
                BLOCK=_LANES,
                num_warps=4,
                **backend.fused(),
            )
    return out


def _backward(a: CurrentsBackward) -> CurrentsGradients:
    assert a.lags is not None
    values = None
    if a.need_values:
        dense = delay_linear_input_bwd(a.grad, a.weight, a.lags, a.geometry[0])
        values = sparse_to_dense_bwd(dense, a.ids, a.counts)
    weight = _grad_taps(a, a.lags) if a.need_weight else None
    return CurrentsGradients(values, weight, a.connection.per_parameter(a.grad) if a.need_bias else None)


delay_linear_fwd, delay_linear_bwd = OPERATORS.forward.kernel(_forward), OPERATORS.backward.kernel(_backward)
