"""``snnipu.neuron``: custom neurons against a loop of their step under autograd, and a module's duties."""

import copy
import importlib
import inspect
import pickle
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from oracle import ATAN, looped, relative_error
from support.ipu_training import check_training
from support.loops import by_steps, sequence, steps, with_gradients
from support.operators import needs_host_runtime, needs_library
from support.tables import assert_refused, each_row
from support.versions import needs_backend
from torch import nn

import snnipu as snn
from snnipu import backends, poptorch, surrogate
from snnipu.backends import compiled, host
from snnipu.backends import neurons as kernels
from snnipu.neurons import own

N = 13
needs_native = pytest.mark.skipif(host.library is None, reason=host.unavailable_reason or "")


VALUES = {"beta": 0.9, "rho": 0.8, "strength": 0.3, "threshold": 1.0}


@snn.neuron(states=("mem", "adapt"), parameters=VALUES)
def Adaptive(x, mem, adapt, *, beta, rho, strength, threshold, spike, reset_mechanism="subtract"):
    """A threshold that rises with every spike."""
    spk = spike(mem - threshold - strength * adapt)
    detached = spk.detach()
    mem = beta * mem + x - detached * threshold if reset_mechanism == "subtract" else beta * mem * (1 - detached) + x
    return spk, mem, rho * adapt + spk


adaptive = Adaptive.step


def own_spike(u):
    return surrogate.spike(u, ATAN)


def random(*shape, dtype=torch.float32):
    return (torch.randn(*shape) * 2).to(dtype)


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 3, N), (70, 2, 4, 33)], ids=str)
@pytest.mark.parametrize("per_neuron", [False, True], ids=["scalar", "per neuron"])
def test_it_is_the_loop_of_its_step(shape, dtype, per_neuron):
    """Spikes and states equal bit by bit, gradients within rounding; for the sequence and for single steps."""
    each = torch.linspace(0.5, 1, shape[-1]) if per_neuron else 1
    values = {name: each * value for name, value in VALUES.items()}
    layer = Adaptive(**values, learn=("beta", "strength"), spike_grad=snn.surrogate.atan(2.0)).to(dtype)
    inputs = [random(*shape, dtype=dtype), *(random(*shape[1:], dtype=dtype) for _ in range(2))]

    def loop(layer, x, *states):
        return looped(adaptive, x, states, {**dict(layer.named_parameters()), **dict(layer.named_buffers())})

    expected, gradients = with_gradients(loop, layer, *inputs)
    for run in (sequence, steps):
        out, grads = with_gradients(run, layer, *inputs)
        for actual, other in zip(out, expected):
            assert actual.dtype == dtype
            assert torch.equal(actual, other)
        terms = gradients[0].double().abs().sum()
        for place, (actual, other) in enumerate(zip(grads, gradients)):
            tolerance = 1e-5 if dtype == torch.float32 else 1e-12
            assert relative_error(actual, other, terms if place > 2 else None) <= tolerance


@needs_native
def test_sequences_run_the_compiled_kernel(monkeypatch):
    calls = []
    run = kernels.forward
    monkeypatch.setattr(kernels, "forward", lambda *args: calls.append(1) or run(*args))
    layer = Adaptive()
    layer.sequence(random(4, 2, N))
    layer(random(2, N))
    assert calls == [1, 1]


def test_what_a_subclass_replaces_is_honoured():
    class Loud(Adaptive):
        def forward(self, x, *states):
            spk, *states = super().forward(x, *states)
            return (2 * spk, *states)

    x = random(6, 2, N)
    expected = Adaptive().sequence(x)
    with pytest.warns(UserWarning, match="Loud replaces forward of Adaptive"):
        out = Loud().sequence(x)
    assert torch.equal(out[0], 2 * expected[0])
    assert torch.equal(snn.MultiStep(Loud())(x)[0], 2 * expected[0])


def test_init_hidden():
    x = random(8, 2, N)
    expected = Adaptive().sequence(x)
    layer = Adaptive(init_hidden=True)
    assert torch.equal(torch.cat([layer.spikes(x[:3]), torch.stack([layer(step) for step in x[3:]])]), expected[0])
    assert torch.equal(layer.mem, expected[1][-1])
    with pytest.raises(TypeError, match="mem, adapt should not be passed as arguments"):
        layer(x[0], x[0])
    net = snn.MultiStep(nn.Sequential(layer))
    snn.utils.reset(net)
    assert layer.mem is None
    assert torch.equal(net(x), expected[0])
    layer.reset_mem()
    both = Adaptive(init_hidden=True, output=True)
    assert torch.equal(both(x[0])[1], expected[1][0])
    # A second backward pass must not enter the first graph.
    grown = x.clone().requires_grad_()
    layer(grown[0]).sum().backward()
    layer.detach_hidden()
    layer(grown[1]).sum().backward()


