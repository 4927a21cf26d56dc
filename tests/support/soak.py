"""Disturbed training loops of every kind for a long time: ``make soak``.

``python tests/support/soak.py --seconds 3600`` shares the time among the loops below. Batch sizes and lengths change
from step to step. Some steps end in the middle, by an error in the backward pass, a wrong input, or a signal. Another
process keeps a processor busy. At the end, the resident memory of each loop without reusable blocks may exceed the
maximum of its first third by ``--mebibytes``. The numbers of files and threads must not grow. The fixed step of a new
network must always give the same bits. The speeds at the start and at the end are printed.
"""

import argparse
import gc
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from datetime import timedelta

import torch
from torch import nn
from tqdm import tqdm

import snnipu as snn
from snnipu import backends, poptorch

INPUTS, OUTPUTS = 40, 5
LONGEST, LARGEST = 40, 33  # steps, and a batch
WAIT = timedelta(seconds=120)  # for the other process
MOST_KEPT = 2 * 256  # MiB: results, and the heap
FEWEST = 12  # minimum number of steps at any duration
LOOK = 0.1  # seconds between two measurements of memory, at least: each collects garbage
DISTURBED, WAYS = 0.1, ("input", "backward", "signal")  # of the steps


class Disturbed(Exception):
    """The exception of a step that is interrupted."""


def disturb(_):
    raise Disturbed


def events(steps, batch, *shape):
    return (torch.rand(steps, batch, *shape) < 0.1).float()


# ---- the loops: networks, their inputs and outputs


def plain():
    layers = [
        nn.Linear(INPUTS, 64),
        snn.Leaky(beta=0.9),
        nn.Dropout(0.2),
        nn.Linear(64, 64),
        snn.RLeaky(beta=0.9, V=0.3, all_to_all=False),
    ]
    return snn.MultiStep(*layers, nn.Linear(64, OUTPUTS), snn.Synaptic(alpha=0.8, beta=0.9))


def learnt():
    layers = [nn.Linear(INPUTS, 64), snn.Leaky(beta=0.9, learn_beta=True, learn_threshold=True)]
    return snn.MultiStep(*layers, nn.Linear(64, OUTPUTS), snn.Alpha(alpha=0.9, beta=0.8))


def maps():
    layers = [nn.Conv2d(2, 16, 5), snn.Leaky(beta=0.9), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), snn.Leaky(beta=0.9)]
    return snn.MultiStep(*layers, nn.Flatten(), nn.Linear(16 * 4, OUTPUTS), snn.Leaky(beta=0.9))


def sparse_maps():
    return snn.SparseNetwork([(2, 12, 12), "8C3-MP2", OUTPUTS], beta=0.9, threshold=0.3)


def sparse():
    return snn.SparseNetwork([INPUTS, 64, 48, OUTPUTS], beta=0.9, threshold=0.3, grad_threshold=0.1)


def recurrent_with_delays():
    return snn.SparseNetwork([INPUTS, 32, OUTPUTS], beta=0.9, threshold=0.3, max_delay=6)


def delays():
    return snn.MultiStep(snn.DelayLinear(INPUTS, 48, 10), snn.Leaky(beta=0.9), nn.Linear(48, OUTPUTS), snn.Leaky(0.9))


