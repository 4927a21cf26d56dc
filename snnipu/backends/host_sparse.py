"""The host backend of the event-driven operators: float32 and float64, by csrc/host/sparse.h."""

import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from snnipu._pointers import pointer_to_read
from snnipu.backends import host, memory
from snnipu.backends.sparse_call import run
from snnipu.ops import _fixed
from snnipu.ops._maps import Geometry, PoolGeometry
from snnipu.ops._slots import AS_NEEDED
from snnipu.ops._sparse_currents import CurrentsBackward, CurrentsForward, CurrentsGradients
from snnipu.ops._sparse_layers import LayerBackward, LayerForward, LayerGradients, LayerResults, pool_of, words
from snnipu.ops.connections import Connection, Convolution2d, Delayed
from snnipu.ops.select_spikes import SelectBackward
from snnipu.ops.sparse_pool2d import PoolBackward

# A place with its lane, and the number of one in a window, as the kernels hold them.
_MOST_PLACES = 2**26 - 1
_MOST_IN_WINDOW = 256

Slots = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class _Packed(NamedTuple):
    weight: "weakref.ref[torch.Tensor]"
    identity: _fixed.Identity
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
    fixed = _fixed.current_fixed_weights()
    if fixed is not None:
        return fixed.get_or_make(weight, _pack, _fingerprint)
    if weight.is_inference():
        return _pack(weight)
    key, identity = id(weight), _fixed.identity(weight)
    known = _cache.get(key)
    same = known is not None and known.weight() is weight and known.identity == identity
    if same and known is not None and trusted:
        return known.packed
    fingerprint = _fingerprint(weight) if same else None
    if same and known is not None and known.fingerprint == fingerprint:
        return known.packed
    packed = _pack(weight)
    reference = weakref.ref(weight, lambda _: _cache.pop(key, None))
    _cache[key] = _Packed(reference, identity, fingerprint, packed)
    return packed


def _pack(weight: torch.Tensor) -> torch.Tensor:
    assert host.library is not None
    neurons, inputs = weight.shape
    packed = weight.new_empty(host.library.snnipu_packed_size(neurons, inputs))
    fields = {"weight": weight.detach(), "neurons": neurons, "inputs": inputs, "out": packed}
    run("pack_weight", weight.dtype, fields)
    return packed


def _fingerprint(weight: torch.Tensor) -> int:
    assert host.library is not None
    kept: List[torch.Tensor] = []
    address = pointer_to_read("weight", weight.detach(), weight.dtype, weight.shape, kept)
    size = weight.numel() * weight.element_size()
    return int(host.library.snnipu_fingerprint(address, size, torch.get_num_threads()))


def _room(like: torch.Tensor, steps: int, batch: int, slots: int) -> Dict[str, torch.Tensor]:
    """For spikes."""
    shape = (steps, batch, slots)
    counts = like.new_empty((steps, batch, 2), dtype=torch.int32)
    values = memory.varying(like, shape)
    ids = memory.varying(counts, shape)
    return {"ids_out": ids, "values_out": values, "counts_out": counts, "dropped": torch.empty_like(counts)}


def _slots_of(made: Dict[str, torch.Tensor]) -> Slots:
    return made["ids_out"], made["values_out"], made["counts_out"], made["dropped"]


def dense_to_sparse_fwd(x: torch.Tensor, capacity: int, rotate: bool) -> Slots:
    """CPU kernel of ``snnipu::dense_to_sparse_fwd``."""
    steps, batch, neurons = x.shape
    host._check_sizes(steps * batch, neurons)
    made: Dict[str, torch.Tensor] = {}

    def room(slots: int) -> Dict[str, torch.Tensor]:
        made.update(_room(x, steps, batch, slots))
        return made

    if steps * batch:
        sizes = {"steps": steps, "batch": batch, "neurons": neurons}
        run("dense_to_sparse_fwd", x.dtype, {**sizes, "x": x, "output_slots": capacity, "rotate": rotate}, room)
    else:
        room(max(capacity, 0))
    return _slots_of(made)


