"""``Options.useIpuModel`` and ``POPTORCH_IPU_MODEL``: operators through the IPU model inside a user's training loop."""

import pytest
import snntorch
import torch
from support.ipu_training import check_training, classified, keep_operators, on_model, operators
from support.operators import needs_host_runtime, needs_library
from support.poptorch_models import refused
from support.tables import each_row
from torch import nn

import snnipu as snn
from snnipu import ipu, poptorch
from snnipu.ipu import model as ipu_model

pytestmark = needs_host_runtime
STEPS, BATCH = 6, 4


@pytest.fixture
def runs(monkeypatch):
    """Record the keys of the programs that the model runs, on four tiles."""
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "mk2:4")
    keys, run = [], ipu_model.Program.run
    monkeypatch.setattr(ipu_model.Program, "run", lambda program, *a: keys.append(program.key) or run(program, *a))
    return keys


@pytest.fixture
def few_operators(monkeypatch):
    """Leave the model the operators of neurons only."""
    keep_operators(monkeypatch, lambda name: name in ("NeuronSequence", "SurrogateSpike"))


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
        return classified(spk.sum(0), labels)


def data():
    torch.manual_seed(1)
    return torch.rand(BATCH, 8), torch.randint(3, (BATCH,))


def check_net(**more):
    return check_training(lambda: Net(**more), [data()] * 3, lr=0.5)


@needs_library
@pytest.mark.parametrize("step_by_step", [False, True])
def test_training_runs_on_the_model(runs, step_by_step):
    training = check_net(step_by_step=step_by_step)
    assert training.net.seen == [True] * 3
    # In each of 3 calls, two layers call an operator, once or at every step.
    calls = 2 * 3 * (STEPS if step_by_step else 1)
    gradients = [key.gradient is not None for key in runs]
    assert gradients.count(False) == calls
    assert gradients.count(True) >= calls - 2 * 3  # steps on which the loss does not depend have no gradient
    assert set(operators(training.model)) == {"NeuronSequence", "NeuronSequence (gradient)"}


@needs_library
def test_the_environment_enables_the_model(runs, monkeypatch):
    for value, enabled in (("1", True), ("0", False)):
        monkeypatch.setenv("POPTORCH_IPU_MODEL", value)
        runs.clear()
        model = poptorch.inferenceModel(Net())
        model(data()[0])
        assert bool(runs) == enabled
    with refused("no IPU model in use"):
        model.ipuModelReport()
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "yes")
    with refused("POPTORCH_IPU_MODEL must be 0 or 1"):
        poptorch.inferenceModel(Net())


@needs_library
def test_inference_and_calls_outside_of_a_wrapper(runs):
    net = Net().eval()
    model = poptorch.inferenceModel(net, on_model())
    assert torch.equal(model(data()[0]), net(data()[0]).detach())
    assert [(key.name, key.gradient) for key in runs] == [("NeuronSequence", None)] * 2
    assert net.seen == [True, False]


@needs_library
def test_the_target_of_the_environment(runs, ipu_target):
    ipu_target("bow:4:2")
    model = poptorch.inferenceModel(Net(), on_model())
    model(data()[0])
    assert {key.target for key in runs} == {ipu_model.IpuModelTarget("bow", 4, 2)}
    ipu_target("bow:many")
    with refused("SNNIPU_IPU_MODEL_TARGET"):
        poptorch.inferenceModel(Net(), on_model())


class Inner(nn.Module):
    """A module that holds a layer."""

    def __init__(self, layer):
        super().__init__()
        self.inner = nn.ModuleDict({"lif": layer})

    def forward(self, x):
        out = self.inner["lif"](x)
        out = out[0] if isinstance(out, tuple) else out
        return out if isinstance(out, torch.Tensor) else out.to_dense()


UNKNOWN_SURROGATE = snn.surrogate.custom_surrogate(lambda u, grad, spikes: grad)


class Doubled(snn.Leaky):
    def _base_state_function(self, input_):
        return 2 * super()._base_state_function(input_)


