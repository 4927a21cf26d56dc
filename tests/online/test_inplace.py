"""In-place changes between a chunk and its backward pass: PyTorch's error, or the unchanged gradients."""

import pytest
import torch
from online import drawn
from support.tables import each_row
from torch import nn

import snnipu as snn

MODIFIED = "modified by an inplace operation"
READOUTS = {
    "leaky": lambda: snn.Leaky(beta=0.9, reset_mechanism="none"),
    "leaky-subtract": lambda: snn.Leaky(beta=0.9, threshold=0.3),
    "leaky-zero": lambda: snn.Leaky(beta=0.9, threshold=0.3, reset_mechanism="zero", learn_beta=True),
    "leaky-at-once": lambda: snn.Leaky(beta=0.9, threshold=0.3, reset_delay=False, learn_threshold=True),
    "synaptic": lambda: snn.Synaptic(alpha=0.8, beta=0.9, threshold=0.3, learn_alpha=True),
    "alpha": lambda: snn.Alpha(alpha=0.9, beta=0.8, threshold=0.1),
    "rleaky": lambda: snn.RLeaky(beta=0.9, V=0.3, all_to_all=False, threshold=0.3),
    "rleaky-all": lambda: snn.RLeaky(beta=0.9, linear_features=3, threshold=0.3),
    "rsynaptic": lambda: snn.RSynaptic(alpha=0.8, beta=0.9, linear_features=3, threshold=0.3),
    "delta": lambda: snn.DeltaLeaky(beta=0.9, delta_threshold=0.1),
    "linear": None,
}


def network(readout="leaky"):
    torch.manual_seed(0)
    last = [] if READOUTS[readout] is None else [READOUTS[readout]()]
    return snn.MultiStep(nn.Linear(8, 6), snn.Leaky(beta=0.9, threshold=0.3), nn.Linear(6, 3), *last).double()


def stream(steps=6, inputs=8):
    torch.manual_seed(1)
    return (torch.rand(steps, 4, inputs) < 0.5).double()


# e-prop's low-pass does not take these.
UNEVEN = ("leaky-zero", "leaky-at-once", "alpha")


def learner(net, rule, readout="leaky"):
    name, options = drawn.RULES[rule]
    if name == "eprop" and readout in UNEVEN:
        options = {**options, "low_pass": False}
    return snn.Online(net, rule=name, **options).double()


def right_or_pytorchs_error(online, x, change, length=3):
    """Return True if ``change`` led to PyTorch's error; else check that the gradients are unchanged."""
    expected = drawn.gradients(online, x, length=length)
    actual, error = {}, None
    try:
        actual = drawn.gradients(online, x, change, length)
    except RuntimeError as raised:
        error = raised
    if error is not None:
        assert MODIFIED in str(error)
        return True
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    return False


@pytest.mark.parametrize("how", ["whole", "view", "detached"])
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("rule", drawn.RULES)
def test_a_result(rule, readout, how):
    online, x = learner(network(readout), rule, readout), stream()
    for place in range(len(drawn.flat(online(x)))):

        def change(_, out, place=place):
            part = out[place] if how == "whole" else out[place][1:] if how == "view" else out[place].detach()
            part.zero_()

        refused = right_or_pytorchs_error(online, x, change)
        assert refused or readout != "leaky" or place == 0  # the membrane, which the surrogate reads


def test_a_membrane_of_a_held_stream():
    net, x = network(), stream()
    online = snn.Online(net, rule="ottt")
    online.prepare(x)
    mem = online(x)[1]
    loss = mem.square().sum()
    mem.zero_()
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


@pytest.mark.parametrize("share", [0.01, 0.5])
@pytest.mark.parametrize("front", ["linear", "neuron", "delays"])
@pytest.mark.parametrize("rule", ["sltt", "ottt", "eprop", "snap1"])
def test_the_input(rule, front, share):
    """With and without sparse products."""
    modules = {
        "linear": lambda: [nn.Linear(512, 256), snn.Leaky(beta=0.9, threshold=0.1)],
        "neuron": lambda: [snn.Synaptic(alpha=0.8, beta=0.9, threshold=0.3, learn_alpha=True), nn.Linear(512, 256)],
        "delays": lambda: [snn.DelayLinear(512, 256, 3), snn.Leaky(beta=0.9, threshold=0.1)],
    }
    if front == "delays" and rule != "sltt":
        return  # refused
    net = snn.MultiStep(*modules[front](), nn.Linear(256, 3), snn.Leaky(beta=0.9, reset_mechanism="none")).double()
    online = snn.Online(net, rule=rule, **({"low_pass": False} if rule == "eprop" else {}))
    x = (torch.rand(40, 8, 512) < share).double()
    right_or_pytorchs_error(online, x, lambda chunk, _: chunk.zero_(), length=20)