def test_states_are_no_buffers():
    """DistributedDataParallel would broadcast the states of one process."""
    layer = Adaptive(init_hidden=True)
    layer(random(2, N))
    assert {name for name, _ in layer.named_buffers()} == set(VALUES)
    assert layer.double().mem.dtype == torch.float64


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_sixteen_bits(dtype):
    """Kernel and recorded step agree; states between steps are float32, as in a sequence."""
    layer = Adaptive(learn=("beta",))
    x = random(6, 2, N, dtype=dtype)
    out = layer.sequence(x)
    by_python = Adaptive(spike_grad=own_spike).sequence(x)
    rows = by_steps(layer, x, [None, None])
    assert rows[1].dtype == torch.float32
    for actual, other, row in zip(out, by_python, rows):
        assert actual.dtype == other.dtype == dtype
        assert torch.equal(actual, other)
        assert torch.equal(actual, row.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        spikes = snn.MultiStep(nn.Linear(N, N), layer)(random(4, 2, N))[0]
    spikes.sum().backward()
    assert spikes.dtype == torch.bfloat16
    assert layer.beta.grad.dtype == torch.float32


def test_a_surrogate_that_is_a_python_function_is_looped():
    x, grads = random(9, 2, N), []
    for spike_grad in (surrogate.atan(2.0), own_spike):
        layer = Adaptive(spike_grad=spike_grad, learn=("beta",))
        grads.append(with_gradients(lambda layer, x: snn.MultiStep(nn.Identity(), layer)(x)[:1], layer, x)[1])
    assert not layer.runs_fused()
    for actual, other in zip(*grads):
        assert relative_error(actual, other) <= 1e-5


def test_options_are_chosen_once():
    x = random(9, 2, N)
    layers = [Adaptive(reset_mechanism=mechanism) for mechanism in ("subtract", "zero")]
    for layer, mechanism in zip(layers, ("subtract", "zero")):
        expected = looped(adaptive, x, [torch.zeros(2, N)] * 2, VALUES, reset_mechanism=mechanism)
        assert torch.equal(layer.sequence(x)[1], expected[1])
        assert layer.reset_mechanism == mechanism
    layers[0].reset_mechanism = "zero"
    assert torch.equal(layers[0].sequence(x)[1], expected[1])
    defaults = {name: value.default for name, value in inspect.signature(Adaptive).parameters.items()}
    assert list(defaults) == [*VALUES, "reset_mechanism", "learn", "spike_grad", "init_hidden", "output"]
    assert defaults["threshold"] == 1.0
    assert defaults["reset_mechanism"] == "subtract"


GAIN = 2.0


Constants = SimpleNamespace(shift=0.25, table={"leak": [0.5]})


def charged(x, scale):
    return GAIN * x * scale


def test_numbers_from_outside_are_those_of_the_call(monkeypatch):
    scale = 1.0

    @snn.neuron(states=("mem",))
    def Outside(x, mem, *, spike):
        mem = sum(leak * mem for leak in Constants.table["leak"]) + charged(x, scale) + Constants.shift
        return spike(mem - 1), mem

    layer, x = Outside(spike_grad=own_spike), torch.ones(1, 1, 2)  # a Python function: no kernel is compiled

    def assert_membrane(expected):
        assert layer.sequence(x, 1 + x[0])[1][0, 0, 0] == layer(x[0], 1 + x[0])[1][0, 0] == expected

    assert_membrane(3.25)
    scale = 3.0
    assert_membrane(7.25)
    monkeypatch.setitem(globals(), "GAIN", 4.0)
    assert_membrane(13.25)
    monkeypatch.setattr(Constants, "shift", 0.5)
    assert_membrane(13.5)
    monkeypatch.setitem(Constants.table, "leak", [0.5, 0.5])
    assert_membrane(14.5)


@pytest.mark.slow
@needs_native
@needs_backend
def test_a_compiled_loop_is_one_sequence(monkeypatch):
    @snn.neuron(states=("mem",), parameters={"beta": 0.5})
    def Scaled(x, mem, *, beta, spike):
        mem = beta * mem + GAIN * x
        return spike(mem - 1), mem

    layer, x = Scaled(learn=True), random(6, 2, N).requires_grad_()

    def loop(x):
        (mem,), spikes = layer.reset_mem(), []
        for current in x.unbind():
            spk, mem = layer(current, mem)
            spikes.append(spk)
        return torch.stack(spikes), mem

    compiled = snn.compile(loop)
    for gain in (2.0, 3.0):
        monkeypatch.setitem(globals(), "GAIN", gain)
        runs = []
        for function in (compiled, loop):
            spk, mem = function(x)
            runs.append([spk, mem, *torch.autograd.grad((spk * x.detach()).sum() + mem.sum(), (x, layer.beta))])
        for actual, other in zip(*runs):
            assert torch.equal(actual, other) or relative_error(actual, other) <= 1e-6
    assert "one operator" in str(snn.compiler.explain(loop, x))


@snn.neuron(states={"spk": 0, "mem": -0.5}, parameters={"V": 0.5})
def Recurrent(x, spk, mem, *, V, spike):
    mem = 0.9 * mem + x + spk * V
    return spike(mem - 1), mem


def test_the_output_may_be_a_state_and_states_start_anywhere():
    x = random(9, 2, N)
    layer = Recurrent()
    spk, mem = torch.zeros(2, N), torch.full((2, N), -0.5)
    for row, (output, state) in zip(x, zip(*layer.sequence(x))):
        mem = 0.9 * mem + row + spk * 0.5
        spk = (mem > 1).float()
        assert torch.equal(output, spk)
        assert torch.equal(state, mem)
    states = layer.reset_mem()
    assert [state.item() for state in states] == [0.0, -0.5]
    states = (states[0], states[1])
    for row, expected in zip(x, layer.sequence(x)[1]):
        states = layer(row, *states)
        assert torch.equal(states[1], expected)
    layer.register_forward_hook(lambda *_: None)
    assert torch.equal(snn.MultiStep(layer)(x)[1], layer.sequence(x)[1])


def test_copies():
    layer = Adaptive(beta=torch.rand(N), learn=("beta",), init_hidden=True, reset_mechanism="zero")
    layer.spikes(random(3, 2, N).requires_grad_())
    x = random(5, 2, N)
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    expected = layer.spikes(x)
    for other in copies:
        assert torch.equal(other.spikes(x), expected)
    fresh = Adaptive(beta=torch.zeros(N), learn=("beta",), reset_mechanism="zero")
    fresh.load_state_dict(layer.state_dict())
    layer.reset_mem()
    assert torch.equal(fresh.sequence(x)[0], layer.spikes(x))


@pytest.mark.slow
def test_a_class_of_a_module_is_unpickled_in_another_process(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import snnipu as snn\n\n\n"
        "@snn.neuron(states=('mem',), parameters={'beta': 0.9})\n"
        "def Mine(x, mem, *, beta, spike, leak=True):\n"
        "    mem = (beta * mem if leak else mem) + x\n"
        "    return spike(mem - 1), mem\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("mine")
    layer = mine.Mine(beta=0.5, learn="beta", leak=False, spike_grad=torch.relu)
    (tmp_path / "layer").write_bytes(pickle.dumps(layer))
    code = (
        "import pickle, torch; layer = pickle.load(open('layer', 'rb')); print(layer); "
        "assert layer.sequence(torch.ones(3, 1, 2))[1][-1, 0, 0] == 3"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    del sys.modules["mine"]
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Mine(beta=0.5, leak=False, learn=('beta',))"


def test_a_class_of_a_notebook():
    """A class defined in a notebook belongs to __main__. Defining it again makes a new class; layers of the old one
    work.
    """
    namespace = sys.modules["__main__"].__dict__
    cell = (
        "import snnipu as snn\n"
        "@snn.neuron(states=('mem',), parameters={'beta': 0.5})\n"
        "def OfANotebook(x, mem, *, beta, spike):\n"
        "    mem = beta * mem + FACTOR * x\n"
        "    return spike(mem - 1), mem\n"
    )
    x = torch.ones(2, 1, 3)
    layers = []
    own_namespace = {"__name__": "__main__"}
    try:
        for factor in ("1", "2"):  # a Python function: no kernel is compiled
            exec(compile(cell.replace("FACTOR", factor), "<ipython-input-1>", "exec"), own_namespace)
            namespace["OfANotebook"] = own_namespace["OfANotebook"]
            layers.append(own_namespace["OfANotebook"](spike_grad=own_spike))
            again = pickle.loads(pickle.dumps(layers[-1]))
            assert torch.equal(again.sequence(x)[1], layers[-1].sequence(x)[1])
    finally:
        namespace.pop("OfANotebook", None)
    assert [layer.sequence(x)[1][-1, 0, 0].item() for layer in layers] == [1.5, 3.0]


def two(x, mem, *, beta, spike):
    return spike(mem), mem


def define(states=("mem",), parameters=None):
    snn.neuron(states=states, parameters={"beta": 1.0} if parameters is None else parameters)(two)


@each_row(r"""
define(states="mem") | TypeError: states must be a tuple of names, as states=\("mem",\)
define(states=()) | TypeError: states must be one name or more
define(states=("mem", "mem")) | TypeError: states must be one name or more, each once
define(states=("syn",)) | TypeError: two: states= names \(syn\), the function's arguments are \(mem\)
define(states={"mem": "a"}) | TypeError: state 'mem' must start from a finite number, got 'a'
define(parameters={}) | TypeError: two: parameters= names \(\), the function's arguments are \(beta\)
define(parameters=("beta",)) | TypeError: parameters must be a dict of names and values, got tuple
define(parameters={"beta": "big"}) | TypeError: beta must be a number or a torch.Tensor, got str
snn.neuron(two) | TypeError: @snnipu.neuron\(states=
snn.neuron(states=("mem",))(nn.Linear) | TypeError: decorates a function, got type
Adaptive(gamma=1.0) | TypeError: Adaptive has no 'gamma'; it has beta, rho, strength, threshold, reset_mechanism
Adaptive(learn=("gamma",)) | ValueError: learn must name parameters of Adaptive \(beta, .*\), got 'gamma'
Adaptive(beta=None) | TypeError: beta must be a number or a torch.Tensor, got NoneType
Adaptive(beta=1j * torch.ones(2)) | TypeError: beta must be real
Adaptive(spike_grad=1) | TypeError: spike_grad must be callable or None, got 1
Adaptive(reset_mechanism=[]) | TypeError: options of Adaptive must be hashable
""")
def test_definitions_and_layers_that_do_not_fit(row):
    assert_refused(row, globals())


@pytest.mark.parametrize("name", ["learn", "forward", "weight_norm_", "_hidden", "x", "sequence", "train"])
def test_names_that_are_taken(name):
    namespace = {}
    exec(f"def f(y, mem, *, {name}, spike):\n    return spike(mem), mem\n", namespace)
    if name == "weight_norm_":
        assert snn.neuron(states=("mem",), parameters={name: 1.0})(namespace["f"])(**{name: 2.0}).weight_norm_ == 2
        return
    with pytest.raises(TypeError, match=f"the name '{name}' is taken"):
        snn.neuron(states=("mem",), parameters={name: 1.0})(namespace["f"])


@each_row(r"""
mem = mem if mem > 0 else x | an `if`
mem = mem - mem.mean() | mean\(\) goes over several neurons
mem = mem @ mem | is a product of matrices
mem += x | writes in place
mem = torch.rand_like(mem) | rand_like is not one of the operations
mem = mem * torch.ones(3) | takes a Tensor from outside the step
return spike(mem) | must return 2 values, spk, mem; it returned 1
return mem > 1, mem | must return spk as a tensor made of its arguments, got a comparison
""")
def test_what_cannot_be_traced_is_refused_when_the_class_is_made(row, tmp_path):
    line, message = row.split(" | ")
    file = tmp_path / "step.py"
    file.write_text(f"import torch\n\ndef Step(x, mem, *, spike):\n    {line}\n    return spike(mem), mem\n")
    namespace = {}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    with pytest.raises(TypeError, match=message) as refused:
        snn.neuron(states=("mem",))(namespace["Step"])
    assert "return" in line or f"line 4 of {file}, `{line}`" in str(refused.value)


X = torch.randn(3, 2, N)


@each_row(r"""
layer.sequence(X, X[0, :, :5], None) | ValueError: mem must have the shape of one step of x, \(2, 13\)
layer.sequence(X[..., :5]) | ValueError: beta must broadcast to one step of x, \(2, 5\)
layer(X[0], X[0], X[0], X[0]) | TypeError: Adaptive has the states mem, adapt, got 3
layer(X[0], syn=X[0]) | TypeError: Adaptive has no state 'syn'; it has mem, adapt
layer(X[0], X[0], mem=X[0]) | TypeError: Adaptive was given the state mem twice
layer(X[0], 1.0, None) | TypeError: mem must be a torch.Tensor or None, got float
layer([1.0]) | TypeError: x must be a torch.Tensor
layer(X[0], X[0]) | TypeError: given 1 of its states \(mem, adapt\), adapt missing
layer.sequence(X, X[0]) | TypeError: adapt missing: give all
""")
@pytest.mark.parametrize("spike_grad", [None, own_spike], ids=["fused", "python"])
def test_errors_name_the_argument(row, spike_grad):
    assert_refused(row, globals(), layer=Adaptive(beta=torch.rand(N), spike_grad=spike_grad))


def test_other_devices_run_the_reference_and_say_so_once(monkeypatch):
    monkeypatch.setattr(own, "_WITH_KERNELS", ())
    own._warn_of_reference.cache_clear()
    with pytest.warns(RuntimeWarning, match="neurons of your own by its slow PyTorch reference"):
        Adaptive().sequence(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Adaptive().sequence(X)
    assert backends.why_reference(torch.device("mps")) == f"snnipu {snn.__version__} has no kernels for mps devices"


def test_no_gradient_where_none_is_asked_for():
    layer = Adaptive(learn=True)
    with torch.no_grad():
        assert not layer.sequence(X)[1].requires_grad
    layer.eval()
    assert layer.sequence(X)[1].requires_grad
    assert not Adaptive().sequence(X)[1].requires_grad


@pytest.mark.parametrize("reference", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["reference", "kernel"])
@pytest.mark.parametrize("reads", [0, 1], ids=["spikes", "membranes"])
def test_without_parameters_through_the_dispatcher(reference, reads, monkeypatch):
    """Under a profiler the operators are called through the dispatcher, with one tensor in place of the parameters."""

    @snn.neuron(states=("mem",))
    def Plain(x, mem, *, spike):
        mem = 0.5 * mem + x
        return spike(mem - 1), mem

    if reference:
        monkeypatch.setattr(compiled, "kernels", lambda *arguments: None)
    x = X.clone().requires_grad_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        Plain().sequence(x)[reads].sum().backward()
    expected = X.clone().requires_grad_()
    snn.Leaky(beta=0.5, reset_mechanism="none").sequence(expected)[reads].sum().backward()
    assert torch.allclose(x.grad, expected.grad)


@pytest.mark.parametrize("reference", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["reference", "kernel"])
def test_without_a_surrogate_spikes_keep_the_gradients_of_their_factors(reference, monkeypatch):
    @snn.neuron(states=("mem",), parameters={"gain": 1.5})
    def Gained(x, mem, *, gain, spike):
        mem = 0.5 * mem + x
        return spike(mem - 1) * gain, mem

    if reference:
        monkeypatch.setattr(compiled, "kernels", lambda *arguments: None)
    layer = Gained(learn=True, spike_grad=surrogate.Surrogate("no_gradient"))
    out = layer.sequence(X)[0]
    out.sum().backward()
    assert layer.gain.grad == out.count_nonzero() > 0


@needs_host_runtime
@needs_library
def test_on_the_ipu_model():
    """PopART operations and the surrogate's operator give the host's numbers."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = snn.MultiStep(nn.Linear(4, N), Adaptive(learn=True))

        def forward(self, x, target):
            spikes = self.net(x)[0].sum(0)
            return spikes, poptorch.identity_loss((spikes - target).square().mean(), "none")

    torch.manual_seed(1)
    check_training(Model, [(random(7, 3, 4), torch.full((3, N), 3.0))] * 2, lr=0.1)


@snn.neuron(states=("mem",), parameters={"beta": 0.9, "threshold": 1.0})
def Squaring(x, mem, *, beta, threshold, spike):
    """A neuron whose adjoint reads the input."""
    spk = spike(mem - threshold)
    return spk, beta * mem + x * x - spk * threshold
