"""Unexpected inputs and networks: right results, or an error that names the cause and the remedy."""

import copy

import pytest
import torch
from online import drawn
from support.tables import each_row, rows
from torch import nn

import snnipu as snn
from snnipu.online import layer

LEAKY = {"beta": 0.9, "threshold": 0.4, "reset_mechanism": "none"}


def leaky(**options):
    return snn.Leaky(**{**LEAKY, **options})


def network(hidden=6):
    torch.manual_seed(0)
    return snn.MultiStep(nn.Linear(8, hidden), leaky(), nn.Linear(hidden, 3), leaky())


def stream(*shape):
    torch.manual_seed(1)
    return (torch.rand(*(shape or (6, 4, 8))) < 0.4).float()


def learn(learner, x, length=3, **how):
    return list(drawn.gradients(learner, x, length=length, **how).values())


def online(net, rule="ottt"):
    name, options = drawn.RULES[rule]
    return snn.Online(net, rule=name, **options)


# ---- e-prop's low-pass: a trace for each weight


@pytest.mark.parametrize(
    ("rule", "readout"), [("decolle", True), ("eprop-random", True), ("eprop-random", False), ("eprop-adaptive", True)]
)
def test_more_neurons_than_the_linear_layer_has_outputs(rule, readout):
    net = snn.MultiStep(nn.Linear(8, 6), leaky(), nn.Linear(6, 3), *([leaky()] if readout else []))
    name, options = drawn.RULES[rule]
    options = {**options, **({"low_pass": False} if name == "eprop" else {})}
    learner = snn.Online(net, rule=name, **options)
    with pytest.raises(ValueError, match=r"module 1: rule .* 6 neurons.* and a step has 12: put nn.Flatten"):
        learner(stream(6, 4, 2, 8))
    with pytest.raises(TypeError, match=r"must know how many neurons module 1 has: put an nn.Linear in front"):
        snn.Online(snn.MultiStep(nn.Conv2d(1, 2, 3), leaky(), nn.Flatten(), nn.Linear(2, 3)), rule=name, **options)


def test_a_lazy_layer():
    with pytest.raises(
        TypeError, match=r"module 0 .LazyLinear. cannot learn online: it has no weights yet; run the net"
    ):
        online(snn.MultiStep(nn.LazyLinear(6), leaky()))


# ---- inputs


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.complex64])
@pytest.mark.parametrize("rule", ["sltt", "ottt", "eprop", "decolle"])
def test_an_input_that_is_not_floating(rule, dtype):
    for net in (network(), snn.MultiStep(nn.Flatten(), nn.Linear(8, 3), leaky(learn_beta=True))):
        learner = online(net, rule)
        with pytest.raises(TypeError, match=f"x must be a floating torch.Tensor, got {dtype}: call x.to"):
            learner(stream().to(dtype), single=False)
        learn(learner, stream(), single=False)


def test_whole_numbers_where_they_are_taken():
    numbers = torch.randint(5, (6, 4))
    net = snn.MultiStep(nn.Embedding(5, 6), leaky(), nn.Linear(6, 3), leaky())
    assert all(grad.any() for grad in learn(online(net, "sltt"), numbers, single=False))
    for make in (lambda: snn.SparseLeaky(8, 6, beta=0.9, threshold=0.2), lambda: snn.DelayLinear(8, 6, 3)):
        torch.manual_seed(0)
        net = snn.MultiStep(make(), *([leaky()] if make().__class__ is snn.DelayLinear else []), nn.Linear(6, 3))
        whole, floats = (learn(online(net, "sltt"), x) for x in (stream().bool(), stream()))
        assert all(map(torch.equal, whole, floats))


@pytest.mark.parametrize(("of_x", "of_net"), [(torch.float16, torch.float32), (torch.float32, torch.float64)])
def test_an_input_of_another_dtype(of_x, of_net):
    for net in (network().to(of_net), snn.MultiStep(nn.Flatten(), nn.Conv1d(1, 2, 3), leaky()).to(of_net)):
        name = "0 .Linear" if isinstance(net[0], nn.Linear) else "1 .Conv1d"
        with pytest.raises(TypeError, match=f"x must be of {of_net}, as the weights of module {name}.*, got {of_x}"):
            online(net, "sltt")(stream().to(of_x))
        with pytest.raises(TypeError, match=f"x must be of {of_net}"):
            online(net, "ottt").prepare(stream().to(of_x))


@pytest.mark.parametrize("rule", drawn.RULES)
def test_a_tensor_without_values(rule):
    with pytest.raises(ValueError, match="x must have values, got a tensor on the device meta"):
        online(network().to("meta"), rule)(stream().to("meta"))
    with pytest.raises(ValueError, match=r"x must be on meta, as the weights of module 0 \(Linear\), got cpu"):
        online(network().to("meta"), rule)(stream())


