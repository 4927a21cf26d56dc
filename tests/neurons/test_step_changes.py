"""A step is described once and checked at each call: every change between two steps takes effect."""

import copy
from unittest import mock

import pytest
import snntorch
import torch
from neurons.test_own import Adaptive, Squaring
from support.loops import kinds, neuron_of
from torch.utils.checkpoint import checkpoint

import snnipu as snn
from snnipu.backends import host, neuron_step
from snnipu.neurons import _states

pytestmark = pytest.mark.skipif(host.library is None, reason="needs the kernels")

SHAPE = (4, 6)
KINDS = [name for name in kinds(6) if name != "DeltaLeaky"]


def _half(mem):
    return (mem * 4).round() / 4


def _no_spikes(self, mem):
    return torch.zeros_like(mem) + 0 * mem


# What a user may change between two steps of ``lif``.
CHANGES = {
    "written in place": "lif.threshold.data.fill_(0.25)",
    "exchanged data": "lif.threshold.data = torch.full_like(lif.threshold, 0.25)",
    "another tensor": "lif.threshold = type(lif.threshold)(torch.full_like(lif.threshold, 0.25))",
    "it learns": "lif.threshold.requires_grad_(True)",
    "it learns no more": "lif.threshold.requires_grad_(False)",
    "another surrogate": "lif.spike_grad = snn.surrogate.fast_sigmoid(5.0)",
    "another kernel of its surrogate": "lif.spike_grad.kernel = snn.surrogate.fast_sigmoid(5.0).kernel",
    "a function as surrogate": "lif.spike_grad = lambda u: snntorch.surrogate.atan()(u)",
    "another reset": "lif.reset_mechanism = 'none'",
    "no delay": "lif.reset_delay = False",
    "quantised": "lif.state_quant = _half",
    "fire of its own": "lif.fire = _no_spikes.__get__(lif)",
    "a bound state function": "lif.state_function = lif._base_int",
    "loaded": "lif.load_state_dict({name: value * 0.5 for name, value in lif.state_dict().items()})",
    "its states": "lif.reset_mem()",
    "another class": "lif.__class__ = _subclass(lif, fire=_no_spikes, forward=type(lif).forward)",
    "a property of another class": "lif.__class__ = _subclass(lif, spike_grad=property(lambda lif: _LSO))",
    "another strength": "if hasattr(lif, 'V'): lif.recurrent.V = torch.nn.Parameter(torch.tensor(0.1))",
    "another recurrence": "if hasattr(lif, 'recurrent'): lif.recurrent = torch.nn.Linear(6, 6)",
    "a parametrization": "_parametrize(lif)",
}
_LSO = snn.surrogate.LSO(0.5)


def _subclass(lif, **parts):
    return type("Own", (type(lif),), parts)


class _Halved(torch.nn.Module):
    def forward(self, value):
        return value / 2


def _parametrize(lif):
    if lif._parameters.get("beta") is not None:
        torch.nn.utils.parametrize.register_parametrization(lif, "beta", _Halved())


def run(kind, change="", init_hidden=False, anew=False, source=snn, start=""):
    """Run eight steps with ``change`` after the fourth; return spikes, states, gradients and the error.

    With ``anew`` the step is described again at each call.
    """
    snntorch.SpikingNeuron.init()
    torch.manual_seed(0)
    lif = neuron_of(kind, 6, source, init_hidden=init_hidden, output=True)
    exec(start, globals(), {"lif": lif})
    parameters = dict(lif.named_parameters())
    x = torch.randn(8, *SHAPE, requires_grad=True)
    out, states = [], ()
    for t, current in enumerate(x):
        if anew:
            lif._description = None
        spk, *states = lif(current) if init_hidden else lif(current, *states)
        out.extend([spk, *states])
        if t == 3:
            exec(change, globals(), {"lif": lif})
    parameters.update(lif.named_parameters(), threshold=lif.threshold)
    error = None
    try:
        torch.stack([(value * (i + 1)).sum() for i, value in enumerate(out)]).sum().backward()
    except RuntimeError as caught:  # for a parameter written in place
        error = str(caught)[:100]
    grads = {name: p.grad for name, p in parameters.items()}
    return [value.detach() for value in out], x.grad, grads, error


