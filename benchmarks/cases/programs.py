"""Small programs as people write them with snnTorch, with the import changed, compiled and rewritten: in training."""

from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import snntorch
import torch

import snnipu
from benchmarks import peers
from benchmarks.case import Axis, Case, Contender, Settings, Sweep, Workload
from benchmarks.checks import Check, check_training, summation_rounding
from benchmarks.loop_networks import CLASSES
from benchmarks.options import Option, batch_sizes, names_of
from benchmarks.programs import PROGRAMS, Program, make, title
from benchmarks.training_step import adam, check_rounding, training_workload
from snnipu.compiler.automatic import alone

SUMMARY = "programs as people write them: the import alone, compiled automatically, MultiStep"
# snnTorch's spikes are float32 whatever its input is.
DTYPES = (torch.float32,)
DEVICES = ("cpu", "cuda")
FULL = {"steps": 25, "batch_size": 16, "neurons": 256, "repeats": 9, "min_seconds": 2.0}
BATCHES = (1, 16, 128)
_TOLERANCE = 1e-5
_SLOW_SECONDS = 0.25
_CAPTION = (
    "The work: one training step: forward over T steps, a loss, backward, one Adam step. The same initial weights, "
    "input, targets and random numbers for all."
)
_CHECK = (
    "check: the loss of a training step and the gradient of each parameter as of snnTorch's loop; the error of "
    "gradients relative to the network's largest."
)

OPTIONS = (
    Option(
        "programs",
        f"which, comma-separated; default: all of {', '.join(PROGRAMS)}",
        names_of(list(PROGRAMS)),
        list(PROGRAMS),
        ["forward", "counters", "training"],
        metavar="LIST",
    ),
    Option(
        "program_batches",
        f"batch sizes, comma-separated; default: {','.join(map(str, BATCHES))}",
        batch_sizes,
        list(BATCHES),
        [2],
        metavar="LIST",
        replaces=("batch_size",),
    ),
)

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def automatic(function: Step) -> Step:
    """``function``, which has or calls a loop over time, compiled without a change of the program."""
    peers.forget_compiled()
    return alone(function)  # type: ignore[no-any-return]


def sweep(settings: Settings, programs: Sequence[str], program_batches: Sequence[int]) -> Sweep:
    """A table for each program and batch size."""
    return gathered([replace(settings, program=name, batch_size=b) for b in program_batches for name in programs])


def gathered(points: Sequence[Settings]) -> Sweep:
    """The sweep of these tables."""
    order = list(PROGRAMS)
    points = sorted(points, key=lambda point: (point.batch_size, order.index(point.program)))
    programs: Dict[int, List[str]] = {}
    for point in points:
        programs.setdefault(point.batch_size, []).append(point.program)
    axes = [
        Axis(
            "program",
            "program",
            names,
            {"batch_size": batch},
            tables=("time", "memory"),
            panels=("speedup",),
            title=f"B = {batch}",
        )
        for batch, names in programs.items()
    ]
    return Sweep(
        name="programs",
        title=f"Programs as people write them, one training step: T={points[0].steps}",
        caption=_CAPTION,
        points=points,
        axes=axes,
        reference="snntorch",
        headline={"program": points[0].program, "batch_size": points[0].batch_size},
    )


def build(settings: Settings) -> Case:
    """The table of one program, ``settings.program``, and batch size."""
    name, device = settings.program, settings.device
    kind = PROGRAMS[name]
    generator = torch.Generator().manual_seed(settings.seed)
    x = kind.data(settings, generator).to(device)
    targets = torch.randint(CLASSES, (settings.batch_size,), generator=generator).to(device)

    def program(library: Any) -> Program:
        net = make(name, library, settings)
        net.optimizer = adam(net)
        return net

    def first_step(net: Program, step: Step) -> Tuple[torch.Tensor, List[Optional[torch.Tensor]]]:
        """The loss and the gradients of the training step from the initial weights."""
        initial = make(name, snntorch, settings)
        with torch.no_grad():
            for parameter, value in zip(net.parameters(), initial.parameters()):
                parameter.copy_(value)
        torch.manual_seed(settings.seed)
        net.zero_grad()
        loss = step(x, targets)
        if not net.trains:
            loss.backward()
        return loss.detach(), [parameter.grad for parameter in net.parameters()]

    def workload(library: Any, of: Callable[[Program], Step], compiles: bool = False) -> Workload:
        net = program(library)
        step = of(net)

        def check() -> Check:
            def compared(tolerance: float) -> Check:
                reference = program(snntorch)
                expected = first_step(reference, reference.step)
                return check_training(*first_step(net, step), *expected, tolerance, "snnTorch", of_network=True)

            return check_rounding(compared, _TOLERANCE, summation_rounding(kind.terms(settings)), device)

        seconds = peers.compile_seconds(lambda: first_step(net, step)) if compiles else None
        if net.trains:
            return Workload(lambda: step(x, targets), check, seconds)
        return training_workload(net.optimizer, lambda: step(x, targets), check, device, seconds)

    contenders = [
        Contender(
            "snnipu-import",
            "import alone",
            lambda: workload(snnipu, lambda net: net.step),
            ratio_label="import",
            note="snnipu for snnTorch, the program as it is",
        ),
        Contender(
            "snnipu-automatic",
            "automatic",
            lambda: workload(snnipu, lambda net: automatic(net.step), compiles=True),
            ratio_label="automatic",
            note="the same, its loop compiled; the program as it is",
        ),
        Contender("snntorch", "snnTorch", lambda: workload(snntorch, lambda net: net.step), peer="snntorch"),
    ]
    if kind.has_rewrite(device):
        contenders.insert(
            2,
            Contender(
                "snnipu-multistep",
                "MultiStep",
                lambda: workload(snnipu, lambda net: net.rewritten),
                ratio_label="MultiStep",
                note="the loop rewritten",
            ),
        )
    return Case(
        name="programs",
        title=f"{title(name)}; one training step: T={settings.steps} × B={settings.batch_size} (N={settings.neurons})",
        caption=_CAPTION,
        contenders=contenders,
        parameters={
            "program": name,
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "neurons": settings.neurons,
        },
        slow_seconds=_SLOW_SECONDS,
        check_meaning=_CHECK,
    )
