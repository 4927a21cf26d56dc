"""``SparseSpikes.from_events`` against a histogram built event by event."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import assert_refused, each_row

from snnipu import SparseSpikes


def naive(times, units, samples, steps, batch, neurons, step, slots=None, rotate=False):
    """Return ``{(t, b): {unit: number of events}}`` after the limit, and ``{(t, b): spikes dropped}``."""
    rows = {(t, b): Counter() for t in range(steps) for b in range(batch)}
    for time, unit, sample in zip(times, units, samples):
        t = math.floor(time / step)
        if t < steps:
            rows[t, sample][unit] += 1
    dropped = {}
    for (t, b), row in rows.items():
        fits = len(row) if slots is None else min(slots, neurons)
        first = t * fits % neurons if rotate else 0
        order = sorted(row, key=lambda unit: (unit - first) % neurons)
        dropped[t, b] = len(order[fits:])
        for unit in order[fits:]:
            del row[unit]
    return rows, dropped


def check(spikes, rows, dropped, values, slots=None):
    steps, batch, neurons = spikes.shape
    # The constructor checks ids and counts.
    SparseSpikes(spikes.ids, spikes.values, spikes.counts, neurons, dropped=spikes.dropped)
    assert set(rows) == {(t, b) for t in range(steps) for b in range(batch)}
    busiest = max(map(len, rows.values()), default=0)
    assert spikes.capacity == (busiest if slots is None else min(slots, neurons))
    for (t, b), row in rows.items():
        number = len(row)
        assert spikes.counts[t, b].tolist() == [number, number]
        assert spikes.dropped[t, b].tolist() == [dropped[t, b]] * 2
        assert spikes.ids[t, b, :number].tolist() == sorted(row)
        expected = [row[unit] if values == "count" else 1 for unit in sorted(row)]
        assert spikes.values[t, b, :number].tolist() == expected


@st.composite
def recordings(draw):
    steps, batch, neurons = draw(st.integers(0, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    step = draw(st.sampled_from([1, 2, 7, 0.5, 0.1, 1000, 1e-3]))
    whole = draw(st.booleans())
    end = 1.3 * steps * step
    time = st.integers(0, math.ceil(end)) if whole else st.floats(0, end, allow_subnormal=False)
    event = st.tuples(time, st.integers(0, neurons - 1), st.integers(0, batch - 1))
    events = draw(st.lists(event, max_size=60))
    return steps, batch, neurons, step, whole, events


@given(
    recordings(),
    st.sampled_from(["binary", "count"]),
    st.one_of(st.none(), st.integers(0, 10)),
    st.sampled_from(["lowest", "rotate"]),
)
@settings(deadline=None, max_examples=200)
def test_is_the_histogram(recording, values, slots, overflow):
    steps, batch, neurons, step, whole, events = recording
    times, units, samples = ([event[i] for event in events] for i in range(3))
    spikes = SparseSpikes.from_events(
        np.array(times, dtype=np.int64 if whole else np.float64),
        units,
        samples,
        num_steps=steps,
        num_neurons=neurons,
        batch_size=batch,
        step=step,
        max_spikes=slots,
        overflow=overflow,
        values=values,
        outside="drop",
    )
    assert spikes.shape == (steps, batch, neurons)
    check(
        spikes, *naive(times, units, samples, steps, batch, neurons, step, slots, overflow == "rotate"), values, slots
    )
    assert spikes.outside == sum(math.floor(time / step) >= steps for time in times)


def random_events(number=5000, steps=20, batch=4, neurons=300, seed=0):
    random = np.random.default_rng(seed)
    times, units = random.integers(0, 10 * steps, number), random.integers(0, neurons, number)
    return times, units, random.integers(0, batch, number)


@each_row("""
list(x)
x.astype(np.uint8)
x.astype(np.uint16)
x.astype(">u4")
x.astype(np.uint64)
x.astype(np.int16)
x.astype(np.float16)
np.stack([x, x], 1)[:, 1]
torch.tensor(x, dtype=torch.int16)
torch.tensor(x, dtype=torch.uint8)
torch.tensor(x, dtype=torch.bfloat16)
torch.tensor(np.stack([x, x], 1))[:, 0]
""")
def test_types(row):
    times, units, samples = random_events(300, steps=10, neurons=100)
    size = {"num_steps": 10, "num_neurons": 100, "step": 10, "batch_size": 4}
    converted = [eval(row, {"np": np, "torch": torch, "x": x}) for x in (times, units, samples)]
    spikes = SparseSpikes.from_events(*converted, **size)
    check(spikes, *naive(times, units, samples, 10, 4, 100, 10), "binary")
    assert spikes.ids.dtype == spikes.counts.dtype == torch.int32
    assert spikes.values.dtype == torch.float32


def test_fields_of_a_structured_array():
    events = np.zeros(200, dtype=[("x", "u1"), ("y", "u1"), ("t", "<u4"), ("p", "?")])
    random = np.random.default_rng(0)
    for name, end in (("x", 5), ("y", 4), ("t", 300), ("p", 2)):
        events[name] = random.integers(0, end, 200)
    events.flags.writeable = False
    units = events["x"] + 5 * events["y"].astype(int)
    spikes = SparseSpikes.from_events(events["t"], units, events["p"], num_steps=3, num_neurons=20, step=100)
    check(spikes, *naive(events["t"], units, events["p"].astype(int), 3, 2, 20, 100), "binary")
    with pytest.raises(TypeError, match="times must hold numbers"):
        SparseSpikes.from_events(events, units, num_steps=3, num_neurons=20)


def test_input_is_left_alone():
    arrays = [array.copy() for array in random_events(100)]
    before = [array.copy() for array in arrays]
    spikes = SparseSpikes.from_events(*arrays, num_steps=20, num_neurons=300, step=10)
    assert all(np.array_equal(*pair) for pair in zip(arrays, before))
    for array in arrays:
        array[:] = 0
    check(spikes, *naive(*before, 20, int(before[2].max()) + 1, 300, 10), "binary")


@pytest.mark.parametrize("samples", [None, []])
def test_no_events(samples):
    spikes = SparseSpikes.from_events([], [], samples, num_steps=3, num_neurons=5)
    assert spikes.shape == (3, 1, 5)
    assert spikes.ids.shape == (3, 1, 0)
    assert spikes.to_dense().eq(0).all()
    assert SparseSpikes.from_events([], [], samples, num_steps=3, num_neurons=5, batch_size=0).shape == (3, 0, 5)
    assert SparseSpikes.from_events([], [], samples, num_steps=0, num_neurons=5, max_spikes=2).ids.shape == (0, 1, 2)


def test_batch_size():
    assert SparseSpikes.from_events([0], [0], [2], num_steps=1, num_neurons=1).batch_size == 3
    assert SparseSpikes.from_events([0], [0], [2], num_steps=1, num_neurons=1, batch_size=5).batch_size == 5
    spikes = SparseSpikes.from_events([0, 1], [1, 0], num_steps=2, num_neurons=2, batch_size=2)
    assert spikes.to_dense().tolist() == [[[0, 1], [0, 0]], [[1, 0], [0, 0]]]


def test_a_time_belongs_to_the_step_it_starts():
    times = [0, 99, 100, 199, 299]
    spikes = SparseSpikes.from_events(times, [0] * 5, num_steps=3, num_neurons=1, step=100, values="count")
    assert spikes.values.flatten().tolist() == [2, 2, 1]
    spikes = SparseSpikes.from_events([0.0, 0.25, 0.49, 0.5], [0] * 4, num_steps=3, num_neurons=1, step=0.25)
    assert spikes.counts[:, 0, 0].tolist() == [1, 1, 1]
    spikes = SparseSpikes.from_events([3, 5], [0, 0], num_steps=3, num_neurons=1, step=2.5)
    assert spikes.counts[:, 0, 0].tolist() == [0, 1, 1]


@pytest.mark.parametrize("late", [3, 3.0, 2**40, 1e300, np.uint64(2**64 - 1)])
def test_events_behind_the_window(late):
    times = np.array([0, late, 1], dtype=np.asarray(late).dtype)
    with pytest.raises(ValueError, match=r"times must be below num_steps \* step = 3, got .* \(event 1\).*drop"):
        SparseSpikes.from_events(times, [0, 1, 1], num_steps=3, num_neurons=2)
    spikes = SparseSpikes.from_events(times, [0, 1, 1], num_steps=3, num_neurons=2, outside="drop")
    assert spikes.outside == 1
    assert spikes.to_dense()[:, 0].tolist() == [[1, 0], [0, 1], [0, 0]]
    nothing = SparseSpikes.from_events(times, [0, 1, 1], num_steps=0, num_neurons=2, outside="drop")
    assert (nothing.outside, nothing.num_spikes) == (3, 0)


@each_row(r"""
build(times=[0, -1]) | ValueError: times must be 0 or more, got -1
build(times=[0, math.nan]) | ValueError: times must be finite, got nan
build(times=[0, math.inf]) | ValueError: times must be finite, got inf
build(times=[0, -1], outside='drop') | ValueError: times must be 0 or more
build(units=[0, 3]) | ValueError: units must be from 0 to 2, got 3 \(event 1\)
build(units=np.array([0, 2**64 - 1], np.uint64)) | ValueError: units must be from 0 to 2
build(units=[0, 1e300]) | ValueError: units must be from 0 to 2
build(units=[-1, 0]) | ValueError: units must be from 0 to 2, got -1 \(event 0\)
build(units=[0.5, 1]) | ValueError: units must hold whole numbers, got 0.5
build(samples=[0, 2], batch_size=2) | ValueError: samples must be from 0 to 1, got 2
build(samples=[-1, 1]) | ValueError: samples must be .*, got -1
build(samples=[-1, -1]) | ValueError: samples must be 0 or more, got -1
build(batch_size=0) | ValueError: batch_size must be 1 or more
build(units=[0, 1, 2]) | ValueError: one length, got 2, 3, 2
build(samples=[0]) | ValueError: one length, got 2, 2, 1
build(times=[[0, 1]]) | ValueError: times must have one dimension
build(num_steps=2.0) | ValueError: num_steps must be an int
build(num_neurons=0) | ValueError: num_neurons must be
build(batch_size=-1) | ValueError: batch_size must be an int
build(step=0) | ValueError: step must be a number above 0
build(step=math.inf) | ValueError: step must be
build(max_spikes=-1) | ValueError: max_spikes must be at least 0
build(overflow='highest') | ValueError: overflow must be 'lowest' or 'rotate'
build(values='sum') | ValueError: values must be 'binary' or 'count'
build(outside='clamp') | ValueError: outside must be 'raise' or 'drop'
build(units=['a', 'b']) | TypeError: units must hold numbers
build(times=torch.zeros(2, dtype=torch.complex64)) | TypeError: times must hold
""")
def test_wrong_input(row):
    right = {"times": [0, 1], "units": [0, 1], "num_steps": 2, "num_neurons": 3}
    assert SparseSpikes.from_events(**right).num_spikes == 2
    assert_refused(row, globals(), build=lambda **wrong: SparseSpikes.from_events(**{**right, **wrong}))


def test_many_neurons_without_a_dense_detour():
    """A dense tensor of this size would take 4 TiB."""
    spikes = SparseSpikes.from_events([0, 499], [2**31 - 2, 7], num_steps=500, num_neurons=2**31 - 1)
    assert spikes.ids.shape == (500, 1, 1)
    assert spikes.ids[[0, -1], 0, 0].tolist() == [2**31 - 2, 7]
    assert spikes.num_spikes == 2
