"""Threads that train in parallel, and writers that are killed."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.killed import ROUNDS, killed_together, needs_kill
from torch import nn

import snnipu as snn
from snnipu import datasets
from snnipu.datasets import _disk_cache

THREADS, STEPS = 16, 6


def layers():
    net = snn.SparseNetwork([80, 60, 10], beta=0.9, learn_beta=True, threshold=0.2)
    return net, snn.SparseSpikes.from_dense(torch.bernoulli(torch.full((12, 5, 80), 0.1)), 80)


def neurons():
    net = nn.Sequential(snn.nn.Linear(80, 60), snn.Synaptic(alpha=0.8, beta=0.9, learn_beta=True), nn.Linear(60, 10))
    return snn.MultiStep(net), torch.bernoulli(torch.full((12, 5, 80), 0.02))


def maps():
    net = nn.Sequential(snn.nn.Conv2d(2, 8, 3), snn.Leaky(beta=0.9), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 10))
    return snn.MultiStep(net), torch.bernoulli(torch.full((12, 5, 2, 12, 12), 0.1))


def delays():
    net = nn.Sequential(snn.DelayLinear(80, 60, max_delay=5), snn.Leaky(beta=0.9), nn.Linear(60, 10))
    return snn.MultiStep(net), torch.bernoulli(torch.full((12, 5, 80), 0.1))


def dense(out):
    out = out[0] if isinstance(out, tuple) else out
    return out.to_dense() if isinstance(out, snn.SparseSpikes) else out


def trained(net, x):
    """Return the outputs of some training steps, and the parameters after them."""
    optimizer, results = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(STEPS):
        out = dense(net(x))
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        results.append(out.detach().clone())
    return [*results, *(value.detach().clone() for value in net.parameters())]


def at_once(work, arguments):
    """Return the results of a function for all arguments, one thread each."""
    begin = threading.Barrier(THREADS)

    def begun(argument):
        begin.wait()
        return work(*argument)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begun, arguments))


@pytest.mark.slow
@pytest.mark.parametrize("make", [layers, neurons, maps, delays])
def test_16_threads_train_at_once(make):
    """Each thread's network has the numbers of a training in sequence."""

    def seeded(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return make()

    expected = [trained(*seeded(seed)) for seed in range(THREADS)]
    for number, actual in enumerate(at_once(trained, [seeded(seed) for seed in range(THREADS)])):
        assert all(map(torch.equal, actual, expected[number])), number


@pytest.mark.parametrize("make", [layers, neurons, maps])
def test_16_threads_ask_one_network(make):
    net, x = make()
    xs = [x, *(make()[1] for _ in range(THREADS - 1))]

    def answers(x):
        with torch.no_grad():
            return [dense(net(x)).clone() for _ in range(STEPS)]

    expected = [answers(x) for x in xs]
    for actual, right in zip(at_once(answers, [(x,) for x in xs]), expected):
        assert all(map(torch.equal, actual, right))


# ---- killed processes

SAMPLES = 40


class Recordings:
    def __init__(self, files):
        self.files, self.read = files, 0

    def __call__(self, index):
        self.read += 1
        return tuple(np.load(self.files[index]))


def recordings(folder):
    return datasets.EventDataset(
        Recordings([folder / f"{index}.npy" for index in range(SAMPLES)]), [0] * SAMPLES, num_steps=12, num_neurons=50,
        step=10, cache="disk", cache_key="killed", files=[folder / f"{index}.npy" for index in range(SAMPLES)],
    )  # fmt: skip


def bin_recordings(folder, number):
    order = list(range(SAMPLES))
    while True:
        random.Random(time.time()).shuffle(order)
        for index in order:
            recordings(folder)[index]


@pytest.mark.slow
@needs_kill
def test_writers_of_one_cache_of_recordings_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(_disk_cache, "_SETTLED_SECONDS", 0)
    for index in range(SAMPLES):
        generator = np.random.default_rng(index)
        np.save(tmp_path / f"{index}.npy", [generator.integers(0, 120, 4000), generator.integers(0, 50, 4000)])
    monkeypatch.setenv("SNNIPU_EVENT_CACHE", "0")
    expected, _ = recordings(tmp_path).batch(range(SAMPLES))
    read = set()
    for turn in range(ROUNDS):
        # Every second turn starts with an empty cache: its first writes make the folder.
        monkeypatch.setenv("SNNIPU_EVENT_CACHE", str(tmp_path / f"cache{turn // 2}"))
        killed_together(bin_recordings, tmp_path)
        dataset = recordings(tmp_path)
        spikes, _ = dataset.batch(range(SAMPLES))
        assert torch.equal(spikes.to_dense(), expected.to_dense())
        read.add(SAMPLES - dataset._read.read)
        again = recordings(tmp_path)  # new entries can be written
        assert torch.equal(again.batch(range(SAMPLES))[0].to_dense(), expected.to_dense())
        assert again._read.read == 0
    assert any(read)  # entries of killed processes are used
