"""LIF alone against the size of the sequence: the speed of a copy of the least traffic, and page faults."""

import functools
import math
import time
from dataclasses import replace
from typing import Callable, List, Sequence, Tuple

import torch

from snnipu.backends import release_memory
from benchmarks import peers
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.cases import lif
from benchmarks.checks import Check
from benchmarks.memory import available_memory, peak_extra_bytes
from benchmarks.options import Option
from benchmarks.timing import synchronise

SUMMARY = "lif against the size of the sequence, from 1 MB to 1 GB: share of a copy's speed, page faults"
DTYPES = (torch.float32,)
FULL = {"steps": 100, "batch_size": 128, "neurons": 1024, "repeats": 9, "min_seconds": 3.0}

Shape = Tuple[int, int, int]
TENSORS: Tuple[Shape, ...] = (
    (25, 16, 625),
    (25, 128, 1000),
    (100, 128, 1024),
    (200, 128, 1024),
    (800, 128, 1024),
    (1000, 256, 1024),
)
QUICK_TENSORS: Tuple[Shape, ...] = ((5, 16, 64), (10, 16, 128))

MEGABYTE = 1e6
ELEMENT_BYTES = 4
# A size runs where so many times its tensor are available: x, the upstream gradient, all results at once, the copies.
LEAST_MEMORY = 12
# With less, what each row leaves in the heap is given back before the next: there is no room for that of all.
_MEMORY_OF_ALL = 24
# Beside a peer's own step: what snnipu keeps for its results, and norse's input.
_OTHERS = 4
# A peer's time and memory are told from a step on a part of the samples, where the whole is larger.
_PROBE_ELEMENTS = 2**20
_LARGER_PROBE = 8
# A peer that takes longer a call has no time: norse's loop over x[step] makes a gradient of all of x at every step.
LONGEST_SECONDS = 20.0
# Parts of the results that are compared at a time.
_CHECKED_ELEMENTS = 2**24
# A copy goes over blocks of this size, which no cache holds: it need not have six more sequences of memory.
_COPY_ELEMENTS = 2**26
_SLOW_SECONDS = 0.25
_SLOW_ROUNDS = 3
# Bytes that a neuron reads and writes in a step at least, forward and backward.
SEQUENCE_BYTES, SPIKES_BYTES = 24, 20


def _shape(text: str) -> Shape:
    try:
        steps, batch_size, neurons = (int(size) for size in text.split("x"))
    except ValueError:
        raise ValueError(f"expected sizes TxBxN such as 100x128x1024, separated by commas, but is {text!r}") from None
    if min(steps, batch_size, neurons) < 1:
        raise ValueError(f"sizes must be at least 1, but is {text!r}")
    return steps, batch_size, neurons


def _shapes(text: str) -> List[Shape]:
    shapes = sorted({_shape(part) for part in text.split(",")}, key=math.prod)
    for one, other in zip(shapes, shapes[1:]):
        if math.prod(one) == math.prod(other):
            raise ValueError(f"each must have another size, but two have {math.prod(one)} elements")
    return shapes


OPTIONS = (
    Option(
        "tensors",
        f"sizes of the sequence, TxBxN; default: {','.join('x'.join(map(str, shape)) for shape in TENSORS)}",
        _shapes,
        TENSORS,
        QUICK_TENSORS,
        metavar="LIST",
        replaces=("steps", "batch_size", "neurons"),
    ),
)


def _elements(settings: Settings) -> int:
    return settings.steps * settings.batch_size * settings.neurons


def megabytes(settings: Settings) -> float:
    """Size of one sequence ``[T, B, N]`` in float32."""
    return _elements(settings) * ELEMENT_BYTES / MEGABYTE


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


