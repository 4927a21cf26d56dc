"""An unmodified loop over time steps, and what compilers make of it: snnTorch's tutorial networks in training."""

import dataclasses
from typing import Any, Callable, List, Sequence, Tuple

import snntorch
import torch
from snntorch import utils
from torch import nn

import snnipu
from snnipu.benchmarking import peers
from snnipu.benchmarking.case import Case, Contender, Settings, Workload
from snnipu.benchmarking.cases.network import INPUTS, TutorialNet, batched_loss, tutorial_loss
from snnipu.benchmarking.checks import Check, check_training

SUMMARY = "snnTorch's tutorial networks as an unmodified loop, compiled and not"
# snnTorch's spikes are float32 whatever its input is.
DTYPES = (torch.float32,)
DEVICES = ("cpu", "cuda")
BATCHES = (1, 16, 64, 128)
# The neurons round as snnTorch's do; only the order of sums over steps and samples is free.
_TOLERANCE = 1e-5
_NETWORKS = {
    "tutorial-5": "784-{neurons}-10, constant input",
    "tutorial-6": "convolutional, constant image, hidden states",
    "tutorial-7": "convolutional, event frames x[t], hidden states",
}


def variants(settings: Settings) -> List[Settings]:
    """The fully connected network, and the convolutional ones for several batch sizes."""
    found = [settings]
    for name in ("tutorial-6", "tutorial-7"):
        found += [dataclasses.replace(settings, network=name, batch_size=batch) for batch in BATCHES]
    return found


def _layers(snn: Any, settings: Settings) -> List[nn.Module]:
    beta = settings.beta
    grey = settings.network == "tutorial-6"
    first, second = (12, 64) if grey else (12, 32)
    flat = second * 4 * 4 if grey else second * 5 * 5
    last = snn.Leaky(beta=beta, init_hidden=snn is not _OverTime, output=True)
    return [
        nn.Conv2d(1 if grey else 2, first, 5),
        nn.MaxPool2d(2),
        snn.Leaky(beta=beta, init_hidden=snn is not _OverTime),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        snn.Leaky(beta=beta, init_hidden=snn is not _OverTime),
        nn.Flatten(),
        nn.Linear(flat, 10),
        last,
    ]


class _OverTime:
    """snnipu's neurons without hidden states: ``MultiStep`` starts from zeros in each call."""

    Leaky = snnipu.Leaky


def forward_pass(net: nn.Module, steps: int, data: torch.Tensor, frames: bool) -> Tuple[torch.Tensor, torch.Tensor]:
    """The tutorials' function of this name."""
    mem_rec = []
    spk_rec = []
    utils.reset(net)  # resets hidden states for all LIF neurons in net
    for step in range(steps):
        spk_out, mem_out = net(data[step] if frames else data)
        spk_rec.append(spk_out)
        mem_rec.append(mem_out)
    return torch.stack(spk_rec), torch.stack(mem_rec)


def build(settings: Settings) -> Case:
    """The case for one network at the given sizes."""
    name, steps, batch, device = settings.network, settings.steps, settings.batch_size, settings.device
    generator = torch.Generator().manual_seed(settings.seed)
    dense, frames = name == "tutorial-5", name == "tutorial-7"
    shape = {"tutorial-5": (batch, INPUTS), "tutorial-6": (batch, 1, 28, 28), "tutorial-7": (steps, batch, 2, 34, 34)}
    x = torch.rand(shape[name], generator=generator)
    x = (x * (torch.rand(x.shape, generator=generator) < 0.2)).to(device)
    targets = torch.randint(10, (batch,), generator=generator).to(device)

    def network(snn: Any) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            if dense and snn is not _OverTime:
                return TutorialNet(snn, settings.neurons, steps, settings.beta).to(device)
            if dense:
                linear = [nn.Linear(INPUTS, settings.neurons), nn.Linear(settings.neurons, 10)]
                neurons = [snnipu.Leaky(beta=settings.beta) for _ in linear]
                return snnipu.MultiStep(linear[0], neurons[0], linear[1], neurons[1]).to(device)
            layers = _layers(snn, settings)
            return (snnipu.MultiStep(*layers) if snn is _OverTime else nn.Sequential(*layers)).to(device)

    def loop(net: nn.Module) -> Callable[[], Tuple[torch.Tensor, torch.Tensor]]:
        return lambda: net(x) if dense else forward_pass(net, steps, x, frames)

    def loss_and_gradients(loss: Callable[[], torch.Tensor], net: nn.Module) -> Tuple[torch.Tensor, Sequence[Any]]:
        value = loss()
        return value.detach(), torch.autograd.grad(value, list(net.parameters()))

    def expected() -> Tuple[torch.Tensor, Sequence[Any]]:
        net = network(snntorch)
        return loss_and_gradients(lambda: tutorial_loss(loop(net)()[1], targets), net)

    def workload(net: nn.Module, loss: Callable[[], torch.Tensor], compiles: bool = False) -> Workload:
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)

        def step() -> torch.Tensor:
            value = loss()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            return value

        def check() -> Check:
            return check_training(*loss_and_gradients(loss, net), *expected(), _TOLERANCE, "snnTorch")

        seconds = peers.compile_seconds(lambda: loss_and_gradients(loss, net)) if compiles else None
        return Workload(step, check, seconds)

    def eager(snn: Any) -> Workload:
        net = network(snn)
        run = loop(net)
        return workload(net, lambda: tutorial_loss(run()[1], targets))

    def multistep() -> Workload:
        net = network(_OverTime)
        constant = {} if frames else {"num_steps": steps}
        return workload(net, lambda: batched_loss(net(x, **constant)[1], targets))

    def inductor() -> Workload:
        net = network(snntorch)
        run = loop(net)
        return workload(net, peers.compiled(lambda: tutorial_loss(run()[1], targets), device), compiles=True)

    def compiled() -> Workload:
        net = network(snnipu)
        run = snnipu.compile(net) if dense else None
        function = snnipu.compile(forward_pass)
        forward = (lambda: run(x)) if run is not None else (lambda: function(net, steps, x, frames))
        return workload(net, lambda: batched_loss(forward()[1], targets), compiles=True)

    contenders = [
        Contender("snnipu-loop", "snnipu, the loop", lambda: eager(snnipu), ratio_label="loop"),
        Contender(
            "snnipu-multistep",
            "snnipu MultiStep",
            multistep,
            ratio_label="MultiStep",
            note="the network rewritten, the loss in one call over all steps",
        ),
        Contender("snntorch", "snnTorch, the loop", lambda: eager(snntorch), peer="snntorch"),
        *([Contender("compile", "snnTorch loop, torch.compile", inductor, peer="compile")] if dense else []),
        # The last one: what compiles above starts TorchDynamo anew.
        Contender(
            "snnipu-compiled",
            "snnipu, the loop compiled",
            compiled,
            ratio_label="compiled",
            note="snnipu.compile of the unmodified loop; the loss in one call over all steps, as MultiStep's",
        ),
    ]
    title = _NETWORKS[name].format(neurons=settings.neurons)
    return Case(
        name="compile",
        title=f"{name}: {title}; one training step: T={steps} × B={batch}",
        caption=(
            "The work: forward over T steps, the sum over the steps of the cross-entropy of the output membranes, "
            "backward, one Adam step. The same initial weights, input and targets for all."
        ),
        contenders=contenders,
        parameters={"network": name, "steps": steps, "batch_size": batch},
    )
