"""Networks with a loop over time steps, in the style of snnTorch's tutorials; ``snn`` is the library they import."""

from dataclasses import dataclass
from typing import Any, Callable, Tuple

import torch
from snntorch import utils
from torch import nn
from torch.nn import functional

import snnipu
from benchmarks.case import Settings
from benchmarks.checks import summation_rounding

Record = torch.Tensor
Loss = Callable[[Record, torch.Tensor], torch.Tensor]
INPUTS, CLASSES = 784, 10
_PER_CLASS = 10


class TutorialNet(nn.Module):
    """The network of snnTorch's tutorial 5, line by line; ``snn`` is the library that it imports under that name."""

    def __init__(self, snn, num_hidden, num_steps, beta):
        super().__init__()
        self.num_steps = num_steps
        self.fc1 = nn.Linear(INPUTS, num_hidden)
        self.lif1 = snn.Leaky(beta=beta)
        self.fc2 = nn.Linear(num_hidden, CLASSES)
        self.lif2 = snn.Leaky(beta=beta)

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec = []
        mem2_rec = []
        for _ in range(self.num_steps):
            cur1 = self.fc1(x)
            spk1, mem1 = self.lif1(cur1, mem1)
            cur2 = self.fc2(spk1)
            spk2, mem2 = self.lif2(cur2, mem2)
            spk2_rec.append(spk2)
            mem2_rec.append(mem2)
        return torch.stack(spk2_rec, dim=0), torch.stack(mem2_rec, dim=0)


def tutorial_loss(mem_rec, targets):
    """The tutorial's loss: the sum over the steps of the cross-entropy of the membranes."""
    loss = nn.CrossEntropyLoss()
    loss_val = torch.zeros((1), dtype=mem_rec.dtype, device=mem_rec.device)
    for step in range(mem_rec.shape[0]):
        loss_val += loss(mem_rec[step], targets)
    return loss_val


def batched_loss(mem_rec, targets):
    """The value of :func:`tutorial_loss` in one call: every step has the same number of samples."""
    steps = mem_rec.shape[0]
    return steps * functional.cross_entropy(mem_rec.flatten(0, 1), targets.repeat(steps))


def _layers(snn, settings, hidden):
    beta, grey = settings.beta, settings.network == "tutorial-6"
    first, second = (12, 64) if grey else (12, 32)
    return [
        nn.Conv2d(1 if grey else 2, first, 5),
        nn.MaxPool2d(2),
        snn.Leaky(beta=beta, init_hidden=hidden),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        snn.Leaky(beta=beta, init_hidden=hidden),
        nn.Flatten(),
        nn.Linear(second * (4 * 4 if grey else 5 * 5), CLASSES),
        snn.Leaky(beta=beta, init_hidden=hidden, output=True),
    ]


def forward_pass(net, steps, data, frames):
    """The tutorials' function of this name."""
    mem_rec = []
    spk_rec = []
    utils.reset(net)  # resets hidden states for all LIF neurons in net
    for step in range(steps):
        spk_out, mem_out = net(data[step] if frames else data)
        spk_rec.append(spk_out)
        mem_rec.append(mem_out)
    return torch.stack(spk_rec), torch.stack(mem_rec)


class PopulationNet(nn.Module):
    """Several output neurons for each class."""

    def __init__(self, snn, settings):
        super().__init__()
        self.steps = settings.steps
        self.fc1 = nn.Linear(INPUTS, settings.neurons)
        self.lif1 = snn.Leaky(beta=settings.beta)
        self.fc2 = nn.Linear(settings.neurons, CLASSES * _PER_CLASS)
        self.lif2 = snn.Leaky(beta=settings.beta, threshold=0.2)

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec = []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spk2_rec.append(spk2)
        return torch.stack(spk2_rec)

    def over_time(self, x):
        return snnipu.MultiStep(self.fc1, self.lif1, self.fc2, self.lif2)(x, num_steps=self.steps)[0]


