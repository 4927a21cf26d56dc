"""snnTorch's tutorial network 784-1000-10: one whole training step on a constant input."""

import functools
from typing import Any, Callable, List, Sequence, Tuple

import snntorch
import torch
from torch import nn
from torch.nn import functional

import snnipu
from benchmarks import peers
from benchmarks.case import Case, Contender, Settings, Workload
from benchmarks.checks import Check, check_training
from benchmarks.loop_networks import CLASSES, INPUTS, TutorialNet, batched_loss, tutorial_loss

SUMMARY = "snnTorch's tutorial network 784-neurons-10, one whole training step"
# snnTorch's spikes are float32 whatever its input is, and a Linear layer of another type refuses them.
DTYPES = (torch.float32,)

# The neurons round as snnTorch's do; only the order of sums over steps and samples is free.
_SUMMATION_ORDER = 1e-5
# A peer's rule may be evaluated in another order than here, which can flip a spike.
_PEER_RULE = 1e-3


class HoistedNet(TutorialNet):
    """The tutorial network with ``fc1``, whose input is the same at every step, taken out of the loop by hand."""

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec = []
        mem2_rec = []
        cur1 = self.fc1(x)
        for _ in range(self.num_steps):
            spk1, mem1 = self.lif1(cur1, mem1)
            cur2 = self.fc2(spk1)
            spk2, mem2 = self.lif2(cur2, mem2)
            spk2_rec.append(spk2)
            mem2_rec.append(mem2)
        return torch.stack(spk2_rec, dim=0), torch.stack(mem2_rec, dim=0)


def _linear_parameters(net: nn.Module) -> List[torch.Tensor]:
    return [p for module in net.modules() if isinstance(module, nn.Linear) for p in module.parameters()]


