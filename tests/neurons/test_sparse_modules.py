"""Tests of all event-driven modules: inputs, errors, copies, one graph, training."""

import copy
import inspect
import pickle

import pytest
import torch
from oracle import random_spikes
from support.tables import assert_refused, each_row
from support.versions import needs_compile

import snnipu as snn
from snnipu import surrogate

PATHS = ["auto", "sparse", "dense"]
SYNAPSES = torch.tensor([[0, 3, 1, 2, 3, 0], [0, 0, 2, 3, 4, 5]])
# Each module has 6 inputs and 4 outputs; a network's inner layer has 5 neurons.
MODULES = {
    "SparseLinear": lambda **options: snn.SparseLinear(6, 4, **options),
    "ListedLinear": lambda **options: snn.ListedLinear(6, 4, SYNAPSES, **options),
    "SparseLeaky": lambda **options: snn.SparseLeaky(6, 4, **{"beta": 0.9, **options}),
    "SparseSynaptic": lambda **options: snn.SparseSynaptic(
        6, 4, **{"alpha": 0.8, "learn_alpha": True, "beta": 0.9, **options}
    ),
    "SparseNetwork": lambda **options: snn.SparseNetwork([6, 5, 4], **{"beta": 0.9, **options}),
    "SparseConvLeaky": lambda **options: snn.SparseConvLeaky(2, 4, 3, **{"beta": 0.9, **options}),
    "SparseConvSynaptic": lambda **options: snn.SparseConvSynaptic(2, 4, 3, **{"alpha": 0.8, "beta": 0.9, **options}),
}
OF_FEATURES = [*MODULES][:5]
OF_NEURONS = [*MODULES][2:]


def dense(out):
    return out.to_dense() if isinstance(out, snn.SparseSpikes) else out