@each_row(r"""
snn.SparseNetwork([8, 5, 3], beta=0.9) | event-driven layers cannot run on the IPU model
snn.SparseLeaky(8, 5, beta=0.9) | event-driven layers cannot run on the IPU model
snn.SparseSynaptic(8, 5, alpha=0.5, beta=0.9) | event-driven layers cannot run on the IPU model
snn.SparseLinear(8, 5) | event-driven layers cannot run on the IPU model
snntorch.Leaky(beta=0.9) | inner\.lif, a snntorch.Leaky, cannot run on the IPU model
snntorch.Synaptic(alpha=0.9, beta=0.8, init_hidden=True) | inner\.lif, a snntorch.Synaptic, cannot
snntorch.LeakyParallel(8, 4) | inner\.lif, a snntorch.LeakyParallel, cannot
snn.MultiStep(nn.Linear(8, 4), snntorch.Leaky(beta=0.9)) | lif\.1, a snntorch.Leaky, cannot run
Doubled(beta=0.9) | Leaky cannot run on an IPU with .* replaced parts of its step
snn.Leaky(beta=0.9, inhibition=True) | Leaky cannot run on an IPU with inhibition, state
snn.Leaky(beta=0.9, state_quant=lambda mem: mem) | Leaky cannot run on an IPU with inhibition, state
snn.Leaky(beta=0.9, spike_grad=lambda u: (u > 0).float()) | Leaky cannot run on an IPU with inhibition, state
snn.Leaky(beta=0.9, spike_grad=UNKNOWN_SURROGATE) | spike_grad cannot run on an IPU
""")
@needs_library
def test_layers_without_operator_are_refused_by_name(few_operators, row):
    constructor, message = row.split(" | ")
    layer = eval(constructor)
    x = torch.rand(3, 8) if getattr(layer, "inhibition", False) else torch.rand(2, 3, 8)
    with pytest.raises(RuntimeError, match=message):
        poptorch.inferenceModel(Inner(layer), on_model())(x)
    # The hooks are removed after the error.
    assert poptorch.inferenceModel(Inner(eval(constructor)))(x).shape[:-1] == x.shape[:-1]
    layer(x)


@needs_library
def test_neurons_of_snntorch_with_a_surrogate_that_has_an_operator_run():
    model = poptorch.inferenceModel(Inner(snntorch.Leaky(beta=0.9, spike_grad=snn.surrogate.atan())), on_model())
    model(torch.rand(BATCH, 8))
    assert operators(model) == ["SurrogateSpike"]


class Spike(nn.Module):
    def __init__(self, spike_grad):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 5))
        self.spike_grad = spike_grad

    def forward(self, x):
        spk = self.spike_grad(self.weight * x)
        return spk, poptorch.identity_loss((spk - 0.3).square().sum(), "sum")


def check_surrogate(spike_grad):
    check_training(lambda: Spike(spike_grad), [(torch.tensor([[1.0, 2.0, -0.5, 0.1, 3.0]]),)], lr=0.1)


@needs_library
def test_surrogates_by_themselves(runs):
    check_surrogate(snn.surrogate.fast_sigmoid(10))
    assert ("SurrogateSpike", (0,)) in [(key.name, key.gradient) for key in runs]
    with pytest.raises(RuntimeError, match="spike_grad cannot run on an IPU"):
        check_surrogate(UNKNOWN_SURROGATE)