def build(settings: Settings) -> Case:
    """The case at the given sizes; the input stands for a batch of images: about a fifth of the pixels are not zero."""
    dtype, device, beta, steps = settings.dtype, settings.device, settings.beta, settings.steps
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.batch_size, INPUTS)
    pixels = torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.2)
    x = pixels.to(device, dtype)
    targets = torch.randint(CLASSES, (settings.batch_size,), generator=generator).to(device)

    @functools.lru_cache(maxsize=1)
    def initial() -> List[torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            net = TutorialNet(snntorch, settings.neurons, steps, beta)
        return [p.detach() for p in _linear_parameters(net)]

    def initialised(net: Any, scale: float = 1.0) -> Any:
        """``net`` where it runs, with the same weights for every contender (times ``scale``)."""
        net = net.to(device, dtype)
        with torch.no_grad():
            for parameter, value in zip(_linear_parameters(net), initial()):
                parameter.copy_(value * scale)
        return net

    def loss_and_gradients(
        loss: Callable[[], torch.Tensor], parameters: Sequence[torch.Tensor]
    ) -> Tuple[torch.Tensor, Sequence[torch.Tensor]]:
        value = loss()
        return value.detach(), torch.autograd.grad(value, parameters)

    def tutorial_training(net: nn.Module) -> Callable[[], torch.Tensor]:
        return lambda: tutorial_loss(net(x)[1], targets)

    @functools.lru_cache(maxsize=1)
    def reference() -> Tuple[torch.Tensor, Sequence[torch.Tensor]]:
        net = initialised(TutorialNet(snntorch, settings.neurons, steps, beta))
        return loss_and_gradients(tutorial_training(net), _linear_parameters(net))

    def workload(
        net: nn.Module,
        loss: Callable[[], torch.Tensor],
        expected: Callable[[], Tuple[torch.Tensor, Sequence[torch.Tensor]]] = reference,
        tolerance: float = _SUMMATION_ORDER,
        against: str = "snnTorch",
        compile_time: bool = False,
    ) -> Workload:
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.9, 0.999))
        parameters = _linear_parameters(net)

        def step() -> torch.Tensor:
            loss_val = loss()
            optimizer.zero_grad()
            loss_val.backward()
            optimizer.step()
            return loss_val

        def check() -> Check:
            return check_training(*loss_and_gradients(loss, parameters), *expected(), tolerance, against)

        seconds = peers.compile_seconds(lambda: loss_and_gradients(loss, parameters)) if compile_time else None
        return Workload(step, check, seconds)

    def tutorial(snn: Any, net_class: Callable[..., nn.Module] = TutorialNet) -> Workload:
        net = initialised(net_class(snn, settings.neurons, steps, beta))
        return workload(net, tutorial_training(net))

    def multistep() -> Workload:
        net = initialised(
            snnipu.MultiStep(
                nn.Linear(INPUTS, settings.neurons),
                snnipu.Leaky(beta=beta),
                nn.Linear(settings.neurons, CLASSES),
                snnipu.Leaky(beta=beta),
            )
        )
        return workload(net, lambda: batched_loss(net(x, num_steps=steps)[1], targets))

    def compile_loop() -> Workload:
        net = initialised(TutorialNet(snntorch, settings.neurons, steps, beta))
        loss = peers.compiled(tutorial_training(net), device)
        return workload(net, loss, compile_time=True)

    def plain(rule: peers.Rule, scale: float) -> Callable[[], Tuple[torch.Tensor, Sequence[torch.Tensor]]]:
        """Loss and gradients of the same network in plain PyTorch with a peer's update rule."""

        def expected() -> Tuple[torch.Tensor, Sequence[torch.Tensor]]:
            parameters = [(p * scale).to(device, dtype).requires_grad_() for p in initial()]
            weight1, bias1, weight2, bias2 = parameters

            def loss() -> torch.Tensor:
                v1 = x.new_zeros(settings.batch_size, settings.neurons)
                v2 = x.new_zeros(settings.batch_size, CLASSES)
                v2_rec = []
                for _ in range(steps):
                    spk1, v1 = rule(functional.linear(x, weight1, bias1), v1)
                    _, v2 = rule(functional.linear(spk1, weight2, bias2), v2)
                    v2_rec.append(v2)
                return tutorial_loss(torch.stack(v2_rec), targets)

            return loss_and_gradients(loss, parameters)

        return expected

    def follows_rule(
        net: nn.Module, loss: Callable[[], torch.Tensor], rule: peers.Rule, scale: float = 1.0
    ) -> Workload:
        return workload(net, loss, plain(rule, scale), _PEER_RULE, "its own rule")

    def spikingjelly() -> Workload:
        net = initialised(
            nn.ModuleList(
                [
                    nn.Linear(INPUTS, settings.neurons),
                    peers.spikingjelly_lif(beta),
                    nn.Linear(settings.neurons, CLASSES),
                    peers.spikingjelly_lif(beta, store_v_seq=True),
                ]
            )
        )
        fc1, lif1, fc2, lif2 = net

        def loss() -> torch.Tensor:
            lif1.reset()
            lif2.reset()
            lif2(fc2(lif1(fc1(x.unsqueeze(0).repeat(steps, 1, 1)))))
            return batched_loss(lif2.v_seq, targets)

        return follows_rule(net, loss, peers.spikingjelly_rule(beta))

    def norse() -> Workload:
        scale = 1 / (1 - beta)
        layers = [nn.Linear(INPUTS, settings.neurons), nn.Linear(settings.neurons, CLASSES)]
        net = initialised(nn.ModuleList(layers), scale)
        fc1, fc2 = net
        lif1, lif2 = peers.norse_lif(beta, dtype, device), peers.norse_lif(beta, dtype, device)

        def loss() -> torch.Tensor:
            state1 = state2 = None
            v2_rec = []
            for _ in range(steps):
                spk1, state1 = lif1(fc1(x), state1)
                _, state2 = lif2(fc2(spk1), state2)
                v2_rec.append(state2.v)
            return tutorial_loss(torch.stack(v2_rec), targets)

        return follows_rule(net, loss, peers.norse_rule(beta), scale)

    contenders = [
        Contender(
            "snnipu-loop",
            "snnipu, tutorial loop",
            lambda: tutorial(snnipu),
            ratio_label="loop",
            note="the tutorial's code with only the import changed",
        ),
        Contender(
            "snnipu-multistep",
            "snnipu MultiStep",
            multistep,
            ratio_label="MultiStep",
            note="net(x, num_steps=T): fc1 runs once, since its input is constant; the loss is one call over all steps",
        ),
        Contender("snntorch", "snnTorch, tutorial loop", lambda: tutorial(snntorch), peer="snntorch"),
        Contender(
            "snntorch-hoisted",
            "snnTorch loop, fc1 hoisted",
            lambda: tutorial(snntorch, HoistedNet),
            peer="snntorch",
            note="the tutorial's code with fc1 moved out of the loop by hand",
        ),
        Contender("compile", "snnTorch loop, torch.compile", compile_loop, peer="compile"),
        Contender(
            "spikingjelly",
            "SpikingJelly multi-step",
            spikingjelly,
            peer="spikingjelly",
            note="the input repeated over the steps, as in its documentation; resets in the step of the spike, and "
            "the loss is on the membrane after it",
        ),
        Contender(
            "norse",
            "norse LIFBoxCell loop",
            norse,
            peer="norse",
            note="weights begin scaled by 1 / (1 - beta), as norse multiplies its input with 1 - beta; resets as "
            "SpikingJelly does",
        ),
    ]
    return Case(
        name="network",
        title=(
            f"Tutorial network {INPUTS}-{settings.neurons}-{CLASSES}, one training step: "
            f"T={steps} × B={settings.batch_size}"
        ),
        caption=(
            "The work: forward over T steps of a constant input, the sum over the steps of the cross-entropy of the "
            "output membranes, backward, one Adam step. The same initial weights, input and targets for all."
        ),
        contenders=contenders,
    )
