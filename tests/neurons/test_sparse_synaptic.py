"""``snnipu.SparseSynaptic`` and other neurons of event-driven layers, against snnTorch's steps."""

import pytest
import snntorch
import torch
from oracle import RESETS, assert_slots, masked_spikes, on_grid, relative_error, trimmed
from support.loops import by_steps
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu import ipu
from snnipu.neurons.sparse_leaky import FullyConnectedNeurons

STEPS, BATCH, INPUTS, NEURONS = 11, 3, 40, 65


def layer_of(**keywords):
    """Return a layer whose sums are exact in every order, and that spikes sometimes."""
    options = {"alpha": 0.75, "beta": 0.85, "threshold": 0.7, "bias": True, **keywords}
    layer = snn.SparseSynaptic(INPUTS, NEURONS, **options)
    with torch.no_grad():
        layer.weight.copy_(on_grid(NEURONS, INPUTS) / 4 + 1 / 32)
        if layer.bias is not None:
            layer.bias.copy_(on_grid(NEURONS, most=0.25) / 4)
    return layer


def spikes_in(rate=0.2):
    return (torch.rand(STEPS, BATCH, INPUTS) < rate).float()


def oracle(layer, x, delay=0):
    """Run ``nn.Linear``'s product and snnTorch's neuron on copies of the layer's parameters.

    Return the spikes that have a slot, the slots, the membranes and the copies.
    """
    copies = {name: torch.nn.Parameter(value.detach().clone()) for name, value in layer.state_dict().items()}
    values = {name: copies[name] for name in ("alpha", "beta", "threshold")}
    neuron = snntorch.Synaptic(**values, reset_mechanism=layer.reset_mechanism)
    neuron._buffers.update(values)  # copies with gradients
    current = nn.functional.linear(x, copies["weight"]) * layer.input_scale
    current = torch.cat([torch.zeros_like(current[:delay]), current[: STEPS - delay]])
    if layer.bias is not None:
        current = current + copies["bias"]
    mem = by_steps(neuron, current, [torch.zeros_like(current[0])] * 2)[-1]
    options = {"max_spikes": layer.max_spikes, "overflow": layer.overflow_order}
    spk, slots = masked_spikes(mem, copies["threshold"], layer.grad_threshold, **options)
    return spk, trimmed(slots) if layer.max_spikes is None else slots, mem, copies


def assert_equals_oracle(layer, x, dense=None):
    spk, slots, mem, copies = oracle(layer, x.to_dense() if dense is None else dense)
    out = layer(x)
    assert out.spike_count().sum() > 0
    assert_slots(out, slots)
    assert relative_error(layer.membranes(x), mem) < 1e-6
    upstream = torch.randn_like(spk)
    (spk * upstream).sum().backward()
    (out.to_dense() * upstream).sum().backward()
    for name, parameter in layer.named_parameters():
        terms = copies["weight"].grad if parameter.numel() == 1 else None
        assert parameter.grad.any(), name
        assert relative_error(parameter.grad, copies[name].grad, terms) <= 1e-5, name
    return out


@pytest.mark.parametrize("per_neuron", [False, True], ids=["one", "each"])
@pytest.mark.parametrize("path", ["sparse", "dense"])
@pytest.mark.parametrize("reset_mechanism", RESETS)
def test_equals_linear_and_synaptic(path, reset_mechanism, per_neuron):
    each = (
        (lambda low, high: torch.linspace(low, high, NEURONS)) if per_neuron else (lambda low, high: (low + high) / 2)
    )
    learn = {f"learn_{name}": True for name in ("alpha", "beta", "threshold")}
    options = {"path": path, "reset_mechanism": reset_mechanism, "input_scale": 0.5, **learn}
    layer = layer_of(alpha=each(-0.1, 1.1), beta=each(0.2, 1.1), threshold=each(0.3, 1.0), **options)
    assert_equals_oracle(layer, snn.SparseSpikes.from_dense(spikes_in()))


def test_the_gradient_of_the_input():
    x = snn.SparseSpikes.from_dense(spikes_in())
    dense = x.to_dense().requires_grad_()
    x.values.requires_grad_()
    assert_equals_oracle(layer_of(learn_beta=True, path="sparse"), x, dense)
    used = torch.arange(x.capacity) < x.counts[..., 1:]
    taken = torch.where(used, dense.grad.gather(2, x.ids.long()), 0.0)
    assert relative_error(x.values.grad, taken) < 1e-5


