"""snnTorch's tutorial network 784-1000-10: one whole training step on a constant input."""

import snntorch
import torch
from torch import nn

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender
from benchmarks.cases.programs import Training
from benchmarks.checks import check_training
from benchmarks.programs import CLASSES, INPUTS, TutorialNet, batched_loss, tutorial_loss
from benchmarks.training_step import adam, training_workload

# The reference may evaluate a peer's rule in another order, so that a spike differs.
PEER_RULE = 1e-3


class HoistedNet(TutorialNet):
    """The tutorial network with ``fc1``, whose input is constant, moved out of the loop by hand."""

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


def contenders(settings):
    device, beta, steps = settings.device, settings.beta, settings.steps
    training = Training(TutorialNet, settings, of_network=False)
    x, targets = training.x, training.targets

    def compiled(net):
        return peers.compiled(net.step)

    def linears(scale=1.0):
        """Return linear layers with the weights of every contender, times ``scale``."""
        net = training.program(snntorch)
        for parameter in net.parameters():
            parameter.data *= scale
        return nn.ModuleList([net.fc1, net.fc2])

    def follows(net, loss, rule):
        """Return a training step of a peer, whose results must follow its own ``rule`` in plain PyTorch."""

        def by_rule():
            v1, v2 = x.new_zeros(settings.batch_size, settings.neurons), x.new_zeros(settings.batch_size, CLASSES)
            v2_rec = []
            for _ in range(steps):
                spk1, v1 = rule(net[0](x), v1)
                _, v2 = rule(net[1](spk1), v2)
                v2_rec.append(v2)
            return tutorial_loss(torch.stack(v2_rec), targets)

        def results(loss):
            value = loss()
            return value.detach(), torch.autograd.grad(value, list(net.parameters()))

        def check():
            return check_training(*results(loss), *results(by_rule), PEER_RULE, "its own rule")

        return training_workload(adam(net), loss, check, device)

    def spikingjelly():
        fc1, fc2 = net = linears()
        lif1, lif2 = (peers.spikingjelly_lif(beta, store_v_seq=True).to(device) for _ in range(2))

        def loss():
            lif1.reset()
            lif2.reset()
            lif2(fc2(lif1(fc1(x.unsqueeze(0).repeat(steps, 1, 1)))))
            return batched_loss(lif2.v_seq, targets)

        return follows(net, loss, peers.spikingjelly_rule(beta))

    def norse():
        fc1, fc2 = net = linears(1 / (1 - beta))
        lif1, lif2 = (peers.norse_lif(beta, settings.dtype, device) for _ in range(2))

        def loss():
            state1 = state2 = None
            v2_rec = []
            for _ in range(steps):
                spk1, state1 = lif1(fc1(x), state1)
                _, state2 = lif2(fc2(spk1), state2)
                v2_rec.append(state2.v)
            return tutorial_loss(torch.stack(v2_rec), targets)

        return follows(net, loss, peers.norse_rule(beta))

    return [
        Contender(
            "snnipu-loop",
            "snnipu, tutorial loop",
            lambda: training.workload(snnipu),
            note="the tutorial's code with only the import changed",
        ),
        Contender(
            "snnipu-multistep",
            "snnipu MultiStep",
            lambda: training.workload(snnipu, lambda net: net.rewritten),
            note="net(x, num_steps=T): fc1 runs once, since its input is constant; the loss is one call over all steps",
        ),
        Contender("snntorch", "snnTorch, tutorial loop", lambda: training.workload(snntorch), "snntorch"),
        Contender(
            "snntorch-hoisted",
            "snnTorch loop, fc1 hoisted",
            lambda: Training(HoistedNet, settings, of_network=False).workload(snntorch),
            "snntorch",
            "the tutorial's code with fc1 moved out of the loop by hand",
        ),
        Contender(
            "compile",
            "snnTorch loop, torch.compile",
            lambda: training.workload(snntorch, compiled, compiles=True),
            "compile",
        ),
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
        "Forward over T steps of a constant input, the sum over the steps of the cross-entropy of the output "
        "membranes, backward, one Adam step. The same initial weights, input and targets for all."
    ),
    title=lambda settings: (
        f"Tutorial network {INPUTS}-{settings.neurons}-{CLASSES}, one training step: T={settings.steps} × "
        f"B={settings.batch_size}"
    ),
    contenders=contenders,
    axes=("steps", "batch_size", "neurons"),
    repeats=20,
    min_seconds=5.0,
)
