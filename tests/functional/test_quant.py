"""``snnipu.functional.quant`` against snnTorch's table of differences: the same levels, bit by bit."""

import copy
import itertools
import pickle

import pytest
import snntorch
import torch
from snntorch.functional import quant as snntorch_quant
from support.loops import sequence, steps, with_gradients
from support.tables import assert_refused, each_row
from support.versions import NO_MASKS_IN_MODES, needs_backend

import snnipu as snn
from snnipu.functional import quant

ARGUMENTS = list(itertools.product((1, 3, 4, 8), (True, False), (True, False), (1, 0.5, 5.0, -1), (0, 0.3)))
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def difficult_values(levels):
    """Return the levels, the middles between them with adjacent floats, distant values, infinities and NaN."""
    middle = (levels[1:] + levels[:-1]) / 2
    above, below = (torch.nextafter(middle, torch.tensor(end)) for end in (1e9, -1e9))
    far = [torch.randn(50) * scale for scale in (1, 1e3, 1e5, 1e6, 1e7, 1e9)]
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38, -3e38])
    return torch.cat([levels, middle, above, below, *far, odd])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_levels_are_snntorchs(dtype):
    torch.manual_seed(0)
    for arguments in ARGUMENTS:
        theirs, ours = snntorch_quant.state_quant(*arguments), quant.state_quant(*arguments)
        x = difficult_values(ours.levels).to(dtype)
        expected, actual = theirs(x), ours(x)
        assert actual.dtype == expected.dtype, arguments
        assert torch.equal(actual, expected), arguments


@pytest.mark.parametrize(
    "levels",
    [
        [0.5],
        [2.0, 1.0, 0.0],
        [1.0, 1.0, 3.0],
        [0.0, 1e-9, 1.0],
        [0.0, 1e-30, 2e-30, 1.0],
        [-1.0, float("inf")],
        [float("nan"), 0.0, 1.0],
    ],
)
def test_any_levels(levels):
    levels = torch.tensor(levels)
    x = torch.cat([difficult_values(levels), torch.linspace(-4, 4, 999)])
    expected = snntorch_quant.StateQuant.apply(x, levels)
    assert torch.equal(quant.StateQuant(levels)(x).nan_to_num(7.0), expected.nan_to_num(7.0))


def test_shapes_and_gradient():
    ours = quant.state_quant(4)
    for shape in ((), (0,), (3, 0, 2), (2, 3, 4)):
        x = torch.randn(shape, requires_grad=True)
        out = ours(x)
        assert out.shape == shape
        weight = torch.randn(shape)
        (out * weight).sum().backward()
        assert torch.equal(x.grad, weight)
    x = torch.randn(4, 6).t()
    with torch.inference_mode():
        assert torch.equal(ours(x), snntorch_quant.state_quant(4)(x))


@needs_backend
@pytest.mark.parametrize("levels", [[0.5], [1.0, 1.0, 3.0], [-1.0, float("inf")], [float("nan"), 0.0, 1.0], None])
def test_levels_in_a_graph(levels):
    """A graph compares few levels one by one."""
    ours = quant.state_quant(4, uniform=False) if levels is None else quant.StateQuant(torch.tensor(levels))
    x = difficult_values(ours.levels).requires_grad_()
    out = torch.compile(lambda x: ours(x), backend="eager")(x)
    assert torch.equal(out.nan_to_num(7.0), snntorch_quant.StateQuant.apply(x, ours.levels).nan_to_num(7.0))
    out.backward(x.detach())
    assert torch.equal(x.grad.nan_to_num(7.0), x.detach().nan_to_num(7.0))


def test_a_result_changed_in_place_is_quantized_again():
    ours = quant.state_quant(4)
    out = ours(torch.randn(9))
    assert ours(out) is out
    out += 0.01
    again = ours(out)
    assert again is not out
    assert torch.equal(again, snntorch_quant.state_quant(4)(out))


@pytest.mark.skipif(NO_MASKS_IN_MODES is not None, reason=str(NO_MASKS_IN_MODES))
def test_no_large_table():
    ours = quant.state_quant(8)
    largest = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest.append(out.numel())
            return out

    x = torch.randn(10_000)
    for uniform in (True, False):
        ours = quant.state_quant(8, uniform=uniform)
        ours(x[:2])
        with Sizes():
            ours(x * 2)
    assert max(largest) == x.numel()


NEURONS = {
    **{
        f"Leaky, {reset}": ("Leaky", {"beta": 0.9, "learn_beta": True, "reset_mechanism": reset})
        for reset in ("subtract", "zero", "none")
    },
    "Synaptic": ("Synaptic", {"alpha": 0.8, "beta": 0.9}),
    "Alpha": ("Alpha", {"alpha": 0.9, "beta": 0.8}),
    "Lapicque": ("Lapicque", {"beta": 0.9}),
    "RLeaky": ("RLeaky", {"beta": 0.9, "all_to_all": False, "V": 0.3}),
    "RSynaptic": ("RSynaptic", {"alpha": 0.8, "beta": 0.9, "all_to_all": False, "V": 0.3}),
    "SLSTM": ("SLSTM", {"input_size": 20, "hidden_size": 20, "threshold": 0.1}),
}


def by_steps(neuron, x):
    states = neuron.reset_mem()
    return steps(neuron, x, *(states if isinstance(states, tuple) else (states,)))


@pytest.mark.parametrize("ours_or_theirs", [quant, snntorch_quant])
@pytest.mark.parametrize("name", NEURONS)
def test_neurons(name, ours_or_theirs):
    """Check steps and gradients. Leaky always uses our quantizer: check its sequence, too."""
    kind, keywords = NEURONS[name]
    x = torch.randn(5, 3, 20, generator=torch.Generator().manual_seed(0))
    results = []
    for source, quantizer in ((snntorch if kind == "Leaky" else snn, snntorch_quant), (snn, ours_or_theirs)):
        torch.manual_seed(1)
        neuron = getattr(source, kind)(**keywords, state_quant=quantizer.state_quant(4, threshold=1))
        run = by_steps
        if source is snn and kind == "Leaky":
            assert isinstance(neuron.state_quant, quant.StateQuant)
            assert all(map(torch.equal, neuron.sequence(x), by_steps(neuron, x)))
            run = sequence
        out, gradients = with_gradients(run, neuron, x)
        results.append([*out, *gradients])
    assert all(map(torch.equal, *results))


def test_pickles_and_copies():
    ours = quant.state_quant(4)
    x = torch.randn(30)
    for twin in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert torch.equal(twin(x), ours(x))
    assert "16 levels" in repr(ours)


@each_row("""
quant.StateQuant([0.0, 1.0]) | TypeError: levels must be
quant.StateQuant(torch.zeros(2, 2)) | ValueError: levels must be
quant.StateQuant(torch.arange(3)) | ValueError: levels must be
""")
def test_bad_levels(row):
    assert_refused(row, globals())
