"""Sparse ops and event-driven layers on a CUDA device: against the CPU, graphs, compilation, no synchronisation."""

import contextlib
import itertools

import pytest
import torch
from oracle import RESETS, on_grid, random_spikes, relative_error

import snnipu
from snnipu import SparseSpikes, backends, ops
from snnipu.ops import _break_even

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _kernels():
    if backends.backend_for("sparse_linear", CUDA) != "triton":
        pytest.skip(backends.why_reference(CUDA))


@contextlib.contextmanager
def nothing_waits():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def leaves_on(device, tensors):
    return {name: tensor.detach().to(device).requires_grad_() for name, tensor in tensors.items()}


def layer_on(device, spikes, tensors, upstream=None, **options):
    """Return the layer's slots and its gradients, on the CPU."""
    leaves = leaves_on(device, tensors)
    start = spikes.clone().to(device).requires_grad_()
    out = ops.sparse_lif_sequence(start, **leaves, **options)
    if upstream is None:
        upstream = torch.randn(out.values.shape, dtype=out.dtype)
    (out.values * upstream.to(device)).sum().backward()
    carried = torch.arange(start.capacity) < spikes.counts[..., 1:].cpu()
    gradients = {name: leaf.grad.cpu() for name, leaf in leaves.items()}
    gradients["values"] = start.values.grad.cpu().where(carried, torch.zeros((), dtype=out.dtype))
    return out.detach().cpu(), gradients, upstream


def assert_as_on_the_cpu(spikes, tensors, tolerance=1e-5, **options):
    expected, gradients, upstream = layer_on("cpu", spikes, tensors, **options)
    out, actual, _ = layer_on(CUDA, spikes, tensors, upstream, **options)
    for name in ("ids", "values", "counts", "dropped"):
        assert torch.equal(getattr(out, name), getattr(expected, name)), name
    for name, gradient in gradients.items():
        terms = gradients["weight"] if gradient.numel() == 1 else None
        assert relative_error(actual[name], gradient, terms) <= tolerance, name
    return expected


def random_tensors(inputs, outputs, recurrent=False, each=False, dtype=torch.float32):
    parameters = {
        "weight": on_grid(outputs, inputs, dtype=dtype) + 1 / 8,
        "bias": on_grid(outputs, most=0.25, dtype=dtype),
    }
    if recurrent:
        parameters["recurrent_weight"] = on_grid(outputs, outputs, most=0.25, dtype=dtype)
    parameters["beta"] = torch.rand(outputs, dtype=dtype) if each else torch.tensor(0.85, dtype=dtype)
    parameters["threshold"] = torch.rand(outputs, dtype=dtype) + 0.3 if each else torch.tensor(0.7, dtype=dtype)
    return parameters


