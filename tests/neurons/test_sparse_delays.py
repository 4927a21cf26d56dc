"""Event-driven layers whose synapses have delays against their definition, step by step, in float64."""

import copy
import os
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.delays import TIGHT, weighted

import snnipu as snn
from snnipu.training import methods

EXAMPLES = int(os.environ.get("SNNIPU_HYPOTHESIS_EXAMPLES", "60"))


class Carried(torch.autograd.Function):
    """Spikes above 0, with atan's surrogate gradient where a neuron is above the second threshold."""

    @staticmethod
    def forward(ctx, above, carried):
        ctx.save_for_backward(above, carried)
        return (above > 0).to(above.dtype)

    @staticmethod
    def backward(ctx, grad):
        above, carried = ctx.saved_tensors
        return grad * carried / (1 + (torch.pi * above) ** 2), None


def definition(x, p, max_delay, reset, grad_threshold, scale):
    """Dense spikes of a layer with the parameters ``p``, one step after the other."""
    currents = weighted(x, p["weight"], p["delay"], None, max_delay) * scale
    mem = syn = own = x.new_zeros(x.shape[1], p["weight"].shape[0])
    spikes = []
    for current in currents:
        if "recurrent_weight" in p:
            current = current + own @ p["recurrent_weight"].t() * scale
        if "bias" in p:
            current = current + p["bias"]
        fired = (mem > p["threshold"]).to(x.dtype).detach()
        if "alpha" in p:
            current = syn = p["alpha"] * syn + current
        # Where it is reset to zero, Leaky's input still arrives, and Synaptic's does not.
        at_once = reset == "zero" and "alpha" not in p
        mem = p["beta"] * (mem * (1 - fired) if at_once else mem) + current
        if reset == "subtract":
            mem = mem - fired * p["threshold"]
        elif reset == "zero" and not at_once:
            mem = mem * (1 - fired)
        carried = torch.ones_like(mem) if grad_threshold is None else (mem > grad_threshold).to(mem.dtype)
        own = Carried.apply(mem - p["threshold"], carried)
        spikes.append(own)
    return torch.stack(spikes)


def layer_of(inputs, outputs, recurrent=False, alpha=None, **options):
    kind = snn.SparseLeaky
    if alpha is not None:
        kind, options["alpha"] = snn.SparseSynaptic, alpha
    else:
        options["recurrent"] = recurrent
    layer = kind(inputs, outputs, beta=0.8, learn_beta=True, learn_threshold=True, **options).double()
    with torch.no_grad():
        layer.weight.normal_()
    return layer


def compare(layer, x, sparse):
    leaves = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    fixed = {name: b.clone() for name, b in layer.named_buffers()}
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    given_x = inputs[1]
    if sparse:
        given_x = snn.SparseSpikes.from_dense(x)
        given_x.values.requires_grad_()
    options = (layer.max_delay, layer.reset_mechanism, layer.grad_threshold, layer.input_scale)
    expected = definition(inputs[0], {**fixed, **leaves}, *options)
    found = layer(given_x)
    dense = found.to_dense()
    assert torch.equal(dense, expected)
    upstream = torch.randn_like(expected)
    for out in (dense, expected):
        (out * upstream).sum().backward()
    for name, leaf in leaves.items():
        own = layer.get_parameter(name).grad
        torch.testing.assert_close(own, leaf.grad, **TIGHT, msg=lambda message, name=name: f"{name}: {message}")
    if not sparse:
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad, **TIGHT)
        return dense
    gathered = inputs[0].grad.gather(2, given_x.ids.long())
    used = torch.arange(given_x.ids.shape[2]) < given_x.counts[..., 1:]
    torch.testing.assert_close(given_x.values.grad[used], gathered[used], **TIGHT)
    return dense


