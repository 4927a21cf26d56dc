"""``Options.useIpuModel`` and ``POPTORCH_IPU_MODEL``: operators through the IPU model inside a user's training loop."""

import pytest
import snntorch
import torch
from support.fake_ipu_model import FakeLibrary
from support.operators import needs_host_runtime, needs_library
from torch import nn

import snnipu as snn
from snnipu import ipu, poptorch
from snnipu.ipu import model as ipu_model

pytestmark = needs_host_runtime
STEPS, BATCH = 6, 4


@pytest.fixture
def fake(monkeypatch):
    made = FakeLibrary()
    monkeypatch.setattr(ipu_model, "_library", made)
    return made


class Net(nn.Module):
    def __init__(self, step_by_step=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.step_by_step = step_by_step
        self.fc1, self.lif1 = nn.Linear(8, 12), snn.Leaky(beta=0.9, learn_beta=True, **options)
        self.fc2, self.lif2 = nn.Linear(12, 3), snn.Leaky(beta=0.8, threshold=0.5, **options)
        self.seen = []

    def forward(self, x, labels=None):
        self.seen.append(poptorch.isRunningOnIpu())
        if self.step_by_step:
            mem1, mem2, spikes = self.lif1.reset_mem(), self.lif2.reset_mem(), []
            for _ in range(STEPS):
                spk1, mem1 = self.lif1(self.fc1(x), mem1)
                spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
                spikes.append(spk2)
            spk = torch.stack(spikes)
        else:
            spk = self.lif2.sequence(self.fc2(self.lif1.spikes(self.fc1(x), num_steps=STEPS)))[0]
        counts = spk.sum(0)
        if labels is None:
            return counts
        return counts, poptorch.identity_loss(nn.functional.cross_entropy(counts, labels), "mean")


def data():
    torch.manual_seed(1)
    return torch.rand(BATCH, 8), torch.randint(3, (BATCH,))


def train(options, steps=3, **more):
    net = Net(**more)
    model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.5))
    outputs = [model(*data()) for _ in range(steps)]
    return net, model, outputs


def check_same(fake_options, **more):
    net, model, outputs = train(fake_options, **more)
    expected_net, _, expected = train(poptorch.Options(), **more)
    for (counts, loss), (wanted_counts, wanted_loss) in zip(outputs, expected):
        assert torch.equal(counts, wanted_counts)
        torch.testing.assert_close(loss, wanted_loss)
    for (name, weight), wanted in zip(net.named_parameters(), expected_net.parameters()):
        torch.testing.assert_close(weight, wanted, msg=name)
    return net, model


def on_model():
    return poptorch.Options().useIpuModel(True)


@pytest.mark.parametrize("step_by_step", [False, True])
def test_training_goes_through_the_model(fake, step_by_step):
    net, model = check_same(on_model(), step_by_step=step_by_step)
    assert all(net.seen)
    assert len(net.seen) == 3
    # Two layers a call forwards, and as many backwards, or a step each.
    calls = 2 * 3 * (STEPS if step_by_step else 1)
    runs = [entry[2] is not None for entry in fake.log if entry[0] == "run"]
    assert runs.count(False) == calls
    assert runs.count(True) >= calls - 2 * 3  # what the loss does not depend on has no gradient
    names = {entry["operator"] for entry in model.ipuModelReport()}
    assert names == {"NeuronSequence", "NeuronSequence (gradient)"}


def test_the_environment_asks_for_it(fake, monkeypatch):
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    train(poptorch.Options(), steps=1)
    assert fake.log
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "0")
    fake.log.clear()
    train(poptorch.Options(), steps=1)
    assert fake.log == []
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "yes")
    with pytest.raises(poptorch.Error, match="POPTORCH_IPU_MODEL must be 0 or 1"):
        poptorch.inferenceModel(Net())


def test_without_it_the_host_runs(fake):
    _, model, _ = train(poptorch.Options().useIpuModel(False), steps=1)
    assert fake.log == []
    with pytest.raises(poptorch.Error, match="no IPU model in use"):
        model.ipuModelReport()


