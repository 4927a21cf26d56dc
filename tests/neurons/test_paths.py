"""``MultiStep.paths`` and the products in ``compiler.explain``: how each module ran, at which activity."""

import threading

import pytest
import snntorch
import torch
from support.operators import needs_host_runtime
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu import compiler

pytestmark = needs_host_runtime


def network():
    torch.manual_seed(0)
    return snn.MultiStep(
        nn.Sequential(nn.Linear(200, 256), snn.Leaky(beta=0.9)),
        nn.Linear(256, 4, bias=False),
        snntorch.LeakyParallel(4, 3),
    )


def frames(activity, steps=30, batch=16):
    return (torch.rand(steps, batch, 200) < activity).float()


def test_each_module_with_its_input():
    net, x = network(), frames(0.05)
    paths = net.paths(x)
    assert [(p.name, p.kind, p.runs_as) for p in paths] == [
        ("0.0", "Linear", "all steps as one batch, events"),
        ("0.1", "Leaky", "all steps as one operator"),
        ("1", "Linear", "all steps as one batch, dense"),
        ("2", "LeakyParallel", "called once with all steps"),
    ]
    assert paths[0].activity == x.double().mean().item()
    assert paths[2].activity == pytest.approx(snn.MultiStep(*net[0])(x)[0].mean().item())
    assert [p.limit for p in paths[:3]] == [pytest.approx(0.24 - 24 / 480 - 10 / 200), None, 0.0]
    assert "0.0     Linear         all steps as one batch, events  5." in str(paths)
    assert "never" in str(paths)
    assert net.paths(frames(0.6))[0].runs_as.endswith("dense")
    with snn.dense_only():
        assert net.paths(x)[0].runs_as.endswith("dense")


def test_a_constant_input_hooks_and_what_runs_by_steps():
    class Doubled(nn.Module):
        def forward(self, x):
            return 2 * x

    net = snn.MultiStep(nn.Linear(8, 6), snn.Leaky(beta=0.9), Doubled(), snn.MultiStep(nn.Linear(6, 6)))
    net[3].register_forward_hook(lambda *_: None)
    paths = net.paths(torch.rand(2, 8), num_steps=3)
    assert [p.runs_as for p in paths] == [
        "once, its input being constant",
        "all steps as one operator",
        "step by step",
        "called once with all steps",
    ]
    with pytest.raises(ValueError, match=r"\[T, B, ...\]"):
        net.paths(torch.rand(3))
    assert net.paths(torch.rand(3, 2, 8))[0].activity == 1.0


def test_parts_of_time_are_told_together(monkeypatch):
    monkeypatch.setattr("snnipu.neurons.multistep.CHUNK_BYTES", 10 * 16 * 256 * 4)
    monkeypatch.setattr("snnipu.ops._break_even.FEWEST_PRODUCTS", 0)
    x = frames(0.02)
    x[:10] = 1
    first = network().paths(x)[0]
    assert first.runs_as == "all steps as one batch, events in 2 of 3 parts"
    assert first.activity == x.double().mean().item()


def test_it_is_a_call_as_any_other():
    net = snn.MultiStep(nn.Linear(8, 6), snn.Leaky(beta=0.9, init_hidden=True), nn.Linear(6, 6))
    twin = snn.MultiStep(nn.Linear(8, 6), snn.Leaky(beta=0.9, init_hidden=True), nn.Linear(6, 6))
    twin.load_state_dict(net.state_dict())
    x = torch.rand(4, 2, 8)
    net.paths(x)
    twin(x)
    assert torch.equal(net[1].mem, twin[1].mem)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(net(x)))
    thread.start()
    thread.join()
    assert seen[0].requires_grad


@needs_backend
def test_explain_names_the_products():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.lif1, self.fc2 = nn.Linear(200, 256), snn.Leaky(beta=0.9), nn.Linear(256, 4)

        def forward(self, x):
            mem = self.lif1.reset_mem()
            out = []
            for step in range(len(x)):
                spk, mem = self.lif1(self.fc1(x[step]), mem)
                out.append(self.fc2(spk))
            return torch.stack(out)

    x = frames(0.05)
    net = Net()
    compiler.explain(net, x)  # the first two steps of the first run are in Python
    report = compiler.explain(net, x)
    assert [(p.name, p.runs_as) for p in report.products] == [("fc1", "events"), ("fc2", "dense")]
    assert [p.limit for p in report.products] == [pytest.approx(0.14), 0.0]
    assert report.products[0].activity == x.double().mean().item()
    assert "fc1      Linear  events   5." in str(report)