@pytest.mark.parametrize("path", ["sparse", "dense"])
def test_spikes_that_are_given(path):
    net = snn.SparseNetwork([8, 6, 3], beta=0.9, threshold=0.3, delay=0).double()
    for layer in net.layers:
        layer.path = path
    online, results = snn.Online(net, rule="ottt"), []
    for changed in (False, True):
        net.zero_grad()
        online.reset()
        spikes = snn.SparseSpikes.from_dense(stream())
        loss = online(spikes).values.sum()
        if changed:
            spikes.values.zero_()
        if changed and path == "sparse":
            with pytest.raises(RuntimeError, match=MODIFIED):
                loss.backward()
            return
        loss.backward()
        results.append([p.grad.clone() for p in net.parameters()])
    for grad, other in zip(*results):
        assert torch.equal(grad, other)


def frozen(net):
    net[2].weight.requires_grad_(False)
    return net


@each_row("""
network() | net[2].weight.add_(0.1)
network() | torch.optim.SGD(net.parameters(), lr=0.1).step()
frozen(network()) | net[2].weight.add_(0.1)
network("rleaky-all") | net[3].recurrent.weight.add_(0.1)
snn.MultiStep(nn.Linear(8, 3), snn.Leaky(beta=0.9, threshold=torch.full((3,), 0.3))) | net[1].threshold.add_(0.1)
snn.MultiStep(nn.Linear(8, 3), nn.BatchNorm1d(3).eval(), snn.Leaky(beta=0.9)) | net[1].running_var.add_(1)
""")
@pytest.mark.parametrize("rule", ["sltt", "ottt", "eprop-now", "snap1"])
def test_the_network(rule, row):
    make, change = row.split(" | ")
    net = eval(make).double()
    online, x = learner(net, rule), stream()
    drawn.gradients(online, x)
    online.reset()
    online(x[:3])[-1].sum().backward()
    loss = online(x[3:])[-1].sum()
    with torch.no_grad():
        exec(change, globals(), {"net": net})
    with pytest.raises(RuntimeError, match="changed in place between chunk 2 and its backward|" + MODIFIED):
        loss.backward()


@pytest.mark.parametrize("rule", ["sltt", "ottt", "eprop-now", "snap1"])
def test_options_of_a_neuron(rule):
    """The backward pass uses the options of the forward pass."""
    net = network("leaky-zero")
    online, x = learner(net, rule), stream()

    def change(chunk, out):
        for neuron in net[1::2]:
            neuron.reset_mechanism, neuron.spike_grad = "none", snn.surrogate.fast_sigmoid()

    expected = drawn.gradients(online, x, length=6)
    assert all(grad.any() for grad in expected.values())
    torch.testing.assert_close(drawn.gradients(online, x, change, length=6), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "message"), [(nn.Dropout, "same linear function"), (nn.BatchNorm1d, "in training")])
def test_a_module_in_training_from_then_on(kind, message):
    module = kind(6) if kind is nn.BatchNorm1d else kind()
    net = snn.MultiStep(nn.Linear(8, 6), module, snn.Leaky(beta=0.9)).double().eval()
    online = snn.Online(net, rule="ottt")
    loss = online(stream())[1].sum()
    net.train()
    with pytest.raises((TypeError, ValueError), match=message):
        loss.backward()


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("readout", READOUTS)
def test_the_stream_goes_on_from_states_of_its_own(readout, length):
    """Results may be overwritten at any time."""
    online, x = learner(network(readout), "sltt"), stream()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            online.reset()
            expected = [[part.clone() for part in drawn.flat(online(chunk))] for chunk in x.split(length)]
            online.reset()
            for chunk, parts in zip(x.split(length), expected):
                out = drawn.flat(online(chunk))
                for part, other in zip(out, parts):
                    assert torch.equal(part, other)
                with torch.no_grad():
                    for part in out:
                        part.fill_(7)


@pytest.mark.parametrize("module", [nn.ReLU(inplace=True), nn.Dropout(inplace=True)], ids=["relu", "dropout"])
@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize("rule", ["sltt", "ottt", "decolle", "snap1"])
def test_modules_that_work_in_place(rule, place, module):
    """They give the gradients of the same modules without ``inplace`` at every place."""
    results = []
    for inplace in (True, False):
        module.inplace = inplace
        net = network()
        net.insert(place, module)
        if place == 3 and rule != "sltt":
            with pytest.raises(TypeError, match="module 3"):
                learner(net, rule)
            return
        torch.manual_seed(2)
        x = stream() - 0.5
        results.append(drawn.gradients(learner(net, rule), x))
    torch.testing.assert_close(*results, rtol=0, atol=0)
