"""``snnipu.Online`` in typical use: streams, layers between neurons, errors, and backpropagation where both agree."""

import contextlib
import gc
import weakref

import pytest
import torch
from online import drawn
from oracle import relative_error
from support.exact import exact
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu.online import layer

CLASSES = 3


def network(*between, inputs=8, hidden=12, **leaky):
    torch.manual_seed(0)
    return snn.MultiStep(
        nn.Linear(inputs, hidden),
        snn.Leaky(beta=0.9, threshold=0.4, **leaky),
        *between,
        nn.Linear(hidden, CLASSES),
        snn.Leaky(beta=0.8, reset_mechanism="none"),
    )


def stream(steps=12, batch=4, inputs=8):
    torch.manual_seed(1)
    return (torch.rand(steps, batch, inputs) < 0.4).float()


def grads_of(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


RESETS = {"ottt": ("none",), "eprop": ("none", "subtract", "zero"), "snap1": ("none", "subtract", "zero")}


@pytest.mark.parametrize(("rule", "reset"), [(rule, reset) for rule, resets in RESETS.items() for reset in resets])
def test_one_layer_learns_as_by_backpropagation(rule, reset):
    """In chunks of three steps. OTTT ignores the reset."""
    net = snn.MultiStep(nn.Linear(8, 5), snn.Leaky(beta=0.9, threshold=0.4, reset_mechanism=reset, learn_beta=True))
    net, x = net.double(), stream().double()
    mem = net(x)[1]
    weights = torch.randn_like(mem)
    (mem * weights).sum().backward()
    expected = grads_of(net)
    net.zero_grad()
    online = snn.Online(net, rule=rule, **({"low_pass": reset != "zero"} if rule == "eprop" else {}))
    for part, weight in zip(x.split(3), weights.split(3)):
        (online(part)[1] * weight).sum().backward()
    torch.testing.assert_close(grads_of(net), expected, rtol=1e-9, atol=1e-9)


def test_it_returns_what_the_network_does_and_shares_its_parameters():
    net, x = exact(network()), stream()
    online = snn.Online(net, rule="ottt")
    expected = net(x)
    outputs = [online(part) for part in x.split([5, 1, 6])]
    for number, whole in enumerate(expected):
        assert torch.equal(torch.cat([part[number] for part in outputs]), whole)
    online.reset()
    single = [online(step) for step in x]  # [B, ...] is one step
    assert torch.equal(torch.stack([mem for _, mem in single]), expected[1])
    assert online.net is net
    assert set(dict(net.named_parameters())) == {name[4:] for name, _ in online.named_parameters()}
    online.load_state_dict(online.state_dict())
    with torch.no_grad():
        online.reset()
        assert not online(x)[1].requires_grad


@pytest.mark.parametrize("init_hidden", [False, True])
def test_delays_in_front_learn_by_sltt_in_any_chunks(init_hidden):
    net = snn.MultiStep(
        snn.DelayLinear(8, 12, 5, bias=True, init_hidden=init_hidden),
        snn.Leaky(beta=0.8, threshold=0.3),
        nn.Linear(12, CLASSES),
        snn.Leaky(beta=0.9, reset_mechanism="none"),
    ).double()
    x = stream(steps=14).double()
    # SLTT step by step: the currents of a step have a gradient, and earlier membranes have none.
    losses, mems = [], [torch.zeros(1, 4, size).double() for size in (12, CLASSES)]
    for current in net[0].sequence(x).split(1):
        spk, mems[0] = net[1].sequence(current, mems[0][0].detach())
        _, mems[1] = net[3].sequence(net[2](spk), mems[1][0].detach())
        losses.append(mems[1].square().sum())
    torch.stack(losses).sum().backward()
    expected = grads_of(net)
    assert len(expected) == 5
    assert all(grad.any() for grad in expected.values())
    for length in (1, 4, 14):
        online = snn.Online(net, rule="sltt")
        for _ in range(2):  # again after reset()
            net.zero_grad()
            outs = []
            for part in x.split(length):
                outs.append(online(part)[1])
                outs[-1].square().sum().backward()
            online.reset()
            torch.testing.assert_close(torch.cat(outs).square().sum(), torch.stack(losses).sum())
            torch.testing.assert_close(grads_of(net), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(online(x[0])[1], outs[0][0])  # one step, [B, in]
    online.reset()
    with pytest.raises(ValueError, match="x must not require a gradient"):
        online(x.requires_grad_())


@pytest.mark.parametrize("options", [{}, {"feedback": "random"}, {"feedback": "adaptive", "low_pass": False}])
def test_an_input_that_e_prop_gives_no_gradient(options):
    """Its errors are low-passed, or go only to single layers."""
    online, x = snn.Online(network(), rule="eprop", **options), stream().requires_grad_()
    with pytest.raises(ValueError, match=r'x must not require a gradient: rule "eprop" .* low_pass=False'):
        online(x)
    with torch.no_grad():
        online(x)
    snn.Online(network(), rule="eprop", low_pass=False)(x)[1].sum().backward()
    assert x.grad.any()


@snn.neuron(states=("mem",), parameters={"beta": 0.9, "threshold": 0.4})
def Leak(x, mem, *, beta, threshold, spike):
    fired = spike(mem - threshold)
    mem = beta * mem + x - fired * threshold
    return spike(mem - threshold), mem


@snn.neuron(states=("mem",), parameters={"beta": 0.9, "threshold": 0.4})
def Gated(x, mem, *, beta, threshold, spike):
    """The membrane decays by beta where the input is high, and is reset elsewhere."""
    mem = torch.where(x > 0.1, beta * mem, 0.0 * mem) + x
    return spike(mem - threshold), mem


@pytest.mark.slow
@pytest.mark.parametrize("neuron", [Leak, Gated])
def test_a_neuron_of_ones_own(neuron):
    net = snn.MultiStep(nn.Linear(8, 6), neuron(beta=0.8, learn=("beta",))).double()
    x = stream().double()
    results = [drawn.gradients(snn.Online(net, rule="snap1"), x, length=length) for length in (3, 12)]
    assert set(results[0]) == {"net.0.weight", "net.0.bias", "net.1.beta"}
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)
    assert all(grad.any() for grad in results[0].values())


@each_row(r"""
online(network(), "bptt") | ValueError: rule must be one of 'sltt', 'ottt'
online(network(), "ottt", feedback="random") | TypeError: rule "ottt" has no option
online(network(), "eprop", feedback="mirror") | ValueError: feedback of rule
online(network(), "decolle") | ValueError: readouts of rule
online(nn.Linear(2, 2)) | TypeError: net must be a MultiStep, .*, got Linear$
online(network(nn.BatchNorm1d(12))) | ValueError: module 2 \(BatchNorm1d\) is in training
online(network(nn.LSTM(12, 12))) | TypeError: module 2 \(LSTM\) cannot learn online
online(network(inhibition=True)) | TypeError: module 1 .* it has inhibition=True
online(snn.MultiStep(nn.Linear(8, 6), nn.ReLU(), leaky))
    | TypeError: module 1 .ReLU. stands between weights and their neurons
online(network()[:-1].append(snn.Leaky(beta=0.9, reset_mechanism="zero")), "eprop")
    | ValueError: module 3 .Leaky.: rule "eprop" passes errors through a leaky readout
online(snn.MultiStep(snn.DelayLinear(8, 6, 4), leaky), "ottt")
    | TypeError: module 0 .DelayLinear.: rule "ottt" has no traces of inputs that arrive later; use "sltt"
online(snn.MultiStep(nn.Linear(8, 6), leaky, snn.DelayLinear(6, 6, 4)), "sltt")
    | TypeError: module 2 .DelayLinear. sends errors back to earlier steps
""")
def test_what_is_refused(row):
    """test_divisions.py has the kinds of modules that e-prop's low-pass refuses between neurons."""
    assert_refused(row, globals(), online=snn.Online, leaky=snn.Leaky(beta=0.9))


def test_a_stream_that_changes():
    online = snn.Online(network())
    online(stream(batch=4))
    with pytest.raises(ValueError, match=r"goes on with steps of shape \(4, 8\).*reset"):
        online(stream(batch=3))
    with pytest.raises(ValueError, match="reset"):
        online(stream(batch=4).double())
    online.reset()
    assert online(stream(batch=3))[0].shape == (12, 3, CLASSES)


def test_losses_that_reach_back():
    online, x = snn.Online(network()), stream()
    first = online(x[:4])[1].sum()
    online(x[4:8])[1].sum().backward()
    with pytest.raises(RuntimeError, match="reaches back into chunk 1 of an online network, which is at chunk 2"):
        first.backward()
    loss = online(x[8:])[1].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward was called twice for one chunk"):
        loss.backward()


STREAMS = {
    **{rule: (network, rule, {}) for rule in ("sltt", "ottt", "snap1")},
    "eprop": (network, "eprop", {"feedback": "random"}),
    "decolle": (network, "decolle", {"readouts": 3}),
    "delays": (lambda: snn.MultiStep(snn.DelayLinear(8, 12, 5), snn.Leaky(beta=0.9, threshold=0.4)), "sltt", {}),
    "events": (lambda: snn.SparseNetwork([8, 12, CLASSES], beta=0.9, threshold=0.2, delay=0), "ottt", {}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_goes_on_from_a_file(name, tmp_path):
    """A stream saved in the middle and loaded into another network has the same gradients, outputs and traces bit by
    bit.
    """
    make, rule, options = STREAMS[name]

    def learner():
        torch.manual_seed(0)
        return snn.Online(make(), rule=rule, **options)

    def learn(online, part):
        outputs = online(part)
        outputs = outputs.to_dense() if isinstance(outputs, snn.SparseSpikes) else outputs[1]
        loss = outputs.square().mean() + sum(readout.square().mean() for readout in online.readouts)
        loss.backward()
        return outputs.detach()

    online, x = learner(), stream()
    learn(online, x[:5])
    torch.save({"net": online.state_dict(), "stream": online.stream_state()}, tmp_path / "stream.pt")
    online.zero_grad()
    expected = learn(online, x[5:9])

    saved = torch.load(tmp_path / "stream.pt", weights_only=True)
    other = learner()
    other.load_state_dict(saved["net"])
    other.load_stream_state(saved["stream"])
    assert torch.equal(learn(other, x[5:9]), expected)
    grads = grads_of(online)
    assert grads.keys() == grads_of(other).keys()
    for key, grad in grads_of(other).items():
        assert torch.equal(grad, grads[key]), key
    with pytest.raises(ValueError, match="goes on with steps of shape"):
        other(x[:2, :1])
    fresh = learner()
    learn(fresh, x[5:9])
    assert any(not torch.equal(grad, grads[key]) for key, grad in grads_of(fresh).items())


def test_a_stream_of_another_network_is_refused():
    state = snn.Online(network(), rule="ottt").stream_state()
    with pytest.raises(ValueError, match='rule "ottt", and this network\'s is "sltt"'):
        snn.Online(network(), rule="sltt").load_stream_state(state)
    online = snn.Online(network(), rule="ottt")
    online(stream())
    longer = snn.Online(network(nn.Linear(12, 12), snn.Leaky(beta=0.9)), rule="ottt")
    with pytest.raises(ValueError, match=r"there was module 2 .Linear.*the stream is of another network"):
        longer.load_stream_state(online.stream_state())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["nothing", "error"])
@pytest.mark.parametrize(
    ("rule", "options"), [("sltt", {}), ("ottt", {}), ("eprop", {}), ("decolle", {"readouts": 3}), ("snap1", {})]
)
def test_a_chunk_without_its_backward_pass_is_freed(rule, options, end, monkeypatch):
    works = []
    init = layer.ChunkRecord.__init__
    monkeypatch.setattr(
        layer.ChunkRecord, "__init__", lambda self, *a: (works.append(weakref.ref(self)), init(self, *a))[1]
    )

    def disturb(_):
        raise ArithmeticError

    online = snn.Online(network(), rule=rule, **options)
    for _ in range(2):
        spk, mem = online((torch.rand(4, 3, 8) < 0.3).float())
        if end == "error":
            spk.register_hook(disturb)
            with pytest.raises(ArithmeticError):
                (spk.sum() + mem.sum()).backward()
        del spk, mem
        online.reset()
        online.readouts = []
    gc.collect()
    assert works
    assert [work for work in works if work() is not None] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bits_each_step_by_itself_learns_and_traces_are_refused(dtype):
    weights = 2 * torch.randn(6, 8), torch.randn(4, 6)
    x = (torch.rand(9, 2, 8) < 0.4).float()
    results = []
    for kind in (torch.float32, dtype):
        net = snn.MultiStep(
            nn.Linear(8, 6, bias=False), snn.Leaky(0.9), nn.Linear(6, 4, bias=False), snn.Leaky(0.9)
        ).to(kind)
        with torch.no_grad():
            for layer, weight in zip(net[::2], weights):
                layer.weight.copy_(weight.to(dtype))
        online = snn.Online(net, rule="sltt")
        for chunk in x.to(kind).split(4):
            online(chunk)[0].float().sum().backward()
        results.append([p.grad.float() for p in (net[0].weight, net[2].weight)])
    for actual, other in zip(*results):
        assert actual.any()
        assert relative_error(actual, other) < 0.02
    for rule, options in (("ottt", {}), ("snap1", {}), ("eprop", {}), ("decolle", {"readouts": 3})):
        with pytest.raises(
            TypeError, match=rf'module 1 \(Leaky\) is of {dtype}: rule "{rule}" carries traces in float32'
        ):
            snn.Online(net, rule=rule, **options)(x.to(dtype))
    with pytest.raises(TypeError, match="carries traces"):
        snn.Online(snn.SparseNetwork([8, 6], beta=0.9, path="sparse").to(dtype), rule="ottt")(x)
    net.float()
    with torch.autocast("cpu", dtype), pytest.raises(TypeError, match="without autocast"):
        snn.Online(net, rule="ottt")(x)


@pytest.mark.parametrize("frozen", [False, True], ids=["", "a bias alone learns"])
@pytest.mark.parametrize("kind", ["rows", "maps", "recurrent"])
@pytest.mark.parametrize("rule", ["ottt", "snap1"])
def test_traces_of_inputs_that_are_mostly_zeros(rule, kind, frozen, monkeypatch):
    """The traces are summed from the events of the product, and equal dense sums."""
    maps = kind == "maps"
    front = nn.Conv2d(8, 32, 3, padding=1) if maps else nn.Linear(512, 256)
    front.weight.requires_grad_(not frozen)
    behind = [nn.Flatten(), nn.Linear(32 * 36, 64)] if maps else [nn.Linear(256, 64)]
    neuron = snn.Leaky(beta=0.8, threshold=0.1)
    if kind == "recurrent":  # the neuron also needs traces of its spikes
        neuron = snn.RLeaky(beta=0.8, linear_features=256, threshold=0.1, reset_mechanism="none")
    net = snn.MultiStep(front, neuron, *behind, snn.Leaky(beta=0.7, reset_mechanism="none")).double()
    x = (torch.rand(40, 8, *((8, 6, 6) if maps else (512,))) < 0.02).double()
    used = []
    of_slots = layer.spikes_of_slots
    monkeypatch.setattr(layer, "spikes_of_slots", lambda *arguments: (used.append(1), of_slots(*arguments))[1])
    gradients = []
    for only in (False, True):
        with snn.dense_only() if only else contextlib.nullcontext():
            gradients.append(drawn.gradients(snn.Online(net, rule=rule), x, length=20))
        has_slots = not only and (kind, rule) != ("recurrent", "snap1")  # which has a trace for each weight
        assert bool(used) is has_slots
        used.clear()
    assert all(dense.any() for dense in gradients[1].values())
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_steps_that_a_layer_does_not_take():
    online = snn.Online(snn.MultiStep(nn.Conv2d(1, 2, 3), snn.Leaky(beta=0.9)), rule="ottt")
    with pytest.raises(ValueError, match=r"module 0 \(Conv2d\) does not take steps of shape \(2, 8\)"):
        online(torch.zeros(3, 2, 8), single=False)


@pytest.mark.parametrize("rule", ["ottt", "eprop"])
def test_a_stream_after_one_in_inference_mode(rule):
    """The stored history of a neuron is no inference tensor."""
    net = network(reset_mechanism="none").double()
    net[1].beta.fill_(0.6123)  # no other test uses this value
    x, online = stream().double(), snn.Online(net, rule=rule)
    with torch.inference_mode():
        online(x[:5])
        online(x[5:])
    learnt = (drawn.gradients(online, x, length=length) for length in (6, len(x)))
    torch.testing.assert_close(*learnt, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("how", ["functional_call", "replaced", "frozen"])
def test_parameters_that_are_others_at_the_backward_pass(how):
    net = network()
    online = snn.Online(net, rule="ottt")
    if how == "functional_call":
        others = {name: p.detach().clone().requires_grad_() for name, p in online.named_parameters()}
        _, mem = torch.func.functional_call(online, others, (stream(),))
    else:
        _, mem = online(stream())
    if how == "replaced":
        net[2].weight = nn.Parameter(torch.ones(CLASSES, 12))
    elif how == "frozen":
        net[0].weight.requires_grad_(False)
    with pytest.raises(RuntimeError, match="was replaced, or its requires_grad changed, between chunk 1 and"):
        mem.sum().backward()
