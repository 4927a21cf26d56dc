"""``snnipu.Leaky`` against ``snntorch.Leaky``."""

import copy
import gc
import itertools
import warnings
import weakref

import pytest
import snntorch
import snntorch.utils
import torch
from oracle import assert_all_equal
from support.loops import sequence, steps, with_gradients
from support.tables import assert_refused, each_row
from torch import nn

import snnipu as snn
from snnipu.neurons import _states

RESETS = ["subtract", "zero", "none"]


@pytest.fixture(autouse=True)
def _clean():
    torch.manual_seed(0)
    snntorch.SpikingNeuron.init()
    yield
    snntorch.SpikingNeuron.init()


def pair(**keywords):
    return [source.Leaky(**copy.deepcopy(keywords)) for source in (snntorch, snn)]


def test_integer_input_is_promoted_as_in_snntorch():
    x = torch.randint(0, 3, (5, 2, 4))
    assert_all_equal([steps(layer, x, None) for layer in pair(beta=0.9)])


def test_detach_and_reset_hidden():
    layer = snn.Leaky(beta=0.9, init_hidden=True)
    layer(torch.rand(2, 3, requires_grad=True))
    assert layer.mem.requires_grad
    snn.Leaky.detach_hidden()
    assert not layer.mem.requires_grad
    snn.Leaky.reset_hidden()
    assert not layer.mem.any()


def test_continues_from_its_own_membrane_as_in_snntorch():
    theirs, ours = pair(beta=0.9)
    for x in (torch.rand(3, 4), torch.rand(3, 4), torch.rand(2, 4)):  # a smaller last batch starts from zeros
        (spk, mem), (own_spk, own_mem) = theirs(x), ours(x)
        assert torch.equal(own_spk, spk)
        assert torch.equal(own_mem, mem)


def test_membrane_of_another_shape():
    layer = snn.Leaky(beta=0.9)
    x = torch.rand(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x, layer.init_leaky())  # snnTorch's idiom: an empty membrane
        layer(torch.tensor(0.3), torch.zeros(1))
        layer(torch.rand(2, 3), layer.init_leaky())  # zeros of the last call's shape: a smaller last batch
    with pytest.warns(UserWarning, match=r"mem of shape \(8, 3\) does not fit the input's \(4, 3\)"):
        assert torch.equal(layer(x, torch.ones(8, 3))[1], x)
    with pytest.warns(UserWarning, match="is it another layer's"):
        assert torch.equal(layer(x, torch.ones(4, 5))[1], x)


def test_gradients_of_a_membrane_itself():
    """snnTorch computes spikes from the membrane it returns. Ours do so only where snnTorch's step runs."""

    def membrane_gradients(module, spike_grad):
        layer, x = (
            module.Leaky(beta=0.9, spike_grad=spike_grad),
            torch.linspace(0, 2, 24).reshape(4, 2, 3).requires_grad_(),
        )
        mem, membranes, total = layer.reset_mem(), [], 0
        for step in range(4):
            spk, mem = layer(x[step], mem)
            mem.retain_grad()
            membranes.append(mem)
            total = total + (step + 1) * spk.sum()
        total.backward()
        return x.grad, [each.grad for each in membranes]

    surrogate = snn.surrogate.fast_sigmoid(slope=5)
    of_input, expected = membrane_gradients(snntorch, snntorch.surrogate.fast_sigmoid(slope=5))
    own_input, actual = membrane_gradients(snn, surrogate)
    torch.testing.assert_close(own_input, of_input)
    assert actual[-1] is None
    own_input, actual = membrane_gradients(snn, lambda u: surrogate(u))
    torch.testing.assert_close([own_input, *actual], [of_input, *expected])


