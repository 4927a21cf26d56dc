"""Neurons over time, one call after the other."""

import torch


def by_steps(layer, x, states):
    """Stack spikes and states of a call for each step of ``x``; DeltaLeaky's states are a pair."""
    rows = []
    for current in x:
        row = layer(current, tuple(states)) if hasattr(layer, "delta_threshold") else layer(current, *states)
        row = (row[0], *row[1]) if isinstance(row[1], tuple) else row
        states = row[-len(states) :]
        rows.append(row)
    return [torch.stack(values) for values in zip(*rows)]
