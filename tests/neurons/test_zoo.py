"""snnTorch's neurons on fused kernels: its results, gradients and states, and its own code where required."""

import copy
import inspect
import pickle
import types

import pytest
import snntorch
import torch
from oracle import relative_error
from support.loops import by_steps, sequence, steps, with_gradients
from support.versions import needs_compile

import snnipu as snn
from snnipu.backends import neurons
from snnipu.neurons import fused
from snnipu.ops import _neurons

N = 13


def spread(low, high):
    return torch.linspace(low, high, N)


# Neuron -> keywords with one value, and with a value per neuron; all parameters learn.
NEURONS = {
    "Leaky": [
        {"beta": 0.9, "threshold": 1},
        {
            "beta": spread(-0.2, 1.2),
            "threshold": spread(0.3, 1.3),
            "graded_spikes_factor": spread(0.5, 1.5),
            "learn_beta": True,
            "learn_threshold": True,
            "learn_graded_spikes_factor": True,
        },
    ],
    "Lapicque": [
        {"beta": 0.9},
        {"R": 5.1, "C": 0.2, "time_step": 0.1, "learn_threshold": True, "threshold": spread(0.2, 1)},
    ],
    "Synaptic": [
        {"alpha": 0.7, "beta": 0.8},
        {"alpha": spread(0.3, 1.1), "beta": spread(-0.1, 0.9), "learn_alpha": True, "learn_beta": True},
    ],
    "Alpha": [{"alpha": 0.9, "beta": 0.7}, {"alpha": spread(0.8, 0.95), "beta": 0.6, "learn_beta": True}],
    "RLeaky": [
        {"beta": 0.8, "V": 0.5, "all_to_all": False},
        {
            "beta": spread(0.1, 0.9),
            "V": spread(-1, 1),
            "all_to_all": False,
            "learn_beta": True,
            "learn_threshold": True,
        },
    ],
    "RSynaptic": [
        {"alpha": 0.7, "beta": 0.8, "V": -0.5, "all_to_all": False, "learn_recurrent": False},
        {"alpha": 0.6, "beta": spread(0.1, 0.9), "V": spread(-1, 1), "all_to_all": False, "learn_alpha": True},
    ],
    "DeltaLeaky": [{"beta": 0.9, "delta_threshold": 0.5}, {"beta": spread(0.2, 0.9), "learn_beta": True}],
}
STATES = {name: _neurons.find(getattr(snn, name).equation).states for name in NEURONS}
# Options with which snnTorch's own code runs.
UNFUSED = {
    "inhibition": {"inhibition": True},
    "any callable": {"spike_grad": lambda u: torch.sigmoid(5 * u)},
    "state_quant": {"state_quant": snn.functional.quant.state_quant(num_bits=4, threshold=1)},
}


def options(name):
    kind = getattr(snn, name)
    for reset in ("subtract", "zero", "none") if "reset_mechanism" in kind.options else (None,):
        for delay in (True, False) if "reset_delay" in kind.options else (None,):
            yield {k: v for k, v in (("reset_mechanism", reset), ("reset_delay", delay)) if v is not None}


CASES = [
    pytest.param(name, keywords, chosen, id="-".join([name, str(place), *map(str, chosen.values())]))
    for name, both in NEURONS.items()
    for place, keywords in enumerate(both)
    for chosen in options(name)
]


def twins(name, **keywords):
    """Return our neuron and snnTorch's; V and other tensors keep their dtype."""
    return getattr(snn, name)(**copy.deepcopy(keywords)), getattr(snntorch, name)(**copy.deepcopy(keywords))


def random(*shape, dtype=torch.float32):
    return (torch.randn(*shape) * 4).to(dtype)


def assert_same(actual, expected, terms=None):
    assert relative_error(actual.double(), expected.double(), terms) <= 1e-5


