"""CPU kernels of the event-driven operators, float32 and float64 (C interface: csrc/host/sparse.h)."""

from typing import Any, Dict, List, Optional, Tuple

import torch

from snnipu._pointers import pointer_to_read
from snnipu.backends import host, memory
from snnipu.backends.sparse_call import run
from snnipu.ops import _fixed
from snnipu.ops._maps import Geometry, PoolGeometry
from snnipu.ops._slots import AS_NEEDED, Slots
from snnipu.ops._sparse_currents import CurrentsBackward, CurrentsForward, CurrentsGradients
from snnipu.ops._sparse_layers import LayerBackward, LayerForward, LayerGradients, LayerResults, pool_of, words
from snnipu.ops.connections import Connection, Convolution2d, Delayed
from snnipu.ops.eventprop import EventPropBackward, EventPropGradients
from snnipu.ops.select_spikes import SelectBackward
from snnipu.ops.sparse_pool2d import PoolBackward

# Limits of the kernels: places of a map, whose number is stored with a lane; places of a window.
_MOST_PLACES = 2**26 - 1
_MOST_IN_WINDOW = 256


_cache = _fixed.WeightCache()


def packed_weight(weight: torch.Tensor, trusted: bool = False) -> torch.Tensor:
    """Return the weight in blocks of neurons, as the kernels read it. It is packed again when it has changed.

    Writing to ``weight.data`` does not change its version counter. So a fingerprint of the values is compared, from the
    second call with the same version on. Training changes the version before each call and computes no fingerprint.

    Args:
        weight: ``[out, in]``.
        trusted: the caller knows that the weight has not changed since the last call.
    """
    fixed = _fixed.current_fixed_weights()
    if fixed is not None:
        return fixed.get_or_make(weight, _pack, _fingerprint)
    if weight.is_inference():
        return _pack(weight)
    identity = _fixed.identity(weight)
    cached = _cache.find(weight, identity)
    if cached is not None and trusted:
        return cached.packed
    fingerprint = None if cached is None else _fingerprint(weight)
    if cached is not None and cached.fingerprint == fingerprint:
        return cached.packed
    return _cache.keep(weight, identity, _pack(weight), fingerprint)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    assert host.library is not None
    neurons, inputs = weight.shape
    packed = weight.new_empty(host.library.snnipu_packed_size(neurons, inputs))
    fields = {"weight": weight.detach(), "neurons": neurons, "inputs": inputs, "out": packed}
    run("pack_weight", weight.dtype, fields)
    return packed


def _fingerprint(weight: torch.Tensor) -> int:
    assert host.library is not None
    copies: List[torch.Tensor] = []
    address = pointer_to_read("weight", weight.detach(), weight.dtype, weight.shape, copies)
    size = weight.numel() * weight.element_size()
    return int(host.library.snnipu_fingerprint(address, size, torch.get_num_threads()))


def _new_slots(like: torch.Tensor, steps: int, batch: int, slots: int) -> Dict[str, torch.Tensor]:
    """Allocate the output fields of spikes with ``slots`` slots a step."""
    shape = (steps, batch, slots)
    counts = like.new_empty((steps, batch, 2), dtype=torch.int32)
    values = memory.empty_varying(like, shape)
    ids = memory.empty_varying(counts, shape)
    return {"ids_out": ids, "values_out": values, "counts_out": counts, "dropped": torch.empty_like(counts)}


def _slots_of(outputs: Dict[str, torch.Tensor]) -> Slots:
    return outputs["ids_out"], outputs["values_out"], outputs["counts_out"], outputs["dropped"]


def dense_to_sparse_fwd(x: torch.Tensor, capacity: int, rotate: bool) -> Slots:
    """CPU kernel of ``snnipu::dense_to_sparse_fwd``."""
    steps, batch, neurons = x.shape
    host._check_sizes(steps * batch, neurons)
    outputs: Dict[str, torch.Tensor] = {}

    def room(slots: int) -> Dict[str, torch.Tensor]:
        outputs.update(_new_slots(x, steps, batch, slots))
        return outputs

    if steps * batch:
        sizes = {"steps": steps, "batch": batch, "neurons": neurons}
        run("dense_to_sparse_fwd", x.dtype, {**sizes, "x": x, "output_slots": capacity, "rotate": rotate}, room)
    else:
        room(max(capacity, 0))
    return _slots_of(outputs)


