"""snnTorch's tutorial network 784-1000-10: one whole training step on a constant input."""

import functools
from typing import Callable, Sequence, Tuple

import snntorch
import torch
from torch import nn
from torch.nn import functional

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Workload
from benchmarks.checks import check_training
from benchmarks.programs import CLASSES, INPUTS, TutorialNet, batched_loss, tutorial_loss

# The neurons round as snnTorch's do; only the order of sums over steps and samples is free.
SUMMATION_ORDER = 1e-5
# A peer's rule may be evaluated in another order than here, which can flip a spike.
PEER_RULE = 1e-3

Loss = Callable[[], torch.Tensor]
LossAndGradients = Tuple[torch.Tensor, Sequence[torch.Tensor]]


class HoistedNet(TutorialNet):
    """The tutorial network with ``fc1``, whose input is the same at every step, taken out of the loop by hand."""

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec = []
        mem2_rec = []
        cur1 = self.fc1(x)
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(cur1, mem1)
            cur2 = self.fc2(spk1)
            spk2, mem2 = self.lif2(cur2, mem2)
            spk2_rec.append(spk2)
            mem2_rec.append(mem2)
        return torch.stack(spk2_rec, dim=0), torch.stack(mem2_rec, dim=0)


def _linear_parameters(net):
    return [p for module in net.modules() if isinstance(module, nn.Linear) for p in module.parameters()]


def loss_and_gradients(loss, parameters):
    value = loss()
    return value.detach(), torch.autograd.grad(value, parameters)