class Loop(nn.Module):
    """A loop step by step, as snnTorch's users write it."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(INPUTS, 48), nn.Linear(48, OUTPUTS)
        self.lif, self.out = snn.Leaky(beta=0.9), snn.Leaky(beta=0.9)

    def forward(self, x):
        mem, last, record = self.lif.init_leaky(), self.out.init_leaky(), []
        for current in x:
            spk, mem = self.lif(self.inner(current), mem)
            spk, last = self.out(self.outer(spk), last)
            record.append(last)
        return torch.stack(record)


class Compiled(Loop):
    """A compiled loop. Each length is a graph, so there are few lengths."""

    def __init__(self):
        super().__init__()
        self._compiled = snn.compile(super().forward)

    def forward(self, x):
        return self._compiled(x[: 5 * (1 + len(x) // 10)])


class OnIpu(nn.Module):
    """A PopTorch model that includes the loss: its shapes are fixed."""

    def __init__(self):
        super().__init__()
        self.net = snn.MultiStep(nn.Linear(INPUTS, 16), snn.Leaky(beta=0.9), nn.Linear(16, OUTPUTS), snn.Leaky(0.9))

    def forward(self, x):
        mem = self.net(x)[1]
        return mem, poptorch.identity_loss((mem**2).mean(), "none")


SMALL = (2, 12, 12)
LOOPS = {
    "multistep": (plain, (INPUTS,)),
    "learnt parameters": (learnt, (INPUTS,)),
    "convolutions": (maps, SMALL),
    "steps": (Loop, (INPUTS,)),
    "compiled": (Compiled, (INPUTS,)),
    "event-driven": (sparse, (INPUTS,)),
    "event-driven maps": (sparse_maps, SMALL),
    "event-driven, delays": (recurrent_with_delays, (INPUTS,)),
    "delays": (delays, (INPUTS,)),
    "online": (lambda: snn.Online(learnt(), rule="ottt"), (INPUTS,)),
    "poptorch": (OnIpu, (INPUTS,)),
    "two processes": (plain, (INPUTS,)),
}


def output_of(result):
    """Return the tensor for the loss."""
    if isinstance(result, snn.SparseSpikes):
        return result.to_dense()
    return result[-1] if isinstance(result, tuple) else result


class Training:
    """A network, its optimizer, and steps of any size."""

    def __init__(self, name, seed=0):
        torch.manual_seed(seed)
        make, self.shape = LOOPS[name]
        self.name, self.net = name, make()
        self.on_ipu = isinstance(self.net, OnIpu)
        # The whole step is one call there: its backward pass has no hook.
        self.ways = [way for way in WAYS if not (self.on_ipu and way == "backward")]
        if self.on_ipu:
            optimizer = poptorch.optim.SGD(self.net.parameters(), lr=1e-3)
            self.run = poptorch.trainingModel(self.net, optimizer=optimizer)
            return
        self.run = self.net
        if name == "two processes":
            self.run = nn.parallel.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self, steps, batch, is_disturbed=False):
        """Run a training step; return the loss and the sum of the gradients."""
        if self.on_ipu:
            return [float(self.run(events(6, 3, *self.shape))[1])]
        if isinstance(self.net, snn.Online):
            self.net.reset()
        x = events(steps, batch, *self.shape)
        out = output_of(self.run(x))
        if is_disturbed:
            out.register_hook(disturb)
        loss = ((out - 0.1) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        gradients = [float(p.grad.double().sum()) for p in self.net.parameters() if p.grad is not None]
        self.optimizer.step()
        return [float(loss), *gradients]

    def disturbed(self, way, size, seconds):
        """Run a step that is interrupted, unless it is too fast for a signal."""
        if way == "input":
            self.run(torch.rand(6, 3, 7))
        if way == "backward":
            self.step(*size, is_disturbed=True)
        return interrupted(seconds, lambda: self.step(*size))


def fixed_step(name):
    """Run a step of a new network with fixed numbers."""
    training = Training(name, seed=1)
    torch.manual_seed(2)
    return training.step(10, 4)


def interrupted(seconds, call):
    """Run a call that a signal may end, as Ctrl-C does."""

    def stop(*_):
        raise Disturbed

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def used():
    """Return resident MiB, reusable MiB, open files and threads."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    reusable = backends.kept_memory() or 0
    files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    return resident / 2**20, reusable / 2**20, files, threads