def select_spikes_fwd(
    mem: torch.Tensor, threshold: torch.Tensor, grad_threshold: Optional[float], capacity: int, rotate: bool
) -> Slots:
    """CPU kernel of ``snnipu::select_spikes_fwd``."""
    steps, batch, neurons = mem.shape
    host._check_sizes(steps * batch, neurons)
    fired = mem.new_empty((steps, batch, words(neurons)), dtype=torch.int32)
    fields = {"steps": steps, "batch": batch, "neurons": neurons, "fired": fired, "carried": torch.empty_like(fired)}
    most = 0
    if steps * batch:
        size = host.check_parameter_size("threshold", threshold, neurons)
        levels = {"threshold": threshold, "threshold_size": size, "second_threshold": grad_threshold}
        is_second = {"has_second_threshold": grad_threshold is not None}
        most = run("above", mem.dtype, {**fields, **levels, **is_second, "x": mem})
    slots = most if capacity == AS_NEEDED else capacity
    outputs = _new_slots(mem, steps, batch, slots)
    if steps * batch:
        run("select_spikes_fwd", mem.dtype, {**fields, **outputs, "output_slots": slots, "rotate": rotate})
    return _slots_of(outputs)


def select_spikes_bwd(*arguments: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """CPU kernel of ``snnipu::select_spikes_bwd``."""
    a = SelectBackward(*arguments)
    steps, batch, slots = a.ids.shape
    slot_mem = sparse_to_dense_bwd(a.mem, a.ids, a.counts)
    through = memory.empty_varying(slot_mem, slot_mem.shape)
    if steps * batch:
        fields = {
            "steps": steps,
            "batch": batch,
            "output_slots": slots,
            "grad": a.grad,
            "slot_mem": slot_mem,
            "threshold": a.threshold,
            "threshold_size": host.check_parameter_size("threshold", a.threshold, a.mem.shape[2]),
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
    return _to_dense(ids, values, counts, memory.empty_varying(values, (*ids.shape[:2], num_neurons)))


def sparse_to_dense_bwd(grad: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_to_dense_bwd``."""
    return _from_dense(grad, ids, counts, memory.empty_varying(grad, ids.shape))


def spike_count_fwd(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, num_neurons: int) -> torch.Tensor:
    """CPU kernel of ``snnipu::spike_count_fwd``."""
    make = values.new_empty if ids.shape[0] else values.new_zeros
    return _to_dense(ids, values, counts, make((ids.shape[1], num_neurons)))


spike_count_bwd = sparse_to_dense_bwd


def _run_dense(
    name: str, ids: torch.Tensor, counts: torch.Tensor, dense: torch.Tensor, **tensors: torch.Tensor
) -> None:
    """Run a kernel between slots and ``dense``, which is ``[T, B, N]``, or ``[B, N]`` for sums over all steps."""
    steps, batch, slots = ids.shape
    if not steps * batch:
        return
    if dense.shape[:-1] not in ((steps, batch), (batch,)):
        raise ValueError(f"grad must have shape [{steps}, {batch}, N] or [{batch}, N], got {tuple(dense.shape)}")
    cells = steps * batch if dense.dim() == 3 else batch
    sizes = {"steps": steps, "batch": batch, "slots": slots, "cells": cells, "neurons": dense.shape[-1]}
    run(name, dense.dtype, {**sizes, "ids": ids, "counts": counts, **tensors})


def _to_dense(ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Overwrite ``dense`` with the sums of the values in used slots, and return it."""
    _run_dense("sparse_to_dense_fwd", ids, counts, dense, values=values, out=dense.flatten(0, -2))
    return dense


def _from_dense(dense: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Write the elements of ``dense`` at used slots to ``values``, 0 to other slots, and return ``values``."""
    _run_dense("sparse_to_dense_bwd", ids, counts, dense, values_out=values, x=dense.flatten(0, -2))
    return values


# ---- weighted spikes and layers


def _weight(a: Any, trusted: bool = False) -> torch.Tensor:
    """Return the weight as the kernels read it: packed for a linear connection."""
    weight: torch.Tensor = a.weight
    return packed_weight(weight, trusted) if a.geometry is None else weight


def _input_fields(a: Any, connected: Connection) -> Dict[str, Any]:
    """Return the fields of a call that describe its input."""
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


def _prefers_dense_adjoint(a: Any, connected: Connection) -> bool:
    """Return True if the gradient of the values is needed, and for so many slots that a dense product is faster."""
    if not a.need_values:
        return False
    (steps, batch, slots), most = a.ids.shape, connected.break_even.gradient * connected.inputs
    return slots > most and int(a.counts[..., 1].sum()) > most * steps * batch


def _dense_adjoint(a: Any, connected: Connection, grad: torch.Tensor, delay: int, scale: float) -> torch.Tensor:
    """Return the gradient of the values by a dense product with the gradient of the currents, ``delay`` steps later."""
    grad_values, arriving = memory.empty_varying(a.weight, a.ids.shape), a.ids.shape[0] - delay
    dense, _ = connected.adjoint(grad[delay:], None)
    assert dense is not None
    _from_dense(dense, a.ids[:arriving], a.counts[:arriving], grad_values[:arriving])
    grad_values[arriving:].zero_()
    return grad_values if scale == 1 else grad_values.mul_(scale)


def _outputs(a: Any, connected: Connection, by_product: bool) -> Dict[str, Any]:
    """Allocate the gradients of values, weight and bias that are needed. ``by_product``: leave out the values'."""
    contiguous = torch.contiguous_format
    return {
        "grad_values": memory.empty_varying(a.weight, a.ids.shape) if a.need_values and not by_product else None,
        "grad_weight": torch.empty_like(a.weight, memory_format=contiguous) if a.need_weight else None,
        "grad_bias": a.weight.new_empty(connected.parameters) if a.need_bias else None,
    }


def _zero(outputs: Dict[str, Any]) -> None:
    """Set gradients to zero, if the input has no steps and the kernel is not called."""
    for output in outputs.values():
        if output is not None:
            output.zero_()


def _name(a: Any) -> str:
    if a.lags is not None:
        return "delay_linear"
    return "sparse_linear" if a.geometry is None else "sparse_conv2d"


def currents_fwd(a: CurrentsForward) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_linear_fwd`` and ``snnipu::sparse_conv2d_fwd``."""
    connected = a.connection
    fields = _input_fields(a, connected)
    if isinstance(connected, Delayed):
        fields["lags"] = _lags(connected)
    make = memory.empty if isinstance(connected, Convolution2d) else memory.empty_varying
    out = make(a.weight, (fields["steps"], fields["batch"], fields["neurons"]))
    if fields["steps"] * fields["batch"]:
        fields["weight"], fields["bias"], fields["out"] = _weight(a), a.bias, out
        run(f"{_name(a)}_fwd", a.weight.dtype, fields)
    return out


def currents_bwd(a: CurrentsBackward) -> CurrentsGradients:
    """CPU kernel of ``snnipu::sparse_linear_bwd`` and ``snnipu::sparse_conv2d_bwd``."""
    connected = a.connection
    fields, by_product = _input_fields(a, connected), _prefers_dense_adjoint(a, connected)
    gradients = _outputs(a, connected, by_product)
    if fields["steps"] * fields["batch"]:
        fields.update(gradients, grad=a.grad)
        fields["weight"] = None if gradients["grad_values"] is None else _weight(a, trusted=True)
        run(f"{_name(a)}_bwd", a.weight.dtype, fields)
    else:
        _zero(gradients)
    if by_product:
        gradients["grad_values"] = _dense_adjoint(a, connected, a.grad, 0, 1.0)
    return CurrentsGradients(**gradients)


def _lags(connected: Delayed) -> torch.Tensor:
    """Return the checked lags of a connection."""
    taps, lags = connected.weight.shape[2], connected.lags
    if lags.dtype != torch.int32 or lags.shape != connected.weight.shape[:2]:
        raise ValueError(f"lags must be int32 {list(connected.weight.shape[:2])}, got {lags.dtype} {list(lags.shape)}")
    if lags.numel():
        least, most = (int(end) for end in lags.aminmax())
        if least < 0 or most + taps > connected.span:
            raise ValueError(f"lags must be from 0 to {connected.span - taps}, got {least} to {most}")
    return lags


def delay_bwd(a: CurrentsBackward) -> CurrentsGradients:
    """CPU kernel of ``snnipu::delay_linear_bwd``."""
    connected = a.connection
    assert isinstance(connected, Delayed)
    fields, grad_values, grad_weight = _input_fields(a, connected), None, None
    fields["lags"], fields["weight"] = _lags(connected), a.weight
    if a.need_weight:
        grad_weight = torch.empty_like(a.weight, memory_format=torch.contiguous_format)
        if a.grad.numel():
            run("delay_linear_bwd", a.weight.dtype, {**fields, "grad": a.grad, "grad_weight": grad_weight})
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
    grad_x = memory.empty_varying(grad, (steps, batch, connected.inputs))
    sizes = {"steps": steps, "batch": batch, "inputs": connected.inputs, "neurons": connected.neurons}
    if grad_x.numel():
        fields = {**sizes, "geometry": connected.geometry, "lags": _lags(connected), "weight": weight}
        run("delay_linear_input_bwd", grad.dtype, {**fields, "grad": grad, "grad_x": grad_x})
    return grad_x


def _layer_fields(a: Any, connected: Connection) -> Dict[str, Any]:
    """Return the fields of a layer's call that its forward and its backward function share."""
    fields, recurrent = _input_fields(a, connected), a.recurrent_weight
    if a.delay < 0:
        raise ValueError(f"delay must be 0 or more, got {a.delay}")
    if recurrent is not None:
        if recurrent.shape != (connected.neurons, connected.neurons):
            expected = (connected.neurons, connected.neurons)
            raise ValueError(f"recurrent_weight must have shape {expected}, got {tuple(recurrent.shape)}")
        fields["recurrent_weight"] = packed_weight(recurrent, trusted=isinstance(a, LayerBackward))
    fields["beta"], fields["beta_size"] = a.beta, host.check_parameter_size("beta", a.beta, connected.parameters)
    fields["threshold"] = a.threshold
    fields["threshold_size"] = host.check_parameter_size("threshold", a.threshold, connected.parameters)
    fields["input_scale"], fields["reset"], fields["delay"] = a.input_scale, a.reset, min(a.delay, fields["steps"])
    return fields


def layer_fwd(a: LayerForward) -> LayerResults:
    """CPU kernel of ``snnipu::sparse_lif_sequence_fwd`` and ``snnipu::sparse_conv_lif_sequence_fwd``.

    It is also that of ``snnipu::sparse_conv_lif_pool_fwd``, a convolution with a pool after the neurons.
    """
    connected, window = a.connection, a.window
    if isinstance(connected, Convolution2d) and connected.sizes.positions > _MOST_PLACES:
        raise ValueError(f"maps must have at most {_MOST_PLACES} places, got {connected.sizes.positions}")
    if window is not None and not (min(window) > 0 and window[0] * window[1] <= _MOST_IN_WINDOW):
        raise ValueError(f"window must be two sizes of at least 1 and at most {_MOST_IN_WINDOW} places, got {window}")
    if window is not None and a.capacity != AS_NEEDED:
        raise ValueError(f"capacity must be {AS_NEEDED}, as many slots as needed, with a pool, got {a.capacity}")
    if window is not None:
        pool_of(Geometry(*a.geometry), window)  # raises ValueError if the window does not fit
    fields = _layer_fields(a, connected)
    steps, batch = fields["steps"], fields["batch"]
    mem = (
        memory.empty_varying(a.weight, (steps, batch, *connected.stored_shape))
        if a.store_mem
        else a.weight.new_empty(0)
    )
    fired = a.ids.new_empty((steps, batch, words(fields["neurons"])))
    outputs: Dict[str, Any] = {"source": None, "neuron_counts": None}

    def room(slots: int) -> Dict[str, Any]:
        outputs.update(_new_slots(a.weight, steps, batch, slots))
        outputs["slot_mem"] = memory.empty_varying(a.weight, (steps, batch, slots))
        if window is not None:
            outputs["source"] = memory.empty_varying(a.ids, (steps, batch, slots))
            outputs["neuron_counts"] = torch.empty_like(outputs["counts_out"])
        return outputs

    if steps * batch:
        fields.update(
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
        run(name, a.weight.dtype, fields, room)
    else:
        room(0 if a.capacity == AS_NEEDED else a.capacity)
    memory.note_results(outputs["ids_out"], outputs["values_out"], mem)
    return LayerResults(**outputs, fired=fired, mem=mem)


def layer_bwd(a: LayerBackward) -> LayerGradients:
    """CPU kernel of ``snnipu::sparse_lif_sequence_bwd`` and ``snnipu::sparse_conv_lif_sequence_bwd``."""
    connected = a.connection
    fields, by_product = _layer_fields(a, connected), _prefers_dense_adjoint(a, connected)
    steps, batch, neurons = fields["steps"], fields["batch"], fields["neurons"]
    gradients = _outputs(a, connected, by_product)
    gradients["grad_recurrent"] = a.weight.new_empty((neurons, neurons)) if a.need_recurrent else None
    gradients["grad_beta"] = torch.empty_like(a.beta) if a.need_beta else None
    gradients["grad_threshold"] = torch.empty_like(a.threshold) if a.need_threshold else None
    current = memory.empty_varying(a.weight, (steps, batch, *connected.stored_shape)) if by_product else None
    if steps * batch:
        fields.update(
            weight=None if gradients["grad_values"] is None else _weight(a, trusted=True),
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
        fields.update(gradients)
        name = "sparse_lif_sequence_bwd" if a.geometry is None else "sparse_conv_lif_sequence_bwd"
        run(name, a.weight.dtype, fields)
    else:
        _zero(gradients)
    if current is not None:
        dense = connected.from_stored(current)
        gradients["grad_values"] = _dense_adjoint(a, connected, dense, fields["delay"], a.input_scale)
    return LayerGradients(**gradients)


def eventprop_bwd(a: EventPropBackward) -> EventPropGradients:
    """CPU kernel of ``snnipu::eventprop_bwd``."""
    steps, batch, slots = a.ids.shape
    host._check_sizes(steps * batch, a.neurons)
    grad_current = memory.empty_varying(a.early, (steps, batch, a.neurons))
    change = memory.empty_varying(a.early, grad_current.shape) if a.need_change else None
    each = {"alpha": a.alpha, "beta": a.beta, "threshold": -a.beta.log() * a.threshold}
    if steps * batch:
        fields = {
            "steps": steps,
            "batch": batch,
            "neurons": a.neurons,
            "output_slots": slots,
            "ids_out": a.ids,
            "counts_out": a.counts,
            "grad": a.grad,
            "early": a.early,
            "late": a.late,
            "mem": a.grad_mem,
            "recurrent_weight": None if a.recurrent_weight is None else a.recurrent_weight.t(),
            "grad_current": grad_current,
            "out": change,
            **{name: value.expand(a.neurons) for name, value in each.items()},
        }
        run("eventprop_bwd", a.early.dtype, fields)
    return EventPropGradients(grad_current, a.early.new_empty(0) if change is None else change)


# ---- pools of spike ids


def sparse_pool2d_fwd(
    ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, geometry: List[int], mode: int, capacity: int
) -> Slots:
    """CPU kernel of ``snnipu::sparse_pool2d_fwd``."""
    sizes = PoolGeometry(*geometry)
    steps, batch, slots = ids.shape
    host._check_sizes(steps * batch, sizes.neurons)
    # The largest number of windows that contain one input.
    windows = -(-sizes.kernel_height // sizes.stride_y) * -(-sizes.kernel_width // sizes.stride_x)
    fullest = max(0, int(counts[..., 1].max())) if counts.numel() else 0
    slots_out = min(sizes.neurons, min(fullest, slots) * windows) if capacity == AS_NEEDED else capacity
    outputs = _new_slots(values, steps, batch, slots_out)
    source = memory.empty_varying(ids, (steps, batch, slots_out) if mode == 0 else (0,))
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
        most = run("sparse_pool2d_fwd", values.dtype, {**fields, **outputs})
    ids_out, values_out, counts_out, _ = _slots_of(outputs)
    if capacity == AS_NEEDED and most < slots_out:
        ids_out, values_out = ids_out[..., :most].contiguous(), values_out[..., :most].contiguous()
        source = source[..., :most].contiguous() if mode == 0 else source
    return ids_out, values_out, counts_out, source


def sparse_pool2d_bwd(*arguments: Any) -> torch.Tensor:
    """CPU kernel of ``snnipu::sparse_pool2d_bwd``."""
    a = PoolBackward(*arguments)
    steps, batch, slots = a.ids.shape
    grad_values = memory.empty_varying(a.grad, a.ids.shape)
    if steps * batch:
        sizes = {"steps": steps, "batch": batch, "slots": slots, "inputs": PoolGeometry(*a.geometry).inputs}
        fields = {**a._asdict(), **sizes, "output_slots": a.ids_out.shape[2], "grad_values": grad_values}
        fields["source"] = a.source if a.mode == 0 else None
        run("sparse_pool2d_bwd", a.grad.dtype, fields)
    return grad_values
