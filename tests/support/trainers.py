"""Settings of small runs of the trainers, and comparisons of runs."""

import torch

from snnipu import training


def config(**settings):
    return training.TrainConfig(**{"hidden": 16, "steps": 5, "epochs": 2, "batch_size": 32, **settings})


def event_config(**settings):
    small = {"classes": 3, "samples_per_class": 30, "steps": 20, "hidden": (24, 16), "epochs": 2, "batch_size": 16}
    small.update(grad_threshold_every=2, beta=0.9, max_spikes=(8, 3, 2, 3))
    if settings.get("method") == "dense":
        small.pop("max_spikes")
        small.pop("grad_threshold_every")
    return training.EventConfig.for_dataset("randman", **{**small, **settings})


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def without_times(history):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def same_run(a, b):
    """Return True if the states of two runs are equal except for their times."""
    return equal(*({**state, "history": without_times(state["history"])} for state in (a, b)))
