"""Training of small programs in the style of snnTorch's users: with the import changed, compiled and rewritten."""

import snntorch
import torch

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Workload
from benchmarks.checks import check_training, summation_rounding
from benchmarks.programs import CLASSES, PROGRAMS, make
from benchmarks.training_step import adam, check_rounding, training_workload

TOLERANCE = 1e-5


def automatic(function):
    """Compile ``function``, which has or calls a loop over time, without a change of the program."""
    peers.forget_compiled()
    return snnipu.compile(function)


class Training:
    """A training step of a program: the same input, targets and random numbers for every contender.

    With ``of_network``, errors of gradients are relative to the largest gradient of the network.
    """

    def __init__(self, kind, settings, of_network=True):
        self.kind, self.settings, self.of_network = kind, settings, of_network
        generator = torch.Generator().manual_seed(settings.seed)
        self.x = kind.data(settings, generator).to(settings.device)
        self.targets = torch.randint(CLASSES, (settings.batch_size,), generator=generator).to(settings.device)

    def program(self, library):
        net = make(self.kind, library, self.settings)
        net.optimizer = adam(net)
        return net

    def first_step(self, net, step):
        """Return the loss and the gradients of the training step from the initial weights."""
        initial = make(self.kind, snntorch, self.settings)
        with torch.no_grad():
            for parameter, value in zip(net.parameters(), initial.parameters()):
                parameter.copy_(value)
        torch.manual_seed(self.settings.seed)
        net.zero_grad()
        loss = step(self.x, self.targets)
        if not net.trains:
            loss.backward()
        return loss.detach(), [parameter.grad for parameter in net.parameters()]

    def workload(self, library, of=lambda net: net.step, compiles=False):
        """Return the workload of the training step ``of(program)`` for a program of a library."""
        net = self.program(library)
        step, device = of(net), self.settings.device

        def compared(tolerance):
            reference = self.program(snntorch)
            expected = self.first_step(reference, reference.step)
            return check_training(*self.first_step(net, step), *expected, tolerance, "snnTorch", self.of_network)

        def check():
            return check_rounding(compared, TOLERANCE, summation_rounding(self.kind.terms(self.settings)), device)

        seconds = peers.compile_seconds(lambda: self.first_step(net, step)) if compiles else None
        if net.trains:
            return Workload(lambda: step(self.x, self.targets), check, seconds)
        return training_workload(net.optimizer, lambda: step(self.x, self.targets), check, device, seconds)


def contenders(settings):
    kind = PROGRAMS[settings.program]
    training = Training(kind, settings)
    rewritten = Contender(
        "snnipu-multistep",
        "MultiStep",
        lambda: training.workload(snnipu, lambda net: net.rewritten),
        note="the loop rewritten",
    )
    return [
        Contender(
            "snnipu-import",
            "import alone",
            lambda: training.workload(snnipu),
            note="snnipu for snnTorch, the program unchanged",
        ),
        Contender(
            "snnipu-automatic",
            "automatic",
            lambda: training.workload(snnipu, lambda net: automatic(net.step), compiles=True),
            note="the same, its loop compiled; the program unchanged",
        ),
        *([rewritten] if kind.has_rewrite(settings.device) else []),
        Contender("snntorch", "snnTorch", lambda: training.workload(snntorch), "snntorch"),
    ]


CASE = Case(
    summary="programs as people write them: the import alone, compiled automatically, MultiStep",
    work=(
        "One training step: forward over T steps, a loss, backward, one Adam step. The same initial weights, input, "
        "targets and random numbers for all."
    ),
    title=lambda settings: (
        f"{PROGRAMS[settings.program].__doc__}; one training step: T={settings.steps} × B={settings.batch_size} "
        f"(N={settings.neurons})"
    ),
    contenders=contenders,
    sizes={"steps": 25, "batch_size": (1, 16, 128), "neurons": 256, "beta": 0.9, "program": tuple(PROGRAMS)},
    quick={"program": ("forward", "counters", "training")},
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
