"""``snnipu.Online`` as people call it: streams, layers between, what is refused; backpropagation where they agree."""

import contextlib
import copy
import functools
import gc
import weakref

import pytest
import torch
from oracle import relative_error
from support.exact import exact
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
    """In chunks of three; OTTT leaves out the reset."""
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
    for name, grad in grads_of(net).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-9)


def test_it_returns_what_the_network_does_and_shares_its_parameters():
    net, x = exact(network()), stream()
    online = snn.Online(net, rule="ottt")
    expected = net(x)
    made = [online(part) for part in x.split([5, 1, 6])]
    for number, whole in enumerate(expected):
        assert torch.equal(torch.cat([part[number] for part in made]), whole)
    online.reset()
    single = [online(step) for step in x]  # [B, ...] is one step
    assert torch.equal(torch.stack([mem for _, mem in single]), expected[1])
    assert online.net is net
    assert set(dict(net.named_parameters())) == {name[4:] for name, _ in online.named_parameters()}
    online.load_state_dict(online.state_dict())
    with torch.no_grad():
        online.reset()
        assert not online(x)[1].requires_grad


def test_an_optimizer_steps_between_chunks():
    torch.manual_seed(0)
    net = network()
    x, targets = stream(40, 16), torch.randint(CLASSES, (16,))
    online, optimizer = snn.Online(net, rule="eprop"), torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        online.reset()
        total = 0.0
        for part in x.split(8):
            loss = nn.functional.cross_entropy(online(part)[1].mean(0), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("rule", ["sltt", "ottt", "eprop", "snap1"])
def test_layers_between_in_any_chunks(rule):
    torch.manual_seed(0)
    net = snn.MultiStep(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4).eval(),
        snn.Leaky(beta=0.8, threshold=0.3),
        nn.AvgPool2d(2) if rule in ("eprop",) else nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, 10),
        snn.Synaptic(alpha=0.7, beta=0.8, threshold=0.3),
        nn.Linear(10, CLASSES),
        snn.Leaky(beta=0.9, reset_mechanism="none"),
    ).double()
    net[1].running_mean.uniform_(-0.2, 0.2)
    x = (torch.rand(10, 2, 2, 6, 6) < 0.4).double()
    found = []
    for length in (1, 4, 10):
        online = snn.Online(net, rule=rule)
        net.zero_grad()
        for part in x.split(length):
            online(part)[1].square().sum().backward()
        found.append(grads_of(net))
    assert len(found[0]) == 8
    for other in found[1:]:
        for name, grad in other.items():
            torch.testing.assert_close(grad, found[0][name], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("init_hidden", [False, True])
def test_delays_in_front_learn_by_sltt_in_any_chunks(init_hidden):
    torch.manual_seed(0)
    net = snn.MultiStep(
        snn.DelayLinear(8, 12, 5, bias=True, init_hidden=init_hidden),
        snn.Leaky(beta=0.8, threshold=0.3),
        nn.Linear(12, CLASSES),
        snn.Leaky(beta=0.9, reset_mechanism="none"),
    ).double()
    x = stream(steps=14).double()
    # Its rule, step by step: what arrives at a step has its gradient, and no earlier membrane has.
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
        for _ in range(2):  # anew behind reset()
            net.zero_grad()
            outs = []
            for part in x.split(length):
                outs.append(online(part)[1])
                outs[-1].square().sum().backward()
            online.reset()
            torch.testing.assert_close(torch.cat(outs).square().sum(), torch.stack(losses).sum())
            for name, grad in grads_of(net).items():
                torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(online(x[0])[1], outs[0][0])  # one step, [B, in]
    online.reset()
    with pytest.raises(ValueError, match="x must not require a gradient"):
        online(x.requires_grad_())


@pytest.mark.parametrize("options", [{}, {"feedback": "random"}, {"feedback": "adaptive", "low_pass": False}])
def test_an_input_that_e_prop_gives_no_gradient(options):
    """Its errors are low-passed, or go to layers alone."""
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
    """Where its input is high, the membrane goes on: its history is each neuron's own."""
    mem = torch.where(x > 0.1, beta * mem, 0.0 * mem) + x
    return spike(mem - threshold), mem


@pytest.mark.slow
@pytest.mark.parametrize("neuron", [Leak, Gated])
def test_a_neuron_of_ones_own(neuron):
    torch.manual_seed(0)
    net = snn.MultiStep(nn.Linear(8, 6), neuron(beta=0.8, learn=("beta",))).double()
    x = stream().double()
    online, found = snn.Online(net, rule="snap1"), []
    for length in (3, 12):
        online.reset()
        net.zero_grad()
        for part in x.split(length):
            online(part)[0].sum().backward()
        found.append(grads_of(net))
    assert set(found[0]) == {"0.weight", "0.bias", "1.beta"}
    for name, grad in found[0].items():
        torch.testing.assert_close(grad, found[1][name], rtol=1e-9, atol=1e-9)
        assert grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: snn.Online(network(), rule="bptt"), ValueError, "rule must be one of 'sltt', 'ottt'"),
        (lambda: snn.Online(network(), rule="ottt", feedback="random"), TypeError, 'rule "ottt" has no option'),
        (lambda: snn.Online(network(), rule="eprop", feedback="mirror"), ValueError, "feedback of rule"),
        (lambda: snn.Online(network(), rule="decolle"), ValueError, "readouts of rule"),
        (lambda: snn.Online(nn.Linear(2, 2)), TypeError, "net must be a MultiStep, .*, got Linear$"),
        (lambda: snn.Online(network(nn.BatchNorm1d(12))), ValueError, r"module 2 \(BatchNorm1d\) is in training"),
        (lambda: snn.Online(network(nn.LSTM(12, 12))), TypeError, r"module 2 \(LSTM\) cannot learn online"),
        (lambda: snn.Online(network(inhibition=True)), TypeError, "module 1 .* it has inhibition=True"),
        (
            lambda: snn.Online(snn.MultiStep(nn.Linear(8, 6), nn.ReLU(), snn.Leaky(beta=0.9))),
            TypeError,
            "module 1 .ReLU. stands between weights and their neurons",
        ),
        *(
            (
                lambda kind=kind, pool=pool: snn.Online(network(*pool, kind(), nn.Flatten()), rule="eprop"),
                TypeError,
                f"module {2 + len(pool)} .{type(kind()).__name__}. stands between neurons and .* low_pass=False",
            )
            for kind, pool in (
                (nn.ReLU, []),
                (nn.Tanh, []),
                (functools.partial(nn.MaxPool1d, 1), [nn.Unflatten(1, (1, 12))]),
                (nn.Dropout, []),
            )
        ),
        (
            lambda: snn.Online(network()[:-1].append(snn.Leaky(beta=0.9, reset_mechanism="zero")), rule="eprop"),
            ValueError,
            'module 3 .Leaky.: rule "eprop" passes errors through a leaky readout',
        ),
        (
            lambda: snn.Online(snn.MultiStep(snn.DelayLinear(8, 6, 4), snn.Leaky(beta=0.9)), rule="ottt"),
            TypeError,
            'module 0 .DelayLinear.: rule "ottt" has no traces of inputs that arrive later; take "sltt"',
        ),
        (
            lambda: snn.Online(
                snn.MultiStep(nn.Linear(8, 6), snn.Leaky(beta=0.9), snn.DelayLinear(6, 6, 4)), rule="sltt"
            ),
            TypeError,
            "module 2 .DelayLinear. sends errors back to earlier steps",
        ),
    ],
)
def test_what_is_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