def check(actual, other, exact=True):
    exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(actual[0], other[0], **exactly)
    torch.testing.assert_close(actual[1:3], other[1:3], **exactly if exact else {"rtol": 1e-5, "atol": 1e-5})
    assert actual[3] == other[3]


@pytest.mark.parametrize("init_hidden", [False, True], ids=["given", "hidden"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_give_snntorchs_numbers(kind, init_hidden):
    actual = run(kind, init_hidden=init_hidden)
    check(actual, run(kind, init_hidden=init_hidden, anew=True))
    check(actual, run(kind, init_hidden=init_hidden, source=snntorch), exact=False)


@pytest.mark.filterwarnings("ignore:.*replaces")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_seen(kind, change):
    check(run(kind, CHANGES[change]), run(kind, CHANGES[change], anew=True))


def _set_class(lif):
    kind = type(lif)
    lif.__class__ = _subclass(lif, _base_state_function=lambda self, x: kind._base_state_function(self, 0.5 * x))


def _function(u):
    return (u > 0.5) + 0 * u


# Changes that make steps run by snnTorch, and their inverses.
UNFUSED = {
    "state_quant": (CHANGES["quantised"], "lif.state_quant = False"),
    "fire": (CHANGES["fire of its own"], "del lif.fire"),
    "class": ("_set_class(lif)", "lif.__class__ = type(lif).__mro__[1]"),
    "surrogate": ("lif.spike_grad = _function", "lif.spike_grad = snn.surrogate.atan()"),
    "inhibition": ("lif.inhibition = True", "lif.inhibition = False"),
}


# Changes that make steps run by snnTorch, and their inverses.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*replaces")
@pytest.mark.parametrize("change", ["nothing", "back", *CHANGES])
@pytest.mark.parametrize("init_hidden", [False, True], ids=["given", "hidden"])
@pytest.mark.parametrize("unfused", UNFUSED)
@pytest.mark.parametrize("kind", ["Leaky", "Leaky, learnt", "Synaptic"])
def test_steps_that_are_snntorchs_see_a_change(kind, unfused, init_hidden, change):
    """Steps that snnTorch runs are also described once and checked at each call."""
    start, back = UNFUSED[unfused]
    statement = {"nothing": "", "back": back, **CHANGES}[change]
    actual = run(kind, statement, init_hidden, start=start)
    check(actual, run(kind, statement, init_hidden, start=start, anew=True))
    if change in ("nothing", "back"):
        check(actual, run(kind, statement, init_hidden, start=start, source=snntorch), exact=change == "nothing")


@pytest.mark.parametrize("kind", [snntorch.SpikingNeuron, snntorch.Leaky])
def test_a_reset_signal_of_snntorch_that_is_exchanged(kind, monkeypatch):
    """The signal of all neurons, or of one class, is replaced."""
    monkeypatch.setattr(_states, "_WARNED", set())
    x = torch.full((3, 4), 0.75)
    pairs = [[source.Leaky(beta=0.9, state_quant=q) for source in (snn, snntorch)] for q in (False, _half)]
    for lif, other in pairs:
        lif(x), other(x)
    monkeypatch.setattr(kind, "mem_reset", lambda self, mem: torch.full_like(mem, 0.25))
    for lif, other in pairs:
        for _ in range(3):
            assert torch.equal(lif(x)[1], other(x)[1])
    assert list(_states._WARNED) == [(snn.Leaky, "mem_reset")]


def step_of(lif):
    """Return an input, and a state for the next step."""
    x = torch.randn(SHAPE)
    return x, lif(x)[1]


def direct_step(lif, x, mem):
    """Call the kernel of a step directly; return None if the layer does not allow it."""
    return lif._direct_step(lif._describe(), x, (mem,))


def test_steps_that_are_columns_of_a_sequence():
    """``x[:, t]`` is not contiguous."""
    lif = snn.Leaky(beta=0.9, threshold=0.3)
    sequence = torch.randn(4, 3, 5)
    results = []
    for columns in (True, False):
        x = sequence.clone().requires_grad_()
        mem, rows = lif.reset_mem(), []
        for t in range(x.shape[1]):
            spk, mem = lif(x[:, t] if columns else x[:, t].contiguous(), mem)
            rows += [spk, mem]
        torch.stack(rows).sum().backward()
        results.append((torch.stack(rows), x.grad))
    assert all(map(torch.equal, *results))
    assert direct_step(lif, sequence[:, 1], mem) is not None


def test_no_direct_call_takes_what_its_kernel_does_not():
    lif = snn.Leaky(beta=0.9)
    x, mem = step_of(lif)
    result = direct_step(lif, x, mem)
    assert torch.equal(result[1], lif(x, mem)[1])
    # Other inputs and states.
    for other, state in [
        (x.double(), mem.double()),
        (x.double(), mem),
        (x, mem.double()),
        (x, mem[:2]),
        (x[:2], mem),
        (x.t(), mem.t()),
        (x, mem.t().contiguous().t()),
        (x.t().contiguous().t(), mem.t().contiguous().t()),
        (x[:0], mem[:0]),
        (x[0, 0], mem[0, 0]),
        (x.half(), mem.half()),
        (x.long(), mem),
        (x, 0.0),
        (None, mem),
        (x.to("meta"), mem.to("meta")),
        (x.to_sparse(), mem),
    ]:
        assert direct_step(lif, other, state) is None
    # Profilers and modes see the operator.
    with torch.autograd.profiler.profile():
        assert direct_step(lif, x, mem) is None
    with torch.autograd.forward_ad.dual_level():
        assert direct_step(lif, x, mem) is None
    with mock.patch.object(host, "library", None):
        assert direct_step(lif, x, mem) is None
    seen = []
    torch.func.vmap(lambda row: seen.append(direct_step(lif, row, mem[0])) or row)(x)
    assert seen == [None]
    with mock.patch.object(neuron_step.popart, "on_ipu", return_value=True):
        assert direct_step(lif, x, mem) is None


def test_parameters_that_no_longer_fit_the_step():
    def prepared():
        lif = neuron_of("Leaky, learnt", 6)
        x, mem = step_of(lif)
        assert direct_step(lif, x, mem) is not None
        return lif, x, mem

    lif, x, mem = prepared()
    assert direct_step(lif, x[:, :3].contiguous(), mem[:, :3].contiguous()) is None
    for other in (torch.rand(4), torch.rand(1, 1, 6), torch.rand(6).double(), torch.rand(6).half()):
        lif, x, mem = prepared()
        lif.beta.data = other
        assert direct_step(lif, x, mem) is None
        if other.dim() == 3:
            assert lif(x, mem)[1].shape == (1, *SHAPE)  # as snnTorch's
    lif, x, mem = prepared()
    lif.beta.data = torch.rand(1, 6)
    expected = neuron_of("Leaky, learnt", 6, snntorch)
    expected.beta.data = lif.beta.data
    assert torch.equal(direct_step(lif, x, mem)[1], expected(x, mem)[1])
    assert lif._last_step[1].grad_fn is None  # the graph of the previous step is not kept alive


def test_a_parameter_that_is_a_plain_attribute_is_read_at_every_step():
    """Pruning and the older weight norm leave a plain attribute, which a hook sets before each call."""
    lif = snn.Leaky(beta=0.9)
    x = torch.rand(SHAPE)
    for value in (1.0, 0.25):
        if "threshold" in lif._buffers:
            del lif.threshold
        lif.threshold = torch.tensor(value)
        for _ in range(2):
            lif.reset_mem()
            expected = snn.Leaky(beta=0.9, threshold=value)(x)
            assert all(torch.equal(*pair) for pair in zip(lif(x), expected))


def test_changes_of_a_class_are_seen():
    for name, part in [("fire", _no_spikes), ("threshold", property(lambda self: torch.tensor(0.5)))]:
        kind = type("Mine", (snn.Leaky,), {})
        lif = kind(beta=0.9)
        assert lif._describe().plan is not None
        setattr(kind, name, part)
        with pytest.warns(UserWarning, match=f"replaces {name}"):
            assert lif._describe().plan is None


def test_a_copy_follows_its_own_parameters():
    lif = snn.Leaky(beta=0.9, learn_beta=True)
    x, mem = step_of(lif)
    other = copy.deepcopy(lif)
    with torch.no_grad():
        other.beta.fill_(0.5)
    assert not torch.equal(other(x, mem)[1], lif(x, mem)[1])
    swapped = torch.func.functional_call(lif, {"beta": torch.tensor(0.5)}, (x, mem))
    assert torch.equal(swapped[1], other(x, mem)[1])


OWN = {"Adaptive": Adaptive, "Squaring": Squaring}


@pytest.mark.parametrize("which", ["float32", "float64"])
@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(name, marks=pytest.mark.slow) for name in OWN)])
def test_writes_into_what_a_step_was_given_or_gave_do_not_reach_its_gradient(kind, which):
    dtype = torch.float64 if which == "float64" else torch.float32
    lif = (OWN[kind](learn=("beta",)) if kind in OWN else neuron_of(kind, 6)).to(dtype)
    first = lif(torch.rand(SHAPE, dtype=dtype))
    inputs = [
        torch.rand(SHAPE, dtype=dtype).requires_grad_(),
        *(state.detach().clone().requires_grad_() for state in first),
    ]
    inputs = inputs if kind.startswith("R") else [inputs[0], *inputs[2:]]  # recurrent neurons take spikes
    outputs = lif(*inputs)
    upstream = [torch.rand_like(value) for value in outputs]
    leaves = [*inputs, *(p for p in lif.parameters() if p.requires_grad)]

    def grads():
        computed = torch.autograd.grad(outputs, leaves, upstream, retain_graph=True, allow_unused=True)
        return [None if grad is None else grad.clone() for grad in computed]

    expected = grads()
    assert any(grad is not None and grad.any() for grad in expected)
    for value in (*inputs, *outputs):
        if not (
            hasattr(lif, "recurrent") and not hasattr(lif, "V") and value is inputs[1]
        ):  # PyTorch's product saves the spikes
            value.data.fill_(7.0)
    torch.testing.assert_close(grads(), expected, rtol=0, atol=0)


