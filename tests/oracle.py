"""Independent definitions for the tests of the package: snnTorch's own loop, and comparisons."""

import itertools
from typing import NamedTuple

import pytest
import snntorch
import torch

from snnipu import SparseSpikes, surrogate
from snnipu.backends import host
from snnipu.ops import _library


def snntorch_loop(x, mem=None, num_steps=None, **keywords):
    """Run snnTorch's layer step by step; return the stacked spikes and membranes."""
    layer = snntorch.Leaky(**keywords)
    layer.to(x.device)
    steps = x.shape[0] if num_steps is None else num_steps
    layer.mem = torch.zeros_like(x[0] if num_steps is None else x) if mem is None else mem
    spks, mems = [], []
    for t in range(steps):
        spk, mem = layer(x[t] if num_steps is None else x)
        spks.append(spk)
        mems.append(mem)
    return torch.stack(spks), torch.stack(mems), layer


def relative_error(actual, expected, terms=None):
    """Return the largest absolute difference relative to the largest expected magnitude.

    The terms of a parameter's gradient may cancel, and a float32 sum has the rounding of its largest term. With
    ``terms``, their largest magnitude counts as well.
    """
    actual, expected = actual.double(), expected.double()
    scale = expected.abs().max()
    if terms is not None:
        scale = torch.maximum(scale, terms.double().abs().max())
    return ((actual - expected).abs().max() / scale.clamp_min(1e-30)).item()


def flat(out):
    """Return the tensors of nested tuples and lists."""
    return [out] if isinstance(out, torch.Tensor) else [tensor for part in out for tensor in flat(part)]


# ---- spike ids


class Slots(NamedTuple):
    """The slots of each row, as SparseSpikes stores them and as masks ``[T, B, N]``."""

    ids: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor
    dropped: torch.Tensor
    spiking: torch.Tensor
    taken: torch.Tensor


def row_slots(fired, carried, capacity, start):
    """Return ids of spikes, ids of gradient-only slots and dropped counts of one row of lists of bools."""
    neurons = len(fired)
    order = [(start + i) % neurons for i in range(neurons)]
    spikes = [n for n in order if fired[n]]
    others = [n for n in order if carried[n] and not fired[n]]
    with_slot = spikes[:capacity]
    also = others[: capacity - len(with_slot)]
    dropped = len(spikes) - len(with_slot)
    return sorted(with_slot), sorted(also), (dropped, dropped + len(others) - len(also))


def slots_of(fired, carried, max_spikes=None, overflow="lowest", dtype=torch.float32):
    """Return the slots of bool ``[T, B, N]``, row by row, by the rules of ``ops.select_spikes``."""
    steps, batch, neurons = fired.shape
    needed = (fired | carried).sum(-1)
    capacity = (int(needed.max()) if needed.numel() else 0) if max_spikes is None else min(max_spikes, neurons)
    ids = torch.zeros(steps, batch, capacity, dtype=torch.int32)
    values = torch.zeros(steps, batch, capacity, dtype=dtype)
    counts, dropped = torch.zeros(2, steps, batch, 2, dtype=torch.int32)
    spiking, taken = torch.zeros(2, steps, batch, neurons, dtype=torch.bool)
    for t in range(steps):
        start = t * capacity % neurons if overflow == "rotate" else 0
        for b in range(batch):
            fired_ids, also, lost = row_slots(fired[t, b].tolist(), carried[t, b].tolist(), capacity, start)
            used = len(fired_ids) + len(also)
            ids[t, b, :used] = torch.tensor(fired_ids + also, dtype=torch.int32)
            values[t, b, : len(fired_ids)] = 1
            counts[t, b] = torch.tensor([len(fired_ids), used], dtype=torch.int32)
            dropped[t, b] = torch.tensor(lost, dtype=torch.int32)
            spiking[t, b, fired_ids] = True
            taken[t, b, fired_ids + also] = True
    return Slots(ids, values, counts, dropped, spiking, taken)