@pytest.mark.parametrize("path", ["sparse", "dense"])
@pytest.mark.parametrize("options", [{}, {"max_delay": 3, "delay": 1.5}, {"reset_mechanism": "subtract"}])
def test_a_recurrent_layer_is_a_loop_over_steps(options, path):
    """snnTorch's neuron steps on the product of the input plus that of the spikes of the step before."""
    learnt = {"learn_alpha": True, "learn_threshold": True, "input_scale": 0.5, "path": path, **options}
    layer = layer_of(recurrent=True, beta=torch.linspace(0.5, 0.9, NEURONS), **learnt).double()
    assert repr(layer).endswith(", recurrent=True)")
    with torch.no_grad():
        layer.recurrent_weight.uniform_(-0.3, 0.4)
    x = snn.SparseSpikes.from_dense(spikes_in().double())
    out = layer(x, delay=1)
    upstream = torch.randn(STEPS, BATCH, NEURONS).double()
    (out.to_dense() * upstream).sum().backward()
    grads = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    current = layer.weighted(x)
    current = torch.cat([torch.zeros_like(current[:1]), current[:-1]]) * 0.5 + layer.bias
    neuron = snntorch.Synaptic(0.5, 0.5, reset_mechanism=layer.reset_mechanism)
    neuron._buffers.update(alpha=layer.alpha, beta=layer.beta, threshold=layer.threshold)
    syn = mem = spk = torch.zeros_like(current[0])
    rows, mems = [], []
    for row in current:
        spk, syn, mem = neuron(row + spk.double() @ (layer.recurrent_weight * 0.5).t(), syn, mem)
        rows.append(spk)
        mems.append(mem)
    assert torch.equal(out.to_dense(), torch.stack(rows).double())
    torch.testing.assert_close(layer.membranes(x, delay=1), torch.stack(mems))
    (torch.stack(rows) * upstream).sum().backward()
    assert out.num_spikes > 50
    for name, parameter in layer.named_parameters():
        assert parameter.grad.any(), name
        assert relative_error(grads[name], parameter.grad, layer.weight.grad) < 1e-6, name  # snnTorch's are float32


def test_a_recurrent_layer_under_autocast_computes_the_same():
    layer, x = layer_of(recurrent=True, path="sparse"), spikes_in()
    expected = layer.membranes(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.membranes(x), expected)


@pytest.mark.parametrize("name", ["max_spikes", "grad_threshold"])
def test_options_that_a_recurrent_layer_refuses(name):
    with pytest.raises(ValueError, match=f"{name} must be None with recurrent=True"):
        layer_of(recurrent=True, **{name: 0})
    layer = layer_of(recurrent=True)
    setattr(layer, name, 0)
    with pytest.raises(ValueError, match=f"{name} must be None with recurrent=True, got 0"):
        layer(spikes_in())
    with pytest.raises(ValueError, match="spike_grad must be a fused surrogate where recurrent=True"):
        layer_of(recurrent=True, spike_grad=torch.sigmoid)
    with pytest.raises(ValueError, match="to_dense: a recurrent layer has no dense twin"):
        layer.to_dense()
    with pytest.raises(ValueError, match="of recurrent event-driven layers, SparseLeaky alone learns online"):
        snn.Online(nn.Sequential(layer_of(recurrent=True)), rule="sltt")(spikes_in())


@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
def test_what_has_no_slot_is_dropped_and_carries_no_gradient(overflow):
    options = {"grad_threshold": 0.5, "max_spikes": 9, "overflow": overflow}
    layer = layer_of(**options, learn_alpha=True, learn_threshold=True)
    assert_equals_oracle(layer, snn.SparseSpikes.from_dense(spikes_in()))
    assert layer.overflow > 0


@pytest.mark.parametrize("neuron", [snn.RLeaky, snn.DeltaLeaky], ids=lambda kind: kind.__name__)
def test_neurons_that_fire_otherwise_are_refused(neuron):
    with pytest.raises(TypeError, match=f"Other: {neuron.__name__} does not fire by its last state alone"):
        type("Other", (FullyConnectedNeurons,), {"neuron": neuron})


def test_beside_other_layers():
    first, second = layer_of(), snn.SparseLeaky(NEURONS, 7, beta=0.9, learn_beta=True)
    x = spikes_in()
    expected = second(first(x), delay=1).to_dense()
    assert torch.equal(snn.MultiStep(first, second)(x).to_dense(), second(first(x)).to_dense())
    net = snn.SparseNetwork([INPUTS, NEURONS, 7], beta=0.9)
    net.layers[0], net.layers[1] = first, second
    out = net(x)
    assert torch.equal(out.to_dense(), expected)
    assert net.activity == [first.activity, second.activity]
    out.spike_count().sum().backward()
    assert first.weight.grad.any()
    schedule = snn.training.GradThresholdSchedule(net, start=0.1, target=0.3)
    assert first.grad_threshold == schedule.value == 0.1
    for model in (net, nn.Sequential(second, first)):
        with pytest.raises(TypeError, match="of leaky neurons, and a SparseSynaptic has others"):
            ipu.NetworkSpec.from_module(model)


def test_scaling_weights_runs_the_layers_own_neurons():
    net = snn.SparseNetwork([INPUTS, NEURONS], beta=0.9)
    net.layers[0] = layer_of(bias=False)
    (activity,) = snn.training.scale_to_activity(net, spikes_in(), 0.1)
    net(spikes_in())
    torch.manual_seed(0)
    net.layers[0](spikes_in())
    assert activity.reached
    assert activity.activity == pytest.approx(0.1, rel=0.25)


@each_row(r"""
snn.SparseSynaptic(3, 4, alpha=torch.rand(3), beta=0.9)
    | ValueError: alpha must have one element or shape \(4,\), got \(3,\)
snn.SparseSynaptic(3, 4, alpha=torch.nan, beta=0.9) | ValueError: alpha must be finite
""")
def test_a_wrong_alpha(row):
    assert_refused(row, globals())
