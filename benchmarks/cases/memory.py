"""LIF alone against the size of the sequence: the speed of a copy of the least traffic, and page faults."""

import functools
import math

import torch

from benchmarks import peers
from benchmarks.case import Case, Check, Contender, Settings, Unavailable, Workload, several
from benchmarks.cases import lif
from benchmarks.memory import available_memory
from snnipu.backends import release_memory

ELEMENT_BYTES = 4
# With less than so many times the tensor, what each row leaves in the heap is given back before the next.
MEMORY_OF_ALL = 24
# A size runs where so many times its tensor are available: x, the upstream gradient, all results at once, the copies.
LEAST_MEMORY = 12
# Sequences that a peer needs at its peak, and those that snnipu keeps for its results and norse for its input.
SEQUENCES_OF_PEERS = {"snntorch-unbind": 7, "spikingjelly": 9, "norse": 12}
# Elements times steps from which on norse takes more than 20 s: 800 x 128 x 1024 takes 42.
LOOP_LIMIT = 3e10
# Parts of the results that are compared at a time.
CHECKED_ELEMENTS = 2**24
# A copy goes over blocks of this size, which no cache holds: it need not have six more sequences of memory.
COPY_ELEMENTS = 2**26
# Bytes that a neuron reads and writes in a step at least, forward and backward.
SEQUENCE_BYTES, SPIKES_BYTES = 24, 20


def elements(settings):
    return settings.steps * settings.batch_size * settings.neurons


def points(values):
    """Return the sizes that there is memory for, in ascending order."""
    sizes = [dict(zip(("steps", "batch_size", "neurons"), map(int, t.split("x")))) for t in several(values["tensor"])]
    if any(len(size) != 3 or min(size.values()) < 1 for size in sizes):
        raise ValueError(f"tensor: expected sizes TxBxN such as 100x128x1024, got {values['tensor']}")
    release_memory()
    available = available_memory() or math.inf
    tables = [
        {**values, **size} for size in sizes if LEAST_MEMORY * ELEMENT_BYTES * math.prod(size.values()) <= available
    ]
    if len(tables) < len(sizes):
        told = f"tensor: a size needs {LEAST_MEMORY} times its bytes, of which {available / 1e9:.1f} GB are available"
        if not tables:
            raise ValueError(told)
        print(f"{told}: {len(sizes) - len(tables)} left out")
    return sorted(tables, key=lambda table: elements(Settings(**table)))


class Work(lif.Work):
    """The work of ``lif`` and the memory that the copies read and write."""

    def __init__(self, settings):
        super().__init__(settings, part=CHECKED_ELEMENTS)

    @functools.cached_property
    def copied(self):
        """Source and destination, of which every page is there."""
        largest = math.ceil(elements(self.settings) * SEQUENCE_BYTES / 2 / ELEMENT_BYTES)
        source = torch.rand(min(largest, COPY_ELEMENTS), generator=torch.Generator().manual_seed(0)).to(self.device)
        return source, source.clone()

    def copy(self, traffic):
        """Copy half of ``traffic`` bytes for each element of x: what is copied is read and written."""
        source, destination = self.copied
        left = math.ceil(elements(self.settings) * traffic / 2 / ELEMENT_BYTES)
        blocks = []
        while left > 0:
            blocks.append((destination[:left], source[:left]))
            left -= source.numel()

        def step():
            for to, from_ in blocks:
                to.copy_(from_)

        def check():
            destination.fill_(-1)
            step()
            copied = max(to.numel() for to, _ in blocks)
            return Check(torch.equal(destination[:copied], source[:copied]), "itself", "a copy")

        return Workload(step, check)


# One at a time: the next point of a sweep takes the place of the last.
work_of = functools.lru_cache(maxsize=1)(Work)


def check_fits(settings, contender):
    """Raise Unavailable where a step takes too long, or more memory than there is."""
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
    """Input and upstream gradient are made when the first contender is built."""

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