def _with_decays_of_their_own(*body, count):
    return nn.Sequential(*body, snn.Leaky(beta=torch.rand(count), threshold=0.5, init_hidden=True, output=True))


@pytest.mark.parametrize("rule", ["ottt", "snap1"])
@pytest.mark.parametrize(
    ("body", "count", "shape", "error", "match"),
    [
        # Of the same width: the traces of the first one fit the second.
        ([nn.Linear(7, 5), nn.Linear(5, 5)], 5, (7,), TypeError, r"module 1 \(Linear\): rule .* behind it; take"),
        ([nn.Conv1d(2, 4, 3)], 4, (2, 6), TypeError, r"module 0 \(Conv1d\): rule"),
        ([nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.Flatten()], 16, (2, 6, 6), TypeError, r"module 1 \(AvgPool2d\)"),
        ([nn.Conv2d(2, 4, 3, padding="same")], 6, (2, 6, 6), TypeError, r"module 0 \(Conv2d\)"),
        ([nn.Linear(7, 5)], 5, (4, 7), ValueError, r"shape \[B, 7\], not \(2, 4, 7\)"),
    ],
    ids=["two", "conv1d", "pool", "same", "rows"],
)
def test_what_neurons_with_traces_of_their_own_cannot_learn(rule, body, count, shape, error, match):
    net = _with_decays_of_their_own(*copy.deepcopy(body), count=count)
    with pytest.raises(error, match=match):
        snn.Online(net, rule=rule)(torch.randn(3, 2, *shape))
    # One decay for all: the traces are those of the inputs, and any affine body will do.
    net[-1] = snn.Leaky(beta=0.9, threshold=0.5, init_hidden=True, output=True)
    snn.Online(net, rule=rule)(torch.randn(3, 2, *shape))[0].sum().backward()
    assert net[0].weight.grad.any()


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


