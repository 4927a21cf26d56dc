"""The parts of a benchmark: the settings of a problem, its contenders, their workloads and their checks."""

import itertools
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch


class Unavailable(RuntimeError):
    """A contender cannot run here; the message gives the reason and a remedy."""


@dataclass(frozen=True)
class Settings:
    """Sizes and choices of all cases; each case lists the settings that it uses."""

    steps: int = 25
    batch_size: int = 128
    neurons: int = 1000
    beta: float = 0.9
    # Spikes per neuron and step.
    activity: float = 0.02
    seed: int = 0
    # Data set with published sizes, or network of a table.
    input: str = "nmnist"
    network: str = "tutorial-5"
    hidden_layers: int = 2
    # Neurons of each hidden layer; 0: the published numbers.
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
    """The result of a comparison with ``against``; ``detail`` has the errors and the tolerances."""

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
        memory: the work whose peak memory is measured; None: ``step``.
        kept: the work whose results' memory is measured, such as a forward pass with all that its backward pass reads.
    """

    step: Callable[[], Any]
    check: Callable[[], Check]
    compile_seconds: Optional[float] = None
    phases: Optional[Callable[[], Mapping[str, float]]] = None
    memory: Optional[Callable[[], Any]] = None
    kept: Optional[Callable[[], Any]] = None


@dataclass(frozen=True)
class Contender:
    """A row of a table.

    Attributes:
        build: returns the workload; raises :class:`Unavailable` if it cannot run.
        peer: the entry of ``--peers`` that selects this row; empty for snnipu's rows, which always run.
        note: information that a reader needs to compare this row with the others.
        floor: name of the row that copies the minimum of bytes that this row reads and writes.
        torch_memory: True if PyTorch allocates its memory; else only a separate process can measure it.
        samples: samples of a step, if the table shows samples per second.
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

# Sizes of the cases that do not give others, and those with --quick.
SIZES = {"steps": 25, "batch_size": 128, "neurons": 1000, "beta": 0.9}
QUICK = {"steps": 5, "batch_size": 2, "neurons": 32, "activity": (0.05, 0.2)}


def several(value):
    """Return the values of a setting that may be swept."""
    return value if isinstance(value, tuple) else (value,)


def headline(values):
    """Return one value of each setting: the default of ``Settings`` if it is in the sweep, else the first value."""
    defaults = {name: getattr(Settings, name, None) for name in values}
    return {
        name: defaults[name] if defaults[name] in several(value) else several(value)[0]
        for name, value in values.items()
    }


def product(values):
    """Return all combinations of the values, as the points of a sweep."""
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
        work: description of the timed work.
        title: returns the title of a table; titles must be unique.
        contenders: returns the contenders; input and weights are created when the first one is built.
        sizes: the settings of the case; a tuple is swept.
        quick: replacements of ``sizes`` with ``--quick``, in addition to ``QUICK``.
        points: returns the tables of a sweep; raises ValueError if there is none.
        axes: settings that are the x axis of tables and charts.
        tables: columns of the summary that are tabulated along an axis.
        charts: columns of the summary that are drawn.
        choices: the possible names of a setting.
        parameters: returns the parameters of a table, which are columns of its records.
        reference: the row to which speeds and memory are relative.
        check: the statement of a passed check.
        slow_seconds: a contender that takes longer takes part in fewer rounds, but in at least ``slow_rounds``.
        on_cuda: the default tables on a GPU.
        gives_back: returns True if memory is released before each contender is timed.
        memory_apart: True if peak memory is measured in a separate process, if the system supports it.
        samples: yields the times instead of :func:`benchmarks.timing.interleaved`, with the same arguments.
        measured: returns measured properties of the data.
    """

    summary: str
    work: str
    title: Callable[[Settings], str]
    contenders: Callable[[Settings], List[Contender]]
    sizes: Values = field(default_factory=SIZES.copy)
    quick: Values = field(default_factory=dict)
    points: Callable[[Values], List[Dict[str, Any]]] = product
    axes: Tuple[str, ...] = ()
    tables: Tuple[str, ...] = ("milliseconds",)
    charts: Tuple[str, ...] = ("milliseconds",)
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    parameters: Optional[Callable[[Settings], Dict[str, Any]]] = None
    reference: str = "snntorch"
    check: str = (
        "The same results as snnTorch's eager loop; for a library with another neuron, the same results as its update "
        "rule in plain PyTorch."
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

    def values(self, quick):
        """Return the settings and their values."""
        return {**{k: QUICK.get(k, v) for k, v in self.sizes.items()}, **self.quick} if quick else dict(self.sizes)

    def parameters_of(self, settings):
        if self.parameters is not None:
            return self.parameters(settings)
        return {name: getattr(settings, name) for name in self.sizes}