@pytest.mark.parametrize("many", [False, True], ids=["kernels", "products"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reset", RESETS)
def test_layer_is_that_of_the_cpu(reset, dtype, many, monkeypatch):
    for constant in ("STRICT", "TF32", "DOUBLE"):
        monkeypatch.setattr(_break_even, constant, 0.0 if many else 1.0)
    for (inputs, neurons), recurrent, max_spikes in itertools.product(
        [(1, 1), (5, 63), (40, 1000), (700, 130)], (False, True), (None, 20)
    ):
        spikes = random_spikes(9, 3, inputs, 0.2, 0.1, graded=True, dtype=dtype)
        options = {"grad_threshold": 0.3, "max_spikes": max_spikes, "reset_mechanism": reset, "delay": int(recurrent)}
        tensors = random_tensors(inputs, neurons, recurrent, each=neurons > 100, dtype=dtype)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        assert_as_on_the_cpu(spikes, tensors, tolerance, overflow="rotate" if recurrent else "lowest", **options)


def test_selection_is_that_of_the_cpu():
    mem = torch.randn(5, 7, 5000)
    for threshold, second, max_spikes, overflow in itertools.product(
        (0.5, torch.rand(5000)), (None, 0.2), (None, 0, 100, 2000, 5000), ("lowest", "rotate")
    ):
        actual, expected = (
            ops.select_spikes(
                mem.to(device),
                threshold.to(device) if isinstance(threshold, torch.Tensor) else threshold,
                second,
                max_spikes,
                overflow=overflow,
            )
            for device in (CUDA, "cpu")
        )
        for name in ("ids", "values", "counts", "dropped"):
            assert torch.equal(getattr(actual, name).cpu(), getattr(expected, name)), name
    x = mem * (mem > 1)
    actual, expected = SparseSpikes.from_dense(x.to(CUDA)), SparseSpikes.from_dense(x)
    assert torch.equal(actual.ids.cpu(), expected.ids)
    assert torch.equal(actual.to_dense().cpu(), x)


def test_spikes_are_counted_as_on_the_cpu():
    spikes = random_spikes(9, 3, 700, 0.1, 0.05, graded=True)
    upstream, results = torch.randn(3, 700), []
    for device in ("cpu", CUDA):
        leaf = spikes.clone().to(device).requires_grad_()
        count = leaf.spike_count()
        (count * upstream.to(device)).sum().backward()
        results.append((count.detach().cpu(), leaf.values.grad.cpu()))
    assert all(map(torch.equal, *results))


@pytest.fixture
def network():
    net = snnipu.SparseNetwork(
        [700, 512, 512, 20], beta=0.95, max_spikes=[48, 64, 64, 20], grad_threshold=0.5, input_scale=0.5, bias=True
    )
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.mul_(6)
    return net.to(CUDA)


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = SparseSpikes.from_dense((torch.rand(30, 8, 700, generator=generator) < 0.03).float(), 48).to(CUDA)
    return x, torch.randint(20, (8,), generator=generator).to(CUDA)


def train(net, x, labels):
    loss = torch.nn.functional.cross_entropy(net(x).spike_count(), labels)
    loss.backward()
    return loss


@pytest.mark.parametrize("path", ["auto", "sparse", "dense"])
def test_no_training_step_waits_for_the_gpu(path, network):
    network.path = path
    for layer in network.layers:
        layer.path = path
    optimizer = torch.optim.Adam(network.parameters(), foreach=True)
    x, labels = batch()
    for step in range(20):
        with nothing_waits() if step else contextlib.nullcontext():
            optimizer.zero_grad()
            train(network, x, labels)
            optimizer.step()
    assert network.layers[0].weight.grad.any()
    assert min(network.activity) > 0


def test_auto_follows_the_activity(monkeypatch):
    """A gather runs for few spikes and a matrix product for many, independent of the slots."""
    monkeypatch.setattr(_break_even, "STRICT", 0.1)
    monkeypatch.setattr(_break_even, "TF32", 0.1)
    layer = snnipu.SparseLinear(100, 10).to(CUDA)
    taken = []
    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *arguments: taken.append("dense") or linear(*arguments))
    for rate in (0.02, 0.4):
        x = SparseSpikes.from_dense((torch.rand(20, 8, 100) < rate).float(), 60).to(CUDA)
        for _ in range(12):
            layer(x)
        taken.clear()
        layer(x)
        assert taken == (["dense"] if rate > 0.1 else [])


def test_cuda_graph(network):
    """A replayed training step reads the present input and weights."""
    x, labels = batch()
    parameters = list(network.parameters())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(network, x, labels)
    torch.cuda.current_stream().wait_stream(stream)
    network.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train(network, x, labels)
    other, other_labels = batch(1)
    with torch.no_grad():
        for static, new in zip(
            (x.ids, x.values, x.counts, labels), (other.ids, other.values, other.counts, other_labels)
        ):
            static.copy_(new)
        for parameter in parameters:
            parameter.mul_(1.1)
            parameter.grad.zero_()
    graph.replay()
    captured = [loss.detach().clone(), *(parameter.grad.clone() for parameter in parameters)]
    counted = network.activity
    network.zero_grad(set_to_none=True)
    eager = [train(network, other, other_labels).detach(), *(parameter.grad for parameter in parameters)]
    assert all(map(torch.equal, captured, eager))
    assert counted == network.activity


def test_compiles_into_one_graph():
    x, _ = batch()
    parameters = [torch.randn(64, 700), torch.randn(64)]

    def loss(values, weight, bias):
        spikes = SparseSpikes._trusted(x.ids, values, x.counts, 700)
        out = ops.sparse_lif_sequence(spikes, weight, bias, beta=0.9, grad_threshold=0.5, max_spikes=20)
        return (ops.sparse_to_dense(out) ** 2).sum() + ops.sparse_linear(out, weight[:5, :64]).sum()

    gradients = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        leaves = [tensor.to(CUDA).requires_grad_() for tensor in (x.values.clone(), *parameters)]
        function(*leaves).backward()
        gradients.append([leaf.grad for leaf in leaves])
    for actual, expected in zip(*gradients):
        assert relative_error(actual, expected) <= 1e-5


def test_network_compiles_into_one_graph(network):
    x, labels = batch()
    eager = train(network, x, labels)
    expected = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    compiled = torch.compile(lambda: train_loss(network, x, labels), fullgraph=True)()
    compiled.backward()
    assert torch.equal(compiled, eager)
    for parameter, gradient in zip(network.parameters(), expected):
        assert relative_error(parameter.grad, gradient) <= 1e-5


def train_loss(net, x, labels):
    return torch.nn.functional.cross_entropy(net(x).spike_count(), labels)


def test_every_run_gives_the_same_bits():
    x = random_spikes(30, 16, 700, 0.05, 0.1, graded=True).to(CUDA)
    tensors = {**random_tensors(700, 500, each=True, recurrent=True), "weight": torch.randn(500, 700)}
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        out, gradients, _ = layer_on(CUDA, x, tensors, max_spikes=40, grad_threshold=0.4)
        results.append([out.ids, out.counts, *gradients.values()])
    assert all(map(torch.equal, *results))


def test_more_than_two_billion_elements(large_memory):
    """Offsets have 64 bits."""
    mem = torch.zeros(33, 64, 2**20, device=CUDA)
    mem[-1, -1, -3:] = 2
    spikes = ops.select_spikes(mem, 1.0, 1.0, 4)
    assert spikes.num_spikes == 3
    assert spikes.ids[-1, -1, :3].tolist() == [2**20 - 3, 2**20 - 2, 2**20 - 1]
    del mem
    dense = spikes.to_dense()
    assert dense[-1, -1, -4:].tolist() == [0, 1, 1, 1]
    assert dense.sum(dtype=torch.float64).item() == 3