NEURONS = "threshold=1.0, grad_threshold=None, max_spikes=None, reset_mechanism='zero', spike_grad=None, bias=False, "
DELAYS = "max_delay=None, delay=None, learn_delay=True"
SIGNATURES = {
    "SparseLinear": "in_features, out_features, bias=False, *, path='auto'",
    "SparseLeaky": f"in_features, out_features, *, beta, {NEURONS}learn_beta=False, learn_threshold=False, "
    f"input_scale=1.0, overflow='lowest', recurrent=False, path='auto', {DELAYS}",
    "SparseSynaptic": f"in_features, out_features, *, alpha, beta, {NEURONS}learn_alpha=False, learn_beta=False, "
    f"learn_threshold=False, input_scale=1.0, overflow='lowest', recurrent=False, path='auto', {DELAYS}, "
    "gradient='surrogate'",
    "SparseConvSynaptic": "in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, *, "
    f"alpha, beta, input_size=None, {NEURONS}learn_alpha=False, learn_beta=False, learn_threshold=False, "
    "input_scale=1.0, overflow='lowest', path='auto', gradient='surrogate'",
    "SparseNetwork": "sizes, *, beta, max_spikes=None, grad_threshold=None, delay=1, threshold=1.0, "
    "reset_mechanism='zero', spike_grad=None, bias=False, learn_beta=False, learn_threshold=False, input_scale=1.0, "
    "overflow='lowest', path='auto', max_delay=None, learn_delay=True, neuron='leaky', alpha=None, "
    "gradient='surrogate'",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    signature = inspect.signature(getattr(snn, name))
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == f"({SIGNATURES[name]})"


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", OF_FEATURES)
def test_spikes_of_any_real_dtype(name, path, dtype):
    """bool counts as 0 and 1, and integers as their values."""
    for options in ({}, {"max_spikes": 3}) if name in OF_NEURONS else ({},):
        layer = MODULES[name](path=path, **options)
        for module_dtype in (torch.float32, torch.float64):
            layer.to(module_dtype)
            x = torch.randint(0, 2 if dtype == torch.bool else 4, (7, 3, 6)).to(dtype)
            converted = x.float() if dtype.is_floating_point else x.to(module_dtype)
            actual, expected = dense(layer(x)), dense(layer(converted))
            assert actual.dtype == module_dtype
            assert torch.equal(actual, expected)


EACH = torch.linspace(0.3, 1, 4)
LEARNT = {"learn_beta": True, "learn_threshold": True}
DELAYED = {"max_delay": 5, "delay": torch.linspace(0, 5, 6)[None]}
DENSE = [
    *(("SparseLeaky", {"reset_mechanism": reset, "bias": True, **LEARNT}) for reset in ("subtract", "zero", "none")),
    ("SparseLeaky", {"beta": EACH, "threshold": EACH.flip(0), "spike_grad": surrogate.fast_sigmoid(10)}),
    ("SparseLeaky", DELAYED),
    ("SparseSynaptic", {"alpha": EACH, "bias": True}),
    ("SparseSynaptic", DELAYED),
    ("SparseConvLeaky", {"stride": 2, "padding": (1, 0), "threshold": EACH, "bias": True}),
    ("SparseConvLeaky", {"groups": 2, "dilation": 2, "padding": "same", "beta": EACH, **LEARNT}),
    ("SparseConvLeaky", {"reset_mechanism": "subtract", "learn_threshold": True}),
    ("SparseConvSynaptic", {"alpha": EACH, "stride": 2, "bias": True, **LEARNT}),
    ("SparseNetwork", {"delay": 0, "bias": True, "reset_mechanism": "subtract", **LEARNT}),
    ("SparseNetwork", {"delay": 0, "beta": [0.8, EACH]}),
]


def last_name(item):
    return item[0].rpartition(".")[2]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize(("name", "options"), DENSE)
def test_to_and_from_the_dense_twin(name, options, scale, path):
    """The twin has the same spikes, gradients, and a state that another layer loads."""

    def make(**changed):
        return MODULES[name](**{"threshold": 0.4, "input_scale": scale, "path": path, **options, **changed}).double()

    layer, other = make(), make(beta=0.1 if "beta" not in options or name == "SparseNetwork" else EACH * 0)
    shape = (2, 9, 8) if "Conv" in name else (6,)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter *= 1 if parameter.dim() < 2 else 3
    x = (torch.rand(9, 3, *shape, dtype=torch.float64) < 0.3).double().requires_grad_()
    spikes = snn.SparseSpikes.from_dense(x.detach().flatten(2))
    twin = layer.to_dense()
    twin = twin if isinstance(twin, snn.MultiStep) else snn.MultiStep(*twin)
    spk, *_, mem = twin(x)
    assert 0.02 < spk.mean() < 0.98
    upstream = torch.randn_like(spk)
    (spk * upstream).sum().backward()
    for form in (x, spikes.with_maps(shape) if len(shape) == 3 else spikes):
        layer.zero_grad()
        out = layer(form)
        assert torch.equal(out.to_dense().reshape(spk.shape), spk)
        if hasattr(layer, "membranes"):
            torch.testing.assert_close(layer.membranes(form), mem)
        (out.to_dense() * upstream.flatten(2)).sum().backward()
        parameters, expected = (sorted(net.named_parameters(), key=last_name) for net in (layer, twin))
        assert list(map(last_name, parameters)) == list(map(last_name, expected))
        for (key, parameter), (_, other_parameter) in zip(parameters, expected):
            factor = scale if key.endswith("weight") else 1
            torch.testing.assert_close(parameter.grad.flatten(), other_parameter.grad.flatten() * factor)
    state = layer.dense_state_dict()
    assert state.keys() == twin.state_dict().keys()
    twin.load_state_dict(state)
    other.load_dense_state_dict(state)
    assert torch.equal(other(x).to_dense().reshape(spk.shape), spk)


@pytest.mark.parametrize("name", OF_FEATURES)
def test_copies_after_a_forward(name):
    options = {"spike_grad": surrogate.sigmoid(5), "learn_beta": True} if name in OF_NEURONS else {}
    layer = MODULES[name](bias=True, **options)
    spikes = random_spikes(7, 3, 6, 0.3, 0.0)
    out = dense(layer(spikes))
    out.sum().backward()
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(dense(copied(spikes)), out)
        assert all(a is not b for a, b in zip(copied.parameters(), layer.parameters()))


@pytest.mark.slow
@needs_compile
@pytest.mark.parametrize(("kind", "path"), [("dense", "auto"), ("spikes", "auto"), ("spikes", "sparse")])
@pytest.mark.parametrize("name", OF_FEATURES)
def test_one_graph(name, kind, path):
    """The graph does not depend on the data: path="auto" keeps spikes sparse and dense tensors dense."""
    options = {"learn_beta": True, "max_spikes": 3} if name in OF_NEURONS else {}
    if name == "SparseNetwork":
        options["delay"] = 0
    layer, spikes = MODULES[name](path=path, **options), random_spikes(4, 2, 6, 0.3, 0.0)
    x = spikes if kind == "spikes" else spikes.to_dense()
    chosen = copy.deepcopy(layer)
    for each in (chosen, *getattr(chosen, "layers", [])):
        each.path = "sparse" if kind == "spikes" else "dense"
    torch._dynamo.reset()
    outs = [dense(chosen(x)), dense(torch.compile(layer, fullgraph=True, backend="aot_eager")(x))]
    assert torch.equal(*outs)
    for out in outs:
        out.sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(chosen.parameters(), layer.parameters()))