@needs_library
def test_other_domains_operators_run_on_the_host(runs):
    poptorch.custom_ops.register("Twice", "my.domain", 1, lambda inputs, attributes: [2 * inputs[0]])

    class Doubles(nn.Module):
        def forward(self, x):
            return poptorch.custom_op([x], "Twice", "my.domain", 1, [x])[0]

    try:
        assert torch.equal(poptorch.inferenceModel(Doubles(), on_model())(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        poptorch.custom_ops.unregister("Twice", "my.domain", 1)
    assert runs == []


def test_without_the_library_the_first_operator_raises(monkeypatch, tmp_path):
    monkeypatch.setenv("SNNIPU_NATIVE_DIR", str(tmp_path))
    monkeypatch.setattr(ipu_model, "_library", None)
    plain = poptorch.inferenceModel(nn.Linear(2, 2), on_model())
    assert plain(torch.ones(1, 2)).shape == (1, 2)
    with pytest.raises(RuntimeError, match=r"the IPU model needs .* which is not there"):
        poptorch.inferenceModel(Net(), on_model())(data()[0])


@needs_library
def test_training_on_the_library(ipu_target):
    ipu_target("mk2:8")
    assert set(operators(check_net().model)) == {"NeuronSequence", "NeuronSequence (gradient)"}
    for name in ("fast_sigmoid", "atan", "sigmoid", "straight_through_estimator", "triangular", "spike_rate_escape"):
        check_surrogate(getattr(snn.surrogate, name)())


class Events(nn.Module):
    """Sparse layers, as one operator or separate ones, with a loss on the last layer's spikes."""

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


def inputs(*shape):
    """Return a batch of random spikes."""
    torch.manual_seed(2)
    return ((torch.rand(shape) < 0.4).float(),)


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("kind", ["network", "sparse layers", "dense layers", "synaptic layers"])
@pytest.mark.parametrize("overflow", ["lowest", "rotate"])
@pytest.mark.parametrize("target", ["mk2:8", "bow:5:2"])
def test_sparse_layers_on_the_library(kind, overflow, target, ipu_target):
    """Spikes and the gradients of every weight equal those of the host kernels."""
    ipu_target(target)
    training = check_training(lambda: Events(kind, overflow), [inputs(7, 3, 20)], lr=0.1)
    ran = set(operators(training.model))
    if kind == "network":
        expected = Events(kind, overflow)
        expected(*inputs(7, 3, 20))
        assert training.net.layers.activity == pytest.approx(expected.layers.activity)
        assert training.net.layers.overflow == expected.layers.overflow
        assert {"SparseNetwork", "SparseNetwork (gradient)"} <= ran
        assert "NeuronSequence" not in ran
    else:
        assert {"SparseLinear (gradient)", "SelectSpikes (gradient)", "NeuronSequence (gradient)"} <= ran


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize(("kind", "planned"), [("network", False), ("network", True), ("sparse layers", False)])
def test_layers_learn_on_the_library(kind, planned, ipu_target):
    """Training reduces the loss: as one operator with the default or a given plan, and as an operator per layer."""
    ipu_target("mk2" if planned else "mk2:16")

    def make():
        net = Events(kind)
        if planned:
            network = ipu.NetworkSpec.from_module(net, 0.2, batch_size=3, steps=7)
            net.layers.ipu_plan = ipu.plan(network, neurons_per_tile=4, selection_tiles=2)
        return net

    close = {"rtol": 1e-4, "atol": 1e-5}
    batches = [inputs(7, 3, 20)] * 25
    training = check_training(make, batches, poptorch.optim.Adam, close=close, outputs_close=close, lr=0.02)
    assert training.outputs[-1][2] < 0.8 * training.outputs[0][2]


def make_in_half(make, whole):
    """Return ``make`` with all parameters in float16, or only the weights."""

    def halved():
        net = make()
        for name, weight in net.named_parameters():
            if whole or name.endswith("weight"):
                weight.data = weight.data.half()
        return net

    return halved


@needs_library
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["network", "sparse layers", "dense layers", "recurrent"])
def test_in_half(monkeypatch, kind, whole, ipu_target):
    """The tiles hold float16 weights and gradients, also after ``model.half()``; results equal the host's."""
    ipu_target("mk2:16")
    weight_dtypes = []
    apply = ipu_model.IpuModel.apply

    def record(model, name, inputs, *more):
        weight_dtypes.extend(tensor.dtype for tensor in inputs[3:] if tensor.dim() == 2 and name.startswith("Sparse"))
        return apply(model, name, inputs, *more)

    monkeypatch.setattr(ipu_model.IpuModel, "apply", record)
    x = inputs(7, 3, 20)[0]
    make = make_in_half(lambda: Recurrent("layer") if kind == "recurrent" else Events(kind), whole)
    # The gradients of other parameters depend on the rounded weights.
    check_training(make, [(x.half() if whole else x,)], close={"rtol": 2.0**-10, "atol": 1e-4}, lr=0.5)
    assert set(weight_dtypes) == {torch.float16}


@needs_library
def test_layers_without_delay_run_one_by_one(ipu_target):
    ipu_target("mk2:8")
    torch.manual_seed(0)
    net = Inner(snn.SparseNetwork([20, 14, 4], beta=0.9, max_spikes=[12, 8, 4], delay=0, input_scale=4.0))
    x = inputs(7, 3, 20)[0]
    model = poptorch.inferenceModel(net, on_model())
    assert torch.equal(model(x), net(x).detach())
    assert "SparseNetwork" not in operators(model)


class Recurrent(nn.Module):
    """A recurrent layer, alone, with a delayed input, or in a network with another one; its spikes are counted."""

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
        spikes = self.layers(x, delay=self.delay) if self.delay else self.layers(x)
        counts = spikes.spike_count()
        return counts, poptorch.identity_loss(((counts - 2) ** 2).mean(), "none")


@needs_library
@pytest.mark.parametrize("kind", ["layer", "late", "network", "network without delay"])
def test_recurrent_layers_learn_on_the_library(kind, ipu_target):
    """Every parameter after three training steps, and the outputs of inference, equal the host's."""
    ipu_target("mk2:16")
    x = inputs(8, 6, 20)
    close = {"rtol": 1e-4, "atol": 1e-5}
    training = check_training(lambda: Recurrent(kind), [x] * 3, close=close, outputs_close=close, lr=0.02)
    ran = operators(training.model)
    assert {"SparseNetwork", "SparseNetwork (gradient)"} <= set(ran)
    assert "NeuronSequence" not in ran
    training.model.detachFromDevice()
    counts = poptorch.inferenceModel(training.net, on_model())(*x)[0]
    assert torch.equal(counts, training.net(*x)[0].detach())
    assert counts.any()


class Later(snn.SparseLeaky):
    def forward(self, x, *, delay=0):
        return super().forward(x, delay=delay + 1)


@needs_library
@pytest.mark.parametrize("kind", ["hook", "instance", "subclass"])
def test_layers_with_hooks_or_replaced_layers_run_separately(kind, ipu_target):
    ipu_target("mk2:8")
    torch.manual_seed(1)
    x = (torch.rand(8, 6, 20) < 0.3).float()
    outputs, seen = [], []
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
            subclassed = Later(14, 4, beta=0.9, max_spikes=3, input_scale=3.0)
            subclassed.load_state_dict({"weight": layer.weight, "beta": layer.beta, "threshold": layer.threshold})
            net.layers.layers[1] = subclassed
        model = poptorch.inferenceModel(net, options)
        outputs.append(model(x)[0])
        if len(outputs) == 1:
            ran = [entry["operator"] for entry in model.ipuModelReport()]
            assert ran.count("SparseNetwork") == 1 + (kind != "subclass"), ran
    assert torch.equal(*outputs)
    assert outputs[0].any()
    if kind != "subclass":
        assert len(seen) >= 2
        assert set(seen) == {snn.SparseSpikes}


@needs_library
def test_recurrent_layers_without_an_operator_are_refused(monkeypatch):
    keep_operators(monkeypatch, lambda name: name != "SparseNetwork")
    with pytest.raises(RuntimeError, match="sparse_lif_sequence with recurrent_weight cannot run on the IPU model"):
        poptorch.inferenceModel(Recurrent("layer"), on_model())(torch.ones(2, 3, 20))