def soak(name, seconds, mebibytes):
    """Run one loop; return its measurements and its errors."""
    draw = random.Random(0)
    warnings.simplefilter("ignore")
    backends.release_memory()  # of earlier loops
    expected = fixed_step(name)
    training = Training(name)
    for _ in range(3):
        training.step(LONGEST, LARGEST)
    begin = time.monotonic()
    end = begin + seconds
    done, memory, speeds, last_look, since = 0, [], [], begin, 0
    disturbed = dict.fromkeys(training.ways, 0)
    files = None
    alone = name != "two processes"  # an error in one of two processes leaves the other waiting
    going = True
    while going:
        size = draw.randint(4, LONGEST), draw.choice((1, 3, 8, 16, LARGEST))
        way = None
        # each kind occurs, in short runs too
        if alone and (draw.random() < DISTURBED or (done % 4 == 3 and done < FEWEST)):
            way = training.ways[sum(disturbed.values()) % len(training.ways)]
        try:
            values = training.disturbed(way, size, draw.random() * 0.01) if way else training.step(*size)
        except (Exception, KeyboardInterrupt) as error:
            if way is None or (way == "backward" and not isinstance(error, Disturbed)):
                raise
            disturbed[way] += 1
            # A signal during the exit of torch.no_grad() leaves gradients switched off.
            torch.set_grad_enabled(True)
        else:
            if not all(map(math.isfinite, values)):
                raise AssertionError(f"step {done}: {values}")
        done += 1
        going = time.monotonic() < end or done < FEWEST
        if not alone:  # both end at the same step
            flag = torch.tensor(float(going))
            torch.distributed.broadcast(flag, 0)
            going = bool(flag)
        now = time.monotonic()
        if not memory or now - last_look > max(seconds / 30, LOOK):
            memory.append((now - begin, *used()))
            speeds.append((done - since) / (now - last_look))
            last_look, since = time.monotonic(), done
            if now - begin > seconds / 3 and files is None:
                files = used()[2:]
    wrong = []
    if fixed_step(name) != expected:
        wrong.append("the fixed step has another result than at the start")
    after = used()
    early = max(row[1] - row[2] for row in memory if row is memory[0] or row[0] <= seconds / 3)
    if after[0] - after[1] > early + mebibytes:
        wrong.append(f"resident memory that is not kept for use grew from {early:.0f} to {after[0] - after[1]:.0f} MiB")
    if after[1] > MOST_KEPT:
        wrong.append(f"{after[1]:.0f} MiB are kept for use, more than {MOST_KEPT}")
    if files is not None and (after[2] > files[0] or after[3] > files[1]):
        wrong.append(f"files and threads grew from {files} to {after[2:]}")
    third = max(1, len(speeds) // 3)
    speed = [sum(part) / max(1, len(part)) for part in (speeds[:third], speeds[-third:])]
    return {
        "name": name,
        "steps": done,
        "disturbed": disturbed,
        "MiB": (early, after[0] - after[1], after[1]),
        "speed": speed,
    }, wrong


def run(name, seconds, mebibytes, pipe, rank=None, store=None):
    torch.set_num_threads(1)
    if rank is not None:
        torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2, timeout=WAIT)
    try:
        result = soak(name, seconds, mebibytes)
    except BaseException as error:  # any exception is a result
        result = {"name": name, "steps": 0, "disturbed": {}, "MiB": (0, 0, 0), "speed": [0, 0]}, [repr(error)]
    if rank is not None:
        torch.distributed.destroy_process_group()
    if not rank:
        pipe.send(result)


def busy():
    while True:
        sum(range(10_000))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--only", nargs="*", choices=list(LOOPS), default=list(LOOPS))
    parser.add_argument("--mebibytes", type=float, default=24)
    options = parser.parse_args(arguments)
    os.environ["SNNIPU_KEEP_FREED_MEMORY"] = "256M"
    context = multiprocessing.get_context("spawn")
    beside = context.Process(target=busy, daemon=True)
    beside.start()
    failed = False
    try:
        for name in tqdm(options.only, unit="loop", disable=None):
            receive, send = context.Pipe(duplex=False)
            common = (name, options.seconds / len(options.only), options.mebibytes, send)
            with tempfile.TemporaryDirectory() as folder:
                ranks = [(0, f"{folder}/store"), (1, f"{folder}/store")] if name == "two processes" else [()]
                processes = [context.Process(target=run, args=(*common, *rank)) for rank in ranks]
                for process in processes:
                    process.start()
                send.close()
                try:
                    result, wrong = receive.recv()
                except EOFError:
                    result, wrong = None, ["the process ended"]
                for process in processes:
                    process.join()
            failed = failed or bool(wrong)
            if result is not None:
                memory = "{:.0f} -> {:.0f} MiB and {:.0f} kept".format(*result["MiB"])
                speed = "{:.1f} -> {:.1f} steps/s".format(*result["speed"])
                disturbed = sum(result["disturbed"].values())
                tqdm.write(f"{name:20} {result['steps']:7} steps, {disturbed:5} disturbed, {memory}, {speed}")
            for text in wrong:
                tqdm.write(f"{name}: {text}")
    finally:
        beside.kill()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