@pytest.mark.parametrize("single", [False, True], ids=["sequence", "steps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "keywords", "chosen"), CASES)
def test_numbers_and_gradients_are_snntorchs(name, keywords, chosen, dtype, single):
    ours, theirs = twins(name, **keywords, **chosen)
    assert ours.runs_fused()
    inputs = [random(9, 2, N, dtype=dtype), *(random(2, N, dtype=dtype) for _ in STATES[name])]
    outputs, own_grads = with_gradients(steps if single else sequence, ours, *inputs)
    expected, expected_grads = with_gradients(steps, theirs, *inputs)
    assert 0.01 < (expected[0] != 0).double().mean() < 0.99
    for actual, other in zip(outputs, expected):
        assert actual.dtype == (other.dtype if single else dtype)
        assert torch.equal(actual, other.to(actual.dtype))
    if single and name != "DeltaLeaky":
        assert torch.equal(ours.reset, theirs.reset)
    scale = expected_grads[0].double()
    for place, (actual, other) in enumerate(zip(own_grads, expected_grads)):
        if other is None:
            assert actual is None or not actual.any()
        elif actual is None:
            assert not other.any()
        else:
            # Sums of parameters' gradients cancel. In float64 snnTorch's pass through float32 spikes.
            assert_same(actual, other, scale * 9 if place >= len(inputs) else None)


def test_a_step_runs_the_kernel(monkeypatch):
    calls = []
    forward = neurons.SingleSteps.forward
    monkeypatch.setattr(neurons.SingleSteps, "forward", lambda *args: calls.append(1) or forward(*args))
    layer = snn.Synaptic(alpha=0.7, beta=0.8)
    x = torch.randn(2, N)
    layer(x, *layer.reset_mem())
    assert calls == [1]
    layer(x.half(), torch.zeros(2, N), torch.zeros(2, N))  # snnTorch runs mixed dtypes
    layer(x.half())
    assert calls == [1]


@pytest.mark.parametrize("name", NEURONS)
def test_small_steps_on_a_gpu_are_snntorchs(name, monkeypatch):
    """The layer asks its input for the device; the test replaces the answer."""
    ours, theirs = twins(name, **NEURONS[name][0])
    x, states = random(5, 2, N), [torch.zeros(2, N) for _ in STATES[name]]
    monkeypatch.setattr(fused.FusedNeuron, "_is_snntorchs_on_gpu", lambda self, x: True)
    monkeypatch.setattr(type(ours), "_kernels", None)
    for actual, expected in zip(by_steps(ours, x, states), by_steps(theirs, x, states)):
        assert torch.equal(actual, expected)


def test_which_steps_are_snntorchs_on_a_gpu():
    """snnTorch runs small steps, and steps on other devices. A CPU layer stands for a GPU layer here."""
    here, elsewhere = torch.device("cpu"), torch.device("cuda")
    many = fused.FEWEST_OF_A_STEP
    leaky, alpha = snn.Leaky(beta=0.9), snn.Alpha(alpha=0.9, beta=0.8)
    for layer, size, is_cuda, device, expected in (
        (leaky, 100, True, here, True),
        (leaky, many, True, here, False),
        (leaky, 100, False, here, False),
        (alpha, 100, True, here, False),  # a kernel at any size
        (leaky, many, True, elsewhere, True),
        (alpha, 100, True, elsewhere, True),
    ):
        x = types.SimpleNamespace(is_cuda=is_cuda, device=device, numel=lambda size=size: size)
        assert layer._is_snntorchs_on_gpu(x) == expected


def test_another_layer_in_the_place_of_one_to_one_is_called():
    ours, theirs = twins("RLeaky", beta=0.8, all_to_all=False, V=0.3)
    for layer in (ours, theirs):
        layer.recurrent = torch.nn.Linear(N, N)
        layer.recurrent.load_state_dict({"weight": torch.full((N, N), 0.25), "bias": torch.zeros(N)})
    assert not ours.runs_fused()
    x = random(5, 2, N)
    results = [by_steps(layer, x, [torch.zeros(2, N) for _ in STATES["RLeaky"]]) for layer in (ours, theirs)]
    assert all(map(torch.equal, *results))


def test_a_fixed_strength_is_fused_where_the_layer_was_cast_or_moved():
    """snnTorch's connection keeps its original tensor after the layer's is cast or moved."""
    x = random(9, 2, N)
    for name in ("RLeaky", "RSynaptic"):
        ours, theirs = twins(name, **{**NEURONS[name][0], "learn_recurrent": False})
        expected = by_steps(copy.deepcopy(theirs), x, [torch.zeros(2, N) for _ in STATES[name]])
        layer = ours.double().float()
        layer.V.fill_(7)
        assert layer.recurrent.V is not layer.V
        assert layer.runs_fused()
        assert all(map(torch.equal, layer.sequence(x), expected))
        layer.recurrent.V = float(theirs.recurrent.V)
        assert not layer.runs_fused()
        assert all(map(torch.equal, layer.sequence(x), expected))


@pytest.mark.parametrize("name", NEURONS)
def test_classes_stand_in_for_snntorchs(name):
    ours, theirs = twins(name, **NEURONS[name][1])
    assert isinstance(ours, getattr(snntorch, name))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert inspect.signature(type(ours)) == inspect.signature(type(theirs))
    ours.load_state_dict(theirs.state_dict())
    ours.sequence(torch.randn(3, 2, N, requires_grad=True))
    again = pickle.loads(pickle.dumps(ours))
    x = torch.randn(5, 2, N)
    for copied in (again, copy.deepcopy(ours)):
        assert all(map(torch.equal, copied.sequence(x), ours.sequence(x)))


def test_delta_leaky_goes_on_where_its_membrane_was_detached():
    """The result does not depend on the earlier membrane, which snnTorch's ``detach_hidden`` leaves in the graph."""
    net = snn.MultiStep(torch.nn.Linear(N, N), snn.DeltaLeaky(beta=0.9, delta_threshold=0.2, init_hidden=True))
    for _ in range(2):
        net(random(3, 2, N))[1][0].sum().backward()
        net[1].mem.detach_()
    assert net[0].weight.grad.abs().sum() > 0


def first(out):
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("name", NEURONS)
def test_init_hidden(name):
    """States stay in the layer between calls of steps and sequences."""
    ours, theirs = twins(name, **NEURONS[name][0], init_hidden=True)
    x = random(8, 2, N)
    expected = torch.stack([first(theirs(step)) for step in x])
    assert torch.equal(torch.cat([ours.sequence(x[:5])[0], ours.sequence(x[5:])[0]]), expected)
    for state in STATES[name]:
        if name != "RSynaptic" or state != "spk":
            assert torch.equal(getattr(ours, state), getattr(theirs, state)), state
    with pytest.raises(TypeError, match="init_hidden"):
        ours.sequence(x, torch.zeros(2, N))
    if name != "DeltaLeaky":  # snnTorch's accepts a state
        with pytest.raises(TypeError, match="init_hidden"):
            ours(x[0], *(torch.zeros(2, N) for _ in STATES[name]))
    ours.reset_mem()
    assert torch.equal(torch.stack([first(ours(step)) for step in x]), expected)
    ours.reset_mem()
    assert torch.equal(first(snn.MultiStep(ours)(x)), expected)


@pytest.mark.filterwarnings("ignore:Inhibition is an unstable feature")
@pytest.mark.parametrize("single", [False, True], ids=["sequence", "steps"])
@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        *((name, keywords) for name in ("Leaky", "Synaptic") for keywords in UNFUSED.values()),
        ("Leaky", {"inhibition": True, "reset_delay": False}),
    ],
    ids=[*(f"{name}, {option}" for name in ("Leaky", "Synaptic") for option in UNFUSED), "Leaky, immediate"],
)
def test_where_snntorchs_code_runs(name, keywords, single):
    ours, theirs = twins(name, **NEURONS[name][0], **keywords)
    assert not ours.runs_fused()
    inputs = [random(6, 2, N) / 3, *(torch.zeros(2, N) for _ in STATES[name])]
    out, gradients = with_gradients(steps if single else sequence, ours, *inputs)
    expected, others = with_gradients(steps, theirs, *inputs)
    assert all(map(torch.equal, out, expected))
    assert_same(gradients[0], others[0])