def assert_slots(spikes, expected):
    """Check that a SparseSpikes holds exactly these slots, and 0 in its padding."""
    assert torch.equal(spikes.counts, expected.counts)
    assert torch.equal(spikes.ids, expected.ids)
    assert spikes.values.dtype == expected.values.dtype
    assert torch.equal(spikes.values.detach(), expected.values)
    assert torch.equal(torch.zeros_like(spikes.counts) if spikes.dropped is None else spikes.dropped, expected.dropped)


def slope_of(spike_grad, u):
    """Return the factor of the surrogate gradient in the precision of ``u``; snnTorch's spikes are float32."""
    u = u.detach().requires_grad_()
    return torch.autograd.grad(spike_grad(u).sum(), u)[0]


def masked_spikes(
    mem, threshold, grad_threshold=None, max_spikes=None, spike_grad=None, overflow="lowest", first_step=0
):
    """Return the spikes of ``mem`` ``[T, B, N]`` as a dense tensor, and their slots, which mask the gradient.

    Without ``max_spikes`` there are as many slots as neurons.
    """
    spike_grad = snntorch.surrogate.atan() if spike_grad is None else spike_grad
    u = mem - threshold
    fired = u.detach() > 0
    carried = torch.ones_like(fired) if grad_threshold is None else mem.detach() > grad_threshold
    # Silent steps before the first one, so that "rotate" starts at the right neuron.
    early = fired.new_zeros(first_step, *fired.shape[1:])
    capacity = mem.shape[-1] if max_spikes is None else max_spikes
    slots = slots_of(torch.cat([early, fired]), torch.cat([early, carried]), capacity, overflow, mem.dtype)
    slots = Slots(*(part[first_step:] for part in slots))
    carried = torch.where(slots.taken, slope_of(spike_grad, u) * (u - u.detach()), torch.zeros_like(u))
    return slots.spiking.to(u.dtype) + carried, slots


def dense_layer(
    x,
    weight,
    bias=None,
    *,
    beta,
    threshold=1.0,
    grad_threshold=None,
    max_spikes=None,
    reset_mechanism="zero",
    spike_grad=None,
    input_scale=1.0,
    overflow="lowest",
    delay=0,
    recurrent_weight=None,
):
    """Run a layer of spiking neurons on dense spikes ``[T, B, in]`` in PyTorch's operations, with their autograd.

    Returns spikes ``[T, B, out]``, their slots, and membranes ``[T, B, out]``.
    """
    steps, batch = x.shape[:2]
    neurons = weight.shape[0]
    mem = weight.new_zeros(batch, neurons)
    spk = torch.zeros_like(mem)
    decay = torch.as_tensor(beta, dtype=weight.dtype).clamp(0, 1)
    spks, every, mems = [], [], []
    for t in range(steps):
        reset = (mem.detach() - threshold > 0).to(mem.dtype)
        reset = reset.detach()
        current = torch.zeros_like(mem)
        if t >= delay:
            current = torch.nn.functional.linear(x[t - delay], weight) * input_scale
        if recurrent_weight is not None:
            current = current + torch.nn.functional.linear(spk, recurrent_weight) * input_scale
        if bias is not None:
            current = current + bias
        if reset_mechanism == "subtract":
            mem = decay * mem + current - reset * threshold
        elif reset_mechanism == "zero":
            mem = decay * (mem * (1 - reset)) + current
        else:
            mem = decay * mem + current
        out, slots = masked_spikes(mem[None], threshold, grad_threshold, max_spikes, spike_grad, overflow, t)
        spk = out[0]
        spks.append(spk)
        mems.append(mem)
        every.append(slots)
    if not steps:
        out, slots = masked_spikes(weight.new_zeros(0, batch, neurons), 1.0, None, max_spikes)
        return out, trimmed(slots) if max_spikes is None else slots, out
    slots = Slots(*(torch.cat(parts) for parts in zip(*every)))
    return torch.stack(spks), trimmed(slots) if max_spikes is None else slots, torch.stack(mems)


