"""Spiking neurons in continuous time, from event to event: the oracle of EventProp, in plain float64.

``tau_m V' = I - V`` and ``tau_s I' = -I``. A spike of an input raises ``I`` by its weight. A neuron whose membrane
reaches ``threshold`` spikes, and its membrane falls by ``threshold``. A spike may arrive after a delay.
"""

import math
from typing import List, NamedTuple, Sequence, Tuple

Event = Tuple[float, int]  # time, neuron


class Constants(NamedTuple):
    tau_m: float = 1.0
    tau_s: float = 0.5
    threshold: float = 1.0
    end: float = 3.0


def _membrane(v, i, s, c):
    particular = i * c.tau_s / (c.tau_s - c.tau_m)
    return particular * math.exp(-s / c.tau_s) + (v - particular) * math.exp(-s / c.tau_m)


def _extremum(v, i, length, c):
    """Return the time until the membrane's extremum, as a list: empty if there is none within ``length``."""
    particular = i * c.tau_s / (c.tau_s - c.tau_m)
    ratio = -(v - particular) * c.tau_s / (particular * c.tau_m) if particular else 0.0
    time = math.log(ratio) / (1 / c.tau_m - 1 / c.tau_s) if ratio > 0 else 0.0
    return [time] if 0 < time < length else []


def _crossing(v, i, length, c):
    """Return the time until the membrane crosses the threshold upwards, within ``length``; None if it does not."""
    low = 0.0
    for high in [*_extremum(v, i, length, c), length]:
        if _membrane(v, i, high, c) > c.threshold:
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (low, middle) if _membrane(v, i, middle, c) > c.threshold else (middle, high)
            return high
        low = high
    return None


def spikes_of(events: Sequence[Event], weights: Sequence[float], c: Constants) -> Tuple[List[float], float, float]:
    """Return the spike times of one neuron, the integral of its membrane and its margin, for events in order of time.

    The margin is the smallest rise of a crossing per ``tau_m``, or distance of another extremum from the threshold.
    """
    now = v = i = integral = 0.0
    margin = math.inf
    times = []
    for time, source in [*((t, k) for t, k in events if t < c.end), (c.end, -1)]:
        while True:
            ahead = _crossing(v, i, time - now, c)
            length = time - now if ahead is None else ahead
            particular = i * c.tau_s / (c.tau_s - c.tau_m)
            integral += particular * c.tau_s * (1 - math.exp(-length / c.tau_s))
            integral += (v - particular) * c.tau_m * (1 - math.exp(-length / c.tau_m))
            for time_of_extremum in _extremum(v, i, length, c) if ahead is None else ():
                margin = min(margin, abs(c.threshold - _membrane(v, i, time_of_extremum, c)))
            v, i, now = _membrane(v, i, length, c), i * math.exp(-length / c.tau_s), now + length
            if ahead is None:
                break
            times.append(now)
            margin = min(margin, i - c.threshold)
            v = 0.0
        if source >= 0:
            i += weights[source]
    return times, integral, margin


def arrivals(events: Sequence[Event], delays: Sequence[float]) -> List[Event]:
    """Return the events at one neuron, in order of time. ``delays``: one for each source."""
    return sorted((time + delays[source], source) for time, source in events)


def layer(events, weight, c: Constants, delay=None, recurrent_weight=None) -> List[Event]:
    """Return the spikes of a layer of neurons, in order of time.

    ``weight``, ``delay`` and ``recurrent_weight`` are lists with one row for each neuron.
    """
    if recurrent_weight is not None:
        return _recurrent_layer(events, weight, recurrent_weight, c)
    arriving = [events if delay is None else arrivals(events, delay[n]) for n in range(len(weight))]
    return sorted((t, n) for n, row in enumerate(weight) for t in spikes_of(arriving[n], row, c)[0])


def _recurrent_layer(events, weight, recurrent_weight, c: Constants) -> List[Event]:
    """Return the spikes of neurons whose spikes raise the currents of all, by a column of ``recurrent_weight``."""
    now, membranes, currents = 0.0, [0.0] * len(weight), [0.0] * len(weight)
    spikes = []
    for time, source in [*((t, k) for t, k in events if t < c.end), (c.end, -1)]:
        while True:
            ahead = [_crossing(v, i, time - now, c) for v, i in zip(membranes, currents)]
            length, first = min(((s, n) for n, s in enumerate(ahead) if s is not None), default=(time - now, -1))
            membranes = [_membrane(v, i, length, c) for v, i in zip(membranes, currents)]
            currents = [i * math.exp(-length / c.tau_s) for i in currents]
            now += length
            if first < 0:
                break
            spikes.append((now, first))
            membranes[first] = 0.0
            currents = [i + row[first] for i, row in zip(currents, recurrent_weight)]
        if source >= 0:
            currents = [i + row[source] for i, row in zip(currents, weight)]
    return spikes


def first_times(spikes: Sequence[Event], neurons: int, c: Constants) -> List[float]:
    return [min([t for t, k in spikes if k == n], default=c.end) for n in range(neurons)]


def finite_differences(function, matrices, step=1e-6):
    """Return the gradient of ``function``, which reads the nested lists ``matrices``, as matrices of their shapes."""
    grads = [[[0.0] * len(row) for row in matrix] for matrix in matrices]
    for m, matrix in enumerate(matrices):
        for n, row in enumerate(matrix):
            for k, value in enumerate(row):
                ends = []
                for sign in (1, -1):
                    row[k] = value + sign * step
                    ends.append(function())
                row[k] = value
                grads[m][n][k] = (ends[0] - ends[1]) / (2 * step)
    return grads