def test_replaced_parts_are_honoured():
    class Loud(snn.Synaptic):
        def fire(self, mem):
            return 2 * super().fire(mem)

    layer, theirs = Loud(alpha=0.7, beta=0.8), snntorch.Synaptic(alpha=0.7, beta=0.8)
    x = random(6, 2, N)
    with pytest.warns(UserWarning, match="Loud replaces fire of Synaptic"):
        spk = layer.sequence(x)[0]
    assert torch.equal(spk, 2 * by_steps(theirs, x, [torch.zeros(2, N)] * 2)[0])
    layer = snn.Alpha(alpha=0.9, beta=0.8)
    layer.mem_reset = lambda mem: torch.zeros_like(mem)
    assert layer._replaced() == ["mem_reset"]
    assert not layer.runs_fused()


def test_reset_mechanism_may_be_set():
    layer = snn.Synaptic(alpha=0.7, beta=0.8)
    layer.reset_mechanism = "zero"
    other = snntorch.Synaptic(alpha=0.7, beta=0.8, reset_mechanism="zero")
    x = random(6, 2, N)
    assert torch.equal(layer.sequence(x)[2], by_steps(other, x, [torch.zeros(2, N)] * 2)[2])
    with pytest.raises(ValueError, match="reset_mechanism must be"):
        layer.reset_mechanism = "half"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NEURONS)