@each_row(r"""
run(torch.zeros(2, 3, 4)) | ValueError: x must have shape \[T, B, in_features=6\], got \(2, 3, 4\)
run(torch.zeros(3, 6)) | ValueError: x must have shape \[T, B, N\]
run(torch.zeros(2, 3, 6, dtype=torch.complex64)) | TypeError: x must be floating
run([1.0]) | TypeError: x must be a torch.Tensor, got list
run(random_spikes(2, 3, 4)) | ValueError: x must be spikes of in_features=6 neurons, got 4
run(torch.zeros(2, 3, 6).to("meta")) | ValueError: x must be on the device of the layer, cpu, got meta
run(random_spikes(2, 3, 6).to("meta")) | ValueError: x must be on the device of the layer, cpu, got meta
run(torch.ones(2, 3, 6), delay=-1) | ValueError: delay must be at least 0, got -1
run(torch.ones(2, 3, 6), delay=1.0) | TypeError: delay must be an int, got 1\.0
""")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", OF_FEATURES)
def test_bad_input(name, path, row):
    for options in [{}, {"max_spikes": 2}] if name in OF_NEURONS else [{}]:
        layer = MODULES[name](path=path, **options)
        with_membranes = hasattr(layer, "membranes")
        for run in (layer, layer.membranes) if with_membranes else (layer,):
            if with_membranes or "delay" not in row:
                assert_refused(row, globals(), run=run)


@pytest.mark.parametrize("name", OF_NEURONS)
@each_row(r"""
make(beta="0.9") | TypeError: beta must be a number or a torch.Tensor, got '0.9'
make(beta=True) | TypeError: beta must be a number
make(beta=torch.rand(7)) | ValueError: beta must have one element or shape \([45],\), got \(7,\)
make(beta=float("nan")) | ValueError: beta must be finite
make(threshold=torch.rand(4, 4)) | ValueError: threshold must have one element or shape
make(threshold=float("inf")) | ValueError: threshold must be finite
make(grad_threshold="x") | TypeError: grad_threshold must be a number or None
make(grad_threshold=float("nan")) | ValueError: grad_threshold must not be NaN
make(max_spikes=1.5) | TypeError: max_spikes must be an int or None
make(max_spikes=-2) | ValueError: max_spikes must be at least 0
make(reset_mechanism="substract") | ValueError: reset_mechanism must be
make(spike_grad=25) | TypeError: spike_grad must be callable
make(input_scale="1") | ValueError: input_scale must be a number
make(input_scale=0) | ValueError: input_scale must be a number other than 0
make(overflow="first") | ValueError: overflow must be 'lowest' or 'rotate'
make(path="fast") | ValueError: path must be 'auto', 'sparse' or 'dense'
""")
def test_bad_neurons(name, row):
    assert_refused(row, globals(), make=MODULES[name])


@pytest.mark.parametrize("kind", OF_FEATURES[:4])
@each_row(r"""
make(in_features=0) | ValueError: in_features must be at least 1, got 0
make(in_features=2.0) | TypeError: in_features must be an int, got 2\.0
make(out_features=-1) | ValueError: out_features must be at least 1, got -1
make(out_features=True) | TypeError: out_features must be an int, got True
make(path="fast") | ValueError: path must be 'auto', 'sparse' or 'dense', got 'fast'
""")
def test_bad_sizes(kind, row):
    options = {"SparseLeaky": {"beta": 0.9}, "SparseSynaptic": {"alpha": 0.8, "beta": 0.9}}.get(kind, {})
    if kind == "ListedLinear":
        options = {"synapses": SYNAPSES}
    sizes = {"in_features": 6, "out_features": 4}
    assert_refused(row, globals(), make=lambda **wrong: getattr(snn, kind)(**{**sizes, **options, **wrong}))
