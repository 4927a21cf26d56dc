"""``snnipu.SparseLinear``."""

import copy
import inspect
import pickle

import pytest
import torch
from oracle import at_slots, densified, on_grid, random_spikes, relative_error
from support.versions import needs_compile
from torch import nn

import snnipu as snn


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def made(inputs, outputs, bias=True, path="auto"):
    """A layer whose sums are exact, in whatever order."""
    layer = snn.SparseLinear(inputs, outputs, bias, path=path)
    with torch.no_grad():
        layer.weight.copy_(on_grid(outputs, inputs))
        if bias:
            layer.bias.copy_(on_grid(outputs))
    return layer


def test_signature():
    parameters = inspect.signature(snn.SparseLinear).parameters
    assert list(parameters) == ["in_features", "out_features", "bias", "path"]
    assert parameters["bias"].default is False
    assert parameters["path"].kind is inspect.Parameter.KEYWORD_ONLY


def test_is_a_linear_layer():
    layer = snn.SparseLinear(30, 20, bias=True)
    assert isinstance(layer, nn.Linear)
    twin = nn.Linear(30, 20)
    assert layer.state_dict().keys() == twin.state_dict().keys()
    twin.load_state_dict(layer.state_dict())
    layer.load_state_dict(twin.state_dict())
    assert snn.SparseLinear(30, 20).bias is None
    torch.manual_seed(3)
    expected = nn.Linear(30, 20, bias=False).weight
    torch.manual_seed(3)
    assert torch.equal(snn.SparseLinear(30, 20).weight, expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("path", ["auto", "sparse", "dense"])
def test_every_path_gives_the_same(path, rate, bias):
    spikes = random_spikes(6, 4, 30, rate, 0.0, graded=True)
    dense = densified(spikes.values, spikes)
    layer = made(30, 20, bias, path)
    expected = nn.functional.linear(dense, layer.weight, layer.bias)
    upstream = torch.randn_like(expected)
    expected_grads = torch.autograd.grad((expected * upstream).sum(), list(layer.parameters()))
    for x in (spikes, dense):
        layer.zero_grad()
        out = layer(x)
        assert torch.equal(out, expected)
        (out * upstream).sum().backward()
        for parameter, grad in zip(layer.parameters(), expected_grads):
            assert relative_error(parameter.grad, grad, terms=upstream) <= 1e-6


@pytest.mark.parametrize("path", ["auto", "sparse", "dense"])
def test_the_gradient_of_the_input(path):
    layer = made(30, 20, path=path)
    expected = layer.weight.sum(0).detach().expand(6, 4, 30)
    spikes = random_spikes(6, 4, 30, 0.2, 0.2).requires_grad_()
    layer(spikes).sum().backward()
    assert torch.equal(spikes.values.grad, at_slots(expected, spikes))
    dense = densified(spikes.values, spikes).requires_grad_()
    layer(dense).sum().backward()
    # The zeros of a dense input have a gradient, but where it was made sparse on request.
    assert torch.equal(dense.grad, expected * (dense != 0) if path == "sparse" else expected)


def test_read_out():
    """Spikes -> SparseLinear -> Leaky.sequence."""
    spikes = random_spikes(7, 3, 30)
    layer, leaky = made(30, 10), snn.Leaky(beta=0.9)
    spk, mem = leaky.sequence(layer(spikes))
    twin = nn.Linear(30, 10)
    twin.load_state_dict(layer.state_dict())
    expected_spk, expected_mem = snn.Leaky(beta=0.9).sequence(twin(densified(spikes.values, spikes)))
    assert torch.equal(spk, expected_spk)
    assert torch.equal(mem, expected_mem)
    mem.sum().backward()
    expected_mem.sum().backward()
    assert relative_error(layer.weight.grad, twin.weight.grad) <= 1e-6


def test_double_precision():
    layer = made(30, 20).to(torch.float64)
    for x in (random_spikes(6, 4, 30), torch.rand(6, 4, 30).round()):
        assert layer(x).dtype == torch.float64
    spikes = random_spikes(6, 4, 30)
    assert torch.equal(layer(spikes), nn.functional.linear(spikes.to_dense().double(), layer.weight, layer.bias))


def test_copies():
    spikes = random_spikes(6, 4, 30)
    layer = made(30, 20)
    out = layer(spikes)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(spikes), out)
        assert copied.path == layer.path