def test_sixteen_bits(name, dtype):
    """The state is float32, and the returned membrane decides the spikes: the reference's numbers."""
    layer = getattr(snn, name)(**NEURONS[name][1])
    x = random(6, 2, N, dtype=dtype)
    out = layer.sequence(x)
    assert all(part.dtype == dtype for part in out)
    threshold = 1.0 if name == "DeltaLeaky" else layer.threshold
    if name != "DeltaLeaky":
        assert torch.equal(out[0] != 0, out[-1].float() > threshold)
    wide = layer.sequence(x.float())
    assert relative_error(out[-1].double(), wide[-1].double()) < 0.05 or (out[0] != wide[0]).any()


@pytest.mark.parametrize("name", [*NEURONS, "RLeaky, all to all"])
def test_empty_sequences(name):
    name, _, to_all = name.partition(", ")
    layer = getattr(snn, name)(**({"beta": 0.8, "linear_features": N} if to_all else NEURONS[name][0]))
    for shape in ((0, 2, N), (3, 0, N)):
        x = torch.zeros(shape, requires_grad=True)
        out = layer.sequence(x)
        assert all(part.shape == shape for part in out)
        out[0].sum().backward()
        assert x.grad.shape == shape


def test_a_hook_on_the_recurrence_is_called():
    layer = snn.RLeaky(beta=0.9, V=0.5, all_to_all=False)
    layer.recurrent.register_forward_hook(lambda module, args, out: 0 * out)
    x = random(6, 2, N)
    assert not layer.runs_fused()
    plain = snn.RLeaky(beta=0.9, V=0.0, all_to_all=False)
    assert torch.equal(layer.sequence(x)[1], plain.sequence(x)[1])


@needs_compile
@pytest.mark.parametrize("name", ["Leaky", "Lapicque", "RSynaptic"])
def test_a_step_compiled_whole(name):
    """The step is one graph of snnTorch's code, which the compiler fuses."""
    layer = getattr(snn, name)(**NEURONS[name][1])
    current, states = random(2, N), [torch.zeros(2, N) for _ in STATES[name]]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: layer(*inputs)[-1], fullgraph=True, backend="eager")
    assert torch.equal(compiled(current, *states), layer(current, *states)[-1])