def test_inference_and_what_runs_outside_of_a_wrapper(fake):
    net = Net().eval()
    model = poptorch.inferenceModel(net, on_model())
    assert torch.equal(model(data()[0]), net(data()[0]).detach())
    assert [entry for entry in fake.log if entry[0] == "run"] == [("run", "NeuronSequence", None)] * 2
    assert net.seen == [True, False]


def test_the_target_is_the_environments(fake, monkeypatch):
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "bow:4:2")
    model = poptorch.inferenceModel(Net(), on_model())
    model(data()[0])
    assert {asked.target for asked in fake.programs.values()} == {("bow", 4, 2)}
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "bow:many")
    with pytest.raises(poptorch.Error, match="SNNIPU_IPU_MODEL_TARGET"):
        poptorch.inferenceModel(Net(), on_model())


@pytest.mark.parametrize(
    "layer",
    [
        snn.SparseNetwork([8, 5, 3], beta=0.9),
        snn.SparseLeaky(8, 5, beta=0.9),
        snn.SparseSynaptic(8, 5, alpha=0.5, beta=0.9),
        snn.SparseLinear(8, 5),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_what_has_no_operator_is_refused(fake, layer):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            out = self.layer(x)
            return out if isinstance(out, torch.Tensor) else out.to_dense()

    x = torch.ones(2, 3, 8)
    with pytest.raises(RuntimeError, match="event-driven layers cannot run on the IPU model"):
        poptorch.inferenceModel(Sparse(), on_model())(x)
    assert poptorch.inferenceModel(Sparse())(x).shape[:2] == (2, 3)
    # The refusal leaves nothing behind.
    layer(x)


@pytest.mark.parametrize(
    "options", [{"inhibition": True}, {"state_quant": lambda mem: mem}, {"spike_grad": lambda u: (u > 0).float()}]
)
def test_what_the_operator_does_not_know_is_refused(fake, options):
    with pytest.raises(RuntimeError, match="Leaky cannot run on an IPU with inhibition, state_quant"):
        poptorch.inferenceModel(Net(**options), on_model())(data()[0])


class OfSnntorch(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.inner = nn.ModuleDict({"lif": make()})

    def forward(self, x):
        out = self.inner["lif"](self.fc(x))
        return out[0] if isinstance(out, tuple) else out


class Doubled(snn.Leaky):
    def _base_state_function(self, input_):
        return 2 * super()._base_state_function(input_)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: snntorch.Leaky(beta=0.9), "snntorch.Leaky"),
        (lambda: snntorch.Synaptic(alpha=0.9, beta=0.8, init_hidden=True), "snntorch.Synaptic"),
        (lambda: snntorch.LeakyParallel(4, 4), "snntorch.LeakyParallel"),
    ],
)
def test_neurons_without_an_operator_are_refused_by_name(fake, make, name):
    x = torch.rand(BATCH, 8)
    with pytest.raises(RuntimeError, match=rf"inner\.lif, a {name}, cannot run on the IPU model"):
        poptorch.inferenceModel(OfSnntorch(make), on_model())(x)
    assert poptorch.inferenceModel(OfSnntorch(make))(x).shape == (BATCH, 4)
    # The refusal leaves nothing behind.
    assert snntorch.Leaky(beta=0.9)(x)[0].shape == (BATCH, 8)


def test_neurons_inside_of_multistep_are_refused_by_name(fake):
    net = snn.MultiStep(nn.Linear(8, 4), snntorch.Leaky(beta=0.9))
    with pytest.raises(RuntimeError, match=r"1, a snntorch.Leaky, cannot run on the IPU model"):
        poptorch.inferenceModel(net, on_model())(torch.rand(3, BATCH, 8))


def test_a_neuron_with_a_part_replaced_is_refused(fake):
    with pytest.raises(RuntimeError, match=r"Leaky cannot run on an IPU with .* parts of its step replaced"):
        poptorch.inferenceModel(OfSnntorch(lambda: Doubled(beta=0.9)), on_model())(torch.rand(BATCH, 8))


