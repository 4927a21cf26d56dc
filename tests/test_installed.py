"""Dtypes, resets and formulas equal the installed snnTorch's, and those of copies that behave as its next release."""

import copy
import itertools
import os
import pickle

import pytest
import snntorch
import torch
from snntorch import spikegen
from support import next_snntorch
from support.commands import python, words
from support.versions import NO_HALF_CLAMP, NO_HALF_PRODUCT, needs_backend
from torch import nn
from torch.testing import assert_close

import snnipu as snn
from snnipu import surrogate
from snnipu._names import installed

N = 7
SHARED = {"beta": 0.8125}
NEURONS = {
    "Leaky": SHARED,
    "Leaky-per neuron": {"beta": torch.linspace(0.1, 0.9, N), "threshold": torch.linspace(0.5, 1.5, N)},
    "Lapicque": SHARED,
    "Synaptic": {**SHARED, "alpha": 0.75},
    "Alpha": {**SHARED, "alpha": 0.9},
    "RLeaky": {**SHARED, "V": 0.5, "all_to_all": False},
    "RLeaky-all": {**SHARED, "linear_features": N},
    "RSynaptic": {**SHARED, "alpha": 0.75, "V": 0.5, "all_to_all": False},
    "DeltaLeaky": {**SHARED, "delta_threshold": 0.5},
}
FUSED = {name.split("-")[0]: getattr(snn, name.split("-")[0]) for name in NEURONS}
MECHANISMS = sorted({mechanism for kind in FUSED.values() for mechanism in kind.stock.reset_dict})
WIDTHS = [torch.float64, torch.float16, torch.bfloat16]


