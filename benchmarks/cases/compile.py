"""An unmodified loop over time steps under several compilers: training of networks of snnTorch's tutorials."""

import snntorch

import snnipu
from benchmarks import peers
from benchmarks.case import SIZES, Case, Contender, several
from benchmarks.cases.programs import Training
from benchmarks.programs import NETWORKS, HiddenStates, forward_pass

BATCHES = (1, 16, 64, 128)
CONVOLUTIONAL = ("tutorial-6", "tutorial-7")


def points(values):
    """Return every network and batch size; only the convolutional networks have several batch sizes by default."""
    batches = several(values["batch_size"])
    return [
        {**values, "network": network, "batch_size": batch}
        for network in several(values["network"])
        for batch in (batches if network in CONVOLUTIONAL or batches != BATCHES else batches[-1:])
    ]


def contenders(settings):
    training = Training(NETWORKS[settings.network], settings, of_network=False)

    def inductor(net):
        return peers.compiled(net.step)

    def compiled(net):
        in_function = isinstance(net, HiddenStates)
        run = snnipu.compile(forward_pass if in_function else net)

        def step(x, targets):
            out = run(*((net.net, net.steps, x, net.frames) if in_function else (x,)))
            return net.batched(net.select(out), x, targets)

        return step

    return [
        Contender("snnipu-loop", "snnipu, the loop", lambda: training.workload(snnipu)),
        Contender(
            "snnipu-multistep",
            "snnipu MultiStep",
            lambda: training.workload(snnipu, lambda net: net.rewritten),
            note="the network rewritten, the loss in one call over all steps",
        ),
        Contender("snntorch", "snnTorch, the loop", lambda: training.workload(snntorch), "snntorch"),
        Contender(
            "compile",
            "snnTorch loop, torch.compile",
            lambda: training.workload(snntorch, inductor, compiles=True),
            "compile",
        ),
        # The last contender: those above reset TorchDynamo.
        Contender(
            "snnipu-compiled",
            "snnipu, the loop compiled",
            lambda: training.workload(snnipu, compiled, compiles=True),
            note="snnipu.compile of the unmodified loop; the loss in one call over all steps, as MultiStep's",
        ),
    ]


CASE = Case(
    summary="networks of snnTorch's tutorials as an unmodified loop, compiled and not",
    work=(
        "Forward over T steps, a loss on what was recorded, backward, one Adam step. The same initial weights, input "
        "and targets for all."
    ),
    title=lambda settings: (
        f"{settings.network}: {NETWORKS[settings.network].__doc__}; one training step: T={settings.steps} × "
        f"B={settings.batch_size} (N={settings.neurons})"
    ),
    contenders=contenders,
    sizes={**SIZES, "batch_size": BATCHES, "network": tuple(NETWORKS)},
    quick={"network": ("tutorial-5", "tutorial-7")},
    points=points,
    axes=("network", "batch_size"),
    tables=("milliseconds", "peak_mebibytes", "faults"),
    charts=("milliseconds", "peak_mebibytes"),
    choices={"network": list(NETWORKS)},
    min_seconds=3.0,
    slow_seconds=0.25,
)