def test_neurons_of_snntorch_with_a_surrogate_that_has_an_operator_run(fake):
    net = OfSnntorch(lambda: snntorch.Leaky(beta=0.9, spike_grad=snn.surrogate.atan()))
    model = poptorch.inferenceModel(net, on_model())
    model(torch.rand(BATCH, 8))
    assert [entry["operator"] for entry in model.ipuModelReport()] == ["SurrogateSpike"]


class Spike(nn.Module):
    def __init__(self, spike_grad):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 5))
        self.spike_grad = spike_grad

    def forward(self, x):
        spk = self.spike_grad(self.weight * x)
        return spk, poptorch.identity_loss((spk - 0.3).square().sum(), "sum")


def check_surrogate(spike_grad, options):
    made, expected = Spike(spike_grad), Spike(spike_grad)
    x = torch.tensor([[1.0, 2.0, -0.5, 0.1, 3.0]])
    outputs = [
        poptorch.trainingModel(net, chosen, poptorch.optim.SGD(net.parameters(), lr=0.1))(x)
        for net, chosen in ((made, options), (expected, poptorch.Options()))
    ]
    assert torch.equal(outputs[0][0], outputs[1][0])
    torch.testing.assert_close(made.weight, expected.weight)
    assert not torch.equal(made.weight, Spike(spike_grad).weight)


def test_surrogates_by_themselves(fake):
    check_surrogate(snn.surrogate.fast_sigmoid(10), on_model())
    assert ("run", "SurrogateSpike", [0]) in fake.log
    with pytest.raises(RuntimeError, match="spike_grad cannot run on an IPU"):
        check_surrogate(snn.surrogate.custom_surrogate(lambda u, grad, spikes: grad), on_model())


def test_a_surrogate_in_python_is_refused(fake):
    net = Net(spike_grad=snn.surrogate.custom_surrogate(lambda u, grad, spikes: grad))
    with pytest.raises(RuntimeError, match="spike_grad cannot run on an IPU"):
        poptorch.inferenceModel(net, on_model())(data()[0])


