"""The host backend of the sparse operators: float32 and float64, through the C interface of csrc/host/snnipu.h."""

import weakref
from ctypes import byref, c_int64, c_void_p
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch

from snnipu.backends import host, memory
from snnipu.ops._slots import AS_NEEDED, stored_membranes
from snnipu.spikes import check_ids

# Share of the input's neurons that carry gradient, from which on the gradient of their values is a matrix product:
# where both cost the same, see docs/how-to/choose-caps-and-thresholds.md.
DENSE_GRADIENT = 0.25
WORD_BITS = 32

Slots = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _call(name: str, dtype: torch.dtype, *arguments: Any) -> int:
    return int(getattr(host.library, f"snnipu_{name}_{host._SUFFIX[dtype]}")(*arguments))


def _check(status: int, name: str, ids: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> None:
    if status == 3:
        check_ids(ids, counts, num_neurons)  # says where
    host._check(status, name)


class _Packed(NamedTuple):
    weight: "weakref.ref[torch.Tensor]"
    version: int
    pointer: int
    fingerprint: Optional[int]
    packed: torch.Tensor


# By id of the weight.
_cache: Dict[int, _Packed] = {}


def packed_weight(weight: torch.Tensor, trusted: bool = False) -> torch.Tensor:
    """The weight in blocks of neurons, as the kernels read it; packed anew when it has changed.

    A weight whose version counter stands still may still have changed, by way of ``.data``: a fingerprint of the values
    tells, from the second call with one version on, so that training, where every call has a version of its own, does
    not pay for it. ``trusted``: it has not changed since the last call.
    """
    if weight.is_inference():
        return _pack(weight)
    key = id(weight)
    known = _cache.get(key)
    same = (
        known is not None
        and known.weight() is weight
        and (known.version, known.pointer) == (weight._version, weight.data_ptr())
    )
    if same and known is not None and trusted:
        return known.packed
    fingerprint = _fingerprint(weight) if same else None
    if same and known is not None and known.fingerprint == fingerprint:
        return known.packed
    packed = _pack(weight)
    reference = weakref.ref(weight, lambda _: _cache.pop(key, None))
    _cache[key] = _Packed(reference, weight._version, weight.data_ptr(), fingerprint, packed)
    return packed


def _pack(weight: torch.Tensor) -> torch.Tensor:
    assert host.library is not None
    neurons, inputs = weight.shape
    packed = weight.new_empty(host.library.snnipu_packed_size(neurons, inputs))
    source = weight.detach().contiguous()
    status = _call(
        "pack_weight", weight.dtype, source.data_ptr(), neurons, inputs, packed.data_ptr(), torch.get_num_threads()
    )
    host._check(status, "pack_weight")
    return packed


def _fingerprint(weight: torch.Tensor) -> int:
    assert host.library is not None
    source = weight.detach().contiguous()
    size = source.numel() * source.element_size()
    return int(host.library.snnipu_fingerprint(source.data_ptr(), size, torch.get_num_threads()))


def _words(num_neurons: int) -> int:
    return (num_neurons + WORD_BITS - 1) // WORD_BITS


def _select(
    fired: torch.Tensor, carried: torch.Tensor, num_neurons: int, capacity: int, rotate: bool, dtype: torch.dtype
) -> Slots:
    """ids, values, counts and dropped from bits ``[T, B, words]``; ``capacity`` is a number of slots."""
    steps, batch, _ = fired.shape
    ids = memory.varying(fired, (steps, batch, capacity))
    values = memory.varying(torch.empty(0, dtype=dtype), (steps, batch, capacity))
    counts = fired.new_empty((steps, batch, 2))
    dropped = torch.empty_like(counts)
    if steps * batch:
        status = _call(
            "select_spikes_fwd",
            dtype,
            fired.data_ptr(),
            carried.data_ptr(),
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            dropped.data_ptr(),
            steps,
            batch,
            num_neurons,
            capacity,
            rotate,
            torch.get_num_threads(),
        )
        host._check(status, "select_spikes_fwd")
    return ids, values, counts, dropped


def _above(
    x: torch.Tensor, threshold: Optional[torch.Tensor], grad_threshold: Optional[float]
) -> Tuple[torch.Tensor, torch.Tensor, int]:
    """Bits of the neurons that fired and of those that are carried, and the most carried in a row."""
    steps, batch, neurons = x.shape
    fired = torch.empty((steps, batch, _words(neurons)), dtype=torch.int32)
    carried = torch.empty_like(fired)
    most = c_int64(0)
    threshold = None if threshold is None else threshold.contiguous()
    if steps * batch:
        status = _call(
            "above",
            x.dtype,
            x.data_ptr(),
            host._pointer(threshold),
            1 if threshold is None else threshold.numel(),
            0.0 if grad_threshold is None else grad_threshold,
            grad_threshold is not None,
            fired.data_ptr(),
            carried.data_ptr(),
            byref(most),
            steps * batch,
            neurons,
            torch.get_num_threads(),
        )
        host._check(status, "above")
    return fired, carried, most.value


def dense_to_sparse_fwd(x: torch.Tensor, capacity: int, rotate: bool) -> Slots:
    """CPU kernel of ``snnipu::dense_to_sparse_fwd``."""
    host._check_sizes(x.shape[0] * x.shape[1], x.shape[2])
    x = x.contiguous()
    fired, carried, most = _above(x, None, None)
    ids, _, counts, dropped = _select(
        fired, carried, x.shape[2], most if capacity == AS_NEEDED else capacity, rotate, x.dtype
    )
    return ids, sparse_to_dense_bwd(x, ids, counts), counts, dropped


def sparse_to_dense_fwd(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int
) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_to_dense_fwd``."""
    return _to_dense(ids, values, counts, memory.varying(values, (*ids.shape[:2], num_neurons)))


def sparse_to_dense_bwd(grad: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_to_dense_bwd``."""
    return _from_dense(grad, ids, counts)


def spike_count_fwd(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """CPU kernel of ``snnipu::spike_count_fwd``."""
    made = values.new_empty if ids.shape[0] else values.new_zeros
    return _to_dense(ids, values, counts, made((ids.shape[1], num_neurons)))


def spike_count_bwd(grad: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """CPU kernel of ``snnipu::spike_count_bwd``."""
    return _from_dense(grad, ids, counts)


def _to_dense(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """The carried values added up in ``dense``, ``[T, B, N]`` or, of all steps, ``[B, N]``, whatever that holds."""
    ids, values, counts = ids.contiguous(), values.contiguous(), counts.contiguous()
    steps, batch, slots = ids.shape
    num_neurons = dense.shape[-1]
    if steps * batch:
        status = _call(
            "sparse_to_dense_fwd",
            values.dtype,
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            dense.data_ptr(),
            steps * batch,
            steps * batch if dense.dim() == 3 else batch,
            slots,
            num_neurons,
            torch.get_num_threads(),
        )
        _check(status, "sparse_to_dense_fwd", ids, counts, num_neurons)
    return dense


def _from_dense(dense: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The elements of ``dense``, as of :func:`_to_dense`, at the carried slots; 0 in padding."""
    dense, ids, counts = dense.contiguous(), ids.contiguous(), counts.contiguous()
    steps, batch, slots = ids.shape
    num_neurons = dense.shape[-1]
    values = memory.varying(dense, ids.shape)
    if steps * batch:
        status = _call(
            "sparse_to_dense_bwd",
            dense.dtype,
            dense.data_ptr(),
            ids.data_ptr(),
            counts.data_ptr(),
            values.data_ptr(),
            steps * batch,
            steps * batch if dense.dim() == 3 else batch,
            slots,
            num_neurons,
            torch.get_num_threads(),
        )
        _check(status, "sparse_to_dense_bwd", ids, counts, num_neurons)
    return values


def select_spikes_fwd(
    mem: torch.Tensor, threshold: torch.Tensor, grad_threshold: Optional[float], capacity: int, rotate: bool
) -> Slots:
    """CPU kernel of ``snnipu::select_spikes_fwd``."""
    host._check_sizes(mem.shape[0] * mem.shape[1], mem.shape[2])
    fired, carried, most = _above(mem.contiguous(), threshold, grad_threshold)
    return _select(fired, carried, mem.shape[2], most if capacity == AS_NEEDED else capacity, rotate, mem.dtype)


def select_spikes_bwd(
    grad: torch.Tensor,
    mem: torch.Tensor,
    threshold: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::select_spikes_bwd``."""
    grad, threshold, ids, counts = grad.contiguous(), threshold.contiguous(), ids.contiguous(), counts.contiguous()
    slot_mem = sparse_to_dense_bwd(mem, ids, counts)
    through = memory.varying(slot_mem, slot_mem.shape)
    if ids.shape[0] * ids.shape[1]:
        status = _call(
            "select_spikes_bwd",
            mem.dtype,
            grad.data_ptr(),
            slot_mem.data_ptr(),
            threshold.data_ptr(),
            ids.data_ptr(),
            counts.data_ptr(),
            through.data_ptr(),
            ids.shape[0] * ids.shape[1],
            ids.shape[2],
            threshold.numel(),
            surrogate,
            surrogate_a,
            surrogate_b,
            torch.get_num_threads(),
        )
        host._check(status, "select_spikes_bwd")
    return sparse_to_dense_fwd(ids, through, counts, mem.shape[2]), through


def sparse_linear_fwd(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_linear_fwd``."""
    ids, values, counts = ids.contiguous(), values.contiguous(), counts.contiguous()
    bias = None if bias is None else bias.contiguous()
    steps, batch, slots = ids.shape
    neurons, inputs = weight.shape
    host._check_sizes(steps * batch, max(neurons, inputs))
    out = memory.varying(weight, (steps, batch, neurons))
    if steps * batch:
        status = _call(
            "sparse_linear_fwd",
            weight.dtype,
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            packed_weight(weight).data_ptr(),
            host._pointer(bias),
            out.data_ptr(),
            steps,
            batch,
            slots,
            inputs,
            neurons,
            torch.get_num_threads(),
        )
        _check(status, "sparse_linear_fwd", ids, counts, inputs)
    return out


def _carries_densely(counts: torch.Tensor, slots: int, num_neurons: int, share: float = DENSE_GRADIENT) -> bool:
    """Whether so many neurons carry gradient that a matrix product is the faster way to it."""
    rows = counts.shape[0] * counts.shape[1]
    return slots > share * num_neurons and int(counts[..., 1].sum()) > share * num_neurons * rows


def sparse_linear_bwd(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    need_values: bool,
    need_weight: bool,
    need_bias: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::sparse_linear_bwd``; empty where not needed."""
    grad, ids, values, counts = grad.contiguous(), ids.contiguous(), values.contiguous(), counts.contiguous()
    steps, batch, slots = ids.shape
    neurons, inputs = weight.shape
    by_product = need_values and _carries_densely(counts, slots, inputs)
    grad_values = memory.varying(weight, ids.shape) if need_values and not by_product else None
    grad_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if need_weight else None
    grad_bias = weight.new_empty(neurons) if need_bias else None
    if steps * batch:
        status = _call(
            "sparse_linear_bwd",
            weight.dtype,
            grad.data_ptr(),
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            None if grad_values is None else packed_weight(weight, trusted=True).data_ptr(),
            *host._pointers(grad_values, grad_weight, grad_bias),
            steps,
            batch,
            slots,
            inputs,
            neurons,
            torch.get_num_threads(),
        )
        _check(status, "sparse_linear_bwd", ids, counts, inputs)
    if by_product:
        grad_values = sparse_to_dense_bwd(grad @ weight, ids, counts)
    return _zeroed(weight, steps * batch == 0, grad_values, grad_weight, grad_bias)  # type: ignore[return-value]


def _zeroed(like: torch.Tensor, nothing_ran: bool, *outputs: Optional[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
    """Outputs with an empty tensor for None; zeros where no kernel has filled them."""
    if nothing_ran:
        for output in outputs:
            if output is not None:
                output.zero_()
    return tuple([like.new_empty(0) if output is None else output for output in outputs])


def sparse_lif_sequence_fwd(
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    recurrent_weight: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    grad_threshold: Optional[float],
    input_scale: float,
    capacity: int,
    rotate: bool,
    reset: int,
    delay: int,
    store_mem: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::sparse_lif_sequence_fwd``."""
    ids, values, counts = ids.contiguous(), values.contiguous(), counts.contiguous()
    beta, threshold = beta.contiguous(), threshold.contiguous()
    bias = None if bias is None else bias.contiguous()
    steps, batch, slots = ids.shape
    neurons, inputs = weight.shape
    host._check_sizes(steps * batch, max(neurons, inputs))
    fired = ids.new_empty((steps, batch, _words(neurons)))
    carried = torch.empty_like(fired)
    mem = memory.varying(weight, (steps, batch, neurons) if store_mem else (0,))
    kept, most = c_void_p(), c_int64(0)
    if steps * batch:
        recurrent = None if recurrent_weight is None else packed_weight(recurrent_weight)
        status = _call(
            "sparse_lif_sequence_fwd",
            weight.dtype,
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            packed_weight(weight).data_ptr(),
            host._pointer(recurrent),
            host._pointer(bias),
            beta.data_ptr(),
            threshold.data_ptr(),
            0.0 if grad_threshold is None else grad_threshold,
            input_scale,
            fired.data_ptr(),
            carried.data_ptr(),
            mem.data_ptr() if store_mem else None,
            byref(kept),
            byref(most) if capacity == AS_NEEDED else None,
            steps,
            batch,
            slots,
            inputs,
            neurons,
            beta.numel(),
            threshold.numel(),
            neurons if capacity == AS_NEEDED else capacity,
            min(delay, steps),
            grad_threshold is not None,
            rotate,
            reset,
            torch.get_num_threads(),
        )
        _check(status, "sparse_lif_sequence_fwd", ids, counts, inputs)
    slot_mem: Optional[torch.Tensor] = None
    ids_out = counts_out = None
    try:
        made = most.value if capacity == AS_NEEDED else capacity
        ids_out, values_out, counts_out, dropped = _select(fired, carried, neurons, made, rotate, weight.dtype)
        slot_mem = memory.varying(values_out, values_out.shape)
    finally:
        # Frees what was kept, whatever happened.
        if kept.value:
            done = slot_mem is not None and ids_out is not None and counts_out is not None
            pointers = host._pointers(*((ids_out, counts_out, carried, slot_mem) if done else (None,) * 4))
            size = slot_mem.shape[2] if slot_mem is not None else 0
            _call("slot_membranes", weight.dtype, kept, *pointers, size, torch.get_num_threads())
    memory.used(ids_out, values_out, mem)
    return ids_out, values_out, counts_out, dropped, slot_mem, fired, mem


def sparse_lif_sequence_bwd(
    grad: torch.Tensor,
    ids: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    recurrent_weight: Optional[torch.Tensor],
    beta: torch.Tensor,
    threshold: torch.Tensor,
    input_scale: float,
    reset: int,
    delay: int,
    ids_out: torch.Tensor,
    counts_out: torch.Tensor,
    slot_mem: torch.Tensor,
    fired: torch.Tensor,
    mem: torch.Tensor,
    surrogate: int,
    surrogate_a: float,
    surrogate_b: float,
    need_values: bool,
    need_weight: bool,
    need_bias: bool,
    need_recurrent: bool,
    need_beta: bool,
    need_threshold: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::sparse_lif_sequence_bwd``; empty where not needed."""
    ids, values, counts = ids.contiguous(), values.contiguous(), counts.contiguous()
    grad, slot_mem, fired, mem = grad.contiguous(), slot_mem.contiguous(), fired.contiguous(), mem.contiguous()
    ids_out, counts_out = ids_out.contiguous(), counts_out.contiguous()
    beta, threshold = beta.contiguous(), threshold.contiguous()
    steps, batch, slots = ids.shape
    neurons, inputs = weight.shape
    delay = min(delay, steps)
    by_product = need_values and _carries_densely(counts, slots, inputs)
    grad_values = memory.varying(weight, ids.shape) if need_values and not by_product else None
    grad_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if need_weight else None
    grad_bias = weight.new_empty(neurons) if need_bias else None
    grad_recurrent = weight.new_empty((neurons, neurons)) if need_recurrent else None
    grad_beta = torch.empty_like(beta) if need_beta else None
    grad_threshold = torch.empty_like(threshold) if need_threshold else None
    grad_current = memory.varying(weight, (steps, batch, neurons)) if by_product else None
    if steps * batch:
        recurrent = None if recurrent_weight is None else packed_weight(recurrent_weight, trusted=True)
        status = _call(
            "sparse_lif_sequence_bwd",
            weight.dtype,
            grad.data_ptr(),
            ids.data_ptr(),
            values.data_ptr(),
            counts.data_ptr(),
            None if grad_values is None else packed_weight(weight, trusted=True).data_ptr(),
            host._pointer(recurrent),
            beta.data_ptr(),
            threshold.data_ptr(),
            ids_out.data_ptr(),
            counts_out.data_ptr(),
            slot_mem.data_ptr(),
            fired.data_ptr(),
            host._pointer(stored_membranes(mem, need_beta, ids, neurons)),
            *host._pointers(
                grad_values, grad_weight, grad_bias, grad_recurrent, grad_beta, grad_threshold, grad_current
            ),
            input_scale,
            steps,
            batch,
            slots,
            inputs,
            neurons,
            ids_out.shape[2],
            beta.numel(),
            threshold.numel(),
            delay,
            reset,
            surrogate,
            surrogate_a,
            surrogate_b,
            torch.get_num_threads(),
        )
        _check(status, "sparse_lif_sequence_bwd", ids, counts, inputs)
    if grad_current is not None:
        early = torch.zeros((steps, batch, inputs), dtype=weight.dtype)
        torch.matmul(grad_current[delay:], weight, out=early[: steps - delay])
        grad_values = sparse_to_dense_bwd(early, ids, counts).mul_(input_scale)
    return _zeroed(  # type: ignore[return-value]
        weight, steps * batch == 0, grad_values, grad_weight, grad_bias, grad_recurrent, grad_beta, grad_threshold
    )