def twins(name, **keywords):
    """Return snnTorch's neuron and ours with the same weights."""
    torch.manual_seed(0)
    kind = name.split("-")[0]
    theirs = getattr(snntorch, kind)(**copy.deepcopy(NEURONS[name]), **keywords)
    ours = getattr(snn, kind)(**copy.deepcopy(NEURONS[name]), **keywords)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def loop(layer, x):
    """Return the spikes and the states after each step, or the error."""
    rows = []
    try:
        for current in x:
            out = layer(current)
            rows.append([out[0] if isinstance(out, tuple) else out, layer.mem])
    except RuntimeError as error:
        return rows, str(error)
    return rows, None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize(
    "spike",
    [
        *(getattr(snntorch.surrogate, name)() for name in ("atan", "SSO", "triangular", "SFS", "heaviside")),
        snntorch.SpikingNeuron._surrogate_bypass,
        snntorch.LeakyParallel._surrogate_bypass,
    ],
)
def test_all_spikes_of_snntorch_have_the_dtype_of_one(spike, dtype):
    assert spike(torch.ones(2, dtype=dtype)).dtype == installed.spike_dtype(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("name", [*surrogate._TRIED, "SSO"])
def test_spikes_of_a_surrogate(name, dtype):
    u = torch.linspace(-2, 2, 9).to(dtype).requires_grad_()
    spikes = getattr(surrogate, name)()(u)
    assert spikes.dtype == installed.spike_dtype(dtype)
    assert torch.equal(spikes.float(), (u > 0).float())


@pytest.mark.parametrize("cast", [False, True], ids=["float32 module", "cast module"])
@pytest.mark.parametrize("dtype", [torch.float32, *WIDTHS])
@pytest.mark.parametrize("name", NEURONS)
def test_steps_are_snntorchs_bit_by_bit(name, dtype, cast):
    if dtype == torch.float16 and (NO_HALF_CLAMP or NO_HALF_PRODUCT):
        pytest.skip(f"float16 on a CPU: {NO_HALF_CLAMP or NO_HALF_PRODUCT}")
    stock = FUSED[name.split("-")[0]].stock
    delays = (True, False) if "reset_delay" in FUSED[name.split("-")[0]].options else (None,)
    x = torch.randn(6, 3, N, generator=torch.Generator().manual_seed(1)).mul(2).to(dtype)
    for mechanism, delay in itertools.product(stock.reset_dict, delays):
        keywords = {} if delay is None else {"reset_delay": delay}
        theirs, ours = twins(name, init_hidden=True, reset_mechanism=mechanism, **keywords)
        if cast:
            theirs, ours = theirs.to(dtype), ours.to(dtype)
        expected, error = loop(theirs, x)
        steps, own_error = loop(ours, x)
        # All-to-all neurons of snnTorch 1.0 cannot multiply float32 spikes with float64 weights; ours can.
        assert own_error is None or own_error == error, (mechanism, delay)
        for step, (actual, desired) in enumerate(zip(steps, expected)):
            for value, reference in zip(actual, desired):
                assert value.dtype == reference.dtype, (mechanism, delay, step)
                assert torch.equal(value, reference), (mechanism, delay, step)


@pytest.mark.parametrize("name", NEURONS)
def test_gradients_in_double_precision(name):
    theirs, ours = (layer.double() for layer in twins(name, init_hidden=True))
    x = torch.randn(4, 3, N, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = []
    for layer in (theirs, ours):
        leaf = x.clone().requires_grad_()
        rows, error = loop(layer, leaf)
        if error is not None:
            assert not installed.SPIKES_KEEP_DTYPE
            pytest.skip(error)
        total = sum((spk * current).sum() + mem.sum() for (spk, mem), current in zip(rows, x))
        gradients.append(torch.autograd.grad(total, leaf)[0])
    # Float32 spikes have float32 gradients.
    assert_close(*gradients, rtol=1e-12 if installed.SPIKES_KEEP_DTYPE else 1e-6, atol=1e-12)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", NEURONS)
def test_every_reset_mechanism(name, mechanism):
    """A sequence, a later change, a copy and a pickled neuron; snnTorch's step runs a reset without equation."""
    if mechanism not in FUSED[name.split("-")[0]].stock.reset_dict:
        with pytest.raises(ValueError, match="reset_mechanism must be"):
            twins(name, reset_mechanism=mechanism)
        return
    theirs, ours = twins(name, init_hidden=True, reset_mechanism=mechanism)
    _, changed = twins(name, init_hidden=True, reset_mechanism="none")
    changed.reset_mechanism = mechanism
    assert changed.reset_mechanism == mechanism
    assert torch.equal(changed.reset_mechanism_val, theirs.reset_mechanism_val)
    x = torch.randn(6, 3, N, generator=torch.Generator().manual_seed(1)) * 2
    spikes = torch.stack([spk for spk, _ in loop(theirs, x)[0]])
    assert 0 < spikes.mean() < 1
    for layer in (ours, changed, copy.deepcopy(ours), pickle.loads(pickle.dumps(changed))):
        layer.reset_mem()
        assert_close(layer.spikes(x), spikes)
        layer.reset_mem()
        assert torch.equal(torch.stack([spk for spk, _ in loop(layer, x)[0]]), spikes)
    ours.reset_mem()
    out = snn.MultiStep(ours)(x)
    assert_close(out[0] if isinstance(out, tuple) else out, spikes)
    if mechanism not in ours.fusable:
        assert not ours.runs_fused()
        with pytest.warns(UserWarning, match=f"resets by '{mechanism}' as no kernel does"):
            changed.reset_mechanism = mechanism


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_has_kernels_alone_refuses_a_reset_that_none_has(mechanism):
    net = snn.MultiStep(nn.Linear(N, N), snn.Leaky(beta=0.5, reset_mechanism=mechanism), nn.Linear(N, 2))
    sparse = {"beta": 0.5, "reset_mechanism": mechanism}
    if mechanism in snn.Leaky.fusable:
        assert isinstance(snn.SparseLeaky(N, N, **sparse).to_dense()[1], snn.Leaky)
        assert snn.Online(net, rule="ottt")(torch.rand(2, 3, N)).shape == (2, 3, 2)
        return
    with pytest.raises(ValueError, match="dense twin" if mechanism == "zero" else "reset_mechanism must be"):
        snn.SparseLeaky(N, N, **sparse).to_dense()
    with pytest.raises(TypeError, match="its reset_mechanism is one that no kernel has"):
        snn.Online(net, rule="ottt")(torch.rand(2, 3, N))


class _Network(nn.Module):
    def __init__(self, library):
        super().__init__()
        kinds = {name.split("-")[0]: name for name in reversed(NEURONS) if name != "DeltaLeaky"}
        layers = [getattr(library, kind)(**NEURONS[name], init_hidden=True) for kind, name in kinds.items()]
        self.first, self.inside = layers[0], nn.Sequential(nn.Sequential(*layers[1:]), nn.Linear(N, N))
        self.extra = library.Leaky(beta=0.5, init_hidden=True)

    def neurons(self):
        return [module for module in self.modules() if isinstance(module, snntorch.SpikingNeuron)]

    @torch.no_grad()
    def run(self):
        for neuron in self.neurons():
            neuron(torch.full((2, N), 3.0))
        return self

    def states(self):
        """Return for each state whether it is nonzero."""
        names = ("spk", "syn", "syn_exc", "syn_inh", "mem")
        return [(name, bool(getattr(n, name).any())) for n in self.neurons() for name in names if hasattr(n, name)]


def test_reset_clears_what_snntorchs_does():
    """The same networks and depths are reset, also in a copy of a network, which snnTorch does not list."""
    cleared = []
    for library in (snntorch, snn):
        snntorch.SpikingNeuron.instances.clear()
        net, other = _Network(library).run(), _Network(library).run()
        before = other.states()
        library.utils.reset(net)
        states = [net.states(), other.states()]
        copied = copy.deepcopy(net.run())
        library.utils.reset(copied)
        cleared.append([*states, net.states(), copied.states()])
    assert cleared[0] == cleared[1]
    if not installed.reset_reaches_others():
        assert not any(there for _, there in cleared[1][0])
        assert cleared[1][1] == before
        assert sum(there for _, there in before) > len(net.neurons())


@pytest.mark.parametrize("name", ["LSO", "spike_rate_escape"])
def test_gradients_of_mended_surrogates(name):
    x = torch.randn(5, 3, N, generator=torch.Generator().manual_seed(3))
    gradients = []
    for library in (snntorch, snn):
        leaf = x.clone().requires_grad_()
        layer = library.Leaky(beta=0.9, init_hidden=True, spike_grad=getattr(library.surrogate, name)())
        try:
            sum(spk.sum() for spk, _ in loop(layer, leaf)[0]).backward()
        except (TypeError, RuntimeError) as error:
            assert (library, name) == (snntorch, "LSO")  # of snnTorch 1.0
            pytest.skip(str(error))
        gradients.append(leaf.grad)
    assert_close(*gradients)


def test_a_surrogate_of_another_formula_is_evaluated():
    """A kernel must not return the gradient of our formula if the installed snnTorch has another one."""
    code = """
import torch, snntorch
from snntorch import surrogate as theirs
backward = theirs.ATan.backward
theirs.ATan.backward = staticmethod(lambda ctx, grad: (2 * backward(ctx, grad)[0], None))
import snnipu as snn
assert snn.surrogate.atan().kernel is None and snn.surrogate.fast_sigmoid().kernel is not None
x = torch.linspace(-1, 3, 12).reshape(4, 3)
for kind in ("Leaky", "Lapicque"):
    gradients = []
    for library in (snntorch, snn):
        leaf = x.clone().requires_grad_()
        layer = getattr(library, kind)(beta=0.5, init_hidden=True)
        sum(layer(current).sum() for current in leaf).backward()
        gradients.append(leaf.grad)
    leaf = x.clone().requires_grad_()
    layer.reset_mem()
    layer.spikes(leaf).sum().backward()
    assert torch.allclose(*gradients) and torch.allclose(gradients[0], leaf.grad), kind
"""
    python("-W", "ignore", "-c", code)


def test_a_step_of_another_equation_is_snntorchs():
    """A kernel must not run another equation as our step. Methods of snnTorch may be missing."""
    code = """
import torch, snntorch
plain = snntorch.Synaptic._base_zero
snntorch.Synaptic._base_zero = lambda self, x: tuple(2 * part for part in plain(self, x))
del snntorch.Alpha._base_int
import snnipu as snn
assert snn.Synaptic.fusable == ("subtract", "none") and snn.Alpha.fusable == ()
assert snn.Lapicque.fusable == ("subtract", "zero", "none")
x = torch.linspace(-1, 3, 12).reshape(4, 3)
for kind in ("Synaptic", "Alpha"):
    how = {"alpha": 0.9, "beta": 0.5, "init_hidden": True, "reset_mechanism": "zero"}
    layers = [getattr(library, kind)(**how) for library in (snntorch, snn)]
    assert torch.equal(*(torch.stack([layer(current) for current in x]) for layer in layers)), kind
"""
    python("-W", "ignore", "-c", code)


@needs_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_compiled_loops(dtype):
    synaptic = snn.Synaptic(alpha=0.5, beta=0.9)
    net = nn.Sequential(nn.Linear(4, N), snn.Leaky(beta=0.9), nn.Linear(N, N), synaptic).to(dtype)

    def forward(x):
        mem, (syn, last), record = net[1].reset_mem(), net[3].reset_mem(), []
        for _ in range(3):
            spk, mem = net[1](net[0](x), mem)
            spk, syn, last = net[3](net[2](spk.to(dtype)), syn, last)
            record += [spk, last]
        return record

    x = torch.rand(3, 4).to(dtype) * 3
    for actual, expected in zip(snn.compile(forward)(x), forward(x)):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)


# Checks of the script's changes in the copy.
_COPY = """
import torch, snntorch as snn
from snntorch import functional, spikegen, surrogate
x = torch.tensor([0.2, 0.8], dtype=torch.float64)
for interpolate in (False, True):
    assert spikegen.latency(x, num_steps=5, normalize=True, linear=True, interpolate=interpolate).dtype == torch.float64
beta = torch.linspace(0.1, 0.9, 6)
layer = snn.LeakyParallel(4, 6, beta=beta, dropout=1.0)
assert torch.equal(layer.rnn.weight_hh_l0.diagonal(), beta)
assert not layer(torch.full((3, 2, 4), 9.0)).any()
assert torch.equal(snn.LeakyParallel(4, 6, beta=0.5).rnn.weight_hh_l0.diagonal(), torch.full((6,), 0.5))
try:
    snn.LeakyParallel(4, 6, beta=beta[:2])
except ValueError:
    pass
else:
    raise AssertionError
u = torch.tensor([-1.0, 1.0], requires_grad=True)
surrogate.LSO(0.25)(u).sum().backward()
assert u.grad.tolist() == [0.25, 1.0]
for name in ("SLSTM", "SConv2dLSTM"):
    layer = getattr(snn, name)(3, 3, *([1] if name == "SConv2dLSTM" else [])).double()
    spk, syn, mem = layer(torch.ones(2, 3, *([4, 4] if name == "SConv2dLSTM" else []), dtype=torch.float64))
    assert spk.dtype == syn.dtype == mem.dtype == torch.float64
loss = functional.ce_count_loss(population_code=True, num_classes=2, weight=torch.ones(2, dtype=torch.float64))
assert loss(torch.rand(3, 1, 4, dtype=torch.float64), torch.tensor([1])).dtype == torch.float64
"""


@pytest.mark.slow
@pytest.mark.skipif(snntorch.__version__ != "1.0.0", reason="the copies are of snnTorch 1.0.0")
@pytest.mark.parametrize("resets", [False, True], ids=["next", "next and its resets"])
def test_with_the_next_snntorch(resets, tmp_path, repository):
    next_snntorch.make(tmp_path, resets)
    path = os.pathsep.join([str(tmp_path), str(repository), os.environ.get("PYTHONPATH", "")])
    named = {"PYTHONPATH": path}
    code = f"import snntorch\nassert snntorch.__version__ == '1.0.0+next{'.resets' * resets}'\n{_COPY}"
    python("-W", "ignore", "-c", code, env=named)
    result = python(*words("-m pytest -q -p no:cacheprovider -x"), __file__, env=named, cwd=repository)
    assert "passed" in result.stdout


def test_latency_and_parallel_neurons_are_snntorchs():
    assert snn.spikegen.latency is spikegen.latency
    assert snn.LeakyParallel is snntorch.LeakyParallel