def test_operators_of_others_stay_on_the_host(fake):
    poptorch.custom_ops.register("Twice", "my.domain", 1, lambda inputs, attributes: [2 * inputs[0]])

    class Doubles(nn.Module):
        def forward(self, x):
            return poptorch.custom_op([x], "Twice", "my.domain", 1, [x])[0]

    try:
        assert torch.equal(poptorch.inferenceModel(Doubles(), on_model())(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        poptorch.custom_ops.unregister("Twice", "my.domain", 1)
    assert fake.log == []


def test_without_the_library_the_first_operator_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("SNNIPU_NATIVE_DIR", str(tmp_path))
    monkeypatch.setattr(ipu_model, "_library", None)
    plain = poptorch.inferenceModel(nn.Linear(2, 2), on_model())
    assert plain(torch.ones(1, 2)).shape == (1, 2)
    with pytest.raises(RuntimeError, match=r"the IPU model needs .* which is not there"):
        poptorch.inferenceModel(Net(), on_model())(data()[0])


@needs_library
def test_training_on_the_library(monkeypatch):
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:8")
    _, model = check_same(on_model())
    assert {entry["operator"] for entry in model.ipuModelReport()} == {"NeuronSequence", "NeuronSequence (gradient)"}
    for name in ("fast_sigmoid", "atan", "sigmoid", "straight_through_estimator", "triangular", "spike_rate_escape"):
        check_surrogate(getattr(snn.surrogate, name)(), on_model())


class Events(nn.Module):
    """Event-driven layers, and their twins of separate operators, with a loss on the last layer's spikes."""

    def __init__(self, kind, overflow="lowest"):
        super().__init__()
        torch.manual_seed(0)
        sizes, more = [20, 14, 9, 4], {"input_scale": 4.0, "overflow": overflow, "bias": True}
        if kind == "network":
            more.update(beta=[0.9, 0.8, 0.7], max_spikes=[12, 8, 6, 4], grad_threshold=0.6, learn_beta=True)
            self.layers = snn.SparseNetwork(sizes, **more)
        else:
            more.update(beta=0.9, learn_threshold=True, path="auto" if kind == "dense layers" else "sparse")
            if kind == "synaptic layers":
                more.update(alpha=0.5, learn_alpha=True)
            make = snn.SparseSynaptic if kind == "synaptic layers" else snn.SparseLeaky
            self.layers = nn.Sequential(*(make(a, b, **more) for a, b in zip(sizes, sizes[1:])))
        self.head = snn.SparseLinear(4, 4)

    def forward(self, x):
        spikes = self.layers(x)
        out = self.head(spikes)
        counts = spikes.spike_count()
        loss = (counts - 2.0).square().mean() + out.square().mean() + spikes.to_dense()[-1].sum()
        return counts, out, poptorch.identity_loss(loss, "none")


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("kind", ["network", "sparse layers", "dense layers", "synaptic layers"])
@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize("target", ["mk2:8", "bow:5:2"])
def test_event_driven_layers_on_the_library(monkeypatch, kind, overflow, target):
    """Per-layer operators: spikes and the gradients of every weight are the host kernels'."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", target)
    torch.manual_seed(2)
    x = (torch.rand(7, 3, 20) < 0.4).float()
    results = []
    for options in (on_model(), poptorch.Options()):
        net = Events(kind, overflow)
        before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.1))
        outputs = model(x)
        assert [name for name, weight in net.named_parameters() if torch.equal(weight, before[name])] == []
        results.append((model, net, outputs))
    (model, made, outputs), (_, expected, wanted) = results
    assert torch.equal(outputs[0], wanted[0])
    assert outputs[0].any()
    torch.testing.assert_close(outputs[1:], wanted[1:])
    for (name, weight), other in zip(made.named_parameters(), expected.named_parameters()):
        torch.testing.assert_close(
            weight, other[1], rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    if kind == "network":
        assert made.layers.activity == pytest.approx(expected.layers.activity)
        assert made.layers.overflow == expected.layers.overflow
    ran = {entry["operator"] for entry in model.ipuModelReport()}
    if kind == "network":
        assert {"SparseNetwork", "SparseNetwork (gradient)"} <= ran
        assert "NeuronSequence" not in ran
    else:
        assert {"SparseLinear (gradient)", "SelectSpikes (gradient)", "NeuronSequence (gradient)"} <= ran


@needs_library
@pytest.mark.parametrize("planned", [False, True])
def test_a_network_learns_on_the_library(monkeypatch, planned):
    """As one operator, on tiles of its own choice or a plan's; weights after five steps are the host's."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2" if planned else "mk2:16")
    torch.manual_seed(2)
    x = (torch.rand(7, 3, 20) < 0.4).float()
    losses = []
    for options in (on_model(), poptorch.Options()):
        net = Events("network")
        if planned:
            network = ipu.NetworkSpec.from_module(net, 0.2, batch_size=3, steps=7)
            net.layers.ipu_plan = ipu.plan(network, neurons_per_tile=4, selection_tiles=2)
        model = poptorch.trainingModel(net, options, poptorch.optim.Adam(net.parameters(), lr=0.02))
        losses.append([float(model(x)[2]) for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


class Classifier(nn.Module):
    """Three event-driven layers that tell which third of the inputs is active."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        sizes, more = [24, 20, 16, 3], {"input_scale": 2.0, "bias": True}
        if kind == "one operator":
            self.layers = snn.SparseNetwork(sizes, beta=0.9, max_spikes=[12, 10, 8, 3], **more)
        else:
            self.layers = nn.Sequential(
                *(
                    snn.SparseLeaky(a, b, beta=0.9, max_spikes=slots, path="sparse", **more)
                    for a, b, slots in zip(sizes, sizes[1:], (10, 8, 3))
                )
            )

    def forward(self, x, labels):
        counts = self.layers(x).spike_count()
        return counts, poptorch.identity_loss(nn.functional.cross_entropy(counts, labels), "none")


@needs_library
@pytest.mark.parametrize("kind", ["one operator", "operators of each layer"])
def test_three_layers_learn_on_the_library(monkeypatch, kind):
    """Gradients reach every weight: the loss falls, and the training is the host's, step by step."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:16")
    torch.manual_seed(3)
    labels = torch.arange(12) % 3
    rate = 0.05 + 0.4 * nn.functional.one_hot(labels, 3).float().repeat_interleave(8, dim=1)
    x = (torch.rand(8, 12, 24) < rate).float()
    runs = []
    for options in (on_model(), poptorch.Options()):
        net = Classifier(kind)
        before = {name: weight.detach().clone() for name, weight in net.named_parameters() if "weight" in name}
        model = poptorch.trainingModel(net, options, poptorch.optim.Adam(net.parameters(), lr=0.02))
        losses = [float(model(x, labels)[1]) for _ in range(25)]
        assert len(before) == 3
        for name, weight in before.items():
            assert float((net.get_parameter(name).detach() - weight).abs().max()) > 0.05, name
        runs.append((losses, net, model))
    (losses, made, model), (wanted, expected, _) = runs
    assert losses[-1] < 0.5 * losses[0]
    assert losses == pytest.approx(wanted, rel=1e-5)
    for (name, weight), other in zip(made.named_parameters(), expected.parameters()):
        torch.testing.assert_close(weight, other, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    ran = {entry["operator"] for entry in model.ipuModelReport()}
    assert ("SparseNetwork (gradient)" in ran) == (kind == "one operator")
    assert ("SparseLinear (gradient)" in ran) == (kind != "one operator")


@needs_library
@pytest.mark.parametrize("kind", ["network", "sparse layers"])
def test_weights_in_half(monkeypatch, kind):
    """They stay in float16 on the tiles, and so does their gradient; all else is as on the host."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:16")
    torch.manual_seed(2)
    x = (torch.rand(7, 3, 20) < 0.4).float()
    taken = []
    apply = ipu_model.IpuModel.apply

    def record(model, name, inputs, *rest):
        taken.extend(tensor.dtype for tensor in inputs[3:] if tensor.dim() == 2 and name.startswith("Sparse"))
        return apply(model, name, inputs, *rest)

    monkeypatch.setattr(ipu_model.IpuModel, "apply", record)
    results = []
    for options in (on_model(), poptorch.Options()):
        net = Events(kind)
        layers = [layer for layer in net.modules() if isinstance(layer, snn.SparseLeaky)] + [net.head]
        before = []
        for layer in layers:
            layer.weight.data = layer.weight.data.half()
            before.append(layer.weight.detach().clone())
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.5))
        results.append((model(x)[0], layers, before))
    assert taken == [torch.float16] * 4
    (counts, layers, before), (wanted, expected, _) = results
    assert torch.equal(counts, wanted)
    for layer, other, old in zip(layers, expected, before):
        assert layer.weight.dtype == torch.float16
        step = float((other.weight.detach() - old).abs().max())
        assert step > 0
        # The gradient, a sum in float32, and the weight are rounded: a unit in the last place of either.
        torch.testing.assert_close(layer.weight, other.weight, rtol=2.0**-10, atol=2.0**-10 * step)


@needs_library
@pytest.mark.parametrize("kind", ["network", "sparse layers", "dense layers"])
def test_a_whole_model_in_half(monkeypatch, kind):
    """``model.half()``, as scripts for an IPU have it: what the host makes of it."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:8")
    torch.manual_seed(2)
    x = (torch.rand(7, 3, 20) < 0.4).half()
    results = []
    for options in (on_model(), poptorch.Options()):
        net = Events(kind).half()
        before = [weight.detach().clone() for weight in net.parameters()]
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.5))
        outputs = model(x)
        results.append((outputs, net, before))
    (outputs, made, before), (wanted, expected, _) = results
    assert torch.equal(outputs[0], wanted[0])
    torch.testing.assert_close(outputs[1:], wanted[1:])
    for old, weight, other in zip(before, made.parameters(), expected.parameters()):
        assert weight.dtype == torch.float16
        step = float((other.detach() - old).abs().max())
        assert step > 0
        torch.testing.assert_close(weight, other, rtol=2.0**-10, atol=2.0**-10 * step)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_operators_on_spike_ids_by_name(monkeypatch, dtype):
    """``poptorch.custom_op`` itself, on the model and on the host: the same shapes, types and values."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:8")
    surrogate = {"surrogate": 3, "surrogate_a": 2.0, "surrogate_b": 0.0}
    select = {"capacity": 5, "rotate": 0, "has_grad_threshold": 0, "grad_threshold": 0.0, **surrogate}

    def op(name, inputs, examples, **attributes):
        return poptorch.custom_op(inputs, name, "ai.snnipu", 1, examples, attributes=attributes)

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(6, 9).to(dtype))

        def forward(self, x):
            slots, counts = x.new_empty(4, 3, 5), torch.empty(4, 3, 2)
            made = [torch.empty(4, 3, 5), slots, counts, counts]
            ids, values, found, _ = op("DenseToSparse", [x], made, capacity=5, rotate=0)
            (current,) = op(
                "SparseLinear", [ids, values, found, self.weight], [x.new_empty(4, 3, 6)], unit_values=0, plan=[2, 6]
            )
            spikes = op("SelectSpikes", [current, torch.full((1,), 0.5)], made, **select)
            (dense,) = op("SparseToDense", spikes[:3], [x.new_empty(4, 3, 6)], num_neurons=6)
            return (ids, values, current, *spikes, dense, poptorch.identity_loss(dense.float().sum(), "none"))

    torch.manual_seed(1)
    x = (torch.randn(4, 3, 9) * (torch.rand(4, 3, 9) < 0.5)).to(dtype)
    results = []
    for options in (on_model(), poptorch.Options()):
        net = Chain()
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=1.0))
        results.append((model(x), net.weight.detach().clone(), Chain().weight.detach()))
    (outputs, weight, before), (wanted, other, _) = results
    assert not torch.equal(weight, before)
    for got, expected in zip(outputs, wanted):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(weight, other)


@needs_library
def test_layers_without_delay_run_one_by_one(monkeypatch):
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:8")
    torch.manual_seed(0)
    net = nn.Sequential(snn.SparseNetwork([20, 14, 4], beta=0.9, max_spikes=[12, 8, 4], delay=0, input_scale=4.0))

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).spike_count()

    x = (torch.rand(7, 3, 20) < 0.4).float()
    model = poptorch.inferenceModel(Counts(), on_model())
    assert torch.equal(model(x), Counts()(x).detach())
    assert "SparseNetwork" not in {entry["operator"] for entry in model.ipuModelReport()}


class Recurrent(nn.Module):
    """A recurrent layer by itself, late, or in a network with another one; its spikes are counted."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.delay = 2 if kind == "late" else 0
        options = {"beta": 0.9, "grad_threshold": 0.5, "learn_beta": True, "learn_threshold": True, "bias": True}
        layer = snn.SparseLeaky(20, 14, max_spikes=9, recurrent=True, input_scale=3.0, **options)
        self.layers = layer
        if kind in ("network", "network without delay"):
            delay = int(kind == "network")
            self.layers = snn.SparseNetwork([20, 14, 4], max_spikes=[12, 9, 4], delay=delay, input_scale=3.0, **options)
            self.layers.layers[0] = layer
            self.layers.layers[1] = snn.SparseLeaky(14, 4, max_spikes=3, recurrent=True, input_scale=3.0, **options)

    def forward(self, x):
        made = self.layers(x, delay=self.delay) if self.delay else self.layers(x)
        counts = made.spike_count()
        return counts, poptorch.identity_loss(((counts - 2) ** 2).mean(), "none")


@needs_library
@pytest.mark.parametrize("kind", ["layer", "late", "network", "network without delay"])
def test_recurrent_layers_learn_on_the_library(monkeypatch, kind):
    """Three training steps are the host's, every parameter of them; in inference, too."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:16")
    torch.manual_seed(1)
    x = (torch.rand(8, 6, 20) < 0.3).float()
    runs = []
    for options in (on_model(), poptorch.Options()):
        net = Recurrent(kind)
        before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.02))
        losses = [float(model(x)[1]) for _ in range(3)]
        for name, weight in before.items():
            assert not torch.equal(net.get_parameter(name), weight), name
        ran = {entry["operator"] for entry in model.ipuModelReport()} if not runs else None
        model.detachFromDevice()
        options = on_model() if not runs else poptorch.Options()
        runs.append((losses, net, ran, poptorch.inferenceModel(net, options)(x)[0]))
    (losses, made, ran, counts), (wanted, expected, _, other) = runs
    assert losses == pytest.approx(wanted, rel=1e-5)
    for (name, weight), same in zip(made.named_parameters(), expected.parameters()):
        torch.testing.assert_close(weight, same, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(counts, other)
    assert counts.any()
    assert {"SparseNetwork", "SparseNetwork (gradient)"} <= ran
    assert "NeuronSequence" not in ran


class Later(snn.SparseLeaky):
    def forward(self, x, *, delay=0):
        return super().forward(x, delay=delay + 1)


@needs_library
@pytest.mark.parametrize("kind", ["hook", "instance", "subclass"])
def test_layers_of_a_network_that_are_watched_or_replaced_run_by_themselves(monkeypatch, kind):
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:8")
    torch.manual_seed(1)
    x = (torch.rand(8, 6, 20) < 0.3).float()
    found, seen = [], []
    for options in (on_model(), poptorch.Options()):
        net = Recurrent("network")
        layer = net.layers.layers[1]
        if kind == "hook":
            layer.register_forward_hook(lambda module, inputs, output: seen.append(type(output)))
        elif kind == "instance":

            def watching(x, delay=0, whole=layer.forward):
                seen.append(type(x))
                return whole(x, delay=delay)

            layer.forward = watching
        else:
            own = Later(14, 4, beta=0.9, max_spikes=3, input_scale=3.0)
            own.load_state_dict({"weight": layer.weight, "beta": layer.beta, "threshold": layer.threshold})
            net.layers.layers[1] = own
        model = poptorch.inferenceModel(net, options)
        found.append(model(x)[0])
        if len(found) == 1:
            ran = [entry["operator"] for entry in model.ipuModelReport()]
            assert ran.count("SparseNetwork") == 1 + (kind != "subclass"), ran
    assert torch.equal(*found)
    assert found[0].any()
    if kind != "subclass":
        assert len(seen) >= 2
        assert set(seen) == {snn.SparseSpikes}


@needs_library
@pytest.mark.parametrize("whole", [False, True])
def test_recurrent_layers_in_half(monkeypatch, whole):
    """Both weights in float16, or all of the model."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:16")
    torch.manual_seed(2)
    x = (torch.rand(7, 3, 20) < 0.4).float()
    runs = []
    for options in (on_model(), poptorch.Options()):
        net = Recurrent("layer")
        weights = [net.layers.weight, net.layers.recurrent_weight]
        for weight in net.parameters() if whole else weights:
            weight.data = weight.data.half()
        before = [weight.detach().clone() for weight in weights]
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.5))
        runs.append((model(x.half() if whole else x)[0], weights, before))
    (counts, weights, before), (wanted, expected, _) = runs
    assert torch.equal(counts, wanted)
    for weight, other, old in zip(weights, expected, before):
        assert weight.dtype == torch.float16
        step = float((other.detach() - old).abs().max())
        assert step > 0
        torch.testing.assert_close(weight, other, rtol=2.0**-10, atol=2.0**-10 * step)


@needs_library
def test_recurrent_layers_without_an_operator_are_refused(monkeypatch):
    every = ipu_model.IpuModel.operators

    def others(model):
        return {key: entry for key, entry in every(model).items() if key[1] != "SparseNetwork"}

    monkeypatch.setattr(ipu_model.IpuModel, "operators", others)
    with pytest.raises(RuntimeError, match="sparse_lif_sequence with recurrent_weight cannot run on the IPU model"):
        poptorch.inferenceModel(Recurrent("layer"), on_model())(torch.ones(2, 3, 20))