class Work(lif.Work):
    """The work of ``lif`` and the memory that the copies read and write."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, part=_CHECKED_ELEMENTS)

    @functools.cached_property
    def copied(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """Source and destination, of which every page is there."""
        largest = math.ceil(_elements(self.settings) * SEQUENCE_BYTES / 2 / ELEMENT_BYTES)
        source = torch.rand(min(largest, _COPY_ELEMENTS), generator=torch.Generator().manual_seed(0)).to(self.device)
        return source, source.clone()

    def copy(self, traffic: int) -> Workload:
        """Copies half of ``traffic`` bytes for each element of x: what is copied is read and written."""
        source, destination = self.copied
        left = math.ceil(_elements(self.settings) * traffic / 2 / ELEMENT_BYTES)
        blocks = []
        while left > 0:
            blocks.append((destination[:left], source[:left]))
            left -= source.numel()

        def step() -> None:
            for to, from_ in blocks:
                to.copy_(from_)

        def check() -> Check:
            destination.fill_(-1)
            step()
            copied = max(to.numel() for to, _ in blocks)
            return Check(torch.equal(destination[:copied], source[:copied]), "itself", "a copy")

        return Workload(step, check)


# One at a time: the next point of a sweep takes the place of the last.
_work = functools.lru_cache(maxsize=1)(Work)


def _part(settings: Settings, elements: int) -> Settings:
    """So many samples that x has about so many elements."""
    return replace(
        settings, batch_size=min(settings.batch_size, max(1, elements // (settings.steps * settings.neurons)))
    )


def _warm_seconds(workload: Workload, device: torch.device) -> float:
    """The shortest of some calls, of which the first sets things up."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        workload.step()
        synchronise(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def _seconds(settings: Settings, make: Callable[[lif.Work], Workload]) -> float:
    """Of one step: those of a loop's calls and those of its samples, told apart by two parts."""
    small = _part(settings, _PROBE_ELEMENTS)
    large = _part(settings, _PROBE_ELEMENTS * _LARGER_PROBE)
    seconds = _warm_seconds(make(lif.Work(small)), small.device)
    if seconds * _elements(settings) / _elements(small) <= LONGEST_SECONDS or large == small:
        return seconds
    more = max(0.0, _warm_seconds(make(lif.Work(large)), large.device) - seconds)
    added = large.batch_size - small.batch_size
    return seconds + more / added * (settings.batch_size - small.batch_size)


def _peak_bytes(settings: Settings, make: Callable[[lif.Work], Workload]) -> float:
    """Of one step, in proportion to that on a part of the samples."""
    small = _part(settings, _PROBE_ELEMENTS)
    workload = make(lif.Work(small))
    workload.step()  # the first one sets things up
    return peak_extra_bytes(workload.step, small.device) * _elements(settings) / _elements(small)


def _fits(settings: Settings, make: Callable[[lif.Work], Workload]) -> None:
    """Raises :class:`benchmarks.Unavailable` where a step takes too long, or more memory than there is."""
    if _elements(settings) <= _PROBE_ELEMENTS:
        return
    seconds = _seconds(settings, make)
    if seconds > LONGEST_SECONDS:
        raise peers.Unavailable(
            f"would take about {seconds:.0f} s a step; those above {LONGEST_SECONDS:g} s do not run"
        )
    needed = _peak_bytes(settings, make) + _OTHERS * _elements(settings) * ELEMENT_BYTES
    release_memory()
    available = available_memory(settings.device)
    if available is not None and needed > available:
        raise peers.Unavailable(
            f"needs about {_gigabytes(needed)} of memory, of which {_gigabytes(available)} are available"
        )


def _peer(settings: Settings, make: Callable[[lif.Work], Workload]) -> Workload:
    work = _work(settings)
    _fits(settings, make)
    return make(work)


def _is_tight(settings: Settings) -> bool:
    available = available_memory(settings.device)
    return available is not None and available < _MEMORY_OF_ALL * megabytes(settings) * MEGABYTE


def build(settings: Settings) -> Case:
    """The case at the given sizes. Input and upstream gradient are made when the first contender is built."""

    def peer(make: Callable[..., Workload]) -> Callable[..., Workload]:
        return lambda **more: _peer(settings, functools.partial(make, **more))

    contenders: List[Contender] = [
        Contender(
            "snnipu",
            "snnipu Leaky.sequence",
            lambda: _work(settings).sequence(),
            ratio_label="snnipu",
            note="returns spikes and membranes; its floor is a copy of 24 bytes a neuron and step: forward reads x and "
            "writes both, backward reads the membranes and the gradient of the spikes and writes that of x",
            floor="copy-24",
        ),
        Contender(
            "snnipu-spikes",
            "snnipu Leaky.spikes",
            lambda: _work(settings).spikes(),
            note="returns the spikes alone; its floor is a copy of 20 bytes: the backward pass reads x again",
            floor="copy-20",
        ),
        Contender(
            "snntorch-unbind",
            "snnTorch loop, x.unbind()",
            peer(lif.Work.loop_unbind),
            peer="snntorch",
            note="its fastest loop, and as the other libraries' its membranes are kept for backward: their floor is "
            "that of Leaky.sequence",
            floor="copy-24",
        ),
        *(
            replace(contender, floor="copy-24")
            for contender in peers.multi_step_contenders(
                peer(lif.Work.spikingjelly), peer(lif.Work.norse), settings.device
            )
        ),
        Contender(
            "copy-24",
            "copy of 24 bytes",
            lambda: _work(settings).copy(SEQUENCE_BYTES),
            peer="copy",
            note="a neuron and step: 12 read and 12 written, to memory that is there",
            floor="copy-24",
        ),
        Contender(
            "copy-20", "copy of 20 bytes", lambda: _work(settings).copy(SPIKES_BYTES), peer="copy", floor="copy-20"
        ),
    ]
    size, tight = megabytes(settings), _is_tight(settings)
    return Case(
        name="memory",
        title=f"LIF alone, forward + backward, {size:,.3g} MB a sequence: "
        f"T={settings.steps} × B={settings.batch_size} × N={settings.neurons}"
        if size < 1000
        else f"LIF alone, forward + backward, {size:,.0f} MB a sequence: "
        f"T={settings.steps} × B={settings.batch_size} × N={settings.neurons}",
        caption=lif.caption(settings.beta),
        contenders=contenders,
        memory_reference="snntorch-unbind",
        parameters={
            "megabytes": size,
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "neurons": settings.neurons,
            "dtype": str(settings.dtype).replace("torch.", ""),
            "memory_given_back": tight,
        },
        slow_seconds=_SLOW_SECONDS,
        slow_rounds=_SLOW_ROUNDS,
        alone=tight,
        show_faults=settings.device.type == "cpu",
    )


def sweep(settings: Settings, tensors: Sequence[Shape]) -> Sweep:
    """The points against the size of the sequence; those that this machine has no memory for are left out.

    Args:
        settings: but for the sizes.
        tensors: T, B and N of each point, no two with as many elements.

    Raises:
        ValueError: there is too little memory for all of them.
    """
    points = [replace(settings, steps=t, batch_size=b, neurons=n) for t, b, n in sorted(tensors, key=math.prod)]
    release_memory()
    available = available_memory(settings.device)
    fitting: List[Settings] = []
    left_out: List[str] = []
    for point in points:
        needed = LEAST_MEMORY * megabytes(point) * MEGABYTE
        if available is None or needed <= available:
            fitting.append(point)
        else:
            left_out.append(
                f"{point.steps} × {point.batch_size} × {point.neurons} is left out: it needs about "
                f"{_gigabytes(needed)} of memory, of which {_gigabytes(available)} are available."
            )
    faults = ("faults",) if settings.device.type == "cpu" else ()
    if not fitting:
        raise ValueError(f"tensors: {left_out[0]}")
    return Sweep(
        name="memory",
        title="LIF alone, forward + backward, against the size of the sequence",
        caption=lif.caption(settings.beta),
        points=fitting,
        axes=[
            Axis(
                "megabytes",
                "sequence size in MB",
                [megabytes(point) for point in fitting],
                {},
                tables=("time", "copy_share", *faults),
                panels=("copy_share", *faults),
            )
        ],
        reference=None,
        headline=None,
        left_out=left_out,
    )