@needs_compile
def test_compiles_into_one_graph():
    spikes = random_spikes(4, 3, 20, graded=True, slack=0)
    layer = made(20, 7, path="sparse")

    def loss(values):
        own = snn.SparseSpikes._trusted(spikes.ids, values, spikes.counts, 20)
        return (layer(own) ** 2).sum()

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        layer.zero_grad()
        values = at_slots(densified(spikes.values, spikes), spikes).requires_grad_()
        out = function(values)
        out.backward()
        results.append((out.detach(), values.grad, layer.weight.grad.clone(), layer.bias.grad.clone()))
    for own, expected in zip(*results):
        assert torch.equal(own, expected)


@needs_compile
@pytest.mark.parametrize("kind", ["spikes", "dense"])
def test_a_compiled_layer_does_not_look_at_the_data(kind):
    """With path="auto" spikes stay spikes in one graph, and a dense tensor a dense one."""
    spikes = random_spikes(4, 3, 20)
    x = spikes if kind == "spikes" else spikes.to_dense()
    layer = made(20, 7)
    chosen = made(20, 7, path="sparse" if kind == "spikes" else "dense")
    chosen.load_state_dict(layer.state_dict())
    torch._dynamo.reset()
    out = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert layer.path == "auto"
    assert torch.equal(out, chosen(x))


def test_repr():
    assert repr(snn.SparseLinear(3, 4)) == "SparseLinear(in_features=3, out_features=4, bias=False)"
    assert "path='dense'" in repr(snn.SparseLinear(3, 4, path="dense"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"in_features": 0}, ValueError, "in_features must be at least 1, got 0"),
        ({"in_features": 2.0}, TypeError, "in_features must be an int, got 2.0"),
        ({"out_features": -1}, ValueError, "out_features must be at least 1, got -1"),
        ({"out_features": True}, TypeError, "out_features must be an int, got True"),
        ({"path": "fast"}, ValueError, "path must be 'auto', 'sparse' or 'dense', got 'fast'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        snn.SparseLinear(**{"in_features": 3, "out_features": 4, **arguments})


@pytest.mark.parametrize("path", ["auto", "sparse", "dense"])
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(2, 3, 4), ValueError, r"x must have shape \[T, B, in_features=5\], got \(2, 3, 4\)"),
        (torch.zeros(3, 5), ValueError, r"x must have shape \[T, B, N\]"),
        (torch.zeros(2, 3, 5, dtype=torch.complex64), TypeError, "x must be floating"),
        ([1.0], TypeError, "x must be a torch.Tensor, got list"),
        (random_spikes(2, 3, 4), ValueError, "x must be spikes of in_features=5 neurons, got 4"),
    ],
)
def test_bad_input(x, error, message, path):
    with pytest.raises(error, match=message):
        snn.SparseLinear(5, 2, path=path)(x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("path", ["auto", "sparse", "dense"])
@pytest.mark.parametrize("kind", ["SparseLinear", "SparseLeaky", "SparseNetwork", "SparseNetwork, capped"])
def test_spikes_of_any_real_dtype(kind, path, dtype):
    """bool as 0 and 1, integers as the values that they are."""
    torch.manual_seed(0)
    layer = {
        "SparseLinear": lambda: snn.SparseLinear(6, 4, path=path),
        "SparseLeaky": lambda: snn.SparseLeaky(6, 4, beta=0.9, path=path),
        "SparseNetwork": lambda: snn.SparseNetwork([6, 5, 4], beta=0.9, path=path),
        "SparseNetwork, capped": lambda: snn.SparseNetwork([6, 5, 4], beta=0.9, path=path, max_spikes=3),
    }[kind]()
    for module_dtype in (torch.float32, torch.float64):
        layer.to(module_dtype)
        x = torch.randint(0, 2 if dtype == torch.bool else 4, (7, 3, 6)).to(dtype)
        outs = [layer(x), layer(x.to(module_dtype))]
        dense = [out.to_dense() if isinstance(out, snn.SparseSpikes) else out for out in outs]
        assert dense[0].dtype == module_dtype
        assert torch.equal(*dense)
