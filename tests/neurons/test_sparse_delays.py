"""Event-driven layers whose synapses have delays against their definition, step by step, in float64."""

import copy
import pickle

import pytest
import torch
from support.delays import TIGHT
from support.tables import assert_refused, each_row

import snnipu as snn
from snnipu.training import methods


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


def network_of(delays, **options):
    net = snn.SparseNetwork([12, 20, 6], beta=0.9, max_delay=delays, grad_threshold=0.5, **options).double()
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.normal_()
    return net


@pytest.mark.parametrize("delay", [0, 1])
def test_in_networks(delay):
    net = network_of([7, None], delay=delay)
    assert [layer.max_delay for layer in net.layers] == [7, None]
    assert {name for name, _ in net.named_parameters()} == {"layers.0.weight", "layers.0.delay", "layers.1.weight"}
    x = (torch.rand(15, 3, 12, dtype=torch.float64) < 0.3).double()
    spikes, gradients = snn.SparseSpikes.from_dense(x), []
    expected = net.layers[1](net.layers[0](x), delay=delay)
    every = net(x, all_layers=True)
    for out in (every[1], expected):
        net.zero_grad()
        (out.to_dense() * torch.arange(6)).sum().backward()
        gradients.append([p.grad for p in net.parameters()])
    assert all(map(torch.equal, *gradients))
    assert net.layers[0].delay.grad.any()
    # The sparse operators and a pickled copy.
    others = methods.sparse_ops(net, spikes), pickle.loads(pickle.dumps(net))(spikes, all_layers=True)
    for layers in (every, *others):
        assert torch.equal(layers[-1].to_dense(), expected.to_dense())
    net.layers[0].round_()
    assert torch.equal(net.layers[0].delay, net.layers[0].delay.round())


def test_a_recurrent_layer_whose_delays_are_one_number():
    delayed = layer_of(9, 7, recurrent=True, bias=True, grad_threshold=0.5, max_delay=5, delay=3.0)
    layer = layer_of(9, 7, recurrent=True, bias=True, grad_threshold=0.5)
    layer.load_state_dict({name: delayed.state_dict()[name] for name in layer.state_dict()})
    x = snn.SparseSpikes.from_dense((torch.rand(12, 2, 9, dtype=torch.float64) < 0.4).double())
    outs = delayed(x).to_dense(), layer(x, delay=3).to_dense()
    assert torch.equal(*outs)
    assert outs[0].any()
    for out in outs:
        (out * torch.arange(7)).sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(delayed.get_parameter(name).grad, parameter.grad, **TIGHT)


def test_dense_states_of_other_delays():
    layer = layer_of(9, 7, max_delay=5, bias=True, delay=torch.rand(1, 9) * 5)
    without = layer_of(9, 7, bias=True)
    with pytest.raises(ValueError, match=r"state must not hold 0\.delay"):
        without.load_dense_state_dict(layer.dense_state_dict())
    with pytest.raises(ValueError, match=r"state must hold 0\.delay"):
        layer.load_dense_state_dict(without.dense_state_dict())
    with pytest.raises(ValueError, match=r"delay must have shape \(1, 9\), got \(7, 9\)"):
        layer.load_dense_state_dict({**layer.dense_state_dict(), "0.delay": torch.zeros(7, 9)})


def test_paths_dtypes_and_copies():
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


@each_row("""
snn.SparseLeaky(3, 2, beta=0.9, delay=1.0) | ValueError: delay needs max_delay
snn.SparseLeaky(3, 2, beta=0.9, max_delay=-1) | ValueError: max_delay must be at least 0
snn.SparseLeaky(3, 2, beta=0.9, max_delay=2, delay=3.0) | ValueError: delay must be from 0 to max_delay
snn.SparseLeaky(3, 2, beta=0.9).round_() | ValueError: round_: the layer has no delays
snn.SparseNetwork([3, 2], beta=0.9, max_delay=[1, 2]) | ValueError: max_delay must have 1 entries
snn.SparseNetwork([(1, 8, 8), "4C3", 10], beta=0.9, max_delay=5)
    | ValueError: max_delay must be None for layer 0, a convolution
snn.ipu.NetworkSpec.from_module(snn.SparseNetwork([8, 4], beta=0.9, max_delay=5)) | TypeError: without max_delay
""")
def test_what_has_no_delays_says_so(row):
    assert_refused(row, globals())


def test_a_neuron_with_a_delay_that_is_nan_is_silent():
    """Its membrane is NaN. The other neurons spike as before."""
    layer = snn.SparseLeaky(6, 5, beta=0.9, threshold=0.2, max_delay=3)
    with torch.no_grad():
        layer.weight.abs_()
    x = snn.SparseSpikes.from_dense(torch.ones(8, 2, 6))
    expected = layer(x).to_dense()
    assert expected.sum((0, 1)).all()
    with torch.no_grad():
        layer.delay[1, 2] = torch.nan
    spikes = layer(x).to_dense()
    assert torch.equal(spikes[..., [0, 2, 3, 4]], expected[..., [0, 2, 3, 4]])
    assert not spikes[4:, :, 1].any()