def contenders(settings):
    """The input stands for a batch of images: about a fifth of the pixels are not zero."""
    dtype, device, beta, steps = settings.dtype, settings.device, settings.beta, settings.steps
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.batch_size, INPUTS)
    pixels = torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.2)
    x = pixels.to(device, dtype)
    targets = torch.randint(CLASSES, (settings.batch_size,), generator=generator).to(device)

    def linears():
        return [nn.Linear(INPUTS, settings.neurons), nn.Linear(settings.neurons, CLASSES)]

    @functools.lru_cache(maxsize=1)
    def initial():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            net = TutorialNet(snntorch, settings)
        return [p.detach() for p in _linear_parameters(net)]

    def initialised(net, scale=1.0):
        """Return ``net`` where it runs, with the same weights for every contender (times ``scale``)."""
        net = net.to(device, dtype)
        with torch.no_grad():
            for parameter, value in zip(_linear_parameters(net), initial()):
                parameter.copy_(value * scale)
        return net

    def tutorial_training(net):
        return lambda: tutorial_loss(net(x)[1], targets)

    @functools.lru_cache(maxsize=1)
    def reference():
        net = initialised(TutorialNet(snntorch, settings))
        return loss_and_gradients(tutorial_training(net), _linear_parameters(net))

    def follows(rule, scale):
        """Return loss and gradients of the same network in plain PyTorch with a peer's update rule."""
        parameters = [(p * scale).to(device, dtype).requires_grad_() for p in initial()]
        weight1, bias1, weight2, bias2 = parameters

        def loss():
            v1 = x.new_zeros(settings.batch_size, settings.neurons)
            v2 = x.new_zeros(settings.batch_size, CLASSES)
            v2_rec = []
            for _ in range(steps):
                spk1, v1 = rule(functional.linear(x, weight1, bias1), v1)
                _, v2 = rule(functional.linear(spk1, weight2, bias2), v2)
                v2_rec.append(v2)
            return tutorial_loss(torch.stack(v2_rec), targets)

        return loss_and_gradients(loss, parameters)

    def workload(net, loss, rule=None, scale=1.0, compiles=False):
        """Return a training step, whose results must be snnTorch's or follow a peer's ``rule``."""
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.9, 0.999))
        run = functools.partial(loss_and_gradients, loss, _linear_parameters(net))

        def step():
            loss_val = loss()
            optimizer.zero_grad()
            loss_val.backward()
            optimizer.step()
            return loss_val

        def check():
            if rule is None:
                return check_training(*run(), *reference(), SUMMATION_ORDER, "snnTorch")
            return check_training(*run(), *follows(rule, scale), PEER_RULE, "its own rule")

        return Workload(step, check, peers.compile_seconds(run) if compiles else None)

    def tutorial(snn, net_class=TutorialNet):
        net = initialised(net_class(snn, settings))
        return workload(net, tutorial_training(net))

    def multistep():
        fc1, fc2 = linears()
        net = initialised(snnipu.MultiStep(fc1, snnipu.Leaky(beta=beta), fc2, snnipu.Leaky(beta=beta)))
        return workload(net, lambda: batched_loss(net(x, num_steps=steps)[1], targets))

    def compile_loop():
        net = initialised(TutorialNet(snntorch, settings))
        return workload(net, peers.compiled(tutorial_training(net), device), compiles=True)

    def spikingjelly():
        lif1, lif2 = peers.spikingjelly_lif(beta), peers.spikingjelly_lif(beta, store_v_seq=True)
        fc1, fc2, *_ = net = initialised(nn.ModuleList([*linears(), lif1, lif2]))

        def loss():
            lif1.reset()
            lif2.reset()
            lif2(fc2(lif1(fc1(x.unsqueeze(0).repeat(steps, 1, 1)))))
            return batched_loss(lif2.v_seq, targets)

        return workload(net, loss, peers.spikingjelly_rule(beta))

    def norse():
        scale = 1 / (1 - beta)
        fc1, fc2 = net = initialised(nn.ModuleList(linears()), scale)
        lif1, lif2 = peers.norse_lif(beta, dtype, device), peers.norse_lif(beta, dtype, device)

        def loss():
            state1 = state2 = None
            v2_rec = []
            for _ in range(steps):
                spk1, state1 = lif1(fc1(x), state1)
                _, state2 = lif2(fc2(spk1), state2)
                v2_rec.append(state2.v)
            return tutorial_loss(torch.stack(v2_rec), targets)

        return workload(net, loss, peers.norse_rule(beta), scale)

    return [
        Contender(
            "snnipu-loop",
            "snnipu, tutorial loop",
            lambda: tutorial(snnipu),
            note="the tutorial's code with only the import changed",
        ),
        Contender(
            "snnipu-multistep",
            "snnipu MultiStep",
            multistep,
            note="net(x, num_steps=T): fc1 runs once, since its input is constant; the loss is one call over all steps",
        ),
        Contender("snntorch", "snnTorch, tutorial loop", lambda: tutorial(snntorch), "snntorch"),
        Contender(
            "snntorch-hoisted",
            "snnTorch loop, fc1 hoisted",
            lambda: tutorial(snntorch, HoistedNet),
            "snntorch",
            "the tutorial's code with fc1 moved out of the loop by hand",
        ),
        Contender("compile", "snnTorch loop, torch.compile", compile_loop, "compile"),
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            spikingjelly,
            "spikingjelly",
            "the input repeated over the steps, as in its documentation; resets in the step of the spike, and the loss "
            "is on the membrane after it",
        ),
        Contender(
            "norse",
            "norse LIFBoxCell loop",
            norse,
            "norse",
            "weights begin scaled by 1 / (1 - beta), as norse multiplies its input with 1 - beta; resets as "
            "SpikingJelly does",
        ),
    ]


CASE = Case(
    summary="snnTorch's tutorial network 784-neurons-10, one whole training step",
    work=(
        "Forward over T steps of a constant input, the sum over the steps of the cross-entropy of the output membranes, "
        "backward, one Adam step. The same initial weights, input and targets for all."
    ),
    title=lambda settings: (
        f"Tutorial network {INPUTS}-{settings.neurons}-{CLASSES}, one training step: T={settings.steps} × "
        f"B={settings.batch_size}"
    ),
    contenders=contenders,
    sizes={"steps": 25, "batch_size": 128, "neurons": 1000, "beta": 0.9},
    quick={"steps": 5, "batch_size": 16, "neurons": 64},
    axes=("steps", "batch_size", "neurons"),
    repeats=20,
    min_seconds=5.0,
)