class RegressionNet(nn.Module):
    """A membrane that follows a signal: decays are learned, the last layer does not reset."""

    def __init__(self, snn, settings):
        super().__init__()
        self.fc1 = nn.Linear(1, settings.neurons)
        self.lif1 = snn.Leaky(beta=torch.full((settings.neurons,), settings.beta), learn_beta=True)
        self.fc2 = nn.Linear(settings.neurons, 1)
        self.lif2 = snn.Leaky(beta=settings.beta, learn_beta=True, reset_mechanism="none")

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        mem2_rec = []
        for step in range(x.shape[0]):
            spk1, mem1 = self.lif1(self.fc1(x[step]), mem1)
            _, mem2 = self.lif2(self.fc2(spk1), mem2)
            mem2_rec.append(mem2)
        return torch.stack(mem2_rec)

    def over_time(self, x):
        return snnipu.MultiStep(self.fc1, self.lif1, self.fc2, self.lif2)(x)[1]


class Autoencoder(nn.Module):
    """Batch norms in training: each step has its own statistics."""

    def __init__(self, snn, settings):
        super().__init__()
        self.steps = settings.steps
        # A bias in front of a norm has no gradient but rounding.
        self.conv1, self.norm = nn.Conv2d(1, 16, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(16)
        self.lif1 = snn.Leaky(beta=settings.beta)
        self.conv2 = nn.ConvTranspose2d(16, 1, 3, padding=1, output_padding=1, stride=2)
        self.lif2 = snn.Leaky(beta=settings.beta, reset_mechanism="none")

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        mem2_rec = []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.norm(self.conv1(x)), mem1)
            _, mem2 = self.lif2(self.conv2(spk1), mem2)
            mem2_rec.append(mem2)
        return torch.stack(mem2_rec)

    def over_time(self, x):
        net = snnipu.MultiStep(self.conv1, self.norm, self.lif1, self.conv2, self.lif2)
        return net(x, num_steps=self.steps)[1]


