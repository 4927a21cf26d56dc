"""``snnipu.Online`` against SpikingJelly's neurons for online learning, with their settings."""

import pytest
import torch
from torch import nn

import snnipu as snn

neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
layer = pytest.importorskip("spikingjelly.activation_based.layer")
spike_grads = pytest.importorskip("spikingjelly.activation_based.surrogate")


@pytest.mark.parametrize("node", ["SLTTLIFNode", "OTTTLIFNode"])
@pytest.mark.parametrize("bias", [True, False])
def test_as_spikingjelly(node, bias):
    """SpikingJelly has no trace of the first layer's input, and none for biases; it resets in the step of the spike.

    If a membrane is above the threshold after its reset, snnTorch resets it again. Here no membrane is.
    """
    linears = [nn.Linear(20, 30, bias=bias), nn.Linear(30, 10, bias=bias), nn.Linear(10, 5, bias=bias)]
    ours, theirs = [], []
    for linear in linears:
        nn.init.normal_(linear.weight, mean=0.03, std=0.08)
        ours += [linear, snn.Leaky(beta=0.75, reset_delay=False, spike_grad=snn.surrogate.sigmoid(4))]
        lif = getattr(neuron, node)(
            tau=4.0, decay_input=False, v_reset=None, surrogate_function=spike_grads.Sigmoid(alpha=4.0)
        )
        theirs += [linear, lif]
    x, upstream = (torch.rand(24, 6, 20) < 0.3).float(), torch.randn(24, 6, 5)
    net = (layer.OTTTSequential if node.startswith("OTTT") else nn.Sequential)(*theirs)
    spk_rec = []
    for step, weight in zip(x, upstream):
        out = net(step)
        spk = out[0] if isinstance(out, list) else out
        spk_rec.append(spk.detach())
        (spk * weight).sum().backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    options = {"input_trace": False, "bias_trace": False} if node.startswith("OTTT") else {}
    online = snn.Online(snn.MultiStep(*ours), rule=node[:4].lower(), **options)
    for number, part in enumerate(x.split(7)):
        spikes = online(part)[0]
        assert torch.equal(spikes, torch.stack(spk_rec)[7 * number : 7 * number + len(part)])
        (spikes * upstream[7 * number : 7 * number + len(part)]).sum().backward()
    for parameter, grad in zip(online.parameters(), expected):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-5, atol=1e-5)
        assert grad.abs().max() > 0
