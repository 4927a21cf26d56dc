"""Neurons over time, one call after the other."""

import torch

import snnipu as snn


def by_steps(layer, x, states):
    """Stack spikes and states of a call for each step of ``x``; DeltaLeaky's states are a pair."""
    rows = []
    for current in x:
        row = layer(current, tuple(states)) if hasattr(layer, "delta_threshold") else layer(current, *states)
        row = (row[0], *row[1]) if isinstance(row[1], tuple) else row
        states = row[-len(states) :]
        rows.append(row)
    return [torch.stack(values) for values in zip(*rows)]


def kinds(size):
    """Class and keywords of neurons of every kind, ``size`` of them, by name."""
    each, learn = torch.linspace(0.3, 0.9, size), {"learn_beta": True, "learn_threshold": True}
    to_all, one_to_one = {"linear_features": size}, {"V": 0.5, "all_to_all": False}
    return {
        "Leaky": ("Leaky", {"beta": 0.9}),
        "Leaky, learnt": ("Leaky", {"beta": each, "threshold": each.flip(0), **learn}),
        "Leaky, to zero": ("Leaky", {"beta": each, "learn_beta": True, "reset_mechanism": "zero"}),
        "Leaky, to zero at once": ("Leaky", {"beta": 0.9, "reset_mechanism": "zero", "reset_delay": False}),
        "Lapicque": ("Lapicque", {"beta": 0.9}),
        "Synaptic": ("Synaptic", {"alpha": 0.8, "beta": 0.9}),
        "Synaptic, learnt": ("Synaptic", {"alpha": 0.7, "beta": each, "learn_alpha": True, "learn_beta": True}),
        "Alpha": ("Alpha", {"alpha": 0.9, "beta": 0.8}),
        "RLeaky": ("RLeaky", {"beta": 0.9, **to_all}),
        "RLeaky, learnt": ("RLeaky", {"beta": 0.9, **to_all, "learn_beta": True}),
        "RLeaky, one to one": ("RLeaky", {"beta": 0.9, **one_to_one}),
        "RSynaptic": ("RSynaptic", {"alpha": 0.8, "beta": 0.9, **to_all}),
        "RSynaptic, one to one": ("RSynaptic", {"alpha": 0.8, "beta": 0.9, **one_to_one}),
        "DeltaLeaky": ("DeltaLeaky", {"beta": 0.9, "delta_threshold": 0.2}),
    }


def neuron_of(name, size, source=snn, **how):
    kind, keywords = kinds(size)[name]
    return getattr(source, kind)(**keywords, **how)
