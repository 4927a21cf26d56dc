"""Generated kernels on a CUDA device, for snnTorch's neurons and custom ones, against the CPU."""

import copy

import pytest
import snntorch
import torch
from neurons.test_own import Adaptive, Recurrent
from neurons.test_zoo import CASES, STATES
from oracle import relative_error
from support.loops import by_steps

import snnipu as snn
from snnipu import backends
from snnipu.neurons import fused

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
CUDA = torch.device("cuda")
LAYERS = [pytest.param(lambda: Adaptive(learn=True), id="Adaptive"), pytest.param(Recurrent, id="Recurrent")]


@pytest.fixture(autouse=True)
def _kernels():
    torch.manual_seed(0)
    if not backends.has_kernels(CUDA):
        pytest.skip(backends.why_reference(CUDA))


def compare(layer, x, states=()):
    """Compare the sequence, its gradients and single steps of both devices."""
    results = []
    for device in (torch.device("cpu"), CUDA):
        twin = copy.deepcopy(layer).to(device)
        assert twin.runs_fused()
        inputs = [value.to(device).requires_grad_() for value in (x, *states)]
        out = twin.sequence(*inputs)
        grads = [torch.randn(part.shape, generator=torch.Generator().manual_seed(1)).to(part) for part in out]
        leaves = [*inputs, *(p for p in twin.parameters() if p.requires_grad)]
        loss = sum((part * grad).sum() for part, grad in zip(out, grads))
        results.append(([part.cpu() for part in out], [g.cpu() for g in torch.autograd.grad(loss, leaves)]))
    (expected, expected_grads), (actual, grads) = results
    for result, other in zip(actual, expected):
        assert result.dtype == other.dtype
        assert torch.equal(result, other)
    terms = expected_grads[0].double() * x.shape[0]
    for place, (result, other) in enumerate(zip(grads, expected_grads)):
        tolerance = {torch.float16: 2e-3, torch.bfloat16: 2**-6}.get(result.dtype, 1e-5)
        assert relative_error(result, other, terms if place > len(states) else None) <= tolerance


@pytest.mark.parametrize(("name", "keywords", "chosen"), CASES)
def test_snntorchs_neurons(name, keywords, chosen):
    layer = getattr(snn, name)(**copy.deepcopy(keywords), **chosen)
    compare(layer, torch.randn(9, 2, 13) * 4, [torch.randn(2, 13) for _ in STATES[name]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", LAYERS)
def test_own_neurons(make, dtype):
    for shape in ((1, 1, 1), (20, 3, 1000), (3, 64, 4096)):
        compare(make(), (torch.randn(shape) * 2).to(dtype))


@pytest.mark.parametrize("make", LAYERS)
def test_in_multistep(make):
    net = snn.MultiStep(torch.nn.Linear(5, 13), make(), torch.nn.Linear(13, 3), make()).to(CUDA)
    net(torch.randn(7, 2, 5, device=CUDA))[0].sum().backward()
    assert net[0].weight.grad.isfinite().all()


@pytest.mark.parametrize(("name", "keywords", "chosen"), CASES)
def test_single_steps_are_snntorchs(name, keywords, chosen, monkeypatch):
    """A step runs as snnTorch's own operations and as a kernel."""
    layers = [getattr(library, name)(**copy.deepcopy(keywords), **chosen).to(CUDA) for library in (snn, snntorch)]
    x = torch.randn(4, 2, 13, device=CUDA) * 4
    for fewest in (0, 1 << 21):
        monkeypatch.setattr(fused, "FEWEST_OF_A_STEP", fewest)
        actual, expected = (
            by_steps(layer, x, [torch.zeros(2, 13, device=CUDA) for _ in STATES[name]]) for layer in layers
        )
        assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("through", [{"linear_features": 13}, {"conv2d_channels": 3, "kernel_size": 3}])
@pytest.mark.parametrize("name", ["RLeaky", "RSynaptic"])
def test_all_to_all(name, through, monkeypatch):
    """The sequence and single steps equal snnTorch's loop."""
    keywords = {"beta": 0.8, "learn_beta": True, **({"alpha": 0.7} if name == "RSynaptic" else {})}
    ours, theirs = (getattr(library, name)(**keywords, **through) for library in (snn, snntorch))
    with torch.no_grad():  # exact sums, for which the order does not matter
        for parameter in theirs.recurrent.parameters():
            parameter.copy_((parameter * 64).round() / 64)
    ours.load_state_dict(theirs.state_dict())
    ours, theirs = ours.to(CUDA), theirs.to(CUDA)
    assert ours.runs_fused()
    step = (2, 13) if "linear_features" in through else (2, 3, 5, 6)
    x = torch.randn(9, *step, device=CUDA) * 2
    monkeypatch.setattr(fused, "FEWEST_OF_A_STEP", 0)
    results = []
    for layer, run in (
        (theirs, by_steps),
        (ours, by_steps),
        (ours, lambda layer, x, states: layer.sequence(x, *states)),
    ):
        leaf = x.clone().requires_grad_()
        outputs = run(layer, leaf, [torch.zeros(step, device=CUDA) for _ in STATES[name]])
        seeds = [torch.randn(part.shape, generator=torch.Generator().manual_seed(1)).to(CUDA) for part in outputs]
        loss = sum((part * seed).sum() for part, seed in zip(outputs, seeds))
        results.append((outputs, torch.autograd.grad(loss, [leaf, *layer.parameters()])))
    (expected, expected_grads), *others = results
    for outputs, grads in others:
        assert all(map(torch.equal, outputs, expected))
        for gradient, other in zip(grads, expected_grads):
            assert relative_error(gradient, other) <= 1e-5


def test_a_step_sees_what_changes_between_steps(monkeypatch):
    """A step reads a buffer that was written or replaced; its gradient uses the values of that step."""
    monkeypatch.setattr(fused, "FEWEST_OF_A_STEP", 0)
    x = torch.randn(8, 4, 13, device=CUDA) * 2
    results = []
    for library in (snn, snntorch):
        layer = library.Leaky(beta=0.9, threshold=0.8).to(CUDA)
        leaf, mem, total = x.clone().requires_grad_(), layer.reset_mem(), 0
        for t, current in enumerate(leaf):
            if t == 3:
                layer.threshold.data.fill_(0.5)
            if t == 4:
                layer.beta = torch.tensor(0.7, device=CUDA)
            if t == 5:
                layer.threshold.mul_(1.5)
            if t == 6:
                layer.beta = torch.rand(13, device=CUDA, generator=torch.Generator(CUDA).manual_seed(0))
            spk, mem = layer(current, mem)
            total = total + (spk * (t + 1)).sum() + mem.square().sum()
        results.append((total.detach(), torch.autograd.grad(total, leaf)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert relative_error(results[0][1], results[1][1]) <= 1e-5