def allocated(function):
    """Return the bytes that PyTorch's allocator returns during a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())


def test_extra_memory_is_small():
    """Forward and backward allocate the outputs and one gradient, and no other tensor of that size."""
    x = torch.randn(25, 16, 100, requires_grad=True)
    layer = snn.Leaky(beta=0.9)
    one_sequence, little = x.numel() * 4, 65536
    assert allocated(lambda: layer.sequence(x)[0].sum(0).sum().backward()) <= 3 * one_sequence + little
    x.grad = None
    assert allocated(lambda: layer.spikes(x).sum(0).sum().backward()) <= 2 * one_sequence + little
    constant = x[0].detach().requires_grad_()
    spikes = layer.spikes(constant, num_steps=25)
    assert torch.equal(spikes, layer.sequence(constant, num_steps=25)[0])
    steps_only = allocated(lambda: layer.spikes(constant, num_steps=25).sum(0).sum().backward())
    assert steps_only <= one_sequence + little


def leaky_subclasses(source):
    """Return one subclass for each part of a step that users may override, of snnTorch's or our Leaky."""

    class Fire(source.Leaky):
        def fire(self, mem):
            return super().fire(mem - 0.2)

    class Reset(source.Leaky):
        def mem_reset(self, mem):
            return super().mem_reset(mem) * 0.5

    class State(source.Leaky):
        def _base_state_function(self, input_):
            return 0.5 * super()._base_state_function(input_)

    class Base(source.Leaky):
        def _base_sub(self, input_):
            return self._base_state_function(input_) - self.reset * 0.3

    class Threshold(source.Leaky):
        """A threshold that adapts to the membrane of the previous step."""

        def _threshold_buffer(self, threshold, learn_threshold):
            pass

        @property
        def threshold(self):
            return 0.8 + 0.1 * self.mem.detach().abs()

    class Forward(source.Leaky):
        def forward(self, input_, mem=None):
            spk, mem = super().forward(0.5 * input_, mem)
            return spk, 0.9 * mem

    return {kind.__name__: kind for kind in (Fire, Reset, State, Base, Threshold, Forward)}


def replaced_in_instance(layer, name):
    replacements = {
        "fire": lambda mem: (mem > 0.7).float(),
        "mem_reset": lambda mem: (mem > 1.4).float(),
        "state_function": lambda input_: 0.7 * layer.mem + input_,
        "_base_state_function": lambda input_: 0.6 * layer.mem + input_,
        "forward": lambda input_, mem=None: type(layer).forward(layer, 0.5 * input_, mem),
    }
    setattr(layer, name, replacements[name])


REPLACED = ["Fire", "Reset", "State", "Base", "Threshold", "Forward"]
REPLACED += ["fire", "mem_reset", "state_function", "_base_state_function", "forward"]


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("fused", ["steps", "sequence", "MultiStep"])
def test_what_is_replaced_is_honoured(name, fused, monkeypatch):
    """Step, sequence and MultiStep give snnTorch's result, and warn the first time."""
    monkeypatch.setattr(_states, "_WARNED", set())
    layers = []
    for source in (snntorch, snn):
        if name in leaky_subclasses(source):
            layers.append(leaky_subclasses(source)[name](beta=0.85))
        else:
            layers.append(source.Leaky(beta=0.85))
            replaced_in_instance(layers[-1], name)
    theirs, ours = layers
    x = 2 * torch.randn(9, 4, 6)

    def by_step(layer, x):
        return steps(layer, x, torch.zeros(4, 6))

    expected, (gradient,) = with_gradients(by_step, theirs, x)
    assert not torch.equal(expected[1], by_step(snntorch.Leaky(beta=0.85), x)[1]) or name in ("Fire", "fire")
    function = {"steps": by_step, "sequence": sequence, "MultiStep": lambda layer, x: snn.MultiStep(layer)(x)}[fused]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out, (own_gradient,) = with_gradients(function, ours, x)
        function(ours, x)
    assert all(map(torch.equal, out, expected))
    assert torch.allclose(own_gradient, gradient, rtol=1e-5, atol=1e-6)
    warned = [str(warning.message) for warning in caught if "step by step" in str(warning.message)]
    # A forward that calls the stock forward runs the fused step.
    warnings_expected = 0 if name in ("Forward", "forward") and fused != "sequence" else 1
    assert len(warned) == warnings_expected, warned
    assert not warned or name.lower().split("_")[-1] in warned[0].lower()