@pytest.mark.parametrize("rule", ["sltt", "ottt", "eprop", "snap1"])
def test_a_parameter_that_changes_before_backward(rule):
    net, x = network(), stream()
    online = snn.Online(net, rule=rule)
    loss = online(x)[1].sum()
    with torch.no_grad():
        net[2].weight.add_(0.1)
    with pytest.raises(RuntimeError, match=r"changed in place between chunk 1 and its backward\(\)"):
        loss.backward()


def test_memory_of_a_stream_does_not_grow():
    """What lives between chunks: states and traces, whatever has gone before."""
    online, x = snn.Online(network(), rule="snap1"), stream(20)

    def kept():
        seen = {}
        for memory in online._memory:
            for tensor in torch.utils._pytree.tree_flatten(tuple(memory))[0]:
                if isinstance(tensor, torch.Tensor):
                    seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return sum(seen.values())

    sizes = []
    for _ in range(6):
        online(x)[1].sum().backward()
        sizes.append(kept())
    assert sizes[0] == sizes[-1] > 0
    assert all(not t.requires_grad for m in online._memory for t in m.states)


RULE_OPTIONS = {"sltt": {}, "ottt": {}, "eprop": {"feedback": "random"}, "decolle": {"readouts": 3}, "snap1": {}}


def test_a_stream_with_delays_goes_on_from_a_file():
    """What is on its way is saved, too."""
    torch.manual_seed(0)
    net = snn.MultiStep(snn.DelayLinear(8, 12, 5), snn.Leaky(beta=0.9, threshold=0.4))
    online, x = snn.Online(net, rule="sltt"), stream()
    online(x[:5])
    other = snn.Online(net, rule="sltt")
    other.load_stream_state(online.stream_state())
    expected = online(x[5:])[1]
    assert torch.equal(other(x[5:])[1], expected)
    assert not torch.equal(snn.Online(net, rule="sltt")(x[5:])[1], expected)


@pytest.mark.parametrize("rule", RULE_OPTIONS)
def test_a_stream_goes_on_from_a_file(rule, tmp_path):
    """Saved in the middle and read into another network: the same gradients, outputs and traces to the last bit."""

    def learn(online, part):
        made = online(part)[1]
        loss = made.square().mean() + sum(readout.square().mean() for readout in online.readouts)
        loss.backward()
        return made.detach()

    net, x = network(), stream()
    online = snn.Online(net, rule=rule, **RULE_OPTIONS[rule])
    learn(online, x[:5])
    torch.save({"net": online.state_dict(), "stream": online.stream_state()}, tmp_path / "stream.pt")
    online.zero_grad()
    expected = learn(online, x[5:9])

    saved = torch.load(tmp_path / "stream.pt", weights_only=True)
    other = snn.Online(network(), rule=rule, **RULE_OPTIONS[rule])
    other.load_state_dict(saved["net"])
    other.load_stream_state(saved["stream"])
    assert torch.equal(learn(other, x[5:9]), expected)
    grads = grads_of(online)
    assert grads.keys() == grads_of(other).keys()
    for name, grad in grads_of(other).items():
        assert torch.equal(grad, grads[name]), name
    with pytest.raises(ValueError, match="goes on with steps of shape"):
        other(x[:2, :1])
    fresh = snn.Online(network(), rule=rule, **RULE_OPTIONS[rule])
    learn(fresh, x[5:9])
    assert any(not torch.equal(grad, grads[name]) for name, grad in grads_of(fresh).items())


def test_a_stream_of_another_network_is_refused():
    state = snn.Online(network(), rule="ottt").stream_state()
    with pytest.raises(ValueError, match='rule "ottt", and this network\'s is "sltt"'):
        snn.Online(network(), rule="sltt").load_stream_state(state)
    made = snn.Online(network(), rule="ottt")
    made(stream())
    longer = snn.Online(network(nn.Linear(12, 12), snn.Leaky(beta=0.9)), rule="ottt")
    with pytest.raises(ValueError, match=r"there was module 2 .Linear.*the stream is of another network"):
        longer.load_stream_state(made.stream_state())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["nothing", "error"])