def trimmed(slots):
    """Return the slots limited to the number that the busiest step needs."""
    most = int(slots.counts[..., 1].max()) if slots.counts.numel() else 0
    return slots._replace(ids=slots.ids[..., :most], values=slots.values[..., :most])


def on_grid(*shape, step=64, most=0.5, dtype=torch.float32, generator=None):
    """Return random multiples of ``1 / step`` up to ``most``, whose sums are exact in every order."""
    bound = int(most * step)
    return torch.randint(-bound, bound + 1, shape, generator=generator).to(dtype) / step


def random_spikes(
    steps,
    batch,
    neurons,
    rate=0.2,
    carried=0.1,
    slack=2,
    graded=False,
    dtype=torch.float32,
    generator=None,
    shuffled=False,
):
    """Return SparseSpikes with spikes, gradient-only slots, and padding of invalid ids and values.

    ``graded``: spikes have values other than 1, also 0 and negative values. ``shuffled``: ids are in any order.
    """
    drawn = torch.rand(steps, batch, neurons, generator=generator)
    slots = slots_of(drawn < rate, drawn < rate + carried, None, dtype=dtype)
    used = torch.arange(slots.ids.shape[2]) < slots.counts[..., 1:]
    ids = torch.where(used, slots.ids, torch.tensor(-7, dtype=torch.int32))
    values = slots.values
    if graded:
        halves = torch.randint(0, 6, values.shape, generator=generator).to(dtype) / 2
        values = values * torch.where(torch.rand(values.shape, generator=generator) < 0.5, -halves, halves)
    values = torch.where(used, values, torch.tensor(float("nan"), dtype=dtype))
    if shuffled:
        places = torch.arange(ids.shape[2])
        group = (places >= slots.counts[..., :1]).int() + (places >= slots.counts[..., 1:]).int()
        order = (group + torch.rand(ids.shape, generator=generator)).argsort(-1)
        ids, values = ids.gather(-1, order), values.gather(-1, order)
    ids = torch.nn.functional.pad(ids, (0, slack), value=2**31 - 1)
    values = torch.nn.functional.pad(values, (0, slack), value=float("nan"))
    return SparseSpikes(ids, values, slots.counts, neurons)


def densified(slot_values, spikes):
    """Return ``[T, B, N]`` with the values of the carried slots, written one by one; 0 elsewhere."""
    dense = torch.zeros(spikes.shape, dtype=slot_values.dtype)
    for t, b in itertools.product(range(spikes.num_steps), range(spikes.batch_size)):
        used = int(spikes.counts[t, b, 1])
        dense[t, b, spikes.ids[t, b, :used].long()] = slot_values.detach()[t, b, :used]
    return dense


def at_slots(dense, spikes, padding=0.0):
    """Return the elements of ``[T, B, N]`` at the carried slots, read one by one."""
    picked = torch.full(spikes.ids.shape, padding, dtype=dense.dtype)
    for t, b in itertools.product(range(spikes.num_steps), range(spikes.batch_size)):
        used = int(spikes.counts[t, b, 1])
        picked[t, b, :used] = dense.detach()[t, b, spikes.ids[t, b, :used].long()]
    return picked


def boxcar(u, grad, _spikes):
    """A custom surrogate, for ``custom_surrogate``."""
    return grad * (u.abs() < 0.5) + 0.25 * grad


def leaky_step(u, grad, _spikes):
    return torch.where(u > 0, grad, 0.25 * grad)


def soft(u):
    """A plain callable: its gradient is used, not its value."""
    return torch.sigmoid(4 * u)