def test_parametrized_and_stock_neurons_stay_fused():
    layer = snn.Leaky(beta=torch.tensor([2.0, -1.0, 0.0]), learn_beta=True)
    torch.nn.utils.parametrize.register_parametrization(layer, "beta", nn.Sigmoid())
    x = torch.randn(5, 2, 3)
    expected = snntorch.Leaky(beta=torch.sigmoid(torch.tensor([2.0, -1.0, 0.0])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mem = layer.sequence(x)[1]
        for copied in (copy.copy(snn.Leaky(beta=0.9)), copy.deepcopy(snn.Leaky(beta=0.9))):
            copied.sequence(x)
            assert copied.runs_fused()
    assert layer.runs_fused()
    assert torch.equal(mem, steps(expected, x, None)[1])
    mem.sum().backward()
    assert layer.parametrizations.beta.original.grad.all()


STEP_OPTIONS = [
    {"reset_mechanism": reset, "reset_delay": delay, "learn_threshold": learn}
    for reset, delay, learn in itertools.product(RESETS, (True, False), (True, False))
]
IN_PLACE = {
    "added": lambda mem: mem.add_(0.01),
    "masked": lambda mem: mem.masked_fill_(mem < 0, 0.0),
    "clamped": lambda mem: mem.clamp_(-1, 1),
    "indexed": lambda mem: mem.__setitem__(mem < 0, 0.5),
}


@pytest.mark.parametrize("options", STEP_OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("change", IN_PLACE)
def test_membranes_may_be_changed_in_place_between_steps(options, change):
    results = []
    for layer in pair(beta=0.85, **options):
        x = torch.linspace(-2, 3, 8 * 3 * 5).reshape(8, 3, 5).sin().mul(2).requires_grad_()
        mem, total = torch.zeros(3, 5), 0
        for number, current in enumerate(x):
            spk, mem = layer(current, mem)
            total = total + (number + 1) * spk.sum() + 0.3 * mem.sum()
            IN_PLACE[change](mem)
        total.backward()
        results.append((total.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())))
    for expected, actual in zip(*results):
        assert torch.allclose(actual, expected, rtol=1e-5, atol=1e-4)


def test_instances_do_not_keep_neurons_alive():
    living = snn.Leaky(beta=0.9, init_hidden=True)
    living(torch.rand(2, 3, requires_grad=True))
    nets = [nn.Sequential(nn.Linear(3, 3), snn.Leaky(beta=0.5), snntorch.Synaptic(0.9, 0.8)) for _ in range(5)]
    assert len(snntorch.SpikingNeuron.instances) == 11
    references = [weakref.ref(module) for net in nets for module in net]
    del nets
    gc.collect()
    assert not any(reference() for reference in references)
    assert snntorch.SpikingNeuron.instances == [living]
    # snnTorch's class methods and ours reach all living neurons.
    snntorch.Leaky.detach_hidden()
    assert not living.mem.requires_grad
    snntorch.utils.reset(nn.Sequential(living))
    assert not living.mem.any()


def test_instances_survive_a_neuron_that_dies_meanwhile():
    layers = [snn.Leaky(beta=0.9) for _ in range(3)]
    instances = snntorch.SpikingNeuron.instances
    seen = []
    for index in range(len(instances)):
        seen.append(instances[index])
        if index == 0:
            del layers[1]
            gc.collect()
    assert seen == [layers[0], None, layers[1]]
    assert list(instances) == layers
    snntorch.SpikingNeuron.init()
    another = snn.Leaky(beta=0.9)
    assert snntorch.SpikingNeuron.instances == [another]
    assert layers[0] not in snntorch.SpikingNeuron.instances


X = torch.zeros(2, 3)


def leaky(beta=0.9, **options):
    return snn.Leaky(beta, **options)


@each_row(r"""
leaky(reset_mechanism="hard") | ValueError: reset_mechanism must be
leaky(spike_grad=3) | TypeError: spike_grad must be callable
leaky()([0.0]) | TypeError: input_ must be a torch.Tensor
leaky()(X.to(torch.complex64)) | TypeError: input_ must be real
leaky()(X, 0.0) | TypeError: mem must be a torch.Tensor
leaky(init_hidden=True)(X, X) | TypeError: `mem` should not be passed
leaky(state_quant=abs)(None) | TypeError: input_ must be a torch.Tensor
leaky(state_quant=abs)(X, 0.0) | TypeError: mem must be a torch.Tensor or None
leaky(state_quant=abs)(X.to(torch.complex64)) | TypeError: input_ must be real
leaky(state_quant=abs, init_hidden=True)(X, X) | TypeError: `mem` should not be passed
leaky(init_hidden=True).sequence(X[None], X) | TypeError: `mem` should not be passed
leaky(torch.rand(4))(X) | ValueError: beta must broadcast .* \(4,\)
leaky()(X, torch.zeros(2, 3, device="meta")) | ValueError: mem must be on x's device
leaky(state_quant=abs).sequence(X[None], X[:1]) | ValueError: mem must have the shape of one step
""")
def test_bad_input(row):
    assert_refused(row, globals())


def test_a_membrane_at_its_threshold_has_no_spike_whose_size_could_learn():
    """Use a surrogate that PyTorch evaluates."""
    known = snntorch.surrogate.custom_surrogate(lambda u, grad, spk: grad / (1 + u * u))
    lif = snn.Leaky(0.5, spike_grad=known, graded_spikes_factor=2.0, learn_graded_spikes_factor=True)
    x = torch.tensor([[[1.0, 1.5, 0.5]]], requires_grad=True)  # at the threshold, above, below
    spk, _ = lif.sequence(x)
    spk.sum().backward()
    assert spk.tolist() == [[[0.0, 2.0, 0.0]]]
    assert float(lif.graded_spikes_factor.grad) == 1.0