@pytest.mark.slow
@pytest.mark.parametrize("reset", ["zero", "subtract", "none"])
@pytest.mark.parametrize("kind", ["leaky", "recurrent", "synaptic"])
@given(
    st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(1, 20), st.integers(1, 20), st.integers(0, 12)),
    st.sampled_from([None, 0.5]),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=max(1, EXAMPLES // 4))
def test_a_layer_is_its_definition(kind, reset, sizes, grad_threshold, flags, seed):
    steps, batch, inputs, outputs, longest = sizes
    sparse, bias, learn, graded = flags
    torch.manual_seed(seed)
    layer = layer_of(
        inputs,
        outputs,
        recurrent=kind == "recurrent",
        alpha=0.7 if kind == "synaptic" else None,
        reset_mechanism=reset,
        grad_threshold=grad_threshold,
        bias=bias,
        input_scale=0.75,
        max_delay=longest,
        learn_delay=learn,
    )
    x = (torch.rand(steps, batch, inputs, dtype=torch.float64) < 0.3).double()
    x = x * torch.randn_like(x) if graded else x
    compare(layer, x, sparse or kind == "recurrent")


def test_a_large_recurrent_layer():
    torch.manual_seed(0)
    layer = layer_of(200, 130, recurrent=True, max_delay=20, grad_threshold=0.6, bias=True)
    with torch.no_grad():
        layer.weight.mul_(0.2)
    dense = compare(layer, (torch.rand(40, 8, 200, dtype=torch.float64) < 0.05).double(), True)
    assert 0.01 < dense.mean() < 0.5


def network_of(delays, **options):
    net = snn.SparseNetwork([12, 20, 6], beta=0.9, max_delay=delays, grad_threshold=0.5, **options).double()
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.normal_()
    return net


@pytest.mark.parametrize("delay", [0, 1])
def test_in_networks(delay):
    torch.manual_seed(0)
    net = network_of([7, None], delay=delay)
    assert [layer.max_delay for layer in net.layers] == [7, None]
    assert {name for name, _ in net.named_parameters()} == {"layers.0.weight", "layers.0.delay", "layers.1.weight"}
    x = (torch.rand(15, 3, 12, dtype=torch.float64) < 0.3).double()
    every = net(x, all_layers=True)
    parameters = [{**dict(layer.named_parameters()), **dict(layer.named_buffers())} for layer in net.layers]
    first = definition(x, parameters[0], 7, "zero", 0.5, 1.0)
    parameters[1]["delay"] = torch.zeros(6, 20, dtype=torch.float64)
    arriving = torch.cat([torch.zeros_like(first[:delay]), first[: 15 - delay]])
    second = definition(arriving, parameters[1], 0, "zero", 0.5, 1.0)
    gradients = []
    for spikes, expected in zip(every, (first, second)):
        assert torch.equal(spikes.to_dense(), expected)
    for out in (every[1].to_dense(), second):
        net.zero_grad()
        (out * torch.arange(6)).sum().backward(retain_graph=True)
        gradients.append([p.grad for p in net.parameters()])
    for found, expected in zip(*gradients):
        torch.testing.assert_close(found, expected, **TIGHT)
    assert net.layers[0].delay.grad.any()
    # Other ways to run it, and copies.
    spikes = snn.SparseSpikes.from_dense(x)
    for layers in (methods.sparse_ops(net, spikes), pickle.loads(pickle.dumps(net))(spikes, all_layers=True)):
        assert torch.equal(layers[-1].to_dense(), second)
    net.layers[0].round_()
    assert torch.equal(net.layers[0].delay, net.layers[0].delay.round())


@pytest.mark.parametrize("alpha", [None, 0.8])
def test_the_dense_twin(alpha):
    torch.manual_seed(0)
    layer = layer_of(9, 7, alpha=alpha, max_delay=5, bias=True, delay=torch.rand(1, 9) * 5, input_scale=0.5)
    x = (torch.rand(12, 2, 9, dtype=torch.float64) < 0.4).double()
    assert torch.equal(snn.MultiStep(*layer.to_dense())(x)[0], layer(x).to_dense())
    other = layer_of(9, 7, alpha=alpha, max_delay=5, bias=True, delay=torch.zeros(1, 9), input_scale=0.25)
    other.load_dense_state_dict(layer.dense_state_dict())
    assert torch.equal(other(x).to_dense(), layer(x).to_dense())
    torch.testing.assert_close(other.delay, layer.delay, rtol=0, atol=0)
    without = layer_of(9, 7, alpha=alpha, bias=True)
    with pytest.raises(ValueError, match=r"state must not hold 0\.delay"):
        without.load_dense_state_dict(layer.dense_state_dict())
    with pytest.raises(ValueError, match=r"state must hold 0\.delay"):
        layer.load_dense_state_dict(without.dense_state_dict())
    with pytest.raises(ValueError, match=r"delay must have shape \(1, 9\), got \(7, 9\)"):
        layer.load_dense_state_dict({**layer.dense_state_dict(), "0.delay": torch.zeros(7, 9)})


def test_paths_dtypes_and_copies():
    torch.manual_seed(0)
    layer = snn.SparseLeaky(9, 7, beta=0.9, threshold=0.3, max_delay=5)
    x = torch.rand(12, 2, 9) < 0.4
    expected = layer(x).to_dense()
    for path in ("dense", "sparse"):
        layer.path = path
        for given_x in (x.float(), snn.SparseSpikes.from_dense(x.float())):
            assert torch.equal(layer(given_x).to_dense(), expected)
    assert layer.membranes(x).shape == (12, 2, 7)
    half = copy.deepcopy(layer).bfloat16()
    assert half(x).values.dtype == torch.float32
    assert layer(torch.zeros(0, 2, 9)).shape == (0, 2, 7)
    assert "max_delay=5" in repr(layer)
    assert not hasattr(snn.SparseLeaky(9, 7, beta=0.9), "delay")


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: snn.SparseLeaky(3, 2, beta=0.9, delay=1.0), ValueError, "delay needs max_delay"),
        (lambda: snn.SparseLeaky(3, 2, beta=0.9, max_delay=-1), ValueError, "max_delay must be 0 or more"),
        (
            lambda: snn.SparseLeaky(3, 2, beta=0.9, max_delay=2, delay=3.0),
            ValueError,
            "delay must be from 0 to max_delay",
        ),
        (lambda: snn.SparseLeaky(3, 2, beta=0.9).round_(), ValueError, "round_: the layer has no delays"),
        (lambda: snn.SparseNetwork([3, 2], beta=0.9, max_delay=[1, 2]), ValueError, "max_delay must have 1 entries"),
        (
            lambda: snn.SparseNetwork([(1, 8, 8), "4C3", 10], beta=0.9, max_delay=5),
            ValueError,
            "max_delay must be None for layer 0, a convolution",
        ),
        (
            lambda: snn.ipu.NetworkSpec.from_module(snn.SparseNetwork([8, 4], beta=0.9, max_delay=5)),
            TypeError,
            "without max_delay",
        ),
    ],
)
def test_what_has_no_delays_says_so(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_a_neuron_with_a_delay_that_is_nan_is_silent():
    """Its membrane is NaN. The other neurons spike as without it."""
    torch.manual_seed(0)
    layer = snn.SparseLeaky(6, 5, beta=0.9, threshold=0.2, max_delay=3)
    with torch.no_grad():
        layer.weight.abs_()
    x = snn.SparseSpikes.from_dense(torch.ones(8, 2, 6))
    expected = layer(x).to_dense()
    assert expected.sum((0, 1)).all()
    with torch.no_grad():
        layer.delay[1, 2] = torch.nan
    made = layer(x).to_dense()
    assert torch.equal(made[..., [0, 2, 3, 4]], expected[..., [0, 2, 3, 4]])
    assert not made[4:, :, 1].any()