def test_a_negative_zero_is_not_the_zero_of_an_earlier_layer():
    x, mem = torch.tensor([[-0.0, 0.0, -1.0]]), torch.tensor([[1.0, -1.0, 0.5]])
    for beta in (0.0, -0.0):
        ours, theirs = (source.Leaky(beta=beta)(x, mem)[1] for source in (snn, snntorch))
        assert torch.equal(ours, theirs)
        assert torch.equal(torch.signbit(ours), torch.signbit(theirs))


@pytest.mark.parametrize("kind", ["Leaky", "Synaptic", "RLeaky, one to one"])
def test_a_state_given_by_its_name_is_taken(kind):
    results = []
    for source in (snntorch, snn):
        torch.manual_seed(0)
        lif = neuron_of(kind, 6, source)
        _, *states = lif(torch.rand(SHAPE))
        x, other = torch.rand(2, *SHAPE)
        calls = [lif(x, *states), lif(x, *states), lif(x, *states[:-1], mem=other), lif(x, *states[:-1], other)]
        results.append([value for outputs in calls for value in outputs])
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("input_dtype", "state_dtype"),
    [
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
    ],
)
@pytest.mark.parametrize("kind", ["Leaky", "Synaptic", "Alpha", "Lapicque", "RLeaky, one to one"])
def test_a_state_of_another_dtype_is_snntorchs(kind, input_dtype, state_dtype):
    results = []
    for source in (snntorch, snn):
        torch.manual_seed(0)
        lif = neuron_of(kind, 6, source)
        states = [(2 * torch.rand(SHAPE)).to(state_dtype) for _ in lif(torch.rand(SHAPE))[1:]]
        if kind == "RLeaky, one to one":
            states = [torch.rand(SHAPE).round(), *states]
        results.append(lif(torch.rand(SHAPE, dtype=input_dtype), *states))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("change", [torch.Tensor.double, lambda saved: saved[:1].clone(), lambda saved: saved.t()])
def test_saved_tensors_that_a_hook_exchanges_are_refused(change):
    lif = snn.Leaky(beta=0.9)
    x = torch.rand(4, 6, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, change):
        _, mem = lif(x)
        spk, _ = lif(x, mem)
    with pytest.raises(RuntimeError, match="of the backward pass of a neuron must be contiguous"):
        spk.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_under_checkpoint(kind):
    """In its second run, the states before the first step are no longer empty."""
    lif, x = neuron_of(kind, 6), torch.rand(3, *SHAPE, requires_grad=True)

    def loop(x):
        lif.reset_mem()
        return torch.stack([lif(current)[-1] for current in x])

    runs = checkpoint(loop, x, use_reentrant=False), loop(x)
    assert torch.equal(*[torch.autograd.grad(out.sum(), x)[0] for out in runs])