def select_spikes_fwd(
    mem: torch.Tensor, threshold: torch.Tensor, grad_threshold: Optional[float], capacity: int, rotate: bool
) -> Slots:
    """CPU kernel of ``snnipu::select_spikes_fwd``."""
    steps, batch, neurons = mem.shape
    host._check_sizes(steps * batch, neurons)
    fired = mem.new_empty((steps, batch, words(neurons)), dtype=torch.int32)
    given = {"steps": steps, "batch": batch, "neurons": neurons, "fired": fired, "carried": torch.empty_like(fired)}
    most = 0
    if steps * batch:
        size = host.one_or_each("threshold", threshold, neurons)
        levels = {"threshold": threshold, "threshold_size": size, "second_threshold": grad_threshold}
        is_second = {"has_second_threshold": grad_threshold is not None}
        most = run("above", mem.dtype, {**given, **levels, **is_second, "x": mem})
    slots = most if capacity == AS_NEEDED else capacity
    made = _room(mem, steps, batch, slots)
    if steps * batch:
        run("select_spikes_fwd", mem.dtype, {**given, **made, "output_slots": slots, "rotate": rotate})
    return _slots_of(made)


def select_spikes_bwd(*arguments: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::select_spikes_bwd``."""
    a = SelectBackward(*arguments)
    steps, batch, slots = a.ids.shape
    slot_mem = sparse_to_dense_bwd(a.mem, a.ids, a.counts)
    through = memory.varying(slot_mem, slot_mem.shape)
    if steps * batch:
        fields = {
            "steps": steps,
            "batch": batch,
            "output_slots": slots,
            "grad": a.grad,
            "slot_mem": slot_mem,
            "threshold": a.threshold,
            "threshold_size": host.one_or_each("threshold", a.threshold, a.mem.shape[2]),
            "ids_out": a.ids,
            "counts_out": a.counts,
            "surrogate": a.surrogate,
            "surrogate_a": a.surrogate_a,
            "surrogate_b": a.surrogate_b,
            "grad_values": through,
        }
        run("select_spikes_bwd", a.mem.dtype, fields)
    return sparse_to_dense_fwd(a.ids, through, a.counts, a.mem.shape[2]), through


def sparse_to_dense_fwd(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int
) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_to_dense_fwd``."""
    return _to_dense(ids, values, counts, memory.varying(values, (*ids.shape[:2], num_neurons)))


def sparse_to_dense_bwd(grad: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_to_dense_bwd``."""
    return _from_dense(grad, ids, counts, memory.varying(grad, ids.shape))


def spike_count_fwd(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """CPU kernel of ``snnipu::spike_count_fwd``."""
    made = values.new_empty if ids.shape[0] else values.new_zeros
    return _to_dense(ids, values, counts, made((ids.shape[1], num_neurons)))


spike_count_bwd = sparse_to_dense_bwd


def _run_dense(
    name: str, ids: torch.Tensor, counts: torch.Tensor, dense: torch.Tensor, **tensors: torch.Tensor
) -> None:
    """Run a kernel between slots and ``dense``, ``[T, B, N]`` or, of all steps, ``[B, N]``."""
    steps, batch, slots = ids.shape
    if not steps * batch:
        return
    if dense.shape[:-1] not in ((steps, batch), (batch,)):
        raise ValueError(f"grad must have shape [{steps}, {batch}, N] or [{batch}, N], got {tuple(dense.shape)}")
    cells = steps * batch if dense.dim() == 3 else batch
    sizes = {"steps": steps, "batch": batch, "slots": slots, "cells": cells, "neurons": dense.shape[-1]}
    run(name, dense.dtype, {**sizes, "ids": ids, "counts": counts, **tensors})


def _to_dense(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Return ``dense``, whatever it held, with the sums of the carried values."""
    _run_dense("sparse_to_dense_fwd", ids, counts, dense, values=values, out=dense.flatten(0, -2))
    return dense


def _from_dense(dense: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` with the elements of ``dense`` at the carried slots; 0 in padding."""
    _run_dense("sparse_to_dense_bwd", ids, counts, dense, values_out=values, x=dense.flatten(0, -2))
    return values


# ---- weighted spikes and layers


def _weight(a: Any, trusted: bool = False) -> torch.Tensor:
    """As the kernels read it."""
    weight: torch.Tensor = a.weight
    return packed_weight(weight, trusted) if a.geometry is None else weight


def _given(a: Any, connected: Connection) -> Dict[str, Any]:
    """What every call has of its input."""
    steps, batch, slots = a.ids.shape
    inputs, neurons = connected.inputs, connected.neurons
    host._check_sizes(steps * batch, max(neurons, inputs))
    return {
        "steps": steps,
        "batch": batch,
        "slots": slots,
        "inputs": inputs,
        "neurons": neurons,
        "geometry": a.geometry,
        "ids": a.ids,
        "values": a.values,
        "counts": a.counts,
    }


def _carries_densely(a: Any, connected: Connection) -> bool:
    """Whether the values' gradient is needed, and so many neurons carry it that a dense product is the faster way."""
    if not a.need_values:
        return False
    (steps, batch, slots), most = a.ids.shape, connected.break_even.gradient * connected.inputs
    return slots > most and int(a.counts[..., 1].sum()) > most * steps * batch


def _dense_adjoint(a: Any, connected: Connection, grad: torch.Tensor, delay: int, scale: float) -> torch.Tensor:
    """The values' gradient from that of the currents, which arrive ``delay`` steps later."""
    grad_values, arriving = memory.varying(a.weight, a.ids.shape), a.ids.shape[0] - delay
    dense, _ = connected.adjoint(grad[delay:], None)
    assert dense is not None
    _from_dense(dense, a.ids[:arriving], a.counts[:arriving], grad_values[:arriving])
    grad_values[arriving:].zero_()
    return grad_values if scale == 1 else grad_values.mul_(scale)


def _outputs(a: Any, connected: Connection, by_product: bool) -> Dict[str, Any]:
    """Room for the gradients that are needed of what every backward pass has."""
    contiguous = torch.contiguous_format
    return {
        "grad_values": memory.varying(a.weight, a.ids.shape) if a.need_values and not by_product else None,
        "grad_weight": torch.empty_like(a.weight, memory_format=contiguous) if a.need_weight else None,
        "grad_bias": a.weight.new_empty(connected.parameters) if a.need_bias else None,
    }


def _zero(outputs: Dict[str, Any]) -> None:
    """Where there was nothing for a kernel to fill them with."""
    for output in outputs.values():
        if output is not None:
            output.zero_()


def _name(a: Any) -> str:
    return "sparse_linear" if a.geometry is None else "sparse_conv2d"


def currents_fwd(a: CurrentsForward) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_linear_fwd`` and ``snnipu::sparse_conv2d_fwd``."""
    connected = a.connection
    given = _given(a, connected)
    make = memory.varying if a.geometry is None else memory.empty
    out = make(a.weight, (given["steps"], given["batch"], given["neurons"]))
    if given["steps"] * given["batch"]:
        given["weight"], given["bias"], given["out"] = _weight(a), a.bias, out
        run(f"{_name(a)}_fwd", a.weight.dtype, given)
    return out


def currents_bwd(a: CurrentsBackward) -> CurrentsGradients:
    """CPU kernel of ``snnipu::sparse_linear_bwd`` and ``snnipu::sparse_conv2d_bwd``."""
    connected = a.connection
    given, by_product = _given(a, connected), _carries_densely(a, connected)
    made = _outputs(a, connected, by_product)
    if given["steps"] * given["batch"]:
        given["grad"], given["weight"] = a.grad, None if made["grad_values"] is None else _weight(a, trusted=True)
        given.update(made)
        run(f"{_name(a)}_bwd", a.weight.dtype, given)
    else:
        _zero(made)
    if by_product:
        made["grad_values"] = _dense_adjoint(a, connected, a.grad, 0, 1.0)
    return CurrentsGradients(**made)


def _delays(connected: Delayed) -> Dict[str, Any]:
    """What a call of ``delay_linear`` has of its connection."""
    taps, lags = connected.weight.shape[2], connected.lags
    if lags.dtype != torch.int32 or lags.shape != connected.weight.shape[:2]:
        raise ValueError(f"lags must be int32 {list(connected.weight.shape[:2])}, got {lags.dtype} {list(lags.shape)}")
    if lags.numel():
        least, most = (int(end) for end in lags.aminmax())
        if least < 0 or most + taps > connected.span:
            raise ValueError(f"lags must be from 0 to {connected.span - taps}, got {least} to {most}")
    return {"lags": lags, "weight": connected.weight}


def delay_fwd(a: CurrentsForward) -> torch.Tensor:
    """CPU kernel of ``snnipu::delay_linear_fwd``."""
    connected = a.connection
    assert isinstance(connected, Delayed)
    given = {**_given(a, connected), **_delays(connected)}
    out = memory.varying(a.weight, (given["steps"], given["batch"], given["neurons"]))
    if out.numel():
        run("delay_linear_fwd", a.weight.dtype, {**given, "bias": a.bias, "out": out})
    return out


def delay_bwd(a: CurrentsBackward) -> CurrentsGradients:
    """CPU kernel of ``snnipu::delay_linear_bwd``."""
    connected = a.connection
    assert isinstance(connected, Delayed)
    given, grad_values, grad_weight = {**_given(a, connected), **_delays(connected)}, None, None
    if a.need_weight:
        grad_weight = torch.empty_like(a.weight, memory_format=torch.contiguous_format)
        if a.grad.numel():
            run("delay_linear_bwd", a.weight.dtype, {**given, "grad": a.grad, "grad_weight": grad_weight})
        else:
            grad_weight.zero_()
    if a.need_values:
        dense = delay_input_bwd(a.grad, a.weight, connected.lags, connected.span)
        grad_values = sparse_to_dense_bwd(dense, a.ids, a.counts)
    return CurrentsGradients(grad_values, grad_weight, connected.per_parameter(a.grad) if a.need_bias else None)


def delay_input_bwd(grad: torch.Tensor, weight: torch.Tensor, lags: torch.Tensor, span: int) -> torch.Tensor:
    """CPU kernel of ``snnipu::delay_linear_input_bwd``."""
    connected = Delayed(weight, lags, span)
    steps, batch = grad.shape[:2]
    grad_x = memory.varying(grad, (steps, batch, connected.inputs))
    sizes = {"steps": steps, "batch": batch, "inputs": connected.inputs, "neurons": connected.neurons}
    if grad_x.numel():
        fields = {**sizes, "geometry": connected.geometry, **_delays(connected)}
        run("delay_linear_input_bwd", grad.dtype, {**fields, "grad": grad, "grad_x": grad_x})
    return grad_x


def _neurons(a: Any, connected: Connection) -> Dict[str, Any]:
    """What every call of a layer has."""
    given, recurrent = _given(a, connected), a.recurrent_weight
    if a.delay < 0:
        raise ValueError(f"delay must be 0 or more, got {a.delay}")
    if recurrent is not None:
        if recurrent.shape != (connected.neurons, connected.neurons):
            expected = (connected.neurons, connected.neurons)
            raise ValueError(f"recurrent_weight must have shape {expected}, got {tuple(recurrent.shape)}")
        given["recurrent_weight"] = packed_weight(recurrent, trusted=isinstance(a, LayerBackward))
    given["beta"], given["beta_size"] = a.beta, host.one_or_each("beta", a.beta, connected.parameters)
    given["threshold"] = a.threshold
    given["threshold_size"] = host.one_or_each("threshold", a.threshold, connected.parameters)
    given["input_scale"], given["reset"], given["delay"] = a.input_scale, a.reset, min(a.delay, given["steps"])
    return given


def layer_fwd(a: LayerForward) -> LayerResults:
    """CPU kernel of ``snnipu::sparse_lif_sequence_fwd`` and ``snnipu::sparse_conv_lif_sequence_fwd``, and of the latter
    with a pool, ``snnipu::sparse_conv_lif_pool_fwd``."""
    connected, window = a.connection, a.window
    if isinstance(connected, Convolution2d) and connected.sizes.positions > _MOST_PLACES:
        raise ValueError(f"maps must have at most {_MOST_PLACES} places, got {connected.sizes.positions}")
    if window is not None and not (min(window) > 0 and window[0] * window[1] <= _MOST_IN_WINDOW):
        raise ValueError(f"window must be two sizes of at least 1 and at most {_MOST_IN_WINDOW} places, got {window}")
    if window is not None and a.capacity != AS_NEEDED:
        raise ValueError(f"capacity must be {AS_NEEDED}, as many slots as needed, with a pool, got {a.capacity}")
    if window is not None:
        pool_of(Geometry(*a.geometry), window)  # raises where there is none
    given = _neurons(a, connected)
    steps, batch = given["steps"], given["batch"]
    mem = memory.varying(a.weight, (steps, batch, *connected.stored_shape)) if a.store_mem else a.weight.new_empty(0)
    fired = a.ids.new_empty((steps, batch, words(given["neurons"])))
    made: Dict[str, Any] = {"source": None, "neuron_counts": None}

    def room(slots: int) -> Dict[str, Any]:
        made.update(_room(a.weight, steps, batch, slots))
        made["slot_mem"] = memory.varying(a.weight, (steps, batch, slots))
        if window is not None:
            made["source"] = memory.varying(a.ids, (steps, batch, slots))
            made["neuron_counts"] = torch.empty_like(made["counts_out"])
        return made

    if steps * batch:
        given.update(
            weight=_weight(a),
            bias=a.bias,
            window=window,
            second_threshold=a.grad_threshold,
            has_second_threshold=a.grad_threshold is not None,
            output_slots=a.capacity,
            rotate=a.rotate,
            fired=fired,
            mem=mem if a.store_mem else None,
        )
        name = "sparse_lif_sequence_fwd" if a.geometry is None else "sparse_conv_lif_sequence_fwd"
        run(name, a.weight.dtype, given, room)
    else:
        room(0 if a.capacity == AS_NEEDED else a.capacity)
    memory.used(made["ids_out"], made["values_out"], mem)
    return LayerResults(**made, fired=fired, mem=mem)


def layer_bwd(a: LayerBackward) -> LayerGradients:
    """CPU kernel of ``snnipu::sparse_lif_sequence_bwd`` and ``snnipu::sparse_conv_lif_sequence_bwd``."""
    connected = a.connection
    given, by_product = _neurons(a, connected), _carries_densely(a, connected)
    steps, batch, neurons = given["steps"], given["batch"], given["neurons"]
    made = _outputs(a, connected, by_product)
    made["grad_recurrent"] = a.weight.new_empty((neurons, neurons)) if a.need_recurrent else None
    made["grad_beta"] = torch.empty_like(a.beta) if a.need_beta else None
    made["grad_threshold"] = torch.empty_like(a.threshold) if a.need_threshold else None
    current = memory.varying(a.weight, (steps, batch, *connected.stored_shape)) if by_product else None
    if steps * batch:
        given.update(
            weight=None if made["grad_values"] is None else _weight(a, trusted=True),
            neuron_threshold=connected.per_neuron(a.threshold),
            output_slots=a.ids_out.shape[2],
            grad=a.grad,
            ids_out=a.ids_out,
            counts_out=a.counts_out,
            slot_mem=a.slot_mem,
            fired=a.fired,
            mem=a.stored if a.need_beta else None,
            surrogate=a.surrogate,
            surrogate_a=a.surrogate_a,
            surrogate_b=a.surrogate_b,
            grad_current=current,
        )
        given.update(made)
        name = "sparse_lif_sequence_bwd" if a.geometry is None else "sparse_conv_lif_sequence_bwd"
        run(name, a.weight.dtype, given)
    else:
        _zero(made)
    if current is not None:
        kept = connected.from_stored(current)
        made["grad_values"] = _dense_adjoint(a, connected, kept, given["delay"], a.input_scale)
    return LayerGradients(**made)


# ---- pools from ids to ids


def sparse_pool2d_fwd(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, geometry: List[int], mode: int, capacity: int
) -> Slots:
    """CPU kernel of ``snnipu::sparse_pool2d_fwd``."""
    sizes = PoolGeometry(*geometry)
    steps, batch, slots = ids.shape
    host._check_sizes(steps * batch, sizes.neurons)
    # An input is in so many windows at most.
    windows = -(-sizes.kernel_height // sizes.stride_y) * -(-sizes.kernel_width // sizes.stride_x)
    fullest = max(0, int(counts[..., 1].max())) if counts.numel() else 0
    slots_out = min(sizes.neurons, min(fullest, slots) * windows) if capacity == AS_NEEDED else capacity
    made = _room(values, steps, batch, slots_out)
    source = memory.varying(ids, (steps, batch, slots_out) if mode == 0 else (0,))
    most = 0
    if steps * batch:
        fields = {
            "steps": steps,
            "batch": batch,
            "slots": slots,
            "inputs": sizes.inputs,
            "output_slots": slots_out,
            "geometry": geometry,
            "mode": mode,
            "ids": ids,
            "values": values,
            "counts": counts,
            "source": source if mode == 0 else None,
        }
        most = run("sparse_pool2d_fwd", values.dtype, {**fields, **made})
    ids_out, values_out, counts_out, _ = _slots_of(made)
    if capacity == AS_NEEDED and most < slots_out:
        ids_out, values_out = ids_out[..., :most].contiguous(), values_out[..., :most].contiguous()
        source = source[..., :most].contiguous() if mode == 0 else source
    return ids_out, values_out, counts_out, source


def sparse_pool2d_bwd(*arguments: Any) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_pool2d_bwd``."""
    a = PoolBackward(*arguments)
    steps, batch, slots = a.ids.shape
    grad_values = memory.varying(a.grad, a.ids.shape)
    if steps * batch:
        sizes = {"steps": steps, "batch": batch, "slots": slots, "inputs": PoolGeometry(*a.geometry).inputs}
        fields = {**a._asdict(), **sizes, "output_slots": a.ids_out.shape[2], "grad_values": grad_values}
        fields["source"] = a.source if a.mode == 0 else None
        run("sparse_pool2d_bwd", a.grad.dtype, fields)
    return grad_values