@each_row("""
leaky() | maps
leaky(reset_mechanism="zero", learn_threshold=True) | maps
snn.RLeaky(beta=0.9, conv2d_channels=2, kernel_size=3) | maps
leaky() | rows
snn.Leaky(beta=torch.rand(6), learn_beta=True) | rows
leaky(reset_mechanism="zero", learn_threshold=True) | rows
snn.RLeaky(beta=0.9, V=0.3, all_to_all=False, learn_beta=True) | rows
snn.RLeaky(beta=0.9, V=torch.rand(6), all_to_all=False) | rows
snn.RLeaky(beta=0.9, linear_features=6) | rows
snn.RSynaptic(alpha=0.8, beta=0.9, linear_features=6, learn_alpha=True) | rows
""")
@pytest.mark.parametrize("rule", drawn.RULES)
def test_no_sample(rule, row):
    """Gradients are zeros."""
    neuron, kind = row.split(" | ")
    front, behind, shape = [nn.Linear(8, 6)], [nn.Linear(6, 3)], (8,)
    if kind == "maps":
        if rule in ("eprop-random", "eprop-adaptive", "decolle"):
            return  # refused
        front, behind, shape = [nn.Conv2d(1, 2, 3, padding=1)], [nn.Flatten(), nn.Linear(32, 3)], (1, 4, 4)
    net = snn.MultiStep(*front, eval(neuron), *behind, leaky())
    grads = learn(online(net, rule), torch.zeros(6, 0, *shape))
    assert len(grads) >= 4
    assert not any(grad.any() for grad in grads)


# ---- weights and biases of unusual layouts and types


@pytest.mark.parametrize("share", [0.02, 0.5])
@pytest.mark.parametrize("rule", ["sltt", "ottt", "eprop", "snap1"])
def test_a_bias_that_pytorch_spreads(rule, share):
    net = snn.MultiStep(nn.Linear(512, 256), leaky(), nn.Linear(256, 3), leaky()).double()
    x = (torch.rand(40, 8, 512) < share).double()
    with torch.no_grad():
        net[0].bias.fill_(0.1)
    results = []
    for bias in (net[0].bias, nn.Parameter(net[0].bias[:1].detach().clone())):
        net[0].bias = bias
        results.append(learn(online(net, rule), x, 20))
    results[0][1] = results[0][1].sum().reshape(1)
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_a_bias_that_pytorch_refuses(share):
    x = (torch.rand(40, 8, 512) < share).float()
    for bias in (torch.zeros(255), torch.zeros(257), torch.zeros(256).double()):
        net = snn.MultiStep(nn.Linear(512, 256), leaky())
        net[0].bias = nn.Parameter(bias)
        with pytest.raises(RuntimeError, match=r"size of tensor|expanded size|same dtype|expected"):
            online(net)(x)


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_weights_with_their_signs_elsewhere(share):
    x, results = (torch.rand(40, 8, 512) < share).double(), []
    weight = torch.randn(256, 512, dtype=torch.float64)
    for lazily in (True, False):
        net = snn.MultiStep(nn.Linear(512, 256, bias=False), leaky()).double()
        net[0].weight = nn.Parameter(torch._neg_view(-weight) if lazily else weight)
        results.append(learn(online(net), x, 20))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


# ---- 16 bits


