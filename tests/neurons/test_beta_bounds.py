"""A learnt beta at the bounds 0 and 1 has the gradient of the installed PyTorch's ``clamp``."""

import pytest
import torch
from support.operators import needs_host_runtime, needs_library

import snnipu as snn
from snnipu import ops, poptorch
from snnipu.backends import host

STEPS, BATCH, NEURONS = 5, 3, 4
CLAMP = torch.Tensor.clamp
BETAS = torch.tensor([0.0, 1.0, 0.5, 1.0])


def clamp_with(inclusive):
    """Return a ``Tensor.clamp`` whose gradient at the bounds is the upstream gradient, or 0."""

    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, low, high):
            ctx.save_for_backward(x)
            ctx.bounds = low, high
            return CLAMP(x, low, high)

        @staticmethod
        def backward(ctx, grad):
            (x,), (low, high) = ctx.saved_tensors, ctx.bounds
            inside = (x >= low) & (x <= high) if inclusive else (x > low) & (x < high)
            return torch.where(inside, grad, 0), None, None

    def clamp(self, *bounds, **named):
        return Clamp.apply(self, *bounds) if bounds == (0, 1) else CLAMP(self, *bounds, **named)

    return clamp


def by_step(layer, x):
    mem, total = None, 0
    for current in x:
        spk, mem = layer(current, mem)
        total = total + (spk + mem).sum()
    return total


def leaky(run):
    def gradient(beta):
        layer = snn.Leaky(beta=beta, learn_beta=True, threshold=0.4, reset_mechanism="none")
        run(layer, current()).backward()
        return layer.beta.grad

    return gradient


def current():
    torch.manual_seed(0)
    return torch.rand(STEPS, BATCH, NEURONS)


def sparse_leaky(path, recurrent=False):
    def gradient(beta):
        torch.manual_seed(0)
        options = {"beta": torch.full_like(beta, 0.5), "learn_beta": True}
        layer = snn.SparseLeaky(NEURONS, NEURONS, path=path, recurrent=recurrent, **options)
        with torch.no_grad():
            layer.beta.copy_(beta)
            layer.weight.copy_(torch.rand(NEURONS, NEURONS))
        layer(snn.SparseSpikes.from_dense((current() > 0.5).float())).to_dense().sum().backward()
        return layer.beta.grad

    return gradient


def operator(dtype=torch.float32, **options):
    def gradient(beta):
        beta = beta.clone().to(dtype).requires_grad_()
        spk, mem = ops.lif_sequence(current().to(dtype), beta=beta, threshold=0.4, **options)
        (spk + mem).sum().backward()
        return beta.grad

    return gradient


CALLERS = {
    "Leaky": leaky(by_step),
    "Leaky.sequence": leaky(lambda layer, x: sum(out.sum() for out in layer.sequence(x))),
    "Leaky.sequence, constant input": leaky(lambda layer, x: layer.sequence(x[0], num_steps=STEPS)[1].sum()),
    "SparseLeaky": sparse_leaky("sparse"),
    "SparseLeaky, dense": sparse_leaky("dense"),
    "SparseLeaky, recurrent": sparse_leaky("sparse", recurrent=True),
    "any callable": operator(spike_grad=lambda u: torch.sigmoid(4 * u)),
    "evaluated": operator(spike_grad=snn.surrogate.LSO(0.2)),
    "double": operator(torch.float64, reset_delay=False),
    "half": operator(torch.float16),
}


@pytest.mark.parametrize("inclusive", [True, False], ids=["passed", "zero"])
@pytest.mark.parametrize("caller", CALLERS)
def test_pytorch_decides_at_the_bounds(caller, inclusive, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "clamp", clamp_with(inclusive))
    gradient = CALLERS[caller](BETAS)
    assert gradient[2] != 0
    assert (gradient != 0).tolist() == [inclusive, inclusive, True, inclusive]
    for beta in (0.0, 1.0):
        assert bool(CALLERS[caller](torch.tensor(beta)) != 0) == inclusive


@pytest.mark.parametrize("caller", CALLERS)
def test_beyond_the_bounds_there_is_none(caller):
    gradient = CALLERS[caller](torch.tensor([-0.1, 1.1, 0.5, float("nan")]))
    assert gradient[:2].tolist() == [0, 0]
    assert gradient[2] != 0
    assert gradient[3] == 0  # equal to torch.clamp's


@needs_host_runtime
@pytest.mark.parametrize(
    "on_model", [False, pytest.param(True, marks=needs_library)], ids=["host runtime", "IPU model"]
)
@pytest.mark.parametrize("kind", ["Leaky", "SparseLeaky"])
@pytest.mark.parametrize("inclusive", [True, False], ids=["passed", "zero"])
def test_through_poptorch(inclusive, kind, on_model, monkeypatch):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            options = {"beta": BETAS.clone(), "learn_beta": True}
            if kind == "Leaky":
                self.layer = snn.Leaky(threshold=0.4, **options)
            else:
                self.layer = snn.SparseLeaky(NEURONS, NEURONS, **options)
                torch.nn.init.uniform_(self.layer.weight)

        def forward(self, x):
            if kind == "Leaky":
                out = self.layer.sequence(x)[1]
            else:
                out = self.layer(snn.SparseSpikes.from_dense((x > 0.5).float())).to_dense()
            return out, poptorch.identity_loss(out.sum(), "none")

    torch.manual_seed(0)
    net = Net()
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:4")
    monkeypatch.setattr(torch.Tensor, "clamp", clamp_with(inclusive))
    options = poptorch.Options().useIpuModel(on_model)
    model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=1e-3))
    model(current())
    changed = (net.layer.beta.detach() != BETAS).tolist()
    assert changed == [inclusive, inclusive, True, inclusive]


@pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}")
def test_a_beta_of_one_value_that_does_not_learn_costs_nothing(monkeypatch):
    """A fixed beta of one value is clamped once; a beta for each neuron is clamped in each call."""
    calls, clamp = [], torch.Tensor.clamp
    monkeypatch.setattr(torch.Tensor, "clamp", lambda *args, **how: calls.append(1) or clamp(*args, **how))
    layer = snn.Leaky(beta=0.8125)
    runs = [
        lambda: layer.sequence(current()),
        lambda: layer(current()[0]),
        lambda: ops.lif_sequence(current(), beta=0.8125),
        lambda: ops.lif_step(current()[0], beta=torch.tensor(0.8125)),
    ]
    for run in runs:
        run()
    calls.clear()
    for run in runs:
        run()
    assert calls == []
    ops.lif_sequence(current(), beta=torch.rand(NEURONS))
    assert calls == [1]
