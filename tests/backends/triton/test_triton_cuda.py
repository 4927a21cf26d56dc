"""The public LIF ops on a CUDA device: equality with the reference, CUDA graphs, compilation, no synchronisation."""

import pytest
import torch
from oracle import FUSED, relative_error

import snnipu
from snnipu import backends, ops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _kernels():
    if backends.backend_for("lif_sequence", CUDA) != "triton":
        pytest.skip(backends.why_reference(CUDA))


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, device=CUDA, dtype=dtype)


@pytest.mark.parametrize("name", FUSED)
def test_gradients_are_those_of_the_cpu(name):
    x, upstream = torch.randn(6, 3, 70), torch.randn(6, 3, 70)
    results = []
    for device in ("cpu", "cuda"):
        leaf = x.to(device, copy=True).requires_grad_()
        spk, mem = ops.lif_sequence(leaf, beta=0.9, spike_grad=FUSED[name][0])
        ((spk + mem) * upstream.to(device)).sum().backward()
        results.append((spk.detach().cpu(), leaf.grad.cpu()))
    assert torch.equal(results[0][0], results[1][0])
    assert relative_error(results[1][1], results[0][1]) <= 1e-5


def test_constant_input_empty_and_non_contiguous():
    for x, num_steps in ((random(3, 41), 8), (random(0, 3, 4), None), (random(33, 4, 7).permute(2, 1, 0), None)):
        leaf = x.clone().requires_grad_()
        spk, mem = ops.lif_sequence(leaf, beta=0.9, num_steps=num_steps)
        (spk.sum() + mem.sum()).backward()
        expected = x.cpu().clone().requires_grad_()
        spk, mem = ops.lif_sequence(expected, beta=0.9, num_steps=num_steps)
        (spk.sum() + mem.sum()).backward()
        if x.numel():
            assert relative_error(leaf.grad.cpu(), expected.grad) <= 1e-5


def step_of(layer, x):
    spk, mem = layer.sequence(x)
    (spk.sum() + (mem**2).sum()).backward()


def test_no_step_waits_for_the_gpu():
    layer = snnipu.Leaky(beta=0.9, learn_beta=True, learn_threshold=True).to(CUDA)
    x = random(5, 4, 100).requires_grad_()
    step_of(layer, x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step_of(layer, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_cuda_graph():
    """A replayed training step reads the present contents of its input."""
    layer = snnipu.Leaky(beta=0.9, learn_beta=True).to(CUDA)
    x = random(5, 4, 100).requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step_of(layer, x)
    torch.cuda.current_stream().wait_stream(stream)
    x.grad, layer.beta.grad = None, None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step_of(layer, x)
    with torch.no_grad():
        x.copy_(random(5, 4, 100))
    x.grad.zero_()
    layer.beta.grad.zero_()
    graph.replay()
    captured = x.grad.clone(), layer.beta.grad.clone()
    x.grad, layer.beta.grad = None, None
    step_of(layer, x)
    assert torch.equal(captured[0], x.grad)
    assert torch.equal(captured[1], layer.beta.grad)


def test_compiles_into_one_graph():
    def loss(x, beta):
        spk, mem = ops.lif_sequence(x, beta=beta)
        return (spk * mem).sum()

    gradients = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        x = torch.linspace(-1, 2, 60, device=CUDA).reshape(4, 3, 5).requires_grad_()
        beta = torch.tensor(0.9, device=CUDA, requires_grad=True)
        function(x, beta).backward()
        gradients.append((x.grad, beta.grad))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.equal(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(dtype):
    """A Linear layer returns 16-bit currents; the state and the gradients of parameters stay float32."""
    net = torch.nn.Linear(20, 30).to(CUDA)
    layer = snnipu.Leaky(beta=0.9, learn_beta=True).to(CUDA)
    with torch.autocast("cuda", dtype=dtype):
        spk, mem = layer.sequence(net(random(5, 4, 20)))
    assert spk.dtype == mem.dtype == dtype
    (spk.float().sum() + mem.float().sum()).backward()
    assert layer.beta.grad.dtype == net.weight.grad.dtype == torch.float32


def test_every_run_gives_the_same_bits():
    x = random(20, 64, 1000)
    results = []
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        beta = torch.tensor(0.9, device=CUDA, requires_grad=True)
        spk, mem = ops.lif_sequence(leaf, beta=beta)
        (spk.sum() + (mem**2).sum()).backward()
        results.append((spk.detach(), mem.detach(), leaf.grad, beta.grad))
    assert all(torch.equal(actual, other) for actual, other in zip(*results))


def test_more_than_two_billion_elements(large_memory):
    """Offsets have 64 bits."""
    x = torch.zeros(33, 64, 2**20, device=CUDA, dtype=torch.float16)
    x[-1, -1, -3:] = 2
    spk, mem = ops.lif_sequence(x, beta=0.9)
    assert spk[-1, -1, -3:].tolist() == [1, 1, 1]
    assert spk.sum(dtype=torch.float64).item() == 3
    assert mem[-1, -1, -4:].tolist() == [0, 2, 2, 2]