AUTOCAST = {
    "linear": (lambda: [nn.Linear(8, 6), leaky(), nn.Linear(6, 5), leaky(), nn.Linear(5, 3), leaky()], (8,)),
    "behind": (lambda: [nn.Linear(8, 6), nn.ReLU(), leaky(), nn.Linear(6, 3), nn.LayerNorm(3), leaky()], (8,)),
    "maps": (
        lambda: [
            *(nn.Conv2d(1, 2, 3, padding=1), leaky(), nn.Conv2d(2, 2, 3, padding=1), leaky()),
            *(nn.Flatten(), nn.Linear(32, 3)),
        ],
        (1, 4, 4),
    ),
    "delays": (lambda: [snn.DelayLinear(8, 6, 3), leaky(), nn.Linear(6, 3), leaky()], (8,)),
    "events": (lambda: [snn.SparseLeaky(8, 6, beta=0.9, threshold=0.2), nn.Linear(6, 3), leaky()], (8,)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("which", AUTOCAST)
def test_autocast(which, dtype):
    """The backward pass may run inside or outside; the gradients are autograd's for single steps."""
    make, shape = AUTOCAST[which]
    torch.manual_seed(0)
    net, x, gradients = snn.MultiStep(*make()), 2 * stream(6, 4, *shape), []
    for inside in (True, False):
        learner = online(net, "sltt")
        net.zero_grad()
        for chunk in x.split(3):
            with torch.autocast("cpu", dtype):
                loss = sum(part.float().square().sum() for part in drawn.flat(learner(chunk)))
            with torch.autocast("cpu", dtype, enabled=inside):
                loss.backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    for grad, other in zip(*gradients):
        assert grad.any()
        assert grad.dtype == torch.float32
        assert torch.equal(grad, other)
    if which != "linear":
        return
    net.zero_grad()
    mems = [torch.zeros(4, size) for size in (6, 5, 3)]
    for step in x:
        with torch.autocast("cpu", dtype):
            for place in range(3):
                current = net[2 * place](step).unsqueeze(0)
                step, mem = net[2 * place + 1].sequence(current, mems[place].detach())
                step, mems[place] = step[0], mem[0]
            loss = step.float().square().sum() + mems[2].float().square().sum()
        loss.backward()
    for p, grad in zip(net.parameters(), gradients[0]):
        assert (p.grad - grad).abs().max() <= 0.02 * p.grad.abs().max()


def test_recurrence_under_autocast():
    net = snn.MultiStep(nn.Linear(8, 6), snn.RLeaky(beta=0.9, linear_features=6))
    learner = online(net, "sltt")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(
        TypeError, match=r"it is recurrent, under torch.autocast"
    ):
        learner(stream())
    learn(learner, stream())


# ---- a network that changes in the middle of a stream


CHANGES = rows(r"""
net.append(nn.Linear(3, 2)) | there was module none, and now there is 4 \(Linear: weight
net.pop(3) | there was module 3 \(Leaky: mem\), and now there is none
net.insert(0, nn.Linear(8, 8)) | now there is 0 .Linear: weight .8, 8. torch.float32
net.insert(2, leaky()) | there was module 2 .Linear.*, and now there is 2 .Leaky
net[1] = snn.Synaptic(alpha=0.8, beta=0.9) | 1 .Leaky: mem.*1 .Synaptic: syn, mem
net[2] = nn.Linear(6, 4) | 2 .Linear: weight \[3, 6\].*2 .Linear: weight \[4, 6\]
net[0].weight = nn.Parameter(torch.rand(5, 8)) | weight \[6, 8\].*weight \[5, 8\]
net.double() | torch.float32.*torch.float64
""")


@pytest.mark.parametrize("row", CHANGES)
@pytest.mark.parametrize("rule", ["sltt", "ottt", "eprop-now", "snap1"])
def test_modules_that_change_in_the_middle_of_a_stream(rule, row):
    net, x = network(), stream()
    learner = online(net, rule)
    learner(x[:3])
    before = copy.deepcopy(net)
    change, message = row.split(" | ")
    exec(change, globals(), {"net": net})
    with pytest.raises(ValueError, match=f"the network has changed: .*{message}.*; call reset"):
        learner(x[3:])
    if "Parameter" not in change and "Linear(6, 4)" not in change:  # the other parts do not fit
        learn(learner, x.double() if "double" in change else x)  # another stream
    learner.net = before
    state = learner.stream_state()
    assert state["chunks"] in (1, 2)


@pytest.mark.parametrize("row", CHANGES)
def test_modules_that_change_after_prepare(row):
    net, x = network(), stream()
    learner = online(net, "ottt")
    learner.prepare(x)
    learner(x)
    exec(row.split(" | ")[0], globals(), {"net": net})
    with pytest.raises(ValueError, match=r"the network has changed: there was module .*; call prepare.. again"):
        learner(x)


@pytest.mark.parametrize("rule", ["eprop-random", "eprop-adaptive", "decolle"])
def test_layers_without_a_matrix(rule):
    net = network()
    learner = online(net, rule)
    net.append(nn.Linear(3, 2))
    net.append(leaky())
    with pytest.raises(ValueError, match=r"for layers of \[6, 3\] neurons, and the network has changed: make a new"):
        learner(stream())


@pytest.mark.parametrize("rule", ["ottt", "snap1", "eprop", "decolle"])
def test_one_decay_in_place_of_each_neurons(rule):
    """Traces of each weight continue where traces of the inputs would suffice."""
    net, x = network().double(), stream().double()
    learner = online(net, rule)
    expected = learn(learner, x)
    copy.deepcopy(learner)  # with readouts
    learner.zero_grad()
    learner.reset()
    for chunk, beta in zip(x.split(2), (torch.full((6,), 0.9), torch.tensor(0.9), torch.full((6,), 0.9))):
        net[1].beta = beta.double()
        drawn.loss_of(learner, learner(chunk)).backward()
    for grad, p in zip(expected, (p for p in learner.parameters() if p.grad is not None)):
        torch.testing.assert_close(p.grad, grad, rtol=1e-6, atol=1e-6)  # 0.9 in float32


def _fail(*arguments):
    raise ArithmeticError


def test_a_call_that_fails_leaves_the_stream_where_it_was(monkeypatch):
    net, x = network(), stream()
    learner = online(net)
    expected = learn(learner, x)
    learner.zero_grad()
    learner.reset()
    loss = drawn.loss_of(learner, learner(x[:3]))
    with monkeypatch.context() as patch:
        patch.setattr(layer.Layer, "remember", _fail)
        with pytest.raises(ArithmeticError):
            learner(x[3:])
    loss.backward()  # its chunk is still the last one
    drawn.loss_of(learner, learner(x[3:])).backward()
    for grad, p in zip(expected, net.parameters()):
        assert torch.equal(grad, p.grad)