@pytest.mark.parametrize(
    ("rule", "options"), [("sltt", {}), ("ottt", {}), ("eprop", {}), ("decolle", {"readouts": 3}), ("snap1", {})]
)
def test_a_chunk_without_its_backward_pass_is_freed(rule, options, end, monkeypatch):
    works = []
    init = layer.Work.__init__
    monkeypatch.setattr(layer.Work, "__init__", lambda self, *a: (works.append(weakref.ref(self)), init(self, *a))[1])

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
    torch.manual_seed(0)
    weights = 2 * torch.randn(6, 8), torch.randn(4, 6)
    x = (torch.rand(9, 2, 8) < 0.4).float()
    found = []
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
        found.append([p.grad.float() for p in (net[0].weight, net[2].weight)])
    for own, other in zip(*found):
        assert own.any()
        assert relative_error(own, other) < 0.02
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


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("rule", ["ottt", "snap1"])
def test_traces_of_inputs_that_are_mostly_zeros(rule, maps, monkeypatch):
    """They are summed by the events that the product was made of, and are those of dense sums."""
    torch.manual_seed(0)
    front = nn.Conv2d(8, 32, 3, padding=1) if maps else nn.Linear(512, 256)
    behind = [nn.Flatten(), nn.Linear(32 * 36, 64)] if maps else [nn.Linear(256, 64)]
    net = snn.MultiStep(front, snn.Leaky(beta=0.8, threshold=0.1), *behind, snn.Leaky(beta=0.7)).double()
    x = (torch.rand(40, 8, *((8, 6, 6) if maps else (512,))) < 0.02).double()
    used = []
    of_slots = layer.of_slots
    monkeypatch.setattr(layer, "of_slots", lambda *given: (used.append(1), of_slots(*given))[1])
    gradients = []
    for only in (False, True):
        net.zero_grad()
        online = snn.Online(net, rule=rule)
        with snn.dense_only() if only else contextlib.nullcontext():
            for chunk in x.split(20):
                online(chunk)[1].square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
        assert bool(used) is not only
        used.clear()
    for own, dense in zip(*gradients):
        assert dense.any()
        torch.testing.assert_close(own, dense, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", ["ottt", "eprop", "snap1"])
def test_traces_of_a_recurrent_layers_inputs(rule):
    """Those of its own spikes are not those of its input, where zeros are left out of both."""
    torch.manual_seed(0)
    recurrent = snn.RLeaky(beta=0.9, linear_features=256, threshold=0.3, reset_mechanism="none")
    net = snn.MultiStep(nn.Linear(300, 256), recurrent, nn.Linear(256, 10), snn.Leaky(beta=0.9, reset_mechanism="none"))
    net.double()
    x = (torch.rand(40, 32, 300) < 0.03).double()
    gradients = []
    for length in (40, 20, 7):
        net.zero_grad()
        online = snn.Online(net, rule=rule)
        for chunk in x.split(length):
            online(chunk)[1].sum((0, 1)).mul(torch.linspace(-1, 1, 10)).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
    for whole, halves, sevenths in zip(*gradients):
        assert whole.any()
        torch.testing.assert_close(halves, whole, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(sevenths, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("maps", [False, True])
def test_a_bias_alone_learns_from_mostly_zeros(maps):
    torch.manual_seed(0)
    front = nn.Conv2d(8, 32, 3, padding=1) if maps else nn.Linear(512, 256)
    front.weight.requires_grad_(False)
    net = snn.MultiStep(front, snn.Leaky(beta=0.8, threshold=0.1)).double()
    x = (torch.rand(40, 8, *((8, 6, 6) if maps else (512,))) < 0.02).double()
    found = []
    for only in (False, True):
        net.zero_grad()
        with snn.dense_only() if only else contextlib.nullcontext():
            online = snn.Online(net, rule="ottt")
            for chunk in x.split(20):
                online(chunk)[1].square().sum().backward()
        assert front.weight.grad is None
        found.append(front.bias.grad)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_steps_that_a_layer_does_not_take():
    online = snn.Online(snn.MultiStep(nn.Conv2d(1, 2, 3), snn.Leaky(beta=0.9)), rule="ottt")
    with pytest.raises(ValueError, match=r"module 0 \(Conv2d\) does not take steps of shape \(2, 8\)"):
        online(torch.zeros(3, 2, 8), single=False)


@pytest.mark.parametrize("rule", ["ottt", "eprop"])
def test_a_stream_after_one_in_inference_mode(rule):
    """What is kept of a neuron's history is no inference tensor."""
    net = network(reset_mechanism="none").double()
    net[1].beta.fill_(0.6123)  # no other test's
    x, online = stream().double(), snn.Online(net, rule=rule)
    with torch.inference_mode():
        online(x[:5])
        online(x[5:])
    online.reset()
    for chunk in x.split(6):
        online(chunk)[1].sum().backward()
    learnt = grads_of(net)
    net.zero_grad()
    online.reset()
    online(x)[1].sum().backward()
    for name, grad in grads_of(net).items():
        torch.testing.assert_close(learnt[name], grad, rtol=1e-9, atol=1e-9)


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