class DeepNet(nn.Module):
    """A layer each of other neurons."""

    def __init__(self, snn, settings):
        super().__init__()
        beta, neurons, self.steps = settings.beta, settings.neurons, settings.steps
        self.fc1, self.lif1 = nn.Linear(INPUTS, neurons), snn.Synaptic(alpha=0.8, beta=beta)
        self.fc2, self.lif2 = nn.Linear(neurons, neurons // 2), snn.Alpha(alpha=0.95, beta=beta, threshold=0.3)
        self.fc3, self.lif3 = nn.Linear(neurons // 2, CLASSES), snn.RLeaky(beta=beta, V=0.5, all_to_all=False)

    def forward(self, x):
        syn, mem1 = self.lif1.init_synaptic()
        exc, inh, mem2 = self.lif2.init_alpha()
        spk3, mem3 = self.lif3.init_rleaky()
        mem3_rec = []
        for _ in range(self.steps):
            spk1, syn, mem1 = self.lif1(self.fc1(x), syn, mem1)
            spk2, exc, inh, mem2 = self.lif2(self.fc2(spk1), exc, inh, mem2)
            spk3, mem3 = self.lif3(self.fc3(spk2), spk3, mem3)
            mem3_rec.append(mem3)
        return torch.stack(mem3_rec)

    def over_time(self, x):
        net = snnipu.MultiStep(self.fc1, self.lif1, self.fc2, self.lif2, self.fc3, self.lif3)
        return net(x, num_steps=self.steps)[1]


class Tutorial5(TutorialNet):
    def __init__(self, snn, settings):
        super().__init__(snn, settings.neurons, settings.steps, settings.beta)

    def over_time(self, x):
        net = snnipu.MultiStep(self.fc1, self.lif1, self.fc2, self.lif2)
        return net(x, num_steps=self.num_steps)[1]


class HiddenStates(nn.Sequential):
    """Layers with hidden states; the loop is in a function. ``frames``: step t reads ``x[t]``, else the same ``x``."""

    def __init__(self, layers, steps, frames=False):
        super().__init__(*layers)
        self.steps, self.frames = steps, frames

    def over_time(self, x):
        # Without hidden states MultiStep starts from zeros in each call.
        for layer in self:
            if isinstance(layer, snnipu.Leaky):
                layer.init_hidden = False
        net = snnipu.MultiStep(*self)
        return net(x)[1] if self.frames else net(x, num_steps=self.steps)[1]


class Convolutional(HiddenStates):
    """The tutorials' networks."""

    def __init__(self, snn, settings):
        super().__init__(_layers(snn, settings, hidden=True), settings.steps, settings.network == "tutorial-7")


def count_loss(spk_rec, x):
    """Cross-entropy of the spikes of each class's neurons; of arbitrary classes."""
    counts = spk_rec.sum(0).view(spk_rec.shape[1], CLASSES, -1).sum(2)
    return functional.cross_entropy(counts, torch.arange(spk_rec.shape[1], device=x.device) % CLASSES)


def _classes(mem_rec):
    return torch.arange(mem_rec.shape[1], device=mem_rec.device) % CLASSES


@dataclass(frozen=True)
class LoopNetwork:
    """A row of networks.

    Attributes:
        title: what it is.
        make: the network of a library, ``make(snn, settings)``; its ``over_time`` is ``MultiStep``'s rewrite of it.
        shape: of its input.
        loss: of the record and the input; ``batched`` is the same in one call where the loop's has one for each step.
        tolerance: of the loss and of each gradient. Neurons round as snnTorch's do; the order of sums over steps and
            samples is free.
        terms: how many terms the longest sum of a gradient has that PyTorch's convolutions may make in one accumulator,
            which then rounds more than that. 0: no convolution sums so many.
    """

    title: str
    make: Callable[[Any, Settings], Any]
    shape: Callable[[int, int], Tuple[int, ...]]
    loss: Loss
    batched: Loss
    tolerance: float = 1e-5
    terms: Callable[[int, int], int] = lambda steps, batch: 0

    def rounding(self, steps, batch):
        """What gradients may differ by where oneDNN adds up the steps and samples of a call one after another."""
        return max(self.tolerance, summation_rounding(self.terms(steps, batch)))


def _steps_loss(mem_rec, x):
    return tutorial_loss(mem_rec, _classes(mem_rec))


def _batched_steps_loss(mem_rec, x):
    return batched_loss(mem_rec, _classes(mem_rec))


def _follow(mem_rec, x):
    return functional.mse_loss(mem_rec, x.expand_as(mem_rec))


def _flat(steps, batch):
    return batch, INPUTS


_STEPS = (_steps_loss, _batched_steps_loss)
NETWORKS = {
    "tutorial-5": LoopNetwork("784-N-10, constant input", Tutorial5, _flat, *_STEPS),
    "tutorial-6": LoopNetwork(
        "convolutional, constant image, hidden states", Convolutional, lambda steps, batch: (batch, 1, 28, 28), *_STEPS
    ),
    "tutorial-7": LoopNetwork(
        "convolutional, event frames x[step], hidden states",
        Convolutional,
        lambda steps, batch: (steps, batch, 2, 34, 34),
        *_STEPS,
    ),
    "population": LoopNetwork("784-N-100, ten neurons for each class", PopulationNet, _flat, count_loss, count_loss),
    "regression": LoopNetwork(
        "1-N-1, membranes, learned decays", RegressionNet, lambda steps, batch: (steps, batch, 1), _follow, _follow
    ),
    "autoencoder": LoopNetwork(
        "convolutions and batch norm in training",
        Autoencoder,
        lambda steps, batch: (batch, 1, 28, 28),
        _follow,
        _follow,
        terms=lambda steps, batch: steps * batch * 28 * 28,
    ),
    "deep": LoopNetwork("784-N-N/2-10, Synaptic, Alpha and RLeaky", DeepNet, _flat, *_STEPS),
}
