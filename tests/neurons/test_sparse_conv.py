"""``SparseConv2d``, ``SparseConvLeaky``, ``SparsePool2d`` and networks of them."""

import copy
import io
import pickle

import pytest
import torch
from oracle import relative_error
from support.tables import assert_refused, each_row

import snnipu as snn
from snnipu import SparseSpikes
from snnipu.neurons import multistep
from snnipu.training import scale_to_activity


def maps(rate=0.15, T=5, B=3, C=2, H=9, W=8):
    return (torch.rand(T, B, C, H, W) < rate).float()


def sparse(x):
    return SparseSpikes.from_dense(x.flatten(2)).with_maps(tuple(x.shape[2:]))


OPTIONS = [
    {},
    {"bias": True, "stride": 2, "padding": (1, 0), "threshold": torch.tensor([0.2, 0.4, 0.3, 0.5])},
    {"groups": 2, "dilation": 2, "padding": "same", "beta": torch.tensor([0.5, 0.6, 0.7, 0.8]), "learn_beta": True},
    {"reset_mechanism": "subtract", "learn_threshold": True, "input_scale": 0.5},
    {"reset_mechanism": "none", "learn_beta": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_dense_in_parts_of_time(options, monkeypatch):
    """Chunks of one step, of some steps and of all steps give the same spikes and gradients."""
    x = sparse(maps(0.5, T=7).double())
    upstream, results = None, []
    for part_bytes in (1, 4000, 2**30):
        monkeypatch.setattr(multistep, "CHUNK_BYTES", part_bytes)
        torch.manual_seed(1)
        layer = snn.SparseConvLeaky(2, 4, 3, path="dense", **{"beta": 0.8, "threshold": 0.3, **options}).double()
        spikes = x.detach().requires_grad_()
        out = layer(spikes)
        upstream = torch.randn_like(out.values) if upstream is None else upstream
        (out.values * upstream).sum().backward()
        results.append([out.to_dense(), spikes.values.grad, *(p.grad for p in layer.parameters())])
    assert results[0][0].sum() > 10
    for some in results[1:]:
        assert torch.equal(some[0], results[0][0])
        torch.testing.assert_close(some[1:], results[0][1:], rtol=1e-9, atol=1e-9)


def test_what_a_dense_tensor_may_be():
    x = maps()
    layer = snn.SparseConvLeaky(2, 4, 3, input_size=(9, 8), beta=0.8, threshold=0.3)
    expected = layer(sparse(x)).to_dense()
    for other in (x, x.bool(), x.int(), x.double(), x.flatten(2)):
        assert torch.equal(layer(other).to_dense(), expected)
    # A dense tensor that needs a gradient gets all of it.
    leaf = x.clone().requires_grad_()
    layer(leaf).values.sum().backward()
    twin = snn.MultiStep(*layer.to_dense())
    other = x.clone().requires_grad_()
    twin(other)[0].sum().backward()
    assert relative_error(leaf.grad, other.grad) < 1e-5


@pytest.mark.parametrize(
    ("channels", "groups", "dense"), [(12, 1, True), (16, 1, False), (24, 2, True), (64, 1, False)]
)
def test_a_convolution_alone_breaks_even_by_its_channels(channels, groups, dense, monkeypatch):
    """At 45 % activity: dense from 37.5 % on where 12 of 16 channels are used, else from 50 %."""
    x = sparse(maps(1.0, H=10))
    keep = torch.arange(x.num_neurons) % 20 < 9
    x = SparseSpikes.from_dense(x.to_dense() * keep).with_maps(x.map_shape)
    assert x.activity == pytest.approx(0.45)
    layer = snn.SparseConv2d(2, channels, 3, groups=groups)
    expected = layer(x)
    monkeypatch.setattr(snn.ops, "sparse_conv2d", lambda *arguments, **options: None)
    result = layer(x)
    assert torch.equal(result, expected) if dense else result is None


@pytest.mark.parametrize("mode", ["max", "average", "sum"])
def test_pool(mode):
    pool = snn.SparsePool2d(3, 2, 1, mode=mode)
    x = maps().requires_grad_()
    expected, actual = pool.to_dense()(x.flatten(0, 1)).reshape(*x.shape[:2], -1), pool(x).to_dense()
    for out in (actual, pool(x.detach()).to_dense(), pool(sparse(x)).to_dense()):
        assert torch.allclose(out, expected)
    torch.testing.assert_close(*[torch.autograd.grad(out.cumsum(-1).sum(), x)[0] for out in (actual, expected)])
    assert pool.input_size == (2, 9, 8)
    with pytest.raises(ValueError, match=r"x must be maps of \(2, 9, 8\)"):
        pool(maps(W=9))


def network(**options):
    return snn.SparseNetwork(
        [(2, 12, 11), "4C3-MP2", "6C3P1S2", "AP2", 10], beta=0.8, threshold=[0.3, 0.2, 0.1], delay=0, **options
    )


@pytest.mark.parametrize("path", ["sparse", "dense"])
def test_network_equals_its_dense_twin(path):
    net = network(path=path, bias=True)
    twin = net.to_dense()
    x = maps(T=7, H=12, W=11)
    *_, last = net(x, all_layers=True)
    out, (spk, _) = net(sparse(x)), twin(x)
    assert torch.equal(out.to_dense(), spk)
    assert torch.equal(last.to_dense(), spk)
    assert net.sizes == [264, 4 * 10 * 9, 6 * 3 * 2, 10]
    assert len(net.activity) == 3
    out.values.sum().backward()
    spk.sum().backward()
    for actual, other in zip(net.parameters(), twin.parameters()):
        assert relative_error(actual.grad.flatten(), other.grad.flatten()) < 1e-5
    assert set(net.dense_state_dict()) == set(twin.state_dict())
    other = network(bias=True)
    other.load_dense_state_dict(twin.state_dict())
    assert torch.equal(other(x).to_dense(), spk)


def routes(net, monkeypatch):
    """Return a list that records which layers ran with their pool as one operator, and how."""
    chosen = []
    for name in ("pooled_sparsely", "pooled_densely"):
        original = getattr(snn.SparseConvLeaky, name)

        def seen(layer, *arguments, original=original, name=name):
            chosen.append((list(net.layers).index(layer), name.partition("_")[2]))
            return original(layer, *arguments)

        monkeypatch.setattr(snn.SparseConvLeaky, name, seen)
    return chosen


@pytest.mark.parametrize(
    ("path", "rate", "expected"),
    [
        ("sparse", 0.5, ["sparsely", "sparsely"]),
        ("dense", 0.1, ["densely", "densely"]),
        ("auto", 0.02, ["sparsely"]),
    ],
)
@pytest.mark.parametrize("grad_threshold", [None, 0.05])
@pytest.mark.parametrize("options", [{}, {"delay": 1, "bias": True, "learn_beta": True, "input_scale": 1.0}])
def test_layers_and_their_pools_as_one_operator(path, rate, expected, grad_threshold, options, monkeypatch):
    """Spikes, counts and gradients equal those of a call that returns the spikes of every layer."""
    parts = [(2, 12, 11), "4C3-MP2", "6C3P1", "MP2", 10]
    keywords = {"reset_mechanism": "subtract", "learn_threshold": True, "input_scale": 0.5, "delay": 0, **options}
    net = snn.SparseNetwork(parts, beta=0.8, threshold=0.1, path=path, grad_threshold=grad_threshold, **keywords)
    x = sparse(maps(rate=rate, T=7, H=12, W=11))
    weights = torch.randn(3, 10)

    def run(**options):
        net.zero_grad()
        out = net(x, **options)
        out = out[-1] if options else out
        (out.spike_count() * weights).sum().backward()
        return out.to_dense().detach(), net.activity, [p.grad.clone() for p in net.parameters()]

    whole = run(all_layers=True)
    chosen = routes(net, monkeypatch)
    fused = run()
    # The fused operator passes dense maps only if every neuron carries gradient.
    expected = [] if path == "dense" and grad_threshold is not None else list(enumerate(expected))
    assert chosen[: len(expected)] == expected
    assert bool(chosen) == bool(expected)
    assert torch.equal(fused[0], whole[0])
    assert fused[1] == whole[1]
    assert net.overflow == [0, 0, 0]
    for actual, other in zip(fused[2], whole[2]):
        assert relative_error(actual, other) < 1e-5
    net.layers[0].register_forward_hook(lambda *_: None)
    del chosen[:]
    run()
    assert all(layer == 1 for layer, _ in chosen)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert net(x).shape == fused[0].shape


def test_a_dense_tensor_as_input_of_one_operator(monkeypatch):
    net = snn.SparseNetwork([(2, 12, 11), "4C3-MP2", "6C3-MP2", 10], beta=0.8, threshold=[0.1, 0.1, 0.1], delay=0)
    chosen = routes(net, monkeypatch)
    for path, route in (("auto", "sparsely"), ("dense", "densely")):
        for layer in net.layers:
            layer.path = path
        x = maps(rate=0.02, T=7, H=12, W=11)
        del chosen[:]
        assert torch.equal(net(x).to_dense(), net(x, all_layers=True)[-1].to_dense())
        assert chosen[0] == (0, route)
    empty = net(torch.zeros(0, 3, 2, 12, 11))
    assert empty.shape == (0, 3, 10)


def test_a_dense_input_in_few_slots():
    net = network(max_spikes=[20, None, None, None])
    x = maps(H=12, W=11, rate=0.4)
    expected = net(sparse(x)).to_dense()
    assert net.input_overflow > 0
    for other in (x, x.bool(), x.flatten(2)):
        assert torch.equal(net(other).to_dense(), expected)


def test_copies_and_files():
    net = network(learn_beta=True, grad_threshold=0.05)
    x = sparse(maps(H=12, W=11))
    net(x).spike_count().square().sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.01 * parameter.grad
    expected = net(x).to_dense()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    loaded = network(learn_beta=True, grad_threshold=0.05)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded):
        assert torch.equal(other(x).to_dense(), expected)
    with torch.no_grad():
        assert torch.equal(net.eval()(x).to_dense(), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype == torch.float32


def test_spikes_know_their_maps(tmp_path):
    x = sparse(maps())
    for other in (
        x[1:3],
        x[:, [0]],
        x.trim(),
        x.limit(3),
        x.detach(),
        x.clone(),
        x.to(torch.float64),
        copy.deepcopy(x),
    ):
        assert other.map_shape == (2, 9, 8)
    assert SparseSpikes.cat([x, x.with_maps(None)]).map_shape == (2, 9, 8)
    assert pickle.loads(pickle.dumps(x)).map_shape == (2, 9, 8)
    state = x.__getstate__()
    del state["map_shape"]  # older files lack it
    old = SparseSpikes.__new__(SparseSpikes)
    old.__setstate__(state)
    assert old.map_shape is None
    with pytest.raises(ValueError, match="parts must agree in map_shape"):
        SparseSpikes.cat([x, x.with_maps((1, 18, 8))])
    with pytest.raises(ValueError, match="map_shape must be of num_neurons=144 neurons"):
        x.with_maps((2, 9, 9))
    with pytest.raises(TypeError, match="map_shape must"):
        x.with_maps((2, 72))


def test_scale_to_activity():
    net = network()
    x = sparse(maps(rate=0.3, T=12, B=8, H=12, W=11))
    for layer in scale_to_activity(net, x, 0.1, tolerance=0.1):
        assert layer.reached
    net(x)
    for activity in net.activity:
        assert 0.08 < activity < 0.12


def layer_of(in_channels=2, out_channels=4, kernel_size=3, **options):
    return snn.SparseConvLeaky(in_channels, out_channels, kernel_size, beta=0.9, **options)


def network_of(*sizes):
    return snn.SparseNetwork(sizes, beta=0.9)


@each_row(r"""
layer_of(in_channels=0) | ValueError: in_channels must be at least 1
layer_of(out_channels=1.5) | TypeError: out_channels must be an int
layer_of(kernel_size=0) | ValueError: kernel_size must be at least 1
layer_of(groups=3) | ValueError: groups must divide in_channels, 2, got 3
layer_of(padding="full") | TypeError: padding must be an int or two
layer_of(padding="same", stride=2) | ValueError: padding='same' needs a stride of 1
layer_of(padding="same", kernel_size=2) | ValueError: padding='same' would be uneven
layer_of(input_size=(3, 0)) | ValueError: input_size must be at least 1
layer([1.0]) | TypeError: x must be a torch.Tensor or SparseSpikes, got list
layer(maps(C=3)) | ValueError: x must have shape \[T, B, in_channels=2, H, W\], got \(5, 3, 3, 9, 8\)
layer(maps(W=9)) | ValueError: x must be maps of \(9, 8\), as input_size says, got \(9, 9\)
layer(sparse(maps(C=3))) | ValueError: spikes must be of 2 channels
layer(sparse(maps(C=3)).with_maps(None)) | ValueError: spikes must be of 2 x 9 x 8 = 144 neurons
layer(maps().to("meta")) | ValueError: x must be on the device of the layer, cpu, got meta
layer(maps(), delay=-1) | ValueError: delay must be at least 0
layer_of()(sparse(maps()).with_maps(None)) | ValueError: input_size must be given
network_of((2, 9, 9), "4X3", 10) | ValueError: sizes: '4X3' is no layer
network_of((2, 9), "4C3", 10) | ValueError: sizes must begin with a number of neurons or \(channels, height, width\)
network_of(81, "4C3") | ValueError: sizes: '4C3' needs maps before it
network_of((2, 9, 9), 10, "MP2") | ValueError: sizes: 'MP2' needs maps before it
network_of((2, 9, 9), "MP2", 10) | ValueError: sizes: 'MP2' stands before the first layer
network_of((2, 9, 9), "4C10") | ValueError: sizes: '4C10' does not fit into the maps before it, 9 x 9
network_of((2, 9, 9), "4C3S0") | ValueError: sizes: '4C3S0' must have a window and a stride of at least 1
network_of((2, 9, 9), "4C3MP2", 10) | ValueError: sizes: '4C3MP2' is no layer
""")
def test_wrong_options_inputs_and_descriptions(row):
    assert_refused(row, globals(), layer=layer_of(input_size=(9, 8)))
