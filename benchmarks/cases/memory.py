"""LIF alone against the size of the sequence: the speed relative to a copy of the minimum of bytes, and page faults."""

import functools
import math

import torch

from benchmarks import peers
from benchmarks.case import Case, Check, Contender, Settings, Unavailable, Workload, several
from benchmarks.cases import lif
from benchmarks.memory import available_memory
from snnipu.backends import release_memory

ELEMENT_BYTES = 4
# If less than this multiple of the tensor is available, memory is released before each row.
MEMORY_OF_ALL = 24
# A size runs if this multiple of its tensor is available: x, the upstream gradient, all results at once, the copies.
LEAST_MEMORY = 12
# Sequences that a peer needs at its peak, with snnipu's results and norse's scaled input.
SEQUENCES_OF_PEERS = {"snntorch-unbind": 7, "spikingjelly": 9, "norse": 12}
# Elements times steps above which norse takes more than 20 s: 800 x 128 x 1024 takes 42.
LOOP_LIMIT = 3e10
# Elements of the results that are compared at a time.
CHECKED_ELEMENTS = 2**24
# A copy works in blocks of this size, larger than any cache, to limit its memory.
COPY_ELEMENTS = 2**26
# Minimum of bytes that a neuron reads and writes in a step, forward and backward.
SEQUENCE_BYTES, SPIKES_BYTES = 24, 20


def elements(settings):
    return settings.steps * settings.batch_size * settings.neurons


def points(values):
    """Return the sizes for which there is memory, in ascending order."""
    sizes = [dict(zip(("steps", "batch_size", "neurons"), map(int, t.split("x")))) for t in several(values["tensor"])]
    if any(len(size) != 3 or min(size.values()) < 1 for size in sizes):
        raise ValueError(f"tensor: expected sizes TxBxN such as 100x128x1024, got {values['tensor']}")
    release_memory()
    available = available_memory() or math.inf
    tables = [
        {**values, **size} for size in sizes if LEAST_MEMORY * ELEMENT_BYTES * math.prod(size.values()) <= available
    ]
    if len(tables) < len(sizes):
        message = f"tensor: a size needs {LEAST_MEMORY} times its bytes; {available / 1e9:.1f} GB are available"
        if not tables:
            raise ValueError(message)
        print(f"{message}: {len(sizes) - len(tables)} left out")
    return sorted(tables, key=lambda table: elements(Settings(**table)))


class Work(lif.Work):
    """The work of ``lif``, and the memory of the copies."""

    def __init__(self, settings):
        super().__init__(settings, part=CHECKED_ELEMENTS)

    @functools.cached_property
    def copied(self):
        """Source and destination of the copies, with all pages mapped."""
        largest = math.ceil(elements(self.settings) * SEQUENCE_BYTES / 2 / ELEMENT_BYTES)
        source = torch.rand(min(largest, COPY_ELEMENTS), generator=torch.Generator().manual_seed(0)).to(self.device)
        return source, source.clone()

    def copy(self, traffic):
        """Return a copy of half of ``traffic`` bytes for each element of x: copying reads and writes them."""
        source, destination = self.copied
        remaining = math.ceil(elements(self.settings) * traffic / 2 / ELEMENT_BYTES)
        blocks = []
        while remaining > 0:
            blocks.append((destination[:remaining], source[:remaining]))
            remaining -= source.numel()

        def step():
            for target, origin in blocks:
                target.copy_(origin)

        def check():
            destination.fill_(-1)
            step()
            copied = max(target.numel() for target, _ in blocks)
            return Check(torch.equal(destination[:copied], source[:copied]), "itself", "a copy")

        return Workload(step, check)


# A single entry: the next point of a sweep replaces the last one.
work_of = functools.lru_cache(maxsize=1)(Work)


def check_fits(settings, contender):
    """Raise Unavailable if a step takes too long, or more memory than available."""
    if contender == "norse" and settings.steps * elements(settings) > LOOP_LIMIT:
        raise Unavailable("takes more than 20 s a step: its loop over x[step] makes a gradient of all of x at each")
    needed = SEQUENCES_OF_PEERS[contender] * elements(settings) * ELEMENT_BYTES
    release_memory()
    available = available_memory(settings.device)
    if available is not None and needed > available:
        raise Unavailable(f"needs about {needed / 1e9:.1f} GB of memory, of which {available / 1e9:.1f} are available")


def is_tight(settings):
    available = available_memory(settings.device)
    return available is not None and available < MEMORY_OF_ALL * elements(settings) * ELEMENT_BYTES


def contenders(settings):
    """Return the rows; input and upstream gradient are created when the first contender is built."""

    def peer(name, make):
        def build():
            work = work_of(settings)
            check_fits(settings, name)
            return make(work)

        return build

    return [
        Contender(
            "snnipu",
            "snnipu Leaky.sequence",
            lambda: work_of(settings).sequence(),
            note="returns spikes and membranes; its floor is a copy of 24 bytes a neuron and step: forward reads x and "
            "writes both, backward reads the membranes and the gradient of the spikes and writes that of x",
            floor="copy-24",
        ),
        Contender(
            "snnipu-spikes",
            "snnipu Leaky.spikes",
            lambda: work_of(settings).spikes(),
            note="returns the spikes alone; its floor is a copy of 20 bytes: the backward pass reads x again",
            floor="copy-20",
        ),
        Contender(
            "snntorch-unbind",
            "snnTorch loop, x.unbind()",
            peer("snntorch-unbind", lif.Work.loop_unbind),
            "snntorch",
            "its fastest loop, and as the other libraries' its membranes are kept for backward: their floor is that of "
            "Leaky.sequence",
            "copy-24",
        ),
        *peers.multi_step_contenders(
            peer("spikingjelly", lif.Work.spikingjelly), peer("norse", lif.Work.norse), "copy-24"
        ),
        *(
            Contender(
                f"copy-{traffic}",
                f"copy of {traffic} bytes",
                lambda traffic=traffic: work_of(settings).copy(traffic),
                "copy",
                "a neuron and step, half of them read and half written, to memory that is there",
                f"copy-{traffic}",
            )
            for traffic in (SEQUENCE_BYTES, SPIKES_BYTES)
        ),
    ]


CASE = Case(
    summary="lif against the size of the sequence, from 1 MB to 1 GB: share of a copy's speed, page faults",
    work=lif.WORK,
    title=lambda settings: (
        f"LIF alone, forward + backward, {elements(settings) * ELEMENT_BYTES / 1e6:,.3g} MB a sequence: "
        f"T={settings.steps} × B={settings.batch_size} × N={settings.neurons}"
    ),
    contenders=contenders,
    sizes={
        "tensor": ("25x16x625", "25x128x1000", "100x128x1024", "200x128x1024", "800x128x1024", "1000x256x1024"),
        "beta": 0.9,
    },
    quick={"tensor": ("5x16x64", "10x16x128")},
    points=points,
    axes=("megabytes",),
    tables=("milliseconds", "of_copy", "faults"),
    charts=("of_copy", "faults"),
    parameters=lambda settings: {
        "megabytes": elements(settings) * ELEMENT_BYTES / 1e6,
        "memory_given_back": is_tight(settings),
    },
    reference="snntorch-unbind",
    min_seconds=3.0,
    slow_seconds=0.25,
    slow_rounds=3,
    gives_back=is_tight,
)
