"""An unmodified loop over time steps, and what compilers make of it: networks of snnTorch's tutorials in training."""


import snntorch
import torch

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, several
from benchmarks.cases.network import loss_and_gradients
from benchmarks.checks import check_training
from benchmarks.loop_networks import NETWORKS, forward_pass
from benchmarks.training_step import adam, check_rounding, training_workload

BATCHES = (1, 16, 64, 128)
CONVOLUTIONAL = ("tutorial-6", "tutorial-7")


def points(values):
    """Return every network and batch size; those with several are for the convolutional networks alone."""
    batches = several(values["batch_size"])
    return [
        {**values, "network": network, "batch_size": batch}
        for network in several(values["network"])
        for batch in (batches if network in CONVOLUTIONAL or batches != BATCHES else batches[-1:])
    ]


def contenders(settings):
    name, steps, batch, device = settings.network, settings.steps, settings.batch_size, settings.device
    generator = torch.Generator().manual_seed(settings.seed)
    kind = NETWORKS[name]
    in_function, frames = name in CONVOLUTIONAL, name == "tutorial-7"
    x = torch.rand(kind.shape(steps, batch), generator=generator)
    x = (x * (torch.rand(x.shape, generator=generator) < 0.2)).to(device)

    def network(snn):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            return kind.make(snn, settings).to(device)

    def record(out):
        return out[1] if isinstance(out, tuple) else out

    def loop(net):
        return lambda: record(forward_pass(net, steps, x, frames) if in_function else net(x))

    def run(net, loss):
        return loss_and_gradients(loss, list(net.parameters()))

    def expected():
        net = network(snntorch)
        return run(net, lambda: kind.loss(loop(net)(), x))

    def workload(net, loss, compiles=False):
        def compared(tolerance):
            return check_training(*run(net, loss), *expected(), tolerance, "snnTorch")

        def check():
            return check_rounding(compared, kind.tolerance, kind.rounding(steps, batch), device)

        seconds = peers.compile_seconds(lambda: run(net, loss)) if compiles else None
        return training_workload(adam(net), loss, check, device, seconds)

    def eager(snn):
        net = network(snn)
        return workload(net, lambda: kind.loss(loop(net)(), x))

    def multistep():
        net = network(snnipu)
        return workload(net, lambda: kind.batched(net.over_time(x), x))

    def inductor():
        net = network(snntorch)
        run = loop(net)
        return workload(net, peers.compiled(lambda: kind.loss(run(), x), device), compiles=True)

    def compiled():
        net = network(snnipu)
        run = snnipu.compile(forward_pass if in_function else net)
        given = (net, steps, x, frames) if in_function else (x,)
        return workload(net, lambda: kind.batched(record(run(*given)), x), compiles=True)

    return [
        Contender("snnipu-loop", "snnipu, the loop", lambda: eager(snnipu)),
        Contender(
            "snnipu-multistep",
            "snnipu MultiStep",
            multistep,
            note="the network rewritten, the loss in one call over all steps",
        ),
        Contender("snntorch", "snnTorch, the loop", lambda: eager(snntorch), "snntorch"),
        Contender("compile", "snnTorch loop, torch.compile", inductor, "compile"),
        # The last one: what compiles above starts TorchDynamo anew.
        Contender(
            "snnipu-compiled",
            "snnipu, the loop compiled",
            compiled,
            note="snnipu.compile of the unmodified loop; the loss in one call over all steps, as MultiStep's",
        ),
    ]


CASE = Case(
    summary="networks of snnTorch's tutorials as an unmodified loop, compiled and not",
    work=(
        "Forward over T steps, a loss on what was recorded, backward, one Adam step. The same initial weights, input and "
        "targets for all."
    ),
    title=lambda settings: (
        f"{settings.network}: {NETWORKS[settings.network].title}; one training step: T={settings.steps} × "
        f"B={settings.batch_size} (N={settings.neurons})"
    ),
    contenders=contenders,
    sizes={"steps": 25, "batch_size": BATCHES, "neurons": 1000, "beta": 0.9, "network": tuple(NETWORKS)},
    quick={"steps": 5, "batch_size": 2, "neurons": 64, "network": ("tutorial-5", "tutorial-7")},
    points=points,
    axes=("network", "batch_size"),
    tables=("milliseconds", "peak_mebibytes", "faults"),
    charts=("milliseconds", "peak_mebibytes"),
    choices={"network": list(NETWORKS)},
    min_seconds=3.0,
    slow_seconds=0.25,
)
