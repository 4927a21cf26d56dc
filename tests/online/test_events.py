"""Event-driven layers that learn online, against explicit steps of their operators and their dense form."""

import copy

import pytest
import torch
from oracle import relative_error
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu import ops

TIGHT = 1e-9
SIZES = {"beta": 0.9, "threshold": 0.5}
NEAR = {**SIZES, "grad_threshold": 0.2}
MAPS = [(2, 8, 8), "4C3", "MP2", "5C2S1P1", "AP2", 6]
NETWORKS = {
    "each": lambda: snn.SparseNetwork([20, 16, 12, 6], delay=0, **SIZES),
    "near": lambda: snn.SparseNetwork([20, 16, 12, 6], delay=0, **NEAR),
    "slots": lambda: snn.SparseNetwork([20, 16, 12, 6], delay=0, max_spikes=[4, 5, 3, None], **NEAR),
    "learnt": lambda: snn.SparseNetwork(
        [20, 16, 12, 6], delay=0, bias=True, learn_beta=True, learn_threshold=True, input_scale=2.0, **NEAR
    ),
    "subtract": lambda: snn.SparseNetwork([20, 16, 6], delay=0, reset_mechanism="subtract", **NEAR),
    "maps-each": lambda: snn.SparseNetwork([(2, 8, 8), "4C3", "5C2S1P1", 6], delay=0, **SIZES),
    "maps": lambda: snn.SparseNetwork(MAPS, delay=0, **NEAR),
    "maps-slots": lambda: snn.SparseNetwork(MAPS, delay=0, max_spikes=40, bias=True, **NEAR),
}


def network(name, path):
    torch.manual_seed(0)
    net = NETWORKS[name]().double()
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.mul_(2.5)
            layer.path = path
            if layer.bias is not None:
                layer.bias.mul_(0.3)
    return net


def inputs(net, steps=12):
    torch.manual_seed(1)
    return (torch.rand(steps, 3, net.sizes[0], dtype=torch.float64) < 0.2).double()


def as_spikes(net, x):
    spikes = snn.SparseSpikes.from_dense(x)
    return spikes.with_maps(net.layers[0].in_channels and (2, 8, 8)) if net.on_maps else spikes


def product(layer, x, weight):
    if isinstance(layer, snn.SparseConvLeaky):
        maps = x.reshape(*x.shape[:2], layer.in_channels, *layer.input_size)
        return nn.functional.conv2d(maps[0], weight, None, layer.stride, layer.padding)[None]
    return x.flatten(2) @ weight.T


def weighted_sum(out):
    """Return a loss whose gradient differs from neuron to neuron."""
    return (out * torch.arange(1.0, 1 + out.shape[-1], dtype=out.dtype)).sum()


def oracle(net, x, rule):
    """Compute gradients step by step: the error of that step for the layer below, input traces for weights."""
    memory = [None] * len(net.layers)
    traces = [0.0] * len(net.layers)
    ones = [0.0] * len(net.layers)
    total = 0
    for t in range(len(x)):
        spikes = snn.SparseSpikes.from_dense(x[t : t + 1], net.max_input_spikes)
        for number, layer in enumerate(net.layers):
            u, decay = spikes.to_dense(), layer.beta.detach() if rule == "ottt" else 0.0
            traces[number] = decay * traces[number] + u.detach()
            ones[number] = decay * ones[number] + 1
            scale, weight = layer.input_scale, layer.weight
            below = product(layer, u, weight.detach()) * scale
            traced = product(layer, traces[number], weight) * scale
            if layer.bias is not None:
                bias = layer.bias.reshape(-1, 1, 1) if isinstance(layer, snn.SparseConvLeaky) else layer.bias
                below, traced = below + bias.detach(), traced + ones[number] * bias
            before = torch.zeros_like(below) if memory[number] is None else memory[number]
            fired = (before > layer.threshold).double()
            drop = before * layer.beta if layer.reset_mechanism == "zero" else layer.threshold
            mem = (layer.beta * before + below - fired * drop).detach()
            memory[number] = mem
            mem = mem + (below - below.detach()) + (traced - traced.detach())
            shape = mem.shape[2:]
            spikes = ops.select_spikes(mem.flatten(2), layer.threshold.detach(), layer.grad_threshold, layer.max_spikes)
            if len(shape) == 3:
                spikes = spikes.with_maps(tuple(shape))
            spikes = net.pooled(number, spikes)
        total = total + weighted_sum(spikes.to_dense())
    total.backward()


