"""Small programs as people write them with snnTorch, with the import changed, compiled and rewritten: in training."""

from typing import Callable

import snntorch
import torch

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Workload
from benchmarks.checks import check_training, summation_rounding
from benchmarks.loop_networks import CLASSES
from benchmarks.programs import PROGRAMS, make, title
from benchmarks.training_step import adam, check_rounding, training_workload
from snnipu.compiler.automatic import alone

TOLERANCE = 1e-5
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def automatic(function):
    """Compile ``function``, which has or calls a loop over time, without a change of the program."""
    peers.forget_compiled()
    return alone(function)


def contenders(settings):
    name, device = settings.program, settings.device
    kind = PROGRAMS[name]
    generator = torch.Generator().manual_seed(settings.seed)
    x = kind.data(settings, generator).to(device)
    targets = torch.randint(CLASSES, (settings.batch_size,), generator=generator).to(device)

    def program(library):
        net = make(name, library, settings)
        net.optimizer = adam(net)
        return net

    def first_step(net, step):
        """Return the loss and the gradients of the training step from the initial weights."""
        net.load_state_dict(make(name, snntorch, settings).state_dict(), strict=False)
        torch.manual_seed(settings.seed)
        net.zero_grad()
        loss = step(x, targets)
        if not net.trains:
            loss.backward()
        return loss.detach(), [parameter.grad for parameter in net.parameters()]

    def workload(library, of, compiles=False):
        net = program(library)
        step = of(net)

        def compared(tolerance):
            reference = program(snntorch)
            expected = first_step(reference, reference.step)
            return check_training(*first_step(net, step), *expected, tolerance, "snnTorch", of_network=True)

        def check():
            return check_rounding(compared, TOLERANCE, summation_rounding(kind.terms(settings)), device)

        seconds = peers.compile_seconds(lambda: first_step(net, step)) if compiles else None
        if net.trains:
            return Workload(lambda: step(x, targets), check, seconds)
        return training_workload(net.optimizer, lambda: step(x, targets), check, device, seconds)

    rewritten = Contender(
        "snnipu-multistep",
        "MultiStep",
        lambda: workload(snnipu, lambda net: net.rewritten),
        note="the loop rewritten",
    )
    return [
        Contender(
            "snnipu-import",
            "import alone",
            lambda: workload(snnipu, lambda net: net.step),
            note="snnipu for snnTorch, the program as it is",
        ),
        Contender(
            "snnipu-automatic",
            "automatic",
            lambda: workload(snnipu, lambda net: automatic(net.step), compiles=True),
            note="the same, its loop compiled; the program as it is",
        ),
        *([rewritten] if kind.has_rewrite(device) else []),
        Contender("snntorch", "snnTorch", lambda: workload(snntorch, lambda net: net.step), "snntorch"),
    ]


CASE = Case(
    summary="programs as people write them: the import alone, compiled automatically, MultiStep",
    work=(
        "One training step: forward over T steps, a loss, backward, one Adam step. The same initial weights, input, "
        "targets and random numbers for all."
    ),
    title=lambda settings: (
        f"{title(settings.program)}; one training step: T={settings.steps} × B={settings.batch_size} "
        f"(N={settings.neurons})"
    ),
    contenders=contenders,
    sizes={"steps": 25, "batch_size": (1, 16, 128), "neurons": 256, "beta": 0.9, "program": tuple(PROGRAMS)},
    quick={"steps": 5, "batch_size": 2, "neurons": 64, "program": ("forward", "counters", "training")},
    axes=("program",),
    tables=("milliseconds", "speed", "peak_mebibytes"),
    charts=("speed",),
    choices={"program": list(PROGRAMS)},
    min_seconds=2.0,
    slow_seconds=0.25,
    check=(
        "The loss of a training step and the gradient of each parameter as of snnTorch's loop; the error of gradients "
        "relative to the network's largest."
    ),
)