@needs_compile
@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        *((name, NEURONS[name][1]) for name in ("Leaky", "Alpha")),
        ("RLeaky", {"beta": 0.8, "learn_beta": True, "linear_features": N}),
    ],
)
def test_a_sequence_compiled_whole(name, keywords):
    layer, x = pickle.loads(pickle.dumps(getattr(snn, name)(**keywords))), random(5, 2, N)
    torch._dynamo.reset()
    compiled = torch.compile(sequence, fullgraph=True, backend="aot_eager")
    (actual, gradients), (expected, others) = (with_gradients(run, layer, x) for run in (compiled, sequence))
    assert all(map(torch.equal, actual, expected))
    for gradient, other in zip(gradients, others):
        assert gradient is other or torch.allclose(gradient, other)


KINDS = {
    **{name: (keywords[0], (2, N)) for name, keywords in NEURONS.items()},
    "SLSTM": ({"input_size": N, "hidden_size": N}, (2, N)),
    "SConv2dLSTM": ({"in_channels": 3, "out_channels": 4, "kernel_size": 3}, (2, 3, 6, 7)),
}


@pytest.mark.parametrize("name", KINDS)
def test_states_are_no_buffers(name):
    """States still move with the module. DistributedDataParallel broadcasts buffers."""
    keywords, shape = KINDS[name]
    ours, theirs = twins(name, **keywords, init_hidden=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(shape)
    for layer in (theirs, ours):
        layer(x)
        layer.double()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for state in STATES.get(name, ("syn", "mem")):
        actual, expected = getattr(ours, state), getattr(theirs, state)
        assert state not in dict(ours.named_buffers())
        assert actual.dtype == torch.float64 or expected.dtype != torch.float64
        if name in NEURONS:
            assert torch.equal(actual.double(), expected.double())
        else:
            assert_same(actual, expected)


@pytest.mark.parametrize("name", ["Synaptic", "RLeaky"])
def test_parameters_of_one_element_load(name):
    """A parameter of one element loads from one without dimensions, and the reverse."""
    scalar, other = (getattr(snn, name)(**NEURONS[name][0], threshold=value) for value in (0.3, torch.tensor([0.7])))
    saved = copy.deepcopy(other.state_dict())
    other.load_state_dict(scalar.state_dict())
    scalar.load_state_dict(saved)
    assert other.threshold.shape == (1,)
    assert (scalar.threshold.shape, scalar.threshold.item()) == ((), saved["threshold"].item())


@pytest.mark.parametrize("name", ["Lapicque", "Synaptic", "Leaky"])
@pytest.mark.parametrize("single", [True, False])
def test_what_is_made_of_the_parameters_follows_them(name, single):
    """The change is in place, by ``.data``, or gives another number or dtype."""
    layer = getattr(snn, name)(**NEURONS[name][0])
    x, states = torch.rand(4, 2, N) * 2, [torch.zeros(2, N) for _ in layer.state_names]
    for change in (
        "",
        "layer.threshold.detach().fill_(0.4)",
        "layer.threshold.data.fill_(0.2)",
        "layer.threshold = torch.tensor(-0.0)",
        "layer.threshold = torch.tensor(0.0)",
        "layer.graded_spikes_factor = torch.tensor(2.0, dtype=torch.float64)",
    ):
        exec(change, {"torch": torch, "layer": layer})
        theirs = getattr(snntorch, name)(**NEURONS[name][0])
        for parameter in ("alpha", "beta", "R", "C", "threshold", "graded_spikes_factor"):
            if hasattr(layer, parameter):
                setattr(theirs, parameter, getattr(layer, parameter))
        actual = by_steps(layer, x, states) if single else layer.sequence(x)
        assert all(map(torch.equal, actual, by_steps(theirs, x, states))), change


@pytest.mark.parametrize("single", [True, False])
def test_trained_after_inference(single):
    """Tensors made in inference mode are not part of a later graph."""
    layer = snn.Lapicque(beta=0.83, threshold=0.37)
    x = torch.rand(4, 2, N)

    def run(x):
        return layer(x[0], torch.zeros(2, N))[0] if single else layer.sequence(x)[0]

    with torch.inference_mode():
        expected = run(x)
    leaf = x.clone().requires_grad_()
    out = run(leaf)
    out.sum().backward()
    assert torch.equal(out, expected)
    assert leaf.grad.abs().sum() > 0
