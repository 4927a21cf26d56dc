"""What a benchmark is made of: the settings of a problem, its contenders, their workloads and their checks."""

import itertools
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch


class Unavailable(RuntimeError):
    """A contender cannot run here; the message says why and what would help."""


@dataclass(frozen=True)
class Settings:
    """Sizes and choices of all cases; each case names those that it has."""

    steps: int = 25
    batch_size: int = 128
    neurons: int = 1000
    beta: float = 0.9
    # Spikes per neuron and step.
    activity: float = 0.02
    seed: int = 0
    # Whose published sizes, or which network of a table.
    input: str = "nmnist"
    network: str = "tutorial-5"
    hidden_layers: int = 2
    # Of each hidden layer; 0: the published numbers.
    hidden_neurons: int = 0
    neuron: str = "Leaky"
    program: str = "forward"
    layer: str = "16-17x17"
    work: str = "training"
    longest_delay: int = 25
    # T, B and N.
    tensor: str = "100x128x1024"
    processes: int = 1
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class Check:
    """Outcome of a comparison with ``against``; ``detail`` has the errors and what was allowed."""

    passed: bool
    against: str
    detail: str


@dataclass(frozen=True)
class Workload:
    """A contender that is ready to run.

    Attributes:
        step: one timed unit of work; its result stays alive until its memory is measured.
        check: compares the results with their reference; called once, before any ``step``.
        compile_seconds: time of just-in-time compilation, never part of a step's time.
        phases: returns the seconds of each phase of a step by name.
    """

    step: Callable[[], Any]
    check: Callable[[], Check]
    compile_seconds: Optional[float] = None
    phases: Optional[Callable[[], Mapping[str, float]]] = None


@dataclass(frozen=True)
class Contender:
    """A row of a table.

    Attributes:
        build: makes the workload; raises :class:`Unavailable` where that cannot run.
        peer: the entry of ``--peers`` that selects this row; empty: snnipu's own, which always runs.
        note: what a reader must know to compare this row with the others.
        floor: name of the row that copies the least bytes that this one reads and writes.
        torch_memory: whether PyTorch allocates its memory; else only a process of its own tells it.
        samples: of a step, where the table tells how many there are a second.
    """

    name: str
    label: str
    build: Callable[[], Workload]
    peer: str = ""
    note: str = ""
    floor: str = ""
    torch_memory: bool = True
    samples: Optional[int] = None


Values = Mapping[str, Any]


def several(value):
    """Return the values of a setting that may be swept."""
    return value if isinstance(value, tuple) else (value,)


def headline(values):
    """Return one value of each setting: the usual one where it is there, else the first."""
    usual = {name: getattr(Settings, name, None) for name in values}
    return {name: usual[name] if usual[name] in several(value) else several(value)[0] for name, value in values.items()}


def product(values):
    """Return the points of a sweep: every combination."""
    return [dict(zip(values, point)) for point in itertools.product(*map(several, values.values()))]


def cross(values):
    """Return the points of a sweep along each setting, with the headline's values of the others."""
    swept = [(name, value) for name, all_values in values.items() for value in several(all_values)]
    points = [{**headline(values), name: value} for name, value in swept if isinstance(values[name], tuple)]
    return [point for index, point in enumerate(points) if point not in points[:index]] or [headline(values)]


@dataclass(frozen=True)
class Case:
    """A problem and its contenders.

    Attributes:
        summary: a line for ``--help``.
        work: what is timed.
        title: of the table of these settings; no two tables have the same.
        contenders: of these settings. Input and weights are made when the first one is built.
        sizes: the settings of the case; a tuple is swept.
        quick: those with ``--quick``.
        points: makes the tables of a sweep; raises ValueError where there is none.
        axes: settings that tables and charts have as their x axis.
        tables: columns of the summary that are told along an axis; ``charts``: that are drawn.
        choices: the names that a setting can have.
        parameters: of a table, as columns of its records.
        reference: the row that speeds and memory are relative to.
        check: what a passed check says.
        slow_seconds: a contender that takes longer takes part in fewer rounds, but in ``slow_rounds``.
        on_cuda: the tables on a GPU where nothing else is asked for.
        gives_back: whether each contender is timed in memory that it got itself.
        memory_apart: whether peak memory is that of a process of its own, where the system tells.
        samples: yields the times in place of :func:`benchmarks.timing.interleaved`, whose arguments it has.
        measured: what the data turned out to be.
    """

    summary: str
    work: str
    title: Callable[[Settings], str]
    contenders: Callable[[Settings], List[Contender]]
    sizes: Values
    quick: Values
    points: Callable[[Values], List[Dict[str, Any]]] = product
    axes: Tuple[str, ...] = ()
    tables: Tuple[str, ...] = ("milliseconds",)
    charts: Tuple[str, ...] = ("milliseconds",)
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    parameters: Optional[Callable[[Settings], Dict[str, Any]]] = None
    reference: str = "snntorch"
    check: str = (
        "The same results as snnTorch's eager loop, or, for a library whose neuron is another function, as its own "
        "update rule in plain PyTorch."
    )
    repeats: int = 9
    min_seconds: float = 0.0
    slow_seconds: Optional[float] = None
    slow_rounds: int = 5
    dtypes: Sequence[torch.dtype] = (torch.float32,)
    devices: Sequence[str] = ("cpu", "cuda")
    on_cuda: Sequence[Values] = ()
    gives_back: Callable[[Settings], bool] = lambda settings: False
    memory_apart: bool = False
    samples: Optional[Callable[..., Iterator[Tuple[str, Any]]]] = None
    measured: Callable[[Settings], Dict[str, Any]] = lambda settings: {}

    def parameters_of(self, settings):
        if self.parameters is not None:
            return self.parameters(settings)
        return {name: getattr(settings, name) for name in self.sizes}