def gradients(net):
    """Return the gradients of weights and biases."""
    copies = [p.grad.clone() for layer in net.layers for p in (layer.weight, layer.bias) if p is not None]
    net.zero_grad()
    return copies


@pytest.mark.slow
@pytest.mark.parametrize("path", ["sparse", "dense"])
@pytest.mark.parametrize("rule", ["sltt", "ottt"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_stream_of_events_in_chunks_has_the_gradients_of_explicit_steps(name, rule, path):
    net = network(name, path)
    x = inputs(net)
    oracle(net, x, rule)
    expected, whole, online = gradients(net), net(x), snn.Online(net, rule=rule)
    assert whole.num_spikes
    for length in (1, 5, len(x)):
        for form in (x, as_spikes(net, x)):
            online.reset()
            outputs = []
            for first in range(0, len(x), length):
                out = online(form[first : first + length], single=False)
                weighted_sum(out.to_dense()).backward()
                outputs.append(out.to_dense().detach())
            assert torch.equal(torch.cat(outputs), whole.to_dense())
            for actual, other in zip(gradients(net), expected):
                assert other.any()
                assert relative_error(actual, other) < TIGHT
    assert net.activity is not None


def conv(**options):
    return nn.Unflatten(1, (5, 2, 2)), snn.SparseConvLeaky(5, 4, 2, padding=1, **{**SIZES, **options})


@pytest.mark.parametrize("rule", ["sltt", "ottt"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (
            snn.SparseSynaptic(20, 16, alpha=0.8, learn_alpha=True, bias=True, **SIZES),
            snn.SparseLinear(16, 5),
            readout(),
        ),
        lambda: (
            snn.SparseLeaky(20, 16, beta=torch.linspace(0.3, 0.9, 16), learn_beta=True, threshold=0.5),
            nn.Linear(16, 12),
            snn.Leaky(beta=0.9, threshold=0.5),
            snn.SparseLeaky(12, 5, learn_threshold=True, **SIZES),
        ),
        lambda: (
            *conv(beta=torch.linspace(0.3, 0.9, 4), learn_beta=True),
            nn.Flatten(),
            snn.SparseLeaky(36, 5, **SIZES),
        ),
        lambda: (*conv(), nn.Linear(36, 5), readout()),
        lambda: (
            nn.Unflatten(1, (5, 2, 2)),
            snn.SparseConvSynaptic(5, 4, 2, padding=1, alpha=0.8, learn_alpha=True, **SIZES),
            nn.Linear(36, 5),
            readout(),
        ),
        lambda: (*conv(), snn.SparsePool2d(3), nn.Linear(4, 5), readout()),
        lambda: (snn.SparseLeaky(20, 16, max_delay=4, **SIZES), snn.SparseLeaky(16, 5, **SIZES)),
        lambda: (snn.SparseLeaky(20, 16, recurrent=True, reset_mechanism="subtract", learn_beta=True, **SIZES),),
    ],
    ids=[
        "synaptic",
        "each-beta",
        "each-channel",
        "maps-to-linear",
        "synaptic-maps",
        "pool-to-linear",
        "delays",
        "recurrent",
    ],
)
def test_layers_learn_as_their_dense_form(make, rule, request):
    if "delays" in request.node.name and rule == "ottt":
        return  # refused
    net = snn.MultiStep(*make()).double()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    x, results = (torch.rand(12, 3, 20) < 0.2).double(), []
    for of_net in (net, dense_form(net)):
        with torch.no_grad():
            online = snn.Online(of_net, rule=rule)
            online(x)
        online.reset()
        for chunk in x.split(5):
            out = online(chunk)
            spk = out.to_dense() if isinstance(out, snn.SparseSpikes) else out[0]
            weighted_sum(spk).backward()
        grads = {p.numel(): p.grad.flatten() for p in of_net.parameters() if p.grad is not None}
        results.append((spk.detach(), grads))
    (spk, grads), (of_dense, expected) = results
    assert spk.any()
    assert torch.equal(spk, of_dense)
    assert grads.keys() == expected.keys()
    for shape, grad in grads.items():
        assert relative_error(grad, expected[shape]) < TIGHT


def readout():
    return snn.Leaky(beta=0.8, threshold=0.4)


def dense_form(net):
    """Return the equivalent network of ordinary layers, with separate weights."""
    modules = []
    for part in copy.deepcopy(net):
        if isinstance(part, nn.Linear):
            linear = nn.Linear(part.in_features, part.out_features, bias=part.bias is not None).double()
            linear.load_state_dict(part.state_dict())
            modules += [nn.Flatten(), linear]
        elif getattr(part, "recurrent_weight", None) is not None:
            neuron = snn.RLeaky(linear_features=16, learn_beta=True, **SIZES)
            linear, neuron.recurrent = nn.Linear(20, 16, bias=False), nn.Linear(16, 16, bias=False)
            linear.weight, neuron.recurrent.weight = part.weight, part.recurrent_weight
            modules += [linear, neuron]
        elif hasattr(part, "to_dense"):
            dense = part.to_dense()
            modules += [*dense] if isinstance(dense, nn.Sequential) else [dense]
        else:
            modules.append(part)
    return snn.MultiStep(*modules).double()


def test_single_steps_and_an_input_that_wants_a_gradient():
    net = network("near", "auto")
    x = inputs(net)
    online = snn.Online(net, rule="sltt")
    out = online(x[0])
    assert out.shape == (1, 3, 6)
    assert torch.equal(out.to_dense(), net(x[:1]).to_dense())
    leaf = x.clone().requires_grad_()
    online.reset()
    weighted_sum(online(leaf).to_dense()).backward()
    assert leaf.grad.any()
    spikes = as_spikes(net, x).requires_grad_()
    online.reset()
    net.zero_grad()
    weighted_sum(online(spikes).to_dense()).backward()
    carried = torch.zeros_like(x).scatter_add(2, spikes.ids.long(), spikes.values.grad)
    assert relative_error(carried[x > 0], leaf.grad[x > 0]) < TIGHT
    maps = network("maps", "auto")
    assert snn.Online(maps, rule="ottt")(inputs(maps)[0].reshape(3, 2, 8, 8)).shape[:2] == (1, 3)


def test_options_and_weights_that_change_between_chunks():
    net = network("near", "auto")
    x = inputs(net)
    online = snn.Online(net, rule="ottt")
    online(x[:4])
    for layer in net.layers:
        layer.grad_threshold = 0.5  # none below the threshold
    out = online(x[:4])
    assert torch.equal(out.counts[..., 0], out.counts[..., 1])
    net.layers[0].weight.data.zero_()
    weighted_sum(out.to_dense()).backward()
    with torch.no_grad():
        net.layers[0].weight.add_(1)
    out = online(x[:4])
    with torch.no_grad():
        net.layers[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        weighted_sum(out.to_dense()).backward()


class Watched(snn.SparseLeaky):
    pass


def hooked():
    net = snn.MultiStep(snn.SparseLeaky(8, 6, beta=0.9))
    net[0].register_forward_hook(lambda *_: None)
    return net


def layer(**options):
    return snn.MultiStep(snn.SparseLeaky(8, 6, beta=0.9, **options))


def network_of(*sizes, **options):
    return snn.SparseNetwork(sizes, beta=0.9, **options)


@each_row(r"""
online(network_of(8, 6, 4)) | ValueError: SparseNetwork: with delay=1 .* use delay=0
online(snn.MultiStep(network_of(8, 6, 4), nn.Linear(4, 2))) | ValueError: module 0: with delay=1
online(network_of(8, 6, max_spikes=3, overflow="rotate")) | ValueError: overflow="rotate"
online(layer(max_spikes=3, overflow="rotate")) | ValueError: module 0: with overflow="rotate"
online(layer(), rule="eprop") | TypeError: module 0 \(SparseLeaky\): rule "eprop" .* to_dense\(\)
online(layer(recurrent=True, max_spikes=3)) | ValueError: without max_spikes
online(layer(recurrent=True))
    | ValueError: module 0 \(SparseLeaky\): a recurrent layer whose membrane is reset to zero
online(snn.MultiStep(nn.Linear(8, 6), snn.SparseLeaky(6, 6, beta=0.9)))
    | TypeError: module 1 \(SparseLeaky\) follows other weights
online(snn.MultiStep(Watched(8, 6, beta=0.9))) | TypeError: module 0 \(Watched\) cannot .* its to_dense\(\)
online(hooked()) | TypeError: hooks
online(layer(max_delay=3), rule="ottt") | TypeError: use "sltt"
""")
def test_what_event_driven_layers_refuse(row):
    assert_refused(row, globals(), online=snn.Online)


def _set(**values):
    def change(layer):
        for name, value in values.items():
            setattr(layer, name, value)

    return change


def _replace_data(layer):
    layer.beta.data = torch.full((6,), 0.1, dtype=torch.float64)


CHANGED = {
    "reset": ("leaky", _set(reset_mechanism="none")),
    "decay": ("maps", _replace_data),
    "kernel": ("delays", _set(kernel="gaussian", sigma=2.0)),
    "sigma": ("gaussian", _set(sigma=0.3)),
    "padding": ("maps", _set(padding=(1, 1), output_size=(6, 4, 4))),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_layer_that_changes_between_streams(what):
    """The results stay those of the network."""
    kind, change = CHANGED[what]
    torch.manual_seed(0)
    beta = torch.full((6,), 0.9)
    if kind == "maps":
        layer, shape = snn.SparseConvLeaky(1, 6, 3, padding=0, beta=beta, threshold=1.2), (1, 4, 4)
    else:
        delays = {} if kind == "leaky" else {"max_delay": 5}
        layer, shape = snn.SparseLeaky(8, 6, beta=beta, threshold=1.2, reset_mechanism="zero", **delays), (8,)
        if kind == "gaussian":
            _set(kernel="gaussian", sigma=2.0)(layer)
    layer = layer.double()
    with torch.no_grad():
        layer.weight.abs_()
    x = (torch.rand(12, 3, *shape) < 0.4).double()
    online, results = snn.Online(snn.MultiStep(layer), rule="sltt"), []
    for changed in (False, True):
        if changed:
            change(layer)
            online.reset()
        with torch.no_grad():
            results.append(online(x).to_dense())
            assert torch.equal(results[-1], layer(x).to_dense())
    assert results[0].shape != results[1].shape or not torch.equal(*results)


@pytest.mark.parametrize("options", [{"max_delay": 3}, {"recurrent": True, "reset_mechanism": "subtract"}, {}])
def test_no_random_number_is_drawn(options):
    layer = snn.SparseLeaky(8, 6, beta=0.9, learn_beta=True, **options)
    net = snn.MultiStep(layer, nn.Linear(6, 3))
    before = torch.random.get_rng_state()
    snn.Online(net, rule="sltt")(torch.zeros(3, 2, 8))
    assert torch.equal(torch.random.get_rng_state(), before)
