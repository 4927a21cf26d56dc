"""What a case is made of: settings, contenders and the workloads they build; and a sweep, of cases."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from benchmarks.checks import Check
from benchmarks.timing import SLOW_ROUNDS


@dataclass(frozen=True)
class Settings:
    """Sizes and where to run.

    Attributes:
        steps, batch_size: T and B.
        neurons: of the layer, in the cases that have one.
        beta: decay of every neuron of every contender.
        input: what the layers of ``sparse`` were published for, ``"nmnist"`` or ``"shd"``; of ``conv`` and
            ``convolution`` the network or layer.
        hidden_layers: their number in ``sparse``.
        hidden_neurons: of each of them; None: the published numbers.
        activity: spikes per neuron and step in ``sparse``.
        neuron: of the table in ``neurons``.
        network: of ``compile``: a name of its table.
        program: of ``programs``: likewise.
        work: of ``convolution``: ``"currents"`` or ``"weights"``; of ``zeros``: ``"training"`` or ``"inference"``.
        longest_delay: of ``delays``, in steps.
    """

    steps: int = 25
    batch_size: int = 128
    neurons: int = 1000
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    beta: float = 0.9
    seed: int = 0
    input: str = "nmnist"
    hidden_layers: int = 2
    hidden_neurons: Optional[int] = None
    activity: float = 0.02
    neuron: str = "Leaky"
    network: str = "tutorial-5"
    program: str = "forward"
    work: str = "currents"
    longest_delay: int = 25


@dataclass(frozen=True)
class Workload:
    """A contender that is ready to run.

    Attributes:
        step: one timed unit of work; what it returns stays alive until its memory is measured.
        check: compares what the contender computes with its reference. Called once, before any ``step``.
        compile_seconds: what just-in-time compilation took, where there is any; never part of a step's time.
        phases: seconds of each phase of a step, by name, of a few steps; None: it has none.
    """

    step: Callable[[], Any]
    check: Callable[[], Check]
    compile_seconds: Optional[float] = None
    phases: Optional[Callable[[], Mapping[str, float]]] = None


@dataclass(frozen=True)
class Contender:
    """One row of a table.

    Attributes:
        name: key in the JSON file.
        label: name in the table and the chart.
        build: makes the :class:`Workload`; raises :class:`benchmarks.Unavailable` where it cannot run here.
        peer: the entry of ``--peers`` that selects this row; None for snnipu's own rows, which always run.
        ratio_label: heading of the column of times relative to this row; only snnipu's own rows have one.
        note: what a reader must know to compare this row with the others.
        floor: name of the row that only copies what this one must read and write at least; empty: there is none.
        torch_memory: whether its memory is PyTorch's, which is counted; else only a process of its own tells.
    """

    name: str
    label: str
    build: Callable[[], Workload]
    peer: Optional[str] = None
    ratio_label: str = ""
    note: str = ""
    floor: str = ""
    torch_memory: bool = True

    @property
    def own(self) -> bool:
        return self.peer is None


@dataclass(frozen=True)
class Case:
    """One table.

    Attributes:
        memory_reference: the contender whose peak memory is 100 %.
        memory_label: its short name in headings.
        parameters: what tells this table from the others of a sweep, and what a reader needs to repeat it.
        measured: told once the contenders have been checked: what the data turned out to be.
        slow_seconds: contenders that take longer than this take part in fewer rounds; None: all in every round.
        slow_rounds: but in so many at least.
        alone: whether each contender is timed in memory that it got itself: what the one before left is given back.
        show_faults: whether the table has columns for page faults and the kernel's time, which every case measures.
        check_meaning: what a passed check says, for the line under the table; empty: the usual.
    """

    name: str
    title: str
    caption: str
    contenders: List[Contender]
    memory_reference: str = "snntorch"
    memory_label: str = "snnTorch"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    measured: Callable[[], Dict[str, Any]] = dict
    slow_seconds: Optional[float] = None
    slow_rounds: int = SLOW_ROUNDS
    alone: bool = False
    show_faults: bool = False
    check_meaning: str = ""


@dataclass(frozen=True)
class Axis:
    """What is told against one parameter of the cases.

    Attributes:
        parameter: key of :attr:`Case.parameters`.
        label: of the axis.
        values: in ascending order; or names.
        fixed: the other parameters, by their keys; the points of the panel have these.
        percent: whether the values are shares, to be told in per cent.
        tables: what is told: names of :data:`benchmarks.report.QUANTITIES`, a table each.
        panels: likewise, those that the chart has.
        title: what the other parameters are, in words; empty: they are told as they stand.
    """

    parameter: str
    label: str
    values: Sequence[Any]
    fixed: Mapping[str, Any]
    percent: bool = False
    tables: Tuple[str, ...] = ("time",)
    panels: Tuple[str, ...] = ("time",)
    title: str = ""

    @property
    def has_names(self) -> bool:
        """Whether the values are names, and no numbers."""
        return any(isinstance(value, str) for value in self.values)

    def tell(self, value: Any) -> str:
        """The value as the tables and the chart have it."""
        if isinstance(value, str):
            return value
        # A no-break space: a number and its sign stay on one line.
        return f"{100 * value:.3g}\u00a0%" if self.percent else f"{float(f'{value:.3g}'):g}"


@dataclass(frozen=True)
class Sweep:
    """One case over a range of settings.

    Attributes:
        points: the settings of each table.
        axes: what the times are shown against.
        reference: the row that the times of snnipu's own rows are compared with along the first axis: where they cross
            is the break-even. None: there is none.
        headline: the parameters of the point whose whole table is shown, and whose resident memory is measured where
            that is asked for; None: every point.
        left_out: which points were asked for and do not run here, and why: a sentence each.
        memory_apart: whether peak memory is that of a process of its own, where the system tells: a step of many
            thousand small operations is too much for the profiler to record.
    """

    name: str
    title: str
    caption: str
    points: Sequence[Settings]
    axes: Sequence[Axis]
    reference: Optional[str]
    headline: Optional[Mapping[str, Any]]
    left_out: Sequence[str] = ()
    memory_apart: bool = False

    def shown_whole(self, parameters: Mapping[str, Any]) -> bool:
        """Whether the point with these parameters is."""
        return self.headline is None or all(parameters[key] == value for key, value in self.headline.items())

    def place(self, parameters: Mapping[str, Any]) -> str:
        """Where the point with these parameters lies."""
        axes = {axis.parameter: axis for axis in self.axes}
        titles = [
            axis.title
            for axis in self.axes
            if axis.title and all(parameters[key] == value for key, value in axis.fixed.items())
        ]
        return ", ".join([*(f"{axis.label} {axis.tell(parameters[name])}" for name, axis in axes.items()), *titles])