def function_of(forward, backward):
    """Return an autograd function from ``forward(u)`` and ``backward(grad, u)``."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u):
            ctx.save_for_backward(u)
            return forward(u)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad, *ctx.saved_tensors)

    return Function


ATAN = surrogate.atan(2.0).kernel
# The step function in the argument's own dtype.
Spike = function_of(lambda u: (u > 0).to(u.dtype), lambda grad, u: surrogate.surrogate_gradient(ATAN, u, grad))


def looped(step, x, states, parameters, **options):
    """Return spikes and states of all steps of ``x``, computed by the function of a custom neuron itself."""
    rows = []
    for current in x:
        spk, *states = step(current, *states, **parameters, spike=Spike.apply, **options)
        rows.append([spk, *states])
    return [torch.stack(values) for values in zip(*rows)]


_FUSED = {
    "straight_through_estimator": (),
    "triangular": (0.75,),
    "fast_sigmoid": (10,),
    "atan": (3.0,),
    "heaviside": (),
    "sigmoid": (2.0,),
    "spike_rate_escape": (1.5, 2.0),
    "SFS": (5, 0.1),
}
# Ours and snnTorch's surrogate of each name.
FUSED = {name: (getattr(surrogate, name)(*a), getattr(snntorch.surrogate, name)(*a)) for name, a in _FUSED.items()}
# The LSO of snnTorch 1.0 fails with a TypeError when called.
FUSED["LSO"] = (surrogate.LSO(0.25), snntorch.surrogate.custom_surrogate(leaky_step))
SURROGATES = {
    **FUSED,
    "default": (None, snntorch.surrogate.atan()),
    "custom_surrogate": (surrogate.custom_surrogate(boxcar), snntorch.surrogate.custom_surrogate(boxcar)),
    "any callable": (soft, soft),
}
RESETS = ["subtract", "zero", "none"]


# ---- operators


def reference_of(operator):
    """Return the plain-PyTorch kernel of ``snnipu::<operator>``, which defines correctness."""
    return _library.REGISTERED[operator]["CompositeExplicitAutograd"]


def needs_kernel(operator):
    """Mark a test of the CPU kernel of ``snnipu::<operator>``: skip it if there is no kernel."""
    there = "CPU" in _library.REGISTERED[operator]
    return pytest.mark.skipif(not there, reason=f"snnipu::{operator} has no CPU kernel: {host.unavailable_reason}")


# Invalid as an id or a count, and implausibly large as half of a float.
POISON = 0x5A5A5A5A


def poison_new_tensors(monkeypatch):
    """Fill new memory with NaN, or with a number that is neither a valid id nor a valid count."""

    def poisoned(allocate):
        def allocate_poisoned(*args, **kwargs):
            tensor = allocate(*args, **kwargs)
            if tensor.is_floating_point():
                return tensor.fill_(float("nan"))
            return tensor.fill_(POISON) if tensor.dtype in (torch.int32, torch.int64) else tensor

        return allocate_poisoned

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))


def with_workers(run):
    """Return the results of ``run()`` for one worker per tile, and for more in ascending and descending order."""
    threads = torch.get_num_threads()
    results = []
    try:
        torch.set_num_threads(1)  # one thread runs the workers in order
        for workers, descending in ((1, 0), (1, 1), (2, 0), (2, 1), (6, 0), (6, 1)):
            host.library.snnipu_set_workers(workers, descending)
            results.append(run())
    finally:
        host.library.snnipu_set_workers(1, 0)
        torch.set_num_threads(threads)
    return results


def with_threads(run, counts=(1, 2, 5)):
    """Return the results of ``run()`` with each number of threads."""
    threads = torch.get_num_threads()
    results = []
    try:
        for count in counts:
            torch.set_num_threads(count)
            results.append(run())
    finally:
        torch.set_num_threads(threads)
    return results


def assert_all_equal(results):
    """Check that results are equal bit by bit, NaN included."""
    for other in results[1:]:
        assert len(other) == len(results[0])
        for actual, expected in zip(other, results[0]):
            assert actual.dtype == expected.dtype
            assert torch.equal(actual, expected)
